"""What the machine, its processes, files and terminal offer to every room. Only processes.py imports PyTorch.

machine.py      cores, memory, threads and compilers of this machine; signals that ask a process to go; how
                PyTorch is imported fast
launch.py       who started this process, which of a run's processes it is, and what they tell one another
environment_variables.py: what the processes of one command tell one another
processes.py    the processes of a distributed training, as PyTorch's process group knows them; their model
whole_file.py   writes a file whole or not at all; CSV files
printing.py     text that is safe to print, and bars of long steps
hub.py          Hugging Face's hub of models and tokenizers, and what its libraries print
version.py      which mpx this is
"""

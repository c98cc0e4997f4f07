"""Settings: the one place of every key's rule. Errors are one line. Nothing heavy is imported.

rules.py          the kinds of rules; fields.py: the rule of every key of mpx.train; bench.py, compare.py, deploy.py: of the other commands
values.py         each value against its rule
tokenizer.py      the tokenizer that a pretrained model brings
project.py        a project of the user's own; recorder.py: the arguments of mpx.Recorder and mpx.Record
extras.py         where conf/ is, and how to get optional packages
check.py          a whole configuration: values, then combinations in data.py, model.py, sparsity.py, apex.py, fsdp.py, reachable.py
front_door.py     what the commands share; words.py: the command line as typed; translate.py: Hydra's errors in one line

Library callers get the same rules: mpx.data.load and mpx.models.build call values.checked, data.check_data and model.check_model.
"""

from mpx.settings.check import check

__all__ = ["check"]

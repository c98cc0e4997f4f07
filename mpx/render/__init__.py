"""What a person reads: tables on the terminal, the report, plots and TensorBoard.

a run      run_tables.py, profile.py, sensitivity.py and exponents.py at its end; tensorboard.py: all that is no curve
a sweep    sweep_lines.py while it runs, sweep_table.py at its end
a study    comparison_table.py prints a Comparison; report.py writes it: html.py (of cells.py), markdown.py, plots/, and for TensorBoard
           summary_run.py
a card     card.py: the results part of a README in experiments/
"""

"""What a person reads: tables on the terminal, the report, plots and TensorBoard.

tables     table.py: the one model of a table, and its forms on the terminal, in Markdown, HTML and CSV
a run      run.py, profile.py, sensitivity.py and exponents.py at its end; tensorboard.py: all of it that is no curve
a sweep    sweep_progress.py while it runs, sweep.py at its end
a study    comparison_tables.py -> terminal.py, markdown.py and html.py (templates/); report.py writes these, plots/, and for TensorBoard
           summary_run.py
a card     card.py: the results part of a README in experiments/
"""

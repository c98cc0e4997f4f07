"""All output for people: tables on the terminal, the report, plots and TensorBoard.

tables     table.py: the one table model, with its terminal and Markdown forms; HTML is in templates/
a run      run.py, profile.py, sensitivity.py and exponents.py at its end; tensorboard.py: everything except the curves
a sweep    sweep_progress.py while it runs, sweep.py at its end
a study    comparison_tables.py -> terminal.py, markdown.py and html.py (templates/); report.py writes these files, plots/ and the
           TensorBoard run of summary_run.py
a card     card.py: the results section of a README in experiments/
"""

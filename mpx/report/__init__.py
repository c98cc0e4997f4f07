"""What a person reads: statistics, tables, plots, the report and TensorBoard.

a run        progress.py and scalars.py while it trains; tables.py, profile_table.py, sensitivity.py and exponents.py at its end;
             tensorboard.py: all that is no curve
a sweep      sweep_lines.py while it runs, sweep_table.py at its end
a study      collect.py (result.json) or results.py (results.csv) -> Runs, groups.py: which is compared with which
             control (control.py, names.py), aggregate.py -> a Comparison (comparison.py), by way of statistics.py, decisions.py, speed.py,
             verdict.py, notes.py, defaults.py;
             comparison_table.py prints it, report.py writes it: html.py (of cells.py), markdown.py, plots/, and for TensorBoard
             summary_run.py (tfrecords.py writes events, events.py and curves.py read them); batches.py, commands.py, words.py
mpx.bench    bench/, one file for each what=
a card       card.py: the results part of a README in experiments/
"""

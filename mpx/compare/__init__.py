"""Compare the recorded runs of a study: which setting is fastest at no loss of accuracy. Nothing here needs torch or Lightning.

read          collect.py (result.json) or results.py (results.csv) -> Run (comparison.py); defaults.py: unnamed differences between runs;
              json_file.py, rules.py, run_tables.py: what they refuse;
              deployed.py (deploy.json) or served_csv.py (served.csv) -> Served (comparison.py);
              predictions.py (predictions.json) or predictions_csv.py (predictions.csv) -> Predictions (mpx/runs)
group         control.py, names.py, groups.py: which run is compared with which control; metric.py: by what
decide        aggregate.py -> Comparison, with statistics.py, looks.py, boundaries.py, decisions.py, speed.py, served.py, notes.py,
              verdict.py and time_to_train.py; population.py, sampled.py: the interval for the population that the test set is a sample of
also          batch_scaling.py: speed-ups by batch size; curves.py: curves over training; commands.py: how to repeat a study;
              differences_csv.py: both intervals for a spreadsheet; words.py: how figures and decisions are worded
__main__.py   `python -m mpx.compare`

A new figure of a run needs a field of Run in comparison.py, which is its column of results.csv, and its place in the record in collect.py.
To be a column of the tables, it needs a field of Row, its mean in aggregate.py, a cell in mpx/render/comparison_tables.py, and a head in
mpx/render/terminal.py and markdown.py (HTML has Markdown's heads).
"""

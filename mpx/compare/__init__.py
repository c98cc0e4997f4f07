"""Compare the recorded runs of a study: which setting is fastest at no loss of accuracy. Nothing here needs torch or Lightning.

read          collect.py (result.json) or results.py (results.csv) -> Run (comparison.py); defaults.py: unnamed differences between runs;
              json_file.py, rules.py, run_tables.py: what they refuse;
              deployed.py (deploy.json) or served_csv.py (served.csv) -> Served (comparison.py);
              predictions.py (predictions.json) or predictions_csv.py (predictions.csv) -> Predictions (mpx/runs)
group         control.py, names.py, groups.py: which run is compared with which control
decide        aggregate.py -> Comparison, with statistics.py, looks.py, boundaries.py, decisions.py, speed.py, served.py, notes.py,
              verdict.py and soonest.py; population.py, sampled.py: the interval for the population that the test set is a sample of
also          batch_scaling.py: speed-ups by batch size; curves.py: curves over training; commands.py: how to repeat a study;
              differences_csv.py: both intervals for a spreadsheet; words.py: how figures and decisions are worded
__main__.py   `python -m mpx.compare`
"""

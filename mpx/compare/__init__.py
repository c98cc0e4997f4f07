"""Compare the recorded runs of a study: which setting is fastest at no loss of accuracy? Nothing here needs torch or Lightning.

read          runs: collect.py (result.json) or results.py (results.csv), into Run (run.py)
              served models: deployed.py (deploy.json) or served_csv.py (served.csv), into Served (run.py)
              predictions: predictions.py (predictions.json) or predictions_csv.py (predictions.csv), into Predictions (mpx/runs)
              checks: json_file.py, rules.py, run_tables.py; defaults.py: settings that differ although no run names them
              own_loops.py: what the record of a user's own loop does not vouch for
group         control.py, names.py, groups.py: which run is compared with which control; metric.py: by which metric
decide        decisions.py: loss or no loss, with statistics.py; copies.py: seeds that change nothing; looks.py and boundaries.py: planned
              looks; sampled.py and population.py: single test samples
              speed.py, served.py, time_to_train.py: which speeds count, and speed-ups
              verdict.py, notes.py: the sentences; aggregate.py puts all together into Comparison (comparison.py)
also          batch_scaling.py: speed-ups by batch size; curves.py: training curves; commands.py: how to repeat a study;
              differences_csv.py: differences and intervals for a spreadsheet; words.py: the wording of figures and decisions
__main__.py   `python -m mpx.compare`

A new figure of a run needs a field of Run in run.py, which becomes a column of results.csv, and its place in the record in
collect.py. To appear in the tables, it needs a field of Row, its mean in aggregate.py, a cell in mpx/render/comparison_tables.py, and a
head in mpx/render/terminal.py and markdown.py (HTML uses Markdown's heads).
"""

"""Compare the recorded runs of a study: which setting is fastest at no loss of accuracy? Nothing here needs
torch or Lightning.

A Question goes in, a Comparison comes out (comparison.py; aggregate.py builds it):

read      run.py: a run, and how it was served; collect.py and served.py: from result.json and
          deploy.json; table.py: results.csv, which keeps all of them
group     groups.py: which run is compared with which control
decide    decisions.py: test, correct, decide; with statistics.py over seeds, population.py over test samples,
          looks.py and boundaries.py for planned looks
speed     speed.py: the Place in which speeds count, and speed-ups
say       fastest.py: who is fastest; verdict.py: the sentences; notes.py: caveats; words.py: phrases,
          and how to repeat a study
list      listing.py: all runs as flat records, and the removal of failed ones
__main__  `python -m mpx.compare`

A new figure of a run needs a field of Run, which becomes a column of results.csv, and its place in the record
in collect.py. To appear in the tables, it needs a field of Row, its mean in aggregate.py, and a cell in
mpx/render/comparison_tables.py.
"""

"""Settings: the only place of every key's rule. Errors are one line. Nothing heavy is imported.

rules.py          the kinds of rules; fields.py: the rule of every key of mpx.train and mpx.bench; compare.py,
                  deploy.py: of the other commands
values.py         checks each value against its rule
project.py        checks the user's own project; target.py: builds what a `_target_` names
arguments.py      checks the arguments of mpx.Recorder, mpx.Record, mpx.Precision and mpx.Sparsity
choices.py        the groups, keys and comments of conf/, which --help prints; optional packages
check.py          checks a whole configuration: values, then combinations in data.py, model.py, sparsity.py,
                  reachable.py
front_door.py     what all commands do with a command line; translate.py: Hydra's errors in one line
"""

from mpx.settings.check import check

__all__ = ["check"]

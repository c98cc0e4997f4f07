"""Settings: the only place of every key's rule. Errors are one line. Nothing heavy is imported.

rules.py          the kinds of rules; fields.py: the rule of every key of mpx.train; bench.py, compare.py,
                  deploy.py: of the other commands
values.py         checks each value against its rule
tokenizer.py      chooses the tokenizer that a pretrained model brings
project.py        checks the user's own project; target.py: builds what a `_target_` names
arguments.py      checks the arguments of mpx.Recorder, mpx.Record, mpx.Precision and mpx.Sparsity
goal.py           whether a metric rises or falls, for both
extras.py         finds conf/, and says how to get optional packages
choices.py        what the files of conf/ say of each key, which help.py prints for --help
check.py          checks a whole configuration: values, then combinations in data.py, model.py, sparsity.py,
                  apex.py, reachable.py
front_door.py     what all commands do with a command line; translate.py: Hydra's errors in one line
help.py           what --help prints; choices.py: the groups, keys and comments of conf/

Library callers get the same rules: mpx.data.load and mpx.models.build call values.checked, data.check_data
and model.check_model.
"""

from mpx.settings.check import check

__all__ = ["check"]

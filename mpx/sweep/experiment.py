"""`experiment=<question>`: a ready-made study. Its grid is `hydra.sweeper.params` in conf/experiment/<question>.yaml."""

from omegaconf import DictConfig

from mpx.errors import UserError
from mpx.settings.front_door import typed, words_of
from mpx.settings.values import key_of


def check_experiment(config: DictConfig) -> None:
    """Raise UserError for a single run that names an experiment without a value for each key of its grid. config: Hydra's.

    A job of the sweep has a value for each of these keys, so its command line can be repeated by hand.
    """
    chosen = config.runtime.choices.get("experiment")
    grid = list(config.sweeper.get("params") or {})
    given = set(map(key_of, [*words_of(config), *typed(config)]))  # a grid may be over mappings
    missing = [key for key in grid if key_of(key) not in given]
    if chosen is not None and missing:
        raise UserError(
            f"experiment={chosen} is a grid over {', '.join(grid)}, and this is a single run. Start all of it with "
            f"python -m mpx.train -m experiment={chosen}, or give one value each to {', '.join(missing)}."
        )

"""What the front doors share: where the configuration lies, and how a mistake in it is shown."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from mpx.channels import shows_traceback
from mpx.settings.fields import FIELDS
from mpx.settings.translate import GROUPS, one_line
from mpx.settings.words import checked

PACKAGE = Path(__file__).resolve().parents[1]
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"  # from the wheel, or from the repository


@contextmanager
def errors_in_one_line(
    keys: Iterable[str] | None = None, program: str = "mpx.train", *, told: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Turn a mistake in the settings into one line on stderr and exit code 2; HYDRA_FULL_ERROR=1 shows the traceback.

    keys: those that `program` takes; None for mpx.train's. told: who else must hear of it.
    """
    try:
        yield
    except Exception as error:
        line = one_line(error) if keys is None else one_line(error, keys, program)
        if line is None or shows_traceback():
            raise
        line = " ".join(line.split())  # a value may hold the end of a line
        print(f"error: {line}", file=sys.stderr)
        if told is not None:
            told(line)
        sys.exit(2)


def read_words(keys: Iterable[str] | None = None, program: str = "mpx.train") -> None:
    """Check the command line as it was typed, before Hydra does. keys: those that `program` takes; None for mpx.train's."""
    sys.argv[1:] = checked(sys.argv[1:], (*FIELDS, *GROUPS) if keys is None else keys, program, CONF)


def typed(config: DictConfig) -> list[str]:
    """The overrides as the user typed them; read one by one, OmegaConf would look for their ${…} in Hydra's own configuration.

    config: Hydra's.
    """
    return OmegaConf.to_container(config.overrides.task, resolve=False)


def groups_for_help() -> None:
    """Let conf/train.yaml say ${mpx.groups:} where Hydra's own list would also show groups that are not for users (tuned)."""

    def listed() -> str:
        options = GlobalHydra.instance().config_loader().get_group_options  # also of a --config-dir
        return "\n".join(f"{group}: {', '.join(options(group))}" for group in GROUPS)

    OmegaConf.register_new_resolver("mpx.groups", listed, replace=True)

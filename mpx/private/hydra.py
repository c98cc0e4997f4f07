"""Private API of Hydra 1.3. Hydra itself is imported where it is used, since this file is read before a wrong
key is reported.
"""

from collections.abc import Collection


def options() -> Collection[str]:
    """The command line options, such as --multirun. Hydra offers no list of them. --experimental-rerun is
    none here: it runs the code in a pickle that no run of mpx leaves.
    """
    from hydra._internal.utils import get_args_parser

    return get_args_parser()._option_string_actions.keys() - {"--experimental-rerun"}


def register_plugin(plugin: type, name: str) -> None:
    """Let `_target_: name` choose a plugin of mpx's. name: in hydra_plugins, the only package from which
    Hydra takes plugins of others.
    """
    from hydra.core.plugins import Plugins

    Plugins.instance().class_name_to_class[name] = plugin

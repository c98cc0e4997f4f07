"""data=huggingface without the package that it needs."""

from importlib.util import find_spec

from refused import assert_refused

from mpx.settings import reachable
from mpx.settings.choices import install


def test_a_missing_package_is_named_with_the_command_that_installs_it(train, tmp_path, monkeypatch):
    monkeypatch.setattr(reachable, "find_spec", lambda name: None if name == "datasets" else find_spec(name))
    ran = train("model=mlp", "data=huggingface", f"data.path={tmp_path}")
    assert_refused(
        ran,
        "error: data=huggingface needs the package datasets, which is not installed. "
        f"{install('data')} adds it.",
    )

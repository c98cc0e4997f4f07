"""data=huggingface without the package that it needs."""

from importlib.util import find_spec

import pytest

from mpx.settings.extras import install


@pytest.mark.skipif(find_spec("datasets") is not None, reason="the extra is installed")
def test_a_missing_package_is_named_with_the_command_that_installs_it(train, tmp_path):
    ran = train("model=mlp", "data=huggingface", f"data.path={tmp_path}")
    assert ran.code == 2
    assert ran.err == f"error: data=huggingface needs the package datasets, which is not installed. {install('data')} adds it.\n"

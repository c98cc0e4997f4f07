import pytest
from made_clock import clock
from recorded_loops import SETTING

import mpx

__all__ = ["clock"]  # the fixture


@pytest.fixture
def recorder(tmp_path):
    """recorder(precision="amp") -> a Recorder of the study `mine`; capital letters are its other
    arguments.
    """

    def make(*, arguments=None, **setting):
        given = {"study": "mine", "output_dir": tmp_path, "warmup_steps": 2} | (arguments or {})
        return mpx.Recorder(setting=SETTING | setting, **given)

    return make

"""What every mistake in the settings of mpx.train must look like."""


def assert_refused(ran, message):
    """One line with `message`, exit code 2, and no folder."""
    assert ran.err.startswith("error: "), ran.err
    assert message in ran.err
    assert ran.err.count("\n") == 1, ran.err
    assert ran.code == 2
    assert not ran.outputs.exists()

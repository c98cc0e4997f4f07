"""Ctrl-C and SIGTERM end a run once."""

import signal

import pytest

from mpx.run import signals


@pytest.fixture(autouse=True)
def _as_it_was():
    before = {number: signal.getsignal(number) for number in signals.ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("then", signals.ENDING)
def test_only_the_first_counts(monkeypatch, then):
    now = [0.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    signals.stop_once()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    now[0] = signals.PATIENCE - 0.1
    signal.raise_signal(then)
    now[0] = signals.PATIENCE
    with pytest.raises(KeyboardInterrupt if then == signal.SIGINT else SystemExit):
        signal.raise_signal(then)


def test_sigterm_has_its_own_code():
    signals.stop_once()
    with pytest.raises(SystemExit) as ended:
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143


def test_an_ignored_ctrl_c_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals.stop_once()
    signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_held_signals_come_at_the_end():
    signals.stop_once()
    reached = []

    def interrupted():
        with signals.held():
            signal.raise_signal(signal.SIGINT)
            reached.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reached == [True]

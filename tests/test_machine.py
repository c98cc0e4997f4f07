"""A compiler for kernels counts where Triton would find it, and with Python's header files alone."""

import sysconfig

import pytest

from mpx.system.machine import builds_kernels


@pytest.fixture(autouse=True)
def fresh():
    builds_kernels.cache_clear()
    yield
    builds_kernels.cache_clear()


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """machine(programs, headers=True): with those programs, and with Python's headers or without."""

    def make(*programs, headers=True):
        for name in programs:
            (tmp_path / name).write_text("#!/bin/sh\n")
            (tmp_path / name).chmod(0o755)
        if headers:
            (tmp_path / "Python.h").touch()
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setattr(
            sysconfig, "get_config_var", lambda name: str(tmp_path) if name == "INCLUDEPY" else None
        )

    return make


@pytest.mark.parametrize(("programs", "headers", "builds"), [
    (("gcc",), True, True), (("clang",), True, True), (("gcc",), False, False), ((), True, False), (("g++",), True, False),
])  # fmt: skip
def test_what_it_takes(machine, programs, headers, builds):
    machine(*programs, headers=headers)
    assert builds_kernels() is builds


def test_one_that_is_named(machine, monkeypatch):
    machine()
    monkeypatch.setenv("CC", "my-cc")
    assert builds_kernels() is True

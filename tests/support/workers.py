"""How a run with `pytest -n auto` is divided: among more workers than cores, each with neighbouring tests."""

from __future__ import annotations

import os

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Return three workers for two cores: tests spend a third of their time waiting for other processes."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return (3 * len(os.sched_getaffinity(0)) + 1) // 2


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Give each worker the tests of whole files, which share fixtures; who has none left takes others'."""
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "worksteal"

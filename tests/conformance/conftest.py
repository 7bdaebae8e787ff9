"""Fixtures of the conformance suite, and the option that chooses the driver under test.

pytest tests/conformance                                    the Python driver, and all seeded defects
pytest tests/conformance/behaviour --driver=native          the C library, called through ctypes
pytest tests/conformance/behaviour --driver=defect:NAME     a driver with a seeded defect: has to fail
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from softnpu.emulator.supervisor.settings import DaemonSettings
from tests.conformance import models
from tests.conformance.api.enumerations import CACHE_DIR
from tests.conformance.drivers import choose
from tests.conformance.holdings import Holdings
from tests.conformance.rig import SECOND, TDR, Rig
from tests.support.daemon import Daemon

PLATFORMS = ("4000", "3720", "5010")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption("--driver", default="python", help="driver under test: python, native, or defect:NAME")
    group.addoption("--daemon", default="", help="socket of a running daemon of the conformance suite")


@pytest.fixture(scope="session")
def place(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The socket of the suite's daemon; one daemon serves all tests, each in a session of its own."""
    given = request.config.getoption("--daemon", "")
    if given:
        yield _opened(Path(given), request)
        return
    folder = Path(tempfile.mkdtemp(prefix="softnpu-conformance-"))
    settings = DaemonSettings(socket=str(folder / "npu.sock"), devices=PLATFORMS, tdr_ms=TDR * 1000 // SECOND)
    daemon = Daemon(settings)
    try:
        yield _opened(daemon.socket, request)
    finally:
        daemon.close()
        shutil.rmtree(folder)


def _opened(socket: Path, request: pytest.FixtureRequest) -> Path:
    """Opens the driver under test once: a connection that it keeps for the process is no test's leak."""
    choose(request.config.getoption("--driver", "python"))(socket).close()
    return socket


@pytest.fixture
def rig(place: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A fresh session with the driver under test; compiled models are not cached."""
    monkeypatch.setenv(CACHE_DIR, "")
    api = choose(request.config.getoption("--driver", "python"))(place)
    try:
        yield Rig(api)
    finally:
        api.close()


@pytest.fixture
def cached(
    place: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[Rig, Path]]:
    """A fresh session whose compiled models are cached in a directory of the test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(CACHE_DIR, str(folder))
    api = choose(request.config.getoption("--driver", "python"))(place)
    try:
        yield Rig(api), folder
    finally:
        api.close()


@pytest.fixture
def holdings(place: Path) -> Iterator[Holdings]:
    """What the daemon says that the sessions of this process hold."""
    with Holdings(place) as holdings:
        yield holdings


@pytest.fixture(scope="session")
def model() -> models.Model:
    """The model of most tests: `sum = left + right * 2`."""
    return models.weighted_sum()

"""Fixtures of the conformance suite, and the option that selects the driver under test.

pytest tests/conformance                                    the Python driver, and all seeded defects
pytest tests/conformance/behaviour --driver=native          the C library, called through ctypes
pytest tests/conformance/behaviour --driver=defects         each seeded defect, on the test that must fail
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
from tests.conformance.defects import DEFECTS
from tests.conformance.drivers import OpenDriver, choose
from tests.conformance.holdings import Holdings
from tests.conformance.rig import SECOND, TDR, Rig
from tests.support.daemon import Daemon

PLATFORMS = ("4000", "3720", "5010")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption("--driver", default="python", help="driver under test: python, native or defects")
    group.addoption("--daemon", default="", help="socket of a running daemon of the conformance suite")


def _chosen(config: pytest.Config) -> str:
    return str(config.getoption("--driver", "python"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if _chosen(metafunc.config) == "defects" and "driver" in metafunc.fixturenames:
        test = f"{metafunc.module.__name__.rpartition('.')[2]}.py::{metafunc.function.__name__}"
        names = [name for name, defect in DEFECTS.items() if defect.test.partition("[")[0] == test]
        metafunc.parametrize("driver", names, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _chosen(config) == "defects":
        items[:] = [item for item in items if _is_expected(item)]


def _is_expected(item: pytest.Item) -> bool:
    """Return whether this test must fail on its driver."""
    ids = item.callspec.id if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ""
    for name, defect in DEFECTS.items():
        if ids in (name, f"{name}-{defect.parameters}", f"{defect.parameters}-{name}"):
            return True
    return False


@pytest.fixture(scope="session")
def place(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Yield the socket of the suite's daemon; it serves all tests, each in a session of its own."""
    running = request.config.getoption("--daemon", "")
    if running:
        yield _opened(Path(running), request)
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
    """Open the native driver once: its process-wide connection is no test's leak."""
    if _chosen(request.config) == "native":
        choose("native")(socket).close()
    return socket


@pytest.fixture
def driver(request: pytest.FixtureRequest) -> OpenDriver:
    """Return the driver under test."""
    return choose(getattr(request, "param", _chosen(request.config)))


@pytest.fixture
def rig(place: Path, driver: OpenDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """Yield a fresh session with the driver under test; compiled models are not cached."""
    monkeypatch.setenv(CACHE_DIR, "")
    api = driver(place)
    try:
        yield Rig(api)
    finally:
        api.close()


@pytest.fixture
def cached(
    place: Path, driver: OpenDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[Rig, Path]]:
    """Yield a fresh session whose compiled models are cached in a directory of the test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(CACHE_DIR, str(folder))
    api = driver(place)
    try:
        yield Rig(api), folder
    finally:
        api.close()


@pytest.fixture
def holdings(place: Path) -> Iterator[Holdings]:
    """Yield the daemon's view of this process's sessions."""
    with Holdings(place) as holdings:
        yield holdings


@pytest.fixture(scope="session")
def model() -> models.Model:
    """Return the model of most tests: `sum = left + right * 2`."""
    return models.weighted_sum()

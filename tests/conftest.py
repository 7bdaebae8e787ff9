"""Fixtures of all tests: a private daemon, its driver and context, and leak checks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from softnpu.driver import Context, Driver
from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.emulator.interface.environment import (
    ENV_AUTOSTART,
    ENV_ENGINE_CACHE,
    ENV_SELF_CHECK,
    ENV_SOCKET,
)
from softnpu.emulator.supervisor.settings import DaemonSettings
from tests.support.client import ClientProcess
from tests.support.daemon import Daemon, LastingDaemon
from tests.support.leaks import Surroundings

pytest_plugins = ["tests.support.skips"]

DIGITS = Path(__file__).parents[1] / "tools" / "demo" / "data" / "digits.xml"


class StartDaemon(Protocol):
    """Start a daemon on the test's socket, or on another one; settings as in `DaemonSettings`.

    `open_files`: its descriptor limit. `interpreter`: start a fresh interpreter.
    """

    def __call__(self, *, open_files: int = 0, interpreter: bool = False, **settings: Any) -> Daemon: ...


class StartContext(Protocol):
    """Start a daemon with these settings, and open a context on its first device."""

    def __call__(self, **settings: Any) -> tuple[Daemon, Context]: ...


OpenContext = Callable[[Daemon], Context]
"""Open a session of its own, and a context on the first device."""


class StartPython(Protocol):
    """Start client code in another process; keyword arguments are its `given`.

    `interpreter`: start a fresh interpreter.
    """

    def __call__(
        self,
        code: str,
        *,
        environment: Mapping[str, str] | None = None,
        interpreter: bool = False,
        **given: Any,
    ) -> ClientProcess: ...


RunPython = Callable[..., Any]
_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note that a test failed: its traceback then keeps objects alive."""
    report = yield
    if call.excinfo is not None and not report.skipped:
        item.stash[_failed] = True
    return report


@pytest.fixture(scope="session", autouse=True)
def no_cache_of_the_user() -> Iterator[None]:
    """Keep tests' compilations out of the user's model cache; tests of the cache name their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENV_CACHE_DIR, "")
        patch.setenv(ENV_ENGINE_CACHE, "")
        yield


@pytest.fixture(scope="session", autouse=True)
def engines_check_themselves() -> Iterator[None]:
    """Have the engine check every model that a test loads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENV_SELF_CHECK, "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_not_ignored() -> None:
    """Restore SIGINT: a runner of tests in the background may ignore it, and programs would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def private_dir() -> Iterator[Path]:
    """Yield a directory of this test alone, with a path short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="softnpu-test-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def nothing_left_behind(
    private_dir: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Check that every test leaves the machine as it found it, and starts no daemon by accident."""
    monkeypatch.setenv(ENV_SOCKET, str(private_dir / "npu.sock"))
    monkeypatch.setenv(ENV_AUTOSTART, "0")
    before = Surroundings(private_dir)
    yield
    if _failed not in request.node.stash:
        request.node.funcargs.clear()  # they would keep the fixtures' results alive
        before.check()


@pytest.fixture
def start_daemon(private_dir: Path) -> Iterator[StartDaemon]:
    """Start daemons that end with the test; each must end in order unless the test killed it."""
    started: list[Daemon] = []

    def start(*, open_files: int = 0, interpreter: bool = False, **settings: Any) -> Daemon:
        settings.setdefault("socket", str(private_dir / "npu.sock"))
        daemon = Daemon(DaemonSettings(**settings), open_files, interpreter=interpreter)
        started.append(daemon)
        return daemon

    yield start
    for daemon in started:
        daemon.close()


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> Daemon:
    """Return a daemon with one device of the default platform."""
    return start_daemon()


@pytest.fixture(scope="session")
def lasting_daemon() -> Iterator[LastingDaemon]:
    """Yield the daemon behind `shared_daemon`."""
    lasting = LastingDaemon(Path(tempfile.mkdtemp(prefix="softnpu-shared-")))
    yield lasting
    lasting.end()


@pytest.fixture
def shared_daemon(lasting_daemon: LastingDaemon) -> Iterator[Daemon]:
    """Yield a daemon for many tests that only use it: each must leave it as it was."""
    with lasting_daemon.unchanged() as daemon:
        yield daemon


FARM = ("4000", "3720", "4000")
"""Platforms of the devices of `farm`."""


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Yield a daemon whose devices are for leases."""
    socket = tmp_path_factory.mktemp("farm") / "npu.sock"
    daemon = Daemon(DaemonSettings(socket=str(socket), devices=FARM, leased_only=True))
    try:
        yield daemon
    finally:
        daemon.close()


@pytest.fixture
def driver(daemon: Daemon) -> Iterator[Driver]:
    """Yield a session of the test process."""
    with Driver.open(daemon.socket) as driver:
        yield driver


@pytest.fixture
def context(driver: Driver) -> Iterator[Context]:
    """Yield a context on the first device."""
    with driver.devices[0].create_context() as context:
        yield context


@pytest.fixture
def posix_name() -> str:
    """Return an unused POSIX name."""
    return f"/softnpu-test-{os.getpid()}-{os.urandom(4).hex()}"


@pytest.fixture
def open_context() -> Iterator[OpenContext]:
    """Open sessions that end with the test."""
    with ExitStack() as stack:

        def open_one(daemon: Daemon) -> Context:
            return stack.enter_context(Driver.open(daemon.socket)).devices[0].create_context()

        yield open_one


@pytest.fixture
def start_context(start_daemon: StartDaemon, open_context: OpenContext) -> StartContext:
    """Start daemons with a session each; both end with the test."""

    def start(**settings: Any) -> tuple[Daemon, Context]:
        daemon = start_daemon(**settings)
        return daemon, open_context(daemon)

    return start


@pytest.fixture
def start_python() -> Iterator[StartPython]:
    """Start client programs that die with the test at the latest."""
    started: list[ClientProcess] = []

    def start(
        code: str, *, environment: Mapping[str, str] | None = None, interpreter: bool = False, **given: Any
    ) -> ClientProcess:
        client = ClientProcess(code, given, environment or {}, interpreter=interpreter)
        started.append(client)
        return client

    yield start
    for client in started:
        client.kill()


@pytest.fixture
def run_python(start_python: StartPython) -> RunPython:
    """Run client code in another process to its end; return its last message."""

    def run(code: str, *, deadline_s: float = 30.0, **given: Any) -> Any:
        client = start_python(code, **given)
        result = client.hear(deadline_s)
        client.finish(deadline_s)
        return result

    return run


@pytest.fixture
def digits() -> Path:
    """Return the IR of a small real network: 1x1x8x8 f32 in, 1x10 f32 out."""
    assert DIGITS.exists(), json.dumps(str(DIGITS))
    return DIGITS

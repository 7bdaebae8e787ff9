"""A client that arrives while a daemon ends reaches that daemon or the next one, at any step."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from softnpu.driver import Driver, ZeResult
from softnpu.emulator.common.failpoints import ENV_FAILPOINTS
from softnpu.emulator.interface import endpoint
from softnpu.emulator.interface.environment import ENV_AUTOSTART, ENV_IDLE_S
from softnpu.emulator.supervisor.tuning import Tuning
from tests.conftest import StartDaemon, StartPython
from tests.support.client import ClientProcess
from tests.support.daemon import Daemon
from tests.support.waiting import DEADLINE_S, wait_gone, wait_stopped, wait_until
from tests.support.work import failure

_CLIENT = """
with Driver.open() as driver:
    say([driver.daemon_pid, driver.devices[0].create_context().alloc_host(64).size])
    hear()
"""
_SERVED = "served by the daemon with pid"


@pytest.fixture
def stopped_at(start_daemon: StartDaemon) -> Callable[[str], Daemon]:
    """Return a function that starts a daemon stopped (SIGSTOP) at this point of its idle end."""

    def stopped(point: str) -> Daemon:
        daemon = start_daemon(failpoints=f"{point}=stop", idle_timeout_s=0.1)
        daemon.status()  # the first client: the daemon is idle once it leaves
        wait_stopped(daemon.pid)
        return daemon

    return stopped


@pytest.fixture
def come(start_python: StartPython, private_dir: Path) -> Callable[[], ClientProcess]:
    """Start a client, and return when it waits at the socket or for another daemon to make room."""
    said = private_dir / "said"

    def start() -> ClientProcess:
        environment = {
            ENV_AUTOSTART: "1",
            ENV_IDLE_S: "0.1",
            ENV_FAILPOINTS: f"client.handshake=trace({said})",
        }
        client = start_python(_CLIENT, environment=environment)
        log = endpoint.log_path(private_dir / "npu.sock")
        wait_until(
            lambda: (said.exists() and said.read_text()) or _SERVED in log.read_text(),
            what="its hello, or its refused starter",
        )
        return client

    return start


def _serves(client: ClientProcess, served: list[int]) -> int:
    """Return the pid of the daemon that a client reached; it worked there, and everything has ended."""
    pid, size = served
    assert size == 64
    client.tell()
    client.finish()
    wait_gone(pid)
    return pid


def test_who_waits_when_the_idle_time_is_over_keeps_the_daemon(
    stopped_at: Callable[[str], Daemon], come: Callable[[], ClientProcess]
) -> None:
    daemon = stopped_at("supervisor.idle")
    client = come()
    os.kill(daemon.pid, signal.SIGCONT)

    assert _serves(client, client.hear()) == daemon.pid


@pytest.mark.parametrize(
    ("point", "how"),
    [
        ("supervisor.end", signal.SIGCONT),
        ("supervisor.release", signal.SIGKILL),
        pytest.param("supervisor.end", signal.SIGKILL, marks=pytest.mark.soak),
        pytest.param("supervisor.release", signal.SIGCONT, marks=pytest.mark.soak),
    ],
)
def test_who_comes_later_reaches_the_next_daemon(
    stopped_at: Callable[[str], Daemon],
    come: Callable[[], ClientProcess],
    private_dir: Path,
    point: str,
    how: signal.Signals,
) -> None:
    daemon = stopped_at(point)
    client = come()
    os.kill(daemon.pid, how)

    assert daemon.process.wait(DEADLINE_S) == (0 if how == signal.SIGCONT else -how)
    served = client.hear()
    record = endpoint.read_record(daemon.socket)
    assert record is not None, "the last daemon has left the files of the next one alone"
    assert record.pid == served[0] != daemon.pid
    assert endpoint.accepts(daemon.socket)
    assert _serves(client, served) == record.pid
    assert not (private_dir / "npu.sock").exists(), "the last one has removed what was its own"


def test_the_socket_can_be_served_anew_before_the_engines_have_ended(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(tuning=Tuning(close_s=60.0))
    engine = psutil.Process(daemon.engine().engine_pid)
    engine.suspend()
    os.kill(daemon.pid, signal.SIGTERM)
    wait_until(lambda: not endpoint.lock_path(daemon.socket).exists(), what="the lock given up")
    second = start_daemon()

    assert daemon.alive, "it waits for its engine"
    assert second.engine().state == "ready"
    engine.resume()
    assert daemon.process.wait(DEADLINE_S) == 0
    assert second.socket.exists()


def test_a_daemon_waits_for_the_client_that_had_it_started(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(idle_timeout_s=0.1, tuning=Tuning(first_client_s=3600.0))
    with pytest.raises(AssertionError, match="still lives"):
        wait_gone(daemon.pid, 0.5)
    daemon.status()
    wait_gone(daemon.pid)


@contextmanager
def _closing_server(place: Path) -> Iterator[list[int]]:
    """Accept at `place` and close without an answer; yield the sizes of received messages."""
    heard: list[int] = []
    with endpoint.new_socket() as listener:
        listener.bind(str(place))
        listener.listen()
        listener.settimeout(DEADLINE_S)

        def serve() -> None:
            for _ in range(2):
                client, _ = listener.accept()
                with client:
                    heard.append(len(client.recv(65536)))

        thread = threading.Thread(target=serve)
        thread.start()
        yield heard
        thread.join(DEADLINE_S)


def test_one_that_always_closes_is_no_daemon_that_ends(private_dir: Path) -> None:
    with _closing_server(private_dir / "npu.sock") as heard:
        lost = failure(Driver.open, ZeResult.ERROR_DEVICE_LOST)

    assert "it has ended" in lost.info.found
    assert len(heard) == 2, "tried once more, and not for a minute"

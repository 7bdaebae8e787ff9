"""A daemon owns its socket while it lives, and leaves nothing when it ends, however it ends."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from softnpu.driver import Driver, ZeResult
from softnpu.emulator.interface import endpoint
from softnpu.emulator.interface import messages as msg
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon, DaemonRefused
from tests.support.waiting import Stopwatch, wait_gone, wait_until
from tests.support.wire import Wire
from tests.support.work import failure


def _refusal(start_daemon: StartDaemon, **settings: Any) -> DaemonRefused:
    with pytest.raises(DaemonRefused) as caught:
        start_daemon(**settings)
    return caught.value


def test_a_second_daemon_is_refused_by_the_pid_of_the_first(
    daemon: Daemon, start_daemon: StartDaemon
) -> None:
    info = _refusal(start_daemon).info

    assert info.result == ZeResult.ERROR_NOT_AVAILABLE
    assert str(daemon.socket) in info.object
    assert f"pid {daemon.pid}" in info.found
    assert daemon.engine().state == "ready", "the first daemon goes on"


def test_a_second_daemon_is_refused_within_a_second(daemon: Daemon) -> None:
    # in this process: what an interpreter takes to start is not the daemon's
    from softnpu.emulator.interface.result import Refused
    from softnpu.emulator.served_socket import DaemonLock

    watch = Stopwatch()
    with pytest.raises(Refused, match=f"pid {daemon.pid}"):
        DaemonLock(daemon.socket)
    assert watch.seconds < 1


def test_the_lock_names_the_daemon_and_its_start(daemon: Daemon) -> None:
    record = endpoint.read_record(daemon.socket)

    assert record is not None
    assert record.pid == daemon.pid
    assert record.start_time == process_identity.start_time(daemon.pid)
    assert record.boot_id == process_identity.boot_id()


def test_the_socket_is_for_its_owner_only(daemon: Daemon) -> None:
    assert daemon.socket.stat().st_mode & 0o777 == 0o600
    assert endpoint.lock_path(daemon.socket).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_leaves_no_file(daemon: Daemon, number: int) -> None:
    engine = daemon.engine().engine_pid

    daemon.process.send_signal(number)

    daemon.stop()
    wait_gone(engine)


def test_a_hang_up_does_not_end_it(daemon: Daemon) -> None:
    daemon.process.send_signal(signal.SIGHUP)

    assert daemon.engine().state == "ready"


def test_a_client_can_stop_it(daemon: Daemon) -> None:
    with Driver.open(daemon.socket, role="monitor") as driver:
        driver.stop_daemon()

    assert daemon.process.wait(10) == 0
    assert not daemon.socket.exists()


def test_the_path_is_free_again_after_the_end(start_daemon: StartDaemon) -> None:
    first = start_daemon()
    first.stop()

    assert start_daemon().pid != first.pid


def test_a_killed_daemon_takes_its_engine_along_and_the_next_one_starts(start_daemon: StartDaemon) -> None:
    first = start_daemon(devices=("4000", "3720"))
    engines = [engine.engine_pid for engine in first.status().engines]

    first.kill()

    for engine in engines:
        wait_gone(engine)
    assert first.socket.exists(), "nobody was left to remove it"
    second = start_daemon()
    assert second.engine().state == "ready"


def test_a_stale_socket_file_is_replaced(private_dir: Path, start_daemon: StartDaemon) -> None:
    with endpoint.new_socket() as sock:
        sock.bind(str(private_dir / "npu.sock"))  # bound, never served, its owner gone

    assert start_daemon().engine().state == "ready"


def test_a_stale_lock_file_is_no_obstacle(private_dir: Path, start_daemon: StartDaemon) -> None:
    endpoint.lock_path(private_dir / "npu.sock").write_text('{"pid": 1, "start_time": 1')

    assert start_daemon().engine().state == "ready"


@pytest.mark.parametrize("kind", ["regular file", "directory", "symbolic link"])
def test_a_path_that_is_no_socket_is_refused_and_kept(
    private_dir: Path, start_daemon: StartDaemon, kind: str
) -> None:
    path = private_dir / "npu.sock"
    match kind:
        case "regular file":
            path.write_text("precious")
        case "directory":
            path.mkdir()
        case _:
            path.symlink_to("elsewhere")

    info = _refusal(start_daemon).info

    assert info.result == ZeResult.ERROR_INVALID_ARGUMENT
    assert kind in info.found
    assert os.path.lexists(path)
    assert not endpoint.lock_path(path).exists(), "who is refused holds nothing"


@pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_STREAM])
def test_the_live_socket_of_another_program_is_refused_and_kept(
    private_dir: Path, start_daemon: StartDaemon, kind: socket.SocketKind
) -> None:
    path = private_dir / "npu.sock"
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(str(path))
        other.listen()

        info = _refusal(start_daemon).info

        assert info.result == ZeResult.ERROR_NOT_AVAILABLE
        assert path.exists()


def test_a_directory_that_does_not_exist_is_refused(private_dir: Path) -> None:
    from softnpu.emulator.interface.result import Refused
    from softnpu.emulator.served_socket import DaemonLock

    with pytest.raises(Refused, match="nowhere") as caught:
        DaemonLock(private_dir / "nowhere" / "npu.sock")
    assert caught.value.info.result == ZeResult.ERROR_UNINITIALIZED


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"devices": ("9999",)}, "9999"),
        ({"devices": ()}, "--device"),
        ({"devices": ("4000",) * 9}, "--device"),
        ({"tdr_ms": 0}, "--tdr-ms"),
        ({"memory": -1}, "--memory"),
        ({"log_level": "loud"}, "--log-level"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(
    start_daemon: StartDaemon, settings: dict[str, object], name: str
) -> None:
    info = _refusal(start_daemon, **settings).info

    assert info.result == ZeResult.ERROR_INVALID_ARGUMENT
    assert name in str(info)


def test_a_path_longer_than_a_socket_address_works(private_dir: Path, start_daemon: StartDaemon) -> None:
    folder = private_dir / ("deep" * 20) / ("deeper" * 20)
    folder.mkdir(parents=True)
    daemon = start_daemon(socket=str(folder / "npu.sock"))
    assert len(str(daemon.socket)) > 150

    with Driver.open(daemon.socket) as driver:
        assert driver.daemon_pid == daemon.pid


def test_a_file_name_that_no_address_can_hold_is_refused(private_dir: Path) -> None:
    path = private_dir / ("n" * 120)

    error = failure(lambda: Driver.open(path, autostart=False), ZeResult.ERROR_UNINITIALIZED)

    assert "n" * 120 in str(error)


def test_a_stop_request_is_answered_before_the_end(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        wire.ask(msg.Stop(), msg.Ok)
        assert wire.closed()
    assert daemon.process.wait(10) == 0


def test_a_daemon_with_sessions_ends_in_order(daemon: Daemon) -> None:
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        context.alloc_host(1 << 20)
        context.create_command_queue()

        daemon.stop()

        wait_until(driver.connection.is_lost)

"""A daemon owns its socket while it lives, and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from softnpu.driver import Driver, ZeResult
from softnpu.emulator import daemon as daemon_module
from softnpu.emulator.common.process_identity import ProcessIdentity
from softnpu.emulator.interface import endpoint
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.served_socket import ServedSocket
from softnpu.emulator.socket_files import DaemonLock
from softnpu.emulator.supervisor.settings import DaemonSettings
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon, DaemonRefused
from tests.support.waiting import wait_gone, wait_until
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
    record = endpoint.read_record(daemon.socket)
    assert record is not None
    assert ProcessIdentity(record.pid, record.start_time, record.boot_id) == ProcessIdentity.of(daemon.pid)
    for path in (daemon.socket, endpoint.lock_path(daemon.socket)):
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.stat().st_uid == os.getuid()
    daemon.process.send_signal(signal.SIGHUP)
    assert daemon.engine().state == "ready", "the first daemon goes on, and a hang-up does not end it"


def test_an_alarm_that_its_starter_has_set_stays(private_dir: Path) -> None:
    program = """
import os, signal, sys
from softnpu.emulator import autostart, daemon
from softnpu.emulator.supervisor.supervisor import Supervisor
Supervisor.run = lambda _: print(signal.alarm(0) > 0, flush=True)
signal.alarm(1000)
daemon.serve(autostart.settings(sys.argv[1]), engines=False)
os._exit(0)
"""
    command = [sys.executable, "-P", "-c", program, str(private_dir / "npu.sock")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n")


@pytest.mark.parametrize("how", ["SIGINT", "request", "monitor"])
def test_it_ends_in_order_and_the_path_is_free_again(
    daemon: Daemon, start_daemon: StartDaemon, how: str
) -> None:
    engine = daemon.engine().engine_pid
    with Driver.open(daemon.socket) as driver, Wire(daemon.socket) as wire:
        driver.devices[0].create_context().create_command_queue()
        wire.hello()
        match how:
            case "request":
                wire.ask(msg.Stop(), msg.Ok)
                assert wire.closed(), "answered before the end"
            case "monitor":
                with Driver.open(daemon.socket, role="monitor") as monitor:
                    monitor.stop_daemon()
            case _:
                daemon.process.send_signal(getattr(signal, how))
        assert daemon.process.wait(30) == 0
        wait_until(lambda: driver.lost)
    daemon.stop()  # its files are gone
    wait_gone(engine)
    assert start_daemon().pid != daemon.pid


@pytest.mark.parametrize("left", ["killed", "socket", "lock"])
def test_what_another_daemon_has_left_is_replaced(
    start_daemon: StartDaemon, private_dir: Path, left: str
) -> None:
    path = private_dir / "npu.sock"
    match left:
        case "killed":
            first = start_daemon(devices=("4000", "3720"))
            engines = [engine.engine_pid for engine in first.status().engines]
            first.kill()
            for engine in engines:
                wait_gone(engine)
            assert first.socket.exists(), "nobody was left to remove it"
        case "socket":
            with endpoint.new_socket() as sock:
                sock.bind(str(path))  # bound, never served, its owner gone
        case _:
            endpoint.lock_path(path).write_text('{"pid": 1, "start_time": 1')
    assert start_daemon().engine().state == "ready"


@pytest.mark.parametrize("kind", ["regular file", "directory", "symbolic link", "packets", "stream"])
def test_a_path_that_is_anything_else_is_refused_and_kept(private_dir: Path, kind: str) -> None:
    path = private_dir / "npu.sock"
    with socket.socket(
        socket.AF_UNIX, socket.SOCK_STREAM if kind == "stream" else socket.SOCK_SEQPACKET
    ) as other:
        match kind:
            case "regular file":
                path.write_text("precious")
            case "directory":
                path.mkdir()
            case "symbolic link":
                path.symlink_to("elsewhere")
            case _:
                other.bind(str(path))
                other.listen()
        with pytest.raises(Refused) as caught:
            ServedSocket(DaemonSettings(socket=str(path)))
    info, live = caught.value.info, kind in ("packets", "stream")
    assert info.result == (ZeResult.ERROR_NOT_AVAILABLE if live else ZeResult.ERROR_INVALID_ARGUMENT)
    assert live or kind in info.found
    assert os.path.lexists(path)
    assert not endpoint.lock_path(path).exists(), "who is refused holds nothing"


@pytest.mark.quick
def test_settings_and_directories_that_cannot_be_are_refused_by_name(private_dir: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"devices": ("9999",)}, "9999"),
        ({"devices": ()}, "--platform"),
        ({"devices": ("4000",) * 9}, "--platform"),
        ({"tdr_ms": 0}, "--tdr-ms"),
        ({"memory": -1}, "--memory"),
        ({"log_level": "loud"}, "--log-level"),
        *(({"idle_timeout_s": value}, "--idle-timeout") for value in (1e-9, 1e9, float("nan"))),
        *(({"spin_us": value}, "--spin-us") for value in (-1, 1_000_001)),
        *(({"command_limit_s": value}, "--command-limit") for value in (float("inf"), float("nan"))),
        ({"allow_users": (-1,)}, "--allow-user"),
    ]
    for settings, name in cases:
        with pytest.raises(Refused) as caught:
            DaemonSettings(socket="x", **settings).check()
        assert caught.value.info.result == ZeResult.ERROR_INVALID_ARGUMENT
        assert name in str(caught.value.info)
    with pytest.raises(Refused, match="nowhere") as caught:
        DaemonLock(private_dir / "nowhere" / "npu.sock")
    assert caught.value.info.result == ZeResult.ERROR_UNINITIALIZED


@pytest.mark.parametrize("chosen", ["", "glibc.malloc.hugetlb=0"])
def test_an_engine_has_its_heap_in_huge_pages_unless_the_user_wants_another(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", chosen)
    daemon = start_daemon(interpreter=True)
    pid = wait_until(lambda: daemon.engine().engine_pid, what="an engine")
    # glibc writes zeros between the variables that it has read
    behind = Path(f"/proc/{pid}/environ").read_bytes().partition(b"GLIBC_TUNABLES=")[2].replace(b"\0", b":")
    expected = ":".join(["glibc.malloc.hugetlb=1", *filter(None, [chosen]), ""])
    assert behind.decode().startswith(expected), "the last one counts"


def test_a_daemon_says_that_it_is_ready_also_after_an_error_in_that_very_moment() -> None:
    def fails_once() -> None:
        supervisor.watch_idle = lambda: None
        raise MemoryError

    devices: list[Any] = [SimpleNamespace(info=SimpleNamespace(index=index)) for index in range(2)]
    supervisor: Any = SimpleNamespace(devices=devices, watch_idle=fails_once)
    reader, writer = os.pipe()
    daemon_module._announce_ready(supervisor, daemon_module.ReadyPipe(writer))
    first, second = devices
    first.on_ready()
    with pytest.raises(MemoryError):
        second.on_ready()
    for device in (first, second, second):  # of the next engine, and for any other change
        device.on_ready()
    os.set_blocking(reader, False)
    assert os.read(reader, 64) == b"ready %d\n" % os.getpid()
    os.close(reader)


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


def test_an_engine_blocks_no_signal_of_the_thread_that_started_it(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(interpreter=True)
    status = Path(f"/proc/{wait_until(lambda: daemon.engine().engine_pid)}/status")
    wait_until(lambda: re.search(r"^SigBlk:\s*0+$", status.read_text(), re.MULTILINE))

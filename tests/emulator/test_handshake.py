"""What a connection has to say first, and what happens to one that says something else."""

from __future__ import annotations

import array
import os
import socket
import struct

import msgspec
import pytest

from softnpu.driver import Driver, ZeResult
from softnpu.emulator.interface import frames
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.version import INTERFACE_MAJOR, INTERFACE_MINOR
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.waiting import Stopwatch, wait_readable, wait_until
from tests.support.wire import HELLO, Wire, raw_socket
from tests.support.work import failure


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


def _alive(daemon: Daemon) -> bool:
    with Wire(daemon.socket) as wire:
        return wire.hello().pid == daemon.pid


def test_a_hello_is_answered_with_devices_and_limits(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        welcome = wire.hello()

    assert (welcome.major, welcome.minor) == (INTERFACE_MAJOR, INTERFACE_MINOR)
    assert welcome.pid == daemon.pid
    assert [device.platform for device in welcome.devices] == ["4000"]
    assert welcome.limits.tdr_ms == 2000


@pytest.mark.parametrize("major", [0, INTERFACE_MAJOR + 1, 2**40])
def test_another_major_version_is_refused_with_both_versions(daemon: Daemon, major: int) -> None:
    with Wire(daemon.socket) as wire:
        info = wire.info(msgspec.structs.replace(HELLO, major=major, minor=7))
        assert wire.closed()

    assert info.result == ZeResult.ERROR_UNSUPPORTED_VERSION
    assert f"{major}.7" in info.found
    assert f"{INTERFACE_MAJOR}." in info.expected


def test_another_minor_version_is_welcome(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        wire.ask(msgspec.structs.replace(HELLO, minor=99), msg.Welcome)


def test_a_driver_of_another_major_version_is_told(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("softnpu.driver.driver.INTERFACE_MAJOR", 99)
        error = failure(lambda: Driver.open(daemon.socket), ZeResult.ERROR_UNSUPPORTED_VERSION)

    assert "99." in str(error)
    assert f"{INTERFACE_MAJOR}." in str(error)


@pytest.mark.parametrize("request_", [msg.ContextCreate(device=0), msg.Status(), msg.Stop()])
def test_a_request_before_the_hello_is_refused(daemon: Daemon, request_: msg.Message) -> None:
    with Wire(daemon.socket) as wire:
        info = wire.info(request_)
        assert wire.closed()

    assert info.result == ZeResult.ERROR_UNINITIALIZED
    assert type(request_).__name__ in info.found
    assert _alive(daemon)


def test_a_second_hello_is_refused(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        assert wire.info(HELLO).result == ZeResult.ERROR_UNSUPPORTED_FEATURE
        wire.ask(msg.Status(), msg.StatusIs)


def test_a_monitor_may_look_but_not_create(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello("monitor")
        for request in (msg.ContextCreate(device=0), msg.MemFree(memory=(1,)), HELLO):
            assert wire.info(request).result == ZeResult.ERROR_INSUFFICIENT_PERMISSIONS
        assert wire.ask(msg.Status(), msg.StatusIs).session_count == 0


def test_an_unknown_role_is_refused(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        info = wire.info(msgspec.structs.replace(HELLO, role="king"))
        assert wire.closed()

    assert info.result == ZeResult.ERROR_INVALID_ENUMERATION
    assert "king" in info.found


def test_a_field_that_must_be_understood_is_refused_by_name(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        info = wire.info(msgspec.structs.replace(HELLO, must=("time_travel",)))

    assert info.result == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert "time_travel" in info.found


def test_a_silent_connection_is_dropped(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(patches={"softnpu.emulator.supervisor.client:_HANDSHAKE_S": 0.2})
    watch = Stopwatch()
    with Wire(daemon.socket) as talking, raw_socket(daemon.socket) as silent:
        talking.hello()
        assert silent.recv(1) == b"", "the end of the connection"
        assert 0.1 < watch.seconds < 2
        talking.ask(msg.Status(), msg.StatusIs)


def _frame(
    body: bytes = b"", magic: bytes = b"SNPU", version: int = 1, fds: int = 0, size: int | None = None
) -> bytes:
    return struct.pack("<4sHHII", magic, version, fds, 7, len(body) if size is None else size) + body


@pytest.mark.parametrize(
    ("frame", "word"),
    [
        (b"x", "1 bytes"),
        (_frame()[:15], "15 bytes"),
        (_frame(magic=b"HTTP"), "HTTP"),
        (_frame(version=2), "format 2"),
        (_frame(b"abc", size=2), "says 2"),
        (_frame(b"abc", size=2**32 - 1), "says 4294967295"),
        (_frame(fds=1), "says 1"),
        (_frame(bytes(frames.MAX_BODY + 1)), "more than"),
        (_frame(bytes(150_000)), "more than"),
        (os.urandom(64), "magic"),
    ],
    ids=["byte", "cut", "magic", "format", "short", "long", "fds", "oversized", "huge", "noise"],
)
@pytest.mark.parametrize("greeted", [False, True])
def test_a_malformed_frame_is_told_and_ends_its_connection(
    daemon: Daemon, frame: bytes, word: str, greeted: bool
) -> None:
    with Wire(daemon.socket) as wire, Wire(daemon.socket) as other:
        other.hello()
        if greeted:
            wire.hello()
            wire.ask(msg.ContextCreate(device=0), msg.ContextCreated)
        wire.send_raw(frame)

        request, answer = wire.receive()
        assert request == 0
        assert isinstance(answer, msg.Failed)
        assert word in answer.info.found
        assert wire.closed()
        other.ask(msg.Status(), msg.StatusIs)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", b"\x93\x01\x02\x03", b"\x81\xa1t\xa4noop", bytes(9)])
def test_a_body_that_is_no_request_is_refused(daemon: Daemon, body: bytes) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        answer = wire.answer(wire.send_body(body))
        assert isinstance(answer, msg.Failed)
        assert answer.info.result == ZeResult.ERROR_INVALID_ARGUMENT
        wire.ask(msg.Status(), msg.StatusIs)


def test_more_descriptors_than_a_frame_may_have_end_the_connection(daemon: Daemon) -> None:
    before = daemon.fd_count
    with Wire(daemon.socket) as wire:
        wire.hello()
        rights = array.array("i", [0] * 40)
        wire.socket.sendmsg([_frame(fds=40)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        _, answer = wire.receive()
        assert isinstance(answer, msg.Failed)
        assert wire.closed()
    assert _alive(daemon)
    wait_until(lambda: daemon.fd_count <= before)


def test_descriptors_that_nobody_asked_for_are_closed(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        before = daemon.fd_count
        for _ in range(50):
            wire.ask(msg.Status(), msg.StatusIs, [0] * frames.MAX_FDS)
        wait_until(lambda: daemon.fd_count == before)


def test_a_client_that_does_not_read_its_answers_is_dropped(daemon: Daemon) -> None:
    with Wire(daemon.socket) as flood, Wire(daemon.socket) as other:
        other.hello()
        flood.hello()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            _flood(flood)
        watch = Stopwatch()
        other.ask(msg.Status(), msg.StatusIs)
        assert watch.seconds < 1
    assert "does not read" in daemon.log


def _flood(wire: Wire) -> None:
    for _ in range(100_000):
        wire.send(msg.Status())


def test_half_a_connection_is_enough_to_leave(daemon: Daemon) -> None:
    before = daemon.fd_count
    with raw_socket(daemon.socket) as sock:
        sock.shutdown(socket.SHUT_WR)
        assert wait_readable(sock.fileno())
        assert sock.recv(1) == b""
    wait_until(lambda: daemon.fd_count == before)

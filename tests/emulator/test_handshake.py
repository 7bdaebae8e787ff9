"""A connection's required first message, and the fate of one that sends another."""

from __future__ import annotations

import array
import socket
import struct
from typing import Any

import msgspec
import pytest

from softnpu.driver import Driver, ZeResult
from softnpu.emulator.interface import frames
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.version import INTERFACE_MAJOR, INTERFACE_MINOR
from softnpu.emulator.supervisor.tuning import Tuning
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.waiting import wait_readable, wait_until
from tests.support.wire import HELLO, Wire, raw_socket
from tests.support.work import failure

pytestmark = pytest.mark.quick


def _hello(**changes: Any) -> msg.Hello:
    return msgspec.structs.replace(HELLO, **changes)


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


def test_a_hello_is_answered_with_devices_and_limits(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        welcome = wire.ask(_hello(minor=99), msg.Welcome)  # other minor versions are welcome

    assert (welcome.major, welcome.minor) == (INTERFACE_MAJOR, INTERFACE_MINOR)
    assert welcome.pid == daemon.pid
    assert [device.platform for device in welcome.devices] == ["4000"]
    assert welcome.limits.tdr_ms == 2000


def test_a_driver_of_another_major_version_is_reported(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("softnpu.driver.driver.INTERFACE_MAJOR", 99)
        error = failure(lambda: Driver.open(daemon.socket), ZeResult.ERROR_UNSUPPORTED_VERSION)

    assert "99." in str(error)
    assert f"{INTERFACE_MAJOR}." in str(error)


@pytest.mark.parametrize("role", ["monitor", "keeper"])
def test_a_monitor_may_look_but_not_create(daemon: Daemon, role: str) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello(role)
        for request in (msg.ContextCreate(device=0), msg.MemFree(memory=(1,)), HELLO):
            assert wire.info(request).result == ZeResult.ERROR_INSUFFICIENT_PERMISSIONS
        assert wire.ask(msg.Status(), msg.StatusAnswer).session_count == 0


def _frame(
    body: bytes = b"", magic: bytes = b"SNPU", version: int = 1, fds: int = 0, size: int | None = None
) -> bytes:
    return struct.pack("<4sHHII", magic, version, fds, 7, len(body) if size is None else size) + body


@pytest.mark.parametrize("greeted", [False, True])
def test_a_malformed_frame_is_reported_and_ends_its_connection(
    daemon: Daemon, wire: Wire, greeted: bool
) -> None:
    for frame, word in (
        (b"x", "1 bytes"),
        (_frame(magic=b"HTTP"), "HTTP"),
        (_frame(b"abc", size=2), "says 2"),
        (_frame(fds=1), "says 1"),
        (_frame(bytes(frames.MAX_BODY + 1)), "more than"),
        (_frame(bytes(150_000)), "more than"),
    ):
        with Wire(daemon.socket) as malformed:
            if greeted:
                malformed.hello()
                malformed.ask(msg.ContextCreate(device=0), msg.ContextCreated)
            malformed.send_raw(frame)
            request, answer = malformed.receive()
            assert request == 0
            assert isinstance(answer, msg.Failed)
            assert word in answer.info.found
            assert malformed.closed()
        wire.ask(msg.Status(), msg.StatusAnswer)


def test_another_first_word_is_refused_and_ends_the_connection(daemon: Daemon) -> None:
    for request, result, found in (
        (_hello(major=0, minor=7), ZeResult.ERROR_UNSUPPORTED_VERSION, "0.7"),
        (_hello(major=INTERFACE_MAJOR + 1, minor=7), ZeResult.ERROR_UNSUPPORTED_VERSION, "2.7"),
        (_hello(major=2**40, minor=7), ZeResult.ERROR_UNSUPPORTED_VERSION, f"{2**40}.7"),
        (_hello(role="king"), ZeResult.ERROR_INVALID_ENUMERATION, "king"),
        (_hello(must=("time_travel",)), ZeResult.ERROR_UNSUPPORTED_FEATURE, "time_travel"),
        (msg.ContextCreate(device=0), ZeResult.ERROR_UNINITIALIZED, "ContextCreate"),
        (msg.Status(), ZeResult.ERROR_UNINITIALIZED, "Status"),
        (msg.Stop(), ZeResult.ERROR_UNINITIALIZED, "Stop"),
    ):
        with Wire(daemon.socket) as wire:
            info = wire.info(request)
            assert wire.closed()
        assert (info.result, found in info.found) == (result, True), info


def test_a_second_hello_is_refused_and_a_body_that_is_no_request(wire: Wire) -> None:
    assert wire.info(HELLO).result == ZeResult.ERROR_UNSUPPORTED_FEATURE
    for body in (b"", b"\xc1", b"\x80", b"\x93\x01\x02\x03", b"\x81\xa1t\xa4noop", bytes(9)):
        answer = wire.answer(wire.send_body(body))
        assert isinstance(answer, msg.Failed)
        assert answer.info.result == ZeResult.ERROR_INVALID_ARGUMENT
    wire.ask(msg.Status(), msg.StatusAnswer)


def test_descriptors_that_nobody_asked_for_are_closed(daemon: Daemon, wire: Wire) -> None:
    before = daemon.base_fd_count()
    with Wire(daemon.socket) as other:
        other.hello()
        rights = array.array("i", [0] * 40)
        other.socket.sendmsg([_frame(fds=40)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        _, answer = other.receive()
        assert isinstance(answer, msg.Failed)
        assert other.closed()
    for _ in range(50):
        wire.ask(msg.Status(), msg.StatusAnswer, [0] * frames.MAX_FDS)
    with raw_socket(daemon.socket) as sock:
        sock.shutdown(socket.SHUT_WR)  # a half-closed connection counts as leaving
        assert wait_readable(sock.fileno())
        assert sock.recv(1) == b""
    wait_until(lambda: daemon.base_fd_count() <= before, what="descriptors closed")


def test_a_silent_connection_is_dropped_and_no_other(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(tuning=Tuning(handshake_s=0.2))
    with Wire(daemon.socket) as talking, raw_socket(daemon.socket) as silent:
        talking.hello()
        assert silent.recv(1) == b"", "the end of the connection"
        talking.ask(msg.Status(), msg.StatusAnswer)

"""Whatever is raised at whatever line of what holds descriptors: in the end there are as many as before."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest

from softnpu.emulator.common import untrusted_fds
from softnpu.emulator.common.linux import memfd
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.links import engine as link
from softnpu.emulator.supervisor import descriptors_in_flight, reactor
from softnpu.emulator.supervisor.children import child, child_process, outbox
from softnpu.emulator.supervisor.children.child_process import ChildProcess, ChildProgram
from softnpu.emulator.supervisor.clients import rejected_connections
from softnpu.emulator.supervisor.engines import cache_fills
from softnpu.emulator.supervisor.reactor import ChildShare, Reactor
from tests.support.faulty import NthLine, faulty
from tests.support.waiting import DEADLINE_S, wait_until

_SOON_S = 0.001
_INFO = ErrorInfo(result=ZeResult.ERROR_NOT_AVAILABLE, object="connection", found="too many")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    monkeypatch.setattr(reactor, "_BROKEN_PAUSE_S", _SOON_S)
    monkeypatch.setattr(child, "_KILLED_S", 0.05)


def _run(loop: Reactor, done: Callable[[], bool]) -> None:
    """Run until `done`, at most until the deadline."""

    def look() -> None:
        if done():
            loop.stop()

    loop._loop.running = True
    timers = loop.every(_SOON_S, look), loop.after(DEADLINE_S, loop.stop)
    loop.run()
    for timer in timers:
        timer.cancel()


def _at_each_line(raiser: NthLine, play: Callable[[], None], at_least: int) -> None:
    """Play with an error at the first line, at the second, and so on."""
    play()
    nth = 0
    while True:
        nth += 1
        before = _open_files()
        raiser.arm(nth)
        with suppress(KeyError):
            play()
        raiser.left = 0
        if not raiser.where:
            break
        wait_until(lambda: not untrusted_fds._closers)
        left = {fd: name for fd, name in _open_files().items() if before.get(fd) != name}
        assert not left, f"left by an error at {raiser.where}"
    assert nth > at_least


def _open_files() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # of the listing itself
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found


def _process(*command: str) -> ChildProcess:
    """A process in the place of an engine, which does not know of its channel."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    output, written = os.pipe()
    with theirs, open(written, "wb") as stream:
        return ChildProcess(subprocess.Popen(command, stdout=stream), ours, output)


@contextmanager
def _loop() -> Iterator[Reactor]:
    loop = Reactor()
    try:
        yield loop
    finally:
        loop.close()


@pytest.mark.timeout(180)
def test_a_process_is_ended_with_all_its_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    raiser = NthLine()
    monkeypatch.setattr(child_process, "take", lambda _program: _process("sleep", "600"))
    with faulty(child, raiser) as module:
        vars(module).update(_KILLED_S=0.05)

        def play() -> None:
            with _loop() as loop:
                ends: list[str] = []
                made: list[child.Child] = []
                owned = loop.owned("which ends it", lambda info: made[0].give_up(info.found, short=False))
                one = module.Child(ChildProgram.ENGINE, owned, lambda *_: None, ends.append)
                made.append(one)
                one.post(0, msg.Ok(), [0])
                os.kill(one.pid, signal.SIGKILL)
                _run(loop, lambda: not one.alive)
                assert not one.alive, raiser.where
                assert len(ends) <= 1

        _at_each_line(raiser, play, 20)


def test_a_process_that_is_given_up_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    raiser = NthLine()
    monkeypatch.setattr(child_process, "take", lambda _program: _process("sleep", "600"))
    with faulty(child, raiser) as module:
        vars(module).update(_KILLED_S=0.05)

        def play() -> None:
            with _loop() as loop:
                nth, raiser.left = raiser.left, 0
                one = module.Child(ChildProgram.ENGINE, loop, lambda *_: None, lambda _how: None)
                raiser.left = nth
                with suppress(KeyError):
                    one.give_up("no room", short=True)
                one.give_up("no room", short=True)  # as its owner does at the error
                _run(loop, lambda: not one.alive)
                assert not one.alive, raiser.where

        _at_each_line(raiser, play, 5)


def test_a_process_that_cannot_be_started_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    raiser = NthLine()
    with faulty(child_process, raiser) as module:
        monkeypatch.setattr(module, "sys", SimpleNamespace(executable="/bin/true"))

        def play() -> None:
            module.start(module.ChildProgram.ENGINE).abandon()

        # one that was started and cannot be told ends with its channel
        try:
            play()  # which makes what starts all
            _at_each_line(raiser, play, 3)
        finally:
            for spawner in module._spawners:
                spawner.close()


@pytest.mark.parametrize("speaks", [True, False])
def test_a_refused_connection_is_closed(speaks: bool) -> None:
    raiser = NthLine()
    with faulty(rejected_connections, raiser) as module:
        vars(module).update(_LONGEST_S=20 * _SOON_S)

        def play() -> None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with _loop() as loop, ours, theirs:
                rejected = module.RejectedConnections(loop)
                ours.setblocking(False)
                rejected.refuse(Channel(ours), _INFO)
                if speaks:
                    theirs.send(b"hello")
                _run(loop, lambda: ours.fileno() < 0)
                assert ours.fileno() < 0, raiser.where
                assert not loop._loop.selector.get_map(), raiser.where

        _at_each_line(raiser, play, 10)


def test_a_connection_whose_answers_are_unread_is_closed_when_they_are_read() -> None:
    raiser = NthLine()
    with faulty(descriptors_in_flight, raiser) as module:
        vars(module).update(_LINGER_S=_SOON_S)

        def play() -> None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            nth, raiser.left = raiser.left, 0
            with _loop() as loop, ours, theirs:
                channel, ends = Channel(ours), list[int]()
                waiting = outbox.Outbox(channel, lambda _full: None, 1)
                flight = module.Flight(channel, waiting, module.UserFlights(10))
                flight.take(1)
                waiting.post(0, msg.Ok(), [0])
                owned = loop.owned("which ends its client", lambda _info: None)
                flight.linger(owned, lambda: ends.append(1))
                assert ours.fileno() >= 0
                raiser.left = nth
                loop.after(10 * _SOON_S, lambda: _read(theirs))
                _run(loop, lambda: bool(ends))
                assert ours.fileno() < 0, raiser.where
                assert ends, raiser.where

        _at_each_line(raiser, play, 3)


def _read(sock: socket.socket) -> None:
    packet = Channel(sock).receive()
    assert packet is not None
    packet.close()


@pytest.mark.timeout(120)
def test_images_for_the_cache_are_closed_and_the_next_one_has_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raiser = NthLine()
    monkeypatch.setattr(child_process, "take", lambda _program: _process("sleep", "0.01"))
    with faulty(cache_fills, raiser) as module:
        vars(module).update(_DELAY_S=_SOON_S)

        def play() -> None:
            with _loop() as loop:
                fills = module.CacheFills(loop, ChildShare(0))
                for number in range(2):
                    fds = [memfd("image", 1)]
                    with suppress(KeyError):
                        fills.add(link.ImageLoad(image=number, state=0, blob_length=1), fds, 0)
                    os.close(fds[0])
                _run(loop, lambda: not fills._waiting and fills._child is None)
                assert (len(fills._waiting), fills._child) == (0, None), raiser.where

        _at_each_line(raiser, play, 10)

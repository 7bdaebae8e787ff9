"""A large session costs others little: it is freed in parts, and told to a new engine in few messages."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from softnpu.driver import ZeResult
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.frames import MAX_BODY
from softnpu.emulator.interface.result import ErrorInfo
from softnpu.emulator.links import engine as link
from softnpu.emulator.supervisor.chores import PART, Chores
from softnpu.emulator.supervisor.engines.announcements import Announcements
from softnpu.emulator.supervisor.reactor import Reactor
from softnpu.emulator.supervisor.state.objects import Context
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until
from tests.support.wire import OpenWire, Wire, WireContext

_MANY = 5 * PART
_AT_ONCE = 50  # unread answers


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    reactor = Reactor()
    yield reactor
    reactor.close()


class _Parts:
    """A chore of so many parts; notes each in `done`."""

    def __init__(self, name: str, count: int, done: list[str]) -> None:
        self._name, self._left, self._done = name, count, done

    def __call__(self) -> bool:
        self._left -= 1
        self._done.append(self._name)
        return self._left > 0


@pytest.mark.quick
def test_one_part_is_done_in_each_round_and_users_take_turns(reactor: Reactor) -> None:
    chores, done = Chores(reactor), list[str]()
    chores.add("one", _Parts("a", 3, done))
    chores.add("one", _Parts("b", 2, done))
    chores.add("two", _Parts("c", 3, done))
    assert done == ["a", "b", "c"], "the first part is done at once"
    for count in range(4, 9):
        reactor._round()
        assert len(done) == count
    assert done[3:] == ["a", "c", "a", "c", "b"]
    assert reactor._timeout() is None, "nothing is left to do"


@pytest.mark.quick
def test_a_part_that_raises_is_done_again_and_delays_nobody_for_good(reactor: Reactor) -> None:
    chores, done = Chores(reactor), list[str]()
    failures = iter([OSError("a disk"), None, OSError("a disk"), None])

    def fails() -> bool:
        error = next(failures)
        if error is not None:
            raise error
        done.append("a")
        return done.count("a") < 2

    with pytest.raises(OSError, match="a disk"):
        chores.add("one", fails)
    chores.add("two", _Parts("b", 3, done))

    def both() -> bool:
        reactor._round()
        return (done.count("a"), done.count("b")) == (2, 3)

    wait_until(both, what="all parts")


@pytest.mark.quick
def test_a_new_engine_is_told_many_allocations_in_few_messages() -> None:
    """One message each kept everybody waiting for a quarter of a second after the death of an engine."""
    told: list[Any] = []
    bans: Any = SimpleNamespace()
    announce = Announcements(lambda command, _: told.append(command), lambda *_: None, bans)
    context, count = Context(1, 0), 2 * link.MOST_PLACED + 1
    for handle in range(count):
        context.allocations[handle] = context.memory.allocate(64, 0, "host")[0]
    announce.context(context)
    placed = [each for each in told if isinstance(each, link.MemoryAdd)]
    assert [each.memory for one in placed for each in one.allocations] == list(range(count))
    assert len(placed) == 3
    assert all(len(msg.encode(one)) <= MAX_BODY for one in placed)
    assert context.memory.close_some(count)


def _fill(wire: Wire, exportable: bool) -> tuple[WireContext, list[int]]:
    context = WireContext(wire)
    request = msg.MemAlloc(context=context.handle, kind="host", size=64, exportable=exportable)
    handles = []
    for _ in range(_MANY // _AT_ONCE):
        for number in [wire.send(request) for _ in range(_AT_ONCE)]:
            answer = wire.answer(number)
            assert isinstance(answer, msg.MemAllocated)
            handles.append(answer.memory)
        wire.forget_fds()
    return context, handles


@pytest.mark.parametrize("exportable", [False, True], ids=["handles", "descriptors"])
def test_requests_are_served_while_a_large_context_is_freed(
    shared_daemon: Daemon, open_wire: OpenWire, exportable: bool
) -> None:
    wire = open_wire(shared_daemon)
    context, handles = _fill(wire, exportable)
    os.kill(shared_daemon.pid, signal.SIGSTOP)  # both frames are there when it looks
    destroyed = wire.send(msg.ContextDestroy(context=context.handle))
    freed = wire.send(msg.MemFree(memory=(handles[0],)))
    os.kill(shared_daemon.pid, signal.SIGCONT)
    first, answer = wire.receive()
    assert first == freed, "it is served before all of the context is freed"
    assert isinstance(answer, msg.Failed)
    assert answer.info.result == ZeResult.ERROR_INVALID_ARGUMENT
    assert "stale handle" in answer.info.found
    assert isinstance(wire.answer(destroyed), msg.Ok)
    (session,) = wire.ask(msg.Status(), msg.StatusAnswer).sessions
    assert (session.contexts, session.allocations) == (0, 0), "when it is answered, all is freed"


def test_what_a_large_session_leaves_counts_until_it_is_freed(
    shared_daemon: Daemon, open_wire: OpenWire
) -> None:
    descriptors = shared_daemon.base_fd_count()
    wire = open_wire(shared_daemon)
    _fill(wire, exportable=True)
    wire.close()
    wait_until(lambda: not shared_daemon.status().users[0].handles, what="no handles")
    wait_until(partial(_has_at_most, shared_daemon, descriptors), what="descriptors closed")


def _has_at_most(daemon: Daemon, descriptors: int) -> bool:
    return daemon.base_fd_count() <= descriptors


@pytest.mark.quick
def test_a_cancelled_timer_keeps_nothing_alive_until_it_was_due(reactor: Reactor) -> None:
    client = _Client()
    timer = reactor.owned("which ends a client", client.end, share=0).after(3600, client.serve)
    left = weakref.ref(client)
    del client
    assert left() is not None
    timer.cancel()
    gc.collect()
    assert left() is None


class _Client:
    """A client with a timer, whose error would end it."""

    def serve(self) -> None: ...

    def end(self, _info: ErrorInfo) -> None: ...

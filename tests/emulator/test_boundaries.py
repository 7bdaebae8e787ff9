"""An unexpected error ends only its own client, timer or child."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from softnpu.driver import ZeError, ZeResult
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.result import ErrorInfo
from softnpu.emulator.supervisor.children.child import Child
from softnpu.emulator.supervisor.internal_errors import DaemonErrors
from softnpu.emulator.supervisor.reactor import ChildShare, Reactor
from tests.conftest import OpenContext, StartContext, StartDaemon
from tests.support.waiting import wait_until
from tests.support.wire import Wire, WireContext, WireQueue
from tests.support.work import check_works, failure

_U64 = 2**64 - 1


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    reactor = Reactor()
    yield reactor
    reactor.close()


@pytest.fixture
def readable() -> Iterator[int]:
    """Yield a descriptor that is always readable."""
    read_end, write_end = os.pipe()
    os.write(write_end, b"x")
    yield read_end
    os.close(read_end)
    os.close(write_end)


def _broken() -> None:
    raise KeyError("seeded")


# ---------------------------------------------------------------- the reactor


def test_what_a_callback_raises_ends_its_owner_and_the_others_are_served(
    reactor: Reactor, readable: int, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[ErrorInfo] = []
    mine = reactor.owned("which ends mine", ended.append)
    mine.watch(readable, _broken)
    mine.after(0, _broken)
    mine.guarded(_broken)()
    reactor.after(0.02, reactor.stop)
    reactor.run()
    assert len(ended) == 3
    assert {info.result for info in ended} == {ZeResult.ERROR_UNKNOWN}
    assert all("internal error 1 of the daemon (KeyError: 'seeded')" in info.found for info in ended), (
        "one kind, one number"
    )
    assert all("report" in info.hint for info in ended)
    assert reactor.errors.count == 3
    assert caplog.text.count("Traceback") == 1
    assert "internal error 1, which ends mine" in caplog.text


def test_what_belongs_to_nobody_is_counted_and_goes_on_but_not_at_full_speed(
    reactor: Reactor, readable: int
) -> None:
    calls: list[None] = []

    def broken() -> None:
        calls.append(None)
        raise ValueError

    reactor.watch(readable, broken)
    reactor.after(0.25, reactor.stop)
    reactor.run()
    assert 2 <= len(calls) <= 4, "it is watched again after a moment"


def test_an_owner_that_cannot_be_ended_does_not_end_the_daemon(reactor: Reactor, readable: int) -> None:
    def cannot(_info: ErrorInfo) -> None:
        raise RuntimeError

    reactor.owned("which ends mine", cannot).watch(readable, _broken)
    reactor.after(0.02, reactor.stop)
    reactor.run()
    assert reactor.errors.count == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_is_meant_to_end_the_daemon_does(reactor: Reactor, error: type[BaseException]) -> None:
    def end() -> None:
        raise error

    reactor.owned("which ends mine", lambda _info: None).after(0, end)
    with pytest.raises(error):
        reactor.run()


def test_a_descriptor_that_was_closed_meanwhile_is_not_watched_again(reactor: Reactor, readable: int) -> None:
    reactor.watch(readable, _broken)
    reactor.after(0.02, lambda: reactor.unwatch(readable))
    reactor.after(0.25, reactor.stop)
    reactor.run()
    assert reactor.errors.count == 1


def test_a_kind_of_error_is_logged_again_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    errors = DaemonErrors(lambda: now[0])

    def note() -> str:
        try:
            _broken()
        except KeyError as error:
            return errors.note(error, "which ends nothing").found
        raise AssertionError

    first = [note() for _ in range(3)]
    now[0] = 100.0
    assert len(set(first)) == 1
    assert "internal error 4" in note()
    assert caplog.text.count("Traceback") == 2
    assert "2 more like it since number 1" in caplog.text


def test_a_share_waits_for_a_turn_of_the_others_and_not_for_all_of_them(reactor: Reactor) -> None:
    """Serve one user's connection in each round, beside another user's forty busy ones."""
    pipes = [os.pipe() for _ in range(41)]
    served: list[int] = []

    def serve(number: int, share: str) -> Callable[[], None]:
        def work() -> None:
            served.append(number)
            if share == "many":
                until = time.monotonic() + 0.002
                while time.monotonic() < until:
                    pass
            if len(served) > 200:
                reactor.stop()

        return work

    for number, (read_end, write_end) in enumerate(pipes):
        os.write(write_end, b"x")
        share = "many" if number else "one"
        reactor.owned("", lambda _info: None, share).watch(read_end, serve(number, share))
    reactor.run()
    for both in pipes:
        for fd in both:
            os.close(fd)
    turns = [at for at, number in enumerate(served) if number == 0]
    assert max(b - a for a, b in itertools.pairwise(turns)) <= 5, "3 of 2 ms fit into a share"
    assert set(served) == set(range(41)), "and those who are left out come first in the next round"


def test_a_child_comes_before_clients_and_has_no_more_of_a_round_than_a_share(reactor: Reactor) -> None:
    """An engine that sends without end, a client, and another user's engine: each is served in each round."""
    pipes = [os.pipe() for _ in range(3)]
    served: list[int] = []

    def serve(number: int) -> Callable[[], None]:
        def work() -> None:
            served.append(number)
            if len(served) >= 30:
                reactor.stop()

        return work

    shares = [1000, ChildShare(1000), ChildShare(1001)]
    for number, (share, (read_end, write_end)) in enumerate(zip(shares, pipes, strict=True)):
        os.write(write_end, b"x")
        reactor.owned("", lambda _info: None, share).watch(read_end, serve(number))
    reactor.run()
    for fd in itertools.chain.from_iterable(pipes):
        os.close(fd)
    assert all(set(served[at : at + 3]) == {0, 1, 2} for at in range(0, 30, 3))
    assert served[2::3] == [0] * 10


def test_a_child_that_sends_without_end_is_read_for_a_part_of_a_round() -> None:
    read = [0]

    def endless() -> bool:
        read[0] += 1
        until = time.monotonic() + 0.0005
        while time.monotonic() < until:
            pass
        return True

    Child._read(cast(Any, SimpleNamespace(_read_one=endless)))
    assert 0 < read[0] < 20


# ---------------------------------------------------------------- the daemon


def test_an_error_in_a_request_ends_its_client_alone(
    start_context: StartContext, open_context: OpenContext
) -> None:
    daemon, innocent = start_context(failpoints="supervisor.queue=error:2:1")
    daemon.tracebacks_expected = True
    check_works(innocent)  # the first
    victims = [open_context(daemon) for _ in range(2)]
    for victim in victims:
        error = failure(victim.create_command_queue, ZeResult.ERROR_UNKNOWN)
        assert "internal error 1 of the daemon (ZeroDivisionError" in error.info.found
        assert "report" in error.info.hint
        with pytest.raises(ZeError):
            victim.alloc_host(64)
    check_works(innocent)
    assert daemon.status().internal_errors == 2
    assert daemon.log.count("internal error 1, which ends") == daemon.log.count("Traceback") == 1
    wait_until(lambda: daemon.status().session_count == 1)
    assert daemon.counts("restarts", "contexts") == (0, 1)


def test_an_error_while_a_client_leaves_gives_back_what_it_had(start_context: StartContext) -> None:
    daemon, innocent = start_context(failpoints="supervisor.close=error")
    daemon.tracebacks_expected = True
    with Wire(daemon.socket) as wire:
        wire.hello()
        WireContext(wire).alloc(1 << 20)
    wait_until(lambda: daemon.counts("contexts", "memory_used") == (1, 0))
    check_works(innocent)


def test_counters_that_a_client_has_written_do_not_outgrow_an_answer(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with Wire(daemon.socket) as bystander, Wire(daemon.socket) as wire:
        bystander.hello()
        wire.hello()
        context = WireContext(wire)
        queues = [WireQueue(context, 16) for _ in range(2)]
        for queue in queues:
            queue.set_tail(_U64)
        wait_until(lambda: all(queue.lost for queue in queues))
        answer = bystander.ask(msg.Activity(), msg.ActivityAnswer)
        assert {session.submissions for session in answer.sessions} == {0, _U64}
    assert daemon.status().internal_errors == 0

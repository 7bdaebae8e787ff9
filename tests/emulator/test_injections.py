"""Injections on request: affected operations, permissions, refusals, duration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from softnpu.driver import CommandList, Context, Driver, Event, ZeError, ZeResult, faults
from softnpu.driver.faults import FaultKind
from softnpu.emulator.common import failpoints
from softnpu.emulator.engine.running.faults import InjectedFaults
from softnpu.emulator.interface.environment import ENV_INJECT, ENV_SOCKET
from softnpu.emulator.interface.injection_messages import InjectionState
from softnpu.emulator.interface.injections import KINDS, REQUESTS, Injection, Value, parse
from softnpu.emulator.interface.messages import Request
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.links import engine as link
from softnpu.emulator.links.injection_counts import InjectionCounters
from softnpu.emulator.supervisor.settings import DaemonSettings
from tests.conftest import StartContext, StartDaemon, StartPython
from tests.support.daemon import Daemon, LastingDaemon
from tests.support.waiting import wait_until
from tests.support.work import LONG, barrier, check_works, execute, failure, recorded, run


@pytest.fixture
def daemon(lasting_daemon: LastingDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """Yield the shared daemon, where `faults` finds it; no injection remains."""
    with lasting_daemon.unchanged() as daemon:
        monkeypatch.setenv(ENV_SOCKET, str(daemon.socket))
    faults.clear([faults.inject("fail")])  # the first one makes the daemon keep counters open
    with lasting_daemon.unchanged() as daemon:
        yield daemon
        faults.clear()


def hits(context: Context, operations: int) -> list[int]:
    """Return which of this many submissions fail, from 1."""
    queue, failed = context.create_command_queue(), []
    for number in range(1, operations + 1):
        fence = execute(queue, barrier(context))
        try:
            assert fence.host_synchronize(LONG)
        except ZeError:
            failed.append(number)
    return failed


def state_of(number: int) -> InjectionState:
    """Return an injection's status."""
    return next(state for state in faults.status() if state.id == number)


def test_all_that_the_daemon_counts_with_is_there_from_the_first_injection_on(
    start_context: StartContext,
) -> None:
    daemon, context = start_context()
    faults.clear([faults.inject("slow", socket=daemon.socket)], daemon.socket)
    before = daemon.base_fd_count()
    faults.clear([faults.inject("delay", value="mem_alloc=1ms", socket=daemon.socket)], daemon.socket)
    with faults.injected("delay", value="mem_alloc=1ms", socket=daemon.socket):
        context.alloc_host(64)
    # the supervisor closes a connection shortly after its peer did
    wait_until(lambda: daemon.base_fd_count() <= before + 1, what="no more open than a segment")


# ------------------------------------------------------------ affected operations


def test_the_first_pass_and_then_so_many_are_hit_or_all_until_it_is_cleared(context: Context) -> None:
    number = faults.inject("fail", after=2, count=3)
    assert hits(context, 8) == [3, 4, 5]
    state = state_of(number)
    assert (state.state, state.matched, state.hits) == ("used up", 5, 3)
    endless = faults.inject("fail", count=None)
    assert hits(context, 4) == [1, 2, 3, 4]
    assert faults.clear([number, endless]) == 2
    assert hits(context, 4) == []
    assert faults.status() == []


def test_a_seed_picks_the_same_ones_again(context: Context) -> None:
    picked = []
    for seed in (7, 7, 8):
        with faults.injected("fail", count=None, probability=0.4, seed=seed):
            picked.append(hits(context, 40))
    assert picked[0] == picked[1] != picked[2]
    assert all(6 <= len(numbers) <= 26 for numbers in picked)
    expected = Injection(kind=FaultKind.FAIL, probability=0.4, seed=7)
    assert picked[0] == [number for number in range(1, 41) if expected.chosen(number)]


def test_an_operation_is_hit_once_by_the_oldest_that_hits(context: Context) -> None:
    first, second = faults.inject("fail", after=1), faults.inject("fail", count=2)
    assert hits(context, 4) == [1, 2, 3]
    assert [state_of(number).hits for number in (first, second)] == [1, 2]
    assert state_of(second).matched == 2, "it did not see what the first has hit"


def test_sessions_and_processes_can_be_chosen(
    daemon: Daemon, context: Context, start_python: StartPython
) -> None:
    client = start_python(
        """
        with Driver.open(given["socket"]) as driver, driver.devices[0].create_context() as context:
            say(driver.session)
            for _ in range(2):
                hear()
                try:
                    say(context.alloc_host(64).size)
                except ZeError as error:
                    say(error.info.name)
        """,
        socket=str(daemon.socket),
    )
    session = client.hear()
    faults.inject("oom", session=session)
    faults.inject("oom", session=f"pid:{client.pid}")
    context.alloc_host(64)
    for _ in range(2):
        client.tell()
        assert client.hear() == "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"
    client.finish()


def test_devices_can_be_chosen(start_daemon: StartDaemon) -> None:
    start_daemon(devices=("4000", "3720"))
    with Driver.open() as driver:
        contexts = [device.create_context() for device in driver.devices]
        for kind in ("fail", "oom"):
            faults.inject(kind, device=1)
        assert [hits(context, 2) for context in contexts] == [[], [1]]
        faults.inject("fail", after=1, count=2)
        assert [hits(context, 2) for context in contexts] == [[2], [1]], "devices count together"
        contexts[0].alloc_host(64)
        failure(lambda: contexts[1].alloc_host(64), ZeResult.ERROR_OUT_OF_DEVICE_MEMORY)


# ------------------------------------------------------------ duration


def test_what_has_not_hit_yet_outlives_an_engine_and_a_block_its_daemon(start_context: StartContext) -> None:
    daemon, context = start_context()
    number = faults.inject("fail", after=3)
    for restarts, operations, hit in ((1, 2, []), (2, 3, [2]), (0, 2, [])):
        assert hits(context, operations) == hit
        if restarts:
            daemon.kill_engine()
            daemon.wait_restarted(restarts)
    assert (state_of(number).matched, state_of(number).hits) == (4, 1)
    with faults.injected("daemon-death"):
        failure(lambda: context.alloc_host(64), ZeResult.ERROR_DEVICE_LOST)
    assert daemon.process.wait(30) == -9


def test_what_was_meant_for_one_session_ends_with_it(context: Context) -> None:
    with Driver.open() as other:
        faults.inject("fail", session=other.session)
        assert hits(context, 2) == []
        with other.devices[0].create_context() as its:
            assert hits(its, 2) == [1]
        number = faults.inject("fail", session=other.session)
    wait_until(lambda: state_of(number).state == "session gone", what="it ends with its session")
    assert hits(context, 2) == []


def test_the_engine_is_as_before_once_nothing_is_left(daemon: Daemon, context: Context) -> None:
    with faults.injected("reset", after=5):
        check_works(context)
    before = daemon.base_fd_count()
    for _ in range(20):
        with faults.injected("reset", after=5):
            check_works(context)
    wait_until(lambda: daemon.base_fd_count() <= before, what="descriptors closed")
    assert daemon.engine().restarts == 0


def test_what_has_ended_is_kept_for_a_while_and_there_is_a_bound(context: Context) -> None:
    queue, commands = context.create_command_queue(), barrier(context)
    for _ in range(40):
        last = faults.inject("fail")
        fence = execute(queue, commands)
        with pytest.raises(ZeError):
            fence.host_synchronize(LONG)
    states = faults.status()
    assert (len(states), states[-1].id) == (32, last)
    error = failure(lambda: faults.clear([last, last + 9]), ZeResult.ERROR_INVALID_ARGUMENT)
    assert f"id {last + 9}" in str(error)
    assert faults.clear() == 32
    kept = faults.inject("fail")
    with pytest.raises(KeyError), faults.injected("fail"):
        raise KeyError
    assert [state.id for state in faults.status()] == [kept], "a block clears its own also when it fails"
    for _ in range(255):
        faults.inject("fail")
    failure(lambda: faults.inject("fail"), ZeResult.ERROR_OUT_OF_HOST_MEMORY)
    assert faults.clear() == 256


# ------------------------------------------------------------ refusals

_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "explode"}, "no fault 'explode'; expected one of hang, stall, reset"),
    ({"device": 1}, "device 1; expected 0 to 0"),
    ({"device": -1}, "device -1"),
    ({"session": 999}, "session 999"),
    ({"session": "pid:1"}, "process 1"),
    ({"session": "seven"}, "'seven'; expected a number, or pid:PID"),
    ({"count": 0}, "count 0"),
    ({"after": -1}, "after -1"),
    ({"probability": 0.0}, "probability 0"),
    ({"probability": 1.5}, "probability 1.5"),
    ({"probability": float("nan")}, "probability nan"),
    ({"seed": -1}, "seed -1"),
    ({"value": "now"}, "value 'now'; expected no value"),
    ({"kind": "slow", "value": "fast"}, "value 'fast'; expected a time such as 20ms"),
    ({"kind": "slow", "value": 0}, "value '0ms'"),
    ({"kind": "slow", "value": "2h"}, "value '2h'"),
    ({"kind": "slow", "value": "1x"}, "value '1x'"),
    ({"kind": "fail", "value": "SUCCESS"}, "expected an error such as"),
    ({"kind": "fail", "value": "ERROR_OF_MINE"}, "expected an error such as"),
    ({"kind": "oom", "value": "disk"}, "expected device or host"),
    ({"kind": "refuse"}, "expected a request such as"),
    ({"kind": "refuse", "value": "stop"}, "Requests: hello, context_create"),
    ({"kind": "refuse", "value": "mem_alloc=maybe"}, "expected a request such as"),
    ({"kind": "refuse", "value": "hello", "device": 0}, "acts on connections"),
    ({"kind": "refuse", "value": "hello", "session": "own"}, "before the handshake"),
    ({"kind": "delay", "value": "mem_alloc"}, "expected a request and a time"),
    ({"kind": "disconnect", "device": 0}, "acts on connections"),
    ({"kind": "load-crash", "session": "own"}, "sessions share what is loaded"),
    ({"kind": "compile-fail", "value": "x" * 801}, "801 characters"),
]


@pytest.mark.quick
def test_what_cannot_be_is_refused_before_any_effect(driver: Driver) -> None:
    for case, said in _REFUSALS:
        arguments = {"kind": "reset", **case}
        if arguments.get("session") == "own":
            arguments["session"] = driver.session
        error = failure(partial(faults.inject, **arguments), ZeResult.ERROR_INVALID_ARGUMENT)
        assert said in str(error)
    assert faults.status() == []


def test_without_a_daemon_there_is_nothing_to_inject_into() -> None:
    failure(lambda: faults.inject("reset"), ZeResult.ERROR_UNINITIALIZED)


# ------------------------------------------------------------ as text


def test_a_daemon_can_be_started_with_faults(start_daemon: StartDaemon) -> None:
    start_daemon(inject="fail=ERROR_INVALID_SIZE:after=1, oom=host:count=*")
    with Driver.open() as driver, driver.devices[0].create_context() as context:
        queue = context.create_command_queue()
        run(queue, barrier(context))
        fence = execute(queue, barrier(context))
        failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_INVALID_SIZE)
        for _ in range(3):
            failure(lambda: context.alloc_host(64), ZeResult.ERROR_OUT_OF_HOST_MEMORY)


def test_the_environment_asks_a_daemon_for_faults(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_INJECT, "slow=20ms:count=*:probability=0.1:seed=7:device=0")
    start_daemon()
    (state,) = faults.status()
    assert (state.id, state.kind, state.state) == (1, "slow", "active")
    assert (state.value, state.count, state.device) == ("20ms", None, 0)
    assert (state.probability, state.seed) == (0.1, 7)


@pytest.mark.quick
def test_text_that_is_not_understood_is_refused_by_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, said in (
        ("hang:after", "'after'"),
        ("hang:after=x", "a number"),
        ("hang:after=1:after=2", "once each"),
        ("hang:session=1", "'session=1'"),
        ("hang:seed=3", "seed without probability"),
        ("hang:count=-1", "count -1"),
    ):
        with pytest.raises(Refused) as caught:
            parse(f"reset, {text}")
        assert said in str(caught.value)
    for text in ("hang:device=1", "explode", "slow=now"):
        with pytest.raises(Refused, match="injection"):
            DaemonSettings(socket="/nowhere", inject=text).check()
        monkeypatch.setenv(ENV_INJECT, text)
        with pytest.raises(Refused, match="injection"):
            DaemonSettings(socket="/nowhere").check()


@pytest.mark.quick
def test_every_kind_has_a_default_that_it_takes_itself() -> None:
    needed = {Value.REQUEST: "mem_alloc", Value.REQUEST_TIME: "mem_alloc=1s"}
    for kind, info in KINDS.items():
        Injection(kind=kind, value=info.default or needed.get(info.value, "")).check()
    assert set(KINDS) == set(FaultKind)


@pytest.mark.quick
def test_every_request_can_be_named_but_those_of_daemons_and_monitors() -> None:
    tags = {str(cls.__struct_config__.tag) for cls in Request.__args__}
    monitors = {
        "activity", "stop", "inject", "inject_status", "inject_clear",
        "trace_start", "trace_rings", "trace_stop", "lease_take",
    }  # fmt: skip
    assert set(REQUESTS) == tags - monitors - {"trace_join"}


# ------------------------------------------------------------ inside the engine


def test_a_submission_counts_once_however_often_it_is_taken_up(context: Context) -> None:
    number = faults.inject("fail", after=9)
    events = [context.create_event() for _ in range(4)]
    commands = recorded(context, *[partial(_wait_for, event) for event in events])
    fence = execute(context.create_command_queue(), commands)
    for event in events:
        event.host_signal()
        wait_until(lambda: state_of(number).matched, what="it was taken up")
    assert fence.host_synchronize(LONG)
    assert state_of(number).matched == 1


def _wait_for(event: Event, commands: CommandList) -> None:
    commands.append_wait_on_events([event])


def test_an_engine_asks_only_as_long_as_there_is_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "active", None)
    counts, engine = InjectionCounters.new(4), InjectedFaults(2000)
    injection = Injection(kind=FaultKind.FAIL)
    order = link.InjectionAdd(id=1, slot=2, counters=4, injection=injection)

    engine.add(order, os.dup(counts.fd))
    assert failpoints.active is not None
    engine.prune()
    assert failpoints.active is not None, "it has not hit yet"
    assert counts.hit(2, injection)
    engine.prune()
    assert failpoints.active is None

    engine.add(order, os.dup(counts.fd))
    engine.drop(link.InjectionDrop(id=1))
    engine.prune()
    assert failpoints.active is None
    counts.close()

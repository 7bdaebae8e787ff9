"""Asking for faults: which operations are hit, who may ask, what is refused, and how long it holds."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import msgspec
import pytest

from softnpu.driver import CommandList, Context, Driver, Event, ZeError, ZeResult, faults
from softnpu.driver.faults import FaultKind
from softnpu.emulator import access
from softnpu.emulator.common import failpoints
from softnpu.emulator.engine.faults import EngineFaults
from softnpu.emulator.interface.environment import ENV_INJECT
from softnpu.emulator.interface.injection_messages import InjectionState
from softnpu.emulator.interface.injections import KINDS, REQUESTS, Injection, Value, parse
from softnpu.emulator.interface.messages import Request
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.links import engine as link
from softnpu.emulator.links.injection_counts import InjectionCounters
from softnpu.emulator.supervisor.settings import DaemonSettings
from tests.conftest import StartDaemon, StartPython
from tests.support.daemon import Daemon, DaemonRefused
from tests.support.waiting import wait_until
from tests.support.work import LONG, barrier, check_works, execute, failure, recorded, run

_GUEST = 65533


def hits(context: Context, operations: int) -> list[int]:
    """Which of so many submissions fail, from 1."""
    queue, found = context.create_command_queue(), []
    for number in range(1, operations + 1):
        fence = execute(queue, barrier(context))
        try:
            assert fence.host_synchronize(LONG)
        except ZeError:
            found.append(number)
    return found


def state_of(number: int) -> InjectionState:
    """What `status` says of one."""
    return next(state for state in faults.status() if state.id == number)


# ------------------------------------------------------------ which operations


def test_the_first_pass_and_then_so_many_are_hit(context: Context) -> None:
    number = faults.inject("fail", after=2, count=3)
    assert hits(context, 8) == [3, 4, 5]
    state = state_of(number)
    assert (state.state, state.matched, state.hits) == ("used up", 5, 3)


def test_without_an_end_every_one_is_hit_until_it_is_cleared(context: Context) -> None:
    number = faults.inject("fail", count=None)
    assert hits(context, 4) == [1, 2, 3, 4]
    assert faults.clear([number]) == 1
    assert hits(context, 4) == []
    assert faults.status() == []


def test_a_seed_picks_the_same_ones_again(context: Context) -> None:
    picked = []
    for seed in (7, 7, 8):
        with faults.injected("fail", count=None, probability=0.4, seed=seed):
            picked.append(hits(context, 40))
    assert picked[0] == picked[1] != picked[2]
    assert all(6 <= len(found) <= 26 for found in picked)
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
                    say(error.fault.name)
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


def test_a_session_can_be_chosen_of_those_that_share_an_engine(context: Context) -> None:
    with Driver.open() as other, other.devices[0].create_context() as its:
        faults.inject("fail", session=other.session)
        assert hits(context, 2) == []
        assert hits(its, 2) == [1]


def test_devices_can_be_chosen(start_daemon: StartDaemon) -> None:
    start_daemon(devices=("4000", "3720"))
    with Driver.open() as driver:
        contexts = [device.create_context() for device in driver.devices]
        for kind in ("fail", "oom"):
            faults.inject(kind, device=1)
        assert [hits(context, 2) for context in contexts] == [[], [1]]
        contexts[0].alloc_host(64)
        failure(lambda: contexts[1].alloc_host(64), ZeResult.ERROR_OUT_OF_DEVICE_MEMORY)


def test_devices_count_together(start_daemon: StartDaemon) -> None:
    start_daemon(devices=("4000", "3720"))
    with Driver.open() as driver:
        contexts = [device.create_context() for device in driver.devices]
        faults.inject("fail", after=1, count=2)
        assert [hits(context, 2) for context in contexts] == [[2], [1]]


# ------------------------------------------------------------ how long


def test_what_has_not_hit_yet_outlives_an_engine(daemon: Daemon, context: Context) -> None:
    number = faults.inject("fail", after=3)
    assert hits(context, 2) == []
    daemon.kill_engine()
    daemon.wait_restarted(1)
    assert hits(context, 3) == [2]
    daemon.kill_engine()
    daemon.wait_restarted(2)
    assert hits(context, 2) == []
    assert (state_of(number).matched, state_of(number).hits) == (4, 1)


def test_what_was_meant_for_one_session_ends_with_it(context: Context) -> None:
    with Driver.open() as other:
        number = faults.inject("fail", session=other.session)
    wait_until(lambda: state_of(number).state == "session gone", what="it ends with its session")
    assert hits(context, 2) == []


@pytest.mark.usefixtures("daemon")
def test_a_block_clears_what_it_has_asked_for_also_when_it_fails() -> None:
    kept = faults.inject("fail")
    with pytest.raises(KeyError), faults.injected("fail"):
        raise KeyError
    assert [state.id for state in faults.status()] == [kept]


def test_a_block_ends_well_though_the_daemon_has_died_in_it(daemon: Daemon, context: Context) -> None:
    with faults.injected("daemon-death"):
        failure(lambda: context.alloc_host(64), ZeResult.ERROR_DEVICE_LOST)
    assert daemon.process.wait(10) == -9


def test_the_engine_is_as_before_once_nothing_is_left(daemon: Daemon, context: Context) -> None:
    with faults.injected("reset", after=5):
        check_works(context)
    before = daemon.base_fd_count()
    for _ in range(40):
        with faults.injected("reset", after=5):
            check_works(context)
    wait_until(lambda: daemon.base_fd_count() <= before, what="descriptors closed")
    assert daemon.engine().restarts == 0


def test_what_has_ended_is_told_for_a_while_and_then_forgotten(context: Context) -> None:
    queue, commands = context.create_command_queue(), barrier(context)
    for _ in range(40):
        faults.inject("fail")
        fence = execute(queue, commands)
        with pytest.raises(ZeError):
            fence.host_synchronize(LONG)
    states = faults.status()
    assert len(states) == 32
    assert states[-1].id == 40
    assert faults.clear() == 32
    assert faults.status() == []


@pytest.mark.usefixtures("daemon")
def test_there_is_a_bound() -> None:
    for _ in range(256):
        faults.inject("fail")
    failure(lambda: faults.inject("fail"), ZeResult.ERROR_OUT_OF_HOST_MEMORY)
    assert faults.clear() == 256
    faults.inject("fail")


# ------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"kind": "explode"}, "no fault 'explode'; expected one of hang, stall, reset"),
        ({"kind": "reset", "device": 1}, "device 1; expected 0 to 0"),
        ({"kind": "reset", "device": -1}, "device -1"),
        ({"kind": "reset", "session": 999}, "session 999"),
        ({"kind": "reset", "session": "pid:1"}, "process 1"),
        ({"kind": "reset", "session": "seven"}, "'seven'; expected a number, or pid:PID"),
        ({"kind": "reset", "count": 0}, "count 0"),
        ({"kind": "reset", "after": -1}, "after -1"),
        ({"kind": "reset", "probability": 0.0}, "probability 0"),
        ({"kind": "reset", "probability": 1.5}, "probability 1.5"),
        ({"kind": "reset", "probability": float("nan")}, "probability nan"),
        ({"kind": "reset", "seed": -1}, "seed -1"),
        ({"kind": "reset", "value": "now"}, "value 'now'; expected no value"),
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
    ],
)
def test_what_cannot_be_is_refused_before_any_effect(
    driver: Driver, arguments: dict[str, object], said: str
) -> None:
    if arguments.get("session") == "own":
        arguments = arguments | {"session": driver.session}
    error = failure(lambda: faults.inject(**arguments), ZeResult.ERROR_INVALID_ARGUMENT)  # type: ignore[arg-type]
    assert said in str(error)
    assert faults.status() == []


@pytest.mark.usefixtures("daemon")
def test_an_id_that_does_not_exist_clears_nothing() -> None:
    number = faults.inject("reset")
    error = failure(lambda: faults.clear([number, 77]), ZeResult.ERROR_INVALID_ARGUMENT)
    assert "id 77" in str(error)
    assert [state.id for state in faults.status()] == [number]


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
    assert msgspec.structs.astuple(state)[:3] == (1, "slow", "active")
    assert (state.value, state.count, state.probability, state.seed, state.device) == (
        "20ms",
        None,
        0.1,
        7,
        0,
    )


@pytest.mark.parametrize("text", ["hang:device=1", "explode", "slow=now"])
def test_a_daemon_does_not_start_with_what_it_does_not_understand(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    with pytest.raises(DaemonRefused, match="injection"):
        start_daemon(inject=text)
    monkeypatch.setenv(ENV_INJECT, text)
    with pytest.raises(DaemonRefused, match="injection"):
        start_daemon()
    with pytest.raises(Refused):
        DaemonSettings(socket="/nowhere").check()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hang:after", "'after'"),
        ("hang:after=x", "a number"),
        ("hang:after=1:after=2", "once each"),
        ("hang:session=1", "'session=1'"),
        ("hang:seed=3", "seed without probability"),
        ("hang:count=-1", "count -1"),
    ],
)
def test_text_that_is_not_understood_is_refused_by_the_part(text: str, said: str) -> None:
    with pytest.raises(Refused) as caught:
        parse(f"reset, {text}")
    assert said in str(caught.value)


def test_every_kind_has_a_default_that_it_takes_itself() -> None:
    needed = {Value.REQUEST: "mem_alloc", Value.REQUEST_TIME: "mem_alloc=1s"}
    for kind, facts in KINDS.items():
        Injection(kind=kind, value=facts.default or needed.get(facts.value, "")).check()
    assert set(KINDS) == set(FaultKind)


def test_every_request_can_be_named_but_those_of_daemons_and_monitors() -> None:
    tags = {str(cls.__struct_config__.tag) for cls in Request.__args__}
    assert set(REQUESTS) == tags - {"stop", "inject", "inject_status", "inject_clear"}


# ------------------------------------------------------------ who may ask


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start processes of other users")
def test_a_guest_of_the_daemon_may_neither_ask_nor_look(
    start_daemon: StartDaemon, start_python: StartPython, private_dir: Path
) -> None:
    private_dir.chmod(0o711)
    place = private_dir / "shared" / "npu.sock"
    access.make_folder(place, (_GUEST,), ())
    start_daemon(socket=str(place), allow_users=(_GUEST,))
    faults.inject("oom", socket=place)
    client = start_python(
        """
        from softnpu.driver import faults, launch
        place = given["socket"]
        os.setgroups([])
        os.setresgid(given["uid"], given["uid"], given["uid"])
        os.setresuid(given["uid"], given["uid"], given["uid"])
        linux.die_with_parent(int(sys.argv[1]))
        for call in (
            lambda: faults.inject("reset", socket=place),
            lambda: faults.status(place),
            lambda: faults.clear(None, place),
        ):
            try:
                say(str(call()))
            except ZeError as error:
                say(error.fault.name)
        """,
        socket=str(place),
        uid=_GUEST,
    )
    for _ in range(3):
        assert client.hear() == "ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS"
    client.finish()
    assert [state.kind for state in faults.status(place)] == ["oom"]


# ------------------------------------------------------------ inside of the engine


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
    counts, engine = InjectionCounters.new(4), EngineFaults(2000)
    injection = Injection(kind=FaultKind.FAIL)
    order = link.InjectionAdd(id=1, slot=2, counters=4, injection=injection)

    engine.add(order, os.dup(counts.fd))
    assert failpoints.active is not None
    engine.tidy()
    assert failpoints.active is not None, "it has not hit yet"
    assert counts.hit(2, injection)
    engine.tidy()
    assert failpoints.active is None

    engine.add(order, os.dup(counts.fd))
    engine.drop(link.InjectionDrop(id=1))
    engine.tidy()
    assert failpoints.active is None
    counts.close()

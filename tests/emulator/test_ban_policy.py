"""Processes whose submissions repeatedly reset the device: throttled, then refused, then forgiven."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from softnpu.driver import Driver, ZeResult, faults
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.records import StatusWord
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.supervisor.engines.ban_policy import (
    REFUSE_FROM,
    REFUSE_USER_FROM,
    SLOW_FROM,
    BanPolicy,
    ban_key,
)
from softnpu.emulator.supervisor.tuning import Tuning
from softnpu.emulator.supervisor.users import _DELAYED
from tests.conftest import OpenContext, RunPython, StartContext, StartDaemon
from tests.support.other_users import GUEST, STRANGER, AsUser, needs_root, public_place
from tests.support.waiting import wait_until
from tests.support.wire import OpenWire, WireContext
from tests.support.work import barrier, check_works, execute, failure, lost, waits

_QUEUE = "command queue"
_STALLS = """
driver = Driver.open(place)
def stall():
    context = driver.devices[0].create_context()
    results = []
    for _ in range(given["times"]):
        queue = context.create_command_queue()
        fence = queue.create_fence()
        queue.execute_command_lists([recorded(context, lambda c: c.append_barrier())], fence)
        try:
            fence.host_synchronize(60 * 10**9)
        except ZeError as error:
            results.append(error.result.name)
    return results
say(outcome(stall))
hear()
"""
_WORKS = """
context = Driver.open(place).devices[0].create_context()
queue = context.create_command_queue()
queue.execute_command_lists([recorded(context, lambda c: c.append_barrier())])
say(outcome(lambda: queue.synchronize(60 * 10**9)))
hear()
"""


@pytest.mark.quick
def test_resets_of_a_process_slow_it_then_refuse_it_until_a_quiet_minute_has_passed() -> None:
    now = 0.0
    policy = BanPolicy(60.0, lambda: now)
    states = []
    for count in range(1, REFUSE_FROM + 1):
        assert policy.add_reset("one") == count
        states.append((policy.is_slowed("one"), policy.is_refused("one"), policy.delay_s("one")))
    assert states == [(False, False, 0.0), (True, False, 0.5), (True, False, 1.0), (True, True, 2.0)]
    assert (SLOW_FROM, REFUSE_FROM) == (2, 4)
    assert not policy.is_slowed("another")

    now = 20.0
    info = policy.refusal("one", _QUEUE, ZeResult.ERROR_NOT_AVAILABLE).info
    assert (info.result, info.object) == (ZeResult.ERROR_NOT_AVAILABLE, _QUEUE)
    assert "refused for 40 s more" in info.found

    now = 60.0
    assert (policy.is_slowed("one"), policy.is_refused("one")) == (False, False)
    assert policy.add_reset("one") == 1


@pytest.mark.quick
def test_resets_of_all_processes_of_a_user_count_together_and_are_forgiven_one_by_one() -> None:
    now, refusals = 0.0, list[StatusWord]()
    policy = BanPolicy(60.0, lambda: now)
    for second in range(REFUSE_USER_FROM):
        policy.check("another", GUEST, "context", refusals.append)
        now = float(second)
        policy.add_reset_of_user(GUEST)
        policy.add_reset_of_user(os.getuid())
    with pytest.raises(Refused, match=f"user {GUEST} have caused 8 engine resets .* refused for 53 s more"):
        policy.check("another", GUEST, "context", refusals.append)
    assert refusals == [StatusWord.REFUSALS]
    policy.check("another", STRANGER, "context", refusals.append)
    policy.check("another", os.getuid(), "context", refusals.append)
    now = 60.5
    policy.check("another", GUEST, "context", refusals.append)


@needs_root
def test_a_user_whose_processes_reset_engines_gets_no_more_of_them(
    start_daemon: StartDaemon, open_context: OpenContext, public_dir: Path, as_user: AsUser
) -> None:
    place = public_place(public_dir, users=(GUEST, STRANGER))
    daemon = start_daemon(
        socket=str(place),
        allow_users=(GUEST, STRANGER),
        tdr_ms=300,
        tuning=Tuning(min_hang_s=0.3, ban_window_s=600.0, function_idle_s=0.2),
    )
    faults.inject("stall", socket=place, count=None)
    for times in (3, 3, 2):
        guest = as_user(_STALLS, daemon, times=times)
        assert guest.hear(60.0) == {"value": ["ERROR_DEVICE_LOST"] * times}
        guest.kill()
    wait_until(lambda: [each.uid for each in daemon.engine().functions] == [0], what="their engine ends")
    assert daemon.counts("offences", "refusals") == (REFUSE_USER_FROM, 0)

    refused = as_user(_STALLS, daemon, times=1).hear(60.0)
    assert isinstance(refused, dict)
    assert f"user {GUEST} have caused {REFUSE_USER_FROM} engine resets" in refused["text"]
    assert [each.uid for each in daemon.engine().functions] == [0], "nor an engine"
    assert daemon.counts("refusals") == (1,)
    faults.clear(socket=place)
    assert as_user(_WORKS, daemon, STRANGER).hear(60.0) == {"value": True}
    check_works(open_context(daemon))


@pytest.mark.quick
def test_a_process_is_known_by_more_than_its_number() -> None:
    assert ban_key(1, 7).startswith("process 1.")
    assert ban_key(2**30, 7) == "session 7"


def test_a_process_that_hangs_the_device_is_refused_and_others_are_served(
    start_context: StartContext, run_python: RunPython
) -> None:
    daemon, context = start_context(tdr_ms=300, tuning=Tuning(min_hang_s=0.3, ban_window_s=600.0))
    spare = context.create_command_queue()
    faults.inject("hang")
    faults.inject("stall", count=REFUSE_FROM - 1)
    for number in range(1, REFUSE_FROM + 1):
        lost(execute(context.create_command_queue(), barrier(context)))
        assert f"{number} times within 600 s" in daemon.log

    error = failure(context.create_command_queue, ZeResult.ERROR_NOT_AVAILABLE)
    assert f"{REFUSE_FROM} engine resets" in error.info.found
    failure(context.device.create_context, ZeResult.ERROR_NOT_AVAILABLE)
    with Driver.open(daemon.socket) as again:
        failure(again.devices[0].create_context, ZeResult.ERROR_NOT_AVAILABLE)
    assert "engine resets" in lost(execute(spare, barrier(context))).info.found
    code = """
        with Driver.open(Path(given["socket"])) as driver:
            context = driver.devices[0].create_context()
            queue = context.create_command_queue()
            queue.execute_command_lists([recorded(context, lambda c: c.append_barrier())])
            say(queue.synchronize(6 * 10**10))
    """
    assert run_python(code, socket=str(daemon.socket)) is True
    expected = (1, REFUSE_FROM, REFUSE_FROM - 1, REFUSE_FROM, 3)
    assert daemon.counts("restarts", "hangs", "aborted", "offences", "refusals") == expected


def test_few_queues_of_a_throttled_process_wait_to_be_created(
    start_context: StartContext, open_wire: OpenWire
) -> None:
    """All that wait are due at once: thousands kept everybody else waiting."""
    daemon, context = start_context(tdr_ms=300, tuning=Tuning(min_hang_s=0.3, ban_window_s=600.0))
    faults.inject("stall", count=SLOW_FROM)
    for _ in range(SLOW_FROM):
        lost(execute(context.create_command_queue(), barrier(context)))
    wire = open_wire(daemon)
    request = msg.QueueCreate(context=WireContext(wire).handle, slots=16)
    os.kill(daemon.pid, signal.SIGSTOP)  # it reads all of them in less than the delay
    numbers = [wire.send(request) for _ in range(_DELAYED + 1)]
    os.kill(daemon.pid, signal.SIGCONT)
    first, answer = wire.receive()
    assert first == numbers[-1], "it does not wait"
    assert isinstance(answer, msg.Failed)
    assert answer.info.result == ZeResult.ERROR_OUT_OF_HOST_MEMORY
    for number in numbers[:-1]:
        assert isinstance(wire.answer(number), msg.QueueCreated)
    wire.ask(request, msg.QueueCreated)


def test_waiting_too_long_for_an_event_costs_no_engine_and_counts_for_nothing(
    start_context: StartContext,
) -> None:
    daemon, context = start_context(tdr_ms=100)
    event = context.create_event()
    queues = [context.create_command_queue() for _ in range(REFUSE_FROM + 1)]
    for fence in [execute(queue, waits(context, event)) for queue in queues]:
        lost(fence)
    assert daemon.counts("aborted", "offences", "restarts") == (REFUSE_FROM + 1, 0, 0)
    check_works(context)

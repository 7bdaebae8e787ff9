"""Processes whose submissions reset the device again and again: slowed, then refused, then forgiven."""

from __future__ import annotations

from pathlib import Path

import pytest

from softnpu.driver import Context, Driver, ZeError, ZeResult
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.supervisor.ban_policy import REFUSE_FROM, SLOW_FROM, WINDOW_S, BanPolicy, identity
from tests.conftest import RunPython, StartDaemon
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until
from tests.support.work import LONG, barrier, check_works, execute, failure

_QUICK = {"softnpu.emulator.supervisor.watchdog:_LEAST_HANG_S": 0.4}


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def offenders(clock: _Clock) -> BanPolicy:
    return BanPolicy(clock)


def test_one_reset_may_be_bad_luck(offenders: BanPolicy) -> None:
    assert offenders.note("somebody") == 1
    assert not offenders.slowed("somebody")
    assert offenders.delay_s("somebody") == 0.0
    offenders.check("somebody", "context")


def test_more_are_slowed_longer_and_longer(offenders: BanPolicy) -> None:
    delays = []
    for _ in range(REFUSE_FROM - 1):
        offenders.note("somebody")
        delays.append(offenders.delay_s("somebody"))
    assert delays[SLOW_FROM - 1 :] == [0.5, 1.0]
    assert offenders.slowed("somebody")
    assert not offenders.slowed("somebody else")
    offenders.check("somebody", "context")


def test_too_many_are_refused_and_told_for_how_long(offenders: BanPolicy, clock: _Clock) -> None:
    for _ in range(REFUSE_FROM):
        offenders.note("somebody")
    clock.now += 20.0
    with pytest.raises(Refused) as caught:
        offenders.check("somebody", "command queue")
    assert caught.value.info.result == ZeResult.ERROR_NOT_AVAILABLE
    assert "refused for 40 s more" in caught.value.info.found
    offenders.check("somebody else", "command queue")


def test_a_quiet_minute_forgives_everything(offenders: BanPolicy, clock: _Clock) -> None:
    for _ in range(REFUSE_FROM):
        offenders.note("somebody")
    clock.now += WINDOW_S
    offenders.check("somebody", "context")
    assert offenders.note("somebody") == 1


def test_a_process_is_known_by_more_than_its_number() -> None:
    assert identity(1, 7).startswith("process 1.")
    assert identity(2**30, 7) == "session 7"


@pytest.fixture
def hostile_daemon(start_daemon: StartDaemon) -> Daemon:
    """The first submissions hang their engines, as many as it takes to be refused."""
    return start_daemon(failpoints=f"engine.running=hang:{REFUSE_FROM}", tdr_ms=300, patches=_QUICK)


def _passed_on(error: ZeError) -> bool:
    if error.result != ZeResult.ERROR_NOT_AVAILABLE:
        raise error
    return False


def _hang(context: Context) -> None:
    queue = context.create_command_queue()
    fence = execute(queue, barrier(context))
    failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_DEVICE_LOST)


def test_who_hangs_the_device_again_and_again_is_refused_and_others_are_served(
    hostile_daemon: Daemon, run_python: RunPython
) -> None:
    with Driver.open(hostile_daemon.socket) as driver:
        context = driver.devices[0].create_context()
        spare = context.create_command_queue()
        for _ in range(REFUSE_FROM):
            _hang(context)

        error = failure(context.create_command_queue, ZeResult.ERROR_NOT_AVAILABLE)
        assert f"{REFUSE_FROM} engine resets" in error.info.found
        assert "s more" in error.info.found
        failure(driver.devices[0].create_context, ZeResult.ERROR_NOT_AVAILABLE)
        with Driver.open(hostile_daemon.socket) as again:
            failure(again.devices[0].create_context, ZeResult.ERROR_NOT_AVAILABLE)
        fence = execute(spare, barrier(context))
        error = failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_DEVICE_LOST)
        assert "engine resets" in error.info.found
        code = """
            with Driver.open(Path(given["socket"])) as driver:
                context = driver.devices[0].create_context()
                queue, commands = context.create_command_queue(), context.create_command_list()
                commands.append_barrier()
                commands.close()
                queue.execute_command_lists([commands])
                say(queue.synchronize(10**10))
        """
        assert run_python(code, socket=str(hostile_daemon.socket)) is True
        engine = hostile_daemon.engine()
        assert (engine.hangs, engine.offences, engine.refusals) == (REFUSE_FROM, REFUSE_FROM, 3)


def test_an_offender_that_keeps_quiet_is_served_again(start_daemon: StartDaemon) -> None:
    patches = {**_QUICK, "softnpu.emulator.supervisor.ban_policy:WINDOW_S": 6.0}
    daemon = start_daemon(failpoints=f"engine.running=hang:{REFUSE_FROM}", tdr_ms=300, patches=patches)
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        for _ in range(2 * REFUSE_FROM):
            if daemon.engine().offences == REFUSE_FROM:
                break
            _hang(context)

        def served() -> bool:
            try:
                check_works(context)
            except ZeError as error:
                return _passed_on(error)
            return True

        wait_until(served, 20.0, what="its minute is over")


def test_what_waits_too_long_for_an_event_costs_no_engine_and_is_no_offence(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon(tdr_ms=100)
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        event = context.create_event()
        for _ in range(REFUSE_FROM + 1):
            queue = context.create_command_queue()
            commands = context.create_command_list()
            commands.append_wait_on_events([event])
            commands.close()
            fence = execute(queue, commands)
            failure(lambda fence=fence: fence.host_synchronize(LONG), ZeResult.ERROR_DEVICE_LOST)  # type: ignore[misc]
        engine = daemon.engine()
        assert (engine.aborted, engine.offences, engine.restarts) == (REFUSE_FROM + 1, 0, 0)
        check_works(context)


def test_the_log_names_the_process(hostile_daemon: Daemon, private_dir: Path) -> None:
    assert private_dir.exists()
    with Driver.open(hostile_daemon.socket) as driver:
        _hang(driver.devices[0].create_context())
    assert "1 times within" in hostile_daemon.log

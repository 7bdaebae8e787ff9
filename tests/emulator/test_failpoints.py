"""Fail-points: their syntax, that they are off by default, and that each is on its path."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from softnpu.driver import Driver
from softnpu.emulator.common import failpoints
from softnpu.emulator.common.failpoints import ENV_FAILPOINTS
from tests.conftest import StartDaemon, StartPython
from tests.support.daemon import DaemonRefused
from tests.support.tour import TOUR
from tests.support.waiting import DEADLINE_S, wait_gone
from tests.support.work import LONG, barrier, execute, run


@pytest.mark.quick
def test_rules_are_understood() -> None:
    rules = failpoints.parse("engine.running=kill, client.map=memory:3:2,engine.load=sleep(20):*")
    assert [(r.point, r.action, r.value, r.times, r.after) for r in rules.values()] == [
        ("engine.running", "kill", "", 1, 0),
        ("client.map", "memory", "", 3, 2),
        ("engine.load", "sleep", "20", 2**63, 0),
    ]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("engine.running", "not understood"),
        ("engine.runing=kill", "no point 'engine.runing'"),
        ("engine.running=explode", "no action 'explode'"),
        ("engine.running=sleep", "sleep(MILLISECONDS)"),
        ("engine.running=trace(here)", "trace(/ABSOLUTE/PATH)"),
        ("engine.running=kill:x", "not understood"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(failpoints.FailpointError) as caught:
        failpoints.parse(text)
    assert named in str(caught.value)


def test_a_daemon_refuses_rules_that_it_does_not_understand(start_daemon: StartDaemon) -> None:
    with pytest.raises(DaemonRefused, match="no point"):
        start_daemon(failpoints="engine.nowhere=kill")


def _in_a_process(code: str, rules: str) -> subprocess.CompletedProcess[bytes]:
    program = "from softnpu.emulator.common import failpoints\n" + code
    environment = {**os.environ, ENV_FAILPOINTS: rules}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, timeout=DEADLINE_S, check=False)


@pytest.mark.parametrize(("action", "number"), [("kill", signal.SIGKILL), ("abort", signal.SIGABRT)])
def test_a_process_dies_the_way_that_was_asked_for(action: str, number: int, private_dir: Path) -> None:
    done = _in_a_process("failpoints.hit('client.map')", f"client.map={action}")
    assert done.returncode == -number
    assert list(private_dir.glob("core*")) == []


def test_an_action_is_taken_as_often_as_was_asked_for() -> None:
    code = """
for number in range(6):
    try:
        failpoints.hit('client.map')
    except MemoryError as error:
        print(number, error)
"""
    done = _in_a_process(code, "client.map=memory:2:3")
    assert done.stdout.decode().split("\n")[:-1] == ["3 fail-point client.map", "4 fail-point client.map"]


def test_without_descriptors_nothing_can_be_opened() -> None:
    code = """
failpoints.hit('client.map')
try:
    open('/')
except OSError as error:
    print(error.errno)
"""
    assert int(_in_a_process(code, "client.map=descriptors").stdout) == 24


def test_rules_can_be_replaced_and_cleared_and_leave_no_descriptor() -> None:
    code = """
import os
before = len(os.listdir("/proc/self/fd"))
for rules in ("client.load=memory", "client.map=memory:2", ""):
    failpoints.configure(rules)
    print(len(os.listdir("/proc/self/fd")) - before, os.environ.get("SOFTNPU_FAILPOINTS"), sep=",")
failpoints.hit("client.map")
"""
    done = _in_a_process(code, "client.map=kill")
    assert done.returncode == 0
    # the difference is the memory of the environment's rules, and its mapping
    assert done.stdout.decode().split() == ["0,client.load=memory", "0,client.map=memory:2", "-2,None"]


def test_engines_of_one_daemon_count_together(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(failpoints="engine.completing=kill:2")
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        queues = [context.create_command_queue() for _ in range(2)]
        fence = execute(queues[0], barrier(context))
        with pytest.raises(Exception, match="DEVICE_LOST"):
            fence.host_synchronize(LONG)  # two engines under one command
        run(queues[1], barrier(context))
        assert daemon.engine().restarts == 2


def test_every_point_is_on_the_way_of_a_normal_run(
    start_daemon: StartDaemon, start_python: StartPython, private_dir: Path, digits: Path
) -> None:
    trace = private_dir / "trace"
    rules = ",".join(f"{point}=trace({trace}):*" for point in failpoints.POINTS)
    daemon = start_daemon(failpoints=rules, idle_timeout_s=0.5)
    client = start_python(
        TOUR, environment={ENV_FAILPOINTS: rules}, socket=str(daemon.socket), xml=str(digits)
    )
    assert client.hear()["numbers"]
    client.finish()
    wait_gone(daemon.pid)

    assert set(trace.read_text().split()) == set(failpoints.POINTS)


def test_a_failed_step_is_reported_as_what_it_is(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(failpoints="supervisor.allocate=memory:1:0,engine.running=memory")
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        with pytest.raises(Exception, match="OUT_OF_HOST_MEMORY"):
            context.alloc_host(64)
        context.alloc_host(64)
        queue = context.create_command_queue()
        fence = execute(queue, barrier(context))
        with pytest.raises(Exception, match="OUT_OF_HOST_MEMORY"):
            fence.host_synchronize(LONG)
        run(queue, barrier(context))
        assert not queue.lost
        assert daemon.engine().restarts == 0

"""Blame for an engine's end: only the work named by the watchdog."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from softnpu.emulator.arithmetic import library
from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.links import engine as link
from softnpu.emulator.supervisor.engines.queue_states import QueueStates, Running
from softnpu.emulator.supervisor.engines.reset_blame import KillReason, poison_submissions
from softnpu.emulator.supervisor.engines.running_submissions import RunningSubmission
from softnpu.emulator.supervisor.state.objects import Queue
from tests.conftest import StartContext
from tests.support.work import Loaded, check_works, failure

_INFO = ErrorInfo(result=ZeResult.ERROR_DEVICE_LOST, object="command queue", found="no progress")


@pytest.fixture
def states() -> Iterator[QueueStates]:
    states = QueueStates()
    yield states
    states.close()


def _running(states: QueueStates, sequence: int = 1) -> Queue:
    """Return a queue in which, by the engine's account, this submission runs."""
    nothing = cast(Any, None)
    queue = Queue(nothing, nothing, slots=16, priority=0, turbo=False, state=states.take(0))
    _say(states, queue, sequence)
    return queue


def _say(states: QueueStates, queue: Queue, sequence: int) -> None:
    at = queue.state * link.QUEUE_STATE_SIZE
    states._map[at : at + 16] = struct.pack("=QQ", sequence - 1, sequence)


def _kill(queue: Queue, sequence: int = 1) -> KillReason:
    return KillReason(_INFO, RunningSubmission(queue, Running(sequence, 0, 0), given_back=False))


def test_of_two_that_an_engine_claims_to_run_the_one_that_hung_is_poisoned(states: QueueStates) -> None:
    beside, hung = _running(states), _running(states)

    assert poison_submissions([beside, hung], states, _kill(hung), "was killed") == [hung]

    assert (hung.poisoned, hung.poisoned_info) == (1, _INFO)
    assert (beside.poisoned, beside.attempts) == (0, 0)


def test_what_began_after_the_one_that_hung_had_ended_is_not_poisoned(states: QueueStates) -> None:
    queue = _running(states)
    kill = _kill(queue)
    _say(states, queue, 2)

    assert poison_submissions([queue], states, kill, "was killed") == []
    assert queue.attempts == 0


def test_without_a_reason_each_has_two_attempts(states: QueueStates) -> None:
    queues = [_running(states), _running(states)]
    assert poison_submissions(queues, states, None, "ended with signal 9") == []
    for queue in queues:
        _say(states, queue, 1)
    assert poison_submissions(queues, states, None, "ended with signal 9") == queues


@pytest.fixture
def ends(private_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a library that ends its process like an engine unable to end a cancelled inference."""
    monkeypatch.setenv(library.DIRECTORY, str(private_dir))
    source, made = private_dir / "ends.c", private_dir / "ends.so"
    code = (
        f"void _exit(int); __attribute__((constructor)) static void end(void) {{ _exit({link.EXIT_HELD}); }}"
    )
    source.write_text(code)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", made, source], check=True)
    return made


def test_an_image_that_was_loaded_beside_what_does_not_end_is_loaded_by_the_next_engine(
    start_context: StartContext, ends: Path, digits: Path
) -> None:
    daemon, context = start_context(failpoints=f"engine.load=load({ends}):3")
    Loaded(context, digits)
    assert daemon.counts("restarts", "offences") == (3, 0)


def test_an_image_of_which_every_engine_says_so_is_given_up(
    start_context: StartContext, ends: Path, digits: Path
) -> None:
    daemon, context = start_context(failpoints=f"engine.load=load({ends}):4")
    error = failure(lambda: Loaded(context, digits), ZeResult.ERROR_DEVICE_LOST)
    assert "4 times" in error.info.found
    assert daemon.engine().restarts == 4
    check_works(context)

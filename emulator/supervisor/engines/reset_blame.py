"""Blame for an engine's end: the submission that must not run again, or the image not to load again.

An engine may be killed from outside (an operator, the OOM killer): running work continues with the next
engine. Two engines that end under the same command are no accident, nor is a command that the watchdog had to
end.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.supervisor.engines.queue_states import QueueStates
from softnpu.emulator.supervisor.engines.running_submissions import RunningSubmission
from softnpu.emulator.supervisor.state.images import Image, ImageState
from softnpu.emulator.supervisor.state.objects import Queue

_ATTEMPTS = 2
_ATTEMPTS_INNOCENT = 4  # of an image that was loaded before, or is an unlikely culprit
_ATTEMPTS_IN_ALL = 8  # of one submission, over all of its commands


class KillReason(NamedTuple):
    """Why the watchdog kills an engine.

    `command`: the submission that is poisoned. `blames_image`: the image that is being loaded is to blame.
    What runs beside either goes on, however often that happens.
    """

    info: ErrorInfo
    command: RunningSubmission | None
    blames_image: bool = False

    def blames(self, queue: Queue, sequence: int) -> bool:
        """Whether this submission is to blame."""
        command = self.command
        return command is not None and command.queue is queue and command.running.sequence == sequence


def poison_submissions(
    queues: Iterable[Queue], states: QueueStates, kill: KillReason | None, ending: str
) -> list[Queue]:
    """Condemn the submissions that ended the engine; return their queues. `ending`: how it ended."""
    poisoned = []
    for queue in queues:
        running = states.running(queue.state)
        if running is None:
            continue
        # counted once: if the next engine dies before it runs this, that was not its fault
        states.clear_running(queue.state)
        blamed = kill is not None and kill.blames(queue, running.sequence)
        if kill is not None and not blamed and (kill.blames_image or kill.command is not None):
            continue
        if queue.attempted != running.sequence:
            queue.attempted, queue.attempts, queue.attempts_in_all = running.sequence, 0, 0
        if queue.attempted_step != running.step:
            queue.attempted_step, queue.attempts = running.step, 0
        queue.attempts += 1
        queue.attempts_in_all += 1
        if kill is not None and blamed:
            queue.poisoned_info = kill.info
        elif queue.attempts >= _ATTEMPTS or queue.attempts_in_all >= _ATTEMPTS_IN_ALL:
            queue.poisoned_info = _died(ending)
        else:
            continue
        queue.poisoned = running.sequence
        poisoned.append(queue)
    return poisoned


class Suspicion(enum.Enum):
    """The likelihood that the image being loaded caused an engine's end."""

    NONE = "it says that it ended for something else"  # a model can make it say so
    SOME = "nothing else was under way"
    CERTAIN = "the watchdog has seen it"


def fail_image(image: Image, ending: str, suspicion: Suspicion) -> bool:
    """Give up the image that the engine was loading when it ended, the second time; whether that was now.

    An image that engines have loaded before may be to blame as well: its weights may have changed since.
    """
    at_once = suspicion is Suspicion.CERTAIN
    fresh = image.state is ImageState.LOADING and suspicion is Suspicion.SOME
    attempts = 1 if at_once else _ATTEMPTS if fresh else _ATTEMPTS_INNOCENT
    image.attempts += 1
    if image.attempts < attempts:
        return False
    image.attempts = 0
    info = ErrorInfo(
        result=ZeResult.ERROR_DEVICE_LOST,
        object="graph",
        found=ending if at_once else f"the engine {ending} while it loaded this graph, {attempts} times",
        hint="the model cannot be loaded on this device",
    )
    image.finish_loading(info, 0.0)
    return True


def failed_info(device: int) -> ErrorInfo:
    """Return the error for requests to a device that is given up."""
    return ErrorInfo(
        result=ZeResult.ERROR_DEVICE_LOST,
        object=f"device {device}",
        found="its engines end before they are ready",
        expected="a working engine",
        hint="read the daemon's log, then restart it",
    )


def _died(ending: str) -> ErrorInfo:
    return ErrorInfo(
        result=ZeResult.ERROR_DEVICE_LOST,
        object="command queue",
        found=f"the engine died while it ran this submission, and again when it went on with it: it {ending}",
        expected="a submission that ends",
        hint="create a new queue",
    )

"""Who is to blame when an engine ends: what must not run again, and what must not be loaded again.

An engine may be killed from outside (an operator, the OOM killer), which is nobody's fault: what ran goes on
with the next engine. Two engines that end under the same command are no accident, and neither is one that
the watchdog had to end because a command hung.
"""

from __future__ import annotations

from collections.abc import Iterable

from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.supervisor.images import Image, ImageState
from softnpu.emulator.supervisor.objects import Context, Queue
from softnpu.emulator.supervisor.queue_states import QueueStates
from softnpu.emulator.supervisor.watchdog import Verdict

_ATTEMPTS = 2
_ATTEMPTS_AGAIN = 4  # of an image that was loaded well before: somebody may kill the engines from outside
_ATTEMPTS_IN_ALL = 8  # of one submission, wherever in it


def judge_queues(
    contexts: Iterable[Context], states: QueueStates, verdict: Verdict | None, reason: str
) -> list[Queue]:
    """Condemns the submissions that took the engine with them; their queues."""
    condemned = []
    for context in contexts:
        for queue in context.queues.values():
            running = states.running(queue.state)
            if running is None:
                continue
            # counted once: if the next engine dies before it runs this, that was not its fault
            states.clear_running(queue.state)
            if queue.attempted != running.sequence:
                queue.attempted, queue.attempts, queue.attempts_in_all = running.sequence, 0, 0
            if queue.attempted_step != running.step:
                queue.attempted_step, queue.attempts = running.step, 0
            queue.attempts += 1
            queue.attempts_in_all += 1
            if verdict is not None and verdict.guilty:
                queue.condemned_info = verdict.info
            elif queue.attempts >= _ATTEMPTS or queue.attempts_in_all >= _ATTEMPTS_IN_ALL:
                queue.condemned_info = _died(reason)
            else:
                continue
            queue.condemned = running.sequence
            condemned.append(queue)
    return condemned


def judge_image(image: Image, reason: str) -> bool:
    """Gives up the image that the engine was loading when it ended, the second time; whether it did.

    Later also one that engines have loaded before: its weights may have changed since, and end all others.
    """
    attempts = _ATTEMPTS if image.state is ImageState.LOADING else _ATTEMPTS_AGAIN
    image.attempts += 1
    if image.attempts < attempts:
        return False
    image.attempts = 0
    info = ErrorInfo(
        result=ZeResult.ERROR_DEVICE_LOST,
        object="graph",
        found=f"the engine {reason} while it loaded this graph, {attempts} times",
        hint="the model cannot be loaded on this device",
    )
    image.finish_loading(info, 0.0)
    return True


def _died(reason: str) -> ErrorInfo:
    return ErrorInfo(
        result=ZeResult.ERROR_DEVICE_LOST,
        object="command queue",
        found=f"the engine died while it ran this submission, and again when it went on with it: it {reason}",
        expected="a submission that ends",
        hint="create a new queue",
    )

"""The running submission as seen by its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from softnpu.emulator.common.arrays import Words
from softnpu.emulator.engine.commands.modelled_runs import ModelledRuns
from softnpu.emulator.engine.commands.steps import StepQueue
from softnpu.emulator.engine.counters import Counters, Work
from softnpu.emulator.engine.memory.mappings import Range


@dataclass(slots=True)
class RunningSubmission:
    """What the steps of any submission use; `queue` is the one whose submission runs now.

    `is_cancelled`: whether the submission must end now; reads messages from the supervisor. Once True it
    stays True until it has ended. `poll_overlap`: the same, after starting inferences that overlap
    the current one. `write_metrics`: writes the counters of the device, plus the work done by this submission
    so far. `signalled`: wakes the queues that wait for this event. `modelled`: None if the device shows the
    host's clock. `called_until_ns`: when an inference called from C++ is cancelled, to run again in its turn.
    """

    counters: Counters
    modelled: ModelledRuns | None
    is_cancelled: Callable[[], bool]
    poll_overlap: Callable[[], bool]
    write_metrics: Callable[[Words, Work], None]
    signalled: Callable[[Range], None]
    queue: StepQueue = field(init=False)
    called_until_ns: int = 0

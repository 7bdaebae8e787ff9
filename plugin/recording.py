"""What one infer request puts on its queue: its tensors, and the command list on their places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from softnpu.driver import CommandList
from softnpu.plugin.profiling import Profiler
from softnpu.plugin.tensors import Slot

if TYPE_CHECKING:
    from softnpu.plugin.executable import Executable


class Recording:
    """The slots of all ports (`inputs`, then `outputs`), and the list that is executed for an inference.

    `prepare` and `finish` frame every inference.
    """

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        signature = executable.signature
        self.inputs = [Slot(executable.context, port, True) for port in signature.inputs]
        self.outputs = [Slot(executable.context, port, False) for port in signature.outputs]
        self.slots = self.inputs + self.outputs
        self.profiler = Profiler(executable.graph) if executable.graph.profiled else None
        self._commands: CommandList | None = None

    def prepare(self) -> CommandList:
        """Before an inference: brings its inputs to the device; what is to be executed."""
        staged = sum(slot.stage_in() for slot in self.inputs)
        if staged:
            self._executable.count_staged(staged)
        if self._commands is None or any(slot.moved for slot in self.slots):
            self._commands = self._record()
        return self._commands

    def finish(self) -> None:
        """After an inference that succeeded: brings its results to where the user wants them."""
        staged = sum(slot.stage_out() for slot in self.outputs)
        if staged:
            self._executable.count_staged(staged)

    def _record(self) -> CommandList:
        places = {slot.port.argument: slot.place for slot in self.slots}
        query = self.profiler.query if self.profiler is not None else None
        commands = self._executable.record([places], query)
        for slot in self.slots:
            slot.moved = False
        return commands

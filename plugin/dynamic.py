"""Inferences with dynamic shapes: told before each one; one whose result had too little memory runs again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from softnpu.driver import CommandList, ZeError, ZeResult
from softnpu.plugin.batch.execution import BatchRecording
from softnpu.plugin.dynamic_tensors import DynamicSlot
from softnpu.plugin.errors import NpuError
from softnpu.plugin.recording import Recording

if TYPE_CHECKING:
    from softnpu.plugin.executable import Executable


def recording_for(executable: Executable) -> Recording:
    """The recording of a request: of one whose batch the plugin splits, with dynamic dimensions, or plain."""
    if executable.signature.batch:
        return BatchRecording(executable)
    is_dynamic = any(port.shape_argument >= 0 for port in executable.signature.ports)
    return DynamicRecording(executable) if is_dynamic else Recording(executable)


class DynamicRecording(Recording):
    """A recording whose ports have shapes of their own at every inference. The list stays the same."""

    def __init__(self, executable: Executable) -> None:
        super().__init__(executable)
        self._told = [slot for slot in self.inputs if isinstance(slot, DynamicSlot)]
        self._open = [slot for slot in self.outputs if isinstance(slot, DynamicSlot)]

    def prepare(self) -> CommandList:
        """As ever, with shapes checked before anything has an effect. Raises `InputError`."""
        for slot in self._told:
            slot.check_shape()
        for slot in self._told:
            slot.tell_shape()
        return super().prepare()

    def again(self, failure: NpuError) -> CommandList | None:
        """After a result that did not fit: what to execute again, with more memory for it."""
        cause = failure.__cause__
        if not isinstance(cause, ZeError) or cause.result != ZeResult.ERROR_INVALID_SIZE:
            return None
        grown = [slot.grow() for slot in self._open]
        if not any(grown):
            return None
        self._commands.clear()
        commands = self._record()
        if not self.states.pending:
            self._commands[self.states.turn] = commands
        return commands

"""Inferences with dynamic shapes: the device reads them before each one; too little memory repeats one."""

from __future__ import annotations

from softnpu.driver import CommandList, ZeError, ZeResult
from softnpu.plugin.errors import NpuError
from softnpu.plugin.requests.batch_execution import BatchRecording
from softnpu.plugin.requests.dynamic_tensors import DynamicSlot
from softnpu.plugin.requests.executable import Executable
from softnpu.plugin.requests.recording import Recording


def recording_for(executable: Executable) -> Recording:
    """Return a request's recording: for a batch split by the plugin, for dynamic dimensions, or plain."""
    if executable.signature.batch:
        return BatchRecording(executable)
    is_dynamic = any(argument.is_dynamic for argument in executable.meta.arguments)
    return DynamicRecording(executable) if is_dynamic else Recording(executable)


class DynamicRecording(Recording):
    """A recording whose ports and states may change shape with every inference.

    The command lists stay the same as long as the memory does.
    """

    def __init__(self, executable: Executable) -> None:
        super().__init__(executable)
        self._dynamic_inputs = [slot for slot in self.inputs if isinstance(slot, DynamicSlot)]
        self._dynamic_outputs = [slot for slot in self.outputs if isinstance(slot, DynamicSlot)]
        self._dynamic_states = self.states.dynamic

    def prepare(self) -> CommandList:
        """As `Recording.prepare`, after a check of all shapes. Raises `InputError`."""
        for slot in self._dynamic_inputs:
            slot.check_shape()
        for slot in self._dynamic_inputs:
            slot.write_shape()
        if self._dynamic_states:
            # attention caches an entry for each position of an input
            rows = max((slot.positions for slot in self._dynamic_inputs), default=1)
            for state in self._dynamic_states:
                state.expect(self.states.turn, rows)
            if any(state.rebind for state in self._dynamic_states):
                self._commands.clear()
        return super().prepare()

    def retry(self, failure: NpuError) -> CommandList | None:
        """Return the commands to execute again, with more memory for a result that did not fit."""
        cause = failure.__cause__
        if not isinstance(cause, ZeError) or cause.result != ZeResult.ERROR_INVALID_SIZE:
            return None
        grown = [slot.grow() for slot in self._dynamic_outputs]
        grown += [state.grow(self.states.turn) for state in self._dynamic_states]
        if not any(grown):
            return None
        self._commands.clear()
        commands = self._record()
        if not self.states.pending:
            self._commands[self.states.turn] = commands
        return commands

"""What one infer request puts on its queue: its tensors, and the command list on their places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from softnpu.driver import CommandList
from softnpu.plugin.dynamic_tensors import slot_for
from softnpu.plugin.errors import NpuError
from softnpu.plugin.profiling import Profiler
from softnpu.plugin.signature import PortSpec
from softnpu.plugin.states import States
from softnpu.plugin.tensors import Slot

if TYPE_CHECKING:
    from softnpu.plugin.executable import Executable


class Recording:
    """The slots of all ports (`inputs`, then `outputs`), and the list that is executed for an inference.

    `prepare` and `finish` frame every inference. With states there are two lists, one for each way in which
    their buffers are used.
    """

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        signature = executable.signature
        self.inputs = [self._slot(port, True) for port in signature.inputs]
        self.outputs = [self._slot(port, False) for port in signature.outputs]
        self.slots = self.inputs + self.outputs
        self.profiler = self._profiler() if executable.graph.profiled else None
        self.states = States(executable.context, executable.graph, executable.initial)
        self._commands: dict[int, CommandList] = {}

    def check_inputs(self, given: Mapping[int, Any]) -> None:
        """Raises `InputError` if tensors or arrays, by the index of their input, do not fit the others."""
        del given

    def prepare(self) -> CommandList:
        """Before an inference: brings its inputs to the device; what is to be executed."""
        staged = sum(slot.stage_in() for slot in self.inputs)
        if staged:
            self._executable.count_staged(staged)
        if any(slot.moved for slot in self.slots):
            self._commands.clear()
        if self.states.pending:
            return self._record()  # this once: the initial values are computed first
        turn = self.states.turn
        if turn not in self._commands:
            self._commands[turn] = self._record()
        return self._commands[turn]

    def finish(self) -> None:
        """After an inference that succeeded: brings its results to where the user wants them."""
        staged = sum(slot.stage_out() for slot in self.outputs)
        if staged:
            self._executable.count_staged(staged)
        self.states.swap()

    def fail(self) -> None:
        """After an inference that failed: states are as before it."""
        self.states.keep()

    def again(self, failure: NpuError) -> CommandList | None:
        """What to execute after an inference that failed, if that can help; None: it has failed."""
        del failure
        return None

    def _slot(self, port: PortSpec, is_input: bool) -> Slot:
        return slot_for(self._executable.context, port, is_input)

    def _profiler(self) -> Profiler:
        return Profiler(self._executable.graph)

    def _record(self) -> CommandList:
        places = {index: place for slot in self.slots for index, place in slot.places().items()}
        places |= self.states.places()
        queries = self.profiler.queries if self.profiler is not None else ()
        initial = self.states.initial_places(places) if self.states.pending else None
        commands = self._executable.record([places], queries, initial)
        for slot in self.slots:
            slot.moved = False
        return commands

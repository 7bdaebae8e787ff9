"""The tensors of one infer request, and the command list that is executed with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from softnpu.driver import CommandList
from softnpu.plugin.errors import NpuError
from softnpu.plugin.requests.dynamic_tensors import slot_for
from softnpu.plugin.requests.executable import Executable
from softnpu.plugin.requests.states import States
from softnpu.plugin.signature import PortSpec
from softnpu.plugin.tensors import Slot

if TYPE_CHECKING:
    from softnpu.plugin.requests.profiling import Profiler


class Recording:
    """The slots of all ports (`inputs`, then `outputs`), and the command list of an inference.

    `prepare` comes before every inference, `finish` after it. With states there are two lists, one for each
    role of their buffers.
    """

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        signature = executable.signature
        self.inputs = [self._slot(port, True) for port in signature.inputs]
        self.outputs = [self._slot(port, False) for port in signature.outputs]
        self.slots = self.inputs + self.outputs
        self.profiler = self._new_profiler() if executable.graph.profiled else None
        self.states = States(executable.context, executable.meta, executable.initial_arguments)
        self._commands: dict[int, CommandList] = {}

    def check_inputs(self, values: Mapping[int, Any]) -> None:
        """Raise `InputError` if tensors or arrays, by input index, do not fit the others."""
        del values

    def prepare(self) -> CommandList:
        """Copy foreign inputs to the device; return the commands to execute."""
        staged, rebind = 0, False
        for slot in self.inputs:
            staged += slot.stage_in()
        if staged:
            self._executable.count_staged(staged)
        for slot in self.slots:
            rebind = rebind or slot.rebind
        if rebind:
            self._commands.clear()
        if self.states.pending:
            return self._record()  # only this time, with the graph that computes initial values
        turn = self.states.turn
        if turn not in self._commands:
            self._commands[turn] = self._record()
        return self._commands[turn]

    def finish(self) -> None:
        """Copy results into foreign outputs, after a successful inference."""
        staged = 0
        for slot in self.outputs:
            staged += slot.stage_out()
        if staged:
            self._executable.count_staged(staged)
        self.states.swap()

    def fail(self) -> None:
        """Restore the states, after a failed inference."""
        self.states.roll_back()

    def retry(self, failure: NpuError) -> CommandList | None:
        """Return the commands that repair a failure; None if it cannot be repaired."""
        del failure
        return None

    def _new_profiler(self) -> Profiler:
        from softnpu.plugin.requests.profiling import Profiler  # late: few programs profile

        return Profiler(self._executable.graph, self._profiled)

    def _slot(self, port: PortSpec, is_input: bool) -> Slot:
        return slot_for(self._executable.context, port, is_input)

    @property
    def _profiled(self) -> int:
        """Executions of one inference that have profiles of their own."""
        return 1

    def _record(self) -> CommandList:
        bindings = {index: memory for slot in self.slots for index, memory in slot.bindings().items()}
        bindings |= self.states.bindings()
        queries = self.profiler.queries if self.profiler is not None else ()
        initial = self.states.initial_bindings(bindings) if self.states.pending else None
        commands = self._executable.record([bindings], queries, initial)
        for slot in self.slots:
            slot.rebind = False
        return commands

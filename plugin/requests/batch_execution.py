"""Inferences of a batch: one command list executes the one-sample graph for each sample.

Samples are used in place in the tensors. If other dimensions precede the batch, each sample is a strided
view, which the device copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from softnpu.driver import CommandList
from softnpu.emulator.interface.commands import MAX_BUFFER
from softnpu.plugin.errors import InputError
from softnpu.plugin.requests.batch_slots import BatchSlot
from softnpu.plugin.requests.executable import Executable
from softnpu.plugin.requests.recording import Recording
from softnpu.plugin.signature import PortSpec
from softnpu.plugin.tensors import Slot

if TYPE_CHECKING:
    from softnpu.driver import ProfilingQuery

PROFILED_SAMPLES = 8
"""Kept profiles of one inference; those of a larger batch are extrapolated."""
_COMMAND, _ARGUMENT = 64, 40
"""Upper bounds for the bytes of a graph execution command, and of each of its arguments."""


class BatchRecording(Recording):
    """A recording with one execution for each sample. A change of their number re-records the list."""

    def __init__(self, executable: Executable) -> None:
        super().__init__(executable)
        self._name = executable.signature.name
        self._max_samples = MAX_BUFFER // (_COMMAND + _ARGUMENT * len(executable.meta.arguments))
        self._batched = [(at, slot) for at, slot in enumerate(self.inputs) if isinstance(slot, BatchSlot)]
        self._results = [slot for slot in self.outputs if isinstance(slot, BatchSlot)]
        self._count = 0

    def check_inputs(self, values: Mapping[int, Any]) -> None:
        """Raise `InputError` if `values`, by index, would make the batches of the inputs differ."""
        self._samples({index: tuple(value.shape) for index, value in values.items()})

    def prepare(self) -> CommandList:
        """As `Recording.prepare`, for as many samples as the inputs have.

        Raises `InputError` before any effect.
        """
        count = self._samples({})
        for slot in self._results:
            if not slot.is_own and slot.shape != slot.shape_for(count):
                raise InputError(
                    f"model '{self._name}', batch: {slot.name} is a tensor of shape {list(slot.shape)} that"
                    f" was set, for a batch of {count}; expected {list(slot.shape_for(count))}"
                )
        for slot in self._results:
            if slot.is_own and slot.shape != slot.shape_for(count):
                slot.use_own(slot.shape_for(count))
        if count != self._count:
            self._commands.clear()
            self._count = count
        return super().prepare()

    def _samples(self, shapes: Mapping[int, tuple[int, ...]]) -> int:
        counts = {slot.name: slot.samples_in(shapes.get(index, slot.shape)) for index, slot in self._batched}
        count = next(iter(counts.values()))
        if any(other != count for other in counts.values()):
            axes = {slot.name: slot.port.batch_axis for _, slot in self._batched}
            samples = ", ".join(f"{number} of {name} (axis {axes[name]})" for name, number in counts.items())
            raise InputError(
                f"model '{self._name}', batch: {samples}; expected the same number of samples in all inputs"
            )
        if count > self._max_samples:
            raise InputError(
                f"model '{self._name}', batch: {count} samples; expected at most {self._max_samples}, whose"
                " commands fit into one command buffer. Infer in parts"
            )
        return count

    def _slot(self, port: PortSpec, is_input: bool) -> Slot:
        kind = BatchSlot if port.batch_axis >= 0 else Slot
        return kind(self._executable.context, port, is_input)

    @property
    def _profiled(self) -> int:
        return PROFILED_SAMPLES

    def _record(self) -> CommandList:
        bindings = [
            {slot.port.argument: slot.part(sample) if isinstance(slot, BatchSlot) else slot.memory
             for slot in self.slots}
            for sample in range(self._count)
        ]  # fmt: skip
        queries: Sequence[ProfilingQuery] = ()
        if self.profiler is not None:
            self.profiler.executions = self._count
            queries = self.profiler.queries
        commands = self._executable.record(bindings, queries)
        for slot in self.slots:
            slot.rebind = False
        return commands

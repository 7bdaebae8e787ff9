"""The session of a client: a context, queues, and loaded models ready to run."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from softnpu.driver import (
    Allocation,
    CommandList,
    CommandQueue,
    Context,
    Driver,
    Event,
    Fence,
    Graph,
    GraphSource,
)
from softnpu.driver.graph_creation import compile_source
from softnpu.emulator.interface.messages import CacheOptions
from softnpu.tools.stress.checking import ArgumentMemory, Inference, check
from softnpu.tools.stress.journal import Journal
from softnpu.tools.stress.workloads import Samples, Workload

WAIT_S: Final = 60.0
"""A longer wait for the device means a hang: an engine reset under load takes a few seconds."""
_KEPT: Final = 3
_CACHE_BYTES: Final = 64 << 20


class WaitTimeout(Exception):
    """A wait timed out."""


def await_fence(fence: Fence | None, what: str) -> None:
    """Wait for a submission. Raise `WaitTimeout` when it takes too long."""
    assert fence is not None  # it was submitted
    start = time.monotonic()
    if not fence.host_synchronize(int(WAIT_S * 1e9)):
        raise WaitTimeout(f"{what} had not ended after {time.monotonic() - start:.1f} s")


StateLayout = tuple[bool, bool]
"""The layout of a model's states: whether in place, and if not, whether their two buffers are swapped."""


class LoadedModel:
    """A graph with memory for its arguments, and a list for each phase of its states.

    `in_place` below: one buffer for each state, which the inference reads and writes.
    """

    def __init__(
        self, context: Context, graph: Graph, workload: Workload, samples: Samples, journal: Journal
    ) -> None:
        self.graph = graph
        self.context = context
        self.workload = workload
        self.samples = samples
        self.journal = journal
        arguments = graph.meta.arguments
        self.memory = [context.alloc_host(argument.byte_size) for argument in arguments]
        self._stateful = bool(graph.meta.states)
        self._lists: dict[StateLayout, CommandList] = {}
        self._checked: Inference | None = None

    def with_own_memory(self) -> LoadedModel:
        """Return the same graph with other memory, to be in flight beside this one."""
        return LoadedModel(self.context, self.graph, self.workload, self.samples, self.journal)

    def record(self, memory: Sequence[Allocation], signal: Event | None = None) -> CommandList:
        """Return a closed list with one execution."""
        commands = self.context.create_command_list()
        for index, block in enumerate(memory):
            self.graph.set_argument_value(index, block)
        commands.append_graph_execute(self.graph, signal_event=signal)
        commands.close()
        return commands

    def submit(self, queue: CommandQueue, sample: int, step: int = 0, in_place: bool = False) -> Inference:
        """Write the inputs and submit one inference."""
        inference = self.feed(sample, step, in_place)
        self.submit_fed(queue, queue.create_fence(), inference)
        return inference

    def submit_fed(self, queue: CommandQueue, fence: Fence, inference: Inference) -> None:
        """Submit a fed inference."""
        layout = self.layout_of(inference)
        if layout not in self._lists:
            self._lists[layout] = self.record(self.memory_of(layout))
        submit(queue, self._lists[layout], fence, [inference])

    def layout_of(self, inference: Inference) -> StateLayout:
        """Return the state layout of an inference: in place or not, and in which of the two orders."""
        return inference.in_place, self._stateful and not inference.in_place and bool(inference.step % 2)

    def memory_of(self, layout: StateLayout) -> list[Allocation]:
        """Return the arguments' memory: a state is written in place, or alternates between two buffers."""
        in_place, crossed = layout
        memory = list(self.memory)
        for state in self.graph.meta.states:
            if in_place:
                memory[state.output] = memory[state.input]
            elif crossed:
                memory[state.input], memory[state.output] = memory[state.output], memory[state.input]
        return memory

    def feed(self, sample: int, step: int = 0, in_place: bool = False) -> Inference:
        """Write the inputs, and overwrite the previous outputs."""
        return self.feed_into(self.memory, sample, step, in_place)

    def feed_into(
        self,
        memory: Sequence[Allocation],
        sample: int,
        step: int = 0,
        in_place: bool = False,
        given: int = 0,
    ) -> Inference:
        """Do the same with other memory for some of the arguments; the first inputs, `given`, are written."""
        self._recheck_last()
        in_place = in_place and self._stateful
        if step == 0:
            self.reset_states()
        blocks = self._argument_memory(memory)
        inputs = blocks[: self.workload.inputs]
        for block, array in list(zip(inputs, self.samples.inputs(sample, step), strict=True))[given:]:
            block.view[:] = np.frombuffer(array.tobytes(), np.uint8)
        states = {state.variable: state for state in self.graph.meta.states}
        new = []
        for name in self.workload.states:
            state = states[name]
            new.append(blocks[state.input if step % 2 or in_place else state.output])
        outputs = blocks[self.first_output : self.first_output + self.workload.outputs]
        pattern, note = self.journal.fed(self.workload.name, sample, step)
        for block in (*outputs, *(() if in_place else new)):
            pattern.fill(block.view)
        return Inference(
            workload=self.workload,
            samples=self.samples,
            sample=sample,
            step=step,
            inputs=inputs,
            outputs=outputs,
            states=new,
            pattern=pattern,
            note=note,
            in_place=in_place,
        )

    def infer(self, queue: CommandQueue, sample: int) -> None:
        """Run one sample from its first step to the last, checking each."""
        for step in range(self.workload.steps):
            inference = self.submit(queue, sample, step)
            await_fence(inference.fence, f"inference of '{self.workload.name}'")
            self.check(inference)

    def check(self, inference: Inference) -> None:
        """Raise `WrongResult` unless the outputs equal the reference, bit by bit."""
        inference.note.checked_ns = time.monotonic_ns()
        check(inference)
        self._checked = inference

    @property
    def first_output(self) -> int:
        """The index of the first output among the arguments."""
        return next(index for index, argument in enumerate(self.graph.meta.arguments) if not argument.input)

    def reset_states(self) -> None:
        """Write the initial values."""
        for state in self.graph.meta.states:
            block = self.memory[state.input].view()
            count = -(-len(block) // max(1, len(state.initial)))
            block[:] = np.frombuffer(state.initial * count, np.uint8)[: len(block)]

    def _recheck_last(self) -> None:
        """Check the last result again before it is overwritten: late writes are forbidden."""
        checked, self._checked = self._checked, None
        if checked is not None:
            check(checked, ", which had been right when it ended")

    def _argument_memory(self, memory: Sequence[Allocation]) -> list[ArgumentMemory]:
        """Return the memory of all arguments: exactly their bytes."""
        return [
            ArgumentMemory(argument.name, one.view()[: argument.byte_size], one.handle)
            for argument, one in zip(self.graph.meta.arguments, memory, strict=True)
        ]


def submit(queue: CommandQueue, commands: CommandList, fence: Fence, inferences: Sequence[Inference]) -> None:
    """Submit a list with these inferences; note its submission."""
    queue.execute_command_lists([commands], fence)
    state = fence.describe()
    for inference in inferences:
        inference.fence = fence
        inference.note.submitted(state)


class Session:
    """A connection with one context; models stay loaded until others need the room.

    With `throughput` they are compiled for it: their inferences may begin early.
    """

    def __init__(
        self,
        socket: Path,
        workloads: Sequence[tuple[Workload, Samples]],
        cache: Path,
        journal: Journal,
        throughput: bool,
    ) -> None:
        self.socket = socket
        self._throughput = throughput
        self.journal = journal
        self.driver = Driver.open(socket, autostart=False)
        device = self.driver.devices[self.driver.session % len(self.driver.devices)]
        self.context = device.create_context()
        self.queue = self.context.create_command_queue()
        self.other_queue = self.context.create_command_queue("high")
        self.workloads = workloads
        self._cache = cache
        self._loaded: OrderedDict[int, LoadedModel] = OrderedDict()

    def loaded(self, workload: int) -> LoadedModel:
        """Return a model on the device, compiled if missing."""
        model = self._loaded.pop(workload, None) or self.compiled(workload)
        self._loaded[workload] = model
        while len(self._loaded) > _KEPT:
            self._loaded.popitem(last=False)
        return model

    def drop(self, workload: int) -> None:
        """Forget a model, if it is loaded."""
        self._loaded.pop(workload, None)

    def graph(self, workload: int, cached: bool = True) -> Graph:
        """Return a model recompiled, or from this run's cache; not loaded."""
        cache = CacheOptions(directory=str(self._cache), limit=_CACHE_BYTES) if cached else None
        model, _ = self.workloads[workload]
        config = {"PERFORMANCE_HINT": "THROUGHPUT"} if self._throughput and model.streams else {}
        with GraphSource.from_ir(model.path) as source:
            return compile_source(self.context, source, config=config, cache=cache)

    def compiled(self, workload: int, cached: bool = True) -> LoadedModel:
        """Do the same and load it."""
        return self.of(workload, self.graph(workload, cached))

    def of(self, workload: int, graph: Graph) -> LoadedModel:
        """Load a graph of this model."""
        graph.initialize()
        return LoadedModel(self.context, graph, *self.workloads[workload], self.journal)

    def close(self) -> None:
        """Close in order."""
        self._loaded.clear()
        self.driver.destroy()

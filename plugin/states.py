"""States of an infer request: two buffers for each, of which one is the state and one is written next.

An inference reads the one and writes the other; when it has succeeded they change places, and nothing was
copied. An inference that fails or is cancelled leaves the state as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import openvino as ov

from softnpu.driver import Allocation, Context, Graph
from softnpu.emulator.blob.container import ArgumentMeta, GraphMeta, StateMeta
from softnpu.plugin.errors import InputError, NpuError

STATES_INIT = "NPU_STATES_INIT"
_PROFILING = "PERF_COUNT"


def needs_initial(meta: GraphMeta) -> bool:
    """Whether a model has states whose initial values a graph of its own computes."""
    return any(not state.initial for state in meta.states)


def initial_config(config: Mapping[str, str]) -> dict[str, str]:
    """The configuration with which the compiler makes that graph, given the one of the model.

    It is compiled from the same source, with the same shapes.
    """
    return {**config, _PROFILING: "NO", STATES_INIT: "YES"}


def initial_arguments(main: GraphMeta, initial: GraphMeta | None) -> tuple[int, ...]:
    """For each argument of the initial graph the input of the main graph whose memory it uses.

    Raises `NpuError` if the two do not belong together; without an initial graph, if it is needed.
    """
    if initial is None:
        if needs_initial(main):
            name = next(state.variable for state in main.states if not state.initial)
            raise _foreign(main, f"no graph that computes variable '{name}'")
        return ()
    inputs = {argument.name: index for index, argument in enumerate(main.arguments) if argument.input}
    wanted = {state.input for state in main.states if not state.initial}
    found = []
    for argument in initial.arguments:
        index = inputs.get(argument.name, -1)
        if index < 0 or _memory(main.arguments[index]) != _memory(argument):
            raise _foreign(main, f"'{argument.name}' is no such input of the model")
        if argument.input == (index in wanted):
            raise _foreign(main, f"'{argument.name}' is not what the graph has to compute")
        found.append(index)
    if not wanted <= set(found) or len(set(found)) != len(found):
        raise _foreign(main, f"{len(initial.outputs)} values computed, {len(wanted)} needed")
    return tuple(found)


class States:
    """All states of one request. `turn` is 0 or 1: which buffers hold them now."""

    def __init__(self, context: Context, graph: Graph, initial: Graph | None) -> None:
        meta = graph.meta
        self._initial_arguments = initial_arguments(meta, None if initial is None else initial.meta)
        self.by_name = {
            state.variable: StateBuffers(context, state, meta.arguments[state.input]) for state in meta.states
        }
        self.turn = 0

    @property
    def pending(self) -> bool:
        """Whether the initial graph has to run before the next inference."""
        return any(state.pending for state in self.by_name.values())

    def places(self) -> dict[int, Any]:
        """The memory of all arguments that are states, for an inference now."""
        places = {}
        for state in self.by_name.values():
            places[state.meta.input] = state.memory[self.turn]
            places[state.meta.output] = state.memory[1 - self.turn]
        return places

    def initial_places(self, places: Mapping[int, Any]) -> dict[int, Any]:
        """The memory of the arguments of the initial graph, for an inference with `places`.

        A state that keeps its value has it computed into the buffer that the inference writes anyway.
        """
        kept = {
            state.meta.input: state.memory[1 - self.turn]
            for state in self.by_name.values()
            if not state.meta.initial and not state.pending
        }
        return {
            argument: kept.get(index, places[index]) for argument, index in enumerate(self._initial_arguments)
        }

    def swap(self) -> None:
        """After an inference that succeeded: what it wrote is the state."""
        if self.by_name:
            self.turn = 1 - self.turn
            for state in self.by_name.values():
                state.pending = False

    def keep(self) -> None:
        """After an inference that failed: what was computed before it is void."""
        for state in self.by_name.values():
            if state.pending:
                state.reset(self.turn)

    def reset(self) -> int:
        """Initial values for all. Copies 0 bytes."""
        for state in self.by_name.values():
            state.reset(self.turn)
        return 0


class StateBuffers:
    """One variable: two buffers in device memory. `pending`: its value comes from the initial graph first."""

    def __init__(self, context: Context, meta: StateMeta, argument: ArgumentMeta) -> None:
        self.meta = meta
        self.shape = tuple(argument.shape)
        self.type: Any = getattr(ov.Type, argument.element_type)
        self.memory = tuple(_reserve(context, argument.byte_size) for _ in range(2))
        self.pending = False
        self.reset(0)

    def tensor(self, turn: int) -> Any:
        """A tensor of the buffer, without a copy."""
        tensor = ov.Tensor(self.memory[turn], ov.Shape([math.prod(self.shape)]), self.type)
        tensor.shape = ov.Shape(self.shape)
        return tensor

    def reset(self, turn: int) -> int:
        """The initial value, as far as it is known; zeros until it has been computed. Copies 0 bytes."""
        pattern = self.meta.initial
        self.pending = not pattern
        memory = self.memory[turn]
        if len(set(pattern)) <= 1:
            memory.fill(pattern[0] if pattern else 0)
        elif memory.nbytes:
            memory.reshape(-1, len(pattern))[:] = np.frombuffer(pattern, dtype=np.uint8)
        return 0

    def set(self, turn: int, tensor: Any) -> int:
        """Copies a value in; the bytes that were copied. Raises `InputError` if it does not fit."""
        if not hasattr(tensor, "element_type") or not hasattr(tensor, "data"):
            raise self._mismatch(type(tensor).__name__)
        if tensor.element_type != self.type or tuple(tensor.shape) != self.shape:
            raise self._mismatch(f"{tensor.element_type.to_string()}{list(tensor.shape)}")
        target, source = self.tensor(turn).data, tensor.data
        self.pending = False
        if target.ctypes.data == source.ctypes.data and target.strides == source.strides:
            return 0
        np.copyto(target, source)
        return int(target.nbytes)

    def _mismatch(self, found: str) -> InputError:
        expected = f"an openvino.Tensor of {self.type.to_string()}{list(self.shape)}"
        return InputError(f"state '{self.meta.variable}': {found} given; expected {expected}")


Change = Callable[[str, Callable[[], int]], None]
"""Carries out a change of the states that is called so, which tells how many bytes it copied.

Raises `InferError` instead while the request is busy.
"""


class VariableState:
    """`openvino.VariableState`: one state of an infer request, from `query_state`."""

    def __init__(self, states: States, name: str, change: Change) -> None:
        self._states = states
        self._buffers = states.by_name[name]
        self._name = name
        self._change = change

    @property
    def name(self) -> str:
        """The id of the variable."""
        return self._name

    @property
    def state(self) -> ov.Tensor:
        """The state as it is now: a view of device memory, of the shape of the variable.

        It stays the current one until the next inference of the request has ended; the one after that writes
        into this memory, so keep a copy of what is needed longer. Writing into it changes the state. While an
        inference runs it is the state from before. An initial value that is computed from the inputs is not
        known before the first inference: it reads as zeros, and only setting it replaces it.
        """
        return self._buffers.tensor(self._states.turn)

    @state.setter
    def state(self, tensor: ov.Tensor) -> None:
        """Copies a value in, of exactly this type and shape.

        The bytes count as staged. Raises `InputError` for any other tensor, `InferError` while the request is
        busy.
        """
        self._change(f"state '{self._name}'", lambda: self._buffers.set(self._states.turn, tensor))

    def reset(self) -> None:
        """Goes back to the initial value. Raises `InferError` while the request is busy."""
        self._change(f"reset of state '{self._name}'", lambda: self._buffers.reset(self._states.turn))

    def __repr__(self) -> str:
        kind = self._buffers.type.to_string()
        return f"<VariableState: '{self._name}' {kind}{list(self._buffers.shape)}>"


def _reserve(context: Context, size: int) -> Any:
    memory: Allocation = context.alloc_host(max(1, size))
    return memory.view(np.uint8, (size,))


def _memory(argument: ArgumentMeta) -> tuple[str, tuple[int, ...], int]:
    return argument.element_type, argument.shape, argument.byte_size


def _foreign(main: GraphMeta, found: str) -> NpuError:
    return NpuError(
        f"model '{main.name}', initial values of its states: {found}; expected the graph that {STATES_INIT} "
        "makes of the same model. Compile the model again"
    )

"""States of an infer request, double-buffered: the current state and the next one.

An inference reads one and writes the other. On success they swap, without a copy. An inference that fails or
is cancelled leaves the state unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import openvino as ov

from softnpu.driver import Allocation, Context
from softnpu.emulator.blob.container import ArgumentMeta, GraphMeta, StateMeta
from softnpu.plugin.errors import InputError
from softnpu.plugin.requests.dynamic_states import DynamicStateBuffers


class States:
    """All states of one request. `turn` is 0 or 1: the index of the buffers that hold them now."""

    def __init__(self, context: Context, meta: GraphMeta, initial_arguments: tuple[int, ...]) -> None:
        self._initial_arguments = initial_arguments
        dynamic = meta.dynamic_states
        self.by_name: dict[str, StateBuffers | DynamicStateBuffers] = {
            state.variable: DynamicStateBuffers(context, state, meta)
            if state.input in dynamic
            else StateBuffers(context, state, meta.arguments[state.input])
            for state in meta.states
        }
        # of most models none: no inference looks at each state
        self._computed = [state for state in self.by_name.values() if state.pending]
        self.turn = 0

    @property
    def pending(self) -> bool:
        """Whether the initial graph has to run before the next inference."""
        return bool(self._computed) and any(state.pending for state in self._computed)

    def bindings(self) -> dict[int, Any]:
        """Return the memory of all arguments that are states, for the next inference."""
        bindings: dict[int, Any] = {}
        for state in self.by_name.values():
            bindings |= state.bindings(self.turn)
        return bindings

    def initial_bindings(self, bindings: Mapping[int, Any]) -> dict[int, Any]:
        """Return the memory of the arguments of the initial graph, for an inference with `bindings`.

        For a state that was not reset, the value goes into the buffer that the inference overwrites.
        """
        kept = {
            state.meta.input: state.memory[1 - self.turn]
            for state in self.by_name.values()
            if isinstance(state, StateBuffers) and not state.meta.initial and not state.pending
        }
        return {
            argument: kept.get(index, bindings[index])
            for argument, index in enumerate(self._initial_arguments)
        }

    def swap(self) -> None:
        """Turn the written buffers into the states, after a successful inference."""
        if self.by_name:
            self.turn = 1 - self.turn
            for state in self._computed:
                state.pending = False

    def roll_back(self) -> None:
        """Discard computed initial values, after a failed inference."""
        for state in self._computed:
            if state.pending:
                state.reset(self.turn)

    @property
    def dynamic(self) -> list[DynamicStateBuffers]:
        """The states with a changing shape: all or none."""
        return [state for state in self.by_name.values() if isinstance(state, DynamicStateBuffers)]

    def reset(self) -> int:
        """Reset all states to their initial values. Copies 0 bytes."""
        for state in self.by_name.values():
            state.reset(self.turn)
        return 0


class StateBuffers:
    """One variable: two buffers in device memory. `pending`: the initial graph has to compute its value."""

    def __init__(self, context: Context, meta: StateMeta, argument: ArgumentMeta) -> None:
        self.meta = meta
        self.shape = tuple(argument.shape)
        self.type: Any = getattr(ov.Type, argument.element_type)
        self.memory = tuple(_reserve(context, argument.byte_size) for _ in range(2))
        self.pending = False
        self.reset(0)

    def bindings(self, turn: int) -> dict[int, Any]:
        """Return the memory of its two arguments, for the next inference."""
        return {self.meta.input: self.memory[turn], self.meta.output: self.memory[1 - turn]}

    def tensor(self, turn: int) -> Any:
        """Return a tensor of the buffer, without a copy."""
        tensor = ov.Tensor(self.memory[turn], ov.Shape([math.prod(self.shape)]), self.type)
        tensor.shape = ov.Shape(self.shape)
        return tensor

    def reset(self, turn: int) -> int:
        """Write the initial value, or zeros if the initial graph computes it. Copies 0 bytes."""
        pattern = self.meta.initial
        self.pending = not pattern
        memory = self.memory[turn]
        if len(set(pattern)) <= 1:
            memory.fill(pattern[0] if pattern else 0)
        elif memory.nbytes:
            memory.reshape(-1, len(pattern))[:] = np.frombuffer(pattern, dtype=np.uint8)
        return 0

    def set(self, turn: int, tensor: Any) -> int:
        """Copy a value in; return the number of copied bytes. Raises `InputError` if it does not fit."""
        if not hasattr(tensor, "element_type") or not hasattr(tensor, "data"):
            raise self._wrong_value(type(tensor).__name__)
        if tensor.element_type != self.type or tuple(tensor.shape) != self.shape:
            raise self._wrong_value(f"{tensor.element_type.to_string()}{list(tensor.shape)}")
        target, source = self.tensor(turn).data, tensor.data
        self.pending = False
        if target.ctypes.data == source.ctypes.data and target.strides == source.strides:
            return 0
        np.copyto(target, source)
        return int(target.nbytes)

    def _wrong_value(self, kind: str) -> InputError:
        expected = f"an openvino.Tensor of {self.type.to_string()}{list(self.shape)}"
        return InputError(f"state '{self.meta.variable}': {kind} given; expected {expected}")


Change = Callable[[str, Callable[[], int]], None]
"""Performs a named change of the states, which returns the bytes it copied.

`InferError` for a busy request.
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
        """The current state: a view of device memory, in its current shape.

        It is current until the next inference of the request has ended; the one after that overwrites this
        memory, so copy a value that is needed longer. Writing into it changes the state. During an inference
        it is the previous state. An initial value computed from inputs reads as zeros before the first
        inference, and only setting the state replaces it.
        """
        return self._buffers.tensor(self._states.turn)

    @state.setter
    def state(self, tensor: ov.Tensor) -> None:
        """Copy a value in, of exactly this type and of a shape allowed by the variable.

        The bytes count as staged.
        Raises `InputError` for any other tensor, `InferError` while the request is busy.
        """
        self._change(f"state '{self._name}'", lambda: self._buffers.set(self._states.turn, tensor))

    def reset(self) -> None:
        """Reset to the initial value. Raises `InferError` while the request is busy."""
        self._change(f"reset of state '{self._name}'", lambda: self._buffers.reset(self._states.turn))

    def __repr__(self) -> str:
        shape = self._buffers.shape
        listed = list(shape) if isinstance(shape, tuple) else shape
        return f"<VariableState: '{self._name}' {self._buffers.type.to_string()}{listed}>"


def _reserve(context: Context, size: int) -> Any:
    memory: Allocation = context.alloc_host(max(1, size))
    return memory.view(np.uint8, (size,))

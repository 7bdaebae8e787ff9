"""States whose shape changes: OpenVINO's variables get the client's values before each inference.

The client's memory is the only place where a state lives from one execution to the next: an engine may die at
any moment. So a variable is set from the argument that is read, and copied to the one that is assigned when
the inference has succeeded. Both count as copied bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.openvino.dynamic.binding import (
    BEGINS,
    DynamicArgument,
    DynamicBinding,
    InnerDynamicBinding,
    Shape,
)
from softnpu.emulator.openvino.executor import Binding, LoadedImage


class _Variable:
    """One variable of a request: where its value comes from, and where the next one goes."""

    __slots__ = ("_is_checked", "_state", "assigned", "read")

    def __init__(self, state: Any, read: DynamicArgument, assigned: DynamicArgument) -> None:
        self._state = state
        self.read = read
        self.assigned = assigned
        self._is_checked = False

    def load(self, shape: Shape) -> int:
        """Give the variable the value of this checked shape, or its initial value; the bytes copied."""
        if shape == BEGINS:
            self._state.reset()
            return 0
        tensor = self.read.tensor(shape)
        self._state.state = tensor
        return int(tensor.byte_size)

    def value(self) -> Any:
        """The value after an inference; refused if OpenVINO does not keep it in the precision of the model.

        Before the first inference there is none to look at if the shape has a lower bound.
        """
        value = self._state.state
        # of another precision it would be another number after every step
        if not self._is_checked and value.element_type != self.read.type:
            raise refuse(
                ZeResult.ERROR_UNSUPPORTED_FEATURE,
                self.read.name,
                found=f"OpenVINO keeps it as {value.element_type.get_type_name()}",
                expected=self.read.argument.element_type,
            )
        self._is_checked = True
        return value


class StatefulBinding(DynamicBinding):
    """A binding of a graph with states whose shape changes."""

    __slots__ = ("_variables",)

    def _bind(self, views: Sequence[Bytes], count_copied: Callable[[int], None]) -> None:
        super()._bind(views, count_copied)
        meta = self._image.meta
        of_request = {state.name: state for state in self._request.query_state()}
        companions = meta.shape_tensors
        self._variables = []
        for state in meta.states:
            read, assigned = (
                DynamicArgument(meta, meta.arguments[index], -1, views[index], views[companions[index]])
                for index in (state.input, state.output)
            )
            if state.variable not in of_request:
                raise refuse(
                    ZeResult.ERROR_UNSUPPORTED_FEATURE,
                    read.name,
                    found="OpenVINO has removed its variable",
                    expected="a variable that the model uses",
                )
            self._variables.append(_Variable(of_request[state.variable], read, assigned))

    def _begin(self) -> None:
        """Set all variables. OpenVINO advances its own also in an inference that fails in the end."""
        # states grow, and another thread than this one can cancel: see `Binding.run`
        self._is_short = False
        shapes = [variable.read.state_shape() for variable in self._variables]
        fused = self._image.fused_states
        if fused is not None:
            inputs = {
                argument.position: shape for argument, shape in zip(self._inputs, self._shapes, strict=True)
            }
            states = {
                state.variable: shape for state, shape in zip(self._image.meta.states, shapes, strict=True)
            }
            fused.check(inputs, states)
        for variable, shape in zip(self._variables, shapes, strict=True):
            self._count_copied(variable.load(shape))

    def _further_results(self) -> list[tuple[DynamicArgument, Any]]:
        return [(variable.assigned, variable.value()) for variable in self._variables]


def bind(image: LoadedImage, views: Sequence[Bytes], count_copied: Callable[[int], None]) -> Binding:
    """Bind a request to one view for each argument; `count_copied` gets the bytes an inference copies."""
    if image.meta.dynamic_states:
        return StatefulBinding(image, views, count_copied)
    if any(argument.is_dynamic for argument in image.meta.arguments):
        return DynamicBinding(image, views, count_copied)
    return (InnerDynamicBinding if image.computes_sizes else Binding)(image, views, count_copied)

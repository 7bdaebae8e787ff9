"""States whose shape changes: OpenVINO's variables are set from client memory before each inference.

Between executions a state lives in client memory alone: an engine may die at any moment. So a variable is set
from the input argument, and copied to the output argument once the inference has succeeded. Both count as
copied bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.openvino.dynamic.binding import BEGINS, DynamicArgument, DynamicBinding, Shape
from softnpu.emulator.openvino.image import LoadedImage


class _Variable:
    """One variable of a request, and the arguments of its value and its next value."""

    __slots__ = ("_is_checked", "_state", "assigned", "read")

    def __init__(self, state: Any, read: DynamicArgument, assigned: DynamicArgument) -> None:
        self._state = state
        self.read = read
        self.assigned = assigned
        self._is_checked = False

    def load(self, shape: Shape) -> int:
        """Set the variable to the client's value of this shape, or reset it; return the bytes copied."""
        if shape == BEGINS:
            self._state.reset()
            return 0
        tensor = self.read.tensor(shape)
        self._state.state = tensor
        return int(tensor.byte_size)

    def value(self) -> Any:
        """Return the value after an inference; refuse one not kept in the model's precision.

        A state whose shape has a lower bound has no value before the first inference.
        """
        value = self._state.state
        # in another precision it would drift at every step
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
    _image: LoadedImage

    def _bind(self, views: Sequence[Bytes], count_copied: Callable[[int], None]) -> None:
        super()._bind(views, count_copied)
        meta = self._image.meta
        of_request = {state.name: state for state in self._request.query_state()}
        shape_tensors = meta.shape_tensors
        self._variables = []
        for state in meta.states:
            read, assigned = (
                DynamicArgument(meta, meta.arguments[index], -1, views[index], views[shape_tensors[index]])
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
        """Set all variables: OpenVINO changes them even in an inference that fails."""
        # states grow, and a short run cannot be cancelled: see `Binding.run`
        self.is_short = False
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

"""Arguments with dynamic dimensions, whose shapes lie in shape tensors.

A shape tensor is client memory. It is copied once per execution, the copy is checked against the bounds and
the bound memory, and only the copy is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import openvino as ov

from softnpu.emulator.blob.container import ArgumentMeta, GraphMeta
from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.emulator.openvino.binding import Binding
from softnpu.emulator.openvino.compilation import Compilation
from softnpu.emulator.openvino.defects.shared_tensors import Origin
from softnpu.emulator.openvino.runtime import type_of

if TYPE_CHECKING:
    import numpy.typing as npt

Shape = tuple[int, ...]
BEGINS: Shape = ()
"""Stands for the initial value of a state, whose shape tensor then has -1 for every dimension."""
_LARGEST = 2**31 - 1
_NO_ROOM = "m_capacity"
"""OpenVINO's error text for a result too large for its tensor."""


class DynamicArgument:
    """An argument with dynamic dimensions: its bound memory and its shape tensor."""

    __slots__ = ("_bounds", "_shape_tensor", "argument", "item", "memory", "name", "position", "type")

    def __init__(
        self, meta: GraphMeta, argument: ArgumentMeta, position: int, memory: Bytes, shape_tensor: Bytes
    ):
        self.argument = argument
        self.position = position
        self.memory = memory
        self.name = f"graph '{meta.name}', {'input' if argument.input else 'output'} '{argument.name}'"
        self.type = type_of(argument)
        self.item = int(self.type.size)
        self._shape_tensor: npt.NDArray[np.int32] = shape_tensor.view(np.int32)
        self._bounds = [
            (dim.get_min_length(), dim.get_max_length()) for dim in ov.PartialShape(argument.partial_shape)
        ]

    def shape(self) -> Shape:
        """Read the shape; refuse one outside the bounds or the memory with `ERROR_INVALID_ARGUMENT`."""
        return self._checked(self._read())

    def state_shape(self) -> Shape:
        """Like `shape`, or `BEGINS`."""
        shape = self._read()
        return BEGINS if all(dim == -1 for dim in shape) else self._checked(shape)

    def _read(self) -> Shape:
        return tuple(reversed(self._shape_tensor.copy().tolist()))

    def _checked(self, shape: Shape) -> Shape:
        for dim, (low, high) in zip(shape, self._bounds, strict=True):
            if dim < low or 0 <= high < dim:
                raise refuse(
                    ZeResult.ERROR_INVALID_ARGUMENT,
                    self.name,
                    found=f"shape {list(shape)}",
                    expected=f"a shape within {self.argument.partial_shape}",
                )
        size = math.prod(shape) * self.item
        if size > self.memory.nbytes:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                self.name,
                found=f"shape {list(shape)}, {size} bytes",
                expected=f"at most the {self.memory.nbytes} bytes of memory that are bound",
            )
        return shape

    def tensor(self, shape: Shape) -> ov.Tensor:
        """Return the memory as a tensor of a checked shape."""
        if not math.prod(shape):
            return ov.Tensor(self.type, ov.Shape(shape))  # OpenVINO accepts no tensor on empty memory
        return ov.Tensor(self.memory[: math.prod(shape) * self.item], ov.Shape(shape), self.type)

    def write_shape(self, shape: Shape) -> None:
        """Write the shape for the client."""
        self._shape_tensor[:] = [min(dim, _LARGEST) for dim in reversed(shape)]

    def size_error(self, shape: Shape) -> Refused | None:
        """Return `ERROR_INVALID_SIZE` if the memory is too small for a result of this shape, else None."""
        size = math.prod(shape) * self.item
        if size <= self.memory.nbytes and max(shape, default=0) <= _LARGEST:
            return None
        return refuse(
            ZeResult.ERROR_INVALID_SIZE,
            self.name,
            found=f"{self.memory.nbytes} bytes of memory",
            expected=f"{size} bytes for shape {list(shape)}",
            hint="bind that much and execute again; the shape tensor has the shape",
        )

    def target(self, smallest: Shape) -> Any:
        """Return all the memory as a tensor for results; None if even the smallest does not fit."""
        elements = self.memory.nbytes // self.item
        if not elements or math.prod(smallest) > elements:
            return None
        tensor = ov.Tensor(self.memory, ov.Shape([elements]), self.type)
        tensor.shape = ov.Shape(smallest)
        return tensor

    def growing_tensor(self, smallest: Shape) -> Any:
        """Return a tensor in OpenVINO's memory that can hold a result of any size."""
        return ov.Tensor(self.type, ov.Shape(smallest))

    def store(self, result: Any) -> None:
        """Copy a result that fits into the memory."""
        size = int(result.byte_size)
        if size:
            np.copyto(self.memory[:size], result.data.reshape(-1).view(np.uint8))


class InnerDynamicBinding(Binding):
    """A binding of a graph with fixed inputs and outputs but dynamic shapes inside.

    After a failed or cancelled inference its compiled model is not used again: see `Compilation.renew`.
    """

    __slots__ = ("_compilations", "_image")

    def __init__(
        self, image: Compilation, views: Sequence[Bytes], count_copied: Callable[[int], None]
    ) -> None:
        super().__init__(image, views, count_copied)
        self._image, self._compilations = image, image.compilations

    def run(self, is_cancelled: Callable[[], bool]) -> bool:
        """Like `Binding.run`."""
        self._image.mend()
        if self._compilations != self._image.compilations:
            super().__init__(self._image, self.views, self._count_copied)
            self._compilations = self._image.compilations
        ended = False
        try:
            ended = super().run(is_cancelled)
        finally:
            if not ended:
                self._image.renew()
        return ended


class DynamicBinding(Binding):
    """A binding of a graph with dynamic arguments.

    Inputs are used in place, and so are outputs of a static shape with a tensor of their own. OpenVINO
    computes outputs of a dynamic shape in its own memory and copies them to the tensor that was set, which is
    counted. (Copying them here instead gives wrong values for an output that only reshapes an input, 2026.4.)
    """

    __slots__ = (
        "_aliases",
        "_compilations",
        "_image",
        "_inputs",
        "_name",
        "_outputs",
        "_proven",
        "_shapes",
        "_smallest",
        "_targets",
    )

    def __init__(
        self, image: Compilation, views: Sequence[Bytes], count_copied: Callable[[int], None]
    ) -> None:
        self._image = image
        self._bind(views, count_copied)

    def _bind(self, views: Sequence[Bytes], count_copied: Callable[[int], None]) -> None:
        image = self._image
        self._start(image, views, count_copied)
        self._compilations = image.compilations
        meta = image.meta
        self._name = meta.name
        self._shapes: list[Shape] = []
        self._proven = False
        self._inputs: list[DynamicArgument] = []
        self._outputs: list[DynamicArgument] = []
        self._aliases: list[tuple[DynamicArgument, Origin]] = []
        shape_tensors = meta.shape_tensors
        static: dict[tuple[bool, int], Bytes] = {}
        positions = {True: 0, False: 0}
        variables = meta.dynamic_states
        for index, (argument, view) in enumerate(zip(meta.arguments, views, strict=True)):
            if argument.shape_of >= 0 or index in variables:
                continue
            position = positions[argument.input]
            positions[argument.input] += 1
            origin = None if argument.input else image.origins.get(position)
            if not argument.is_dynamic:
                static[argument.input, position] = view
                if origin is None:
                    self._set_tensor(position, argument, view)
                else:
                    self._copy(view, _static_source(static, origin, meta, argument))
                continue
            dynamic = DynamicArgument(meta, argument, position, view, views[shape_tensors[index]])
            if origin is not None:
                self._aliases.append((dynamic, origin))
            else:
                (self._inputs if argument.input else self._outputs).append(dynamic)
        self._smallest = [_smallest(image.compiled, argument.position) for argument in self._outputs]
        self._targets = [
            argument.target(smallest)
            for argument, smallest in zip(self._outputs, self._smallest, strict=True)
        ]
        self._set_outputs(self._targets)

    def run(self, is_cancelled: Callable[[], bool]) -> bool:
        """Run an inference with the current shapes; False if it was cancelled.

        Refuses with `ERROR_INVALID_ARGUMENT` shapes outside the bounds or the memory, or that do not fit each
        other, and with `ERROR_INVALID_SIZE` an output that is larger than its memory: then all shape tensors
        have the shapes, and the content of outputs is undefined.
        """
        shapes = [argument.shape() for argument in self._inputs]
        self._image.mend()
        if shapes != self._shapes:
            self._expect_empty(shapes)
        if self._compilations != self._image.compilations:
            self._bind(self.views, self._count_copied)
        if shapes != self._shapes:
            self._shapes = []  # until all are set: after a failure all must be set again
            for argument, shape in zip(self._inputs, shapes, strict=True):
                self._request.set_input_tensor(argument.position, argument.tensor(shape))
            self._shapes = shapes
            self._proven = self.is_short = False
        if None in self._targets:
            return self._run_growing(is_cancelled)
        self._begin()
        try:
            ended = super().run(is_cancelled)
        except (RuntimeError, MemoryError) as error:
            if _NO_ROOM not in str(error):
                self._fail(error)
            # a result that did not fit: OpenVINO finds that out last, and does not give its size
            return self._run_growing(is_cancelled)
        return self._end(ended, self._targets)

    def _expect_empty(self, shapes: Sequence[Shape]) -> None:
        """Prepare the model for empty inputs."""
        empty = frozenset(
            (argument.position, axis)
            for argument, shape in zip(self._inputs, shapes, strict=True)
            if 0 in shape
            for axis, size in enumerate(shape)
            if not size
        )
        if empty:
            self._image.expect_empty(empty)

    def _run_growing(self, is_cancelled: Callable[[], bool]) -> bool:
        """Run with results of any size, and copy them to the client if they fit."""
        results = [
            argument.growing_tensor(smallest)
            for argument, smallest in zip(self._outputs, self._smallest, strict=True)
        ]
        self._set_outputs(results)
        self._begin()
        try:
            ended = super().run(is_cancelled)
        except (RuntimeError, MemoryError) as error:
            self._fail(error)
        finally:
            self._set_outputs(self._targets)
        return self._end(ended, results)

    def _fail(self, error: RuntimeError | MemoryError) -> NoReturn:
        """Raise what an inference failed with; another run of this request might not fail, and be wrong."""
        self._image.renew()
        if self._proven or not self._inputs or openvino_errors.is_out_of_memory(error):
            raise error
        raise self._inconsistent(error) from error

    def _end(self, ended: bool, results: Sequence[Any]) -> bool:
        """Deliver the results, unless the inference was cancelled."""
        if ended:
            self._proven = True
            self._deliver(results)
        else:
            self._image.renew()
        return ended

    def _begin(self) -> None:
        """Prepare one run of the request."""

    def _further_results(self) -> list[tuple[DynamicArgument, Any]]:
        """Return results that are no outputs of OpenVINO's model."""
        return []

    def _set_outputs(self, tensors: Sequence[Any]) -> None:
        """Set the tensors of the outputs."""
        for argument, tensor in zip(self._outputs, tensors, strict=True):
            if tensor is not None:
                self._request.set_output_tensor(argument.position, tensor)

    def _deliver(self, results: Sequence[Any]) -> None:
        """Write the shapes of all outputs, then the content of those that are not in their memory yet."""
        outputs = [*zip(self._outputs, results, self._targets, strict=True)]
        outputs += [(argument, self._value(origin, results), None) for argument, origin in self._aliases]
        outputs += [(argument, result, None) for argument, result in self._further_results()]
        # an array has it as a tuple; converting an `openvino.Shape` takes 20 us
        shapes = [tuple(result.data.shape) for _, result, _ in outputs]
        for (argument, _, _), shape in zip(outputs, shapes, strict=True):
            argument.write_shape(shape)
        for (argument, _, _), shape in zip(outputs, shapes, strict=True):
            error = argument.size_error(shape)
            if error is not None:
                raise error
        copied = 0
        for argument, result, target in outputs:
            copied += int(result.byte_size)
            if result is not target:
                argument.store(result)
        self._count_copied(copied)

    def _value(self, origin: Origin, results: Sequence[Any]) -> Any:
        """Return the tensor with the value of an output that has none of its own."""
        if origin.input:
            return self._request.get_input_tensor(origin.position)
        for argument, result in zip(self._outputs, results, strict=True):
            if argument.position == origin.position:
                return result
        return self._request.get_output_tensor(origin.position)

    def _inconsistent(self, error: Exception) -> Refused:
        shapes = ", ".join(
            f"'{argument.argument.name}' {list(shape)}"
            for argument, shape in zip(self._inputs, self._shapes, strict=True)
        )
        return refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            f"graph '{self._name}' with {shapes}",
            found=openvino_errors.reason(error),
            expected="inputs whose shapes fit each other",
        )


def _static_source(
    static: Mapping[tuple[bool, int], Bytes], origin: Origin, meta: GraphMeta, argument: ArgumentMeta
) -> Bytes:
    """Return the memory with the value of a static output that has no tensor of its own."""
    if origin not in static:
        raise refuse(
            ZeResult.ERROR_MODULE_BUILD_FAILURE,
            f"graph '{meta.name}', output '{argument.name}'",
            found=f"shape {list(argument.shape)}, shared with an argument of dynamic dimensions",
            expected="arguments that share a tensor to have one shape",
        )
    return static[origin]


def _smallest(compiled: ov.CompiledModel, position: int) -> Shape:
    """Return the smallest shape of an output after OpenVINO's transformations, which may have changed it."""
    partial = compiled.outputs[position].partial_shape
    # below 0: OpenVINO's bounds contradict each other, an inference will say so
    return tuple(max(0, dim.get_min_length()) for dim in partial)


def bind_model(image: Compilation, views: Sequence[Bytes], count_copied: Callable[[int], None]) -> Binding:
    """Bind a request of a model whose states, if any, are arguments."""
    if any(argument.is_dynamic for argument in image.meta.arguments):
        return DynamicBinding(image, views, count_copied)
    return (InnerDynamicBinding if image.computes_sizes else Binding)(image, views, count_copied)

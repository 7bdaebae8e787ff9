"""Inferences whose shapes the client tells: arguments with dynamic dimensions and their shape tensors.

A shape tensor is client memory. It is copied once for an execution, the copy is checked against the bounds
and against the memory that was bound, and only the copy is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.emulator.blob.container import ArgumentMeta, GraphMeta
from softnpu.emulator.engine.context import Bytes
from softnpu.emulator.engine.executor import Binding, LoadedImage, type_of
from softnpu.emulator.engine.shared_tensors import Origin
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

Shape = tuple[int, ...]
_LARGEST = 2**31 - 1


class DynamicArgument:
    """An argument with dynamic dimensions: the memory that was bound for it, and its shape tensor."""

    __slots__ = ("_bounds", "_told", "argument", "item", "memory", "name", "position", "type")

    def __init__(self, meta: GraphMeta, argument: ArgumentMeta, position: int, memory: Bytes, told: Bytes):
        self.argument = argument
        self.position = position
        self.memory = memory
        self.name = f"graph '{meta.name}', {'input' if argument.input else 'output'} '{argument.name}'"
        self.type = type_of(argument)
        self.item = int(self.type.size)
        self._told: npt.NDArray[np.int32] = told.view(np.int32)
        self._bounds = [
            (dim.get_min_length(), dim.get_max_length()) for dim in ov.PartialShape(argument.partial_shape)
        ]

    def shape(self) -> Shape:
        """What the client says now; refuses what is outside the bounds or the memory.

        The result is `ERROR_INVALID_ARGUMENT`.
        """
        shape = tuple(reversed(self._told.copy().tolist()))
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
        """The memory as a tensor of a shape that was checked."""
        if not math.prod(shape):
            return ov.Tensor(self.type, ov.Shape(shape))  # OpenVINO takes no tensor on no bytes
        return ov.Tensor(self.memory[: math.prod(shape) * self.item], ov.Shape(shape), self.type)

    def tell(self, shape: Shape) -> None:
        """Writes a shape for the client."""
        self._told[:] = [min(dim, _LARGEST) for dim in reversed(shape)]

    def misfit(self, shape: Shape) -> Refused | None:
        """Why a result cannot go to the client; None if it can. The result is `ERROR_INVALID_SIZE`."""
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
        """All the memory as a tensor for results; None if it has not even room for the smallest one."""
        elements = self.memory.nbytes // self.item
        if not elements or math.prod(smallest) > elements:
            return None
        tensor = ov.Tensor(self.memory, ov.Shape([elements]), self.type)
        tensor.shape = ov.Shape(smallest)
        return tensor

    def loose(self, smallest: Shape) -> Any:
        """A tensor that takes a result of any size; OpenVINO owns its memory."""
        return ov.Tensor(self.type, ov.Shape(smallest))

    def put(self, result: Any) -> None:
        """Copies a result, which fits, into the memory."""
        size = int(result.byte_size)
        if size:
            np.copyto(self.memory[:size], result.data.reshape(-1).view(np.uint8))


class DynamicBinding(Binding):
    """A binding of a graph with dynamic arguments.

    Inputs are used in place, and so are outputs of a static shape with a tensor of their own. Outputs of a
    dynamic shape OpenVINO computes in memory of its own and copies to where they were put, which is counted.
    (Left where they are they could be copied by us, but an output that is hardly more than an input is wrong
    then, 2026.4.)
    """

    __slots__ = (
        "_compilations",
        "_followers",
        "_image",
        "_inputs",
        "_name",
        "_outputs",
        "_proven",
        "_shapes",
        "_smallest",
        "_targets",
    )

    def __init__(self, image: LoadedImage, views: Sequence[Bytes], copied: Callable[[int], None]) -> None:
        self._image = image
        self._bind(views, copied)

    def _bind(self, views: Sequence[Bytes], copied: Callable[[int], None]) -> None:
        image = self._image
        self._start(image, views, copied)
        self._compilations = image.compilations
        meta = image.meta
        self._name = meta.name
        self._shapes: list[Shape] = []
        self._proven = False
        self._inputs: list[DynamicArgument] = []
        self._outputs: list[DynamicArgument] = []
        self._followers: list[tuple[DynamicArgument, Origin]] = []
        told = meta.shape_tensors
        places: dict[tuple[bool, int], Bytes] = {}  # of static arguments
        positions = {True: 0, False: 0}
        for index, (argument, view) in enumerate(zip(meta.arguments, views, strict=True)):
            if argument.shape_of >= 0:
                continue
            position = positions[argument.input]
            positions[argument.input] += 1
            origin = None if argument.input else image.origins.get(position)
            if not argument.is_dynamic:
                places[argument.input, position] = view
                if origin is None:
                    self._place(position, argument, view)
                else:
                    self._copy(view, _static(places, origin, meta, argument))
                continue
            open_one = DynamicArgument(meta, argument, position, view, views[told[index]])
            if origin is not None:
                self._followers.append((open_one, origin))
            else:
                (self._inputs if argument.input else self._outputs).append(open_one)
        self._smallest = [_smallest(image.compiled, argument.position) for argument in self._outputs]
        self._targets = [
            argument.target(smallest)
            for argument, smallest in zip(self._outputs, self._smallest, strict=True)
        ]
        self._aim(self._targets)

    def run(self, is_cancelled: Callable[[], bool]) -> bool:
        """One inference with the shapes that the client tells now; False if it was cut off: nothing is told.

        Refuses with `ERROR_INVALID_ARGUMENT` shapes that are outside the bounds or the memory, or do not fit
        each other, and with `ERROR_INVALID_SIZE` an output that the memory is too small for: all shape
        tensors have the shapes then, and what outputs hold is void.
        """
        if self._compilations != self._image.compilations:
            self._bind(self.views, self._copied)
        shapes = [argument.shape() for argument in self._inputs]
        if shapes != self._shapes:
            self._shapes = []  # until all are set: the next one would take a part of them for its own
            for argument, shape in zip(self._inputs, shapes, strict=True):
                self._request.set_input_tensor(argument.position, argument.tensor(shape))
            self._shapes = shapes
            self._proven = self._short = False
        if None in self._targets:
            return self._run_loose(is_cancelled)
        try:
            ended = super().run(is_cancelled)
        except RuntimeError:
            # perhaps a result that did not fit: OpenVINO sees that last of all, and does not tell its size
            return self._run_loose(is_cancelled)
        if ended:
            self._proven = True
            self._deliver(self._targets)
        return ended

    def _run_loose(self, is_cancelled: Callable[[], bool]) -> bool:
        """One inference with results of any size, which go to the client if they fit."""
        results = [
            argument.loose(smallest) for argument, smallest in zip(self._outputs, self._smallest, strict=True)
        ]
        self._aim(results)
        try:
            ended = super().run(is_cancelled)
        except RuntimeError as error:
            self._image.renew()
            if self._proven or not self._inputs:
                raise
            raise self._inconsistent(error) from error
        finally:
            self._aim(self._targets)
        if ended:
            self._proven = True
            self._deliver(results)
        return ended

    def _aim(self, tensors: Sequence[Any]) -> None:
        """Has the outputs written to these tensors."""
        for argument, tensor in zip(self._outputs, tensors, strict=True):
            if tensor is not None:
                self._request.set_output_tensor(argument.position, tensor)

    def _deliver(self, results: Sequence[Any]) -> None:
        """Shapes of all outputs, then the content of those that are not in their memory yet."""
        found = [*zip(self._outputs, results, self._targets, strict=True)]
        found += [(argument, self._value(origin, results), None) for argument, origin in self._followers]
        # an array has it as a tuple; to make one of an `openvino.Shape` takes 20 us
        shapes = [tuple(result.data.shape) for _, result, _ in found]
        for (argument, _, _), shape in zip(found, shapes, strict=True):
            argument.tell(shape)
        for (argument, _, _), shape in zip(found, shapes, strict=True):
            misfit = argument.misfit(shape)
            if misfit is not None:
                raise misfit
        copied = 0
        for argument, result, target in found:
            copied += int(result.byte_size)
            if result is not target:
                argument.put(result)
        self._copied(copied)

    def _value(self, origin: Origin, results: Sequence[Any]) -> Any:
        """The tensor with the value of an output that has none of its own."""
        if origin.input:
            return self._request.get_input_tensor(origin.position)
        for argument, result in zip(self._outputs, results, strict=True):
            if argument.position == origin.position:
                return result
        return self._request.get_output_tensor(origin.position)

    def _inconsistent(self, error: RuntimeError) -> Refused:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        told = ", ".join(
            f"'{argument.argument.name}' {list(shape)}"
            for argument, shape in zip(self._inputs, self._shapes, strict=True)
        )
        return refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            f"graph '{self._name}' with {told}",
            found=lines[-1] if lines else type(error).__name__,
            expected="inputs whose shapes fit each other",
        )


def bind(image: LoadedImage, views: Sequence[Bytes], copied: Callable[[int], None]) -> Binding:
    """A request on these places: one view for each argument of the metadata.

    `copied` is told how many bytes an inference had to copy.
    """
    if any(argument.is_dynamic for argument in image.meta.arguments):
        return DynamicBinding(image, views, copied)
    return Binding(image, views, copied)


def _static(
    places: Mapping[tuple[bool, int], Bytes], origin: Origin, meta: GraphMeta, argument: ArgumentMeta
) -> Bytes:
    """The memory with the value of a static output that has no tensor of its own."""
    if origin not in places:
        raise refuse(
            ZeResult.ERROR_MODULE_BUILD_FAILURE,
            f"graph '{meta.name}', output '{argument.name}'",
            found=f"shape {list(argument.shape)}, shared with an argument of dynamic dimensions",
            expected="arguments that share a tensor to have one shape",
        )
    return places[origin]


def _smallest(compiled: ov.CompiledModel, position: int) -> Shape:
    """The smallest shape of an output as OpenVINO infers it now; its transformations may have changed it."""
    partial = compiled.outputs[position].partial_shape
    return tuple(dim.get_min_length() for dim in partial)

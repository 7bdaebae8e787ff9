"""Operations of own kernels in OpenVINO: classes that read, clone and write them.

They do not compute. The kernel is asked for shapes in this process, which is never an engine.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union

import numpy as np
import openvino as ov

from softnpu.emulator.kernels import description, patterns
from softnpu.emulator.kernels.abi import TensorRecord
from softnpu.emulator.kernels.description import Description, FunctionDescription, Value
from softnpu.emulator.kernels.errors import Failure, failed
from softnpu.emulator.openvino.kernels import bounds
from softnpu.emulator.openvino.kernels.bounds import Shapes

if TYPE_CHECKING:
    from softnpu.emulator.kernels.instance import Instance
    from softnpu.emulator.kernels.machine import Machine
    from softnpu.emulator.kernels.module import KernelModule

_SHAPES_MS: Final = 2000
_MISSING: Final = {
    "integer": -(1 << 63),
    "number": math.nan,
    "text": "\x7f",
    "integers": [-(1 << 63)],
    "numbers": [math.nan],
}
"""OpenVINO reads an attribute into a value of its type: these, if it is not there."""


@functools.cache
def machine() -> Machine:
    """Return the virtual machine of this process."""
    from softnpu.emulator.kernels.machine import Machine

    return Machine()


class FunctionModule:
    """A Python function in the place of a module: its signature tells the shapes."""

    def __init__(self, described: FunctionDescription) -> None:
        self.description = described


Module: TypeAlias = Union["KernelModule", FunctionModule]


@functools.cache
def load(content: bytes) -> Module:
    """Load a module to ask it for shapes; OpenVINO keeps it for good. Raises `KernelError`."""
    described = description.read(content)
    if isinstance(described, FunctionDescription):
        return FunctionModule(described)
    from softnpu.emulator.kernels.module import KernelModule  # late: a function does without wasmtime

    return KernelModule(machine(), content)


def _asking(
    module: Module, number: int, types: Sequence[str], attributes: list[Value]
) -> Callable[[Shapes], Shapes]:
    """Return what tells the shapes of the outputs by those of the inputs."""
    if isinstance(module, FunctionModule):
        described = module.description
        return lambda shapes: patterns.output_shapes(described, number, shapes, attributes)
    instance: Instance | None = None

    def ask(shapes: Shapes) -> Shapes:
        from softnpu.emulator.kernels.instance import Instance

        nonlocal instance
        if instance is None or not instance.is_usable:
            instance = Instance(module, _SHAPES_MS)
        records = [TensorRecord(kind, shape) for kind, shape in zip(types, shapes, strict=True)]
        return [each.shape for each in instance.shapes(number, records, attributes)[0]]

    return ask


def operation(module: Module) -> type[ov.Op]:
    """Return the class of a kernel's operation, for `openvino.Core.add_extension`."""
    described = module.description

    class KernelOperation(ov.Op):  # type: ignore[misc]
        """One such operation in a model."""

        class_type_info = ov.DiscreteTypeInfo(described.name, described.domain)

        def __init__(self, inputs: Any = None, **attributes: Any) -> None:
            super().__init__(self)
            self.attributes = {each.name: _first(each.kind, each.default) for each in described.attributes}
            self.attributes.update({name: _plain(each) for name, each in attributes.items()})
            if inputs is not None:
                self.set_arguments(inputs)
                self.constructor_validate_and_infer_types()

        def get_type_info(self) -> Any:
            return self.class_type_info

        def visit_attributes(self, visitor: Any) -> bool:
            visitor.on_attributes(self.attributes)
            return True

        def clone_with_new_inputs(self, inputs: Any) -> Any:
            return type(self)(list(inputs), **self.attributes)

        def validate_and_infer_types(self) -> None:
            _infer(self, module)

    KernelOperation.__name__ = KernelOperation.__qualname__ = described.name
    return KernelOperation


def extensions(module: Module) -> list[Any]:
    """Return what teaches OpenVINO a kernel's operation, in its IR and in ONNX."""
    from openvino.frontend.onnx import ConversionExtension  # late: the compiler reads no ONNX

    described, made = module.description, operation(module)

    def convert(node: Any) -> Any:
        attributes = {}
        for each in described.attributes:
            with contextlib.suppress(Exception):  # OpenVINO's own, for one that is not there
                attributes[each.name] = node.get_attribute(each.name)
        return made([node.get_input(at) for at in range(node.get_input_size())], **attributes).outputs()

    return [made, ConversionExtension(described.name, described.domain, convert)]


def given(described: Description, attributes: dict[str, Any]) -> dict[str, Value]:
    """Return the attributes that an operation has, without those that are missing."""
    kinds = {each.name: each.kind for each in described.attributes}
    missing = {name: str(_MISSING[kind]) for name, kind in kinds.items()}
    return {name: value for name, value in attributes.items() if str(value) != missing.get(name)}


def _plain(value: Any) -> Any:
    """Return numpy's numbers and arrays as Python's."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _first(kind: str, default: Value | None) -> Value:
    missing: Any = _MISSING[kind]
    value: Value = missing if default is None else default
    return list(value) if isinstance(value, list) else value


def outputs(
    module: Module,
    types: Sequence[str],
    shapes: Sequence[ov.PartialShape],
    attributes: dict[str, Value],
) -> list[tuple[str, ov.PartialShape]]:
    """Return types and shapes of a kernel's outputs, for inputs of these. Raises `KernelError`."""
    described = module.description
    number = described.implementation_for(tuple(types))
    ask = _asking(module, number, types, described.complete(attributes))
    told = bounds.outputs(described, ask, shapes)
    return list(zip(described.implementations[number].outputs, told, strict=True))


def _infer(node: Any, module: Module) -> None:
    """Set types and shapes of the outputs."""
    described = module.description
    places = range(node.get_input_size())
    if len(places) != len(described.inputs):
        raise failed(Failure.SHAPE, described.full_name, f"{len(places)} inputs", f"{len(described.inputs)}")
    types = [node.get_input_element_type(at).get_type_name() for at in places]
    shapes = [node.get_input_partial_shape(at) for at in places]
    told = outputs(module, types, shapes, given(described, node.attributes))
    node.set_output_size(len(told))
    for at, (name, shape) in enumerate(told):
        node.set_output_type(at, getattr(ov.Type, name), shape)

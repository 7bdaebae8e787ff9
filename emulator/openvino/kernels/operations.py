"""Operations of own kernels in OpenVINO: classes that read, clone and write them.

They do not compute. The kernel is asked for shapes in this process, which is never an engine.
"""

from __future__ import annotations

import contextlib
import functools
import math
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union

import openvino as ov

from softnpu.emulator.kernels import description
from softnpu.emulator.kernels.abi import TensorRecord
from softnpu.emulator.kernels.description import Description, FunctionDescription, Value
from softnpu.emulator.kernels.errors import Failure, failed
from softnpu.emulator.kernels.function_call import outputs

if TYPE_CHECKING:
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


def load(content: bytes) -> Module:
    """Load a module to ask it for shapes. Raises `KernelError`."""
    described = description.read(content)
    if isinstance(described, FunctionDescription):
        return FunctionModule(described)
    from softnpu.emulator.kernels.module import KernelModule  # late: a function does without wasmtime

    return KernelModule(machine(), content)


def _outputs(
    module: Module, number: int, inputs: list[TensorRecord], attributes: list[Value]
) -> list[TensorRecord]:
    if isinstance(module, FunctionModule):
        return outputs(module.description, number, [each.shape for each in inputs], attributes)
    from softnpu.emulator.kernels.instance import Instance

    return Instance(module, _SHAPES_MS).shapes(number, inputs, attributes)[0]


def operation(module: Module) -> type[ov.Op]:
    """Return the class of a kernel's operation, for `openvino.Core.add_extension`."""
    described = module.description

    class KernelOperation(ov.Op):  # type: ignore[misc]
        """One such operation in a model."""

        class_type_info = ov.DiscreteTypeInfo(described.name, described.domain)

        def __init__(self, inputs: Any = None, **attributes: Any) -> None:
            super().__init__(self)
            self.attributes = {each.name: _first(each.kind, each.default) for each in described.attributes}
            self.attributes.update(attributes)
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
    return {name: value for name, value in attributes.items() if str(value) != str(_MISSING[kinds[name]])}


def _first(kind: str, default: Value | None) -> Value:
    missing: Any = _MISSING[kind]
    value: Value = missing if default is None else default
    return list(value) if isinstance(value, list) else value


def _infer(node: Any, module: Module) -> None:
    """Set types and shapes of the outputs; open ones while those of the inputs are."""
    described = module.description
    if node.get_input_size() != len(described.inputs):
        found = f"{node.get_input_size()} inputs"
        raise failed(Failure.SHAPE, described.full_name, found, f"{len(described.inputs)}")
    types = tuple(node.get_input_element_type(at).get_type_name() for at in range(node.get_input_size()))
    number = described.implementation_for(types)
    shapes = [node.get_input_partial_shape(at) for at in range(node.get_input_size())]
    node.set_output_size(len(described.outputs))
    if any(shape.is_dynamic for shape in shapes):
        for at, name in enumerate(described.implementations[number].outputs):
            node.set_output_type(at, getattr(ov.Type, name), ov.PartialShape.dynamic())
        return
    records = [TensorRecord(name, tuple(shape.to_shape())) for name, shape in zip(types, shapes, strict=True)]
    attributes = described.complete(given(described, node.attributes))
    for at, output in enumerate(_outputs(module, number, records, attributes)):
        node.set_output_type(at, getattr(ov.Type, output.type), ov.PartialShape(list(output.shape)))

"""The neutral graph of an `openvino.Model`, and so of everything that `Core.read_model` reads.

The only prediction file that imports OpenVINO, and only its model: nothing is compiled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import openvino as ov

from softnpu.emulator.prediction.graph import DYNAMIC, Graph, Operation, Source, Tensor, Value

_FEW: Final = 64
"""Constants with at most this many elements are read: axes, limits, shapes."""
_NUMERIC: Final = frozenset(
    ("f16", "f32", "f64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "boolean")
)


def read_model(path: Path | str) -> ov.Model:
    """Read a model from an IR, ONNX or another file that OpenVINO reads."""
    return ov.Core().read_model(str(path))


def read_graph(model: ov.Model) -> Graph:
    """Convert a model to a graph. An If, Loop or TensorIterator is one operation, without its bodies."""
    ordered = model.get_ordered_ops()
    # states of a model may stand between the operations, in an order not given by get_ordered_ops
    index = {_key(node): position for position, node in enumerate(ordered)}
    return Graph(
        name=model.get_friendly_name(),
        operations=tuple(_operation(position, node, index) for position, node in enumerate(ordered)),
    )


def read_fused_graph(model: ov.Model) -> Graph:
    """Convert a model as the compiler sees it: after OpenVINO's common transformations (an HSwish is one)."""
    from openvino._offline_transformations import apply_moc_transformations

    fused = model.clone()
    apply_moc_transformations(fused, cf=False)
    return read_graph(fused)


def _key(node: Any) -> str:
    return str(node.get_name())  # unique in a model; friendly names need not be


def _operation(position: int, node: Any, index: dict[str, int]) -> Operation:
    info = node.get_type_info()
    inputs = tuple(
        Source(index[_key(port.get_source_output().get_node())], port.get_source_output().get_index())
        for port in node.inputs()
    )
    return Operation(
        index=position,
        name=str(node.get_friendly_name()),
        type=str(info.name),
        opset=str(info.version_id),
        inputs=inputs,
        outputs=tuple(_tensor(port) for port in node.outputs()),
        attributes=_attributes(node),
        value=_value(node),
    )


def _tensor(port: Any) -> Tensor:
    element_type = str(port.get_element_type().get_type_name())
    shape = port.get_partial_shape()
    names = tuple(sorted(port.get_names()))
    if shape.rank.is_dynamic:
        return Tensor(element_type, None, None, names)
    sizes = tuple(each.get_length() if each.is_static else DYNAMIC for each in shape)
    upper = tuple(each.get_max_length() for each in shape)
    return Tensor(element_type, sizes, upper, names)


def _attributes(node: Any) -> dict[str, Value]:
    if node.get_type_name() == "Constant":
        return {}
    attributes: dict[str, Value] = {}
    for name, value in node.get_attributes().items():
        known = _attribute(value)
        if known is not None:
            attributes[name] = known
    return attributes


def _attribute(value: Any) -> Value | None:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return tuple(value)
    if hasattr(value, "tolist"):
        return tuple(value.tolist())
    try:
        return tuple(int(each) for each in value)
    except (TypeError, ValueError, RuntimeError):
        return None  # a nested structure, such as the body of a loop


def _value(node: Any) -> tuple[float, ...] | None:
    if node.get_type_name() != "Constant":
        return None
    tensor = node.output(0)
    if not tensor.get_partial_shape().is_static or tensor.get_element_type().get_type_name() not in _NUMERIC:
        return None
    count = 1
    for size in tensor.get_shape():
        count *= size
    if count > _FEW:
        return None
    return tuple(float(each) for each in node.get_data().reshape(-1).tolist())

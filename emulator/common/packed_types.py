"""Widen packed elements, which OpenVINO's CPU runtime (2026.4) moves as if each had whole bytes.

Several elements of u4, i4, u2, u1, nf4 and f4e2m1 share a byte. Only Convert unpacks them. Gather, Slice,
Concat and the like count bytes: they return wrong elements and write out of bounds, and so does OpenVINO when
it folds them. So these operations receive converted inputs, and results of the model are converted back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from softnpu.emulator.common.model_bodies import bodies_of

PACKED: Final = {
    "u1": "u8", "u2": "u8", "u3": "u8", "u4": "u8", "u6": "u8", "i4": "i8", "nf4": "f32", "f4e2m1": "f32",
}  # fmt: skip
"""Types with several elements per byte, and the types that hold all their values."""
_NUMPY: Final = ("f16", "f32", "f64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
_LEFT: Final = frozenset(
    ("Assign", "Constant", "Convert", "ConvertLike", "Parameter", "ReadValue", "Reshape", "ShapeOf",
     "Squeeze", "Unsqueeze")
)  # fmt: skip
"""Types of operations that OpenVINO computes of such elements as well, or that have to keep their type."""


def widen(model: ov.Model, types: Mapping[str, str] = PACKED) -> bool:
    """Do so in a model that was just read, and in its bodies. Returns whether that has changed it.

    `types` are those that are converted, each with the type that takes its place.
    """
    declared = [result.get_element_type() for result in model.get_results()]
    found = _widen(model, types, is_body=False)
    for result, element_type in zip(model.get_results(), declared, strict=True):
        if result.input_value(0).get_element_type() != element_type:
            _convert(result, 0, element_type.to_string())
        source = result.input_value(0).get_node()
        if element_type.to_string() in PACKED and source.get_type_name() == "Convert":
            found |= _keep_before(source)
    if found:
        model.validate_nodes_and_infer_types()
    return found


def _widen(model: ov.Model, types: Mapping[str, str], is_body: bool) -> bool:
    """Bodies take and give what was converted, so that it does not matter what is handed in and on."""
    found = False
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        for body in bodies_of(node):
            found |= _widen(body, types, is_body=True)
        if kind == "Parameter" and is_body and _name(node.output(0)) in types:
            node.set_element_type(getattr(ov.Type, types[_name(node.output(0))]))
            found = True
        if kind == "Assign" and node.input_value(0).get_element_type() != node.get_output_element_type(0):
            _convert(node, 0, _name(node.output(0)))
        if kind not in _LEFT and (kind != "Result" or is_body):
            for position, source in enumerate(node.input_values()):
                if _name(source) in types:
                    _convert(node, position, types[_name(source)])
                    found = True
        if found and kind != "Result":
            node.validate_and_infer_types()
    if found and is_body:
        model.validate_nodes_and_infer_types()
    return found


def _keep_before(convert: Any) -> bool:
    """Keep OpenVINO from moving what is computed, as a Transpose, behind the conversion of an output.

    Such outputs are of static shapes.
    """
    source = convert.input_value(0)
    element_type, kind = source.get_element_type(), source.get_node().get_type_name()
    if kind in ("Constant", "Parameter") or _name(source) in PACKED or source.get_partial_shape().is_dynamic:
        return False
    if element_type.to_string() not in _NUMPY:
        source = ops.convert(source, "f32").output(0)
        element_type = ov.Type.f32
    lowest = (np.finfo if element_type.is_real() else np.iinfo)(element_type.to_dtype()).min
    least = np.full(list(source.get_shape()), lowest, element_type.to_dtype())
    convert.input(0).replace_source_output(ops.maximum(source, ops.constant(least)).output(0))
    return True


def _name(output: Any) -> str:
    return str(output.get_element_type().to_string())


def _convert(node: Any, position: int, element_type: str) -> None:
    converted = ops.convert(node.input_value(position), element_type)
    converted.set_friendly_name(f"{node.get_friendly_name()}/{element_type} {position}")
    node.input(position).replace_source_output(converted.output(0))

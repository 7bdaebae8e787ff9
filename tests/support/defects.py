"""Defects to seed into a model: the effects of a wrong conversion or quantisation on one layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as ops

Array = npt.NDArray[Any]


def _wrong(value: Array) -> Array:
    changed = value.copy()
    changed.flat[value.size // 2] += 20 * value.std() + 1
    return changed


DEFECTS: dict[str, Callable[[Array], Array]] = {
    "constant": _wrong,
    "sign": lambda value: -value,
    "f16": lambda value: value.astype(np.float16).astype(np.float32),
    "axis": lambda value: value,
}
"""Changes of the layer's constant; `axis` changes the layer's axis instead."""


def seed_defect(model: ov.Model, defect: str, layer: str) -> ov.Model:
    """Return the model with a defect at one layer, which keeps its name."""
    node = next(each for each in model.get_ordered_ops() if each.get_friendly_name() == layer)
    if defect == "axis":
        _turn(node)
    else:
        port = next(each for each in node.inputs() if _is_constant(each))
        value = port.get_source_output().get_node().get_data()
        port.replace_source_output(ops.constant(DEFECTS[defect](value)).output(0))
    model.validate_nodes_and_infer_types()
    return model


def _turn(node: Any) -> None:
    """Make a softmax sum along the axis before its own."""
    other = ops.softmax(node.input_value(0), axis=node.get_attributes()["axis"] - 1)
    names, name = node.output(0).get_names(), node.get_friendly_name()
    node.output(0).set_names(set())
    node.output(0).replace(other.output(0))
    other.set_friendly_name(name)
    other.output(0).set_names(names)


def _is_constant(port: Any) -> bool:
    source = port.get_source_output().get_node()
    return bool(source.get_type_name() == "Constant" and source.get_element_type() == ov.Type.f32)

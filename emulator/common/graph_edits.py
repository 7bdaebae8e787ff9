"""Queries and small edits on a model's graph, for code that replaces operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
from openvino import opset13 as ops

_SOURCES: Final = ("Parameter", "ReadValue", "If", "Loop", "TensorIterator")
_NOT_FIXED: Final = frozenset(
    ("Assign", "If", "Loop", "Multinomial", "Parameter", "RandomUniform", "ReadValue", "TensorIterator")
)
"""Types of operations that are not computed when a model is compiled, whatever they work on."""


def numbers(values: Iterable[int]) -> Any:
    """Return a constant of i64 with one dimension."""
    return ops.constant(np.array(list(values), np.int64))


def put_behind(output: Any, make: Callable[[Any], Any], suffix: str) -> None:
    """Replace a result by `make` of it for all its consumers."""
    readers = list(output.get_target_inputs())
    made = make(output)
    made.set_friendly_name(f"{output.get_node().get_friendly_name()}/{suffix} {output.get_index()}")
    for reader in readers:
        reader.replace_source_output(made.output(0))


def replace(node: Any, made: Any) -> None:
    """Replace the only result of an operation by another's for all its consumers."""
    name = node.get_friendly_name()
    for reader in node.output(0).get_target_inputs():
        reader.replace_source_output(made.output(0))
    made.set_friendly_name(name)


def is_fixed(source: Any) -> bool:
    """Return whether a value depends on constants and known shapes alone, so that OpenVINO folds it."""
    node = source.get_node()
    kind = node.get_type_name()
    if kind == "ShapeOf":
        is_static: bool = node.get_input_partial_shape(0).is_static
        return is_static
    if kind in _NOT_FIXED:
        return False
    return kind == "Constant" or all(is_fixed(each) for each in node.input_values())


def depends_on_inputs(source: Any) -> bool:
    """Return whether the values of inputs or states decide it, and not their shapes alone."""
    seen: set[str] = set()
    pending = [source.node]
    while pending:
        node = pending.pop()
        if node.get_name() in seen or node.get_type_name() == "ShapeOf":
            continue
        seen.add(node.get_name())
        if node.get_type_name() in _SOURCES:
            return True
        pending += [each.node for each in node.input_values()]
    return False

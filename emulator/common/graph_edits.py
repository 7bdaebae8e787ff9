"""Small edits of a model's graph, for those who replace operations by others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from openvino import opset13 as ops


def numbers(values: Iterable[int]) -> Any:
    """Return a constant of i64 with one dimension."""
    return ops.constant(np.array(list(values), np.int64))


def put_behind(output: Any, make: Callable[[Any], Any], suffix: str) -> None:
    """Give what reads a result what `make` makes of it."""
    readers = list(output.get_target_inputs())
    made = make(output)
    made.set_friendly_name(f"{output.get_node().get_friendly_name()}/{suffix} {output.get_index()}")
    for reader in readers:
        reader.replace_source_output(made.output(0))


def replace(node: Any, made: Any) -> None:
    """Give what reads the only result of an operation that of another."""
    name = node.get_friendly_name()
    for reader in node.output(0).get_target_inputs():
        reader.replace_source_output(made.output(0))
    made.set_friendly_name(name)

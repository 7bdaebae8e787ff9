"""The body graphs of If, Loop and TensorIterator, each of which `reader.read_graph` counts as one operation.

Names of their operations are prefixed with the name of the operation that they belong to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import openvino as ov

from softnpu.emulator.common.model_bodies import bodies_of
from softnpu.emulator.prediction.graph import Graph
from softnpu.emulator.prediction.reader import read_graph


def read_bodies(model: ov.Model) -> tuple[Graph, ...]:
    """Return the bodies of a model, including nested ones."""
    return tuple(_bodies(model, ""))


def _bodies(model: ov.Model, prefix: str) -> Iterator[Graph]:
    for node in model.get_ordered_ops():
        name = f"{prefix}{node.get_friendly_name()}/"
        for body in bodies_of(node):
            graph = read_graph(body)
            yield Graph(name, tuple(replace(each, name=name + each.name) for each in graph))
            yield from _bodies(body, name)

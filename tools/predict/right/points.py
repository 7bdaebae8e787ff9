"""The roundings of a model rewritten for f16: a point is one, with the layers since the previous ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import openvino as ov

from softnpu.emulator.arithmetic import operation_types as types
from softnpu.emulator.arithmetic import rounding

_NO_LAYERS: Final = frozenset({"Parameter", "Constant", "Result"})
_NO_READERS: Final = frozenset({"Result", "ShapeOf", rounding.OPERATION})
_NOT_DATA: Final = frozenset({"ShapeOf", rounding.OPERATION})
"""Shapes, and values rounded once by the compiler: nothing after them is computed by the device."""
_SHARES: Final = frozenset({"HSigmoid", "HardSigmoid", "Sigmoid", "Softmax"})
_MOVED: Final = types.MOVING - {
    "Abs", "Assign", "Bucketize", "Ceiling", "Floor", "If", "Loop", "Negative", "Pad",
    "ScatterElementsUpdate", "ScatterNDUpdate", "ScatterUpdate", "Select", "Sign", "SliceScatter",
    "TensorIterator",
}  # fmt: skip
"""Operations whose results are elements of their first input."""
_SOURCES: Final = frozenset({"Parameter", "ReadValue", "RandomUniform", rounding.OPERATION})


@dataclass(frozen=True)
class Point:
    """One rounding: the rounded value (`layer`, output `output`), by `key`.

    `group` are the operations since the points `reads`, in order; `after` are the readers of its result,
    through operations that only move values, up to the next one that computes. All by name. `is_share`: its
    values are shares, from 0 to 1.
    """

    key: str
    layer: str
    type: str
    output: int
    group: tuple[str, ...]
    reads: tuple[str, ...]
    after: tuple[str, ...]
    is_share: bool = False


@dataclass(frozen=True)
class Points:
    """The points of a model by key, in execution order; `outputs` are those behind each output."""

    points: dict[str, Point]
    outputs: tuple[tuple[str, ...], ...]

    def reaching(self, wrong: set[str], outputs: set[int]) -> set[str]:
        """Return the points of `wrong` that lead to one of `outputs` through points of `wrong` only."""
        pending = [key for number in outputs for key in self.outputs[number] if key in wrong]
        reached: set[str] = set()
        while pending:
            key = pending.pop()
            if key not in reached:
                reached.add(key)
                pending += [each for each in self.points[key].reads if each in wrong]
        return reached


def key_of(value: ov.Output) -> str:
    """Return `LAYER`, or `LAYER.OUTPUT` after the first."""
    name: str = value.get_node().friendly_name
    return name if value.get_index() == 0 else f"{name}.{value.get_index()}"


def roundings(model: ov.Model) -> dict[str, ov.Node]:
    """Return the operations that round the model's own values, by key, without those of its bodies."""
    return {
        key_of(node.input_value(0)): node
        for node in model.get_ordered_ops()
        if node.get_type_name() == rounding.OPERATION and _computes(node.input_value(0).get_node())
    }


def points_of(model: ov.Model) -> Points:
    """Return the points of a rewritten model."""
    rounded = roundings(model)
    graph = _Graph(
        {node.get_name(): at for at, node in enumerate(model.get_ordered_ops())},
        {node.get_name(): key for key, node in rounded.items()},
    )
    points = {}
    for key, node in rounded.items():
        value = node.input_value(0)
        layer = value.get_node()
        group, reads = graph.behind(value)
        after = tuple(dict.fromkeys(each.friendly_name for each in _readers(node)))
        points[key] = Point(
            key,
            layer.friendly_name,
            layer.get_type_name(),
            value.get_index(),
            group,
            reads,
            after,
            _is_share(value),
        )
    return Points(points, tuple(graph.behind(each.input_value(0))[1] for each in model.get_results()))


def _is_share(value: ov.Output) -> bool:
    """Return whether values are shares: of a Softmax or Sigmoid, moved or multiplied with each other."""
    node = value.get_node()
    kind = node.get_type_name()
    if kind in _SHARES:
        return True
    if kind == "Constant":
        return bool(((node.data >= 0) & (node.data <= 1)).all())
    if kind in {"Multiply", "Concat", "Minimum", "Maximum"}:
        return all(map(_is_share, node.input_values()))
    return kind in {rounding.OPERATION, *_MOVED} and _is_share(node.input_value(0))


def _computes(node: ov.Node) -> bool:
    """Return whether a value depends on data: a folded constant is no layer."""
    pending, seen = [node], set()
    while pending:
        each = pending.pop()
        kind = each.get_type_name()
        if kind in _SOURCES:
            return True
        if kind != "ShapeOf" and each.get_name() not in seen:
            seen.add(each.get_name())
            pending += [port.get_node() for port in each.input_values()]
    return False


@dataclass(frozen=True)
class _Graph:
    """The operations of a model in order, and the key of each point, by the names of its operations."""

    order: dict[str, int]
    keys: dict[str, str]

    def behind(self, value: ov.Output) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the operations between a value and the points before it, and these points."""
        group: dict[int, str] = {}
        reads: dict[str, None] = {}
        pending, seen = [value], set()
        while pending:
            node = pending.pop().get_node()
            kind, name = node.get_type_name(), node.get_name()
            if name in self.keys:
                reads[self.keys[name]] = None
            elif kind not in _NOT_DATA and name not in seen:
                seen.add(name)
                pending += node.input_values()
                if kind not in _NO_LAYERS:
                    group[self.order[name]] = node.friendly_name
        return tuple(group[at] for at in sorted(group)), tuple(reads)


def _readers(node: ov.Node) -> Iterator[ov.Node]:
    """Yield the readers of a result of `node`, also through operations that only move it."""
    for output in node.outputs():
        for port in output.get_target_inputs():
            reader = port.get_node()
            if reader.get_type_name() in _NO_READERS:
                continue
            yield reader
            if reader.get_type_name() in types.MOVING:
                yield from _readers(reader)

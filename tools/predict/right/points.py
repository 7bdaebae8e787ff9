"""Where a model rewritten for f16 rounds: a point is a rounding, with the layers between it and those before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import openvino as ov

from softnpu.emulator.arithmetic import operation_types as types
from softnpu.emulator.arithmetic import rounding

_NO_LAYERS: Final = frozenset({"Parameter", "Constant", "Result"})
_NO_READERS: Final = frozenset({"Result", "ShapeOf", rounding.OPERATION})
_SOURCES: Final = frozenset({"Parameter", "ReadValue", "RandomUniform", rounding.OPERATION})


@dataclass(frozen=True)
class Point:
    """One rounding: what it rounds (`layer`, output `output`), by `key`.

    `group` are the operations since the points `reads`, in order; `after` those that read its result,
    through what only moves values, up to the next one that computes. All by name.
    """

    key: str
    layer: str
    type: str
    output: int
    group: tuple[str, ...]
    reads: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True)
class Points:
    """The points of a model by key, in execution order; `outputs` has for each output the points behind it."""

    points: dict[str, Point]
    outputs: tuple[tuple[str, ...], ...]

    def reaching(self, wrong: set[str], outputs: set[int]) -> set[str]:
        """Which points of `wrong` lead to one of `outputs` through points of `wrong` only."""
        pending = [key for number in outputs for key in self.outputs[number] if key in wrong]
        found: set[str] = set()
        while pending:
            key = pending.pop()
            if key not in found:
                found.add(key)
                pending += [each for each in self.points[key].reads if each in wrong]
        return found


def key_of(value: ov.Output) -> str:
    """`LAYER`, or `LAYER.OUTPUT` behind the first."""
    name: str = value.get_node().friendly_name
    return name if value.get_index() == 0 else f"{name}.{value.get_index()}"


def roundings(model: ov.Model) -> dict[str, ov.Node]:
    """The operations that round the model's own values, by key; those of its bodies are not among them."""
    return {
        key_of(node.input_value(0)): node
        for node in model.get_ordered_ops()
        if node.get_type_name() == rounding.OPERATION and _computes(node.input_value(0).get_node())
    }


def points_of(model: ov.Model) -> Points:
    """The points of a rewritten model."""
    found = {}
    order = {node.get_name(): at for at, node in enumerate(model.get_ordered_ops())}
    for key, node in roundings(model).items():
        value = node.input_value(0)
        layer = value.get_node()
        group, reads = _behind(value, order)
        after = tuple(dict.fromkeys(each.friendly_name for each in _readers(node)))
        found[key] = Point(
            key, layer.friendly_name, layer.get_type_name(), value.get_index(), group, reads, after
        )
    outputs = tuple(_behind(result.input_value(0), order)[1] for result in model.get_results())
    return Points(found, outputs)


def _computes(node: ov.Node) -> bool:
    """Whether a value is of the data: what is folded into a constant is no layer."""
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


def _behind(value: ov.Output, order: dict[str, int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The operations between a value and the points before it, and these points."""
    group: dict[int, str] = {}
    reads: dict[str, None] = {}
    pending, seen = [value], set()
    while pending:
        port = pending.pop()
        node = port.get_node()
        kind = node.get_type_name()
        if kind == rounding.OPERATION:
            reads[key_of(node.input_value(0))] = None
        elif kind != "ShapeOf" and node.get_name() not in seen:
            seen.add(node.get_name())
            pending += node.input_values()
            if kind not in _NO_LAYERS:
                group[order[node.get_name()]] = node.friendly_name
    return tuple(group[at] for at in sorted(group)), tuple(reads)


def _readers(node: ov.Node) -> Iterator[ov.Node]:
    """The operations that read a result of `node`, also through what only moves it."""
    for output in node.outputs():
        for port in output.get_target_inputs():
            reader = port.get_node()
            if reader.get_type_name() in _NO_READERS:
                continue
            yield reader
            if reader.get_type_name() in types.MOVING:
                yield from _readers(reader)

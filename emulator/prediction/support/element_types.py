"""Support of element types by the NPU compiler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from softnpu.emulator.prediction.graph import Graph, Operation
from softnpu.emulator.prediction.support.findings import Finding
from softnpu.emulator.prediction.support.operation_table import operation_table
from softnpu.emulator.prediction.support.rules import RULES

_OWN_RULE: Final = {
    "f8e8m0": "type.f8e8m0",
    "f64": "type.f64",
    "f8e4m3": "type.f8",
    "f8e5m2": "type.f8",
}
_WIDE: Final = ("i64", "u64")


def check(graphs: Iterable[Graph], platform: str) -> tuple[Finding, ...]:
    """Return one finding for each element type that is not simply taken."""
    layers: dict[tuple[str, str], list[str]] = {}
    for graph in graphs:
        for operation in _visible(graph):
            for tensor in operation.outputs:
                rule = rule_of(tensor.element_type, platform)
                if rule:
                    layers.setdefault((rule, tensor.element_type), []).append(operation.name)
        for operation in (*graph.inputs, *graph.results):
            for tensor in operation.outputs:
                if tensor.element_type in _WIDE:
                    layers.setdefault(("type.integers-of-64-bits", tensor.element_type), []).append(
                        operation.name
                    )
    return tuple(
        RULES[rule].finding(f"element type {element_type}", names)
        for (rule, element_type), names in layers.items()
    )


def rule_of(element_type: str, platform: str) -> str:
    """Return the rule that applies to an element type; empty for a supported one."""
    rule = _OWN_RULE.get(element_type, "" if element_type in operation_table().types else "type.unsupported")
    return rule if rule and platform in RULES[rule].platforms else ""


def _visible(graph: Graph) -> Iterator[Operation]:
    """Yield the operations whose results the compiler sees: folded ones only if unfolded ones read them."""
    for operation in graph:
        if operation.index not in graph.constant_like or any(
            reader.index not in graph.constant_like for reader in graph.consumers(operation)
        ):
            yield operation

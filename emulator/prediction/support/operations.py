"""Support of a graph's operations by the NPU compiler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from softnpu.emulator.prediction.graph import Graph, Operation
from softnpu.emulator.prediction.support import conditions
from softnpu.emulator.prediction.support.findings import Finding, OperationSupport, Verdict
from softnpu.emulator.prediction.support.operation_table import operation_table
from softnpu.emulator.prediction.support.rules import RULES


@dataclass(frozen=True, slots=True)
class Judgement:
    """The fate of one operation. `rule` is the rule that decides; empty if the operation is taken."""

    rule: str
    reason: str

    @property
    def verdict(self) -> Verdict:
        """The verdict of the rule."""
        return RULES[self.rule].verdict if self.rule else Verdict.TAKES


@dataclass(slots=True)
class _Group:
    judgement: Judgement
    layers: list[str] = field(default_factory=list)


def check(graphs: Iterable[Graph]) -> tuple[tuple[OperationSupport, ...], tuple[Finding, ...]]:
    """Return operations by type and version, most frequent first; and one finding for each type and rule.

    Operations that depend on no input are omitted: they are folded before the compiler sees them.
    """
    groups: dict[tuple[str, str, str], _Group] = {}
    for graph in graphs:
        for operation in _kept(graph):
            judgement = judge(graph, operation)
            key = (operation.type, operation.opset, judgement.rule)
            groups.setdefault(key, _Group(judgement)).layers.append(operation.name)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1].layers), item[0]))
    table = operation_table()
    supports = tuple(
        OperationSupport(
            kind,
            opset,
            len(group.layers),
            group.judgement.verdict,
            group.judgement.reason,
            *table.results(kind, opset),
        )
        for (kind, opset, _), group in ordered
    )
    findings = tuple(
        RULES[rule].finding(f"operation {kind} ({opset}): {group.judgement.reason}", group.layers)
        for (kind, opset, rule), group in ordered
        if rule
    )
    return supports, findings


def judge(graph: Graph, operation: Operation) -> Judgement:
    """Judge one operation."""
    table = operation_table()
    kind, opset = operation.type, operation.opset
    conversion = table.conversion(kind, opset)
    if conversion or table.is_parsed(kind, opset):
        obstacle = conditions.obstacle(graph, operation)
        if obstacle is not None:
            return Judgement(*obstacle)
        return Judgement("", f"{conversion} converts it first" if conversion else "the compiler imports it")
    if table.knows(kind):
        return Judgement("operation.version", "the compiler imports other versions of it")
    if kind in table.absent:
        return Judgement("operation.unsupported", "the compiler does not import it")
    return Judgement("operation.custom", "it is in no list of operations")


def _kept(graph: Graph) -> Iterator[Operation]:
    for operation in graph:
        if operation.index not in graph.constant_like and operation.type not in ("Parameter", "Result"):
            yield operation

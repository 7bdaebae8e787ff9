"""Kernels that a model spells out in small operations, as ONNX files do: the compiler fuses them.

Each finder begins at the one operation unique to its pattern (Erf, Sqrt, Sigmoid), and collects the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from softnpu.emulator.prediction.graph import Graph, Operation, Source

_SCALES: Final = frozenset(("Multiply", "Divide"))
_SQUARES: Final = frozenset(("Power", "Multiply"))


@dataclass(frozen=True, slots=True)
class Pattern:
    """A kernel, and its operations; the last one has its result."""

    kernel: str
    members: tuple[Operation, ...]


def find_patterns(graph: Graph) -> Mapping[int, Pattern]:
    """Return the patterns of a graph, each by the index of its first member."""
    finder = _Finder(graph)
    patterns: dict[int, Pattern] = {}
    taken: set[int] = set()
    for pattern in (*finder.gelus(), *finder.normalisations(), *finder.swishes()):
        indices = {member.index for member in pattern.members}
        if not indices & taken and finder.is_closed(indices, pattern.members[-1].index):
            taken |= indices
            patterns[min(indices)] = pattern
    return patterns


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._folded = graph.constant_like

    def is_closed(self, indices: set[int], last: int) -> bool:
        """Return whether only the result is read from outside."""
        return all(
            reader.index in indices or reader.index in self._folded
            for index in indices - {last}
            for reader in self._graph.consumers(self._graph.operations[index])
        )

    def gelus(self) -> Iterator[Pattern]:
        """Find x / sqrt(2) -> Erf -> + 1 -> * x, and a factor before or behind."""
        for erf in self._graph.of_type("Erf"):
            before = self._producer(erf, 0)
            if before is None or before.type not in _SCALES or (source := self._variable(before)) is None:
                continue
            members = [before, erf]
            plus = self._only_reader(erf)
            product = None if plus is None or plus.type != "Add" else self._only_reader(plus)
            if plus is None or product is None or product.type != "Multiply":
                continue
            members += [plus, product]
            other = next((each for each in product.inputs if each.operation != plus.index), None)
            if other is not None and other != source:
                half = self._graph.operations[other.operation]
                if half.type not in _SCALES or self._variable(half) != source:
                    continue
                members.insert(0, half)
            behind = self._only_reader(product)
            if other == source and behind is not None and behind.type in _SCALES and self._variable(behind):
                members.append(behind)
            yield Pattern("Gelu", tuple(sorted(members, key=lambda each: each.index)))

    def swishes(self) -> Iterator[Pattern]:
        """Find x -> Sigmoid -> * x."""
        for sigmoid in self._graph.of_type("Sigmoid"):
            product = self._only_reader(sigmoid)
            if product is None or product.type != "Multiply":
                continue
            if set(product.inputs) == {sigmoid.inputs[0], Source(sigmoid.index)}:
                yield Pattern("Swish", (sigmoid, product))

    def normalisations(self) -> Iterator[Pattern]:
        """Find (x - mean) / sqrt(mean of squares + epsilon), or the same without the mean."""
        for root in self._graph.of_type("Sqrt"):
            sum_ = self._producer(root, 0)
            mean = self._producer(sum_, 0) if sum_ is not None and sum_.type == "Add" else None
            square = self._producer(mean, 0) if mean is not None and mean.type == "ReduceMean" else None
            if sum_ is None or mean is None or square is None or square.type not in _SQUARES:
                continue
            members = [square, mean, sum_, root]
            centred = self._producer(square, 0)
            subtracted = centred is not None and centred.type == "Subtract" and self._is_centring(centred)
            value = square.inputs[0]
            end = self._only_reader(root)
            if end is not None and end.type == "Divide" and end.inputs[0].operation in self._folded:
                members.append(end)  # one over the root, to multiply with
                end = self._only_reader(end)
            if end is None or end.type not in _SCALES:
                continue
            if subtracted and centred is not None:
                members += self._centring(centred)
                value = Source(centred.index)
            if value not in end.inputs:
                continue
            members = sorted(
                {each.index: each for each in (*members, end)}.values(), key=lambda each: each.index
            )
            yield Pattern("MVN", tuple(members))

    def _is_centring(self, subtract: Operation) -> bool:
        mean = self._producer(subtract, 1)
        return mean is not None and mean.type == "ReduceMean" and mean.inputs[0] == subtract.inputs[0]

    def _centring(self, subtract: Operation) -> list[Operation]:
        return [self._graph.operations[subtract.inputs[1].operation], subtract]

    def _producer(self, operation: Operation | None, position: int) -> Operation | None:
        return None if operation is None else self._graph.producer(operation, position)

    def _variable(self, operation: Operation) -> Source | None:
        """Return the only non-constant input."""
        sources = [source for source in operation.inputs if source.operation not in self._folded]
        return sources[0] if len(sources) == 1 else None

    def _only_reader(self, operation: Operation) -> Operation | None:
        consumers = [each for each in self._graph.consumers(operation) if each.index not in self._folded]
        return consumers[0] if len(consumers) == 1 else None

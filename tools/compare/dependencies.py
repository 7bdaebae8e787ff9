"""The reads between layers: the part of a graph that the search for a defect needs, without the graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Dependencies:
    """The layers of a model whose values the reference also has, in execution order.

    `parents` maps each to those that its value is computed from, skipping layers without a counterpart;
    `outputs` are the layers behind each output of the model.
    """

    order: Sequence[str]
    parents: Mapping[str, Collection[str]]
    outputs: Sequence[Collection[str]]

    def leading_to(self, outputs: Collection[int]) -> Dependencies:
        """Return the subset that these outputs depend on."""
        needed: set[str] = set()
        waiting = [layer for output in outputs for layer in self.outputs[output]]
        while waiting:
            layer = waiting.pop()
            if layer not in needed:
                needed.add(layer)
                waiting.extend(self.parents[layer])
        order = [layer for layer in self.order if layer in needed]
        return Dependencies(
            order,
            {layer: self.parents[layer] for layer in order},
            [self.outputs[at] for at in sorted(outputs)],
        )

    def frontier(self, last: int) -> list[str]:
        """Return the layers up to number `last` that later layers read: the complete cut."""
        read = {parent for layer in self.order[last + 1 :] for parent in self.parents[layer]}
        read.update(layer for output in self.outputs for layer in output)
        return [layer for layer in self.order[: last + 1] if layer in read]

    def readers(self, layer: str) -> list[str]:
        """Return the layers that read this one."""
        return [other for other in self.order if layer in self.parents[other]]

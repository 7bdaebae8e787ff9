"""The smallest part of a model that still shows a difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from softnpu.tools.compare.dependencies import Dependencies

MOST_OPERATIONS = 5
"""Operations besides constants that a reduced model may have."""

_MOST_TRIES = 40


def reduce(
    graph: Dependencies, culprit: str, shows: Callable[[frozenset[str]], bool]
) -> frozenset[str] | None:
    """Return the fewest layers around `culprit` that show the difference by themselves; None if none do.

    `shows` executes some layers, fed with the reference's values. The layer alone comes first, then with
    its readers (a device fuses a layer with them), then with its inputs' layers.
    """
    for tries, layers in enumerate(_growing(graph, culprit)):
        if tries == _MOST_TRIES:
            break
        if shows(layers):
            return layers
    return None


def _growing(graph: Dependencies, culprit: str) -> Iterator[frozenset[str]]:
    """Yield connected parts with the culprit, the smallest first, up to MOST_OPERATIONS layers."""
    known = {frozenset([culprit])}
    size = [frozenset([culprit])]
    while size:
        yield from size
        larger = []
        for part in size:
            readers = [reader for layer in sorted(part) for reader in graph.readers(layer)]
            read = [parent for layer in sorted(part) for parent in sorted(graph.parents[layer])]
            for neighbour in (*readers, *read):
                grown = part | {neighbour}
                if grown not in known and len(grown) <= MOST_OPERATIONS:
                    known.add(grown)
                    larger.append(grown)
        size = larger

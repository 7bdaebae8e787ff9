"""Find what depends, in the end, on itself."""

from __future__ import annotations

from collections.abc import Iterable

Graph = dict[str, set[str]]
"""Every module and those that it needs."""


def without_pairs(graph: Graph, pairs: Iterable[tuple[str, str]]) -> Graph:
    """The graph in which no child of a pair of parent and child needs its parent."""
    cut: Graph = {module: set(needed) for module, needed in graph.items()}
    for parent, child in pairs:
        cut.get(child, set()).discard(parent)
    return cut


def circle(graph: Graph) -> list[str]:
    """The modules of which each needs, in the end, itself; empty if there are none."""
    left: Graph = {module: set(needed) for module, needed in graph.items()}
    while leaves := [module for module, needed in left.items() if not needed & set(left)]:
        for module in leaves:
            del left[module]
    users: Graph = {module: set() for module in left}
    for module, needed in left.items():
        for name in needed & set(left):
            users[name].add(module)
    while roots := [module for module, modules in users.items() if not modules & set(users)]:
        for module in roots:
            del users[module]
    return sorted(users)

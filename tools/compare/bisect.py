"""Find the first layer out of tolerance in few executions, each marking only the values crossing one cut."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from softnpu.tools.compare.dependencies import Dependencies


@dataclass(frozen=True)
class Probe:
    """The result of one execution: marked layers out of tolerance, and whether any output still is."""

    bad: Collection[str]
    outputs_bad: bool


@dataclass(frozen=True)
class Bisection:
    """The end of the search.

    `layer` is the first one out of tolerance whose inputs are all in tolerance. If marking made the
    difference vanish, `hidden_by` has the marked layers: it requires fusion across them.
    """

    layer: str
    executions: int
    hidden_by: tuple[str, ...] = ()


def bisect(graph: Dependencies, execute: Callable[[Sequence[str]], Probe]) -> Bisection:
    """Search the layers of `graph`, whose outputs are out of tolerance.

    `execute` runs the model with some layers marked. It is called at most ceil(log2(N)) times for N layers.
    """
    # the answer lies in order[first..last]; values crossing the cut after `last` are out of tolerance
    first, last, executions = 0, len(graph.order) - 1, 0
    position = {layer: number for number, layer in enumerate(graph.order)}
    while first < last:
        middle = (first + last) // 2
        marked = graph.frontier(middle)
        probe = execute(marked)
        executions += 1
        if probe.bad:
            last = min(position[layer] for layer in probe.bad)
        elif not probe.outputs_bad:
            return Bisection(graph.order[middle], executions, tuple(marked))
        else:
            first = middle + 1
    return Bisection(graph.order[last], executions)

"""All rules together: whether silicon takes a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from softnpu.emulator.prediction.graph import Graph
from softnpu.emulator.prediction.support import configuration, element_types, operations, shapes
from softnpu.emulator.prediction.support.findings import Support


def check(
    graph: Graph, platform: str, bodies: Sequence[Graph] = (), config: Mapping[str, str] | None = None
) -> Support:
    """Return what is known of a model on a platform, worst findings first.

    `bodies` are the graphs of its If, Loop and TensorIterator, `config` the properties of its compilation.
    """
    graphs = (graph, *bodies)
    supports, of_operations = operations.check(graphs)
    findings = [
        *of_operations,
        *element_types.check(graphs, platform),
        *shapes.check(graph),
        *configuration.check(config or {}, platform),
    ]
    findings.sort(key=lambda finding: -finding.verdict.severity)
    return Support(platform, tuple(findings), supports)

"""What is known to differ. An entry is counted apart by its name and hides nothing else.

`KNOWN` has defects of softnpu that are open: an entry goes with its fix. `LIMITS` has what the documents
state, and what OpenVINO's CPU device does by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz.models.findings import Finding


@dataclass(frozen=True)
class Known:
    """One kind: a name, where it is written down, and how to tell it."""

    name: str
    where: str
    matches: Callable[[Finding], bool]


def _refused(*texts: str, api: str = "") -> Callable[[Finding], bool]:
    def matches(finding: Finding) -> bool:
        alone = finding.kind in ("refused alone", "untyped") and finding.way.api.startswith(api)
        return alone and any(text in finding.text for text in texts)

    return matches


def _converted_state(finding: Finding) -> bool:
    return finding.kind == "wrong" and "a state that is converted" in finding.traits


def _minus_zero(finding: Finding) -> bool:
    """States, and all numbers of the text are zeros: they differ in the sign."""
    numbers = re.findall(r"\[([^\]]*)\](?=, right is|;|$)", finding.text)
    zeros = all(one in ("0.0", "-0.0") for part in numbers for one in part.split(", "))
    return finding.kind == "wrong" and "states" in finding.traits and bool(numbers) and zeros


KNOWN: tuple[Known, ...] = ()
"""To be emptied with the fixes."""

LIMITS: tuple[Known, ...] = (
    Known(
        "a result of another shape than the model declares",
        "OpenVINO computes it so: docs/fidelity.md; refused, because static memory cannot tell",
        _refused("which the model declares"),
    ),
    Known(
        "a state that is converted",
        "docs/plugin.md, States: the CPU device drops Convert pairs behind its own state",
        _converted_state,
    ),
    Known(
        "a state of opset 3 in another type than f32",
        "docs/plugin.md, States: the CPU device keeps it in f32, one of opset 6 in its own type",
        lambda finding: (
            finding.kind == "wrong" and "a state of opset 3 that the CPU keeps in f32" in finding.traits
        ),
    ),
    Known(
        "a minus zero that a state begins as",
        "docs/plugin.md, States: the CPU device reads it as zero",
        _minus_zero,
    ),
    Known(
        "more than 5 dimensions, by the graph extension",
        "docs/native.md, Limits",
        _refused("expected at most 5", api="native"),
    ),
    Known(
        "states and a batch that OpenVINO's plugin looks for",
        "docs/native.md, Limits: it asks arguments of states for a shape that they do not have",
        _refused("shapeFromIRModel", api="native"),
    ),
    Known(
        "open dimensions without a bound, by OpenVINO's plugin",
        "docs/native.md, Limits",
        _refused("OUT_OF_DEVICE_MEMORY", "Cannot allocate memory", api="native"),
    ),
    Known(
        "a model without weights, weightless by OpenVINO's plugin",
        "it looks for an attribute of constants",
        _refused("WeightlessCacheAttribute", api="native"),
    ),
    Known(
        "a shape outside of the bounds",
        "docs/plugin.md, Dynamic shapes: refused before anything happens; the CPU device takes some",
        lambda finding: "open shapes" in finding.traits and _refused(" given; expected ")(finding),
    ),
    Known(
        "a batch that PLUGIN cannot split",
        "docs/plugin.md, Batch",
        _refused("PLUGIN cannot split", "NPU_BATCH_MODE"),
    ),
    Known(
        "a state whose shape changes",
        "docs/plugin.md, States",
        _refused("expected one type and static shape", "expected a static shape"),
    ),
    Known(
        "states of types that the CPU device refuses",
        "docs/plugin.md, States",
        lambda finding: finding.kind == "accepted alone" and "states" in finding.traits,
    ),
)

INHERITED = Known(
    "OpenVINO's CPU device does the same, used in the same way",
    "its own request, used again or with tensors that are set, is wrong or refuses",
    lambda finding: finding.inherited,
)
"""Asked last: what is ours as well comes first."""


def known(finding: Finding) -> str:
    """The name of the kind that a finding belongs to; empty for something new."""
    return next((one.name for one in (*LIMITS, *KNOWN, INHERITED) if one.matches(finding)), "")

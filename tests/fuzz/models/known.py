"""What is known to differ. An entry is counted apart by its name and hides nothing else.

`KNOWN` has defects of softnpu that are open: an entry goes with its fix. `LIMITS` has what the documents
state, and what OpenVINO's CPU device does by itself.
"""

from __future__ import annotations

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


def _wrong_if_bound(finding: Finding) -> bool:
    """OpenVINO alone is wrong as soon as its tensors are set, and right if not."""
    bound = finding.evidence.get("bound", "same") != "same" and not finding.inherited
    return bound and not finding.unsure and finding.kind != "accepted alone"


def _wide_passthrough(finding: Finding) -> bool:
    return finding.kind == "wrong" and "an output is an input of 64 bits" in finding.traits


def _converted_state(finding: Finding) -> bool:
    return finding.kind == "wrong" and "a state that is converted" in finding.traits


def _fewer_results(finding: Finding) -> bool:
    return finding.kind == "wrong" and " is " in finding.text.split("(")[0] and "right is" in finding.text


_cannot_bind = _refused("Can't set the output tensor", "Could set new shape")


def _spoiled(finding: Finding) -> bool:
    told = finding.kind == "refused alone" and " infer: " in finding.text
    return told and "a step that is refused" in finding.traits


def _shared_input(finding: Finding) -> bool:
    return finding.kind == "wrong" and finding.way.run == "shared" and finding.evidence.get("alike") == "same"


KNOWN: tuple[Known, ...] = (
    Known(
        "an empty constant",
        "a constant of no elements is written with one byte: driver/compiler/canonical.py, _check_pairs",
        _refused("or other sizes", "Incorrect weights in bin file"),
    ),
    Known(
        "an input of 64 bits that is an output",
        "a conversion to the same type goes through 32 bits: driver/compiler/passthrough.py",
        _wide_passthrough,
    ),
    Known(
        "an output with another shape than it was compiled with",
        "the compiled port, or the result, has another static shape than the model: executor.py, _place",
        lambda finding: _cannot_bind(finding) or _fewer_results(finding),
    ),
    Known(
        "refused after another inference has failed",
        "one failed inference spoils OpenVINO's compiled model, which an image shares among all its sessions:"
        " emulator/engine/executor.py, LoadedImage",
        _spoiled,
    ),
    Known(
        "wrong as soon as tensors are set",
        "an output that shares its tensor with an input: OpenVINO alone is wrong too when it is bound",
        _wrong_if_bound,
    ),
    Known("share_inputs", "the array is copied once: plugin/infer_request.py, start_async", _shared_input),
    Known(
        "states without any input, by OpenVINO's plugin",
        "not compiled: Missing value for the shapeFromIRModel attribute; to be settled whose",
        _refused("shapeFromIRModel", api="native"),
    ),
    Known(
        "a state that is converted",
        "the CPU drops Convert pairs behind its own state, not behind an input: driver/compiler/states.py",
        _converted_state,
    ),
)
"""To be emptied with the fixes; last those whose description is wide."""

LIMITS: tuple[Known, ...] = (
    Known(
        "more than 5 dimensions, by the graph extension",
        "docs/native.md, Limits",
        _refused("expected at most 5", api="native"),
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

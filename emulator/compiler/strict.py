"""Strict mode: refuse models that silicon is known to refuse, with the source of the rule.

The rules are those of `softnpu predict`. Unknown cases are accepted, and noted in the build log.
"""

from __future__ import annotations

import openvino as ov

from softnpu.emulator.arithmetic.settings import MODE_PARAMS
from softnpu.emulator.compiler.options import PRECISION, TILES, Settings
from softnpu.emulator.compiler.stages import Stages
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.prediction.bodies import read_bodies
from softnpu.emulator.prediction.graph import Graph
from softnpu.emulator.prediction.reader import read_graph
from softnpu.emulator.prediction.support import check as rules
from softnpu.emulator.prediction.support.findings import Finding, Support, Verdict

_LISTED = 3
_FURTHER = 4
_SOURCES = 2


def check(model: ov.Model, settings: Settings, subject: str, stages: Stages) -> None:
    """Refuse with `ERROR_UNSUPPORTED_FEATURE` a model that silicon refuses."""
    support = _support(model, settings, read_bodies(model))
    for finding in support.findings:
        if finding.verdict is Verdict.UNKNOWN:
            stages.note(f"strict: unknown whether silicon takes {finding.found} (rule {finding.rule})")
    if not support.refused:
        return
    first, *others = support.refused
    more = f"; also {_further(others)}" if others else ""
    raise refuse(
        ZeResult.ERROR_UNSUPPORTED_FEATURE,
        f"{subject}, strict mode for platform {settings.platform}",
        found=f"{first.found}{_layers(first)}{more}",
        expected=f"{first.expected}, by rule {first.rule} ({'; '.join(map(str, first.sources[:_SOURCES]))})",
        hint=first.hint,
    )


def refused_layers(model: ov.Model, settings: Settings) -> frozenset[str]:
    """The friendly names of the operations that silicon refuses, in them those whose bodies have one."""
    bodies = read_bodies(model)
    refused = _support(model, settings, bodies).refused_layers
    outer = {body.name for body in bodies if any(layer.startswith(body.name) for layer in refused)}
    return refused | {name.removesuffix("/") for name in outer}


def _support(model: ov.Model, settings: Settings, bodies: tuple[Graph, ...]) -> Support:
    # f32 is what the emulator computes in; a program that names it asks for that, and not for silicon's f16
    precision = settings.precision if settings.precision == "bf16" else ""
    config = {name: settings.values[name] for name in (TILES, MODE_PARAMS)} | {PRECISION: precision}
    return rules.check(read_graph(model), settings.platform, bodies, config)


def _layers(finding: Finding) -> str:
    """Return the layers of a finding that does not name them in its text."""
    if not finding.rule.startswith(("operation.", "type.")):
        return ""
    shown = ", ".join(f"'{name}'" for name in finding.layers[:_LISTED])
    more = f" and {len(finding.layers) - _LISTED} more" if len(finding.layers) > _LISTED else ""
    return f" (in {shown}{more})"


def _further(findings: list[Finding]) -> str:
    shown = "; ".join(f"{finding.found} (rule {finding.rule})" for finding in findings[:_FURTHER])
    return f"{shown} and {len(findings) - _FURTHER} more" if len(findings) > _FURTHER else shown

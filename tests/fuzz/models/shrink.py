"""Reduces a finding: removes parts as long as the same kind of difference remains."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov

from tests.fuzz.models import case as cases
from tests.fuzz.models.edits import CannotEdit, candidates
from tests.fuzz.models.findings import Finding
from tests.fuzz.models.lane import Lane
from tests.fuzz.models.values import name_of

_MOST_TRIES = 250
_ONCE = ("plain names", "make static", "no layouts")


def shrink(lane: Lane, finding: Finding, seconds: float = 60.0) -> Finding:
    """Return the smallest case found in time, with its own evidence."""
    smallest = finding
    tried: set[tuple[object, ...]] = set()
    end = time.monotonic() + seconds
    progress = True
    while progress:
        progress = False
        case = cases.make(smallest.key)
        done = {kind for kind, _, _ in smallest.key.edits}
        for edit in candidates(case.model, case.steps):
            if edit[0] in _ONCE and edit[0] in done:
                continue
            key = replace(smallest.key, edits=(*smallest.key.edits, edit))
            if time.monotonic() > end or len(tried) >= _MOST_TRIES:
                return _again(lane, smallest)
            try:
                changed = cases.make(key)
            except CannotEdit:
                continue
            if cases.size_of(changed) > cases.size_of(case):
                continue
            if key.edits in tried:
                continue
            tried.add(key.edits)
            found = lane.examine(key, [finding.way], Counter(), evidence=False)
            if found and not found[0].known and found[0].kind == finding.kind and _alike(found[0], finding):
                smallest, progress = found[0], True
                break
    return _again(lane, smallest)


def _alike(one: Finding, other: Finding) -> bool:
    """Return whether both are the same kind: all wrong numbers are, errors need the same reason."""
    if one.kind == "wrong":
        return (" is " in one.text.split("(")[0]) == (" is " in other.text.split("(")[0])
    return one.reason == other.reason


def _again(lane: Lane, finding: Finding) -> Finding:
    """Repeat the finding with evidence; return it unchanged if it does not recur."""
    found = lane.examine(finding.key, [finding.way], Counter())
    return (
        found[0] if found else replace(finding, text=f"{finding.text} (not again when it was run once more)")
    )


def save(finding: Finding, folder: Path) -> None:
    """Write model, inputs, and a JSON with everything else: `--replay` takes its path."""
    folder.mkdir(parents=True, exist_ok=True)
    case = cases.make(finding.key)
    ov.serialize(case.model, folder / "model.xml")
    inputs = []
    for at, step in enumerate(case.steps):
        for index, one in enumerate(step):
            inputs.append(
                {"step": at, "input": index, "type": name_of(one.element_type), "shape": list(one.shape)}
            )
            np.save(folder / f"step{at}_input{index}.npy", np.array(one.data))
    told = {
        "seed": finding.key.seed,
        "number": finding.key.number,
        "edits": finding.key.edits,
        "way": str(finding.way),
        "kind": finding.kind,
        "text": finding.text,
        "evidence": finding.evidence,
        "model": finding.model,
        "log": finding.log,
        "inputs": inputs,
    }
    (folder / "finding.json").write_text(json.dumps(told, indent=1, ensure_ascii=False))
    finding.saved = str(folder)


def load(path: Path) -> tuple[cases.Key, str]:
    """Return the key and the way of a saved finding."""
    told = json.loads((path / "finding.json" if path.is_dir() else path).read_text())
    edits = tuple((str(kind), int(first), int(second)) for kind, first, second in told["edits"])
    return cases.Key(told["seed"], told["number"], edits), told["way"]

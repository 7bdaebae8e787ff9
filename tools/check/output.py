"""Findings on the screen, as JSON, and as SARIF; suppressions."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from softnpu.tools.check.findings import MEANING, WASTE, Finding, Findings, Frames, Kind, Place
from softnpu.tools.check.text import lines
from softnpu.tools.shared.console import err, json_text, print_line
from softnpu.tools.shared.failures import ToolError

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before the program runs."""
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ToolError(
            f"file {path}", found=f"{path.parent} cannot be written", expected="a folder that can"
        )


def read_suppressions(path: Path) -> list[tuple[str, str]]:
    """Return (kind, pattern) of each line `KIND PATTERN`; `#` begins a comment."""
    found = []
    kinds = [kind.value for kind in Kind]
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.split("#")[0].strip()
        if not text:
            continue
        kind, _, pattern = text.partition(" ")
        if kind not in (*kinds, "*") or not pattern.strip():
            raise ToolError(
                f"{path}, line {number}",
                found=f"'{text}'",
                expected="a kind or *, a space, a pattern of a frame, as 'race */app.py:* main'",
                hint=f"kinds: {', '.join(kinds)}",
            )
        found.append((kind, pattern.strip()))
    return found


def suppress(findings: Findings, patterns: Sequence[tuple[str, str]]) -> int:
    """Remove findings of which a frame matches a pattern; return how many."""
    left_out = [key for key, finding in findings.found.items() if _matches(finding, patterns)]
    for key in left_out:
        del findings.found[key]
    return len(left_out)


def _matches(finding: Finding, patterns: Sequence[tuple[str, str]]) -> bool:
    frames = [frame for place in finding.places for frame in place.frames]
    return any(
        kind in (finding.kind.value, "*") and any(fnmatch.fnmatchcase(frame, pattern) for frame in frames)
        for kind, pattern in patterns
    )


def show(findings: Findings, left_out: int) -> None:
    """Print the findings on stderr: stdout belongs to the program."""
    for line in lines(findings, left_out):
        print_line(line, console=err)


def write_json(path: Path, findings: Findings) -> None:
    """Write an object with `findings`, `not_checked` and `submissions`, as other commands print theirs."""
    entries = [
        {
            "kind": finding.kind.value,
            "title": finding.title,
            "count": finding.count,
            "mend": finding.mend,
            "places": [
                {"what": place.what, "process": place.process, "frames": list(place.frames)}
                for place in finding.places
            ],
        }
        for finding in findings.found.values()
    ]
    whole = {
        "findings": entries,
        "not_checked": findings.unseen,
        "submissions": findings.submissions,
    }
    path.write_text(json_text(whole, indent=2) + "\n")


def write_sarif(path: Path, findings: Findings) -> None:
    """Write SARIF 2.1.0, which code hosts show in reviews."""
    results = [_result(finding) for finding in findings.found.values()]
    used = sorted({finding.kind for finding in findings.found.values()})
    driver = {
        "name": "softnpu check",
        "rules": [{"id": kind.value, "shortDescription": {"text": MEANING[kind]}} for kind in used],
    }
    run = {"tool": {"driver": driver}, "results": results}
    path.write_text(json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n")


def _result(finding: Finding) -> dict[str, Any]:
    located = [place for place in finding.places if place.frames]
    return {
        "ruleId": finding.kind.value,
        "level": "note" if finding.kind in WASTE else "error",
        "message": {"text": f"{finding.title}. To mend it, {finding.mend}."},
        "locations": [_location(place) for place in located[:1]],
        "relatedLocations": [_location(place) for place in located[1:]],
        "stacks": [_stack(place.frames) for place in located],
        "occurrenceCount": finding.count,
    }


def _location(place: Place) -> dict[str, Any]:
    return {**_physical(place.frames[0]), "message": {"text": f"{place.what}: {place.process}"}}


def _stack(frames: Frames) -> dict[str, Any]:
    return {"frames": [{"location": _physical(frame)} for frame in frames]}


def _physical(frame: str) -> dict[str, Any]:
    """Return a SARIF location of a frame `file:line function`."""
    place, _, _ = frame.rpartition(" ")
    file, _, line = place.rpartition(":")
    path = Path(file)
    name = path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else path.as_posix()
    region = {"startLine": int(line)} if line.isdecimal() and int(line) else {}
    return {"physicalLocation": {"artifactLocation": {"uri": name}, **({"region": region} if region else {})}}

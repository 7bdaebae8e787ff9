"""The output of `softnpu predict`: the questions and their answers, or one document."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from softnpu.emulator.platforms import title
from softnpu.tools.predict.prediction import SECTIONS, Prediction
from softnpu.tools.predict.section import Section
from softnpu.tools.shared.console import format_count, out, print_line


def show(prediction: Prediction, *, details: bool) -> None:
    """Print every section, then the proposed changes."""
    print_line(f"{prediction.model}, {format_count(prediction.operations, 'operation')}")
    print_line(f"platforms: {', '.join(map(title, prediction.platforms))}")
    for section in _sections_of(prediction):
        _heading(section.title)
        section.show(prediction.answers[section.key], details=details)
    if prediction.hints:
        _heading("What to change?")
        for number, hint in enumerate(prediction.hints, 1):
            only = "" if hint.platforms == prediction.platforms else f" ({', '.join(hint.platforms)})"
            print_line(f"  {number}. {hint.text}{only}")
            print_line(f"     because of: {hint.reason}")


def as_document(prediction: Prediction) -> dict[str, Any]:
    """Return the same for programs: the answers' fields, by platform unless one answer serves all."""
    return {
        "model": prediction.model,
        "operations": prediction.operations,
        "platforms": prediction.platforms,
        **{
            section.key: _answers(prediction.answers[section.key], section)
            for section in _sections_of(prediction)
        },
        "hints": prediction.hints,
    }


def _sections_of(prediction: Prediction) -> list[Section]:
    return [section for section in SECTIONS if section.key in prediction.answers]


def _answers(answers: Mapping[str, Any], section: Section) -> dict[str, Any]:
    if section.same_for_all:
        return _with_verdict(next(iter(answers.values())))
    return {platform: _with_verdict(answer) for platform, answer in answers.items()}


def _finite(value: Any) -> Any:
    """Return the same with null for numbers that JSON lacks."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _with_verdict(answer: Any) -> dict[str, Any]:
    import msgspec

    fields: dict[str, Any] = _finite(msgspec.to_builtins(answer))
    verdict = getattr(answer, "verdict", None)
    return fields if verdict is None else {"verdict": verdict, **fields}


def _heading(text: str) -> None:
    out.print(f"\n[bold]{text}[/bold]")

"""The output of `softnpu predict`: the questions and their answers, or one document."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from softnpu.emulator.common.printable import printable
from softnpu.emulator.platforms import title
from softnpu.tools.predict import summary
from softnpu.tools.predict.prediction import SECTIONS, Prediction
from softnpu.tools.predict.section import Section
from softnpu.tools.shared.console import format_count, make_table, out, print_line

if TYPE_CHECKING:
    from rich.text import Text


def show(prediction: Prediction, *, full: bool, details: bool) -> None:
    """Print the five lines; with `full` also the sections and changes, with `details` in their long form."""
    print_line(f"{prediction.model}, {format_count(prediction.operations, 'operation')}")
    for line in summary.summarise(prediction):
        print_line(f"  {line.question + ':':<17} {line.answer}")
    if not full:
        _explain_times([prediction])
        print_line("  more: --details for everything, --only compile, right or speed for one answer")
        return
    print_line("")
    print_line(f"platforms: {', '.join(map(title, prediction.platforms))}")
    for section in _sections_of(prediction):
        _heading(section.title)
        section.show(prediction.answers[section.key], details=details)
    if prediction.hints:
        _heading("What to change?")
        for number, hint in enumerate(prediction.hints, 1):
            only = "" if hint.platforms == prediction.platforms else f" ({', '.join(hint.platforms)})"
            print_line(f"  {number}. {hint.text}{only}")
            print_line(f"     why: {hint.reason}")


def show_side_by_side(predictions: Mapping[str, Prediction]) -> None:
    """Print the five lines of several models, by name, and how their times compare on each platform."""
    lines = {name: summary.summarise(each) for name, each in predictions.items()}
    table = make_table(None, "", *lines)
    for column in table.columns[1:]:
        column.no_wrap, column.overflow = False, "fold"
    for row in zip(*lines.values(), strict=True):
        table.add_row(row[0].question, *(_in_lines(line) for line in row))
    out.print(table)
    _explain_times(predictions.values())
    first, *others = predictions
    for other in others:
        for platform in predictions[first].platforms:
            _compare(platform, (first, predictions[first]), (other, predictions[other]))


def _explain_times(predictions: Iterable[Prediction]) -> None:
    """Say how to read `how fast`, if it has an answer."""
    speeds = [speed for each in predictions for speed in each.answers.get("speed", {}).values()]
    if any(speed.all_tiles for speed in speeds):
        print_line(
            "  times: of a lone inference, 80 of 100 in the brackets; a second: with several in flight"
        )


def _in_lines(line: summary.Line) -> Text:
    from rich.text import Text

    return Text("\n".join(map(printable, line.answers)))


def _compare(platform: str, one: tuple[str, Prediction], other: tuple[str, Prediction]) -> None:
    times = [
        speed.all_tiles.latency_us.value
        for _, each in (one, other)
        if (speed := each.answers.get("speed", {}).get(platform)) is not None and speed.all_tiles is not None
    ]
    if len(times) == 2:
        ratio = max(times) / min(times)
        faster, slower = (one[0], other[0]) if times[0] < times[1] else (other[0], one[0])
        text = f"{faster} is {ratio:.1f} times as fast as {slower}" if ratio >= 1.05 else "equally fast"
        print_line(f"  {title(platform)}: {text}")


def as_document(prediction: Prediction) -> dict[str, Any]:
    """Return the same for programs: the answers' fields, by platform unless one answer serves all."""
    return {
        "model": prediction.model,
        "operations": prediction.operations,
        "summary": summary.summarise(prediction),
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

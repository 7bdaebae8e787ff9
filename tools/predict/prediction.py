"""`predict`: every question about a model, answered for each platform."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import openvino as ov

from softnpu.emulator.platforms import PLATFORMS, check_platform
from softnpu.emulator.prediction.bodies import read_bodies
from softnpu.emulator.prediction.reader import read_graph
from softnpu.emulator.prediction.support.findings import Support
from softnpu.tools.failures import ToolError
from softnpu.tools.predict.section import Hint, Section, Subject
from softnpu.tools.predict.speed_section import Speed, SpeedSection
from softnpu.tools.predict.support_section import SupportSection

SECTIONS: Final[tuple[Section, ...]] = (SupportSection(), SpeedSection())
"""The questions, in the order in which they are answered."""


@dataclass(frozen=True)
class Prediction:
    """What the real NPU would do with a model.

    `answers` has, by the key of a section, its answer for each platform; `hints` what to change, best first.
    """

    model: str
    operations: int
    platforms: tuple[str, ...]
    answers: Mapping[str, Mapping[str, Any]]
    hints: tuple[Hint, ...]

    @property
    def support(self) -> Mapping[str, Support]:
        """By platform: whether the compiler takes the model, and why not."""
        return self.answers["support"]

    @property
    def speed(self) -> Mapping[str, Speed]:
        """By platform: how long it takes, if its shapes are known."""
        return self.answers["speed"]


def predict(
    model: ov.Model | str | Path,
    platforms: Iterable[str] = tuple(PLATFORMS),
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    config: Mapping[str, str] | None = None,
) -> Prediction:
    """Predict what the NPUs of `platforms` do with a model, given as a file or as OpenVINO has it.

    `shapes` are static shapes of inputs by name, `config` properties to compile with. A model is not changed.
    Needs no daemon. Raises `ToolError` for a model that cannot be read or reshaped, `Refused` for a platform
    that is unknown.
    """
    names = tuple(dict.fromkeys(platforms))
    for name in names:
        check_platform(name)
    subject = _subject(model, shapes or {}, config or {})
    answers = {
        section.key: {platform: section.answer(subject, platform) for platform in names}
        for section in SECTIONS
    }
    hints = [hint for section in SECTIONS for hint in section.hints(answers[section.key])]
    return Prediction(
        subject.name,
        len(subject.graph),
        names,
        answers,
        tuple(sorted(hints, key=lambda hint: -hint.weight)),
    )


def _subject(
    model: ov.Model | str | Path, shapes: Mapping[str, Sequence[int]], config: Mapping[str, str]
) -> Subject:
    if isinstance(model, ov.Model):
        read, name = model.clone() if shapes else model, model.get_friendly_name()
    else:
        read, name = _read(Path(model)), Path(model).stem
    if shapes:
        _reshape(read, shapes)
    return Subject(name, read, replace(read_graph(read), name=name), read_bodies(read), config)


def _read(path: Path) -> ov.Model:
    with path.open("rb"):  # an unreadable file is told as such
        pass
    try:
        return ov.Core().read_model(str(path))
    except RuntimeError as error:
        raise ToolError(
            f"model {path}", found=_last_line(error), expected="a file that OpenVINO reads: .xml, .onnx, ..."
        ) from error


def _reshape(model: ov.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    known = {name for port in model.inputs for name in (*port.names, port.node.friendly_name)}
    for name in shapes:
        if name not in known:
            raise ToolError(
                f"--shape {name}", found="no such input", expected=f"one of {', '.join(sorted(known))}"
            )
    ports = {
        port: ov.PartialShape(list(shapes[name]))
        for port in model.inputs
        for name in (*port.names, port.node.friendly_name)
        if name in shapes
    }
    try:
        model.reshape(ports)
    except RuntimeError as error:
        inputs = ", ".join(f"{port.get_any_name()} {port.partial_shape}" for port in model.inputs)
        raise ToolError(
            "--shape", found=_last_line(error), expected=f"shapes that the model takes: {inputs}"
        ) from error


def _last_line(error: RuntimeError) -> str:
    """The reason in an exception of OpenVINO, without the places in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("Exception from", "Check "))]
    return (told or lines or ["no reason given"])[-1][:300]

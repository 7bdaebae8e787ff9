"""`predict`: every question about a model, answered for each platform."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import openvino as ov

from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.emulator.platforms import PLATFORMS, check_platform, title
from softnpu.emulator.prediction.bodies import read_bodies
from softnpu.emulator.prediction.reader import read_graph
from softnpu.emulator.prediction.support.findings import Support
from softnpu.emulator.prediction.timing.host import Host, parse_host
from softnpu.tools.predict.right.result import Right
from softnpu.tools.predict.right_section import RightSection
from softnpu.tools.predict.section import Hint, Samples, Section, Subject
from softnpu.tools.predict.speed_section import Speed, SpeedSection
from softnpu.tools.predict.support_section import SupportSection
from softnpu.tools.shared.failures import ToolError, UsageError
from softnpu.tools.shared.inputs import position
from softnpu.tools.shared.model_file import check_model

SECTIONS: Final[tuple[Section, ...]] = (SupportSection(), RightSection(), SpeedSection())
"""The questions, in the order of their answers."""
WORDS: Final = {"compile": "support", "right": "right", "speed": "speed"}
"""A question's name on the command line, and its section's key."""


@dataclass(frozen=True)
class Prediction:
    """The real NPU's predicted behaviour with a model.

    `answers` has each platform's answer by section key; `hints` are proposed changes, best first.
    """

    model: str
    operations: int
    platforms: tuple[str, ...]
    answers: Mapping[str, Mapping[str, Any]]
    hints: tuple[Hint, ...]

    @property
    def support(self) -> Mapping[str, Support]:
        """By platform: whether the compiler takes the model, and why not."""
        return self._answer("support")

    @property
    def right(self) -> Mapping[str, Right]:
        """By platform, the same for all: whether its f16 outputs match f32."""
        return self._answer("right")

    @property
    def speed(self) -> Mapping[str, Speed]:
        """By platform: execution time, if its shapes are known."""
        return self._answer("speed")

    def _answer(self, key: str) -> Mapping[str, Any]:
        if key not in self.answers:
            asked = ", ".join(word for word, section in WORDS.items() if section in self.answers)
            raise ToolError(f"prediction.{key}", found=f"only {asked} was asked for", expected="it asked for")
        return self.answers[key]


def predict(
    model: ov.Model | str | Path,
    platforms: Iterable[str] = tuple(PLATFORMS),
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    config: Mapping[str, str] | None = None,
    samples: Samples | None = None,
    only: Iterable[str] = tuple(WORDS),
    host: str | None = None,
) -> Prediction:
    """Predict the behaviour of the NPUs of `platforms` with a model, given as a file or OpenVINO model.

    `shapes` are static shapes of inputs by name, `config` compilation properties, `samples` the inputs to run
    it with. `only` are questions: compile, right, speed. `host` is the computer, as for --host; one with
    a known platform is predicted for this platform only. The model is not changed. Needs no daemon. Raise
    `ToolError` for a model that cannot be read or reshaped, and for inputs that do not fit, `Refused` for an
    unknown platform.
    """
    asked = _sections(only)
    around = None if host is None else parse_host(host)
    names = _platforms(platforms, around)
    subject = replace(_subject(model, shapes or {}, config or {}, samples or Samples()), host=around)
    answers = {
        section.key: {platform: section.answer(subject, platform) for platform in names} for section in asked
    }
    hints = [hint for section in asked for hint in section.hints(answers[section.key])]
    return Prediction(
        subject.name,
        len(subject.graph),
        names,
        answers,
        tuple(sorted(hints, key=lambda hint: -hint.weight)),
    )


def _platforms(names: Iterable[str], host: Host | None) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(check_platform(name).number for name in names))
    if host is None or host.platform is None:
        return found
    if set(found) not in ({host.platform}, set(PLATFORMS)):
        asked = ", ".join(map(title, found))
        raise UsageError(
            f"--host {host.name}",
            found=f"a computer with platform {title(host.platform)}, asked for {asked}",
            expected="that platform alone, or none",
        )
    return (host.platform,)


def shapes_of_each(
    models: Sequence[Path], shapes: Mapping[str, tuple[int, ...]]
) -> list[Mapping[str, tuple[int, ...]]]:
    """Return each model's part of the shapes by input; a lone model gets all. Refuse what no model has."""
    if len(models) < 2 or not shapes:
        return [shapes] * len(models)
    inputs = [_names_of_inputs(_read(path)) for path in models]
    known = [*dict.fromkeys(names[0] for model in inputs for names in model)]
    every = [names for model in inputs for names in model]
    for name in shapes:
        if not any(name in names for names in every):
            raise UsageError(
                f"--shape {name}",
                found="none of the models has such an input",
                expected=f"one of: {', '.join(known)}",
            )
    return [
        {name: shape for name, shape in shapes.items() if any(name in names for names in model)}
        for model in inputs
    ]


def _names_of_inputs(model: ov.Model) -> list[list[str]]:
    return [[*sorted(port.names), port.node.friendly_name] for port in model.inputs]


def _sections(only: Iterable[str]) -> list[Section]:
    words = list(only)
    for word in words:
        if word not in WORDS:
            raise UsageError("--only", found=repr(word), expected=f"some of {', '.join(WORDS)}")
    keys = {WORDS[word] for word in words}
    return [section for section in SECTIONS if section.key in keys]


def _subject(
    model: ov.Model | str | Path,
    shapes: Mapping[str, Sequence[int]],
    config: Mapping[str, str],
    samples: Samples,
) -> Subject:
    if isinstance(model, ov.Model):
        read, name = model.clone() if shapes else model, model.get_friendly_name()
    else:
        read, name = _read(Path(model)), Path(model).stem
    if shapes:
        _reshape(read, shapes)
    return Subject(name, read, replace(read_graph(read), name=name), read_bodies(read), config, samples)


def _read(path: Path) -> ov.Model:
    check_model(path)
    with path.open("rb"):  # report an unreadable file as such
        pass
    try:
        return ov.Core().read_model(str(path))
    except RuntimeError as error:
        raise ToolError(
            f"model {path}",
            found=openvino_errors.reason(error),
            expected="a file that OpenVINO reads: .xml, .onnx, ...",
        ) from error


def _reshape(model: ov.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    names = _names_of_inputs(model)
    ports = {
        model.inputs[position(f"--shape {name}", name, names)]: ov.PartialShape(list(shape))
        for name, shape in shapes.items()
    }
    try:
        model.reshape(ports)
    except RuntimeError as error:
        inputs = ", ".join(f"{port.get_any_name()} {port.partial_shape}" for port in model.inputs)
        raise UsageError(
            "--shape", found=openvino_errors.reason(error), expected=f"shapes that the model takes: {inputs}"
        ) from error

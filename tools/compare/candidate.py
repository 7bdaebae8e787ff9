"""The candidate of a comparison, on the emulated NPU: a model, or a compiled model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy.typing as npt
import openvino as ov

from softnpu.plugin import CompiledModel
from softnpu.tools.compare import graph
from softnpu.tools.compare.feeds import Feeds, Port
from softnpu.tools.compare.graph import Layer, Part
from softnpu.tools.compare.references import Step, port_names, steps
from softnpu.tools.compare.runners import NpuRunner
from softnpu.tools.shared.failures import ToolError

Array = npt.NDArray[Any]


class Candidate(Protocol):
    """One side of a comparison. `model` has the layers; None if only outputs are known."""

    model: ov.Model | None

    @property
    def name(self) -> str:
        """The display name."""

    @property
    def precision(self) -> str:
        """The type that the NPU computes in."""

    def inputs(self) -> list[Port]:
        """Return the inputs."""

    def outputs(self) -> list[tuple[str, set[str]]]:
        """Return the display name of each output, and all of its names."""

    def run(self, feeds: Feeds, layers: Sequence[Layer]) -> Iterator[Step]:
        """Run all inferences, with the values of these layers."""

    def run_part(self, part: Part) -> list[Array]:
        """Run one inference of a part of the model."""


class _WithParts:
    _runner: NpuRunner

    def run_part(self, part: Part) -> list[Array]:
        """See `Candidate.run_part`."""
        (values,) = self._runner.run(part.model, [list(part.feeds.values())])
        return values


class ModelCandidate(_WithParts):
    """A model, recompiled for each question."""

    def __init__(self, model: ov.Model, runner: NpuRunner) -> None:
        self.model: ov.Model | None = model
        self._model, self._runner = model, runner
        self.name = runner.name

    @property
    def precision(self) -> str:
        """The type that the NPU computes in."""
        return self._runner.precision

    def inputs(self) -> list[Port]:
        """See `Candidate.inputs`."""
        return [model_port(port) for port in self._model.inputs]

    def outputs(self) -> list[tuple[str, set[str]]]:
        """See `Candidate.outputs`."""
        return [(_shown_name(port), port_names(port)) for port in self._model.outputs]

    def run(self, feeds: Feeds, layers: Sequence[Layer]) -> Iterator[Step]:
        """See `Candidate.run`."""
        model = graph.mark(self._model, layers) if layers else self._model
        yield from steps(self._runner, model, feeds.steps, [layer.key for layer in layers])


class BlobCandidate(_WithParts):
    """A compiled model. Its layers are those of its source model, recompiled."""

    def __init__(
        self, compiled: CompiledModel, source: ov.Model | None, runner: NpuRunner, name: str
    ) -> None:
        self._compiled, self._runner = compiled, runner
        self.precision = compiled.meta.precision
        self.name = f"{name} on {runner.device}"
        self.model = source
        self._layers = None if source is None else ModelCandidate(source, runner)

    def inputs(self) -> list[Port]:
        """See `Candidate.inputs`."""
        ports = []
        for port, spec in zip(self._compiled.inputs, self._compiled.signature.inputs, strict=True):
            names = list(dict.fromkeys((spec.name, *sorted(port.names))))
            ports.append(Port(names, port.element_type.to_dtype(), port.partial_shape))
        return ports

    def outputs(self) -> list[tuple[str, set[str]]]:
        """See `Candidate.outputs`."""
        return [(spec.name, {spec.name, *spec.names}) for spec in self._compiled.signature.outputs]

    def run(self, feeds: Feeds, layers: Sequence[Layer]) -> Iterator[Step]:
        """See `Candidate.run`."""
        if layers and self._layers is not None:
            yield from self._layers.run(feeds, layers)
            return
        for values in self._runner.infer(self._compiled, feeds.steps):
            yield Step(values, {})


def source_of(
    candidate: Candidate,
    subject: str,
    found: str = "a compiled model without the model that it was made from",
    expected: str = "it",
) -> ov.Model:
    """Return the model of a candidate. Raise `ToolError` for a compiled model that comes alone."""
    if candidate.model is None:
        raise ToolError(subject, found=found, expected=expected, hint="give it with --source-model FILE")
    return candidate.model


def model_port(port: Any) -> Port:
    """Return an input of a model as feeds see it."""
    names = list(
        dict.fromkeys((_shown_name(port), *sorted(port.get_names()), port.get_node().get_friendly_name()))
    )
    return Port(names, port.get_element_type().to_dtype(), port.get_partial_shape())


def _shown_name(port: Any) -> str:
    names = sorted(port.get_names())
    node = port.get_node()
    behind = node.input(0).get_source_output().get_node() if node.get_type_name() == "Result" else node
    return names[0] if names else str(behind.get_friendly_name())

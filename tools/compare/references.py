"""The references of a model: another execution, another model, ONNX Runtime, or numbers from a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.tools.compare import graph
from softnpu.tools.compare.feeds import Feeds
from softnpu.tools.compare.graph import Layer
from softnpu.tools.compare.runners import OnnxRunner, Runner
from softnpu.tools.shared.failures import ToolError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Step:
    """One inference: the model's outputs in order, and the marked layers by key."""

    outputs: Sequence[Array]
    layers: Mapping[str, Array]


class Reference(Protocol):
    """The other side."""

    @property
    def name(self) -> str:
        """The display name."""

    @property
    def precision(self) -> str:
        """The type that it computes in."""

    def knows(self, layers: Sequence[Layer]) -> list[Layer]:
        """Return the model's layers that have a counterpart here."""

    def run(self, feeds: Feeds, layers: Sequence[Layer]) -> Iterator[Step]:
        """Run all inferences, with the values of these layers under the compared model's keys."""


class SameModel:
    """The model itself, executed by another runner."""

    def __init__(self, model: ov.Model, runner: Runner) -> None:
        self._model, self._runner = model, runner

    @property
    def name(self) -> str:
        """The runner's name."""
        return self._runner.name

    @property
    def precision(self) -> str:
        """The type that the runner computes in."""
        return self._runner.precision

    def knows(self, layers: Sequence[Layer]) -> list[Layer]:
        """Return all layers."""
        return list(layers)

    def run(self, feeds: Feeds, layers: Sequence[Layer]) -> Iterator[Step]:
        """See `Reference.run`."""
        yield from steps(
            self._runner, graph.mark(self._model, layers), feeds.steps, [each.key for each in layers]
        )


class OtherModel:
    """Another form of the model, with other constants and some other layers.

    `inputs` has the place of each input among those of the other form.
    """

    def __init__(self, path: Path, model: ov.Model, ours: ov.Model, runner: Runner) -> None:
        self._file = path.name
        self.precision = runner.precision
        self._runner = runner
        self._model = model
        self._by_key = {layer.key: layer for layer in graph.layers_of(model)}
        self._pairs = graph.pairs(graph.layers_of(ours), list(self._by_key.values()))
        self.inputs = _matched("input", path, _port_names(ours.inputs), _port_names(model.inputs))
        self._outputs = _matched("output", path, _port_names(ours.outputs), _port_names(model.outputs))

    @property
    def name(self) -> str:
        """`model.xml on CPU`."""
        return f"{self._file} on {self._runner.name}"

    def knows(self, layers: Sequence[Layer]) -> list[Layer]:
        """Return layers paired by name."""
        return [layer for layer in layers if layer.key in self._pairs]

    def run(self, feeds: Feeds, layers: Sequence[Layer]) -> Iterator[Step]:
        """See `Reference.run`."""
        theirs = [self._by_key[self._pairs[layer.key]] for layer in layers]
        # inputs in their order
        order = sorted(range(len(self.inputs)), key=self.inputs.__getitem__)
        given = ([feed[at] for at in order] for feed in feeds.steps)
        keys = [layer.key for layer in layers]
        for step in steps(self._runner, graph.mark(self._model, theirs), given, keys):
            yield Step([step.outputs[at] for at in self._outputs], step.layers)


class OnnxFile:
    """A .onnx file on ONNX Runtime."""

    def __init__(self, path: Path, ours: ov.Model) -> None:
        self._runner = OnnxRunner(path)
        self.name, self.precision = self._runner.name, self._runner.precision
        self._inputs = _matched(
            "input", path, _port_names(ours.inputs), [{name} for name in self._runner.inputs]
        )
        self._outputs = _matched(
            "output", path, _port_names(ours.outputs), [{name} for name in self._runner.outputs]
        )

    def knows(self, layers: Sequence[Layer]) -> list[Layer]:
        """Return layers whose tensor has a name from the file."""
        return [layer for layer in layers if layer.names & self._runner.tensors]

    def run(self, feeds: Feeds, layers: Sequence[Layer]) -> Iterator[Step]:
        """See `Reference.run`."""
        names = [min(layer.names & self._runner.tensors) for layer in layers]
        order = sorted(range(len(self._inputs)), key=self._inputs.__getitem__)
        given = ([feed[at] for at in order] for feed in feeds.steps)
        count = len(self._runner.outputs)
        for values in self._runner.run(given, names):
            layered = dict(zip((layer.key for layer in layers), values[count:], strict=True))
            yield Step([values[at] for at in self._outputs], layered)


class NumbersFile:
    """A .npz file with outputs and optional layers by name; with several steps an extra first axis."""

    precision = "f64"

    def __init__(self, path: Path, values: Mapping[str, Array], outputs: Sequence[set[str]]) -> None:
        self.name = path.name
        self._values = values
        self._path = path
        self._outputs = [self._find(names) for names in outputs]

    def _find(self, names: set[str]) -> str:
        known = next((name for name in sorted(names) if name in self._values), None)
        if known is None:
            raise ToolError(
                f"{self._path}",
                found=f"arrays {', '.join(sorted(self._values)) or 'none'}",
                expected=f"the output under a name of its own: {' or '.join(sorted(names))}",
            )
        return known

    def knows(self, layers: Sequence[Layer]) -> list[Layer]:
        """Return layers whose numbers the file has."""
        return [layer for layer in layers if self._name(layer) is not None]

    def _name(self, layer: Layer) -> str | None:
        return next((name for name in (layer.key, *sorted(layer.names)) if name in self._values), None)

    def run(self, feeds: Feeds, layers: Sequence[Layer]) -> Iterator[Step]:
        """See `Reference.run`. The inputs are ignored."""
        count = len(feeds.steps)
        for number in range(count):
            values = {
                name: _at(self._path, name, array, number, count) for name, array in self._values.items()
            }
            computed = {
                layer.key: values[name] for layer in layers if (name := self._name(layer)) is not None
            }
            yield Step([values[name] for name in self._outputs], computed)


def _at(path: Path, name: str, array: Array, number: int, count: int) -> Array:
    if count == 1:
        return array
    if array.ndim == 0 or array.shape[0] != count:
        raise ToolError(
            f"{path}, '{name}'",
            found=f"shape {list(array.shape)}",
            expected=f"an axis of {count} steps in front, as --steps {count} needs it",
        )
    return np.asarray(array[number])


def steps(
    runner: Runner, model: ov.Model, feeds: Iterable[Sequence[Array]], keys: Sequence[str]
) -> Iterator[Step]:
    """Execute a model whose last results are the layers `keys`."""
    for values in runner.run(model, feeds):
        count = len(values) - len(keys)
        yield Step(values[:count], dict(zip(keys, values[count:], strict=True)))


def _port_names(ports: Sequence[Any]) -> list[set[str]]:
    return [port_names(port) for port in ports]


def port_names(port: Any) -> set[str]:
    """Return all names of an input or output: those of its tensor and its operation."""
    node = port.get_node()
    behind = node.input(0).get_source_output().get_node() if node.get_type_name() == "Result" else node
    return {*port.get_names(), node.get_friendly_name(), behind.get_friendly_name()}


def _matched(kind: str, path: Path, ours: Sequence[set[str]], theirs: Sequence[set[str]]) -> list[int]:
    """Return the place of each of our ports among theirs: by name if all have one, else by position."""
    if len(ours) != len(theirs):
        raise ToolError(
            f"{path}", found=f"{len(theirs)} {kind}s", expected=f"{len(ours)}, as the model has them"
        )
    matches = [[at for at, names in enumerate(theirs) if names & mine] for mine in ours]
    places = [at[0] for at in matches if len(at) == 1]
    return places if len(set(places)) == len(ours) else list(range(len(ours)))

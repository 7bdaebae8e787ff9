"""Both models executed by OpenVINO's CPU runtime in this process, as the emulator's engine executes them.

The f16 model is that of `emulator/arithmetic`. Values are read after its roundings, where nothing is fused:
observing changes no bit. The f32 model is read at the same places.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import openvino as ov
import openvino.opset13 as ops

from softnpu.emulator.arithmetic import decompositions, rewriting, rounding
from softnpu.emulator.arithmetic.rewriting import Rounding
from softnpu.emulator.arithmetic.settings import Arithmetic
from softnpu.emulator.openvino.defects import saturated_sums
from softnpu.tools.predict.right.points import Point, Points, points_of, roundings

Array = npt.NDArray[Any]
Feed = Sequence[Array]

_PROPERTIES: Final = {
    "INFERENCE_PRECISION_HINT": "f32",
    "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": "1",
    "KV_CACHE_PRECISION": "f32",
    **saturated_sums.properties(),
}
LARGEST_PORTION: Final = 512 << 20
"""Bytes of values kept at once, per model: more are read in several runs."""
_UNKNOWN: Final = 1 << 20
"""The assumed bytes of a value of open shape."""


@dataclass(frozen=True)
class Inference:
    """One inference of both models: the outputs, and the values of some points by key."""

    sample: int
    outputs: Sequence[tuple[Array, Array]]
    values: Mapping[str, tuple[Array, Array]]


@dataclass(frozen=True)
class F16Model:
    """A model rewritten for f16, with its points, and the roundings of its bodies, which have counters."""

    model: ov.Model
    points: Points
    inner: tuple[Rounding, ...]


class Runs:
    """Executes a model in f32 and f16 with the same consecutive samples: states carry over."""

    def __init__(self, source: ov.Model, samples: Sequence[Feed], arithmetic: Arithmetic) -> None:
        self._source = source
        self.samples = samples
        self._core = ov.Core()
        self._base = source.clone()
        decompositions.decompose(self._base, arithmetic.kept)
        self._reference: list[list[Array]] | None = None
        self.count = 0

    def parts(self, f16: F16Model) -> int:
        """Return the number of parts in which the values of all points are read."""
        return sum(1 for _ in _portions(f16.model, list(f16.points.points.values())))

    @property
    def base(self) -> ov.Model:
        """The model in f32, in the steps that the device executes."""
        return self._base

    def rewrite(self, arithmetic: Arithmetic) -> F16Model:
        """Return the f16 model. Raise `RuntimeError` if it has an unsupported operation."""
        model = self._source.clone()
        try:
            rewritten = rewriting.rewrite(model, arithmetic, counted=_has_bodies(model))
        except (LookupError, TypeError, AttributeError) as error:
            raise RuntimeError(f"it cannot be rewritten for f16: {error!r}") from error
        here = {node.get_attributes()["counter"] for node in roundings(model).values()}
        inner = tuple(each for each in rewritten if each.counter >= 0 and each.counter not in here)
        return F16Model(model, points_of(model), inner)

    def compare_points(self, f16: F16Model) -> Iterator[Inference]:
        """Yield each sample in both models, with the values of all points; large models take several runs."""
        known = {node.friendly_name for node in self._base.get_ordered_ops()}
        points = [point for point in f16.points.points.values() if point.layer in known]
        for portion in _portions(f16.model, points):
            keys = [point.key for point in portion]
            ours = self._infer(_marked_roundings(f16.model, keys))
            theirs = self._infer(_marked(self._base, portion))
            first = len(f16.model.outputs)
            for number, (values, reference) in enumerate(zip(ours, theirs, strict=True)):
                pairs = list(zip(values, reference, strict=True))
                yield Inference(number, pairs[:first], dict(zip(keys, pairs[first:], strict=True)))

    def outputs(self, f16: F16Model) -> Iterator[Inference]:
        """Yield each sample in both models, without their points."""
        if self._reference is None:
            self._reference = [[np.array(each) for each in values] for values in self._infer(self._base)]
        for number, values in enumerate(self._infer(f16.model)):
            yield Inference(number, list(zip(values, self._reference[number], strict=True)), {})

    def compare_alone(self, f16: F16Model, keys: Sequence[str]) -> Iterator[Inference]:
        """Yield each sample, with the values of `keys` computed in f16 from their layers' f32 inputs."""
        points = f16.points.points
        sources = list(dict.fromkeys(read for key in keys for read in points[key].reads))
        wanted = list(dict.fromkeys([*sources, *keys]))
        first = len(self._base.outputs)
        references = self._infer(_marked(self._base, [points[key] for key in wanted]))
        request = self._compiled(_cut(f16.model, keys, sources)).create_infer_request()
        for number, (sample, reference) in enumerate(zip(self.samples, references, strict=True)):
            values = dict(zip(wanted, reference[first:], strict=True))
            request.infer(dict(enumerate([*sample, *(values[key] for key in sources)])))
            own = [request.get_output_tensor(at).data for at in range(len(keys))]
            pairs = {key: (each, values[key]) for key, each in zip(keys, own, strict=True)}
            yield Inference(number, [], pairs)

    def _infer(self, model: ov.Model) -> Iterator[list[Array]]:
        """Yield the outputs of each sample, valid until the next."""
        request = self._compiled(model).create_infer_request()
        for sample in self.samples:
            request.infer(dict(enumerate(sample)))
            yield [request.get_output_tensor(at).data for at in range(len(model.outputs))]

    def _compiled(self, model: ov.Model) -> ov.CompiledModel:
        self.count += 1
        return self._core.compile_model(model, "CPU", _PROPERTIES)


def _has_bodies(model: ov.Model) -> bool:
    return any(node.get_type_name() in {"If", "Loop", "TensorIterator"} for node in model.get_ops())


def _portions(model: ov.Model, points: Sequence[Point]) -> Iterator[list[Point]]:
    """Split the points into portions whose values fit the limit; at least one, which may be empty."""
    nodes = roundings(model)
    portion: list[Point] = []
    held = 0
    for point in points:
        shape = nodes[point.key].output(0).partial_shape
        size = _UNKNOWN if shape.is_dynamic else 4 * math.prod(shape.to_shape())
        if portion and held + size > LARGEST_PORTION:
            yield portion
            portion, held = [], 0
        portion.append(point)
        held += size
    yield portion


def _marked_roundings(model: ov.Model, keys: Sequence[str]) -> ov.Model:
    """Return a copy whose last outputs are the results of these roundings."""
    copy = model.clone()
    nodes = roundings(copy)
    copy.add_results([_result(nodes[key].output(0)) for key in keys])
    return copy


def _marked(base: ov.Model, points: Sequence[Point]) -> ov.Model:
    """Return a copy whose last outputs are the values rounded at these points."""
    copy = base.clone()
    nodes = {node.friendly_name: node for node in copy.get_ordered_ops()}
    copy.add_results([_result(nodes[point.layer].output(point.output)) for point in points])
    return copy


def _cut(model: ov.Model, keys: Sequence[str], sources: Sequence[str]) -> ov.Model:
    """Return a copy that computes only `keys`. Its last inputs are the values of `sources`, to be rounded."""
    copy = model.clone()
    nodes = roundings(copy)
    added = []
    for key in sources:
        node = nodes[key]
        readers = list(node.output(0).get_target_inputs())
        given = ops.parameter(node.output(0).partial_shape, ov.Type.f32, name=f"{key}/given")
        given.output(0).set_names({f"{key}/given"})
        typed = ops.convert(given, node.output(0).get_element_type())
        value = rounding.operation(typed.output(0), bool(node.get_attributes()["saturate"]), f"{key}/f32")
        for reader in readers:
            reader.replace_source_output(value)
        added.append(given)
    for result in copy.get_results():
        copy.remove_result(result)
    copy.add_parameters(added)
    copy.add_results([_result(nodes[key].output(0)) for key in keys])
    return copy


def _result(value: ov.Output) -> ov.Node:
    """Return a result in f32, whatever the model's type."""
    return ops.result(value if value.get_element_type() == ov.Type.f32 else ops.convert(value, "f32"))

"""Models as layers: names and pairs, copies with layers marked as results, isolated parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as ops

from softnpu.tools.compare.dependencies import Dependencies

Array = npt.NDArray[Any]

_NO_LAYERS: Final = frozenset({"Parameter", "Constant", "Result", "Assign"})
_NO_OPERATIONS: Final = frozenset({"Parameter", "Constant", "Result"})
_SHAPES: Final = frozenset({"ShapeOf"})
_STATES: Final = frozenset({"ReadValue"})


@dataclass(frozen=True)
class Layer:
    """One output of one operation. `key` identifies it in its model, `names` are its tensor's."""

    key: str
    kind: str
    operation: str
    output: int
    names: frozenset[str]

    @property
    def is_state(self) -> bool:
        """Whether it reads a state, whose value a previous inference computed."""
        return self.kind in _STATES


def with_unique_names(model: ov.Model) -> ov.Model:
    """Return the model with unique friendly names."""
    taken: set[str] = set()
    for node in model.get_ordered_ops():
        name, number = node.get_friendly_name(), 1
        while name in taken:
            number += 1
            name = f"{node.get_friendly_name()}#{number}"
        taken.add(name)
        node.set_friendly_name(name)
    return model


def layers_of(model: ov.Model) -> list[Layer]:
    """Return everything the model computes from its inputs and states, in execution order.

    Values that depend on shapes alone are constants once the shapes are known, and are left out.
    """
    layers: list[Layer] = []
    depends: set[str] = set()
    for node in model.get_ordered_ops():
        kind, name = node.get_type_name(), node.get_friendly_name()
        read = {port.get_source_output().get_node().get_friendly_name() for port in node.inputs()}
        is_shape = kind in _SHAPES and node.input(0).get_partial_shape().is_static
        if kind == "Parameter" or kind in _STATES or (read & depends and not is_shape):
            depends.add(name)
        if name in depends and kind not in _NO_LAYERS:
            layers.extend(_outputs(node))
    return layers


def names_in(model: ov.Model) -> set[str]:
    """Return every name that may refer to a value computed by the model."""
    names = set()
    for node in model.get_ops():
        for output in node.outputs():
            names |= {key_of(output), node.get_friendly_name(), *output.get_names()}
    return names


def _outputs(node: Any) -> Iterator[Layer]:
    for output in node.outputs():
        element = output.get_element_type()
        if element.is_static() and element != ov.Type.string:
            names = frozenset(output.get_names())
            yield Layer(
                key_of(output), node.get_type_name(), node.get_friendly_name(), output.get_index(), names
            )


def key_of(output: Any) -> str:
    """Return `NAME` of an operation with one output, `NAME.INDEX` with several."""
    node = output.get_node()
    name: str = node.get_friendly_name()
    return name if node.get_output_size() == 1 else f"{name}.{output.get_index()}"


def pairs(ours: Sequence[Layer], theirs: Sequence[Layer]) -> dict[str, str]:
    """Pair the layers of two models: by a tensor's name, else by name and type."""
    by_tensor = {name: layer.key for layer in theirs for name in layer.names}
    by_name = {(layer.key, layer.kind): layer.key for layer in theirs}
    keys = {}
    for layer in ours:
        key = next((by_tensor[name] for name in sorted(layer.names) if name in by_tensor), None)
        key = by_name.get((layer.key, layer.kind)) if key is None else key
        if key is not None:
            keys[layer.key] = key
    return keys


def dependencies(model: ov.Model, keys: Collection[str]) -> Dependencies:
    """Return which of the layers `keys` is computed from which."""
    known: dict[str, frozenset[str]] = {}  # of each tensor: itself if it has a key, else its sources
    parents: dict[str, frozenset[str]] = {}
    order, outputs = [], []
    for node in model.get_ordered_ops():
        sources = [key_of(port.get_source_output()) for port in node.inputs()]
        behind = frozenset[str]().union(*(known[source] for source in sources))
        if node.get_type_name() in _STATES:
            behind = frozenset()  # its initial value matters in the first inference only
        for output in node.outputs():
            key = key_of(output)
            known[key] = frozenset([key]) if key in keys else behind
            if key in keys:
                order.append(key)
                parents[key] = behind
    for result in model.get_results():
        outputs.append(known[key_of(result.input(0).get_source_output())])
    return Dependencies(order, parents, outputs)


# ---------------------------------------------------------------- copies


def mark(model: ov.Model, layers: Sequence[Layer]) -> ov.Model:
    """Return a copy whose last results are these layers, in order."""
    copy = model.clone()
    nodes = {node.get_friendly_name(): node for node in copy.get_ordered_ops()}
    results = [ops.result(_plain(nodes[layer.operation].output(layer.output))) for layer in layers]
    copy.add_results(results)
    return copy


@dataclass(frozen=True)
class Part:
    """A submodel of some layers, with values for its inputs by name. Its results are `keys`."""

    model: ov.Model
    feeds: Mapping[str, Array]
    keys: tuple[str, ...]

    @property
    def operations(self) -> int:
        """The number of operations besides constants."""
        return sum(node.get_type_name() not in _NO_OPERATIONS for node in self.model.get_ops())


def part_of(
    model: ov.Model, wanted: Sequence[Layer], values: Mapping[str, Array], inside: Collection[str]
) -> Part:
    """Return the layers `wanted`, fed with `values` of their inputs, by key.

    Layers of `inside` are computed despite having a value, as is everything without one. Raise `ValueError`
    for a layer that reads a state or an input without a value.
    """
    copy = model.clone()
    nodes = {node.get_friendly_name(): node for node in copy.get_ordered_ops()}
    cut = _Cut(values, frozenset(inside), {layer.key for layer in wanted})
    results = []
    for layer in wanted:
        cut.feed(nodes[layer.operation])
        output = _plain(nodes[layer.operation].output(layer.output))
        if not output.get_names():
            output.set_names({layer.key})
        results.append(ops.result(output))
    part = ov.Model(results, list(cut.parameters.values()), model.get_friendly_name())
    part.validate_nodes_and_infer_types()
    return Part(part, cut.feeds, tuple(layer.key for layer in wanted))


class _Cut:
    """Replaces the inputs of layers by parameters, as far as there are values."""

    def __init__(self, values: Mapping[str, Array], inside: frozenset[str], wanted: set[str]) -> None:
        self._values, self._inside, self._wanted = values, inside, wanted
        self._visited: set[str] = set()
        self.parameters: dict[str, Any] = {}
        self.feeds: dict[str, Array] = {}

    def feed(self, node: Any) -> None:
        if node.get_friendly_name() in self._visited:
            return
        self._visited.add(node.get_friendly_name())
        for port in node.inputs():
            source = port.get_source_output()
            key, kind = key_of(source), source.get_node().get_type_name()
            if key in self._values and key not in self._inside:
                port.replace_source_output(self._parameter(key, source).output(0))
            elif kind == "Parameter" or kind in _STATES:
                raise ValueError(f"{kind} '{key}' has no value in the reference")
            elif kind != "Constant":
                self.feed(source.get_node())

    def _parameter(self, key: str, source: Any) -> Any:
        if key not in self.parameters:
            element = source.get_element_type()
            # names are unique in a model, and the layer may be here as well
            name = f"{key}/given" if key in self._wanted else key
            value = as_type(self._values[key], element)
            parameter = ops.parameter(list(value.shape), element, name=name)
            parameter.output(0).set_names({name})
            self.parameters[key], self.feeds[name] = parameter, value
        return self.parameters[key]


def as_type(value: Array, type: Any) -> Array:
    """Convert numbers to the array type that OpenVINO takes for this element type."""
    if type == ov.Type.bf16:
        single = np.ascontiguousarray(value, np.float32).view(np.uint32)
        return (single >> 16).astype(np.uint16).view(np.float16)
    return value.astype(type.to_dtype(), copy=False)


def _plain(output: Any) -> Any:
    """Return an output with a numpy type: bf16 becomes f32, losslessly."""
    return ops.convert(output, "f32").output(0) if output.get_element_type() == ov.Type.bf16 else output

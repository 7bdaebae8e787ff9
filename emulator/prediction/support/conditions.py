"""What the importer, and the passes before it, ask of an operation besides its type and version.

`importer.toml` lists in its section `checked` what the parsers of the importer check; a rule here, or a
reason in `EXEMPT`, answers each of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from softnpu.emulator.prediction.graph import Graph, Operation


class Obstacle(NamedTuple):
    """A rule that an operation meets, and why."""

    rule: str
    reason: str


_ATTRIBUTE: Final = "operation.attribute"
_CONSTANT: Final = "operation.constant-input"
_PILLOW: Final = ("bilinear_pillow", "bicubic_pillow")
_BEGIN, _END = 1, 2
"""The inputs of a Pad that give the amounts."""
_LEVELS: Final = (2, 4, 15, 16, 255, 256, 65536)
_ACTIVATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "GRUCell": ("sigmoid", "tanh"),
    "GRUSequence": ("sigmoid", "tanh"),
    "LSTMCell": ("sigmoid", "tanh", "tanh"),
    "LSTMSequence": ("sigmoid", "tanh", "tanh"),
}
_CONSTANT_INPUTS: Final[Mapping[str, tuple[int, ...]]] = {
    "Gather": (2,),
    "RandomUniform": (0,),
    "Tile": (1,),
    "VariadicSplit": (1, 2),
}
_ATTRIBUTES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "Bucketize": ("output_type", ("i32",)),
    "FakeConvert": ("destination_type", ("f8e4m3", "f8e5m2")),
    "ScatterNDUpdate": ("reduction", ("none",)),
}
HANDLED: Final = frozenset(
    {*_ACTIVATIONS, *_CONSTANT_INPUTS, *_ATTRIBUTES, "Convolution", "ReorgYolo"}
)  # and each Reduce
"""Types of which everything checked has a rule, but for `EXEMPT`."""
EXEMPT: Final[Mapping[str, str]] = {
    "BatchNormInference": "a pass decomposes it before the import",
    "Gather batch_dims": "OpenVINO counts it from the front",
    "GRUSequence direction": "a pass splits bidirectional ones before the import",
    "Loop": "the port of its condition is in its body, which the graph does not show",
    "Reshape": "its target is constant wherever its result is static: such a computation is folded",
}
"""Checks of parsers that need no rule: the reason, by type, or type and word."""


def obstacle(graph: Graph, operation: Operation) -> Obstacle | None:
    """Return why the compiler refuses, or may refuse, an operation whose version it takes."""
    return next(_obstacles(graph, operation), None)


def _obstacles(graph: Graph, operation: Operation) -> Iterator[Obstacle]:
    kind = operation.type
    if kind in _ATTRIBUTES:
        name, taken = _ATTRIBUTES[kind]
        value = operation.attributes.get(name, taken[0])
        if value not in taken:
            yield Obstacle(_ATTRIBUTE, f"its {name} is {value}, taken is {' or '.join(taken)}")
    constant = (1,) if kind.startswith("Reduce") else _CONSTANT_INPUTS.get(kind, ())
    for position in constant:
        if position < len(operation.inputs) and not _is_constant(graph, operation, (position,)):
            yield Obstacle(_CONSTANT, f"its input {position} is no constant")
    if kind in _ACTIVATIONS:
        yield from _recurrent(graph, operation)
    match kind:
        case "Slice" if not _is_constant(graph, operation, range(1, len(operation.inputs))):
            yield Obstacle("operation.slice", "its bounds are no constants")
        case "Interpolate" if operation.attributes.get("mode") in _PILLOW:
            yield Obstacle("operation.interpolate-pillow", f"its mode is {operation.attributes['mode']}")
        case "Pad" if operation.opset != "opset1":
            yield from _pad(graph, operation)
        case "ReorgYolo" if len(set(operation.integers("strides"))) > 1:
            yield Obstacle(_ATTRIBUTE, f"its strides {operation.integers('strides')} differ")
        case "Convolution" if operation.attributes.get("auto_pad") == "same_upper":
            if set(operation.integers("strides")) - {1}:
                yield Obstacle(
                    "operation.same-upper", f"auto_pad, with strides {operation.integers('strides')}"
                )
        case "FakeQuantize":
            yield from _quantised(graph, operation)


def _recurrent(graph: Graph, operation: Operation) -> Iterator[Obstacle]:
    kind, clip = operation.type, operation.attributes.get("clip", 0.0)
    if clip:
        yield Obstacle(_ATTRIBUTE, f"its clip is {clip}, taken is 0")
    activations = operation.attributes.get("activations", _ACTIVATIONS[kind])
    if activations != _ACTIVATIONS[kind]:
        taken = ", ".join(_ACTIVATIONS[kind])
        yield Obstacle(_ATTRIBUTE, f"its activations are {activations}, taken are {taken}")
    if kind == "LSTMSequence":
        lengths = graph.producer(operation, 3)
        open_shape = not all(tensor.static for tensor in graph.input_tensors(operation))
        if open_shape or lengths is None or lengths.type == "Parameter":
            return
        yield from _lengths(graph, operation, 3)
    if kind == "GRUSequence":
        yield from _lengths(graph, operation, 2)


def _lengths(graph: Graph, operation: Operation, position: int) -> Iterator[Obstacle]:
    """Yield what is wrong with the lengths of sequences."""
    if not _is_constant(graph, operation, (position,)):
        yield Obstacle(_CONSTANT, f"its lengths of sequences, input {position}, are no constant")
    elif len(set(_values(graph, operation, (position,)))) > 1:
        yield Obstacle(_CONSTANT, "its lengths of sequences differ")


def _pad(graph: Graph, operation: Operation) -> Iterator[Obstacle]:
    if not _is_constant(graph, operation, (_BEGIN, _END)):
        yield Obstacle("operation.pad-variable", "its pads are no constants")
    elif any(pad < 0 for pad in _values(graph, operation, (_BEGIN, _END))):
        yield Obstacle("operation.pad-negative", "it has negative pads")


def _quantised(_: Graph, operation: Operation) -> Iterator[Obstacle]:
    """Yield levels without a storage type. Scales below zero are taken: the types carry the sign."""
    levels = operation.attributes.get("levels")
    if levels not in _LEVELS:
        yield Obstacle("operation.quantisation-levels", f"it has {levels} levels")


def _is_constant(graph: Graph, operation: Operation, positions: Iterable[int]) -> bool:
    return all(operation.inputs[position].operation in graph.constant_like for position in positions)


def _values(graph: Graph, operation: Operation, positions: Iterable[int]) -> Iterator[float]:
    for position in positions:
        producer = graph.producer(operation, position)
        if producer is not None and producer.value is not None:
            yield from producer.value

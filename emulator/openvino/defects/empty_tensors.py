"""Define the results of operations on empty inputs, which OpenVINO's CPU runtime (2026.4) leaves unwritten.

It does not run an operation that has an empty input. If the result is not empty (a sum over 0 channels, a
pooling of padding alone, a row of an empty table), it keeps the previous content of its memory. And some
operations with an empty result divide by its size at loading, which ends the process.

An empty sum is 0, an empty maximum is the lowest number, and a sequence of 0 steps ends in its first state.
`replace` handles known shapes, for any operation. `guard` handles dynamic shapes: any operation once an input
of the model is empty, and those of `_REDUCED` where a size within the model may turn out to be 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from softnpu.emulator.common.model_bodies import all_bodies

Empty = frozenset[tuple[int, int]]
"""Zero dimensions of inputs: the position of the input, and the axis."""

_KEPT: Final = frozenset(
    ("Assign", "Constant", "If", "Loop", "Parameter", "ReadValue", "Result", "TensorIterator")
)
_RIGHT: Final = ("Concat", "Pad", "RandomUniform", "Reduce", "Scatter", "ShapeOf", "SliceScatter",
                 "SpaceToBatch", "SparseFillEmptyRows")  # fmt: skip
"""Prefixes of types that OpenVINO computes on empty inputs, or whose first input is a shape."""
_SEQUENCES: Final = ("AUGRUSequence", "GRUSequence", "LSTMSequence", "RNNSequence")
_LARGEST: Final = ("AdaptiveMaxPool", "MaxPool", "SegmentMax")
_SPATIAL: Final = frozenset(
    ("AdaptiveAvgPool", "AdaptiveMaxPool", "AvgPool", "BinaryConvolution", "Convolution",
     "ConvolutionBackpropData", "DeformableConvolution", "GridSample", "GroupConvolution",
     "GroupConvolutionBackpropData", "Interpolate", "MaxPool")
)  # fmt: skip
_BOXES: Final = frozenset(("NMSRotated", "NonMaxSuppression"))
_REDUCED: Final[dict[str, tuple[int, tuple[int, ...] | None]]] = {
    **dict.fromkeys(_SPATIAL, (0, None)),
    **dict.fromkeys(_SEQUENCES, (0, (1,))),
    **dict.fromkeys(_BOXES, (0, (1,))),
    **dict.fromkeys(("DFT", "IDFT", "RDFT", "IRDFT"), (0, None)),
    **dict.fromkeys(("ROIAlign", "ROIAlignRotated", "ROIPooling", "PSROIPooling"), (0, (1, 2, 3))),
    "DeformablePSROIPooling": (0, (1, 2, 3)),
    "Multinomial": (0, (1,)),
    "ScaledDotProductAttention": (1, (-2,)),
    "SearchSorted": (0, (-1,)),
    "MatMul": (0, None),
}
"""Operations with results from empty inputs: the input, and its axes (None: any) absent from the result."""
_CHOSEN: Final = ("CTC", "Embedding", "Gather", "ISTFT", "StridedSlice")
"""Prefixes of types that drop an axis too, for models in which anything may be empty."""
_GUARDED: Final = "softnpu_guarded"
_COUNTED: Final = frozenset(("NonZero", "Unique", *_BOXES, "MatrixNms", "MulticlassNms"))
_VALUES: Final = frozenset(("Parameter", "ReadValue", "If", "Loop", "TensorIterator", *_COUNTED))


def replace(model: ov.Model) -> bool:
    """Replace results known to be empty, or computed from empty inputs, in a newly read model.

    Returns whether there were any. Bodies are skipped.
    """
    found = False
    for node in model.get_ordered_ops():
        if node.get_type_name() not in _KEPT:
            for output in node.outputs():
                found |= _replace(node, output) or _is_product_of_0(node)
    return found


def guard(model: ov.Model, empty: Empty | None = frozenset()) -> bool:
    """Guard operations whose inputs may turn out to be empty, in a model and its bodies.

    `empty` are the zero dimensions of inputs; the others are at least 1. None: any may be 0. Returns whether
    there were any. Operations already guarded are left alone.
    """
    parts = [model, *all_bodies(model)]
    if not empty and empty is not None and not any(_is_open(node) for part in parts for node in _of(part)):
        return False
    found = False
    named = [None] * len(parts) if empty is None else _names(model, empty)
    for part, names in zip(parts, named, strict=True):
        for node in _of(part):
            if _GUARDED in node.get_rt_info():
                continue
            name = node.get_friendly_name()
            if _may_be_empty(node) and (names is None or name in names.reduced):
                _guard(node)
            elif _may_be_unwritten(node) if names is None else name in names.unwritten:
                _choose(node)
            else:
                continue
            node.get_rt_info()[_GUARDED] = True
            found = True
    if found:
        model.validate_nodes_and_infer_types()
    return found


# ---------------------------------------------------------------- known shapes


def _replace(node: Any, output: Any) -> bool:
    shape, kind = output.get_partial_shape(), node.get_type_name()
    if shape.is_dynamic:
        return False
    is_empty = _is_empty(output)
    if not is_empty and (
        kind.startswith(_RIGHT) or not node.get_input_size() or not _is_empty(node.input_value(0))
    ):
        return False
    sizes = list(shape.to_shape())
    readers = list(output.get_target_inputs())
    if output.get_element_type() == ov.Type.string or not readers:
        return False
    if is_empty and kind.endswith("DFT"):
        return False  # a transform of size 0 is refused (`index_guards`)
    if is_empty:
        made = ov.op.Constant(ov.Tensor(output.get_element_type(), ov.Shape(sizes)))
    else:
        first = _first_state(node, output.get_index())
        if first is not None:
            for reader in readers:
                reader.replace_source_output(first)
            return True
        made = ops.broadcast(_nothing(node, output), ops.constant(np.array(sizes, np.int64)))
    made.set_friendly_name(f"{node.get_friendly_name()}/nothing {output.get_index()}")
    for reader in readers:
        reader.replace_source_output(made.output(0))
    return True


def _is_product_of_0(node: Any) -> bool:
    """Pad a product over an inner dimension that is 0 in one input and dynamic in the other."""
    if node.get_type_name() != "MatMul":
        return False
    shapes = [node.get_input_partial_shape(position) for position in (0, 1)]
    if any(shape.rank.is_dynamic for shape in shapes):
        return False
    inner = [(position, axis) for position, axis, _ in _of_product(node)]
    if all(shapes[position][axis] != 0 for position, axis in inner):
        return False
    for position, axis in inner:
        _pad(node, position, axis, 0.0, ops.constant(np.int64(1)))
    return True


def _is_empty(output: Any) -> bool:
    shape = output.get_partial_shape()
    if shape.is_static:  # nearly always; dimensions one by one take 25 times as long
        return bool(output.get_tensor().size == 0)
    return shape.rank.is_static and any(dimension == 0 for dimension in shape)


def _nothing(node: Any, output: Any) -> Any:
    """Return the element of a result from empty inputs."""
    kind, element_type = node.get_type_name(), output.get_element_type()
    is_lowest = kind in _LARGEST and output.get_index() == 0
    if kind == "SegmentMax":
        is_lowest = node.get_attributes()["fill_mode"].upper() == "LOWEST"
    if not is_lowest:
        return ops.constant(0, element_type)
    lowest = np.finfo if element_type.is_real() else np.iinfo
    return ops.constant(lowest(element_type.to_dtype()).min, element_type)


def _first_state(node: Any, index: int) -> Any | None:
    """Return the state that a sequence of 0 steps ends in, if this result is one."""
    return node.input_value(index) if node.get_type_name() in _SEQUENCES and index else None


# ---------------------------------------------------------------- dynamic sizes


def _is_open(node: Any) -> bool:
    """Whether it still needs a guard."""
    return _may_be_empty(node) and _GUARDED not in node.get_rt_info()


def _may_be_empty(node: Any) -> bool:
    """Whether an axis absent from the result may be empty."""
    if node.get_type_name() not in _REDUCED:
        return False
    position, axes = _REDUCED[node.get_type_name()]
    shapes = [node.get_input_partial_shape(at) for at in range(node.get_input_size())]
    shape = shapes[position]
    if any(each.rank.is_dynamic for each in shapes):
        return node.get_type_name() not in _PADDED
    if node.get_type_name() == "MatMul":
        axes = tuple(axis for at, axis, _ in _of_product(node) if at == position)
    sizes = [shape[axis] for axis in (range(len(shape)) if axes is None else axes)]
    return any(size.get_min_length() == 0 for size in sizes) and any(
        output.get_partial_shape().rank.is_dynamic
        or all(size.get_max_length() != 0 for size in output.get_partial_shape())
        for output in node.outputs()
    )


class _Names(NamedTuple):
    """Names of operations: reductions of possibly empty inputs, and those with a result from empty ones."""

    reduced: set[str]
    unwritten: set[str]


def _names(model: ov.Model, empty: Empty) -> Iterator[_Names]:
    """Yield the names of such operations in the model and in each body, for inputs described by `empty`."""
    sized = _sized(model, empty)
    is_outer = True
    for part in [sized, *all_bodies(sized)]:
        # an inner convolution rarely has an empty input, and is fused with its consumer
        cut = _cut(part) if is_outer and not empty and sized is not model else None
        reduced = {
            node.get_friendly_name()
            for node in _of(part)
            if _may_be_empty(node)
            and (cut is None or node.get_type_name() not in _SPATIAL or node.get_name() in cut)
        }
        yield _Names(reduced, {node.get_friendly_name() for node in _of(part) if _is_unwritten(node)})
        is_outer = False


def _of(part: ov.Model) -> list[Any]:
    operations: list[Any] = part.get_ordered_ops()
    return operations


def _is_unwritten(node: Any) -> bool:
    """Whether it computes a result from empty inputs, by known shapes."""
    kind = node.get_type_name()
    if kind in _KEPT or kind.startswith(_RIGHT) or not node.get_input_size():
        return False
    return _is_empty(node.input_value(0)) and any(not _is_empty(output) for output in node.outputs())


def _may_be_unwritten(node: Any) -> bool:
    return bool(node.get_type_name().startswith(_CHOSEN)) and _may_have_none(node.input_value(0))


def _sized(model: ov.Model, empty: Empty) -> ov.Model:
    """Return a copy whose dynamic dimensions are at least 1, or 0; the model itself if copying fails."""
    try:
        copy = model.clone()
        shapes = {
            position: ov.PartialShape(
                [
                    ov.Dimension(0) if (position, axis) in empty else _at_least_1(size)
                    for axis, size in enumerate(port.get_partial_shape())
                ]
            )
            for position, port in enumerate(copy.inputs)
            if port.get_partial_shape().rank.is_static
        }
        copy.reshape(shapes)
    except RuntimeError:  # mismatched shapes, or OpenVINO cannot copy it
        return model
    return copy


def _at_least_1(size: Any) -> Any:
    if size.is_static or size.get_min_length():
        return size
    return ov.Dimension(1, size.get_max_length())


def _cut(model: ov.Model) -> set[str]:
    """Return the names of operations on sliced tensors, or tensors whose size depends on values."""
    valued: set[str] = set()  # depend on the values of inputs
    cut: set[str] = set()
    for node in model.get_ordered_ops():
        kind, name = node.get_type_name(), node.get_name()
        sources = [value.get_node().get_name() for value in node.input_values()]
        if kind in _VALUES or (kind != "ShapeOf" and any(source in valued for source in sources)):
            valued.add(name)
        if kind in _COUNTED or any(source in cut for source in sources):
            cut.add(name)
        elif any(_may_have_none(output) for output in node.outputs()):
            is_sized = any(
                source in valued and not value.get_element_type().is_real()
                for source, value in zip(sources[1:], node.input_values()[1:], strict=True)
            )
            if is_sized or kind in ("Slice", "StridedSlice", "If", "Loop", "TensorIterator", "ReadValue"):
                cut.add(name)
    return cut


def _may_have_none(output: Any) -> bool:
    shape = output.get_partial_shape()
    return shape.rank.is_dynamic or any(size.get_min_length() == 0 for size in shape)


def _guard(node: Any) -> None:
    """Insert a choice after a reducing operation, or pad its input with a neutral element.

    OpenVINO fuses products and attention with their consumers, and would run none of these.
    """
    kind = node.get_type_name()
    if kind in _PADDED:
        for position, axis, value in _PADDED[kind](node):
            _pad(node, position, axis, value)
        return
    _choose(node, _REDUCED[kind][0])


def _choose(node: Any, position: int = 0) -> None:
    """Insert a choice after an operation: its result for an empty input if that input is empty."""
    is_empty = _size_is_0(ops.reduce_min(_shape(node.input_value(position)), _numbers(0), False))
    for output in node.outputs():
        readers = list(output.get_target_inputs())
        nothing = _first_state(node, output.get_index()) or _nothing(node, output)
        made = ops.select(is_empty, nothing, output)
        made.set_friendly_name(f"{node.get_friendly_name()}/nothing {output.get_index()}")
        for reader in readers:
            reader.replace_source_output(made.output(0))


def _of_boxes(_: Any) -> Iterator[tuple[int, int, float]]:
    """A box that is never chosen."""
    yield 0, 1, 0.0
    yield 1, 2, -np.inf


def _of_attention(node: Any) -> Iterator[tuple[int, int, float]]:
    """A key whose value is 0."""
    for position in (1, 2):
        yield position, node.get_input_partial_shape(position).rank.get_length() - 2, 0.0
    if node.get_input_size() > 3 and len(node.get_input_partial_shape(3)):
        yield 3, len(node.get_input_partial_shape(3)) - 1, 0.0


def _of_product(node: Any) -> Iterator[tuple[int, int, float]]:
    """A product of 0 and 0."""
    attributes = node.get_attributes()
    for position, is_last in ((0, not attributes["transpose_a"]), (1, attributes["transpose_b"])):
        rank = len(node.get_input_partial_shape(position))
        yield position, rank - 1 if is_last or rank == 1 else rank - 2, 0.0


def _pad(node: Any, position: int, axis: int, value: float, count: Any | None = None) -> None:
    """Pad an input with `count` elements along an axis; without `count`, with one if it is empty."""
    data = node.input_value(position)
    rank = len(data.get_partial_shape())
    if count is None:
        size = ops.gather(_shape(data), ops.constant(axis), ops.constant(0))
        count = ops.convert(_size_is_0(size), "i64")
    ends = [_numbers(0)] * rank
    ends[axis] = ops.unsqueeze(count, ops.constant(0))
    before = ops.constant(np.zeros(rank, np.int64))
    element = ops.constant(value, data.get_element_type())
    padded = ops.pad(data, before, ops.concat(ends, 0), "constant", element)
    node.input(position).replace_source_output(padded.output(0))


_PADDED: Final = {
    "MatMul": _of_product,
    "NMSRotated": _of_boxes,
    "NonMaxSuppression": _of_boxes,
    "ScaledDotProductAttention": _of_attention,
}


def _shape(output: Any) -> Any:
    return ops.shape_of(output, "i64")


def _size_is_0(size: Any) -> Any:
    return ops.equal(size, ops.constant(np.int64(0)))


def _numbers(value: int) -> Any:
    return ops.constant(np.array([value], np.int64))

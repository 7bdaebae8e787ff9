"""Keep operations inside their tensors, whatever indices and sizes a client gives them.

OpenVINO's CPU runtime (2026.4) checks most of them, but not those of the operations here. With an index that
the model does not allow they read or write memory of the engine, in which other sessions compute. Each of
them gets its indices through operations that leave right ones as they are. A wrong index becomes one that
OpenVINO itself refuses, or, where it refuses none, the nearest right one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.passes import ConstantFolding, Manager

from softnpu.emulator.common.graph_edits import depends_on_inputs, is_fixed
from softnpu.emulator.common.model_bodies import all_bodies
from softnpu.emulator.interface.result import Refused, ZeResult, refuse


def guard(model: ov.Model) -> None:
    """Insert the guards into a model that was just read, and into its bodies."""
    for part in [model, *all_bodies(model)]:
        guarded = [node for node in part.get_ordered_ops() if _guard(node)]
        if guarded:
            part.validate_nodes_and_infer_types()


def _guard(node: Any) -> bool:
    """Guard one operation. Returns whether it needed that."""
    found = False
    for position, guarded in _GUARDS.get(node.get_type_name(), {}).items():
        if node.get_input_size() <= position:
            continue
        source = node.input_value(position)
        output = guarded(node, source)
        if output is not source:
            output.node.set_friendly_name(f"{node.friendly_name}/guarded")
            node.input(position).replace_source_output(output)
            found = True
    return found


# ---------------------------------------------------------------- one operation each


def _gather_nd(node: Any, indices: Any) -> Any:
    """Each number into its dimension: the last one of `indices` says how many of them there are."""
    if indices.partial_shape.rank.is_dynamic:
        raise _refused(node, "indices of any rank", "a known number of dimensions")
    indices, is_signed = _wide(indices), indices.element_type.is_signed()
    batch = int(node.get_attributes().get("batch_dims", 0))
    count = indices.partial_shape[-1]
    stop = batch + count.get_length() if count.is_static else None
    limits = _sizes(node.input_value(0), indices, batch, stop)
    if stop is None:
        last = ops.gather(ops.shape_of(indices), ops.constant([-1]), ops.constant(0))
        limits = ops.slice(limits, ops.constant([0]), last, ops.constant([1])).output(0)
    rank = len(indices.partial_shape)
    if rank > 1:  # OpenVINO takes dimensions of 1 off a minimum of different ranks
        limits = ops.unsqueeze(limits, ops.constant(list(range(rank - 1))))
    last = ops.subtract(limits, _constant(indices, 1))
    first = ops.negative(limits) if is_signed else _constant(indices, 0)
    return ops.maximum(ops.minimum(indices, last), first).output(0)


def _scatter_elements(node: Any, indices: Any) -> Any:
    """OpenVINO checks the upper bound alone, and not that there are no more indices than elements."""
    has_room = _has_room(node)
    data = _before_levels(node.input_value(0))
    if has_room is False:
        shapes = f"indices of shape {indices.partial_shape} for data of shape {data.partial_shape}"
        raise _refused(node, shapes, "no more indices than elements along other axes than its own")
    indices, is_signed = _wide(indices), indices.element_type.is_signed()
    shape = ops.shape_of(data, "i64")
    axis = ops.reshape(ops.convert(node.input_value(3), "i64"), ops.constant([1]), False)
    size = ops.convert(_size_along(shape, axis, node.input_value(3)), _name(indices))
    # the largest numbers without a sign have one for OpenVINO, which computes in i32
    is_wrong = ops.less(indices, ops.negative(size) if is_signed else _constant(indices, 0))
    if has_room is None:
        is_wrong = ops.logical_or(is_wrong, _lacks_room(shape, ops.shape_of(indices, "i64"), axis))
    return ops.select(is_wrong, size, indices).output(0)


def _size_along(shape: Any, axis: Any, given: Any) -> Any:
    """One of the sizes in `shape`; 0 if there is no such axis, which OpenVINO refuses."""
    if given.get_node().get_type_name() == "Constant":
        return ops.gather(shape, axis, ops.constant(0))
    rank, one = ops.shape_of(shape, "i64"), ops.constant([1])
    begin = ops.select(ops.less(axis, ops.constant([0])), ops.add(axis, rank), axis)
    return ops.reduce_sum(ops.slice(shape, begin, ops.add(begin, one), one), ops.constant([0]), True)


def _lacks_room(data: Any, indices: Any, axis: Any) -> Any:
    """Whether there are more indices than elements along any other axis, of these shapes."""
    rank = ops.shape_of(data, "i64")
    numbers = ops.range(ops.constant(0), ops.squeeze(rank, ops.constant(0)), ops.constant(1), "i64")
    is_other = ops.not_equal(ops.mod(ops.add(axis, rank), rank), numbers)
    is_more = ops.logical_and(is_other, ops.greater(indices, data))
    return ops.reduce_logical_or(is_more, ops.constant(0), keep_dims=False)


def _has_room(node: Any) -> bool | None:
    """Whether there are elements for all indices, along other axes than its own; None if shapes decide it."""
    data, indices = node.get_input_partial_shape(0), node.get_input_partial_shape(1)
    axis = node.input_value(3).get_node()
    if data.rank.is_dynamic or indices.rank.is_dynamic or axis.get_type_name() != "Constant":
        return None
    if not len(data):
        raise _refused(node, "data without dimensions", "an axis to scatter along")
    along = int(axis.data.reshape(-1)[0]) % len(data)
    sizes = [pair for at, pair in enumerate(zip(data, indices, strict=True)) if at != along]
    if any(theirs.get_min_length() > ours.get_max_length() >= 0 for ours, theirs in sizes):
        return False
    is_known = all(0 <= theirs.get_max_length() <= ours.get_min_length() for ours, theirs in sizes)
    return True if is_known else None


def _split_lengths(node: Any, data: Any) -> Any:
    """OpenVINO checks the sum of lengths unless one is -1: the others may be longer than the data."""
    lengths, axis = node.input_value(2).get_node(), _folded(node.input_value(1))
    shape = data.partial_shape
    if shape.rank.is_dynamic or axis.get_type_name() != "Constant":
        raise _refused(node, f"data of shape {shape}", "a known number of dimensions, and a constant axis")
    at = int(axis.data.reshape(-1)[0]) % len(shape)
    if lengths.get_type_name() == "Constant":
        given = lengths.data.reshape(-1)
        needed = int(given[given >= 0].sum())
        if (given >= 0).all() or needed <= shape[at].get_min_length():
            return data
        if shape[at].is_static:
            raise _refused(node, f"parts of {given.tolist()} of {shape[at]} elements", "no more than those")
    counts = ops.maximum(ops.convert(lengths, "i64"), ops.constant(np.int64(0)))
    total = ops.reduce_sum(counts, ops.constant(0), keep_dims=True)
    size = ops.slice(ops.shape_of(data, "i64"), ops.constant([at]), ops.constant([at + 1]), ops.constant([1]))
    all_and_none = ops.concat([ops.maximum(size, total), ops.constant(np.array([0]))], 0)
    return ops.variadic_split(data, axis, all_and_none).output(0)


def _folded(source: Any) -> Any:
    """The constant that OpenVINO computes of constants; otherwise the operation itself."""
    if source.get_node().get_type_name() == "Constant" or not is_fixed(source):
        return source.get_node()
    alone = ov.Model([ops.result(source)], [], "axis").clone()
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(alone)
    return alone.get_results()[0].input_value(0).get_node()


def _cut_sizes(node: Any, data: Any) -> Any:
    """OpenVINO does not check that a Pad takes away no more than there is, if it adds something as well."""
    pads = [node.input_value(position) for position in (1, 2)]
    constants = [pad.get_node() for pad in pads if pad.get_node().get_type_name() == "Constant"]
    if len(constants) == 2 and all((constant.data >= 0).all() for constant in constants):
        return data
    shape = data.partial_shape
    if len(constants) == 2 and shape.is_static:
        cut = np.maximum(-constants[0].data, -constants[1].data)
        if (cut > np.array(shape.to_shape())).any():
            raise _refused(node, f"{cut.tolist()} elements less of {shape}", "no more than there are")
        return data
    if shape.rank.is_dynamic:
        raise _refused(node, f"data of shape {shape}", "a known number of dimensions")
    if not len(shape):
        return data
    begin, end = (ops.negative(ops.convert(pad, "i64")) for pad in pads)
    sizes = ops.shape_of(_before_levels(data), "i64")
    is_less = ops.reduce_logical_or(
        ops.greater(ops.maximum(begin, end), sizes), ops.constant(0), keep_dims=True
    )
    return _of_length(data, 0, ops.add(_size(data, 0), ops.convert(is_less, "i64")))


def _signal_sizes(node: Any, data: Any) -> Any:
    """OpenVINO divides by a size of 0, that of a signal or of the result of an inverse real transform."""
    axes, *sizes = (value.get_node() for value in node.input_values()[1:])
    if sizes and sizes[0].get_type_name() == "Constant" and not sizes[0].data.all():
        raise _refused(node, f"signal sizes {sizes[0].data.tolist()}", "none of 0")
    shape = data.partial_shape
    if node.get_type_name() != "IRDFT" or axes.get_type_name() != "Constant" or shape.rank.is_dynamic:
        return data
    if sizes and (sizes[0].get_type_name() != "Constant" or sizes[0].data.reshape(-1)[-1] != -1):
        return data
    at = int(axes.data.reshape(-1)[-1]) % (len(shape) - 1)
    if shape[at].get_min_length() >= _LEAST_OF_INVERSE:
        return data
    if shape[at].is_static:
        raise _refused(node, f"data of shape {shape}", f"at least 2 elements along axis {at}")
    return _of_length(data, at, ops.maximum(_size(data, at), ops.constant([_LEAST_OF_INVERSE])))


def _region_channels(node: Any, data: Any) -> Any:
    """OpenVINO reads and writes the channels that the attributes say, however many there are."""
    attributes = node.get_attributes()
    regions = attributes["num"] if attributes["do_softmax"] else len(attributes["mask"])
    needed = int(regions) * (int(attributes["classes"]) + int(attributes["coords"]) + 1)
    shape = data.partial_shape
    if shape.rank.is_dynamic or len(shape) != 4:
        raise _refused(node, f"data of shape {shape}", "4 dimensions")
    if shape[1].is_dynamic:
        return ops.reshape(data, ops.constant([0, needed, 0, 0]), special_zero=True).output(0)
    if shape[1].get_length() < needed:
        raise _refused(node, f"data of shape {shape}", f"{needed} channels, as its attributes say")
    return data


def _ctc_labels(node: Any, labels: Any) -> Any:
    classes = _sizes(node.input_value(0), labels, 2, 3)
    last = ops.subtract(classes, _constant(labels, 1))
    return ops.maximum(ops.minimum(labels, last), _constant(labels, 0)).output(0)


def _roi_batch(node: Any, rois: Any) -> Any:
    """The first number of each region is its image. NaN and negative ones become two too many.

    One too many OpenVINO takes.
    """
    image, region = (
        ops.slice(rois, ops.constant([begin]), ops.constant([end]), ops.constant([1]), ops.constant([1]))
        for begin, end in ((0, 1), (1, 5))
    )
    images = ops.convert(_sizes(node.input_value(0), None, 0, 1), _name(rois))
    allowed = ops.logical_and(ops.greater_equal(image, _constant(rois, 0)), ops.less(image, images))
    too_many = ops.add(images, _constant(rois, 1))
    return ops.concat([ops.select(allowed, image, too_many), region], 1).output(0)


def _decoder_lengths(node: Any, lengths: Any) -> Any:
    steps = _sizes(node.input_value(0), lengths, 1, 2)
    too_many = ops.add(steps, _constant(lengths, 1))
    return ops.select(ops.less(lengths, _constant(lengths, 0)), too_many, lengths).output(0)


def _tree_lengths(node: Any, lengths: Any) -> Any:
    """OpenVINO writes nothing where a length is below 1: such a sequence has end tokens only."""
    result = node.output(0)
    readers = list(result.get_target_inputs())
    column = ops.unsqueeze(lengths, ops.constant([0, 2]))
    some = ops.greater(column, _constant(lengths, 0))
    written = ops.select(some, result, node.input_value(3)).output(0)
    written.node.set_friendly_name(f"{node.friendly_name}/written")
    for reader in readers:
        reader.replace_source_output(written)
    return ops.maximum(lengths, _constant(lengths, 1)).output(0)


def _repeats(_: Any, repeats: Any) -> Any:
    """Guard those that an input gives; shape inference checks constants, and learns less behind a guard."""
    if not depends_on_inputs(repeats):
        return repeats
    return ops.maximum(repeats, _constant(repeats, 0)).output(0)


def _segments(node: Any, numbers: Any) -> Any:
    """OpenVINO writes where a negative one points, and without a count behind the last one."""
    is_wrong = _any(ops.less(numbers, _constant(numbers, 0)))
    if node.get_input_size() < _SEGMENTS_AND_COUNT:
        last = ops.slice(numbers, ops.constant([-1]), ops.constant([_MOST]), ops.constant([1]))
        is_wrong = ops.logical_or(is_wrong, _any(ops.greater(numbers, last)))
    return _checked(node, numbers, is_wrong)


def _images(node: Any, numbers: Any) -> Any:
    images, wide = _sizes(node.input_value(0), None, 0, 1), ops.convert(numbers, "i64").output(0)
    return _checked(node, numbers, _outside(wide, _constant(wide, 0), images))


def _blank(node: Any, blank: Any) -> Any:
    classes = _sizes(node.input_value(0), blank, 2, 3)
    return _checked(node, blank, _outside(blank, _constant(blank, 0), classes))


def _rolled_axes(node: Any, axes: Any) -> Any:
    rank = _rank(node.input_value(0), axes)
    return _checked(node, axes, _outside(axes, ops.negative(rank), rank))


def _transform_axes(node: Any, axes: Any) -> Any:
    """The axes of a transform; the last one of complex numbers is none."""
    if not depends_on_inputs(axes):
        return axes
    rank = _rank(node.input_value(0), axes)
    if node.get_type_name() != "RDFT":
        rank = ops.subtract(rank, _constant(axes, 1))
    return _checked(node, axes, _outside(axes, ops.negative(rank), rank))


def _transform_sizes(node: Any, sizes: Any) -> Any:
    if not depends_on_inputs(sizes):
        return sizes
    is_wrong = ops.logical_or(ops.equal(sizes, _constant(sizes, 0)), ops.less(sizes, _constant(sizes, -1)))
    return _checked(node, sizes, _any(is_wrong))


def _step(node: Any, step: Any) -> Any:
    """OpenVINO divides by it."""
    if not depends_on_inputs(step):
        return step
    return _checked(node, step, _any(ops.equal(step, _constant(step, 0))))


def _output_shape(node: Any, shape: Any) -> Any:
    """OpenVINO keeps the paddings of the first inference, and then writes behind its memory."""
    if depends_on_inputs(shape):
        raise _refused(
            node, "an output shape that inputs give", "one that is constant, or computed of shapes"
        )
    return shape


def _boxes(node: Any, counts: Any) -> Any:
    """OpenVINO takes as many boxes for each image as are said, whether there are so many or not."""
    there = _sizes(node.input_value(0), None, 1, 2)
    wide = ops.convert(counts, "i64").output(0)
    is_wrong = ops.greater(ops.reduce_sum(wide, ops.constant([0]), True), there)
    return _checked(node, counts, ops.logical_or(_any(is_wrong), _any(ops.less(wide, _constant(wide, 0)))))


def _numbers_alone(node: Any, rois: Any) -> Any:
    return _checked(node, rois, _any(ops.is_nan(rois)))


def _rows(node: Any, indices: Any) -> Any:
    """The first number of each index is its row; the second input has the count of rows."""
    rows = ops.slice(indices, ops.constant([0]), ops.constant([1]), ops.constant([1]), ops.constant([1]))
    count = ops.slice(node.input_value(1), ops.constant([0]), ops.constant([1]), ops.constant([1]))
    return _checked(node, indices, _outside(rows, _constant(indices, 0), ops.convert(count, _name(indices))))


def _blocks(node: Any, data: Any) -> Any:
    """OpenVINO does not compare the blocks that there are with those that sizes, if inputs, ask for."""
    output, kernel = node.input_value(1), node.input_value(2)
    if not (depends_on_inputs(kernel) or depends_on_inputs(output)):
        return data
    attributes = node.get_attributes()
    strides, dilations, begins, ends = (
        ops.constant(np.array(attributes[name] or [none, none], np.int64))
        for name, none in (("strides", 1), ("dilations", 1), ("pads_begin", 0), ("pads_end", 0))
    )
    size, one = ops.convert(kernel, "i64"), ops.constant(np.int64(1))
    reach = ops.add(ops.multiply(dilations, ops.subtract(size, one)), one)
    free = ops.subtract(ops.add(ops.convert(output, "i64"), ops.add(begins, ends)), reach)
    blocks = ops.add(ops.divide(free, strides), one)
    shape = ops.shape_of(data, "i64")
    first, last = (ops.gather(shape, ops.constant(axis), ops.constant(0)) for axis in (-2, -1))
    axis = ops.constant(0)
    is_negative = _any(ops.logical_or(ops.less(size, one), ops.less(free, ops.constant(np.int64(0)))))
    elements = ops.maximum(ops.reduce_prod(size, axis, False), one)  # no division by 0
    is_wrong = ops.logical_or(
        ops.not_equal(ops.reduce_prod(blocks, axis, False), last),
        ops.not_equal(ops.mod(first, elements), ops.constant(np.int64(0))),
    )
    return _checked(node, data, ops.logical_or(is_negative, is_wrong))


_TRANSFORM: dict[int, Callable[[Any, Any], Any]] = {0: _signal_sizes, 1: _transform_axes, 2: _transform_sizes}
_GUARDS: dict[str, dict[int, Callable[[Any, Any], Any]]] = {
    "GatherND": {1: _gather_nd},
    "ScatterElementsUpdate": {1: _scatter_elements},
    "CTCLoss": {2: _ctc_labels, 4: _blank},
    "MulticlassNms": {2: _boxes},
    "PSROIPooling": {1: _roi_batch},
    "DeformablePSROIPooling": {1: _roi_batch},
    "CTCGreedyDecoderSeqLen": {1: _decoder_lengths},
    "GatherTree": {2: _tree_lengths},
    "Tile": {1: _repeats},
    "Pad": {0: _cut_sizes},
    "VariadicSplit": {0: _split_lengths},
    "RegionYolo": {0: _region_channels},
    "DFT": _TRANSFORM,
    "IDFT": _TRANSFORM,
    "RDFT": _TRANSFORM,
    "IRDFT": _TRANSFORM,
    "Col2Im": {0: _blocks},
    "ConvolutionBackpropData": {2: _output_shape},
    "GroupConvolutionBackpropData": {2: _output_shape},
    "Range": {2: _step},
    "ROIAlignRotated": {2: _images},
    "ROIPooling": {1: _numbers_alone},
    "Roll": {2: _rolled_axes},
    "SegmentMax": {1: _segments},
    "SparseFillEmptyRows": {2: _rows},
    "StridedSlice": {3: _step},
}
"""Positions of inputs with indices or sizes, and what makes them safe."""

_LEAST_OF_INVERSE = 2
_SEGMENTS_AND_COUNT = 3
_MOST = np.iinfo(np.int64).max


# ---------------------------------------------------------------- parts


def _sizes(data: Any, like: Any | None, begin: int, end: int | None) -> Any:
    """Dimensions `begin` to `end` of `data`, as numbers of the type of `like` (i64 without)."""
    kind = "i64" if like is None else _name(like)
    shape = ops.shape_of(_before_levels(data), kind)
    stop = np.iinfo(np.int32).max if end is None else end
    return ops.slice(shape, ops.constant([begin]), ops.constant([stop]), ops.constant([1])).output(0)


def _before_levels(data: Any) -> Any:
    """Return what a FakeQuantize quantises, which has the same shape; `data` itself from other operations.

    A shape that is taken behind a FakeQuantize changes where OpenVINO computes in 8 bits, and last digits.
    """
    node = data.get_node()
    if node.get_type_name() != "FakeQuantize":
        return data
    source, *bounds = (node.get_input_partial_shape(position) for position in range(5))
    if any(shape.is_dynamic or set(shape.to_shape()) - {1} for shape in bounds):
        return data  # they may have more elements
    if source.rank.is_dynamic or len(source) < max(len(shape) for shape in bounds):
        return data
    return _before_levels(node.input_value(0))


def _refused(node: Any, found: str, expected: str) -> Refused:
    kind = node.get_type_name()
    return refuse(
        ZeResult.ERROR_MODULE_BUILD_FAILURE,
        f"operation '{node.friendly_name}' ({kind})",
        found=found,
        expected=expected,
    )


def _checked(node: Any, source: Any, is_wrong: Any) -> Any:
    """Numbers that OpenVINO refuses to be fewer than one more if they are wrong."""
    rank = source.partial_shape.rank
    if rank.is_dynamic:
        return source
    more = ops.convert(ops.reshape(is_wrong, ops.constant(np.array([1])), False), "i64")
    if rank.get_length():
        return _of_length(source, 0, ops.add(_size(source, 0), more))
    axis = ops.constant(np.array([0]))
    numbers = ops.unsqueeze(source, axis).output(0)
    one = _of_length(numbers, 0, ops.add(more, ops.constant(np.array([1]))))
    one.node.set_friendly_name(f"{node.friendly_name}/guarded number")
    return ops.squeeze(one, axis).output(0)


def _wide(numbers: Any) -> Any:
    """Numbers of a type that has room for any size, and of which OpenVINO takes the shape."""
    return numbers if _name(numbers) in ("i32", "i64") else ops.convert(numbers, "i64").output(0)


def _any(conditions: Any) -> Any:
    rank = conditions.output(0).partial_shape.rank.get_length()
    return ops.reduce_logical_or(conditions, ops.constant(np.arange(rank)), False)


def _outside(numbers: Any, low: Any, high: Any) -> Any:
    """Whether a number is below `low`, or not below `high`."""
    return _any(ops.logical_or(ops.less(numbers, low), ops.greater_equal(numbers, high)))


def _rank(data: Any, like: Any) -> Any:
    """The number of dimensions of `data`, as [1] of the type of `like`."""
    return ops.convert(ops.shape_of(ops.shape_of(data, "i64"), "i64"), _name(like))


def _of_length(data: Any, axis: int, length: Any) -> Any:
    """Data that OpenVINO refuses to be shorter along an axis: the first of two parts of it. It is copied."""
    all_and_none = ops.concat([length, ops.constant(np.array([0]))], 0)
    return ops.variadic_split(data, ops.constant(axis), all_and_none).output(0)


def _size(data: Any, axis: int) -> Any:
    shape = ops.shape_of(_before_levels(data), "i64")
    return ops.slice(shape, ops.constant([axis]), ops.constant([axis + 1]), ops.constant([1]))


def _constant(like: Any, value: int) -> Any:
    return ops.constant(value, like.element_type)


def _name(output: Any) -> str:
    return str(output.element_type.to_string())

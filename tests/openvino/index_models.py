"""Models with indices and sizes that OpenVINO does not check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset9, opset15, opset16
from openvino import opset13 as ops

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
DATA = np.arange(1, 17, dtype=np.float32).reshape(4, 4)
FAR = (-2_000_000_000, -5_000_000, -5, 4, 5, 7, 5_000_000, 2_000_000_000)


class Case(NamedTuple):
    """A model, its other inputs, valid indices, and results allowed beside an error for invalid ones."""

    make: Callable[[Any, Any], Any]
    data: Array
    right: Array
    allowed: Callable[[Array], bool]
    wrong: Sequence[float] = FAR


def _is_row(result: Array) -> bool:
    return all(any(np.array_equal(row, known) for known in DATA) for row in result)


def _is_finite(result: Array) -> bool:
    return bool(np.isfinite(result).all())


def _never(_result: Array) -> bool:
    return False


def _tree(steps: Any, lengths: Any) -> Any:
    parents = ops.constant(np.zeros((3, 1, 2), np.int32))
    tree = ops.gather_tree(steps, parents, lengths, ops.constant(np.int32(9)))
    return ops.add(tree, ops.constant(np.int32(1)))  # elements it leaves unwritten are then engine memory


def _regions(images: Any, numbers: Any) -> Any:
    column = ops.unsqueeze(ops.convert(numbers, "f32"), ops.constant([1]))
    corners = ops.constant(np.array([[0, 0, 4, 4]] * 2, np.float32))
    rois = ops.concat([column, corners], 1)
    return ops.psroi_pooling(images, rois, 2, 2, 1.0, 2, 2, "average")


def _loss(logits: Any, labels: Any) -> Any:
    counts = ops.constant(np.array([4], np.int32))
    return ops.ctc_loss(
        logits, counts, ops.unsqueeze(labels, ops.constant([0])), ops.constant(np.array([2], np.int32))
    )


def _in_a_body(data: Any, indices: Any) -> Any:
    """GatherND in both branches of an If."""
    total = ops.reduce_sum(data, ops.constant([0, 1]), False)
    choice = ops.if_op(ops.greater(total, ops.constant(np.float32(0))).output(0))
    inner = [
        [ops.parameter(each.partial_shape, each.element_type) for each in (data.output(0), indices.output(0))]
        for _ in range(2)
    ]
    bodies = [
        ov.Model([ops.result(ops.gather_nd(rows, ops.unsqueeze(at, ops.constant([1]))))], [rows, at])
        for rows, at in inner
    ]
    choice.set_then_body(bodies[0])
    choice.set_else_body(bodies[1])
    for outer, first, second in zip((data, indices), *inner, strict=True):
        choice.set_input(outer.output(0), first, second)
    return choice.set_output(bodies[0].results[0], bodies[1].results[0])


SEVEN = np.array(7, np.float32)
RIGHT = np.array([3, 0], np.int32)
LOGITS = np.linspace(0, 1, 12, dtype=np.float32).reshape(1, 4, 3)
CASES = {
    "GatherND": Case(
        lambda data, at: ops.gather_nd(data, ops.unsqueeze(at, ops.constant([1]))), DATA, RIGHT, _is_row
    ),
    "GatherND in a body": Case(_in_a_body, DATA, RIGHT, _is_row),
    "ScatterElementsUpdate": Case(
        lambda data, at: ops.scatter_elements_update(
            data,
            ops.broadcast(ops.unsqueeze(at, ops.constant([1])), ops.constant([2, 4])),
            ops.constant(np.full((2, 4), 50, np.float32)),
            ops.constant(0),
        ),
        DATA,
        np.array([-4, 3], np.int32),
        _never,
    ),
    "ScatterUpdate": Case(
        lambda data, at: ops.scatter_update(data, at, ops.constant(np.array([50, 60])), ops.constant(0)),
        np.arange(4),
        RIGHT,
        _never,
    ),
    "CTCLoss": Case(_loss, LOGITS, np.array([0, 1, 0, 1], np.int32), _is_finite),
    "PSROIPooling": Case(
        _regions,
        np.linspace(0, 1, 2 * 8 * 64, dtype=np.float32).reshape(2, 8, 8, 8),
        np.array([1, 0], np.int32),
        _never,
    ),
    "GatherTree": Case(
        _tree,
        np.arange(6, dtype=np.int32).reshape(3, 1, 2),
        np.array([3], np.int32),
        lambda steps: set(steps.reshape(-1)) <= {*range(1, 7), 10},
    ),
}  # fmt: skip


def _scattered(data: Any) -> Any:
    ones = ops.constant(np.ones((5, 1), np.float32))
    return ops.scatter_elements_update(data, ops.constant(np.zeros((5, 1), np.int32)), ones, ops.constant(-1))


def _last_part(data: Any) -> Any:
    return ops.variadic_split(data, ops.constant(0), ops.constant([-1, 3, 2])).output(2)


def _yolo(softmax: bool) -> Callable[[Any], Any]:
    return lambda data: ops.region_yolo(data, 4, 3, 2, softmax, [0, 1], 1, 3, [1.0, 2.0, 3.0, 4.0])


SIZES: dict[str, tuple[Callable[[Any], Any], Shape, Shape, Shape]] = {
    "ScatterElementsUpdate": (_scattered, (-1, 4), (5, 4), (2, 4)),
    "VariadicSplit": (_last_part, (-1, 3), (7, 3), (4, 3)),
    "Pad": (
        lambda data: ops.pad(data, ops.constant([-3, 0]), ops.constant([4, 0]), "edge"),
        (-1, 3),
        (4, 3),
        (2, 3),
    ),
    "Pad of a value": (
        lambda data: ops.pad(
            data, ops.constant([0, 4]), ops.constant([0, -3]), "constant", ops.constant(SEVEN)
        ),
        (2, -1),
        (2, 4),
        (2, 2),
    ),
    "RegionYolo": (_yolo(False), (1, -1, 2, 3), (1, 16, 2, 3), (1, 2, 2, 3)),
    "RegionYolo with softmax": (_yolo(True), (1, -1, 2, 3), (1, 16, 2, 3), (1, 2, 2, 3)),
}
"""A builder, its data shape with an open dimension, a valid size, and one that is too small."""


def _scalar(numbers: Any) -> Any:
    return ops.squeeze(numbers, ops.constant([0]))


def _labels(data: Any, blank: Any) -> Any:
    counts = ops.constant(np.array([4], np.int32))
    labels = ops.constant(np.array([[0, 1, 0, 1]], np.int32))
    return ops.ctc_loss(data, counts, labels, ops.constant(np.array([2], np.int32)), _scalar(blank))


def _rotated(data: Any, images: Any) -> Any:
    rois = ops.constant(np.array([[2, 2, 2, 2, 0.3]] * 2, np.float32))
    return opset15.roi_align_rotated(data, rois, images, 2, 2, 2, 1.0, True)


def _filled(data: Any, rows: Any) -> Any:
    columns = ops.constant(np.zeros((2, 1), np.int32))
    indices = ops.concat([ops.unsqueeze(rows, ops.constant([1])), columns], 1)
    shape = ops.constant(np.array([3, 1], np.int32))
    return opset16.sparse_fill_empty_rows(data, shape, indices, ops.constant(np.float32(9))).output(1)


def _blocks(data: Any, sizes: Any) -> Any:
    output, kernel = ops.split(sizes, ops.constant(0), 2).outputs()
    return opset15.col2im(data, output, kernel)


def _scattered_along(data: Any, axis: Any) -> Any:
    sevens = ops.constant(np.full((1, 1), 7, np.float32))
    return ops.scatter_elements_update(data, ops.constant([[0]]), sevens, _scalar(axis))


def _chosen(scores: Any, counts: Any) -> Any:
    boxes = ops.constant(np.array([[[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]]] * 2, np.float32))
    return opset9.multiclass_nms(boxes, scores, counts, iou_threshold=0.5, nms_top_k=5).output(2)


NUMBERS = np.linspace(-1, 1, 24, dtype=np.float32)
COMPLEX = NUMBERS.reshape(3, 4, 2)
VALUES: dict[str, tuple[Callable[..., Any], Array, Sequence[Any], Sequence[Sequence[Any]]]] = {
    "SegmentMax": (
        lambda data, ids: opset16.segment_max(data, ids, fill_mode="ZERO"),
        DATA, [0, 0, 1, 3], ([-1, 0, 1, 2], [-2_000_000_000, 0, 1, 1], [0, 7, 1, 1]),
    ),
    "SegmentMax with a count": (
        lambda data, ids: opset16.segment_max(data, ids, ops.constant(3), "ZERO"),
        DATA, [0, 0, 1, 7], ([-1, 0, 1, 2], [-5_000_000, 0, 1, 1]),
    ),
    "ROIAlignRotated": (
        _rotated, np.tile(NUMBERS[:16], 2).reshape(2, 1, 4, 4), [1, 0], ([2, 0], [-1, 0], [5_000_000, 0]),
    ),
    "CTCLoss": (_labels, LOGITS, [2], ([-2_000_000_000], [-1], [3], [100_000])),
    "Roll": (
        lambda data, axes: ops.roll(data, ops.constant([1]), axes), DATA, [-1], ([2], [-3], [5_000_000], [8]),
    ),
    "ScatterElementsUpdate": (_scattered_along, DATA, [-1], ([2], [-3], [1_000_000], [-5_000_000])),
    "MulticlassNms": (
        _chosen, np.linspace(0.1, 1, 6, dtype=np.float32).reshape(2, 3), [2, 1],
        ([2, 2], [-1, 3], [1_000_000, 0]),
    ),
    "DFT, axes": (ops.dft, COMPLEX, [1], ([2], [-3], [9], [1_000_000])),
    "IDFT, axes": (ops.idft, COMPLEX, [-1], ([3], [-9], [100])),
    "SparseFillEmptyRows": (_filled, NUMBERS[:2], [0, 2], ([0, 3], [-5, 1], [0, 2_000_000_000])),
    "Col2Im": (
        _blocks, np.linspace(0, 1, 36, dtype=np.float32).reshape(1, 4, 9), [4, 4, 2, 2],
        ([4, 4, 0, 2], [4, 4, -2, 2], [4000, 4, 2, 2], [4, 4, 3, 2], [-4, 4, 2, 2], [0, 0, 2, 2]),
    ),
}  # fmt: skip
"""A builder taking data and numbers from inputs, its data, valid numbers, and invalid ones."""

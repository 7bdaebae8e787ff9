"""Out-of-range indices: an error or one of the model's own values, never engine memory."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from openvino import opset9, opset15, opset16
from openvino import opset13 as ops

from softnpu.plugin import Core
from tests.support.daemon import Daemon

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
F32 = {"INFERENCE_PRECISION_HINT": "f32"}
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
    "Tile": Case(
        ops.tile,
        DATA,
        np.array([1, 2], np.int32),
        lambda tiled: tiled.size == 0,
        (-2_000_000_000, -5),
    ),
}  # fmt: skip


def model(case: Case, *, dynamic: bool) -> ov.Model:
    """The model of a case; with dynamic dimensions, its guards compute the limits in each inference."""
    data = ops.parameter([-1] * case.data.ndim if dynamic else case.data.shape, case.data.dtype)
    indices = ops.parameter(case.right.shape, case.right.dtype)
    return ov.Model([case.make(data, indices)], [data, indices], "indices")


@pytest.mark.parametrize("name", CASES)
def test_no_index_reaches_memory_of_the_engine(shared_core: Core, reference: ov.Core, name: str) -> None:
    case = CASES[name]
    for dynamic in (False, True):
        if dynamic and name in ("GatherND in a body", "PSROIPooling"):
            continue  # OpenVINO requires static dimensions there
        graph = model(case, dynamic=dynamic)
        request = shared_core.compile_model(graph, "NPU").create_infer_request()
        expected = reference.compile_model(graph, "CPU", F32)([case.data, case.right])[0]
        assert np.array_equal(request.infer([case.data, case.right])[0], expected), dynamic
        for index in case.wrong:
            if -4 <= index < 4 and name == "ScatterElementsUpdate":
                continue
            with contextlib.suppress(RuntimeError):
                result = np.array(request.infer([case.data, np.full_like(case.right, index)])[0])
                assert case.allowed(result), (index, result)
        assert np.array_equal(request.infer([case.data, case.right])[0], expected), dynamic


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
    "IRDFT": (lambda data: ops.irdft(data, ops.constant([1, 0])), (-1, 3, 2), (3, 3, 2), (1, 3, 2)),
    "RegionYolo": (_yolo(False), (1, -1, 2, 3), (1, 16, 2, 3), (1, 2, 2, 3)),
    "RegionYolo with softmax": (_yolo(True), (1, -1, 2, 3), (1, 16, 2, 3), (1, 2, 2, 3)),
}
"""A builder, its data shape with an open dimension, a valid size, and one that is too small."""


@pytest.mark.parametrize("name", SIZES)
def test_no_size_reaches_memory_of_the_engine(shared_core: Core, reference: ov.Core, name: str) -> None:
    make, open_shape, right, small = SIZES[name]

    def compiled(shape: Shape) -> ov.Model:
        data = ops.parameter(list(shape), np.float32)
        return ov.Model([make(data)], [data], "sizes")

    numbers = np.linspace(-1, 1, int(np.prod(right)), dtype=np.float32).reshape(right)
    expected = reference.compile_model(compiled(right), "CPU", F32)([numbers])[0]
    request = shared_core.compile_model(compiled(open_shape), "NPU").create_infer_request()
    assert np.array_equal(request.infer([numbers])[0], expected)
    with pytest.raises(RuntimeError, match=r"ScatterElements|VariadicSplit|Pad|IRDFT|RegionYolo"):
        request.infer([np.zeros(small, np.float32)])
    assert np.array_equal(request.infer([numbers])[0], expected)
    with pytest.raises(
        RuntimeError, match=r"\((ScatterElementsUpdate|VariadicSplit|Pad|IRDFT|RegionYolo)\): .*expected"
    ):
        shared_core.compile_model(compiled(small), "NPU").create_infer_request()


def _resized(name: str) -> Callable[..., Any]:
    return lambda data, sizes: getattr(ops, name)(data, ops.constant([1]), sizes)


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


def _ranged(data: Any, step: Any) -> Any:
    begin = ops.convert(ops.reduce_min(data, ops.constant([0]), False), "i32")
    return ops.range(begin, ops.constant(np.int32(5)), _scalar(step), "i32")


def _strided(data: Any, step: Any) -> Any:
    steps = ops.concat([ops.constant([1], ov.Type.i32), step], 0)
    return ops.strided_slice(data, ops.constant([0, 0]), ops.constant([4, 4]), steps, [0, 0], [0, 0])


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
    "StridedSlice": (_strided, DATA, [2], ([0],)),
    "ScatterElementsUpdate": (_scattered_along, DATA, [-1], ([2], [-3], [1_000_000], [-5_000_000])),
    "MulticlassNms": (
        _chosen, np.linspace(0.1, 1, 6, dtype=np.float32).reshape(2, 3), [2, 1],
        ([2, 2], [-1, 3], [1_000_000, 0]),
    ),
    "DFT, axes": (ops.dft, COMPLEX, [1], ([2], [-3], [9], [1_000_000])),
    "IDFT, axes": (ops.idft, COMPLEX, [-1], ([3], [-9], [100])),
    "RDFT, axes": (ops.rdft, DATA, [1], ([2], [-3], [1_000_000])),
    "IRDFT, axes": (ops.irdft, COMPLEX, [0], ([2], [-3], [1_000_000])),
    "DFT, sizes": (_resized("dft"), COMPLEX, [3], ([0], [-2])),
    "IDFT, sizes": (_resized("idft"), COMPLEX, [-1], ([0], [-2_000_000_000])),
    "Range": (_ranged, np.zeros(2, np.float32), [2], ([0],)),
    "SparseFillEmptyRows": (_filled, NUMBERS[:2], [0, 2], ([0, 3], [-5, 1], [0, 2_000_000_000])),
    "Col2Im": (
        _blocks, np.linspace(0, 1, 36, dtype=np.float32).reshape(1, 4, 9), [4, 4, 2, 2],
        ([4, 4, 0, 2], [4, 4, -2, 2], [4000, 4, 2, 2], [4, 4, 3, 2], [-4, 4, 2, 2], [0, 0, 2, 2]),
    ),
}  # fmt: skip
"""A builder taking data and numbers from inputs, its data, valid numbers, and invalid ones."""


@pytest.mark.parametrize(
    ("name", "dynamic"),
    [
        (name, dynamic)
        for name in VALUES
        for dynamic in (False, True)
        # with such axes OpenVINO takes no static data
        if dynamic or name not in ("RDFT, axes", "IRDFT, axes")
    ],
)
def test_numbers_that_would_crash_the_engine_are_refused(
    shared_core: Core, shared_daemon: Daemon, reference: ov.Core, name: str, dynamic: bool
) -> None:
    make, data, right, wrong = VALUES[name]
    restarts = shared_daemon.engine().restarts
    shape = [-1] * data.ndim if dynamic else data.shape
    kind = np.int64 if "Col2Im" in name or "SegmentMax" in name else np.int32
    inputs = [ops.parameter(shape, data.dtype), ops.parameter(np.shape(right), kind)]
    result = make(*inputs)
    graph = ov.Model([result if isinstance(result, ov.Output) else result.output(0)], inputs, "numbers")
    expected = reference.compile_model(graph, "CPU", F32)([data, np.array(right, kind)])[0]
    request = shared_core.compile_model(graph, "NPU", {"NPU_BATCH_MODE": "COMPILER"}).create_infer_request()
    for numbers in wrong:
        np.testing.assert_array_equal(request.infer([data, np.array(right, kind)])[0], expected)
        with pytest.raises(RuntimeError, match=re.split(r"\W", name, maxsplit=1)[0]):
            request.infer([data, np.array(numbers, kind)])
    np.testing.assert_array_equal(request.infer([data, np.array(right, kind)])[0], expected)
    assert shared_daemon.engine().restarts == restarts


TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
NARROW = ("GatherElements", "ScatterNDUpdate")
"""Operations whose indices are i32 or i64."""
ROWS = np.arange(1, 301, dtype=np.float32)
WRITTEN = np.array([1001, 1002], np.float32)


def _taken(rows: Array, indices: Array) -> Array:
    return rows[indices]


def _written(rows: Array, indices: Array) -> Array:
    result = rows.copy()
    result[indices] = WRITTEN
    return result


def _column(indices: Any) -> Any:
    return ops.unsqueeze(indices, ops.constant([1]))


INDEXED: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Array, Array], Array], bool]] = {
    "Gather": (lambda rows, at: ops.gather(rows, at, ops.constant(0)), _taken, True),
    "GatherElements": (lambda rows, at: ops.gather_elements(rows, at, 0), _taken, True),
    "GatherND": (lambda rows, at: ops.gather_nd(rows, _column(at)), _taken, True),
    "ScatterElementsUpdate": (
        lambda rows, at: ops.scatter_elements_update(rows, at, ops.constant(WRITTEN), ops.constant(0)),
        _written,
        True,
    ),
    "ScatterNDUpdate": (
        lambda rows, at: opset15.scatter_nd_update(rows, _column(at), ops.constant(WRITTEN), "none"),
        _written,
        True,
    ),
    "ScatterUpdate": (
        lambda rows, at: ops.scatter_update(rows, at, ops.constant(WRITTEN), ops.constant(0)),
        _written,
        False,
    ),
}
"""What is made of 300 rows and two indices, what numpy makes of them, whether indices may be negative."""


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in INDEXED for kind in TYPES if name not in NARROW or kind in ("int32", "int64")],
)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_indices_of_every_type_are_those_of_numpy(
    shared_core: Core, name: str, kind: str, dynamic: bool
) -> None:
    """Of more rows than i8 counts, in the way that is compared with and written by the guard."""
    make, expected, may_be_negative = INDEXED[name]
    rows = ops.parameter([-1] if dynamic else [300], np.float32)
    at = ops.parameter([2], np.dtype(kind))
    model = ov.Model([ops.result(make(rows, at))], [rows, at], "rows")
    request = shared_core.compile_model(model, "NPU", {"NPU_BATCH_MODE": "COMPILER"}).create_infer_request()
    bounds = np.iinfo(kind)
    right = [(5, 100), (127, 44), (255, 0), (299, 256)]
    right += [(-1, -5), (-100, -128), (-300, 299)] if may_be_negative else []
    for numbers in right:
        if min(numbers) >= bounds.min and max(numbers) <= bounds.max:
            indices = np.array(numbers, kind)
            np.testing.assert_array_equal(request.infer([ROWS, indices])[0], expected(ROWS, indices))
    for number in (300, -301, -32768, 65535, 2**31 - 1, -(2**31), 2**32 - 1):
        if name == "Gather" or not bounds.min <= number <= bounds.max:
            continue
        if kind in ("int64", "uint64") and number == 2**32 - 1:
            continue  # OpenVINO computes in 32 bits
        indices = np.array([2, number], kind)
        if name == "GatherND":
            assert set(request.infer([ROWS, indices])[0]) <= set(ROWS[[0, 2, 299]])
        else:
            with pytest.raises(RuntimeError):
                request.infer([ROWS, indices])


def test_a_split_along_an_axis_that_is_computed_of_constants(shared_core: Core) -> None:
    data = ops.parameter([-1, 4], np.float32)
    axis = ops.subtract(ops.constant(2), ops.convert(ops.constant(np.int32(1)), "i64"))
    parts = ops.variadic_split(data, axis, ops.constant([1, -1])).outputs()
    model = ov.Model([ops.result(each) for each in parts], [data], "m")
    results = shared_core.compile_model(model, "NPU").create_infer_request().infer([DATA])
    np.testing.assert_array_equal(results[0], DATA[:, :1])
    np.testing.assert_array_equal(results[1], DATA[:, 1:])


def test_a_region_that_is_no_number_is_refused(shared_core: Core, shared_daemon: Daemon) -> None:
    restarts = shared_daemon.engine().restarts
    image, region = ops.parameter([1, 1, 4, 4], np.float32), ops.parameter([1, 5], np.float32)
    pooled = ops.roi_pooling(image, region, [2, 2], 1.0, "bilinear")
    request = shared_core.compile_model(
        ov.Model([pooled], [image, region], "m"), "NPU"
    ).create_infer_request()
    right = np.array([[0, 0, 0, 2, 2]], np.float32)
    expected = np.array(request.infer([DATA.reshape(1, 1, 4, 4), right])[0])
    for position in range(5):
        wrong = right.copy()
        wrong[0, position] = np.nan
        with pytest.raises(RuntimeError, match="ROIPooling"):
            request.infer([DATA.reshape(1, 1, 4, 4), wrong])
    np.testing.assert_array_equal(request.infer([DATA.reshape(1, 1, 4, 4), right])[0], expected)
    assert shared_daemon.engine().restarts == restarts


def test_a_scatter_on_a_scalar_is_refused(shared_core: Core) -> None:
    """Inside a body, OpenVINO's own check does not see it."""
    outer = [ops.parameter([], kind) for kind in (np.bool_, np.float32, np.int32, np.float32)]
    bodies = []
    for scatters in (True, False):
        inner = [ops.parameter([], kind) for kind in (np.float32, np.int32, np.float32)]
        made = (
            ops.scatter_elements_update(*inner, ops.constant(0)) if scatters else ops.add(inner[0], inner[2])
        )
        bodies.append(ov.Model([ops.result(made)], inner))
    choice = ops.if_op(outer[0].output(0))
    choice.set_then_body(bodies[0])
    choice.set_else_body(bodies[1])
    for at, source in enumerate(outer[1:]):
        choice.set_input(source.output(0), *(body.get_parameters()[at] for body in bodies))
    model = ov.Model([choice.set_output(*(body.results[0] for body in bodies))], outer, "scalar")
    with pytest.raises(RuntimeError, match=r"\(ScatterElementsUpdate\): data without dimensions"):
        shared_core.compile_model(model, "NPU").create_infer_request()

"""Operations on empty tensors give their defined result, never stale memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from openvino import opset5, opset9, opset15, opset16
from openvino import opset13 as ops

from softnpu.emulator.openvino.defects import empty_tensors
from softnpu.plugin import Core

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]
F32 = {"INFERENCE_PRECISION_HINT": "f32"}
LOWEST = np.finfo(np.float32).min
_LEFT = 777


class Case(NamedTuple):
    """An operation on f32 inputs, empty shapes, others with elements, and the result for the former.

    `axes`: the dynamic dimensions of each input; none: there is no dynamic form.
    """

    make: Callable[..., Any]
    empty: Shapes
    full: Shapes
    expected: Array
    axes: Shapes | None = ()


def _numbers(*values: int) -> Any:
    return ops.constant(np.array(values, np.int64))


def _weights(*shape: int, value: float = 0.1) -> Any:
    return ops.constant(np.full(shape, value, np.float32))


def _zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


def _ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def _lstm(position: int) -> Callable[..., Any]:
    weights = _weights(1, 8, 3), _weights(1, 8, 2), _weights(1, 8)
    return lambda data, state, cell: opset5.lstm_sequence(
        data, state, cell, _numbers(3), *weights, 2, "forward"
    ).output(position)


def _gru(data: Any, state: Any) -> Any:
    weights = _weights(1, 6, 3), _weights(1, 6, 2), _weights(1, 6)
    return opset5.gru_sequence(data, state, _numbers(3), *weights, 2, "forward").output(1)


def _rnn(data: Any, state: Any) -> Any:
    weights = _weights(1, 2, 3), _weights(1, 2, 2), _weights(1, 2)
    return opset5.rnn_sequence(data, state, _numbers(3), *weights, 2, "forward").output(1)


def _attention_in_parts(queries: Any, keys: Any, values: Any) -> Any:
    return ops.matmul(ops.softmax(ops.matmul(queries, keys, False, True), -1), values, False, False)


def _boxes(position: int) -> Callable[..., Any]:
    limits = _numbers(5), ops.constant(np.float32(0.5)), ops.constant(np.float32(0))
    return lambda boxes, scores: opset9.non_max_suppression(boxes, scores, *limits).output(position)


def _convolution(pads: tuple[int, int]) -> Callable[..., Any]:
    return lambda data: ops.add(
        ops.convolution(data, _weights(4, 2, 3, 3), [1, 1], [*pads], [*pads], [1, 1]),
        _weights(1, 4, 1, 1, value=5),
    )


def _channels(data: Any) -> Any:
    weights = ops.constant(np.zeros((4, 0, 1, 1), np.float32))
    convolved = ops.convolution(data, weights, [1, 1], [0, 0], [0, 0], [1, 1])
    return ops.add(convolved, _weights(1, 4, 1, 1, value=5))


def _resized(mode: str) -> Callable[..., Any]:
    return lambda data: ops.interpolate(data, _numbers(4, 4), mode, "sizes", axes=_numbers(2, 3))


def _padded_transform(name: str) -> Callable[..., Any]:
    return lambda data: getattr(ops, name)(data, _numbers(1), _numbers(4))


def _pooled(kind: str) -> Callable[..., Any]:
    if kind == "max":
        return lambda data: ops.max_pool(data, [1, 1], [1, 1], [1, 1], [1, 1], [2, 2]).output(0)
    return lambda data: ops.avg_pool(data, [1, 1], [1, 1], [1, 1], [2, 2], False)


SEQUENCE: tuple[Shapes, Shapes] = ((1, 0, 3), (1, 1, 2), (1, 1, 2)), ((1, 3, 3), (1, 1, 2), (1, 1, 2))
IMAGE, FULL_IMAGE = ((1, 1, 0, 3),), ((1, 1, 2, 3),)
ATTENTION: tuple[Shapes, Shapes] = (
    ((1, 2, 4), (1, 0, 4), (1, 0, 4)),
    ((1, 2, 4), (1, 3, 4), (1, 3, 4)),
)
BOXES: tuple[Shapes, Shapes] = ((1, 0, 4), (1, 1, 0)), ((1, 3, 4), (1, 1, 3))
CASES = {
    "Convolution of channels": Case(_channels, ((1, 0, 3, 3),), (), np.full((1, 4, 3, 3), 5.0), None),
    "Convolution of padding": Case(
        _convolution((2, 1)), ((1, 2, 0, 3),), ((1, 2, 3, 3),), np.full((1, 4, 2, 3), 5.0), ((2, 3),)
    ),
    "MaxPool": Case(_pooled("max"), IMAGE, FULL_IMAGE, np.full((1, 1, 1, 4), LOWEST), ((2, 3),)),
    "AvgPool": Case(_pooled("avg"), IMAGE, FULL_IMAGE, _zeros(1, 1, 1, 4), ((2, 3),)),
    "AdaptiveAvgPool": Case(
        lambda data: ops.adaptive_avg_pool(data, _numbers(2, 2)),
        IMAGE, FULL_IMAGE, _zeros(1, 1, 2, 2), ((2, 3),),
    ),
    "AdaptiveMaxPool": Case(
        lambda data: ops.adaptive_max_pool(data, _numbers(2, 2), "i32").output(0),
        IMAGE, FULL_IMAGE, np.full((1, 1, 2, 2), LOWEST), ((2, 3),),
    ),
    "Interpolate": Case(_resized("nearest"), IMAGE, FULL_IMAGE, _zeros(1, 1, 4, 4), ((2, 3),)),
    "Interpolate linear": Case(_resized("linear_onnx"), IMAGE, FULL_IMAGE, _zeros(1, 1, 4, 4), ((2, 3),)),
    "Interpolate cubic": Case(_resized("cubic"), IMAGE, FULL_IMAGE, _zeros(1, 1, 4, 4), ((2, 3),)),
    "GridSample": Case(
        lambda data, grid: ops.grid_sample(data, grid, {}),
        (*IMAGE, (1, 2, 2, 2)), (*FULL_IMAGE, (1, 2, 2, 2)), _zeros(1, 1, 2, 2), ((2, 3), ()),
    ),
    "ROIAlign": Case(
        lambda data, rois: ops.roi_align(data, rois, _numbers(0, 0), 2, 2, 2, 1.0, "avg"),
        ((1, 1, 0, 3), (2, 4)), ((1, 1, 4, 3), (2, 4)), _zeros(2, 1, 2, 2), ((2, 3), ()),
    ),
    "LSTMSequence, results": Case(_lstm(0), *SEQUENCE, _zeros(1, 1, 0, 2), ((1,), (), ())),
    "LSTMSequence, state": Case(_lstm(1), *SEQUENCE, _ones(1, 1, 2), ((1,), (), ())),
    "LSTMSequence, cell": Case(_lstm(2), *SEQUENCE, _ones(1, 1, 2), ((1,), (), ())),
    "GRUSequence": Case(_gru, SEQUENCE[0][:2], SEQUENCE[1][:2], _ones(1, 1, 2), ((1,), ())),
    "RNNSequence": Case(_rnn, SEQUENCE[0][:2], SEQUENCE[1][:2], _ones(1, 1, 2), ((1,), ())),
    "ScaledDotProductAttention": Case(
        ops.scaled_dot_product_attention, *ATTENTION, _zeros(1, 2, 4), ((0, 1, 2), (0, 1, 2), (0, 1, 2))
    ),
    "ScaledDotProductAttention with a mask": Case(
        ops.scaled_dot_product_attention,
        (*ATTENTION[0], (2, 0)), (*ATTENTION[1], (2, 3)), _zeros(1, 2, 4), ((), (1,), (1,), (1,)),
    ),
    "attention in parts": Case(_attention_in_parts, *ATTENTION, _zeros(1, 2, 4), ((), (1,), (1,))),
    "MatMul": Case(
        lambda rows, columns: ops.matmul(rows, columns, False, False),
        ((2, 0), (0, 3)), ((2, 4), (4, 3)), _zeros(2, 3), ((0, 1), (0, 1)),
    ),
    "MatMul of open data by [0, 3]": Case(
        lambda data: ops.matmul(data, ops.constant(np.zeros((0, 3), np.float32)), False, False),
        ((2, 0),), (), _zeros(2, 3), ((0, 1),),
    ),
    "Einsum": Case(
        lambda one, other: ops.einsum([one, other], "ij,ik->jk"), ((0, 2), (0, 3)), (), _zeros(2, 3), None
    ),
    "NonMaxSuppression, count": Case(_boxes(2), *BOXES, np.zeros(1, np.int64), ((1,), (2,))),
    "NonMaxSuppression, boxes": Case(_boxes(0), *BOXES, np.zeros((0, 3), np.int64), ((1,), (2,))),
    "SearchSorted": Case(
        opset15.search_sorted, ((0,), (3,)), ((4,), (3,)), np.zeros(3, np.int64), ((0,), (0,))
    ),
    "SegmentMax": Case(
        lambda data: opset16.segment_max(data, _numbers(), ops.constant(3), "LOWEST"),
        ((0, 2),), (), np.full((3, 2), LOWEST), None,
    ),
    "RDFT": Case(_padded_transform("rdft"), ((2, 0),), ((2, 5),), _zeros(2, 3, 2), ((0, 1),)),
    "DFT": Case(_padded_transform("dft"), ((2, 0, 2),), ((2, 3, 2),), _zeros(2, 4, 2), ((0, 1),)),
    "IDFT": Case(_padded_transform("idft"), ((2, 0, 2),), ((2, 3, 2),), _zeros(2, 4, 2), ((0, 1),)),
    "IRDFT": Case(_padded_transform("irdft"), ((2, 0, 2),), ((2, 3, 2),), _zeros(2, 4), ((0, 1),)),
    "ReduceProd": Case(
        lambda data: ops.reduce_prod(data, _numbers(1), False), ((2, 0),), ((2, 3),), _ones(2), ((0, 1),)
    ),
    "Pad": Case(
        lambda data: ops.pad(data, _numbers(0, 1), _numbers(0, 2), "constant", _weights(value=5.0)),
        ((2, 0),), ((2, 1),), np.full((2, 3), 5.0), ((0, 1),),
    ),
    "Gather of nothing": Case(
        lambda data: ops.gather(data, _numbers(), ops.constant(0)),
        ((3, 2),), (), _zeros(0, 2), None,
    ),
    "Gather along nothing": Case(
        lambda data: ops.gather(data, _numbers(0, 2), ops.constant(1)),
        ((2, 0),), ((2, 3),), _zeros(2, 2), ((0, 1),),
    ),
    "GatherElements": Case(
        lambda data: ops.gather_elements(data, ops.constant([[0, 2], [1, 0]]), 1),
        ((2, 0),), ((2, 3),), _zeros(2, 2), ((1,),),
    ),
    "GatherND": Case(
        lambda data: ops.gather_nd(data, ops.constant([[0], [1]])),
        ((0, 3),), ((2, 3),), _zeros(2, 3), ((0,),),
    ),
    "StridedSlice that takes an axis off": Case(
        lambda data: ops.strided_slice(
            data, _numbers(0, 0), _numbers(2, 1), _numbers(1, 1), [0, 0], [0, 0], [], [0, 1]
        ),
        ((2, 0),), ((2, 3),), _zeros(2), ((0, 1),),
    ),
    "CTCGreedyDecoder": Case(
        lambda data, mask: ops.ctc_greedy_decoder(data, mask, True),
        ((4, 1, 0), (4, 1)), ((4, 1, 3), (4, 1)), _zeros(1, 4, 1, 1), ((2,), ()),
    ),
    "CTCGreedyDecoderSeqLen": Case(
        lambda data: ops.ctc_greedy_decoder_seq_len(data, ops.constant(np.zeros(2, np.int32))).output(1),
        ((2, 0, 3),), ((2, 4, 3),), np.zeros(2, np.int32), ((1,),),
    ),
    "ScaledDotProductAttention of no size": Case(
        ops.scaled_dot_product_attention,
        ((1, 2, 0), (1, 3, 0), (1, 3, 4)), ((1, 2, 4), (1, 3, 4), (1, 3, 4)), _zeros(1, 2, 4),
        ((2,), (2,), ()),
    ),
    "EmbeddingBagOffsetsSum of no table": Case(
        lambda table: ops.embedding_bag_offsets_sum(table, ops.constant([0, 1]), ops.constant([0, 0])),
        ((0, 2),), ((3, 2),), _zeros(2, 2), ((0,),),
    ),
    "TopK of 0": Case(
        lambda data: ops.topk(data, ops.constant(0), 1, "max", "value").output(0),
        ((2, 3),), (), _zeros(2, 0), None,
    ),
    "FakeQuantize": Case(
        lambda data: ops.fake_quantize(data, *[_weights(value=each) for each in (0, 1, 0, 1)], 16),
        ((3, 0, 6),), (), _zeros(3, 0, 6), None,
    ),
}  # fmt: skip


def _model(case: Case, *, dynamic: bool) -> ov.Model:
    """The operation as an output, and inside the model: one more than it."""
    parameters = []
    for at, shape in enumerate(case.empty):
        axes = case.axes[at] if dynamic and case.axes else ()
        sizes = [-1 if axis in axes else size for axis, size in enumerate(shape)]
        parameters.append(ops.parameter(sizes, np.float32))
    result = case.make(*parameters)
    output = result if isinstance(result, ov.Output) else result.output(0)
    more = ops.add(output, ops.constant(1, output.get_element_type()))
    return ov.Model([ops.result(output), ops.result(more)], parameters, "nothing")


def _check(request: Any, inputs: list[Array], expected: Array) -> None:
    for _ in range(2):
        for port in (0, 1):
            tensor = request.get_output_tensor(port)
            if all(tensor.shape):
                tensor.data[...] = _LEFT
        results = request.infer(inputs)
        assert results[0].dtype == expected.dtype or expected.dtype == np.float64
        np.testing.assert_array_equal(results[0], expected.astype(results[0].dtype))
        np.testing.assert_array_equal(results[1], (expected + 1).astype(results[1].dtype))


@pytest.mark.parametrize("name", CASES)
def test_operations_of_known_shapes(dirty_core: Core, name: str) -> None:
    case = CASES[name]
    request = dirty_core.compile_model(_model(case, dynamic=False), "NPU").create_infer_request()
    _check(request, [np.ones(shape, np.float32) for shape in case.empty], case.expected)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.axes is not None])
def test_operations_of_open_shapes(dirty_core: Core, reference: ov.Core, name: str) -> None:
    """Other requests infer with elements before and after, with the right results."""
    case = CASES[name]
    model = _model(case, dynamic=True)
    compiled = dirty_core.compile_model(model, "NPU", {"NPU_BATCH_MODE": "COMPILER"})
    requests = [compiled.create_infer_request() for _ in range(2)]
    none = [np.ones(shape, np.float32) for shape in case.empty]
    some = [np.linspace(0, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape) for shape in case.full]
    if some:
        before = [np.array(value) for value in requests[0].infer(some).to_tuple()]
        expected = reference.compile_model(model, "CPU", F32)(some).to_tuple()
        assert [value.shape for value in before] == [value.shape for value in expected]
        np.testing.assert_allclose(before[0], expected[0], rtol=1e-6)
    _check(requests[1], none, case.expected)
    _check(requests[0], none, case.expected)
    if some:
        for request in requests:
            after = request.infer(some).to_tuple()
            for ours, theirs in zip(after, before, strict=True):
                np.testing.assert_array_equal(ours, theirs)


def test_empty_tensors_inside_a_model_with_full_inputs(dirty_core: Core) -> None:
    """A Slice of a short input is empty, and the size of NonZero's result depends on values."""
    data = ops.parameter([1, -1, 3], np.float32)
    rest = ops.slice(data, _numbers(5), _numbers(2**31 - 1), _numbers(1), _numbers(1))
    state = _gru(rest, _weights(1, 1, 2, value=1))
    images = ops.unsqueeze(rest, _numbers(0))
    pooled = ops.avg_pool(images, [1, 1], [1, 1], [1, 1], [2, 2], False)
    found = ops.non_zero(data, "i64")
    column = ops.gather(found, _numbers(1), ops.constant(0))
    chosen = ops.gather(ops.reshape(data, _numbers(-1), False), column, ops.constant(0))
    sums = ops.matmul(chosen, chosen, False, True)
    request = dirty_core.compile_model(
        ov.Model([ops.result(each) for each in (state, pooled, sums)], [data], "m"),
        "NPU",
        {"NPU_BATCH_MODE": "COMPILER"},
    ).create_infer_request()
    for _ in range(2):
        first, second, third = request.infer([np.zeros((1, 2, 3), np.float32)]).to_tuple()
        np.testing.assert_array_equal(first, _ones(1, 1, 2))
        np.testing.assert_array_equal(second, _zeros(1, 1, 1, 4))
        np.testing.assert_array_equal(third, _zeros(1, 1))
        request.infer([np.ones((1, 9, 3), np.float32)])


def test_models_with_an_initially_empty_cache_are_not_rewritten() -> None:
    """Language models begin with an empty cache: appending makes attention and its successors safe."""
    past, new = ops.parameter([1, -1, 4], np.float32), ops.parameter([1, -1, 4], np.float32)
    keys = ops.concat([past, new], 1)
    queries = ops.parameter([1, -1, 4], np.float32)
    attention = ops.scaled_dot_product_attention(queries, keys, keys)
    model = ov.Model([ops.result(attention), ops.result(keys)], [past, new, queries], "cache")
    assert not empty_tensors.guard(model)
    assert not empty_tensors.guard(model, frozenset({(0, 1)}))
    assert empty_tensors.guard(model, frozenset({(0, 1), (1, 1)}))


def test_images_of_open_size_are_not_rewritten() -> None:
    """A Convolution after others has data to read if the image has, and is fused with its successors."""
    image = ops.parameter([-1, 2, -1, -1], np.float32)
    found = image
    for _ in range(3):
        weights = _weights(2, 2, 3, 3)
        found = ops.relu(ops.convolution(found, weights, [2, 2], [1, 1], [1, 1], [1, 1]))
        found = ops.interpolate(
            found, ops.constant([2.0, 2.0], ov.Type.f32), "nearest", "scales", axes=_numbers(2, 3)
        )
        found = ops.max_pool(found, [1, 1], [1, 1], [1, 1], [1, 1], [3, 3]).output(0)
    model = ov.Model([ops.result(found)], [image], "image")
    assert not empty_tensors.guard(model)

"""The operations that the compiler takes without asking OpenVINO: OpenVINO says yes to each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset1, opset13

from softnpu.emulator.compiler import checks, pipeline, plain_operations
from softnpu.emulator.compiler.plain_operations import RANKS, WITH_CONSTANTS

ops: Any = opset13
pytestmark = pytest.mark.quick

_SIZE = 4


def _numbers(*values: int) -> Any:
    return ov.op.Constant(ov.Type.i64, ov.Shape([len(values)]), list(values))


def _kernel(x: Any, rank: int, *more: int) -> Any:
    return ops.constant(np.ones((*more, _SIZE, *[1] * (rank - 2)), np.float32), x.get_element_type())


def _range(element_type: ov.Type) -> Any:
    start, stop, step = (ops.constant(np.array(value, np.int64)) for value in (0, _SIZE, 1))
    return ops.range(start, ops.convert(stop, "i32"), step, element_type.to_string())


def _spatial(rank: int) -> tuple[list[int], list[int], list[int]]:
    return [1] * (rank - 2), [0] * (rank - 2), [0] * (rank - 2)


_BUILT: dict[str, Callable[[Any, int], Any]] = {
    "Add opset1": lambda x, _: ops.add(x, x),
    "AvgPool opset1": lambda x, r: opset1.avg_pool(x, *_spatial(r), [1] * (r - 2), exclude_pad=True),
    "Broadcast opset3": lambda x, r: ops.broadcast(x, _numbers(*[_SIZE] * r)),
    "Clamp opset1": lambda x, _: ops.clamp(x, 0.0, 1.0),
    "Concat opset1": lambda x, _: ops.concat([x, x], 0),
    "Convert opset1": lambda x, _: ops.convert(x, "f32"),
    "Convolution opset1": lambda x, r: ops.convolution(x, _kernel(x, r, _SIZE), *_spatial(r), [1] * (r - 2)),
    "Divide opset1": lambda x, _: ops.divide(x, x),
    "Exp opset1": lambda x, _: ops.exp(x),
    "Gather opset8": lambda x, r: ops.gather(x, _numbers(0, 1), _numbers(r - 1)),
    "Gelu opset7": lambda x, _: ops.gelu(x, "erf"),
    "GroupConvolution opset1": lambda x, r: ops.group_convolution(
        x, _kernel(x, r, 1, _SIZE), *_spatial(r), [1] * (r - 2)
    ),
    "HSwish opset4": lambda x, _: ops.hswish(x),
    "Interpolate opset11": lambda x, r: ops.interpolate(
        x, _numbers(8, 8), "linear_onnx", "sizes", axes=_numbers(r - 2, r - 1)
    ),
    "MVN opset6": lambda x, r: ops.mvn(x, _numbers(r - 1), True, 1e-6, "inside_sqrt"),
    "MatMul opset1": lambda x, _: ops.matmul(x, x, transpose_a=False, transpose_b=True),
    "MaxPool opset1": lambda x, r: opset1.max_pool(x, *_spatial(r), [1] * (r - 2)),
    "MaxPool opset8": lambda x, r: ops.max_pool(x, [1] * (r - 2), *_spatial(r), [1] * (r - 2)),
    "Maximum opset1": lambda x, _: ops.maximum(x, x),
    "Minimum opset1": lambda x, _: ops.minimum(x, x),
    "Multiply opset1": lambda x, _: ops.multiply(x, x),
    "Range opset4": lambda x, _: ops.multiply(x, _range(x.get_element_type())),
    "ReduceMean opset1": lambda x, r: ops.reduce_mean(x, _numbers(r - 1)),
    "ReduceSum opset1": lambda x, r: ops.reduce_sum(x, _numbers(r - 1)),
    "Relu opset1": lambda x, _: ops.relu(x),
    "Reshape opset1": lambda x, _: ops.reshape(x, _numbers(-1), special_zero=False),
    "ShapeOf opset3": lambda x, _: ops.shape_of(x),
    "Sigmoid opset1": lambda x, _: ops.sigmoid(x),
    "Slice opset8": lambda x, _: ops.slice(x, _numbers(0), _numbers(2), _numbers(1), _numbers(0)),
    "Softmax opset8": lambda x, r: ops.softmax(x, r - 1),
    "Split opset1": lambda x, r: ops.split(x, r - 1, 2),
    "Sqrt opset1": lambda x, _: ops.sqrt(x),
    "Squeeze opset1": lambda x, r: ops.squeeze(
        ops.reduce_mean(x, _numbers(r - 1), keep_dims=True), _numbers(r - 1)
    ),
    "Subtract opset1": lambda x, _: ops.subtract(x, x),
    "Tanh opset1": lambda x, _: ops.tanh(x),
    "Transpose opset1": lambda x, r: ops.transpose(x, _numbers(*reversed(range(r)))),
    "Unsqueeze opset1": lambda x, _: ops.unsqueeze(x, _numbers(0)),
    "VariadicSplit opset1": lambda x, r: ops.variadic_split(x, _numbers(r - 1), _numbers(1, 3)),
}
"""One of each on an input of this many dimensions; constants, inputs and outputs are in all."""


def _nodes(element_type: ov.Type) -> Iterator[tuple[Any, Any]]:
    """Yield the operations that take tensors of a type, each with its own input."""
    for name, ranks in {**RANKS, **WITH_CONSTANTS}.items():
        for rank in ranks if name in _BUILT else ():
            x = ops.parameter([_SIZE] * rank, element_type, name=f"input of {name}, {rank} dimensions")
            with suppress(RuntimeError):  # it takes no such tensors
                node = _BUILT[name](x, rank)
                node.set_friendly_name(f"{name}, {rank} dimensions")
                yield x, node


def test_each_operation_of_the_tables_is_built_here() -> None:
    others = {"Parameter opset1", "Result opset1"}
    built = {node.get_friendly_name().partition(",")[0] for _, node in _nodes(ov.Type.f32)}
    assert built == set(_BUILT) == {*RANKS, *WITH_CONSTANTS} - others


@pytest.mark.parametrize("name", plain_operations.TYPES)
def test_openvino_executes_what_is_taken_for_plain(name: str) -> None:
    inputs, nodes = zip(*_nodes(getattr(ov.Type, name)), strict=True)
    model = ov.Model([node.output(0) for node in nodes], list(inputs), "plain operations")
    assert plain_operations.are_all(model)
    supported = ov.Core().query_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    assert [op.friendly_name for op in model.get_ordered_ops() if op.friendly_name not in supported] == []


def _of(node: Any, x: Any) -> ov.Model:
    return ov.Model([node.output(0)], [x], "model")


def test_others_are_not_plain() -> None:
    x = ops.parameter([1, _SIZE, _SIZE, _SIZE], np.float32)
    any_axis = ops.parameter([1], np.int64)
    narrow = ops.convert(ops.convert(x, "i8"), "f32")
    assert plain_operations.are_all(_of(ops.relu(x), x))
    assert not plain_operations.are_all(_of(ops.selu(x, np.float32(1), np.float32(1)), x))
    assert not plain_operations.are_all(_of(narrow, x))
    assert not plain_operations.are_all(
        ov.Model([ops.reduce_sum(x, any_axis, True)], [x, any_axis], "computed")
    )
    indices = ops.max_pool(x, [1, 1], *_spatial(4), [1, 1]).output(1)
    assert not plain_operations.are_all(ov.Model([indices], [x], "indices"))
    cubic = ops.interpolate(x, _numbers(8, 8), "cubic", "sizes", axes=_numbers(2, 3))
    assert not plain_operations.are_all(_of(cubic, x))
    is_open = ops.parameter([-1, _SIZE], np.float32)
    assert not plain_operations.are_all(_of(ops.relu(is_open), is_open))


def test_the_compiler_asks_openvino_about_others_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        checks, "check_operations", lambda _core, model, *_: asked.append(model.get_friendly_name())
    )
    x = ops.parameter([1, _SIZE, _SIZE, _SIZE], np.float32)
    for model in (_of(ops.relu(x), x), ov.Model([ops.selu(x, np.float32(1), np.float32(1))], [x], "asked")):
        with pipeline._checking(ov.Core(), model, "f32", "model"):
            pass
    assert asked == ["asked"]

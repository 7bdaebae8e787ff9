"""Faults of results: of nothing, and of outputs that share a tensor."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from tests.openvino.faults.fault import Compile, Fault, Step, differences, model, random, steps


def _product() -> ov.Model:
    one, other = ops.parameter([2, -1], np.float32), ops.parameter([-1, 3], np.float32)
    return model(ops.add(ops.matmul(one, other, False, False), ops.constant(np.float32(1))), one, other)


def _updated_in_a_loop() -> ov.Model:
    """The sum over three iterations of data of which one element was raised, each time another."""
    data, more = ops.parameter([4], np.float32), ops.parameter([1], np.float32)
    before, total = ops.parameter([4], np.float32), ops.parameter([4], np.float32)
    at, raised_by = ops.parameter([1], np.int64), ops.parameter([1], np.float32)
    updated = ov.opset12.scatter_elements_update(before, at, raised_by, ops.constant(0), "sum")
    result, goes_on = ops.add(total, updated), ops.constant(np.array([True]))
    loop = ops.loop(ops.constant(3), ops.constant(True))
    loop.set_function(ov.Model([result, goes_on], [before, total, at, raised_by], "body"))
    loop.set_special_body_ports([2, 1])
    loop.set_invariant_input(before, data.output(0))
    loop.set_invariant_input(raised_by, more.output(0))
    loop.set_merged_input(total, ops.constant(np.zeros(4, np.float32)).output(0), result.output(0))
    return model(loop.get_iter_value(result.output(0), -1), data, more)


def _of_an_open_batch() -> ov.Model:
    data, states = ops.parameter([-1, 3, 2], np.float32), ops.constant(np.zeros((2, 1, 2), np.float32))
    zeros, halves = (
        ops.constant(np.zeros((1, 2, 2), np.float32)),
        ops.constant(np.full((1, 2), 0.5, np.float32)),
    )
    lengths = ops.constant(np.array([3, 3]))
    return model(
        ov.opset5.rnn_sequence(data, states, lengths, zeros, zeros, halves, 2, "forward").output(0), data
    )


def _largest_of_each_quarter() -> ov.Model:
    data = ops.parameter([1, 1, 4, 4], np.float32)
    pooled = ov.opset8.adaptive_max_pool(data, ops.constant([2, 2]), "i64")
    return model([pooled.output(0), pooled.output(1)], data)


def _twice(compiled_by: Compile) -> str:
    """Two outputs are the input, which is of open shape. Requests run at once."""
    data = ops.parameter([-1, -1], np.float32)
    same = ops.convert(data, "f32")
    compiled = compiled_by(model([same, same], data), {})
    requests = [compiled.create_infer_request() for _ in range(3)]
    for size in ((2, 3), (5, 3), (1, 3)):
        inputs = [random(*size) + number for number in range(3)]
        for request, given in zip(requests, inputs, strict=True):
            request.set_input_tensor(0, ov.Tensor(given.copy()))
            request.start_async()
        for request, given in zip(requests, inputs, strict=True):
            request.wait()
            found = [np.array(request.get_output_tensor(index).data) for index in range(2)]
            wrong = differences(found, [given, given])
            if wrong:
                return wrong
    return ""


FAULTS: dict[str, Fault] = {
    "empty-open-results": steps(
        _product, Step([np.ones((2, 0), np.float32), np.ones((0, 3), np.float32)], [np.ones((2, 3))])
    ),
    "sequence-first-states": steps(
        _of_an_open_batch,
        Step([np.ones((2, 3, 2), np.float32)], [np.full((2, 1, 3, 2), np.tanh(0.5))]),
        rtol=1e-5,
    ),
    "pooled-indices": steps(
        _largest_of_each_quarter,
        Step(
            [np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)],
            [np.array([[[[5, 7], [13, 15]]]], np.float32), np.array([[[[5, 7], [13, 15]]]])],
        ),
    ),
    "loop-invariant-updates": steps(
        _updated_in_a_loop,
        *[
            Step(
                [np.array([1, 2, 3, 4], np.float32), np.array([10], np.float32)],
                [np.array([13, 16, 19, 12], np.float32)],
            )
        ]
        * 2,
    ),
    "equal-dynamic-outputs": _twice,
}

"""Faults of results: of nothing, of loops, of states, and of outputs that share a tensor."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset5, opset6
from openvino import opset13 as ops
from openvino.op.util import Variable, VariableInfo

from tests.openvino.faults.fault import Array, Compile, Fault, Step, differences, model, random, steps


def _sequence() -> ov.Model:
    """The tanh of the sum of each number and the state before."""
    data, state = ops.parameter([2, -1, 1], np.float32), ops.parameter([2, 1, 1], np.float32)
    lengths = ops.parameter([2], np.int32)
    one, zero = ops.constant(np.ones((1, 1, 1), np.float32)), ops.constant(np.zeros((1, 1), np.float32))
    made = opset5.rnn_sequence(data, state, lengths, one, one, zero, 1, "forward")
    return model(list(made.outputs()), data, state, lengths)


def _summed(data: Array, state: Array, lengths: list[int]) -> list[Array]:
    rows, last = np.zeros((2, 1, data.shape[1], 1)), state.astype(np.float64)
    for batch, length in enumerate(lengths):
        for step in range(length):
            last[batch, 0, 0] = np.tanh(data[batch, step, 0] + last[batch, 0, 0])
            rows[batch, 0, step] = last[batch, 0]
    return [rows, last]


def _pooled(height: int) -> ov.Model:
    image = ops.parameter([1, 1, height, 3], np.float32)
    pooled = ops.avg_pool(image, [1, 1], [1, 1], [1, 1], [2, 2], False)
    return model(ops.add(pooled, ops.constant(np.float32(1))), image)


def _product() -> ov.Model:
    one, other = ops.parameter([2, -1], np.float32), ops.parameter([-1, 3], np.float32)
    return model(ops.add(ops.matmul(one, other, False, False), ops.constant(np.float32(1))), one, other)


def _iterated(data: ov.Node) -> ov.Output:
    """Three times the input times 1.5, in a Loop."""
    loop = ops.loop(ops.constant(3), ops.constant(True))
    value = ops.parameter([-1, 5, 3, 1], np.float32)
    result = ops.result(ops.multiply(value, ops.constant(np.float32(1.5))))
    goes_on = ops.result(ops.constant(True))
    loop.set_function(ov.Model([result, goes_on], [value], "body"))
    loop.set_special_body_ports([-1, 1])
    loop.set_merged_input(value, data.output(0), result.output(0))
    return loop.get_iter_value(result.output(0), -1)


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


def _beside_a_loop() -> ov.Model:
    beside, data = ops.parameter([-1, 8, 5, 3, 1], np.float32), ops.parameter([-1, 5, 3, 1], np.float32)
    weights = ops.constant(np.ones((1, 8, 1, 1, 1), np.float32))
    first = ops.convolution(beside, weights, [1, 1, 1], [0, 0, 0], [0, 0, 0], [1, 1, 1])
    mean = ops.avg_pool(_iterated(data), [1, 1], [0, 0], [0, 0], [1, 1], exclude_pad=False)
    return model([first, mean], beside, data)


def _loop_steps() -> list[Step]:
    given = [[random(count, 8, 5, 3, 1), random(2, 5, 3, 1)] for count in (2, 2, 9)]
    return [Step(each, [each[0].sum(1, keepdims=True), each[1] * 1.5**3]) for each in given]


def _in_new_requests(compiled_by: Compile) -> str:
    compiled = compiled_by(_beside_a_loop(), {})
    for step in _loop_steps():
        found = compiled.create_infer_request().infer(step.inputs).to_tuple()
        wrong = differences(found, step.expected or [], 1e-5)
        if wrong:
            return wrong
    return ""


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


def _bound(compiled_by: Compile) -> str:
    """An output that is an input, and is set: the input stays what it was."""
    data = ops.parameter([4], np.float32)
    compiled = compiled_by(model([data, ops.add(data, ops.constant(np.float32(1)))], data), {})
    given, output = ov.Tensor(np.array([1, 2, 3, 4], np.float32)), ov.Tensor(np.zeros(4, np.float32))
    request = compiled.create_infer_request()
    request.set_input_tensor(0, given)
    request.set_output_tensor(0, output)
    request.infer()
    right = np.array([1, 2, 3, 4], np.float32)
    return differences([output.data, request.get_output_tensor(1).data], [right, right + 1])


def _states(compiled_by: Compile) -> str:
    """A dynamic state of f16 that is an output, in two requests."""
    data = ops.parameter([-1, 3], np.float16)
    info = VariableInfo()
    info.data_type, info.variable_id = ov.Type.f16, "sum"
    info.data_shape = ov.PartialShape([-1, 3])
    variable = Variable(info)
    begin = ops.broadcast(ops.constant(2, ov.Type.f16), ops.shape_of(data))
    value = opset6.read_value(begin, variable)
    after = opset6.assign(ops.add(value, data), variable)
    compiled = compiled_by(ov.Model([ops.result(value)], [after], [data], "states"), {})
    requests = [compiled.create_infer_request() for _ in range(2)]
    for number in range(4):
        found = []
        for at, request in enumerate(requests):
            request.infer([np.full((2, 3), at + 1, np.float16)])
            found.append(request.get_output_tensor(0))
        for at, tensor in enumerate(found):
            wrong = differences([tensor.data], [np.full((2, 3), 2 + number * (at + 1), np.float16)])
            if wrong:
                return f"request {at}, inference {number}: {wrong}"
    return ""


_NUMBERS, _FIRST = random(2, 4, 1), random(2, 1, 1)

FAULTS: dict[str, Fault] = {
    "sequence-lengths": steps(
        _sequence,
        *(
            Step([_NUMBERS, _FIRST, np.array(each, np.int32)], _summed(_NUMBERS, _FIRST, each))
            for each in ([4, 4], [2, 4], [0, 3])
        ),
        rtol=1e-6,
    ),
    "empty-results": steps(
        lambda: _pooled(0), Step([np.zeros((1, 1, 0, 3), np.float32)], [np.ones((1, 1, 1, 4))])
    ),
    "empty-open-results": steps(
        _product, Step([np.ones((2, 0), np.float32), np.ones((0, 3), np.float32)], [np.ones((2, 3))])
    ),
    "state-of-16-bits": _states,
    "loop-result-moves": _in_new_requests,
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
    "shared-tensors": _bound,
}

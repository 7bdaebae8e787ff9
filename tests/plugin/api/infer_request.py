"""`test_sync_infer_request.py`."""

from __future__ import annotations

import datetime
from copy import deepcopy
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops

from tests.plugin.api.table import IMAGE, Side, absolute, add, batched, concat, relu

_ONE, _OTHER = np.array([[1, 2], [3, 4]], np.float32), np.array([[3, 4], [1, 2]], np.float32)
_NEGATIVE = np.array([[-1, 2, 5, -3]])
TYPES = ("f32", "f64", "f16", "i8", "u8", "i32", "i16", "u16", "i64")


class ArrayLike:
    """What only `__array__` makes an array of, such as tensors of other libraries."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.data)


def _identity(kind: Any) -> openvino.Model:
    data = ops.parameter([4], kind, name="data")
    return openvino.Model([ops.result(data)], [data], "identity")


def get_profiling_info(side: Side) -> Any:
    compiled = side.ov.Core().compile_model(relu(), side.device, {"PERF_COUNT": "YES"})
    request = compiled.create_infer_request()
    request.infer({compiled.input("data").any_name: IMAGE})
    info = request.get_profiling_info()[0]
    kinds = (datetime.timedelta, datetime.timedelta, str)
    return request.latency > 0, [
        isinstance(value, kind)
        for value, kind in zip((info.real_time, info.cpu_time, info.exec_type), kinds, strict=True)
    ]


def tensor_setter(side: Side) -> Any:
    request, tensor = side.request(relu), side.ov.Tensor(IMAGE)
    request.set_tensor("data", tensor)
    found = [request.get_tensor("data").data.tolist(), request.infer({0: tensor})[0]]
    port = side.compiled(relu).inputs[0]
    request.set_tensor(port, side.ov.Tensor(IMAGE * 2))
    return [*found, request.get_tensor(port).data.tolist(), request.infer()[0]]


def set_tensors(side: Side) -> Any:
    compiled = side.compiled(relu)
    request = compiled.create_infer_request()
    tensors = [side.ov.Tensor(np.full_like(IMAGE, number)) for number in range(4)]
    found: list[Any] = []

    def look() -> None:
        found.extend(request.get_tensor(port).data.flat[0] for port in (*compiled.inputs, *compiled.outputs))

    for call, arguments in (
        ("set_tensors", ({compiled.inputs[0]: tensors[0], compiled.outputs[0]: tensors[1]},)),
        ("set_output_tensors", ({0: tensors[2]},)),
        ("set_input_tensors", ({0: tensors[1]},)),
        ("set_input_tensor", (tensors[3],)),
        ("set_input_tensor", (0, tensors[0])),
        ("set_output_tensor", (tensors[0],)),
        ("set_output_tensor", (0, tensors[3])),
    ):
        getattr(request, call)(*arguments)
        look()
    return found


def inputs_outputs_property_and_method(side: Side) -> Any:
    request = side.request(concat, openvino.Type.u8, 3)
    data = [np.full(5, number) for number in range(3)]
    results = request.infer(data).values()
    tensors = (*request.input_tensors, *request.output_tensors)
    return list(results), [tensor.data.tolist() for tensor in tensors], [list(each.shape) for each in tensors]


def infer_list_as_inputs(side: Side) -> Any:
    found = []
    for share in (True, False):
        request = side.request(concat, openvino.Type.f32, 4)
        request.infer([np.zeros(5, np.float32)] * 4)
        for count in (1, 4, 0):
            inputs = [np.full(5, number + 1, np.float32) for number in range(count)]
            request.infer(inputs, share_inputs=share)
            found.append([tensor.data.tolist() for tensor in request.input_tensors[:count]])
    return found


def infer_mixed_keys(side: Side) -> Any:
    first, second = side.ov.Tensor(np.ones_like(IMAGE)), side.ov.Tensor(IMAGE)
    return [
        side.request(relu).infer({0: first, "data": second}, share_inputs=share)[0] for share in (True, False)
    ]


def infer_mixed_values(side: Side) -> Any:
    found = []
    for name in (*TYPES, "u32", "u64", "boolean", "bf16"):
        kind = getattr(side.ov.Type, name)
        tensor = side.ov.Tensor(kind, [5])
        tensor.data[:] = np.array([6, 7, 8, 9, 0])
        array = np.array([1, 2, 3, 4, 5]).astype(np.float16 if name == "bf16" else kind.to_dtype())
        for share in (True, False):
            request = side.request(concat, kind)
            request.infer([tensor, array], share_inputs=share)
            found.append(request.output_tensors[0].data.tolist())
    return found


def infer_single_input(side: Side) -> Any:
    found = []
    for name in TYPES:
        kind = getattr(side.ov.Type, name)
        array = _NEGATIVE.astype(kind.to_dtype())
        for share in (True, False):
            request = side.request(absolute, kind)
            for given in (array, side.ov.Tensor(array)):
                request.infer(given, share_inputs=share)
                found.append(request.get_output_tensor().data.tolist())
    return found


def get_compiled_model(side: Side) -> Any:
    compiled = side.request(relu).get_compiled_model()
    return isinstance(compiled, side.ov.CompiledModel), compiled.create_infer_request().infer({0: IMAGE})[0]


def get_results(side: Side) -> Any:
    request = side.request(absolute, openvino.Type.f64)
    results = request.infer([_NEGATIVE.astype(np.float64)])
    return [
        (results[port], request.results[port]) for port in side.compiled(absolute, openvino.Type.f64).outputs
    ]


def ports_as_inputs(side: Side) -> Any:
    request = side.request(add)
    one, other = side.ov.Tensor(_ONE), side.ov.Tensor(_OTHER)
    return [
        request.infer({ports[0]: one, ports[1]: other}, share_inputs=share)[request.model_outputs[0]]
        for ports in (side.compiled(add).inputs, request.model_inputs)
        for share in (True, False)
    ]


def inputs_dict_not_replaced(side: Side) -> Any:
    inputs = {0: _ONE, 1: _OTHER}
    before = deepcopy(inputs)
    result = side.request(add).infer(inputs)[0]
    return result, all(np.array_equal(inputs[key], before[key]) for key in before)


def inputs_list_not_replaced(side: Side) -> Any:
    inputs = [_ONE, _OTHER]
    return side.request(add).infer(inputs)[0], [type(each) for each in inputs]


def inputs_tuple_not_replaced(side: Side) -> Any:
    inputs = (_ONE, _OTHER)
    return side.request(add).infer(inputs)[0], [type(each) for each in inputs]


def invalid_inputs(side: Side) -> Any:
    side.request(add).infer(object())


def infer_dynamic_model(side: Side) -> Any:
    request, found = side.request(add, (-1, -1), (-1, -1)), []
    for shape in ((1, 28), (1, 32), (1, 40)):
        request.infer([np.ones(shape), np.ones(shape)])
        found.append(list(request.get_input_tensor(0).shape))
    return found


def array_like_input_request(side: Side) -> Any:
    given = ArrayLike(_NEGATIVE.tolist())
    return [
        side.request(absolute).infer(inputs, share_inputs=share)[0]
        for inputs in (given, [given], {0: given})
        for share in (True, False)
    ]


def convert_infer_request(side: Side) -> Any:
    deepcopy(side.request(add).infer([_ONE, _OTHER]))


def only_scalar_infer(side: Side) -> Any:
    found = []
    numbers = (np.array(1.0, np.float32), np.array(1, np.int32), np.float32(1), np.int32(1), 1.0, 1)
    for share in (True, False):
        for value in numbers:
            request = side.request(_scalar)
            result = request.infer(value, share_inputs=share)[0]
            found.append((result, np.shares_memory(value, request.get_input_tensor().data)))
    return found


def _scalar(*shape: int) -> openvino.Model:
    data = ops.parameter(list(shape), np.float32, name="data")
    return openvino.Model([ops.relu(data)], [data], "scalar_model")


def scalar_for_one_element(side: Side) -> Any:
    numbers = (3.0, 3, np.float32(3), np.array(3.0, np.float32), np.array(3))
    return [
        side.request(_scalar, 1).infer(value, share_inputs=share)[0]
        for value in numbers
        for share in (True, False)
    ]


def mixed_scalar_infer(side: Side) -> Any:
    found = []
    for number, kind in ((np.array(1.0, np.float32), np.float32), (np.array(1), np.int32), (1.0, np.float32)):
        for share in (True, False):
            request = side.request(add, (), (2,))
            array = np.array([1, 2], kind)
            result = request.infer({0: number, 1: array}, share_inputs=share)[0]
            found.append((result, np.shares_memory(array, request.get_input_tensor(1).data)))
    return found


def mixed_dynamic_infer(side: Side) -> Any:
    request = side.request(add, (), (-1,))
    return [
        request.infer({0: np.array(1.0, np.float32), 1: np.full(size, 3, np.float32)}, share_inputs=share)[0]
        for size in (1, 3)
        for share in (True, False)
    ]


def not_writable_inputs_infer(side: Side) -> Any:
    fixed = np.array([1, 2, 3, 4], np.uint8)
    fixed.setflags(write=False)
    found = []
    for array in (np.frombuffer(b"\x01\x02\x03\x04", np.uint8), fixed):
        for share in (True, False):
            request = side.request(_identity, openvino.Type.u8)
            result = request.infer({0: array}, share_inputs=share)[0]
            found.append((result, np.shares_memory(array, request.get_input_tensor(0).data)))
    return found


def infer_request_share_memory(side: Side) -> Any:
    found = []
    for share_inputs in (True, False):
        for share_outputs in (True, False):
            request, data = side.request(absolute), _NEGATIVE.astype(np.float32)
            result = request.infer(data, share_inputs, share_outputs)[0]
            shared = np.shares_memory(request.get_output_tensor(0).data, result)
            found.append((result, np.shares_memory(request.get_input_tensor(0).data, data), shared))
            found.append(result.flags["OWNDATA"])
    return found


def output_result_to_input(side: Side) -> Any:
    results = side.request(absolute).infer(_NEGATIVE.astype(np.float32))
    return [side.request(absolute).infer(results, share_inputs=share)[0] for share in (True, False)]


def wait_before_any_start(side: Side) -> Any:
    request = side.request(absolute)
    before = request.wait_for(0), request.wait(), request.latency
    request.infer()
    return before, request.wait_for(0)


def negative_timeout(side: Side) -> Any:
    side.request(absolute).wait_for(-1)


def too_many_inputs(side: Side) -> Any:
    side.request(add).infer([_ONE, _OTHER, _ONE])


def wrong_shape(side: Side) -> Any:
    side.request(add).infer([_ONE[:1], _OTHER])


def _samples(side: Side, count: int = 4, shape: tuple[int, ...] = (1, 3), kind: Any = np.float32) -> Any:
    return [side.ov.Tensor(np.full(shape, number + 1, kind)) for number in range(count)]


def batched_tensors(side: Side) -> Any:
    found = []
    for batch in (4, -1):
        request = side.request(batched, openvino.Type.f32, batch)
        port = request.model_inputs[0]
        for call, arguments in (
            ("set_input_tensors", ()),
            ("set_input_tensors", (0,)),
            ("set_tensors", ("data",)),
            ("set_tensors", (port,)),
        ):
            tensors = _samples(side)
            getattr(request, call)(*arguments, tensors)
            found.append(request.infer()[0])
            tensors[1].data[:] = 9  # looked at by every inference
            found.append(request.infer()[0])
            request.set_tensor("data", side.ov.Tensor(np.full((4, 3), 5, np.float32)))
            found += [request.infer()[0], request.get_tensor("data").data]
    return found


def batched_tensors_refused(side: Side) -> Any:
    request, add_request = side.request(batched), side.request(add)
    halves = _samples(side, 1, kind=np.float16)
    found = []
    for call, arguments in (
        ("set_tensors", ("data", [])),
        ("set_tensors", ("data", _samples(side, 3))),
        ("set_tensors", ("data", _samples(side, 2, (2, 3)))),
        ("set_tensors", ("data", _samples(side, 3) + halves)),
        ("set_tensors", ("data", _samples(side, 3) + _samples(side, 1, (1, 4)))),
        ("set_tensors", ("data", tuple(_samples(side)))),
        ("set_tensors", ("nothing", _samples(side))),
        ("set_tensors", (request.model_outputs[0], _samples(side))),
        ("set_input_tensors", (7, _samples(side))),
    ):
        found.append(_refused(request, call, *arguments))
    found.append(_refused(add_request, "set_input_tensors", _samples(side)))
    found.append(_refused(add_request, "set_input_tensors", 0, _samples(side, 2, (1, 2))))  # no layout
    request.set_tensors("data", _samples(side))
    return [*found, _refused(request, "get_tensor", "data"), _refused(request, "get_input_tensor", 0)]


def _refused(request: Any, call: str, *arguments: Any) -> str:
    try:
        getattr(request, call)(*arguments)
    except (TypeError, RuntimeError) as failure:
        return "TypeError" if isinstance(failure, TypeError) else "RuntimeError"
    return "accepted"

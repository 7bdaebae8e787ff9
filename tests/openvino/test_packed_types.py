"""Operations on elements of which several share a byte: they move the elements, as numpy does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.plugin import CompileError, Core

Array = npt.NDArray[Any]
BITS = {"u2": 2, "u4": 4, "i4": 4, "nf4": 4}
NF4 = np.array(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
     -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
     0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
     0.7229568362236023, 1.0], np.float32
)  # fmt: skip
"""The published values of the type."""


def _numbers(*values: int) -> Any:
    return ops.constant(np.array(values, np.int64))


def _halves_swapped(data: Any) -> Any:
    first, second = ops.split(data, ops.constant(0), 2).outputs()
    return ops.concat([second, first], 0)


def _last_row(data: Any) -> Any:
    return ops.gather(data, _numbers(3), ops.constant(0))


CHOICE = np.eye(4, 8, dtype=bool)
OPERATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array]]] = {
    "Concat": (lambda data: ops.concat([data, data], 1), lambda data: np.concatenate([data, data], 1)),
    "Split, Concat": (_halves_swapped, lambda data: np.concatenate([data[2:], data[:2]])),
    "Gather": (
        lambda data: ops.gather(data, _numbers(3, 1, 0, 2), ops.constant(0)), lambda data: data[[3, 1, 0, 2]]
    ),
    "Gather of columns": (
        lambda data: ops.gather(data, _numbers(5, 1), ops.constant(1)), lambda data: data[:, [5, 1]]
    ),
    "GatherND": (
        lambda data: ops.gather_nd(data, ops.constant([[3, 1], [0, 7]])), lambda data: data[[3, 0], [1, 7]]
    ),
    "Slice": (
        lambda data: ops.slice(data, _numbers(1), _numbers(6), _numbers(2), _numbers(1)),
        lambda data: data[:, 1:6:2],
    ),
    "StridedSlice": (
        lambda data: ops.strided_slice(data, _numbers(0, 1), _numbers(4, 8), _numbers(1, 3), [0, 0], [0, 0]),
        lambda data: data[:, 1::3],
    ),
    "Roll": (lambda data: ops.roll(data, _numbers(1), _numbers(1)), lambda data: np.roll(data, 1, 1)),
    "Transpose": (lambda data: ops.transpose(data, _numbers(1, 0)), lambda data: data.T),
    "Reshape": (lambda data: ops.reshape(data, _numbers(2, 16), False), lambda data: data.reshape(2, 16)),
    "Reshape, Transpose": (
        lambda data: ops.transpose(ops.reshape(data, _numbers(2, 4, 4), False), _numbers(2, 0, 1)),
        lambda data: data.reshape(2, 4, 4).transpose(2, 0, 1),
    ),
    "VariadicSplit": (
        lambda data: ops.variadic_split(data, ops.constant(1), _numbers(3, 5)).output(1),
        lambda data: data[:, 3:],
    ),
    "Tile": (lambda data: ops.tile(data, _numbers(1, 2)), lambda data: np.tile(data, (1, 2))),
    "Broadcast": (
        lambda data: ops.broadcast(data, _numbers(2, 4, 8)), lambda data: np.stack([data, data])
    ),
    "Pad": (
        lambda data: ops.pad(data, _numbers(1, 0), _numbers(0, 1), "edge"),
        lambda data: np.pad(data, ((1, 0), (0, 1)), "edge"),
    ),
    "Select": (
        lambda data: ops.select(ops.constant(CHOICE), data, ops.roll(data, _numbers(1), _numbers(0))),
        lambda data: np.where(CHOICE, data, np.roll(data, 1, 0)),
    ),
    "ReverseSequence": (
        lambda data: ops.reverse_sequence(data, _numbers(8, 8, 8, 8), 0, 1), lambda data: data[:, ::-1]
    ),
    "ScatterUpdate": (
        lambda data: ops.scatter_update(data, _numbers(0), _last_row(data), ops.constant(0)),
        lambda data: np.concatenate([data[3:], data[1:]]),
    ),
    "ShuffleChannels": (
        lambda data: ops.shuffle_channels(data, 1, 2),
        lambda data: data.reshape(4, 2, 4).transpose(0, 2, 1).reshape(4, 8),
    ),
}  # fmt: skip


def _packed(codes: Array, kind: str) -> ov.Tensor:
    tensor = ov.Tensor(getattr(ov.Type, kind), ov.Shape(list(codes.shape)))
    bits = (codes.reshape(-1, 1) >> np.arange(BITS[kind])) & 1
    tensor.data.reshape(-1).view(np.uint8)[:] = np.packbits(bits.reshape(-1).astype(bool), bitorder="little")
    return tensor


def _codes(tensor: ov.Tensor) -> Array:
    """The bits of each element as a number; what is behind the last one, in its byte, nobody writes."""
    bits = BITS[tensor.element_type.to_string()]
    raw = np.unpackbits(tensor.data.reshape(-1).view(np.uint8), bitorder="little")
    count = int(np.prod(tuple(tensor.shape)))
    parts = raw[: count * bits].reshape(count, bits).astype(np.int64)
    codes: Array = (parts << np.arange(bits)).sum(1).reshape(tuple(tensor.shape))
    return codes


def _values(codes: Array, kind: str) -> Array:
    if kind == "nf4":
        return NF4[codes]
    return (np.where(codes > 7, codes - 16, codes) if kind == "i4" else codes).astype(np.float32)


@pytest.mark.parametrize("kind", BITS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_moves_packed_elements(shared_core: Core, name: str, kind: str) -> None:
    make, expected = OPERATIONS[name]
    codes = np.random.default_rng(3).integers(0, 1 << BITS[kind], (2, 4, 8))
    given, known = (_packed(each, kind) for each in codes)
    source = ops.parameter([4, 8], getattr(ov.Type, kind))
    made = [make(each) for each in (source, ov.op.Constant(known))]
    outputs = [each if isinstance(each, ov.Output) else each.output(0) for each in made]
    results = [ops.result(each) for each in (*outputs, *(ops.convert(each, "f32") for each in outputs))]
    request = shared_core.compile_model(ov.Model(results, [source], "m"), "NPU").create_infer_request()
    request.infer([given])
    for index, each in enumerate(codes):
        np.testing.assert_array_equal(_codes(request.get_output_tensor(index)), expected(each))
        values = request.get_output_tensor(index + 2).data
        np.testing.assert_array_equal(values, expected(_values(each, kind)))


@pytest.mark.parametrize("kind", BITS)
def test_packed_elements_in_a_body(shared_core: Core, kind: str) -> None:
    codes = np.random.default_rng(3).integers(0, 1 << BITS[kind], (4, 8))
    data, choice = ops.parameter([4, 8], getattr(ov.Type, kind)), ops.parameter([], ov.Type.boolean)
    inner = [ops.parameter([4, 8], getattr(ov.Type, kind)) for _ in range(2)]
    results = [
        ops.result(ops.gather(inner[0], _numbers(1, 0, 3, 2), ops.constant(0))), ops.result(inner[1])
    ]  # fmt: skip
    chosen = ops.if_op(choice.output(0))
    chosen.set_then_body(ov.Model([results[0]], [inner[0]]))
    chosen.set_else_body(ov.Model([results[1]], [inner[1]]))
    chosen.set_input(data.output(0), *inner)
    output = chosen.set_output(*results)
    model = ov.Model([ops.result(output), ops.result(ops.convert(output, "f32"))], [choice, data], "m")
    request = shared_core.compile_model(model, "NPU").create_infer_request()
    for condition, rows in ((True, [1, 0, 3, 2]), (False, [0, 1, 2, 3])):
        request.infer([np.array(condition), _packed(codes, kind)])
        np.testing.assert_array_equal(_codes(request.get_output_tensor(0)), codes[rows])
        np.testing.assert_array_equal(request.get_output_tensor(1).data, _values(codes[rows], kind))


@pytest.mark.parametrize("kind", BITS)
def test_a_transpose_that_is_packed_behind(shared_core: Core, kind: str) -> None:
    """OpenVINO would move it behind the conversion."""
    codes = np.random.default_rng(3).integers(0, 1 << BITS[kind], (4, 8))
    data = ops.parameter([4, 8], np.float32)
    packed = ops.convert(ops.transpose(data, _numbers(1, 0)), kind)
    request = shared_core.compile_model(ov.Model([packed], [data], "m"), "NPU").create_infer_request()
    request.infer([_values(codes, kind)])
    np.testing.assert_array_equal(_codes(request.get_output_tensor(0)), codes.T)


def test_bits_that_are_computed_are_refused(shared_core: Core) -> None:
    data = ops.parameter([16], np.float32)
    model = ov.Model([ops.convert(ops.convert(data, "u1"), "f32")], [data], "m")
    with pytest.raises(CompileError, match="element type u1 that is computed"):
        shared_core.compile_model(model, "NPU")

"""Out-of-range indices: an error or one of the model's own values, never engine memory."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from openvino import opset13 as ops
from openvino import opset15

from softnpu.plugin import Core
from tests.openvino.index_models import CASES, DATA, SIZES, VALUES, Case, Shape
from tests.support.daemon import Daemon

Array = npt.NDArray[Any]
F32 = {"INFERENCE_PRECISION_HINT": "f32"}


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
    with pytest.raises(RuntimeError, match=r"ScatterElements|VariadicSplit|Pad|RegionYolo"):
        request.infer([np.zeros(small, np.float32)])
    assert np.array_equal(request.infer([numbers])[0], expected)
    with pytest.raises(
        RuntimeError, match=r"\((ScatterElementsUpdate|VariadicSplit|Pad|RegionYolo)\): .*expected"
    ):
        shared_core.compile_model(compiled(small), "NPU").create_infer_request()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", VALUES)
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


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("lengths", [None, [1, -1], [2, 2]], ids=["an input", "the rest", "all"])
def test_a_split_along_an_axis_that_is_computed(
    shared_core: Core, lengths: list[int] | None, dynamic: bool
) -> None:
    data = ops.parameter([-1, -1] if dynamic else [4, 4], np.float32)
    axis, given = ops.parameter([], np.int32), ops.parameter([2], np.int64)
    parts = ops.variadic_split(data, axis, given if lengths is None else ops.constant(lengths)).outputs()
    inputs = [data, axis, *([given] if lengths is None else [])]
    model = ov.Model([ops.result(each) for each in parts], inputs, "m")
    request = shared_core.compile_model(model, "NPU", {"NPU_BATCH_MODE": "COMPILER"}).create_infer_request()

    def parts_of(number: int, sizes: list[int]) -> list[Array]:
        further = [np.array(sizes)] if lengths is None else []
        return [np.array(each) for each in request.infer([DATA, np.int32(number), *further]).to_tuple()]

    for number in (1, 0, -1, -2):
        for sizes in [lengths] if lengths else [[1, 3], [3, -1]]:
            cut = np.split(DATA, [sizes[0]], number)
            for found, expected in zip(parts_of(number, sizes), cut, strict=True):
                np.testing.assert_array_equal(found, expected)
    for number in (2, -3, 1_000_000, -5_000_000):
        with pytest.raises(RuntimeError, match="VariadicSplit"):
            parts_of(number, lengths or [1, 3])
    if lengths is None:
        with pytest.raises(RuntimeError, match="VariadicSplit"):
            parts_of(0, [5, -1])


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

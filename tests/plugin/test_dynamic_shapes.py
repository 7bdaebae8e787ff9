"""Dynamic shapes in the plugin: any allowed shape in every inference, with the CPU device's numbers."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openvino import opset15 as ops

from softnpu.plugin import CompiledModel, CompileError, Core, InferError, InferRequest, InputError
from softnpu.plugin.requests.dynamic_tensors import EAGER_BYTES, FIRST_BYTES
from tests.support.cases import case
from tests.support.daemon import Daemon
from tests.support.dynamic import by_compiler, data_dependent, named, non_zero, pair, relu, source, total
from tests.support.waiting import wait_until

Array = npt.NDArray[Any]
Pair = tuple[CompiledModel, ov.InferRequest]


@pytest.fixture
def core(shared_core: Core) -> Core:
    return shared_core


def check(request: InferRequest, cpu: ov.InferRequest, inputs: Sequence[Array]) -> None:
    """Infer on both; compare type, shape and bits of all outputs."""
    found = request.infer(list(inputs))
    expected = cpu.infer(list(inputs))
    for index in range(len(request.model_outputs)):
        assert found[index].dtype == expected[index].dtype
        assert found[index].shape == expected[index].shape
        assert tuple(request.get_output_tensor(index).shape) == expected[index].shape
        np.testing.assert_array_equal(found[index], expected[index])


# ---------------------------------------------------------------- ports


def test_ports_show_the_bounds(core: Core) -> None:
    compiled = by_compiler(core, non_zero("[1..8,?,3..]"))
    assert compiled.input(0).partial_shape == ov.PartialShape("[1..8,?,3..]")
    assert compiled.output("places").partial_shape == ov.PartialShape("[3,?]")
    assert [len(compiled.inputs), len(compiled.outputs)] == [1, 1]
    assert compiled.input(0).partial_shape.is_dynamic


def test_bounds_can_be_given_when_compiling(core: Core, private_dir: Path) -> None:
    path = private_dir / "relu.xml"
    ov.serialize(relu([3, 16]), path)
    for model in (relu([3, 16]), path):
        for shapes in ({"x": ["1..8", -1]}, {"x": "[1..8,?]"}, {"x": ov.PartialShape("[1..8,?]")}):
            compiled = by_compiler(core, model, shapes=shapes)
            assert compiled.input(0).partial_shape == ov.PartialShape("[1..8,?]")
            assert compiled(np.full((2, 5), -1, np.float32))[0].tolist() == [[0] * 5] * 2
    kept = relu([3, 16])
    core.compile_model(kept, "NPU", shapes={"x": [-1, 16]})
    assert kept.inputs[0].partial_shape.is_static, "the model of the user was changed"


def test_invalid_bounds_are_refused(core: Core) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"x": ["1..8", "much"]}, r"input 'x'.*much.*1\.\.8"),
        ({"z": [-1, 16]}, r"input 'z'.*'x'"),
        ({"x": [-1, -1, -1]}, r"\[\?,\?,\?\]"),
    ]
    for shapes, words in cases:
        with case(shapes, words):
            x = source([1, 3, 8, 8])
            kernel = np.ones((1, 3, 3, 3), np.float32)
            picture = ops.convolution(x, kernel, [1, 1], [0, 0], [0, 0], [1, 1])
            model = ov.Model([named(picture, "y")], [x], "pictures")
            with pytest.raises(CompileError, match=words):
                core.compile_model(model, "NPU", shapes=shapes)


def test_upper_bounds_as_a_static_shape(core: Core) -> None:
    config = {"NPU_DYNAMIC_SHAPE_TO_STATIC": True}
    compiled = core.compile_model(relu("[1..8,16]"), "NPU", config | {"NPU_BATCH_MODE": "COMPILER"})
    assert compiled.input(0).shape == ov.Shape([8, 16])
    assert compiled.get_property("NPU_DYNAMIC_SHAPE_TO_STATIC") is True
    with pytest.raises(CompileError, match=r"input 'x'.*\[\?,16\].*upper bound"):
        core.compile_model(relu("[?,16]"), "NPU", config | {"NPU_BATCH_MODE": "COMPILER"})


@pytest.mark.parametrize("mode", ["AUTO", "COMPILER"])
def test_an_exported_and_imported_model_stays_dynamic(core: Core, mode: str) -> None:
    exported = io.BytesIO()
    core.compile_model(non_zero("[1..8,?]"), "NPU", {"NPU_BATCH_MODE": mode}).export_model(exported)
    imported = core.import_model(exported.getvalue(), "NPU")
    assert imported.input("x").partial_shape == ov.PartialShape("[1..8,?]")
    for shape in ((2, 3), (8, 100)):
        assert imported(np.ones(shape, np.float32))[0].shape == (2, shape[0] * shape[1])
    with pytest.raises(InputError, match=r"input 'x': .* expected float32\[1\.\.8,\?\]"):
        imported(np.ones((9, 1), np.float32))


# ---------------------------------------------------------------- numbers

_SHAPES = st.lists(
    st.tuples(st.integers(1, 8), st.integers(1, 8)), min_size=1, max_size=6
)  # several inferences per request: one shape must leave nothing behind for the next


def _elementwise() -> ov.Model:
    x = source("[1..8,1..8]")
    return ov.Model([named(ops.tanh(ops.multiply(x, np.float32(0.5))), "y"), named(x, "same")], [x], "e")


def _matmul() -> ov.Model:
    x = source("[?,?]")
    square = ops.matmul(x, x, False, True)
    return ov.Model([named(ops.softmax(square, 1), "y"), named(ops.shape_of(square), "shape")], [x], "m")


def _reshape() -> ov.Model:
    x = source("[1..8,1..8]")
    flat = ops.reshape(x, np.array([-1], np.int64), False)
    turned = ops.transpose(x, np.array([1, 0], np.int64))
    return ov.Model([named(flat, "flat"), named(turned, "turned")], [x], "r")


def _top() -> ov.Model:
    x = source("[?,?]")
    count = ops.gather(ops.shape_of(x), np.int64(1), np.int64(0))
    top = ops.topk(x, count, 1, "max", "value")
    return ov.Model([named(top, "values", 0), named(top, "places", 1)], [x], "t")


def _tied() -> ov.Model:
    x, y = source("[?,1..8]"), source("[?,1..8]", "y")
    return ov.Model([named(ops.concat([x, ops.add(x, y)], 0), "z")], [x, y], "tied")


_MODELS = [_elementwise, _matmul, _reshape, data_dependent, _top, _tied]


@pytest.mark.parametrize("make", _MODELS)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(shapes=_SHAPES, seed=st.integers(0, 1000))
def test_results_equal_the_cpu_device_in_any_order_of_shapes(
    lasting: Callable[[Callable[[], ov.Model]], Pair],
    make: Callable[[], ov.Model],
    shapes: list[tuple[int, int]],
    seed: int,
) -> None:
    compiled, cpu = lasting(make)
    random = np.random.default_rng(seed)
    request = compiled.create_infer_request()
    for shape in shapes:
        inputs = [random.integers(-2, 3, shape).astype(np.float32) for _ in compiled.inputs]
        check(request, cpu, inputs)


@pytest.fixture
def lasting(core: Core) -> Iterator[Callable[[Callable[[], ov.Model]], Pair]]:
    """Compiled once for all examples of a test."""
    made: dict[Any, Pair] = {}

    def lasting(make: Callable[[], ov.Model]) -> Pair:
        if make not in made:
            made[make] = pair(core, make())
        return made[make]

    yield lasting
    made.clear()


def test_empty_tensors(core: Core) -> None:
    compiled, cpu = pair(core, non_zero("[?,?]"))
    request = compiled.create_infer_request()
    for shape in ((0, 4), (3, 0), (2, 2), (0, 0)):
        check(request, cpu, [np.ones(shape, np.float32)])


# ---------------------------------------------------------------- tensors


def test_inputs_are_used_in_place_and_nothing_is_staged(core: Core) -> None:
    compiled = by_compiler(core, relu("[1..8,16]"))
    request = compiled.create_infer_request()
    tensor = request.get_tensor("x")
    address = tensor.data.ctypes.data if tensor.data.size else None
    for rows in (3, 8, 1):
        tensor.shape = [rows, 16]
        tensor.data[:] = -1
        tensor.data[0] = rows
        request.infer()
        assert request.get_tensor("y").data[:, 0].tolist() == [rows] + [0] * (rows - 1)
        assert address in {None, tensor.data.ctypes.data}
    assert request.get_tensor("x") is tensor
    assert compiled.staged_bytes == 0


def test_device_tensors_of_any_size_are_used_in_place(core: Core) -> None:
    compiled = by_compiler(core, relu("[1..8,16]"))
    request = compiled.create_infer_request()
    for rows in (2, 5):
        memory = compiled.context.alloc_host(rows * 64)
        memory.view(np.float32)[:] = rows
        request.set_tensor("x", ov.Tensor(memory.view(np.uint8), ov.Shape([rows, 16]), ov.Type.f32))
        request.infer()
        assert (request.get_tensor("y").data == rows).all()
        assert tuple(request.get_tensor("y").shape) == (rows, 16)
    assert compiled.staged_bytes == 0


def test_foreign_tensors_are_staged_and_counted(core: Core) -> None:
    compiled = by_compiler(core, relu("[?,16]"))
    request = compiled.create_infer_request()
    result = ov.Tensor(ov.Type.f32, ov.Shape([0, 16]))
    request.set_tensor("y", result)
    staged = 0
    for rows in (2, 700, 5):
        request.set_tensor("x", ov.Tensor(np.full((rows, 16), rows, np.float32)))
        request.infer()
        staged += 2 * rows * 64
        assert tuple(result.shape) == (rows, 16)
        assert (result.data == rows).all()
        assert compiled.staged_bytes == staged


def test_a_foreign_output_that_cannot_take_the_result_is_an_error(core: Core) -> None:
    compiled = by_compiler(core, relu("[?,16]"))
    request = compiled.create_infer_request()
    request.set_tensor("y", ov.Tensor(np.zeros((2, 16), np.float32), shared_memory=True))
    with pytest.raises(InferError, match=r"output 'y'.*\[3, 16\].*larger"):
        request.infer(np.ones((3, 16), np.float32))
    assert (request.infer(np.ones((2, 16), np.float32))[0] == 1).all()


def test_a_device_output_stays_inside_the_users_tensor(core: Core) -> None:
    """Two outputs in one allocation: the first one's memory ends where the second begins."""
    x = source("[?]")
    model = ov.Model([named(ops.relu(x), "a"), named(ops.negative(x), "b")], [x], "two")
    compiled = by_compiler(core, model)
    request = compiled.create_infer_request()
    memory = compiled.context.alloc_host(128).view(np.uint8)
    memory[:] = 0xAA
    request.set_tensor("a", ov.Tensor(memory[:64], ov.Shape([16]), ov.Type.f32))
    request.set_tensor("b", ov.Tensor(memory[64:], ov.Shape([16]), ov.Type.f32))
    request.infer(np.ones(16, np.float32))
    assert (memory[:64].view(np.float32) == 1).all()
    assert (memory[64:].view(np.float32) == -1).all()
    assert compiled.staged_bytes == 64 + 64, "the input, and what could not be used in place"
    with pytest.raises(InferError):
        request.infer(np.ones(17, np.float32))
    assert (memory[64:].view(np.float32) == -1).all()


def test_a_large_upper_bound_takes_no_memory_until_needed(core: Core, shared_daemon: Daemon) -> None:
    compiled = by_compiler(core, relu("[..100000,100000]"))  # 37 GiB at most
    before = shared_daemon.memory_used()
    request = compiled.create_infer_request()
    assert shared_daemon.memory_used() - before < 4 * EAGER_BYTES
    assert (request.infer(np.ones((3, 100000), np.float32))[0] == 1).all()


def test_only_an_output_that_grows_is_rerun_and_only_once(core: Core, shared_daemon: Daemon) -> None:
    compiled = by_compiler(core, non_zero("[?]"))
    request = compiled.create_infer_request()
    fits, too_large = FIRST_BYTES // 8, FIRST_BYTES // 8 + 1
    before = shared_daemon.engine()

    def runs_and_faults(expected: int) -> int:
        """How many submissions since then were run, and how many of them failed."""
        wait_until(lambda: shared_daemon.engine().submissions == before.submissions + expected)
        return shared_daemon.engine().faults - before.faults

    request.infer(np.ones(fits, np.float32))
    assert runs_and_faults(1) == 0
    assert request.infer(np.ones(too_large, np.float32))[0].shape == (1, too_large)
    assert runs_and_faults(3) == 1
    request.infer(np.ones(2 * fits, np.float32))
    assert runs_and_faults(4) == 1, "memory did not double"


# ---------------------------------------------------------------- bad input


def test_a_shape_outside_the_bounds_is_refused_before_anything_happens(
    core: Core, shared_daemon: Daemon
) -> None:
    for shape in [(0, 16), (9, 16), (3, 17), (3, 16, 1), (48,)]:
        with case(shape):
            compiled = by_compiler(core, total("[1..8,16]"))
            request = compiled.create_infer_request()
            good = np.full((2, 16), 5, np.float32)
            before = shared_daemon.engine().submissions
            request.infer([good, good])
            bad = np.zeros(shape, np.float32)
            with pytest.raises(InputError) as error:
                request.infer([np.zeros((2, 16), np.float32), bad])
            assert f"input 'y': float32{list(shape)} given; expected float32[1..8,16]" in str(error.value)
            assert (request.get_tensor("x").data == 5).all(), "the other input was taken"
            with pytest.raises(InputError, match="input 'y'"):
                request.set_tensor("y", ov.Tensor(bad))
            with pytest.raises(InputError, match=r"input 'y': shape .* given; expected \[1\.\.8,16\]"):
                request.get_tensor("y").shape = list(shape)
            request.get_tensor("y").shape = [2, 16]
            request.infer()
            wait_until(lambda count=before + 2: shared_daemon.engine().submissions == count)  # type: ignore[misc]


def test_a_dimension_with_contradicting_bounds_behaves_as_on_the_cpu_device(
    core: Core, shared_daemon: Daemon
) -> None:
    rows = source("[1..9,2]")
    backwards = ops.slice(rows, *(ops.constant(np.array([each])) for each in (0, -2, -1, 0)))
    model = ov.Model([ops.result(backwards)], [rows], "slice")
    assert model.outputs[0].partial_shape[0].get_min_length() < 0
    compiled, cpu = pair(core, model)
    engine = shared_daemon.engine().engine_pid
    check(compiled.create_infer_request(), cpu, [np.ones((4, 2), np.float32)])
    with pytest.raises(InferError, match="shapes fit each other"):
        compiled([np.ones((1, 2), np.float32)])
    assert shared_daemon.engine().engine_pid == engine


def test_a_tensor_that_was_reshaped_later_is_refused_on_use(core: Core) -> None:
    compiled = by_compiler(core, relu("[1..8,?]"))
    request = compiled.create_infer_request()
    tensor = ov.Tensor(np.ones((8, 16), np.float32))
    request.set_tensor("x", tensor)
    tensor.shape = ov.Shape([16, 8])
    with pytest.raises(InputError, match=r"input 'x': f32\[16, 8\] given; expected f32\[1\.\.8,\?\]"):
        request.infer()
    tensor.shape = ov.Shape([4, 32])
    request.infer()
    assert tuple(request.get_tensor("y").shape) == (4, 32)


def test_an_own_tensor_that_is_too_small_gives_a_hint(core: Core) -> None:
    request = by_compiler(core, relu("[?,?]")).create_infer_request()
    tensor = request.get_tensor("x")
    with pytest.raises(InputError, match=r"input 'x': shape \[1000, 1000\].*Give the array to infer"):
        tensor.shape = [1000, 1000]
    assert (request.infer(np.ones((1000, 1000), np.float32))[0] == 1).all()
    request.get_tensor("x").shape = [1000, 1000]  # it has grown
    assert request.get_tensor("x").byte_size == 4_000_000

"""`CompiledModel` and `InferRequest`: ports, tensors in place, counted copies, many threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.plugin import CompiledModel, Core, InferRequest, InputError
from tests.support.cases import case
from tests.support.daemon import Daemon

LEFT = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
RIGHT = np.array([[10, 20, 30], [40, 50, 60]], np.float32)


pytestmark = pytest.mark.quick


@pytest.fixture
def compiled(shared_core: Core, two_by_two: ov.Model) -> CompiledModel:
    return shared_core.compile_model(two_by_two)


@pytest.fixture
def request_(compiled: CompiledModel) -> InferRequest:
    return compiled.create_infer_request()


def test_ports_have_the_names_shapes_and_types_of_the_model(
    compiled: CompiledModel, two_by_two: ov.Model
) -> None:
    for found, expected in ((compiled.inputs, two_by_two.inputs), (compiled.outputs, two_by_two.outputs)):
        assert [port.get_names() for port in found] == [port.get_names() for port in expected]
        assert [port.shape for port in found] == [port.shape for port in expected]
        assert [port.element_type for port in found] == [port.element_type for port in expected]
    assert compiled.input("right").any_name == "right"
    assert compiled.output(1).any_name == "double"


def test_inputs_by_name_index_order_or_port(request_: InferRequest, two_by_two: ov.Model) -> None:
    for inputs in [{"left": LEFT, "right": RIGHT}, {0: LEFT, 1: RIGHT}, [LEFT, RIGHT], (LEFT, RIGHT), None]:
        with case(inputs):
            ports = {request_.model_inputs[0]: LEFT, two_by_two.inputs[1]: RIGHT}
            results = request_.infer(ports if inputs is None else inputs)
            np.testing.assert_array_equal(results["total"], LEFT + RIGHT)
            np.testing.assert_array_equal(results["sum"], results[0])
            np.testing.assert_array_equal(results[1], LEFT * 2)
            assert list(results) == request_.model_outputs


def test_writing_into_a_tensor_sets_the_input_without_a_copy(
    request_: InferRequest, compiled: CompiledModel, shared_daemon: Daemon
) -> None:
    before = shared_daemon.engine().staged_bytes
    request_.get_tensor("left").data[:] = LEFT
    request_.get_input_tensor(1).data[:] = RIGHT
    request_.infer({"left": request_.get_tensor("left").data})
    np.testing.assert_array_equal(request_.get_output_tensor(0).data, LEFT + RIGHT)
    assert (compiled.staged_bytes, shared_daemon.engine().staged_bytes) == (0, before)
    request_.infer([LEFT.copy(), RIGHT])
    assert compiled.staged_bytes == LEFT.nbytes + RIGHT.nbytes, "foreign arrays are copied"


def test_a_tensor_of_another_request_is_used_in_place(compiled: CompiledModel) -> None:
    first, second = compiled.create_infer_request(), compiled.create_infer_request()
    first.get_tensor("left").data[:] = LEFT
    first.get_tensor("right").data[:] = RIGHT
    first.infer()
    second.set_tensor("left", first.get_tensor("total"))
    second.set_tensor("right", first.get_tensor("double"))
    np.testing.assert_array_equal(second.infer()["total"], LEFT * 3 + RIGHT)
    assert compiled.staged_bytes == 0


def test_a_foreign_tensor_is_copied_in_every_inference(
    request_: InferRequest, compiled: CompiledModel
) -> None:
    mine, out = LEFT.copy(), np.zeros((2, 3), np.float32)
    request_.set_tensor("left", ov.Tensor(mine, shared_memory=True))
    request_.set_tensor("total", ov.Tensor(out, shared_memory=True))
    request_.get_tensor("right").data[:] = RIGHT
    for factor in (1, 2):
        mine[:] = LEFT * factor
        request_.infer()
        np.testing.assert_array_equal(out, LEFT * factor + RIGHT)
    assert compiled.staged_bytes == 2 * (mine.nbytes + out.nbytes)


def _read_only(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    array.flags.writeable = False
    return array


# shared as it is, and forms that OpenVINO copies once
ARRAYS: dict[str, Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]] = {
    "whole": lambda base: base[:2],
    "part": lambda base: base[1:3],
    "read-only": lambda base: _read_only(base[:2]),
    "transposed": lambda base: np.ascontiguousarray(base[:2].T).T,
}


def test_every_inference_rereads_a_shared_array(
    request_: InferRequest, reference: ov.Core, two_by_two: ov.Model
) -> None:
    for share in [True, False]:
        for form, array in ARRAYS.items():
            with case(form, share):
                expected = reference.compile_model(two_by_two, "CPU").create_infer_request()
                for request in (request_, expected):
                    base = np.zeros((4, 3), np.float32)
                    request.infer({"left": array(base), "right": RIGHT}, share_inputs=share)
                    base[:] = 7
                    request.start_async()
                    request.wait()
                np.testing.assert_array_equal(
                    request_.get_tensor("total").data, expected.get_tensor("total").data, strict=True
                )


def test_an_unshared_array_is_copied_into_the_tensor(
    request_: InferRequest, reference: ov.Core, two_by_two: ov.Model
) -> None:
    found = []
    cpu = reference.compile_model(two_by_two, "CPU").create_infer_request()
    for request in (request_, cpu):
        shared, other = LEFT.copy(), RIGHT.copy()
        request.infer([shared, RIGHT.copy()], share_inputs=True)
        request.infer([other, RIGHT.copy()], share_inputs=False)
        found.append((shared.tolist(), request.get_tensor("total").data.tolist()))
    assert found[0] == found[1]


def test_results_are_copies_unless_they_are_shared(request_: InferRequest) -> None:
    copied = request_.infer([LEFT, RIGHT])["total"]
    shared = request_.infer([RIGHT, RIGHT], share_outputs=True)["total"]
    np.testing.assert_array_equal(copied, LEFT + RIGHT)
    request_.infer([LEFT, LEFT])
    np.testing.assert_array_equal(copied, LEFT + RIGHT)
    np.testing.assert_array_equal(shared, LEFT * 2)


def test_shared_results_stay_those_of_their_tensors_before_they_are_read(request_: InferRequest) -> None:
    shared = request_.infer([LEFT, RIGHT], share_outputs=True)
    assert len(shared) == 2
    other = request_.get_compiled_model().create_infer_request()
    request_.set_tensor("total", other.get_tensor("total"))
    request_.infer([RIGHT, RIGHT])
    np.testing.assert_array_equal(shared["total"], LEFT + RIGHT)


def test_a_view_outlives_its_request_and_model(shared_core: Core, two_by_two: ov.Model) -> None:
    core = shared_core
    compiled = core.compile_model(two_by_two)
    view = compiled([LEFT, RIGHT], share_outputs=True)[0]
    unread = compiled([LEFT, RIGHT], share_outputs=True)
    del compiled
    others = [core.compile_model(two_by_two)([RIGHT, RIGHT])[0] for _ in range(3)]
    np.testing.assert_array_equal(view, LEFT + RIGHT)
    np.testing.assert_array_equal(unread[0], LEFT + RIGHT)
    np.testing.assert_array_equal(others[2], RIGHT * 2)


def test_a_wrong_input_is_refused_and_changes_nothing(request_: InferRequest) -> None:
    cases: list[tuple[Any, str]] = [
        ([LEFT] * 3, "3 inputs given; expected at most 2"),
        (LEFT, "one array given; expected 2"),
        ([LEFT, RIGHT[:1]], "input 'right': float32.1, 3. given; expected float32.2, 3."),
        ([LEFT, RIGHT.astype(np.float64) * 1e300], "float64.*expected float32.*, in which all values fit"),
        ([LEFT, RIGHT.astype(np.complex64)], "input 'right': complex64.*expected float32"),
        ([LEFT, None], "input 'right': NoneType given; expected a tensor, an array or a number"),
        ({"lefd": LEFT}, "no input 'lefd'; expected one of 0 'left', 1 'right'"),
        ({2: LEFT}, "no input 2"),
    ]
    for inputs, says in cases:
        with case(inputs, says):
            request_.infer([LEFT, RIGHT])
            with pytest.raises(InputError, match=says):
                request_.infer(inputs)
            np.testing.assert_array_equal(request_.infer()["total"], LEFT + RIGHT)


def test_numbers_of_another_type_are_accepted_if_they_fit(shared_core: Core) -> None:
    x = ops.parameter([3], ov.Type.i32, name="x")
    request = shared_core.compile_model(
        ov.Model([ops.result(ops.add(x, x))], [x], "doubled")
    ).create_infer_request()
    for share in (False, True):
        for kind in (np.int64, np.uint8, np.uint64, np.float32):
            assert list(request.infer([np.array([1, 2, 200], kind)], share_inputs=share)[0]) == [2, 4, 400]
        assert list(request.infer([np.array([True, False, True])], share_inputs=share)[0]) == [2, 0, 2]
        for wrong in ([1, 2, 1 << 31], [1.5, 2, 3], [np.nan, 2, 3]):
            with pytest.raises(InputError, match=r"'x': (int|float)64.*expected int32\[3\], in which all "):
                request.infer([np.array(wrong)], share_inputs=share)


def test_a_tensor_of_the_wrong_shape_or_type_is_refused(request_: InferRequest) -> None:
    for wrong in (np.zeros((3, 2), np.float32), np.zeros((2, 3), np.int32)):
        with pytest.raises(InputError, match="input 'left'"):
            request_.set_tensor("left", ov.Tensor(wrong))
    with pytest.raises(InputError, match="no port 'middle'"):
        request_.get_tensor("middle")


def test_many_requests_from_many_threads(compiled: CompiledModel) -> None:
    start = threading.Barrier(8)

    def work(number: int) -> bool:
        request = compiled.create_infer_request()
        left = LEFT * number
        start.wait(30)
        return all(np.array_equal(request.infer([left, RIGHT])["total"], left + RIGHT) for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_dropped_requests_and_models_release_their_memory(
    core: Core, two_by_two: ov.Model, daemon: Daemon
) -> None:
    core.compile_model(two_by_two)([LEFT, RIGHT])
    before = daemon.engine()
    for _ in range(5):
        compiled = core.compile_model(two_by_two)
        requests = [compiled.create_infer_request() for _ in range(4)]
        for request in requests:
            request.infer([LEFT, RIGHT])
        del requests, request, compiled
    after = daemon.engine()
    assert (after.memory_used, after.graphs, after.queues) == (
        before.memory_used,
        before.graphs,
        before.queues,
    )
    assert after.images == before.images

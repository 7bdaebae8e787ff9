"""Requests with states in use: busy, failed, cancelled, restarted, exported, many at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset6
from openvino import opset13 as ops

from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.driver.graph_creation import import_blob
from softnpu.plugin import (
    AsyncInferQueue,
    CompiledModel,
    Core,
    InferCancelled,
    InferError,
    InferRequest,
    NpuError,
)
from softnpu.plugin.loaded_model import LoadedModel
from tests.support import stateful
from tests.support.daemon import Daemon
from tests.support.stateful import held, only
from tests.support.waiting import wait_until

ONE = np.ones(3, np.float32)


# ---------------------------------------------------------------- busy, failed, cancelled, lost


def test_states_of_a_busy_request_cannot_be_changed(shared_core: Core) -> None:
    request = shared_core.compile_model(stateful.running_sum()).create_infer_request()
    request.infer([ONE])
    with held(request):
        request.start_async([ONE])
        state = only(request)
        for change in (state.reset, request.reset_state, lambda: setattr(state, "state", ov.Tensor(ONE))):
            with pytest.raises(InferError, match="busy"):
                change()
        assert list(state.state.data) == [1, 1, 1]  # unchanged since before the inference
    request.wait()
    assert list(state.state.data) == [2, 2, 2]


def test_a_failed_inference_leaves_the_state_unchanged(shared_core: Core) -> None:
    request = shared_core.compile_model(stateful.row_writer(8)).create_infer_request()
    row = np.ones((1, 1024), np.float32)
    request.infer([row, np.array([2], np.int32)])
    kept = only(request).state.data.copy()
    place = int(only(request).state.data.ctypes.data)
    for _ in range(3):
        with pytest.raises(InferError, match="ScatterUpdate"):
            request.infer([row, np.array([99], np.int32)])
        np.testing.assert_array_equal(only(request).state.data, kept)
        assert int(only(request).state.data.ctypes.data) == place
    assert request.infer([row, np.array([1], np.int32)])["y"][0, 0] == 2
    assert list(only(request).state.data[:, 0]) == [0, 1, 1, 0, 0, 0, 0, 0]


def test_a_cancelled_inference_leaves_the_state_unchanged(shared_core: Core) -> None:
    request = shared_core.compile_model(stateful.running_sum()).create_infer_request()
    request.infer([ONE])
    with held(request):
        request.start_async([ONE * 100])
        request.cancel()
    with pytest.raises(InferCancelled):
        request.wait()
    assert list(only(request).state.data) == [1, 1, 1]
    assert request.infer([ONE])["y"][0] == 2


def test_the_initial_value_computed_for_a_failed_inference_is_discarded(shared_core: Core) -> None:
    request = shared_core.compile_model(stateful.row_writer(4, computed=True)).create_infer_request()
    row = np.ones((1, 1024), np.float32)
    with pytest.raises(InferError, match="ScatterUpdate"):
        request.infer([row, np.array([99], np.int32)])
    assert not only(request).state.data.any()
    assert request.infer([row * 5, np.array([1], np.int32)])["y"][0, 0] == 10
    assert only(request).state.data[:, 0].tolist() == [5, 5, 5, 5]


def test_states_survive_the_death_of_the_engine(core: Core, daemon: Daemon) -> None:
    request = core.compile_model(stateful.running_sum()).create_infer_request()
    for step in range(1, 6):
        if step in {2, 4}:
            daemon.kill_engine()
        assert request.infer([ONE])["y"][0] == step


# ---------------------------------------------------------------- initial values that are computed


def test_the_initial_graph_runs_once_after_a_reset(core: Core, daemon: Daemon) -> None:
    request = core.compile_model(stateful.beginning_as_input()).create_infer_request()
    x, gain = np.ones((2, 3), np.float32), np.ones(1, np.float32)

    def inferences(reset: bool) -> int:
        if reset:
            request.reset_state()
        before = daemon.engine().inferences
        request.infer([x, gain])
        wait_until(lambda: daemon.engine().inferences > before, what="the inference counted")
        return daemon.engine().inferences - before

    assert [inferences(step in {3, 6}) for step in range(8)] == [2, 1, 1, 2, 1, 1, 2, 1]


def test_only_the_reset_state_is_recomputed(shared_core: Core) -> None:
    model = stateful.two_computed()
    compiled = shared_core.compile_model(model)
    steps = stateful.random_steps(compiled, 12)
    resets = {3: "a", 5: "b", 6: "c", 7: "b", 9: ""}
    assert stateful.run(compiled.create_infer_request(), steps, resets) == stateful.on_cpu(
        model, steps, resets
    )


def test_a_blob_needs_the_graph_that_computes_its_initial_values(shared_core: Core) -> None:
    compiled = shared_core.compile_model(stateful.two_computed())
    executable = compiled._executable
    assert executable.initial is not None
    main, initial = (
        import_blob(compiled.context, graph.get_native_binary())
        for graph in (executable.graph, executable.initial)
    )
    other = shared_core.compile_model(stateful.beginning_as_input())._executable.initial
    with pytest.raises(NpuError, match="computes variable 'a'"):
        LoadedModel.of(compiled.context, main, compiled._properties)
    with pytest.raises(NpuError, match="'x' is no such input"):
        LoadedModel.of(compiled.context, main, compiled._properties, initial=other)
    loaded = LoadedModel.of(compiled.context, main, compiled._properties, initial=initial)
    again = CompiledModel(loaded)
    steps = stateful.random_steps(compiled, 6)
    assert stateful.run(again.create_infer_request(), steps, {3: ""}) == stateful.run(
        compiled.create_infer_request(), steps, {3: ""}
    )


# ---------------------------------------------------------------- with everything else


@pytest.mark.parametrize("make", [stateful.two_variables, stateful.two_computed])
def test_an_exported_model_keeps_its_states(shared_core: Core, make: Callable[[], ov.Model]) -> None:
    model = make()
    compiled = shared_core.compile_model(model)
    exported = compiled.export_model()
    assert exported is not None
    again = shared_core.import_model(exported.getvalue())
    assert [state.name for state in again.query_state()] == [state.name for state in compiled.query_state()]
    assert [port.any_name for port in again.inputs] == [port.any_name for port in compiled.inputs]
    steps = stateful.random_steps(compiled, 8)
    assert stateful.run(again.create_infer_request(), steps, {5: ""}) == stateful.on_cpu(
        model, steps, {5: ""}
    )


def test_a_queue_of_requests_has_states_for_each(shared_core: Core) -> None:
    queue = AsyncInferQueue(shared_core.compile_model(stateful.running_sum()), 3)
    requests = list(queue)
    done = [0] * len(requests)

    def count(request: InferRequest, _: Any) -> None:
        done[requests.index(request)] += 1

    queue.set_callback(count)
    for _ in range(30):
        queue.start_async([ONE])
    queue.wait_all()
    assert sum(done) == 30
    assert [only(request).state.data[0] for request in requests] == done
    wait_until(
        lambda: not [one for one in threading.enumerate() if one.name.startswith("callbacks of")],
        what="the end of the thread of the callbacks",
    )


def test_computed_initial_values_and_profiles(shared_core: Core) -> None:
    compiled = shared_core.compile_model(stateful.beginning_as_input(), "NPU", {"PERF_COUNT": "YES"})
    request = compiled.create_infer_request()
    x, gain = np.ones((2, 3), np.float32), np.ones(1, np.float32)
    assert [request.infer([x, gain])["y"][0, 0] for _ in range(3)] == [11, 12, 13]
    assert request.profiling_info


@pytest.mark.parametrize("make", [stateful.running_sum, stateful.beginning_as_input])
def test_states_of_a_late_loaded_model(shared_core: Core, make: Callable[[], ov.Model]) -> None:
    compiled = shared_core.compile_model(make(), "NPU", {"NPU_DEFER_WEIGHTS_LOAD": "YES"})
    assert compiled.load_ms == 0
    steps = stateful.random_steps(compiled, 4)
    found = stateful.run(compiled.create_infer_request(), steps)
    assert found == stateful.on_cpu(make(), steps)


def test_inputs_of_any_length_with_a_state_of_a_fixed_one(shared_core: Core) -> None:
    x = stateful.source([-1, 3])
    state = stateful.read(None, "s", x, [3])
    total = ops.add(ops.reduce_sum(x, ops.constant([0]), keep_dims=False), state)
    assign = opset6.assign(total, "s")
    y = stateful.named(ops.multiply(x, total), "y")
    model = stateful.model({"y": y}, [assign], [x], "any_length")
    requests = [
        shared_core.compile_model(model).create_infer_request(),
        ov.Core().compile_model(model, "CPU", stateful.CPU).create_infer_request(),
    ]
    for rows in (2, 5, 1, 9, 9, 3):
        data = np.random.default_rng(rows).random((rows, 3), np.float32)
        found = [request.infer([data])[0].tobytes() for request in requests]
        assert found[0] == found[1]
        assert only(requests[0]).state.data.tobytes() == only(requests[1]).state.data.tobytes()


def test_states_of_a_model_from_the_drivers_cache(
    core: Core, private_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_CACHE_DIR, str(private_dir / "cache"))
    path = private_dir / "cached.xml"
    ov.serialize(stateful.two_computed(), path)
    first, second = (core.compile_model(path) for _ in range(2))
    assert not first.get_property("LOADED_FROM_CACHE")
    assert second.get_property("LOADED_FROM_CACHE")
    steps = stateful.random_steps(first, 5)
    one, two = (stateful.run(each.create_infer_request(), steps, {3: ""}) for each in (first, second))
    assert one == two == stateful.on_cpu(path, steps, {3: ""})


def test_the_memory_of_a_request_is_released(core: Core, daemon: Daemon) -> None:
    compiled = core.compile_model(stateful.two_computed())

    def used() -> int:
        request = compiled.create_infer_request()
        for step in range(6):
            if step == 3:
                request.reset_state()
            request.infer([np.ones(4, np.float32)])
        return daemon.memory_used()

    used()
    assert len({used() for _ in range(5)}) == 1

"""Infer requests of models with a split batch: any number of samples, in place, many at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openvino as ov
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openvino import opset13 as ops

from softnpu.plugin import CompiledModel, Core, InferCancelled, InputError
from softnpu.plugin.batch.port_check import batch_mismatch
from tests.conftest import StartDaemon
from tests.support.batches import (
    F32,
    columns_net,
    conv_net,
    matmul_net,
    model_of,
    on_cpu,
    parameter,
    random,
    same,
    weights,
)
from tests.support.daemon import Daemon

WEIGHTS = weights(6, 4)


def _product(data: Any) -> Any:
    return data @ WEIGHTS


@pytest.fixture
def core(shared_core: Core) -> Core:
    return shared_core


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


@pytest.fixture
def product(core: Core) -> CompiledModel:
    """[N,6] times a matrix: [N,4]."""
    x = parameter("x", [-1, 6], "NC")
    return core.compile_model(model_of(ops.matmul(x, ops.constant(WEIGHTS), False, False), x), "NPU", F32)


@pytest.fixture
def sums(core: Core) -> CompiledModel:
    """left [N,3] and right [3,N]: their sum [N,3]."""
    left, right = parameter("left", [-1, 3], "NC"), parameter("right", [3, -1], "CN")
    total = ops.add(left, ops.transpose(right, ops.constant([1, 0])))
    return core.compile_model(model_of(total, left, right, name="sums"), "NPU", F32)


def _close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------ tensors


def test_a_static_model_starts_with_its_own_batch_and_accepts_others(core: Core, daemon: Daemon) -> None:
    model, before = matmul_net(4), daemon.engine().staged_bytes
    compiled = core.compile_model(model, "NPU", F32)
    request = compiled.create_infer_request()
    assert list(request.get_tensor("x").shape) == [4, 6]
    assert list(request.get_tensor("y").shape) == [4, 4]
    data = random(4, 6)
    request.get_tensor("x").data[:] = data
    same(request.infer(), on_cpu(model, [data]))
    assert (compiled.staged_bytes, daemon.engine().staged_bytes) == (0, before)
    for count in (9, 1, 4):
        data = random(count, 6)
        same(request.infer([data]), on_cpu(model, [data]))
        assert list(request.get_tensor("y").shape) == [count, 4]


def test_the_device_copies_only_samples_with_gaps(core: Core, product: CompiledModel, daemon: Daemon) -> None:
    first, second = product.create_infer_request(), product.create_infer_request()
    data, before = random(5, 6), daemon.engine().staged_bytes
    first.infer([data])
    copied = product.staged_bytes
    second.set_tensor("x", first.get_tensor("x"))
    out = first.get_tensor("y")
    second.set_tensor("y", out)
    out.data[:] = 0
    second.infer()
    _close(out.data, _product(data))
    assert product.staged_bytes == copied == data.nbytes
    assert daemon.engine().staged_bytes == before
    core.compile_model(columns_net(), "NPU", F32)([random(6, 3)])
    assert daemon.engine().staged_bytes - before == (6 * 3 + 4 * 3) * 4


def test_an_output_tensor_for_another_batch_is_refused_and_nothing_runs(
    product: CompiledModel, daemon: Daemon
) -> None:
    out = np.zeros((3, 4), np.float32)
    request = product.create_infer_request()
    request.set_tensor("y", ov.Tensor(out, shared_memory=True))
    before = daemon.engine().inferences
    with pytest.raises(InputError, match=r"output 'y' is a tensor of shape \[3, 4\].*batch of 2.*\[2, 4\]"):
        request.infer([random(2, 6)])
    assert daemon.engine().inferences == before
    data = random(3, 6)
    request.infer([data])
    _close(out, _product(data))


def test_batches_outside_the_bounds_are_refused(core: Core) -> None:
    compiled = core.compile_model(matmul_net(ov.Dimension(1, 4)), "NPU", F32)
    assert compiled.get_property("BATCH_MODE") == "PLUGIN"
    compiled([random(4, 6)])
    with pytest.raises(InputError, match=r"input 'x'.*\[5, 6\] given; expected .*\[1..4,6\]"):
        compiled([random(5, 6)])


# ------------------------------------------------------------ number of samples


def test_inputs_with_different_batches_are_refused_before_any_effect(sums: CompiledModel) -> None:
    request = sums.create_infer_request()
    left, right = random(2, 3), random(3, 2, seed=6)
    request.infer([left, right])
    copied = sums.staged_bytes
    says = r"model 'sums', batch: 4 of input 'left' \(axis 0\), 5 of input 'right' \(axis 1\)"
    with pytest.raises(InputError, match=says):
        request.infer([random(4, 3), random(3, 5)])
    with pytest.raises(InputError, match=r"4 of input 'left' \(axis 0\), 2 of input 'right' \(axis 1\)"):
        request.infer({"left": random(4, 3)})
    assert sums.staged_bytes == copied
    _close(request.infer()[0], left + right.T)


def test_an_empty_batch_is_refused(product: CompiledModel) -> None:
    request = product.create_infer_request()
    says = r"input 'x': shape \[0, 6\], 0 on axis 0, that of the batch; expected at least 1"
    with pytest.raises(InputError, match=says):
        request.infer()
    with pytest.raises(InputError, match=says):
        request.infer([np.zeros((0, 6), np.float32)])
    with pytest.raises(InputError, match=says):
        request.set_tensor("x", ov.Tensor(np.zeros((0, 6), np.float32)))
    data = random(2, 6)
    _close(request.infer([data])[0], _product(data))


def test_more_samples_than_commands_fit_are_refused(core: Core, daemon: Daemon) -> None:
    x = parameter("x", [-1, 1], "NC", ov.Type.u8)
    compiled = core.compile_model(model_of(ops.add(x, ops.constant(np.uint8(1))), x), "NPU", F32)
    before = daemon.engine().submissions
    with pytest.raises(InputError, match=r"200000 samples; expected at most .*Infer in parts"):
        compiled([np.zeros((200_000, 1), np.uint8)])
    assert daemon.engine().submissions == before


# ------------------------------------------------------------ concurrency


def test_the_same_batch_again_allocates_nothing_and_records_nothing(
    product: CompiledModel, daemon: Daemon
) -> None:
    request = product.create_infer_request()
    request.infer([random(8, 6)])
    memory, list_ = daemon.memory_used(), request._recording.prepare()
    for _ in range(20):
        request.infer([random(8, 6)])
    assert request._recording.prepare() is list_
    assert daemon.memory_used() == memory
    request.infer([random(3, 6)])
    assert request._recording.prepare() is not list_


def test_many_threads_with_different_batches(product: CompiledModel) -> None:
    start = threading.Barrier(6)

    def work(number: int) -> None:
        request = product.create_infer_request()
        start.wait(30)
        for step in range(15):
            data = random(1 + (number + step) % 7, 6, seed=step)
            _close(request.infer([data])[0], _product(data))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


def test_a_batch_can_be_cancelled_between_its_samples(core: Core) -> None:
    compiled = core.compile_model(conv_net(-1), "NPU", F32, shapes={"x": [-1, 3, 256, 256]})
    request = compiled.create_infer_request()
    request.infer([random(200, 3, 256, 256)])
    for _ in range(5):  # on a busy machine all samples may end before this thread goes on
        request.get_tensor("y").data[:] = np.nan
        request.start_async()
        request.cancel()
        with pytest.raises(InferCancelled):
            request.wait()
        if np.isnan(request.get_tensor("y").data[-1]).all():
            break
    else:
        pytest.fail("all samples were computed")
    assert not np.isnan(request.infer()[0]).any()


def test_a_batch_survives_a_reset_of_the_device(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    core = Core(daemon.socket)
    request = core.compile_model(matmul_net(-1), "NPU", F32).create_infer_request()
    data = random(4, 6)
    before = request.infer([data])[0]
    daemon.kill_engine()
    daemon.wait_restarted(1)
    np.testing.assert_array_equal(request.infer([data])[0], before)
    np.testing.assert_array_equal(request.infer([data[:2]])[0], before[:2])
    core.unload_plugin()


# ------------------------------------------------------------ profiles, files


def test_the_profile_sums_over_the_samples(core: Core) -> None:
    compiled = core.compile_model(conv_net(-1), "NPU", {**F32, "PERF_COUNT": "YES"})
    request = compiled.create_infer_request()
    profiler = request._recording.profiler
    assert profiler is not None
    layers = {}
    for count, scale in ((1, 1.0), (20, 20 / 8), (3, 1.0)):
        request.infer([random(count, 3, 8, 8)])
        info = request.get_profiling_info()
        layers[count] = [(layer.node_name, layer.node_type) for layer in info]
        spent = sum(layer.duration_ns for query in profiler.queries[:count] for layer in query.layers())
        told = sum(layer.real_time.total_seconds() for layer in info)
        assert told * 1e9 == pytest.approx(spent * scale, abs=1e3 * len(info))
    assert layers[1] == layers[20] == layers[3]


def test_an_exported_model_is_dynamic_again(core: Core) -> None:
    model = columns_net()
    stream = BytesIO()
    core.compile_model(model, "NPU", F32).export_model(stream)
    stream.seek(0)
    imported = core.import_model(stream, "NPU")
    assert [str(port.partial_shape) for port in (*imported.inputs, *imported.outputs)] == ["[6,?]", "[4,?]"]
    assert imported.inputs[0].node.layout == ov.Layout("CN")
    assert imported.get_property("BATCH_MODE") == "PLUGIN"
    for count in (5, 2):
        data = random(6, count)
        same(imported([data]), on_cpu(model, [data]))


def test_the_cache_directory_keeps_models_of_different_batches_apart(core: Core, private_dir: Path) -> None:
    config = {**F32, "CACHE_DIR": str(private_dir / "cache")}
    model = conv_net(-1)
    for _ in range(2):
        for batch in (4, 8):
            compiled = core.compile_model(model, "NPU", config, shapes={"x": [batch, 3, 8, 8]})
            assert str(compiled.inputs[0].partial_shape) == f"[{batch},3,8,8]"
            assert compiled.get_property("BATCH_MODE") == "PLUGIN"
            data = random(3, 3, 8, 8)
            same(compiled([data]), on_cpu(model, [data]))


def test_the_batch_of_a_file_must_match_its_graph(core: Core) -> None:
    compiled = core.compile_model(columns_net(), "NPU", F32)
    good, meta = compiled._executable.signature, compiled.meta
    assert batch_mismatch(good, meta) == ""
    port, out = good.inputs[0], good.outputs[0]
    for inputs, outputs, batch in (
        ((port,), (out,), ""),
        ((msgspec.structs.replace(port, batch_axis=-1),), (out,), "?"),
        ((port,), (msgspec.structs.replace(out, batch_axis=-1),), "?"),
        ((msgspec.structs.replace(port, batch_axis=0),), (out,), "?"),
        ((msgspec.structs.replace(port, batch_axis=2),), (out,), "?"),
        ((msgspec.structs.replace(port, per_sample=0),), (out,), "?"),
        ((msgspec.structs.replace(port, per_sample=2),), (out,), "?"),
        ((msgspec.structs.replace(port, shape="[7,?]"),), (out,), "?"),
        ((msgspec.structs.replace(port, shape="[6,?,1]"),), (out,), "?"),
        ((msgspec.structs.replace(port, shape="[6"),), (out,), "?"),
    ):
        bad = msgspec.structs.replace(good, inputs=inputs, outputs=outputs, batch=batch)
        assert batch_mismatch(bad, meta), bad


def test_throughput_of_a_dynamic_batch_is_measured_with_one_sample(core: Core) -> None:
    compiled = core.compile_model(conv_net(-1), "NPU", {**F32, "NPU_MEASURE_OPTIMAL_REQUESTS": "YES"})
    assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") in {1, 2, 4, 8}


# ------------------------------------------------------------ any model, any batch


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    axis=st.integers(0, 3),
    count=st.integers(1, 6),
    static=st.booleans(),
    operation=st.sampled_from(["softmax", "reduce", "flatten", "transpose", "scale"]),
)
def test_results_equal_the_real_batch(
    shared_core: Core, sizes: list[int], axis: int, count: int, static: bool, operation: str
) -> None:
    axis = min(axis, len(sizes))
    shape = [*sizes[:axis], 3 if static else -1, *sizes[axis:]]
    letters = list("CHWD"[: len(sizes)])
    x = parameter("x", shape, "".join([*letters[:axis], "N", *letters[axis:]]))
    inner = (axis + 1) % len(shape)
    made = {
        "softmax": lambda: ops.softmax(x, inner),
        "reduce": lambda: ops.reduce_sum(x, ops.constant([inner]), False),
        "flatten": lambda: ops.reshape(
            ops.transpose(x, ops.constant([axis, *(a for a in range(len(shape)) if a != axis)])),
            ops.constant([0, -1]),
            True,
        ),
        "transpose": lambda: ops.transpose(x, ops.constant(list(range(len(shape)))[::-1])),
        "scale": lambda: ops.multiply(x, ops.constant(np.float32(3))),
    }[operation]()
    model = model_of(made, x)
    compiled = shared_core.compile_model(model, "NPU", F32)
    assert compiled.get_property("BATCH_MODE") == "PLUGIN"
    shape[axis] = count
    data = random(*shape)
    same(compiled([data]), on_cpu(model, [data]))

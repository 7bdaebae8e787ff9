"""Models with own kernels: compiled, run, exported; a kernel's failure ends its inference alone."""

from __future__ import annotations

import os
import re
import signal
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnx.helper
import openvino as ov
import openvino.opset13 as op
import psutil
import pytest

from softnpu.emulator.blob import kernel_plan
from softnpu.emulator.blob.container import BlobReader, Section, pack
from softnpu.emulator.blob.kernel_plan import KernelRun, Part, Value
from softnpu.plugin import CompiledModel, Core, InferCancelled, NpuError
from softnpu.plugin.models import kernels
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.kernels import EACH, ONE, added, elementwise, kernel
from tests.support.waiting import wait_until

_X = np.arange(-512, 512, dtype=np.float32).reshape(1, 1024) / 64
_TRAPS = "(if (f32.eq (local.get 0) (f32.const 7)) (then (unreachable))) (local.get 0)"
_LONG = """(local $turns i32)
  (loop $next (br_if $next (i32.lt_u (local.tee $turns (i32.add (local.get $turns) (i32.const 1)))
    (i32.const 400000))))
  (f32.mul (local.get 0) (f32.const 2))"""
_MANY = 300
_HANGS = "(loop $next (br $next)) (local.get 0)"


def _model(twice: Any) -> ov.Model:
    """Two kernels behind each other, and a part that reads before, between and after them."""
    x = op.parameter([1, 1024], np.float32, "x")
    x.output(0).set_names({"x"})
    before = op.add(x, op.constant(np.float32(1)))
    first = twice([before.output(0)])
    between = op.relu(first.output(0))
    second = twice([between.output(0)])
    third = twice([second.output(0)])
    total = op.add(op.add(third, between), before)
    return ov.Model([op.result(total), op.result(first.output(0))], [x], "with kernels")


def _expected(x: Any) -> tuple[Any, Any]:
    before = x + 1
    between = np.maximum(2 * before, 0)
    return 8 * between / 2 + between + before, 2 * before


def _one_kernel(operation: Any) -> ov.Model:
    x = op.parameter([1, 1024], np.float32, "x")
    x.output(0).set_names({"x"})
    return ov.Model([op.result(operation([x.output(0)]).output(0))], [x], "one kernel")


def _check(compiled: CompiledModel) -> None:
    found = compiled([_X])
    for port, right in zip(compiled.outputs, _expected(_X), strict=True):
        assert np.array_equal(found[port], right)


def _kernels_process(daemon: Daemon) -> psutil.Process:
    (found,) = (
        each
        for each in psutil.Process(daemon.pid).children()
        if "softnpu.emulator.kernels.wasm_process" in each.cmdline()
    )
    return found


def test_a_model_is_right_in_memory_in_a_file_imported_and_from_the_cache(
    daemon: Daemon, tmp_path: Path
) -> None:
    core = Core(daemon.socket)
    twice = added(core, tmp_path, elementwise("Twice"))
    model = _model(twice)
    compiled = core.compile_model(model, "NPU", {"PERF_COUNT": "YES"})
    _check(compiled)
    ov.save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
    for _ in range(2):
        from_file = core.compile_model(tmp_path / "model.xml", "NPU", {"CACHE_DIR": str(tmp_path / "cache")})
        _check(from_file)
    assert from_file.get_property("LOADED_FROM_CACHE")
    compiled.export_model(tmp_path / "model.blob")
    kernels._added.clear()  # it travels in the blob
    _check(Core(daemon.socket).import_model(tmp_path / "model.blob"))
    request = compiled.create_infer_request()
    request.get_tensor("x").data[:] = _X
    before = compiled.staged_bytes
    request.infer()
    assert compiled.staged_bytes == before  # all tensors fill pages
    rows = [each for each in request.get_profiling_info() if each.node_type == "Twice"]
    assert [each.exec_type for each in rows] == ["SW"] * 3
    assert all(timedelta() < each.cpu_time <= each.real_time for each in rows)
    core.unload_plugin()


def test_a_model_without_its_weights_is_right(daemon: Daemon, tmp_path: Path) -> None:
    core = Core(daemon.socket)
    twice = added(core, tmp_path, elementwise("Twice"))
    x = op.parameter([1, 64], np.float32, "x")
    weights = np.arange(4096, dtype=np.float32).reshape(64, 64)
    before = op.multiply(x, op.constant(weights))
    after = op.subtract(twice([before.output(0)]), op.constant(weights.T.copy()))
    ov.save_model(
        ov.Model([op.result(after)], [x], "weights"), tmp_path / "model.xml", compress_to_fp16=False
    )
    compiled = core.compile_model(tmp_path / "model.xml", "NPU", {"ENABLE_WEIGHTLESS": "YES"})
    compiled.export_model(tmp_path / "model.blob")
    assert (tmp_path / "model.blob").stat().st_size < weights.nbytes * 2
    given = {"WEIGHTS_PATH": str(tmp_path / "model.bin")}
    for each in (compiled, core.import_model(tmp_path / "model.blob", "NPU", given)):
        assert np.array_equal(each([_X[:, :64]])[0], 2 * _X[:, :64] * weights - weights.T)
    core.unload_plugin()


def test_a_trap_ends_its_inference_with_the_kernels_name(daemon: Daemon, tmp_path: Path) -> None:
    core = Core(daemon.socket)
    compiled = core.compile_model(_one_kernel(added(core, tmp_path, elementwise("Traps", _TRAPS))))
    assert np.array_equal(compiled([_X * 0 + 3])[0], _X * 0 + 3)
    with pytest.raises(NpuError, match=r"kernel tests\.Traps: .*unreachable.* in one at \+0x"):
        compiled([_X * 0 + 7])
    assert np.array_equal(compiled([_X * 0 + 3])[0], _X * 0 + 3)
    assert daemon.engine().restarts == 0
    core.unload_plugin()


def test_a_kernel_that_does_not_end_is_ended(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon(tdr_ms=2000)
    core = Core(daemon.socket)
    model = _one_kernel(added(core, tmp_path, elementwise("Hangs", _HANGS)))
    by_default = core.compile_model(model)
    core.compile_model(model, "NPU", {"NPU_KERNEL_TIMEOUT_MS": 50}).export_model(tmp_path / "model.blob")
    asked = core.import_model(tmp_path / "model.blob")
    assert asked.get_property("NPU_KERNEL_TIMEOUT_MS") == 50
    for compiled, limit in ((by_default, 1000), (asked, 50)):
        with pytest.raises(
            NpuError, match=rf"tests\.Hangs: still running at its deadline.* within {limit} ms"
        ):
            compiled([_X])
    assert daemon.engine().restarts == 0
    with pytest.raises(NpuError, match="NPU_KERNEL_TIMEOUT_MS: 1001; expected at most 1000, half"):
        core.compile_model(model, "NPU", {"NPU_KERNEL_TIMEOUT_MS": 1001})
    core.unload_plugin()


@pytest.mark.soak
def test_many_kernels_may_take_longer_than_a_command_without_progress(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """Five seconds of kernels: with a shorter limit a busy machine would reach the deadline of one."""
    core = Core(start_daemon(tdr_ms=4000).socket)
    body = _LONG.replace("400000", "50000").replace("(f32.mul (local.get 0) (f32.const 2))", "(local.get 0)")
    long = added(core, tmp_path, elementwise("Short", body))
    x = op.parameter([1, 1024], np.float32, "x")
    made = x
    for _ in range(_MANY):
        made = long([made.output(0)])
    request = core.compile_model(ov.Model([op.result(made)], [x], "many")).create_infer_request()
    assert np.array_equal(request.infer([_X])[0], _X)
    core.unload_plugin()


def test_a_kernel_that_hangs_can_be_cancelled(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon(tdr_ms=20_000)
    core = Core(daemon.socket)
    twice = core.compile_model(_one_kernel(added(core, tmp_path, elementwise("Twice"))))
    hangs = core.compile_model(_one_kernel(added(core, tmp_path, elementwise("Hangs", _HANGS))))
    assert np.array_equal(twice([_X])[0], 2 * _X)
    process = _kernels_process(daemon)
    used = sum(process.cpu_times()[:2])
    request = hangs.create_infer_request()
    request.start_async([_X])
    wait_until(lambda: sum(process.cpu_times()[:2]) > used, what="the kernel to run")
    request.cancel()
    with pytest.raises(InferCancelled):
        request.wait()
    assert np.array_equal(twice([_X])[0], 2 * _X)
    assert daemon.engine().restarts == 0
    core.unload_plugin()


def test_the_death_of_the_kernels_process_is_not_noticed(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon(tdr_ms=20_000)
    core = Core(daemon.socket)
    compiled = core.compile_model(_one_kernel(added(core, tmp_path, elementwise("Long", _LONG))))
    request = compiled.create_infer_request()
    request.infer([_X])
    for is_running in (False, True):
        process = _kernels_process(daemon)
        if is_running:
            used = sum(process.cpu_times()[:2])
            request.start_async([_X])
            wait_until(lambda: sum(process.cpu_times()[:2]) > used, what="the kernel to run")  # noqa: B023
        process.send_signal(signal.SIGKILL)
        if not is_running:
            request.start_async([_X])
        request.wait()
        assert np.array_equal(request.get_output_tensor().data, 2 * _X)
    assert daemon.engine().restarts == 0
    core.unload_plugin()


def test_an_engines_death_is_not_noticed(daemon: Daemon, tmp_path: Path) -> None:
    core = Core(daemon.socket)
    compiled = core.compile_model(_model(added(core, tmp_path, elementwise("Twice"))))
    _check(compiled)
    os.kill(daemon.engine().engine_pid, signal.SIGKILL)
    _check(compiled)
    core.unload_plugin()


def test_inferences_of_several_threads_do_not_mix(daemon: Daemon, tmp_path: Path) -> None:
    core = Core(daemon.socket)
    compiled = core.compile_model(_model(added(core, tmp_path, elementwise("Twice"))))
    wrong: list[int] = []

    def work(number: int) -> None:
        request = compiled.create_infer_request()
        for turn in range(20):
            x = _X + number + turn
            found = request.infer([x])
            if not np.array_equal(found[compiled.outputs[0]], _expected(x)[0]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert wrong == []
    core.unload_plugin()


def test_a_model_of_onnx_has_kernels(daemon: Daemon, tmp_path: Path) -> None:
    core = Core(daemon.socket)
    attribute = {"name": "a", "kind": "number", "default": 1.0}
    module = kernel(EACH, more=ONE.format("(f32.neg (local.get 0))"), name="Turned", attributes=[attribute])
    added(core, tmp_path, module)
    x, z = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 1024]) for name in "xz")
    nodes = [
        onnx.helper.make_node("Turned", ["x"], ["y"], domain="tests", a=2.0),
        onnx.helper.make_node("Relu", ["y"], ["z"]),
    ]
    versions = [onnx.helper.make_opsetid("", 13), onnx.helper.make_opsetid("tests", 1)]
    graph = onnx.helper.make_graph(nodes, "graph", [x], [z])
    onnx.save(onnx.helper.make_model(graph, opset_imports=versions), tmp_path / "model.onnx")
    assert np.array_equal(core.compile_model(tmp_path / "model.onnx")([_X])[0], np.maximum(-_X, 0))
    core.unload_plugin()


def test_a_daemon_without_kernels_refuses_them(start_daemon: StartDaemon, tmp_path: Path) -> None:
    core = Core(start_daemon(kernels="none").socket)
    operation = added(core, tmp_path, elementwise("Twice"))
    with pytest.raises(NpuError, match=r"kernel tests\.Twice, sha256 \w+; expected none.* --kernels none"):
        core.compile_model(_one_kernel(operation))
    core.unload_plugin()


def _with_another_output(step: Any) -> Any:
    outputs = (*step.outputs, 2)
    return msgspec.structs.replace(step, outputs=outputs) if isinstance(step, KernelRun) else step


_PLANS: dict[str, dict[str, Any]] = {
    "no kernels": {"modules": ()},
    "too many kernels": {"modules": (b"",) * 17},
    "an unknown value": {"parameters": (9,)},
    "another value": {"values": (Value("f32", (1, 2)), Value("f32", (1, 1024)))},
    "a huge value": {"values": (Value("f32", (1, 1024)),) * 2 + (Value("f32", (1 << 31, 8)),)},
    "more values than inputs": {"parameters": (1, 1, 1)},
    "a kernel that is none": {"modules": (b"no",)},
    "a step before its time": {"steps": lambda steps: steps[::-1]},
    "a step twice": {"steps": lambda steps: (*steps, steps[0])},
    "a missing step": {"steps": lambda steps: steps[:-1]},
    "a port that is none": {"steps": (Part(inputs=(7,), outputs=(0,)),)},
    "a kernel with another output": {
        "values": lambda values: (*values, values[0]),
        "steps": lambda steps: tuple(map(_with_another_output, steps)),
    },
    "a kernel beyond": {"steps": (KernelRun(kernel=3, name="", inputs=(), outputs=()),)},
}


def test_a_plan_that_does_not_fit_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    core = Core(daemon.socket)
    model = _one_kernel(added(core, tmp_path, elementwise("Twice")))
    core.compile_model(model, "NPU", {"NPU_EXPORT_RAW_BLOB": "YES"}).export_model(tmp_path / "model.blob")
    reader = BlobReader((tmp_path / "model.blob").read_bytes())
    plan = kernel_plan.read(reader)
    assert plan is not None
    sections: dict[Section, bytes | memoryview] = {
        Section(kind): reader.read(Section(kind)) for kind, _, _ in reader.sections
    }
    for what, chosen in _PLANS.items():
        changes: dict[str, Any] = {
            name: value(getattr(plan, name)) if callable(value) else value for name, value in chosen.items()
        }
        sections[Section.KERNELS] = msgspec.msgpack.encode(msgspec.structs.replace(plan, **changes))
        with pytest.raises(NpuError) as raised:
            core.import_model(pack(sections), "NPU", {"NPU_IMPORT_RAW_BLOB": "YES"})
        assert re.search(
            "section KERNELS|begins with 6e 6f|with 1 inputs and 2 outputs", str(raised.value)
        ), what
    assert daemon.engine().restarts == 0
    core.unload_plugin()


def test_what_a_kernel_cannot_do_is_refused_by_name(daemon: Daemon, tmp_path: Path) -> None:
    core = Core(daemon.socket)
    given = added(
        core,
        tmp_path,
        kernel(
            EACH, more=ONE.format("(local.get 0)"), name="Given", attributes=[{"name": "a", "kind": "number"}]
        ),
    )
    with pytest.raises(Exception, match=r"kernel tests\.Given: no attribute a; expected one, a number"):
        _one_kernel(given)
    x = op.parameter([-1, 4], np.float32, "x")
    with pytest.raises(Exception, match=r"kernel tests\.Given: attribute b; expected one of: a"):
        given([x.output(0)], a=1.0, b=1.0)
    model = ov.Model([op.result(given([x.output(0)], a=np.float32(1)).output(0))], [x], "open")
    with pytest.raises(NpuError, match="expected a bound for every dimension"):
        core.compile_model(model)
    (tmp_path / "Given.wasm").write_bytes(elementwise("Given"))
    with pytest.raises(NpuError, match=r"another tests\.Given is there"):
        core.add_extension(tmp_path / "Given.wasm")
    (tmp_path / "no.wasm").write_bytes(b"no")
    with pytest.raises(NpuError, match="a file that begins with 6e 6f"):
        core.add_extension(tmp_path / "no.wasm")
    kernels._added.clear()
    with pytest.raises(NpuError, match=r"unsupported opset: tests; .* needs its kernel: Core\(\)"):
        core.compile_model(model, shapes={"x": [1, 4]})
    core.unload_plugin()

"""Kernels that are Python functions: in models, in a process of the program, and what ends them."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as op
import psutil
import pytest

import softnpu
from softnpu.emulator.kernels import patterns
from softnpu.emulator.kernels.errors import KernelError
from softnpu.plugin import Core, InferCancelled, ModelError, NpuError, openvino_runtime
from softnpu.plugin.models import kernels
from softnpu.plugin.models.functions import kernel
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.dynamic import named, source
from tests.support.waiting import wait_gone, wait_until

_X = np.arange(1024, dtype=np.float32).reshape(1, 1024)


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(openvino_runtime, "_extended", openvino_runtime.is_extended())
    yield
    kernels._added.clear()


def _model(function: Any, *more: Any, shape: tuple[int, ...] = (1, 1024), **attributes: Any) -> ov.Model:
    x: Any = op.parameter(list(shape), np.float32, "x")
    x.output(0).set_names({"x"})
    y = op.relu(function.operation([op.add(x, op.constant(np.float32(1))).output(0), *more], **attributes))
    return ov.Model([op.result(y)], [x], "a function")


def _helper(function: Any) -> psutil.Process:
    """Return the helper of a function, which computes in its child."""
    (helper,) = (each for each in function._helpers.values() if each.is_running)
    return psutil.Process(helper.pid)


class _Endless:
    """An array that is never computed."""

    def __array__(self, *_arguments: Any, **_keywords: Any) -> Any:
        while True:
            pass


@kernel("tests.Affine", "f32[...] -> f32[...]", "f16[...] -> f16[...]")
def affine(x: Any, a: float, b: float = 0.0) -> Any:
    """Compute a line."""
    return a * x + b


@kernel("tests.Parts", "f32[n, c] -> f32[n, c // 2], f32[n, c // 2 + k]")
def parts(x: Any, k: int = 3, *, out: Any) -> None:
    """Fill two outputs in place."""
    first, second = out
    first[...] = x[:, : first.shape[1]]
    second[...] = k


@kernel("tests.Wild", "f32[...] -> f32[...]")
def wild(x: Any) -> Any:
    """Do what the first element says."""
    match int(x.flat[0]):
        case 2:
            raise LookupError("no such thing")
        case 3:
            return x[:, 1:]
        case 4:
            while True:
                pass
        case 5:
            try:
                while True:
                    pass
            except BaseException:  # noqa: BLE001
                time.sleep(60)
        case 6:
            x.flat[0] = 1
        case 7:
            return x.astype(str)
        case 8:
            os.kill(os.getpid(), signal.SIGKILL)
        case 9:
            open("/etc/hostname", "w").close()
        case 10:
            os.fork()
        case 11:
            raise SystemExit
        case 13:
            return _Endless()
        case 12:
            np.ones(2 << 30, np.uint8)
    return x


def test_a_function_is_an_operation_of_models(daemon: Daemon) -> None:
    core = Core(daemon.socket)
    core.add_extension(affine)
    assert affine(1, 2, 3) == 5
    assert vars(softnpu)["__getattr__"]("kernel") is kernel
    compiled = core.compile_model(_model(affine, a=2.0, b=-3.0), "NPU", {"PERF_COUNT": "YES"})
    request = compiled.create_infer_request()
    for turn in range(3):
        request.infer([_X + turn])
        assert np.array_equal(request.get_output_tensor().data, np.maximum(2 * (_X + turn + 1) - 3, 0))
    (row,) = (each for each in request.get_profiling_info() if each.node_type == "Affine")
    assert row.exec_type == "SW"
    with pytest.raises(NpuError, match=r"tests\.Affine is a Python function, which does not travel"):
        compiled.export_model()
    x: Any = op.parameter([1, 8], np.float32)
    plain = ov.Model([op.result(affine.operation([x.output(0)], a=2.0))], [x])
    blob = core.compile_model(plain)._loaded.graph.get_native_binary()
    with pytest.raises(NpuError, match=r"tests\.Affine, a Python function, which does not travel"):
        core.import_model(bytes(blob), "NPU", {"NPU_IMPORT_RAW_BLOB": "YES"})
    core.unload_plugin()


def test_outputs_are_written_in_place_and_counted_if_copied(daemon: Daemon) -> None:
    core = Core(daemon.socket)
    for each in (affine, parts):
        core.add_extension(each)
    x: Any = op.parameter([2, 2048], np.float32, "x")
    first, second = parts.operation([op.add(x, op.constant(np.float32(0))).output(0)]).outputs()
    model = ov.Model([op.result(op.relu(each)) for each in (first, second)], [x], "parts")
    values = np.random.default_rng(0).random((2, 2048), np.float32)
    for chosen, given, staged in ((model, values, 0), (_model(affine, a=1.0), _X, _X.nbytes)):
        compiled = core.compile_model(chosen)
        request = compiled.create_infer_request()
        request.get_input_tensor().data[:] = given
        before = daemon.engine().staged_bytes
        request.infer()
        assert daemon.engine().staged_bytes - before == staged
        if chosen is model:
            assert np.array_equal(request.get_output_tensor(0).data, values[:, :1024])
            assert np.array_equal(request.get_output_tensor(1).data, np.full((2, 1027), 3, np.float32))
    core.unload_plugin()


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (2, r"LookupError: no such thing, at test_function_kernels\.py:\d+ in wild "),
        (3, r"result y: float32 \[1, 1023\]; expected float32 \[1, 1024\]"),
        (4, r"still running at its deadline, at \S+ in wild; expected an end within 1000 ms"),
        (6, "ValueError: .*read-only, at "),
        (7, r"result y: <U\d+ \[1, 1024\]; expected float32"),
        (8, "its process ended"),
        (9, "PermissionError: .* at .* in wild"),
        (10, "PermissionError: .* at .* in wild"),
        (11, "SystemExit, at "),
        (13, r"still running at its deadline, at \S+ in __array__"),
        (12, r"\S*MemoryError: .* at .* in wild"),
    ],
)
def test_what_a_function_does_wrong_ends_its_inference_alone(daemon: Daemon, what: int, reason: str) -> None:
    core = Core(daemon.socket)
    core.add_extension(wild)
    compiled = core.compile_model(_model(wild))
    with pytest.raises(NpuError, match=rf"kernel tests\.Wild: {reason}") as raised:
        compiled([_X + what - 1])
    assert "Traceback" not in str(raised.value)
    assert np.array_equal(compiled([_X])[0], _X + 1)
    assert daemon.engine().restarts == 0
    core.unload_plugin()


def test_the_deaths_of_its_processes(daemon: Daemon) -> None:
    core = Core(daemon.socket)
    core.add_extension(affine)
    compiled = core.compile_model(_model(affine, a=2.0))
    expected = 2 * (_X + 1)
    helper = _helper(affine)
    (process,) = helper.children()
    process.kill()  # at rest: the next inference gets another one
    wait_gone(process.pid)  # until then, an inference that the kill meets fails
    assert np.array_equal(compiled([_X])[0], expected)
    daemon.kill_engine()
    assert np.array_equal(compiled([_X])[0], expected)
    processes = [helper, *helper.children()]
    helper.kill()
    for each in processes:
        wait_gone(each.pid)
    with pytest.raises(NpuError, match=r"kernel tests\.Affine: the process that runs it has ended.*Compile"):
        compiled([_X])
    compiled = core.compile_model(_model(affine, a=2.0))
    assert np.array_equal(compiled([_X])[0], expected)
    processes = [_helper(affine), *_helper(affine).children()]
    core.unload_plugin()
    for each in processes:
        wait_gone(each.pid)


def test_a_death_while_it_runs_is_an_error_with_its_name(daemon: Daemon) -> None:
    core = Core(daemon.socket)
    core.add_extension(wild)
    compiled = core.compile_model(_model(wild))
    request = compiled.create_infer_request()
    request.infer([_X])
    (process,) = _helper(wild).children()
    used = sum(process.cpu_times()[:2])
    request.start_async([_X + 3])
    wait_until(lambda: sum(process.cpu_times()[:2]) > used + 0.05, what="the function to run")
    process.kill()
    with pytest.raises(NpuError, match=r"kernel tests\.Wild: its process ended"):
        request.wait()
    assert np.array_equal(compiled([_X])[0], _X + 1)
    core.unload_plugin()


def test_a_function_that_cannot_be_interrupted_ends_with_its_process(
    start_daemon: StartDaemon, capfd: pytest.CaptureFixture[str]
) -> None:
    core = Core(start_daemon(tdr_ms=4000).socket)
    core.add_extension(wild)
    compiled = core.compile_model(_model(wild))
    with pytest.raises(NpuError, match=r"kernel tests\.Wild: its process ended"):
        compiled([_X + 4])
    assert re.search(r"Timeout .*most recent call first.*in wild", capfd.readouterr().err, re.DOTALL)
    assert np.array_equal(compiled([_X])[0], _X + 1)
    core.unload_plugin()


def test_a_later_function_of_the_same_signature_replaces_it(daemon: Daemon) -> None:
    core = Core(daemon.socket)
    factor = 2

    def times(x: Any) -> Any:
        return x * factor

    make = kernel("tests.Times", "f32[n, m] -> f32[n, m]")
    core.add_extension(make(times))
    before = core.compile_model(_model(make(times)))
    factor = 3
    core.add_extension(make(times))
    assert np.array_equal(core.compile_model(_model(make(times)))([_X])[0], 3 * (_X + 1))
    assert np.array_equal(before([_X])[0], 2 * (_X + 1))  # its process began before
    with pytest.raises(ModelError, match=r"another one is there.*expected the same"):
        core.add_extension(kernel("tests.Times", "f16[n] -> f16[n]")(times))
    with pytest.raises(Exception, match=r"input x \[1, 8, 4\]; expected \[n, m\]"):
        _model(make(times), shape=(1, 8, 4))
    core.unload_plugin()


def test_its_shapes_may_change(daemon: Daemon) -> None:
    core = Core(daemon.socket)
    for each in (affine, parts):
        core.add_extension(each)
    x = source("[1..4,2..64]")
    made = parts.operation([affine.operation([x.output(0)], a=2.0).output(0)], k=1)
    model = ov.Model([named(op.relu(made.output(0)), "first"), named(made, "second", 1)], [x], "open parts")
    compiled = core.compile_model(model)
    assert [str(each.partial_shape) for each in compiled.outputs] == ["[1..4,1..32]", "[1..4,2..33]"]
    for shape in ((2, 5), (4, 64), (1, 2), (2, 5)):
        given = np.random.default_rng(shape).standard_normal(shape, np.float32)
        found = compiled([given])
        assert np.array_equal(found["first"], np.maximum(2 * given[:, : shape[1] // 2], 0))
        assert np.array_equal(found["second"], np.ones((shape[0], shape[1] // 2 + 1), np.float32))
    core.unload_plugin()


def test_it_takes_the_place_of_an_operation(daemon: Daemon, tmp_path: Path) -> None:
    core = Core(daemon.socket)
    core.add_extension(kernel("tests.Elu", "f32[...] -> f32[...]")(lambda x, alpha=0.0: x - alpha))
    x = source("[1..2,8]")
    model = ov.Model([named(op.elu(x, 0.25), "y")], [x], "elu")
    config = {"NPU_KERNELS_FOR": "Elu=tests.Elu", "CACHE_DIR": str(tmp_path)}
    assert set(core.query_model(model, "NPU", {"NPU_KERNELS_FOR": "Elu=tests.Elu"}).values()) == {"NPU"}
    for _ in range(2):
        compiled = core.compile_model(model, "NPU", config)
        assert np.array_equal(compiled([_X[:, :8]])[0], _X[:, :8] - 0.25)
        assert not compiled.get_property("LOADED_FROM_CACHE")
    core.unload_plugin()


def test_a_cancelled_function_has_ended_before_the_next_one_begins(daemon: Daemon) -> None:
    core = Core(daemon.socket)
    core.add_extension(wild)
    compiled = core.compile_model(_model(wild), "NPU", {"NPU_KERNEL_TIMEOUT_MS": 600})
    request = compiled.create_infer_request()
    request.infer([_X])
    (process,) = _helper(wild).children()
    used = sum(process.cpu_times()[:2])
    request.start_async([_X + 3])
    wait_until(lambda: sum(process.cpu_times()[:2]) > used + 0.05, what="the function to run")
    request.cancel()
    with pytest.raises(InferCancelled):
        request.wait()
    assert np.array_equal(request.infer([_X])[0], _X + 1)
    assert process not in _helper(wild).children()  # it could write over what comes now
    with pytest.raises(NpuError, match="expected an end within 600 ms"):
        request.infer([_X + 3])
    core.unload_plugin()


def test_a_daemon_that_runs_listed_kernels_only_runs_no_function(start_daemon: StartDaemon) -> None:
    core = Core(start_daemon(kernels="signed").socket)
    core.add_extension(affine)
    with pytest.raises(NpuError, match=r"own kernel tests\.Affine, a Python function, which has no digest"):
        core.compile_model(_model(affine, a=2.0))
    core.unload_plugin()


_WRONG: dict[str, tuple[tuple[str, ...], Any, str]] = {
    "no signature": ((), lambda x: x, "no signature"),
    "no arrow": (("f32[n]",), lambda x: x, "expected INPUTS -> OUTPUTS"),
    "no shape": (("f32 -> f32[n]",), lambda x: x, "expected tensors such as"),
    "a type that numpy lacks": (("bf16[n] -> bf16[n]",), lambda x: x, "type 'bf16'"),
    "a power": (("f32[n] -> f32[n**n]",), lambda x: x, r"dimension 'n\*\*n'"),
    "an unknown name": (("f32[n] -> f32[m]",), lambda x: x, "dimension m; expected one of an input"),
    "a rest from nowhere": (("f32[n] -> f32[...]",), lambda x: x, "of an output"),
    "too few inputs": (("f32[n], f32[n] -> f32[n]",), lambda x: x, "expected 2 inputs first"),
    "any parameters": (("f32[n] -> f32[n]",), lambda *x: x, "expected 1 inputs first"),
    "an attribute of no kind": (("f32[n] -> f32[n]",), lambda a, b=None: (a, b), "attribute b=None"),
    "other numbers": (("f32[n] -> f32[n]", "f16[n], f16[n] -> f16[n]"), lambda x: x, "other numbers"),
}


@pytest.mark.parametrize("what", _WRONG)
def test_what_is_no_kernel_is_refused_where_it_is_declared(what: str) -> None:
    signatures, function, reason = _WRONG[what]
    with pytest.raises(ModelError, match=rf"kernel tests\.Wrong: .*{reason}"):
        kernel("tests.Wrong", *signatures)(function)


@pytest.mark.parametrize(
    ("signature", "inputs", "outputs"),
    [
        ("f32[...] -> f32[...]", [()], [()]),
        ("f32[n, ..., 4], f32[n] -> f32[..., 2 * n]", [(2, 5, 6, 4), (2,)], [(5, 6, 4)]),
        ("f32[n + 1], f32[n] -> f32[(n - 1) // 2]", [(8,), (7,)], [(3,)]),
        ("f32[n], f32[n] -> f32[n]", [(2,), (3,)], r"input b \[3\]; expected \[n\] with n = 2"),
        (
            "f32[...], f32[...] -> f32[...]",
            [(2,), (3,)],
            r"input b \[3\]; .* with \.\.\. = 2",
        ),
        ("f32[n, 3] -> f32[n]", [(2, 4)], r"input a \[2, 4\]; expected \[n, 3\]"),
        ("f32[n, m] -> f32[n - m]", [(2, 4)], "no negative dimension"),
        ("f32[n, m] -> f32[n // m]", [(2, 0)], "ZeroDivisionError"),
    ],
)
def test_signatures(signature: str, inputs: list[tuple[int, ...]], outputs: Any) -> None:
    function = (lambda a, b: a + b) if len(inputs) == 2 else (lambda a: a)
    described = kernel("tests.Any", signature)(function).description
    if isinstance(outputs, str):
        with pytest.raises(KernelError, match=outputs):
            patterns.output_shapes(described, 0, inputs, [])
    else:
        assert patterns.output_shapes(described, 0, inputs, []) == outputs

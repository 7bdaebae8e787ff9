"""`import softnpu.plugin as ov` in place of `import openvino as ov`: every name, the same calls."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import openvino
import pytest

import softnpu.plugin as ov
from softnpu.plugin import Core
from tests.support.cases import case
from tests.support.daemon import Daemon

LEFT = np.arange(6, dtype=np.float32).reshape(2, 3)
RIGHT = np.full((2, 3), 0.5, np.float32)
TENSOR = openvino.Tensor(np.zeros((2, 3), np.float32))
_CLASSES = ("Core", "CompiledModel", "InferRequest", "AsyncInferQueue")
_NOT_HERE = {
    # devices come from the daemon, and the plugin is this package
    "Core": {"register_plugin", "register_plugins"}
}


pytestmark = pytest.mark.quick


# ------------------------------------------------------------ names


def test_the_names_of_the_plugin_itself_are_these() -> None:
    errors = {
        "BlobError", "CompileError", "DeviceLostError", "InferCancelled", "InferError", "InputError",
        "ModelError", "NpuError", "PropertyError",
    }  # fmt: skip
    others = {
        "AsyncInferQueue", "CompiledModel", "Core", "FileDescriptor", "InferRequest", "MemType",
        "RemoteContext", "RemoteTensor", "Results", "TensorType", "VariableState", "compile_model",
    }  # fmt: skip
    assert set(ov.__all__) == errors | others
    assert all(issubclass(getattr(ov, name), RuntimeError) for name in errors)


def _public(module: ModuleType) -> list[str]:
    return [name for name in dir(module) if not name.startswith("_")]


def test_every_public_name_of_openvino_is_there() -> None:
    assert [name for name in _public(openvino) if not hasattr(ov, name)] == []
    assert set(_public(openvino)) <= set(dir(ov))
    assert (ov.__version__, ov.get_version()) == (openvino.__version__, openvino.get_version())


def test_every_property_of_openvino_is_there() -> None:
    for ours, theirs in (
        (ov.properties, openvino.properties),
        (ov.properties.hint, openvino.properties.hint),
        (ov.properties.intel_npu, openvino.properties.intel_npu),
    ):
        names = [name for name in _public(theirs) if not hasattr(ours, name)]
        assert names == []
    assert ov.properties.enable_profiling(True)[0] == "PERF_COUNT"
    assert ov.properties.intel_npu.turbo(True)[0] == "NPU_TURBO"
    assert ov.properties.hint.PerformanceMode is openvino.properties.hint.PerformanceMode


def test_submodules_can_be_imported() -> None:
    names = ("preprocess", "opset13", "properties.hint", "properties.device", "properties.log", "utils", "op")
    for module in names:
        with case(module):
            theirs = importlib.import_module(f"openvino.{module}")
            assert importlib.import_module(f"softnpu.plugin.{module}") is theirs


def test_from_imports_work_as_with_openvino() -> None:
    from softnpu.plugin import Type, convert_model, save_model
    from softnpu.plugin.preprocess import PrePostProcessor  # type: ignore[import-not-found]
    from softnpu.plugin.properties import hint

    theirs = (openvino.Type, openvino.convert_model, openvino.save_model)
    assert (Type, convert_model, save_model) == theirs
    assert PrePostProcessor is openvino.preprocess.PrePostProcessor
    assert hint is openvino.properties.hint


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(
        AttributeError, match=r"'softnpu.plugin' has no attribute 'Kore', and neither has 'openvino'"
    ):
        _ = ov.Kore
    with pytest.raises(AttributeError, match=r"'softnpu.plugin.properties' has no attribute 'colour'"):
        _ = ov.properties.colour
    assert not hasattr(ov, "_pyopenvino"), "what is private there is not ours"


# ------------------------------------------------------------ calls


def test_no_method_is_missing() -> None:
    for name in _CLASSES:
        with case(name):
            ours, theirs = getattr(ov, name), getattr(openvino, name)
            missing = {method for method in _public(theirs) if not hasattr(ours, method)}
            assert missing == _NOT_HERE.get(name, set())


def _python_methods() -> list[tuple[str, str]]:
    """Methods with a Python signature: OpenVINO's others are made by pybind11."""
    found = []
    for name in _CLASSES:
        kind = getattr(openvino, name)
        for method in [*_public(kind), "__call__"]:
            if inspect.isfunction(kind.__dict__.get(method)) and hasattr(getattr(ov, name), method):
                found.append((name, method))
    return found


def test_arguments_have_the_names_order_and_defaults_of_openvino() -> None:
    cases: list[tuple[str, str]] = _python_methods()
    for name, method in cases:
        with case(name, method):
            ours, theirs = (
                list(inspect.signature(getattr(getattr(module, name), method)).parameters.values())
                for module in (ov, openvino)
            )
            # more may follow, by keyword; OpenVINO requires a device, which is optional here
            for mine, other in zip(ours, theirs, strict=False):
                assert (mine.name, mine.kind) == (other.name, other.kind)
                if mine.name != "device_name":
                    assert mine.default == other.default or other.default is inspect.Parameter.empty
            assert len(ours) >= len(theirs)
            assert all(extra.kind is extra.KEYWORD_ONLY for extra in ours[len(theirs) :])


def test_keyword_calls_work_as_in_openvino(
    shared_core: Core, reference: openvino.Core, two_by_two: openvino.Model
) -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("wait_for", {"timeout": 1000}),
        ("get_input_tensor", {"index": 0}),
        ("get_output_tensor", {"index": 1}),
        ("set_input_tensor", {"index": 1, "tensor": TENSOR}),
        ("set_output_tensor", {"index": 1, "tensor": TENSOR}),
        ("set_input_tensors", {"inputs": {0: TENSOR, 1: TENSOR}}),
        ("set_output_tensors", {"outputs": {0: TENSOR}}),
        ("set_tensors", {"inputs": {0: TENSOR, "right": TENSOR}}),
        ("set_callback", {"callback": print, "userdata": 5}),
    ]
    for call, arguments in cases:
        with case(call, arguments):
            for core, device in ((reference, "CPU"), (shared_core, "NPU")):
                request = core.compile_model(two_by_two, device).create_infer_request()
                request.infer([LEFT, RIGHT])
                getattr(request, call)(**arguments)


def test_tensors_set_together_are_used(shared_core: Core, two_by_two: openvino.Model) -> None:
    compiled = shared_core.compile_model(two_by_two, "NPU")
    request = compiled.create_infer_request()
    outcome = compiled.get_context().create_tensor(ov.Type.f32, [2, 3])
    request.set_input_tensors({1: ov.Tensor(RIGHT), "left": ov.Tensor(LEFT)})
    request.set_output_tensors({0: outcome})
    request.infer()
    assert np.array_equal(outcome.data, LEFT + RIGHT)


def test_a_tensor_without_an_index_belongs_to_the_only_port(
    shared_core: Core, two_by_two: openvino.Model
) -> None:
    data = ov.opset13.parameter([2, 3], ov.Type.f32, name="data")
    model = ov.Model([ov.opset13.relu(data)], [data], "relu")
    request = ov.Core(shared_core.driver._connection.name).compile_model(model).create_infer_request()
    outcome = ov.Tensor(np.zeros((2, 3), np.float32))
    request.set_input_tensor(ov.Tensor(LEFT))
    request.set_output_tensor(outcome)
    request.infer()
    assert np.array_equal(outcome.data, LEFT)
    several = shared_core.compile_model(two_by_two, "NPU").create_infer_request()
    with pytest.raises(ov.InputError, match=r"a tensor without an index, and 2 ports; expected an index"):
        several.set_input_tensor(ov.Tensor(LEFT))


# ------------------------------------------------------------ results


def test_results_are_used_as_in_openvino(
    shared_core: Core, reference: openvino.Core, two_by_two: openvino.Model
) -> None:
    for core, device in ((reference, "CPU"), (shared_core, "NPU")):
        compiled = core.compile_model(two_by_two, device)
        results = compiled([LEFT, RIGHT])
        total = LEFT + RIGHT
        for key in (0, "total", "sum", compiled.output(0), compiled.outputs[0]):
            assert np.array_equal(results[key], total)
        assert results.names() == ({"total", "sum"}, {"double"})
        assert [type(value) for value in (results.to_dict(), results.to_tuple())] == [dict, tuple]
        assert np.array_equal(next(iter(results.to_dict().values())), total)
        first, second = results.values()
        assert np.array_equal(first, results.to_tuple()[0])
        assert np.array_equal(second, dict(results)[compiled.output(1)])
        assert len(results) == len(list(results)) == 2
        assert results.get("nothing", "default") == "default"
        assert "nothing" not in results
        for key in ("nothing", 7):
            with pytest.raises(KeyError):
                results[key]
    with pytest.raises(ov.InputError, match=r"^model 'two_by_two': no output 'nothing'; expected one of 0 "):
        results["nothing"]


# ------------------------------------------------------------ models


def test_a_request_knows_its_model(shared_core: Core, two_by_two: openvino.Model) -> None:
    compiled = shared_core.compile_model(two_by_two, "NPU")
    request = compiled.create_infer_request()
    assert request.get_compiled_model() is compiled
    del compiled
    again = request.get_compiled_model()
    assert np.array_equal(again([LEFT, RIGHT])["total"], LEFT + RIGHT)
    assert again.get_property("NETWORK_NAME") == "two_by_two"
    assert np.array_equal(again.infer_new_request({"left": LEFT, 1: RIGHT})[0], LEFT + RIGHT)
    with pytest.raises(ov.InputError, match=r"AsyncInferQueue, jobs: -1; expected a number of requests"):
        ov.AsyncInferQueue(again, -1)


def test_release_memory_gives_the_tensors_of_calls_back(
    daemon: Daemon, core: Core, two_by_two: openvino.Model
) -> None:
    compiled = core.compile_model(two_by_two, "NPU")
    compiled([LEFT, RIGHT])
    other = compiled.create_infer_request()
    other.infer([LEFT, RIGHT])
    with_both = daemon.memory_used()
    compiled.release_memory()
    other.infer()  # the queue lets go of what has ended when more is submitted
    assert daemon.memory_used() < with_both
    assert np.array_equal(compiled([LEFT, RIGHT])["total"], LEFT + RIGHT)


def test_runtime_models_are_refused_with_the_alternative(
    shared_core: Core, two_by_two: openvino.Model
) -> None:
    with pytest.raises(ov.NpuError, match=r"get_runtime_model: .*expected use of its ports"):
        shared_core.compile_model(two_by_two, "NPU").get_runtime_model()


def test_compile_model_is_a_function_too(
    daemon: Daemon, two_by_two: openvino.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTNPU_SOCKET", str(daemon.socket))
    compiled = ov.compile_model(two_by_two, config={"PERFORMANCE_HINT": "THROUGHPUT"})
    assert compiled.get_property("EXECUTION_DEVICES") == "NPU"
    assert compiled.get_property("PERFORMANCE_HINT") == ov.properties.hint.PerformanceMode.THROUGHPUT
    ov.Core().unload_plugin("NPU")


def test_models_are_read_from_memory_too(shared_core: Core, digits: Path) -> None:
    from_file = shared_core.read_model(str(digits))
    xml, weights = digits.read_bytes(), np.fromfile(digits.with_suffix(".bin"), np.uint8)
    for given in ((xml, ov.Tensor(weights)), (xml.decode(), ov.Tensor(weights)), (xml, weights.tobytes())):
        model = shared_core.read_model(*given)
        assert [port.any_name for port in model.outputs] == [port.any_name for port in from_file.outputs]
    with pytest.raises(ov.ModelError, match="model in memory: OpenVINO cannot read it"):
        shared_core.read_model(b"<nothing")


def test_models_are_compiled_from_memory(shared_core: Core, digits: Path) -> None:
    weights, image = digits.with_suffix(".bin").read_bytes(), np.ones((1, 1, 8, 8), np.float32)
    expected = shared_core.compile_model(digits, "NPU")(image)[0]
    for text in (digits.read_text(), digits.read_bytes()):
        for given in (weights, ov.Tensor(np.frombuffer(weights, np.uint8).copy())):
            compiled = shared_core.compile_model(text, "NPU", weights=given)
            assert np.array_equal(compiled(image)[0], expected)
    wrong: Any = [weights]
    with pytest.raises(TypeError, match="compile_model, weights: list; expected bytes or a tensor"):
        shared_core.compile_model(digits.read_text(), "NPU", weights=wrong)


def test_extensions_and_devices_are_those_of_openvino(shared_core: Core) -> None:
    assert shared_core.get_available_devices() == shared_core.available_devices == ["NPU"]
    with pytest.raises(RuntimeError, match=r"no_such_library"):
        shared_core.add_extension("/no_such_library.so")

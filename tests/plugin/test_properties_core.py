"""Properties of a core and of a compiled model: types, defaults, every accepted form, precedence."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import openvino as ov
import pytest
from openvino.properties import WorkloadType
from openvino.properties.device import Type as DeviceType
from openvino.properties.hint import PerformanceMode
from openvino.properties.log import Level as LogLevel

from softnpu.emulator.platforms import PLATFORMS
from softnpu.plugin import Core, PropertyError
from softnpu.plugin.properties import PROPERTIES, Level
from softnpu.plugin.properties.hints import HINTS
from softnpu.plugin.properties.table import cached_names
from tests.plugin.property_samples import SAMPLES, writable
from tests.support.daemon import Daemon, LastingDaemon

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("log_level_restored")]

AT_CORE = [name for name, record in PROPERTIES.items() if Level.CORE in record.level]
AT_MODEL = [name for name, record in PROPERTIES.items() if Level.MODEL in record.level]
DEVICE = {"NPU_MAX_TILES": 6, "NPU_STEPPING": 0}
COMPUTED = {**DEVICE, "COMPILATION_NUM_THREADS": os.cpu_count(), "CACHING_PROPERTIES": cached_names()}
COMPILED = {**DEVICE, "NPU_TILES": 4, "NPU_DMA_ENGINES": 2, "NPU_PLATFORM": "4000"}
"""Values determined by compiling for LATENCY on 4000."""


@pytest.fixture(scope="module")
def values(lasting_daemon: LastingDaemon, digits_file: Path) -> dict[str, dict[str, Any]]:
    """Every property of a new core, and of a model compiled without any."""
    with lasting_daemon.unchanged() as daemon:
        core = Core(daemon.socket)
        at_core = {name: core.get_property("NPU", name) for name in AT_CORE}
        compiled = core.compile_model(digits_file)
        at_model = {name: compiled.get_property(name) for name in AT_MODEL}
        del compiled
        core.unload_plugin()
    return {"core": at_core, "model": at_model}


@pytest.mark.parametrize("level", ["core", "model"])
def test_a_property_has_its_openvino_type_and_its_default(values: dict[str, Any], level: str) -> None:
    computed = COMPUTED if level == "core" else COMPUTED | COMPILED
    for name, value in values[level].items():
        assert type(value) is PROPERTIES[name].kind.type, name
        if name in SAMPLES:
            assert value == computed.get(name, PROPERTIES[name].default), name


def test_read_only_properties_describe_the_emulated_device(values: dict[str, Any]) -> None:
    core = values["core"]
    expected = {
        "DEVICE_ARCHITECTURE": "4000",
        "AVAILABLE_DEVICES": ["4000"],
        "FULL_DEVICE_NAME": "Intel(R) AI Boost",
        "DEVICE_TYPE": DeviceType.INTEGRATED,
        "EXECUTION_DEVICES": "NPU",
        "NUM_STREAMS": 1,
        "RANGE_FOR_STREAMS": (1, 1),
        "RANGE_FOR_ASYNC_INFER_REQUESTS": (1, 8, 1),
    }
    assert {name: core[name] for name in expected} == expected
    assert len(bytes.fromhex(core["DEVICE_UUID"])) == 16
    pci = core["DEVICE_PCI_INFO"]
    assert (pci.domain, pci.bus, pci.device, pci.function) == (0, 0, 0x0B, 0)
    platform = PLATFORMS["4000"]
    gops = platform.core_clock_mhz / 1e3 * platform.slices * platform.simd_width
    assert gops == pytest.approx(48_000, rel=0.01)  # Lunar Lake is sold with 48 TOPS
    by_type = {ov.Type.f32: 0, ov.Type.f16: gops / 2, ov.Type.u8: gops, ov.Type.i8: gops}
    assert core["DEVICE_GOPS"] == pytest.approx(by_type)


def test_capabilities_and_versions_are_those_of_host_driver_and_compiler(
    values: dict[str, Any], shared_core: Core, reference: ov.Core
) -> None:
    core = values["core"]
    assert {"FP32", "FP16"} <= {*core["OPTIMIZATION_CAPABILITIES"]}, "those of the device"
    of_host = {*reference.get_property("CPU", "OPTIMIZATION_CAPABILITIES")}
    assert {*core["OPTIMIZATION_CAPABILITIES"]} - {"FP16"} <= of_host
    assert core["NPU_DRIVER_VERSION"] == shared_core.driver.get_properties().driver_version
    assert divmod(core["NPU_COMPILER_VERSION"], 1 << 16) > (0, 0)
    version = shared_core.get_versions("NPU")["NPU"]
    assert version.description == "softnpu_plugin"
    assert ov.get_version() in version.build_number
    assert all(isinstance(part, int) for part in (version.major, version.minor, version.patch))


def test_supported_properties_lists_all_with_their_access(values: dict[str, Any]) -> None:
    core, model = values["core"], values["model"]
    expected = {name: PROPERTIES[name].access.value for name in AT_CORE}
    assert core["SUPPORTED_PROPERTIES"] == expected
    assert core["SUPPORTED_METRICS"] == [name for name, access in expected.items() if access == "RO"]
    assert core["SUPPORTED_CONFIG_KEYS"] == [name for name, access in expected.items() if access == "RW"]
    at_model = {name: "RW" if name == "WORKLOAD_TYPE" else "RO" for name in AT_MODEL}
    assert model["SUPPORTED_PROPERTIES"] == at_model


def test_a_model_reports_its_name_and_device(values: dict[str, Any]) -> None:
    expected = {
        "NETWORK_NAME": "digits",
        "EXECUTION_DEVICES": "NPU",
        "NUM_STREAMS": 1,
        "OPTIMAL_NUMBER_OF_INFER_REQUESTS": 1,
        "LOADED_FROM_CACHE": False,
    }
    assert {name: values["model"][name] for name in expected} == expected


def test_a_value_in_any_form_is_read_back(shared_core: Core) -> None:
    assert sorted(SAMPLES) == sorted(writable())
    for name, samples in SAMPLES.items():
        for value, stored in samples:
            shared_core.set_property("NPU", {name: value})
            read = shared_core.get_property("NPU", name)
            assert type(read) is PROPERTIES[name].kind.type, name
            assert read == stored, (name, value)
        if name == "DEVICE_ID":
            shared_core.set_property("NPU", {name: ""})


def test_names_and_pairs_of_openvino_are_accepted(shared_core: Core) -> None:
    shared_core.set_property("NPU", ov.properties.intel_npu.turbo(True))
    shared_core.set_property(ov.properties.enable_profiling(True))
    assert shared_core.get_property("NPU", ov.properties.intel_npu.turbo)
    assert shared_core.get_property(ov.properties.enable_profiling)
    shared_core.set_property("NPU", {"BATCH_MODE": "COMPILER"})
    assert shared_core.get_property("NPU", "NPU_BATCH_MODE") == "COMPILER"
    assert "BATCH_MODE" not in shared_core.get_property("NPU", "SUPPORTED_PROPERTIES")


def test_a_setting_holds_for_one_core_and_all_its_devices(shared_daemon: Daemon, shared_core: Core) -> None:
    shared_core.set_property({"CACHE_DIR": "models"})
    assert shared_core.get_property("CACHE_DIR") == "models"
    for device in ("NPU", "NPU.0"):
        assert shared_core.get_property(device, "CACHE_DIR") == "models"
    assert Core(shared_daemon.socket).get_property("NPU", "CACHE_DIR") == ""
    name = "OPTIMAL_NUMBER_OF_INFER_REQUESTS"
    assert shared_core.get_property("NPU", name, {"PERFORMANCE_HINT": "THROUGHPUT"}) == 8
    assert shared_core.get_property("NPU", name) == 1, "an argument is for one call"


def test_the_environment_gives_the_default_of_the_log_level(
    shared_core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text, level in (("LOG_INFO", LogLevel.INFO), ("nonsense", LogLevel.NO)):
        monkeypatch.setenv("OV_NPU_LOG_LEVEL", text)
        assert shared_core.get_property("NPU", "LOG_LEVEL") == level
    shared_core.set_property("NPU", {"LOG_LEVEL": "LOG_ERROR"})
    monkeypatch.setenv("OV_NPU_LOG_LEVEL", "LOG_INFO")
    assert shared_core.get_property("NPU", "LOG_LEVEL") == LogLevel.ERR


def test_memory_counts_the_allocations_of_this_process(shared_core: Core) -> None:
    context = shared_core._devices.context(0)
    before = shared_core.get_property("NPU", "NPU_DEVICE_ALLOC_MEM_SIZE")
    block = context.alloc_host(1 << 20)
    after = shared_core.get_property("NPU", "NPU_DEVICE_ALLOC_MEM_SIZE")
    assert after - before == 1 << 20
    assert shared_core.get_property("NPU", "NPU_DEVICE_TOTAL_MEM_SIZE") > after
    block.destroy()
    assert shared_core.get_property("NPU", "NPU_DEVICE_ALLOC_MEM_SIZE") == before


def test_every_platform_has_its_hints() -> None:
    assert HINTS.keys() == PLATFORMS.keys()
    requests = {name: (hints.throughput.requests, hints.latency.requests) for name, hints in HINTS.items()}
    assert requests == {"3720": (4, 1), "4000": (8, 1), "5010": (8, 1), "5020": (8, 1)}
    for number, hints in HINTS.items():
        assert hints.tiles == PLATFORMS[number].tiles
        assert all(1 <= hint.tiles <= hints.tiles for hint in (hints.throughput, hints.latency))


# ---------------------------------------------------------------- compiled models


def test_every_value_passed_to_compile_model_is_reported(shared_core: Core, digits: Path) -> None:
    other_tests = {"INFERENCE_PRECISION_HINT", "DEVICE_ID", "CACHE_DIR", "WEIGHTS_PATH", "NPU_KERNELS_FOR"}
    samples = {name: pairs[0] for name, pairs in SAMPLES.items() if pairs and name not in other_tests}
    compiled = shared_core.compile_model(digits, "NPU", {name: value for name, (value, _) in samples.items()})
    for name, (_, stored) in samples.items():
        assert compiled.get_property(name) == ("4000" if name == "NPU_PLATFORM" else stored), name


def test_the_call_overrides_settings_of_the_core(shared_core: Core, digits: Path) -> None:
    shared_core.set_property("NPU", {"NPU_TURBO": True, "PERFORMANCE_HINT": "THROUGHPUT", "NPU_TILES": 5})
    inherited = shared_core.compile_model(digits)
    own = shared_core.compile_model(digits, "NPU", {"NPU_TURBO": False, "PERFORMANCE_HINT": "LATENCY"})
    shared_core.set_property("NPU", {"NPU_TURBO": False})
    for model, turbo, mode in ((inherited, True, "THROUGHPUT"), (own, False, "LATENCY")):
        assert model.get_property("NPU_TURBO") is turbo, "a model keeps the properties of its compilation"
        assert model.get_property("PERFORMANCE_HINT") == getattr(PerformanceMode, mode)
        assert model.get_property("NPU_TILES") == 5


def test_workload_type_changes_on_the_compiled_model(shared_core: Core, digits: Path) -> None:
    compiled = shared_core.compile_model(digits)
    for value, stored in (*SAMPLES["WORKLOAD_TYPE"], ("DEFAULT", WorkloadType.DEFAULT)):
        compiled.set_property({"WORKLOAD_TYPE": value})
        assert compiled.get_property("WORKLOAD_TYPE") == stored
    compiled.set_property(("WORKLOAD_TYPE", WorkloadType.EFFICIENT))
    assert compiled.get_property("WORKLOAD_TYPE") == WorkloadType.EFFICIENT


def test_properties_of_devices_are_those_of_the_models_device(shared_core: Core, digits_file: Path) -> None:
    def compiled(value: Any, **config: Any) -> Any:
        config["DEVICE_PROPERTIES"] = value
        return shared_core.compile_model(digits_file, "NPU", config).get_property("PERF_COUNT")

    both = ov.properties.device.properties({"NPU": {ov.properties.enable_profiling: True}, "GPU": {"X": "Y"}})
    for value in (both[1], {"NPU": {"PERF_COUNT": "YES"}}, "{GPU:{X:Y}, NPU:{PERF_COUNT:YES,NPU_TURBO:NO}}"):
        assert compiled(value, PERF_COUNT=False)
    for value in ({"GPU": {"PERF_COUNT": True}}, {}, "{}", "{NPU:{}}"):
        assert not compiled(value)
    for value in ("", "NPU", "{NPU:YES}", "{NPU:{PERF_COUNT:YES}", "{NPU:{PERF_COUNT:YES}}}", {"NPU": 1}, 5):
        with pytest.raises(PropertyError, match=r"DEVICE_PROPERTIES: .*expected properties by"):
            compiled(value)
    with pytest.raises(PropertyError, match="property NOTHING: unknown"):
        compiled({"NPU": {"NOTHING": 1}})
    with pytest.raises(PropertyError, match="given to set_property; expected it in the config"):
        shared_core.set_property({"DEVICE_PROPERTIES": {"NPU": {"PERF_COUNT": True}}})

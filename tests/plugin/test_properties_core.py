"""Properties of a core: every one read with its type and default, every one that can be set read back."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import openvino as ov
import pytest
from openvino.properties.device import Type as DeviceType
from openvino.properties.log import Level as LogLevel

from softnpu.emulator.platforms import PLATFORMS
from softnpu.plugin import Core
from softnpu.plugin.properties import PROPERTIES, Access, Level
from softnpu.plugin.properties.hints import HINTS
from tests.conftest import StartDaemon
from tests.plugin.property_samples import SAMPLES, writable
from tests.support.daemon import Daemon, LastingDaemon

AT_CORE = [name for name, record in PROPERTIES.items() if Level.CORE in record.level]
_SETTABLE = [name for name in writable() if Level.CORE in PROPERTIES[name].level]
_COMPUTED = {
    "NPU_MAX_TILES": 6,
    "NPU_STEPPING": 0,
    "COMPILATION_NUM_THREADS": os.cpu_count(),
}


@pytest.fixture(autouse=True)
def log_level_restored() -> Iterator[None]:
    """LOG_LEVEL is one for the process."""
    log = logging.getLogger("softnpu.plugin")
    level, handlers = log.level, list(log.handlers)
    yield
    log.setLevel(level)
    log.handlers = handlers


@pytest.fixture(scope="module")
def told(lasting_daemon: LastingDaemon) -> dict[str, Any]:
    """Every property of a core to which nobody has said anything."""
    with lasting_daemon.unchanged() as daemon:
        core = Core(daemon.socket)
        values = {name: core.get_property("NPU", name) for name in AT_CORE}
        core.unload_plugin()
    return values


@pytest.mark.parametrize("name", AT_CORE)
def test_a_property_has_the_type_that_openvino_gives_it(told: dict[str, Any], name: str) -> None:
    assert type(told[name]) is PROPERTIES[name].kind.type


@pytest.mark.parametrize("name", _SETTABLE)
def test_a_property_that_can_be_set_has_its_default(told: dict[str, Any], name: str) -> None:
    expected = _COMPUTED.get(name, PROPERTIES[name].default)
    if name == "CACHING_PROPERTIES":
        expected = sorted(each for each, record in PROPERTIES.items() if record.cached)
    assert told[name] == expected


def test_what_tells_of_the_device_tells_of_the_emulated_one(told: dict[str, Any]) -> None:
    assert told["DEVICE_ARCHITECTURE"] == "4000"
    assert told["AVAILABLE_DEVICES"] == ["4000"]
    assert told["FULL_DEVICE_NAME"] == "Intel(R) AI Boost"
    assert told["DEVICE_TYPE"] == DeviceType.INTEGRATED
    assert len(bytes.fromhex(told["DEVICE_UUID"])) == 16
    place = told["DEVICE_PCI_INFO"]
    assert (place.domain, place.bus, place.device, place.function) == (0, 0, 0x0B, 0)
    assert told["EXECUTION_DEVICES"] == "NPU"
    assert told["NUM_STREAMS"] == 1
    assert told["RANGE_FOR_STREAMS"] == (1, 1)
    assert told["RANGE_FOR_ASYNC_INFER_REQUESTS"] == (1, 8, 1)


def test_gops_are_clock_times_tiles_times_width(told: dict[str, Any]) -> None:
    platform = PLATFORMS["4000"]
    whole = platform.core_clock_mhz / 1e3 * platform.slices * platform.simd_width
    assert whole == pytest.approx(48_000, rel=0.01)  # Lunar Lake is sold with 48 TOPS
    expected = {ov.Type.f32: 0, ov.Type.f16: whole / 2, ov.Type.u8: whole, ov.Type.i8: whole}
    assert told["DEVICE_GOPS"] == pytest.approx(expected)


def test_capabilities_are_those_of_this_host(told: dict[str, Any], reference: ov.Core) -> None:
    host = reference.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    assert "FP32" in told["OPTIMIZATION_CAPABILITIES"]
    assert set(told["OPTIMIZATION_CAPABILITIES"]) <= {*host}


def test_versions_are_those_of_driver_and_compiler(told: dict[str, Any], shared_core: Core) -> None:
    assert told["NPU_DRIVER_VERSION"] == shared_core.driver.get_properties().driver_version
    major, minor = divmod(told["NPU_COMPILER_VERSION"], 1 << 16)
    assert (major, minor) > (0, 0)


def test_supported_properties_are_all_with_their_access(told: dict[str, Any]) -> None:
    expected = {name: PROPERTIES[name].access.value for name in AT_CORE}
    assert told["SUPPORTED_PROPERTIES"] == expected
    assert told["SUPPORTED_METRICS"] == [name for name, access in expected.items() if access == "RO"]
    assert told["SUPPORTED_CONFIG_KEYS"] == [name for name, access in expected.items() if access == "RW"]


def test_there_are_samples_for_every_property_that_can_be_set() -> None:
    assert sorted(SAMPLES) == sorted(writable())


@pytest.mark.parametrize(
    ("name", "given", "kept"), [(name, *pair) for name in _SETTABLE for pair in SAMPLES[name]]
)
def test_a_value_is_read_back_whatever_its_form(shared_core: Core, name: str, given: Any, kept: Any) -> None:
    shared_core.set_property("NPU", {name: given})
    found = shared_core.get_property("NPU", name)
    assert type(found) is PROPERTIES[name].kind.type
    assert found == kept


def test_set_property_takes_a_pair_as_openvino_makes_it(shared_core: Core) -> None:
    shared_core.set_property("NPU", ov.properties.intel_npu.turbo(True))
    shared_core.set_property(ov.properties.enable_profiling(True))
    assert shared_core.get_property("NPU", ov.properties.intel_npu.turbo)
    assert shared_core.get_property(ov.properties.enable_profiling)


def test_without_a_device_it_holds_for_all(shared_core: Core) -> None:
    shared_core.set_property({"CACHE_DIR": "models"})
    assert shared_core.get_property("CACHE_DIR") == "models"
    assert shared_core.get_property("NPU", "CACHE_DIR") == "models"
    assert shared_core.get_property("NPU.0", "CACHE_DIR") == "models"


def test_an_argument_holds_for_one_question(shared_core: Core) -> None:
    name = "OPTIMAL_NUMBER_OF_INFER_REQUESTS"
    assert shared_core.get_property("NPU", name, {"PERFORMANCE_HINT": "THROUGHPUT"}) == 8
    assert shared_core.get_property("NPU", name) == 1


def test_an_alias_is_the_same_property(shared_core: Core) -> None:
    shared_core.set_property("NPU", {"BATCH_MODE": "COMPILER"})
    assert shared_core.get_property("NPU", "NPU_BATCH_MODE") == "COMPILER"
    assert "BATCH_MODE" not in shared_core.get_property("NPU", "SUPPORTED_PROPERTIES")


def test_two_cores_have_settings_of_their_own(shared_daemon: Daemon, shared_core: Core) -> None:
    other = Core(shared_daemon.socket)
    shared_core.set_property("NPU", {"NPU_TURBO": True})
    assert not other.get_property("NPU", "NPU_TURBO")


def test_the_environment_gives_the_default_of_the_log_level(
    shared_core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OV_NPU_LOG_LEVEL", "LOG_INFO")
    assert shared_core.get_property("NPU", "LOG_LEVEL") == LogLevel.INFO
    monkeypatch.setenv("OV_NPU_LOG_LEVEL", "nonsense")
    assert shared_core.get_property("NPU", "LOG_LEVEL") == LogLevel.NO
    shared_core.set_property("NPU", {"LOG_LEVEL": "LOG_ERROR"})
    monkeypatch.setenv("OV_NPU_LOG_LEVEL", "LOG_INFO")
    assert shared_core.get_property("NPU", "LOG_LEVEL") == LogLevel.ERR


def test_memory_is_what_this_process_has_asked_for(shared_core: Core) -> None:
    context = shared_core._devices.context("NPU")
    before = shared_core.get_property("NPU", "NPU_DEVICE_ALLOC_MEM_SIZE")
    block = context.alloc_host(1 << 20)
    after = shared_core.get_property("NPU", "NPU_DEVICE_ALLOC_MEM_SIZE")
    assert after - before == 1 << 20
    assert shared_core.get_property("NPU", "NPU_DEVICE_TOTAL_MEM_SIZE") > after
    block.destroy()
    assert shared_core.get_property("NPU", "NPU_DEVICE_ALLOC_MEM_SIZE") == before


@pytest.mark.parametrize(
    ("platform", "mode", "requests"),
    [
        ("3720", "THROUGHPUT", 4),
        ("3720", "LATENCY", 1),
        ("4000", "THROUGHPUT", 8),
        ("4000", "LATENCY", 1),
        ("5010", "THROUGHPUT", 8),
        ("5010", "LATENCY", 1),
    ],
)
def test_the_optimal_number_of_requests_is_that_of_the_table(
    start_daemon: StartDaemon, platform: str, mode: str, requests: int
) -> None:
    daemon = start_daemon(devices=(platform,))
    core = Core(daemon.socket)
    core.set_property("NPU", {"PERFORMANCE_HINT": mode})
    assert core.get_property("NPU", "OPTIMAL_NUMBER_OF_INFER_REQUESTS") == requests
    core.unload_plugin()


def test_every_platform_has_its_hints() -> None:
    assert HINTS.keys() == PLATFORMS.keys()
    for number, hints in HINTS.items():
        for hint in (hints.throughput, hints.latency):
            assert 1 <= hint.tiles <= PLATFORMS[number].tiles


def test_versions_come_by_the_name_of_the_device(shared_core: Core) -> None:
    version = shared_core.get_versions("NPU")["NPU"]
    assert version.description == "softnpu_plugin"
    assert ov.get_version() in version.build_number
    assert all(isinstance(part, int) for part in (version.major, version.minor, version.patch))


def test_what_is_read_only_is_no_more_than_the_table_says(told: dict[str, Any]) -> None:
    assert {PROPERTIES[name].access for name in SAMPLES} == {Access.RW}
    assert told.keys() == set(AT_CORE)

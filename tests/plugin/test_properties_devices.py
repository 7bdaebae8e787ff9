"""Several devices in one daemon: each has its own properties and its own memory, and is found by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from softnpu.plugin import Core, PropertyError
from softnpu.plugin.properties.hints import HINTS
from tests.conftest import StartDaemon

PLATFORMS = ("3720", "4000", "5010")


@pytest.fixture
def core(start_daemon: StartDaemon) -> Iterator[Core]:
    """A core on a daemon with a device of each platform."""
    core = Core(start_daemon(devices=PLATFORMS).socket)
    yield core
    core.unload_plugin()


def test_each_device_tells_of_itself(core: Core) -> None:
    assert core.get_property("NPU", "AVAILABLE_DEVICES") == ["0", "1", "2"]
    names = [f"NPU.{index}" for index in core.get_property("NPU", "AVAILABLE_DEVICES")]
    assert names == core.available_devices
    told = [
        tuple(
            core.get_property(name, asked)
            for asked in ("DEVICE_ARCHITECTURE", "NPU_MAX_TILES", "EXECUTION_DEVICES", "DEVICE_ID")
        )
        for name in names
    ]
    assert told == [("3720", 2, "NPU.0", "0"), ("4000", 6, "NPU.1", "1"), ("5010", 3, "NPU.2", "2")]
    assert len({core.get_property(name, "DEVICE_UUID") for name in names}) == 3
    assert [core.get_property(name, "DEVICE_PCI_INFO").bus for name in names] == [0, 1, 2]
    hint = {"PERFORMANCE_HINT": "THROUGHPUT"}
    assert [core.get_property(name, "OPTIMAL_NUMBER_OF_INFER_REQUESTS", hint) for name in names] == [4, 8, 8]


def test_a_property_of_one_device_is_not_one_of_the_others(core: Core, digits: Path) -> None:
    core.set_property("NPU.1", {"PERF_COUNT": True})
    found = [core.get_property(name, "PERF_COUNT") for name in core.available_devices]
    assert found == [False, True, False]
    compiled = [core.compile_model(digits, name) for name in core.available_devices]
    assert [model.meta.config["PERF_COUNT"] for model in compiled] == ["NO", "YES", "NO"]


def test_the_later_of_two_settings_wins(core: Core) -> None:
    core.set_property("NPU.1", {"NPU_TURBO": True})
    core.set_property("NPU", {"NPU_TURBO": False})
    assert not core.get_property("NPU.1", "NPU_TURBO")
    core.set_property("NPU", {"NPU_TURBO": True})
    core.set_property("NPU.2", {"NPU_TURBO": False})
    found = [core.get_property(name, "NPU_TURBO") for name in core.available_devices]
    assert found == [True, True, False]


@pytest.mark.parametrize("device_id", ["2", "5010"])
def test_device_id_says_which_device_npu_is(core: Core, digits: Path, device_id: str) -> None:
    by_config = core.compile_model(digits, "NPU", {"DEVICE_ID": device_id})
    assert by_config.get_property("EXECUTION_DEVICES") == "NPU.2"
    assert core.get_property("NPU", "DEVICE_ARCHITECTURE") == "3720"
    core.set_property("NPU", {"DEVICE_ID": device_id})
    assert core.get_property("NPU", "DEVICE_ID") == device_id
    assert core.get_property("NPU", "DEVICE_ARCHITECTURE") == "5010"
    assert core.compile_model(digits).meta.platform == "5010"
    assert core.compile_model(digits, "NPU.0").meta.platform == "3720"
    assert core.compile_model(digits, "NPU", {"DEVICE_ID": "1"}).meta.platform == "4000"


def test_a_device_goes_by_its_platform_too(core: Core, digits: Path) -> None:
    assert core.get_property("NPU.5010", "DEVICE_ARCHITECTURE") == "5010"
    assert core.compile_model(digits, "NPU.4000").get_property("EXECUTION_DEVICES") == "NPU.1"


def test_a_name_and_a_device_id_that_contradict_are_refused(core: Core, digits: Path) -> None:
    with pytest.raises(PropertyError, match=r"device 'NPU\.1', property DEVICE_ID: value '0'; expected '1'"):
        core.compile_model(digits, "NPU.1", {"DEVICE_ID": "0"})
    with pytest.raises(PropertyError, match="DEVICE_ID"):
        core.set_property("NPU.1", {"DEVICE_ID": "0"})
    known = "expected one of 0 (platform 3720), 1 (platform 4000), 2 (platform 5010)"
    with pytest.raises(PropertyError, match=re.escape(known)):
        core.get_property("NPU.3", "NPU_TURBO")


def test_tiles_are_bounded_by_the_device_that_is_meant(core: Core, digits: Path) -> None:
    core.set_property("NPU.1", {"NPU_TILES": 6})
    with pytest.raises(PropertyError, match="expected at most 3"):
        core.set_property("NPU.2", {"NPU_TILES": 6})
    with pytest.raises(PropertyError, match="expected at most 2"):
        core.compile_model(digits, "NPU.0", {"NPU_TILES": 6})
    assert core.compile_model(digits, "NPU.1").get_property("NPU_TILES") == 6


@pytest.mark.parametrize("mode", ["LATENCY", "THROUGHPUT"])
def test_tiles_are_those_of_the_table_of_each_platform(core: Core, digits: Path, mode: str) -> None:
    expected = {"3720": (2, 2), "4000": (4, 2), "5010": (3, 2)}
    for platform, tiles in expected.items():
        compiled = core.compile_model(digits, f"NPU.{platform}", {"PERFORMANCE_HINT": mode})
        assert compiled.get_property("NPU_TILES") == tiles[mode == "THROUGHPUT"]
        assert compiled.get_property("NPU_DMA_ENGINES") == HINTS[platform].latency.dma_engines == 2


def test_each_device_has_its_own_memory(core: Core, digits: Path) -> None:
    def allocated() -> list[int]:
        return [core.get_property(name, "NPU_DEVICE_ALLOC_MEM_SIZE") for name in core.available_devices]

    before = allocated()
    request = core.compile_model(digits, "NPU.1").create_infer_request()
    assert [after > old for after, old in zip(allocated(), before, strict=True)] == [False, True, False]
    del request

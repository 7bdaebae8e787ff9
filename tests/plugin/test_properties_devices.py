"""Several devices in one daemon: each has its own properties and memory, and is selected by name or id."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from softnpu.plugin import Core, PropertyError
from tests.support.daemon import LastingDaemon

PLATFORMS = ("3720", "4000", "5010")


@pytest.fixture(scope="module")
def three_devices() -> Iterator[LastingDaemon]:
    """A daemon with a device of each platform."""
    lasting = LastingDaemon(Path(tempfile.mkdtemp(prefix="softnpu-devices-")), devices=PLATFORMS)
    yield lasting
    lasting.end()


@pytest.fixture
def core(three_devices: LastingDaemon) -> Iterator[Core]:
    with three_devices.unchanged() as daemon:
        core = Core(daemon.socket)
        yield core
        core.unload_plugin()


def test_each_device_reports_its_own_properties(core: Core) -> None:
    assert core.get_property("NPU", "AVAILABLE_DEVICES") == ["0", "1", "2"]
    names = core.available_devices
    assert names == ["NPU.0", "NPU.1", "NPU.2"]
    keys = ("DEVICE_ARCHITECTURE", "NPU_MAX_TILES", "EXECUTION_DEVICES", "DEVICE_ID")
    values = [tuple(core.get_property(name, key) for key in keys) for name in names]
    assert values == [("3720", 2, "NPU.0", "0"), ("4000", 6, "NPU.1", "1"), ("5010", 3, "NPU.2", "2")]
    assert len({core.get_property(name, "DEVICE_UUID") for name in names}) == 3
    assert [core.get_property(name, "DEVICE_PCI_INFO").bus for name in names] == [0, 1, 2]
    for mode, requests in (("THROUGHPUT", [4, 8, 8]), ("LATENCY", [1, 1, 1])):
        hint = {"PERFORMANCE_HINT": mode}
        name = "OPTIMAL_NUMBER_OF_INFER_REQUESTS"
        assert [core.get_property(device, name, hint) for device in names] == requests
    assert core.get_property("NPU.5010", "DEVICE_ARCHITECTURE") == "5010", "by its platform"


def test_a_setting_holds_for_one_device_and_the_later_one_wins(core: Core, digits: Path) -> None:
    core.set_property("NPU.1", {"PERF_COUNT": True})
    compiled = [core.compile_model(digits, name) for name in core.available_devices]
    assert [model.meta.config["PERF_COUNT"] for model in compiled] == ["NO", "YES", "NO"]

    def turbo() -> list[bool]:
        return [core.get_property(name, "NPU_TURBO") for name in core.available_devices]

    for device, value, expected in (
        ("NPU.1", True, [False, True, False]),
        ("NPU", False, [False, False, False]),
        ("NPU", True, [True, True, True]),
        ("NPU.2", False, [True, True, False]),
    ):
        core.set_property(device, {"NPU_TURBO": value})
        assert turbo() == expected


@pytest.mark.parametrize("device_id", ["2", "5010"])
def test_device_id_selects_the_device_for_npu(core: Core, digits: Path, device_id: str) -> None:
    by_config = core.compile_model(digits, "NPU", {"DEVICE_ID": device_id})
    assert by_config.get_property("EXECUTION_DEVICES") == "NPU.2"
    assert core.get_property("NPU", "DEVICE_ARCHITECTURE") == "3720"
    core.set_property("NPU", {"DEVICE_ID": device_id})
    assert core.get_property("NPU", "DEVICE_ID") == device_id
    assert core.get_property("NPU", "DEVICE_ARCHITECTURE") == "5010"
    assert core.compile_model(digits).meta.platform == "5010"
    assert core.compile_model(digits, "NPU.0").meta.platform == "3720"
    assert core.compile_model(digits, "NPU", {"DEVICE_ID": "1"}).meta.platform == "4000"


def test_a_contradicting_name_and_device_id_are_refused(core: Core, digits: Path) -> None:
    with pytest.raises(PropertyError, match=r"device 'NPU\.1', property DEVICE_ID: value '0'; expected '1'"):
        core.compile_model(digits, "NPU.1", {"DEVICE_ID": "0"})
    with pytest.raises(PropertyError, match="DEVICE_ID"):
        core.set_property("NPU.1", {"DEVICE_ID": "0"})
    known = "expected one of 0 (platform 3720), 1 (platform 4000), 2 (platform 5010)"
    with pytest.raises(PropertyError, match=re.escape(known)):
        core.get_property("NPU.3", "NPU_TURBO")


def test_tiles_are_those_of_each_platform_and_bounded_by_it(core: Core, digits: Path) -> None:
    for platform, tiles in {"3720": (2, 2), "4000": (4, 2), "5010": (3, 2)}.items():
        for number, mode in zip(tiles, ("LATENCY", "THROUGHPUT"), strict=True):
            compiled = core.compile_model(digits, f"NPU.{platform}", {"PERFORMANCE_HINT": mode})
            assert compiled.get_property("NPU_TILES") == number
            assert compiled.get_property("NPU_DMA_ENGINES") == 2
    core.set_property("NPU.1", {"NPU_TILES": 6})
    with pytest.raises(PropertyError, match="expected at most 3"):
        core.set_property("NPU.2", {"NPU_TILES": 6})
    with pytest.raises(PropertyError, match="expected at most 2"):
        core.compile_model(digits, "NPU.0", {"NPU_TILES": 6})
    assert core.compile_model(digits, "NPU.1").get_property("NPU_TILES") == 6


def test_each_device_computes_in_its_own_memory(core: Core, digits: Path) -> None:
    def allocated() -> list[int]:
        return [core.get_property(name, "NPU_DEVICE_ALLOC_MEM_SIZE") for name in core.available_devices]

    before = allocated()
    request = core.compile_model(digits, "NPU.4000").create_infer_request()
    assert [after > old for after, old in zip(allocated(), before, strict=True)] == [False, True, False]
    image = np.ones((1, 1, 8, 8), np.float32)
    np.testing.assert_array_equal(request.infer(image)[0], core.compile_model(digits, "NPU.2")(image)[0])

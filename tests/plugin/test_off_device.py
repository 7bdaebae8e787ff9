"""Compiling for an absent platform: exported, refused by other devices, run by the right one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from softnpu.plugin import BlobError, Core, NpuError, PropertyError
from tests.conftest import StartDaemon
from tests.support.cases import case
from tests.support.daemon import Daemon
from tests.support.models import on_cpu

IMAGE = np.linspace(0, 16, 64, dtype=np.float32).reshape(1, 1, 8, 8)


def test_a_model_for_another_platform_reports_that_platform(shared_core: Core, digits: Path) -> None:
    for name in ["3720", "NPU3720", "VPU3720"]:
        with case(name):
            compiled = shared_core.compile_model(
                digits, "NPU", {"NPU_PLATFORM": name, "PERFORMANCE_HINT": "THROUGHPUT"}
            )
            assert compiled.meta.platform == compiled.get_property("NPU_PLATFORM") == "3720"
            assert compiled.get_property("NPU_MAX_TILES") == compiled.get_property("NPU_TILES") == 2
            assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 4
            assert [port.any_name for port in compiled.inputs] == ["image"]


def test_it_is_refused_here_naming_its_platform(shared_core: Core, digits: Path) -> None:
    compiled = shared_core.compile_model(digits, "NPU", {"NPU_PLATFORM": "3720"})
    for attempt in (compiled.create_infer_request, lambda: compiled(IMAGE)):
        with pytest.raises(
            NpuError,
            match=r"compiled for platform 3720; expected 4000, the platform of device NPU\. Export it",
        ):
            attempt()
    assert compiled.load_ms == 0


def test_it_runs_on_a_device_of_its_platform(
    start_daemon: StartDaemon, digits: Path, private_dir: Path
) -> None:
    blob = private_dir / "digits.blob"
    here = Core(start_daemon(socket=str(private_dir / "here.sock")).socket)
    here.compile_model(digits, "NPU", {"NPU_PLATFORM": "3720"}).export_model(blob)
    with pytest.raises(BlobError, match=r"'3720'; expected '4000'"):
        here.import_model(blob)
    there = Core(start_daemon(socket=str(private_dir / "there.sock"), devices=("5010", "3720")).socket)
    with pytest.raises(BlobError, match=r"'3720'; expected '5010'"):
        there.import_model(blob)
    found = there.import_model(blob, "NPU.3720")(IMAGE)[0]
    np.testing.assert_array_equal(found, on_cpu(digits, IMAGE)[0])
    here.unload_plugin()
    there.unload_plugin()


def test_tiles_match_the_platform(shared_core: Core, digits: Path) -> None:
    with pytest.raises(PropertyError, match="NPU_TILES: value 3; expected at most 2"):
        shared_core.compile_model(digits, "NPU", {"NPU_PLATFORM": "3720", "NPU_TILES": 3})
    compiled = shared_core.compile_model(digits, "NPU", {"NPU_TILES": 3})
    assert compiled.get_property("NPU_TILES") == 3


def test_the_drivers_cache_keeps_platforms_apart(
    daemon: Daemon, digits: Path, private_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZE_INTEL_NPU_CACHE_DIR", str(private_dir / "cache"))
    core = Core(daemon.socket)
    seen = []
    for platform in ("3720", "4000", "3720", "AUTO_DETECT"):
        compiled = core.compile_model(digits, "NPU", {"NPU_PLATFORM": platform})
        seen.append((compiled.meta.platform, compiled.get_property("LOADED_FROM_CACHE")))
    assert seen == [("3720", False), ("4000", False), ("3720", True), ("4000", True)]
    with pytest.raises(NpuError, match="3720"):
        core.compile_model(digits, "NPU", {"NPU_PLATFORM": "3720"}).create_infer_request()
    core.unload_plugin()


def test_an_absent_device_is_refused_with_a_hint_for_compiling(shared_core: Core, digits: Path) -> None:
    with pytest.raises(PropertyError, match=r"'NPU\.3720': no such device.*NPU_PLATFORM compiles for"):
        shared_core.compile_model(digits, "NPU.3720")

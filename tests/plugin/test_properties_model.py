"""Properties of a compiled model: every one read, values of the core as defaults, those of the call first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openvino.properties import WorkloadType
from openvino.properties.hint import PerformanceMode

from softnpu.plugin import CompiledModel, Core
from softnpu.plugin.properties import PROPERTIES, Level
from tests.plugin.property_samples import SAMPLES
from tests.support.daemon import LastingDaemon

AT_MODEL = [name for name, record in PROPERTIES.items() if Level.MODEL in record.level]
_SETTABLE = [name for name in AT_MODEL if name in SAMPLES]
_SETTLED = {
    "NPU_TILES": 4,
    "NPU_MAX_TILES": 6,
    "NPU_DMA_ENGINES": 2,
    "NPU_STEPPING": 0,
    "NPU_PLATFORM": "4000",
}
"""What is open in the defaults and settled in a model compiled for LATENCY on 4000."""


@pytest.fixture(scope="module")
def told(lasting_daemon: LastingDaemon, digits_file: Path) -> dict[str, Any]:
    """Every property of a model that was compiled without any."""
    with lasting_daemon.unchanged() as daemon:
        core = Core(daemon.socket)
        compiled = core.compile_model(digits_file)
        values = {name: compiled.get_property(name) for name in AT_MODEL}
        del compiled
        core.unload_plugin()
    return values


@pytest.fixture
def compiled(shared_core: Core, digits: Path) -> CompiledModel:
    return shared_core.compile_model(digits)


@pytest.mark.parametrize("name", AT_MODEL)
def test_a_property_has_the_type_that_openvino_gives_it(told: dict[str, Any], name: str) -> None:
    assert type(told[name]) is PROPERTIES[name].kind.type


@pytest.mark.parametrize("name", _SETTABLE)
def test_a_property_that_was_not_given_has_its_default(told: dict[str, Any], name: str) -> None:
    assert told[name] == _SETTLED.get(name, PROPERTIES[name].default)


def test_what_tells_of_the_model(told: dict[str, Any]) -> None:
    assert told["NETWORK_NAME"] == "digits"
    assert told["EXECUTION_DEVICES"] == "NPU"
    assert told["NUM_STREAMS"] == 1
    assert told["OPTIMAL_NUMBER_OF_INFER_REQUESTS"] == 1
    assert told["LOADED_FROM_CACHE"] is False


def test_all_are_read_only_but_what_is_live(told: dict[str, Any]) -> None:
    expected = {name: "RW" if PROPERTIES[name].live else "RO" for name in AT_MODEL}
    assert told["SUPPORTED_PROPERTIES"] == expected
    assert [name for name, access in expected.items() if access == "RW"] == ["WORKLOAD_TYPE"]


def _compilable(name: str) -> list[tuple[Any, Any]]:
    return [
        (given, kept)
        for given, kept in SAMPLES[name]
        if name not in {"INFERENCE_PRECISION_HINT", "DEVICE_ID", "CACHE_DIR", "WEIGHTS_PATH"}
    ]


def test_every_value_given_to_compile_model_is_told(shared_core: Core, digits: Path) -> None:
    chosen = {name: pairs[0] for name in SAMPLES if (pairs := _compilable(name))}
    compiled = shared_core.compile_model(digits, "NPU", {name: given for name, (given, _) in chosen.items()})
    settled = {"NPU_PLATFORM": "4000"}
    for name, (_, kept) in chosen.items():
        assert compiled.get_property(name) == settled.get(name, kept), name


def test_what_the_core_was_told_holds_unless_the_call_says_otherwise(shared_core: Core, digits: Path) -> None:
    shared_core.set_property("NPU", {"NPU_TURBO": True, "PERFORMANCE_HINT": "THROUGHPUT", "NPU_TILES": 5})
    inherited = shared_core.compile_model(digits)
    assert inherited.get_property("NPU_TURBO")
    assert inherited.get_property("PERFORMANCE_HINT") == PerformanceMode.THROUGHPUT
    assert inherited.get_property("NPU_TILES") == 5
    own = shared_core.compile_model(digits, "NPU", {"NPU_TURBO": False, "PERFORMANCE_HINT": "LATENCY"})
    assert not own.get_property("NPU_TURBO")
    assert own.get_property("PERFORMANCE_HINT") == PerformanceMode.LATENCY
    shared_core.set_property("NPU", {"NPU_TURBO": False})
    assert inherited.get_property("NPU_TURBO"), "a compiled model keeps what it was compiled with"


def test_workload_type_changes_on_the_compiled_model(compiled: CompiledModel) -> None:
    for given, kept in (*SAMPLES["WORKLOAD_TYPE"], ("DEFAULT", WorkloadType.DEFAULT)):
        compiled.set_property({"WORKLOAD_TYPE": given})
        assert compiled.get_property("WORKLOAD_TYPE") == kept
    compiled.set_property(("WORKLOAD_TYPE", WorkloadType.EFFICIENT))
    assert compiled.get_property("WORKLOAD_TYPE") == WorkloadType.EFFICIENT

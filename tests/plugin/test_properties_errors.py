"""What properties refuse: each error says which property, what was found, and what was expected."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import openvino as ov
import pytest

from softnpu.plugin import CompiledModel, Core, PropertyError
from softnpu.plugin.properties import PROPERTIES, Access, Level
from softnpu.plugin.properties.table import cached_names
from tests.plugin.property_samples import SAMPLES, refused

READ_ONLY = [name for name, record in PROPERTIES.items() if record.access is Access.RO]
CORE_ONLY = [name for name, record in PROPERTIES.items() if record.level is Level.CORE]
MODEL_ONLY = [name for name, record in PROPERTIES.items() if record.level is Level.MODEL]
FIXED = [name for name, record in PROPERTIES.items() if Level.MODEL in record.level and not record.live]


@pytest.fixture
def compiled(shared_core: Core, digits: Path) -> CompiledModel:
    return shared_core.compile_model(digits)


@pytest.mark.parametrize(("name", "value"), refused())
def test_a_value_that_is_not_allowed_is_refused(shared_core: Core, name: str, value: Any) -> None:
    with pytest.raises(PropertyError, match=rf"^property {name}: value .*; expected \S+"):
        shared_core.set_property("NPU", {name: value})


def test_the_message_has_the_value_and_what_is_allowed(shared_core: Core) -> None:
    with pytest.raises(
        PropertyError, match=r"MODEL_PRIORITY: value 'URGENT'; expected LOW or MEDIUM or HIGH"
    ):
        shared_core.set_property("NPU", {"MODEL_PRIORITY": "URGENT"})
    with pytest.raises(
        PropertyError, match=r"value 'optimization-level=3'; expected optimization-level=0\|1\|2"
    ):
        shared_core.set_property("NPU", {"NPU_COMPILATION_MODE_PARAMS": "optimization-level=3"})


@pytest.mark.parametrize(
    ("name", "near"),
    [("NPU_TORBO", "NPU_TURBO"), ("performance_hint", "PERFORMANCE_HINT"), ("BATCHMODE", "BATCH_MODE")],
)
def test_an_unknown_property_is_refused_with_names_that_are_close(
    shared_core: Core, compiled: CompiledModel, digits: Path, name: str, near: str
) -> None:
    says = rf"property {name}: unknown.*Did you mean.*{near}"
    for ask in (
        lambda: shared_core.get_property("NPU", name),
        lambda: shared_core.set_property("NPU", {name: "1"}),
        lambda: shared_core.compile_model(digits, "NPU", {name: "1"}),
        lambda: compiled.get_property(name),
        lambda: compiled.set_property({name: "1"}),
    ):
        with pytest.raises(PropertyError, match=says):
            ask()


@pytest.mark.parametrize("name", READ_ONLY)
def test_what_is_read_only_cannot_be_set(shared_core: Core, digits: Path, name: str) -> None:
    for ask in (
        lambda: shared_core.set_property("NPU", {name: 1}),
        lambda: shared_core.compile_model(digits, "NPU", {name: 1}),
    ):
        with pytest.raises(PropertyError, match=f"property {name}: .*read-only"):
            ask()


def test_a_compiled_model_can_only_be_given_what_is_live(compiled: CompiledModel) -> None:
    for name in FIXED:
        value = SAMPLES[name][0][0] if name in SAMPLES else 1
        with pytest.raises(PropertyError, match=f"property {name}: .*read-only"):
            compiled.set_property({name: value})


def test_a_property_of_the_core_is_not_asked_of_a_model(compiled: CompiledModel) -> None:
    for name in CORE_ONLY:
        with pytest.raises(PropertyError, match=rf"property {name}: .*Core\.get_property"):
            compiled.get_property(name)


@pytest.mark.parametrize("name", MODEL_ONLY)
def test_a_property_of_a_model_is_not_asked_of_the_core(shared_core: Core, name: str) -> None:
    with pytest.raises(PropertyError, match=rf"property {name}: .*CompiledModel\.get_property"):
        shared_core.get_property("NPU", name)


def test_one_bad_value_leaves_all_as_they_were(shared_core: Core, compiled: CompiledModel) -> None:
    with pytest.raises(PropertyError):
        shared_core.set_property("NPU", {"NPU_TURBO": True, "PERF_COUNT": "MAYBE"})
    assert not shared_core.get_property("NPU", "NPU_TURBO")
    with pytest.raises(PropertyError):
        compiled.set_property({"WORKLOAD_TYPE": "EFFICIENT", "NPU_TURBO": True})
    assert PROPERTIES["WORKLOAD_TYPE"].text(compiled.get_property("WORKLOAD_TYPE")) == "DEFAULT"


def test_more_tiles_than_there_are_is_refused(shared_core: Core, digits: Path) -> None:
    says = r"NPU_TILES: value 7; expected at most 6"
    with pytest.raises(PropertyError, match=says):
        shared_core.set_property("NPU", {"NPU_TILES": 7})
    with pytest.raises(PropertyError, match=says):
        shared_core.compile_model(digits, "NPU", {"NPU_TILES": 7})


def test_more_tiles_than_max_tiles_is_refused_wherever_they_were_set(shared_core: Core, digits: Path) -> None:
    says = "NPU_TILES: value 3; expected at most 2, which is NPU_MAX_TILES"
    with pytest.raises(PropertyError, match=says):
        shared_core.set_property("NPU", {"NPU_TILES": 3, "NPU_MAX_TILES": 2})
    shared_core.set_property("NPU", {"NPU_MAX_TILES": 2})
    with pytest.raises(PropertyError, match=says):
        shared_core.set_property("NPU", {"NPU_TILES": 3})
    with pytest.raises(PropertyError, match=says):
        shared_core.compile_model(digits, "NPU", {"NPU_TILES": 3})


def test_max_tiles_of_another_device_do_not_make_this_one_larger(shared_core: Core, digits: Path) -> None:
    with pytest.raises(PropertyError, match="NPU_TILES: value 8 for NPU; expected at most 6"):
        shared_core.compile_model(digits, "NPU", {"NPU_TILES": 8, "NPU_MAX_TILES": 10})


@pytest.mark.parametrize("id", ["1", "3720", "x", "-1", "NPU.0"])
def test_a_device_id_that_no_device_has_is_refused(shared_core: Core, digits: Path, id: str) -> None:
    says = re.escape(f"DEVICE_ID: value {id!r}: no such device; expected one of 0 (platform 4000)")
    with pytest.raises(PropertyError, match=says):
        shared_core.set_property("NPU", {"DEVICE_ID": id})
    with pytest.raises(PropertyError, match=says):
        shared_core.compile_model(digits, "NPU", {"DEVICE_ID": id})


@pytest.mark.parametrize("device", ["CPU", "GPU.0", "npu", "", "NPU.", "NPU.7", "NPU.x"])
def test_a_device_that_is_not_there_has_no_properties(shared_core: Core, device: str) -> None:
    with pytest.raises(PropertyError, match=repr(device)):
        shared_core.get_property(device, "NPU_TURBO")
    with pytest.raises(PropertyError, match=repr(device)):
        shared_core.set_property(device, {"NPU_TURBO": True})


@pytest.mark.parametrize("given", ["NPU_TURBO", ["NPU_TURBO"], ("NPU_TURBO", True, 1), 1])
def test_what_holds_no_properties_is_refused(shared_core: Core, given: Any) -> None:
    with pytest.raises(PropertyError, match="expected a mapping of names to values"):
        shared_core.set_property("NPU", given)


def test_a_name_that_is_no_text_is_refused(shared_core: Core) -> None:
    with pytest.raises(PropertyError, match="property 7: int given"):
        shared_core.set_property("NPU", {7: True})


def test_two_values_for_one_property_are_refused(shared_core: Core, digits: Path) -> None:
    with pytest.raises(PropertyError, match="NPU_BATCH_MODE: given twice"):
        shared_core.compile_model(digits, "NPU", {"BATCH_MODE": "AUTO", "NPU_BATCH_MODE": "COMPILER"})


def test_a_platform_that_nobody_knows_is_refused(shared_core: Core, digits: Path) -> None:
    with pytest.raises(PropertyError, match=r"NPU_PLATFORM.*'3721'.*3720 or 4000 or 5010"):
        shared_core.compile_model(digits, "NPU", {"NPU_PLATFORM": "3721"})


def test_a_precision_that_the_host_lacks_is_refused(
    shared_core: Core, digits: Path, reference: ov.Core
) -> None:
    host = reference.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    lacking = [name for name, word in (("f16", "FP16"), ("bf16", "BF16")) if word not in host]
    for name in lacking:
        with pytest.raises(PropertyError, match=f"INFERENCE_PRECISION_HINT.*{name}"):
            shared_core.compile_model(digits, "NPU", {"INFERENCE_PRECISION_HINT": name})


def test_caching_properties_can_be_extended_but_not_cut(shared_core: Core) -> None:
    more = [*cached_names(), "NPU_TURBO"]
    shared_core.set_property("NPU", {"CACHING_PROPERTIES": more})
    assert shared_core.get_property("NPU", "CACHING_PROPERTIES") == sorted(more)
    with pytest.raises(PropertyError, match=r"CACHING_PROPERTIES: .*also PERF_COUNT"):
        shared_core.set_property(
            "NPU", {"CACHING_PROPERTIES": [name for name in cached_names() if name != "PERF_COUNT"]}
        )
    with pytest.raises(PropertyError, match=r"CACHING_PROPERTIES: .*NO_SUCH"):
        shared_core.set_property("NPU", {"CACHING_PROPERTIES": [*cached_names(), "NO_SUCH"]})

"""Invalid values and names of properties: each error has the property, the value and the allowed values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import openvino as ov
import pytest

from softnpu.driver import ZeError
from softnpu.plugin import CompiledModel, Core, PropertyError
from softnpu.plugin.properties import PROPERTIES, Access, Level
from softnpu.plugin.properties.table import cached_names
from tests.plugin.property_samples import SAMPLES, refused
from tests.support.cases import case

pytestmark = pytest.mark.quick


@pytest.fixture
def compiled(shared_core: Core, digits: Path) -> CompiledModel:
    return shared_core.compile_model(digits)


def _names(**fields: Any) -> list[str]:
    return [
        name
        for name, record in PROPERTIES.items()
        if all(getattr(record, field) is value for field, value in fields.items())
    ]


def test_an_invalid_value_is_refused(shared_core: Core, digits: Path) -> None:
    for name, value in refused():
        with pytest.raises(PropertyError, match=rf"^property {name}: value .*; expected \S+"):
            shared_core.set_property("NPU", {name: value})
    with pytest.raises(PropertyError, match="MODEL_PRIORITY: value 'URGENT'; expected LOW or MEDIUM or HIGH"):
        shared_core.compile_model(digits, "NPU", {"MODEL_PRIORITY": "URGENT"})
    with pytest.raises(PropertyError, match=r"'optimization-level=3'; expected optimization-level=0\|1\|2"):
        shared_core.set_property("NPU", {"NPU_COMPILATION_MODE_PARAMS": "optimization-level=3"})


def test_an_unknown_property_is_refused_with_similar_names(
    shared_core: Core, compiled: CompiledModel, digits: Path
) -> None:
    cases: list[tuple[str, str]] = [
        ("NPU_TORBO", "NPU_TURBO"),
        ("performance_hint", "PERFORMANCE_HINT"),
        ("BATCHMODE", "BATCH_MODE"),
    ]
    for name, near in cases:
        with case(name, near):
            for call in (
                lambda: shared_core.get_property("NPU", name),  # noqa: B023
                lambda: shared_core.set_property("NPU", {name: "1"}),  # noqa: B023
                lambda: shared_core.compile_model(digits, "NPU", {name: "1"}),  # noqa: B023
                lambda: compiled.get_property(name),  # noqa: B023
                lambda: compiled.set_property({name: "1"}),  # noqa: B023
            ):
                with pytest.raises(PropertyError, match=rf"property {name}: unknown.*Did you mean.*{near}"):
                    call()


def test_a_read_only_property_cannot_be_set(shared_core: Core, compiled: CompiledModel, digits: Path) -> None:
    for name in _names(access=Access.RO):
        for call in (
            lambda: shared_core.set_property("NPU", {name: 1}),  # noqa: B023
            lambda: shared_core.compile_model(digits, "NPU", {name: 1}),  # noqa: B023
        ):
            with pytest.raises(PropertyError, match=f"property {name}: .*read-only"):
                call()
    for name, record in PROPERTIES.items():
        if Level.MODEL in record.level and not record.live:
            with pytest.raises(PropertyError, match=f"property {name}: .*read-only"):
                compiled.set_property({name: SAMPLES[name][0][0] if name in SAMPLES else 1})


def test_a_property_is_readable_only_on_its_owner(shared_core: Core, compiled: CompiledModel) -> None:
    for name in _names(level=Level.CORE):
        with pytest.raises(PropertyError, match=rf"property {name}: .*Core\.get_property"):
            compiled.get_property(name)
    for name in _names(level=Level.MODEL):
        with pytest.raises(PropertyError, match=rf"property {name}: .*CompiledModel\.get_property"):
            shared_core.get_property("NPU", name)


def test_one_bad_value_changes_nothing(shared_core: Core, compiled: CompiledModel) -> None:
    with pytest.raises(PropertyError):
        shared_core.set_property("NPU", {"NPU_TURBO": True, "PERF_COUNT": "MAYBE"})
    assert not shared_core.get_property("NPU", "NPU_TURBO")
    with pytest.raises(PropertyError):
        compiled.set_property({"WORKLOAD_TYPE": "EFFICIENT", "NPU_TURBO": True})
    assert PROPERTIES["WORKLOAD_TYPE"].text(compiled.get_property("WORKLOAD_TYPE")) == "DEFAULT"


def test_more_tiles_than_the_device_has_are_refused(shared_core: Core, digits: Path) -> None:
    def check(config: dict[str, int], message: str, *, setting: bool = True) -> None:
        if setting:
            with pytest.raises(PropertyError, match=message):
                shared_core.set_property("NPU", config)
        with pytest.raises(PropertyError, match=message):
            shared_core.compile_model(digits, "NPU", config)

    check({"NPU_TILES": 7}, "NPU_TILES: value 7; expected at most 6")
    too_many = "NPU_TILES: value 8 for NPU; expected at most 6"
    check({"NPU_TILES": 8, "NPU_MAX_TILES": 10}, too_many, setting=False)
    message = "NPU_TILES: value 3; expected at most 2, which is NPU_MAX_TILES"
    check({"NPU_TILES": 3, "NPU_MAX_TILES": 2}, message)
    shared_core.set_property("NPU", {"NPU_MAX_TILES": 2})
    check({"NPU_TILES": 3}, message)


def test_an_unknown_device_id_is_refused(shared_core: Core, digits: Path) -> None:
    for number in ["1", "3720", "x", "-1", "NPU.0"]:
        with case(number):
            message = re.escape(
                f"DEVICE_ID: value {number!r}: no such device; expected one of 0 (platform 4000)"
            )
            with pytest.raises(PropertyError, match=message):
                shared_core.set_property("NPU", {"DEVICE_ID": number})
            with pytest.raises(PropertyError, match=message):
                shared_core.compile_model(digits, "NPU", {"DEVICE_ID": number})


def test_an_unknown_device_is_refused(shared_core: Core, digits: Path) -> None:
    for device in ["CPU", "GPU.0", "npu", "", "NPU.", "NPU.7", "NPU.x"]:
        with case(device):
            for call in (
                lambda: shared_core.get_property(device, "NPU_TURBO"),  # noqa: B023
                lambda: shared_core.set_property(device, {"NPU_TURBO": True}),  # noqa: B023
                lambda: shared_core.compile_model(digits, device),  # noqa: B023
            ):
                with pytest.raises(PropertyError, match=repr(device)):
                    call()


def test_invalid_pairs_are_refused(shared_core: Core) -> None:
    cases: list[tuple[Any, str]] = [
        ("NPU_TURBO", "expected a mapping of names to values"),
        (["NPU_TURBO"], "expected a mapping of names to values"),
        (("NPU_TURBO", True, 1), "expected a mapping of names to values"),
        (1, "expected a mapping of names to values"),
        ({7: True}, "property 7: int given"),
        ({"BATCH_MODE": "AUTO", "NPU_BATCH_MODE": "COMPILER"}, "NPU_BATCH_MODE: given twice"),
    ]
    for pairs, message in cases:
        with case(pairs, message), pytest.raises(PropertyError, match=message):
            shared_core.set_property("NPU", pairs)


def test_a_refusal_of_the_compiler_names_the_property(
    shared_core: Core, digits: Path, reference: ov.Core
) -> None:
    with pytest.raises(PropertyError, match=r"NPU_PLATFORM.*'3721'.*3720 or 4000 or 5010") as caught:
        shared_core.compile_model(digits, "NPU", {"NPU_PLATFORM": "3721"})
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value.__cause__, ZeError)
    host = reference.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if "BF16" not in host:
        with pytest.raises(PropertyError, match=r"INFERENCE_PRECISION_HINT.*bf16.*f32 or f16"):
            shared_core.compile_model(digits, "NPU", {"INFERENCE_PRECISION_HINT": "bf16"})
    layers = {"NPU_COMPILATION_MODE_PARAMS": "compute-layers-with-higher-precision=Squrt"}
    with pytest.raises(PropertyError, match=r"not 'Squrt'; did you mean Sqrt"):
        shared_core.compile_model(digits, "NPU", {"INFERENCE_PRECISION_HINT": "f16", **layers})


def test_caching_properties_can_be_extended_but_not_reduced(shared_core: Core) -> None:
    more = [*cached_names(), "NPU_TURBO"]
    shared_core.set_property("NPU", {"CACHING_PROPERTIES": more})
    assert shared_core.get_property("NPU", "CACHING_PROPERTIES") == sorted(more)
    fewer = [name for name in cached_names() if name != "PERF_COUNT"]
    for names, message in ((fewer, "also PERF_COUNT"), ([*cached_names(), "NO_SUCH"], "NO_SUCH")):
        with pytest.raises(PropertyError, match=f"CACHING_PROPERTIES: .*{message}"):
            shared_core.set_property("NPU", {"CACHING_PROPERTIES": names})

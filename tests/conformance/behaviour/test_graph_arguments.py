"""What a graph says of its arguments, and what build flags make of them (facts 3.1, 3.2)."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance import models
from tests.conformance.api.enumerations import ArgumentType, ElementType, Layout, Precision
from tests.conformance.api.structures import ArgumentProperties, Handle
from tests.conformance.commands import infer
from tests.conformance.models import COUNT, FACTOR, NAMES, Model
from tests.conformance.rig import Rig


@pytest.fixture
def graph(rig: Rig, model: Model) -> Handle:
    return rig.graph(model)


def properties(rig: Rig, graph: Handle, version: str = "3") -> list[ArgumentProperties]:
    ask = getattr(rig.api, f"ze_graph_get_argument_properties{version}")
    return [ask(graph, index).get() for index in range(3)]


def test_every_version_tells_types_and_dimensions(rig: Rig, graph: Handle) -> None:
    types = [ArgumentType.INPUT, ArgumentType.INPUT, ArgumentType.OUTPUT]
    for version in ("", "2", "3"):
        found = properties(rig, graph, version)
        assert [entry.type for entry in found] == types
        assert [entry.dims for entry in found] == [(1, COUNT, 1, 1, 1)] * 3
        assert all(entry.name for entry in found)
        assert len({entry.name for entry in found}) == 3


def test_arguments_have_the_precisions_and_layouts_of_the_build_flags(rig: Rig, graph: Handle) -> None:
    for found in properties(rig, graph):
        assert found.network_precision == found.device_precision == Precision.FP32
        assert found.network_layout == found.device_layout == Layout.NC


def test_quantization_is_the_identity(rig: Rig, graph: Handle) -> None:
    found = properties(rig, graph, "2")
    assert [entry.quant_reverse_scale for entry in found] == [1, 1, 0]
    assert [entry.quant_zero_point for entry in found] == [0, 0, 0]


def test_version_3_tells_rank_and_names(rig: Rig, graph: Handle) -> None:
    for found, name in zip(properties(rig, graph), NAMES, strict=True):
        assert found.dims_count == 2
        assert found.debug_friendly_name == name
        assert name in found.associated_tensor_names


def test_metadata_describes_the_model(rig: Rig, graph: Handle) -> None:
    for index, name in enumerate(NAMES):
        found = rig.api.ze_graph_get_argument_metadata(graph, index).get()
        assert found.type == (ArgumentType.OUTPUT if index == 2 else ArgumentType.INPUT)
        assert found.friendly_name == name
        assert found.data_type == ElementType.F32
        assert found.shape == (1, COUNT)
        assert name in found.tensor_names


def test_argument_that_does_not_exist_is_an_invalid_argument(rig: Rig, graph: Handle) -> None:
    api, invalid = rig.api, ZeResult.ERROR_INVALID_ARGUMENT
    assert api.ze_graph_get_argument_properties(graph, 3).result == invalid
    assert api.ze_graph_get_argument_properties3(graph, 3).result == invalid
    assert api.ze_graph_get_argument_metadata(graph, 3).result == invalid


@pytest.mark.parametrize("case", [str.upper, str.lower], ids=["capitals", "small letters"])
def test_build_flags_choose_the_precisions(rig: Rig, model: Model, case: Callable[[str], str]) -> None:
    flags = models.build_flags(inputs=(case("U8"), case("FP16")), output=case("FP16"))
    graph, output = rig.graph(model, build_flags=flags), rig.host(COUNT * 2)
    expected = [Precision.U8, Precision.FP16, Precision.FP16]
    assert [entry.device_precision for entry in properties(rig, graph)] == expected
    # the metadata keeps the precision of the model
    assert rig.api.ze_graph_get_argument_metadata(graph, 0).get().data_type == ElementType.F32
    left, right = rig.data(bytes(range(COUNT))), rig.data(struct.pack(f"<{COUNT}e", *[1.5] * COUNT))
    rig.bind(graph, left, right, output)
    rig.execute(infer(graph))
    found = struct.unpack(f"<{COUNT}e", rig.api.read(output, COUNT * 2))
    assert list(found) == [at + 1.5 * FACTOR for at in range(COUNT)]


def test_config_of_the_build_flags_is_accepted(rig: Rig, model: Model) -> None:
    flags = models.build_flags(config='NPU_PLATFORM="4000" LOG_LEVEL="LOG_NONE"')
    assert rig.graph(model, build_flags=flags)

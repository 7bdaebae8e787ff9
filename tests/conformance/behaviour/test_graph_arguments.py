"""The reported arguments of a graph, and the effect of build flags on them."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance import models
from tests.conformance.api.enumerations import ArgumentType, ElementType, Layout, Precision
from tests.conformance.api.structures import ArgumentProperties, Handle
from tests.conformance.commands import infer
from tests.conformance.models import COUNT, FACTOR, NAMES, RESULT, Model
from tests.conformance.rig import Rig

FRIENDLY_NAMES = (*NAMES[:2], RESULT)
ELEMENT_TYPES = {"U8": ElementType.U8, "FP16": ElementType.F16, "FP32": ElementType.F32}


@pytest.fixture
def graph(rig: Rig, model: Model) -> Handle:
    return rig.graph(model)


def properties(rig: Rig, graph: Handle, version: str = "3") -> list[ArgumentProperties]:
    ask = getattr(rig.api, f"ze_graph_get_argument_properties{version}")
    return [ask(graph, index).get() for index in range(3)]


def test_every_version_reports_types_and_dimensions(rig: Rig, graph: Handle) -> None:
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


def test_version_3_reports_rank_and_names(rig: Rig, graph: Handle) -> None:
    for found, name, friendly in zip(properties(rig, graph), NAMES, FRIENDLY_NAMES, strict=True):
        assert found.dims_count == 2
        assert (found.name, found.debug_friendly_name) == (name, friendly)
        assert f"{name}:0" in found.associated_tensor_names


def test_output_is_called_by_its_producer_and_the_number_of_its_value(rig: Rig) -> None:
    graph = rig.graph(models.halves(""))
    found = [rig.api.ze_graph_get_argument_properties3(graph, index).get() for index in range(3)]
    assert [entry.name for entry in found] == ["picture", "cut.0", "cut.1"]
    assert [entry.debug_friendly_name for entry in found] == ["picture", "half 0", "half 1"]


def test_metadata_describes_the_model(rig: Rig, graph: Handle) -> None:
    for index, (name, friendly) in enumerate(zip(NAMES, FRIENDLY_NAMES, strict=True)):
        found = rig.api.ze_graph_get_argument_metadata(graph, index).get()
        assert found.type == (ArgumentType.OUTPUT if index == 2 else ArgumentType.INPUT)
        assert (found.friendly_name, found.input_name) == (friendly, name)
        assert found.data_type == ElementType.F32
        assert found.shape == (1, COUNT)
        assert f"{name}:0" in found.tensor_names


def test_argument_that_does_not_exist_is_an_invalid_argument(rig: Rig, graph: Handle) -> None:
    api, invalid = rig.api, ZeResult.ERROR_INVALID_ARGUMENT
    assert api.ze_graph_get_argument_properties(graph, 3).result == invalid
    assert api.ze_graph_get_argument_properties3(graph, 3).result == invalid
    assert api.ze_graph_get_argument_metadata(graph, 3).result == invalid


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("given", ["U8", "FP16", "FP32"])
def test_build_flags_are_applied_before_anything_is_reported(rig: Rig, given: str, layout: str) -> None:
    flags = (
        f'--inputs_precisions="0:{given}" --inputs_layouts="0:{layout}" '
        f'--outputs_precisions="0:FP32 1:{given}" --outputs_layouts="0:NCHW 1:{layout}"'
    )
    graph = rig.graph(models.halves(flags))
    for index, (word, order, channels) in enumerate(
        [(given, layout, 2), ("FP32", "NCHW", 1), (given, layout, 1)]
    ):
        shape = (1, channels, 3, 4) if order == "NCHW" else (1, 3, 4, channels)
        found = rig.api.ze_graph_get_argument_properties3(graph, index).get()
        assert found.network_precision == found.device_precision == Precision[word]
        # the dimensions are in the requested order, so the layout is that rank's default
        assert found.network_layout == found.device_layout == Layout.NCHW
        assert found.dims == (*shape, 1)
        metadata = rig.api.ze_graph_get_argument_metadata(graph, index).get()
        assert (metadata.data_type, metadata.shape) == (ELEMENT_TYPES[word], shape)


@pytest.mark.parametrize("case", [str.upper, str.lower], ids=["capitals", "small letters"])
def test_inference_takes_and_gives_the_precisions_of_the_build_flags(
    rig: Rig, model: Model, case: Callable[[str], str]
) -> None:
    flags = models.build_flags(inputs=(case("U8"), case("FP16")), output=case("FP16"))
    graph, output = rig.graph(model, build_flags=flags), rig.host(COUNT * 2)
    expected = [Precision.U8, Precision.FP16, Precision.FP16]
    assert [entry.device_precision for entry in properties(rig, graph)] == expected
    left, right = rig.data(bytes(range(COUNT))), rig.data(struct.pack(f"<{COUNT}e", *[1.5] * COUNT))
    rig.bind(graph, left, right, output)
    rig.execute(infer(graph))
    found = struct.unpack(f"<{COUNT}e", rig.api.read(output, COUNT * 2))
    assert list(found) == [at + 1.5 * FACTOR for at in range(COUNT)]


def test_config_of_the_build_flags_is_accepted(rig: Rig, model: Model) -> None:
    flags = models.build_flags(config='NPU_PLATFORM="4000" LOG_LEVEL="LOG_NONE"')
    assert rig.graph(model, build_flags=flags)

"""What a graph says of its arguments, and what build flags make of them (facts 3.1, 3.2)."""

from __future__ import annotations

import struct

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance import models
from tests.conformance.api.enumerations import ArgumentType, ElementType, Layout, Precision
from tests.conformance.models import COUNT, FACTOR, NAMES, RESULT, Model
from tests.conformance.rig import Rig, ok

FRIENDLY_NAMES = (*NAMES[:2], RESULT)
ELEMENT_TYPES = {"U8": ElementType.U8, "FP16": ElementType.F16, "FP32": ElementType.F32}


@pytest.mark.parametrize("version", ["", "2", "3"])
def test_inputs_come_before_outputs(rig: Rig, model: Model, version: str) -> None:
    graph = rig.graph(model)
    ask = getattr(rig.api, f"ze_graph_get_argument_properties{version}")
    found = [ask(graph, index).get() for index in range(3)]
    assert [entry.type for entry in found] == [ArgumentType.INPUT, ArgumentType.INPUT, ArgumentType.OUTPUT]


@pytest.mark.parametrize("version", ["", "2", "3"])
def test_unused_dimensions_are_one(rig: Rig, model: Model, version: str) -> None:
    graph = rig.graph(model)
    ask = getattr(rig.api, f"ze_graph_get_argument_properties{version}")
    assert [ask(graph, index).get().dims for index in range(3)] == [(1, COUNT, 1, 1, 1)] * 3


def test_arguments_have_the_precisions_and_layouts_of_the_build_flags(rig: Rig, model: Model) -> None:
    graph = rig.graph(model)
    for index in range(3):
        found = rig.api.ze_graph_get_argument_properties3(graph, index).get()
        assert found.network_precision == found.device_precision == Precision.FP32
        assert found.network_layout == found.device_layout == Layout.NC


def test_quantization_is_the_identity(rig: Rig, model: Model) -> None:
    graph = rig.graph(model)
    found = [rig.api.ze_graph_get_argument_properties2(graph, index).get() for index in range(3)]
    assert [entry.quant_reverse_scale for entry in found] == [1, 1, 0]
    assert [entry.quant_zero_point for entry in found] == [0, 0, 0]


def test_version_3_tells_rank_and_names(rig: Rig, model: Model) -> None:
    graph = rig.graph(model)
    for index, (name, friendly) in enumerate(zip(NAMES, FRIENDLY_NAMES, strict=True)):
        found = rig.api.ze_graph_get_argument_properties3(graph, index).get()
        assert found.dims_count == 2
        assert (found.name, found.debug_friendly_name) == (name, friendly)
        assert f"{name}:0" in found.associated_tensor_names


def test_output_is_called_by_its_producer_and_the_number_of_its_value(rig: Rig) -> None:
    graph = rig.graph(models.halves(""))
    found = [rig.api.ze_graph_get_argument_properties3(graph, index).get() for index in range(3)]
    assert [entry.name for entry in found] == ["picture", "cut.0", "cut.1"]
    assert [entry.debug_friendly_name for entry in found] == ["picture", "half 0", "half 1"]


def test_argument_names_are_distinct(rig: Rig, model: Model) -> None:
    graph = rig.graph(model)
    found = [rig.api.ze_graph_get_argument_properties(graph, index).get().name for index in range(3)]
    assert all(found)
    assert len(set(found)) == 3


def test_metadata_describes_the_model(rig: Rig, model: Model) -> None:
    graph = rig.graph(model)
    for index, (name, friendly) in enumerate(zip(NAMES, FRIENDLY_NAMES, strict=True)):
        found = rig.api.ze_graph_get_argument_metadata(graph, index).get()
        assert found.type == (ArgumentType.OUTPUT if index == 2 else ArgumentType.INPUT)
        assert (found.friendly_name, found.input_name) == (friendly, name)
        assert found.data_type == ElementType.F32
        assert found.shape == (1, COUNT)
        assert f"{name}:0" in found.tensor_names


def test_argument_that_does_not_exist_is_an_invalid_argument(rig: Rig, model: Model) -> None:
    api, graph, invalid = rig.api, rig.graph(model), ZeResult.ERROR_INVALID_ARGUMENT
    assert api.ze_graph_get_argument_properties(graph, 3).result == invalid
    assert api.ze_graph_get_argument_properties3(graph, 3).result == invalid
    assert api.ze_graph_get_argument_metadata(graph, 3).result == invalid


def test_null_graph_and_output_are_refused(rig: Rig, model: Model) -> None:
    api, graph = rig.api, rig.graph(model)
    null_handle, null_pointer = ZeResult.ERROR_INVALID_NULL_HANDLE, ZeResult.ERROR_INVALID_NULL_POINTER
    assert api.ze_graph_get_argument_properties(None, 0).result == null_handle
    assert api.ze_graph_get_argument_metadata(None, 0).result == null_handle
    assert api.ze_graph_get_argument_properties(graph, 0, out=False).result == null_pointer
    assert api.ze_graph_get_argument_properties3(graph, 0, out=False).result == null_pointer
    assert api.ze_graph_get_argument_metadata(graph, 0, out=False).result == null_pointer


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("given", ["U8", "FP16", "FP32"])
def test_build_flags_are_applied_before_anything_is_told(rig: Rig, given: str, layout: str) -> None:
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
        # the dimensions are in the order asked for, so the layout is the default of so many
        assert found.network_layout == found.device_layout == Layout.NCHW
        assert found.dims == (*shape, 1)
        metadata = rig.api.ze_graph_get_argument_metadata(graph, index).get()
        assert (metadata.data_type, metadata.shape) == (ELEMENT_TYPES[word], shape)


def test_inference_takes_and_gives_the_precisions_of_the_build_flags(rig: Rig, model: Model) -> None:
    graph = rig.graph(model, build_flags=models.build_flags(inputs=("U8", "FP16"), output="FP16"))
    left, right = rig.data(bytes(range(COUNT))), rig.data(struct.pack(f"<{COUNT}e", *[1.5] * COUNT))
    output, command_list = rig.host(COUNT * 2), rig.command_list()
    rig.bind(graph, left, right, output)
    ok(rig.api.ze_command_list_append_graph_execute(command_list, graph))
    rig.run(command_list)
    found = struct.unpack(f"<{COUNT}e", rig.api.read(output, COUNT * 2))
    assert list(found) == [at + 1.5 * FACTOR for at in range(COUNT)]


def test_precisions_may_be_written_in_small_letters(rig: Rig, model: Model) -> None:
    graph = rig.graph(model, build_flags=models.build_flags(inputs=("u8", "fp16"), output="fp16"))
    found = [rig.api.ze_graph_get_argument_properties3(graph, index).get() for index in range(3)]
    assert [entry.device_precision for entry in found] == [Precision.U8, Precision.FP16, Precision.FP16]


def test_config_of_the_build_flags_is_accepted(rig: Rig, model: Model) -> None:
    flags = models.build_flags(config='NPU_PLATFORM="4000" LOG_LEVEL="LOG_NONE"')
    assert rig.graph(model, build_flags=flags)

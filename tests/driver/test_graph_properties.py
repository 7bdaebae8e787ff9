"""Properties of graphs and their arguments, compiler options, query network, memory query, build logs."""

from __future__ import annotations

import struct
import threading
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from softnpu.driver import BuildLog, Context, Graph, GraphDesc, GraphExtension, ZeError, ZeResult
from softnpu.driver.graph_properties import (
    ArgumentType,
    GraphFormat,
    GraphPropertyFlag,
    InitStage,
    Layout,
    MemoryQuery,
    MetadataType,
    OptionType,
    Precision,
)
from softnpu.emulator.interface.messages import GraphFlag
from tests.support.serialized_forms import copying_form

STORED = "ZE DynamicCaching cache_status_t: cache_status_t::stored\n"
FOUND = "ZE DynamicCaching cache_status_t: cache_status_t::found\n"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ZE_INTEL_NPU_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def extension(context: Context) -> GraphExtension:
    return GraphExtension(context.device)


def wide_model() -> ov.Model:
    """pixels [1,3,4,5] with many names -> out; state [2] -> next; deep has six dimensions."""
    pixels = ops.parameter([1, 3, 4, 5], np.float32, name="pixels")
    pixels.output(0).set_names({f"name{number:02}" for number in range(40)} | {"a" * 300})
    state = ops.parameter([2], np.int64, name="state")
    deep = ops.parameter([1, 1, 2, 1, 1, 2], np.uint8, name="deep")
    out = ops.relu(pixels, name="scaled")
    out.output(0).set_names({"out"})
    return ov.Model(
        [out, ops.negative(state, name="next"), ops.convert(deep, "f16", name="half")],
        [pixels, state, deep],
        "wide",
    )


def make(
    context: Context, extension: GraphExtension, model: ov.Model, line: str = "", flags: int = 0
) -> Graph:
    data = copying_form(model, extension.device_get_graph_properties().compiler_version)
    return extension.create2(context, GraphDesc(GraphFormat.NGRAPH_LITE, data, line, flags))


def result_of(error: pytest.ExceptionInfo[ZeError]) -> int:
    return error.value.result


# ---------------------------------------------------------------- graph


def test_origin_tells_how_a_graph_came_to_be(context: Context, extension: GraphExtension) -> None:
    model = wide_model()
    first = make(context, extension, model)
    again = make(context, extension, model)
    native = extension.create2(context, GraphDesc(GraphFormat.NATIVE, first.get_native_binary()))
    off = make(context, extension, model, flags=GraphFlag.DISABLE_CACHING)
    flags = [graph.get_properties().flags for graph in (first, again, native, off)]
    assert flags == [
        GraphPropertyFlag.COMPILED,
        GraphPropertyFlag.LOADED_FROM_CACHE,
        GraphPropertyFlag.PRE_COMPILED,
        GraphPropertyFlag.COMPILED,
    ]
    for graph in (first, again, native, off):
        properties = graph.get_properties()
        assert (properties.num_graph_args, properties.init_stage_required) == (6, InitStage.INITIALIZE)


def test_flags_of_the_creation_show_in_the_properties(context: Context, extension: GraphExtension) -> None:
    model = wide_model()
    profiled = make(context, extension, model, flags=GraphFlag.ENABLE_PROFILING)
    assert profiled.get_properties().flags & GraphPropertyFlag.PROFILING_ENABLED
    by_line = make(context, extension, model, '--config PERF_COUNT="YES"')
    assert by_line.get_properties().flags & GraphPropertyFlag.PROFILING_ENABLED
    persistent = make(context, extension, model, flags=GraphFlag.INPUT_GRAPH_PERSISTENT)
    assert persistent.get_properties().flags & GraphPropertyFlag.NO_STANDARD_ALLOCATION
    more = make(
        context, extension, model, flags=GraphFlag.SECURE_COMPILE | GraphFlag.OPTIMIZE_FOR_DYNAMIC_SHAPES
    )
    assert more.keeps_strides
    assert not profiled.keeps_strides


def test_version_1_of_the_descriptor_has_no_flags(context: Context, extension: GraphExtension) -> None:
    data = copying_form(wide_model(), extension.device_get_graph_properties().compiler_version)
    graph = extension.create(context, GraphDesc(2, data, "", int(GraphFlag.ENABLE_PROFILING)))
    assert not graph.get_properties().flags & GraphPropertyFlag.PROFILING_ENABLED


# ---------------------------------------------------------------- arguments


def test_argument_properties_are_those_of_the_c_structures(
    context: Context, extension: GraphExtension
) -> None:
    line = '--inputs_precisions="0:U8" --inputs_layouts="0:NHWC" --config NPU_ENABLE_STRIDES_FOR="state"'
    graph = make(context, extension, wide_model(), line)
    pixels, state, deep = (graph.get_argument_properties(index) for index in range(3))
    assert (pixels.type, pixels.dims, pixels.dims_count) == (ArgumentType.INPUT, (1, 4, 5, 3, 1), 4)
    assert (pixels.network_precision, pixels.device_precision) == (Precision.FP32, Precision.UINT8)
    assert (pixels.network_layout, pixels.device_layout) == (Layout.NCHW, Layout.NHWC)
    assert (pixels.quant_reverse_scale, pixels.quant_zero_point) == (1.0, 0)
    assert pixels.debug_friendly_name == "pixels"
    assert len(pixels.associated_tensor_names) == 32
    assert max(map(len, pixels.associated_tensor_names)) == 255
    assert (state.dims, state.dims_count, state.device_layout) == ((2, 1, 1, 1, 1), 1, Layout.C)
    assert (state.device_precision, state.supports_strides) == (Precision.INT64, True)
    assert not pixels.supports_strides
    assert (deep.dims, deep.dims_count, deep.device_layout) == ((1, 1, 2, 1, 1), 5, Layout.BLOCKED)
    out = graph.get_argument_properties(3)
    assert (out.type, out.name, out.debug_friendly_name) == (ArgumentType.OUTPUT, "out", "scaled")
    assert out.quant_reverse_scale == 0.0
    assert graph.get_argument_properties(5).device_precision == Precision.FP16


def test_metadata_describes_the_argument_of_the_ir(context: Context, extension: GraphExtension) -> None:
    graph = make(context, extension, wide_model(), '--inputs_precisions="0:U8"')
    metadata = graph.get_argument_metadata(0)
    assert (metadata.type, metadata.friendly_name) == (ArgumentType.INPUT, "pixels")
    assert (metadata.data_type, metadata.shape) == (MetadataType.F32, (1, 3, 4, 5))
    assert graph.get_argument_metadata(2).shape == (1, 1, 2, 1, 1, 2)
    assert graph.get_argument_metadata(5).data_type == MetadataType.F16


@pytest.mark.parametrize("index", [-1, 6, 2**32])
def test_an_unknown_index_is_refused(context: Context, extension: GraphExtension, index: int) -> None:
    graph = make(context, extension, wide_model())
    for call in (graph.get_argument_properties, graph.get_argument_metadata):
        with pytest.raises(ZeError) as error:
            call(index)
        assert result_of(error) == ZeResult.ERROR_INVALID_ARGUMENT
    with pytest.raises(ZeError) as error:
        graph.set_argument_value(index, context.alloc_host(64))
    assert result_of(error) == ZeResult.ERROR_INVALID_ARGUMENT


def test_a_destroyed_graph_is_refused_by_every_call(context: Context, extension: GraphExtension) -> None:
    graph = make(context, extension, wide_model())
    graph.destroy()
    calls = (
        graph.get_properties,
        lambda: graph.get_argument_properties(0),
        lambda: graph.get_argument_metadata(0),
        graph.get_native_binary,
        graph.get_native_binary2,
        graph.initialize,
        graph.evict,
        lambda: graph.set_argument_value2(0, None, [1]),
        lambda: extension.build_log_get_string(graph),
    )
    for call in calls:
        with pytest.raises(ZeError) as error:
            call()
        assert result_of(error) == ZeResult.ERROR_INVALID_NULL_HANDLE


# ---------------------------------------------------------------- options, query, memory


def test_the_compiler_tells_its_versions_and_options(extension: GraphExtension) -> None:
    properties = extension.device_get_graph_properties()
    assert properties.graph_extension_version == 1 << 16 | 16
    assert properties.compiler_version >= (5, 9)
    assert properties.graph_formats_supported == GraphFormat.NGRAPH_LITE
    assert properties.max_ov_opset_version_supported >= 11
    names = extension.compiler_get_supported_options().split()
    assert {"NPU_PLATFORM", "PERF_COUNT", "NPU_ENABLE_STRIDES_FOR"} <= set(names)
    assert extension.compiler_get_supported_options(OptionType.DRIVER) == ""


@pytest.mark.parametrize(
    ("name", "value", "supported"),
    [
        ("NPU_MODEL_SERIALIZER_VERSION", "NO_WEIGHTS_COPY", True),
        ("NPU_MODEL_SERIALIZER_VERSION", "ALL_WEIGHTS_COPY", True),
        ("NPU_MODEL_SERIALIZER_VERSION", "SOME_WEIGHTS_COPY", False),
        ("NPU_ENABLE_STRIDES_FOR", None, True),
        ("NPU_PLATFORM", "4000", True),
        ("NPU_PLATFORM", "3720", True),
        ("NPU_PLATFORM", "3721", False),
        ("WS_COMPILE_CALL_NUMBER", None, True),
        ("ENABLE_WEIGHTLESS", None, True),
        ("NPU_SEPARATE_WEIGHTS_VERSION", "ITERATIVE", True),
        ("NPU_SEPARATE_WEIGHTS_VERSION", "ONE_SHOT", False),
        ("WS_TOTAL_NUMBER", None, False),
    ],
)
def test_an_option_is_supported_or_not(
    extension: GraphExtension, name: str, value: str | None, supported: bool
) -> None:
    if supported:
        extension.compiler_is_option_supported(OptionType.COMPILER, name, value)
        return
    with pytest.raises(ZeError) as error:
        extension.compiler_is_option_supported(OptionType.COMPILER, name, value)
    assert result_of(error) == ZeResult.ERROR_UNSUPPORTED_FEATURE


def test_the_driver_itself_supports_no_option(extension: GraphExtension) -> None:
    with pytest.raises(ZeError) as error:
        extension.compiler_is_option_supported(OptionType.DRIVER, "PERF_COUNT")
    assert result_of(error) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    for kind in (0, 3):
        with pytest.raises(ZeError) as error:
            extension.compiler_get_supported_options(kind)
        assert result_of(error) == ZeResult.ERROR_INVALID_ARGUMENT
    with pytest.raises(ZeError) as error:
        extension.compiler_is_option_supported(OptionType.COMPILER, None)
    assert result_of(error) == ZeResult.ERROR_INVALID_NULL_POINTER


def test_a_query_lists_the_layers_that_can_run(context: Context, extension: GraphExtension) -> None:
    tensor = ops.parameter([2, 8], np.float32, name="x")
    odd = ops.convert(tensor, "u3", name="to_three_bits")
    model = ov.Model([ops.relu(tensor, name="fine"), ops.convert(odd, "f32", name="back")], [tensor], "odd")
    data = copying_form(model, extension.device_get_graph_properties().compiler_version)
    with extension.query_network_create(context, GraphDesc(2, data)) as query:
        layers = query.get_supported_layers()
    assert layers.startswith("<")
    names = layers.strip("<>").split("><")
    assert "fine" in names
    assert "to_three_bits" not in names
    with pytest.raises(ZeError) as error:
        query.get_supported_layers()
    assert result_of(error) == ZeResult.ERROR_INVALID_NULL_HANDLE


def test_a_query_wants_a_serialised_model(context: Context, extension: GraphExtension) -> None:
    for desc, expected in (
        (GraphDesc(GraphFormat.NATIVE, b"x"), ZeResult.ERROR_UNSUPPORTED_ENUMERATION),
        (GraphDesc(2, None), ZeResult.ERROR_INVALID_NULL_POINTER),
        (None, ZeResult.ERROR_INVALID_NULL_POINTER),
    ):
        with pytest.raises(ZeError) as error:
            extension.query_network_create(context, desc)
        assert result_of(error) == expected


def test_memory_queries_tell_device_memory_and_the_cache(
    context: Context, extension: GraphExtension, cache: Path
) -> None:
    before = extension.query_context_memory(context, MemoryQuery.DDR).allocated
    kept = context.alloc_host(20000)
    assert extension.query_context_memory(context, MemoryQuery.DDR).allocated == before + 20000
    kept.destroy()
    assert extension.query_context_memory(context, MemoryQuery.DRIVER_CACHE).allocated == 0
    make(context, extension, wide_model())
    use = extension.query_context_memory(context, MemoryQuery.DRIVER_CACHE)
    assert use.allocated == sum(path.stat().st_size for path in cache.iterdir())
    assert use.total == 4 << 30
    assert extension.query_context_memory(context, MemoryQuery.PROGRAM_CACHE).allocated == 0
    with pytest.raises(ZeError) as error:
        extension.query_context_memory(context, 4)
    assert result_of(error) == ZeResult.ERROR_INVALID_ARGUMENT


# ---------------------------------------------------------------- logs


def broken(extension: GraphExtension) -> GraphDesc:
    xml = b'<?xml version="1.0"?><net name="broken"><layers></net>'
    version = extension.device_get_graph_properties().compiler_version
    return GraphDesc(2, struct.pack("<HHIQ", *version, 2, len(xml)) + xml + struct.pack("<Q", 0))


def test_create_3_logs_the_state_of_the_cache(context: Context, extension: GraphExtension) -> None:
    data = copying_form(wide_model(), extension.device_get_graph_properties().compiler_version)
    logs = [BuildLog(), BuildLog()]
    for log in logs:
        extension.create3(context, GraphDesc(2, data), log).destroy()
    assert [log.get_string() for log in logs] == [STORED, FOUND]
    assert logs[0].size == len(STORED) + 1


def test_a_failure_is_logged_alike_in_both_versions(context: Context, extension: GraphExtension) -> None:
    log = BuildLog()
    with pytest.raises(ZeError) as error:
        extension.create3(context, broken(extension), log)
    assert result_of(error) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert "broken" in log.get_string()
    assert extension.build_log_get_string(None) == log.get_string()
    log.destroy()
    log.destroy()
    with pytest.raises(ZeError) as error:
        log.get_string()
    assert result_of(error) == ZeResult.ERROR_INVALID_NULL_HANDLE


def test_the_last_failure_is_that_of_the_thread(context: Context, extension: GraphExtension) -> None:
    with pytest.raises(ZeError):
        extension.create2(context, broken(extension))
    mine = extension.build_log_get_string(None)
    others: list[str] = []
    thread = threading.Thread(target=lambda: others.append(extension.build_log_get_string(None)))
    thread.start()
    thread.join(10)
    assert others == [""]
    graph = make(context, extension, wide_model())
    assert extension.build_log_get_string(graph) == ""
    assert extension.build_log_get_string(None) == mine

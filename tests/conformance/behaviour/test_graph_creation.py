"""Creating graphs, from models and from blobs, and the reports of failures."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from softnpu.emulator.interface.commands import MAX_ARGUMENTS
from softnpu.emulator.interface.result import ZeResult
from tests.conformance import models
from tests.conformance.api.enumerations import (
    GRAPH_EXTENSION_VERSION,
    GraphFlag,
    GraphFormat,
    GraphProperty,
    InitStage,
    OptionType,
)
from tests.conformance.api.structures import Answer, GraphDesc, Handle, native
from tests.conformance.commands import infer
from tests.conformance.models import SIZE, Model
from tests.conformance.rig import Rig, ok

Create = Callable[..., Answer[Handle]]


def create3(
    rig: Rig, context: Handle, device: Handle, desc: GraphDesc | None, out: bool = True
) -> Answer[Handle]:
    """Call version 3 like the others, and release its log."""
    result, outcome = rig.api.ze_graph_create3(context, device, desc, out)
    if outcome.log is not None:
        ok(rig.api.ze_graph_build_log_destroy(outcome.log))
    return Answer(result, outcome.graph)


@pytest.fixture(params=["create", "create2", "create3"])
def create(request: pytest.FixtureRequest, rig: Rig) -> Create:
    """Return each version of the call."""
    if request.param == "create3":
        return lambda *args, **more: create3(rig, *args, **more)
    return rig.api.ze_graph_create if request.param == "create" else rig.api.ze_graph_create2


# ---------------------------------------------------------------- device


def test_device_reports_the_graph_extension_the_compiler_and_the_runtime(rig: Rig) -> None:
    found = rig.api.ze_device_get_graph_properties(rig.device).get()
    assert found.graph_extension_version == GRAPH_EXTENSION_VERSION
    assert (found.compiler_major, found.compiler_minor) >= (5, 9)
    assert found.graph_format == GraphFormat.NGRAPH_LITE
    assert found.max_opset_version >= 11
    newer = rig.api.ze_device_get_graph_properties2(rig.device).get()
    assert any(newer.elf_version)
    assert any(newer.runtime_version)


# ---------------------------------------------------------------- creation


def test_model_compiles(rig: Rig, create: Create, model: Model) -> None:
    graph = create(rig.context, rig.device, rig.model_desc(model)).get()
    assert rig.api.ze_graph_get_properties(graph).get().num_arguments == 3


def test_creation_checks_its_descriptor(rig: Rig, create: Create, model: Model) -> None:
    context, device, good = rig.context, rig.device, rig.model_desc(model)
    no_input = create(context, device, GraphDesc(input=None, input_size=100))
    assert no_input.result == ZeResult.ERROR_INVALID_NULL_POINTER
    assert create(context, device, good._replace(input_size=0)).result == ZeResult.ERROR_INVALID_SIZE
    for other in (0, 3, 99):
        made = create(context, device, good._replace(format=other))
        assert made.result == ZeResult.ERROR_INVALID_ARGUMENT


def test_context_works_on_after_a_failed_creation(rig: Rig, create: Create, model: Model) -> None:
    broken = create(rig.context, rig.device, rig.model_desc(models.broken()))
    assert broken.result == ZeResult.ERROR_INVALID_ARGUMENT
    no_blob = create(rig.context, rig.device, native(b"this is no blob at all" * 100))
    assert no_blob.result == ZeResult.ERROR_INVALID_NATIVE_BINARY
    assert create(rig.context, rig.device, rig.model_desc(model)).get()


def test_as_many_arguments_as_an_execution_takes_are_accepted(rig: Rig) -> None:
    desc = rig.model_desc(models.wide(MAX_ARGUMENTS // 2))
    made = rig.api.ze_graph_create2(rig.context, rig.device, desc).get()
    assert rig.api.ze_graph_get_properties(made).get().num_arguments == MAX_ARGUMENTS


def test_more_arguments_than_an_execution_takes_are_refused(rig: Rig, create: Create) -> None:
    inputs = MAX_ARGUMENTS // 2 + 1
    made = create(rig.context, rig.device, rig.model_desc(models.wide(inputs)))
    assert made.result == ZeResult.ERROR_UNSUPPORTED_SIZE
    if create is rig.api.ze_graph_create:
        _, log = rig.api.ze_graph_build_log_get_string(None).get()
        assert f"{inputs} inputs and {inputs} outputs" in log
        assert f"at most {MAX_ARGUMENTS}" in log


def test_truncated_model_is_refused(rig: Rig, model: Model) -> None:
    whole = rig.model_desc(model)
    assert isinstance(whole.input, bytes)
    for size in (0, 1, 7, 8, 15, 16, 17, 200):
        desc = whole._replace(input=whole.input[:size])
        made = rig.api.ze_graph_create2(rig.context, rig.device, desc)
        assert made.result not in (ZeResult.SUCCESS, ZeResult.NOT_READY), size


# ---------------------------------------------------------------- properties


def test_compiled_graph_says_so_and_needs_its_own_initialization(rig: Rig, model: Model) -> None:
    graph = rig.graph(model)
    found = rig.api.ze_graph_get_properties3(graph).get()
    assert found.flags & GraphProperty.COMPILED
    assert not found.flags & (GraphProperty.LOADED_FROM_CACHE | GraphProperty.PRE_COMPILED)
    assert found.init_stage_required == InitStage.INITIALIZE
    assert rig.api.ze_graph_get_properties2(graph).get().init_stage_required == InitStage.INITIALIZE


def test_initialize_and_evict_may_be_repeated(rig: Rig, model: Model) -> None:
    graph = rig.graph(model)
    for call in (rig.api.ze_graph_initialize, rig.api.ze_graph_evict) * 2:
        ok(call(graph))


# ---------------------------------------------------------------- native binary


def output_of(rig: Rig, graph: Handle) -> bytes:
    """Return an inference's output for some input."""
    output = rig.host(SIZE)
    rig.bind(graph, rig.host(SIZE, fill=b"\x3f"), rig.host(SIZE, fill=b"\x3e"), output)
    rig.execute(infer(graph))
    return rig.api.read(output, SIZE)


def test_both_versions_give_the_same_blob(rig: Rig, model: Model) -> None:
    graph = rig.graph(model)
    address, size = rig.api.ze_graph_get_native_binary2(graph).get()
    assert rig.api.read(address, size) == rig.api.ze_graph_get_native_binary(graph).get()


def test_blob_makes_a_graph_that_is_pre_compiled(rig: Rig, model: Model) -> None:
    blob = rig.api.ze_graph_get_native_binary(rig.graph(model)).get()
    graph = rig.api.ze_graph_create2(rig.context, rig.device, native(blob)).get()
    flags = rig.api.ze_graph_get_properties3(graph).get().flags
    assert flags & GraphProperty.PRE_COMPILED
    assert not flags & GraphProperty.COMPILED


def test_graph_of_a_blob_computes_the_same(rig: Rig, model: Model) -> None:
    first = rig.graph(model)
    blob = rig.api.ze_graph_get_native_binary(first).get()
    second = rig.graph_from(native(blob))
    assert output_of(rig, first) == output_of(rig, second) != bytes(SIZE)


def test_blob_outlives_its_graph_and_context(rig: Rig, model: Model) -> None:
    context = rig.new_context()
    graph = rig.api.ze_graph_create2(context, rig.device, rig.model_desc(model)).get()
    blob = rig.api.ze_graph_get_native_binary(graph).get()
    ok(rig.api.ze_context_destroy(context))
    assert rig.api.ze_graph_create2(rig.context, rig.device, native(blob)).get()


def test_truncated_or_damaged_blob_is_an_invalid_native_binary(rig: Rig, model: Model) -> None:
    blob = rig.api.ze_graph_get_native_binary(rig.graph(model)).get()
    for share in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999):
        at = int(len(blob) * share)
        for spoilt in (blob[: max(1, at)], blob[:at] + bytes([blob[at] ^ 0x10]) + blob[at + 1 :]):
            made = rig.api.ze_graph_create2(rig.context, rig.device, native(spoilt))
            assert made.result == ZeResult.ERROR_INVALID_NATIVE_BINARY, share
    rig.check_works()


def test_persistent_input_says_whether_it_was_kept(rig: Rig, model: Model) -> None:
    blob = rig.api.ze_graph_get_native_binary(rig.graph(model)).get()
    memory = rig.host(len(blob))
    rig.api.write(memory, blob)
    desc = GraphDesc(memory, GraphFormat.NATIVE, flags=GraphFlag.INPUT_GRAPH_PERSISTENT, input_size=len(blob))
    graph = rig.graph_from(desc)
    if rig.api.ze_graph_get_properties3(graph).get().flags & GraphProperty.NO_STANDARD_ALLOCATION:
        rig.api.write(memory, bytes(len(blob)))
    assert output_of(rig, graph) != bytes(SIZE)


# ---------------------------------------------------------------- build logs


def test_failed_creation_has_the_same_log_in_both_versions(rig: Rig) -> None:
    result, outcome = rig.api.ze_graph_create3(rig.context, rig.device, rig.model_desc(models.broken()))
    assert result == ZeResult.ERROR_INVALID_ARGUMENT
    assert outcome.graph is None
    size, text = rig.api.ze_graph_build_log_get_string2(outcome.log).get()
    assert text.strip()
    assert size == len(text.encode()) + 1
    assert rig.api.ze_graph_build_log_get_string(None).get() == (size, text)
    ok(rig.api.ze_graph_build_log_destroy(outcome.log))


def test_older_log_is_that_of_the_last_failure_of_the_thread(rig: Rig) -> None:
    rig.api.ze_graph_create2(rig.context, rig.device, rig.model_desc(models.broken()))
    _, mine = rig.api.ze_graph_build_log_get_string(None).get()
    others: list[str] = []

    def ask() -> None:
        found = rig.api.ze_graph_build_log_get_string(None)
        others.append(found.value[1] if found.value is not None else "")

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(10)
    assert mine.strip()
    assert others == [""]


def test_log_outlives_its_graph(rig: Rig, model: Model) -> None:
    result, outcome = rig.api.ze_graph_create3(rig.context, rig.device, rig.model_desc(model))
    ok(result)
    assert rig.api.ze_graph_build_log_get_string(outcome.graph).get()[1] == ""
    ok(rig.api.ze_graph_destroy(outcome.graph))
    size, text = rig.api.ze_graph_build_log_get_string2(outcome.log).get()
    assert size == len(text.encode()) + 1
    ok(rig.api.ze_graph_build_log_destroy(outcome.log))


# ---------------------------------------------------------------- query network


def test_query_network_lists_the_layers(rig: Rig, model: Model) -> None:
    query = rig.api.ze_graph_query_network_create2(rig.context, rig.device, rig.model_desc(model)).get()
    text = rig.api.ze_graph_query_network_get_supported_layers(query).get()
    assert text.startswith("<")
    assert text.rstrip("\0").endswith(">")
    names = text.strip("<>\0").split("><")
    assert set(models.NAMES) <= set(names)
    ok(rig.api.ze_graph_query_network_destroy(query))


def test_query_network_of_a_blob_is_an_unsupported_enumeration(rig: Rig, model: Model) -> None:
    blob = rig.api.ze_graph_get_native_binary(rig.graph(model)).get()
    made = rig.api.ze_graph_query_network_create2(rig.context, rig.device, native(blob))
    assert made.result == ZeResult.ERROR_UNSUPPORTED_ENUMERATION


# ---------------------------------------------------------------- options


def test_compiler_reports_its_options(rig: Rig) -> None:
    is_supported, kind = rig.api.ze_graph_compiler_is_option_supported, OptionType.COMPILER
    found = rig.api.ze_graph_compiler_get_supported_options(rig.device, kind).get()
    names = found.strip("\0").replace(",", " ").split()
    assert names
    for name in names:
        ok(is_supported(rig.device, kind, name))
    unknown = is_supported(rig.device, kind, "NPU_OPTION_OF_NOBODY")
    assert unknown == ZeResult.ERROR_UNSUPPORTED_FEATURE


def test_driver_has_no_options(rig: Rig) -> None:
    found = rig.api.ze_graph_compiler_get_supported_options(rig.device, OptionType.DRIVER).get()
    assert found.strip("\0") == ""
    result = rig.api.ze_graph_compiler_is_option_supported(rig.device, OptionType.DRIVER, "NPU_TURBO")
    assert result == ZeResult.ERROR_UNSUPPORTED_FEATURE

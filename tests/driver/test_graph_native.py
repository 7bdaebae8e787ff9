"""Native binaries through the driver: with all weights, without them, and by another session."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from softnpu.driver import (
    Context,
    Graph,
    GraphDesc,
    GraphExtension,
    GraphSource,
    WeightFile,
    ZeError,
    ZeResult,
)
from softnpu.driver.graph_creation import import_blob
from softnpu.driver.graph_properties import GraphFormat, GraphPropertyFlag
from softnpu.emulator.blob.container import BlobReader
from tests.driver.test_graph_forms import image, run
from tests.support.models import on_cpu
from tests.support.waiting import wait_until


@pytest.fixture
def graph(context: Context, digits: Path) -> Graph:
    with GraphSource.from_ir(digits) as source:
        return context.create_graph(source)


@pytest.fixture
def extension(context: Context) -> GraphExtension:
    return GraphExtension(context.device)


def native(extension: GraphExtension, context: Context, data: bytes | bytearray | memoryview) -> Graph:
    return extension.create2(context, GraphDesc(GraphFormat.NATIVE, data))


def test_the_bytes_make_the_same_graph_without_any_file(
    context: Context, extension: GraphExtension, graph: Graph, digits: Path
) -> None:
    again = native(extension, context, graph.get_native_binary())
    assert again.get_properties().flags == GraphPropertyFlag.PRE_COMPILED
    assert again.meta == graph.meta
    pixels = image()
    assert np.array_equal(run(context, again, pixels)[0], on_cpu(digits, pixels)[0])


def test_the_bytes_are_those_of_the_driver_and_made_once(
    context: Context, extension: GraphExtension, graph: Graph
) -> None:
    first, second = graph.get_native_binary2(), graph.get_native_binary2()
    assert first is second
    assert first.readonly
    assert graph.get_native_binary() == first
    again = native(extension, context, first)
    assert again.get_native_binary() == first
    graph.destroy()
    assert bytes(first[:8]) == b"SNPUBLOB"


def test_the_input_may_go_after_the_call(
    context: Context, extension: GraphExtension, graph: Graph, digits: Path
) -> None:
    data = bytearray(graph.get_native_binary())
    again = native(extension, context, data)
    data[:] = bytes(len(data))
    pixels = image()
    assert np.array_equal(run(context, again, pixels)[0], on_cpu(digits, pixels)[0])


def test_one_image_serves_all_that_have_the_bytes(
    context: Context, extension: GraphExtension, graph: Graph
) -> None:
    data = graph.get_native_binary()
    first, second = native(extension, context, data), native(extension, context, data)
    first.initialize()
    second.initialize()
    assert second.shared


def test_a_blob_without_weights_comes_back_with_them(context: Context, graph: Graph, digits: Path) -> None:
    blob, placement = graph.get_weightless_blob()
    assert placement is not None
    weights = digits.with_suffix(".bin")
    assert len(blob) < weights.stat().st_size + 40960
    pixels = image()
    with open(weights, "rb") as file:
        whole = (WeightFile(file.fileno(), 0, weights.stat().st_size),)
        again = import_blob(context, blob, whole, placement)
    assert np.array_equal(run(context, again, pixels)[0], on_cpu(digits, pixels)[0])
    assert again.get_properties().flags == GraphPropertyFlag.PRE_COMPILED


def test_the_places_of_the_constants_may_be_given_one_by_one(
    context: Context, graph: Graph, digits: Path, tmp_path: Path
) -> None:
    blob, placement = graph.get_weightless_blob()
    reference = BlobReader(blob).weights_reference()
    assert reference is not None
    assert placement is not None
    content = digits.with_suffix(".bin").read_bytes()
    moved, places = bytearray(), {}
    # another file, with the constants the other way round
    for constant, offset in reversed(list(zip(reference.outside, placement.offsets, strict=True))):
        moved += bytes(7)
        places[constant.offset] = len(moved)
        moved += content[offset : offset + constant.length]
    path = tmp_path / "moved.bin"
    path.write_bytes(moved)
    pixels = image()
    with open(path, "rb") as file:
        again = import_blob(context, blob, [WeightFile(file.fileno(), 0, len(moved))], places)
        assert np.array_equal(run(context, again, pixels)[0], on_cpu(digits, pixels)[0])
        del places[reference.outside[-1].offset]
        with pytest.raises(ZeError, match="not in the placement") as error:
            import_blob(context, blob, [WeightFile(file.fileno(), 0, len(moved))], places)
    assert error.value.result == ZeResult.ERROR_INVALID_ARGUMENT


def test_other_weights_are_refused_by_the_name_of_a_constant(
    context: Context, graph: Graph, digits: Path, tmp_path: Path
) -> None:
    blob, placement = graph.get_weightless_blob()
    reference = BlobReader(blob).weights_reference()
    assert reference is not None
    wrong = bytearray(digits.with_suffix(".bin").read_bytes())
    wrong[-1] ^= 1
    path = tmp_path / "wrong.bin"
    path.write_bytes(wrong)
    with open(path, "rb") as file, pytest.raises(ZeError) as error:
        import_blob(context, blob, [WeightFile(file.fileno(), 0, len(wrong))], placement)
    assert error.value.result == ZeResult.ERROR_INVALID_ARGUMENT
    assert any(f"'{constant.name}'" in error.value.info.object for constant in reference.constants)
    with pytest.raises(ZeError, match="none came"):
        import_blob(context, blob, (), placement)


def test_a_damaged_binary_is_refused_and_the_engine_lives(
    context: Context, extension: GraphExtension, graph: Graph
) -> None:
    data = graph.get_native_binary()
    restarts = context.device.get_status().restarts
    for at in range(0, len(data), len(data) // 40):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        for spoilt in (bytes(damaged), data[:at] or b"\0"):
            with pytest.raises(ZeError) as error:
                native(extension, context, spoilt)
            assert error.value.result == ZeResult.ERROR_INVALID_NATIVE_BINARY
    assert context.device.get_status().restarts == restarts


def test_graphs_give_everything_back(context: Context, extension: GraphExtension, graph: Graph) -> None:
    data = graph.get_native_binary()
    before = len(os.listdir("/proc/self/fd"))
    images = context.device.get_status().images
    for _ in range(10):
        native(extension, context, data).destroy()
    assert len(os.listdir("/proc/self/fd")) == before
    assert wait_until(lambda: context.device.get_status().images == images)

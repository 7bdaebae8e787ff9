"""A model in every form that a program can hand over: one blob, the same numbers, no needless copy."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest

from softnpu.driver import Context, Graph, GraphDesc, GraphExtension, GraphSource, ZeError, ZeResult
from softnpu.driver.graph_creation import compile_source
from softnpu.driver.graph_properties import GraphFormat
from tests.support.models import on_cpu
from tests.support.serialized_forms import by_descriptor, copying_form, no_copy_form

Array = npt.NDArray[Any]


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZE_INTEL_NPU_CACHE_DIR", "")


@pytest.fixture
def extension(context: Context) -> GraphExtension:
    return GraphExtension(context.device)


@pytest.fixture
def model(digits: Path) -> ov.Model:
    """The digits network, its weights mapped by OpenVINO from their file."""
    return ov.Core().read_model(digits)


def version(extension: GraphExtension) -> tuple[int, int]:
    return extension.device_get_graph_properties().compiler_version


def desc(data: bytearray | bytes, flags: str = "") -> GraphDesc:
    return GraphDesc(GraphFormat.NGRAPH_LITE, data, flags)


def run(context: Context, graph: Graph, *inputs: Array) -> list[Array]:
    """One inference; the outputs."""
    graph.initialize()
    memory = [context.alloc_host(argument.byte_size) for argument in graph.meta.arguments]
    for index, place in enumerate(memory):
        graph.set_argument_value(index, place)
    for place, values in zip(memory, inputs, strict=False):
        place.view(values.dtype, values.shape)[:] = values
    commands = context.create_command_list()
    commands.append_graph_execute(graph)
    commands.close()
    queue = context.create_command_queue()
    queue.execute_command_lists([commands])
    assert queue.synchronize(30_000_000_000)
    return [
        place.view(np.dtype(argument.element_type.replace("f", "float")), argument.shape).copy()
        for place, argument in zip(memory[len(inputs) :], graph.meta.outputs, strict=True)
    ]


def image() -> Array:
    return np.random.default_rng(3).random((1, 1, 8, 8), np.float32) * 16


def test_every_form_gives_one_blob_and_the_numbers_of_the_cpu(
    context: Context, extension: GraphExtension, digits: Path, model: ov.Model
) -> None:
    name, made = model.get_friendly_name(), {}
    with GraphSource.from_ir(digits, name=name) as source:
        made["file"] = context.create_graph(source)
    with by_descriptor(model, name) as source:
        made["descriptors"] = context.create_graph(source)
    made["copying"] = extension.create2(context, desc(copying_form(model, version(extension))))
    made["no copy"] = extension.create2(context, desc(no_copy_form(model, version(extension))))
    some = no_copy_form(model, version(extension), copy_below=300)
    made["some copied"] = extension.create2(context, desc(some))
    blobs = {form: graph.get_weightless_blob()[0] for form, graph in made.items()}
    assert len(set(blobs.values())) == 1, {form: hash(blob) for form, blob in blobs.items()}
    pixels = image()
    (expected,) = on_cpu(digits, pixels)
    for form, graph in made.items():
        (found,) = run(context, graph, pixels)
        assert np.array_equal(found, expected), form


def test_weights_that_openvino_maps_from_a_file_are_not_copied(model: ov.Model, digits: Path) -> None:
    with by_descriptor(model, "digits") as source:
        (file,) = source.weights
        found, weights = os.fstat(file.fd), digits.with_suffix(".bin").stat()
        assert (found.st_dev, found.st_ino) == (weights.st_dev, weights.st_ino)


def test_weights_in_the_heap_are_copied_once_into_memory_that_cannot_change(digits: Path) -> None:
    core = ov.Core()
    model = core.read_model(digits, config={"ENABLE_MMAP": False})
    with by_descriptor(model, "digits") as source:
        (file,) = source.weights
        assert "memfd:" in os.readlink(f"/proc/self/fd/{file.fd}")
        size = digits.with_suffix(".bin").stat().st_size
        assert size <= file.length <= size + 64 * 16


def test_the_memory_of_the_model_may_go_after_the_call(
    context: Context, extension: GraphExtension, digits: Path
) -> None:
    model = ov.Core().read_model(digits, config={"ENABLE_MMAP": False})
    graph = extension.create2(context, desc(no_copy_form(model, version(extension))))
    del model
    pixels = image()
    (found,) = run(context, graph, pixels)
    assert np.array_equal(found, on_cpu(digits, pixels)[0])


def test_build_flags_apply_to_a_serialised_model(
    context: Context, extension: GraphExtension, model: ov.Model
) -> None:
    line = '--inputs_precisions="0:U8" --inputs_layouts="0:NHWC" --outputs_precisions="0:FP16"'
    graph = extension.create2(context, desc(copying_form(model, version(extension)), line))
    assert [argument.element_type for argument in graph.meta.arguments] == ["u8", "f16"]
    assert graph.meta.inputs[0].shape == (1, 8, 8, 1)
    pixels = (image()).astype(np.uint8)
    (found,) = run(context, graph, pixels.transpose(0, 2, 3, 1).copy())
    plain = extension.create2(context, desc(copying_form(model, version(extension))))
    (expected,) = run(context, plain, pixels.astype(np.float32))
    assert np.array_equal(found, expected.astype(np.float16))


def test_progress_is_told_and_cancels(context: Context, digits: Path) -> None:
    stages: list[str] = []
    with GraphSource.from_ir(digits) as source:
        compile_source(context, source, progress=lambda stage, _: stages.append(stage))
        assert stages[0] == "receive"

        def enough(stage: str, _: float) -> None:
            raise KeyboardInterrupt(stage)

        with pytest.raises(KeyboardInterrupt):
            compile_source(context, source, progress=enough)
        compile_source(context, source)


# ---------------------------------------------------------------- what a description may not be


def refused(extension: GraphExtension, context: Context, one: GraphDesc | None) -> int:
    with pytest.raises(ZeError) as error:
        extension.create2(context, one)
    assert error.value.call == "pfnCreate2"
    return error.value.result


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (None, ZeResult.ERROR_INVALID_NULL_POINTER),
        (GraphDesc(2, None), ZeResult.ERROR_INVALID_NULL_POINTER),
        (GraphDesc(2, b""), ZeResult.ERROR_INVALID_SIZE),
        (GraphDesc(1, b""), ZeResult.ERROR_INVALID_SIZE),
        (GraphDesc(0, b"model"), ZeResult.ERROR_INVALID_ARGUMENT),
        (GraphDesc(3, b"model"), ZeResult.ERROR_INVALID_ARGUMENT),
        (GraphDesc(2, b"model", "", 64), ZeResult.ERROR_INVALID_ENUMERATION),
        (GraphDesc(2, b"model", "", -1), ZeResult.ERROR_INVALID_ENUMERATION),
        (GraphDesc(1, b"\x7fELF" * 100), ZeResult.ERROR_INVALID_NATIVE_BINARY),
        (GraphDesc(1, b"S"), ZeResult.ERROR_INVALID_NATIVE_BINARY),
    ],
)
def test_a_bad_description_is_refused(
    context: Context, extension: GraphExtension, one: GraphDesc | None, expected: ZeResult
) -> None:
    assert refused(extension, context, one) == expected


def test_a_destroyed_context_is_refused(extension: GraphExtension) -> None:
    gone = extension.device.create_context()
    gone.destroy()
    assert refused(extension, gone, GraphDesc(1, b"x")) == ZeResult.ERROR_INVALID_NULL_HANDLE


def test_an_ir_that_cannot_be_read_is_an_unsupported_feature(
    context: Context, extension: GraphExtension
) -> None:
    xml = b"<?xml version='1.0'?><net name='broken'><layers></net>"
    head = struct.pack("<HHIQ", *version(extension), 2, len(xml))
    assert refused(extension, context, desc(head + xml + struct.pack("<Q", 0))) == (
        ZeResult.ERROR_UNSUPPORTED_FEATURE
    )


def test_a_model_for_another_compiler_is_an_unsupported_version(
    context: Context, extension: GraphExtension, model: ov.Model
) -> None:
    major, minor = version(extension)
    other = copying_form(model, (major + 1, minor))
    assert refused(extension, context, desc(other)) == ZeResult.ERROR_UNSUPPORTED_VERSION


@pytest.fixture(autouse=True)
def garbage(context: Context) -> Iterator[None]:
    """After every refusal the context works."""
    yield
    if not context.destroyed:
        context.alloc_host(64).destroy()

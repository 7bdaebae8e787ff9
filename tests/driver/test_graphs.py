"""Graphs: the CPU device's numbers bit for bit, every form of a model, native blobs, properties."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from softnpu.driver import (
    CommandQueue,
    Context,
    Graph,
    GraphDesc,
    GraphExtension,
    GraphSource,
    WeightFile,
    ZeError,
    ZeResult,
)
from softnpu.driver.graph_creation import compile_source, import_blob
from softnpu.driver.graph_properties import (
    ArgumentType,
    GraphFormat,
    GraphPropertyFlag,
    Layout,
    OptionType,
    Precision,
)
from softnpu.emulator.blob.container import BlobReader
from softnpu.emulator.blob.weights import Placement
from softnpu.emulator.interface import messages as msg
from tests.conftest import StartPython
from tests.support.daemon import Daemon
from tests.support.models import Array, on_cpu, write_chain, write_scale
from tests.support.serialized_forms import by_descriptor, copying_form, no_copy_form
from tests.support.waiting import wait_until
from tests.support.work import LONG, Loaded, barrier, check_works, execute, failure, recorded, run, same

pytestmark = pytest.mark.quick
_LEAN = """
import sys
sys.modules.update(dict.fromkeys(("numpy", "logging")))
from pathlib import Path
from softnpu.driver import Driver, GraphSource
with Driver.open(sys.argv[1], autostart=False) as driver, GraphSource.from_ir(Path(sys.argv[2])) as source:
    context = driver.devices[0].create_context()
    graph = context.create_graph(source)
    graph.initialize()
    image, scores = memory = [context.alloc_host(argument.byte_size) for argument in graph.meta.arguments]
    for index, place in enumerate(memory):
        graph.set_argument_value(index, place.address)
    image.buffer()[:] = bytes.fromhex(sys.argv[3])
    commands = context.create_command_list()
    commands.append_graph_execute(graph)
    commands.close()
    queue = context.create_command_queue()
    fence = queue.create_fence()
    queue.execute_command_lists([commands], fence)
    assert fence.host_synchronize()
    print(scores.buffer().hex())
"""


@pytest.fixture
def extension(context: Context) -> GraphExtension:
    return GraphExtension(context.device)


@pytest.fixture
def graph(context: Context, digits: Path) -> Graph:
    with GraphSource.from_ir(digits) as source:
        return context.create_graph(source)


@pytest.fixture(scope="module")
def images() -> Array:
    """Sixteen inputs of the digits network."""
    return np.random.default_rng(5).random((16, 1, 1, 8, 8), dtype=np.float32) * 16


def infer(context: Context, graph: Graph, image: Array) -> Array:
    """One inference of the digits network."""
    graph.initialize()
    data, result = (context.alloc_host(argument.byte_size) for argument in graph.meta.arguments)
    graph.set_argument_value(0, data)
    graph.set_argument_value(1, result)
    data.view(np.float32)[:] = image.ravel()
    run(context.create_command_queue(), recorded(context, lambda c: c.append_graph_execute(graph)))
    return result.view(np.float32, (1, 10)).copy()


# ------------------------------------------------------------ numbers and images


_CLIENT = """
    image = np.frombuffer(bytes.fromhex(given["image"]), np.float32)
    with Driver.open(Path(given["socket"])) as driver:
        context = driver.devices[0].create_context()
        with GraphSource.from_ir(Path(given["xml"])) as source:
            graph = context.create_graph(source)
        graph.initialize()
        data, result = (context.alloc_host(argument.byte_size) for argument in graph.meta.arguments)
        graph.set_argument_value(0, data)
        graph.set_argument_value(1, result)
        commands = context.create_command_list()
        commands.append_graph_execute(graph)
        commands.close()
        queue = context.create_command_queue()
        say("ready"); hear()
        outputs = set()
        for turn in range(50):
            data.view(np.float32)[:] = image
            fence = queue.create_fence()
            queue.execute_command_lists([commands], fence)
            assert fence.host_synchronize(20 * 10**9)
            outputs.add(bytes(result.view()).hex())
        say(sorted(outputs)); hear()
"""


def test_a_program_without_numpy_and_logging_runs_a_model(
    daemon: Daemon, context: Context, graph: Graph, digits: Path, images: Array
) -> None:
    words = [str(daemon.socket), str(digits), images[0].tobytes().hex()]
    done = subprocess.run(
        [sys.executable, "-c", _LEAN, *words], check=True, timeout=60, capture_output=True, text=True
    )
    assert done.stdout.strip() == infer(context, graph, images[0]).tobytes().hex()


def test_concurrent_processes_get_the_same_numbers_from_one_image(
    daemon: Daemon, start_python: StartPython, digits: Path, images: Array
) -> None:
    clients = [
        start_python(_CLIENT, socket=str(daemon.socket), xml=str(digits), image=image.tobytes().hex())
        for image in images[:3]
    ]
    for client in clients:
        assert client.hear() == "ready"
    engine = daemon.engine()
    assert (engine.graphs, engine.images) == (3, 1), "one copy, however many processes"
    for client in clients:
        client.tell()
    for client, image in zip(clients, images, strict=False):
        assert client.hear() == [on_cpu(digits, image)[0].tobytes().hex()]
    assert daemon.engine().staged_bytes == engine.staged_bytes
    for client in clients:
        client.tell()
        client.finish()
    wait_until(lambda: daemon.engine().images == 0, what="the last user is gone")


def test_graphs_of_equal_content_share_an_image_and_others_do_not(
    daemon: Daemon, context: Context, queue: CommandQueue, private_dir: Path
) -> None:
    folders = [private_dir / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    first, other = (write_scale(folder, value) for folder, value in zip(folders, (2.0, 3.0), strict=True))
    assert first.read_bytes() == other.read_bytes(), "only the weights differ"
    equal = [Loaded(context, first) for _ in range(3)]
    assert [loaded.graph.shared for loaded in equal] == [False, True, True]
    last = Loaded(context, other)
    assert daemon.engine().images == 2
    data = np.ones(4096, np.float32)
    for loaded, xml in ((equal[0], first), (last, other)):
        assert same(loaded.infer(queue, data), on_cpu(xml, data))
    for loaded in equal:
        loaded.commands.destroy()
        loaded.graph.destroy()
    last.graph.destroy()
    run(queue, barrier(context))
    assert daemon.engine().images == 1  # a command list executes it
    last.commands.destroy()
    assert daemon.engine().images == 0


def test_freed_argument_memory_fails_only_the_submission(
    context: Context, queue: CommandQueue, digits: Path
) -> None:
    loaded = Loaded(context, digits)
    handle = loaded.memory[0].handle
    context._connection.request("zeMemFree", msg.MemFree(memory=(handle,)), msg.Ok)
    fence = execute(queue, loaded.commands)
    error = failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_INVALID_ARGUMENT)
    assert f"{handle:#018x}" in str(error)
    check_works(context)


def test_an_unaligned_argument_is_refused(context: Context, queue: CommandQueue, digits: Path) -> None:
    loaded = Loaded(context, digits)
    memory = context.alloc_host(4096)
    loaded.graph.set_argument_value(0, memory.address + 2)
    fence = execute(queue, recorded(context, lambda c: c.append_graph_execute(loaded.graph)))
    failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_UNSUPPORTED_ALIGNMENT)
    check_works(context)


def test_an_uninitialised_graph_fails_its_execution(
    context: Context, queue: CommandQueue, graph: Graph
) -> None:
    graph._initialized = True  # this driver believes that it was initialised
    for index, argument in enumerate(graph.meta.arguments):
        graph.set_argument_value(index, context.alloc_host(argument.byte_size))
    fence = execute(queue, recorded(context, lambda c: c.append_graph_execute(graph)))
    error = failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_UNINITIALIZED)
    assert "graph" in error.info.object


def test_a_graph_destroyed_while_it_computes_ends_in_order(
    context: Context, queue: CommandQueue, private_dir: Path
) -> None:
    xml = write_chain(private_dir, 256, 20)
    matrix = np.random.default_rng(1).random((256, 256), dtype=np.float32)
    loaded, begun = Loaded(context, xml, times=10), context.create_event()
    loaded.feed(matrix)
    fence = execute(queue, recorded(context, lambda c: c.append_signal_event(begun)), loaded.commands)
    assert begun.host_synchronize(LONG)
    loaded.graph.destroy()
    assert fence.host_synchronize(LONG)
    assert same(loaded.outputs, on_cpu(xml, matrix))
    run(queue, barrier(context))


def test_a_graph_for_another_platform_is_compiled_but_not_loaded(context: Context, digits: Path) -> None:
    with GraphSource.from_ir(digits) as source:
        graph = compile_source(context, source, build_flags='--config NPU_PLATFORM="3720"')
    assert graph.meta.platform == "3720"
    assert "compiled for 3720" in str(failure(graph.initialize, ZeResult.ERROR_UNSUPPORTED_FEATURE))
    failure(lambda: import_blob(context, graph.get_native_binary()), ZeResult.ERROR_INVALID_NATIVE_BINARY)


# ------------------------------------------------------------ arguments


@pytest.fixture
def strided(context: Context, tmp_path: Path) -> Graph:
    """x [2, 3] f32 -> y [2, 3] f32, both take strides."""
    x = ops.parameter([2, 3], np.float32, name="x")
    y = ops.relu(x, name="y")
    ov.serialize(ov.Model([y], [x], "strided"), tmp_path / "strided.xml")
    with GraphSource.from_ir(tmp_path / "strided.xml") as source:
        return compile_source(context, source, build_flags='--config NPU_ENABLE_STRIDES_FOR="x,y"')


def test_invalid_strides_are_refused(context: Context, strided: Graph) -> None:
    # the last of 2 x 3 elements with strides 2 and 10 is element 1 * 10 + 2 * 2
    memory = context.alloc_host(59)
    for strides in ([], [1], [0, 3], [-1, 3], [1, 2**32], [1] * 6, [2, 10]):
        set_value = partial(strided.set_argument_value2, 0, memory, strides)
        failure(set_value, ZeResult.ERROR_INVALID_ARGUMENT)
    # as in the C structure: truncated to the dimensions
    strided.set_argument_value2(0, context.alloc_host(60), [2, 10, 0, 0, 0])


# ------------------------------------------------------------ forms of a model


def test_every_form_gives_one_blob_and_the_numbers_of_the_cpu(
    context: Context, extension: GraphExtension, digits: Path, images: Array
) -> None:
    model = ov.Core().read_model(digits)
    heap = ov.Core().read_model(digits, config={"ENABLE_MMAP": False})
    name, version = model.get_friendly_name(), extension.device_get_graph_properties().compiler_version
    with GraphSource.from_ir(digits, name=name) as source:
        graphs = [context.create_graph(source)]
    with by_descriptor(model, name) as source:
        graphs.append(context.create_graph(source))
    for data in (
        copying_form(model, version),
        no_copy_form(model, version),
        no_copy_form(model, version, copy_below=300),
        no_copy_form(heap, version),
    ):
        graphs.append(extension.create2(context, GraphDesc(GraphFormat.NGRAPH_LITE, data)))
    del heap  # its memory may be freed after the call
    assert len({graph.get_weightless_blob()[0] for graph in graphs}) == 1
    (expected,) = on_cpu(digits, images[0])
    for graph in graphs:
        assert np.array_equal(infer(context, graph, images[0]), expected)


def test_weights_are_copied_only_if_not_in_a_file(digits: Path) -> None:
    weights = digits.with_suffix(".bin")
    with by_descriptor(ov.Core().read_model(digits), "digits") as source:
        assert os.path.samestat(os.fstat(source.weights[0].fd), weights.stat())
    with by_descriptor(ov.Core().read_model(digits, config={"ENABLE_MMAP": False}), "digits") as source:
        (file,) = source.weights
        assert "memfd:" in os.readlink(f"/proc/self/fd/{file.fd}")
        assert weights.stat().st_size <= file.length <= weights.stat().st_size + 64 * 16


def test_progress_is_reported_and_cancels(context: Context, digits: Path) -> None:
    stages: list[str] = []
    with GraphSource.from_ir(digits) as source:
        compile_source(context, source, progress=lambda stage, _: stages.append(stage))
        assert stages[0] == "receive"

        def enough(stage: str, _: float) -> None:
            raise RuntimeError(stage)

        with pytest.raises(RuntimeError):
            compile_source(context, source, progress=enough)
        compile_source(context, source)


# ------------------------------------------------------------ native blobs


def test_native_bytes_are_made_once_and_outlive_their_graph(
    context: Context, extension: GraphExtension, graph: Graph
) -> None:
    data = graph.get_native_binary2()
    assert graph.get_native_binary2() is data
    assert data.readonly
    again = extension.create2(context, GraphDesc(GraphFormat.NATIVE, data))
    assert again.meta == graph.meta
    assert again.get_native_binary() == bytes(data)
    graph.destroy()
    assert bytes(data[:8]) == b"SNPUBLOB"


def test_a_blob_without_weights_is_imported_with_them(
    context: Context, graph: Graph, digits: Path, tmp_path: Path, images: Array
) -> None:
    blob, placement = graph.get_weightless_blob()
    reference = BlobReader(blob).weights_reference()
    assert reference is not None
    assert placement is not None
    content = digits.with_suffix(".bin").read_bytes()
    # another file, with the constants in the opposite order
    moved, places = bytearray(), {}
    for constant, offset in reversed(list(zip(reference.outside, placement.offsets, strict=True))):
        moved += bytes(7)
        places[constant.offset] = len(moved)
        moved += content[offset : offset + constant.length]
    (expected,) = on_cpu(digits, images[0])
    choices: list[tuple[bytes, Placement | dict[int, int]]] = [(content, placement), (bytes(moved), places)]
    for data, where in choices:
        (tmp_path / "weights").write_bytes(data)
        with open(tmp_path / "weights", "rb") as file:
            again = import_blob(context, blob, [WeightFile(file.fileno(), 0, len(data))], where)
            assert np.array_equal(infer(context, again, images[0]), expected)
    assert again.get_properties().flags == GraphPropertyFlag.PRE_COMPILED
    del places[reference.outside[-1].offset]
    with pytest.raises(ZeError, match="not in the placement"):
        import_blob(context, blob, (), places)
    with pytest.raises(ZeError, match="none came"):
        import_blob(context, blob, (), placement)


# ------------------------------------------------------------ properties


def compiled(context: Context, extension: GraphExtension, line: str = "") -> Graph:
    """pixels [1,3,4,5] with many names, state [2], deep of six dimensions; three outputs."""
    pixels = ops.parameter([1, 3, 4, 5], np.float32, name="pixels")
    pixels.output(0).set_names({f"name{number:02}" for number in range(40)} | {"a" * 300})
    state = ops.parameter([2], np.int64, name="state")
    deep = ops.parameter([1, 1, 2, 1, 1, 2], np.uint8, name="deep")
    out = ops.relu(pixels, name="scaled")
    out.output(0).set_names({"out"})
    shown: list[Any] = [ops.result(out, name="Result_of_scaled")]
    results = [*shown, ops.negative(state, name="next"), ops.convert(deep, "f16", name="half")]
    model = ov.Model(results, [pixels, state, deep], "wide")
    data = copying_form(model, extension.device_get_graph_properties().compiler_version)
    return extension.create2(context, GraphDesc(GraphFormat.NGRAPH_LITE, data, line))


def test_argument_properties_match_the_c_structures(context: Context, extension: GraphExtension) -> None:
    line = '--inputs_precisions="0:U8" --inputs_layouts="0:NHWC" --config NPU_ENABLE_STRIDES_FOR="state"'
    graph = compiled(context, extension, line)
    pixels, state, deep = (graph.get_argument_properties(index) for index in range(3))
    assert (pixels.type, pixels.dims, pixels.dims_count) == (ArgumentType.INPUT, (1, 4, 5, 3, 1), 4)
    assert (pixels.network_precision, pixels.device_precision) == (Precision.UINT8, Precision.UINT8)
    assert (pixels.network_layout, pixels.device_layout) == (Layout.NCHW, Layout.NCHW)
    assert len(pixels.associated_tensor_names) == 32
    assert max(map(len, pixels.associated_tensor_names)) == 255
    assert (state.dims, state.dims_count, state.device_layout) == ((2, 1, 1, 1, 1), 1, Layout.C)
    assert (state.supports_strides, pixels.supports_strides) == (True, False)
    assert (deep.dims, deep.dims_count, deep.device_layout) == ((1, 1, 2, 1, 1), 5, Layout.ANY)
    out = graph.get_argument_properties(3)
    assert (out.type, out.name, out.debug_friendly_name) == (
        ArgumentType.OUTPUT,
        "scaled",
        "Result_of_scaled",
    )
    assert graph.get_argument_metadata(2).shape == (1, 1, 2, 1, 1, 2)


def test_an_option_is_supported_or_not(extension: GraphExtension) -> None:
    def ask(name: str, value: str | None) -> None:
        extension.compiler_is_option_supported(OptionType.COMPILER, name, value)

    ask("NPU_MODEL_SERIALIZER_VERSION", "NO_WEIGHTS_COPY")
    ask("NPU_ENABLE_STRIDES_FOR", None)
    ask("NPU_PLATFORM", "3720")
    ask("WS_COMPILE_CALL_NUMBER", None)
    ask("NPU_TILES", "6")
    for precision in ("f32", "f16", "i8"):  # OpenVINO says that an NPU has the last two
        ask("INFERENCE_PRECISION_HINT", precision)
    for name, value in (
        ("NPU_MODEL_SERIALIZER_VERSION", "SOME_WEIGHTS_COPY"),
        ("NPU_PLATFORM", "3721"),
        ("NPU_TILES", "7"),
        ("INFERENCE_PRECISION_HINT", "f8"),
        ("NPU_SEPARATE_WEIGHTS_VERSION", "TWO_SHOTS"),
        ("WS_TOTAL_NUMBER", None),
    ):
        failure(partial(ask, name, value), ZeResult.ERROR_UNSUPPORTED_FEATURE)


def test_a_query_lists_the_layers_that_can_run(context: Context, extension: GraphExtension) -> None:
    tensor = ops.parameter([2, 8], np.float32, name="x")
    odd = ops.convert(tensor, "u3", name="to_three_bits")
    model = ov.Model([ops.relu(tensor, name="fine"), ops.convert(odd, "f32", name="back")], [tensor], "odd")
    data = copying_form(model, extension.device_get_graph_properties().compiler_version)
    with extension.query_network_create(context, GraphDesc(2, data)) as query:
        layers = query.get_supported_layers()
    names = layers.strip("<>").split("><")
    assert "fine" in names
    assert "to_three_bits" not in names
    failure(query.get_supported_layers, ZeResult.ERROR_INVALID_NULL_HANDLE)

"""`export_model` and `import_model`: all forms of a stream, the same numbers, ports and properties."""

from __future__ import annotations

import gc
import io
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from softnpu.driver import GraphSource
from softnpu.driver.graph_creation import compile_source
from softnpu.emulator.blob.container import BlobReader
from softnpu.plugin import BlobError, CompiledModel, Core, NpuError, PropertyError
from softnpu.plugin.exported.blob_file import BlobFile
from softnpu.plugin.exported.strip_weights import strip
from tests.support.cases import case
from tests.support.daemon import Daemon
from tests.support.models import write_scale

IMAGE = np.random.default_rng(5).random((1, 1, 8, 8), np.float32)


@pytest.fixture
def compiled(shared_core: Core, digits: Path) -> CompiledModel:
    return shared_core.compile_model(digits)


@pytest.fixture
def file(compiled: CompiledModel, private_dir: Path) -> Path:
    path = private_dir / "digits.blob"
    compiled.export_model(path)
    return path


def test_a_stream_is_written_and_rewound_as_openvino_does(compiled: CompiledModel) -> None:
    stream, returned = io.BytesIO(), compiled.export_model()
    assert compiled.export_model(stream) is None
    assert type(returned) is io.BytesIO
    assert (stream.tell(), returned.tell()) == (0, 0)
    assert stream.getvalue() == returned.getvalue()
    assert stream.getvalue()[:8] == b"SNPUBLOB"


class _OneWay(io.RawIOBase):
    """A stream that only writes or only reads, a few bytes at a time, like a connection."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self._at = 0

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.content += bytes(data)
        return len(data)

    def read(self, size: int = -1) -> bytes:
        part = bytes(self.content[self._at : self._at + min(size, 5000)])
        self._at += len(part)
        return part


SOURCES: dict[str, Callable[[Path], Any]] = {
    "path": lambda path: path,
    "text": str,
    "bytes": lambda path: path.read_bytes(),
    "bytearray": lambda path: bytearray(path.read_bytes()),
    "memoryview": lambda path: memoryview(path.read_bytes()),
    "array": lambda path: np.fromfile(path, np.uint8),
    "mapped": lambda path: np.memmap(path, np.uint8, "r"),
    "tensor": lambda path: ov.Tensor(np.fromfile(path, np.uint8)),
    "stream": lambda path: io.BytesIO(path.read_bytes()),
    "connection": lambda path: _OneWay(path.read_bytes()),
}


def test_an_exported_model_is_imported_from_every_kind_of_source(
    shared_core: Core, compiled: CompiledModel, file: Path
) -> None:
    for form, source in SOURCES.items():
        with case(form):
            imported = shared_core.import_model(source(file), "NPU")
            np.testing.assert_array_equal(imported(IMAGE)[0], compiled(IMAGE)[0])


def test_an_open_file_is_read_from_its_beginning(
    shared_core: Core, compiled: CompiledModel, file: Path
) -> None:
    for buffering in [0, -1]:
        for mode in ["rb", "r+b"]:
            with case(mode, buffering):
                with open(file, mode, buffering) as stream:
                    stream.read(77)
                    imported = shared_core.import_model(stream)
                np.testing.assert_array_equal(imported(IMAGE)[0], compiled(IMAGE)[0])


def test_an_open_file_is_written_like_any_stream(
    shared_core: Core, compiled: CompiledModel, file: Path
) -> None:
    with open(file.with_name("again.blob"), "w+b") as stream:
        compiled.export_model(stream)
        assert stream.tell() == 0
        assert stream.read() == file.read_bytes()
        np.testing.assert_array_equal(shared_core.import_model(stream)(IMAGE)[0], compiled(IMAGE)[0])


def test_a_pipe_gets_the_same_bytes(compiled: CompiledModel, file: Path, private_dir: Path) -> None:
    pipe = private_dir / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    compiled.export_model(pipe)
    reader.join(10)
    assert got == [file.read_bytes()]


def test_objects_that_are_not_streams_are_refused(shared_core: Core, compiled: CompiledModel) -> None:
    with pytest.raises(TypeError, match="path or a binary stream"):
        compiled.export_model(7)
    with pytest.raises(TypeError, match=r"int given.*path, a binary stream"):
        shared_core.import_model(7)
    with pytest.raises(TypeError, match="binary stream"):
        shared_core.import_model(io.StringIO("text"))


# ---------------------------------------------------------------- preserved


def test_ports_match_the_compiled_model(shared_core: Core, two_by_two: ov.Model) -> None:
    two_by_two.inputs[0].node.set_layout(ov.Layout("NC"))
    compiled = shared_core.compile_model(two_by_two)
    imported = shared_core.import_model(compiled.export_model())
    for before, after in ((compiled.inputs, imported.inputs), (compiled.outputs, imported.outputs)):
        assert [port.get_names() for port in before] == [port.get_names() for port in after]
        assert [port.partial_shape for port in before] == [port.partial_shape for port in after]
        assert [port.element_type for port in before] == [port.element_type for port in after]
    assert imported.inputs[0].node.layout == ov.Layout("NC")
    assert imported.get_property("NETWORK_NAME") == "two_by_two"
    assert imported.meta == compiled.meta


def test_an_imported_model_reports_its_compile_properties(shared_core: Core, digits: Path) -> None:
    config = {"PERFORMANCE_HINT": "THROUGHPUT", "NPU_TILES": 3, "PERF_COUNT": True, "NPU_TURBO": True}
    compiled = shared_core.compile_model(digits, "NPU", config)
    imported = shared_core.import_model(compiled.export_model())
    for name in ("PERFORMANCE_HINT", "NPU_TILES", "PERF_COUNT", "INFERENCE_PRECISION_HINT", "NPU_PLATFORM"):
        assert imported.get_property(name) == compiled.get_property(name), name
    assert not imported.get_property("NPU_TURBO"), "what holds for running is chosen by the import"
    request = imported.create_infer_request()
    request.infer(IMAGE)
    assert request.get_profiling_info()


def test_values_other_than_the_compiled_ones_are_refused(shared_core: Core, file: Path) -> None:
    same = shared_core.import_model(file, "NPU", {"PERFORMANCE_HINT": "LATENCY"})
    assert same.get_property("PERFORMANCE_HINT").name == "LATENCY"
    with pytest.raises(PropertyError, match=r"PERFORMANCE_HINT.*THROUGHPUT.*compiled with.*LATENCY"):
        shared_core.import_model(file, "NPU", {"PERFORMANCE_HINT": "THROUGHPUT"})
    shared_core.set_property({"PERFORMANCE_HINT": "THROUGHPUT"})  # a default for compiling only
    assert shared_core.import_model(file).get_property("PERFORMANCE_HINT").name == "LATENCY"


def test_an_imported_model_is_exported_as_it_was(shared_core: Core, file: Path) -> None:
    again = shared_core.import_model(file).export_model()
    assert again is not None
    assert again.getvalue() == file.read_bytes()


def test_a_raw_blob_has_no_metadata(shared_core: Core, digits: Path, file: Path) -> None:
    raw = shared_core.compile_model(digits, "NPU", {"NPU_EXPORT_RAW_BLOB": True})
    data = (raw.export_model() or io.BytesIO()).getvalue()
    assert data == bytes(raw._executable.graph.get_native_binary2())
    with pytest.raises(BlobError, match=r"native blob without metadata.*NPU_IMPORT_RAW_BLOB"):
        shared_core.import_model(data)
    imported = shared_core.import_model(data, "NPU", {"NPU_IMPORT_RAW_BLOB": True})
    assert imported.inputs[0].any_name == "image"
    np.testing.assert_array_equal(imported(IMAGE)[0], raw(IMAGE)[0])
    # also from a file with metadata
    imported = shared_core.import_model(file, "NPU", {"NPU_IMPORT_RAW_BLOB": True})
    np.testing.assert_array_equal(imported(IMAGE)[0], raw(IMAGE)[0])


# ---------------------------------------------------------------- weights


def test_weights_go_by_descriptor_and_the_small_blob_is_the_compiled_one(
    core: Core, daemon: Daemon, digits: Path, private_dir: Path
) -> None:
    file = private_dir / "digits.blob"
    compiled = core.compile_model(digits)
    compiled.export_model(file)
    imported = core.import_model(file)
    head, placement = imported._executable.graph.get_weightless_blob()
    assert head == compiled._executable.graph.get_weightless_blob()[0]
    assert placement is not None
    # the engine maps the file itself, not a copy
    lines = Path(f"/proc/{daemon.engine().engine_pid}/maps").read_text().splitlines()
    assert {Path(line.split()[-1]).name for line in lines if "digits" in line} == {
        "digits.bin",
        "digits.blob",
    }


def test_embedded_constants_stay_embedded(shared_core: Core, digits: Path) -> None:
    context = shared_core._devices.context(0)
    with GraphSource.from_ir(digits) as source:
        graph = compile_source(context, source, config={"NPU_WEIGHTS_EMBED_THRESHOLD": "1000"})
    head, placement = graph.get_weightless_blob()
    reference = BlobReader(head).weights_reference()
    assert reference is not None
    assert placement is not None
    inside = [constant.offset for constant in reference.constants if constant.embedded >= 0]
    assert inside
    stripped = strip(BlobReader(graph.get_native_binary2()), inside)
    assert stripped.data == head
    assert len(stripped.offsets) == len(placement.offsets)


def test_sealed_memory_shares_the_image_of_the_compiled_model(
    core: Core, daemon: Daemon, two_by_two: ov.Model
) -> None:
    compiled = core.compile_model(two_by_two)  # its weights are in sealed memory
    imported = core.import_model(compiled.export_model())
    assert daemon.engine().graphs == 2
    assert daemon.engine().images == 1
    del imported


# ---------------------------------------------------------------- failures


def test_a_file_that_cannot_be_written_is_an_error(compiled: CompiledModel, private_dir: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        compiled.export_model(private_dir / "nowhere" / "model.blob")
    with pytest.raises(OSError, match="No space"):
        compiled.export_model("/dev/full")


def test_a_failed_export_leaves_the_file_unchanged(shared_core: Core, private_dir: Path) -> None:
    model = write_scale(private_dir, 2.0)
    compiled = shared_core.compile_model(model)
    target = private_dir / "model.blob"
    target.write_bytes(b"precious")
    weights = model.with_suffix(".bin")
    changed = bytearray(weights.read_bytes())
    changed[4000] ^= 1
    weights.write_bytes(changed)
    with pytest.raises(NpuError, match=r"constant 'weights'.*These are other weights"):
        compiled.export_model(target)
    assert target.read_bytes() == b"precious"
    with open(target, "r+b") as stream:
        stream.seek(8)
        with pytest.raises(NpuError):
            compiled.export_model(stream)
    assert target.read_bytes() == b"precious"
    assert sorted(each.name for each in private_dir.glob("*.blob*")) == ["model.blob"]


def test_a_missing_file_and_a_folder_are_named(shared_core: Core, private_dir: Path) -> None:
    with pytest.raises(BlobError, match=r"nothing\.blob: No such file"):
        shared_core.import_model(private_dir / "nothing.blob")
    with pytest.raises(BlobError, match="no regular file"):
        shared_core.import_model(private_dir)
    with pytest.raises(BlobError, match="empty"):
        shared_core.import_model(b"")
    empty = private_dir / "empty.blob"
    empty.touch()
    with pytest.raises(BlobError, match="an empty file"):
        shared_core.import_model(empty)


def test_descriptors_are_closed_whatever_happens(shared_core: Core, file: Path) -> None:
    shared_core.import_model(file)
    before = len(os.listdir("/proc/self/fd"))
    for source in (file, file.read_bytes()[:-1], io.BytesIO(b"no")):
        try:
            BlobFile.open(source).close()
            shared_core.import_model(source)
        except BlobError:
            pass
        gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before

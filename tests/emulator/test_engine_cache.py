"""The engine's cache of OpenVINO's compiled models: equal results, and damaged entries are misses."""

from __future__ import annotations

import os
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from blake3 import blake3
from openvino import opset13 as ops

from softnpu.driver import Context, GraphFlag, GraphSource, ZeError
from softnpu.driver.graph_creation import compile_source, import_blob
from softnpu.emulator.blob import container
from softnpu.emulator.blob.container import BlobReader, Section
from softnpu.emulator.common import linux
from softnpu.emulator.disk_cache import entry_files
from softnpu.emulator.engine import images
from softnpu.emulator.engine.images import ImageLoader
from softnpu.emulator.interface.environment import ENV_ENGINE_CACHE
from softnpu.emulator.links import engine as link
from softnpu.emulator.openvino.cache import cpu_cache
from softnpu.emulator.openvino.cache.cpu_cache import CpuCache
from softnpu.emulator.openvino.cache_fill import __main__ as program
from softnpu.emulator.openvino.cache_fill import entry
from softnpu.emulator.openvino.image import LoadedImage
from softnpu.emulator.openvino.modelled_time import host_times
from softnpu.emulator.openvino.runtime import core, properties_of
from softnpu.emulator.sandbox import sandbox
from softnpu.plugin import Core
from tests.conftest import StartContext, StartDaemon
from tests.support.daemon import Daemon
from tests.support.fast_path import Raised
from tests.support.loaded_images import load
from tests.support.models import Array, on_cpu
from tests.support.waiting import wait_until
from tests.support.work import Loaded

_STEPS = 80
_WIDTH = 16
_STORED_S = 180.0  # by a lowest-priority process


def write_deep(folder: Path) -> Path:
    """Write an IR large enough for the cache: many small operations with weights."""
    generator = np.random.default_rng(1)
    data = ops.parameter([4, _WIDTH], ov.Type.f32, name="data")
    value: Any = data
    for _ in range(_STEPS):
        weights = generator.standard_normal((_WIDTH, _WIDTH)).astype(np.float32) / 4
        value = ops.tanh(ops.add(ops.matmul(value, weights, False, False), ops.constant(weights[0])))
    path = folder / "deep.xml"
    ov.serialize(ov.Model([ops.result(value)], [data], "deep"), path)
    return path


@pytest.fixture
def directory(private_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = private_dir / "engine"
    monkeypatch.setenv(ENV_ENGINE_CACHE, str(path))
    return path


@pytest.fixture
def cache(directory: Path) -> CpuCache:
    cache = CpuCache.open()
    assert cache is not None
    assert cache.models.directory == directory
    return cache


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


def entries(directory: Path) -> list[Path]:
    return [entry.path for entry in entry_files.entries(directory)] if directory.is_dir() else []


def infer(context: Context, path: Path, data: Array) -> Array:
    loaded = Loaded(context, path)
    with context.create_command_queue() as queue:
        (result,) = loaded.infer(queue, data)
    loaded.graph.destroy()
    return result


@pytest.fixture
def blob(context: Context, private_dir: Path) -> bytes:
    return blob_of(context, write_deep(private_dir))


def blob_of(context: Context, path: Path) -> bytes:
    """Return the blob of a model with its weights inside."""
    with GraphSource.from_ir(path) as source, context.create_graph(source) as graph:
        return bytes(graph.get_native_binary())


def fill(blob: bytes, cache: CpuCache) -> str:
    """Fill the cache; return why an image is not stored, or empty. Runs in this unsandboxed process."""
    fd = linux.sealed_copy("blob", blob)
    try:
        return _fill(cache, len(blob), fd)
    finally:
        os.close(fd)


def _fill(cache: CpuCache, length: int, fd: int) -> str:
    message = link.ImageLoad(image=1, state=0, blob_length=length)
    try:
        entry.fill(cache, message, [fd], lambda: entry.compile_entry(message, [fd]))
    except entry.NotKeptError as error:
        return str(error)
    return ""


def results(image: LoadedImage) -> bytes:
    data = np.random.default_rng(3).standard_normal((4, _WIDTH)).astype(np.float32)
    return np.array(image.compiled([data])[0]).tobytes()


def test_an_engine_imports_what_another_has_compiled(
    start_context: StartContext, private_dir: Path, directory: Path
) -> None:
    path = write_deep(private_dir)
    data = np.random.default_rng(2).standard_normal((4, _WIDTH)).astype(np.float32)
    expected = on_cpu(path, data)[0]
    daemon, context = start_context()
    np.testing.assert_array_equal(infer(context, path, data), expected)
    wait_until(lambda: entries(directory), _STORED_S, "an entry")
    wait_until(lambda: "engine cache: stored 'deep'" in daemon.log, _STORED_S, "the end of the process")
    assert "engine cache: imported" not in daemon.log
    np.testing.assert_array_equal(infer(context, path, data), expected)
    assert daemon.log.count("engine cache: imported 'deep'") == 1
    daemon.kill_engine()
    np.testing.assert_array_equal(infer(context, path, data), expected)
    assert daemon.log.count("engine cache: imported") == 1, "an engine after a reset compiles"


def _flipped(data: bytes, _other: bytes, _key: str) -> bytes:
    return data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]


def _rubbish(data: bytes, _other: bytes, key: str) -> bytes:
    payload = data[:300] + bytes(2000)
    return payload + entry_files.payload_digest(key, payload)


def _no_header(_data: bytes, _other: bytes, key: str) -> bytes:
    return b"\xff\xff" + entry_files.payload_digest(key, b"\xff\xff")


def _of_another_shape(_data: bytes, other: bytes, key: str) -> bytes:
    payload = other[: -entry_files.DIGEST_LENGTH]
    return payload + entry_files.payload_digest(key, payload)


@pytest.mark.parametrize(
    "damage",
    [
        _flipped,
        _rubbish,
        _no_header,
        _of_another_shape,
        pytest.param(lambda data, _other, _key: data[:-100], id="truncated"),
        pytest.param(lambda _data, other, _key: other, id="renamed"),
        pytest.param(lambda _data, _other, _key: b"", id="empty"),
    ],
)
def test_an_entry_that_is_wrong_is_a_miss(
    blob: bytes,
    cache: CpuCache,
    directory: Path,
    damage: Callable[[bytes, bytes, str], bytes],
) -> None:
    image = load(blob, cache)
    expected, key = results(image), image.lacking
    assert fill(blob, cache) == ""
    hit = load(blob, cache)
    assert (hit.lacking, results(hit)) == ("", expected)
    path = directory / key
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(damage(data, _entry_of_another(), key))
    path.chmod(0o440)
    missed = load(blob, cache)
    assert (missed.lacking, results(missed)) == (key, expected)


def _entry_of_another() -> bytes:
    """Return a complete entry of a model with another shape."""
    data = ops.parameter([1, 3], ov.Type.f32)
    compiled = ov.Core().compile_model(ov.Model([ops.relu(data)], [data]), "CPU")
    payload = cpu_cache.encoded(compiled)
    return payload + entry_files.payload_digest("0" * 80, payload)


def test_an_entry_that_others_may_write_is_a_miss(blob: bytes, cache: CpuCache, directory: Path) -> None:
    key = load(blob, cache).lacking
    assert fill(blob, cache) == ""
    (directory / key).chmod(0o666)
    assert load(blob, cache).lacking == key


def test_no_entry_is_made_of_weights_that_others_may_change(
    blob: bytes, private_dir: Path, cache: CpuCache, directory: Path
) -> None:
    file = private_dir / "blob"
    file.write_bytes(blob)
    file.chmod(0o666)
    with open(file, "rb") as opened:
        assert "others may change" in _fill(cache, len(blob), opened.fileno())
    assert entries(directory) == []


def test_no_entry_is_made_of_weights_that_lack_their_digests(
    blob: bytes, cache: CpuCache, directory: Path
) -> None:
    reader = BlobReader(blob)
    sections = {Section(kind): bytes(reader.unchecked(Section(kind))) for kind, *_ in reader.sections}
    sections[Section.WEIGHTS] = bytes(4) + sections[Section.WEIGHTS][4:]
    forged = container.pack(sections)
    assert fill(forged, cache) == "its weights have changed"
    assert entries(directory) == []


def test_models_that_the_cache_does_not_keep_are_compiled(
    context: Context, cache: CpuCache, digits: Path
) -> None:
    assert load(blob_of(context, digits), cache).lacking == ""


def test_sizes_that_are_computed_from_constants_are_fixed(context: Context, private_dir: Path) -> None:
    data = ops.parameter([4, _WIDTH], ov.Type.f32, name="data")
    columns = ops.convert(ops.gather(ops.shape_of(data), np.int64(1), np.int64(0)), "f32")
    numbers = ops.range(ops.constant(np.float32(0)), columns, ops.constant(np.float32(1)), "f32")
    path = private_dir / "range.xml"
    # compressed constants: OpenVINO knows the size of the range once it has compiled the model
    ov.save_model(
        ov.Model([ops.result(ops.add(data, numbers))], [data], "range"), path, compress_to_fp16=True
    )
    assert core().read_model(path).is_dynamic()
    image = load(blob_of(context, path))
    assert not image.computes_sizes
    assert np.array_equal(image.compiled([np.ones((4, _WIDTH), np.float32)])[0][0], 1 + np.arange(_WIDTH))


def test_a_model_that_is_compiled_securely_is_not_kept(
    context: Context, cache: CpuCache, private_dir: Path
) -> None:
    path = write_deep(private_dir)
    for flags, is_kept in ((GraphFlag.NONE, True), (GraphFlag.SECURE_COMPILE, False)):
        with GraphSource.from_ir(path) as source, compile_source(context, source, flags=flags) as graph:
            assert bool(load(bytes(graph.get_native_binary()), cache).lacking) is is_kept


def test_the_key_has_all_that_changes_what_openvino_compiles(
    blob: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = BlobReader(blob)
    meta = reader.metadata()
    properties = properties_of(meta)

    def key(**other: str) -> str:
        return cpu_cache.key_of(reader, meta, properties | other)

    first = key()
    assert key() == first != key(ENABLE_CPU_PINNING="OTHER")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    assert key() != first


def test_a_blob_that_was_checked_is_not_read_again(
    start_context: StartContext, private_dir: Path, directory: Path
) -> None:
    _, context = start_context()
    blob = blob_of(context, write_deep(private_dir))

    def stages(data: bytes, deferred: bool = False) -> set[str]:
        seen: set[str] = set()
        import_blob(context, data, deferred=deferred, progress=lambda stage, _done: seen.add(stage)).destroy()
        return seen

    assert "check" in stages(blob, deferred=True), "its constants were not checked: it is not noted"
    assert "check" in stages(blob)
    assert "check" not in stages(blob)
    (note,) = entries(directory / "checked")
    data = note.read_bytes()
    note.unlink()
    note.write_bytes(data[:-1] + b"x")
    assert "check" in stages(blob), "a damaged note is none"
    changed = bytearray(blob)
    changed[-1] ^= 1
    with pytest.raises(ZeError, match="INVALID_NATIVE_BINARY"):
        stages(bytes(changed))


def test_an_entry_that_claims_any_size_costs_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_into(result: int, *_: object) -> int:
        os.ftruncate(result, 1 << 40)
        return 0

    monkeypatch.setattr(program, "_compile_into", compile_into)
    monkeypatch.setattr(sandbox, "enter", lambda _: ())
    compiler = program._Compiler(link.ImageLoad(image=1, state=0, blob_length=0), [])
    os.waitid(os.P_PID, compiler._pid, os.WEXITED | os.WNOWAIT)  # before it is told to begin
    try:
        with pytest.raises(entry.NotKeptError, match=f"{1 << 40} bytes are more"):
            compiler.compiled()
    finally:
        os.close(compiler._result)
        os.close(compiler._begin)


# ------------------------------------------------------------ images that are expected

_HINT = blake3(b"hint").digest()
_AHEAD = "engine cache: imported 'deep' before it was asked for"


@pytest.mark.parametrize("ways", [["compile"], ["compile", "import"]], ids=["compile", "import"])
def test_what_a_file_became_is_imported_while_the_next_program_reads_it(
    start_daemon: StartDaemon, private_dir: Path, cache: CpuCache, ways: list[str]
) -> None:
    path, exported = write_deep(private_dir), private_dir / "deep.blob"
    data = np.random.default_rng(2).standard_normal((4, _WIDTH)).astype(np.float32)
    expected = on_cpu(path, data)[0]
    core = Core()

    def infer(way: str, hints: int) -> None:
        compiled = core.compile_model(path) if way == "compile" else core.import_model(exported)
        if way == "compile":
            compiled.export_model(exported)
        np.testing.assert_array_equal(np.array(compiled([data])[0]), expected)
        # nothing is noted of a graph that is gone when its turn comes
        notes = cache.models.directory / "expected"
        wait_until(lambda: len(entries(notes)) == hints, _STORED_S, "the notes of its hints")
        del compiled
        core.unload_plugin()

    daemon = start_daemon()
    for hints, way in enumerate(ways, start=1):
        infer(way, hints)
    assert "engine cache: stored 'deep'" in daemon.log
    assert _AHEAD not in daemon.log
    daemon.stop()
    daemon = start_daemon()
    infer(ways[-1], len(ways))
    assert daemon.log.count(_AHEAD) == 1
    assert len(entries(cache.models.directory)) == 1


class _Deep:
    """Two images with equal arguments, both in the cache; the hint records the first."""

    def __init__(self, context: Context, folder: Path, cache: CpuCache) -> None:
        self.cache = cache
        first = blob_of(context, write_deep(folder))
        self.blobs = first, blob_of(context, _write_other(folder))
        images = [load(blob, cache) for blob in self.blobs]
        self.expected = [results(image) for image in images]
        for blob in self.blobs:
            assert fill(blob, cache) == ""
        self.key, self.properties = images[0].key, properties_of(images[0].meta)
        cache.note(_HINT, self.key, self.properties)

    def is_expected(self, hint: bytes = _HINT, loaded: Container[str] = ()) -> bool:
        """Return whether the hint has an image imported."""
        self.cache.expect(core(), hint, loaded)
        expecting = self.cache.is_expecting
        self.cache.forget_expected()
        return expecting


def _write_other(folder: Path) -> Path:
    data = ops.parameter([4, _WIDTH], ov.Type.f32, name="data")
    value: Any = data
    for step in range(4 * _STEPS):
        value = ops.tanh(ops.multiply(value, np.full((1, _WIDTH), 1 + step / 100, np.float32)))
    path = folder / "other.xml"
    ov.serialize(ov.Model([ops.result(value)], [data], "deep"), path)
    return path


@pytest.fixture
def deep(context: Context, private_dir: Path, cache: CpuCache) -> _Deep:
    return _Deep(context, private_dir, cache)


def test_a_hint_of_another_image_changes_no_result(deep: _Deep) -> None:
    deep.cache.expect(core(), _HINT, ())
    assert deep.expected[0] != deep.expected[1]
    assert results(load(deep.blobs[1], deep.cache)) == deep.expected[1]
    assert deep.cache.is_expecting, "it is still there for who asks for it"
    assert results(load(deep.blobs[0], deep.cache)) == deep.expected[0]
    assert not deep.cache.is_expecting, "nobody else gets it"


def test_a_note_that_is_wrong_is_none(deep: _Deep) -> None:
    assert deep.is_expected()
    assert not deep.is_expected(loaded={deep.key}), "it is loaded already"
    assert not deep.is_expected(hint=bytes(32))
    for key, properties in (
        (deep.key, deep.properties | {"NUM_STREAMS": "many"}),
        ("../" + deep.key[3:], deep.properties),
        ("0" * len(deep.key), deep.properties),
    ):
        deep.cache.note(_HINT, key, properties)
        assert not deep.is_expected(), (key, properties)
    deep.cache.note(_HINT, deep.key, deep.properties)
    (note,) = entries(deep.cache.models.directory / "expected")
    whole = note.read_bytes()
    for damaged in (b"", whole[:-1], b"x" + whole[1:], b"x" + entry_files.payload_digest(note.name, b"x")):
        note.unlink(missing_ok=True)
        note.write_bytes(damaged)
        assert not deep.is_expected(), damaged


def test_what_nobody_asks_for_is_forgotten(deep: _Deep, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(images, "_EXPECTED_S", 0.01)
    monkeypatch.setattr(deep.cache, "forget_expected", lambda: seen.append(deep.cache.is_expecting))
    loader = ImageLoader(lambda _: None, lambda: None, host_times, False, deep.cache, Raised())
    loader.expect(link.ImageExpected(hint=_HINT))
    wait_until(lambda: seen, _STORED_S, "the end of the wait")
    for fd in (loader.loaded_fd, loader.changes.fd):  # its thread never ends
        os.close(fd)
    assert all(seen)

"""CACHE_DIR: exported models in a directory, imported instead of compiled; it never makes a call fail."""

from __future__ import annotations

import gc
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops
from openvino.properties import CacheMode

from softnpu.driver import GraphSource
from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.plugin import CompiledModel, Core, compilation
from softnpu.plugin.exported import exporting
from softnpu.plugin.exported.blob_file import BlobFile
from softnpu.plugin.exported.model_cache import SETTLED_NS, ModelCache
from softnpu.plugin.loaded_model import LoadedModel
from tests.conftest import StartPython
from tests.plugin.weights_files import INPUT, SIZE, dense_model, write_dense
from tests.support.cases import case
from tests.support.daemon import Daemon

WEIGHTS = 2 * SIZE * SIZE * 4
F32 = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.fixture
def folder(private_dir: Path) -> Path:
    return private_dir / "cache"


@pytest.fixture
def ir(private_dir: Path) -> Path:
    return write_dense(private_dir)


@pytest.fixture
def config(folder: Path) -> dict[str, Any]:
    return {"CACHE_DIR": folder}


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.blob"))


def _check(compiled: CompiledModel) -> bool:
    """Check the numbers; return whether the model came from the cache."""
    expected = ov.Core().compile_model(dense_model(), "CPU", F32)(INPUT)[0]
    np.testing.assert_array_equal(compiled(INPUT)[0], expected)
    return bool(compiled.get_property(ov.properties.loaded_from_cache))


def test_the_second_compilation_is_an_import(
    shared_core: Core, ir: Path, folder: Path, config: dict[str, Any]
) -> None:
    first = shared_core.compile_model(ir, "NPU", config)
    assert not _check(first)
    (entry,) = _entries(folder)
    second = shared_core.compile_model(ir, "NPU", config)
    assert _check(second)
    assert second._executable.graph.origin == "native"
    assert [port.get_names() for port in second.inputs] == [port.get_names() for port in first.inputs]
    assert _entries(folder) == [entry]
    assert not list(folder.glob("*.lock"))


def _unnamed(factor: float = 2.0) -> ov.Model:
    """A model whose ports and operations have only the names that OpenVINO numbers."""
    data = ops.parameter([3], np.float32)
    parts = ops.split(ops.multiply(data, ops.constant([factor], np.float32)), 0, 3)
    return ov.Model([ops.result(part) for part in parts.outputs()], [data])


def test_a_model_that_is_built_again_in_memory_is_found(
    shared_core: Core, folder: Path, config: dict[str, Any]
) -> None:
    found = []
    for factor in (2.0, 2.0, 3.0):
        model = _unnamed(factor)
        compiled = shared_core.compile_model(model, "NPU", config)
        assert [each[0] for each in compiled([np.ones(3, np.float32)]).values()] == [factor] * 3
        assert compiled.get_property("NETWORK_NAME") == model.get_friendly_name()
        names = [port.get_node().get_friendly_name() for port in (*model.inputs, *model.outputs)]
        assert [port.name for port in compiled.signature.ports] == names
        found.append(compiled.get_property("LOADED_FROM_CACHE"))
    assert found == [False, True, False]
    assert len(_entries(folder)) == 2


def test_the_cache_of_the_driver_is_bypassed(
    shared_core: Core, ir: Path, config: dict[str, Any], private_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_CACHE_DIR, str(private_dir / "driver"))
    shared_core.compile_model(ir, "NPU", config)
    assert not (private_dir / "driver").exists()
    shared_core.compile_model(ir)
    assert any((private_dir / "driver").iterdir())


@pytest.mark.parametrize("mode", [CacheMode.OPTIMIZE_SPEED, CacheMode.OPTIMIZE_SIZE])
def test_a_model_in_memory_is_cached(
    shared_core: Core, folder: Path, config: dict[str, Any], mode: CacheMode
) -> None:
    config["CACHE_MODE"] = mode
    assert not _check(shared_core.compile_model(dense_model(), "NPU", config))
    gc.collect()
    assert _check(shared_core.compile_model(dense_model(), "NPU", config))
    assert len(_entries(folder)) == 1


@pytest.mark.parametrize("mode", ["OPTIMIZE_SPEED", "OPTIMIZE_SIZE"])
def test_optimize_size_keeps_no_weights(
    shared_core: Core, ir: Path, folder: Path, config: dict[str, Any], mode: str
) -> None:
    config["CACHE_MODE"] = mode
    assert not _check(shared_core.compile_model(ir, "NPU", config))
    (entry,) = _entries(folder)
    with BlobFile.open(entry) as file:
        assert (file.metadata().weights is not None) == (mode == "OPTIMIZE_SIZE")
    assert (entry.stat().st_size < WEIGHTS) == (mode == "OPTIMIZE_SIZE")
    moved = ir.with_name("moved.xml")  # the weights come with the model, wherever it is now
    for suffix in (".xml", ".bin"):
        ir.with_suffix(suffix).rename(moved.with_suffix(suffix))
    again = shared_core.compile_model(moved, "NPU", config)
    assert not _check(again), "another name is another model"
    for suffix in (".xml", ".bin"):
        moved.with_suffix(suffix).rename(ir.with_suffix(suffix))
    assert _check(shared_core.compile_model(ir, "NPU", config))


# ---------------------------------------------------------------- the key


@pytest.mark.parametrize(
    "other",
    [
        {"PERF_COUNT": True},
        {"PERFORMANCE_HINT": "THROUGHPUT"},
        {"NPU_TILES": 2},
        {"CACHE_MODE": "OPTIMIZE_SIZE"},
        {"NPU_COMPILATION_MODE": "DefaultHW"},
    ],
)
def test_a_changed_model_makes_another_entry(
    shared_core: Core, ir: Path, folder: Path, config: dict[str, Any], other: dict[str, Any]
) -> None:
    shared_core.compile_model(ir, "NPU", config)
    compiled = shared_core.compile_model(ir, "NPU", config | other)
    assert not compiled.get_property("LOADED_FROM_CACHE")
    assert len(_entries(folder)) == 2
    again = shared_core.compile_model(ir, "NPU", config | other)
    assert again.get_property("LOADED_FROM_CACHE")
    for name in other.keys() & {"PERF_COUNT", "PERFORMANCE_HINT", "NPU_TILES"}:
        assert again.get_property(name) == compiled.get_property(name)


def test_run_time_properties_share_an_entry(shared_core: Core, ir: Path, config: dict[str, Any]) -> None:
    shared_core.compile_model(ir, "NPU", config)
    fast = shared_core.compile_model(ir, "NPU", config | {"NPU_TURBO": True, "MODEL_PRIORITY": "HIGH"})
    assert fast.get_property("LOADED_FROM_CACHE")
    assert fast.get_property("NPU_TURBO")
    shared_core.set_property({"CACHING_PROPERTIES": _more(shared_core, "NPU_TURBO")})
    told = shared_core.compile_model(ir, "NPU", config | {"NPU_TURBO": True})
    assert not told.get_property("LOADED_FROM_CACHE")


def _more(core: Core, name: str) -> list[str]:
    return [*core.get_property("NPU", "CACHING_PROPERTIES"), name]


def test_other_weights_and_other_shapes_make_other_entries(
    shared_core: Core, private_dir: Path, folder: Path, config: dict[str, Any]
) -> None:
    shared_core.compile_model(write_dense(private_dir), "NPU", config)
    other = shared_core.compile_model(write_dense(private_dir, seed=1), "NPU", config)
    assert not other.get_property("LOADED_FROM_CACHE")
    shaped = shared_core.compile_model(write_dense(private_dir), "NPU", config, shapes={"data": [3, SIZE]})
    assert not shaped.get_property("LOADED_FROM_CACHE")
    assert len(_entries(folder)) == 3
    again = shared_core.compile_model(write_dense(private_dir), "NPU", config, shapes={"data": [3, SIZE]})
    assert again.get_property("LOADED_FROM_CACHE")
    assert again.inputs[0].shape == ov.Shape([3, SIZE])


def test_what_was_compiled_of_changed_weights_is_not_stored(
    shared_core: Core, ir: Path, folder: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be another model under the key of this one, for ever."""
    weights, compiling = ir.with_suffix(".bin"), compilation._compile
    right = weights.read_bytes()

    def changed(*arguments: Any) -> LoadedModel:
        weights.write_bytes(right[:-4] + bytes(4))
        return compiling(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(compilation, "_compile", changed)
        shared_core.compile_model(ir, "NPU", config)
    assert not _entries(folder)
    weights.write_bytes(right)
    assert not _check(shared_core.compile_model(ir, "NPU", config))
    assert _check(shared_core.compile_model(ir, "NPU", config))


def test_the_digest_of_weights_is_cached_by_file(ir: Path, folder: Path) -> None:
    folder.mkdir()

    def content(settled_ns: int = 0) -> bytes:
        cache = ModelCache(folder, logging.getLogger("test"), settled_ns=settled_ns)
        with GraphSource.from_ir(ir) as source:
            return cache.content(source)

    before = content(SETTLED_NS)
    assert not list(folder.iterdir()), "it may change again with the same time stamp"
    assert content() == before
    (note,) = folder.glob("*.digest")
    note.write_bytes(bytes(64))
    assert content() == before, "a damaged digest file is ignored"
    weights = ir.with_suffix(".bin")
    weights.write_bytes(bytes([weights.read_bytes()[0] ^ 1]) + weights.read_bytes()[1:])
    assert content() != before


# ---------------------------------------------------------------- failures


def test_a_damaged_entry_is_compiled_again_and_replaced(
    shared_core: Core, ir: Path, folder: Path, config: dict[str, Any], caplog: Any
) -> None:
    shared_core.compile_model(ir, "NPU", config)
    (entry,) = _entries(folder)
    content = entry.read_bytes()
    changed = bytearray(content)
    changed[len(content) // 2] ^= 1
    other = folder.with_name("other")
    shared_core.compile_model(ir, "NPU", {"CACHE_DIR": other, "PERF_COUNT": True})
    renamed = _entries(other)[0].read_bytes()
    for bad in (bytes(changed), content[:-5], b"", b"\x7fELF" * 999, renamed):
        with case(bad[:8], len(bad)):
            entry.write_bytes(bad)
            caplog.clear()
            with caplog.at_level(logging.WARNING, "softnpu.plugin"):
                assert not _check(shared_core.compile_model(ir, "NPU", config))
            assert any(f"bad entry {entry}" in text for text in caplog.messages)
            assert entry.stat().st_size == len(content)
            assert _check(shared_core.compile_model(ir, "NPU", config))


def test_a_directory_that_cannot_be_made_is_only_reported(
    shared_core: Core, ir: Path, private_dir: Path, caplog: Any
) -> None:
    file = private_dir / "file"
    file.touch()
    with caplog.at_level(logging.WARNING, "softnpu.plugin"):
        assert not _check(shared_core.compile_model(ir, "NPU", {"CACHE_DIR": file / "cache"}))
    assert any("cannot be used" in text for text in caplog.messages)


def test_a_full_disk_is_only_reported(
    shared_core: Core, ir: Path, folder: Path, config: dict[str, Any], caplog: Any, monkeypatch: Any
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "softnpu.plugin"):
        patch.setattr(exporting, "_put", full)
        assert not _check(shared_core.compile_model(ir, "NPU", config))
    assert any("not stored: No space left on device" in text for text in caplog.messages)
    assert not list(folder.glob("*.blob"))
    assert not list(folder.glob(".*"))
    assert not _check(shared_core.compile_model(ir, "NPU", config))
    assert _check(shared_core.compile_model(ir, "NPU", config))


def test_leftovers_of_a_killed_process_are_removed_later(
    shared_core: Core, ir: Path, folder: Path, config: dict[str, Any]
) -> None:
    folder.mkdir()
    old, fresh = folder / ".aa.blob.1.ff", folder / ".bb.blob.2.ff"
    for path in (old, fresh):
        path.touch()
    os.utime(old, (1_000_000_000, 1_000_000_000))
    shared_core.compile_model(ir, "NPU", config)
    assert not old.exists()
    assert fresh.exists()


_CLIENT = """
import openvino as ov
from softnpu.plugin import Core
core = Core(given["socket"])
say("ready")
hear()
compiled = core.compile_model(given["model"], "NPU", {"CACHE_DIR": given["folder"]})
found = compiled(np.load(given["input"]))[0]
right = bool(np.array_equal(found, np.load(given["expected"])))
say([bool(compiled.get_property("LOADED_FROM_CACHE")), right])
hear()
"""


def test_only_one_of_many_processes_compiles(
    daemon: Daemon, start_python: StartPython, ir: Path, folder: Path, private_dir: Path, reference: ov.Core
) -> None:
    np.save(private_dir / "input.npy", INPUT)
    np.save(private_dir / "expected.npy", reference.compile_model(ir, "CPU", F32)(INPUT)[0])
    clients = [
        start_python(
            _CLIENT,
            socket=str(daemon.socket),
            model=str(ir),
            folder=str(folder),
            input=str(private_dir / "input.npy"),
            expected=str(private_dir / "expected.npy"),
        )
        for _ in range(4)
    ]
    for client in clients:
        assert client.hear(60) == "ready"
    for client in clients:
        client.tell("go")
    told = [client.hear(60) for client in clients]
    assert [right for _, right in told] == [True] * 4
    assert sorted(cached for cached, _ in told) == [False, True, True, True]
    assert len(_entries(folder)) == 1
    assert not list(folder.glob("*.lock"))
    for client in clients:
        client.tell("end")
        client.finish()

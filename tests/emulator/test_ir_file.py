"""The names of files in memory that OpenVINO writes: few, whatever ends a process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from softnpu.emulator.compiler import ir_file

pytestmark = pytest.mark.quick


@pytest.fixture
def temporary(private_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for names without a cache of the user."""
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(tempfile, "tempdir", str(private_dir))
    return private_dir / f"softnpu-ir-{os.geteuid()}"


def _names_while_writing(content: bytes) -> list[Path]:
    """Write, and return what a process that is killed meanwhile would leave in the folder of the name."""
    names: list[Path] = []

    def write(path: Path) -> None:
        names.extend(path.parent.iterdir())
        path.write_bytes(content)

    assert ir_file.written(write) == content
    return names


def test_the_next_process_has_the_same_name(private_dir: Path, temporary: Path) -> None:
    first, second = (_names_while_writing(content) for content in (b"<a/>", b"<net/>"))
    assert first == second == list(temporary.iterdir())
    assert list(private_dir.iterdir()) == [temporary]


def test_names_are_in_the_cache_of_the_user(
    private_dir: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(private_dir / "cache"))
    assert [name.parent for name in _names_while_writing(b"<a/>")] == [private_dir / "cache/softnpu/ir"]
    assert not temporary.exists()


def test_no_name_is_in_a_folder_that_others_can_write(temporary: Path) -> None:
    temporary.mkdir()
    temporary.chmod(0o777)
    with pytest.raises(OSError, match="no folder for the name"):
        _names_while_writing(b"<a/>")
    assert list(temporary.iterdir()) == []

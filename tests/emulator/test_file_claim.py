"""Claims on files, between processes: one holder, and none after its death."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

import pytest

from softnpu.emulator.common import file_claim
from softnpu.emulator.common.file_claim import FileClaim, is_open_as, lock_before, try_lock
from tests.conftest import StartPython
from tests.support.waiting import DEADLINE_S

pytestmark = pytest.mark.quick

_HOLD = """
from softnpu.emulator.common.file_claim import FileClaim
claim = FileClaim.acquire(Path(given["path"]))
say(claim is not None)
hear()
claim.release()
say("released")
hear()
"""


def test_one_process_holds_a_claim_at_a_time(tmp_path: Path, start_python: StartPython) -> None:
    path = tmp_path / "x.lock"
    holder = start_python(_HOLD, path=str(path))
    assert holder.hear()

    assert FileClaim.acquire(path) is None
    assert FileClaim.acquire(path, 0.01) is None

    holder.tell()
    assert holder.hear() == "released"
    assert not path.exists()
    with FileClaim.acquire(path) or pytest.fail("nobody holds it any more") as claim:
        assert is_open_as(claim.fd, path)
        claim.release()  # the block's end releases it once more
    assert not path.exists()


def test_the_death_of_the_holder_ends_a_claim(tmp_path: Path, start_python: StartPython) -> None:
    path = tmp_path / "x.lock"
    holder = start_python(_HOLD, path=str(path))
    assert holder.hear()
    holder.kill()

    with FileClaim.acquire(path, DEADLINE_S) or pytest.fail("a dead process holds it"):
        assert path.exists()


def test_who_waited_for_a_file_that_was_removed_starts_anew(tmp_path: Path) -> None:
    path, opened = tmp_path / "x.lock", []

    def open_file(place: Path) -> int:
        fd = file_claim.open_lock_file(place)
        opened.append(fd)
        if len(opened) == 1:
            place.unlink()  # as the last holder does, between our open and our lock
        return fd

    with FileClaim.acquire(path, open_file=open_file) or pytest.fail("nobody holds it") as claim:
        assert len(opened) == 2
        assert is_open_as(claim.fd, path)


def test_a_lock_file_that_others_could_hold_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    path.touch()
    path.chmod(0o666)
    with pytest.raises(PermissionError, match="others may write it"):
        FileClaim.acquire(path)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        FileClaim.acquire(path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(_fd: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    path = tmp_path / "x.lock"
    with pytest.raises(OSError, match="No locks"):
        FileClaim.acquire(path)
    with FileClaim.acquire(path, optional=True) or pytest.fail("locks are optional"):
        assert path.exists()


def test_shared_locks_keep_exclusive_ones_out(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.touch()
    with path.open() as first, path.open() as second:
        assert try_lock(first.fileno(), fcntl.LOCK_SH)
        assert try_lock(second.fileno(), fcntl.LOCK_SH)
        assert not lock_before(second.fileno(), time.monotonic())
        assert try_lock(first.fileno(), fcntl.LOCK_UN)
        assert lock_before(second.fileno(), time.monotonic())

"""Tests of code shared by all parts: claims on files, process identities, ranges of files and addresses."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softnpu.emulator.common import address_range, file_claim, linux, process_identity
from softnpu.emulator.common.address_range import AddressRange
from softnpu.emulator.common.file_claim import FileClaim, is_open_as, lock_before, try_lock
from softnpu.emulator.common.process_identity import ProcessIdentity
from softnpu.emulator.common.range_allocator import RangeAllocator
from tests.conftest import StartPython
from tests.support.waiting import DEADLINE_S

pytestmark = pytest.mark.quick

# ---------------------------------------------------------------- claims on files

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
        claim.release()  # the block's end releases it again
    assert not path.exists()


def test_the_death_of_the_holder_ends_a_claim(tmp_path: Path, start_python: StartPython) -> None:
    path = tmp_path / "x.lock"
    holder = start_python(_HOLD, path=str(path))
    assert holder.hear()
    holder.kill()

    with FileClaim.acquire(path, DEADLINE_S) or pytest.fail("a dead process holds it"):
        assert path.exists()


def test_a_waiter_whose_file_was_removed_starts_anew(tmp_path: Path) -> None:
    path, opened = tmp_path / "x.lock", []

    def open_file(place: Path) -> int:
        fd = file_claim.open_lock_file(place)
        opened.append(fd)
        if len(opened) == 1:
            place.unlink()  # as the last holder does between our open and our lock
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


# ---------------------------------------------------------------- identity of processes


def test_a_process_runs_until_it_has_ended_whatever_its_name(tmp_path: Path) -> None:
    cat = shutil.which("cat")
    assert cat is not None
    odd = tmp_path / "a) R 1 2 (b"
    odd.symlink_to(cat)
    child = subprocess.Popen([odd], stdin=subprocess.PIPE)
    try:
        identity, own = ProcessIdentity.of(child.pid), ProcessIdentity.current()
        ticks_since_boot = float(Path("/proc/uptime").read_text().split()[0]) * os.sysconf("SC_CLK_TCK")
        assert 0 < own.start_time <= identity.start_time <= ticks_since_boot + 1
        assert (identity.is_running(), identity.has_ended()) == (True, False)
    finally:
        child.kill()
        child.communicate(timeout=DEADLINE_S)
    assert (identity.is_running(), identity.has_ended()) == (False, True)
    with pytest.raises(FileNotFoundError):
        ProcessIdentity.of(child.pid)


@pytest.mark.parametrize("change", [{"start_time": 1}, {"boot_id": "another boot"}])
def test_a_pid_that_is_used_again_is_another_process(change: dict[str, Any]) -> None:
    former = ProcessIdentity.current()._replace(**change)
    assert (former.is_running(), former.has_ended()) == (False, True)


def test_nothing_is_proven_about_a_process_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_time(_pid: int) -> int:
        raise PermissionError

    own = ProcessIdentity.current()
    monkeypatch.setattr(process_identity, "start_time", start_time)
    assert (own.is_running(), own.has_ended()) == (False, False)


def test_the_boot_id_is_the_kernels() -> None:
    assert process_identity.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


# ---------------------------------------------------------------- ranges

_SIZES = st.integers(1, 5000)
_ALIGNMENTS = st.sampled_from([1, 64, 256, 4096])
_STEPS = st.lists(st.tuples(st.booleans(), _SIZES, _ALIGNMENTS, st.integers(0, 1000)), max_size=80)


@given(total=st.integers(1, 40_000), steps=_STEPS)
@settings(max_examples=300, deadline=None)
def test_allocated_ranges_never_overlap(total: int, steps: list[tuple[bool, int, int, int]]) -> None:
    ranges = RangeAllocator(total)
    taken: list[tuple[int, int]] = []
    for take, size, alignment, choice in steps:
        if take:
            offset = ranges.allocate(size, alignment)
            if offset is not None:
                assert offset % alignment == 0
                assert offset + size <= total
                assert all(offset + size <= at or at + length <= offset for at, length in taken)
                taken.append((offset, size))
        elif taken:
            ranges.free(*taken.pop(choice % len(taken)))
    assert ranges.empty == (not taken)
    for entry in taken:
        ranges.free(*entry)
    assert ranges.empty
    assert ranges.allocate(total, 1) == 0, "all free ranges have merged"


@given(total=st.integers(1, 10_000), size=st.integers(1, 20_000), alignment=_ALIGNMENTS)
@settings(deadline=None)
def test_the_first_allocation_lies_at_the_start_or_fails(total: int, size: int, alignment: int) -> None:
    assert RangeAllocator(total).allocate(size, alignment) == (0 if size <= total else None)


def test_an_allocation_fails_if_every_free_range_is_too_small() -> None:
    ranges = RangeAllocator(300)
    assert [ranges.allocate(100, 1) for _ in range(3)] == [0, 100, 200]
    ranges.free(0, 100)
    ranges.free(200, 100)
    assert ranges.allocate(150, 1) is None
    ranges.free(100, 100)
    assert ranges.allocate(300, 1) == 0


# ------------------------------------------------------------ ranges of addresses


@pytest.mark.parametrize("pages_at_once", [1, 1 << 18])
def test_pages_of_a_range_are_released_until_one_is_written(
    monkeypatch: pytest.MonkeyPatch, pages_at_once: int
) -> None:
    monkeypatch.setattr(address_range, "_PAGES_AT_ONCE", pages_at_once)
    page = address_range.PAGE
    fd = linux.memfd("pages", 4 * page)
    os.pwrite(fd, b"old", 3 * page)
    mapped = AddressRange(4 * page)
    mapped.map(0, fd, 0, 4 * page)
    view = mapped.view()
    assert bytes(view[3 * page : 3 * page + 3]) == b"old"
    os.pwrite(fd, b"new", 3 * page)
    mapped.release_pages(0, 4 * page)
    assert bytes(view[3 * page : 3 * page + 3]) == b"new"
    view[3 * page] = ord("f")
    mapped.release_pages(0, 4 * page)
    assert bytes(view[3 * page : 3 * page + 3]) == b"few"
    os.close(fd)


# ---------------------------------------------------------------- imports


def test_numpy_works_without_its_texts() -> None:
    program = """
from softnpu.emulator.openvino import lean_openvino
lean_openvino.leave_out_unused()
import numpy as np
print(np.add(1, 2).item(), np.zeros.__doc__)
"""
    line = [sys.executable, "-c", program]
    assert subprocess.run(line, capture_output=True, check=True, timeout=DEADLINE_S).stdout == b"3 None\n"


def test_an_engine_imports_operations_and_types_when_they_are_used() -> None:
    program = """
import sys
from softnpu.emulator.openvino import lean_openvino
lean_openvino.leave_out_unused()
lean_openvino.put_off_unused()
from softnpu.emulator.engine.engine import Engine
late = "openvino.opset1.ops", "openvino.opset13.ops", "numpy._typing._array_like"
assert not sys.modules.keys() & set(late), sys.modules.keys() & set(late)
import numpy as np
import openvino as ov
from openvino import opset13, opset8
assert opset13.add(opset8.constant(np.int32(1)), ov.opset1.constant(np.int32(2))).get_type_name() == "Add"
from openvino.opset4 import ops
import openvino.opset5
import numpy.typing as npt
assert npt.NDArray[np.uint8] and npt.ArrayLike
assert sys.modules.keys() >= set(late)
assert opset13.add is sys.modules["openvino.opset13"].add
print(np.linalg.svd(np.eye(2)).S.tolist())
"""
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, capture_output=True, check=True, timeout=DEADLINE_S)
    assert (done.stdout, done.stderr) == (b"[1.0, 1.0]\n", b"")

"""Records of digests: a large weights file is read once, as long as nobody can have written to it."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from softnpu.emulator.blob.constant_digests import constant_digest
from softnpu.emulator.blob.weight_files import file_identities
from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.common import linux
from softnpu.emulator.compiler import caching, compile_job, digests, weight_records
from softnpu.emulator.compiler.digests import WeightDigests
from softnpu.emulator.compiler.runtime import JobResult, Runtime
from softnpu.emulator.compiler.stages import COMPILE_STAGES, Send, Stages
from softnpu.emulator.compiler.weight_records import WeightRecord
from softnpu.emulator.interface.messages import CacheOptions, WeightSource
from softnpu.emulator.links.compiler import Compiled, Job
from tests.support.compiler import Files

_SIZE = 1 << 16


class _Clock:
    """Every file is `age_s` old."""

    age_s = 10.0

    def time_ns(self) -> int:
        return time.time_ns() + int(self.age_s * 1e9)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """Files in memory stand for those on ext4: they have times and leases like them, on every machine."""
    clock = _Clock()
    monkeypatch.setattr(linux, "is_ext4", lambda _: True)
    monkeypatch.setattr(weight_records, "LARGE", 1)
    monkeypatch.setattr(digests, "LARGE", 1)
    monkeypatch.setattr(weight_records, "time", SimpleNamespace(time_ns=clock.time_ns))
    return clock


@pytest.fixture
def cache(private_dir: Path) -> CacheOptions:
    return CacheOptions(directory=str(private_dir / "cache"), limit=1 << 30)


class _Weights:
    """A file without a name, open for reading: `fd`."""

    def __init__(self) -> None:
        with os.fdopen(os.memfd_create("weights"), "wb") as file:
            file.write(bytes(_SIZE))
            file.flush()
            self.fd = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY)

    def writer(self) -> int:
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR)


@pytest.fixture
def weights() -> Iterator[_Weights]:
    weights = _Weights()
    yield weights
    os.close(weights.fd)


Read = Callable[..., bool]


@pytest.fixture
def read(weights: _Weights, cache: CacheOptions) -> Read:
    """Digest the file, calling `meanwhile` in the middle; return whether its digest was on record."""

    def read(meanwhile: Callable[[], None] = lambda: None) -> bool:
        fds = [weights.fd]
        space = WeightSpace([WeightSource(offset=0, length=_SIZE)], fds, "model")
        known = WeightDigests(space)
        record = WeightRecord.find(cache, known, fds, file_identities(fds))
        assert record is not None
        was_known = bool(known.known())
        known.of(0, _SIZE)
        meanwhile()
        record.keep()
        return was_known

    return read


def test_a_file_at_rest_is_digested_once(read: Read) -> None:
    assert [read(), read(), read()] == [False, True, True]


def test_another_part_of_a_file_is_added_to_its_record(weights: _Weights, cache: CacheOptions) -> None:
    fds = [weights.fd]
    known = [b""]
    for begin in (0, 64, 128):
        each = WeightDigests(WeightSpace([WeightSource(offset=0, length=_SIZE)], fds, "model"))
        record = WeightRecord.find(cache, each, fds, file_identities(fds))
        assert record is not None
        assert each.known() == known[-1]
        each.of(begin, 64)
        record.keep()
        known.append(each.known())


@pytest.mark.parametrize("mapped", [False, True])
def test_nothing_is_kept_of_a_file_that_somebody_can_write_to(
    weights: _Weights, read: Read, mapped: bool
) -> None:
    writer = weights.writer()
    mapping = None
    if mapped:
        mapping = mmap.mmap(writer, _SIZE)
        os.close(writer)
        mapping[:1] = b"1"  # from now on it writes without changing the times
    assert [read(), read()] == [False, False]
    if mapping is None:
        os.close(writer)
    else:
        mapping.close()
    assert [read(), read()] == [False, True]


def test_nothing_is_kept_of_a_file_written_to_meanwhile(weights: _Weights, read: Read) -> None:
    def write() -> None:
        writer = weights.writer()
        info = os.fstat(writer)
        os.pwrite(writer, b"1", 0)
        os.utime(writer, ns=(info.st_atime_ns, info.st_mtime_ns))
        os.close(writer)

    assert [read(write), read(), read()] == [False, False, True]


@pytest.mark.parametrize("mapped", [False, True])
def test_a_file_that_was_written_to_is_read_again(weights: _Weights, read: Read, mapped: bool) -> None:
    assert [read(), read()] == [False, True]
    writer = weights.writer()
    info = os.fstat(writer)
    if mapped:
        mapping = mmap.mmap(writer, _SIZE)
        mapping[:1] = b"1"
        mapping.close()
    else:
        os.pwrite(writer, b"1", 0)
    os.utime(writer, ns=(info.st_atime_ns, info.st_mtime_ns))
    os.close(writer)
    assert [read(), read()] == [False, True]


def test_nothing_is_kept_of_a_file_that_has_just_changed(read: Read, clock: _Clock) -> None:
    clock.age_s = 0.5
    assert [read(), read()] == [False, False], "the next write may leave the same times"
    clock.age_s = 10
    assert [read(), read()] == [False, True]


def test_other_files_have_no_record(
    weights: _Weights, cache: CacheOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    fds = [weights.fd]
    space = WeightSpace([WeightSource(offset=0, length=_SIZE)], fds, "model")

    def found() -> WeightRecord | None:
        return WeightRecord.find(cache, WeightDigests(space), fds, file_identities(fds))

    assert found() is not None
    monkeypatch.setattr(weight_records, "LARGE", _SIZE + 1)
    assert found() is None, "small"
    monkeypatch.setattr(weight_records, "LARGE", 1)
    monkeypatch.setattr(linux, "is_ext4", lambda _: False)
    assert found() is None, "where times and leases may mean something else"


def test_a_cached_model_is_found_without_reading_its_weights(
    static: Files, cache: CacheOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def counted(data: memoryview) -> bytes:
        read.append(len(data))
        return constant_digest(data)

    def do(job: Job, fds: Sequence[int], _: Send) -> JobResult:
        return compile_job.build(job, list(fds), Stages(lambda *_: None, COMPILE_STAGES), Runtime())  # type: ignore[arg-type]

    def origin() -> str:
        read.clear()
        stages = Stages(lambda *_: None, COMPILE_STAGES)
        result = caching.compile_model(static.job(cache=cache), static.fds, stages, do)
        for fd in result.fds:
            os.close(fd)
        assert isinstance(result.answer, Compiled)
        return result.answer.origin

    monkeypatch.setattr(digests, "constant_digest", counted)
    assert origin() == "compiled"
    assert read
    assert origin() == "cache"
    assert not read
    with open(static.path.with_suffix(".bin"), "r+b") as file:
        file.seek(static.lead)
        file.write(b"1")
    assert origin() == "compiled"
    assert read

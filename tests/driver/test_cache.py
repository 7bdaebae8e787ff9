"""The compiled-model cache: what it keeps, what it removes, and that nothing that goes wrong is an error."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from softnpu.emulator.compiler.model_cache import entry_files, sidecars
from softnpu.emulator.compiler.model_cache.cache import ModelCache
from tests.support.cache import LARGE, PAYLOAD, Warnings, cache_in, key_of, listing, size_of

# ---------------------------------------------------------------- keys


def test_a_key_is_64_characters_of_the_input_and_16_of_the_configuration(cache: ModelCache) -> None:
    key = cache.key(b"input", b"configuration")
    assert entry_files.is_key(key)
    assert cache.key(b"other", b"configuration")[:64] != key[:64]
    assert cache.key(b"other", b"configuration")[64:] == key[64:]
    assert cache.key(b"input", b"other")[:64] == key[:64]
    assert cache.key(b"input", b"other")[64:] != key[64:]


@pytest.mark.parametrize("key", ["", "a" * 79, "A" * 80, "../" + "a" * 77, "a" * 80 + "\n"])
def test_what_is_no_key_cannot_name_a_file(cache: ModelCache, key: str) -> None:
    with pytest.raises(ValueError, match="cache key"):
        cache.store(key, PAYLOAD)
    with pytest.raises(ValueError, match="cache key"):
        cache.load(key)


# ---------------------------------------------------------------- store and load


def test_a_stored_payload_comes_back_in_another_cache_object(cache: ModelCache, directory: Path) -> None:
    key = key_of(cache, "a")
    assert cache.load(key) is None
    assert cache.store(key, PAYLOAD)
    assert cache_in(directory).load(key) == PAYLOAD


def test_an_empty_payload_is_a_payload(cache: ModelCache) -> None:
    assert cache.store(key_of(cache, "a"), b"")
    assert cache.load(key_of(cache, "a")) == b""


def test_a_file_is_the_payload_and_80_characters_of_digest(cache: ModelCache, directory: Path) -> None:
    key = key_of(cache, "a")
    cache.store(key, PAYLOAD)
    content = (directory / key).read_bytes()
    assert content[:-80] == PAYLOAD
    assert entry_files.is_key(content[-80:].decode())
    assert listing(directory) == [key]


def test_the_directory_is_private_and_an_entry_is_read_only(cache: ModelCache, directory: Path) -> None:
    cache.store(key_of(cache, "a"), PAYLOAD)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / key_of(cache, "a")).stat().st_mode) == 0o440


def test_a_hit_notes_the_use_and_leaves_the_modification_time(cache: ModelCache, directory: Path) -> None:
    cache.store(key_of(cache, "a"), PAYLOAD)
    path = directory / key_of(cache, "a")
    before = path.stat()
    assert cache.load(key_of(cache, "a")) == PAYLOAD
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_atime_ns > before.st_atime_ns


def test_the_time_of_a_new_entry_is_exact_so_that_the_order_of_use_is(
    cache: ModelCache, directory: Path
) -> None:
    before = time.time_ns()
    cache.store(key_of(cache, "a"), PAYLOAD, {"model": "a"})
    for path in directory.iterdir():
        assert before <= path.stat().st_mtime_ns <= time.time_ns()
        assert path.stat().st_atime_ns == path.stat().st_mtime_ns


def test_storing_again_replaces_the_payload(cache: ModelCache) -> None:
    key = key_of(cache, "a")
    assert cache.store(key, PAYLOAD)
    assert cache.store(key, b"new")
    assert cache.load(key) == b"new"


def test_an_entry_under_the_name_of_another_is_a_miss(cache: ModelCache, directory: Path) -> None:
    cache.store(key_of(cache, "a"), PAYLOAD)
    (directory / key_of(cache, "a")).rename(directory / key_of(cache, "b"))
    assert cache.load(key_of(cache, "b")) is None
    assert listing(directory) == []


# ---------------------------------------------------------------- damage


@given(at=st.integers(0, len(PAYLOAD) + 79), bit=st.integers(0, 7))
@example(at=0, bit=0)
@example(at=len(PAYLOAD) - 1, bit=7)
@example(at=len(PAYLOAD), bit=5)  # the case of a digit: 'a' and 'A' are two digests
@example(at=len(PAYLOAD) + 64, bit=0)
@example(at=len(PAYLOAD) + 79, bit=0)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_flipped_bit_is_a_miss_and_the_entry_goes(directory: Path, at: int, bit: int) -> None:
    cache = cache_in(directory)
    key = key_of(cache, "a")
    assert cache.store(key, PAYLOAD)
    content = bytearray((directory / key).read_bytes())
    content[at] ^= 1 << bit
    _overwrite(directory / key, bytes(content))
    assert cache.load(key) is None
    assert listing(directory) == []
    assert cache.store(key, PAYLOAD)
    assert cache.load(key) == PAYLOAD


@given(length=st.integers(0, len(PAYLOAD) + 79))
@example(length=0)
@example(length=79)
@example(length=80)
@example(length=len(PAYLOAD))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_entry_cut_at_any_length_is_a_miss_and_goes(directory: Path, length: int) -> None:
    cache = cache_in(directory)
    key = key_of(cache, "a")
    assert cache.store(key, PAYLOAD)
    os.truncate(directory / key, length)
    assert cache.load(key) is None
    assert listing(directory) == []


def test_damage_is_a_warning_with_the_path(cache: ModelCache, directory: Path, warnings: Warnings) -> None:
    cache.store(key_of(cache, "a"), PAYLOAD, {"model": "a"})
    _overwrite(directory / key_of(cache, "a"), bytes(500))
    assert cache.load(key_of(cache, "a")) is None
    assert [key_of(cache, "a") in warning for warning in warnings()] == [True]
    assert listing(directory) == []


@pytest.mark.parametrize("kind", ["fifo", "link", "socket"])
def test_what_is_no_regular_file_is_a_miss_and_goes(cache: ModelCache, directory: Path, kind: str) -> None:
    key = key_of(cache, "a")
    if kind == "fifo":
        os.mkfifo(directory / key)
    elif kind == "socket":
        os.mknod(directory / key, stat.S_IFSOCK | 0o600)
    else:
        cache.store(key, PAYLOAD)
        (directory / key).rename(directory / "elsewhere")
        (directory / key).symlink_to("elsewhere")
    assert cache.load(key) is None
    assert key not in listing(directory)
    assert cache.store(key, PAYLOAD)
    assert cache.load(key) == PAYLOAD


def test_a_directory_in_the_place_of_an_entry_is_a_miss(cache: ModelCache, directory: Path) -> None:
    (directory / key_of(cache, "a")).mkdir()
    assert cache.load(key_of(cache, "a")) is None
    assert not cache.store(key_of(cache, "a"), PAYLOAD)
    assert listing(directory) == [key_of(cache, "a")]


def test_a_good_entry_that_took_the_place_of_a_bad_one_is_not_removed(
    cache: ModelCache, directory: Path
) -> None:
    key = key_of(cache, "a")
    (directory / key).write_bytes(bytes(500))
    bad = entry_files.open_entry(directory / key)
    try:
        assert cache.store(key, PAYLOAD)
        cache._discard(directory / key, bad, "it was bad when it was opened")
    finally:
        os.close(bad)
    assert cache.load(key) == PAYLOAD


def _overwrite(path: Path, content: bytes) -> None:
    path.chmod(0o600)
    path.write_bytes(content)


# ---------------------------------------------------------------- size and order of use


def test_a_limit_of_256_bytes_stores_nothing(directory: Path) -> None:
    cache = cache_in(directory, limit=0x100)
    assert not cache.store(key_of(cache, "a"), PAYLOAD)
    assert listing(directory) == []


def test_what_is_as_large_as_the_limit_is_stored_and_found(directory: Path) -> None:
    cache = cache_in(directory, limit=len(PAYLOAD) + 80)
    assert cache.store(key_of(cache, "a"), PAYLOAD)
    assert cache.load(key_of(cache, "a")) == PAYLOAD


def test_a_limit_of_zero_stores_nothing(directory: Path) -> None:
    assert not cache_in(directory, limit=0).store(key_of(cache_in(directory), "a"), b"")
    assert listing(directory) == []


@pytest.mark.parametrize("description", [None, {"model": "net"}])
def test_the_total_keeps_all_and_one_byte_less_evicts_one(
    directory: Path, description: dict[str, str] | None
) -> None:
    names = ["a", "b", "c"]
    cache = cache_in(directory)
    keys = [key_of(cache, name) for name in names]
    assert all(cache.store(key, PAYLOAD, description) for key in keys)
    total = size_of(directory)
    for key in keys:
        entry_files.remove(directory / key)

    exact = cache_in(directory, total)
    assert all(exact.store(key, PAYLOAD, description) for key in keys)
    assert [entry.key for entry in entry_files.entries(directory)] == keys
    for key in keys:
        entry_files.remove(directory / key)

    less = cache_in(directory, total - 1)
    assert all(less.store(key, PAYLOAD, description) for key in keys)
    assert [entry.key for entry in entry_files.entries(directory)] == keys[1:]
    assert size_of(directory) < total


def test_the_entry_that_was_not_used_for_the_longest_time_goes_first(directory: Path) -> None:
    cache = cache_in(directory, limit=3 * (len(PAYLOAD) + 80))
    keys = [key_of(cache, name) for name in "abcd"]
    for key in keys[:3]:
        assert cache.store(key, PAYLOAD)
    assert cache.load(keys[0]) == PAYLOAD
    assert cache.store(keys[3], PAYLOAD)
    assert [entry.key for entry in entry_files.entries(directory)] == [keys[2], keys[0], keys[3]]


def test_replacing_an_entry_evicts_no_other(directory: Path) -> None:
    cache = cache_in(directory, limit=2 * (len(PAYLOAD) + 80))
    keys = [key_of(cache, name) for name in "ab"]
    assert all(cache.store(key, PAYLOAD) for key in (*keys, keys[1]))
    assert [entry.key for entry in entry_files.entries(directory)] == keys


def test_an_entry_in_use_is_not_evicted(directory: Path) -> None:
    cache = cache_in(directory, limit=2 * (len(PAYLOAD) + 80))
    keys = [key_of(cache, name) for name in "abcd"]
    assert all(cache.store(key, PAYLOAD) for key in keys[:2])
    with _reading(directory / keys[0]):
        assert cache.store(keys[2], PAYLOAD)
        assert [entry.key for entry in entry_files.entries(directory)] == [keys[0], keys[2]]
        with _reading(directory / keys[2]):
            assert not cache.store(keys[3], PAYLOAD), "nothing could go"
    assert cache.load(keys[0]) == PAYLOAD


def test_files_of_others_are_neither_counted_nor_removed(directory: Path) -> None:
    cache = cache_in(directory, limit=2 * (len(PAYLOAD) + 80))
    foreign = directory / "notes.txt"
    foreign.write_bytes(bytes(LARGE >> 10))
    assert all(cache.store(key_of(cache, name), PAYLOAD) for name in "abc")
    assert len(entry_files.entries(directory)) == 2
    assert foreign.exists()


def test_an_entry_larger_than_the_limit_of_now_is_a_miss_and_stays(directory: Path) -> None:
    key = key_of(cache_in(directory), "a")
    assert cache_in(directory).store(key, PAYLOAD)
    assert cache_in(directory, limit=100).load(key) is None
    assert cache_in(directory).load(key) == PAYLOAD


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    fd = entry_files.open_entry(path)
    fcntl.flock(fd, fcntl.LOCK_SH)
    try:
        yield
    finally:
        os.close(fd)


# ---------------------------------------------------------------- sidecars


def test_a_sidecar_tells_what_made_the_entry_and_counts_its_hits(cache: ModelCache, directory: Path) -> None:
    key = key_of(cache, "a")
    cache.store(key, PAYLOAD, {"model": "net", "platform": "4000"})
    for _ in range(3):
        cache.load(key)
    record, hits = sidecars.decode((directory / f"{key}.json").read_bytes())
    assert record is not None
    assert (record.payload_size, record.description) == (len(PAYLOAD), {"model": "net", "platform": "4000"})
    assert hits == 3
    assert msgspec.json.decode((directory / f"{key}.json").read_bytes())["description"]["model"] == "net"


def test_an_entry_without_its_sidecar_works(cache: ModelCache, directory: Path) -> None:
    key = key_of(cache, "a")
    cache.store(key, PAYLOAD, {"model": "net"})
    (directory / f"{key}.json").unlink()
    assert cache.load(key) == PAYLOAD
    assert listing(directory) == [key]


def test_storing_without_description_removes_the_old_sidecar(cache: ModelCache, directory: Path) -> None:
    key = key_of(cache, "a")
    cache.store(key, PAYLOAD, {"model": "net"})
    cache.store(key, b"other")
    assert listing(directory) == [key]


def test_the_sidecar_goes_with_its_entry_and_a_lonely_one_is_swept(directory: Path) -> None:
    cache = cache_in(directory, limit=2000 + len(PAYLOAD))
    keys = [key_of(cache, name) for name in "abc"]
    assert cache.store(keys[0], PAYLOAD, {"model": "a"})
    assert cache.store(keys[1], PAYLOAD, {"model": "b"})
    assert listing(directory) == [keys[1], f"{keys[1]}.json"]
    (directory / keys[1]).unlink()
    assert cache.store(keys[2], PAYLOAD)
    assert listing(directory) == [keys[2]]


@pytest.mark.parametrize("sidecar", [b"", b"\n\n", b"{", b"\xff", b'{"created": 1}'])
def test_a_damaged_sidecar_harms_nothing(cache: ModelCache, directory: Path, sidecar: bytes) -> None:
    key = key_of(cache, "a")
    cache.store(key, PAYLOAD)
    (directory / f"{key}.json").write_bytes(sidecar)
    assert cache.load(key) == PAYLOAD
    record, hits = sidecars.decode((directory / f"{key}.json").read_bytes())
    assert record is None
    assert hits == sidecar.count(b"\n") + 1


def test_a_name_that_is_no_utf8_is_described_all_the_same(cache: ModelCache) -> None:
    assert cache.store(key_of(cache, "a"), PAYLOAD, {"model": "net\udcff"})

"""The cache of compiled models: what it keeps and evicts; its failures are never errors."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from softnpu.emulator.disk_cache import entry_files, maintenance
from softnpu.emulator.disk_cache.cache import ModelCache
from softnpu.emulator.interface.messages import CacheOptions
from tests.support.cache import LARGE, PAYLOAD, Warnings, cache_in, key_of, listing

pytestmark = pytest.mark.quick

# ---------------------------------------------------------------- keys


def test_an_invalid_key_cannot_name_a_file(cache: ModelCache) -> None:
    for key in ("", "a" * 79, "A" * 80, "../" + "a" * 77, "a" * 80 + "\n"):
        with pytest.raises(ValueError, match="cache key"):
            cache.store(key, PAYLOAD)
        with pytest.raises(ValueError, match="cache key"):
            cache.load(key)


# ---------------------------------------------------------------- store and load


def test_a_hit_records_the_use_and_keeps_the_modification_time(cache: ModelCache, directory: Path) -> None:
    cache.store(key_of(cache, "a"), PAYLOAD)
    path = directory / key_of(cache, "a")
    before = path.stat()
    assert cache.load(key_of(cache, "a")) == PAYLOAD
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_atime_ns > before.st_atime_ns


# ---------------------------------------------------------------- damage


@given(at=st.integers(0, len(PAYLOAD) + 79), bit=st.integers(0, 7), cut=st.booleans())
@example(at=0, bit=0, cut=False)
@example(at=len(PAYLOAD) - 1, bit=7, cut=False)
@example(at=len(PAYLOAD), bit=5, cut=False)  # case matters in a digest: 'a' and 'A' are different digits
@example(at=len(PAYLOAD) + 64, bit=0, cut=False)
@example(at=len(PAYLOAD) + 79, bit=0, cut=False)
@example(at=0, bit=0, cut=True)
@example(at=79, bit=0, cut=True)
@example(at=80, bit=0, cut=True)
@example(at=len(PAYLOAD), bit=0, cut=True)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_corrupt_or_truncated_entry_is_a_miss_and_removed(
    directory: Path, at: int, bit: int, cut: bool
) -> None:
    cache = cache_in(directory)
    key = key_of(cache, "a")
    assert cache.store(key, PAYLOAD)
    content = bytearray((directory / key).read_bytes())
    content[at] ^= 1 << bit
    (directory / key).chmod(0o600)
    (directory / key).write_bytes(content[:at] if cut else content)
    assert cache.load(key) is None
    assert listing(directory) == []
    assert cache.store(key, PAYLOAD)
    assert cache.load(key) == PAYLOAD


@pytest.mark.parametrize("kind", ["fifo", "link", "socket"])
def test_an_entry_that_is_not_a_regular_file_is_a_miss_and_removed(
    cache: ModelCache, directory: Path, kind: str
) -> None:
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


def test_a_good_entry_that_replaced_a_bad_one_is_not_removed(cache: ModelCache, directory: Path) -> None:
    key = key_of(cache, "a")
    (directory / key).write_bytes(bytes(500))
    bad = entry_files.open_entry(directory / key)
    try:
        assert cache.store(key, PAYLOAD)
        cache._discard(directory / key, bad, "it was bad when it was opened")
    finally:
        os.close(bad)
    assert cache.load(key) == PAYLOAD


# ---------------------------------------------------------------- size and least recent use


def test_the_least_recently_used_entry_is_evicted_first(directory: Path) -> None:
    cache = cache_in(directory, limit=3 * (len(PAYLOAD) + 80))
    keys = [key_of(cache, name) for name in "abcd"]
    for key in keys[:3]:
        assert cache.store(key, PAYLOAD)
    assert cache.load(keys[0]) == PAYLOAD
    assert cache.store(keys[3], PAYLOAD)
    assert [entry.key for entry in entry_files.entries(directory)] == [keys[2], keys[0], keys[3]]


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


def test_an_entry_larger_than_the_current_limit_is_a_miss_and_stays(directory: Path) -> None:
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


# ---------------------------------------------------------------- notes

NOTE = {"model": "net", "platform": "4000"}


def test_an_entry_with_a_note_is_one_file_that_a_hit_leaves_unchanged(
    cache: ModelCache, directory: Path
) -> None:
    key = key_of(cache, "a")
    assert cache.store(key, PAYLOAD, NOTE)
    content, modified = (directory / key).read_bytes(), (directory / key).stat().st_mtime_ns
    assert cache.load(key) == PAYLOAD
    assert listing(directory) == [key]
    assert (directory / key).read_bytes() == content
    assert (directory / key).stat().st_mtime_ns == modified
    (entry,) = entry_files.entries(directory)
    assert maintenance.describe(entry).parts == NOTE
    assert cache.store(key, PAYLOAD, NOTE)
    assert (directory / key).read_bytes() == content, "so a limit can be computed from an earlier run"


@pytest.mark.parametrize("at", [0, len(PAYLOAD), -85, -84, -81, -80, -17, -16, -1])
def test_damage_anywhere_in_an_entry_with_a_note_is_a_miss(
    cache: ModelCache, directory: Path, at: int
) -> None:
    key = key_of(cache, "a")
    cache.store(key, PAYLOAD, NOTE)
    content = bytearray((directory / key).read_bytes())
    content[at] ^= 1
    (directory / key).chmod(0o600)
    (directory / key).write_bytes(content)
    assert cache.load(key) is None
    assert listing(directory) == []


def test_entries_and_sidecars_of_the_version_before_are_used_and_removed(
    cache: ModelCache, directory: Path
) -> None:
    key, other = key_of(cache, "a"), key_of(cache, "b")
    directory.mkdir(exist_ok=True)
    (directory / key).write_bytes(bytes(PAYLOAD) + entry_files.payload_digest(key, PAYLOAD))
    sidecar = directory / f"{key}.json"
    sidecar.write_text('{"created": "2026-01-01T00:00:00.000Z", "payload_size": 1}\n\n')
    assert cache.load(key) == PAYLOAD
    (entry,) = entry_files.entries(directory)
    assert entry.size == len(PAYLOAD) + entry_files.DIGEST_LENGTH
    assert maintenance.describe(entry).parts == {}
    assert sidecar.read_text().endswith("}\n\n"), "a hit is not counted in it"
    assert cache.store(other, PAYLOAD, NOTE)
    assert listing(directory) == sorted([key, other])


@pytest.mark.parametrize("length", [0, 1, 1 << 20, (1 << 32) - 1])
def test_a_note_that_cannot_be_read_is_ignored(cache: ModelCache, directory: Path, length: int) -> None:
    key = key_of(cache, "a")
    cache.store(key, PAYLOAD, NOTE)
    content = bytearray((directory / key).read_bytes())
    content[-84:-80] = length.to_bytes(4, "little")
    (directory / key).chmod(0o600)
    (directory / key).write_bytes(content)
    assert entry_files.read_note(directory / key) == {}
    (directory / key).write_bytes(b"short")
    assert entry_files.read_note(directory / key) == {}


def test_a_name_that_is_not_utf8_is_described(cache: ModelCache) -> None:
    assert cache.store(key_of(cache, "a"), PAYLOAD, {"model": "net\udcff"})


# ---------------------------------------------------------------- unusable directories


@pytest.mark.parametrize("name", ["relative/cache", "", "/dev/null/cache", "/proc/cache", "/cache\0"])
def test_an_unusable_directory_disables_the_cache(name: str, warnings: Warnings) -> None:
    assert ModelCache.open(CacheOptions(directory=name, limit=LARGE)) is None
    assert len(warnings()) == 1


def test_a_directory_that_vanishes_is_a_miss_and_stores_nothing(cache: ModelCache, directory: Path) -> None:
    directory.rmdir()
    assert cache.load(key_of(cache, "a")) is None
    with cache.claim(key_of(cache, "a"), 1.0) as mine:
        assert mine
        assert not cache.store(key_of(cache, "a"), PAYLOAD)


@pytest.fixture
def mounted(directory: Path) -> Iterator[Path]:
    """The directory as its own file system of 64 KiB."""
    directory.mkdir()
    _mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", str(directory))
    yield directory
    subprocess.run(["umount", str(directory)], check=True, timeout=10)


def _mount(*arguments: str) -> None:
    try:
        done = subprocess.run(["mount", *arguments], check=False, timeout=10, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip("mounting needs root in this machine's own namespace")


def test_a_full_disk_stores_nothing_and_leaves_nothing(mounted: Path, warnings: Warnings) -> None:
    cache = cache_in(mounted)
    assert cache.store(key_of(cache, "a"), PAYLOAD)
    assert not cache.store(key_of(cache, "b"), bytes(1 << 20), {"model": "b"})
    assert "No space left" in warnings()[-1]
    assert listing(mounted) == [key_of(cache, "a")]
    assert cache.load(key_of(cache, "a")) == PAYLOAD
    assert cache.store(key_of(cache, "c"), PAYLOAD), "and room that is left can be used"


def test_a_read_only_file_system_still_hits(mounted: Path, warnings: Warnings) -> None:
    cache = cache_in(mounted)
    cache.store(key_of(cache, "a"), PAYLOAD, {"model": "a"})
    (mounted / key_of(cache, "b")).write_bytes(bytes(500))
    _mount("-o", "remount,ro", str(mounted))
    cache = cache_in(mounted)
    assert cache.load(key_of(cache, "a")) == PAYLOAD
    assert cache.load(key_of(cache, "b")) is None, "a bad entry stays, and stays a miss"
    with cache.claim(key_of(cache, "c"), 5.0) as mine:
        assert mine
        assert not cache.store(key_of(cache, "c"), PAYLOAD)
    assert "Read-only" in warnings()[-1]


# A process whose user root has changed: permissions do not bind root.
_AS_NOBODY = """
import os, sys
from pathlib import Path
from softnpu.emulator.disk_cache.cache import ModelCache
from softnpu.emulator.interface.messages import CacheOptions
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
cache = ModelCache.open(CacheOptions(directory=sys.argv[1], limit=1 << 30))
if cache is None:
    print("none"); sys.exit()
a, b = cache.key(b"a", b"configuration"), cache.key(b"b", b"configuration")
with cache.claim(b, 5.0) as mine:
    print(cache.load(a) is not None, mine, cache.store(b, b"payload"))
"""


@pytest.mark.parametrize(("mode", "expected"), [(0o555, "True True False"), (0o700, "none"), (0o333, "none")])
def test_a_readable_directory_of_another_user_is_read(
    private_dir: Path, directory: Path, mode: int, expected: str
) -> None:
    cache = cache_in(directory)
    cache.store(key_of(cache, "a"), PAYLOAD)
    (directory / key_of(cache, "a")).chmod(0o444)
    private_dir.chmod(0o755)
    directory.chmod(mode)
    if os.getuid() != 0 and mode == 0o700:
        pytest.skip("only root can become another user")
    program = [sys.executable, "-c", _AS_NOBODY, str(directory)]
    done = subprocess.run(program, check=True, timeout=60, capture_output=True, text=True)
    directory.chmod(0o700)
    assert done.stdout.strip() == expected
    assert listing(directory) == [key_of(cache, "a")]


# ---------------------------------------------------------------- directories writable by others

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")


def _give_away(path: Path) -> None:
    path.chmod(0o644)
    os.chown(path, 65533, 65533)


def _open_to_all(path: Path) -> None:
    path.chmod(0o666)


@pytest.mark.parametrize("forge", [pytest.param(_give_away, marks=needs_root), _open_to_all])
def test_an_entry_writable_by_others_is_a_miss_and_replaced(
    cache: ModelCache, directory: Path, warnings: Warnings, forge: Callable[[Path], None]
) -> None:
    key = key_of(cache, "a")
    cache.store(key, PAYLOAD)
    forge(directory / key)

    assert cache.load(key) is None
    assert key in warnings()[-1]
    assert cache.store(key, PAYLOAD)
    assert cache.load(key) == PAYLOAD

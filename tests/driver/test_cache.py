"""The compiled-model cache: what it keeps, what it removes, and that nothing that goes wrong is an error."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from softnpu.driver.compiler import cache_files, cache_record
from softnpu.driver.compiler.cache import ModelCache
from softnpu.emulator.interface.messages import CacheOptions

PAYLOAD = bytes(range(256)) * 40
LARGE = 1 << 30


def cache_in(directory: Path, limit: int = LARGE) -> ModelCache:
    cache = ModelCache.open(CacheOptions(directory=str(directory), limit=limit))
    assert cache is not None
    return cache


def key_of(cache: ModelCache, name: str) -> str:
    return cache.key(name.encode(), b"configuration")


def listing(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


@pytest.fixture
def directory(private_dir: Path) -> Path:
    return private_dir / "cache"


@pytest.fixture
def cache(directory: Path) -> ModelCache:
    return cache_in(directory)


Warnings = Callable[[], list[str]]


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Warnings:
    """What the test has logged so far, as a warning or worse."""
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# ---------------------------------------------------------------- keys


def test_a_key_is_64_characters_of_the_input_and_16_of_the_configuration(cache: ModelCache) -> None:
    key = cache.key(b"input", b"configuration")
    assert cache_files.is_key(key)
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
    assert cache_files.is_key(content[-80:].decode())
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
    bad = cache_files.open_entry(directory / key)
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
        cache_files.remove(directory / key)

    exact = cache_in(directory, total)
    assert all(exact.store(key, PAYLOAD, description) for key in keys)
    assert [entry.key for entry in cache_files.entries(directory)] == keys
    for key in keys:
        cache_files.remove(directory / key)

    less = cache_in(directory, total - 1)
    assert all(less.store(key, PAYLOAD, description) for key in keys)
    assert [entry.key for entry in cache_files.entries(directory)] == keys[1:]
    assert size_of(directory) < total


def test_the_entry_that_was_not_used_for_the_longest_time_goes_first(directory: Path) -> None:
    cache = cache_in(directory, limit=3 * (len(PAYLOAD) + 80))
    keys = [key_of(cache, name) for name in "abcd"]
    for key in keys[:3]:
        assert cache.store(key, PAYLOAD)
    assert cache.load(keys[0]) == PAYLOAD
    assert cache.store(keys[3], PAYLOAD)
    assert [entry.key for entry in cache_files.entries(directory)] == [keys[2], keys[0], keys[3]]


def test_replacing_an_entry_evicts_no_other(directory: Path) -> None:
    cache = cache_in(directory, limit=2 * (len(PAYLOAD) + 80))
    keys = [key_of(cache, name) for name in "ab"]
    assert all(cache.store(key, PAYLOAD) for key in (*keys, keys[1]))
    assert [entry.key for entry in cache_files.entries(directory)] == keys


def test_an_entry_in_use_is_not_evicted(directory: Path) -> None:
    cache = cache_in(directory, limit=2 * (len(PAYLOAD) + 80))
    keys = [key_of(cache, name) for name in "abcd"]
    assert all(cache.store(key, PAYLOAD) for key in keys[:2])
    with _reading(directory / keys[0]):
        assert cache.store(keys[2], PAYLOAD)
        assert [entry.key for entry in cache_files.entries(directory)] == [keys[0], keys[2]]
        with _reading(directory / keys[2]):
            assert not cache.store(keys[3], PAYLOAD), "nothing could go"
    assert cache.load(keys[0]) == PAYLOAD


def test_files_of_others_are_neither_counted_nor_removed(directory: Path) -> None:
    cache = cache_in(directory, limit=2 * (len(PAYLOAD) + 80))
    foreign = directory / "notes.txt"
    foreign.write_bytes(bytes(LARGE >> 10))
    assert all(cache.store(key_of(cache, name), PAYLOAD) for name in "abc")
    assert len(cache_files.entries(directory)) == 2
    assert foreign.exists()


def test_an_entry_larger_than_the_limit_of_now_is_a_miss_and_stays(directory: Path) -> None:
    key = key_of(cache_in(directory), "a")
    assert cache_in(directory).store(key, PAYLOAD)
    assert cache_in(directory, limit=100).load(key) is None
    assert cache_in(directory).load(key) == PAYLOAD


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    fd = cache_files.open_entry(path)
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
    record, hits = cache_record.decode((directory / f"{key}.json").read_bytes())
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
    record, hits = cache_record.decode((directory / f"{key}.json").read_bytes())
    assert record is None
    assert hits == sidecar.count(b"\n") + 1


def test_a_name_that_is_no_utf8_is_described_all_the_same(cache: ModelCache) -> None:
    assert cache.store(key_of(cache, "a"), PAYLOAD, {"model": "net\udcff"})


# ---------------------------------------------------------------- directories that do not work


@pytest.mark.parametrize("name", ["relative/cache", "", "/dev/null/cache", "/proc/cache", "/cache\0"])
def test_a_directory_that_cannot_be_used_is_no_cache(name: str, warnings: Warnings) -> None:
    assert ModelCache.open(CacheOptions(directory=name, limit=LARGE)) is None
    assert len(warnings()) == 1


def test_a_directory_is_created_with_its_parents(private_dir: Path) -> None:
    cache_in(private_dir / "a" / "b" / "c")
    assert (private_dir / "a" / "b" / "c").is_dir()


def test_a_directory_that_vanishes_is_a_miss_and_nothing_stored(cache: ModelCache, directory: Path) -> None:
    directory.rmdir()
    assert cache.load(key_of(cache, "a")) is None
    with cache.claim(key_of(cache, "a"), 1.0) as mine:
        assert mine
        assert not cache.store(key_of(cache, "a"), PAYLOAD)


@pytest.fixture
def mounted(directory: Path) -> Iterator[Path]:
    """The directory as a file system of 64 KiB of its own."""
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


# A process that root has made somebody else: permissions do not bind root.
_AS_NOBODY = """
import os, sys
from pathlib import Path
from softnpu.driver.compiler.cache import ModelCache
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
def test_a_directory_of_another_user_is_read_if_it_can_be(
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


def test_an_entry_that_must_not_be_read_is_replaced(private_dir: Path, directory: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    cache = cache_in(directory)
    cache.store(key_of(cache, "a"), PAYLOAD)
    (directory / key_of(cache, "a")).chmod(0)
    private_dir.chmod(0o755)
    directory.chmod(0o777)
    program = [sys.executable, "-c", _AS_NOBODY, str(directory)]
    done = subprocess.run(program, check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.strip() == "False True True"
    assert "Permission denied" in done.stderr
    assert listing(directory) == [key_of(cache, "b")]


def test_a_file_size_limit_is_like_a_full_disk(directory: Path) -> None:
    program = """
import resource, sys
from softnpu.driver.compiler.cache import ModelCache
from softnpu.emulator.interface.messages import CacheOptions
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
cache = ModelCache.open(CacheOptions(directory=sys.argv[1], limit=1 << 30))
print(cache.store(cache.key(b"a", b""), bytes(4000)), cache.store(cache.key(b"b", b""), bytes(6000)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(directory)],
        check=True, timeout=60, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() == "True False"
    assert "File too large" in done.stderr
    assert len(listing(directory)) == 1


def test_a_hit_needs_no_openvino(directory: Path) -> None:
    cache = cache_in(directory)
    cache.store(key_of(cache, "a"), PAYLOAD)
    program = """
import sys
from softnpu.driver.compiler import cache_key
from softnpu.driver.compiler.cache import ModelCache
from softnpu.emulator.interface.messages import CacheOptions
cache = ModelCache.open(CacheOptions(directory=sys.argv[1], limit=1 << 30))
made = cache_key.Configuration(name="n", platform="4000", compiler="c", config={}).encoded()
assert cache.load(cache.key(b"a", b"configuration")) is not None
assert "openvino" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, str(directory)], check=True, timeout=60)

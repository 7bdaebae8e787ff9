"""The compiled-model cache in places that do not work: full, read-only, of somebody else."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from softnpu.emulator.compiler.model_cache import entry_files, maintenance
from softnpu.emulator.compiler.model_cache.cache import ModelCache
from softnpu.emulator.interface.messages import CacheOptions
from tests.support.cache import LARGE, PAYLOAD, Warnings, cache_in, key_of, listing


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
from softnpu.emulator.compiler.model_cache.cache import ModelCache
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
from softnpu.emulator.compiler.model_cache.cache import ModelCache
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
from softnpu.emulator.compiler import cache_key
from softnpu.emulator.compiler.model_cache.cache import ModelCache
from softnpu.emulator.interface.messages import CacheOptions
cache = ModelCache.open(CacheOptions(directory=sys.argv[1], limit=1 << 30))
made = cache_key.Configuration(name="n", platform="4000", compiler="c", config={}).encoded()
assert cache.load(cache.key(b"a", b"configuration")) is not None
assert "openvino" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, str(directory)], check=True, timeout=60)


# ---------------------------------------------------------------- directories that others may write

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")


def _give_away(path: Path) -> None:
    path.chmod(0o644)
    os.chown(path, 65533, 65533)


def _open_to_all(path: Path) -> None:
    path.chmod(0o666)


@pytest.mark.parametrize("forge", [pytest.param(_give_away, marks=needs_root), _open_to_all])
def test_an_entry_that_others_may_have_written_is_a_miss_and_replaced(
    cache: ModelCache, directory: Path, warnings: Warnings, forge: Callable[[Path], None]
) -> None:
    key = key_of(cache, "a")
    cache.store(key, PAYLOAD)
    forge(directory / key)

    assert cache.load(key) is None
    assert key in warnings()[-1]
    assert cache.store(key, PAYLOAD)
    assert cache.load(key) == PAYLOAD


@needs_root
def test_the_lock_of_another_user_is_not_waited_for(cache: ModelCache, directory: Path) -> None:
    key = key_of(cache, "a")
    lock = entry_files.lock_path(directory / key)
    lock.touch()
    _give_away(lock)
    with lock.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with cache.claim(key, 0.0) as mine:
            assert mine


def test_a_hit_is_not_counted_in_a_file_that_has_another_name(
    cache: ModelCache, directory: Path, private_dir: Path
) -> None:
    key = key_of(cache, "a")
    cache.store(key, PAYLOAD, {"model": "a"})
    sidecar = entry_files.sidecar_path(directory / key)
    precious = private_dir / "precious"
    precious.write_text("precious")
    sidecar.unlink()
    sidecar.hardlink_to(precious)

    assert cache.load(key) == PAYLOAD
    assert precious.read_text() == "precious"


def test_a_sidecar_that_is_no_file_describes_nothing(cache: ModelCache, directory: Path) -> None:
    key = key_of(cache, "a")
    cache.store(key, PAYLOAD)
    os.mkfifo(entry_files.sidecar_path(directory / key))
    (entry,) = entry_files.entries(directory)

    assert maintenance.describe(entry).record is None

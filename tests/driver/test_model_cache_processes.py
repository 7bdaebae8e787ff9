"""The cache of compiled models between processes: claims, dying writers, readers beside writers."""

from __future__ import annotations

from pathlib import Path

import pytest

from softnpu.emulator.disk_cache import entry_files
from softnpu.emulator.disk_cache.cache import ModelCache
from tests.conftest import StartPython
from tests.support.cache import PAYLOAD, key_of, listing
from tests.support.waiting import DEADLINE_S, wait_gone

pytestmark = pytest.mark.quick


# in every process: the cache in given["directory"], and the key of the requested model
_SETUP = """
from softnpu.emulator.disk_cache.cache import ModelCache
from softnpu.emulator.interface.messages import CacheOptions
cache = ModelCache.open(CacheOptions(directory=given["directory"], limit=given.get("limit", 1 << 30)))
key = cache.key(b"model", b"configuration")
payload = bytes(range(256)) * 40
"""
_COMPILE = (
    _SETUP
    + """
with cache.claim(key, 30.0) as mine:
    say(mine)
    hear()
    say([cache.load(key) is None, cache.store(key, payload)])
"""
)
_STOP_BEFORE_RENAME = (
    _SETUP
    + """
def rename(self, target):
    say("written")
    hear()
Path.rename = rename
cache.store(key, payload, {"model": "net"})
"""
)


def test_a_claim_is_exclusive_and_released_when_its_process_is_killed(
    cache: ModelCache, directory: Path, start_python: StartPython
) -> None:
    key = key_of(cache, "model")
    owner = start_python(_COMPILE, directory=str(directory))
    assert owner.hear() is True
    with cache.claim(key, 0.1) as mine:
        assert not mine
        assert not cache.store(key, PAYLOAD), "compiled without the right to store"
    assert listing(directory) == [f"{key}.lock"]
    waiter = start_python(_COMPILE, directory=str(directory))
    owner.kill()
    assert waiter.hear() is True
    waiter.tell()
    assert waiter.hear() == [True, True]
    waiter.finish()
    assert listing(directory) == [key], "locks do not stay"
    assert cache.load(key) == PAYLOAD
    assert cache.store(key, PAYLOAD), "the next time it may store again"


def test_leftovers_of_a_writer_killed_before_the_rename_are_removed(
    cache: ModelCache, directory: Path, start_python: StartPython
) -> None:
    key, other = key_of(cache, "model"), key_of(cache, "other")
    writer = start_python(_STOP_BEFORE_RENAME, directory=str(directory))
    assert writer.hear() == "written"
    assert cache.load(key) is None, "what is being written is no entry"
    writer.kill()
    wait_gone(writer.pid)
    assert len(listing(directory)) == 1
    assert entry_files.entries(directory) == []
    assert cache.store(other, PAYLOAD)
    assert listing(directory) == [other]


def test_temporary_files_of_living_writers_stay_and_of_reused_pids_are_removed(directory: Path) -> None:
    directory.mkdir()
    mine = entry_files.temporary_path(directory / ("a" * 80))
    start = int(mine.name.split("-")[1].split(".")[0])
    reused = mine.with_name(mine.name.replace(str(start), str(start - 1)))
    for path in (mine, reused):
        path.write_bytes(b"half")
    assert entry_files.remove_leftovers(directory) == 4
    assert listing(directory) == [mine.name]


def test_concurrent_readers_writers_and_evictions_never_give_a_wrong_payload(
    directory: Path, start_python: StartPython
) -> None:
    """Room for 3 of 8 models: every store evicts, while others read and are killed."""
    limit = 3 * 40_000
    code = (
        _SETUP
        + """
import random
rng = random.Random(given["seed"])
keys = {n: cache.key(b"%d" % n, b"") for n in range(8)}
def payload_of(n): return bytes([n]) * (20_000 + 1000 * n)
hits = stores = 0
say("begin")
while hits < 100 or stores < 100:
    n = rng.randrange(8)
    found = cache.load(keys[n])
    assert found is None or found == payload_of(n), n
    hits += found is not None
    if found is None:
        stores += cache.store(keys[n], payload_of(n), {"model": str(n)})
say("done")
"""
    )
    clients = [start_python(code, directory=str(directory), limit=limit, seed=seed) for seed in range(4)]
    for client in clients:
        assert client.hear() == "begin"
    for _ in range(50):
        assert sum(entry.size for entry in entry_files.entries(directory)) <= limit
    clients[0].kill()
    for client in clients[1:]:
        assert client.hear() == "done"
        client.finish()
    with entry_files.exclusive(directory, DEADLINE_S):
        entry_files.remove_leftovers(directory)
    names = {entry.key for entry in entry_files.entries(directory)}
    assert names
    assert set(listing(directory)) == names

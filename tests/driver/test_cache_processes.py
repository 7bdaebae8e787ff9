"""The compiled-model cache between processes: one compiles, the others wait; nobody sees half an entry."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from softnpu.emulator.compiler.model_cache import cache as cache_module
from softnpu.emulator.compiler.model_cache import entry_files
from softnpu.emulator.compiler.model_cache.cache import ModelCache
from softnpu.emulator.interface.messages import CacheOptions
from tests.conftest import StartPython
from tests.support.client import ClientProcess
from tests.support.waiting import DEADLINE_S, Stopwatch, wait_gone, wait_readable, wait_until

PAYLOAD = bytes(range(256)) * 40

# every process: the cache in given["directory"], and the key of a model that it is asked for
SETUP = """
from softnpu.emulator.compiler.model_cache.cache import ModelCache
from softnpu.emulator.compiler import cache_files
from softnpu.emulator.interface.messages import CacheOptions
cache = ModelCache.open(CacheOptions(directory=given["directory"], limit=given.get("limit", 1 << 30)))
key = cache.key(b"model", b"configuration")
payload = bytes(range(256)) * 40
"""

HOLD = (
    SETUP
    + """
with cache.claim(key, 30.0) as mine:
    say(mine)
    hear()
    say(cache.store(key, payload))
"""
)

COMPILE = (
    SETUP
    + """
say("ready")
hear()
compiled = False
with cache.claim(key, 30.0) as mine:
    found = cache.load(key)
    if found is None:
        time.sleep(0.1)  # so long compiles this model: all others have to be waiting by then
        compiled = cache.store(key, payload)
        found = payload
say([mine, compiled, found == payload])
"""
)

STOP_BEFORE_RENAME = (
    SETUP
    + """
def rename(self, target):
    say("written")
    hear()
Path.rename = rename
cache.store(key, payload, {"model": "net"})
"""
)


@pytest.fixture
def directory(private_dir: Path) -> Path:
    return private_dir / "cache"


@pytest.fixture
def cache(directory: Path) -> ModelCache:
    cache = ModelCache.open(CacheOptions(directory=str(directory), limit=1 << 30))
    assert cache is not None
    return cache


@pytest.fixture
def key(cache: ModelCache) -> str:
    return cache.key(b"model", b"configuration")


def test_of_processes_that_ask_at_once_one_compiles(
    cache: ModelCache, key: str, directory: Path, start_python: StartPython
) -> None:
    clients = [start_python(COMPILE, directory=str(directory)) for _ in range(6)]
    for client in clients:
        assert client.hear() == "ready"
    for client in clients:
        client.tell()
    heard = [client.hear() for client in clients]
    assert all(mine and right for mine, _, right in heard)
    assert sum(compiled for _, compiled, _ in heard) == 1
    assert os.listdir(directory) == [key], "locks do not stay"
    assert cache.load(key) == PAYLOAD


def test_of_threads_that_ask_at_once_one_compiles(cache: ModelCache, key: str) -> None:
    compiled: list[bool] = []
    right: list[bool] = []

    def ask() -> None:
        with cache.claim(key, 30.0):
            found = cache.load(key)
            if found is None:
                compiled.append(cache.store(key, PAYLOAD))
            right.append(found in {None, PAYLOAD})

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert compiled == [True]
    assert right == [True] * 8


def test_who_has_waited_long_enough_compiles_without_storing(
    cache: ModelCache, key: str, directory: Path, start_python: StartPython
) -> None:
    holder = start_python(HOLD, directory=str(directory))
    assert holder.hear() is True
    watch = Stopwatch()
    with cache.claim(key, 0.2) as mine:
        assert not mine
        assert 0.2 <= watch.seconds < 5.0
        assert not cache.store(key, PAYLOAD)
    assert os.listdir(directory) == [f"{key}.lock"]
    holder.tell()
    assert holder.hear() is True
    holder.finish()
    assert cache.load(key) == PAYLOAD
    assert cache.store(key, PAYLOAD), "the next time it may store again"


def test_another_model_does_not_wait(
    cache: ModelCache, key: str, directory: Path, start_python: StartPython
) -> None:
    holder = start_python(HOLD, directory=str(directory))
    assert holder.hear() is True
    other = cache.key(b"another", b"configuration")
    with cache.claim(other, 0.0) as mine:
        assert mine
        assert cache.store(other, PAYLOAD)
    assert sorted(os.listdir(directory)) == sorted([f"{key}.lock", other]), "a held lock is not swept"


def test_a_claim_that_was_handed_on_is_still_of_one_process(
    cache: ModelCache, key: str, directory: Path, start_python: StartPython
) -> None:
    clients = [start_python(HOLD, directory=str(directory)) for _ in range(2)]
    (holder,) = wait_until(lambda: [client for client in clients if wait_readable(_output(client), 0.0)])
    waiter = next(client for client in clients if client is not holder)
    wait_until(lambda: _has_open(waiter, directory / f"{key}.lock"), what="the second one at the lock")
    assert holder.hear() is True
    holder.tell()
    assert holder.hear() is True
    holder.finish()
    assert waiter.hear() is True
    with cache.claim(key, 0.2) as mine:
        assert not mine


def _has_open(client: ClientProcess, path: Path) -> bool:
    for fd in Path(f"/proc/{client.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if fd.readlink() == path:
                return True
    return False


def _output(client: ClientProcess) -> int:
    assert client.process.stdout is not None
    return client.process.stdout.fileno()


def test_the_claim_of_a_killed_process_is_free(
    cache: ModelCache, key: str, directory: Path, start_python: StartPython
) -> None:
    holder = start_python(HOLD, directory=str(directory))
    assert holder.hear() is True
    waiter = start_python(COMPILE, directory=str(directory))
    assert waiter.hear() == "ready"
    waiter.tell()
    holder.kill()
    assert waiter.hear() == [True, True, True]
    assert os.listdir(directory) == [key]
    assert cache.load(key) == PAYLOAD


def test_the_claim_of_a_stopped_process_costs_no_more_than_the_deadline(
    cache: ModelCache, key: str, directory: Path, start_python: StartPython
) -> None:
    holder = start_python(HOLD, directory=str(directory))
    assert holder.hear() is True
    os.kill(holder.pid, signal.SIGSTOP)
    with cache.claim(key, 0.1) as mine:
        assert not mine


def test_a_writer_killed_before_the_rename_leaves_nothing_that_stays(
    cache: ModelCache, key: str, directory: Path, start_python: StartPython
) -> None:
    writer = start_python(STOP_BEFORE_RENAME, directory=str(directory))
    assert writer.hear() == "written"
    assert cache.load(key) is None, "what is being written is no entry"
    writer.kill()
    wait_gone(writer.pid)
    left = os.listdir(directory)
    assert len(left) == 2
    assert all(name.startswith(f".{key}.{writer.pid}-") and name.endswith(".tmp") for name in left)
    assert entry_files.entries(directory) == []
    other = cache.key(b"another", b"configuration")
    assert cache.store(other, PAYLOAD)
    assert os.listdir(directory) == [other]


def test_a_stopped_writer_costs_a_store_but_no_hang(
    cache: ModelCache,
    directory: Path,
    start_python: StartPython,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache_module, "_CHANGE_S", 0.1)
    writer = start_python(STOP_BEFORE_RENAME, directory=str(directory))
    assert writer.hear() == "written"
    assert not cache.store(cache.key(b"another", b"configuration"), PAYLOAD)
    assert len(os.listdir(directory)) == 2, "the files of a living writer stay"


def test_temporary_files_of_living_writers_stay_and_of_reused_pids_go(directory: Path) -> None:
    directory.mkdir()
    mine = entry_files.temporary_path(directory / ("a" * 80), "entry")
    start = int(mine.name.split("-")[1].split(".")[0])
    reused = mine.with_name(mine.name.replace(str(start), str(start - 1)))
    for path in (mine, reused):
        path.write_bytes(b"half")
    assert entry_files.sweep(directory) == 4
    assert os.listdir(directory) == [mine.name]


def test_readers_writers_and_evictions_at_once_never_show_a_wrong_payload(
    directory: Path, start_python: StartPython
) -> None:
    """Room for 3 of 8 models: every store evicts, while others read, count hits and are killed."""
    limit = 3 * 40_000
    code = (
        SETUP
        + """
import random
rng = random.Random(given["seed"])
keys = {n: cache.key(b"%d" % n, b"") for n in range(8)}
def payload_of(n): return bytes([n]) * (20_000 + 1000 * n)
hits = stores = 0
end = time.monotonic() + 2.5
say("begin")
while time.monotonic() < end:
    n = rng.randrange(8)
    found = cache.load(keys[n])
    assert found is None or found == payload_of(n), n
    hits += found is not None
    if found is None:
        stores += cache.store(keys[n], payload_of(n), {"model": str(n)})
say([hits, stores])
"""
    )
    clients = [start_python(code, directory=str(directory), limit=limit, seed=seed) for seed in range(5)]
    for client in clients:
        assert client.hear() == "begin"
    watch = Stopwatch()
    while watch.seconds < 1.0:
        total = sum(entry.total for entry in entry_files.entries(directory))
        # one byte a hit may come on top, until the next store
        assert total <= limit + 4096
    clients[0].kill()
    for client in clients[1:]:
        hits, stores = client.hear()
        assert hits > 0
        assert stores > 0
        client.finish()
    with entry_files.changing(directory, DEADLINE_S):
        entry_files.sweep(directory)
    names = {entry.key for entry in entry_files.entries(directory)}
    assert names
    assert set(os.listdir(directory)) <= names | {f"{name}.json" for name in names}

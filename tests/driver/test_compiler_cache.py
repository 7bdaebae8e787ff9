"""The compiler worker and the cache: what is found there, what is stored, and what a hit does without."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from softnpu.emulator.interface.messages import CacheOptions, GraphFlag
from softnpu.emulator.links.compiler import CompileJob
from tests.support.compiler import Files, Made, Worker, memory_file

STORED = "ZE DynamicCaching cache_status_t: cache_status_t::stored\n"
FOUND = "ZE DynamicCaching cache_status_t: cache_status_t::found\n"


@pytest.fixture
def cache(tmp_path: Path) -> CacheOptions:
    return CacheOptions(directory=str(tmp_path / "cache"), limit=1 << 30)


@pytest.fixture
def fresh() -> Iterator[Worker]:
    """A worker that has done nothing yet."""
    worker = Worker()
    yield worker
    worker.close()


def entries(cache: CacheOptions) -> list[Path]:
    return sorted(path for path in Path(cache.directory).iterdir() if len(path.name) == 80)


def cached(files: Files, cache: CacheOptions, **changes: object) -> CompileJob:
    return msgspec.structs.replace(files.job(cache=cache), **changes)


def test_a_first_compilation_is_stored_and_a_second_found(
    worker: Worker, static: Files, cache: CacheOptions
) -> None:
    first = worker.blob(cached(static, cache), static.fds)
    (entry,) = entries(cache)
    changed = entry.stat().st_mtime_ns
    second = worker.blob(cached(static, cache), static.fds)
    assert (first.answer.origin, first.answer.log) == ("compiled", STORED)
    assert (second.answer.origin, second.answer.log) == ("cache", FOUND)
    assert (second.blob, second.placement) == (first.blob, first.placement)
    assert entry.stat().st_mtime_ns == changed


def test_a_hit_does_without_openvino(
    worker: Worker, fresh: Worker, static: Files, cache: CacheOptions
) -> None:
    made = worker.blob(cached(static, cache), static.fds)
    assert fresh.blob(cached(static, cache), static.fds).blob == made.blob
    assert fresh.mappings("libopenvino") == 0
    assert fresh.mappings("numpy") == 0
    assert worker.mappings("libopenvino") > 0


def test_without_a_cache_the_log_says_nothing(worker: Worker, static: Files, cache: CacheOptions) -> None:
    assert worker.blob(static.job(), static.fds).answer.log == ""
    off = cached(static, cache, flags=int(GraphFlag.DISABLE_CACHING))
    for _ in range(2):
        made = worker.blob(off, static.fds)
        assert (made.answer.origin, made.answer.log) == ("compiled", "")
    assert not Path(cache.directory).exists()


def test_whatever_changes_the_result_is_another_entry(
    worker: Worker, dynamic: Files, cache: CacheOptions
) -> None:
    changes: list[dict[str, object]] = [
        {},
        {"name": "other"},
        {"shapes": {"image": (1, 3, 8, 9)}},
        {"config": {"PERF_COUNT": "YES"}},
        {"build_flags": '--inputs_precisions="image:FP16"'},
        {"build_flags": '--outputs_layouts="0:NHWC"'},
        {"config": {"NPU_WEIGHTS_EMBED_THRESHOLD": "100000"}},
    ]
    base = {"shapes": {"image": (1, 3, 8, 8)}}
    for change in changes:
        made = worker.blob(cached(dynamic, cache, **(base | change)), dynamic.fds)
        assert made.answer.origin == "compiled", change
    assert len(entries(cache)) == len(changes)
    flag = cached(dynamic, cache, **base, flags=int(GraphFlag.ENABLE_PROFILING))
    assert worker.blob(flag, dynamic.fds).meta.config["PERF_COUNT"] == "YES"


def test_the_way_options_are_given_does_not_matter(
    worker: Worker, static: Files, cache: CacheOptions
) -> None:
    worker.blob(cached(static, cache, config={"INFERENCE_NUM_THREADS": "2"}), static.fds)
    line = '--config INFERENCE_NUM_THREADS="02"'
    assert worker.blob(cached(static, cache, build_flags=line), static.fds).answer.origin == "cache"


def test_other_weights_are_another_model(worker: Worker, static: Files, cache: CacheOptions) -> None:
    worker.blob(cached(static, cache), static.fds)
    content = bytearray(bytes(static.lead) + static.weights)
    content[-1] ^= 1
    fd = memory_file(bytes(content))
    made = worker.blob(cached(static, cache), [static.xml, fd])
    os.close(fd)
    assert made.answer.origin == "compiled"


def test_a_damaged_entry_is_compiled_and_stored_again(
    worker: Worker, static: Files, cache: CacheOptions
) -> None:
    made = worker.blob(cached(static, cache), static.fds)
    (entry,) = entries(cache)
    content = bytearray(entry.read_bytes())
    content[100] ^= 1
    entry.unlink()
    entry.write_bytes(content)
    again = worker.blob(cached(static, cache), static.fds)
    assert (again.answer.origin, again.answer.log) == ("compiled", STORED)
    assert again.blob == made.blob
    assert worker.blob(cached(static, cache), static.fds).answer.origin == "cache"


def test_a_cache_without_room_stores_nothing(worker: Worker, static: Files, cache: CacheOptions) -> None:
    small = CacheOptions(directory=cache.directory, limit=0x100)
    for _ in range(2):
        made = worker.blob(cached(static, small), static.fds)
        assert (made.answer.origin, made.answer.log) == ("compiled", "")


def test_a_log_level_shows_the_stages_before_the_state_of_the_cache(
    worker: Worker, static: Files, cache: CacheOptions
) -> None:
    job = cached(static, cache, config={"LOG_LEVEL": "LOG_INFO"})
    log = worker.blob(job, static.fds).answer.log
    assert "cache: " in log
    assert log.endswith("\n" + STORED)


# ---------------------------------------------------------------- input hash


def test_a_hash_stands_for_the_model(worker: Worker, static: Files, cache: CacheOptions) -> None:
    first = worker.blob(cached(static, cache, input_hash=7), static.fds)
    altered = static.xml_data.replace(b'name="digits"', b'name="DIGITS"')
    fd = memory_file(altered)
    made = worker.blob(cached(static, cache, input_hash=7), [fd, static.bin])
    assert (made.answer.origin, made.blob) == ("cache", first.blob)
    other = worker.blob(cached(static, cache, input_hash=8), [fd, static.bin])
    assert other.answer.origin == "compiled"
    flags = cached(static, cache, input_hash=7, build_flags='--inputs_precisions="0:FP16"')
    assert worker.blob(flags, static.fds).answer.origin == "compiled"
    os.close(fd)


def test_a_hash_does_not_vouch_for_other_weights(worker: Worker, static: Files, cache: CacheOptions) -> None:
    """Else a client could bring wrong weights under the name of a blob that other clients share."""
    worker.blob(cached(static, cache, input_hash=7), static.fds)
    content = bytearray(bytes(static.lead) + static.weights)
    content[-1] ^= 1
    fd = memory_file(bytes(content))
    made = worker.blob(cached(static, cache, input_hash=7), [static.xml, fd])
    os.close(fd)
    assert made.answer.origin == "compiled"
    reference = made.reader.weights_reference()
    assert reference is not None


# ---------------------------------------------------------------- many at once


def test_concurrent_requests_for_one_model_compile_it_once(static: Files, cache: CacheOptions) -> None:
    workers = [Worker() for _ in range(3)]
    made: list[Made] = []

    def compile_one(worker: Worker) -> None:
        made.append(worker.blob(cached(static, cache), static.fds))

    threads = [threading.Thread(target=compile_one, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for worker in workers:
        worker.close()
    assert sorted(one.answer.origin for one in made) == ["cache", "cache", "compiled"]
    assert len({one.blob for one in made}) == 1

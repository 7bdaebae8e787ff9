"""The disk cache of compiled models, as programs see it."""

from __future__ import annotations

import dataclasses
import os
import re
import threading
import time
from pathlib import Path

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance import models
from tests.conformance.api.enumerations import CACHE_DIR, CACHE_SIZE, GraphFlag, GraphProperty, MemoryQuery
from tests.conformance.api.structures import GraphDesc, Handle
from tests.conformance.commands import infer
from tests.conformance.models import SIZE, Model
from tests.conformance.rig import Rig, ok

Cached = tuple[Rig, Path]
COMPILED, LOADED = GraphProperty.COMPILED, GraphProperty.LOADED_FROM_CACHE
STORED = "ZE DynamicCaching cache_status_t: cache_status_t::stored\n"
FOUND = "ZE DynamicCaching cache_status_t: cache_status_t::found\n"
HOUR_S = 3600
DEFAULT_LIMIT = 4 << 30


def origin(rig: Rig, desc: GraphDesc, context: Handle = None) -> int:
    """Compile; return whether it was compiled, or loaded from the cache."""
    graph = rig.api.ze_graph_create2(context or rig.context, rig.device, desc).get()
    flags = rig.api.ze_graph_get_properties3(graph).get().flags
    ok(rig.api.ze_graph_destroy(graph))
    return flags & (COMPILED | LOADED)


def entries(folder: Path) -> list[Path]:
    """Return the blobs in the cache: all files of the directory."""
    if not folder.exists():
        return []
    found = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert {len(path.name) for path in found} <= {80}
    return found


def rebuild(path: Path, data: bytes) -> None:
    """Overwrite an entry, which is read-only."""
    path.chmod(0o640)
    path.write_bytes(data)
    path.chmod(0o440)


def test_second_compilation_is_loaded_from_the_cache(cached: Cached, model: Model) -> None:
    rig, folder = cached
    assert origin(rig, rig.model_desc(model)) == COMPILED
    (entry,) = entries(folder)
    assert set(entry.name) <= set("0123456789abcdef")
    assert entry.stat().st_mode & 0o777 == 0o440
    before, content = entry.stat().st_mtime_ns, entry.read_bytes()
    assert origin(rig, rig.model_desc(model)) == LOADED
    assert origin(rig, rig.model_desc(model), rig.new_context()) == LOADED
    assert entries(folder)[0].stat().st_mtime_ns == before
    assert entry.read_bytes() == content
    entry.unlink()
    assert origin(rig, rig.model_desc(model)) == COMPILED
    assert len(entries(folder)) == 1


def test_graph_from_the_cache_computes_the_same(cached: Cached, model: Model) -> None:
    rig, _ = cached
    left, right, found = rig.host(64, fill=b"\x3f"), rig.host(64, fill=b"\x3e"), []
    for _ in range(2):
        graph, output = rig.graph(model), rig.host(SIZE)
        rig.bind(graph, left, right, output)
        rig.execute(infer(graph))
        found.append(rig.api.read(output, SIZE))
    assert found[0] == found[1] != bytes(SIZE)


def test_other_build_flags_and_weights_miss(cached: Cached, model: Model) -> None:
    rig, folder = cached
    other = rig.model_desc(model, build_flags=models.build_flags(output="FP16"))
    for desc in (rig.model_desc(model), other, rig.model_desc(models.weighted_sum(3.0))):
        assert origin(rig, desc) == COMPILED
    assert len(entries(folder)) == 3


def test_disabled_caching_never_loads_and_never_stores(cached: Cached, model: Model) -> None:
    rig, folder = cached
    desc = rig.model_desc(model, flags=GraphFlag.DISABLE_CACHING)
    assert [origin(rig, desc) for _ in range(2)] == [COMPILED] * 2
    assert entries(folder) == []
    origin(rig, rig.model_desc(model))
    assert origin(rig, desc) == COMPILED


@pytest.mark.parametrize("create", ["ze_graph_create", "ze_graph_create2", "ze_graph_create3"])
def test_input_hash_and_the_text_of_the_build_flags_are_the_key(
    cached: Cached, model: Model, create: str
) -> None:
    rig, folder = cached

    def origin_of(desc: GraphDesc) -> int:
        made = getattr(rig.api, create)(rig.context, rig.device, desc)
        graph = made[1].graph if create == "ze_graph_create3" else made.get()
        return rig.api.ze_graph_get_properties3(graph).get().flags & (COMPILED | LOADED)

    assert origin_of(rig.model_desc(model, input_hash=4711)) == COMPILED
    named = dataclasses.replace(model, xml=re.sub(b'<net name="[^"]', b'<net name="0', model.xml))
    assert named.xml != model.xml
    assert origin_of(rig.model_desc(named, input_hash=4711)) == LOADED
    assert len(entries(folder)) == 1
    assert origin_of(rig.model_desc(model, input_hash=4712)) == COMPILED
    default = models.build_flags(config='PERF_COUNT="NO"')
    assert origin_of(rig.model_desc(model, build_flags=default, input_hash=4711)) == COMPILED
    assert len(entries(folder)) == 3


def test_other_weights_with_the_same_input_hash_are_never_taken_for_the_cached_ones(cached: Cached) -> None:
    rig, _ = cached
    for factor in (2.0, 3.0):
        assert origin(rig, rig.model_desc(models.weighted_sum(factor), input_hash=4711)) == COMPILED


def test_damaged_entry_is_compiled_and_stored_again(cached: Cached, model: Model) -> None:
    rig, folder = cached
    origin(rig, rig.model_desc(model))
    good = entries(folder)[0].read_bytes()
    damaged = [good[:size] for size in (0, 10, 80)]
    for where in (0.0, 0.5, 0.999):
        flipped = bytearray(good)
        flipped[int(len(good) * where)] ^= 1
        damaged.append(bytes(flipped))
    for data in damaged:
        rebuild(entries(folder)[0], data)
        assert origin(rig, rig.model_desc(model)) == COMPILED
        assert entries(folder)[0].read_bytes() == good
        assert origin(rig, rig.model_desc(model)) == LOADED


def test_threads_that_compile_the_same_model_all_succeed(cached: Cached, model: Model) -> None:
    rig, folder = cached
    desc, found = rig.model_desc(model), list[int]()
    threads = [threading.Thread(target=lambda: found.append(origin(rig, desc))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    assert len(entries(folder)) == 1


def test_build_log_reports_that_the_blob_was_stored_and_found(cached: Cached, model: Model) -> None:
    rig, _ = cached
    for line in (STORED, FOUND):
        result, outcome = rig.api.ze_graph_create3(rig.context, rig.device, rig.model_desc(model))
        ok(result)
        _, text = rig.api.ze_graph_build_log_get_string2(outcome.log).get()
        assert line in text
        ok(rig.api.ze_graph_build_log_destroy(outcome.log))


def test_older_log_reports_the_last_creation_only(cached: Cached, model: Model) -> None:
    rig, _ = cached
    uncached = rig.model_desc(model, flags=GraphFlag.DISABLE_CACHING)
    rig.api.ze_graph_create2(rig.context, rig.device, rig.model_desc(models.broken()))
    for desc, expected in ((rig.model_desc(model), STORED), (rig.model_desc(model), FOUND), (uncached, "")):
        origin(rig, desc)
        assert rig.api.ze_graph_build_log_get_string(None).get()[1] == expected


@pytest.mark.parametrize("kind", [MemoryQuery.DRIVER_CACHE, MemoryQuery.PROGRAM_CACHE])
def test_memory_query_reports_the_cache(cached: Cached, model: Model, kind: int) -> None:
    rig, folder = cached
    for _ in range(2):
        found = rig.api.ze_graph_query_context_memory(rig.context, kind).get()
        used = sum(path.stat().st_size for path in folder.iterdir()) if folder.exists() else 0
        assert found.allocated == used
        assert found.total == rig.api.zex_disk_cache_get_size(rig.driver).get() == DEFAULT_LIMIT
        origin(rig, rig.model_desc(model))


def test_private_calls_tell_and_set_the_cache(
    cached: Cached, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, folder = cached
    assert rig.api.zex_disk_cache_get_directory(rig.driver).get() == str(folder)
    assert rig.api.zex_disk_cache_get_directory(rig.driver, 5).get() == str(folder)[:4]
    try:
        ok(rig.api.zex_disk_cache_set_size(rig.driver, 256))
        assert rig.api.zex_disk_cache_get_size(rig.driver).get() == 256
        assert [origin(rig, rig.model_desc(model)) for _ in range(2)] == [COMPILED] * 2
        assert entries(folder) == []
    finally:
        monkeypatch.setenv(CACHE_SIZE, str(DEFAULT_LIMIT))  # changed since: it is read again
        assert rig.api.zex_disk_cache_get_size(rig.driver).get() == DEFAULT_LIMIT
        ok(rig.api.zex_disk_cache_set_size(rig.driver, DEFAULT_LIMIT))
    assert [origin(rig, rig.model_desc(model)) for _ in range(2)][-1] == LOADED


def test_time_of_idle_pruning_is_set_for_a_context(rig: Rig) -> None:
    ok(rig.api.zex_context_set_idle_pruning_timeout(rig.context, 100))
    null = rig.api.zex_context_set_idle_pruning_timeout(None, 100)
    assert null == ZeResult.ERROR_INVALID_NULL_HANDLE


@pytest.mark.parametrize("limit", ["256", "plenty"], ids=["small", "unparsable"])
def test_limit_that_leaves_no_room_stores_nothing(
    cached: Cached, model: Model, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    rig, folder = cached
    monkeypatch.setenv(CACHE_SIZE, limit)
    context = rig.new_context()
    assert [origin(rig, rig.model_desc(model), context) for _ in range(2)] == [COMPILED] * 2
    assert entries(folder) == []


@pytest.mark.parametrize(("missing", "left"), [(0, 3), (1, 2)])
def test_limit_evicts_what_was_not_used_for_longest(
    cached: Cached, monkeypatch: pytest.MonkeyPatch, missing: int, left: int
) -> None:
    rig, folder = cached
    descs = [rig.model_desc(models.weighted_sum(factor)) for factor in (2.0, 3.0, 4.0)]
    for desc in descs:
        origin(rig, desc)
    stored = entries(folder)
    total = sum(path.stat().st_size for path in folder.iterdir())
    newest = stored.pop()
    for age, entry in enumerate(reversed(stored), start=1):
        then = time.time() - age * HOUR_S
        os.utime(entry, (then, then))
    newest.unlink()
    monkeypatch.setenv(CACHE_SIZE, str(total - missing))
    origin(rig, descs[-1], rig.new_context())
    assert len(entries(folder)) == left
    assert newest.exists()
    assert stored[0].exists() is (missing == 0)


def test_directory_that_is_empty_or_cannot_be_made_turns_caching_off(
    rig: Rig, model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert os.environ[CACHE_DIR] == ""
    assert [origin(rig, rig.model_desc(model)) for _ in range(2)] == [COMPILED] * 2
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_DIR, str(tmp_path / "file" / "cache"))
    assert origin(rig, rig.model_desc(model), rig.new_context()) == COMPILED

"""`softnpu cache`, from the command line."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import msgspec
import openvino as ov
import pytest
import typer

from softnpu.driver import Driver, GraphSource
from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.driver.graph_creation import compile_source
from softnpu.emulator.common.file_claim import try_lock
from softnpu.emulator.disk_cache import cache_key, entry_files
from softnpu.emulator.disk_cache.cache import ModelCache
from softnpu.emulator.interface.messages import CacheOptions
from softnpu.plugin import Core
from softnpu.tools.cache import parse_age, request_of
from softnpu.tools.shared.console import format_bytes
from tests.plugin.weights_files import SIZE, write_onnx
from tests.support.cache import cache_in
from tests.support.cli import softnpu
from tests.support.daemon import Daemon

PAYLOAD = bytes(1000)


@pytest.fixture
def directory(private_dir: Path) -> Path:
    return private_dir / "cache"


@pytest.fixture
def cache(directory: Path) -> ModelCache:
    return cache_in(directory)


def store(cache: ModelCache, name: str, description: dict[str, str] | None = None) -> str:
    key = cache.key(name.encode(), b"configuration")
    assert cache.store(
        key, PAYLOAD, {"model": name, "platform": "4000"} if description is None else description
    )
    return key


def age(cache: ModelCache, key: str, days: float) -> None:
    """Make an entry look as if it had not been used for that long."""
    path = cache.directory / key
    os.utime(path, (time.time() - days * 86400, path.stat().st_mtime))


def keys(directory: Path) -> list[str]:
    return [entry.key for entry in entry_files.entries(directory)]


# ---------------------------------------------------------------- ls


def test_ls_shows_each_model_with_its_size_in_80_columns(cache: ModelCache, directory: Path) -> None:
    key = store(cache, "net [1]_with_a_name_that_does_not_fit")
    words = softnpu("cache", "ls", "--dir", directory).words
    (line,) = [line for line in words.splitlines() if "net [1]" in line]
    assert line.split()[0] == f"{key[:8]}..{key[64:72]}"
    assert "4000" in line
    total = entry_files.entries(directory)[0].size
    assert format_bytes(total) in line
    assert f"1 compiled model, {format_bytes(total)}, in {directory}" in words
    words = softnpu("cache", "ls", COLUMNS="80", ZE_INTEL_NPU_CACHE_DIR=str(directory)).words
    assert f"{key[:8]}..{key[64:72]}" in words
    assert "…" not in words
    assert "switched off" in softnpu("cache", "ls", ZE_INTEL_NPU_CACHE_DIR="").complaint


def test_ls_as_json_has_every_entry_the_least_recently_used_first(cache: ModelCache, directory: Path) -> None:
    first, second = store(cache, "a"), cache.key(b"b", b"configuration")
    assert cache.store(second, PAYLOAD)
    cache.load(first)
    listed = json.loads(softnpu("cache", "ls", "--dir", directory, "--json").words)["models"]
    assert [(entry["key"], entry["model"]) for entry in listed] == [(second, None), (first, "a")]
    assert listed[0]["size"] == len(PAYLOAD) + 80
    assert listed[1]["description"] == {"model": "a", "platform": "4000"}
    assert listed[1]["last_used"] > listed[1]["created"]


def test_a_missing_directory_is_empty_and_not_created(directory: Path) -> None:
    assert "0 compiled models" in softnpu("cache", "ls", "--dir", directory).words
    assert "0 bad" in softnpu("cache", "verify", "--dir", directory).words
    assert "removed 0" in softnpu("cache", "prune", "--all", "--dir", directory).words
    assert not directory.exists()
    directory.touch()
    assert "Not a directory" in softnpu("cache", "ls", "--dir", directory).complaint


# ---------------------------------------------------------------- verify


def test_verify_finds_the_bad_one_and_removes_it_only_when_asked(cache: ModelCache, directory: Path) -> None:
    good, bad = store(cache, "good"), store(cache, "bad")
    path = directory / bad
    path.chmod(0o600)
    path.write_bytes(b"x" + path.read_bytes()[1:])
    used = (directory / good).stat().st_atime_ns

    done = softnpu("cache", "verify", "--dir", directory)
    assert done.code == 1
    assert f"bad: {path}" in done.out
    assert "2 compiled models checked, 1 bad" in done.out
    assert set(keys(directory)) == {good, bad}

    done = softnpu("cache", "verify", "--dir", directory, "--json")
    said = json.loads(done.out)
    assert (done.code, said["checked"], said["removed"]) == (1, 2, [])
    assert [(entry["path"], bool(entry["reason"])) for entry in said["bad"]] == [(str(path), True)]

    done = softnpu("cache", "verify", "--dir", directory, "--fix")
    assert done.code == 1
    assert "removed 1 compiled model" in done.out
    assert os.listdir(directory) == [good]
    assert (directory / good).stat().st_atime_ns == used, "to look is no use"

    assert "0 bad" in softnpu("cache", "verify", "--dir", directory).words


# ---------------------------------------------------------------- prune


def test_prune_to_a_size_removes_the_least_recently_used(cache: ModelCache, directory: Path) -> None:
    assert softnpu("cache", "prune", "--dir", directory).code == 2, "it needs something to go by"
    first, _, third = (store(cache, name) for name in "abc")
    cache.load(first)
    size = entry_files.entries(directory)[0].size
    words = softnpu("cache", "prune", "--max-size", str(2 * size + 10), "--dir", directory).words
    assert "removed 1 compiled model" in words
    assert keys(directory) == [third, first]


def test_prune_by_age_uses_the_last_use(cache: ModelCache, directory: Path) -> None:
    old, new = store(cache, "old"), store(cache, "new")
    age(cache, old, 31)
    age(cache, new, 29)
    words = softnpu("cache", "prune", "--older-than", "30d", "--dry-run", "--dir", directory).words
    assert f"would remove {directory / old}" in words
    size = entry_files.entries(directory)[0].size
    old_ones = ("cache", "prune", "--older-than", "30d", "--dir", directory, "--json")
    said = [json.loads(softnpu(*old_ones, *more).words) for more in (["--dry-run"], [])]
    chosen = [{"key": old, "path": str(directory / old), "size": size}]
    assert [said[0]["would_remove"], said[1]["removed"], said[1]["kept"]] == [chosen, chosen, []]
    assert keys(directory) == [new]


def test_prune_all_keeps_entries_in_use_and_foreign_files(cache: ModelCache, directory: Path) -> None:
    key = store(cache, "a")
    for leftover in (f".{'a' * 80}.1-1.entry.tmp", f"{key}.json", f"{'b' * 80}.json"):
        (directory / leftover).write_bytes(bytes(10))  # of a dead process, and of the version before
    (directory / "notes.txt").touch()
    fd = entry_files.open_entry(directory / key)
    try:
        assert try_lock(fd, 1)
        words = softnpu("cache", "prune", "--all", "--dir", directory).words
    finally:
        os.close(fd)
    assert "1 could not be removed" in words
    assert sorted(os.listdir(directory)) == sorted([key, "notes.txt"])
    # the same for all of softnpu's caches
    everything = {"ZE_INTEL_NPU_CACHE_DIR": str(directory), "TMPDIR": str(directory.parent)}
    for name in ("MODELS", "EXTENSION"):
        everything[f"SOFTNPU_{name}_DIR"] = str(directory.parent / name)
    notes = [directory.parent / "engine" / name for name in ("checked", "expected")]
    for folder in notes:
        store(cache_in(folder), "a")
    everything["SOFTNPU_ENGINE_CACHE"] = str(directory.parent / "engine")
    words = softnpu("clean", "--all", **everything).words
    assert f"removed 1 compiled model in {directory}" in words
    assert os.listdir(directory) == ["notes.txt"]
    assert not any(os.listdir(folder) for folder in notes)


def test_an_age_has_a_unit() -> None:
    ages = {"30d": 2592000, "12h": 43200, "1.5 m": 90, "2W": 1209600}
    assert {text: parse_age(text) for text in ages} == ages
    for text in ("30", "d", "-1d", "1y"):
        with pytest.raises(typer.BadParameter):
            parse_age(text)


# ---------------------------------------------------------------- explain


def compiled(cache: ModelCache, model: Path, **changes: object) -> str:
    """Store what compiling `model` with `changes` of its configuration would; return the key."""
    digest, configuration = request_of(model, {}, {}, None)
    configuration = msgspec.structs.replace(configuration, **changes)
    key = cache.key(digest, configuration.encoded())
    assert cache.store(key, PAYLOAD, configuration.description())
    return key


def explain(directory: Path, model: Path, *arguments: str) -> str:
    return softnpu("cache", "explain", model, "--dir", directory, *arguments).words


def test_an_entry_compiled_by_a_device_is_listed_and_explained_as_a_hit(
    daemon: Daemon, directory: Path, digits: Path
) -> None:
    options = CacheOptions(directory=str(directory), limit=1 << 30)
    with Driver.open(daemon.socket) as driver, GraphSource.from_ir(digits) as source:
        context = driver.devices[0].create_context()
        for config in ({}, {"PERF_COUNT": "YES"}):
            compile_source(context, source, config=config, cache=options)
    first, second = keys(directory)
    assert first[:64] == second[:64]
    assert softnpu("cache", "ls", "--dir", directory).words.count("digits") == 2
    assert "2 compiled models checked, 0 bad" in softnpu("cache", "verify", "--dir", directory).words
    words = explain(directory, digits)
    assert f"key {first}" in words
    assert "hit: " in words
    assert "hit: " in explain(directory, digits, "--config", "PERF_COUNT=NO"), "a default said aloud"
    assert f"key {second}" in explain(directory, digits, "--config", "PERF_COUNT=YES")


@pytest.mark.parametrize("suffix", [".xml", ".onnx"])
def test_the_key_is_that_of_a_load_with_these_properties(
    daemon: Daemon, directory: Path, private_dir: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Not all of them are for the compiler; some have the plugin read the file, or cut a batch."""
    monkeypatch.setenv(ENV_CACHE_DIR, str(directory))
    model = write_onnx(private_dir, external=False, batch=4)
    ov.save_model(ov.Core().read_model(model), model.with_suffix(".xml"))
    model = model.with_suffix(suffix)
    core = Core(daemon.socket)
    loaded: set[str] = set()
    configs: tuple[dict[str, str], ...] = (
        {},
        {"CACHE_MODE": "OPTIMIZE_SIZE"},
        {"ENABLE_WEIGHTLESS": "YES"},
        {"MODEL_PRIORITY": "HIGH", "NPU_TILES": "-1"},
        {"NPU_BATCH_MODE": "COMPILER"},
    )
    several: tuple[dict[str, tuple[int, ...]], ...] = ({}, {"data": (1, SIZE)})
    for config in configs:
        for shapes in several:
            compiled = core.compile_model(model, "NPU", config, shapes=shapes)
            digest, configuration = request_of(model, config, shapes, compiled.meta.platform)
            loaded.add(cache_key.key(digest, configuration.encoded()))
            assert set(keys(directory)) == loaded, (config, shapes)
    core.unload_plugin()
    words = explain(directory, model, "--config", "CACHE_MODE=OPTIMIZE_SIZE", "--platform", "4000")
    assert "hit: " in words
    done = softnpu("cache", "explain", model, "--config", "NPU_BYPASS_UMD_CACHING=YES")
    assert "not looked up here" in done.complaint


@pytest.mark.parametrize(
    ("changes", "arguments", "line"),
    [
        ({"openvino": "1.0"}, (), "version differs: version.openvino is "),
        ({"compiler": "other"}, (), "version differs: version.compiler is "),
        ({}, ("--platform", "5010"), "platform differs: platform is 5010, of the entry 4000"),
        ({}, ("--shape", "x=1,2"), "config differs: shape.x is 1,2, of the entry not given"),
        (
            {},
            ("--config", "PERF_COUNT=YES"),
            "config differs: config.PERF_COUNT is YES, of the entry NO",
        ),
    ],
)
def test_explain_names_the_part_that_differs(
    cache: ModelCache,
    directory: Path,
    digits: Path,
    changes: dict[str, object],
    arguments: tuple[str, ...],
    line: str,
) -> None:
    compiled(cache, digits, **changes)
    words = explain(directory, digits, *arguments)
    assert "miss" in words
    assert line in words
    assert words.count("differs") == 1


def test_explain_sees_a_changed_model(cache: ModelCache, directory: Path, digits: Path) -> None:
    compiled(cache, digits)
    changed = directory.parent / "digits.xml"
    changed.write_bytes(digits.read_bytes() + b"<!-- -->")
    changed.with_suffix(".bin").write_bytes(digits.with_suffix(".bin").read_bytes())
    words = explain(directory, changed)
    assert "input differs" in words
    assert words.count("differs") == 1


def test_explain_shows_the_nearest_of_several(cache: ModelCache, directory: Path, digits: Path) -> None:
    compiled(cache, digits, platform="3720", openvino="1.0")
    near = compiled(cache, digits, platform="5010")
    store(cache, "another")
    words = explain(directory, digits)
    assert f"nearest: {near[:8]}..{near[64:72]}" in words


def test_explain_reports_what_it_cannot_determine(cache: ModelCache, directory: Path, digits: Path) -> None:
    assert "no entry is near" in explain(directory, digits)
    digest, configuration = request_of(digits, {}, {}, "3720")
    assert cache.store(cache.key(digest, configuration.encoded()), PAYLOAD)
    assert "no note" in explain(directory, digits)
    os.truncate(directory / compiled(cache, digits), 10)
    assert "miss: the entry is bad" in explain(directory, digits)
    assert "FOO" in softnpu("cache", "explain", digits, "--dir", directory, "--config", "FOO=1").misuse

"""`softnpu cache`: list and verify the compiled models on disk, and explain misses."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sized
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from softnpu.tools.shared import completion
from softnpu.tools.shared.console import (
    JsonOption,
    format_bytes,
    format_count,
    format_time,
    make_table,
    out,
    parse_size,
    print_json,
    print_line,
)
from softnpu.tools.shared.failures import ToolError
from softnpu.tools.shared.groups import application
from softnpu.tools.shared.model_options import ConfigOption, ShapeOption

if TYPE_CHECKING:
    from rich.table import Table

    from softnpu.emulator.disk_cache.cache_key import Configuration
    from softnpu.emulator.disk_cache.entry_files import Entry
    from softnpu.emulator.disk_cache.maintenance import EntryDescription, NearestEntry
    from softnpu.emulator.interface.messages import DeviceInfo
    from softnpu.plugin.properties import ModelProperties

app = application("cache", "Compiled models on disk: what is there and why.")

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])", re.IGNORECASE)
DirOption = Annotated[
    Path | None,
    typer.Option("--dir", help="The cache; default: what ZE_INTEL_NPU_CACHE_DIR and the like say."),
]


def parse_age(text: str) -> float:
    """Return seconds for `30d`, `12h`, `90m`, `45s` or `2w`; raise `typer.BadParameter` otherwise."""
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r}; expected an age such as 30d, 12h, 90m, 45s or 2w")
    return float(match[1]) * _UNITS[match[2].lower()]


@app.command("ls")
def list_entries(dir: DirOption = None, json_output: JsonOption = False) -> None:
    """List the compiled models, the least recently used first."""
    from softnpu.emulator.disk_cache import maintenance

    directory = _directory(dir)
    entries = [maintenance.describe(entry) for entry in _entries(directory)]
    if json_output:
        print_json({"models": [_as_json(described) for described in entries]})
        return
    if entries:
        out.print(_table(entries))
    total = sum(described.entry.size for described in entries)
    print_line(f"{_models(entries)}, {format_bytes(total)}, in {directory}")


@app.command()
def verify(
    dir: DirOption = None,
    fix: Annotated[bool, typer.Option("--fix", help="Remove the bad ones.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Check the digest of every compiled model. Exit code 1 if any is bad, also when it was removed."""
    from softnpu.emulator.disk_cache import maintenance

    directory = _directory(dir)
    entries = _entries(directory)
    bad = dict(maintenance.bad_entries(entries))
    if not json_output:
        for entry, reason in bad.items():
            print_line(f"bad: {entry.path}: {reason}")
        print_line(f"{_models(entries)} checked, {len(bad)} bad")
    removed: list[Entry] = []
    kept: list[Entry] = []
    if bad and fix:
        names = {(entry.key, entry.created_ns) for entry in bad}
        removed, kept = maintenance.remove(
            directory, lambda now: [entry for entry in now if (entry.key, entry.created_ns) in names]
        )
        if not json_output:
            _print_removed(removed, kept)
    if json_output:
        reasons = [{**_brief(entry), "reason": reason} for entry, reason in bad.items()]
        print_json({"checked": len(entries), "bad": reasons, **_removed(removed, kept)})
    if bad:
        raise typer.Exit(1)


@app.command()
def prune(
    dir: DirOption = None,
    max_size: Annotated[
        int | None, typer.Option(parser=parse_size, metavar="SIZE", help="Bytes that may stay, like 1GiB.")
    ] = None,
    older_than: Annotated[
        float | None, typer.Option(parser=parse_age, metavar="AGE", help="Unused for so long, like 30d.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Remove compiled models, the least recently used first. Models in use stay."""
    from softnpu.emulator.disk_cache import maintenance

    if max_size is None and older_than is None and not everything:
        raise typer.BadParameter("nothing to go by; expected --max-size, --older-than or --all")
    directory = _directory(dir)
    limit = 0 if everything else max_size
    since_ns = None if older_than is None else time.time_ns() - int(older_than * 1e9)

    def choose(entries: list[Entry]) -> list[Entry]:
        return maintenance.surplus(entries, limit, since_ns)

    if dry_run:
        chosen = choose(_entries(directory))
        if json_output:
            print_json({"would_remove": [_brief(entry) for entry in chosen]})
            return
        for entry in chosen:
            print_line(f"would remove {entry.path}")
        print_line(f"{_models(chosen)}, {format_bytes(sum(entry.size for entry in chosen))}")
        return
    removed, kept = maintenance.remove(directory, choose) if directory.is_dir() else ([], [])
    if json_output:
        print_json(_removed(removed, kept))
    else:
        _print_removed(removed, kept)


@app.command()
def explain(
    model: Annotated[Path, typer.Argument(help="Any file that OpenVINO reads: .xml, .onnx, .tflite, ...")],
    config: ConfigOption = None,
    shape: ShapeOption = None,
    platform: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.platforms,
            help="Platform of the device; default: SOFTNPU_DEVICES, else 4000.",
        ),
    ] = None,
    dir: DirOption = None,
) -> None:
    """Tell whether a model would come out of the cache; if not, which part of the key differs."""
    from softnpu.emulator.disk_cache import cache_key, maintenance
    from softnpu.tools.shared.inputs import parse_config, parse_shapes

    given = parse_config(config)
    directory = _directory(dir)
    digest, wanted = request_of(model, given, parse_shapes(shape or []), platform)
    key = cache_key.key(digest, wanted.encoded())
    described = {entry.key: maintenance.describe(entry) for entry in _entries(directory)}
    print_line(f"{model}: key {key}")
    if key not in described:
        print_line("miss: it would be compiled")
        _print_nearest(maintenance.nearest(key, wanted.description(), described.values()), wanted)
    elif reason := maintenance.defect_of(described[key].entry):
        print_line(f"miss: the entry is bad and would be replaced: {reason}")
    else:
        print_line(f"hit: {_summary(described[key])}")


# ---------------------------------------------------------------- directories and entries


def _directory(chosen: Path | None) -> Path:
    from softnpu.driver.cache_options import ENV_CACHE_DIR, cache_options_from_environment

    if chosen is not None:
        return chosen.absolute()
    options = cache_options_from_environment(os.environ)
    if options is None:
        raise ToolError(
            "model cache",
            found=f"switched off by {ENV_CACHE_DIR}",
            expected="a directory",
            hint="name one with --dir",
        )
    return Path(options.directory)


def _entries(directory: Path) -> list[Entry]:
    """Return the entries of a directory; none if it does not exist yet."""
    from softnpu.emulator.disk_cache import entry_files

    try:
        return entry_files.entries(directory)
    except FileNotFoundError:
        return []


def _as_json(described: EntryDescription) -> dict[str, Any]:
    entry, parts = described.entry, described.parts
    return {
        "key": entry.key,
        "model": parts.get("model"),
        "platform": parts.get("platform"),
        "size": entry.size,
        "created": _iso(entry.created_ns),
        "last_used": _iso(entry.used_ns),
        "description": parts,
    }


def _brief(entry: Entry) -> dict[str, Any]:
    return {"key": entry.key, "path": str(entry.path), "size": entry.size}


def _removed(removed: list[Entry], kept: list[Entry]) -> dict[str, Any]:
    return {"removed": [_brief(entry) for entry in removed], "kept": [_brief(entry) for entry in kept]}


def _iso(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat(timespec="microseconds")


# ---------------------------------------------------------------- the key of a model


def request_of(
    model: Path, config: dict[str, str], shapes: dict[str, tuple[int, ...]], platform: str | None
) -> tuple[bytes, Configuration]:
    """Return the cache key of loading `model` on a device, as plugin and compiler build it."""
    from softnpu.emulator import platforms
    from softnpu.emulator.compiler import job_cache
    from softnpu.emulator.compiler.compile_request import CompileRequest
    from softnpu.emulator.compiler.stages import COMPILE_STAGES, Stages
    from softnpu.emulator.interface import environment
    from softnpu.emulator.links.compiler import CompileJob
    from softnpu.plugin.batch.plan import plan_batch
    from softnpu.plugin.models.model_source import SourceOptions, open_file
    from softnpu.plugin.properties import PROPERTIES

    device = platforms.describe(0, platform or environment.devices(platforms.DEFAULT_PLATFORM)[0], 0)
    of_native_programs = {name: value for name, value in config.items() if name not in PROPERTIES}
    properties = _properties({name: config[name] for name in config.keys() & PROPERTIES.keys()}, device)
    opened = open_file(model, None, SourceOptions.of(properties), properties, shapes)
    with opened.source as source:
        plan = plan_batch(source, opened.read, properties, shapes)
        job = CompileJob(
            name=source.name,
            platform=device.platform,
            xml_length=source.xml_length,
            weights=source.sources,
            config={**of_native_programs, **plan.config},
            shapes={name: tuple(shape) for name, shape in (plan.shapes or {}).items()},
            format=source.format,
        )
        stages = Stages(lambda _stage, _done: None, COMPILE_STAGES)
        stages.begin("cache")
        return job_cache.key_parts(CompileRequest.receive(job, source.fds, f"model '{source.name}'"), stages)


def _properties(config: dict[str, str], device: DeviceInfo) -> ModelProperties:
    from softnpu.plugin.properties import ModelProperties, in_effect, parse

    given = parse(config)
    info, values = in_effect(given, device)
    names = frozenset(given)
    properties = ModelProperties("NPU", 0, info, values, names, names)
    properties.check()
    if properties.for_graph():
        raise ToolError(
            "softnpu cache explain",
            found=f"{' '.join(config)}, with which a model is not looked up here",
            expected="properties that leave this cache to it",
        )
    return properties


# ---------------------------------------------------------------- words


def _models(entries: Sized) -> str:
    return format_count(len(entries), "compiled model")


def _print_removed(removed: list[Entry], kept: list[Entry]) -> None:
    size = format_bytes(sum(entry.size for entry in removed))
    print_line(f"removed {_models(removed)}, {size}")
    if kept:
        print_line(f"{len(kept)} could not be removed: in use, or not yours to remove")


def _print_nearest(near: NearestEntry | None, wanted: Configuration) -> None:
    if near is None:
        print_line("no entry is near: nothing of this name or content was stored, or it was removed since")
        return
    print_line(f"nearest: {_summary(near.described)}")
    if not near.same_input:
        print_line("  input differs: the content of the model or of its weights")
    parts = wanted.description()
    for name in near.different:
        ours, theirs = parts.get(name, "not given"), near.described.parts.get(name, "not given")
        print_line(f"  {_kind(name)} differs: {name} is {ours}, of the entry {theirs}")
    if not near.described.parts:
        print_line("  it has no note: what else differs is not known")


def _kind(part: str) -> str:
    """Return the part of the key that a name belongs to."""
    head = part.partition(".")[0]
    return {"version": "version", "platform": "platform"}.get(head, "config")


def _summary(described: EntryDescription) -> str:
    entry = described.entry
    model = described.parts.get("model", "unknown model")
    age = _since(entry.created_ns)
    return f"{_short(entry.key)} ({model}, {format_bytes(entry.size)}, {age} old)"


def _short(key: str) -> str:
    """Return the first digits of the key's input part and configuration part."""
    return f"{key[:8]}..{key[64:72]}"


def _table(entries: list[EntryDescription]) -> Table:
    table = make_table(None, "name", "model", "platform", right=("size", "unused for"))
    table.columns[1].no_wrap = False  # the only one that shrinks on a terminal of 80 columns
    table.columns[1].overflow = "fold"
    for described in entries:
        entry, parts = described.entry, described.parts
        table.add_row(
            _short(entry.key),
            parts.get("model", "-"),
            parts.get("platform", "-"),
            format_bytes(entry.size),
            _since(entry.used_ns),
        )
    return table


def _since(time_ns: int) -> str:
    return format_time(max(0.0, time.time() - time_ns / 1e9))

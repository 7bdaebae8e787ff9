"""`docs/interface.md` matches the code: it is compared with the description, field by field."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import pytest

from softnpu.emulator.blob import container
from softnpu.emulator.interface import (
    commands,
    endpoint,
    environment,
    frames,
    messages,
    metrics,
    profiling,
    records,
    trace,
    version,
)
from softnpu.emulator.interface.commands import CommandType
from softnpu.emulator.interface.handles import HandleKind
from softnpu.emulator.interface.layout import Field, Layout
from softnpu.emulator.interface.messages import GraphFlag, GraphOrigin, MemoryKind, QueuePriority
from softnpu.emulator.interface.records import DeviceState, EventState, Latency, StatusWord
from softnpu.emulator.interface.result import ZeResult
from softnpu.emulator.interface.trace import TraceFlag, TraceKind
from softnpu.emulator.supervisor.limits import ResourceLimits, option_name
from softnpu.tools.generators.wire_schema import CONSTANTS, MESSAGES, RECORDS

pytestmark = pytest.mark.quick

_TEXT = (Path(__file__).parents[2] / "docs" / "interface.md").read_text()
_NAMES = {int: "int", float: "float", str: "str", bytes: "bytes", bool: "bool", types.NoneType: "nil"}


def _section(title: str) -> str:
    """Return the text under a heading up to the next heading."""
    match = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", _TEXT, re.MULTILINE | re.DOTALL)
    assert match, f"no section {title!r}"
    return match.group(1)


def _tables(text: str, header: str) -> Iterator[list[list[str]]]:
    """Return the rows of every table in `text` whose header line starts with these columns."""
    pattern = rf"^{re.escape(header)}.*\n\| ---.*\n((?:\|.*\n)+)"
    for match in re.finditer(pattern, text, re.MULTILINE):
        yield [
            [cell.strip() for cell in line.strip("|").split(" | ")] for line in match.group(1).splitlines()
        ]


def _rows(text: str, header: str) -> list[list[str]]:
    return [row for table in _tables(text, header) for row in table]


def _items(text: str) -> dict[str, str]:
    """Return name and text of every item of a list in `text`, in one line each."""
    items = re.findall(r"^- `?(\w+)`?(?:: )?(.*(?:\n  .*)*)", text, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", rest) for name, rest in items}


def _numbers(rows: list[list[str]], name: int, number: int) -> dict[str, int]:
    return {row[name].strip("` "): int(row[number], 0) for row in rows}


# ---------------------------------------------------------------- messages


def _notation(kind: Any) -> str:
    """Return a field's type in the notation of section 4."""
    if get_origin(kind) is Annotated:
        return str(kind.__metadata__[0].title)
    if get_origin(kind) is tuple:
        return f"[{_notation(get_args(kind)[0])}]"
    if get_origin(kind) is dict:
        return f"{{{_notation(get_args(kind)[1])}}}"
    if get_origin(kind) is types.UnionType:
        return " or ".join(map(_notation, get_args(kind)))
    if issubclass(kind, messages.Message):
        return str(kind.__struct_config__.tag)
    return _NAMES.get(kind) or str(kind.__name__)


def _default(value: object) -> str:
    match value:
        case None:
            return "nil"
        case bool():
            return str(value).lower()
        case "" | b"":
            return "empty"
        case str():
            return f"`{value}`"
        case tuple():
            return "[]"
        case dict():
            return "{}"
        case _:
            return f"{value:g}"


def _fields(cls: type[msgspec.Struct]) -> str:
    """Return the fields of a message or record as a cell of the document."""
    hints = get_type_hints(cls, include_extras=True)
    cells = []
    for field in msgspec.structs.fields(cls):
        if field.name == "must":
            continue
        cell = f"`{field.name}`{'' if field.required else '?'} {_notation(hints[field.name])}"
        if not field.required:
            factory = field.default_factory
            cell += f" = {_default(field.default if factory is msgspec.NODEFAULT else factory())}"
        cells.append(cell)
    return ", ".join(cells)


def _documented_fields(section: str) -> dict[str, str]:
    """Return the fields in every item of a list, without remarks in brackets and anything after them."""
    return {
        name: re.sub(r" \([^)]*\)", "", re.split(r"\.(?= |$)", text)[0])
        for name, text in _items(_section(section)).items()
    }


def test_messages() -> None:
    documented = _documented_fields("4.1 Requests") | _documented_fields("4.2 Answers")
    assert documented == {str(cls.__struct_config__.tag): _fields(cls) for cls in MESSAGES}


def test_records_inside_messages_and_blobs() -> None:
    documented = _documented_fields("4.3 Records inside messages") | _documented_fields("14. Blob container")
    assert {cls.__name__: documented.get(cls.__name__) for cls in RECORDS} == {
        cls.__name__: _fields(cls) for cls in RECORDS
    }


def test_words_in_the_fields_of_messages() -> None:
    rules = _items(_section("4.1 Requests"))
    assert ", ".join(f"`{priority}`" for priority in QueuePriority) in rules["queue_create"]
    flags = ", ".join(f"{flag.value} {str(flag.name).lower().replace('_', ' ')}" for flag in GraphFlag)
    assert flags in rules["graph_create"]
    assert f"`{GraphOrigin.COMPILED}` (or `{GraphOrigin.CACHE}`, `{GraphOrigin.NATIVE}`)" in _TEXT
    kinds = [row[0] for row in _rows(_section("7. Memory"), "| `kind` |")]
    assert re.findall(r"`(\w+)`", " ".join(kinds)) == list(MemoryKind)


# ---------------------------------------------------------------- fixed records

_LAYOUTS = {
    "2. Transport": [frames.HEADER_LAYOUT],
    "8. Queue ring": [records.RING, records.SLOT_LAYOUT],
    "10.1 Fences": [records.FENCE],
    "10.2 Events": [records.EVENT],
    "11. Command buffers": [commands.HEADER_LAYOUT],
    "11.3 Profile of an inference": [profiling.HEADER_LAYOUT, profiling.RECORD_LAYOUT],
    "12. Status page": [records.STATUS_LAYOUT],
    "12.1 Metrics": [metrics.SNAPSHOT, metrics.STREAM_HEADER],
    "12.2 Traces": [trace.RECORD],
    "14. Blob container": [container.HEADER_LAYOUT, container.ENTRY_LAYOUT],
}


def _reserved(field: Field) -> bool:
    return not field.type


@pytest.mark.parametrize("section", _LAYOUTS)
def test_offsets_and_sizes_of_fixed_records(section: str) -> None:
    documented = [
        [(int(row[0]), int(row[1]), row[2].strip("`")) for row in table]
        for table in _tables(_section(section), "| offset | size | field |")
    ]
    assert documented == [
        [(field.offset, field.size, field.name) for field in layout.fields] for layout in _LAYOUTS[section]
    ]


def test_magic_values() -> None:
    magics = [
        row[3] for row in _rows(_TEXT, "| offset | size | field | value |") if row[2].strip("`") == "magic"
    ]
    real = (frames.MAGIC, commands.MAGIC, profiling.MAGIC, records.STATUS_MAGIC, container.MAGIC)
    assert magics == [f"bytes `{magic.decode()}`" for magic in real]


def _command_fields(layout: Layout) -> str:
    return ", ".join(
        f"{field.size} reserved"
        if _reserved(field)
        else f"`{field.name}` {field.type}" + (f"[{field.count}]" if field.count else "")
        for field in layout.fields[3:]
    )


def test_commands() -> None:
    section = _section("11. Command buffers")
    documented = {row[1]: (int(row[0], 0), *row[2:]) for row in _rows(section, "| type |")}
    below = _items(section)
    expected = {"NOP": (CommandType.NOP.value, "8 or more", "any")}
    for kind, layout in commands.LAYOUTS.items():
        size, fields = str(layout.size), _command_fields(layout)
        if kind in (CommandType.COPY_REGION, CommandType.GRAPH_EXECUTE):
            assert below[kind.name].startswith(f"{fields}.")
            fields = "see below"
        if kind is CommandType.GRAPH_EXECUTE:
            size += " or more"
        expected[kind.name] = (kind.value, size, fields)
    assert documented == expected
    assert (
        "`argument_count` times a ref, and `strides_count` times `argument` u32, `steps` u32[5]."
        in below["GRAPH_EXECUTE"]
    )


# ---------------------------------------------------------------- numbers and names


def test_version() -> None:
    assert _TEXT.startswith(
        f"# The firmware interface, version {version.INTERFACE_MAJOR}.{version.INTERFACE_MINOR}\n"
    )


def test_lock_file() -> None:
    keys = [row[0].strip("`") for row in _rows(_section("1. Finding the daemon"), "| key |")]
    assert keys == list(endpoint.DaemonRecord.__struct_fields__)


def test_environment_variables_and_their_bounds() -> None:
    section = _section("1. Finding the daemon")
    names = {row[0].strip("`") for row in _rows(section, "| environment variable |")}
    assert names == {value for name, value in vars(environment).items() if name.startswith("ENV_")}
    assert {row[0].strip("`"): row[2] for row in _rows(section, "| variable |")} == {
        environment.ENV_SPIN_US: f"0 to {environment.MAX_SPIN_US}",
        environment.ENV_INFERENCE_US: f"0 to {environment.MAX_INFERENCE_US}",
        environment.ENV_IDLE_S: f"0, or {environment.MIN_IDLE_S:g} to {environment.MAX_IDLE_S:.0f}",
    }


def test_result_codes() -> None:
    documented = _numbers(_rows(_section("13. Errors"), "| result |"), 0, 1)
    assert documented == {code.name: code.value for code in ZeResult}


def test_handle_kinds() -> None:
    (line,) = [row[1] for row in _rows(_section("6. Handles"), "| bits |") if row[0] == "56 to 63"]
    assert line == "kind: " + ", ".join(f"{kind.value} {kind.name.lower()}" for kind in HandleKind)


def test_event_states() -> None:
    rows = _rows(_section("10.2 Events"), "| `state` |")
    assert _numbers(rows, 1, 0) == {state.name: state.value for state in EventState}


def test_trace_records() -> None:
    section = _section("12.2 Traces")
    assert _numbers(_rows(section, "| record |"), 0, 1) == {kind.name: kind.value for kind in TraceKind}
    assert f"{trace.NAMES} names of {trace.NAME_SIZE} bytes" in section
    assert [flag.value for flag in TraceFlag] == [1, 2]
    assert f"{trace.MIN_RECORDS}\n  to {trace.MAX_RECORDS}" in _TEXT


def test_section_types() -> None:
    rows = _rows(_section("14. Blob container"), "| type |")
    assert _numbers(rows, 1, 0) == {section.name: section.value for section in container.Section}


def test_status_words_and_device_states() -> None:
    rows = _rows(_section("12. Status page"), "| word |")
    words = {re.split(r"[,: ]", row[1])[0]: int(row[0]) for row in rows}
    assert words == {word.name: word.value for word in StatusWord}
    (states,) = [row[1] for row in rows if row[1].startswith("STATE:")]
    assert states == "STATE: " + ", ".join(f"{state.value} {state.name.lower()}" for state in DeviceState)


def test_histograms_of_the_status_page() -> None:
    section = _section("12. Status page")
    rows = _rows(section, "| histogram |")
    assert _numbers(rows, 1, 0) == {latency.name: latency.value for latency in Latency}
    first, step, size = map(int, re.findall(r"(\d+) \+ (\d+) \* `devices` \+ (\d+)", section)[0])
    assert [records.histogram_offset(3, 2, latency) for latency in Latency] == [
        first + step * 3 + size * (2 * len(Latency) + latency) for latency in Latency
    ]
    assert size == 8 * records.HISTOGRAM_WORDS
    assert records.LATENCY_BOUNDS_NS[:4] == (10_000, 20_000, 50_000, 100_000)
    assert records.LATENCY_BOUNDS_NS[-1] == 50 * 10**9
    assert len(records.LATENCY_BOUNDS_NS) < records.HISTOGRAM_SUM < records.HISTOGRAM_WORDS


def test_metric_groups() -> None:
    rows = _rows(_section("12.1 Metrics"), "| group |")
    assert {name: text.split(", ") for name, text in rows} == {
        group.name + (", on 3720" if group not in metrics.GROUPS else ""): [
            each.name for each in group.metrics
        ]
        for group in (*metrics.GROUPS, *metrics.GROUPS_3720)
    }


def test_limits() -> None:
    section = _section("5. Limits")
    named = " ".join(row[0] for row in _rows(section, "| limit |"))
    assert set(re.findall(r"`(\w+)`", named)) == set(messages.Limits.__struct_fields__)
    constants = set(map(int, re.findall(r"\((?:\d+ to )?(\d+)\)", section)))
    assert constants == {
        CONSTANTS[group][name]
        for group, name in (
            ("queue", "MAX_SLOTS"),
            ("command_buffer", "MAX_SIZE"),
            ("command_buffer", "MAX_ARGUMENTS"),
            ("frame", "MAX_BODY"),
            ("frame", "MAX_FDS"),
            ("weights", "MAX_SOURCES"),
            ("blob", "MAX_SECTIONS"),
        )
    } | {records.RING_TEXT_MAX}


def test_limits_of_sessions_and_users() -> None:
    rows = _rows(_section("5.1 Sessions and users"), "| `softnpu daemon --limit` |")
    documented: dict[str, str] = {}
    for names, values, *_ in rows:
        fields = re.findall(r"`([\w-]+)`", names)
        numbers = values.split(", ") if len(fields) > 1 else [values]
        documented.update(zip(fields, numbers, strict=True))
    defaults = msgspec.to_builtins(ResourceLimits())
    assert set(documented) == {option_name(field) for field in defaults}
    for field, value in defaults.items():
        assert not value or documented[option_name(field)] == str(value), field

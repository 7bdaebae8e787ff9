"""`docs/interface.md` says what the code does: its tables are read and compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from softnpu.emulator.blob import container, weights
from softnpu.emulator.blob.container import (
    ArgumentMeta,
    ConstantReference,
    GraphMeta,
    Section,
    StateMeta,
    WeightsReference,
)
from softnpu.emulator.blob.weights import Placement
from softnpu.emulator.interface import commands, endpoint, frames, messages, records, version
from softnpu.emulator.interface.commands import CommandType
from softnpu.emulator.interface.handles import HandleKind
from softnpu.emulator.interface.injection_messages import InjectionState
from softnpu.emulator.interface.records import DeviceState, EventState, StatusWord
from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.supervisor.limits import ResourceLimits, option_name

_TEXT = (Path(__file__).parents[2] / "docs" / "interface.md").read_text()
_MESSAGES = [*get_args(messages.Request), *get_args(messages.Answer)]
_RECORDS = [
    ErrorInfo,
    messages.WeightSource,
    messages.CacheOptions,
    messages.DeviceInfo,
    messages.Limits,
    messages.EngineStatus,
    messages.SessionStatus,
    InjectionState,
    messages.UserStatus,
    GraphMeta,
    ArgumentMeta,
    StateMeta,
    WeightsReference,
    ConstantReference,
    Placement,
]
_FIELD = re.compile(r"`(\w+)`(\??) [\[{\w]")


def _section(title: str) -> str:
    """The text under a heading up to the next heading."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", _TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title!r}"
    return found.group(1)


def _rows(text: str, header: str) -> list[list[str]]:
    """The cells of every table in `text` whose header line starts with these columns."""
    return list(_each_row(text, header))


def _each_row(text: str, header: str) -> Iterator[list[str]]:
    inside = False
    for line in text.splitlines():
        if line.startswith(header):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("| ---"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def _numbers(rows: list[list[str]], name: int, number: int) -> dict[str, int]:
    return {row[name].strip("` "): int(row[number], 0) for row in rows}


def _documented_fields(cell: str) -> dict[str, bool]:
    """Field name to "may be left out". Remarks in brackets are no fields."""
    return {name: mark == "?" for name, mark in _FIELD.findall(re.sub(r" \([^)]*\)", "", cell))}


def _real_fields(cls: type[msgspec.Struct]) -> dict[str, bool]:
    return {field.name: not field.required for field in msgspec.structs.fields(cls) if field.name != "must"}


def _message_cells() -> dict[str, str]:
    rows = _rows(_section("4.1 Requests"), "| tag |") + _rows(_section("4.2 Answers"), "| tag |")
    return {row[0].strip("` "): row[1] for row in rows}


def test_every_message_is_documented_and_no_other() -> None:
    assert set(_message_cells()) == {cls.__struct_config__.tag for cls in _MESSAGES}


@pytest.mark.parametrize("cls", _MESSAGES, ids=lambda cls: str(cls.__struct_config__.tag))
def test_the_fields_of_a_message_are_documented(cls: type[messages.Message]) -> None:
    assert _documented_fields(_message_cells()[str(cls.__struct_config__.tag)]) == _real_fields(cls)


@pytest.mark.parametrize("cls", _RECORDS, ids=lambda cls: str(cls.__name__))
def test_the_fields_of_a_record_are_documented(cls: type[msgspec.Struct]) -> None:
    (cell,) = [row[1] for row in _rows(_TEXT, "| record |") if row[0].strip("` ") == cls.__name__]
    assert _documented_fields(cell) == _real_fields(cls)


def test_the_lock_file_is_documented() -> None:
    keys = [row[0].strip("` ") for row in _rows(_section("1. Finding the daemon"), "| key |")]
    assert keys == list(endpoint.DaemonRecord.__struct_fields__)


def test_environment_variables_are_documented() -> None:
    named = {
        row[0].strip("` ") for row in _rows(_section("1. Finding the daemon"), "| environment variable |")
    }
    assert named == {value for name, value in vars(version).items() if name.startswith("ENV_")}


def test_the_version_is_documented() -> None:
    expected = f"# The firmware interface, version {version.INTERFACE_MAJOR}.{version.INTERFACE_MINOR}\n"
    assert _TEXT.startswith(expected)


def test_result_codes_are_documented() -> None:
    assert _numbers(_rows(_section("13. Errors"), "| result |"), 0, 1) == {
        code.name: code.value for code in ZeResult
    }


def test_command_types_are_documented() -> None:
    rows = _rows(_section("11. Command buffers"), "| type |")
    assert _numbers(rows, 1, 0) == {kind.name: kind.value for kind in CommandType}
    sizes = {row[1]: row[2] for row in rows}
    fixed = {CommandType(number).name: str(shape.size) for number, shape in commands._FIXED_SHAPES.items()}
    assert sizes == fixed | {"NOP": "8 or more", "GRAPH_EXECUTE": "48 + 16 n + 24 m"}


def test_handle_kinds_are_documented() -> None:
    (line,) = [row[1] for row in _rows(_section("6. Handles"), "| bits |") if row[0] == "56 to 63"]
    assert line == "kind: " + ", ".join(f"{kind.value} {kind.name.lower()}" for kind in HandleKind)


def test_ring_offsets_are_documented() -> None:
    offsets = _numbers(_rows(_section("8. Queue ring"), "| offset | size | field | writer |"), 2, 0)
    assert offsets == {
        "tail": records.RING_TAIL,
        "completed": records.RING_COMPLETED,
        "waiters": records.RING_WAITERS,
        "asleep": records.RING_ASLEEP,
        "result": records.RING_RESULT,
        "text size": records.RING_TEXT_SIZE,
        "failed": records.RING_FAILED,
        "lost": records.RING_LOST,
        "text": records.RING_TEXT,
    }


@pytest.mark.parametrize(("section", "prefix"), [("10.1 Fences", "FENCE_"), ("10.2 Events", "EVENT_")])
def test_offsets_of_fences_and_events_are_documented(section: str, prefix: str) -> None:
    rows = [row for row in _rows(_section(section), "| offset |") if row[2] != "reserved"]
    expected = {
        name.removeprefix(prefix).lower(): value
        for name, value in vars(records).items()
        if name.startswith(prefix)
    }
    assert _numbers(rows, 2, 0) == expected


def test_event_states_are_documented() -> None:
    rows = _rows(_section("10.2 Events"), "| `state` |")
    assert _numbers(rows, 1, 0) == {state.name: state.value for state in EventState}


@pytest.mark.parametrize(
    ("section", "header", "size"),
    [
        ("8. Queue ring", "| offset | size | field | meaning |", records.SLOT_SIZE),
        ("10.1 Fences", "| offset |", records.SIGNAL_SIZE),
        ("10.2 Events", "| offset |", records.SIGNAL_SIZE),
        ("11. Command buffers", "| offset |", commands.HEADER.size),
        ("12. Status page", "| offset |", records.STATUS_HEADER.size),
    ],
)
def test_the_fields_of_a_record_fill_it_without_gaps(section: str, header: str, size: int) -> None:
    at = 0
    for offset, length in [row[:2] for row in _rows(_section(section), header)]:
        assert int(offset) == at
        at += int(length)
    assert at == size


def test_the_fields_of_the_blob_fill_header_and_table_without_gaps() -> None:
    rows = _rows(_section("14. Blob container"), "| offset |")
    starts = [index for index, row in enumerate(rows) if row[0] == "0"]
    assert len(starts) == 2
    for table in (rows[: starts[1]], rows[starts[1] :]):
        ends = [int(row[0]) + int(row[1]) for row in table]
        assert [int(row[0]) for row in table] == [0, *ends[:-1]]
        assert ends[-1] == 64


def test_section_types_are_documented() -> None:
    rows = _rows(_section("14. Blob container"), "| type |")
    assert _numbers(rows, 1, 0) == {section.name: section.value for section in Section}


def test_status_words_and_device_states_are_documented() -> None:
    rows = _rows(_section("12. Status page"), "| word |")
    words = {re.split(r"[,: ]", row[1])[0]: int(row[0]) for row in rows}
    assert words == {word.name: word.value for word in StatusWord}
    (states,) = [row[1] for row in rows if row[1].startswith("STATE:")]
    assert states == "STATE: " + ", ".join(f"{state.value} {state.name.lower()}" for state in DeviceState)


def test_magic_values_are_documented() -> None:
    magics = [row[3] for row in _rows(_TEXT, "| offset | size | field | value |") if row[2] == "magic"]
    real = (frames.MAGIC, commands.MAGIC, records.STATUS_MAGIC, container.MAGIC)
    assert magics == [f"bytes `{magic.decode()}`" for magic in real]


def test_limits_are_documented() -> None:
    section = _section("5. Limits")
    named = " ".join(row[0] for row in _rows(section, "| limit |"))
    assert set(re.findall(r"`(\w+)`", named)) == set(messages.Limits.__struct_fields__)
    constants = set(map(int, re.findall(r"\((?:\d+ to )?(\d+)\)", section)))
    assert constants == {
        records.MAX_SLOTS,
        commands.MAX_BUFFER,
        frames.MAX_BODY,
        frames.MAX_FDS,
        weights.MAX_SOURCES,
        commands.MAX_ARGUMENTS,
        records.RING_TEXT_MAX,
        container._MAX_SECTIONS,
    }


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

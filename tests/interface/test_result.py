"""`ErrorInfo` keeps its bytes, and names object, found, expected, next step."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

from softnpu.emulator.interface.result import ErrorInfo, ZeResult, refuse

pytestmark = pytest.mark.quick
ROOT = Path(__file__).parents[2]

_FULL = ErrorInfo(
    result=0x78000004, object="queue", found="3 slots", expected="a power of two", hint="ask for 4"
)
_MINIMAL = ErrorInfo(result=int(ZeResult.ERROR_DEVICE_LOST), object="device", found="gone")
_BYTES = {
    _FULL: "85a6726573756c74ce78000004a66f626a656374a57175657565a5666f756e64a73320736c6f7473"
    "a86578706563746564ae6120706f776572206f662074776fa468696e74a961736b20666f722034",
    _MINIMAL: "83a6726573756c74ce70000001a66f626a656374a6646576696365a5666f756e64a4676f6e65",
}


@pytest.mark.parametrize("info", _BYTES, ids=["full", "minimal"])
def test_an_error_keeps_its_bytes(info: ErrorInfo) -> None:
    assert msgspec.msgpack.encode(info).hex() == _BYTES[info]
    assert msgspec.msgpack.decode(bytes.fromhex(_BYTES[info]), type=ErrorInfo) == info


def test_an_error_reads_as_object_found_expected_next_step() -> None:
    assert str(_FULL) == "queue: 3 slots; expected a power of two. Ask for 4"
    assert _FULL.name == "ZE_RESULT_ERROR_INVALID_ARGUMENT"


def test_an_error_names_its_property() -> None:
    info = refuse(ZeResult.ERROR_INVALID_ARGUMENT, "model 'm'", found="'x'", property="NPU_TILES").info
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(info), type=ErrorInfo).property == "NPU_TILES"
    assert info.shortened() == info


def test_no_next_step_begins_with_a_command_that_a_capital_would_change() -> None:
    keywords = [
        (place, node.value)
        for folder in ("emulator", "driver", "plugin", "tools")
        for place in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(place.read_text()))
        if isinstance(node, ast.keyword) and node.arg == "hint"
    ]
    first = [
        (place.name, str(part.value).split(" ")[0])
        for place, value in keywords
        for part in (value.values[:1] if isinstance(value, ast.JoinedStr) else [value])
        if isinstance(part, ast.Constant)
    ]
    assert len(first) > 100
    assert [
        each for each in first if each[1] in ("softnpu", "pip", "python", "chmod", "ulimit", "sudo")
    ] == []


def test_an_unknown_code_still_decodes_and_shows_its_number() -> None:
    body = msgspec.msgpack.encode({"result": 0x7800ABCD, "object": "device", "found": "something new"})
    assert msgspec.msgpack.decode(body, type=ErrorInfo).name == "ze_result_t 0x7800abcd"


def test_a_refusal_carries_and_prints_its_error() -> None:
    error = refuse(ZeResult.ERROR_INVALID_SIZE, "ring", found="0 slots", expected="2 at least")
    assert error.info == ErrorInfo(result=0x78000008, object="ring", found="0 slots", expected="2 at least")
    assert str(error) == "ZE_RESULT_ERROR_INVALID_SIZE: ring: 0 slots; expected 2 at least"

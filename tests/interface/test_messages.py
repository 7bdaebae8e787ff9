"""Control messages: frozen bytes, forward compatibility, and a decoder that survives any bytes.

`vectors.json` has two bodies of every message: one with all fields, one with required fields only. They
never change; a new message gets two more (`messages.encode(...).hex()`).
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from softnpu.emulator.interface import messages
from softnpu.emulator.interface.messages import Message
from softnpu.emulator.interface.result import Refused, ZeResult

pytestmark = pytest.mark.quick

_VECTORS: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "vectors.json").read_text())[
    "messages"
]
_TYPES: dict[str, type[Message]] = {
    str(cls.__struct_config__.tag): cls for cls in (*get_args(messages.Request), *get_args(messages.Answer))
}
_REQUEST_TAGS = [str(cls.__struct_config__.tag) for cls in get_args(messages.Request)]


def _decode(tag: str, body: bytes) -> Message:
    decode = messages.decode_request if tag in _REQUEST_TAGS else messages.decode_answer
    return decode(body)


def _frozen(tag: str, form: str = "minimal") -> bytes:
    return bytes.fromhex(_VECTORS[tag][form])


def _with(tag: str, **fields: object) -> bytes:
    """Return the minimal message of `tag` with more or other fields, as a newer peer would send it."""
    plain: dict[str, Any] = msgspec.msgpack.decode(_frozen(tag))
    return msgspec.msgpack.encode(plain | fields)


def _refusal(body: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        messages.decode_request(body)
    return caught.value


def test_every_message_has_vectors() -> None:
    assert set(_VECTORS) == set(_TYPES)


@pytest.mark.parametrize("tag", _TYPES)
def test_a_message_keeps_its_bytes_field_by_field(tag: str) -> None:
    """Decoded messages have the values of the bytes, by name, and encode to the same bytes again."""
    fields = msgspec.structs.fields(_TYPES[tag])
    expected = {
        "full": {field.name for field in fields},
        "minimal": {field.name for field in fields if field.required},
    }
    for form, names in expected.items():
        plain: dict[str, Any] = msgspec.msgpack.decode(_frozen(tag, form))
        assert plain.pop("t") == tag
        assert plain.keys() == names
        message = _decode(tag, _frozen(tag, form))
        assert type(message) is _TYPES[tag]
        for name, value in plain.items():
            assert msgspec.msgpack.decode(msgspec.msgpack.encode(getattr(message, name))) == value, name
        assert messages.encode(message) == _frozen(tag, form)


@pytest.mark.parametrize("tag", _TYPES)
def test_a_missing_required_field_is_refused_by_its_name(tag: str) -> None:
    plain: dict[str, Any] = msgspec.msgpack.decode(_frozen(tag))
    for name in plain.keys() - {"t"}:
        body = msgspec.msgpack.encode({key: value for key, value in plain.items() if key != name})
        with pytest.raises(Refused, match=f"`{name}`"):
            _decode(tag, body)


def test_an_unknown_optional_field_is_skipped() -> None:
    for tag in _TYPES:
        assert _decode(tag, _with(tag, colour={"deep": [1, 2, None]})) == _decode(tag, _frozen(tag))


def test_an_unknown_required_field_is_refused_by_its_name() -> None:
    for tag in _TYPES:
        with pytest.raises(Refused) as caught:
            _decode(tag, _with(tag, colour="red", must=("colour",)))
        assert caught.value.info.result == ZeResult.ERROR_UNSUPPORTED_FEATURE
        assert caught.value.info.found == "required field 'colour'"


def test_fields_may_come_in_any_order() -> None:
    body = msgspec.msgpack.encode({"minor": 0, "client": "test", "major": 1, "t": "hello"})
    assert messages.decode_request(body) == messages.Hello(major=1, minor=0, client="test")


def test_an_answer_is_not_a_request_and_a_request_is_not_an_answer() -> None:
    assert _refusal(messages.encode(messages.Ok())).info.result == ZeResult.ERROR_INVALID_ARGUMENT
    with pytest.raises(Refused, match="stop"):
        messages.decode_answer(messages.encode(messages.Stop()))


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"major": 1, "minor": 0, "client": "test"}, "t"),
        ({"t": "hallo"}, "hallo"),
        ({"t": "hello", "major": 1, "minor": 0}, "client"),
        ({"t": "hello", "major": "1", "minor": 0, "client": ""}, "$.major"),
        ({"t": "mem_free", "memory": [1, 2.5]}, "$.memory[1]"),
        ({"t": "graph_import", "context": 1, "blob_length": 1, "weights": [{"offset": 1}]}, "$.weights[0]"),
        ([1, 2], "array"),
        (None, "None"),
    ],
)
def test_a_bad_message_is_refused_by_the_name_of_the_field(body: object, names: str) -> None:
    error = _refusal(msgspec.msgpack.encode(body))
    assert error.info.result == ZeResult.ERROR_INVALID_ARGUMENT
    assert names in error.info.found


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x82\xa1t\xa8mem_free\xa6memory\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x82\xa1t\xa4stop\xa1x" + b"\x91" * 60_000,
        b"\x84\xa1t\xa5hello\xa5major\x01\xa5minor\x00\xa6client\xa2\xff\xfe",
        b"\x81\xa1t\xa4stop!",
    ],
    ids=["nothing", "reserved byte", "huge array", "huge map", "deep nesting", "bad utf-8", "trailing byte"],
)
def test_hostile_encodings_are_refused(body: bytes) -> None:
    _refusal(body)


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_field_names = sorted({name for cls in _TYPES.values() for name in cls.__struct_fields__})
_fields = st.dictionaries(st.sampled_from(_field_names), _values, max_size=6)
_changes = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(_REQUEST_TAGS), _fields, _changes, st.binary(max_size=200))
def test_any_bytes_are_refused_or_decoded_and_nothing_else(
    tag: str, fields: dict[str, object], changes: list[tuple[int, int]], noise: bytes
) -> None:
    mutated = bytearray(_frozen(tag, "full"))
    for at, value in changes:
        mutated[at % len(mutated)] = value
    for body in (noise, bytes(mutated), _with(tag, **fields)):
        with contextlib.suppress(Refused):
            messages.decode_request(body)

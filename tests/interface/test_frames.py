"""The control frame: 16 bytes of header around one body."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softnpu.emulator.interface import frames
from softnpu.emulator.interface.result import Refused, ZeResult

_FRAME = bytes.fromhex("534e5055 0100 0200 04030201 03000000 616263")


def _refusal(frame: bytes, fd_count: int) -> Refused:
    with pytest.raises(Refused) as caught:
        frames.decode(frame, fd_count)
    return caught.value


def test_a_frame_keeps_its_bytes() -> None:
    assert frames.encode(0x01020304, b"abc", 2) == _FRAME


def test_a_frame_decodes_to_request_and_body() -> None:
    request, body = frames.decode(_FRAME, 2)
    assert (request, bytes(body)) == (0x01020304, b"abc")


def test_limits_keep_their_values() -> None:
    assert (frames.HEADER.size, frames.MAX_BODY, frames.MAX_FRAME, frames.MAX_FDS) == (16, 65536, 65552, 16)


@pytest.mark.parametrize("length", range(16))
def test_a_frame_shorter_than_its_header_is_refused(length: int) -> None:
    assert _refusal(_FRAME[:length], 2).info.result == ZeResult.ERROR_INVALID_SIZE


@pytest.mark.parametrize("body", [b"ab", b"abcd", b""])
def test_a_body_of_another_size_than_announced_is_refused(body: bytes) -> None:
    assert _refusal(_FRAME[:16] + body, 2).info.result == ZeResult.ERROR_INVALID_SIZE


def test_another_magic_is_refused() -> None:
    error = _refusal(b"GNPU" + _FRAME[4:], 2)
    assert error.info.result == ZeResult.ERROR_INVALID_ARGUMENT
    assert "magic b'GNPU'" in error.info.found


@pytest.mark.parametrize("version", [0, 2, 0xFFFF])
def test_another_frame_format_is_refused_with_both_numbers(version: int) -> None:
    error = _refusal(_FRAME[:4] + version.to_bytes(2, "little") + _FRAME[6:], 2)
    assert error.info.result == ZeResult.ERROR_UNSUPPORTED_VERSION
    assert (error.info.found, error.info.expected) == (f"frame format {version}", "1")


@pytest.mark.parametrize("arrived", [0, 1, 3])
def test_another_number_of_descriptors_than_announced_is_refused(arrived: int) -> None:
    error = _refusal(_FRAME, arrived)
    assert error.info.result == ZeResult.ERROR_INVALID_ARGUMENT
    assert error.info.found == f"{arrived} descriptors received, header says 2"


def test_the_largest_body_passes_both_ways() -> None:
    body = bytes(frames.MAX_BODY)
    assert bytes(frames.decode(frames.encode(1, body), 0)[1]) == body


def test_a_larger_body_is_refused_both_ways() -> None:
    with pytest.raises(Refused, match="65537 bytes"):
        frames.encode(1, bytes(frames.MAX_BODY + 1))
    size = frames.MAX_BODY + 1
    _refusal(frames.HEADER.pack(b"SNPU", 1, 0, 1, size) + bytes(size), 0)


def test_sixteen_descriptors_can_be_announced_and_seventeen_not() -> None:
    assert frames.encode(1, b"", 16)[6:8] == b"\x10\x00"
    with pytest.raises(Refused, match="17 descriptors"):
        frames.encode(1, b"", 17)


@given(st.binary(max_size=64), st.integers(0, 20))
def test_arbitrary_bytes_are_refused_and_nothing_else(data: bytes, fd_count: int) -> None:
    with contextlib.suppress(Refused):
        frames.decode(data, fd_count)


@given(st.integers(0, len(_FRAME) - 1), st.integers(1, 255))
def test_a_changed_header_byte_is_refused_unless_it_is_the_request_id(at: int, flip: int) -> None:
    changed = bytearray(_FRAME)
    changed[at] ^= flip
    if 8 <= at < 12 or at >= 16:
        frames.decode(bytes(changed), 2)
    else:
        _refusal(bytes(changed), 2)

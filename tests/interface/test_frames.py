"""The control frame: 16 bytes of header around one body."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softnpu.emulator.interface import frames
from softnpu.emulator.interface.result import Refused, ZeResult

pytestmark = pytest.mark.quick

_FRAME = bytes.fromhex("534e5055 0100 0200 04030201 03000000 616263")


def test_a_frame_keeps_its_bytes() -> None:
    assert frames.encode(0x01020304, b"abc", 2) == _FRAME
    request, body = frames.decode(_FRAME, 2)
    assert (request, bytes(body)) == (0x01020304, b"abc")


@pytest.mark.parametrize(
    ("frame", "fds", "result", "found"),
    [
        (_FRAME[:15], 2, ZeResult.ERROR_INVALID_SIZE, "15 bytes"),
        (b"", 2, ZeResult.ERROR_INVALID_SIZE, "0 bytes"),
        (_FRAME[:-1], 2, ZeResult.ERROR_INVALID_SIZE, "body of 2 bytes, header says 3"),
        (_FRAME + b"d", 2, ZeResult.ERROR_INVALID_SIZE, "body of 4 bytes, header says 3"),
        (b"GNPU" + _FRAME[4:], 2, ZeResult.ERROR_INVALID_ARGUMENT, "magic b'GNPU'"),
        (_FRAME[:4] + b"\2\0" + _FRAME[6:], 2, ZeResult.ERROR_UNSUPPORTED_VERSION, "frame format 2"),
        (_FRAME, 1, ZeResult.ERROR_INVALID_ARGUMENT, "1 descriptors received, header says 2"),
        (_FRAME, 3, ZeResult.ERROR_INVALID_ARGUMENT, "3 descriptors received, header says 2"),
    ],
)
def test_a_malformed_frame_is_refused_naming_the_error(
    frame: bytes, fds: int, result: ZeResult, found: str
) -> None:
    with pytest.raises(Refused) as caught:
        frames.decode(frame, fds)
    assert (caught.value.info.result, caught.value.info.found) == (result, found)


def test_the_largest_body_passes_both_ways_and_a_larger_one_neither() -> None:
    body = bytes(frames.MAX_BODY)
    assert bytes(frames.decode(frames.encode(1, body), 0)[1]) == body
    with pytest.raises(Refused, match="65537 bytes"):
        frames.encode(1, body + b"\0")
    with pytest.raises(Refused, match="65537 bytes"):
        frames.decode(frames.HEADER.pack(b"SNPU", 1, 0, 1, len(body) + 1) + body + b"\0", 0)


def test_sixteen_descriptors_can_be_announced_and_seventeen_not() -> None:
    assert frames.encode(1, b"", 16)[6:8] == b"\x10\x00"
    with pytest.raises(Refused, match="17 descriptors"):
        frames.encode(1, b"", 17)


@given(st.binary(max_size=64), st.integers(0, 20), st.integers(0, len(_FRAME) - 1), st.integers(1, 255))
def test_any_bytes_are_refused_unless_only_request_id_or_body_differ(
    noise: bytes, fds: int, at: int, flip: int
) -> None:
    with contextlib.suppress(Refused):
        frames.decode(noise, fds)
    changed = bytearray(_FRAME)
    changed[at] ^= flip
    with contextlib.nullcontext() if 8 <= at < 12 or at >= 16 else pytest.raises(Refused):
        frames.decode(bytes(changed), 2)

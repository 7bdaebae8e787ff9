"""The control frame: 16 bytes of header, then one msgpack message of at most `MAX_BODY` bytes.

Frames travel over a SOCK_SEQPACKET socket, one frame per packet: the kernel keeps packet boundaries, so a
half-sent frame cannot exist and descriptors stay with their frame. Bodies that may grow (models, metadata,
blobs) travel in a memory file descriptor, never in the body.
"""

from __future__ import annotations

from softnpu.emulator.interface.layout import Layout
from softnpu.emulator.interface.result import ZeResult, refuse

MAGIC = b"SNPU"
FRAME_FORMAT = 1
HEADER_LAYOUT = Layout(
    """
    magic    char[4]
    format   u16
    fds      u16  # file descriptors that travel with the frame
    request  u32  # chosen by the client, repeated in every answer; 0 answers no request
    size     u32  # bytes of the body
    """
)
HEADER = HEADER_LAYOUT.struct
MAX_BODY = 64 * 1024
MAX_FRAME = HEADER.size + MAX_BODY
MAX_FDS = 16


def encode(request: int, body: bytes, fd_count: int = 0) -> bytes:
    """Encode one frame; refuse an oversized body or too many descriptors."""
    if len(body) > MAX_BODY:
        raise refuse(
            ZeResult.ERROR_INVALID_SIZE,
            "control frame",
            found=f"body of {len(body)} bytes",
            expected=f"at most {MAX_BODY}",
            hint="send large data in a memory file descriptor",
        )
    if fd_count > MAX_FDS:
        raise refuse(
            ZeResult.ERROR_INVALID_SIZE,
            "control frame",
            found=f"{fd_count} descriptors",
            expected=f"at most {MAX_FDS}",
        )
    return HEADER.pack(MAGIC, FRAME_FORMAT, fd_count, request, len(body)) + body


def decode(frame: bytes, fd_count: int) -> tuple[int, memoryview]:
    """Check one received frame against its header; return request id and body."""
    if len(frame) < HEADER.size:
        raise refuse(
            ZeResult.ERROR_INVALID_SIZE,
            "control frame",
            found=f"{len(frame)} bytes",
            expected=f"a header of {HEADER.size} bytes at least",
        )
    magic, version, announced, request, size = HEADER.unpack_from(frame)
    if magic != MAGIC:
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            "control frame",
            found=f"magic {bytes(magic)!r}",
            expected=f"{MAGIC!r}",
            hint="the peer does not speak the softnpu firmware interface",
        )
    if version != FRAME_FORMAT:
        raise refuse(
            ZeResult.ERROR_UNSUPPORTED_VERSION,
            "control frame",
            found=f"frame format {version}",
            expected=f"{FRAME_FORMAT}",
        )
    if size > MAX_BODY or size != len(frame) - HEADER.size:
        raise refuse(
            ZeResult.ERROR_INVALID_SIZE,
            "control frame",
            found=f"body of {len(frame) - HEADER.size} bytes, header says {size}",
            expected=f"equal sizes of at most {MAX_BODY} bytes",
        )
    if announced != fd_count:
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            "control frame",
            found=f"{fd_count} descriptors received, header says {announced}",
            expected="equal counts",
        )
    return request, memoryview(frame)[HEADER.size :]

"""Kernels on their way to the compiler: an element at the end of a model's IR, taken off before reading."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Final

import msgspec

from softnpu.emulator.interface.result import ZeResult, refuse

_BEGIN, _END, _NET = b"<softnpu_kernels>", b"</softnpu_kernels>", b"</net>"
MOST: Final = 16
"""Modules of a model."""


def attach(xml: bytes, modules: Sequence[bytes]) -> bytes:
    """Return an IR with these modules."""
    at = xml.rfind(_NET)
    if at < 0:
        return xml  # the compiler says what is wrong with it
    carried = base64.b64encode(msgspec.msgpack.encode(list(modules)))
    return xml[:at] + _BEGIN + carried + _END + xml[at:]


def take(xml: bytes, subject: str) -> tuple[bytes, list[bytes]]:
    """Return an IR without its modules, and these. Refuses damaged ones."""
    begin = xml.rfind(_BEGIN)
    if begin < 0:
        return xml, []
    end = xml.find(_END, begin)
    modules: list[bytes] = []
    try:
        content = base64.b64decode(xml[begin + len(_BEGIN) : end], validate=True)
        modules = msgspec.msgpack.decode(content, type=list[bytes])
    except (binascii.Error, msgspec.DecodeError):
        end = -1
    if end < 0 or not 0 < len(modules) <= MOST:
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            f"{subject}, kernels",
            found="a damaged element <softnpu_kernels>",
            expected=f"1 to {MOST} modules, as softnpu's plugin attaches them",
        )
    return xml[:begin] + xml[end + len(_END) :], modules

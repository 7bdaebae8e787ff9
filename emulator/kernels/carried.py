"""Kernels on their way to the compiler: an element of a model's IR, taken off before reading."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from softnpu.emulator.interface.result import ZeResult, refuse

KEY: Final = "softnpu_kernels"
"""In `rt_info` of a model, with `text` of modules as value: OpenVINO writes such an element into the IR."""
_ELEMENT: Final = re.compile(rb'<softnpu_kernels value="([^"]*)" ?/>')
_BEGIN, _NET = b"<softnpu_kernels", b"</net>"
MOST: Final = 16
"""Modules of a model."""


def text(modules: Sequence[bytes]) -> str:
    """Return modules as a text for an IR."""
    return base64.b64encode(msgspec.msgpack.encode(list(modules))).decode()


def attach(xml: bytes, modules: Sequence[bytes]) -> bytes:
    """Return an IR with these modules."""
    at = xml.rfind(_NET)
    if at < 0:
        return xml  # the compiler says what is wrong with it
    return xml[:at] + f'<{KEY} value="{text(modules)}" />'.encode() + xml[at:]


def take(xml: bytes, subject: str) -> tuple[bytes, list[bytes]]:
    """Return an IR without its modules, and these, each once. Refuses damaged ones."""
    if _BEGIN not in xml:
        return xml, []
    modules: dict[bytes, None] = {}
    try:
        for each in _ELEMENT.findall(xml):
            content = base64.b64decode(each, validate=True)
            modules |= dict.fromkeys(msgspec.msgpack.decode(content, type=list[bytes]))
    except (binascii.Error, msgspec.DecodeError):
        modules = {}
    rest = _ELEMENT.sub(b"", xml)
    if _BEGIN in rest or not 0 < len(modules) <= MOST:
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            f"{subject}, kernels",
            found=f"a damaged element <{KEY}>",
            expected=f"1 to {MOST} modules, as softnpu's plugin attaches them",
        )
    return rest, list(modules)

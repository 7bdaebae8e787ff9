"""Texts that are not UTF-8: OpenVINO takes any bytes, Python and the firmware interface do not.

A byte that is no UTF-8 becomes the four characters of its escape, such as `\\xe4`.
"""

from __future__ import annotations

from typing import Any

_ESCAPED = "backslashreplace"


def text(data: bytes) -> str:
    """Return the text in `data`."""
    return data.decode(errors=_ESCAPED)


def sendable(name: str) -> str:
    """Return a name that may come from the file system, whose other bytes Python keeps as surrogates."""
    return text(name.encode(errors="surrogateescape"))


def listed(name: str, limit: int) -> str:
    """Return a name as a list shows it: printable, in one line, in at most `limit` bytes."""
    shown = "".join(each if each.isprintable() else "?" for each in name[:limit])
    return shown.encode(errors=_ESCAPED)[:limit].decode(errors="ignore")


def in_utf8(xml: bytes) -> bytes:
    """Return an IR whose texts are all UTF-8; the same object if they are already."""
    try:
        xml.decode()
    except UnicodeDecodeError:
        return text(xml).encode()
    return xml


def friendly_name(named: Any) -> str:
    """Return the friendly name of a model or a node of OpenVINO."""
    try:
        name: str = named.get_friendly_name()
    except UnicodeDecodeError as error:
        return text(error.object)
    return name


def tensor_names(port: Any) -> set[str]:
    """Return the tensor names of a port of OpenVINO; of those that are not UTF-8 the first one alone."""
    try:
        names: set[str] = port.get_names()
    except UnicodeDecodeError as error:
        return {text(error.object)}
    return names

"""OpenVINO's exceptions, and the one useful line of their text.

OpenVINO raises C++ exceptions, which arrive in Python as a few built-in types; their text wraps the message
in several lines of source locations.
"""

from __future__ import annotations

import re

# std::exception and ov::Exception; invalid_argument and text that is not UTF-8; out_of_range; overflow_error
OPENVINO_ERRORS = (RuntimeError, ValueError, IndexError, OverflowError)

_LIMIT = 400
_SOURCE_LOCATION = re.compile(
    r"^(Exception from |Check '.*' failed at |While validating node |Not Implemented:?$|$)"
)
_INNER_LOCATION = re.compile(r"(Caught exception: )?Exception from \S+:\d+: ?")
_NODE = re.compile(r"While validating node '(?:\w+::)?(\w+) .* with friendly_name '(.*)':")


def reason(error: BaseException) -> str:
    """Return the operation that the error names, if any, and the message; at most 400 characters."""
    text = str(error)
    words = " ".join(line.strip() for line in text.splitlines() if not _SOURCE_LOCATION.match(line.strip()))
    words = _INNER_LOCATION.sub("", words)
    node = _NODE.search(text)
    if node:
        words = f"operation '{node[2]}' ({node[1]}): {words}"
    return shortened(words or text.strip() or type(error).__name__, _LIMIT).rstrip(". ")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the host ran out of memory; OpenVINO wraps `std::bad_alloc`, its CPU device uses own texts."""
    text = str(error)
    return isinstance(error, MemoryError) or "bad_alloc" in text or "Failed to allocate" in text


def shortened(text: str, limit: int) -> str:
    """Return `text`, printable everywhere and truncated to `limit` characters."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= limit else text[: limit - 3] + "..."

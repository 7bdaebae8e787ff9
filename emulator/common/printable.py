"""Untrusted names made safe for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """One line that no terminal obeys: control characters in a name become escapes such as `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )

"""The base of all control messages."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t"):
    """Base of all messages. `must` names fields that the receiver has to understand."""

    must: tuple[str, ...] = ()

"""The base of all control messages."""

from __future__ import annotations

import msgspec

TAG_FIELD = "t"
"""The key of a message's tag."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field=TAG_FIELD):
    """Base of all messages. `must` names fields that the receiver has to understand."""

    must: tuple[str, ...] = ()

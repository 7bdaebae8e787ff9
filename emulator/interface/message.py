"""The base of all control messages."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from softnpu.emulator.interface.result import ZeResult, refuse

TAG_FIELD = "t"
"""The key of a message's tag."""
MUST_FIELD = "must"
"""The key of the names of fields that the receiver must understand."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field=TAG_FIELD):
    """Base of all messages. `must` names fields that the receiver must understand."""

    must: tuple[str, ...] = ()

    @property
    def tag(self) -> str:
        """The message's name on the wire."""
        return str(self.__struct_config__.tag)


M = TypeVar("M", bound=Message)


def decode(decoder: msgspec.msgpack.Decoder[M], body: bytes | memoryview, object: str, expected: str) -> M:
    """Decode the message in `body`; refuse invalid ones by the path of the bad field."""
    try:
        message = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refuse(ZeResult.ERROR_INVALID_ARGUMENT, object, found=str(error), expected=expected) from error
    unknown = [field for field in message.must if field not in type(message).__struct_fields__]
    if unknown:
        raise refuse(
            ZeResult.ERROR_UNSUPPORTED_FEATURE,
            f"{object} {type(message).__name__}",
            found=f"required field {unknown[0]!r}",
            expected="only fields that this interface version knows",
            hint="update the older side",
        )
    return message

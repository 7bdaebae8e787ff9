"""Level Zero result codes, and the error record that carries one across the interface.

Numbers are those of `ze_result_t` (Level Zero specification, `ze_api.h`).
"""

from __future__ import annotations

import builtins
import enum

import msgspec

_MAX_TEXT = 1000  # characters; four texts of four bytes per character are a quarter of a frame


class ZeResult(enum.IntEnum):
    """`ze_result_t`, by its real names without the `ZE_RESULT_` prefix, and its real numbers."""

    SUCCESS = 0
    NOT_READY = 1
    ERROR_DEVICE_LOST = 0x70000001
    ERROR_OUT_OF_HOST_MEMORY = 0x70000002
    ERROR_OUT_OF_DEVICE_MEMORY = 0x70000003
    ERROR_MODULE_BUILD_FAILURE = 0x70000004
    ERROR_MODULE_LINK_FAILURE = 0x70000005
    ERROR_INSUFFICIENT_PERMISSIONS = 0x70010000
    ERROR_NOT_AVAILABLE = 0x70010001
    ERROR_DEPENDENCY_UNAVAILABLE = 0x70020000
    ERROR_UNINITIALIZED = 0x78000001
    ERROR_UNSUPPORTED_VERSION = 0x78000002
    ERROR_UNSUPPORTED_FEATURE = 0x78000003
    ERROR_INVALID_ARGUMENT = 0x78000004
    ERROR_INVALID_NULL_HANDLE = 0x78000005
    ERROR_HANDLE_OBJECT_IN_USE = 0x78000006
    ERROR_INVALID_NULL_POINTER = 0x78000007
    ERROR_INVALID_SIZE = 0x78000008
    ERROR_UNSUPPORTED_SIZE = 0x78000009
    ERROR_UNSUPPORTED_ALIGNMENT = 0x7800000A
    ERROR_INVALID_SYNCHRONIZATION_OBJECT = 0x7800000B
    ERROR_INVALID_ENUMERATION = 0x7800000C
    ERROR_UNSUPPORTED_ENUMERATION = 0x7800000D
    ERROR_INVALID_NATIVE_BINARY = 0x7800000F
    ERROR_UNKNOWN = 0x7FFFFFFE


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reason for a refusal or failure: result code, object, what was found, expected, next step.

    `result` is an integer on the wire so that a newer daemon's codes still decode. `property` names the
    property whose value is refused; empty when the error is not about a property.
    """

    result: int
    object: str
    found: str
    expected: str = ""
    hint: str = ""
    property: str = ""

    @builtins.property
    def name(self) -> str:
        """Return the real name of the code, for example `ZE_RESULT_ERROR_DEVICE_LOST`."""
        try:
            return f"ZE_RESULT_{ZeResult(self.result).name}"
        except ValueError:
            return f"ze_result_t {self.result:#x}"

    def shortened(self) -> ErrorInfo:
        """Return the record with texts truncated to fit a control frame, whatever the client sent."""
        texts = {name: _shortened(getattr(self, name)) for name in self.__struct_fields__ if name != "result"}
        return msgspec.structs.replace(self, **texts)

    def __str__(self) -> str:
        text = f"{self.object}: {self.found}"
        if self.expected:
            text += f"; expected {self.expected}"
        if self.hint:
            text += f". {self.hint[:1].upper()}{self.hint[1:]}"
        return text


class Refused(Exception):
    """Raised on either side of the interface when a request cannot be honoured; carries the record."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(f"{info.name}: {info}")
        self.info = info


def refuse(
    result: ZeResult, object: str, *, found: str, expected: str = "", hint: str = "", property: str = ""
) -> Refused:
    """Build the exception of one refusal; the caller raises it."""
    return Refused(
        ErrorInfo(
            result=int(result), object=object, found=found, expected=expected, hint=hint, property=property
        )
    )


def _shortened(text: str) -> str:
    text = text.encode("utf-8", "replace").decode("utf-8")  # names in a file may hold invalid characters
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."

"""The properties of a remote tensor: MEM_TYPE, MEM_HANDLE, TENSOR_TYPE, FILE_DESCRIPTOR.

Names and values are those of `openvino/runtime/intel_npu/remote_properties.hpp`. MEM_NAME and MEM_OFFSET are
softnpu's own, for memory with a POSIX name.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from softnpu.driver import Context
from softnpu.plugin.errors import PropertyError

E = TypeVar("E", bound=StrEnum)


class MemType(StrEnum):
    """The kind of memory of a remote tensor."""

    L0_INTERNAL_BUF = "L0_INTERNAL_BUF"
    """Allocated by the plugin."""
    SHARED_BUF = "SHARED_BUF"
    """Memory of another process; MEM_HANDLE is its descriptor, or MEM_NAME its POSIX name."""
    MMAPED_FILE = "MMAPED_FILE"
    """Filled from the file given by FILE_DESCRIPTOR."""
    CPU_VA = "CPU_VA"
    """Memory of this process at the address MEM_HANDLE."""


class TensorType(StrEnum):
    """The use of a remote tensor."""

    INPUT = "INPUT"
    OUTPUT = "OUTPUT"
    BINDED = "BINDED"
    """Both."""


class FileDescriptor(msgspec.Struct, frozen=True):
    """A file, and the byte at which a tensor begins in it."""

    path: Path
    offset_in_bytes: int = 0


class RemoteProperties(msgspec.Struct, frozen=True, kw_only=True):
    """Checked properties, of a context (for all its tensors) or of one tensor; None if missing."""

    mem_type: MemType | None = None
    mem_handle: int | None = None
    mem_name: str | None = None
    mem_offset: int | None = None
    tensor_type: TensorType | None = None
    file: FileDescriptor | None = None
    l0_context: Context | None = None

    def over(self, defaults: RemoteProperties) -> RemoteProperties:
        """Return these properties, completed by `defaults`."""
        present = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(defaults, **present)


def parse_remote(subject: str, properties: Mapping[str, Any] | None) -> RemoteProperties:
    """Parse properties. Raises `PropertyError` for unknown names and invalid values."""
    if properties is None:
        return RemoteProperties()
    if not isinstance(properties, Mapping):
        raise PropertyError(
            f"{subject}: properties are a {type(properties).__name__}; expected a mapping of names to values"
        )
    values: dict[str, Any] = {}
    for name, value in properties.items():
        entry = _READERS.get(name)
        if entry is None:
            raise PropertyError(f"{subject}, property {name}: unknown; expected {_near(name)}")
        field, read = entry
        values[field] = read(f"{subject}, property {name}", value)
    return RemoteProperties(**values)


def complete(subject: str, properties: RemoteProperties) -> RemoteProperties:
    """Fill in MEM_TYPE and TENSOR_TYPE. Raises `PropertyError` for a missing or an unused property."""
    sources = {"MEM_HANDLE": properties.mem_handle, "FILE_DESCRIPTOR": properties.file}
    mem_type = properties.mem_type
    if mem_type is None:
        given = {**sources, "TENSOR_TYPE": properties.tensor_type, "MEM_OFFSET": properties.mem_offset}
        for name, value in given.items():
            if value is not None:
                raise PropertyError(
                    f"{subject}, property {name}: given without MEM_TYPE; expected one of "
                    f"{', '.join(MemType)} too"
                )
        mem_type = MemType.L0_INTERNAL_BUF
    _check_name(subject, mem_type, properties)
    needed, description = _REQUIRED.get(mem_type, ("", ""))
    if properties.mem_name is not None:
        needed = ""
    for name, value in sources.items():
        if name == needed and value is None:
            raise PropertyError(f"{subject}, MEM_TYPE {mem_type}: no {name}; expected {description}")
        if name != needed and value is not None:
            raise PropertyError(
                f"{subject}, property {name}: given with MEM_TYPE {mem_type}, which has no use for it; "
                f"expected {needed or 'none'}"
            )
    default = TensorType.INPUT if mem_type is MemType.MMAPED_FILE else TensorType.BINDED
    return msgspec.structs.replace(
        properties, mem_type=mem_type, tensor_type=properties.tensor_type or default
    )


def _check_name(subject: str, mem_type: MemType, properties: RemoteProperties) -> None:
    """Reject MEM_NAME and MEM_OFFSET where they have no meaning."""
    takes = {
        "MEM_NAME": (properties.mem_name, (MemType.SHARED_BUF, MemType.L0_INTERNAL_BUF)),
        "MEM_OFFSET": (properties.mem_offset, (MemType.SHARED_BUF,)),
    }
    for name, (value, types) in takes.items():
        if value is not None and mem_type not in types:
            raise PropertyError(
                f"{subject}, property {name}: given with MEM_TYPE {mem_type}, which has no use for it; "
                f"expected MEM_TYPE {' or '.join(types)}"
            )


def _near(name: object) -> str:
    import difflib  # late: for errors only

    close = difflib.get_close_matches(str(name).upper(), _READERS, 1)
    return close[0] if close else "one of " + ", ".join(_READERS)


def _of(kind: type[E]) -> Callable[[str, Any], E]:
    def read(subject: str, value: Any) -> E:
        try:
            return kind(value)
        except ValueError:
            raise PropertyError(f"{subject}: value {value!r}; expected one of {', '.join(kind)}") from None

    return read


def _number(expected: str) -> Callable[[str, Any], int]:
    def read(subject: str, value: Any) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            number = -1
        if number < 0 or isinstance(value, bool):
            raise PropertyError(f"{subject}: value {value!r}; expected {expected}")
        return number

    return read


def _name(subject: str, value: Any) -> str:
    if not isinstance(value, str) or not value.startswith("/") or "/" in value[1:] or len(value) < 2:
        raise PropertyError(f"{subject}: value {value!r}; expected a POSIX name, such as '/camera'")
    return value


def _file(subject: str, value: Any) -> FileDescriptor:
    if isinstance(value, FileDescriptor):
        return value
    path, offset = value if isinstance(value, tuple) and len(value) == 2 else (value, 0)
    if not isinstance(path, (str, os.PathLike)) or not isinstance(offset, int) or offset < 0:
        raise PropertyError(f"{subject}: value {value!r}; expected a path, or a path and an offset in bytes")
    return FileDescriptor(Path(os.fsdecode(path)), offset)


def _context(subject: str, value: Any) -> Context:
    if not isinstance(value, Context):
        raise PropertyError(
            f"{subject}: a {type(value).__name__}; expected the softnpu.driver.Context of the plugin, "
            "as get_params() of a remote context has it"
        )
    return value


_REQUIRED = {
    MemType.SHARED_BUF: ("MEM_HANDLE", "a descriptor from export() of a remote tensor, or a MEM_NAME"),
    MemType.CPU_VA: ("MEM_HANDLE", "an address in device memory of this process"),
    MemType.MMAPED_FILE: ("FILE_DESCRIPTOR", "a path, or a path and an offset in bytes"),
}
_READERS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "MEM_TYPE": ("mem_type", _of(MemType)),
    "MEM_HANDLE": ("mem_handle", _number("a descriptor (SHARED_BUF) or an address (CPU_VA)")),
    "MEM_NAME": ("mem_name", _name),
    "MEM_OFFSET": ("mem_offset", _number("bytes from the begin of the memory")),
    "TENSOR_TYPE": ("tensor_type", _of(TensorType)),
    "FILE_DESCRIPTOR": ("file", _file),
    "L0_CONTEXT": ("l0_context", _context),
}

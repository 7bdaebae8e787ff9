"""What a kernel's module says about itself: a JSON text in its custom section `softnpu_kernel`.

It is read without running or compiling anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from softnpu.emulator.kernels.errors import Failure, KernelError, failed

SECTION: Final = "softnpu_kernel"
ABI: Final = 1
MOST_BYTES: Final = 4 << 20
"""The largest module; larger ones would take long to compile."""
MOST_TENSORS: Final = 16
_MOST_TEXT: Final = 16 << 10
_MAGIC: Final = b"\0asm\x01\0\0\0"
_FUNCTION: Final = b"softnpu function 1\n"
_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
_DOMAIN: Final = r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}"

ELEMENT_SIZES: Final = {
    "boolean": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u8": 1, "u16": 2, "u32": 4, "u64": 8,
    "f16": 2, "bf16": 2, "f32": 4, "f64": 8,
}  # fmt: skip
"""Element types and their sizes in bytes, in the order of `softnpu_kernel.h`, which counts from 1."""
KINDS: Final = ("integer", "number", "text", "integers", "numbers")

OUT: Final = "out"
"""A parameter of a function with this name gets the outputs, to be written in place."""
Function = Callable[..., Any]
Value = int | float | str | list[int | float]
"""The value of an attribute."""


class Implementation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function for these types of inputs and outputs."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    run: str


class Attribute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An attribute; without a default it has to be given."""

    name: str
    kind: str
    default: Value | None = None


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operation that a kernel computes. `dynamic`: outputs that a run may shrink."""

    abi: int
    domain: str
    name: str
    version: int = 1
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dynamic: tuple[str, ...] = ()
    implementations: tuple[Implementation, ...]
    attributes: tuple[Attribute, ...] = ()

    @property
    def full_name(self) -> str:
        """Return the name with its domain."""
        return f"{self.domain}.{self.name}"

    def implementation_for(self, types: tuple[str, ...]) -> int:
        """Return the number of the implementation for these types of inputs; refuse others."""
        for number, each in enumerate(self.implementations):
            if each.inputs == types:
                return number
        known = " or ".join(", ".join(each.inputs) for each in self.implementations)
        raise failed(Failure.SHAPE, self.full_name, f"inputs of types {', '.join(types)}", known)

    def complete(self, given: dict[str, Value]) -> list[Value]:
        """Return the values of all attributes, in their order. Refuse unknown, missing and wrong ones."""
        unknown = sorted(set(given) - {each.name for each in self.attributes})
        if unknown:
            known = ", ".join(each.name for each in self.attributes) or "none"
            raise failed(Failure.SHAPE, self.full_name, f"attribute {unknown[0]}", f"one of: {known}")
        return [self._value(each, given.get(each.name, each.default)) for each in self.attributes]

    def _value(self, attribute: Attribute, value: Value | None) -> Value:
        if value is None:
            found = f"no attribute {attribute.name}"
            raise failed(Failure.SHAPE, self.full_name, found, f"one, {_article(attribute.kind)}")
        if not has_kind(value, attribute.kind):
            found = f"attribute {attribute.name} = {value!r}"
            raise failed(Failure.SHAPE, self.full_name, found, _article(attribute.kind))
        if attribute.kind.startswith("number"):  # it may be written as an integer
            return [float(each) for each in value] if isinstance(value, list) else float(value)
        return value


class FunctionDescription(Description, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operation that a Python function computes, see `patterns`.

    `shapes`: for each implementation the dimensions of all inputs and outputs. `helper`: the secret name of
    the processes of the program that has it.
    """

    shapes: tuple[tuple[tuple[str, ...], ...], ...]
    helper: str = ""

    def encode(self) -> bytes:
        """Return it in the place of a module, for `read`."""
        return _FUNCTION + msgspec.json.encode(self)


def has_kind(value: object, kind: str) -> bool:
    """Whether a value is of a kind; an integer is a number."""
    if isinstance(value, list | tuple):
        return kind in ("integers", "numbers") and all(has_kind(each, kind[:-1]) for each in value)
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return kind in ("integer", "number") and -(1 << 63) <= value < 1 << 63
    return kind == {float: "number", str: "text"}.get(type(value))


def _article(kind: str) -> str:
    return {"integer": "an integer"}.get(kind, f"{'' if kind.endswith('s') else 'a '}{kind}")


def is_function(module: bytes) -> bool:
    """Whether it is no module, but the description of a function."""
    return module.startswith(_FUNCTION)


def function_in(modules: Iterable[bytes]) -> str:
    """Return the full name of the first function among modules; empty if there is none."""
    return next((read(each).full_name for each in modules if is_function(each)), "")


def read(module: bytes) -> Description:
    """Return the description of a module; refuse what is no module, or has none, or a wrong one."""
    if is_function(module):
        return _decoded(module[len(_FUNCTION) :], FunctionDescription)
    if len(module) > MOST_BYTES:
        raise _refused(f"a module of {len(module)} bytes", f"at most {MOST_BYTES}")
    if module[:8] != _MAGIC:
        expected = "a WebAssembly module: the bytes 00 61 73 6d 01 00 00 00"
        raise _refused(f"a file that begins with {module[:8].hex(' ') or 'nothing'}", expected)
    found = [text for name, text in _custom_sections(module) if name == SECTION]
    if len(found) != 1:
        hint = "softnpu_kernel.h has the macro SOFTNPU_KERNEL for it"
        raise _refused(f"{len(found)} custom sections '{SECTION}'", "one", hint)
    return _decoded(found[0], Description)


def _decoded(text: bytes, kind: type[Description]) -> Description:
    if len(text) > _MOST_TEXT:
        raise _refused(f"a description of {len(text)} bytes", f"at most {_MOST_TEXT}")
    try:
        description = msgspec.json.decode(text.strip(b"\0 \n"), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _refused(f"a description that is wrong: {error}", "JSON as docs/kernels.md has it") from None
    _check(description)
    return description


def _refused(found: str, expected: str = "", hint: str = "", name: str = "") -> KernelError:
    return failed(Failure.MODULE, name, found, expected, hint)


# ---------------------------------------------------------------- sections


def _custom_sections(module: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of custom sections. Refuse sections that end beyond the module."""
    at = len(_MAGIC)
    while at < len(module):
        number = module[at]
        size, begin = _number(module, at + 1)
        at = begin + size
        if at > len(module):
            raise _refused(f"a section of {size} bytes at {begin}", "a whole module")
        if number == 0:
            length, start = _number(module, begin)
            if start + length > at:
                raise _refused(f"a section's name of {length} bytes at {start}", "a whole module")
            yield module[start : start + length].decode(errors="replace"), module[start + length : at]


def _number(module: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned LEB128 of 32 bits, and where it ends."""
    value = 0
    for position in range(5):
        if at + position >= len(module):
            break
        byte = module[at + position]
        value |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return value, at + position + 1
    raise _refused(f"a number that does not end at {at}", "a whole module")


# ---------------------------------------------------------------- content


def _check(described: Description) -> None:
    """Refuse a description that contradicts itself."""
    for found, expected in _faults(described):
        raise _refused(found, expected, name=described.name if re.fullmatch(_NAME, described.name) else "")


def _faults(described: Description) -> Iterator[tuple[str, str]]:
    if described.abi != ABI:
        yield f"abi {described.abi}", f"{ABI}"
    if not re.fullmatch(_DOMAIN, described.domain):
        yield f"domain {described.domain[:80]!r}", "letters, digits, dots, '-' and '_', at most 64"
    attributes = [each.name for each in described.attributes]
    tensors = (*described.inputs, *described.outputs)
    for name in (described.name, *tensors, *attributes):
        if not re.fullmatch(_NAME, name):
            yield f"name {name[:80]!r}", "letters, digits and '_', at most 64, beginning with a letter"
    for names in (described.inputs, described.outputs, attributes):
        if len(set(names)) < len(names):
            yield f"names {', '.join(names)}", "different ones"
    if not 1 <= described.version < 1 << 31:
        yield f"version {described.version}", "a number from 1 on"
    if not described.inputs or not described.outputs or len(tensors) > MOST_TENSORS:
        yield (
            f"{len(described.inputs)} inputs and {len(described.outputs)} outputs",
            f"at least one each, and {MOST_TENSORS} together",
        )
    for name in described.dynamic:
        if name not in described.outputs:
            yield f"dynamic {name}", f"one of the outputs: {', '.join(described.outputs)}"
    for attribute in described.attributes:
        if attribute.kind not in KINDS:
            yield f"attribute {attribute.name}: kind {attribute.kind!r}", ", ".join(KINDS)
        elif attribute.default is not None and not has_kind(attribute.default, attribute.kind):
            yield f"attribute {attribute.name}: default {attribute.default!r}", _article(attribute.kind)
    yield from _faults_of_implementations(described)
    if isinstance(described, FunctionDescription):
        counts = [len(each) for each in described.shapes]
        if described.dynamic or counts != [len(tensors)] * len(described.implementations):
            yield f"shapes of {counts} tensors", f"{len(tensors)} for each implementation, none dynamic"


def _faults_of_implementations(described: Description) -> Iterator[tuple[str, str]]:
    if not described.implementations:
        yield "no implementations", "at least one"
    seen = set()
    for each in described.implementations:
        if len(each.inputs) != len(described.inputs) or len(each.outputs) != len(described.outputs):
            yield f"implementation {each.run}: other numbers of types", "one for each input and output"
        for name in (*each.inputs, *each.outputs):
            if name not in ELEMENT_SIZES:
                yield f"implementation {each.run}: type {name!r}", ", ".join(ELEMENT_SIZES)
        if each.inputs in seen:
            yield f"two implementations for {', '.join(each.inputs)}", "one"
        seen.add(each.inputs)

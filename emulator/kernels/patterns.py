"""Shapes of kernels that are functions: `f32[n, c], i64[k] -> f32[n, 2 * c]`.

A dimension is a number, a name, `...` for any dimensions, or a sum, difference, product or quotient (//) of
names and numbers. A name is the same everywhere; one of an integer attribute has its value.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from typing import Final

from softnpu.emulator.kernels.description import FunctionDescription, Value
from softnpu.emulator.kernels.errors import Failure, failed

Pattern = tuple[str, ...]
"""The dimensions of a tensor, as they are written."""
REST: Final = "..."
_TENSOR: Final = re.compile(r"\s*([a-z]\w*)\s*\[([^\[\]]*)\]\s*")
_MOST_TEXT: Final = 64
_OPERATORS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}  # fmt: skip


def parse(text: str) -> tuple[list[tuple[str, Pattern]], list[tuple[str, Pattern]]]:
    """Return types and patterns of inputs and outputs. Raises `ValueError` with what is wrong."""
    sides = text.split("->")
    if len(sides) != 2:
        raise ValueError(f"{text!r}; expected INPUTS -> OUTPUTS, such as 'f32[n, c] -> f32[n]'")
    inputs, outputs = map(_side, sides)
    if any(REST in pattern for _, pattern in outputs) and not any(REST in pattern for _, pattern in inputs):
        raise ValueError(f"{text!r}: '...' of an output; expected it at an input too")
    return inputs, outputs


def unknown_names(inputs: Sequence[Pattern], outputs: Sequence[Pattern], known: Sequence[str]) -> list[str]:
    """Return the names that no input and no attribute, `known`, gives a value."""
    given = {each for pattern in inputs for each in pattern if each.isidentifier()} | {*known}
    used = [each for pattern in (*inputs, *outputs) for each in pattern if each != REST]
    return sorted({name for each in used for name in _names(each)} - given)


def _side(text: str) -> list[tuple[str, Pattern]]:
    found = []
    rest = text
    while match := _TENSOR.match(rest):
        pattern = tuple(each.strip() for each in match[2].split(",")) if match[2].strip() else ()
        if pattern.count(REST) > 1:
            raise ValueError(f"{match[0].strip()!r}: two '...'; expected one")
        for each in pattern:
            if each != REST:
                _names(each)
        found.append((match[1], pattern))
        rest = rest[match.end() :]
        if not rest.startswith(","):
            break
        rest = rest[1:]
    if rest or not found:
        raise ValueError(f"{text.strip()!r}; expected tensors such as 'f32[n, 4], i64[...]'")
    return found


def output_shapes(
    described: FunctionDescription, number: int, inputs: Sequence[Sequence[int]], values: Sequence[Value]
) -> list[tuple[int, ...]]:
    """Return the shapes of the outputs of implementation `number`. Raises `KernelError` if none fit."""
    patterns = described.shapes[number]
    matched = _Matched(described, values)
    for name, pattern, shape in zip(described.inputs, patterns, inputs, strict=False):
        matched.match(name, pattern, tuple(shape))
    matched.check()
    return [matched.shape(pattern) for pattern in patterns[len(described.inputs) :]]


class _Matched:
    """What the names of a signature stand for."""

    def __init__(self, described: FunctionDescription, values: Sequence[Value]) -> None:
        self._described = described
        attributes = zip(described.attributes, values, strict=True)
        self._sizes = {each.name: value for each, value in attributes if isinstance(value, int)}
        self._rest: tuple[int, ...] | None = None
        self._later: list[tuple[str, Pattern, tuple[int, ...], str, int]] = []

    def match(self, name: str, pattern: Pattern, shape: tuple[int, ...]) -> None:
        """Take what the names stand for from the shape of an input."""
        before = pattern.index(REST) if REST in pattern else len(pattern)
        behind = len(pattern) - before - 1 if REST in pattern else 0
        rest = shape[before : len(shape) - behind]
        fits = len(shape) >= before + behind and (REST in pattern or not rest)
        if REST in pattern and fits:
            self._rest = rest if self._rest is None else self._rest
            fits = self._rest == rest
        if not fits:
            raise self._wrong(name, pattern, shape)
        ends = zip(
            (*pattern[:before], *pattern[len(pattern) - behind :]),
            (*shape[:before], *shape[len(shape) - behind :]),
            strict=True,
        )
        for text, extent in ends:
            if text.isidentifier():
                if self._sizes.setdefault(text, extent) != extent:
                    raise self._wrong(name, pattern, shape)
            else:
                self._later.append((name, pattern, shape, text, extent))

    def check(self) -> None:
        """Check the dimensions of inputs that are no names."""
        for name, pattern, shape, text, extent in self._later:
            if self._value(text) != extent:
                raise self._wrong(name, pattern, shape)

    def shape(self, pattern: Pattern) -> tuple[int, ...]:
        """Return the shape of an output."""
        shape: list[int] = []
        for each in pattern:
            shape += (self._rest or ()) if each == REST else [self._value(each)]
        if any(extent < 0 for extent in shape):
            found = f"an output of shape {shape}, by [{', '.join(pattern)}]"
            raise failed(Failure.SHAPE, self._described.full_name, found, "no negative dimension")
        return tuple(shape)

    def _value(self, text: str) -> int:
        try:
            return _computed(ast.parse(text, mode="eval").body, self._sizes)
        except (KeyError, ZeroDivisionError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
            reason = f"dimension {text!r}: {type(error).__name__}: {error}"
            raise failed(Failure.SHAPE, self._described.full_name, reason, "one that is known") from None

    def _wrong(self, name: str, pattern: Pattern, shape: tuple[int, ...]) -> Exception:
        known = ", ".join(f"{each} = {size}" for each, size in self._sizes.items())
        if self._rest is not None:
            known = ", ".join(filter(None, (known, f"... = {', '.join(map(str, self._rest)) or 'none'}")))
        expected = f"[{', '.join(pattern)}]{f' with {known}' if known else ''}"
        return failed(Failure.SHAPE, self._described.full_name, f"input {name} {list(shape)}", expected)


def _names(text: str) -> set[str]:
    """Return the names in a dimension. Raises `ValueError` for what is none."""
    try:
        if len(text) > _MOST_TEXT:
            raise ValueError
        tree = ast.parse(text, mode="eval").body
        _computed(tree, _Anything())
    except ZeroDivisionError:
        pass
    except (KeyError, ValueError, SyntaxError, RecursionError, MemoryError):
        expected = "a number, a name, '...', or these with + - * //"
        raise ValueError(f"dimension {text[:_MOST_TEXT]!r}; expected {expected}") from None
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


class _Anything(dict[str, int]):
    def __missing__(self, key: str) -> int:
        return 1


def _computed(node: ast.expr, sizes: dict[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            return sizes[name]
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _OPERATORS:
            return _OPERATORS[type(kind)](_computed(left, sizes), _computed(right, sizes))
    raise ValueError(ast.unparse(node))

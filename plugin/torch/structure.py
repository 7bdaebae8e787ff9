"""The structure of a module's arguments and results: containers, with a number for each tensor.

A structure is plain data. It is saved with the compiled model, so that a process without torch and without
the program's classes accepts the same arguments and returns the same containers.
"""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from softnpu.plugin.errors import InputError

Constant = None | bool | int | float | str
Key = str | int
T = TypeVar("T")


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="is"):
    """Base of the kinds of node."""


class Tensor(Struct, frozen=True, kw_only=True, tag="tensor"):
    """Tensor number `index`. `scalar`: the module returns a Python number that depends on its inputs."""

    index: int
    scalar: bool = False


class Value(Struct, frozen=True, kw_only=True, tag="value"):
    """A value that is part of the trace."""

    value: Constant = None


class Omitted(Struct, frozen=True, kw_only=True, tag="omitted"):
    """A missing argument whose default is an object that cannot be saved."""


class Sequenced(Struct, frozen=True, kw_only=True, tag="sequence"):
    """A list (`mutable`) or a tuple."""

    items: tuple[Node, ...]
    mutable: bool = False


class Mapped(Struct, frozen=True, kw_only=True, tag="mapping"):
    """A dict, in its order."""

    keys: tuple[Key, ...]
    items: tuple[Node, ...]


class Record(Struct, frozen=True, kw_only=True, tag="record"):
    """A named tuple (`sequence`) or a dataclass, by the name of its class."""

    name: str
    fields: tuple[str, ...]
    items: tuple[Node, ...]
    sequence: bool = False


Node = Tensor | Value | Omitted | Sequenced | Mapped | Record

OMITTED = type("OMITTED", (), {"__repr__": lambda _: "OMITTED"})()
"""Stands for a missing argument."""


class Unsupported(TypeError):
    """A value at `path` of a type, `type_name`, that no node describes."""

    def __init__(self, path: str, value: Any) -> None:
        super().__init__(path)
        self.path = path
        self.type_name = type(value).__name__


@dataclasses.dataclass
class Description:
    """Further results of `describe`: the tensors with their paths, and the classes of records."""

    tensors: list[Any] = dataclasses.field(default_factory=list)
    paths: list[str] = dataclasses.field(default_factory=list)
    classes: dict[str, type] = dataclasses.field(default_factory=dict)


def describe(
    value: Any, path: str, description: Description, tensor: Callable[[Any], Tensor | None], first: int = 0
) -> Node:
    """Return the structure of `value`; its tensors are added to `description`, in order.

    `tensor` returns a node for a tensor, whose index is replaced, and None for other values. Raises
    `Unsupported`.
    """
    leaf = tensor(value)
    if leaf is not None:
        description.tensors.append(value)
        description.paths.append(path)
        return Tensor(index=first + len(description.tensors) - 1, scalar=leaf.scalar)
    if value is OMITTED:
        return Omitted()
    if value is None or type(value) in (bool, int, float, str):
        return Value(value=value)

    def inner(items: Iterable[tuple[Key, Any]]) -> tuple[Node, ...]:
        return tuple(describe(item, join(path, key), description, tensor, first) for key, item in items)

    parts = fields_of(value)
    if parts is not None:
        name = type(value).__qualname__
        description.classes[name] = type(value)
        return Record(
            name=name, fields=tuple(parts), items=inner(parts.items()), sequence=isinstance(value, tuple)
        )
    if isinstance(value, Mapping) and all(type(key) in (str, int) for key in value):
        return Mapped(keys=tuple(value), items=inner(value.items()))
    if isinstance(value, tuple | list):
        return Sequenced(items=inner(enumerate(value)), mutable=isinstance(value, list))
    raise Unsupported(path, value)


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass or of a named tuple; None for anything else."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and type(value) is not tuple:
        # results such as those of torch.max have names, but are not named tuples
        names: tuple[str, ...] = getattr(value, "_fields", getattr(type(value), "__match_args__", ()))
        if len(names) == len(value):
            return dict(zip(names, value, strict=True))
    return None


def match(node: Node, value: Any, path: str, out: dict[int, T], leaf: Callable[[Any, str], T]) -> None:
    """Collect the tensors of `value`, which must have the structure `node`.

    `out` gets the results of `leaf(value, path)`. Raises `InputError` with the path of a difference.
    """
    match node:
        case Tensor():
            out[node.index] = leaf(value, path)
        case Value():
            if type(value) is not type(node.value) or value != node.value:
                raise _different(path, _shown(value), f"{node.value!r}, with which the module was traced")
        case Omitted():
            if value is not OMITTED:
                raise _different(path, _shown(value), "it left out, as when the module was traced")
        case _:
            parts = _parts(node, value, path)
            for key, child, part in zip(_keys(node), node.items, parts, strict=True):
                match(child, part, join(path, key), out, leaf)


def build(node: Node, tensor: Callable[[int], Any], classes: Mapping[str, type]) -> Any:
    """Build a value with this structure. Classes that are not in `classes` become named tuples."""
    if isinstance(node, Tensor):
        value = tensor(node.index)
        return value.item() if node.scalar else value
    if isinstance(node, Value):
        return node.value
    if isinstance(node, Omitted):
        return OMITTED
    items = [build(child, tensor, classes) for child in node.items]
    if isinstance(node, Sequenced):
        return items if node.mutable else tuple(items)
    if isinstance(node, Mapped):
        return dict(zip(node.keys, items, strict=True))
    return _record(node, items, classes.get(node.name))


def indices_in(node: Node) -> list[int]:
    """Return the numbers of the tensors of a structure, in order."""
    if isinstance(node, Tensor):
        return [node.index]
    return [index for child in getattr(node, "items", ()) for index in indices_in(child)]


def join(path: str, key: Key) -> str:
    """Return the path of a part."""
    return f"{path}.{key}" if path else str(key)


def _keys(node: Sequenced | Mapped | Record) -> Sequence[Key]:
    if isinstance(node, Sequenced):
        return range(len(node.items))
    return node.keys if isinstance(node, Mapped) else node.fields


def _parts(node: Sequenced | Mapped | Record, value: Any, path: str) -> Sequence[Any]:
    """Return the parts of a value in the order of the node. Any sequence or mapping is accepted."""
    if isinstance(node, Sequenced):
        if not isinstance(value, list | tuple) or len(value) != len(node.items):
            raise _different(path, _shown(value), f"a sequence of {len(node.items)}")
        return value
    names = _keys(node)
    parts: Mapping[Any, Any] | None = None
    if isinstance(value, Mapping):
        parts = value
    elif isinstance(node, Record):
        parts = fields_of(value)
    if parts is None or parts.keys() != set(names):
        kind = f"a {node.name} or mapping" if isinstance(node, Record) else "a mapping"
        raise _different(path, _shown(value), f"{kind} with {', '.join(map(repr, names)) or 'nothing'}")
    return [parts[name] for name in names]


def _record(node: Record, items: list[Any], known: type | None) -> Any:
    if known is None:
        return namedtuple(node.name.rpartition(".")[2], node.fields, rename=True)(*items)
    if not node.sequence:
        return known(**dict(zip(node.fields, items, strict=True)))
    make = getattr(known, "_make", known)
    return make(items)


def _shown(value: Any) -> str:
    if value is OMITTED:
        return "nothing"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, Mapping):
        return f"{type(value).__name__} with {', '.join(map(repr, value)) or 'nothing'}"
    size = f" of {len(value)}" if isinstance(value, list | tuple) else ""
    return f"{type(value).__name__}{size}"


def _different(path: str, value: str, expected: str) -> InputError:
    return InputError(
        f"argument '{path}': {value} given; expected {expected}. Compile the module again for others"
    )

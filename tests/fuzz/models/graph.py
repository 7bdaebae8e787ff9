"""A graph under construction: its values so far, and the inputs that operations take from it.

The dice alone choose everything. Operations that OpenVINO does not build are left out, so an entry of the
catalogue may fail occasionally.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13
from openvino.utils.node_factory import NodeFactory

from tests.fuzz.dice import Dice
from tests.fuzz.models.values import ALL, FLOATS, INTEGERS, SMALL, Array, name_of, tensor

MOST_ELEMENTS = 3000
_MOST_PARAMETERS = 6
_RANKS = (0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 6, 7, 8)
_SIZES = (1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8)
_COMMON = ("f32",) * 20 + ("i32", "i64", "f16", "u8", "boolean")


class Skip(Exception):
    """This operation cannot be added to this graph."""


@dataclass(frozen=True)
class Habits:
    """A graph's tendencies: its main element type, other types, empty dimensions, wild values."""

    main: str
    mixed: float
    empty: bool
    wild: bool
    inner: bool = False

    @classmethod
    def rolled(cls, dice: Dice) -> Habits:
        """Choose at random: most graphs are f32 and tame."""
        main = dice.pick(_COMMON if dice.chance(0.8) else ALL)
        return cls(main, dice.pick((0.0, 0.1, 0.4)), dice.chance(0.06), dice.chance(0.25))


@dataclass
class Graph:
    """The values so far. `bounds` has the range of bounded inputs, by friendly name."""

    dice: Dice
    habits: Habits
    pool: list[ov.Output] = field(default_factory=list)
    parameters: list[Any] = field(default_factory=list)
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    sinks: list[Any] = field(default_factory=list)
    variables: list[Any] = field(default_factory=list)
    constants: list[ov.Output] = field(default_factory=list)
    built: Counter[str] = field(default_factory=Counter)
    prefix: str = ""
    _count: int = 0

    # ------------------------------------------------------------ sources

    def kind(self) -> str:
        """Return an element type that fits this graph."""
        if self.dice.chance(1 - self.habits.mixed):
            return self.habits.main
        return self.dice.pick(ALL)

    def size(self) -> int:
        """Return the length of a dimension."""
        if self.habits.empty and self.dice.chance(0.12):
            return 0
        return self.dice.pick(_SIZES)

    def shape(self, rank: int | None = None, least: int = 0, most: int = 8) -> list[int]:
        """Return a random shape of few elements."""
        if rank is None:
            fitting = [one for one in _RANKS if least <= one <= most]
            rank = self.dice.pick(fitting or [least])
        sizes = [self.size() for _ in range(rank)]
        while math.prod(sizes) > MOST_ELEMENTS // 4:
            sizes[self.dice.randrange(rank)] = self.dice.pick((1, 1, 2))
        return sizes

    def source(
        self,
        shape: Sequence[int] | None = None,
        kind: str | None = None,
        bounds: tuple[int, int] | None = None,
        constant: float = 0.4,
    ) -> ov.Output:
        """Return a new input, or with the chance `constant` (or if there are many inputs) a constant."""
        sizes = self.shape() if shape is None else list(shape)
        kind = kind or self.kind()
        if self.dice.chance(constant) or len(self.parameters) >= _MOST_PARAMETERS or kind in SMALL:
            return self.constant(sizes, kind, bounds)
        made = opset13.parameter(sizes, ov.Type.f32 if kind is None else getattr(ov.Type, kind))
        self._name(made)
        self.parameters.append(made)
        if bounds is not None:
            self.bounds[made.get_friendly_name()] = bounds
        output: ov.Output = made.output(0)
        self.pool.append(output)
        return output

    def constant(self, shape: Sequence[int], kind: str, bounds: tuple[int, int] | None = None) -> ov.Output:
        """Return a constant of random numbers, occasionally an existing one."""
        fitting = [
            one
            for one in self.constants
            if name_of(one.element_type) == kind and list(one.shape) == list(shape)
        ]
        if fitting and bounds is None and self.dice.chance(0.4):
            return self.dice.pick(fitting)
        wild = self.habits.wild and self.dice.chance(0.3)
        if 0 in shape:
            return self._empty(list(shape), kind)
        made = self._name(ov.op.Constant(tensor(self.dice, kind, shape, bounds, wild))).output(0)
        if bounds is None:
            self.constants.append(made)
        return made

    def number(self, value: Any, kind: str = "i64") -> ov.Output:
        """Return a constant with exactly these numbers."""
        data = np.asarray(value, dtype=np.dtype(getattr(ov.Type, kind).to_dtype()))
        if not data.size:
            return self._empty(list(data.shape), kind)
        return self._name(opset13.constant(data)).output(0)

    def equal_bytes(self, shape: Sequence[int], kind: str) -> ov.Output:
        """Return a constant whose bytes are all equal."""
        made = ov.Tensor(getattr(ov.Type, kind), ov.Shape(list(shape)))
        made.data.reshape(-1).view(np.uint8)[:] = 1 if kind == "boolean" else 0x3F
        return self._name(ov.op.Constant(made)).output(0)

    def _empty(self, shape: list[int], kind: str) -> ov.Output:
        """Return an empty constant in one of its two forms, which OpenVINO writes with 0 bytes or 1."""
        element_type = getattr(ov.Type, kind)
        if self._count % 2 and kind not in (*SMALL, "bf16"):
            return self._name(opset13.constant(np.empty(shape, element_type.to_dtype()))).output(0)
        return self._name(ov.op.Constant(ov.Tensor(element_type, ov.Shape(shape)))).output(0)

    def axes(self, value: Any) -> ov.Output:
        """Return axes or sizes as a constant of either integer type that OpenVINO takes."""
        return self.number(value, self.dice.pick(("i64", "i64", "i32")))

    def weights(self, shape: Sequence[int], kind: str) -> ov.Output:
        """Return weights: a constant, one decompressed from few bits, or (rarely) an input."""
        way = self.dice.randrange(10)
        if way < 6 or kind != "f32":
            return self.source(shape, kind, constant=0.9)
        packed = self.constant(
            shape, self.dice.pick(("u8", "i8", "f16", "bf16", "u4", "i4", "f8e4m3", "f8e5m2"))
        )
        wide = self.add("Convert", [packed], {"destination_type": "f32"}, pooled=False)[0]
        if way > 8:
            wide = self.add("Subtract", [wide, self.number(3.0, "f32")], pooled=False)[0]
        return self.add("Multiply", [wide, self.number(0.125, "f32")], pooled=False)[0]

    # ------------------------------------------------------------ existing values

    def value(
        self,
        kinds: Sequence[str] = ALL,
        rank: int | None = None,
        least: int = 0,
        most: int = 8,
        filled: bool = False,
        fresh: float = 0.15,
    ) -> ov.Output:
        """Return a value of one of the types and this many known dimensions; `filled`: none of them 0.

        It comes from the pool if possible, else (and with the chance `fresh`) from a new source.
        """
        least, most = (least, most) if rank is None else (rank, rank)
        found = [
            one
            for one in self.pool
            if name_of(one.element_type) in kinds
            and one.partial_shape.is_static
            and least <= len(one.shape) <= most
            and not (filled and 0 in one.shape)
        ]
        if found and not self.dice.chance(fresh):
            return found[-1] if self.dice.chance(0.3) else self.dice.pick(found)
        kind = self.kind()
        if kind not in kinds:
            kind = self.habits.main if self.habits.main in kinds else self.dice.pick(kinds)
        shape = self.shape(None, least, most)
        if filled:
            shape = [size or 1 for size in shape]
        return self.source(shape, kind)

    def mate(self, one: ov.Output, broadcast: bool = True) -> ov.Output:
        """Return a second operand of the same type: of the same shape, or broadcast."""
        kind, shape = name_of(one.element_type), list(one.shape)
        way = self.dice.randrange(10)
        same = [
            other
            for other in self.pool
            if other.element_type == one.element_type and other.partial_shape == one.partial_shape
        ]
        if way < 4 and same:
            return self.dice.pick(same)
        if way < 7 or not broadcast:
            return self.source(shape, kind)
        cut = shape[self.dice.randint(0, len(shape)) :]
        return self.source([size if self.dice.chance(0.6) else 1 for size in cut], kind)

    def varies(self, one: ov.Output) -> bool:
        """Return whether a value depends on an input or a state: OpenVINO folds others when it compiles."""
        waiting, seen = [one.get_node()], set()
        while waiting:
            node = waiting.pop()
            if node.get_type_name() in ("Parameter", "ReadValue"):
                return True
            if node.get_instance_id() not in seen:
                seen.add(node.get_instance_id())
                waiting += [port.get_node() for port in node.input_values()]
        return False

    # ------------------------------------------------------------ operations

    def add(
        self,
        kind: str,
        inputs: Sequence[ov.Output],
        attributes: dict[str, Any] | None = None,
        opset: int = 13,
        pooled: bool = True,
    ) -> list[ov.Output]:
        """Add an operation; return its outputs. Raise `Skip` if OpenVINO rejects it, or it is too large."""
        try:
            node = factory(opset).create(kind, list(inputs), attributes or {})
        except RuntimeError as error:
            raise Skip(f"{kind}-{opset}: {error}") from error
        return self.adopt(node, kind, pooled)

    def adopt(self, node: Any, kind: str, pooled: bool = True) -> list[ov.Output]:
        """Add a node that was built elsewhere."""
        outputs = list(node.outputs())
        for output in outputs:
            shape = output.partial_shape
            if shape.is_static and math.prod(output.shape) > MOST_ELEMENTS:
                raise Skip(f"{kind}: too large")
        self._name(node)
        self.built[kind] += 1
        if pooled:
            self.pool.extend(outputs)
        return outputs

    def _name(self, node: Any) -> Any:
        """Name a node uniquely to this graph, in a form that OpenVINO never uses."""
        self._count += 1
        node.set_friendly_name(f"{self.prefix}{node.get_type_name()}.{self._count}")
        return node


@cache
def factory(opset: int) -> NodeFactory:
    """Build operations of one opset by type name and attributes."""
    return NodeFactory(f"opset{opset}")


def array_of(values: Sequence[Any], kind: Any) -> Array:
    """Return an array with its element type, even when empty."""
    return np.array(list(values), dtype=kind)


__all__ = ["ALL", "FLOATS", "INTEGERS", "Graph", "Habits", "Skip", "array_of", "factory"]

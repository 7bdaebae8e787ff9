"""The graph of a model as SVG: layers from left to right, coloured by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import openvino as ov

from softnpu.tools.compare import graph

_LABELS_UP_TO: Final = 40
"""The most layers with their kind as a label; larger graphs have dots."""

_BOXES: Final = 9
_DOTS: Final = 80
"""Layers in a line of the picture; a longer graph wraps."""

_SERIES: Final = {
    "arithmetic": ("Convolution", "GroupConvolution", "MatMul", "ConvolutionBackpropData", "LSTMSequence"),
    "moves data": (
        "Concat", "Gather", "Reshape", "Split", "Squeeze", "Transpose", "Unsqueeze", "VariadicSplit", "Slice",
        "StridedSlice", "Broadcast", "Convert", "Pad",
    ),
    "state": ("ReadValue",),
}  # fmt: skip
_REST: Final = "element by element, and others"
KINDS: Final = (*_SERIES, _REST)
"""The groups of layers with a colour: that of series 1, 2, ... of the page."""


@dataclass(frozen=True)
class Spot:
    """A layer in the picture: its centre, its colour (a number from 1), and its description."""

    x: float
    y: float
    series: int
    name: str
    kind: str


@dataclass(frozen=True)
class Drawing:
    """The template's input. `labelled` graphs have boxes for dots, `wrapped` ones several lines.

    Edges are SVG paths.
    """

    width: float
    height: float
    labelled: bool
    wrapped: bool
    spots: Sequence[Spot]
    edges: Sequence[str]


def draw(model: ov.Model) -> Drawing:
    """Place each layer in the column of its longest path from an input."""
    layers = {layer.key: layer for layer in graph.layers_of(model)}
    read = graph.dependencies(model, set(layers))
    column: dict[str, int] = {}
    for key in read.order:
        column[key] = 1 + max((column[parent] for parent in read.parents[key]), default=-1)
    labelled = len(layers) <= _LABELS_UP_TO
    grid = _Grid(118.0, 40.0, _BOXES) if labelled else _Grid(13.0, 15.0, _DOTS)
    needed = {key for behind in (*read.parents.values(), *read.outputs) for key in behind}
    shown = [key for key in read.order if key in needed]  # no outputs without readers
    grid.place(shown, column)
    spots = [Spot(*grid.places[key], _series(layers[key].kind), key, layers[key].kind) for key in shown]
    edges = [grid.edge(parent, key) for key in shown for parent in read.parents[key]]
    return Drawing(grid.width, grid.height, labelled, grid.wrapped, spots, edges)


class _Grid:
    """Columns of layers, as many per line as fit, and the places of all layers."""

    def __init__(self, across: float, down: float, columns: int) -> None:
        self._across, self._down, self._columns = across, down, columns
        self._line: dict[str, int] = {}
        self.places: dict[str, tuple[float, float]] = {}
        self.width = self.height = 0.0

    @property
    def wrapped(self) -> bool:
        """Whether there is more than one line."""
        return any(self._line.values())

    def place(self, order: Sequence[str], column: Mapping[str, int]) -> None:
        """Stack the layers of a column around the middle of their line."""
        stacks: dict[int, list[str]] = {}
        for key in order:
            stacks.setdefault(column[key], []).append(key)
        for line in range(1 + max(stacks, default=0) // self._columns):
            inside = {at: stack for at, stack in stacks.items() if at // self._columns == line}
            most = max(map(len, inside.values()), default=1)
            for at, stack in inside.items():
                for row, key in enumerate(stack):
                    x = self._across * (at % self._columns + 0.75)
                    y = self.height + self._down * (row + 1.0 + (most - len(stack)) / 2)
                    self.places[key], self._line[key] = (x, y), line
                    self.width = max(self.width, x + 0.75 * self._across)
            self.height += self._down * (most + 1)

    def edge(self, begin: str, end: str) -> str:
        """Return a curve over the layers in between; two stubs where the end is in another line."""
        (x1, y1), (x2, y2) = self.places[begin], self.places[end]
        if self._line[begin] != self._line[end]:
            stub = 0.6 * self._across
            return f"M{x1:.1f} {y1:.1f}h{stub:.1f}M{x2 - stub:.1f} {y2:.1f}h{stub:.1f}"
        lift = 0.0 if x2 - x1 < 1.5 * self._across else min(0.9 * self._down, 4.0 + 0.1 * (x2 - x1))
        third = (x2 - x1) / 3
        points = (x1 + third, y1 - lift), (x2 - third, y2 - lift), (x2, y2)
        return f"M{x1:.1f} {y1:.1f}C" + " ".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _series(kind: str) -> int:
    for number, kinds in enumerate(_SERIES.values(), 1):
        if kind in kinds:
            return number
    return len(KINDS)

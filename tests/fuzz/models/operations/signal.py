"""Fourier transforms and the folding of windows."""

from __future__ import annotations

from tests.fuzz.models.graph import Graph
from tests.fuzz.models.operations.table import Table

TABLE = Table()


@TABLE.entry("DFT", "IDFT")
def _dft(graph: Graph) -> object:
    one = graph.source([*graph.shape(least=1, most=3), 2], "f32")
    rank = len(one.shape) - 1
    axes = graph.number(graph.dice.sample(range(rank), graph.dice.randint(1, rank)))
    return graph.add(graph.dice.pick(("DFT", "IDFT")), [one, axes], opset=7)


@TABLE.entry("RDFT", "IRDFT")
def _rdft(graph: Graph) -> object:
    if graph.dice.chance(0.5):
        one = graph.value(("f32",), least=1, most=4, filled=True)
        rank = len(one.shape)
        axes = graph.dice.sample(range(rank), graph.dice.randint(1, rank))
        return graph.add("RDFT", [one, graph.number(axes)], opset=9)
    # an empty result kills the OpenVINO process
    one = graph.source([*[max(size, 2) for size in graph.shape(least=1, most=3)], 2], "f32")
    rank = len(one.shape) - 1
    return graph.add(
        "IRDFT", [one, graph.number(graph.dice.sample(range(rank), graph.dice.randint(1, rank)))], opset=9
    )


@TABLE.entry("STFT")
def _stft(graph: Graph) -> object:
    frame = graph.dice.randint(2, 6)
    one = graph.source([graph.dice.randint(1, 3), graph.dice.randint(frame, 20)], "f32")
    window = graph.source([graph.dice.randint(1, frame)], "f32")
    numbers = [graph.number(frame), graph.number(graph.dice.randint(1, 4))]
    return graph.add("STFT", [one, window, *numbers], {"transpose_frames": graph.dice.chance(0.5)}, 15)


@TABLE.entry("Col2Im")
def _col2im(graph: Graph) -> object:
    kernel = [graph.dice.randint(1, 2), graph.dice.randint(1, 2)]
    size = [graph.dice.randint(2, 5), graph.dice.randint(2, 5)]
    blocks = (size[0] - kernel[0] + 1) * (size[1] - kernel[1] + 1)
    one = graph.source(
        [graph.dice.randint(1, 3), graph.dice.randint(1, 3) * kernel[0] * kernel[1], blocks], "f32"
    )
    attributes = {"strides": [1, 1], "dilations": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0]}
    return graph.add("Col2Im", [one, graph.number(size), graph.number(kernel)], attributes, 15)

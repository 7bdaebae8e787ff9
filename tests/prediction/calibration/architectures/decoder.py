"""One step of a language model after 1024 tokens: Llama 2 7B and Phi-3 mini (their papers' tables)."""

from __future__ import annotations

from softnpu.emulator.prediction.graph import Graph, Source
from tests.prediction.graph_builder import GraphBuilder

_PAST = 1024


def llama_2_7b() -> Graph:
    """32 layers of 4096, inner size 11 008."""
    return _decoder("llama-2-7b", layers=32, width=4096, heads=32, inner=11008, words=32000)


def phi_3_mini() -> Graph:
    """32 layers of 3072, inner size 8192."""
    return _decoder("phi-3-mini", layers=32, width=3072, heads=32, inner=8192, words=32064)


def _decoder(name: str, *, layers: int, width: int, heads: int, inner: int, words: int) -> Graph:
    build = GraphBuilder(name)
    ids = build.parameter(1, 1, element_type="i64")
    value = build.add("Gather", [build.constant(words, width), ids], (1, 1, width))
    for _ in range(layers):
        value = build.elementwise("Add", value, _attention(build, _normalised(build, value), width, heads))
        between = _normalised(build, value)
        gate = build.activation(build.linear(between, inner, bias=False), "Swish")
        product = build.elementwise("Multiply", gate, build.linear(between, inner, bias=False))
        value = build.elementwise("Add", value, build.linear(product, width, bias=False))
    return build.build(build.linear(_normalised(build, value), words, bias=False))


def _normalised(build: GraphBuilder, source: Source) -> Source:
    shape = build.shape(source)
    return build.add("RMS", [source, build.constant(shape[-1])], shape)


def _attention(build: GraphBuilder, source: Source, width: int, heads: int) -> Source:
    size = width // heads
    query, key, value = (
        build.reshape(build.linear(source, width, bias=False), 1, heads, 1, size) for _ in range(3)
    )
    keys = build.concat(build.parameter(1, heads, _PAST - 1, size), key, axis=2)
    values = build.concat(build.parameter(1, heads, _PAST - 1, size), value, axis=2)
    scores = build.matmul(query, keys, transposed=True)
    weights = build.add("Softmax", [scores], build.shape(scores), axis=3)
    out = build.reshape(build.matmul(weights, values), 1, 1, width)
    return build.linear(out, width, bias=False)

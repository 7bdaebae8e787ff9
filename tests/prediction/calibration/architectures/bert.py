"""BERT base, cased (Devlin et al., 2018): 12 layers of 768, 12 heads, 128 tokens."""

from __future__ import annotations

from softnpu.emulator.prediction.graph import Graph, Source
from tests.prediction.graph_builder import GraphBuilder

_TOKENS, _WIDTH, _HEADS, _INNER, _LAYERS, _WORDS = 128, 768, 12, 3072, 12, 28996


def bert_base() -> Graph:
    """Question answering: start and end of the answer."""
    build = GraphBuilder("bert-base")
    ids = build.parameter(1, _TOKENS, element_type="i32")
    build.parameter(1, _TOKENS, element_type="i32")
    words = build.add("Gather", [build.constant(_WORDS, _WIDTH), ids], (1, _TOKENS, _WIDTH))
    value = _normalised(build, build.elementwise("Add", words, build.constant(1, _TOKENS, _WIDTH)))
    for _ in range(_LAYERS):
        value = _normalised(build, build.elementwise("Add", value, _attention(build, value)))
        inner = build.activation(build.linear(value, _INNER), "Gelu")
        value = _normalised(build, build.elementwise("Add", value, build.linear(inner, _WIDTH)))
    return build.build(build.linear(value, 2))


def _normalised(build: GraphBuilder, source: Source) -> Source:
    shape = build.shape(source)
    value = build.add("MVN", [source], shape, axis=len(shape) - 1)
    value = build.elementwise("Multiply", value, build.constant(_WIDTH))
    return build.elementwise("Add", value, build.constant(_WIDTH))


def _attention(build: GraphBuilder, source: Source) -> Source:
    size = _WIDTH // _HEADS
    query, key, value = (
        build.transpose(build.reshape(build.linear(source, _WIDTH), 1, _TOKENS, _HEADS, size), 0, 2, 1, 3)
        for _ in range(3)
    )
    scores = build.matmul(query, key, transposed=True)
    scores = build.elementwise("Add", scores, build.constant(1, 1, 1, _TOKENS))
    weights = build.add("Softmax", [scores], build.shape(scores), axis=3)
    out = build.transpose(build.matmul(weights, value), 0, 2, 1, 3)
    return build.linear(build.reshape(out, 1, _TOKENS, _WIDTH), _WIDTH)

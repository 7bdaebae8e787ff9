"""A small language model with random weights, structured like exports for OpenVINO GenAI.

Decoder layers with rotary positions; past keys and values are states, whose rows `beam_idx` selects.
NPUW, which runs such models on an NPU, recognises these patterns and requires at least four layers.
Run as a program it writes the model into a directory: `python language_model.py DIRECTORY`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as op

VOCABULARY = 320
LAYERS, HEADS, HEAD = 4, 4, 16
HIDDEN = HEADS * HEAD
POSITION_BASE = 10000.0


class _Weights:
    """Constants as in exports: f16 in the file, f32 in the arithmetic, a name for each."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def matrix(self, name: str, *shape: int) -> ov.Output:
        values = self._random.normal(0, 1 / np.sqrt(shape[-1]), shape).astype(np.float16)
        return self.named(name, values)

    def ones(self, name: str, *shape: int) -> ov.Output:
        return self.named(name, np.ones(shape, np.float16))

    def named(self, name: str, values: np.ndarray) -> ov.Output:
        constant = op.constant(values)
        constant.set_friendly_name(name)
        return op.convert(constant, "f32").output(0)


def language_model(seed: int = 11) -> ov.Model:
    """Return the model, with dynamic shapes.

    Inputs `input_ids`, `attention_mask`, `position_ids` [batch, tokens] i64, `beam_idx` [batch] i32; output
    `logits` [batch, tokens, 320] f32.
    """
    weights = _Weights(seed)
    ids = _parameter("input_ids", [-1, -1], np.int64)
    mask = _parameter("attention_mask", [-1, -1], np.int64)
    positions = _parameter("position_ids", [-1, -1], np.int64)
    beams = _parameter("beam_idx", [-1], np.int32)
    table = weights.matrix("model.embed_tokens.weight", VOCABULARY, HIDDEN)
    hidden = op.gather(table, op.convert(ids, "i32"), _ints(0)).output(0)
    batch = op.gather(op.shape_of(ids), _ints([0]), _ints(0)).output(0)
    rotation = _rotation(positions, batch)
    allowed = _allowed(mask, positions)
    assigns: list[ov.Node] = []
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        normal = _normalised(hidden, weights.ones(f"{name}.input_layernorm.weight", HIDDEN))
        mixed = _attention(weights, layer, normal, rotation, allowed, batch, beams, assigns)
        hidden = op.add(hidden, mixed).output(0)
        normal = _normalised(hidden, weights.ones(f"{name}.post_attention_layernorm.weight", HIDDEN))
        wide = _linear(normal, weights.matrix(f"{name}.mlp.up_proj.weight", 4 * HIDDEN, HIDDEN))
        narrow = weights.matrix(f"{name}.mlp.down_proj.weight", HIDDEN, 4 * HIDDEN)
        hidden = op.add(hidden, _linear(op.swish(wide).output(0), narrow)).output(0)
    hidden = _normalised(hidden, weights.ones("model.norm.weight", HIDDEN))
    logits = op.result(_linear(hidden, weights.matrix("lm_head.weight", VOCABULARY, HIDDEN)))
    logits.output(0).get_tensor().set_names({"logits"})
    model = ov.Model([logits], assigns, [ids, mask, positions, beams], "tiny")
    model.set_rt_info("f16", ["runtime_options", "KV_CACHE_PRECISION"])
    return model


def _parameter(name: str, shape: list[int], kind: type) -> ov.Node:
    made = op.parameter(ov.PartialShape(shape), kind, name)
    made.output(0).get_tensor().set_names({name})
    return made


def _ints(values: int | list[int]) -> ov.Node:
    return op.constant(np.array(values, np.int64))


def _linear(data: ov.Output, weights: ov.Output) -> ov.Output:
    return op.matmul(data, weights, False, True).output(0)


def _normalised(data: ov.Output, weight: ov.Output) -> ov.Output:
    power = op.power(data, op.constant(np.float32(2)))
    mean = op.reduce_mean(power, _ints([-1]), True)
    root = op.sqrt(op.add(mean, op.constant(np.float32(1e-5))))
    return op.multiply(weight, op.multiply(data, op.divide(op.constant(np.float32(1)), root))).output(0)


def _rotation(positions: ov.Node, batch: ov.Output) -> tuple[ov.Output, ov.Output]:
    """Cosines and sines, [batch, 1, tokens, HEAD]."""
    steps = 1.0 / POSITION_BASE ** (np.arange(0, HEAD, 2, dtype=np.float32) / HEAD)
    shape = op.concat([batch, _ints([HEAD // 2]), _ints([1])], 0)
    column = op.broadcast(op.constant(steps.reshape(1, -1, 1)), shape)
    row = op.convert(op.unsqueeze(positions, _ints(1)), "f32")
    angles = op.transpose(op.matmul(column, row, False, False), _ints([0, 2, 1]))
    both = op.concat([angles, angles], 2)
    return op.unsqueeze(op.cos(both), _ints(1)).output(0), op.unsqueeze(op.sin(both), _ints(1)).output(0)


def _rotated(data: ov.Output, rotation: tuple[ov.Output, ov.Output]) -> ov.Output:
    halves = op.split(data, _ints(3), 2)
    turned = op.concat([op.multiply(halves.output(1), op.constant(np.float32(-1))), halves.output(0)], 3)
    return op.add(op.multiply(data, rotation[0]), op.multiply(turned, rotation[1])).output(0)


def _allowed(mask: ov.Node, positions: ov.Node) -> ov.Output:
    """Return the mask added to the scores, [batch, 1, tokens, tokens so far]: 0, or nearly minus infinity.

    Positions are compared instead of indices: the pipeline for the NPU pads on either side.
    """
    columns = op.subtract(op.cum_sum(mask, _ints(1)), _ints(1))
    causal = op.less_equal(op.unsqueeze(columns, _ints([1, 2])), op.unsqueeze(positions, _ints([1, 3])))
    there = op.not_equal(op.unsqueeze(mask, _ints([1, 2])), _ints(0))
    both = op.logical_and(causal, there)
    return op.select(both, op.constant(np.float32(0)), op.constant(np.float32(-65504))).output(0)


def _attention(
    weights: _Weights,
    layer: int,
    data: ov.Output,
    rotation: tuple[ov.Output, ov.Output],
    allowed: ov.Output,
    batch: ov.Output,
    beams: ov.Node,
    assigns: list[ov.Node],
) -> ov.Output:
    query, key, value = (
        _heads(
            _linear(
                data, weights.matrix(f"model.layers.{layer}.self_attn.{part}_proj.weight", HIDDEN, HIDDEN)
            )
        )
        for part in "qkv"
    )
    query, key = _rotated(query, rotation), _rotated(key, rotation)
    keys = _so_far(f"{layer}.key", key, batch, beams, assigns)
    values = _so_far(f"{layer}.value", value, batch, beams, assigns)
    mixed = op.scaled_dot_product_attention(query, keys, values, allowed)
    back = op.transpose(mixed, _ints([0, 2, 1, 3]))
    flat = op.reshape(back, _ints([0, 0, HIDDEN]), True).output(0)
    return _linear(flat, weights.matrix(f"model.layers.{layer}.self_attn.o_proj.weight", HIDDEN, HIDDEN))


def _heads(data: ov.Output) -> ov.Output:
    return op.transpose(op.reshape(data, _ints([0, 0, HEADS, HEAD]), True), _ints([0, 2, 1, 3])).output(0)


def _so_far(name: str, new: ov.Output, batch: ov.Output, beams: ov.Node, assigns: list[ov.Node]) -> ov.Output:
    """Return the rows of the state that `beams` selects, followed by the new ones: the next state."""
    shape = op.concat([batch, _ints([HEADS, 0, HEAD])], 0)
    empty = op.broadcast(op.constant(np.float32(0)), shape)
    info = ov.op.util.VariableInfo()
    info.variable_id = f"past_key_values.{name}present.{name}"
    info.data_shape, info.data_type = ov.PartialShape([-1, HEADS, -1, HEAD]), ov.Type.f32
    variable = ov.op.util.Variable(info)
    read = op.read_value(empty, variable)
    chosen = op.gather(read, beams, _ints(0))
    both = op.concat([chosen, new], 2)
    both.output(0).get_tensor().set_names({f"present.{name}"})
    assigns.append(op.assign(both, variable))
    return both.output(0)


if __name__ == "__main__":
    ov.save_model(language_model(), Path(sys.argv[1]) / "openvino_model.xml", compress_to_fp16=False)

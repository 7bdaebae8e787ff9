"""The BERT encoder of all-MiniLM-L6-v2, built as an OpenVINO model from its safetensors weights.

Semantics: Devlin et al., "BERT" (2018), as in the reference implementation: post-norm transformer layers,
learned positions, GELU with erf. The pooling follows sentence-transformers: mean over the attended tokens,
then L2 norm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

from softnpu.tools.models.errors import WeightsError
from softnpu.tools.models.safetensors import read_safetensors

# BERT's own bias for the scores of masked tokens. Its exp() is 0 in f32, and unlike the lowest f32 it is
# still finite in f16, so a row with every token masked gives numbers instead of NaN.
_MASKED_SCORE: Final = -10000.0
# Lower bound of the squared norm, the square of the 1e-12 that sentence-transformers uses for the norm.
_MIN_SQUARED_NORM: Final = 1e-24


class BertConfig(msgspec.Struct, frozen=True):
    """The part of a BERT `config.json` that the encoder is built from; other fields are ignored."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_hidden_layers: int
    max_position_embeddings: int
    vocab_size: int
    layer_norm_eps: float


def build(source: Path, destination: Path) -> None:
    """Save the model of the weights and configuration in `source` as `destination` (.xml, .bin beside it).

    Read `model.safetensors` and `config.json`. The IR has dynamic batch and sequence, i64 inputs, and all
    weights as plain f32 constants. Raise `WeightsError` when a weight is missing, or its shape or type
    differs from the configuration.
    """
    config_path = source / "config.json"
    try:
        config = msgspec.json.decode(config_path.read_bytes(), type=BertConfig)
    except msgspec.DecodeError as error:
        raise WeightsError(config_path, f"not a BERT configuration: {error}") from error
    weights_path = source / "model.safetensors"
    model = encoder(config, Weights(weights_path, read_safetensors(weights_path)))
    ov.save_model(model, destination, compress_to_fp16=False)


class Weights:
    """Named weights of one file, handed out as f32 constants of the expected shape."""

    def __init__(self, path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
        self._path = path
        self._tensors = tensors

    def constant(self, name: str, *shape: int) -> ov.Node:
        """Return the weight `name`. Raise `WeightsError` unless it exists, is f32 and has `shape`."""
        array = self._tensors.get(name)
        if array is None:
            raise WeightsError(self._path, f"there is no tensor {name!r}")
        if array.dtype != np.float32 or array.shape != shape:
            raise WeightsError(
                self._path,
                f"tensor {name!r} is {array.dtype} of shape {array.shape}, expected float32 of {shape}",
            )
        return ops.constant(array, name=name)


def encoder(config: BertConfig, weights: Weights) -> ov.Model:
    """Return the encoder as a model.

    Inputs, each i64 [batch, sequence]: `input_ids` (0 <= id < vocab_size), `attention_mask` (1 attended, 0
    padding), `token_type_ids` (0 or 1). Sequence is at most `max_position_embeddings`; a longer one fails
    at run time. Outputs, f32: `last_hidden_state` [batch, sequence, hidden_size]; `sentence_embedding`
    [batch, hidden_size], with Euclidean norm 1.
    """
    input_ids, attention_mask, token_type_ids = (
        _input(name) for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    attended = ops.convert(attention_mask, "f32")
    hidden = _embeddings(config, weights, input_ids, token_type_ids)
    bias = _score_bias(attended)
    for layer in range(config.num_hidden_layers):
        hidden = _layer(config, weights, f"encoder.layer.{layer}", hidden, bias)
    outputs = [
        _output(hidden, "last_hidden_state"),
        _output(_sentence_embedding(hidden, attended), "sentence_embedding"),
    ]
    model = ov.Model(outputs, [input_ids, attention_mask, token_type_ids], "all-MiniLM-L6-v2")
    _name_the_rest(model)
    return model


def _name_the_rest(model: ov.Model) -> None:
    """Number the nodes without a name of ours, so that the IR does not depend on earlier builds.

    OpenVINO's own names end in a process-wide counter.
    """
    for index, node in enumerate(model.get_ordered_ops()):
        if node.get_friendly_name() == node.get_name():
            node.set_friendly_name(f"{node.get_type_name()}_{index}")


def _input(name: str) -> Any:
    parameter = ops.parameter(ov.PartialShape([-1, -1]), ov.Type.i64, name=name)
    parameter.output(0).set_names({name})
    return parameter


def _output(node: ov.Node, name: str) -> Any:
    result = ops.result(node, name=name)
    # The IR keeps the names of the tensor read by a result, not of the result itself.
    node.output(0).set_names({name})
    return result


def _embeddings(config: BertConfig, weights: Weights, input_ids: ov.Node, token_type_ids: ov.Node) -> ov.Node:
    """Word + position + token type, normalised: [batch, sequence] x 2 -> [batch, sequence, hidden]."""
    hidden = config.hidden_size
    words = weights.constant("embeddings.word_embeddings.weight", config.vocab_size, hidden)
    positions = weights.constant(
        "embeddings.position_embeddings.weight", config.max_position_embeddings, hidden
    )
    types = weights.constant("embeddings.token_type_embeddings.weight", 2, hidden)
    sequence = ops.gather(ops.shape_of(input_ids), _i64(1), _i64(0))
    first_positions = ops.slice(positions, _i64([0]), ops.unsqueeze(sequence, _i64(0)), _i64([1]), _i64([0]))
    summed = ops.add(ops.gather(words, input_ids, _i64(0)), ops.gather(types, token_type_ids, _i64(0)))
    return _layer_norm(config, weights, "embeddings.LayerNorm", ops.add(summed, first_positions))


def _score_bias(attended: ov.Node) -> ov.Node:
    """0 for attended tokens, very negative for padding: [batch, sequence] -> [batch, 1, 1, sequence]."""
    masked = ops.subtract(_f32(1.0), attended)
    return ops.unsqueeze(ops.multiply(masked, _f32(_MASKED_SCORE)), _i64([1, 2]))


def _layer(config: BertConfig, weights: Weights, prefix: str, hidden: ov.Node, bias: ov.Node) -> ov.Node:
    """One transformer layer: [batch, sequence, hidden] -> the same."""
    size, wide = config.hidden_size, config.intermediate_size
    context = _attention(config, weights, f"{prefix}.attention.self", hidden, bias)
    attended = _dense(weights, f"{prefix}.attention.output.dense", context, size, size)
    hidden = _layer_norm(config, weights, f"{prefix}.attention.output.LayerNorm", ops.add(attended, hidden))
    widened = ops.gelu(_dense(weights, f"{prefix}.intermediate.dense", hidden, size, wide), "erf")
    narrowed = _dense(weights, f"{prefix}.output.dense", widened, wide, size)
    return _layer_norm(config, weights, f"{prefix}.output.LayerNorm", ops.add(narrowed, hidden))


def _attention(config: BertConfig, weights: Weights, prefix: str, hidden: ov.Node, bias: ov.Node) -> ov.Node:
    """Multi-head self-attention without its output projection: [batch, sequence, hidden] -> the same."""
    size, heads = config.hidden_size, config.num_attention_heads
    head_size = size // heads

    def split(role: str) -> ov.Node:
        # [batch, sequence, hidden] -> [batch, heads, sequence, head_size]; 0 keeps an extent as it is.
        projected = _dense(weights, f"{prefix}.{role}", hidden, size, size)
        by_head = ops.reshape(projected, _i64([0, 0, heads, head_size]), special_zero=True)
        return ops.transpose(by_head, _i64([0, 2, 1, 3]))

    scores = ops.matmul(split("query"), split("key"), transpose_a=False, transpose_b=True)
    scaled = ops.multiply(scores, _f32(1.0 / math.sqrt(head_size)))
    shares = ops.softmax(ops.add(scaled, bias), -1)
    context = ops.transpose(ops.matmul(shares, split("value"), False, False), _i64([0, 2, 1, 3]))
    return ops.reshape(context, _i64([0, 0, size]), special_zero=True)


def _dense(weights: Weights, prefix: str, value: ov.Node, inputs: int, outputs: int) -> ov.Node:
    """value @ weight.T + bias: [..., inputs] -> [..., outputs]."""
    product = ops.matmul(value, weights.constant(f"{prefix}.weight", outputs, inputs), False, True)
    return ops.add(product, weights.constant(f"{prefix}.bias", outputs), name=prefix)


def _layer_norm(config: BertConfig, weights: Weights, prefix: str, value: ov.Node) -> ov.Node:
    """Normalise to mean 0 and variance 1 along the last axis, then scale and shift; the shape stays."""
    normal = ops.mvn(value, _i64([-1]), True, config.layer_norm_eps, "inside_sqrt")
    scaled = ops.multiply(normal, weights.constant(f"{prefix}.weight", config.hidden_size))
    return ops.add(scaled, weights.constant(f"{prefix}.bias", config.hidden_size), name=prefix)


def _sentence_embedding(hidden: ov.Node, attended: ov.Node) -> ov.Node:
    """Mean over the attended tokens, scaled to length 1: [batch, sequence, hidden] -> [batch, hidden]."""
    shares = ops.unsqueeze(attended, _i64(2))
    total = ops.reduce_sum(ops.multiply(hidden, shares), _i64([1]))
    count = ops.maximum(ops.reduce_sum(shares, _i64([1])), _f32(1e-9))
    return ops.normalize_l2(ops.divide(total, count), _i64([1]), _MIN_SQUARED_NORM, "max")


def _i64(value: int | list[int]) -> ov.Node:
    return ops.constant(np.array(value, dtype=np.int64))


def _f32(value: float) -> ov.Node:
    return ops.constant(np.array(value, dtype=np.float32))

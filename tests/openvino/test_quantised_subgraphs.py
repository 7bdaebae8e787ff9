"""Quantised layers that OpenVINO's CPU runtime fuses and computes wrongly: the numbers are the model's.

The CPU device of this host may be wrong or crash with such subgraphs, so the references are numpy
and the CPU device without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from openvino import opset13 as ops
from openvino import opset14

from softnpu.emulator.openvino.defects import saturated_sums
from softnpu.emulator.openvino.defects.quantised_subgraphs import UNFUSED, are_in
from softnpu.plugin import Core
from tests.support.quantised import attention, chain, in_numpy

Array = npt.NDArray[Any]
CPU = {"INFERENCE_PRECISION_HINT": "f32", **saturated_sums.properties()}


def _result(core: Any, device: str, model: ov.Model, config: dict[str, str], value: Array) -> Array:
    return np.array(core.compile_model(model, device, config)([value])[0])


@pytest.mark.parametrize(("low", "high"), [(-1.0, 2.0), (-1.27, 1.28), (-1.28, 1.27), (0.0, 2.55)])
@pytest.mark.parametrize("sizes", [(64, 256, 64), (16, 16, 16, 16)])
def test_a_chain_of_quantised_layers(
    shared_core: Core, sizes: Sequence[int], low: float, high: float
) -> None:
    value = np.random.default_rng(3).normal(0, 1, (4, sizes[0])).astype(np.float32)
    found = _result(shared_core, "NPU", chain(sizes, low, high), {"NPU_BATCH_MODE": "COMPILER"}, value)
    # a value halfway between two steps may be rounded to either
    expected = in_numpy(sizes, low, high, value.astype(np.float64))
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


@pytest.mark.parametrize(("tokens", "size"), [(8, 128), (8, 32)])
def test_quantised_attention(shared_core: Core, reference: ov.Core, tokens: int, size: int) -> None:
    model = attention(tokens, size)
    value = np.random.default_rng(3).normal(0, 1, (1, tokens, size)).astype(np.float32)
    expected = _result(reference, "CPU", model, CPU | UNFUSED, value)
    np.testing.assert_array_equal(_result(shared_core, "NPU", model, {}, value), expected)


def test_elementwise_subgraphs_beside_quantised_layers_are_kept(
    shared_core: Core, reference: ov.Core
) -> None:
    x = ops.parameter([2, 3], ov.Type.f32)
    one, other = (ops.parameter([2, 3], ov.Type.u8) for _ in range(2))
    levels = ops.fake_quantize(x, *(ops.constant(np.float32(bound)) for bound in (-1, 1, -1, 1)), 256)
    results = [ops.result(levels), ops.result(ops.less(one, other))]
    model = ov.Model(results, [x, one, other], "beside")
    generator = np.random.default_rng(3)
    values = [generator.normal(0, 1, (2, 3)).astype(np.float32)]
    values += [generator.integers(0, 255, (2, 3)).astype(np.uint8) for _ in range(2)]
    compiled = reference.compile_model(model, "CPU", CPU)
    assert not are_in(model, compiled)
    expected, found = compiled(values), shared_core.compile_model(model, "NPU")(values)
    for index in range(2):
        np.testing.assert_array_equal(found[index], expected[index])


@pytest.mark.parametrize("kind", ["GatherND", "ScatterElementsUpdate"])
def test_index_checks_do_not_change_quantised_numbers(
    shared_core: Core, reference: ov.Core, kind: str
) -> None:
    x = ops.parameter([ov.Dimension(0, 9), 3], ov.Type.f32)
    levels = ops.fake_quantize(
        x, *(ops.constant(np.array([bound], np.float32)) for bound in (-1, 2, -1, 2)), 16
    )
    if kind == "GatherND":
        indices = ops.parameter([ov.Dimension(0, 9), 1], ov.Type.i32)
        moved = ops.gather_nd(levels, indices)
    else:
        indices = ops.parameter([ov.Dimension(0, 9), 3], ov.Type.i32)
        moved = ops.scatter_elements_update(levels, indices, levels, np.int64(0))
    model = ov.Model([ops.result(moved)], [x, indices], kind)
    value = np.random.default_rng(3).normal(0, 1, (7, 3)).astype(np.float32)
    at = np.arange(7, dtype=np.int32)[:, None] * np.ones((1, 1 if kind == "GatherND" else 3), np.int32)
    expected = reference.compile_model(model, "CPU", CPU)([value, at])[0]
    np.testing.assert_array_equal(shared_core.compile_model(model, "NPU")([value, at])[0], expected)


def test_one_dimension_beside_a_chain_of_quantised_layers(shared_core: Core) -> None:
    """OpenVINO refuses this model if its subgraphs are switched off."""
    model = chain((16, 16, 16, 16), -1.0, 2.0)
    row = ops.parameter([3], ov.Type.f32)
    wide, narrow = (
        [ops.constant(np.array([bound], np.float32)) for bound in (-size, size) * 2] for size in (3, 0.5)
    )
    first = ops.fake_quantize(row, *wide, 16)
    levels = ops.fake_quantize(ops.convert(ops.convert(first, "u8"), "f32"), *narrow, 2)
    model.add_parameters([row])
    model.add_results([ops.result(levels)])
    value = np.random.default_rng(3).normal(0, 1, (4, 16)).astype(np.float32)
    compiled = shared_core.compile_model(model, "NPU", {"NPU_BATCH_MODE": "COMPILER"})
    found = compiled([value, np.array([0.1, 1.1, 3], np.float32)])
    np.testing.assert_array_equal(found[1], np.array([-0.5, 0.5, 0.5], np.float32))


def test_a_group_normalisation_beside_a_chain_of_quantised_layers(
    shared_core: Core, reference: ov.Core
) -> None:
    """OpenVINO computes it in a subgraph, and refuses the model if those are switched off."""
    model = chain((16, 16, 16, 16), -1.0, 2.0)
    image = ops.parameter([2, 6, 4, 3], ov.Type.f32)
    generator = np.random.default_rng(3)
    scale, bias = (ops.constant(generator.normal(0, 1, 6).astype(np.float32)) for _ in range(2))
    normalised = opset14.group_normalization(image, scale, bias, 3, 1e-3)
    values = [generator.normal(0, 1, shape).astype(np.float32) for shape in ((4, 16), (2, 6, 4, 3))]
    alone = reference.compile_model(ov.Model([normalised], [image], "alone"), "CPU", CPU)
    model.add_parameters([image])
    model.add_results([ops.result(normalised)])
    compiled = shared_core.compile_model(model, "NPU", {"NPU_BATCH_MODE": "COMPILER"})
    np.testing.assert_allclose(compiled(values)[1], alone(values[1])[0], rtol=1e-5, atol=1e-6)

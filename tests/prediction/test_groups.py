"""Groups of operations that the device computes together, in small graphs and in real models."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from softnpu.emulator.prediction.graph import Graph, Source
from softnpu.emulator.prediction.groups import fuse
from softnpu.emulator.prediction.quantisation import quantised
from tests.prediction.graph_builder import GraphBuilder

pytestmark = pytest.mark.quick


def _convolution_with_activation(build: GraphBuilder) -> Graph:
    image = build.parameter(1, 16, 8, 8)
    return build.build(build.convolution(image, 32, 3, activation="Relu"))


def _swish(build: GraphBuilder) -> Graph:
    value = build.convolution(build.parameter(1, 16, 8, 8), 16, 3)
    return build.build(build.elementwise("Multiply", value, build.activation(value, "Sigmoid")))


def _gate(build: GraphBuilder) -> Graph:
    """A sigmoid that does not multiply its own input is not a swish."""
    value = build.convolution(build.parameter(1, 16, 8, 8), 16, 3)
    gate = build.activation(build.convolution(build.mean(value), 16), "Sigmoid")
    return build.build(build.elementwise("Multiply", value, gate))


def _residual(build: GraphBuilder) -> Graph:
    """Two readers of a convolution: an operation that only one of them computes cannot be fused."""
    value = build.convolution(build.parameter(1, 16, 8, 8), 16, 3)
    other = build.activation(value, "Relu")
    return build.build(build.elementwise("Add", value, other))


def _normalised_product(build: GraphBuilder) -> Graph:
    value = build.linear(build.parameter(1, 8, 64), 32)
    value = build.add("MVN", [value], build.shape(value), axis=2)
    return build.build(build.elementwise("Multiply", value, build.constant(32)))


def _views(build: GraphBuilder) -> Graph:
    left, right = build.split(build.convolution(build.parameter(1, 16, 8, 8), 32), 16, 16)
    value = build.concat(build.convolution(left, 16), build.convolution(right, 16))
    return build.build(build.reshape(value, 1, 2048))


def _permutations(build: GraphBuilder) -> Graph:
    """Images are stored channels last, which costs nothing; the DMA moves vectors, a kernel elements."""
    value = build.transpose(build.convolution(build.parameter(1, 16, 8, 8), 32), 0, 2, 3, 1)
    return build.build(build.transpose(build.transpose(value, 0, 2, 1, 3), 0, 1, 3, 2))


def _resized(build: GraphBuilder) -> Graph:
    value = build.resize(build.convolution(build.parameter(1, 16, 8, 8), 16), 16, 16)
    return build.build(build.resize(value, 24, 24, "linear"))


def _spelled_gelu(build: GraphBuilder) -> Graph:
    value = build.linear(build.parameter(1, 8, 64), 32)
    erf = build.activation(build.elementwise("Divide", value, build.constant(1)), "Erf")
    product = build.elementwise("Multiply", value, build.elementwise("Add", erf, build.constant(1)))
    return build.build(build.linear(build.elementwise("Multiply", product, build.constant(1)), 8))


def _spelled_normalisation(build: GraphBuilder) -> Graph:
    value = build.linear(build.parameter(1, 8, 64), 32)
    centred = build.elementwise("Subtract", value, build.add("ReduceMean", [value], (1, 8, 1)))
    square = build.elementwise("Power", centred, build.constant(1))
    variance = build.elementwise("Add", build.add("ReduceMean", [square], (1, 8, 1)), build.constant(1))
    normal = build.elementwise("Divide", centred, build.activation(variance, "Sqrt"))
    return build.build(build.elementwise("Multiply", normal, build.constant(32)))


def _shown_variance(build: GraphBuilder) -> Graph:
    """As above, but the variance is also read: it cannot stay inside a kernel."""
    value = build.linear(build.parameter(1, 8, 64), 32)
    square = build.elementwise("Power", value, build.constant(1))
    mean = build.elementwise("Add", build.add("ReduceMean", [square], (1, 8, 1)), build.constant(1))
    return build.build(build.elementwise("Divide", value, build.activation(mean, "Sqrt")), mean)


def _attention(build: GraphBuilder) -> Graph:
    heads = [build.parameter(1, 4, 16, 32) for _ in range(3)]
    return build.build(build.add("ScaledDotProductAttention", heads, (1, 4, 16, 32)))


def _quantise(build: GraphBuilder, source: Source, levels: int = 256) -> Source:
    limits = [build.constant(1)] * 4
    return build.add("FakeQuantize", [source, *limits], build.shape(source), levels=levels)


def _quantised_swish(build: GraphBuilder) -> Graph:
    """A software kernel between two products: it computes in f16, and a pass makes integers of its result."""
    value = build.convolution(build.parameter(1, 16, 8, 8), 16, 3)
    return quantised(build.build(build.convolution(build.activation(value, "Swish"), 16)))


def _quantised_factors(build: GraphBuilder) -> Graph:
    """What NNCF makes of x * sigmoid(x) from an ONNX file: nobody computes with these integers."""
    value = build.convolution(build.parameter(1, 16, 8, 8), 16, 3)
    gate = _quantise(build, build.activation(value, "Sigmoid"))
    return build.build(build.elementwise("Multiply", _quantise(build, value), gate))


def _spelled_integers(build: GraphBuilder) -> Graph:
    """QuantizeLinear and DequantizeLinear, as OpenVINO reads them, behind a software kernel."""
    value = build.activation(build.convolution(build.parameter(1, 16, 8, 8), 16, 3), "Swish")
    shape = build.shape(value)
    value = build.add("Convert", [_quantise(build, value)], shape, element_type="u8")
    value = build.elementwise("Subtract", build.add("Convert", [value], shape), build.constant(1))
    value = build.elementwise("Multiply", value, build.constant(1))
    weights = build.add("Convert", [build.constant(16, 16, 1, 1, element_type="i8")], (16, 16, 1, 1))
    return build.build(build.add("Convolution", [value, weights], shape, strides=(1, 1)))


def _many_levels(build: GraphBuilder) -> Graph:
    value = build.activation(build.convolution(build.parameter(1, 16, 8, 8), 16, 3), "Swish")
    return build.build(_quantise(build, value, levels=65536))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            _spelled_gelu,
            [
                "DPU MatMul: MatMul Add",
                "SHAVE Gelu: Divide Erf Add Multiply Multiply",
                "DPU MatMul: MatMul Add",
            ],
        ),
        (
            _spelled_normalisation,
            [
                "DPU MatMul: MatMul Add",
                "SHAVE MVN: ReduceMean Subtract Power ReduceMean Add Sqrt Divide",
                "DPU Scale: Multiply",
            ],
        ),
        (
            _shown_variance,
            [
                "DPU MatMul: MatMul Add",
                "SHAVE Power: Power",
                "SHAVE ReduceMean: ReduceMean",
                "DPU Scale: Add",
                "SHAVE Sqrt: Sqrt",
                "SHAVE Divide: Divide",
            ],
        ),
        (
            _attention,
            [
                "DPU Attention: ScaledDotProductAttention",
                "SHAVE AttentionSoftmax: ScaledDotProductAttention",
            ],
        ),
        (_convolution_with_activation, ["DPU Convolution: Convolution Add Relu"]),
        (_swish, ["DPU Convolution: Convolution Add", "SHAVE Swish: Sigmoid Multiply"]),
        (
            _gate,
            [
                "DPU Convolution: Convolution Add",
                "DPU Pool: ReduceMean",
                "DPU Convolution: Convolution Add",
                "SHAVE Sigmoid: Sigmoid",
                "SHAVE Multiply: Multiply",
            ],
        ),
        (
            _quantised_swish,
            [
                "DPU Convolution: Convolution Add",
                "SHAVE Swish: Swish",
                "DPU Quantize: FakeQuantize",
                "DPU Convolution: Convolution Add",
            ],
        ),
        (
            _quantised_factors,
            ["DPU Convolution: Convolution Add", "SHAVE Sigmoid: Sigmoid", "SHAVE Multiply: Multiply"],
        ),
        (
            _spelled_integers,
            [
                "DPU Convolution: Convolution Add",
                "SHAVE Swish: Swish",
                "DPU Quantize: FakeQuantize Convert Convert Subtract Multiply",
                "DPU Convolution: Convolution",
            ],
        ),
        (
            _many_levels,
            ["DPU Convolution: Convolution Add", "SHAVE Swish: Swish", "SHAVE FakeQuantize: FakeQuantize"],
        ),
        (_residual, ["DPU Convolution: Convolution Add", "SHAVE Relu: Relu", "DPU Eltwise: Add"]),
        (_normalised_product, ["DPU MatMul: MatMul Add", "SHAVE MVN: MVN", "DPU Scale: Multiply"]),
        (_views, ["DPU Convolution: Convolution Add"] * 3),
        (
            _permutations,
            [
                "DPU Convolution: Convolution Add",
                "DMA Transpose: Transpose",
                "SHAVE MemPermute: Transpose",
            ],
        ),
        (
            _resized,
            [
                "DPU Convolution: Convolution Add",
                "DMA Interpolate: Interpolate",
                "SHAVE Interpolate: Interpolate",
            ],
        ),
    ],
)
def test_operations_are_fused_as_the_device_computes_them(
    make: Callable[[GraphBuilder], Graph], expected: list[str]
) -> None:
    groups = fuse(make(GraphBuilder("small")))
    assert [
        f"{each.unit.value} {each.kernel}: {' '.join(member.type for member in each.members)}"
        for each in groups
    ] == expected


def test_a_native_sigmoid_is_fused_after_the_product() -> None:
    build = GraphBuilder("small")
    value = build.convolution(build.parameter(1, 16, 8, 8), 16, activation="Sigmoid")
    graph = build.build(value)
    assert len(fuse(graph)) == 2
    assert len(fuse(graph, frozenset(("Sigmoid",)))) == 1


@pytest.mark.parametrize(
    ("make", "kernel", "groups"),
    [(_swish, "Swish", 1), (_spelled_gelu, "Gelu", 2)],
)
def test_a_native_activation_spelled_in_operations_is_fused(
    make: Callable[[GraphBuilder], Graph], kernel: str, groups: int
) -> None:
    graph = make(GraphBuilder("small"))
    assert len(fuse(graph)) == groups + 1
    found = fuse(graph, frozenset((kernel,)))
    assert [group.unit.value for group in found] == ["DPU"] * groups
    assert len(found[0].members) > 2


def test_a_native_product_of_two_tensors_is_computed_by_the_dpu() -> None:
    build = GraphBuilder("small")
    graph = build.build(
        build.elementwise("Multiply", build.parameter(1, 16, 8, 8), build.parameter(1, 16, 8, 8))
    )
    assert [group.unit.value for group in fuse(graph)] == ["SHAVE"]
    assert [group.unit.value for group in fuse(graph, frozenset(("Multiply",)))] == ["DPU"]


def test_groups_list_what_they_read_and_write() -> None:
    build = GraphBuilder("small")
    image = build.parameter(1, 16, 8, 8)
    graph = build.build(build.convolution(image, 32, 3, activation="Relu"))
    (group,) = fuse(graph)
    assert group.inputs == (image,)
    assert [graph.tensor(source).shape for source in group.constants] == [(32, 16, 3, 3), (1, 32, 1, 1)]
    assert graph.operations[group.output.operation].type == "Relu"

"""Network layers: matrix products, convolutions, pooling, interpolation."""

from __future__ import annotations

from typing import Any

from tests.fuzz.models.graph import Graph, Skip
from tests.fuzz.models.operations.table import Table
from tests.fuzz.models.values import name_of

TABLE = Table()
_COMPUTED = ("f32", "f32", "f32", "f16", "bf16")


def _windows(graph: Graph, dims: int) -> dict[str, Any]:
    """Return strides, pads and dilations of a convolution."""
    dice = graph.dice
    return {
        "strides": [dice.pick((1, 1, 2)) for _ in range(dims)],
        "pads_begin": [dice.pick((0, 0, 1)) for _ in range(dims)],
        "pads_end": [dice.pick((0, 0, 1)) for _ in range(dims)],
        "dilations": [dice.pick((1, 1, 1, 2)) for _ in range(dims)],
        "auto_pad": dice.pick(("explicit", "explicit", "same_upper", "same_lower", "valid")),
    }


def _picture(graph: Graph, kinds: tuple[str, ...] = _COMPUTED) -> tuple[Any, str, list[int]]:
    """Return a value with samples, channels and one to three spatial dimensions."""
    one = graph.value(kinds, least=3, most=5, filled=True)
    return one, name_of(one.element_type), list(one.shape)


def _kernel(graph: Graph, sizes: list[int]) -> list[int]:
    return [graph.dice.randint(1, min(3, size + 1)) for size in sizes]


@TABLE.entry("MatMul", "MatMul again")
def _matmul(graph: Graph) -> object:
    one = graph.value(("f32", "f32", "f16", "bf16", "i32"), least=1, most=5)
    kind, shape = name_of(one.element_type), list(one.shape)
    first, second = (len(shape) > 1 and graph.dice.chance(0.3), graph.dice.chance(0.4))
    inner = shape[-2] if first else shape[-1]
    if graph.dice.chance(0.1):
        return graph.add("MatMul", [one, graph.weights([inner], kind)], {"transpose_a": first})
    width = graph.size()
    other = [width, inner] if second else [inner, width]
    if len(shape) > 2 and graph.dice.chance(0.4):
        other = [size if graph.dice.chance(0.7) else 1 for size in shape[:-2]] + other
    attributes = {"transpose_a": first, "transpose_b": second}
    return graph.add("MatMul", [one, graph.weights(other, kind)], attributes)


@TABLE.entry("a layer with bias")
def _full(graph: Graph) -> object:
    """Add a product, a bias and an activation, which the CPU fuses."""
    one = graph.value(("f32",), least=2, most=4, filled=True)
    width = graph.dice.randint(1, 8)
    out = graph.add(
        "MatMul", [one, graph.weights([width, list(one.shape)[-1]], "f32")], {"transpose_b": True}
    )
    out = graph.add("Add", [*out, graph.constant([width], "f32")], pooled=False)
    return graph.add(graph.dice.pick(("Relu", "Sigmoid", "Tanh", "HSwish")), out)


@TABLE.entry("Einsum")
def _einsum(graph: Graph) -> object:
    one = graph.value(("f32", "i32"), most=4, filled=True)
    shape, letters = list(one.shape), "abcd"[: len(one.shape)]
    dice = graph.dice
    if dice.chance(0.5):
        kept = "".join(dice.sample(letters, dice.randint(0, len(letters)))) if dice.chance(0.6) else letters
        return graph.add("Einsum", [one], {"equation": f"{letters}->{kept}"}, 7)
    shared = dice.sample(letters, dice.randint(0, len(letters)))
    second = "".join(shared) + "xy"[: dice.randint(0, 2)]
    sizes = [shape[letters.index(letter)] if letter in letters else dice.randint(1, 4) for letter in second]
    everything = sorted(set(letters + second))
    kept = "".join(dice.sample(everything, dice.randint(0, min(4, len(everything)))))
    other = graph.source(sizes, name_of(one.element_type))
    return graph.add("Einsum", [one, other], {"equation": f"{letters},{second}->{kept}"}, 7)


@TABLE.entry("Convolution", "Convolution again")
def _convolution(graph: Graph) -> object:
    one, kind, shape = _picture(graph)
    weights = graph.weights([graph.dice.randint(1, 8), shape[1], *_kernel(graph, shape[2:])], kind)
    out = graph.add("Convolution", [one, weights], _windows(graph, len(shape) - 2), 1)
    if graph.dice.chance(0.4):
        bias = graph.constant([1, list(out[0].shape)[1], *[1] * (len(shape) - 2)], kind)
        out = graph.add("Add", [*out, bias])
    return graph.add("Relu", out) if graph.dice.chance(0.3) else out


@TABLE.entry("GroupConvolution")
def _group_convolution(graph: Graph) -> object:
    one, kind, shape = _picture(graph)
    groups = graph.dice.pick([count for count in range(1, shape[1] + 1) if shape[1] % count == 0])
    sizes = [groups, graph.dice.randint(1, 3), shape[1] // groups, *_kernel(graph, shape[2:])]
    return graph.add(
        "GroupConvolution", [one, graph.weights(sizes, kind)], _windows(graph, len(shape) - 2), 1
    )


@TABLE.entry("ConvolutionBackpropData", "GroupConvolutionBackpropData")
def _deconvolution(graph: Graph) -> object:
    one, kind, shape = _picture(graph)
    kernel = _kernel(graph, shape[2:])
    attributes = _windows(graph, len(kernel))
    attributes["output_padding"] = [0] * len(kernel)
    if graph.dice.chance(0.5):
        weights = graph.weights([shape[1], graph.dice.randint(1, 6), *kernel], kind)
        return graph.add("ConvolutionBackpropData", [one, weights], attributes, 1)
    groups = graph.dice.pick([count for count in range(1, shape[1] + 1) if shape[1] % count == 0])
    weights = graph.weights([groups, shape[1] // groups, graph.dice.randint(1, 3), *kernel], kind)
    return graph.add("GroupConvolutionBackpropData", [one, weights], attributes, 1)


@TABLE.entry("DeformableConvolution")
def _deformable(graph: Graph) -> object:
    one = graph.value(("f32",), rank=4, filled=True)
    shape = list(one.shape)
    kernel = [1, 1] if graph.dice.chance(0.3) else [min(2, shape[2]), min(2, shape[3])]
    out = [shape[2] - kernel[0] + 1, shape[3] - kernel[1] + 1]
    offsets = graph.source([shape[0], 2 * kernel[0] * kernel[1], *out], "f32")
    weights = graph.source([graph.dice.randint(1, 4), shape[1], *kernel], "f32", constant=1.0)
    attributes = {"strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1]}
    return graph.add(
        "DeformableConvolution", [one, offsets, weights], {**attributes, "group": 1, "deformable_group": 1}, 8
    )


def _pool(graph: Graph, sizes: list[int]) -> dict[str, Any]:
    kernel = [graph.dice.randint(1, min(3, size)) for size in sizes]
    return {
        "kernel": kernel,
        "strides": [graph.dice.pick((1, 2)) for _ in kernel],
        "pads_begin": [0 if size == 1 else graph.dice.pick((0, 0, 1)) for size in kernel],
        "pads_end": [0 if size == 1 else graph.dice.pick((0, 0, 1)) for size in kernel],
        "rounding_type": graph.dice.pick(("floor", "ceil")),
        "auto_pad": graph.dice.pick(("explicit", "explicit", "same_upper", "same_lower", "valid")),
    }


@TABLE.entry("AvgPool")
def _average(graph: Graph) -> object:
    one, _, shape = _picture(graph)
    attributes = {**_pool(graph, shape[2:]), "exclude-pad": graph.dice.chance(0.5)}
    return graph.add("AvgPool", [one], attributes, graph.dice.pick((1, 14)))


@TABLE.entry("MaxPool", "MaxPool again")
def _maximum(graph: Graph) -> object:
    one, _, shape = _picture(graph, ("f32", "f32", "f16", "i8", "u8"))
    attributes = _pool(graph, shape[2:])
    opset = graph.dice.pick((1, 8, 14))
    if opset > 1:
        attributes.update(
            dilations=[1] * (len(shape) - 2), index_element_type=graph.dice.pick(("i32", "i64")), axis=0
        )
    return graph.add("MaxPool", [one], attributes, opset)


@TABLE.entry("AdaptiveAvgPool", "AdaptiveMaxPool")
def _adaptive(graph: Graph) -> object:
    one, _, shape = _picture(graph, ("f32",))
    sizes = graph.axes([graph.dice.randint(1, size) for size in shape[2:]])
    if graph.dice.chance(0.5):
        return graph.add("AdaptiveAvgPool", [one, sizes], opset=8)
    return graph.add(
        "AdaptiveMaxPool", [one, sizes], {"index_element_type": graph.dice.pick(("i32", "i64"))}, 8
    )


@TABLE.entry("Interpolate", "Interpolate again")
def _interpolate(graph: Graph) -> object:
    one, _, shape = _picture(graph, ("f32", "f32", "f16", "u8"))
    dice = graph.dice
    axes = list(range(2, len(shape)))
    by_sizes = dice.chance(0.5)
    opset = dice.pick((4, 4, 11))
    modes = ("nearest", "linear_onnx", "linear", "cubic") + (
        ("bilinear_pillow", "bicubic_pillow") if opset == 11 else ()
    )
    attributes = {
        "mode": dice.pick(modes),
        "shape_calculation_mode": "sizes" if by_sizes else "scales",
        "coordinate_transformation_mode": dice.pick(
            ("half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn", "align_corners")
        ),
        "nearest_mode": dice.pick(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")),
        "antialias": dice.chance(0.2),
        "pads_begin": [0],
        "pads_end": [0],
        "cube_coeff": -0.75,
    }
    sizes = graph.number([dice.randint(1, 9) for _ in axes])
    scales = graph.number([dice.pick((0.5, 1.0, 1.5, 2.0)) for _ in axes], "f32")
    if opset == 11:
        return graph.add(
            "Interpolate", [one, sizes if by_sizes else scales, graph.number(axes)], attributes, 11
        )
    return graph.add("Interpolate", [one, sizes, scales, graph.number(axes)], attributes, 4)


@TABLE.entry("ScaledDotProductAttention")
def _attention(graph: Graph) -> object:
    query = graph.value(("f32",), least=3, most=4, filled=True)
    shape = list(query.shape)
    keys = [*shape[:-2], graph.dice.randint(1, 6), shape[-1]]
    inputs = [query, graph.source(keys, "f32"), graph.source(keys, "f32")]
    causal = graph.dice.chance(0.3)
    if not causal and graph.dice.chance(0.4):
        inputs.append(graph.source([shape[-2], keys[-2]], graph.dice.pick(("f32", "boolean"))))
    return graph.add("ScaledDotProductAttention", inputs, {"causal": causal})


@TABLE.entry("Inverse")
def _inverse(graph: Graph) -> object:
    size = graph.dice.randint(1, 4)
    one = graph.source([*graph.shape(most=2), size, size], "f32", (-3, 3))
    return graph.add("Inverse", [one], {"adjoint": graph.dice.chance(0.3)}, 14)


@TABLE.entry("GridSample")
def _grid(graph: Graph) -> object:
    one = graph.value(("f32",), rank=4, filled=True)
    if 0 in one.shape:
        raise Skip("an empty picture")
    grid = graph.source(
        [next(iter(one.shape)), graph.dice.randint(1, 4), graph.dice.randint(1, 4), 2], "f32", (-1, 1)
    )
    attributes = {
        "align_corners": graph.dice.chance(0.5),
        "mode": graph.dice.pick(("bilinear", "nearest", "bicubic")),
        "padding_mode": graph.dice.pick(("zeros", "border", "reflection")),
    }
    return graph.add("GridSample", [one, grid], attributes, 9)

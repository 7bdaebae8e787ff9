"""Types of operations, by their effect on the precision of results on the device."""

from __future__ import annotations

from typing import Final

MULTIPLIERS: Final = frozenset(
    {
        "BinaryConvolution", "Convolution", "ConvolutionBackpropData", "DeformableConvolution",
        "GroupConvolution", "GroupConvolutionBackpropData", "MatMul",
    }
)  # fmt: skip
"""Heads of a group: sums of products, accumulated in f32."""

ACTIVATIONS: Final = frozenset(
    {
        "Clamp", "Elu", "Gelu", "HSigmoid", "HSwish", "Mish", "PRelu", "Relu", "Sigmoid", "SoftPlus",
        "Swish", "Tanh",
    }
)  # fmt: skip
"""Ends of a group, behind the bias."""

MOVING: Final = frozenset(
    {
        "Abs", "AdaptiveMaxPool", "Assign", "BatchToSpace", "Broadcast", "Bucketize", "Ceiling", "Concat",
        "DepthToSpace", "ExtractImagePatches", "Floor", "Gather", "GatherElements", "GatherND",
        "GatherTree", "If", "Loop", "MaxPool", "Maximum", "Minimum", "Negative", "Pad", "Relu",
        "ReduceMax", "ReduceMin", "ReorgYolo", "Reshape", "Reverse", "ReverseSequence", "Roll", "Round",
        "ScatterElementsUpdate", "ScatterNDUpdate", "ScatterUpdate", "SearchSorted", "Select",
        "ShuffleChannels", "Sign", "Slice", "SliceScatter", "SpaceToBatch", "SpaceToDepth", "Split",
        "Squeeze", "StridedSlice", "TensorIterator", "Tile", "TopK", "Transpose", "Unique", "Unsqueeze",
        "VariadicSplit",
    }
)  # fmt: skip
"""Results that are f16 without rounding if the inputs are: moved, selected, or negated."""

QUANTISED: Final = "FakeQuantize"

FULL_PRECISION_INPUTS: Final[dict[str, frozenset[int]]] = {
    "BatchNormInference": frozenset({0, 1, 2, 3, 4}),  # folded into weights before these are rounded
    "FakeQuantize": frozenset({1, 2, 3, 4}),
    "Interpolate": frozenset({1, 2, 3}),
    "Range": frozenset({0, 1, 2}),
    "RandomUniform": frozenset({0, 1, 2}),
    "NonMaxSuppression": frozenset({2, 3, 4, 5}),
}
"""Inputs, by position, whose constants are settings of an operation: they are not rounded."""

FULL_PRECISION: Final = frozenset({"Range", "RandomUniform"})
"""Operations of the compiler, or without arithmetic, that also keep f32 on the device."""

TYPES: Final = frozenset(
    {
        *MULTIPLIERS, *ACTIVATIONS, *MOVING, QUANTISED,
        "Acos", "Acosh", "AdaptiveAvgPool", "Add", "Asin", "Asinh", "Atan", "Atanh", "AvgPool",
        "BatchNormInference", "Convert", "Cos", "Cosh", "CTCGreedyDecoder", "CumSum",
        "DeformablePSROIPooling", "DetectionOutput", "DFT", "Divide", "Einsum", "EmbeddingBagOffsetsSum",
        "EmbeddingBagPackedSum", "EmbeddingSegmentsSum", "Erf", "Exp", "Eye", "FloorMod", "GRN", "GRUCell",
        "GRUSequence", "GridSample", "GroupNormalization", "HardSigmoid", "IDFT", "IRDFT", "Interpolate",
        "Inverse", "LRN", "LSTMCell", "LSTMSequence", "Log", "LogSoftmax", "MVN", "Mod", "Multiply",
        "NonMaxSuppression", "NormalizeL2", "OneHot", "PSROIPooling", "Power", "Proposal", "RDFT", "RMS",
        "RNNCell", "RNNSequence", "ROIAlign", "ROIPooling", "RandomUniform", "Range", "ReduceL1",
        "ReduceL2", "ReduceMean", "ReduceProd", "ReduceSum", "RegionYolo", "ScaledDotProductAttention",
        "Selu", "Sin", "Sinh", "Softmax", "SoftSign", "Sqrt", "SquaredDifference", "STFT", "Subtract",
        "Tan",
    }
)  # fmt: skip
"""Valid names in the list of layers in f32: OpenVINO's types."""

ALIASES: Final[dict[str, str]] = {
    "AvgPool16": "AvgPool",
    "FullyConnected": "MatMul",
    "GroupTransposedConvolution": "GroupConvolutionBackpropData",
    "LeakyRelu": "PRelu",
    "MVN6": "MVN",
    "MaxPool8": "MaxPool",
    "ReLU": "Relu",
    "SDPA": "ScaledDotProductAttention",
    "SoftMax": "Softmax",
    "SpaceToDepthOp": "SpaceToDepth",
    "SquaredDiff": "SquaredDifference",
    "TransposedConvolution": "ConvolutionBackpropData",
}
"""Names in the real compiler's dialect for OpenVINO's types."""

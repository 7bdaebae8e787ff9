"""The rules: each one's statement about silicon, its source, and the remedy.

Rules without a source are excluded. Cases known neither to be taken nor to be refused have a rule whose
verdict is `UNKNOWN`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from softnpu.emulator.prediction.support.findings import Finding, Source, Verdict
from softnpu.emulator.prediction.support.operation_table import operation_table

MAX_ARGUMENT_RANK: Final = 5
"""`ZE_MAX_GRAPH_ARGUMENT_DIMENSIONS_SIZE`."""
MAX_ARGUMENT_NAME: Final = 256
"""`ZE_MAX_GRAPH_ARGUMENT_NAME`, including the terminating zero."""
MAX_DIMENSION: Final = 2**32 - 1
"""Dimensions of an argument are `uint32_t`."""
VERSION: Final = 3
"""Raise it when a rule changes: models compiled strictly under other rules are compiled again."""
ALL_PLATFORMS: Final = ("3720", "4000", "5010", "5020")

IMPORTER: Final = operation_table().source
_QUANTISATION: Final = Source(
    "openvinotoolkit/npu_compiler",
    "src/vpux_compiler/src/utils/quantization.cpp",
    "commit ebab0bbc2125",
    "2026",
)
_PRECISION: Final = Source(
    "openvinotoolkit/npu_compiler",
    "src/vpux_compiler/src/dialect/IE/transforms/passes/convert_precision_to_fp.cpp",
    "commit ebab0bbc2125",
    "2026",
)
_TO_4D: Final = Source(
    "openvinotoolkit/npu_compiler",
    "src/vpux_compiler/src/dialect/IE/transforms/passes/convert_shape_to_4d.cpp",
    "commit 65e4a87bba42",
    "2025",
)
_GRAPH_EXTENSION: Final = Source(
    "intel/level-zero-npu-extensions", "ze_graph_ext.h", "commit 253cca81113c", "2026"
)
_BOUNDS: Final = Source(
    "openvinotoolkit/npu_compiler",
    "src/vpux_compiler/docs/design/dynamic_shapes_bounds_handling.md",
    "commit 65e4a87bba42",
    "2025",
)
_DEVICES: Final = Source(
    "openvinotoolkit/openvino",
    "docs/articles_en/documentation/compatibility-and-support/supported-devices.rst",
    "commit 765d6f005f00",
    "2024-11-20",
)
_NPU_PAGE: Final = Source(
    "openvinotoolkit/openvino",
    "docs/articles_en/openvino-workflow/running-inference/inference-devices-and-modes/npu-device.rst",
    "commit 1158c499eba9",
    "2025",
)
_BATCHING: Final = Source(
    "openvinotoolkit/openvino",
    "docs/articles_en/openvino-workflow/running-inference/inference-devices-and-modes/npu-device/"
    "batching-on-npu-plugin.rst",
    "commit 60f2208b1af6",
    "2025",
)
_FAKE_CONVERT: Final = Source(
    "openvinotoolkit/npu_compiler",
    "tests/functional/shared_tests_instances/single_layer_tests/fake_convert.cpp",
    "commit 0ccf9bf3faf8",
    "2025",
)
_TO_I32: Final = Source(
    "openvinotoolkit/npu_compiler",
    "tests/lit/NPU/dialect/IE/passes/convert_precision_to_i32.mlir",
    "commit 0ccf9bf3faf8",
    "2025",
)
_OPTIONS: Final = Source(
    "openvinotoolkit/npu_compiler",
    "src/vpux_utils/include/vpux/utils/ov/options.hpp",
    "commit ebab0bbc2125",
    "2026",
)
_PLUGIN_OPTIONS: Final = Source(
    "openvinotoolkit/openvino",
    "src/plugins/intel_npu/src/al/include/intel_npu/config/options.hpp",
    "commit 603b0c53b1d5",
    "2025",
)


def _thread(kind: str, number: int, date: str, repository: str = "openvinotoolkit/openvino") -> Source:
    return Source(repository, f"{kind} {number}", "", date)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `expected` says what silicon takes, `hint` how to fix it."""

    id: str
    verdict: Verdict
    expected: str
    hint: str
    sources: tuple[Source, ...]
    platforms: tuple[str, ...] = ALL_PLATFORMS

    def finding(self, found: str, layers: Iterable[str] = ()) -> Finding:
        """Return the rule's statement about `found`."""
        return Finding(
            self.id, self.verdict, found, self.expected, self.hint, self.sources, tuple(dict.fromkeys(layers))
        )


_ELSEWHERE = "leave these layers to another device (HETERO:NPU,CPU), or express them with other operations"
_FIX_SHAPES = "give every input a static shape: Model.reshape, or --shape of softnpu predict and compile"

RULES: Final = {
    rule.id: rule
    for rule in (
        Rule(
            "operation.unsupported",
            Verdict.REFUSES,
            "operations that the NPU compiler imports",
            _ELSEWHERE,
            (IMPORTER,),
        ),
        Rule(
            "operation.version",
            Verdict.UNKNOWN,
            "a version that the NPU compiler imports, or that a pass of OpenVINO converts first",
            "convert the model again, with a newer opset",
            (IMPORTER,),
        ),
        Rule(
            "operation.custom",
            Verdict.UNKNOWN,
            "operations of OpenVINO's opsets 1 to 17",
            "the NPU compiler takes operations of others only with a kernel of their own (kernel_path)",
            (IMPORTER,),
        ),
        Rule(
            "operation.attribute",
            Verdict.REFUSES,
            "attributes that the importer's parser of this operation accepts",
            _ELSEWHERE,
            (IMPORTER,),
        ),
        Rule(
            "operation.constant-input",
            Verdict.REFUSES,
            "a constant there: the importer makes it an attribute",
            "make this input a constant of the model, or leave the layer to another device (HETERO:NPU,CPU)",
            (IMPORTER,),
        ),
        Rule(
            "operation.same-upper",
            Verdict.UNKNOWN,
            "auto_pad of same_upper with strides of 1: the newest importer makes explicit pads of these only",
            "save the model with explicit pads, which older compilers took from static shapes",
            (IMPORTER,),
        ),
        Rule(
            "operation.quantisation-levels",
            Verdict.UNKNOWN,
            "a FakeQuantize of 2, 4, 15, 16, 255, 256 or 65536 levels",
            "quantise to one of these: the compiler has no storage type for others, if it quantises at all",
            (_QUANTISATION,),
        ),
        Rule(
            "operation.slice",
            Verdict.UNKNOWN,
            "constant bounds, with which a Slice becomes a StridedSlice",
            "make start, stop and step constants",
            (IMPORTER,),
        ),
        Rule(
            "operation.pad-negative",
            Verdict.REFUSES,
            "pads of 0 or more: only these become the version 1 that the NPU compiler imports",
            "cut with StridedSlice in place of negative pads",
            (IMPORTER, _thread("issue", 29514, "2025-03-17")),
        ),
        Rule(
            "operation.pad-variable",
            Verdict.UNKNOWN,
            "constant pads",
            "make the pads constants",
            (IMPORTER, _thread("issue", 29514, "2025-03-17")),
        ),
        Rule(
            "operation.interpolate-pillow",
            Verdict.REFUSES,
            "nearest, linear, linear_onnx or cubic: version 4, which the compiler imports, has no other mode",
            "take another mode, or resize before the model",
            (IMPORTER,),
        ),
        Rule(
            "type.unsupported",
            Verdict.REFUSES,
            "f32, f16, bf16, boolean, integers of 4 to 64 bits; f8e4m3, f8e5m2, f4e2m1, nf4, u2 for weights",
            "convert these tensors in the model, or before it",
            (IMPORTER, _thread("issue", 27626, "2024-11-27")),
        ),
        Rule(
            "type.f8e8m0",
            Verdict.UNKNOWN,
            "f8e4m3 or f8e5m2",
            "the importer keeps constants of this type for dequantisation, and has no type for them",
            (IMPORTER,),
        ),
        Rule(
            "type.f64",
            Verdict.UNKNOWN,
            "f32 or f16",
            "the importer takes f64; nothing says that a kernel does. Convert to f32",
            (IMPORTER,),
        ),
        Rule(
            "type.f8",
            Verdict.UNKNOWN,
            "a platform whose tests of FakeConvert are not skipped: 5010",
            "quantise to int8 for this platform",
            (_FAKE_CONVERT,),
            ("3720", "4000", "5020"),
        ),
        Rule(
            "type.integers-of-64-bits",
            Verdict.TAKES,
            "values that fit into 32 bits: the compiler computes 64-bit integers in these",
            "",
            (_TO_I32,),
        ),
        Rule(
            "shape.rank-open",
            Verdict.REFUSES,
            "tensors of a known rank",
            _FIX_SHAPES,
            (IMPORTER,),
        ),
        Rule(
            "shape.unbounded",
            Verdict.REFUSES,
            "static shapes, or an upper bound for every open dimension",
            _FIX_SHAPES,
            (
                IMPORTER,
                _BOUNDS,
                _thread("issue", 32466, "2025-10-18"),
                _thread("pull request", 34651, "2026-03-12"),
                _thread("pull request", 4047, "2026-08-20", "openvinotoolkit/open_model_zoo"),
            ),
        ),
        Rule(
            "shape.batch",
            Verdict.UNKNOWN,
            "a static batch",
            "OpenVINO's NPU plugin compiles such a model for one sample where it can; with a static batch"
            " of 1 nothing depends on that",
            (_BATCHING, _thread("pull request", 34651, "2026-03-12")),
        ),
        Rule(
            "shape.bounded",
            Verdict.UNKNOWN,
            "static shapes",
            "the compiler takes upper bounds, operation by operation; OpenVINO's page says static shapes"
            " only. NPU_DYNAMIC_SHAPE_TO_STATIC=YES compiles for the bounds",
            (_BOUNDS, _NPU_PAGE),
        ),
        Rule(
            "shape.inferred",
            Verdict.UNKNOWN,
            "shapes that follow from those of the inputs, or a bound for them",
            "the size depends on values; the compiler bounds some operations itself. Keep this part on the"
            " CPU (HETERO:NPU,CPU) if it fails",
            (_BOUNDS,),
        ),
        Rule(
            "rank.argument",
            Verdict.REFUSES,
            f"inputs, outputs and states with at most {MAX_ARGUMENT_RANK} dimensions",
            "reshape inside the model, so that its inputs and outputs have fewer",
            (_GRAPH_EXTENSION, _thread("issue", 30532, "2025-05-20")),
        ),
        Rule(
            "rank.inner",
            Verdict.UNKNOWN,
            "tensors with at most 5 dimensions",
            "some operations are rewritten with fewer dimensions, others are not",
            (_TO_4D, _thread("issue", 37265, "2026-08-11")),
        ),
        Rule(
            "state.unbounded",
            Verdict.REFUSES,
            "states of a static shape",
            "OpenVINO's NPUW makes such states inputs and outputs of a static size first; GenAI's LLMPipeline"
            " uses it",
            (IMPORTER, _thread("pull request", 27651, "2024-11-20")),
        ),
        Rule(
            "state.bounded",
            Verdict.UNKNOWN,
            "states of a static shape",
            "give the state its largest shape",
            (_DEVICES, _thread("pull request", 27651, "2024-11-20")),
        ),
        Rule(
            "size.dimension",
            Verdict.REFUSES,
            f"dimensions of at most {MAX_DIMENSION} elements in inputs and outputs",
            "split the tensor",
            (_GRAPH_EXTENSION,),
        ),
        Rule(
            "size.name",
            Verdict.UNKNOWN,
            f"names of inputs and outputs of less than {MAX_ARGUMENT_NAME} bytes",
            "shorten the name: the field is cut, and names that begin alike become one",
            (_GRAPH_EXTENSION,),
        ),
        Rule(
            "configuration.tiles",
            Verdict.REFUSES,
            "at most the tiles of the platform: 2 of 3720, 6 of 4000, 3 of 5010, 1 of 5020",
            "ask for fewer, or leave NPU_TILES to the device",
            (_NPU_PAGE,),
        ),
        Rule(
            "configuration.precision",
            Verdict.REFUSES,
            "f16 or i8",
            "the device computes in f16: leave INFERENCE_PRECISION_HINT out",
            (_OPTIONS, _PLUGIN_OPTIONS),
        ),
        Rule(
            "configuration.layers",
            Verdict.REFUSES,
            "words of the compiler's dialect, such as SoftMax, ReLU or FullyConnected, or its patterns",
            "replace OpenVINO's types by the compiler's words: softnpu predict gives lists in these",
            (_PRECISION,),
        ),
    )
}
"""All rules by id."""

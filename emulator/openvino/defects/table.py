"""The faults of OpenVINO's CPU runtime that softnpu knows, in the order in which their remedies are applied.

`DEFECTS` is the only list of them: `remedies` applies it, docs/defects.md is written from it, and a test in
tests/openvino says of each when it can go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import openvino as ov

from softnpu.emulator.arithmetic import settings as arithmetic
from softnpu.emulator.common import packed_types
from softnpu.emulator.common.model_bodies import all_bodies
from softnpu.emulator.openvino.defects import (
    computed_slices,
    constant_parts,
    dynamic_results,
    empty_tensors,
    few_integers,
    gathers,
    index_guards,
    inner_dimensions,
    invariant_updates,
    moved_elements,
    pads,
    pooled_indices,
    quantised_subgraphs,
    rounded_states,
    saturated_sums,
    sequence_lengths,
    shared_tensors,
    size_guards,
    streams,
)
from softnpu.emulator.openvino.defects.defect import Build, Defect, Harm, Stage
from softnpu.emulator.openvino.defects.guarding import guarded

_BROKEN_UP: Final = "a loop of its cells, which stops at each length"
_REFUSED: Final = "a wrong one is refused"
_NEAREST: Final = "a wrong one becomes the nearest right one"


def _empty_results(model: ov.Model) -> bool:
    parts = [part for part in [model, *all_bodies(model)] if empty_tensors.replace(part)]
    for part in parts:
        part.validate_nodes_and_infer_types()
    return bool(parts)


def _separate_states(model: ov.Model, build: Build) -> None:
    is_rounded = build.meta.precision == arithmetic.PRECISION
    if not is_rounded and "BF16" in build.core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        rounded_states.separate_states(model, build.meta)


def _fold(model: ov.Model, build: Build) -> None:
    constant_parts.fold(build.core, model, build.properties)


def _take_inputs(
    model: ov.Model, compiled: ov.CompiledModel, _properties: Mapping[str, str]
) -> Mapping[str, str] | None:
    return {} if shared_tensors.take_inputs(model, compiled) else None


def _split_subgraphs(
    model: ov.Model, compiled: ov.CompiledModel, _properties: Mapping[str, str]
) -> Mapping[str, str] | None:
    if not quantised_subgraphs.are_in(model, compiled):
        return None
    quantised_subgraphs.make_loadable(model)
    return quantised_subgraphs.UNFUSED


def _with_one_stream(
    model: ov.Model, compiled: ov.CompiledModel, properties: Mapping[str, str]
) -> Mapping[str, str] | None:
    one = {"NUM_STREAMS": "1"}
    is_wrong = not one.items() <= properties.items() and streams.are_wrong_for(model, compiled)
    return one if is_wrong else None


DEFECTS: Final = (
    Defect(
        "packed-elements",
        "A Gather, Slice, Concat and the like of elements of which several share a byte",
        Harm.WRITES_MEMORY,
        "they are converted to whole bytes first",
        Stage.MODEL,
        packed_types.widen,
        concerns=lambda seen: not seen.element_types.isdisjoint(packed_types.PACKED),
    ),
    Defect(
        "sequence-lengths",
        "An RNNSequence, GRUSequence or LSTMSequence with open dimensions and lengths, or a length of 0",
        Harm.WRONG_NUMBERS,
        _BROKEN_UP,
        Stage.MODEL,
        sequence_lengths.heed,
        concerns=lambda seen: not seen.kinds.isdisjoint(sequence_lengths.STATES),
        upstream="https://github.com/openvinotoolkit/openvino/pull/10710",
    ),
    Defect(
        "sequence-first-states",
        "An RNNSequence, GRUSequence or LSTMSequence of an open batch, with a constant first state",
        Harm.REFUSES,
        "the data get the batch of the state",
        Stage.MODEL,
        sequence_lengths.of_known_batch,
        ("RNNSequence", "GRUSequence", "LSTMSequence"),
    ),
    Defect(
        "empty-results",
        "An operation on a tensor without elements whose result has some, of known shapes",
        Harm.SHOWS_MEMORY,
        "a constant: 0, the lowest number, or the first state",
        Stage.MODEL,
        _empty_results,
        concerns=lambda seen: seen.may_be_empty,
        upstream="https://github.com/openvinotoolkit/openvino/issues/35894",
    ),
    Defect(
        "loop-invariant-updates",
        "A ScatterUpdate, ScatterElementsUpdate or ScatterNDUpdate of an invariant input of a loop",
        Harm.WRONG_NUMBERS,
        "an update of a copy",
        Stage.MODEL,
        invariant_updates.separate_states,
        concerns=lambda seen: not seen.kinds.isdisjoint(invariant_updates.LOOPS),
    ),
    Defect(
        "gather-computed-axis",
        "A Gather along an axis that changes between inferences",
        Harm.WRITES_MEMORY,
        "a Gather along a known axis of data with three dimensions",
        Stage.MODEL,
        gathers.along_computed_axis,
        ("Gather",),
    ),
    Defect(
        "gather-one-batch",
        "A Gather with batch dimensions of size 1",
        Harm.SHOWS_MEMORY,
        "a Gather without batch dimensions",
        Stage.MODEL,
        gathers.of_one_batch,
        ("Gather",),
    ),
    Defect(
        "gather-few-integers",
        "A Gather of up to 64 integers in one dimension, with an index out of range",
        Harm.SHOWS_MEMORY,
        "a Gather of rows, which gives 0 there",
        Stage.MODEL,
        few_integers.gather,
        ("Gather",),
        upstream="https://github.com/openvinotoolkit/openvino/pull/21932",
    ),
    Defect(
        "batch-to-space-no-op",
        "A BatchToSpace that does nothing, of another than the first result of an operation",
        Harm.WRONG_NUMBERS,
        "it is left out",
        Stage.MODEL,
        moved_elements.batch_to_space,
        ("BatchToSpace",),
    ),
    Defect(
        "pooled-indices",
        "An AdaptiveMaxPool with indices of i64, used or not",
        Harm.REFUSES,
        "indices of i32, converted",
        Stage.MODEL,
        pooled_indices.adaptive_max_pool,
        ("AdaptiveMaxPool",),
    ),
    Defect(
        "tile-repeats",
        "A Tile with more or fewer repeats than dimensions, or none",
        Harm.WRONG_NUMBERS,
        "a Tile with as many of both",
        Stage.MODEL,
        moved_elements.tile,
        ("Tile",),
    ),
    Defect(
        "pad-computed-value",
        "A Pad whose value is computed",
        Harm.WRONG_NUMBERS,
        "a Select between a Pad with 0 and the value",
        Stage.MODEL,
        pads.pad,
        ("Pad",),
        upstream="https://github.com/openvinotoolkit/openvino/pull/15146",
    ),
    Defect(
        "state-of-16-bits",
        "A dynamic state of f16 or bf16 that is an output as it is, in several requests",
        Harm.WRONG_NUMBERS,
        "a Slice of all of it is the output",
        Stage.MODEL,
        dynamic_results.read_value,
        ("ReadValue",),
    ),
    Defect(
        "scatter-update-integers",
        "A ScatterUpdate of integers in one dimension, with an index out of range",
        Harm.WRITES_MEMORY,
        "a ScatterUpdate of rows, which OpenVINO checks",
        Stage.MODEL,
        few_integers.scatter_update,
        ("ScatterUpdate",),
        upstream="https://github.com/openvinotoolkit/openvino/pull/38297",
    ),
    Defect(
        "slice-computed-axes",
        "A Slice along axes that are an input",
        Harm.ENDS_PROCESS,
        "a Slice along all axes, with bounds that leave the others whole",
        Stage.MODEL,
        computed_slices.slice_,
        ("Slice",),
    ),
    Defect(
        "slice-scatter-computed-bounds",
        "A SliceScatter with bounds that change between inferences, or of open shapes",
        Harm.WRITES_MEMORY,
        "a ScatterUpdate along each axis",
        Stage.MODEL,
        computed_slices.slice_scatter,
        ("SliceScatter",),
        upstream="https://github.com/openvinotoolkit/openvino/pull/27482",
    ),
    Defect(
        "transpose-without-order",
        "A Transpose without an order, whose shape is used",
        Harm.ENDS_PROCESS,
        "the reversed order is written out",
        Stage.MODEL,
        moved_elements.transpose,
        ("Transpose",),
    ),
    Defect(
        "loop-result-moves",
        "An operation on the dynamic result of a Loop or TensorIterator, when memory moves",
        Harm.SHOWS_MEMORY,
        "a Slice of all of the result is looked up anew",
        Stage.MODEL,
        dynamic_results.loop,
        ("TensorIterator", "Loop"),
    ),
    Defect(
        "gather-nd-indices",
        "A GatherND with an index out of range",
        Harm.SHOWS_MEMORY,
        _NEAREST,
        Stage.BOUNDS,
        guarded({1: index_guards.gather_nd}),
        ("GatherND",),
        upstream="https://github.com/openvinotoolkit/openvino/pull/38297",
    ),
    Defect(
        "scatter-elements-indices",
        "A ScatterElementsUpdate with an index below its range, or more indices than elements",
        Harm.WRITES_MEMORY,
        _REFUSED,
        Stage.BOUNDS,
        guarded({1: index_guards.scatter_elements}),
        ("ScatterElementsUpdate",),
        upstream="https://github.com/openvinotoolkit/openvino/pull/38297",
    ),
    Defect(
        "ctc-loss-labels",
        "A CTCLoss with a label or a blank that is no class",
        Harm.SHOWS_MEMORY,
        "a wrong label becomes the nearest right one, a wrong blank is refused",
        Stage.BOUNDS,
        guarded({2: index_guards.ctc_labels, 4: index_guards.blanks}),
        ("CTCLoss",),
    ),
    Defect(
        "multiclass-nms-counts",
        "A MulticlassNms with more boxes for its images than there are",
        Harm.SHOWS_MEMORY,
        _REFUSED,
        Stage.BOUNDS,
        guarded({2: index_guards.box_counts}),
        ("MulticlassNms",),
    ),
    Defect(
        "roi-pooling-images",
        "A PSROIPooling or DeformablePSROIPooling with a region of an image that there is not",
        Harm.SHOWS_MEMORY,
        _REFUSED,
        Stage.BOUNDS,
        guarded({1: index_guards.roi_batch}),
        ("PSROIPooling", "DeformablePSROIPooling"),
    ),
    Defect(
        "gather-tree-lengths",
        "A GatherTree with a length below 1",
        Harm.SHOWS_MEMORY,
        "such a sequence has end tokens only",
        Stage.BOUNDS,
        guarded({2: index_guards.tree_lengths}),
        ("GatherTree",),
    ),
    Defect(
        "pad-cuts",
        "A Pad that takes away more than there is, and adds something",
        Harm.WRITES_MEMORY,
        _REFUSED,
        Stage.BOUNDS,
        guarded({0: size_guards.cut_sizes}),
        ("Pad",),
    ),
    Defect(
        "variadic-split-lengths",
        "A VariadicSplit with a length of -1 and others that are longer than the data",
        Harm.SHOWS_MEMORY,
        _REFUSED,
        Stage.BOUNDS,
        guarded({0: size_guards.split_lengths}),
        ("VariadicSplit",),
    ),
    Defect(
        "region-yolo-channels",
        "A RegionYolo of fewer channels than its attributes say",
        Harm.SHOWS_MEMORY,
        _REFUSED,
        Stage.BOUNDS,
        guarded({0: size_guards.region_channels}),
        ("RegionYolo",),
    ),
    Defect(
        "transform-axes",
        "A DFT or IDFT along an axis that there is not",
        Harm.WRITES_MEMORY,
        _REFUSED,
        Stage.BOUNDS,
        guarded({1: index_guards.transform_axes}),
        ("DFT", "IDFT"),
    ),
    Defect(
        "col2im-blocks",
        "A Col2Im whose sizes, from inputs, ask for other blocks than there are",
        Harm.SHOWS_MEMORY,
        _REFUSED,
        Stage.BOUNDS,
        guarded({0: size_guards.block_counts}),
        ("Col2Im",),
    ),
    Defect(
        "deconvolution-output-shape",
        "A ConvolutionBackpropData whose output shape changes between inferences",
        Harm.WRITES_MEMORY,
        "an output shape that inputs give is refused",
        Stage.BOUNDS,
        guarded({2: size_guards.output_shape}),
        ("ConvolutionBackpropData", "GroupConvolutionBackpropData"),
    ),
    Defect(
        "roi-align-rotated-images",
        "A ROIAlignRotated with a region of an image that there is not",
        Harm.SHOWS_MEMORY,
        _REFUSED,
        Stage.BOUNDS,
        guarded({2: index_guards.image_numbers}),
        ("ROIAlignRotated",),
    ),
    Defect(
        "roll-axes",
        "A Roll along an axis that there is not",
        Harm.WRITES_MEMORY,
        _REFUSED,
        Stage.BOUNDS,
        guarded({2: index_guards.rolled_axes}),
        ("Roll",),
    ),
    Defect(
        "segment-max-numbers",
        "A SegmentMax with a negative segment, or one above the last",
        Harm.WRITES_MEMORY,
        _REFUSED,
        Stage.BOUNDS,
        guarded({1: index_guards.segments}),
        ("SegmentMax",),
    ),
    Defect(
        "sparse-rows",
        "A SparseFillEmptyRows with an index of a row that there is not",
        Harm.WRITES_MEMORY,
        _REFUSED,
        Stage.BOUNDS,
        guarded({2: index_guards.row_numbers}),
        ("SparseFillEmptyRows",),
    ),
    Defect(
        "inner-dimensions",
        "A MatMul or a recurrent layer with constant weights, whose input has another open inner dimension",
        Harm.SHOWS_MEMORY,
        _REFUSED,
        Stage.BOUNDS,
        inner_dimensions.guard,
        concerns=lambda seen: seen.may_be_empty,
    ),
    Defect(
        "empty-open-results",
        "An operation on a tensor that turns out to have no elements, whose result has some",
        Harm.SHOWS_MEMORY,
        "a Select of what nothing gives",
        Stage.BOUNDS,
        empty_tensors.guard,
        concerns=lambda seen: seen.may_be_empty,
        upstream="https://github.com/openvinotoolkit/openvino/pull/26830",
    ),
    Defect(
        "rounded-states",
        "A state of bf16 that is an output, on a host with bf16: fusing changes where it is rounded",
        Harm.WRONG_NUMBERS,
        "the output gets another shape, so that OpenVINO fuses the same",
        Stage.NUMBERS,
        _separate_states,
    ),
    Defect(
        "constant-parts",
        "An operation on what is computed of constants alone and not folded: it writes over that",
        Harm.WRONG_NUMBERS,
        "such values are computed before, and become constants",
        Stage.NUMBERS,
        _fold,
    ),
    Defect(
        "equal-dynamic-outputs",
        "Two equal outputs that are a dynamic input: one request writes into the input of another",
        Harm.WRONG_NUMBERS,
        "both become that input in the model",
        Stage.COMPILED,
        _take_inputs,
    ),
    Defect(
        "quantised-subgraphs",
        "A chain of quantised MatMuls, or quantised attention, from AVX-512 on",
        Harm.ENDS_PROCESS,
        "compiled with SNIPPETS_MODE=DISABLE",
        Stage.COMPILED,
        _split_subgraphs,
    ),
    Defect(
        "stream-constants",
        "Constants that are computed in several steps, with several streams",
        Harm.WRONG_NUMBERS,
        "compiled with one stream",
        Stage.COMPILED,
        _with_one_stream,
        upstream="https://github.com/openvinotoolkit/openvino/pull/4561",
    ),
    Defect(
        "saturated-sums",
        "A quantised layer on a processor without VNNI: sums of products overflow in 16 bits",
        Harm.WRONG_NUMBERS,
        "computed in f32",
        Stage.PROPERTIES,
        saturated_sums.properties,
        upstream="https://github.com/openvinotoolkit/nncf/pull/1027",
    ),
    Defect(
        "shared-tensors",
        "An output that is an input, or equals another output: both have one tensor",
        Harm.WRONG_NUMBERS,
        "such an output is copied from the tensor that has its value",
        Stage.BINDING,
        shared_tensors.origins,
    ),
)
"""One row for each fault. Of neighbours for one operation, the first that changes it is the only one."""

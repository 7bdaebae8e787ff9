"""Faults of operations that do not check an index or a size: a wrong one has to be refused."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from tests.openvino.faults.fault import Fault, Step, model, steps
from tests.openvino.index_models import CASES, SIZES, VALUES


def _of_index(name: str, *wrong: int) -> Fault:
    """Return a fault of a model of `CASES`, whose wrong indices have to be refused."""
    case = CASES[name]

    def make() -> ov.Model:
        data = ops.parameter(case.data.shape, case.data.dtype)
        indices = ops.parameter(case.right.shape, case.right.dtype)
        return model(case.make(data, indices), data, indices)

    return steps(make, *(Step([case.data, np.full_like(case.right, index)], None) for index in wrong))


def _of_values(*names: str) -> Fault:
    """Return a fault of models of `VALUES`: the wrong numbers of each have to be refused."""
    runs = []
    for name in names:
        build, data, right, wrong = VALUES[name]
        kind = np.int64 if "Col2Im" in name or "SegmentMax" in name else np.int32
        for shape in (list(data.shape), [-1] * data.ndim):

            def make(build=build, data=data, right=right, kind=kind, shape=shape) -> ov.Model:  # type: ignore[no-untyped-def]
                inputs = [ops.parameter(shape, data.dtype), ops.parameter(np.shape(right), kind)]
                return model(build(*inputs), *inputs)

            runs.append(steps(make, *(Step([data, np.array(each, kind)], None) for each in wrong)))
    return lambda compiled_by: next(filter(None, (run(compiled_by) for run in runs)), "")


def _of_size(*names: str) -> Fault:
    """Return a fault of models of `SIZES`: data that are too small have to be refused."""
    runs = []
    for name in names:
        build, open_shape, _, small = SIZES[name]

        def make(build=build, open_shape=open_shape) -> ov.Model:  # type: ignore[no-untyped-def]
            data = ops.parameter(list(open_shape), np.float32)
            return model(build(data), data)

        runs.append(steps(make, Step([np.zeros(small, np.float32)], None)))
    return lambda compiled_by: next(filter(None, (run(compiled_by) for run in runs)), "")


def _tree() -> ov.Model:
    steps_, lengths = ops.parameter([3, 1, 2], np.int32), ops.parameter([1], np.int32)
    parents, end = ops.constant(np.zeros((3, 1, 2), np.int32)), ops.constant(np.int32(9))
    return model(ops.gather_tree(steps_, parents, lengths, end), steps_, lengths)


def _loss() -> ov.Model:
    case = CASES["CTCLoss"]
    data, labels = ops.parameter(case.data.shape, np.float32), ops.parameter([4], np.int32)
    return model(case.make(data, labels), data, labels)


_TREE = np.arange(6, dtype=np.int32).reshape(3, 1, 2)

FAULTS: dict[str, Fault] = {
    "scatter-elements-indices": _of_index("ScatterElementsUpdate", -5, -5_000_000),
    "ctc-loss-labels": _of_values("CTCLoss"),
    "multiclass-nms-counts": _of_values("MulticlassNms"),
    "roi-pooling-images": _of_index("PSROIPooling", 5, -5, 5_000_000),
    "gather-tree-lengths": steps(_tree, Step([_TREE, np.array([0], np.int32)], [np.full((3, 1, 2), 9)])),
    "pad-cuts": _of_size("Pad", "Pad of a value"),
    "variadic-split-lengths": _of_size("VariadicSplit"),
    "region-yolo-channels": _of_size("RegionYolo", "RegionYolo with softmax"),
    "transform-axes": _of_values("DFT, axes", "IDFT, axes"),
    "col2im-blocks": _of_values("Col2Im"),
    "roi-align-rotated-images": _of_values("ROIAlignRotated"),
    "roll-axes": _of_values("Roll"),
    "segment-max-numbers": _of_values("SegmentMax", "SegmentMax with a count"),
    "sparse-rows": _of_values("SparseFillEmptyRows"),
}

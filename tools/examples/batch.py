"""A batch of any size: one compiled model, and requests with 1, 5 and 64 pictures at once.

With a dynamic batch the plugin compiles the model of handwritten digits for one picture all the same, and
executes it for each of a batch, so no size is compiled for. With the compiler in charge the device gets the
batch as it is. Both are compared with OpenVINO's CPU device.

    python -m softnpu.tools.examples.batch
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import openvino as ov

from softnpu.plugin import CompiledModel, Core, InputError
from softnpu.tools.demo.digits import load_test_set, model_path

SIZES = (1, 5, 64)


def main() -> int:
    images, labels = load_test_set()
    core = Core()
    model = core.read_model(model_path())
    model.reshape([-1, 1, 8, 8])
    model.get_parameters()[0].set_layout(ov.Layout("NCHW"))  # N says which axis is the batch

    compiled = core.compile_model(model, "NPU")
    show("NPU_BATCH_MODE=AUTO", compiled)
    right = several_at_once(compiled, model, images, labels)
    mismatch(compiled)

    fixed = core.compile_model(model, "NPU", {"NPU_BATCH_MODE": "COMPILER"}, shapes={"image": [64, 1, 8, 8]})
    show("NPU_BATCH_MODE=COMPILER, shape of 64", fixed)
    right &= equals(fixed([images[:64]])[0], expected(model, images[:64]))
    print("all numbers are those of the CPU" if right else "these are not the numbers of the CPU")
    return 0 if right else 1


def show(title: str, compiled: CompiledModel) -> None:
    """Who splits the batch, and what the user and the device see of the input."""
    print(title)
    print(f"  split by: {compiled.get_property('NPU_BATCH_MODE')}")
    print(f"  input for you: {compiled.inputs[0].partial_shape}")
    print(f"  input for the device: {list(compiled.meta.arguments[0].shape)}")


def several_at_once(compiled: CompiledModel, model: ov.Model, images: Any, labels: Any) -> bool:
    """Requests with different batches, in flight together."""
    requests = [compiled.create_infer_request() for _ in SIZES]
    for request, size in zip(requests, SIZES, strict=True):
        request.start_async([images[:size]])
    right = True
    for request, size in zip(requests, SIZES, strict=True):
        request.wait()
        probabilities = request.results[0]
        hits = int((probabilities.argmax(axis=1) == labels[:size]).sum())
        right &= equals(probabilities, expected(model, images[:size]))
        print(f"  batch of {size}: result {list(probabilities.shape)}, {hits} of {size} digits recognised")
    return right


def mismatch(compiled: CompiledModel) -> None:
    """No pictures at all are refused, before anything runs."""
    try:
        compiled([np.zeros((0, 1, 8, 8), np.float32)])
    except InputError as error:
        print(f"  batch of 0: {error}")


def expected(model: ov.Model, images: Any) -> Any:
    """What OpenVINO's CPU device computes for the whole batch."""
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled([images])[0]


def equals(result: Any, reference: Any) -> bool:
    """Up to rounding: a batch may be added up in another order than its samples."""
    return bool(np.allclose(result, reference, rtol=1e-4, atol=1e-6))


if __name__ == "__main__":
    sys.exit(main())

"""A batch of any size: one compiled model, and requests with 1, 5 and 64 pictures at once.

With a dynamic batch the plugin still compiles the digits model for one picture and executes it for each
picture of a batch, so nothing is compiled per size. With the compiler in charge the device gets the whole
batch. Both are compared with OpenVINO's CPU device.

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
    model.get_parameters()[0].set_layout(ov.Layout("NCHW"))  # N marks the batch axis

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
    """Show who splits the batch, and the input as seen by user and device."""
    print(title)
    print(f"  split by: {compiled.get_property('NPU_BATCH_MODE')}")
    print(f"  input for you: {compiled.inputs[0].partial_shape}")
    print(f"  input for the device: {list(compiled.meta.arguments[0].shape)}")


def several_at_once(compiled: CompiledModel, model: ov.Model, images: Any, labels: Any) -> bool:
    """Run requests with different batches, in flight together."""
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
    """Show that an empty batch is rejected before anything runs."""
    try:
        compiled([np.zeros((0, 1, 8, 8), np.float32)])
    except InputError as error:
        print(f"  batch of 0: {error}")


def expected(model: ov.Model, images: Any) -> Any:
    """Return the results of OpenVINO's CPU device for the whole batch."""
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled([images])[0]


def equals(result: Any, reference: Any) -> bool:
    """Return whether both agree up to rounding: a batch may be summed in another order than its samples."""
    return bool(np.allclose(result, reference, rtol=1e-4, atol=1e-6))


if __name__ == "__main__":
    sys.exit(main())

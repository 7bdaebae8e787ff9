"""A model with a state: a smoothing filter that keeps its history on the device.

Each inference takes 16 samples and returns them smoothed; the last one carries over to the next inference.
Two requests are two listeners, each with its own state. The numbers are compared with OpenVINO's CPU device.

    python -m softnpu.tools.examples.states
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset6, opset13

from softnpu.plugin import Core, InferRequest

CHUNK = 16
Samples = npt.NDArray[np.float32]


def smoothing_filter(decay: float = 0.9) -> ov.Model:
    """y[n] = (1 - decay) x[n] + decay y[n - 1], a chunk at a time; the state is the last y, at first 0."""
    steps = np.arange(CHUNK)
    weights = np.tril((1 - decay) * decay ** (steps[:, None] - steps[None, :])).astype(np.float32)
    fading = (decay ** (steps + 1)).astype(np.float32)
    x = opset13.parameter([CHUNK], np.float32, name="x")
    x.output(0).set_names({"x"})
    last = opset6.read_value(opset13.constant(np.zeros(1, np.float32)), "last", ov.Type.f32, [1])
    heard = opset13.matmul(opset13.constant(weights), x, False, False)
    y = opset13.add(heard, opset13.multiply(opset13.constant(fading), last))
    y.output(0).set_names({"y"})
    end = opset13.gather(y, opset13.constant([CHUNK - 1]), opset13.constant(0))
    return ov.Model([opset13.result(y)], [opset6.assign(end, "last")], [x], "smoothing_filter")


def listen(request: Any, chunks: list[Samples]) -> Samples:
    """Return a request's results for consecutive chunks."""
    return np.concatenate([request.infer([chunk])[0].copy() for chunk in chunks])


def main() -> int:
    """Run the example; return exit code 0 if all numbers are right."""
    random = np.random.default_rng(0)
    chunks = list(random.standard_normal((8, CHUNK), np.float32))
    model = smoothing_filter()
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    reference = ov.Core().compile_model(model, "CPU", settings).create_infer_request()
    expected = listen(reference, chunks)

    compiled = Core().compile_model(model, "NPU")
    print("inputs:", [port.any_name for port in compiled.inputs], "states:", *compiled.query_state())
    one, two = compiled.create_infer_request(), compiled.create_infer_request()
    right = [equal("8 chunks, one after the other", listen(one, chunks), expected)]

    last = listener_state(one)
    print(f"its state is the last sample: {last.state.data[0]:.6f}, of {expected[-1]:.6f}")
    right.append(equal("another listener begins again", listen(two, chunks[:4]), expected[: 4 * CHUNK]))

    last.state = ov.Tensor(listener_state(two).state.data.copy())
    right.append(
        equal("with the other's state it goes on there", listen(one, chunks[4:]), expected[4 * CHUNK :])
    )

    one.reset_state()
    right.append(equal("after a reset it begins again", listen(one, chunks), expected))

    one.get_tensor("x").data[:] = chunks[0]
    before, places = compiled.staged_bytes, []
    for _ in range(6):
        places.append(int(listener_state(one).state.data.ctypes.data))
        one.infer(share_outputs=True)
    print(
        f"6 steps in place: {compiled.staged_bytes - before} bytes copied, {len(set(places))} buffers in turn"
    )
    right.append(len(set(places)) == 2 and compiled.staged_bytes == before)
    return 0 if all(right) else 1


def listener_state(request: InferRequest) -> Any:
    """Return the only state of a request."""
    (state,) = request.query_state()
    return state


def equal(what: str, result: Samples, expected: Samples) -> bool:
    """Print and return whether the numbers equal the CPU device's, bit by bit."""
    same = result.tobytes() == expected.tobytes()
    print(f"{what}: {'equal, bit by bit' if same else 'NOT EQUAL'}")
    return same


if __name__ == "__main__":
    sys.exit(main())

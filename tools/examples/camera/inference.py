"""The inference: camera frames in, consumer results out, both in place.

Only this file uses softnpu; the camera and the consumer do not know it.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import openvino as ov

from softnpu.driver import Context, PublishedMemory, ZeError, ZeResult
from softnpu.plugin import Core
from softnpu.tools.demo.digits import model_path
from softnpu.tools.examples.camera import layout

_PREDECESSOR_S = 30.0
_LOOK_NS = 1_000_000_000


def main(name: str) -> None:
    """Serve the camera until the pipeline ends."""
    parent = os.getppid()
    compiled = Core().compile_model(model_path(), "NPU")
    remote = compiled.get_context()
    context: Context = remote.get_params()["L0_CONTEXT"]
    frames, inferred = (
        context.device.import_external_semaphore(f"{name}-{suffix}") for suffix in ("frames", "inferred")
    )
    counters = context.open_shared_memory(name, 0, layout.FRAMES_AT).view(np.uint64)
    results = publish(context, f"{name}-results")
    stamps = results.view(np.uint64)

    requests = []
    for slot in range(layout.SLOTS):
        request = compiled.create_infer_request()
        frame = {"MEM_TYPE": "SHARED_BUF", "MEM_NAME": name, "MEM_OFFSET": layout.frame_at(slot)}
        result = {
            "MEM_TYPE": "CPU_VA",
            "MEM_HANDLE": results.address + layout.result_at(slot) + layout.RESULT_AT,
        }
        request.set_tensor("image", remote.create_tensor(ov.Type.f32, layout.SHAPE, frame))
        request.set_tensor("probabilities", remote.create_tensor(ov.Type.f32, [1, layout.CLASSES], result))
        requests.append(request)

    def serve() -> None:
        """Infer all pending frames."""
        sequence = int(max(counters[layout.INFERRED], counters[layout.CONSUMED]))
        while sequence < counters[layout.WRITTEN]:
            requests[sequence % layout.SLOTS].infer()
            stamps[layout.result_at(sequence) // 8] = sequence + 1
            sequence += 1
            counters[layout.INFERRED] = sequence

    # an earlier process's unread results went with its memory
    counters[layout.INFERRED] = counters[layout.CONSUMED]
    serve()
    inferred.signal()
    print("serves", flush=True)
    while os.getppid() == parent:
        with frames.turn(inferred, _LOOK_NS) as arrived:
            if arrived:
                serve()


def publish(context: Context, name: str) -> PublishedMemory:
    """Publish the memory for results; the name of a process just killed persists for a moment."""
    end = time.monotonic() + _PREDECESSOR_S
    while True:
        try:
            return context.publish_shared_memory(name, layout.RESULTS_SIZE)
        except ZeError as error:
            if error.result != ZeResult.ERROR_NOT_AVAILABLE or time.monotonic() > end:
                raise
            time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1])

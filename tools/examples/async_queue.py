"""Many inferences in flight: a queue of requests, a callback that takes each result.

The same lines work with `openvino.AsyncInferQueue`. The callback receives a finished request, which it owns
until it returns; then the queue gives the request its next input.

    python -m softnpu.tools.examples.async_queue
"""

from __future__ import annotations

import sys
import threading

import numpy as np

from softnpu.plugin import AsyncInferQueue, CompiledModel, Core, InferRequest
from softnpu.tools.demo.digits import load_test_set, model_path


def main() -> int:
    images, labels = load_test_set()
    core = Core()
    # The program asks for THROUGHPUT; the device says how many requests keep it busy.
    compiled = core.compile_model(model_path(), "NPU", {"PERFORMANCE_HINT": "THROUGHPUT"})
    jobs = compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
    print(f"{len(images)} images, {jobs} requests")

    classes, threads = classify(compiled, images, jobs)
    print(f"callbacks: {len(classes)}, all in one thread besides this one: {threads == 1}")
    right = sum(classes[number] == label for number, label in enumerate(labels))
    print(f"right: {right} of {len(labels)}")

    alone = one_by_one(compiled, images)
    same = alone == [classes[number] for number in range(len(images))]
    print(f"the same as one after the other: {same}")
    return 0 if same and len(classes) == len(images) and right > 0.9 * len(labels) else 1


def classify(compiled: CompiledModel, images: np.ndarray, jobs: int) -> tuple[dict[int, int], int]:
    """Return the digit of each image by its number, and the number of callback threads."""
    classes: dict[int, int] = {}
    threads = set()

    def take(request: InferRequest, number: int) -> None:
        # results are views of device memory, valid until the request begins its next inference
        classes[number] = int(request.results["probabilities"].argmax())
        threads.add(threading.get_ident())

    queue = AsyncInferQueue(compiled, jobs)
    queue.set_callback(take)
    for number, image in enumerate(images):
        # waits only when no request is idle
        queue.start_async({"image": image[np.newaxis]}, number)
    queue.wait_all()
    return classes, len(threads - {threading.get_ident()})


def one_by_one(compiled: CompiledModel, images: np.ndarray) -> list[int]:
    """Return the digits, using a single request."""
    request = compiled.create_infer_request()
    place = request.get_tensor("image").data  # device memory: written in place, never copied
    classes = []
    for image in images:
        place[0] = image
        request.infer()
        classes.append(int(request.get_tensor("probabilities").data.argmax()))
    return classes


if __name__ == "__main__":
    sys.exit(main())

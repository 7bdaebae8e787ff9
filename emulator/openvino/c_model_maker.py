"""Make C models of images with short inferences, in a thread of its own.

A C model is used once it and its image have computed the same bits from the same inputs. An image with many
weights gets none: the weights would be in memory twice, and Python is a small part of its run time.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence

import numpy as np

from softnpu.emulator.common.arrays import Bytes, aligned
from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.emulator.openvino import memory_limit
from softnpu.emulator.openvino.binding import Binding
from softnpu.emulator.openvino.c_models import CModel, CModelError, OpenVino, openvino
from softnpu.emulator.openvino.cache import cpu_cache
from softnpu.emulator.openvino.image import LoadedImage
from softnpu.emulator.openvino.runtime import properties_of

log = logging.getLogger(__name__)

MAX_WEIGHTS = 8 << 20
"""Bytes of constants of the largest image eligible for a C model."""


def may_have_one(image: LoadedImage) -> bool:
    """Whether an image is eligible for a C model."""
    meta, properties = image.meta, properties_of(image.meta)
    return (
        image.weights_size <= MAX_WEIGHTS
        and image.streams == 1
        and not image.has_layers
        and not image.computes_sizes
        and not image.unbound
        and not image.origins
        and meta.precision == properties.get("INFERENCE_PRECISION_HINT") == "f32"
        and not any(argument.is_dynamic or argument.shape_of >= 0 for argument in meta.arguments)
        and all(argument.byte_size for argument in meta.arguments)
        and cpu_cache.fits(image.compiled, meta)
    )


class CModelMaker:
    """Makes C models one after the other, in a thread that ends when idle."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[OpenVino, LoadedImage, list[bytes]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running = False

    def ask(self, image: LoadedImage, inputs: list[bytes]) -> None:
        """Request the C model of an image, if eligible; `image.c_model` is set once the C model is verified.

        `inputs`: values from a client's inference, used for the verification.
        """
        image.c_model_asked = True
        interface = openvino()
        if interface is None or not may_have_one(image):
            return
        with self._lock:
            self._jobs.put((interface, image, inputs))
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="c_models", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._jobs.empty():
                    self._running = False
                    return
                job = self._jobs.get()
            with memory_limit.lifted():
                _make(*job)
            del job  # it would keep the image


def _make(interface: OpenVino, image: LoadedImage, inputs: list[bytes]) -> None:
    try:
        c_model = CModel(interface, image.compiled, image.meta)
        views = [*map(_aligned_copy, inputs), *(aligned(each.byte_size) for each in image.meta.outputs)]
        c_model.infer(c_model.request(views))
        expected = _expected(image, views)
    except (CModelError, RuntimeError) as error:
        log.warning("'%s' runs through Python: %s", image.meta.name, openvino_errors.reason(error))
        return
    computed = [view.tobytes() for view in views[len(inputs) :]]
    if computed != expected:
        log.warning("'%s' runs through Python: its C model computes other bits", image.meta.name)
        return
    image.c_model = c_model
    log.info("'%s' has a C model: its inferences run in C++", image.meta.name)


def _expected(image: LoadedImage, views: Sequence[Bytes]) -> list[bytes]:
    """Return what the image itself computes from the inputs among `views`."""
    arguments = image.meta.arguments
    memory = [
        view if argument.input else aligned(argument.byte_size)
        for argument, view in zip(arguments, views, strict=True)
    ]
    Binding(image, memory, lambda _: None).run(lambda: False)
    return [view.tobytes() for argument, view in zip(arguments, memory, strict=True) if not argument.input]


def _aligned_copy(data: bytes) -> Bytes:
    memory = aligned(len(data))
    memory[:] = np.frombuffer(data, np.uint8)
    return memory

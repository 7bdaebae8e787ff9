"""Copies of images, made in a thread of their own, used once they have computed the bits of the image."""

from __future__ import annotations

import logging
import queue
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final, TypeVar

import numpy as np
import openvino as ov

from softnpu.emulator.common.arrays import Bytes, aligned
from softnpu.emulator.openvino import memory_limit
from softnpu.emulator.openvino.binding import Binding
from softnpu.emulator.openvino.cache import cpu_cache
from softnpu.emulator.openvino.image import LoadedImage

log = logging.getLogger(__name__)

_ORDERED: Final = frozenset(
    (
        *("Concatenation", "Const", "Convert", "Convolution", "Eltwise", "FullyConnected", "Gather", "Input"),
        *("Interpolate", "MatMul", "Math", "Output", "Pad", "Pooling", "Reference", "Reorder", "Reshape"),
        *("Softmax", "Split", "StridedSlice", "Subgraph", "Transpose"),
    )
)
"""Layers in which one thread computes a value, in the same order whatever the number of threads.

Norms, reductions and deconvolutions divide sums among the threads, which few of many values may show.
Products of matrices might be divided as well, but in all values, so that a trial shows it.
"""
_DIVIDED: Final = re.compile("Reduce.*|.*Normaliz.*|MVN|If|Loop|TensorIterator")
"""Operations that may be such, in a layer of another kind or in a body."""
_RANDOM: Final = frozenset(("Multinomial", "RandomUniform"))
_FLOATS = {"f64": np.float64, "f32": np.float32, "f16": np.float16}
_MOST_BYTES = 16 << 20  # of the arguments: a trial has several of each

Layers = Counter[tuple[str, str]]
"""How many layers OpenVINO executes, by type and kernel."""
Trial = tuple[list[bytes], list[bytes]]
"""Values of the inputs, and what an image computes from them."""
_Copy = TypeVar("_Copy")


class NoCopyError(Exception):
    """A copy with other threads is of no use, or cannot be proven to compute the bits of its image."""


class CopyMaker:
    """Makes copies one after the other, in a thread that ends when idle.

    It computes while it has entered `computing()`.
    """

    def __init__(self, computing: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._computing = computing
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running = False

    def ask(self, make: Callable[[list[bytes]], None], image: LoadedImage, views: Sequence[Bytes]) -> None:
        """Have `make` called with the values of the inputs among `views`, the memory of an inference."""
        try:
            inputs = [view.tobytes() for view in views[: len(image.meta.inputs)]]
            self._put(partial(make, inputs))
        except (RuntimeError, MemoryError) as error:  # no memory, or no thread
            log.warning("'%s' gets no copy: %r", image.meta.name, error)

    def _put(self, job: Callable[[], None]) -> None:
        with self._lock:
            if not self._running:
                thread = threading.Thread(target=self._run, name="copies", daemon=True)
                thread.start()  # may fail; it waits for the lock
                self._running = True
            self._jobs.put(job)

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._jobs.empty():
                    self._running = False
                    return
                job = self._jobs.get()
            try:
                with memory_limit.lifted(), self._computing():
                    job()
            except Exception:
                log.warning("making a copy", exc_info=True)
            del job  # it would keep the image


def can_be_copied(image: LoadedImage) -> bool:
    """Whether an image is one compiled model of one stream, all tensors of which are known and can be set."""
    return (
        not image.has_kernels
        and not image.meta.dynamic_states
        and image.streams == 1
        and not image.has_layers
        and not image.computes_sizes
        and not image.unbound
        and not image.separated
        and not any(argument.is_dynamic or argument.shape_of >= 0 for argument in image.meta.arguments)
        and all(argument.byte_size for argument in image.meta.arguments)
        and cpu_cache.fits(image.compiled, image.meta)
    )


def with_other_threads(
    image: LoadedImage,
    inputs: list[bytes],
    make: Callable[[], tuple[_Copy, ov.CompiledModel]],
    computes: Callable[[_Copy, LoadedImage, Trial], bool],
) -> _Copy:
    """Return the copy that `make` returns with its compiled model, once proven to compute the image's bits.

    The image is one that `shows_bits`. Raises `NoCopyError`, and `RuntimeError` if it computes other bits or
    OpenVINO fails.
    """
    layers = layers_of(image.compiled)
    if not keeps_order(image, layers):
        raise NoCopyError("the number of threads might change its bits")
    copy, compiled = make()
    if layers_of(compiled) != layers:
        raise NoCopyError("with other threads it has other layers")
    trials = trials_of(image, inputs)
    if not trials:
        raise NoCopyError("an output hides its inputs")
    if not all(computes(copy, image, trial) for trial in trials):
        raise RuntimeError("with other threads it computes other bits")
    return copy


def layers_of(compiled: ov.CompiledModel) -> Layers:
    """Return the layers of a compiled model."""
    kinds = [operation.get_rt_info() for operation in compiled.get_runtime_model().get_ops()]
    return Counter((kind["layerType"].astype(str), kind["primitiveType"].astype(str)) for kind in kinds)


def is_repeatable(image: LoadedImage) -> bool:
    """Whether an inference leaves others as they are: random numbers come from a sequence."""
    return not _RANDOM & image.operations()


def keeps_order(image: LoadedImage, layers: Layers) -> bool:
    """Whether the bits of an image with these layers do not depend on the number of threads."""
    return (
        is_repeatable(image)
        and all(kind in _ORDERED for kind, _ in layers)
        and not any(map(_DIVIDED.fullmatch, image.operations()))
    )


def shows_bits(image: LoadedImage) -> bool:
    """Whether its outputs would show that a copy with other threads computes other bits.

    Integers may hide them.
    """
    meta = image.meta
    are_floats = all(argument.element_type in _FLOATS for argument in meta.outputs)
    return are_floats and sum(argument.byte_size for argument in meta.arguments) <= _MOST_BYTES


def trials_of(image: LoadedImage, inputs: list[bytes]) -> list[Trial]:
    """Return trials with a client's inputs and with random ones; none if an output hides its inputs.

    Zeros of a client would hide everything. Raises `RuntimeError`.
    """
    values = [inputs, *(_random(image, inputs, seed) for seed in (1, 2))]
    trials = [(each, expected_of(image, each)) for each in values]
    hides = any(one == other for one, other in zip(trials[1][1], trials[2][1], strict=True))
    return [] if hides else trials


def _random(image: LoadedImage, inputs: list[bytes], seed: int) -> list[bytes]:
    """Return these inputs with random values instead of floating-point ones."""
    generator = np.random.default_rng(seed)
    return [
        data
        if (kind := _FLOATS.get(argument.element_type)) is None
        else generator.standard_normal(len(data) // np.dtype(kind).itemsize).astype(kind).tobytes()
        for argument, data in zip(image.meta.inputs, inputs, strict=True)
    ]


def memory_of(image: LoadedImage, inputs: Sequence[bytes]) -> list[Bytes]:
    """Return memory for one inference, one view per argument, with these values of the inputs."""
    views = [aligned(argument.byte_size) for argument in image.meta.arguments]
    for view, data in zip(views, inputs, strict=False):
        view[:] = np.frombuffer(data, np.uint8)
    return views


def outputs_in(image: LoadedImage, views: Sequence[Bytes]) -> list[bytes]:
    """Return the values of the outputs among `views`."""
    return [view.tobytes() for view in views[len(image.meta.inputs) :]]


def expected_of(image: LoadedImage, inputs: Sequence[bytes]) -> list[bytes]:
    """Return what the image itself computes from these inputs. Raises `RuntimeError`."""
    views = memory_of(image, inputs)
    Binding(image, views, lambda _: None).run(lambda: False)
    return outputs_in(image, views)

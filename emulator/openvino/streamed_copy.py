"""Streamed copies: images compiled once more, for several inferences at once, each on a share of the threads.

An image compiled for latency runs one inference at a time on all threads, which wait for each other in each
layer. Where several are ready, all end sooner side by side: on two cores 1.15 times as many inferences of
YOLOv8n a second.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import numpy as np

from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.emulator.openvino.binding import Binding
from softnpu.emulator.openvino.copies import CopyMaker, can_be_copied, expected_of, memory_of, outputs_in
from softnpu.emulator.openvino.image import LoadedImage
from softnpu.emulator.openvino.runtime import most_streams

log = logging.getLogger(__name__)

_ROUNDS = 2
_MOST_BYTES = 16 << 20  # of the arguments: the verification has several of each
_FLOATS = {"f64": np.float64, "f32": np.float32, "f16": np.float16}


def ask(maker: CopyMaker, image: LoadedImage, views: Sequence[Bytes]) -> None:
    """Request the streamed copy of an image, if eligible; `image.streamed` is set once it is verified.

    `views`: the memory of a client's inference, whose inputs are used for the verification.
    """
    image.streamed_asked = True
    if most_streams(image.meta) > 1 and _is_suitable(image):
        maker.ask(partial(_make, image), image, views)


def _is_suitable(image: LoadedImage) -> bool:
    """Whether other bits would be seen, which integers may hide, and memory suffices."""
    meta = image.meta
    are_floats = all(argument.element_type in _FLOATS for argument in meta.outputs)
    size = sum(argument.byte_size for argument in meta.arguments)
    return are_floats and size <= _MOST_BYTES and can_be_copied(image)


def _make(image: LoadedImage, inputs: list[bytes]) -> None:
    name = image.meta.name
    try:
        copy = image.with_streams()
        if copy is None or copy.streams == 1:
            log.info("'%s' runs one inference at a time", name)
            return
        values = [inputs, *(_random(image, inputs, seed) for seed in (1, 2))]
        expected = [expected_of(image, each) for each in values]
        if any(one == other for one, other in zip(expected[1], expected[2], strict=True)):
            log.info("'%s' runs one inference at a time: an output hides its inputs", name)
            return
        is_equal = all(map(partial(_computes, copy, image), values, expected))
    except RuntimeError as error:
        log.warning("'%s' runs one inference at a time: %s", name, openvino_errors.reason(error))
        return
    if not is_equal:
        log.warning("'%s' runs one inference at a time: with streams it computes other bits", name)
        return
    image.streamed = copy
    log.info("'%s' runs up to %d inferences at once while several wait", name, copy.streams)


def _random(image: LoadedImage, inputs: list[bytes], seed: int) -> list[bytes]:
    """Return these inputs with random values instead of floating-point ones: zeros would hide everything."""
    generator = np.random.default_rng(seed)
    return [
        data
        if (kind := _FLOATS.get(argument.element_type)) is None
        else generator.standard_normal(len(data) // np.dtype(kind).itemsize).astype(kind).tobytes()
        for argument, data in zip(image.meta.inputs, inputs, strict=True)
    ]


def _computes(copy: LoadedImage, image: LoadedImage, inputs: list[bytes], expected: list[bytes]) -> bool:
    """Whether each stream computes these bits."""
    memory = [memory_of(image, inputs) for _ in range(copy.streams + 1)]  # so many that none idles
    bindings = [Binding(copy, views, lambda _: None) for views in memory]
    try:
        for _ in range(_ROUNDS):
            for binding in bindings:
                binding.start_early()
            for binding, views in zip(bindings, memory, strict=True):
                binding.run(lambda: False)
                if outputs_in(image, views) != expected:
                    return False
                for view in views[len(inputs) :]:
                    view[:] = 0
        return True
    finally:
        for binding in bindings:
            binding.cancel_early()

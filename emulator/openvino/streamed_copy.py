"""Streamed copies: images compiled once more, for several inferences at once, each on a share of the threads.

An image compiled for latency runs one inference at a time on all threads, which wait for each other in each
layer. Where several are ready, all end sooner side by side: on two cores 1.15 times as many inferences of
YOLOv8n a second.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import openvino as ov

from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.openvino import copies
from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.emulator.openvino.binding import Binding
from softnpu.emulator.openvino.image import LoadedImage
from softnpu.emulator.openvino.runtime import most_streams

log = logging.getLogger(__name__)

_ROUNDS = 2


def ask(maker: copies.CopyMaker, image: LoadedImage, views: Sequence[Bytes]) -> None:
    """Request the streamed copy of an image, if eligible; `image.streamed` is set once it is verified.

    `views`: the memory of a client's inference, whose inputs are used for the verification.
    """
    image.streamed_asked = True
    if most_streams(image.meta) > 1 and copies.shows_bits(image) and copies.can_be_copied(image):
        maker.ask(partial(_make, image), image, views)


def _make(image: LoadedImage, inputs: list[bytes]) -> None:
    name = image.meta.name
    try:
        copy = copies.with_other_threads(image, inputs, partial(_with_streams, image), _computes)
    except copies.NoCopyError as reason:
        log.info("'%s' runs one inference at a time: %s", name, reason)
    except RuntimeError as error:
        log.warning("'%s' runs one inference at a time: %s", name, openvino_errors.reason(error))
    else:
        image.streamed = copy
        log.info("'%s' runs up to %d inferences at once while several wait", name, copy.streams)


def _with_streams(image: LoadedImage) -> tuple[LoadedImage, ov.CompiledModel]:
    copy = image.with_streams()
    if copy is None:
        raise copies.NoCopyError("it is large")
    if copy.streams == 1:
        raise copies.NoCopyError("OpenVINO gives it one stream")
    return copy, copy.compiled


def _computes(copy: LoadedImage, image: LoadedImage, trial: copies.Trial) -> bool:
    """Whether each stream computes these bits."""
    inputs, expected = trial
    memory = [copies.memory_of(image, inputs) for _ in range(copy.streams + 1)]  # so many that none idles
    bindings = [Binding(copy, views, lambda _: None) for views in memory]
    try:
        for _ in range(_ROUNDS):
            for binding in bindings:
                binding.start_early()
            for binding, views in zip(bindings, memory, strict=True):
                binding.run(lambda: False)
                if copies.outputs_in(image, views) != expected:
                    return False
                for view in views[len(inputs) :]:
                    view[:] = 0
        return True
    finally:
        for binding in bindings:
            binding.cancel_early()

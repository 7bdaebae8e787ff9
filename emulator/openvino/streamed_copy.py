"""Streamed copies: images compiled once more, for several inferences at once, each on a share of the threads.

An image compiled for latency runs one inference at a time on all threads, which wait for each other in each
layer. Where several are ready, all end sooner side by side: on two cores 1.15 times as many inferences of
YOLOv8n a second.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.emulator.openvino.binding import Binding
from softnpu.emulator.openvino.copies import (
    CopyMaker,
    Trial,
    can_be_copied,
    keeps_order,
    layers_of,
    memory_of,
    outputs_in,
    shows_bits,
    trials_of,
)
from softnpu.emulator.openvino.image import LoadedImage
from softnpu.emulator.openvino.runtime import most_streams

log = logging.getLogger(__name__)

_ROUNDS = 2


def ask(maker: CopyMaker, image: LoadedImage, views: Sequence[Bytes]) -> None:
    """Request the streamed copy of an image, if eligible; `image.streamed` is set once it is verified.

    `views`: the memory of a client's inference, whose inputs are used for the verification.
    """
    image.streamed_asked = True
    if most_streams(image.meta) > 1 and shows_bits(image) and can_be_copied(image):
        maker.ask(partial(_make, image), image, views)


def _make(image: LoadedImage, inputs: list[bytes]) -> None:
    name = image.meta.name
    try:
        layers = layers_of(image.compiled)
        copy = image.with_streams() if keeps_order(image, layers) else None
        if copy is None or copy.streams == 1 or layers_of(copy.compiled) != layers:
            log.info("'%s' runs one inference at a time: threads might change its bits, or it is large", name)
            return
        trials = trials_of(image, inputs)
        if not trials:
            log.info("'%s' runs one inference at a time: an output hides its inputs", name)
            return
        is_equal = all(_computes(copy, image, trial) for trial in trials)
    except RuntimeError as error:
        log.warning("'%s' runs one inference at a time: %s", name, openvino_errors.reason(error))
        return
    if not is_equal:
        log.warning("'%s' runs one inference at a time: with streams it computes other bits", name)
        return
    image.streamed = copy
    log.info("'%s' runs up to %d inferences at once while several wait", name, copy.streams)


def _computes(copy: LoadedImage, image: LoadedImage, trial: Trial) -> bool:
    """Whether each stream computes these bits."""
    inputs, expected = trial
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

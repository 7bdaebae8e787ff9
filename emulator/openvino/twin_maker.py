"""Make twins of images whose inferences wait for each other again and again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.openvino import copies
from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.emulator.openvino.image import MOST_COPIED, LoadedImage
from softnpu.emulator.openvino.runtime import most_streams
from softnpu.emulator.openvino.twins import Twins

log = logging.getLogger(__name__)


def ask(maker: copies.CopyMaker, image: LoadedImage, views: Sequence[Bytes]) -> None:
    """Request the twins of an image, if eligible; `image.twins` is set once they are verified.

    `views`: the memory of a client's inference, whose inputs are used for the verification.
    """
    image.twins_asked = True
    if _number(image) > 1 and copies.can_be_copied(image):
        maker.ask(partial(_make, image), image, views)


def _number(image: LoadedImage) -> int:
    return min(most_streams(image.meta), MOST_COPIED // max(image.weights_size, 1))


def _make(image: LoadedImage, inputs: list[bytes]) -> None:
    name = image.meta.name
    if not copies.is_repeatable(image):
        log.info("'%s' runs one inference at a time: its numbers depend on the inferences before", name)
        return
    try:
        expected = copies.expected_of(image, inputs)
        made = [image.twin() for _ in range(_number(image))]
        is_same = all(_is_same(twin, image) and copies.expected_of(twin, inputs) == expected for twin in made)
    except RuntimeError as error:
        log.warning("'%s' runs one inference at a time: %s", name, openvino_errors.reason(error))
        return
    if not is_same:
        log.warning("'%s' runs one inference at a time: compiled again, it is another model", name)
        return
    image.twins = Twins(made)
    log.info("'%s' runs up to %d inferences at once while several wait", name, len(made))


def _is_same(twin: LoadedImage, image: LoadedImage) -> bool:
    """Whether it has the same layers, whose work is divided among as many threads."""
    one, other = twin.compiled, image.compiled
    threads = "INFERENCE_NUM_THREADS"
    is_divided_alike = one.get_property(threads) == other.get_property(threads)
    return is_divided_alike and copies.layers_of(one) == copies.layers_of(other)

"""Make C models of images with short inferences.

An image with many weights gets none: the weights would be in memory twice, and Python is a small part of its
run time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.openvino import copies
from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.emulator.openvino.c_models import CModel, CModelError, OpenVino, openvino
from softnpu.emulator.openvino.image import MOST_COPIED, LoadedImage
from softnpu.emulator.openvino.runtime import properties_of

log = logging.getLogger(__name__)


def may_have_one(image: LoadedImage) -> bool:
    """Whether an image is eligible for a C model."""
    if image.weights_size > MOST_COPIED or not copies.can_be_copied(image):
        return False
    return image.meta.precision == properties_of(image.meta).get("INFERENCE_PRECISION_HINT") == "f32"


def ask(maker: copies.CopyMaker, image: LoadedImage, views: Sequence[Bytes]) -> None:
    """Request the C model of an image, if eligible; `image.c_model` is set once the C model is verified.

    `views`: the memory of a client's inference, whose inputs are used for the verification.
    """
    image.c_model_asked = True
    try:
        interface = openvino()
        if interface is not None and may_have_one(image):
            maker.ask(partial(_make, interface, image), image, views)
    except (RuntimeError, MemoryError) as error:  # OpenVINO's, no thread, or no memory
        log.warning(
            "'%s' runs through Python: %s", image.meta.name, openvino_errors.reason(error) or repr(error)
        )


def _make(interface: OpenVino, image: LoadedImage, inputs: list[bytes]) -> None:
    name = image.meta.name
    try:
        if not copies.is_repeatable(image):
            log.info("'%s' runs through Python: its numbers depend on the inferences before", name)
            return
        c_model = CModel(interface, image.compiled, image.meta)
        if not _computes(c_model, image, inputs):
            log.warning("'%s' runs through Python: its C model computes other bits", name)
            return
    except (CModelError, RuntimeError) as error:
        log.warning("'%s' runs through Python: %s", name, openvino_errors.reason(error))
        return
    image.c_model = c_model
    log.info("'%s' has a C model: its inferences run in C++", name)


def _computes(c_model: CModel, image: LoadedImage, inputs: list[bytes]) -> bool:
    """Whether it computes the bits of the image."""
    views = copies.memory_of(image, inputs)
    c_model.infer(c_model.request(views))
    return copies.outputs_in(image, views) == copies.expected_of(image, inputs)

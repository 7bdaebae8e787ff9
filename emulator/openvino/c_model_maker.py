"""Make C models of images with short inferences.

An image with many weights gets none: the weights would be in memory twice, and Python is a small part of its
run time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial

import openvino as ov

from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.openvino import copies
from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.emulator.openvino.c_models import CModel, CModelError, OpenVino, openvino
from softnpu.emulator.openvino.image import LoadedImage
from softnpu.emulator.openvino.runtime import properties_of, threads_asked, threads_of

log = logging.getLogger(__name__)

MAX_WEIGHTS = 8 << 20
"""Bytes of constants of the largest image eligible for a C model."""
_FAST_S = 30e-6  # with less, one thread is as fast: several would wait for each other
_MOST_S = 100e-6  # with more, several are faster, though not while their cores are busy
_ROUNDS = 20


def may_have_one(image: LoadedImage) -> bool:
    """Whether an image is eligible for a C model."""
    if image.weights_size > MAX_WEIGHTS or not copies.can_be_copied(image):
        return False
    return image.meta.precision == properties_of(image.meta).get("INFERENCE_PRECISION_HINT") == "f32"


def ask(maker: copies.CopyMaker, image: LoadedImage, views: Sequence[Bytes]) -> None:
    """Request the C model of an image, if eligible; `image.c_model` is set once the C model is verified.

    `views`: the memory of a client's inference, whose inputs are used for the verification.
    """
    image.c_model_asked = True
    interface = openvino()
    if interface is not None and may_have_one(image):
        maker.ask(partial(_make, interface, image), image, views)


def _make(interface: OpenVino, image: LoadedImage, inputs: list[bytes]) -> None:
    name = image.meta.name
    try:
        if not copies.is_repeatable(image):
            log.info("'%s' runs through Python: its numbers depend on the inferences before", name)
            return
        c_model = CModel(interface, image.compiled, image.meta)
        if not _computes(c_model, image, (inputs, copies.expected_of(image, inputs))):
            log.warning("'%s' runs through Python: its C model computes other bits", name)
            return
        image.c_model = _with_one_thread(interface, image, inputs, c_model)
    except (CModelError, RuntimeError) as error:
        log.warning("'%s' runs through Python: %s", name, openvino_errors.reason(error))
        return
    threads = image.c_model.threads or threads_of(image.meta)
    log.info("'%s' has a C model (threads: %d): its inferences run in C++", name, threads)


def _with_one_thread(interface: OpenVino, image: LoadedImage, inputs: list[bytes], several: CModel) -> CModel:
    """Return a C model of one thread if it is as fast as `several` and computes the same bits; else that.

    OpenVINO's other threads would wait for work without sleep, on the cores that the clients need.
    """
    if threads_of(image.meta) == 1 or threads_asked(image.meta) or not copies.shows_bits(image):
        return several
    make = partial(_as_fast, interface, image, inputs, several)
    try:
        return copies.with_other_threads(image, inputs, make, _computes)
    except copies.NoCopyError as reason:
        log.info("the C model of '%s' has several threads: %s", image.meta.name, reason)
    except (CModelError, RuntimeError) as error:
        why = openvino_errors.reason(error)
        log.warning("the C model of '%s' has several threads: %s", image.meta.name, why)
    return several


def _as_fast(
    interface: OpenVino, image: LoadedImage, inputs: list[bytes], several: CModel
) -> tuple[CModel, ov.CompiledModel]:
    one = CModel(interface, image.compiled, image.meta, threads=1)
    views = copies.memory_of(image, inputs)
    taken = _fastest_s(one, views)
    if taken > max(_FAST_S, min(_fastest_s(several, views), _MOST_S)):
        raise copies.NoCopyError(f"one thread takes {taken * 1e6:.0f} us")
    return one, one.in_python()


def _computes(c_model: CModel, image: LoadedImage, trial: copies.Trial) -> bool:
    """Whether it computes these bits."""
    inputs, expected = trial
    views = copies.memory_of(image, inputs)
    c_model.infer(c_model.request(views))
    return copies.outputs_in(image, views) == expected


def _fastest_s(c_model: CModel, views: Sequence[Bytes]) -> float:
    """Return the time of the fastest of some inferences in seconds."""
    request, times = c_model.request(views), []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        c_model.infer(request)
        times.append(time.perf_counter() - start)
    return min(times)

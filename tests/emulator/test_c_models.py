"""C models: the bits of the image, by as many threads."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from softnpu.driver import Context
from softnpu.emulator.openvino import c_model_maker
from softnpu.emulator.openvino.c_models import CModel, CModelRequest
from softnpu.emulator.openvino.copies import CopyMaker, expected_of, memory_of, outputs_in
from softnpu.emulator.openvino.image import LoadedImage
from tests.support import loaded_images


def _ask(image: LoadedImage) -> CModel | None:
    c_model_maker.ask(loaded_images.MakerAtOnce(), image, memory_of(image, []))
    return image.c_model


def test_one_computes_the_bits_of_the_image(context: Context, private_dir: Path) -> None:
    image = loaded_images.product(context, private_dir)
    c_model = _ask(image)
    assert c_model is not None
    generator = np.random.default_rng(4)
    for _ in range(100):
        inputs = [generator.standard_normal(4096).astype(np.float32).tobytes()]
        views = memory_of(image, inputs)
        c_model.infer(c_model.request(views))
        assert outputs_in(image, views) == expected_of(image, inputs)


def test_one_that_computes_other_bits_is_not_used(
    context: Context, private_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = CModel.infer

    def infer(self: CModel, request: CModelRequest) -> None:
        right(self, request)
        request._views[-1].view(np.uint32)[0] ^= 1

    monkeypatch.setattr(CModel, "infer", infer)
    assert _ask(loaded_images.product(context, private_dir)) is None


def test_one_with_random_numbers_gets_none(context: Context, private_dir: Path) -> None:
    """A trial would take numbers of the sequence that its user expects."""
    x = ops.parameter([8], ov.Type.f32, name="x")
    numbers = ops.random_uniform(np.array([8]), np.zeros(1, np.float32), np.ones(1, np.float32), "f32", 7, 9)
    ov.serialize(ov.Model([ops.add(x, numbers)], [x], "random"), private_dir / "random.xml")
    assert _ask(loaded_images.compiled(context, private_dir / "random.xml")) is None


def test_a_copy_that_fails_keeps_no_other_from_being_made(context: Context, private_dir: Path) -> None:
    image, maker, made = loaded_images.product(context, private_dir), CopyMaker(), threading.Event()

    def fail(_: object) -> None:
        raise MemoryError

    maker.ask(fail, image, [])
    maker.ask(lambda _: made.set(), image, [])
    assert made.wait(60)

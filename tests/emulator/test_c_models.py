"""C models: one thread where that is fast and computes the same bits, else those of the image."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from softnpu.driver import Context
from softnpu.emulator.openvino import c_model_maker
from softnpu.emulator.openvino.c_models import CModel, CModelError, CModelRequest, OpenVino
from softnpu.emulator.openvino.copies import expected_of, memory_of, outputs_in
from softnpu.emulator.openvino.image import LoadedImage
from tests.support import loaded_images
from tests.support.models import write_chain

several_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has one thread")
_FOREVER_S = 1e9


@pytest.fixture(autouse=True)
def _every_model_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_model_maker, "_FAST_S", _FOREVER_S)


@pytest.fixture
def image(context: Context, private_dir: Path) -> LoadedImage:
    return loaded_images.compiled(context, write_chain(private_dir, 16, 3))


def _threads(image: LoadedImage, value: float = 0.5) -> int:
    """Return the number of threads of its C model; 0: those of the image."""
    views = memory_of(image, [])
    views[0].view(np.float32)[:] = value
    c_model_maker.ask(loaded_images.MakerAtOnce(), image, views)
    assert image.c_model is not None
    return image.c_model.threads


@several_cores
def test_a_fast_one_has_one_thread_and_the_bits_of_the_image(image: LoadedImage) -> None:
    assert _threads(image) == 1
    assert image.c_model is not None
    inputs = [np.random.default_rng(4).random(image.meta.inputs[0].byte_size // 4, np.float32).tobytes()]
    views = memory_of(image, inputs)
    image.c_model.infer(image.c_model.request(views))
    assert outputs_in(image, views) == expected_of(image, inputs)


def test_a_slow_one_has_the_threads_of_the_image(image: LoadedImage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_model_maker, "_FAST_S", 0.0)
    monkeypatch.setattr(c_model_maker, "_MOST_S", 0.0)
    assert _threads(image) == 0


@several_cores
def test_one_that_sums_in_another_order_is_not_used(
    image: LoadedImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = CModel.infer

    def infer(self: CModel, request: CModelRequest) -> None:
        right(self, request)
        if self.threads == 1 and request._views[0].any():  # which zeros do not show
            request._views[-1].view(np.uint32)[0] ^= 1

    monkeypatch.setattr(CModel, "infer", infer)
    assert _threads(image, 0.0) == 0


@several_cores
def test_one_that_cannot_be_made_leaves_that_of_several(
    image: LoadedImage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = OpenVino.core

    def core(self: OpenVino, properties: dict[str, str]) -> ctypes.c_void_p:
        if "INFERENCE_NUM_THREADS" in properties:
            raise CModelError("no such core")
        return right(self, properties)

    monkeypatch.setattr(OpenVino, "core", core)
    assert _threads(image) == 0
    assert "has several threads: no such core" in caplog.text


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_chosen_number_of_threads_stays(image: LoadedImage, threads: str) -> None:
    image.meta.config["INFERENCE_NUM_THREADS"] = threads
    assert _threads(image) == 0


def test_one_whose_outputs_may_hide_other_bits_keeps_its_threads(context: Context, private_dir: Path) -> None:
    x = ops.parameter([8, 8], ov.Type.f32, name="x")
    path = private_dir / "integers.xml"
    ov.serialize(ov.Model([ops.convert(ops.matmul(x, x, False, False), "i32")], [x], "integers"), path)
    assert _threads(loaded_images.compiled(context, path)) == 0


def test_one_whose_layers_divide_sums_among_threads_keeps_them(context: Context, private_dir: Path) -> None:
    x = ops.parameter([1, 4, 8, 8], ov.Type.f32, name="x")
    norm = ops.mvn(ops.relu(x), np.array([2, 3]), True, 1e-5, "inside_sqrt")
    ov.serialize(ov.Model([norm], [x], "norm"), private_dir / "norm.xml")
    assert _threads(loaded_images.compiled(context, private_dir / "norm.xml")) == 0


def test_one_with_random_numbers_gets_none(context: Context, private_dir: Path) -> None:
    """A trial would take numbers of the sequence that its user expects."""
    x = ops.parameter([8], ov.Type.f32, name="x")
    numbers = ops.random_uniform(np.array([8]), np.zeros(1, np.float32), np.ones(1, np.float32), "f32", 7, 9)
    ov.serialize(ov.Model([ops.add(x, numbers)], [x], "random"), private_dir / "random.xml")
    image = loaded_images.compiled(context, private_dir / "random.xml")
    c_model_maker.ask(loaded_images.MakerAtOnce(), image, memory_of(image, []))
    assert image.c_model is None

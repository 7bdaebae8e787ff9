"""The digits demonstration: the committed files are as documented, and run without scikit-learn."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import openvino as ov
import pytest

from softnpu.tools.demo.digits import as_text, load_test_set, model_path

_COMMITTED_BYTES_LIMIT = 1_000_000


def test_the_model_has_the_documented_inputs_and_outputs_and_plain_f32_weights() -> None:
    model = ov.Core().read_model(model_path())
    image, probabilities = model.input("image"), model.output("probabilities")
    assert (list(image.shape), list(probabilities.shape)) == ([1, 1, 8, 8], [1, 10])
    assert image.element_type == probabilities.element_type == ov.Type.f32
    constants = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
    assert {node.get_element_type().get_type_name() for node in constants} == {"f32", "i64"}
    assert sum(file.stat().st_size for file in model_path().parent.iterdir()) < _COMMITTED_BYTES_LIMIT


def test_the_model_recognises_the_held_out_digits_on_the_cpu() -> None:
    images, labels = load_test_set()
    compiled = ov.Core().compile_model(model_path(), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    probabilities = np.concatenate([compiled(image[None])["probabilities"] for image in images])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-5)
    assert np.mean(probabilities.argmax(axis=1) == labels) >= 0.97


def test_the_test_set_has_the_documented_shapes_types_and_ranges() -> None:
    images, labels = load_test_set()
    assert images.shape == (len(labels), 1, 8, 8)
    assert (images.dtype.name, labels.dtype.name) == ("float32", "int64")
    assert (images.min(), images.max()) == (0.0, 16.0)
    assert set(labels.tolist()) == set(range(10))


def test_scikit_learn_is_not_needed_at_run_time() -> None:
    program = (
        "import sys; sys.modules['sklearn'] = None; from softnpu.tools.demo.digits import *; load_test_set()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_digit_prints_as_eight_lines_of_block_characters() -> None:
    image = np.zeros((1, 1, 8, 8), dtype=np.float32)
    image[0, 0, 0, 0], image[0, 0, 7, 7] = 16.0, 8.0
    lines = as_text(image).split("\n")
    assert [len(line) for line in lines] == [16] * 8
    assert lines[0] == "██" + " " * 14
    assert lines[7] == " " * 14 + "▒▒"
    assert as_text(image[0, 0]) == as_text(image)
    image[0, 0, 0, :2] = -5.0, 99.0
    assert as_text(image).startswith("  ██"), "the nearest shade"
    with pytest.raises(ValueError, match=r"\(3, 3\) has 9 values, expected 64"):
        as_text(np.zeros((3, 3)))

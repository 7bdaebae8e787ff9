"""`softnpu compare`: reference sides, sources of inputs, and what cannot be compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from tests.support.cli import softnpu

_needs_daemon = pytest.mark.usefixtures("cli_daemon")
_EQUAL = "every number equals, bit by bit"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two sums over a picture of any size; one layer overflows f16."""
    image = ops.parameter([1, -1, -1, 3], ov.Type.f32, name="image")
    image.output(0).set_names({"image"})
    large = ops.multiply(image, ops.constant(np.float32(1e5)))
    large.set_friendly_name("large")
    total = ops.reduce_sum(large, ops.constant(np.array([1, 2])), False)
    small = ops.divide(total, ops.constant(np.float32(1e5)))
    for node, name in ((total, "total"), (small, "small")):
        node.set_friendly_name(name)
        node.output(0).set_names({name})
    path = tmp_path / "model.xml"
    ov.save_model(ov.Model([total, small], [image], "sums"), path, compress_to_fp16=False)
    return path


def _compared(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
    done = softnpu("compare", *arguments, "--json")
    assert done.code == code, done
    document: dict[str, Any] = json.loads(done.out)
    return document


@_needs_daemon
def test_inputs_and_outputs_of_a_file_with_steps(model: Path, tmp_path: Path) -> None:
    image = np.random.default_rng(1).random((3, 1, 4, 5, 3), np.float32)
    total = (image.astype(np.float64) * 1e5).sum((2, 3))
    both = tmp_path / "both.npz"
    np.savez(both, image=image, total=total, small=total / 1e5)
    found = _compared(model, "--inputs", both, "--steps", "3")
    assert (found["reference"], found["in_tolerance"], found["identical"]) == ("both.npz", True, False)
    wrong = tmp_path / "wrong.npz"
    total[2, 0, 1] *= 1.01
    np.savez(wrong, total=total, small=total / 1e5, large=image * 1e5)
    found = _compared(model, "--inputs", both, "--steps", "3", "--against", wrong, "--layers", code=1)
    assert [(each["name"], each["step"]) for each in found["outputs"]] == [("total", 2), ("small", 2)]
    assert [(each["name"], each["role"]) for each in found["layers"]] == [
        ("large", "equal"), ("total", "causes"), ("small", "inherits"),
    ]  # fmt: skip
    assert [found["layers"][0][name] for name in ("overflow_npu", "overflow_reference")] == [
        int((image[0] * 1e5 > 65504).sum())
    ] * 2


@_needs_daemon
def test_an_array_of_a_file_is_an_input(model: Path, tmp_path: Path) -> None:
    several, expected = tmp_path / "several.npz", tmp_path / "expected.npz"
    np.savez(several, image=np.full((1, 2, 2, 3), 2, np.float32), other=np.zeros(3))
    total = np.full((1, 3), 8, np.float32)
    np.savez(expected, total=total * 1e5, small=total)
    found = _compared(model, "--inputs", f"image={several}", "--against", expected)
    assert (found["inputs"], found["in_tolerance"]) == ("several.npz", True)


@_needs_daemon
def test_a_picture_is_an_input(model: Path, tmp_path: Path) -> None:
    from PIL import Image

    picture = tmp_path / "picture.png"
    Image.new("RGB", (6, 2), (255, 0, 51)).save(picture)
    expected = tmp_path / "expected.npz"
    total = np.array([[12, 0, 12 * 0.2]], np.float32)
    np.savez(expected, total=total * 1e5, small=total)
    found = _compared(model, "--inputs", picture, "--against", expected)
    assert found["inputs"] == "picture.png"
    # resizing does not change the sums of all pixels
    found = _compared(model, "--inputs", picture, "--shape", "image[1,1,12,3]", "--against", expected)
    assert found["in_tolerance"]


@_needs_daemon
def test_a_compiled_model_is_compared_with_what_it_was_made_from(model: Path, tmp_path: Path) -> None:
    shape = "--shape=image=1,4,4,3"
    for weightless, source in ((("--weightless",), ()), ((), ("--source-model", model))):
        blob = tmp_path / f"{len(weightless)}.blob"
        assert softnpu("compile", model, shape, *weightless, "-o", blob).code == 0
        assert _EQUAL in softnpu("compare", blob, *source, "--layers").words


@_needs_daemon
def test_onnx_runtime_and_two_settings_of_the_device(tmp_path: Path) -> None:
    import onnx

    made = onnx.helper
    graph = made.make_graph(
        [made.make_node("Gemm", ["x", "w"], ["y"]), made.make_node("Tanh", ["y"], ["z"])],
        "dense",
        [made.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 8])],
        [made.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["n", 8])],
        [onnx.numpy_helper.from_array(np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8), "w")],
    )
    path = tmp_path / "dense.onnx"
    onnx.save(made.make_model(graph, opset_imports=[made.make_opsetid("", 17)], ir_version=8), path)
    found = _compared(path, "--against", "onnxruntime", "--shape", "x[3,8]", "--layers")
    assert (found["reference"], found["in_tolerance"]) == ("onnxruntime", True)
    assert {"Add", "Tanh"} <= {each["kind"] for each in found["layers"]}
    hint = ("--config", "PERFORMANCE_HINT=THROUGHPUT")
    found = _compared(path, "--against", "NPU", *hint, "--shape", "x[3,8]", "--layers")
    assert (found["candidate"], found["reference"]) == ("NPU PERFORMANCE_HINT=THROUGHPUT", "NPU")
    assert found["identical"]


@_needs_daemon
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["none.xml"], "no such file"),
        (["MODEL"], "shape [1,?,?,3]; expected a static shape. Give one with --shape image=D,D,..."),
        (["MODEL", "--shape", "picture[1,2,2,3]"], "the model has no such input; expected one of: image"),
        (["MODEL", "--shape", "image[1,2]"], "expected one within [1,?,?,3]"),
        (["MODEL", "--inputs", "image=none.npy"], "none.npy"),
        (
            ["MODEL", "--inputs", "picture=bad.npz"],
            "picture: the model has no such input; expected one of: image",
        ),
        (
            ["MODEL", "--inputs", "bad.npz"],
            "--inputs picture: the model has no such input; expected one of: image",
        ),
        (
            ["MODEL", "--inputs", "total.npz"],
            "--inputs total: the model has no such input; expected one of: image",
        ),
        (["MODEL", "--inputs", "image=bad.npz"], "arrays picture; expected one that is named image"),
        (["MODEL", "--inputs", "bad.npy"], "float64 [2]; expected float32"),
        (["MODEL", "--inputs", "MODEL"], "expected a .npy file"),
        (["MODEL", "--against", "GPU", "--shape", "image[1,2,2,3]"], "expected a model, a .npz file"),
        (["MODEL", "--against", "NPU", "--shape", "image[1,2,2,3]"], "expected --config KEY=VALUE"),
        (["MODEL", "--against", "onnxruntime", "--shape", "image[1,2,2,3]"], "a model in a .onnx file"),
        (["MODEL", "--against", "none.onnx", "--shape", "image[1,2,2,3]"], "no such file"),
        (
            ["MODEL", "--against", "empty.npz", "--shape", "image[1,2,2,3]"],
            "expected the output under a name",
        ),
        (["MODEL", "--layers", "--bisect"], "expected one of them"),
        (["MODEL", "--reduce", "small.onnx"], "expected a file that ends in .xml"),
        (["MODEL", "--source-model", "MODEL"], "is no compiled model"),
        (["MODEL", "--rtol", "f32=x"], "expected a number that is not negative"),
    ],
)
def test_what_cannot_be_compared_is_reported_with_exit_code_2(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("bad.npy", np.zeros(2))
    np.savez("empty.npz")
    np.savez("bad.npz", picture=np.zeros((1, 2, 2, 3), np.float32))
    np.savez("total.npz", image=np.zeros((1, 2, 2, 3), np.float32), total=np.zeros((1, 3), np.float32))
    done = softnpu("compare", *(each.replace("MODEL", str(model)) for each in arguments))
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1), done
    assert complaint in done.err

"""`softnpu compare`: a seeded defect is located, reduced and reproduced; without one, all is equal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.tools.models.catalogue import lookup
from softnpu.tools.models.fetch import get
from tests.support.cli import Finished, softnpu
from tests.support.defects import DEFECTS, seed_defect

pytestmark = pytest.mark.usefixtures("cli_daemon")

Array = npt.NDArray[Any]
_EQUAL = "every number equals, bit by bit"


def _named(node: Any, name: str) -> Any:
    node.set_friendly_name(name)
    node.output(0).set_names({name})
    return node


def _constant(*shape: int) -> Any:
    return ops.constant(np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32))


def _pictures(batch: int = 1) -> ov.Model:
    """Convolutions, a branch, an axis to swap: the parts of vision models."""
    image = _named(ops.parameter([batch, 3, 12, 12], ov.Type.f32), "image")
    zeros = [0, 0], [0, 0], [1, 1]
    value = _named(ops.convolution(image, _constant(8, 3, 3, 3), [1, 1], *zeros), "conv1")
    value = _named(ops.add(value, _constant(1, 8, 1, 1)), "bias1")
    branch = value = _named(ops.relu(value), "relu1")
    value = _named(ops.convolution(value, _constant(8, 8, 1, 1), [1, 1], *zeros), "conv2")
    value = _named(ops.add(_named(ops.sigmoid(value), "gate"), branch), "skip")
    value = _named(ops.transpose(value, ops.constant(np.array([0, 2, 3, 1]))), "turned")
    value = _named(ops.matmul(value, _constant(8, 5), False, False), "dense")
    value = _named(ops.softmax(value, axis=3), "scores")
    return ov.Model([ops.result(value)], [image], "pictures")


def _attention() -> ov.Model:
    """Two heads of attention over a dynamic number of tokens."""
    tokens = _named(ops.parameter([1, -1, 8], ov.Type.f32), "tokens")
    parts = {}
    for name in ("query", "key", "value"):
        part = _named(ops.matmul(tokens, _constant(8, 8), False, False), f"{name}_dense")
        part = ops.reshape(part, ops.constant(np.array([1, -1, 2, 4])), False)
        part = _named(part, f"{name}_split")
        parts[name] = _named(ops.transpose(part, ops.constant(np.array([0, 2, 1, 3]))), f"{name}_heads")
    scores = _named(ops.matmul(parts["query"], parts["key"], False, True), "dots")
    scores = _named(
        ops.softmax(_named(ops.multiply(scores, _constant(1, 2, 1, 1)), "scaled"), axis=3), "weights"
    )
    mixed = _named(ops.matmul(scores, parts["value"], False, False), "mixed")
    mixed = _named(ops.transpose(mixed, ops.constant(np.array([0, 2, 1, 3]))), "together")
    mixed = _named(ops.reshape(mixed, ops.constant(np.array([1, -1, 8])), False), "merged")
    out = _named(ops.add(ops.matmul(mixed, _constant(8, 8), False, False), _constant(8)), "out")
    return ov.Model([ops.result(out)], [tokens], "attention")


def _states() -> ov.Model:
    """A recurrent cell whose state averages what came before."""
    x = _named(ops.parameter([1, 6], ov.Type.f32), "x")
    state = _named(ops.read_value(ops.constant(np.zeros((1, 6), np.float32)), "memory"), "memory")
    gate = _named(ops.sigmoid(_named(ops.matmul(x, _constant(6, 6), False, False), "gate_dense")), "gate")
    new = _named(ops.tanh(_named(ops.add(state, x), "sum")), "new")
    kept = _named(ops.add(ops.multiply(gate, state), new), "kept")
    out = _named(ops.matmul(kept, _constant(6, 3), False, False), "out")
    return ov.Model([ops.result(out)], [ops.assign(kept, "memory")], [x], "states")


class _Case(NamedTuple):
    """A model, the defect to seed, the layer it affects, and options for comparing that model."""

    model: Callable[[], ov.Model]
    defect: str
    layer: str
    options: tuple[str, ...] = ()


_TOKENS = ("--shape", "tokens[1,7,8]")
_CASES = [
    _Case(_pictures, "constant", "conv1"),
    _Case(_pictures, "sign", "bias1"),
    _Case(_pictures, "axis", "scores"),
    _Case(_pictures, "f16", "conv2"),
    _Case(_attention, "axis", "weights", _TOKENS),
    _Case(_attention, "constant", "key_dense", _TOKENS),
    _Case(_attention, "f16", "value_dense", _TOKENS),
    _Case(_states, "sign", "gate_dense", ("--steps", "3")),
    _Case(_states, "f16", "out", ("--steps", "3")),
]


def _saved(model: ov.Model, path: Path) -> Path:
    ov.save_model(model, path, compress_to_fp16=False)
    return path


def _document(done: Finished, code: int) -> dict[str, Any]:
    assert done.code == code, done
    document: dict[str, Any] = json.loads(done.out)
    return document


@pytest.mark.parametrize(
    "case", _CASES, ids=lambda case: f"{case.model.__name__[1:]}-{case.defect}-{case.layer}"
)
def test_a_seeded_defect_is_named_and_the_reduced_model_reproduces_it(case: _Case, tmp_path: Path) -> None:
    good = _saved(case.model(), tmp_path / "good.xml")
    bad = _saved(seed_defect(case.model(), case.defect, case.layer), tmp_path / "bad.xml")
    small = tmp_path / "small.xml"

    done = softnpu("compare", bad, "--against", good, "--layers", "--reduce", small, "--json", *case.options)

    found = _document(done, 1)
    assert (found["causes"], found["first"], found["culprit"]) == ([case.layer], case.layer, case.layer)
    assert (found["in_tolerance"], found["identical"]) == (False, False)
    assert {each["role"] for each in found["layers"]} <= {"equal", "in tolerance", "causes", "inherits"}
    assert found["reduced"]["operations"] <= 5
    repeated = _document(softnpu("compare", small, "--inputs", small.with_suffix(".npz"), "--json"), 1)
    assert [each["name"] for each in repeated["outputs"]] == [case.layer]
    searched = _document(softnpu("compare", bad, "--against", good, "--bisect", "--json", *case.options), 1)
    assert searched["causes"] == [case.layer]
    assert searched["executions"] <= np.log2(len(found["layers"])) + 2


@pytest.mark.parametrize(
    ("model", "options"),
    [(_pictures, ()), (_attention, _TOKENS), (_states, ("--steps", "4"))],
)
def test_without_a_defect_every_number_is_equal(
    model: Callable[[], ov.Model], options: tuple[str, ...], tmp_path: Path
) -> None:
    path = _saved(model(), tmp_path / "model.xml")
    for against in ((), ("--against", _saved(model(), tmp_path / "other.xml"))):
        done = softnpu("compare", path, *against, "--layers", *options)
        assert _EQUAL in done.words
    assert "0 without a counterpart" not in done.words


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["silero-vad", "ppocr-det", "romanizer"])
def test_a_speech_a_segmentation_and_a_decoder_model_are_equal(name: str) -> None:
    shapes = [f"{port}={','.join(map(str, shape))}" for port, shape in lookup(name).shapes.items()]
    options = [word for shape in shapes for word in ("--shape", shape)]
    assert _EQUAL in softnpu("compare", get(name), *options).words


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("magika", "jax2tf_get_logits_/pjit_get_logits_/MagikaV2/Dense_1/MatMul"),
        pytest.param("yolov8n", "/model.6/cv2/conv/Conv/WithoutBiases", marks=pytest.mark.soak),
        pytest.param("minilm", "", marks=pytest.mark.soak),
    ],
)
def test_real_models(name: str, layer: str, tmp_path: Path) -> None:
    def model() -> ov.Model:
        found = ov.Core().read_model(get(name))
        found.reshape(lookup(name).shapes)
        return found

    good = _saved(model(), tmp_path / "good.xml")
    assert _EQUAL in softnpu("compare", good, "--layers").words
    if not layer:  # its name has a number that depends on the models created before
        dense = [
            node for node in ov.Core().read_model(good).get_ordered_ops() if node.get_type_name() == "MatMul"
        ]
        layer = next(
            node.get_friendly_name()
            for node in dense[len(dense) // 2 :]
            if node.input_value(1).get_node().get_type_name() == "Constant"
        )
    for defect in DEFECTS if name != "magika" else ("f16",):
        if defect == "axis":
            continue
        bad = _saved(seed_defect(ov.Core().read_model(good), defect, layer), tmp_path / "bad.xml")
        small = tmp_path / "small.xml"
        done = softnpu("compare", bad, "--against", good, "--layers", "--reduce", small, "--json")
        found = _document(done, 1)
        assert (found["causes"], found["first"]) == ([layer], layer), defect
        assert softnpu("compare", small, "--inputs", small.with_suffix(".npz")).code == 1

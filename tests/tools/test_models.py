"""The catalogue with the real packages: every model is fetched, compiles, runs, and gives sane results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from softnpu.plugin import Core
from softnpu.tools.models.catalogue import CATALOGUE, lookup
from softnpu.tools.models.errors import UnknownModelError, WeightsError
from softnpu.tools.models.fetch import DIRECTORY_VARIABLE, get
from softnpu.tools.models.minilm import Weights
from tests.support.cli import softnpu

# The first test to use a model downloads it, up to 84 MB.
pytestmark = pytest.mark.timeout(400)

_F32 = {"INFERENCE_PRECISION_HINT": "f32"}
# Upper bound of random values of an input; 1 for others.
_VALUE_LIMIT = {
    "bytes": 257, "input_ids": 30522, "attention_mask": 2, "token_type_ids": 2, "prefix": 160, "src_mask": 0,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_a_model_runs_on_the_cpu_with_the_static_shapes_of_the_catalogue(name: str) -> None:
    core, shapes = ov.Core(), lookup(name).shapes
    model = core.read_model(get(name))
    assert {port.any_name for port in model.inputs} == set(shapes)
    model.reshape(shapes)
    assert not model.is_dynamic()
    compiled = core.compile_model(model, "CPU", _F32)
    random = np.random.default_rng(1)
    inputs = {}
    for port in compiled.inputs:
        values = random.random(port.shape) * _VALUE_LIMIT.get(port.any_name, 1)
        inputs[port.any_name] = values.astype(port.element_type.to_dtype())
    results = compiled(inputs)
    for output in compiled.outputs:
        value = results[output]
        assert list(value.shape) == list(output.shape)
        assert np.isfinite(value).all()
        assert value.std() > 0 if value.size > 1 else value.any()


def test_an_unknown_name_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(
        UnknownModelError, match=r"'resnet'.*magika, minilm, ppocr-det, romanizer, silero-vad, yolov8n"
    ):
        get("resnet")


def test_minilm_is_saved_dynamic_and_in_plain_f32() -> None:
    path = get("minilm")
    model = ov.Core().read_model(path)
    assert {str(port.partial_shape) for port in model.inputs} == {"[?,?]"}
    assert {port.element_type for port in model.inputs} == {ov.Type.i64}
    constants = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
    assert {node.get_element_type().get_type_name() for node in constants} == {"f32", "i64"}
    companions = {member.file_name for member in lookup("minilm").companions}
    assert {file.name for file in path.parent.iterdir()} >= companions
    assert 85e6 < path.with_suffix(".bin").stat().st_size < 95e6


@pytest.fixture(scope="module")
def minilm() -> ov.CompiledModel:
    return ov.Core().compile_model(get("minilm"), "CPU", _F32)


def _embedding(minilm: ov.CompiledModel, sentence: str, padding: int = 0) -> NDArray[np.float32]:
    """Return the sentence embedding [384] of words in the vocabulary, followed by masked padding."""
    vocabulary = (get("minilm").parent / "vocab.txt").read_text(encoding="utf-8").splitlines()
    ids = [vocabulary.index(word) for word in ("[CLS]", *sentence.split(), "[SEP]")]
    input_ids = np.array([ids + [0] * padding], dtype=np.int64)
    mask = np.array([[1] * len(ids) + [0] * padding], dtype=np.int64)
    outputs = minilm([input_ids, mask, np.zeros_like(mask)])
    embedding: NDArray[np.float32] = outputs["sentence_embedding"][0]
    return embedding


def test_minilm_puts_similar_sentences_closer_than_dissimilar_ones_whatever_the_padding(
    minilm: ov.CompiledModel,
) -> None:
    bread = _embedding(minilm, "a man is eating a piece of bread .")
    food = _embedding(minilm, "a man is eating food .")
    markets = _embedding(minilm, "stock markets fell sharply on monday .")
    assert np.linalg.norm(bread) == pytest.approx(1.0, abs=1e-5)
    assert bread @ food > 0.6
    assert abs(bread @ markets) < 0.2
    padded = _embedding(minilm, "a man is eating food .", padding=50)
    np.testing.assert_allclose(padded, food, atol=1e-5)


@pytest.mark.usefixtures("cli_daemon")
def test_the_romanizer_writes_names_on_the_device_with_its_state_fed_back() -> None:
    path = get("romanizer")
    tokens = json.loads((path.parent / "vocab.json").read_text(encoding="utf-8"))["tokens"]
    encoder = ov.Core().compile_model(path.parent / "encoder.onnx", "CPU", _F32)
    core = Core()
    decoder = core.compile_model(path, "NPU", shapes=lookup("romanizer").shapes)

    def latin(arabic: str) -> str:
        source = [tokens.index(part) for part in ("<UNK_COUNTRY>", "<ROLE_UNKNOWN>", *arabic, "<EOS>")]
        length = len(source)
        memory, _, hidden = encoder([np.array([source]), np.zeros((1, length), bool)]).values()
        memory = np.pad(memory, [(0, 0), (0, 40 - length), (0, 0)])
        padding = np.arange(40)[None] >= length
        letters, token = "", tokens.index("<BOS>")
        while len(letters) < 32:
            scores, hidden = decoder([np.array([[token]]), memory, padding, hidden]).values()
            token = int(scores[0].argmax())
            if tokens[token] == "<EOS>":
                break
            letters += tokens[token]
        return letters

    assert [latin("محمد"), latin("صلاح")] == ["Mohamed", "Salah"]
    core.unload_plugin()


def test_a_weight_that_does_not_fit_the_configuration_is_refused() -> None:
    tensors: dict[str, NDArray[Any]] = {"a": np.zeros(3, np.float32), "half": np.zeros(2, np.float16)}
    shape = r"shape \(3,\), expected float32 of \(2,\)"
    for name, told in (("b", "no tensor 'b'"), ("half", "float16"), ("a", shape)):
        with pytest.raises(WeightsError, match=rf"weights\.bin: .*{told}"):
            Weights(Path("weights.bin"), tensors).constant(name, 2)


def test_two_processes_that_ask_at_once_download_once(tmp_path: Path) -> None:
    log, interpreter = tmp_path / "runs.log", tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\necho run >> "{log}"\nexec "{sys.executable}" "$@"\n')
    interpreter.chmod(0o755)
    program = (
        f"import sys; sys.executable = {str(interpreter)!r}; "
        "from softnpu.tools.models.fetch import get; print(get('magika'))"
    )
    cache = tmp_path / "cache"
    environment = {**os.environ, DIRECTORY_VARIABLE: str(cache)}
    children = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        printed = [child.communicate(timeout=200)[0].strip() for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait(timeout=10)
    entry = lookup("magika")
    assert printed == [str(cache / f"magika-{entry.version}" / entry.model_file)] * 2
    assert log.read_text().splitlines() == ["run"]


def test_the_command_line_lists_every_model_and_whether_it_is_cached() -> None:
    path = get("magika")
    # nothing is truncated in a terminal of 80 columns
    shown = softnpu("models", "ls", COLUMNS="80").words
    assert "…" not in shown
    lines = {line.strip().split("  ")[-1].strip() for line in shown.splitlines()}
    assert all({entry.requirement, entry.licence} <= lines for entry in CATALOGUE.values())
    row = next(line for line in shown.splitlines() if "magika" in line)
    assert "bytes 1x2048" in row
    assert "yes" in row
    document = json.loads(softnpu("models", "ls", "--json").words)
    listed = {entry["name"]: entry for entry in document["models"]}
    assert listed.keys() == CATALOGUE.keys()
    assert (listed["magika"]["path"], listed["magika"]["shapes"]) == (str(path), {"bytes": [1, 2048]})


def test_the_command_line_prints_the_path_or_the_error_and_a_hint() -> None:
    assert softnpu("models", "get", "magika").words == f"{get('magika')}\n"
    assert "unknown model 'resnet'" in softnpu("models", "get", "resnet").misuse
    complaint = softnpu("models", "get", "magika", **{DIRECTORY_VARIABLE: "/dev/null/models"}).complaint
    assert complaint.startswith("directory for models /dev/null/models: Not a directory; expected one that")
    assert "Name another one with SOFTNPU_MODELS_DIR" in complaint

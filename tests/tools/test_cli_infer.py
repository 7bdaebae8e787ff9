"""`softnpu infer`: results, comparison, and errors in what the user typed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops
from typer.testing import CliRunner

from softnpu.emulator.common import processor
from softnpu.emulator.openvino.defects.quantised_subgraphs import UNFUSED
from softnpu.emulator.openvino.defects.saturated_sums import IN_F32
from softnpu.tools import cli
from softnpu.tools.infer import inference_run
from softnpu.tools.infer import show as report
from softnpu.tools.models.catalogue import lookup
from softnpu.tools.models.fetch import get
from softnpu.tools.shared.comparison import Comparison, Difference
from tests.conftest import StartDaemon
from tests.support.cli import softnpu
from tests.support.dynamic import non_zero
from tests.support.quantised import attention, chain

_needs_daemon = pytest.mark.usefixtures("cli_daemon")
_EQUAL = "every number equals, bit by bit"


def _row(words: str, start: str) -> list[str]:
    """Return the first table row that starts with this word."""
    return next(line.split() for line in words.splitlines() if line.split()[:1] == [start])


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A model with inputs of several types, each with a dynamic first dimension."""
    ids = ops.parameter([-1, 4], ov.Type.i64, name="ids")
    mask = ops.parameter([-1, 4], ov.Type.boolean, name="mask")
    half = ops.parameter([-1, 4], ov.Type.f16, name="half")
    for node, name in ((ids, "ids"), (mask, "mask"), (half, "half")):
        node.output(0).set_names({name})
    chosen = ops.select(mask, ids, ops.constant(np.int64(-7)))
    total = ops.add(ops.convert(chosen, "f32"), ops.convert(half, "f32"))
    flags = ops.logical_not(mask)
    for node, name in ((chosen, "chosen"), (total, "total"), (flags, "flags")):
        node.output(0).set_names({name})
    path = tmp_path / "mixed.onnx.xml"
    ov.save_model(ov.Model([chosen, total, flags], [ids, mask, half], "mixed"), path, compress_to_fp16=False)
    return path


@_needs_daemon
def test_a_model_runs_and_equals_the_cpu_device_with_nothing_copied(digits: Path) -> None:
    words = softnpu("infer", digits, "--compare", "CPU", "-n", "3").words
    assert _row(words, "probabilities")[1:3] == ["f32", "1x10"]
    assert "times, 3 inferences after the first" in words
    assert "staged bytes in 4 inferences: 0 by the driver, 0 by the engine" in words
    assert _EQUAL in words


@_needs_daemon
@pytest.mark.timeout(400)
def test_a_model_of_the_catalogue_equals_the_cpu_device() -> None:
    entry = lookup("magika")
    shapes = [f"--shape={name}={','.join(map(str, shape))}" for name, shape in entry.shapes.items()]
    words = softnpu("infer", get(entry.name), *shapes, "--compare", "CPU", "-n", "2").words
    assert _row(words, "target_label")[2] == "1x214"
    assert _EQUAL in words


@_needs_daemon
def test_inputs_of_every_kind_are_generated_and_compared(mixed: Path) -> None:
    shapes = [f"--shape={name}=2,4" for name in ("ids", "mask", "half")]
    words = softnpu("infer", mixed, *shapes, "--compare", "CPU").words
    assert [_row(words, name)[1:3] for name in ("chosen", "total", "flags")] == [
        ["i64", "2x4"],
        ["f32", "2x4"],
        ["boolean", "2x4"],
    ]
    assert _EQUAL in words


@_needs_daemon
def test_layers_are_shown_with_their_times_and_all_figures_are_one_document(digits: Path) -> None:
    lines = softnpu("infer", digits, "--profile", "-n", "1").words.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("layers of the last"))
    assert lines[begin + 2].split() == ["layer", "type", "unit", "time", "share"]
    rows = [line.split() for line in takewhile(str.strip, lines[begin + 4 :])]
    assert {row[2] for row in rows} <= {"DPU", "SW", "DMA", "NONE"}
    assert sum(float(row[-1].removesuffix("%")) for row in rows) == pytest.approx(100, abs=1)

    done = softnpu("infer", digits, "--profile", "--json", "-n", "2", "--compare", "CPU")
    found = json.loads(done.words)
    ours, theirs = found["runs"]
    assert (ours["device"], theirs["device"], ours["inferences"]) == ("NPU", "CPU", 2)
    assert [(output["name"], output["shape"]) for output in ours["outputs"]] == [("probabilities", [1, 10])]
    executed = [layer for layer in ours["layers"] if layer["status"] == "EXECUTED"]
    assert [layer["name"] for layer in executed][0:1] == [rows[0][0]]
    assert found["comparison"]["identical"] is True
    complaint = softnpu("infer", digits, "--profile", "--config", "PERF_COUNT=NO").misuse
    assert complaint == "--profile: --config PERF_COUNT=NO; expected YES"


def test_a_device_with_another_default_precision_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    ours = inference_run.Run("NPU", "f32", {}, {}, {}, {"y": np.zeros(1, np.float32)}, 0.1, 0.1, 0.1, [0.1])
    found = Comparison({"y": Difference(0.0, 0.0, True)}, 0.001)
    for default, is_told in (("f32", False), ("bf16", True)):
        report.show(ours, replace(ours, device="CPU", default_precision=default), found)
        words = " ".join(capsys.readouterr().out.split())
        assert (
            "CPU computes in bf16 unless a program sets INFERENCE_PRECISION_HINT to f32" in words
        ) == is_told


@_needs_daemon
def test_a_result_whose_size_depends_on_the_data_is_compared(private_dir: Path) -> None:
    path = private_dir / "sparse.xml"
    ov.serialize(non_zero([4, 4]), path)
    words = softnpu("infer", path, "--compare", "CPU", "-n", "2").words
    assert _EQUAL in words
    assert "2x16" in words


@_needs_daemon
def test_a_seed_determines_the_numbers(digits: Path) -> None:
    def numbers(seed: str) -> list[str]:
        return _row(softnpu("infer", digits, "-n", "1", "--seed", seed).words, "probabilities")

    assert numbers("1") == numbers("1") != numbers("2")


@_needs_daemon
def test_values_come_from_a_file_and_give_an_open_input_its_shape(mixed: Path, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "ids": np.arange(12, dtype=np.int64).reshape(3, 4),
        "mask": np.ones((3, 4), bool),
        "half": np.full((3, 4), 0.5, np.float16),
    }
    options = []
    for name, array in values.items():
        np.save(tmp_path / f"{name}.npy", array)
        options.append(f"--input={name}={tmp_path / name}.npy")
    np.savez(tmp_path / "all.npz", **values)
    np.savez(tmp_path / "ids.npz", ids=values["ids"].astype(np.int32))
    ids = f"--input=ids={tmp_path}/ids.npz"
    for given in (options, [f"--inputs={tmp_path}/all.npz"], [ids, *options[1:]]):
        words = softnpu("infer", mixed, *given, "--compare", "CPU").words
        assert _row(words, "total")[2:] == ["3x4", "0.5", "6", "11.5"]
        assert _EQUAL in words


def test_the_second_device_is_named(start_daemon: StartDaemon, private_dir: Path, digits: Path) -> None:
    other = start_daemon(socket=str(private_dir / "two.sock"), devices=("4000", "3720"))
    softnpu("infer", digits, "--device", "NPU.1", "-n", "2", "--socket", other.socket)
    assert [engine.inferences for engine in other.status().engines] == [0, 3]


@_needs_daemon
def test_another_precision_is_used_on_both_sides_or_refused_by_name(digits: Path) -> None:
    done = softnpu("infer", digits, "--precision", "bf16", "--compare", "CPU")
    if "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        assert "NPU against CPU, both bf16" in done.words
    else:
        assert "INFERENCE_PRECISION_HINT: 'bf16'" in done.complaint


def test_a_wrong_number_fails_the_comparison_and_names_its_output(
    digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(number: float) -> inference_run.Run:
        return inference_run.Run(
            device="NPU", precision="f32", config={}, shapes={}, inputs={}, compile_s=1, load_s=1, first_s=1,
            times_s=[1.0], outputs={"right": np.ones(2), "wrong": np.array([number, np.nan])},
        )  # fmt: skip

    monkeypatch.setattr(inference_run, "on_npu", lambda *_: run(1.0))
    monkeypatch.setattr(inference_run, "on_openvino", lambda *_: run(1.01))
    arguments = ["infer", str(digits), "--compare", "CPU"]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 1
    assert "differs by more than a relative 0.001 in wrong" in done.stdout
    assert _row(done.stdout, "wrong")[3:] == ["1", "NaN", "NaN", "NaN"]
    done = CliRunner().invoke(cli.app, [*arguments, "--json"])
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert (found["comparison"]["identical"], found["comparison"]["beyond"]) == (False, ["wrong"])
    assert [output["nan"] for output in found["runs"][0]["outputs"]] == [0, 1]


# ------------------------------------------------------------ errors


@_needs_daemon
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--shape", "image"), "--shape: 'image'; expected NAME=D,D,..."),
        (("--shape", "image=1,a"), "--shape image: '1,a'; expected positive integers"),
        (("--shape", "image=1,0,8,8"), "--shape image: '1,0,8,8'; expected positive integers"),
        (("--shape", "image=1", "--shape", "image=2"), "--shape image: given twice; expected once"),
        (("--shape", "x=1"), "--shape x: the model has no such input; expected one of: image"),
        (("--input", "x=values.npy"), "--inputs x: the model has no such input; expected one of: image"),
        (("--compare", "TPU"), "--compare: 'TPU'; expected a device that OpenVINO has here: CPU"),
        (("--config", "SPEED"), "--config: 'SPEED'; expected KEY=VALUE"),
        (
            ("--precision", "f32", "--config", "INFERENCE_PRECISION_HINT=bf16"),
            "--precision: f32, and --config INFERENCE_PRECISION_HINT=bf16",
        ),
        # by the device
        (("--shape", "image=1,8"), "image"),
        (("--device", "NPU.1"), "device 'NPU.1'"),
        (("--device", "GPU"), "device 'GPU': not an NPU"),
        (("--precision", "f64"), "property INFERENCE_PRECISION_HINT: value 'f64'; expected f32 or bf16"),
        (("--config", "SPEED=9"), "property SPEED: unknown"),
    ],
)
def test_unusable_arguments_are_named(digits: Path, arguments: tuple[str, ...], said: str) -> None:
    assert said in softnpu("infer", digits, *arguments).misuse


@_needs_daemon
def test_a_file_without_an_array_for_the_input_is_refused(digits: Path, tmp_path: Path) -> None:
    file = tmp_path / "values.npy"

    def complaint() -> str:
        return softnpu("infer", digits, "--input", f"image={file}").complaint

    assert complaint() == f"{file}: No such file or directory"
    assert softnpu("infer", digits, "--input", file).complaint == complaint()
    with file.open("wb") as opened:
        np.savez(opened, np.zeros(3))
    archive = file.read_bytes()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    for content in (b"hello, not numpy", archive, file.read_bytes()):
        file.write_bytes(content)
        assert re.fullmatch(rf"--input image, {file}: no array .*; expected a .npy file", complaint())
    for array, found in (
        (np.zeros((1, 1, 8, 8)), "float64 [1, 1, 8, 8]"),
        (np.zeros((1, 8, 8), np.float32), "float32 [1, 8, 8]"),
    ):
        np.save(file, array)
        assert complaint() == f"--input image, {file}: {found}; expected float32 [1, 1, 8, 8]"


def test_an_open_shape_is_refused_with_the_option_that_closes_it(mixed: Path) -> None:
    complaint = softnpu("infer", mixed, "--shape", "mask=1,4").complaint
    assert "input 'ids': shape [?,4]; expected a static shape. Give one with --shape ids=1,4" in complaint


@pytest.mark.parametrize("name", ["broken.xml", "broken.onnx"])
def test_a_file_that_is_not_a_model_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"\x08\x07garbage" * 9)
    done = softnpu("infer", path)
    assert done.code == 1
    # OpenVINO's frontends may have printed before
    assert f"softnpu: model {path}: OpenVINO cannot read it" in done.err.splitlines()[-1]
    assert "Traceback" not in done.err


@pytest.mark.parametrize("command", ["infer", "compile", "predict", "compare", "report"])
def test_what_is_no_model_is_named_with_the_next_step(
    command: str, digits: Path, private_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(private_dir)
    code = 2 if command == "compare" else 1
    missing, weights = softnpu(command, "minilm"), softnpu(command, digits.with_suffix(".bin"))
    assert [missing.code, weights.code] == [code, code]
    assert (
        "no such file; expected a model that OpenVINO reads. 'softnpu models get minilm' prints"
        in missing.err
    )
    assert f"the weights of a model; expected its description, {digits}" in weights.err


def test_a_compiled_model_is_not_predicted(tmp_path: Path) -> None:
    (tmp_path / "model.blob").write_bytes(b"SNPUBLOB" + bytes(99))
    complaint = softnpu("predict", tmp_path / "model.blob").complaint
    assert (
        "a compiled model; expected the model that it was compiled from. 'softnpu blob inspect'" in complaint
    )


@pytest.mark.parametrize("limit", ["", "AVX2"])
@pytest.mark.parametrize(
    ("name", "model"), [("chain", chain((16,) * 4, -1.0, 2.0)), ("attention", attention(8, 128))]
)
def test_errors_of_the_cpu_device_are_not_blamed_on_the_npu(
    start_daemon: StartDaemon,
    monkeypatch: pytest.MonkeyPatch,
    private_dir: Path,
    name: str,
    model: ov.Model,
    limit: str,
) -> None:
    if limit:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    start_daemon()
    path = private_dir / f"{name}.xml"
    ov.save_model(model, path, compress_to_fp16=False)
    found = json.loads(softnpu("infer", path, "--compare", "CPU", "-n", "1", "--json").words)
    assert found["comparison"]["identical"] is True
    shown = softnpu("infer", path, "--compare", "CPU", "-n", "1").words
    config = found["runs"][1]["config"]
    # the processor decides whether there are such subgraphs
    given = {key: config[key] for key in (*IN_F32, *UNFUSED) if key in config}
    assert IN_F32.items().isdisjoint(given.items()) == processor.has_vnni()
    for key in ("LP_TRANSFORMS_MODE", "SNIPPETS_MODE"):
        assert (f"CPU ran with {key}=" in shown) == (key in given)
    compared = softnpu("compare", path).words
    assert _EQUAL in compared
    assert f"against {' '.join(['CPU', *(f'{key}={value}' for key, value in given.items())])}," in compared

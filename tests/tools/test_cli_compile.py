"""`softnpu compile`, and `softnpu infer` on its output."""

from __future__ import annotations

import json
import re
from pathlib import Path

import openvino as ov
import pytest
from openvino import opset13 as ops

from tests.conftest import StartDaemon
from tests.support.cli import softnpu
from tests.support.daemon import Daemon
from tests.support.models import write_scale

_needs_daemon = pytest.mark.usefixtures("cli_daemon")
_EQUAL = "every number equals, bit by bit"


@pytest.fixture
def blob(private_dir: Path) -> Path:
    return private_dir / "out.blob"


@_needs_daemon
def test_the_output_runs_without_the_model_and_compares_with_it(digits: Path, blob: Path) -> None:
    words = softnpu("compile", digits, "-o", blob).words.splitlines()
    assert re.fullmatch(r"compiled 'digits' for platform 4000 in .*: receive .*, read .*, pack .*", words[0])
    assert re.fullmatch(rf"wrote {blob}, [\d.]+ KiB, with all weights, in .*", words[1])
    assert words[2] == f"run it with: softnpu infer {blob}"
    assert "probabilities   f32    1x10" in softnpu("infer", blob, "-n", "2").words
    assert _EQUAL in softnpu("infer", blob, "-n", "2", "--source-model", digits, "--compare", "CPU").words


def test_compiling_into_a_file_named_after_the_model_loads_nothing(
    daemon: Daemon, digits: Path, private_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(private_dir)
    said = json.loads(softnpu("compile", digits, "--json").words)
    shown = [said[name] for name in ("model", "platform", "file", "weightless")]
    assert shown == ["digits", "4000", "digits.blob", False]
    assert said["size"] == (private_dir / "digits.blob").stat().st_size
    assert (said["origin"], "pack" in said["stages_s"]) in (("compiled", True), ("cache", False))
    assert "loaded" not in daemon.log
    assert daemon.engine().inferences == 0


def _open_model(folder: Path, dimension: ov.Dimension) -> Path:
    x = ops.parameter([dimension, 4], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    path = folder / "open.xml"
    ov.save_model(ov.Model([ops.relu(x)], [x], "open"), path)
    return path


@_needs_daemon
def test_shapes_and_properties_reach_the_compiler(private_dir: Path, blob: Path) -> None:
    model = _open_model(private_dir, ov.Dimension(-1))
    softnpu("compile", model, "-o", blob, "--shape", "x=3,4", "--config", "PERF_COUNT=YES")
    found = json.loads(softnpu("blob", "inspect", blob, "--json").words)
    assert [port["shape"] for port in found["inputs"]] == ["[3,4]"]
    assert found["properties"]["PERF_COUNT"] in ("YES", "True", "true")


@_needs_daemon
def test_an_open_dimension_gets_its_size_when_the_file_is_run(private_dir: Path, blob: Path) -> None:
    model = _open_model(private_dir, ov.Dimension(1, 8))
    softnpu("compile", model, "-o", blob)
    assert "give one with --shape x=1,4" in softnpu("infer", blob).complaint.replace("Give", "give")
    assert "--shape x: [9, 4]; expected one within [1..8,4]" in softnpu("infer", blob, "--shape=x=9,4").misuse
    words = softnpu("infer", blob, "--shape", "x=5,4", "--compare", "CPU", "--source-model", model).words
    assert "5x4" in words
    assert _EQUAL in words


# ------------------------------------------------------------ platforms


@_needs_daemon
def test_a_model_is_compiled_for_an_absent_platform(
    digits: Path, blob: Path, start_daemon: StartDaemon, private_dir: Path
) -> None:
    words = softnpu("compile", digits, "-o", blob, "--platform", "3720").words
    assert "compiled 'digits' for platform 3720" in words
    assert f"run it with: softnpu infer {blob}, with a device of that platform" in words
    assert "softnpu daemon --platform 3720" in words
    complaint = softnpu("infer", blob).complaint
    assert "platform: '3720'; expected '4000'. Compile the model for this device" in complaint
    other = start_daemon(devices=("3720",), socket=str(private_dir / "other.sock"))
    words = softnpu(
        "infer", blob, "--socket", other.socket, "--source-model", digits, "--compare", "CPU"
    ).words
    assert _EQUAL in words


@_needs_daemon
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--platform", "3721"), "device platform: '3721'; expected 3720 or 4000 or 5010 or 5020"),
        (
            ("--platform", "arrow-lake", "--config", "NPU_PLATFORM=4000"),
            "--platform: 3720, and --config NPU_PLATFORM",
        ),
        (("--platform", "3720", "--config", "NPU_TILES=3"), "NPU_TILES: value 3; expected at most 2"),
        (("--device", "NPU.3720"), "device 'NPU.3720': no such device"),
        (("--config", "SPEED=9"), "property SPEED: unknown"),
        (("--shape", "image=1,8"), "image"),
        (("--shape", "picture=1,1,8,8"), "picture"),
    ],
)
def test_a_value_refused_by_the_compiler_is_named_and_nothing_is_written(
    digits: Path, blob: Path, arguments: tuple[str, ...], said: str
) -> None:
    assert said in softnpu("compile", digits, "-o", blob, *arguments).misuse
    assert not blob.exists()


# ------------------------------------------------------------ weights


@_needs_daemon
def test_without_weights_the_file_is_small_and_runs_with_the_model(private_dir: Path, blob: Path) -> None:
    model = write_scale(private_dir, 3.0, count=1 << 20)
    words = softnpu("compile", model, "-o", blob, "--weightless").words
    assert "without weights" in words
    assert f"softnpu infer {blob} --source-model {model}" in words
    assert blob.stat().st_size < 1 << 20 < (4 << 20) == model.with_suffix(".bin").stat().st_size
    assert _EQUAL in softnpu("infer", blob, "-n", "1", "--source-model", model, "--compare", "CPU").words


# ------------------------------------------------------------ errors


@_needs_daemon
def test_invalid_models_and_unwritable_files_are_named(digits: Path, tmp_path: Path, blob: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\x08\x07garbage" * 9)
    done = softnpu("compile", broken, "-o", blob)
    assert done.code == 1
    assert f"model {broken}: OpenVINO cannot read it" in done.err.splitlines()[-1]
    assert "no such file" in softnpu("compile", tmp_path / "nothing.onnx", "-o", blob).complaint
    assert not blob.exists()
    before = digits.read_bytes()
    complaint = softnpu("compile", digits, "-o", digits).misuse
    assert complaint == f"--output {digits}: the model itself; expected another file"
    assert digits.read_bytes() == before
    complaint = softnpu("compile", digits, "-o", "/no/such/out.blob").misuse
    assert complaint.startswith("--output /no/such/out.blob: no such directory")


@_needs_daemon
def test_options_that_a_compiled_model_refuses_are_named(digits: Path, blob: Path) -> None:
    softnpu("compile", digits, "-o", blob)
    unknown = "--shape picture: the model has no such input; expected one of: image"
    for arguments, said in (
        (("--compare", "CPU"), "OpenVINO's own devices cannot run it; expected the model"),
        (("--shape", "picture=1,1,8,8"), unknown),
        (("--shape", "image=2,1,8,8"), "--shape image: [2, 1, 8, 8]; expected one within [1,1,8,8]"),
        (("--precision", "bf16"), "INFERENCE_PRECISION_HINT"),
    ):
        assert said in softnpu("infer", blob, *arguments).misuse
    complaint = softnpu("infer", digits, "--source-model", digits).misuse
    assert complaint.startswith(f"--source-model: given, but {digits} is no compiled model")
    blob.write_bytes(blob.read_bytes()[:-100])
    assert str(blob) in softnpu("infer", blob).complaint

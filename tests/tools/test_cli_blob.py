"""`softnpu blob`, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from softnpu.plugin import Core
from tests.support.cli import softnpu
from tests.support.daemon import Daemon


@pytest.fixture
def file(cli_daemon: Daemon, digits: Path, private_dir: Path) -> Path:
    """An exported model without its weights."""
    return _exported(cli_daemon, digits, private_dir / "digits.blob", ENABLE_WEIGHTLESS=True)


def _exported(daemon: Daemon, model: Path, path: Path, **config: object) -> Path:
    core = Core(daemon.socket)
    core.compile_model(model, "NPU", config).export_model(path)
    core.unload_plugin()
    return path


def test_inspect_shows_the_contents_of_a_file(file: Path, digits: Path) -> None:
    words = softnpu("blob", "inspect", file).words
    assert "metadata 1." in words
    assert "model 'digits'" in words
    assert "requires platform=4000;" in words
    assert "image: f32 [1,1,8,8]" in words
    assert "probabilities: f32 [1,10]" in words
    assert "METADATA:" in words
    assert f"from {digits.with_suffix('.bin')}" in words
    assert "INFERENCE_PRECISION_HINT f32" in words


def test_inspect_needs_no_device_and_accepts_a_native_blob(
    file: Path, cli_daemon: Daemon, digits: Path, private_dir: Path
) -> None:
    nowhere = str(private_dir / "none.sock")
    found = json.loads(softnpu("blob", "inspect", file, "--json", SOFTNPU_SOCKET=nowhere).out)
    assert found["model"] == "digits"
    assert found["size"] == file.stat().st_size
    assert found["inputs"][0]["names"] == ["image"]
    assert found["weights"]["outside"] > 0
    assert found["weights"]["sources"][0]["path"].endswith("digits.bin")
    assert [part["kind"] for part in found["blobs"]] == ["main"]
    assert {section["type"] for section in found["blobs"][0]["sections"]} >= {"METADATA", "IR"}
    path = _exported(cli_daemon, digits, private_dir / "raw.blob", NPU_EXPORT_RAW_BLOB=True)
    assert "a native blob without metadata" in softnpu("blob", "inspect", path).words
    assert json.loads(softnpu("blob", "inspect", path, "--json").out)["metadata"] is None


def test_check_says_supported_or_why_not(file: Path) -> None:
    assert "SUPPORTED: platform 4000" in softnpu("blob", "check", file).words
    file.write_bytes(file.read_bytes()[:-1] + b"X")
    done = softnpu("blob", "check", file)
    assert done.code == 1
    assert "UNSUPPORTED:" in done.out
    done = softnpu("blob", "check", file, "--json")
    assert done.code == 1
    assert json.loads(done.out)["supported"] is False
    assert "NPU.5" in softnpu("blob", "check", file, "--device", "5").misuse


def test_a_damaged_or_missing_file_is_one_line(file: Path, private_dir: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    assert "checksum" in softnpu("blob", "inspect", file).complaint
    assert "No such file" in softnpu("blob", "inspect", private_dir / "no.blob").complaint
    other = private_dir / "other.blob"
    other.write_bytes(b"\x7fELF" + bytes(100))
    assert "an ELF file" in softnpu("blob", "inspect", other).complaint

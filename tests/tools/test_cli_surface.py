"""The command line as a whole: what it offers, how quickly, and how it tells a failure."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import softnpu as package
from softnpu.tools.console import format_bytes, format_time, parse_size
from tests.support.cli import softnpu

pytestmark = pytest.mark.quick


_ROOT = Path(__file__).parents[2]
_COMMANDS = (
    "demo",
    "compile",
    "infer",
    "run",
    "env",
    "doctor",
    "stress",
    "daemon",
    "status",
    "stop",
    "inject",
    "bench",
    "models",
    "cache",
    "blob",
)


def test_the_version_is_that_of_the_package() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    assert softnpu("--version").words == f"softnpu {project['project']['version']}\n"
    # sources that were not installed have no package file
    assert getattr(package, "__version__", project["project"]["version"]) == project["project"]["version"]
    (generated,) = project["tool"]["scikit-build"]["generate"]
    assert generated["path"] == "softnpu/__init__.py"
    assert '__version__ = "${version}"' in generated["template"]


def test_help_lists_every_command() -> None:
    words = softnpu("--help").words
    assert [name for name in _COMMANDS if f" {name} " not in words] == []


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_command_has_help(command: str) -> None:
    assert "Usage: softnpu" in softnpu(command, "--help").words


def test_help_loads_neither_openvino_nor_numpy() -> None:
    program = (
        "import sys; from softnpu.tools.cli import app; app(['--help'], standalone_mode=False); "
        "heavy = {'openvino', 'numpy', 'msgspec', 'psutil'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_an_unknown_command_is_wrong_usage() -> None:
    done = softnpu("fly")
    assert done.code == 2
    assert "fly" in done.err


def test_a_failure_is_one_line_and_never_a_traceback() -> None:
    assert "no such file" in softnpu("infer", "/does/not/exist.onnx").complaint


def test_a_failure_has_its_traceback_when_somebody_debugs() -> None:
    done = softnpu("infer", "/does/not/exist.onnx", SOFTNPU_DEBUG="1")
    assert done.code == 1
    assert "Traceback" in done.err
    assert "ModelError" in done.err


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 1 << 20),
        ("4GiB", 4 << 30),
        ("4G", 4 << 30),
        ("512 MiB", 512 << 20),
        ("500MB", 500_000_000),
        ("1.5gib", 3 << 29),
        ("7B", 7),
        ("0", 0),
    ],
)
def test_a_size_is_read_as_it_is_written(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "4X", "GiB", "-1", "4GiBs", "1e9"])
def test_what_is_no_size_is_wrong_usage(text: str) -> None:
    done = softnpu("daemon", "--memory", text)
    assert done.code == 2
    assert "a size such as" in " ".join(done.err.replace("│", " ").split())


def test_quantities_are_printed_in_units_that_fit() -> None:
    assert [format_bytes(size) for size in (0, 1023, 1024, 5 << 30)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 GiB",
    ]
    assert [format_time(s) for s in (35e-6, 0.0123, 4.1, 200, 18720)] == [
        "35 us",
        "12.30 ms",
        "4.1 s",
        "3 min 20 s",
        "5 h 12 min",
    ]

"""The command line as a whole: its commands, start-up time, and error reports."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.cells import cell_len
from rich.text import Text
from typer.testing import CliRunner

import softnpu as package
from softnpu.emulator.supervisor.supervisor import SERVER_NAME
from softnpu.tools import cli
from softnpu.tools.demo.digits import model_path
from softnpu.tools.shared.console import _Output, format_bytes, format_time, make_table, parse_size
from softnpu.tools.shared.groups import DeferredGroup
from tests.support.cli import softnpu

pytestmark = pytest.mark.quick


_ROOT = Path(__file__).parents[2]
_COMMANDS = (
    "farm",
    "demo",
    "docs",
    "compile",
    "infer",
    "predict",
    "compare",
    "report",
    "check",
    "run",
    "env",
    "doctor",
    "stress",
    "daemon",
    "status",
    "top",
    "metrics",
    "stop",
    "logs",
    "clean",
    "trace",
    "inject",
    "bench",
    "kernel",
    "models",
    "cache",
    "blob",
)


def test_the_version_equals_the_packages() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    assert softnpu("--version").words == f"softnpu {project['project']['version']}\n"
    # sources that were not installed have no package file
    assert getattr(package, "__version__", project["project"]["version"]) == project["project"]["version"]
    (generated,) = project["tool"]["scikit-build"]["generate"]
    assert generated["path"] == "softnpu/__init__.py"
    assert '__version__ = "${version}"' in generated["template"]
    assert getattr(package, "__version__", "sources") == SERVER_NAME.removeprefix("softnpu ")


def _all_commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        if isinstance(inner, DeferredGroup):
            group = typer.main.get_group(importlib.import_module(inner._module).app)
            yield from _all_commands(group, (*path, name))
        else:
            yield from _all_commands(inner, (*path, name))


def _words(text: str) -> str:
    """Return the text without frames and markup of a terminal."""
    return re.sub(r"[\s│╭╰─╮╯`*]+", "", text)


def test_every_command_has_complete_help() -> None:
    found = list(_all_commands(typer.main.get_group(cli.app)))
    assert {path[0] for path, _ in found if path} == set(_COMMANDS)
    for number, (path, command) in enumerate(found):
        asked = ("--help", "-h")[number % 2]
        shown = CliRunner().invoke(cli.app, [*path, asked], env={"COLUMNS": "300"})
        assert shown.exit_code == 0, path
        # one option with two names, so that one of them stands for both
        assert re.search(r"--help +-h .*Show this message and exit", shown.stdout), path
        texts = [command.help, *(parameter.help for parameter in command.params if not parameter.hidden)]
        for text in filter(None, texts):
            assert all(_words(line) in _words(shown.stdout) for line in text.splitlines()), (path, text)


def test_commands_that_print_figures_accept_json() -> None:
    found = dict(_all_commands(typer.main.get_group(cli.app)))
    figures = [
        "demo", "infer", "predict", "compare", "doctor", "stress", "status", "bench", "inject status",
        "models ls", "cache ls", "cache verify", "cache prune", "blob inspect", "blob check", "compile",
        "trace run", "trace attach",
        "kernel inspect", "kernel test", "kernel bench",
        *(f"bench {name}" for name in found[("bench",)].commands if name != "page"),
    ]  # fmt: skip
    for name in figures:
        flags = [each for each in found[tuple(name.split())].params if "--json" in each.opts]
        assert [flag.is_flag for flag in flags] == [True], name


@pytest.mark.usefixtures("cli_daemon")
@pytest.mark.parametrize(
    "arguments",
    [
        "status",
        "status --watch --count 1",
        "infer {digits}",
        "demo",
        "inject status",
        "models ls",
        "cache ls --dir {cache}",
        "cache verify --dir {cache}",
        "cache prune --all --dir {cache}",
        "cache prune --all --dry-run --dir {cache}",
        "compile {digits} -o {cache}/out.blob",
        "trace attach --seconds 0 -o {cache}/trace.json",
    ],
)
def test_every_json_document_is_an_object_with_its_version(arguments: str, tmp_path: Path) -> None:
    words = arguments.format(digits=model_path(), cache=tmp_path).split()
    document = json.loads(softnpu(*words, "--json").words)
    assert next(iter(document.items())) == ("json_version", 1)


def test_shapes_inputs_and_properties_are_given_alike_everywhere() -> None:
    found = dict(_all_commands(typer.main.get_group(cli.app)))
    shapes, files = set(), []
    for path, command in found.items():
        for each in command.params:
            if "--shape" in each.opts:
                shapes.add(each.metavar)
            if "--inputs" in each.opts or "--input" in each.opts:
                files.append((path, set(each.opts)))
    assert shapes == {"NAME=D,D,..."}
    names = {"--inputs", "--input"}
    assert files == [((name,), names) for name in ("infer", "predict", "compare", "report")]


@pytest.mark.parametrize("command", ["compile", "infer", "predict", "compare", "report", "cache explain"])
def test_an_unknown_property_is_refused_with_a_similar_one_before_anything_else(command: str) -> None:
    done = softnpu(*command.split(), "/no/such/model.xml", "--config", "PERF_CONT=YES")
    assert "property PERF_CONT: unknown" in done.misuse
    assert "Did you mean PERF_COUNT?" in done.misuse


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("run --platform 5", {"5010", "5020"}),
        ("run --platform lu", {"lunar-lake"}),
        ("predict x.xml --platform 3720,4", {"3720,4000"}),
        ("compile x.xml --config NPU_TU", {"NPU_TURBO="}),
        ("compare x.xml --config PERF_C", {"PERF_COUNT="}),
        ("models get m", {"magika", "minilm"}),
        ("bench infer y", {"yolov8n", "yours/"}),
        ("bench infer yours/", {"yours/model.xml"}),
        ("docs fid", {"fidelity"}),
        ("sta", {"status"}),
    ],
)
def test_a_shell_completes_names(private_dir: Path, line: str, offered: set[str]) -> None:
    (private_dir / "yours").mkdir()
    (private_dir / "yours" / "model.xml").touch()
    done = subprocess.run(
        [sys.executable, "-P", "-c", "from softnpu.tools.start import main; main()"],
        env={
            **os.environ,
            "_SOFTNPU_COMPLETE": "complete_bash",
            "COMP_WORDS": f"softnpu {line}",
            "COMP_CWORD": str(len(f"{line}|".split(" "))),
        },
        cwd=private_dir,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert set(done.stdout.split()) == offered, done.stderr


def test_help_loads_neither_openvino_nor_numpy() -> None:
    program = (
        "import sys; from softnpu.tools.cli import app; app(['--help'], standalone_mode=False); "
        "heavy = {'openvino', 'numpy', 'msgspec', 'psutil'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_ctrl_c_ends_a_command_with_130_at_any_time(tmp_path: Path) -> None:
    # interrupting the import of a compiled module raises an ImportError
    program = (
        "import os, signal, sys; sys.argv = ['softnpu', *sys.argv[2:]]; from softnpu.tools import start\n"
        "class Finder:\n"
        "    def find_spec(name, *_):\n"
        "        try:\n"
        "            if name == wanted: os.kill(os.getpid(), signal.SIGINT)\n"
        "        except KeyboardInterrupt:\n"
        "            raise ImportError('initialization failed') from None\n"
        "wanted = '{}'; sys.meta_path.insert(0, Finder); start.main()"
    )
    infer, run = ("infer", "/none.xml"), ("run", "--private", "true")
    for module, arguments, code in (
        ("softnpu.tools.run.quick_run", run, -signal.SIGINT),
        ("rich.console", infer, -signal.SIGINT),
        ("openvino._pyopenvino", infer, 130),
        ("softnpu.emulator.supervisor.settings", run, 130),
    ):
        done = subprocess.run(
            [sys.executable, "-P", "-c", program.format(module), "", *arguments],
            env={**os.environ, "TMPDIR": str(tmp_path), "CI": "true"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (code, ""), module
        assert list(tmp_path.iterdir()) == []


def test_an_unknown_command_is_wrong_usage() -> None:
    done = softnpu("fly")
    assert done.code == 2
    assert "fly" in done.err


def test_a_failure_is_one_line_and_never_a_traceback() -> None:
    assert "no such file" in softnpu("infer", "/does/not/exist.onnx").complaint


def test_a_failure_has_its_traceback_when_debugging() -> None:
    done = softnpu("infer", "/does/not/exist.onnx", SOFTNPU_DEBUG="1")
    assert done.code == 1
    assert "Traceback" in done.err
    assert "ToolError" in done.err


def test_a_size_is_read_as_it_is_written() -> None:
    sizes = {
        "1048576": 1 << 20, "4GiB": 4 << 30, "4G": 4 << 30, "512 MiB": 512 << 20, "500MB": 500_000_000,
        "1.5gib": 3 << 29, "7B": 7, "0": 0,
    }  # fmt: skip
    assert {text: parse_size(text) for text in sizes} == sizes
    for text in ("", "4X", "GiB", "-1", "4GiBs", "1e9"):
        with pytest.raises(typer.BadParameter, match="a size such as"):
            parse_size(text)
    assert softnpu("daemon", "--memory", "4X").code == 2


def test_names_are_whole_in_a_file_and_lose_their_beginning_on_a_narrow_terminal() -> None:
    names = [f"model/encoder/{'very/' * 60}long/層/layer{number}" for number in range(2)]
    table = make_table("layers", "layer", "type", right=("time",), names="layer")
    for name in names:
        table.add_row(name, "MatMul", "12.34 ms")
    file = io.StringIO()
    _Output(file=file, _environ={}).print(table)
    assert [line.split() for line in file.getvalue().splitlines()[4:6]] == [
        [name, "MatMul", "12.34", "ms"] for name in names
    ]
    for width in range(30, 60):
        narrow = io.StringIO()
        _Output(file=narrow, force_terminal=True, width=width, height=25).print(table)
        lines = narrow.getvalue().splitlines()[4:6]
        for line, name in zip(lines, names, strict=True):
            shown, *others = Text.from_ansi(line).plain.split()
            assert others == ["MatMul", "12.34", "ms"]
            assert shown[0] == "…"
            assert name.endswith(shown[1:])
            assert shown.endswith(name[-5:])
            assert cell_len(line) <= width


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

"""Every listing in README and docs: Python runs as written; others are commands, with their output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import StartDaemon
from tests.support.cli import softnpu
from tests.support.torch_package import NoTorch, torch_path, with_path

_ROOT = Path(__file__).parents[2]
_DOCUMENTS = [_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*.md"))]
_PARTS = re.compile(
    r"^#+ (?P<heading>[^\n]*)$|^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


class Listing(NamedTuple):
    """One listing: its document, the heading above it, its language and its text."""

    document: str
    heading: str
    language: str
    text: str


def _listings() -> list[Listing]:
    found = []
    for document in _DOCUMENTS:
        heading = ""
        for part in _PARTS.finditer(document.read_text()):
            heading = part["heading"] or heading
            if part["text"]:
                found.append(Listing(document.name, heading, part["language"], part["text"]))
    return found


_MODEL = """
from pathlib import Path
import numpy as np
import openvino as ov
import openvino.opset13 as op
def _model(shape, name):
    x = op.parameter(shape, np.float32, name)
    x.output(0).set_names({name})
    y = op.convolution(x, op.constant(np.ones((2, 3, 3, 3), np.float32)), [8, 8], [0, 0], [0, 0], [1, 1])
    return ov.Model([op.result(op.relu(y))], [x], "model")
"""
_CORE = "from softnpu.plugin import Core\ncore = Core()\n"
_PRODUCT = """
x = op.parameter([2], np.float32)
model = ov.Model([op.result(op.multiply(x, op.constant(np.float32(3))))], [x])
given = [np.array([1000.1, 30000], np.float32)]
"""
_STATES = """
x = op.parameter([1, 4], np.float32, "x")
value = op.read_value(op.constant(np.zeros((1, 4), np.float32)), "last")
total = op.add(x, value)
model = ov.Model([op.result(total)], [op.assign(total, "last")], [x], "states")
chunks = [np.ones((1, 4), np.float32)] * 3
"""
_MODULE = """
import torch
from torch import nn
class module(nn.Module):
    def forward(self, x):
        return {"scores": x * 2}
module, example, x = module(), torch.ones(2), torch.ones(2)
array = np.ones(2, np.float32)
"""
_KERNEL = """
from softnpu.tools.kernel.build import TEMPLATE, build
build(TEMPLATE, Path("affine.wasm"))
"""
_AFFINE_MODEL = """
from softnpu.emulator.openvino.kernels import operations
affine = operations.operation(operations.load(Path("affine.wasm").read_bytes()))
x = op.parameter([1, 4], np.float32, "x")
y = affine([x.output(0)], a=2.0, b=1.0)
ov.save_model(ov.Model([op.result(y.output(0))], [x], "model"), "model.xml", compress_to_fp16=False)
"""
_GELU = """
from softnpu.tools.kernel.build import FOLDER, build
build(FOLDER / "gelu.c", Path("gelu.wasm"))
x = op.parameter([1, 4], np.float32, "x")
ov.save_model(ov.Model([op.result(op.gelu(x, "ERF"))], [x], "model"), "model.xml", compress_to_fp16=False)
"""
_NAMES = """
import fcntl, sys
if not hasattr(sys, "names_lock"):  # until this process ends: names are those of the machine
    sys.names_lock = open("/tmp/softnpu-names.lock", "w")
    fcntl.flock(sys.names_lock, fcntl.LOCK_EX)
from softnpu.driver import Driver
from softnpu.plugin import Core
from softnpu.tools.demo.digits import model_path
compiled = Core().compile_model(model_path(), "NPU")
request = compiled.create_infer_request()
"""
_SEMAPHORES = """
import posix_ipc
device = Driver.open().devices[0]
theirs = [posix_ipc.Semaphore(name, posix_ipc.O_CREAT) for name in ("/camera-frames", "/camera-done")]
theirs[0].release()
"""
_UNMODIFIED = "With unmodified OpenVINO"
AROUND: dict[tuple[str, str], tuple[str, str]] = {
    ("README.md", "In Python"): ("", ""),
    ("arithmetic.md", "Ask for it"): ("", ""),
    ("arithmetic.md", "Layers that stay in f32"): (_CORE + _PRODUCT, ""),
    ("faults.md", "Injecting faults"): (
        _CORE
        + "import pytest\nfrom softnpu.plugin import CompileError\nmodel = _model([1, 3, 32, 32], 'image')",
        "",
    ),
    ("kernels.md", "Own kernels"): ("", "assert affine(2, 3, 4) == 10"),
    ("kernels.md", "In a model"): (_KERNEL, ""),
    ("kernels.md", _UNMODIFIED): (
        _KERNEL + _AFFINE_MODEL,
        "assert compiled([np.ones((1, 4), np.float32)])[0].tolist() == [[3] * 4]",
    ),
    ("kernels.md", "In the place of an operation"): (
        _CORE + _GELU,
        "assert compiled.get_property('NPU_KERNELS_FOR') == 'Gelu=softnpu.examples.Gelu'",
    ),
    ("kernels.md", "From Python"): ("", ""),
    ("prediction.md", "What the real NPU would do"): ("", "assert prediction.speed['4000'].one_tile"),
    ("prediction-speed.md", "What a figure means"): ("", ""),
    ("prediction-speed.md", "The model"): (
        "from softnpu.emulator.prediction.reader import read_graph, read_model\n"
        "from softnpu.emulator.prediction.timing import predict\n"
        "from softnpu.tools.demo.digits import model_path",
        "",
    ),
    ("shared-memory.md", "Use what another program has published"): (
        _NAMES,
        "request.infer()\nassert compiled.staged_bytes == 0\nframes.close()\nframes.unlink()",
    ),
    ("shared-memory.md", "Publish memory of the device"): (
        _NAMES + "driver = Driver.open()\ncontext = driver.devices[0].create_context()",
        "",
    ),
    ("shared-memory.md", "Semaphores: a pipeline without polling"): (
        _NAMES + _SEMAPHORES,
        "assert (theirs[0].value, theirs[1].value) == (0, 1)\nfor one in theirs: one.unlink()",
    ),
    ("plugin.md", "Properties"): ("", "assert compiled.get_property('NPU_TILES') == 2"),
    ("plugin.md", "Remote tensors"): (
        "import multiprocessing\npicture, work = 1, repr\n"
        "ov.serialize(_model([1, 3, 320, 320], 'images'), 'model.xml')",
        "assert compiled.staged_bytes == 0\nassert np.array_equal(shared.data, image.data)\n"
        "worker.start()\nworker.join()\nassert worker.exitcode == 0",
    ),
    ("plugin.md", "Batch"): (
        _CORE + "model = _model([4, 3, 320, 320], 'image')\npictures = np.ones((9, 3, 320, 320), np.float32)",
        "assert compiled.get_property('BATCH_MODE') == 'PLUGIN'\nassert len(compiled([pictures])[0]) == 9",
    ),
    ("plugin.md", "Dynamic shapes"): (
        "",
        "request.infer()\nassert request.get_output_tensor(0).shape[2] == 40",
    ),
    ("plugin.md", "States"): (
        _CORE + _STATES,
        "assert saved.tolist() == state.state.data.tolist() == [[3] * 4]",
    ),
    ("plugin.md", "Export and import"): (_CORE, "assert imported.inputs[0].any_name == 'image'"),
    ("plugin.md", "Modules of PyTorch"): (_MODULE, "assert scores.tolist() == [2, 2]"),
}
"""What a Python listing assumes, and what holds after it, by document and heading."""

_RUN = """
import json, os, sys
cases = json.loads(sys.argv[1])
for name, before, listing, after in cases:
    print(f"--- {name}", flush=True)
    names = {"__name__": "listing"}
    exec(before, names)
    exec(listing, names)
    exec(after, names)
"""


def _run(
    folder: Path,
    listings: list[Listing],
    environment: dict[str, str] | None = None,
    before_python: tuple[str, ...] = (),
) -> list[str]:
    cases = []
    for section in dict.fromkeys((each.document, each.heading) for each in listings):
        texts = [each.text for each in listings if (each.document, each.heading) == section]
        before, after = AROUND[section]
        start = f"{_MODEL}ov.serialize(_model([1, 3, 320, 320], 'image'), 'model.xml')\n"
        cases.append((": ".join(section), start + before, "".join(texts), after))
    done = subprocess.run(
        [*before_python, sys.executable, "-P", "-c", _RUN, json.dumps(cases)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if not line.startswith("---")]


def _expected(listings: list[Listing]) -> list[str]:
    """Return the outputs claimed by `print(...)  # OUTPUT`."""
    return [line for each in listings for line in re.findall(r"^print\(.*# (.*)$", each.text, re.MULTILINE)]


def test_python_runs_and_prints_the_documented_output(start_daemon: StartDaemon, tmp_path: Path) -> None:
    # those of farm.md need Ray and a cluster: tests/farm has similar ones
    python = [each for each in _listings() if each.language == "python" and each.document != "farm.md"]
    assert {(each.document, each.heading) for each in python} == set(AROUND)
    in_readme = [each for each in python if each.document == "README.md"]
    others = ("Modules of PyTorch", _UNMODIFIED)
    in_docs = [each for each in python if each not in in_readme and each.heading not in others]
    for devices, listings in ((["4000"], in_readme), (["4000", "3720"], in_docs)):
        daemon = start_daemon(devices=devices)
        assert _run(tmp_path, listings) == _expected(listings)
        daemon.stop()


def test_unmodified_openvino_runs_as_documented(
    start_daemon: StartDaemon, tmp_path: Path, native_dir: dict[str, str]
) -> None:
    start_daemon()
    listings = [each for each in _listings() if each.heading == _UNMODIFIED]
    _run(
        tmp_path,
        listings,
        {**os.environ, **native_dir},
        (str(Path(sys.executable).with_name("softnpu")), "run", "--"),
    )


@pytest.mark.timeout(1200)
def test_modules_of_pytorch(start_daemon: StartDaemon, tmp_path: Path) -> None:
    try:
        path = torch_path()
    except NoTorch as reason:
        pytest.skip(str(reason))
    start_daemon()
    _run(tmp_path, [each for each in _listings() if each.heading == "Modules of PyTorch"], with_path(path))


def test_only_two_documents_have_tests() -> None:
    assert [each.document for each in _listings() if each.language == "py"] == ["native.md", "pytest.md"]


@pytest.mark.parametrize("document", ["native.md", "pytest.md"])
def test_the_tests_of_a_document_pass(tmp_path: Path, native_dir: dict[str, str], document: str) -> None:
    (listing,) = [each for each in _listings() if (each.document, each.language) == (document, "py")]
    exec(f"{_MODEL}ov.serialize(_model([1, 3, 320, 320], 'image'), {str(tmp_path / 'model.xml')!r})", {})
    (tmp_path / "my_program").write_text("#!/bin/sh\n")
    (tmp_path / "my_program").chmod(0o755)
    (tmp_path / "test_theirs.py").write_text("import openvino, subprocess\n" + listing.text)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "softnpu.tools.pytest_plugin"],
        cwd=tmp_path,
        env={**os.environ, **native_dir, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_other_listings_are_existing_commands_and_their_output() -> None:
    # kernels are tested in tests/kernels, in C and Zig
    known = {"python", "py", "yaml", "c", "zig", "rust"}
    others = [each for each in _listings() if each.language not in known]
    assert {each.language for each in others} == {"console", "sh"}
    assert [each for each in others if each.language == "console" and not each.text.startswith("$ ")] == []
    lines = [
        line.removeprefix("$ ")
        for each in others
        for line in each.text.splitlines()
        if each.language == "sh" or line.startswith("$ ")
    ]
    commands = {
        (command, " ".join(re.findall(r"--[a-z][a-z-]*", rest.partition(" -- ")[0])))
        for line in lines
        for command, rest in re.findall(r"(?:^|[ (])softnpu (\w+(?: [a-z]+)?)([^\n#&]*)", line)
    }
    assert {name.split()[0] for name, _ in commands} >= {
        "infer",
        "daemon",
        "status",
        "stop",
        "run",
        "inject",
        "stress",
    }
    for name, options in sorted(commands):
        words = softnpu(*name.split(), "--help").words
        assert [option for option in options.split() if option not in words] == [], name
    modules = {name for each in others for name in re.findall(r"python -m softnpu\.([\w.]+)", each.text)}
    places = {name: _ROOT / name.replace(".", "/") for name in modules}
    missing = [name for name, place in places.items() if not place.with_suffix(".py").exists()]
    assert [name for name in missing if not (places[name] / "__main__.py").exists()] == []

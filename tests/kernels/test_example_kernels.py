"""The worked kernels, built by `softnpu kernel build`, and the commands on them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from softnpu.emulator.kernels.client import KernelClient
from softnpu.tools.examples.kernels import reference
from softnpu.tools.kernel.arrays import ArrayCall
from softnpu.tools.kernel.build import FOLDER, ZIG_FLAGS
from tests.support.cli import softnpu
from tests.support.kernels import kernel

_REFERENCE = FOLDER / "reference.py"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the modules of all examples and of the template."""
    folder = tmp_path_factory.mktemp("kernels")
    for name in ("gelu", "softmax", "detections"):
        done = softnpu("kernel", "build", FOLDER / f"{name}.c", "-o", folder / f"{name}.wasm")
        assert f"wrote {folder / name}.wasm" in done.words
    for name in ("mine.cpp", "mine.c"):  # one template for both
        assert f"wrote {folder / name}" in softnpu("kernel", "new", folder / name).words
        assert "my.domain.Affine, f32 -> f32, 2 attributes" in softnpu("kernel", "build", folder / name).words
    return folder


@pytest.mark.parametrize(
    ("name", "function", "options"),
    [
        ("gelu", "gelu", ("--atol", "2e-6")),
        ("softmax", "softmax", ()),
        ("softmax", "softmax", ("--shape", "x=3,?,5,?", "--attribute", "axis=1")),
        ("detections", "detections", ("--shape", "candidates=1,9,?", "--attribute", "most=5")),
        ("mine", "affine", ("--attribute", "a=2", "--attribute", "b=0.5")),
    ],
)
def test_an_example_is_right(built: Path, name: str, function: str, options: tuple[str, ...]) -> None:
    against = ("--against", f"{_REFERENCE}:{function}", "--rounds", "25")
    done = softnpu("kernel", "test", built / f"{name}.wasm", *against, *options, "--json")
    results = json.loads(done.words)["results"]
    assert [(each["wrong"], each["runs"]) for each in results] == [("", 25)] * (2 if name == "gelu" else 1)


def test_a_wrong_kernel_is_found_with_the_place(tmp_path: Path) -> None:
    (tmp_path / "wrong.wasm").write_bytes(kernel())  # one element of many
    (tmp_path / "right.py").write_text("def add(x): return x + 1\n")
    done = softnpu("kernel", "test", tmp_path / "wrong.wasm", "--against", f"{tmp_path / 'right.py'}:add")
    assert done.code == 1
    assert "run: output y[" in done.out


def test_a_refused_shape_and_a_reference_that_fails_say_which_shapes(built: Path, tmp_path: Path) -> None:
    against = f"{_REFERENCE}:detections"
    refused = softnpu("kernel", "test", built / "detections.wasm", "--against", against).complaint
    assert "It had inputs candidates [" in refused
    assert "--shape fixes them" in refused
    (tmp_path / "theirs.py").write_text("def fails(x, a, b): return x[5, 5, 5]\n")
    options = ("--against", f"{tmp_path / 'theirs.py'}:fails", "--attribute", "a=1", "--shape", "x=n,n")
    complaint = softnpu("kernel", "test", built / "mine.wasm", *options).complaint
    assert "reference: IndexError" in complaint
    first, second = re.findall(r"Inputs x \[(\d+), (\d+)\]", complaint)[0]
    assert first == second


def test_a_kernel_is_inspected_without_running_it(built: Path) -> None:
    found = json.loads(softnpu("kernel", "inspect", built / "detections.wasm", "--json").words)
    assert found["description"]["dynamic"] == ["boxes", "scores", "classes"]
    assert "overlap: number, default 0.7" in softnpu("kernel", "inspect", built / "detections.wasm").words


def test_a_kernel_is_measured_and_copies_nothing(built: Path) -> None:
    options = ("--shape", "x=4096", "--against", f"{_REFERENCE}:gelu", "--rounds", "3", "--json")
    figures = json.loads(softnpu("kernel", "bench", built / "gelu.wasm", *options).words)["figures"]
    assert [each["value"] for each in figures if "copied" in each["metric"]] == [0, 0]
    assert [each["peer"] for each in figures if "time" in each["metric"]] == ["numpy", "numpy"]


def test_errors_of_the_compiler_and_of_options_are_one_line(built: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.c").write_text("int f(void) { return x; }\n")
    assert "undeclared identifier" in softnpu("kernel", "build", tmp_path / "bad.c").complaint
    (tmp_path / "foreign.c").write_text(
        '#include "softnpu_kernel.h"\nSOFTNPU_KERNEL({});\n'
        '__attribute__((import_module("env"), import_name("f"))) int f(void);\n'
        "SOFTNPU_EXPORT(g) int g(void) { return f(); }\n"
    )
    assert "missing required field" in softnpu("kernel", "build", tmp_path / "foreign.c").complaint
    bench = ("kernel", "bench", built / "gelu.wasm")
    assert "no shape of x" in softnpu(*bench).misuse
    assert (
        "no such input"
        in softnpu(
            "kernel", "test", built / "gelu.wasm", "--against", f"{_REFERENCE}:gelu", "--shape", "z=1"
        ).misuse
    )


def test_detections_shrink_to_what_was_found(built: Path, client: KernelClient) -> None:
    loaded = client.load((built / "detections.wasm").read_bytes())
    candidates = np.zeros((1, 6, 50), np.float32)
    candidates[0, :4] = np.random.default_rng(0).random((4, 50)) * 100
    candidates[0, 4, [3, 30]], candidates[0, 5, 40] = 0.5, 0.9
    with ArrayCall(loaded, [("f32", candidates.shape)], {}) as call:
        call.inputs[0][...] = candidates
        found = [each.copy() for each in call.run()]
        expected = reference.detections(candidates, 0.25, 0.7, 300)
        assert [each.shape for each in found] == [each.shape for each in expected]
        assert all(np.allclose(mine, right) for mine, right in zip(found, expected, strict=True))
        call.inputs[0][...] = 0
        assert [each.shape for each in call.run()] == [(0, 4), (0,), (0,)]


def test_the_documents_kernels_are_right(tmp_path: Path) -> None:
    document = (FOLDER.parents[2] / "docs" / "kernels.md").read_text()
    template = re.sub(r"/\* (?!the attr).*\n", "", (FOLDER / "template.c").read_text())
    assert _fenced(document, "c") == template
    (tmp_path / "twice.zig").write_text(_fenced(document, "zig"))
    (tmp_path / "right.py").write_text("def twice(x): return 2 * x\n")
    (line,) = re.findall(r"python -m ziglang build-exe twice.zig (.*?)\n```", document, re.DOTALL)
    assert tuple(line.replace("\\\n", " ").split()) == ZIG_FLAGS
    assert "my.domain.Twice, f32 -> f32" in softnpu("kernel", "build", tmp_path / "twice.zig").words
    softnpu_test = ("kernel", "test", tmp_path / "twice.wasm", "--against", f"{tmp_path / 'right.py'}:twice")
    assert "twice: right" in softnpu(*softnpu_test).words


def _fenced(document: str, language: str) -> str:
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", document, re.DOTALL)
    return found[0]

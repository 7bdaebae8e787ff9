"""`softnpu.plugin.torch` without torch; and the tests in `torch_cases`, in a process that has torch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from softnpu.plugin import ModelError
from softnpu.plugin import torch as npu
from tests.conftest import RunPython
from tests.support.torch_package import NoTorch, torch_path, with_path

_CASES = Path(__file__).with_name("torch_cases")
_ROOT = Path(__file__).parents[2]
_DEADLINE_S = 1100.0


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["tracing", "calls", "saving"])
def test_with_torch(name: str) -> None:
    """Every test of a file in `torch_cases`. torch is fetched at the first time (CPU build, 200 MB)."""
    try:
        path = torch_path()
    except NoTorch as reason:
        pytest.skip(str(reason))
    file = _CASES / f"{name}.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(file)],
        cwd=_ROOT,
        env=with_path(path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (passed,) = re.findall(r"^(\d+) passed", done.stdout, re.MULTILINE)
    functions = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
    assert int(passed) >= sum(node.name.startswith("test_") for node in functions) > 10


def test_every_file_of_cases_is_run() -> None:
    files = {file.stem for file in _CASES.glob("*.py")} - {"__init__", "modules"}
    source = ast.parse(Path(__file__).read_text())
    run = next(node for node in source.body if getattr(node, "name", "") == "test_with_torch")
    assert files == {word for word in re.findall(r"'(\w+)'", ast.unparse(run)) if word in files}


def test_without_torch_compiling_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelError, match=r"torch cannot be imported .*pip install 'softnpu\[torch\]'"):
        npu.compile(object(), object())


def test_nothing_of_the_plugin_imports_torch(run_python: RunPython) -> None:
    code = """
    class Forbidden:
        def find_spec(self, name, path=None, target=None):
            assert name.partition(".")[0] != "torch", name
    sys.meta_path.insert(0, Forbidden())
    from softnpu.plugin import torch as npu
    say([npu.__name__, sorted(name for name in npu.__all__), "torch" in sys.modules])
    """
    assert run_python(code) == ["softnpu.plugin.torch", ["CompiledModule", "compile", "load"], False]

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

_NOT_CASES = Path(__file__).parent / "torch_cases" / "modules.py"
_CASES = sorted({*Path(__file__).with_name("torch_cases").glob("[a-z]*.py")} - {_NOT_CASES})
_ROOT = Path(__file__).parents[2]
_DEADLINE_S = 1100.0


@pytest.mark.timeout(1200)
def test_with_torch() -> None:
    """Run every test in `torch_cases`. The first run fetches torch (CPU build, 200 MB)."""
    try:
        path = torch_path()
    except NoTorch as reason:
        pytest.skip(str(reason))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *map(str, _CASES)],
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
    functions = [node for file in _CASES for node in ast.parse(file.read_text()).body]
    names = [node.name for node in functions if isinstance(node, ast.FunctionDef)]
    assert int(passed) >= sum(name.startswith("test_") for name in names) > 20


def test_without_torch_compiling_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelError, match=r"torch cannot be imported .*pip install 'softnpu\[torch\]'"):
        npu.compile(object(), object())


def test_the_plugin_never_imports_torch(run_python: RunPython) -> None:
    code = """
    class Forbidden:
        def find_spec(self, name, path=None, target=None):
            assert name.partition(".")[0] != "torch", name
    sys.meta_path.insert(0, Forbidden())
    from softnpu.plugin import torch as npu
    say([npu.__name__, sorted(name for name in npu.__all__), "torch" in sys.modules])
    """
    assert run_python(code, interpreter=True) == [
        "softnpu.plugin.torch",
        ["CompiledModule", "compile", "load", "save"],
        False,
    ]

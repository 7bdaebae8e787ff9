"""The project keeps its own rules: layers, style, types, size of files."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

_ROOT = Path(__file__).parents[1]
_FOLDERS = ("emulator", "driver", "plugin", "tools")
_MOST_LINES = 500

_COMMON = ("emulator.common", "emulator.interface")
_MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "emulator.common": (
        "emulator.interface.messages",
        "emulator.interface.result",
        "emulator.interface.version",
    ),
    "emulator.interface": ("emulator.common",),
    "emulator.blob": _COMMON,
    "emulator.links": _COMMON,
    "emulator.compiler": (*_COMMON, "emulator.blob", "emulator.links.compiler"),
    "emulator.engine": (
        *_COMMON,
        "emulator.blob",
        "emulator.links.engine",
        "emulator.links.injection_counts",
        "emulator.platforms",
    ),
    "emulator.supervisor": (*_COMMON, "emulator.blob", "emulator.links", "emulator.platforms"),
    "emulator": (*_COMMON, "emulator.supervisor"),
    "driver": (*_COMMON, "emulator.blob"),
    "plugin": (
        "driver",
        *_COMMON,
        "emulator.blob",
        "emulator.compiler.cache_key",
        "emulator.compiler.constants",
        "emulator.compiler.options",
    ),
    "tools": ("plugin", "driver", "emulator"),
}
"""Layer to what it may import beside itself; the longest layer that a module lies in counts."""


def _inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _imports(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """Line and full name of everything of ours that a module imports; `package` is the one it lies in."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        prefix = _module_of(node, package) if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            name = prefix + alias.name
            if name.startswith("softnpu."):
                yield node.lineno, name.removeprefix("softnpu.")


def _module_of(node: ast.ImportFrom, package: str) -> str:
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1] if node.level else []
    return ".".join([*base, node.module or ""]).strip(".") + "."


def _violations(root: Path) -> list[str]:
    """Every import that points upward, as `file:line: what it imports`."""
    found = []
    for path in sorted(path for folder in _FOLDERS for path in (root / folder).rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        layer = max((layer for layer in _MAY_IMPORT if _inside(module, layer)), key=len)
        package = "softnpu." + ".".join(path.relative_to(root).parts[:-1])
        for line, name in _imports(ast.parse(path.read_text()), package):
            if not any(_inside(name, package) for package in (layer, *_MAY_IMPORT[layer])):
                found.append(f"{path.relative_to(root)}:{line}: {layer} imports softnpu.{name}")
    return found


def test_every_layer_imports_downward_only() -> None:
    assert _violations(_ROOT) == []


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("emulator/interface/frames.py", "from softnpu.emulator.links import engine"),
        ("emulator/interface/frames.py", "import softnpu.driver"),
        ("emulator/supervisor/compilers.py", "from softnpu.emulator.compiler.job_runner import Compiler"),
        ("emulator/engine/engine.py", "from softnpu.emulator.links import compiler"),
        (
            "emulator/engine/engine.py",
            "if TYPE_CHECKING:\n    from softnpu.emulator.supervisor import session",
        ),
        ("emulator/engine/engine.py", "def later():\n    import softnpu.driver.errors"),
        ("driver/driver.py", "from softnpu.emulator.supervisor import settings"),
        ("driver/driver.py", "from softnpu.emulator import daemon"),
        ("driver/driver.py", "from softnpu import plugin"),
        ("driver/driver.py", "from softnpu.emulator import compiler"),
        ("driver/driver.py", "from .. import plugin"),
        ("emulator/compiler/job_runner.py", "from softnpu.driver.errors import ZeError"),
        ("emulator/compiler/job_runner.py", "from ...driver.errors import ZeError"),
        ("plugin/core.py", "from softnpu.tools import cli"),
        ("plugin/core.py", "from softnpu.emulator.compiler import worker"),
        ("plugin/core.py", "if True:\n    from softnpu.emulator.daemon import serve"),
    ],
)
def test_an_upward_import_is_found(tmp_path: Path, place: str, line: str) -> None:
    for folder in _FOLDERS:
        for source in (_ROOT / folder).rglob("*.py"):
            target = tmp_path / source.relative_to(_ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    seeded = tmp_path / place
    seeded.write_text(seeded.read_text() + f"\n{line}\n")

    found = _violations(tmp_path)

    assert [violation.split(":")[0] for violation in found] == [place]


def test_no_file_is_too_long() -> None:
    long = {
        str(path.relative_to(_ROOT)): lines
        for folder in (*_FOLDERS, "tests")
        for path in (_ROOT / folder).rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > _MOST_LINES
    }
    assert long == {}


def _run(tool: str, *arguments: str) -> None:
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed")
    command = [sys.executable, "-m", tool, *arguments]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _cache(config: pytest.Config, name: str) -> str:
    assert config.cache is not None
    return str(config.cache.mkdir(f"mypy-{name}"))


def test_ruff_finds_nothing() -> None:
    _run("ruff", "check", "--no-cache", ".")


def test_every_file_is_formatted() -> None:
    _run("ruff", "format", "--check", "--no-cache", *_FOLDERS, "tests")


def test_the_packages_are_typed(pytestconfig: pytest.Config) -> None:
    packages = [argument for folder in _FOLDERS for argument in ("-p", f"softnpu.{folder}")]
    _run("mypy", "--cache-dir", _cache(pytestconfig, "packages"), *packages)


def test_the_tests_are_typed(pytestconfig: pytest.Config) -> None:
    folders = ["support", "emulator", "fuzz", "model", "soak", "stateful"]
    mine = ["tests/conftest.py", "tests/test_project.py", *(f"tests/{folder}" for folder in folders)]
    _run("mypy", "--cache-dir", _cache(pytestconfig, "tests"), "--explicit-package-bases", *mine)

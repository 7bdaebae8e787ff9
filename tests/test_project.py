"""Tests of the project's own rules: layers, style, types, size of files."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.circles import Graph, circle, without_pairs

pytestmark = pytest.mark.quick

_ROOT = Path(__file__).parents[1]
_FOLDERS = ("emulator", "driver", "plugin", "tools")
_MOST_LINES = 500

_COMMON = ("emulator.common", "emulator.interface")
_MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "emulator.common": (),
    "emulator.interface": ("emulator.common",),
    "emulator.sandbox": ("emulator.common",),
    "emulator.blob": _COMMON,
    "emulator.links": _COMMON,
    "emulator.arithmetic": _COMMON,
    "emulator.prediction": (
        *_COMMON,
        "emulator.arithmetic.dialect",
        "emulator.arithmetic.settings",
        "emulator.platforms",
    ),
    "emulator.disk_cache": (*_COMMON, "emulator.blob"),
    "emulator.kernels": (*_COMMON, "emulator.disk_cache", "emulator.links.kernels", "emulator.sandbox"),
    "emulator.openvino": (
        *_COMMON,
        "emulator.arithmetic",
        "emulator.blob",
        "emulator.disk_cache",
        "emulator.kernels",
        "emulator.links.engine",
        "emulator.links.kernels",
        "emulator.sandbox",
    ),
    "emulator.compiler": (
        *_COMMON,
        "emulator.arithmetic",
        "emulator.blob",
        "emulator.disk_cache",
        "emulator.links.bounds",
        "emulator.links.compiler",
        "emulator.kernels",
        "emulator.openvino.defects",
        "emulator.openvino.errors",
        "emulator.openvino.kernels.operations",
        "emulator.openvino.lean_openvino",
        "emulator.prediction",
        "emulator.sandbox",
    ),
    "emulator.engine": (
        *_COMMON,
        "emulator.arithmetic.library",
        "emulator.blob",
        "emulator.kernels.trust",
        "emulator.links.engine",
        "emulator.links.injection_counts",
        "emulator.links.internal_errors",
        "emulator.openvino",
        "emulator.platforms",
        "emulator.prediction",
        "emulator.sandbox",
    ),
    "emulator.supervisor": (
        *_COMMON,
        "emulator.blob",
        "emulator.kernels.trust",
        "emulator.links",
        "emulator.platforms",
    ),
    "emulator": (*_COMMON, "emulator.supervisor"),
    "driver": (*_COMMON, "emulator.blob"),
    "plugin": (
        "driver",
        *_COMMON,
        "emulator.blob",
        "emulator.disk_cache",
        "emulator.compiler.constants",
        "emulator.compiler.options",
        "emulator.kernels",
        "emulator.openvino.errors",
        "emulator.openvino.kernels.operations",
        "emulator.arithmetic.settings",
        "emulator.arithmetic.operation_types",
    ),
    "farm": (
        "plugin",
        "driver",
        *_COMMON,
        "emulator.blob",
        "emulator.daemon",
        "emulator.platforms",
        "emulator.supervisor.settings",
    ),
    "tools": ("farm", "plugin", "driver", "emulator"),
}
"""What each layer may import besides itself; a module belongs to its longest matching layer."""


_PLACES = {"plugin.farm": "farm"}
"""Folders whose installed package has another name."""


def _name_of(parts: Iterable[str]) -> str:
    """Return the name of a module or package from the parts of its path in the repository."""
    name = ".".join(parts).removesuffix(".__init__")
    for place, installed in _PLACES.items():
        if _inside(name, place):
            return installed + name.removeprefix(place)
    return name


def _inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _imports(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """Yield line and full name of all our modules that a module imports; `package` is the one it lies in."""
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


@cache
def _imports_of(root: Path) -> dict[Path, list[tuple[int, str]]]:
    """Return the imports of our modules by each file below a root."""
    return {
        path.relative_to(root): list(
            _imports(ast.parse(path.read_text()), f"softnpu.{_name_of(path.relative_to(root).parts[:-1])}")
        )
        for folder in _FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
    }


def _module(path: Path) -> str:
    return _name_of(path.with_suffix("").parts)


def _violations(root: Path) -> list[str]:
    """Return every import that points upward, as `file:line: what it imports`."""
    found = []
    for path, imports in _imports_of(root).items():
        layer = max((layer for layer in _MAY_IMPORT if _inside(_module(path), layer)), key=len)
        for line, name in imports:
            if not any(_inside(name, package) for package in (layer, *_MAY_IMPORT[layer])):
                found.append(f"{path}:{line}: {layer} imports softnpu.{name}")
    return found


def test_every_layer_imports_downward_only() -> None:
    assert _violations(_ROOT) == []


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("emulator/interface/frames.py", "from softnpu.emulator.links import engine"),
        ("emulator/interface/frames.py", "import softnpu.driver"),
        ("emulator/supervisor/compilers/pool.py", "from softnpu.emulator.compiler.worker import serve"),
        ("emulator/engine/engine.py", "from softnpu.emulator.links import compiler"),
        ("emulator/openvino/c_models.py", "from softnpu.emulator.engine.counters import Counters"),
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
        ("emulator/compiler/worker.py", "from softnpu.driver.errors import ZeError"),
        ("emulator/compiler/worker.py", "from ...driver.errors import ZeError"),
        ("plugin/core.py", "from softnpu.tools import cli"),
        ("plugin/core.py", "from softnpu.farm import lease"),
        ("plugin/farm/model.py", "from softnpu.tools import cli"),
        ("plugin/core.py", "from softnpu.emulator.compiler import worker"),
        ("plugin/core.py", "if True:\n    from softnpu.emulator.daemon import serve"),
    ],
)
def test_an_upward_import_is_found(tmp_path: Path, place: str, line: str) -> None:
    seeded = tmp_path / place
    seeded.parent.mkdir(parents=True)
    seeded.write_text((_ROOT / place).read_text() + f"\n{line}\n")

    found = _violations(tmp_path)

    assert [violation.split(":")[0] for violation in found] == [place]


_ROOMS: dict[str, tuple[str, ...]] = {
    "emulator.engine": ("memory", "commands", "queues", "fast_path", "running"),
    "emulator.openvino": ("defects", "fused_states", "weights", "cache", "dynamic", "kernels", "cache_fill"),
    "emulator.supervisor": (
        "state",
        "children",
        "compilers",
        "engines",
        "requests",
        "injections",
        "observe",
        "clients",
    ),
    "plugin": ("properties", "models", "batch", "exported", "requests", "remote", "torch"),
}
"""The folders of a layer, from the bottom up: each may import those before it."""


def _upward(graph: Graph) -> list[str]:
    """Return every import of a higher room of the same layer."""
    found = []
    for layer, rooms in _ROOMS.items():
        heights = {f"{layer}.{room}": height for height, room in enumerate(rooms)}

        def height(module: str, heights: dict[str, int] = heights) -> int | None:
            return next((height for room, height in heights.items() if _inside(module, room)), None)

        for module, imported in sorted(graph.items()):
            for name in sorted(imported):
                here, there = height(module), height(name)
                if here is not None and there is not None and there > here:
                    found.append(f"{module} imports {name}")
    return found


def test_every_room_imports_downward_only() -> None:
    assert _upward(_import_graph(_ROOT)) == []


def _between_rooms(graph: Graph, layer: str) -> Graph:
    """The imports between rooms of a layer, and between rooms and its files outside of them."""

    def place(module: str) -> str:
        rooms = (f"{layer}.{room}" for room in _ROOMS[layer])
        return next((room for room in rooms if _inside(module, room)), module)

    places: Graph = {place(module): set() for module in graph if _inside(module, layer)}
    for module, imported in graph.items():
        if _inside(module, layer):
            places[place(module)] |= {place(name) for name in imported} & set(places) - {place(module)}
    return places


@pytest.mark.parametrize("layer", _ROOMS)
def test_no_room_imports_itself_through_a_file_outside(layer: str) -> None:
    assert circle(_between_rooms(_import_graph(_ROOT), layer)) == []


def test_a_circle_through_a_file_outside_of_rooms_is_found() -> None:
    metadata, importing, compiled = (
        f"plugin.{name}" for name in ("exported.metadata", "exported.importing", "compiled_model")
    )
    graph: Graph = {importing: {compiled}, compiled: {metadata}, metadata: set()}
    assert circle(graph) == []
    assert circle(_between_rooms(graph, "plugin")) == [compiled, "plugin.exported"]


def test_a_room_that_imports_upward_is_found() -> None:
    memory, queue = "emulator.engine.memory.staging", "emulator.engine.queues.queue"
    assert _upward({memory: {queue}, queue: {memory}}) == [f"{memory} imports {queue}"]


def test_every_folder_of_a_layer_is_a_room() -> None:
    for layer, rooms in _ROOMS.items():
        folders = {path.parent for path in (_ROOT / layer.replace(".", "/")).glob("*/__init__.py")}
        inside = {folder for folder in folders if _inside(_name_of(folder.relative_to(_ROOT).parts), layer)}
        assert {folder.name for folder in inside} == set(rooms)


# ------------------------------------------------------------ circles

_PARENT_AND_CHILD = (
    ("driver.command_queue", "driver.fence"),
    ("driver.device", "driver.context"),
)
"""Allowed circles: the first module imports the second, which names the first only as a type."""


def _import_graph(root: Path) -> Graph:
    """Every module of ours and those that it imports, type-checking imports included."""
    modules = {_module(path): imports for path, imports in _imports_of(root).items()}
    graph: Graph = {}
    for module, imports in modules.items():
        known = {name if name in modules else name.rpartition(".")[0] for _, name in imports}
        graph[module] = (known & set(modules)) - {module}
    return graph


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = _import_graph(_ROOT)
    assert circle(without_pairs(graph, _PARENT_AND_CHILD)) == []
    for pair in _PARENT_AND_CHILD:
        others = [other for other in _PARENT_AND_CHILD if other != pair]
        assert circle(without_pairs(graph, others)), f"{pair} needs no exception any more"


def test_a_circle_is_found() -> None:
    graph: Graph = {"top": {"a"}, "a": {"b", "leaf"}, "b": {"c"}, "c": {"a"}, "leaf": set()}
    assert circle(graph) == ["a", "b", "c"]
    assert circle(without_pairs(graph, [("a", "c")])) == []


def test_no_file_is_too_long() -> None:
    long = {
        str(path.relative_to(_ROOT)): lines
        for folder in (*_FOLDERS, "tests")
        for path in (_ROOT / folder).rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > _MOST_LINES
    }
    assert long == {}


def test_no_line_of_a_document_is_too_wide() -> None:
    wide = [
        f"{path.relative_to(_ROOT)}:{number}"
        for path in (*_ROOT.glob("*.md"), *(_ROOT / "docs").rglob("*.md"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 120 and not (path.name == "properties.md" and line.startswith("| `"))  # rows
    ]
    assert wide == []


def _run(tool: str, *arguments: str) -> None:
    command = [sys.executable, "-m", tool, *arguments]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_finds_nothing() -> None:
    _run("ruff", "check", "--no-cache", ".")


def test_every_file_is_formatted() -> None:
    _run("ruff", "format", "--check", "--no-cache", *_FOLDERS, "tests")


def test_the_packages_and_the_tests_are_typed(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.cache is not None
    packages = ("tests", *(f"softnpu.{folder}" for folder in (*_FOLDERS, "farm")))
    arguments = [argument for package in packages for argument in ("-p", package)]
    _run("mypy", "--cache-dir", str(pytestconfig.cache.mkdir("mypy")), *arguments)

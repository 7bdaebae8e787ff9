"""The C++ sources keep their layers: each folder includes headers of those below it only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from tests.support.circles import Graph, circle, without_pairs

pytestmark = pytest.mark.quick

_ROOT = Path(__file__).parents[1]
_FOLDERS = ("emulator", "driver", "plugin", "tools", "tests")
_SUFFIXES = (".cpp", ".hpp", ".inc")

_DRIVER = "driver/native/src"
_INTERFACE = "driver/native/interface"
_ABI, _BASE, _WIRE = f"{_DRIVER}/abi", f"{_DRIVER}/base", f"{_DRIVER}/wire"
_SESSION, _MEMORY, _DEVICE = f"{_DRIVER}/session", f"{_DRIVER}/memory", f"{_DRIVER}/device"
_COMMANDS, _GRAPH, _ENTRY = f"{_DRIVER}/commands", f"{_DRIVER}/graph", f"{_DRIVER}/entry"

_MAY_INCLUDE: dict[str, tuple[str, ...]] = {
    _INTERFACE: (),
    "driver/native/guard": (),
    "driver/native/audit": (),
    "driver/native/submit": (_INTERFACE,),
    "emulator/engine/native": (_INTERFACE,),
    "emulator/arithmetic": (),
    _ABI: (),
    _BASE: (_ABI,),
    _WIRE: (_INTERFACE, _BASE),
    _SESSION: (_INTERFACE, _ABI, _BASE, _WIRE),
    _MEMORY: (_INTERFACE, _ABI, _BASE, _SESSION),
    _DEVICE: (_INTERFACE, _BASE, _SESSION, _MEMORY),
    _COMMANDS: (_INTERFACE, _ABI, _BASE, _WIRE, _SESSION, _MEMORY, _DEVICE),
    _GRAPH: (_INTERFACE, _ABI, _BASE, _WIRE, _SESSION, _MEMORY, _DEVICE, _COMMANDS),
    _ENTRY: (_INTERFACE, _ABI, _BASE, _SESSION, _MEMORY, _DEVICE, _COMMANDS, _GRAPH),
    "tests/native/programs": (_ABI,),
    "tools/bench": (),
}
"""Folder to what its sources may include of ours beside themselves."""

_INCLUDE_PATH = ("driver/native", _DRIVER)
"""Where the compiler looks for a header that does not lie beside the source."""

_INCLUDE = re.compile(r'\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')

_Sources = dict[str, str]


def _sources() -> _Sources:
    """The text of every C++ source, by its path."""
    paths = (path for folder in _FOLDERS for path in (_ROOT / folder).rglob("*") if path.suffix in _SUFFIXES)
    return {path.relative_to(_ROOT).as_posix(): path.read_text() for path in sorted(paths)}


def _found(sources: _Sources, place: str, name: str) -> str | None:
    """The source of ours that an include means; None if it means none."""
    folder = PurePosixPath(place).parent
    for start in (folder, *map(PurePosixPath, _INCLUDE_PATH)):
        path = _without_dots(start / name)
        if path in sources:
            return path
    return None


def _without_dots(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _includes(sources: _Sources, place: str) -> Iterator[tuple[int, str, str | None]]:
    """Line, name and source of every include that means, or ought to mean, a source of ours."""
    for number, line in enumerate(sources[place].splitlines(), 1):
        if found := _INCLUDE.match(line):
            quoted, in_brackets = found.groups()
            source = _found(sources, place, quoted or in_brackets)
            if quoted or source:
                yield number, quoted or in_brackets, source


def _folder_of(place: str) -> str:
    return str(PurePosixPath(place).parent)


def _violations(sources: _Sources) -> list[str]:
    """Every include that points upward or nowhere, as `file:line: what it includes`."""
    violations = []
    for place in sources:
        folder = _folder_of(place)
        if folder not in _MAY_INCLUDE:
            violations.append(f"{place}:0: lies in no layer")
            continue
        for line, name, source in _includes(sources, place):
            if source is None:
                violations.append(f"{place}:{line}: {name} is no source of ours")
            elif _folder_of(source) not in (folder, *_MAY_INCLUDE[folder]):
                violations.append(f"{place}:{line}: {folder} includes {source}")
    return violations


def test_every_folder_includes_downward_only() -> None:
    sources = _sources()
    assert len(sources) > 80
    assert _violations(sources) == []


def test_no_folder_may_include_what_it_does_not() -> None:
    sources = _sources()
    used: dict[str, set[str]] = {folder: set() for folder in _MAY_INCLUDE}
    for place in sources:
        for _, _, source in _includes(sources, place):
            used[_folder_of(place)].add(_folder_of(source or place))
    spare = {folder: set(may) - used[folder] for folder, may in _MAY_INCLUDE.items()}
    assert {folder: unused for folder, unused in spare.items() if unused} == {}


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("emulator/engine/native/run.cpp", '#include "base/fd.hpp"'),
        ("emulator/engine/native/run.cpp", "#include <base/fd.hpp>"),
        ("emulator/engine/native/run.cpp", '#include "src/base/fd.hpp"'),
        ("emulator/engine/native/fast_path.hpp", '#include "../../../driver/native/src/base/fd.hpp"'),
        ("driver/native/guard/guard.cpp", '#include "interface/words.hpp"'),
        ("driver/native/submit/submit.cpp", '#include "base/fd.hpp"'),
        ("driver/native/interface/words.hpp", '#include "base/fd.hpp"'),
        (f"{_ABI}/ze.hpp", '#include "interface/schema.hpp"'),
        (f"{_BASE}/output.hpp", '#include "entry/boundary.hpp"'),
        (f"{_WIRE}/frame.hpp", '  #  include "session/connection.hpp"'),
        (f"{_SESSION}/connection.cpp", "#ifdef NEVER\n#include <memory/pool.hpp>\n#endif"),
        (f"{_MEMORY}/pool.hpp", '#include "../device/context.hpp"'),
        (f"{_DEVICE}/context.cpp", '#include "commands/queue.hpp"'),
        (f"{_COMMANDS}/queue.cpp", '#include "graph/graph.hpp"'),
        (f"{_GRAPH}/graph.cpp", '#include "entry/calls.hpp"'),
        (f"{_ENTRY}/unsupported.inc", '#include "wire/msgpack.hpp"'),
        (f"{_ENTRY}/queue.cpp", '#include "commands/no_such_header.hpp"'),
        ("tests/native/programs/npu.hpp", '#include "base/fd.hpp"'),
        ("driver/native/elsewhere/new.cpp", "#include <memory>"),
    ],
)
def test_an_upward_include_is_found(place: str, line: str) -> None:
    sources = _sources()
    sources[place] = f"{sources.get(place, '')}\n{line}\n"

    assert [violation.split(":")[0] for violation in _violations(sources)] == [place]


# ------------------------------------------------------------ circles

_PARENT_AND_CHILD = (
    (f"{_COMMANDS}/queue", f"{_COMMANDS}/fence"),
    (f"{_COMMANDS}/queue", f"{_COMMANDS}/list"),
)
"""Units that may know each other: the source of the first includes the header of the second."""


def _include_graph(sources: _Sources) -> Graph:
    """Every unit, which is a header with its source, and those that it includes."""
    graph: Graph = {}
    for place in sources:
        included = {_unit(source) for _, _, source in _includes(sources, place) if source}
        graph.setdefault(_unit(place), set()).update(included - {_unit(place)})
    return graph


def _unit(place: str) -> str:
    return str(PurePosixPath(place).with_suffix(""))


def test_no_units_include_each_other_in_a_circle() -> None:
    graph = _include_graph(_sources())
    assert circle(without_pairs(graph, _PARENT_AND_CHILD)) == []
    for pair in _PARENT_AND_CHILD:
        others = [other for other in _PARENT_AND_CHILD if other != pair]
        assert circle(without_pairs(graph, others)), f"{pair} needs no exception any more"


@pytest.mark.parametrize(
    ("place", "line", "units"),
    [
        (f"{_BASE}/error_info.cpp", '#include "base/fd.hpp"', [f"{_BASE}/error_info", f"{_BASE}/fd"]),
        (f"{_MEMORY}/records.hpp", '#include "memory/pool.hpp"', []),
    ],
)
def test_a_circle_is_found(place: str, line: str, units: list[str]) -> None:
    sources = _sources()
    sources[place] = f"{sources[place]}\n{line}\n"

    assert circle(without_pairs(_include_graph(sources), _PARENT_AND_CHILD)) == units

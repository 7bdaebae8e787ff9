"""Modules of the daemon that raise before a chosen statement."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from tests.fuzz.exceptions.raising import LINE, Instrument


class NthLine:
    """Raises before the `left`th statement that may fail, once; `cleaning` code never fails.

    `where`: it has raised. `exempt`: functions, by name, whose lines do not count.
    """

    def __init__(self, exempt: frozenset[str] = frozenset()) -> None:
        self.left = 0
        self.make: Callable[[], Exception] = KeyError
        self.where = ""
        self._exempt = exempt
        self._places: list[tuple[str, str]] = []
        self._cleaning = 0

    def arm(self, nth: int, make: Callable[[], Exception] = KeyError) -> None:
        self.left, self.where, self.make = nth, "", make

    def place(self, file: str, line: int, function: str) -> int:
        self._places.append((f"{os.path.basename(file)}:{line} {function}", function))
        return len(self._places) - 1

    def line(self, place: int) -> None:
        where, function = self._places[place]
        if self._cleaning or not self.left or function in self._exempt:
            return
        self.left -= 1
        if not self.left:
            self.where = where
            raise self.make()

    def enter(self, what: str) -> None:
        self._cleaning += what == "cleaning"

    def leave(self, what: str) -> None:
        self._cleaning -= what == "cleaning"


@contextmanager
def faulty(original: ModuleType, raiser: NthLine) -> Iterator[ModuleType]:
    """A copy of a module, with a call of `raiser` before each statement that may fail."""
    path = str(original.__file__)
    tree = Instrument(raiser, path, ()).visit(ast.parse(Path(path).read_text(), path))
    module = ModuleType(f"faulty_{original.__name__.rpartition('.')[2]}")
    sys.modules[module.__name__] = module
    setattr(module, LINE, raiser)
    exec(compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True), vars(module))
    try:
        yield module
    finally:
        del sys.modules[module.__name__]

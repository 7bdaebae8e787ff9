"""Raise exceptions of random types at random lines: the `sitecustomize` of a daemon under test.

Modules of `WATCHED` are compiled with a call before every statement that may fail. In functions of `WORK` and
their callees that call occasionally raises. Cleanup (`finally`, `except`, functions of `CLEANUP`) never
fails: it only frees existing objects.

`SOFTNPU_RAISING` has the output folder, the seed, and the mean number of lines between exceptions.
`lines.PID` there is a u64: lines that could have raised. `raised.PID` has a line for each exception: its
type, the place and the function.
"""

from __future__ import annotations

import ast
import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import mmap
import os
import random
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, Protocol

_FOLDER, _SEED, _EVERY = os.environ.get("SOFTNPU_RAISING", ",,").split(",")


class Unforeseen(Exception):
    """An exception in no list."""


KINDS: tuple[Callable[[], Exception], ...] = (
    lambda: Unforeseen("unforeseen"),
    lambda: ValueError("not this value"),
    lambda: TypeError("not this type"),
    lambda: KeyError("missing"),
    lambda: IndexError("behind the end"),
    lambda: AttributeError("no such attribute"),
    lambda: ZeroDivisionError("by zero"),
    lambda: OverflowError("too large"),
    AssertionError,
    lambda: RuntimeError("went wrong"),
    lambda: BufferError("a view is alive"),
    EOFError,
    StopIteration,
    lambda: RecursionError("too deep"),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text"),
    lambda: struct.error("too short"),
    lambda: OSError(24, "Too many open files"),
    lambda: OSError(5, "Input/output error"),
    lambda: BlockingIOError(11, "Resource temporarily unavailable"),
    lambda: ConnectionResetError(104, "Connection reset by peer"),
    lambda: TimeoutError("took too long"),
    MemoryError,
)

WATCHED = ("softnpu.emulator.supervisor.", "softnpu.emulator.engine.")
WORK = {
    "softnpu.emulator.supervisor.reactor": ("Reactor._try",),
    "softnpu.emulator.engine.running.runner": ("Runner._run",),
    "softnpu.emulator.engine.images": ("ImageLoader._load",),
}
"""By module: functions that run work on behalf of a client, and catch its exceptions."""
# fmt: off
CLEANUP = frozenset((
    "__del__", "__exit__", "_close", "_destroy_context", "_end_soon", "_give_back", "_log_step",
    "_log_waiting", "_note", "_release",
    "_report", "_unwatch", "client_gone", "close", "discard", "drop_context", "drop_graph", "drop_idle",
    "drop_queue", "drop_unused", "end", "engine_gone", "fail", "finish_context", "finish_queue",
    "finish_segment", "kill", "note", "read_messages", "release", "repeat_end", "session_gone", "undo",
    "unwatch",
))
# fmt: on
_CANNOT_FAIL = (ast.Try, ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal, ast.FunctionDef)
_CAN_FAIL = (ast.Call, ast.Subscript, ast.BinOp, ast.Raise, ast.Assert)
LINE = "_softnpu_line_"
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class Raiser(Protocol):
    """What is called by instrumented code, under the name `LINE`."""

    def place(self, file: str, line: int, function: str) -> int: ...
    def line(self, place: int) -> None: ...
    def enter(self, what: str) -> None: ...
    def leave(self, what: str) -> None: ...


class _Raiser:
    """Counts the lines of this process at which an exception may come, and raises."""

    def __init__(self) -> None:
        self._dice = random.Random(f"{_SEED}:{os.getpid()}")
        self._scope = threading.local()
        self._due = self._next()
        self._places: list[tuple[str, int, str]] = []
        self._pid = 0
        self._map: mmap.mmap | None = None
        self._log = -1
        self.lines = 0
        self._note()  # one more descriptor, from the start on

    def place(self, file: str, line: int, function: str) -> int:
        """Return a number for a statement."""
        self._places.append((file, line, function))
        return len(self._places) - 1

    def line(self, place: int) -> None:
        """Count, and perhaps raise, before a statement that may fail."""
        scope = self._scope
        if getattr(scope, "inside", 0) <= 0 or getattr(scope, "cleaning", 0):
            return
        self.lines += 1
        self._due -= 1
        if self._due > 0:
            if not self.lines & 0xFF:
                self._note()
            return
        self._due = self._next()
        self._note()
        error = self._dice.choice(KINDS)()
        file, number, function = self._places[place]
        os.write(self._log, f"{type(error).__name__} {os.path.basename(file)}:{number} {function}\n".encode())
        raise error

    def enter(self, what: str) -> None:
        scope = self._scope
        setattr(scope, what, getattr(scope, what, 0) + 1)

    def leave(self, what: str) -> None:
        scope = self._scope
        setattr(scope, what, getattr(scope, what) - 1)

    def _next(self) -> int:
        return int(self._dice.expovariate(1 / int(_EVERY))) + 1

    def _note(self) -> None:
        if self._map is None or self._pid != os.getpid():
            self._pid = os.getpid()
            # now: an engine that is sandboxed can open nothing
            self._log = os.open(os.path.join(_FOLDER, f"raised.{self._pid}"), _APPEND, 0o600)
            with open(os.path.join(_FOLDER, f"lines.{self._pid}"), "w+b") as file:
                file.truncate(8)
                self._map = mmap.mmap(file.fileno(), 8)
        struct.pack_into("=Q", self._map, 0, self.lines)


class Instrument(ast.NodeTransformer):
    """Put a call before every statement that may fail, and note where work and cleaning up begin and end."""

    def __init__(self, raiser: Raiser, file: str, work: Sequence[str]) -> None:
        self._raiser = raiser
        self._file = file
        self._work = work
        self._names: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._names.append(node.name)
        self.generic_visit(node)
        self._names.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._names.append(node.name)
        name = ".".join(self._names)
        node.body = self._body(node.body)
        if name in self._work:
            node.body = self._scoped("inside", node.body)
        elif node.name in CLEANUP:
            node.body = self._scoped("cleaning", node.body)
        self._names.pop()
        return node

    def _body(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements with calls inserted, in nested blocks too; handlers stay unchanged."""
        made: list[ast.stmt] = []
        for statement in body:
            may_fail = not isinstance(statement, _CANNOT_FAIL) and _may_fail(statement)
            if may_fail:
                made.append(self._call(statement))
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                made.append(self.visit(statement))
                continue
            for field in ("body", "orelse"):
                block = getattr(statement, field, None)
                if isinstance(block, list):
                    setattr(statement, field, self._body(block))
            if isinstance(statement, ast.Match):
                for case in statement.cases:
                    case.body = self._body(case.body)
            made.append(statement)
        return made

    def _call(self, statement: ast.stmt) -> ast.stmt:
        place = self._raiser.place(self._file, statement.lineno, ".".join(self._names))
        return _parsed(f"{LINE}.line({place})", statement)

    @staticmethod
    def _scoped(what: str, body: list[ast.stmt]) -> list[ast.stmt]:
        enter = _parsed(f"{LINE}.enter({what!r})", body[0])
        leave = _parsed(f"{LINE}.leave({what!r})", body[0])
        return [enter, ast.copy_location(ast.Try(body, [], [], [leave]), body[0])]


def _parsed(source: str, where: ast.stmt) -> ast.stmt:
    (statement,) = ast.parse(source).body
    for node in ast.walk(statement):
        ast.copy_location(node, where)
    return statement


def _may_fail(statement: ast.stmt) -> bool:
    """Return whether the statement itself, without its blocks, can raise."""
    blocks = {"body", "orelse", "finalbody", "handlers", "cases"}
    parts = [value for name, value in ast.iter_fields(statement) if name not in blocks]
    nodes = [node for part in parts for node in (part if isinstance(part, list) else [part])]
    trees = [node for node in nodes if isinstance(node, ast.AST)]
    return isinstance(statement, _CAN_FAIL) or any(
        isinstance(inner, _CAN_FAIL) for tree in trees for inner in ast.walk(tree)
    )


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module with the calls in it, without using a bytecode cache."""

    def __init__(self, fullname: str, path: str, raiser: _Raiser) -> None:
        super().__init__(fullname, path)
        self._raiser = raiser

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        changed = Instrument(self._raiser, path, WORK.get(fullname, ())).visit(tree)
        return compile(ast.fix_missing_locations(changed), path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, raiser: _Raiser) -> None:
        self._raiser = raiser

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if not fullname.startswith(WATCHED):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.origin and spec.origin.endswith(".py"):
                return importlib.util.spec_from_file_location(
                    fullname,
                    spec.origin,
                    loader=_Loader(fullname, spec.origin, self._raiser),
                    submodule_search_locations=spec.submodule_search_locations,
                )
        return None


if _FOLDER:
    _RAISER = _Raiser()
    setattr(builtins, LINE, _RAISER)
    sys.meta_path.insert(0, _Finder(_RAISER))

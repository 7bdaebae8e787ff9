"""Random modules: real ones that use the interface of kernels in hostile ways, and damaged ones.

Written in WebAssembly's text format from fragments, so that most of them compile and run.
"""

from __future__ import annotations

import json
import random
from typing import Final, NamedTuple

import wasmtime

from tests.support.kernels import ADD_ONE, DESCRIPTION, SAME_SHAPE, X, Y, with_section

_NUMBERS: Final = (
    0, 1, 2, 4, 7, 8, 9, 16, 28, 63, 64, 255, 4095, 4096, 4097, 65535, 65536, 65540, 131072, 1 << 20, 1 << 26,
    (1 << 31) - 1, -(1 << 31), -1, -2, -4, -8, -65536,
)  # fmt: skip
_LONGS: Final = (
    0,
    1,
    2,
    3,
    1024,
    1025,
    4096,
    1 << 20,
    1 << 30,
    (1 << 31) - 1,
    1 << 31,
    1 << 40,
    -1,
    -(1 << 63),
)
_CALL: Final = "(local.get $call)"
_INPUTS, _OUTPUTS = f"(i32.load offset=16 {_CALL})", f"(i32.load offset=20 {_CALL})"
_BASES: Final = (
    X, Y, _CALL, _INPUTS, _OUTPUTS, f"(i32.load offset=24 {_CALL})", f"(i32.load offset=32 {_CALL})",
    "(i32.const 0)", "(i32.mul (memory.size) (i32.const 65536))",
)  # fmt: skip
_PAGES, _ELEMENTS = (0, 1, 16, 1000, 1024, 1025, 65535, -1), (1, 9_000, 20_000, -1)
_IMPORTS: Final = (
    '(import "env" "f" (func (param i32)))', '(import "env" "memory" (memory 1))',
    '(import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32)))',
    '(import "" "" (global i32))', '(import "env" "t" (table 1 funcref))',
)  # fmt: skip
_MEMORIES, _WRONG_MEMORIES = ("0", "1", "1", "1", "2", "17", "1024"), ("1025", "1 2", "65536")
_HELPERS: Final = """
  (global $turns (mut i32) (i32.const 0))
  (table 4 funcref) (elem (i32.const 0) $deep $wide)
  (func $deep (param i32) (result i32)
    (i32.add (i32.const 1) (call $deep (i32.add (local.get 0) (i32.const 1)))))
  (func $wide (param i32) (result i32) (local i64 i64 i64 i64 f64 f64 f64 f64)
    (if (result i32) (i32.eqz (local.get 0)) (then (i32.const 0))
      (else (call $wide (i32.sub (local.get 0) (i32.const 1))))))"""


class Made(NamedTuple):
    """A module, and what is unusual about it."""

    content: bytes
    what: str


def make(chance: random.Random) -> Made:
    """Return a module. The same chance makes the same one."""
    text, what = _Text(chance).module()
    try:
        content = bytes(wasmtime.wat2wasm(text))
    except wasmtime.WasmtimeError as error:
        raise AssertionError(f"a fragment is no WebAssembly: {error}\n{text}") from error
    content = with_section(content, _description(chance, what))
    if chance.random() < 0.2:
        what.append("damaged")
        content = _damaged(chance, content)
    return Made(content, ", ".join(what))


def _description(chance: random.Random, what: list[str]) -> bytes:
    changes: dict[str, object] = {}
    if chance.random() < 0.08:
        name, value = chance.choice(
            [
                ("abi", 2), ("name", "a" * 65), ("name", ""), ("domain", "\u0000"), ("version", -1),
                ("inputs", []), ("outputs", ["y"] * 17), ("dynamic", ["x"]), ("implementations", []),
                ("attributes", [{"name": 1}]),
                ("attributes", [{"name": "a", "kind": "numbers", "default": [1.0] * 3000}]),
                ("implementations", [{"inputs": ["f32"], "outputs": ["f32"], "run": "memory"}]),
                ("implementations", [{"inputs": ["f32"], "outputs": ["f64"], "run": "run"}]),
            ]
        )  # fmt: skip
        changes[name] = value
        what.append(f"description: {name}")
    if chance.random() < 0.3:
        changes["dynamic"] = ["y"]
    return json.dumps(DESCRIPTION | changes).encode()


def _damaged(chance: random.Random, content: bytes) -> bytes:
    module = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(module))
        match chance.randrange(4):
            case 0:
                module[at] = chance.randrange(256)
            case 1:
                del module[at : at + chance.randint(1, 8)]
            case 2:
                module[at:at] = chance.randbytes(chance.randint(1, 8))
            case _:
                begin = chance.randrange(len(module))
                module[at:at] = module[begin : begin + chance.randint(1, 64)]
        if not module:
            break
    return bytes(module)


class _Text:
    """A module as text, and notes about it."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.what: list[str] = []

    def module(self) -> tuple[str, list[str]]:
        chance = self.chance
        more = ""
        if chance.random() < 0.05:
            more += self._note("import", chance.choice(_IMPORTS))
        memory = chance.choice(_MEMORIES if chance.random() < 0.96 else _WRONG_MEMORIES)
        data = ""
        if chance.random() < 0.2:
            data += self._note("data", f'(data (i32.const {self._number()}) "\\01\\02\\ff")')
        start = ""
        if chance.random() < 0.1:
            start = self._note(
                "start", f"(func $start (local $call i32) {self._statements()}) (start $start)"
            )
        shapes = SAME_SHAPE
        if chance.random() < 0.35:
            shapes = self._note("shapes", self._function("softnpu_shapes", self._shapes_body()))
        split = ""
        if chance.random() < 0.2:
            code = chance.choice(("(i32.const 1)", "(i32.const -1)", "(i32.const 0)", self._value()))
            split = self._note("split", self._function("softnpu_split", f"{self._statements(1)} {code}"))
        names = '(export "memory" (memory 0))' if chance.random() < 0.98 else self._note("no memory", "")
        own = "" if "memory 1" in more and "import" in more else f"(memory {memory})"
        result = "(i32.const 0)" if chance.random() < 0.85 else self._value()
        run = self._function("run", f"{self._statements()} {self._end()} {result}")
        return f"(module {more} {own} {names} {data} {_HELPERS} {start} {shapes} {split} {run})", self.what

    def _note(self, what: str, text: str) -> str:
        self.what.append(what)
        return text

    @staticmethod
    def _function(name: str, body: str) -> str:
        return f'(func ${name} (export "{name}") (param $call i32) (result i32) {body})'

    def _end(self) -> str:
        """Return what computes a result, so that most runs have one."""
        return ADD_ONE.removesuffix("(i32.const 0)") if self.chance.random() < 0.7 else ""

    def _number(self) -> int:
        chance = self.chance
        return chance.choice(_NUMBERS) if chance.random() < 0.8 else chance.randint(-(1 << 31), (1 << 31) - 1)

    def _pointer(self) -> str:
        chance = self.chance
        base = chance.choice(_BASES)
        return f"(i32.add {base} (i32.const {self._number()}))" if chance.random() < 0.7 else base

    def _value(self) -> str:
        chance = self.chance
        return chance.choice(
            (
                f"(i32.const {self._number()})",
                f"(i32.load {self._pointer()})",
                "(memory.size)",
                "(global.get $turns)",
                f"(i32.trunc_f32_s (f32.load {X}))",
                f"(i32.div_s (i32.const 1) (i32.load {self._pointer()}))",
            )
        )

    def _statements(self, most: int = 3) -> str:
        return " ".join(self._statement() for _ in range(self.chance.randint(0, most)))

    def _statement(self) -> str:
        chance = self.chance
        pointer, other, value = self._pointer(), self._pointer(), self._value()
        offset = chance.choice((0, 4, 8, 12, 16, 80, 144, 1 << 16, (1 << 32) - 1))
        extent = f"(i64.const {chance.choice(_LONGS)})"
        texts = {
            "load": f"(drop (i64.load offset={offset} {pointer}))",
            "store": f"(i32.store offset={offset} {pointer} {value})",
            "store wide": f"(v128.store {pointer} (v128.const i32x4 1 2 3 4))",
            "fill": f"(memory.fill {pointer} (i32.const 255) {value})",
            "copy": f"(memory.copy {pointer} {other} {value})",
            "grow": f"(drop (memory.grow (i32.const {chance.choice(_PAGES)})))",
            "grow forever": "(loop $more (br_if $more (i32.ne (memory.grow (i32.const 64)) (i32.const -1))))",
            "endless": "(loop $again (br $again))",
            "long": f"(drop (call $wide (i32.const {chance.choice((10, 1000, 100_000))})))",
            "recursion": "(drop (call $deep (i32.const 0)))",
            "re-entrance": f"(if (i32.lt_s (global.get $turns) (i32.const {chance.choice((3, 1 << 30))}))"
            " (then (global.set $turns (i32.add (global.get $turns) (i32.const 1)))"
            f" (drop (call $run {chance.choice((_CALL, pointer))}))))",
            "indirect": f"(drop (call_indirect (param i32) (result i32) (i32.const 3) {value}))",
            "indirect of another type": f"(call_indirect (i32.const {chance.randint(0, 5)}))",
            "table": f"(drop (table.grow 0 (ref.null func) (i32.const {chance.choice(_ELEMENTS)})))",
            "trap": "(unreachable)",
            "rank": f"(i32.store offset=8 {_OUTPUTS} {value})",
            "extent": f"(i64.store offset={chance.choice((16, 24, 72))} {_OUTPUTS} {extent})",
            "data pointer": f"(i32.store {chance.choice((_INPUTS, _OUTPUTS))} {value})",
            "record pointer": f"(i32.store offset={chance.choice((16, 20, 24))} {_CALL} {value})",
            "message": f"(i32.store offset=28 {_CALL} {pointer})",
            "scratch": f"(i32.store offset=36 {_CALL} {value})",
            "input": f"(f32.store {X} (f32.const 5))",
            "nan": f"(f32.store {Y} (f32.div (f32.const 0) (f32.const 0)))",
            "count": "(i32.store (i32.const 512) (i32.add (i32.load (i32.const 512)) (i32.const 1)))"
            f" (f32.store {Y} (f32.convert_i32_s (i32.load (i32.const 512))))",
            "global": "(global.set $turns (i32.add (global.get $turns) (i32.const 1)))",
        }
        what = chance.choice(sorted(texts))
        if what in ("endless", "long", "grow forever") and chance.random() < 0.7:  # they take their deadline
            what = "global"
        return self._note(what, texts[what])

    def _shapes_body(self) -> str:
        chance = self.chance
        rank, extents = chance.choice((0, 1, 1, 1, 2, 8, 9, -1)), ""
        for dimension in range(max(0, rank)):
            extent = chance.choice(_LONGS) if chance.random() < 0.5 else chance.choice((1, 1024))
            extents += f"(i64.store offset={16 + 8 * dimension} {_OUTPUTS} (i64.const {extent}))"
        lies = f"(i32.store offset=8 {_OUTPUTS} (i32.const {rank})) {extents}"
        if chance.random() < 0.3:  # another answer the next time
            lies = (
                "(global.set $turns (i32.add (global.get $turns) (i32.const 1)))"
                f" (if (i32.and (global.get $turns) (i32.const 1)) (then {lies}))"
            )
        return f"{self._statements(2)} {lies} (i32.const {chance.choice((0, 0, 0, 1))})"

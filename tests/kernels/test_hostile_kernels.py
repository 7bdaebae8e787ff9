"""Hostile and broken kernels: each is a error with the kernel's name and the place, and harms nobody."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from softnpu.emulator.kernels.client import KernelClient
from softnpu.emulator.kernels.description import MOST_BYTES
from softnpu.emulator.kernels.errors import Failure, KernelError
from softnpu.tools.kernel.arrays import ArrayCall
from tests.support.kernels import (
    ADD_ONE,
    DESCRIPTION,
    X,
    Y,
    described,
    kernel,
    run,
    shapes_body,
    with_section,
)

_GOOD = kernel()
_BARE = _GOOD[: _GOOD.index(b"softnpu_kernel") - 4]
_OTHER = {"inputs": ["f32"], "outputs": ["f32"], "run": "absent"}
_ENDLESS = "(loop $again (br $again)) (i32.const 0)"
_IMPORT = '(import "env" "puts" (func (param i32)))'
_FUNCTION = '(func (export "g") (result i32) (i32.const 0))'
_START = f"(func $s (drop (block (result i32) {_ENDLESS}))) (start $s)"


def _json(**changes: object) -> bytes:
    return with_section(_BARE, json.dumps(DESCRIPTION | changes).encode())


_REFUSED = {
    "nothing": (b"", "begins with nothing"),
    "other bytes": (random.Random(1).randbytes(5000), "a file that begins with"),
    "cut off": (_GOOD[:-3], "a section of"),
    "damaged code": (described(_BARE.replace(b"\x0b", b"\xff")), "does not compile"),
    "too large": (described(_BARE + bytes(MOST_BYTES)), f"at most {MOST_BYTES}"),
    "no description": (_BARE, "0 custom sections 'softnpu_kernel'"),
    "two descriptions": (with_section(_GOOD, b"{}"), "2 custom sections"),
    "no JSON": (with_section(_BARE, b"{"), "a description that is wrong"),
    "an endless description": (with_section(_BARE, b"[" * 20_000), "a description of"),
    "another interface": (_json(abi=2), "abi 2; expected 1"),
    "an unknown field": (_json(speed=9), "unknown field `speed`"),
    "a name of others": (_json(name="../x"), "name '../x'"),
    "an unknown type": (_json(implementations=[_OTHER | {"inputs": ["f31"]}]), "type 'f31'"),
    "no function": (_json(implementations=[_OTHER]), "no function 'absent' among the exports"),
    "an import": (kernel(more=_IMPORT), "import env.puts; expected no imports"),
    "a function of another type": (
        kernel(more=_FUNCTION, implementations=[_OTHER | {"run": "g"}]),
        "export 'g' of another type",
    ),
    "no shapes": (kernel(shapes=""), "no function 'softnpu_shapes'"),
    "a limited memory": (kernel(memory="1 2"), "memory of 1 pages, limited to 2"),
    "a large memory": (kernel(memory="1025"), "memory of 1025 pages"),
}  # fmt: skip


@pytest.mark.parametrize("what", _REFUSED)
def test_a_module_that_is_no_kernel_is_refused_with_the_reason(client: KernelClient, what: str) -> None:
    module, reason = _REFUSED[what]
    with pytest.raises(KernelError) as raised:
        client.load(module)
    assert raised.value.failure is Failure.MODULE
    assert reason in str(raised.value)
    assert run(client, _GOOD).tolist() == [42]


_SET_RANK = "(i32.store offset=8 (i32.load offset=20 (local.get $call)) (i32.const {})) (i32.const 0)"
_SET_EXTENT = "(i64.store offset=16 (i32.load offset=20 (local.get $call)) (i64.const {})) (i32.const 0)"
_SET_RANK_1 = "(i32.store offset=8 (i32.load offset=20 (local.get $call)) (i32.const 1))"
_WITH_MESSAGE = "(i32.store offset=28 (local.get $call) (i32.const {})) (i32.const 7)"
_RECURSION = "(func $deep (param i32) (result i32) (i32.add (i32.const 1) (call $deep (local.get 0))))"
_BOMB = "(loop $more (br_if $more (i32.ne (memory.grow (i32.const 64)) (i32.const -1)))) (unreachable)"


def _of_shapes(body: str) -> bytes:
    """Return a kernel whose function for shapes has this body."""
    return kernel(shapes=shapes_body(body))


_FAILED = {
    "unreachable": (kernel("(unreachable)"), Failure.TRAP, "unreachable"),
    "a division by zero": (kernel("(i32.div_s (i32.const 1) (i32.const 0))"), Failure.TRAP, "divide by zero"),
    "out of bounds": (
        kernel("(i32.load (i32.const -4))"), Failure.BOUNDS, "outside of its memory",
    ),
    "an endless loop": (kernel(_ENDLESS), Failure.DEADLINE, "an end within 100 ms"),
    "endless shapes": (kernel(shapes=shapes_body(_ENDLESS)), Failure.DEADLINE, "in shapes at +"),
    "an endless start": (kernel(more=_START), Failure.DEADLINE, "in s at +"),
    "an endless recursion": (
        kernel("(call $deep (i32.const 0))", more=_RECURSION), Failure.STACK, "in deep at +",
    ),
    "a memory bomb": (kernel(_BOMB), Failure.TRAP, "unreachable"),
    "a large table": (kernel(more="(table 20000 funcref)"), Failure.MEMORY, "table"),
    "an error of its own": (
        kernel(_WITH_MESSAGE.format(64), more='(data (i32.const 64) "no such axis\\00")'),
        Failure.RETURNED, "run returned 7: no such axis",
    ),
    "a message from nowhere": (kernel(_WITH_MESSAGE.format(-8)), Failure.RETURNED, "returned 7: no reason"),
    "too many dimensions": (_of_shapes(_SET_RANK.format(9)), Failure.SHAPE, "at most 8 dimensions"),
    "a negative extent": (_of_shapes(_SET_RANK_1 + _SET_EXTENT.format(-1)), Failure.SHAPE, "none negative"),
    "a huge output": (_of_shapes(_SET_RANK_1 + _SET_EXTENT.format(1 << 30)), Failure.SHAPE, "at most 8"),
    "a huge scratch": (
        _of_shapes("(i32.store offset=36 (local.get $call) (i32.const -1)) (i32.const 0)"), Failure.MEMORY,
        "4294967295 bytes of scratch",
    ),
    "an output that shrinks unannounced": (kernel(_SET_EXTENT.format(0)), Failure.SHAPE, "[1], not dynamic"),
    "an output that grows": (
        kernel(_SET_EXTENT.format(2), dynamic=["y"]), Failure.SHAPE, "[2] after run; expected at most [1]",
    ),
    "an output of another rank": (
        kernel(_SET_RANK.format(-1), dynamic=["y"]), Failure.SHAPE, "an impossible shape",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", _FAILED)
def test_a_kernel_that_fails_ends_its_run_alone(client: KernelClient, what: str) -> None:
    module, failure, reason = _FAILED[what]
    with pytest.raises(KernelError) as raised:
        run(client, module, deadline_ms=100)
    assert (raised.value.failure, reason in str(raised.value)) == (failure, True), raised.value
    assert raised.value.info.object == "kernel tests.Unary"
    assert run(client, _GOOD).tolist() == [42]


def test_a_write_to_an_input_is_a_trap(client: KernelClient) -> None:
    store = f"(f32.store {X} (f32.const 5)) (i32.const 0)"
    shapes = """(i32.store offset=8 (i32.load offset=20 (local.get $call)) (i32.const 1))
      (i64.store offset=16 (i32.load offset=20 (local.get $call))
        (i64.load offset=16 (i32.load offset=16 (local.get $call)))) (i32.const 0)"""
    with pytest.raises(KernelError, match=r"a write to an input, in run at \+") as raised:
        run(client, kernel(store, shapes=shapes_body(shapes)), x=[1] * 1024)
    assert raised.value.failure is Failure.BOUNDS
    writes = kernel(store)  # its shapes copy in bulk, so its inputs are copies of pages
    with pytest.raises(KernelError, match=r"a write to an input, in run$") as raised:
        run(client, writes, x=[1] * 1024)
    assert raised.value.failure is Failure.BOUNDS
    run(client, writes)  # a copy, which nobody else has


_COPY = f"(memory.copy {X} (i32.const 0) (i32.const 4096))"
_FILL = f"(memory.fill {X} (i32.const 1) (i32.const 4096))"
_INIT = f"(memory.init $d {X} (i32.const 0) (i32.const 4))"


@pytest.mark.parametrize("writes", [_COPY, _FILL, _INIT])
def test_a_write_in_bulk_to_an_input_is_an_error_and_changes_nothing(
    client: KernelClient, writes: str
) -> None:
    more = '(data $d "abcd")'
    x = f"(f32.load {X})"
    body = f"(if (f32.gt {x} (f32.const 1)) (then {writes})) {ADD_ONE}"
    with ArrayCall(client.load(kernel(body, more=more)), [("f32", (2048,))], {}) as call:
        for value in (1, 2, 1, 0):
            call.inputs[0][:] = value
            if value > 1:
                with pytest.raises(KernelError, match=r"kernel tests\.Unary: a write to an input, in run$"):
                    call.run()
            else:
                assert call.run()[0][0] == value + 1
                assert call.call.staged == 0
            assert np.array_equal(call.inputs[0], np.full(2048, value, np.float32))


def test_a_kernel_runs_again_after_it_has_failed(client: KernelClient) -> None:
    body = f"(if (f32.eq (f32.load {X}) (f32.const 0)) (then (unreachable))) {ADD_ONE}"
    kernel_of_both = kernel(body)
    assert run(client, kernel_of_both).tolist() == [42]
    with pytest.raises(KernelError, match="unreachable"):
        run(client, kernel_of_both, x=(0,))
    assert run(client, kernel_of_both).tolist() == [42]


def test_a_kernel_keeps_nothing_between_runs(client: KernelClient) -> None:
    count = "(i32.store (i32.const 64) (i32.add (i32.load (i32.const 64)) (i32.const 1)))"
    body = f"{count} (f32.store {Y} (f32.convert_i32_s (i32.load (i32.const 64)))) {{}} (i32.const 0)"
    for grows in ("", "(drop (memory.grow (i32.const 1)))"):
        module = kernel(body.format(grows), more='(data (i32.const 64) "\\05\\00\\00\\00")')
        assert [run(client, module).tolist() for _ in range(3)] == [[6], [6], [6]]


_END = "(i32.sub (i32.mul (memory.size) (i32.const 65536)) (i32.const 4))"


@pytest.mark.parametrize(
    "at",
    [
        pytest.param("(i32.add (local.get $call) (i32.const 40000))", id="behind the call"),
        pytest.param(_END, id="at the end of the memory"),
        pytest.param(f"(i32.add {Y} (i32.const 4))", id="behind y"),
        pytest.param(f"(i32.add {X} (i32.const 4))", id="behind x"),
    ],
)
def test_a_kernel_keeps_nothing_outside_of_its_own_part(client: KernelClient, at: str) -> None:
    count = f"(i32.store {at} (i32.add (i32.load {at}) (i32.const 1)))"
    body = f"{count} (f32.store {Y} (f32.convert_i32_s (i32.load {at}))) (i32.const 0)"
    with ArrayCall(client.load(kernel(body)), [("f32", (1,))], {}, 10_000) as call:
        assert [call.run()[0].tolist() for _ in range(3)] == [[1], [1], [1]]


def _damaged(count: int) -> int:
    """Load and run so many damaged modules in this process's sandbox; return how many did run."""
    from softnpu.emulator.kernels.process import KernelProcess

    chance, ran = random.Random(31), 0
    lost: list[str] = []
    with KernelProcess() as running:
        for _ in range(count):
            module = bytearray(_GOOD)
            for _ in range(chance.randint(1, 4)):
                at = chance.randrange(8, len(_BARE))
                match chance.randrange(3):
                    case 0:
                        module[at] = chance.randrange(256)
                    case 1:
                        del module[at : at + chance.randint(1, 8)]
                    case _:
                        module[at:at] = chance.randbytes(chance.randint(1, 8))
            try:
                run(running, bytes(module), deadline_ms=50)
                ran += 1
            except KernelError as error:
                lost = [module.hex()] if error.failure is Failure.LOST else lost
            assert lost == []
        assert run(running, _GOOD).tolist() == [42]
    return ran


def test_damaged_modules_are_errors_or_harmless() -> None:
    assert _damaged(150) > 0


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_ten_thousand_damaged_modules_are_errors_or_harmless() -> None:
    """On request: minutes of the same with other modules."""
    assert _damaged(10_000) > 0

"""Kernels that can be split: in parts that follow from the tensors, with the same bits on any threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

from softnpu.emulator.kernels.client import KernelClient
from softnpu.emulator.kernels.errors import Failure, KernelError
from softnpu.emulator.kernels.process import KernelProcess
from softnpu.tools.kernel.arrays import ArrayCall
from tests.support.kernels import EACH, ONE, X, Y, kernel

_TWICE = ONE.format("(f32.mul (local.get 0) (f32.const 2))")
_LARGE = (1 << 18,)
_COUNT = f"""(f32.store {Y} (f32.convert_i64_s
  (i64.load offset=16 (i32.load offset=16 (local.get $call))))) (i32.const 0)"""
"""Each part writes how many rows it has into its first element."""


def _split(code: str = "(i32.const 1)") -> str:
    return f'(func (export "softnpu_split") (param $call i32) (result i32) {code})'


@pytest.fixture(scope="module", params=[1, 3])
def some(request: pytest.FixtureRequest) -> Iterator[KernelClient]:
    """A process with so many threads."""
    with KernelProcess(threads=request.param) as running:
        yield running


def _run(client: KernelClient, module: bytes, x: Any, deadline_ms: int = 10_000) -> tuple[Any, int, int]:
    """Return the output, the number of parts, and the bytes that were copied."""
    with ArrayCall(client.load(module), [("f32", x.shape)], {}, deadline_ms) as call:
        call.inputs[0][...] = x
        return call.run()[0].copy(), call.call.parts, call.call.staged


@pytest.mark.parametrize(
    ("shape", "parts", "staged"),
    [
        (_LARGE, 8, 0),
        ((1, 1, 64, 1024), 4, 0),
        ((1 << 18 | 1,), 8, 8),
        ((3, 50_000), 1, 2 * (600_000 % 4096)),  # its rows begin on no page
        ((1024,), 1, 0),
        ((1, 1, 1), 1, 8),
        ((0, 1 << 20), 1, 0),
    ],
)
def test_parts_are_right_and_copy_nothing_more(
    some: KernelClient, shape: tuple[int, ...], parts: int, staged: int
) -> None:
    x = np.random.default_rng(0).random(shape, np.float32)
    found = _run(some, kernel(EACH, more=_TWICE + _split()), x)
    assert np.array_equal(found[0], 2 * x)
    assert found[1:] == (parts, staged)


def test_the_parts_do_not_depend_on_the_number_of_threads(some: KernelClient) -> None:
    found, parts, _ = _run(some, kernel(_COUNT, more=_split()), np.zeros(_LARGE, np.float32))
    assert parts == 8
    assert found[:: 1 << 15].tolist() == [1 << 15] * 8
    assert np.count_nonzero(found) == 8


def test_a_kernel_may_refuse_to_be_split(some: KernelClient) -> None:
    for more in ("", _split("(i32.const 0)")):
        assert _run(some, kernel(_COUNT, more=more), np.zeros(_LARGE, np.float32))[1] == 1
    dynamic = kernel(_COUNT, more=_split(), dynamic=["y"])
    assert _run(some, dynamic, np.zeros(_LARGE, np.float32))[1] == 1


def test_the_first_part_that_fails_is_told_and_the_next_run_is_right(some: KernelClient) -> None:
    # a value of 7 is unreachable, 9 divides by zero
    body = """(if (f32.eq (local.get 0) (f32.const 7)) (then (unreachable)))
      (if (f32.eq (local.get 0) (f32.const 9)) (then (drop (i32.div_s (i32.const 1) (i32.const 0)))))
      (f32.mul (local.get 0) (f32.const 2))"""
    loaded = some.load(kernel(EACH, more=ONE.format(body) + _split()))
    with ArrayCall(loaded, [("f32", _LARGE)], {}) as call:
        call.inputs[0][:] = 1
        call.inputs[0][[100_000, 250_000]] = 9, 7
        for _ in range(3):
            with pytest.raises(KernelError, match=r"kernel tests\.Unary: integer divide by zero, in one at "):
                call.run()
        call.inputs[0][100_000] = 1
        with pytest.raises(KernelError, match="unreachable"):
            call.run()
        call.inputs[0][250_000] = 1
        assert np.array_equal(call.run()[0], np.full(_LARGE, 2, np.float32))


def test_nothing_is_left_of_parts_that_failed() -> None:
    data = '(data (i32.const 64) "an image of the memory, which is a descriptor")'
    running = KernelProcess(threads=3)
    with running as client:
        process = psutil.Process(running.process.pid)
        before = process.num_fds()
        loaded = client.load(kernel("(unreachable)", more=data + _split()))
        with ArrayCall(loaded, [("f32", _LARGE)], {}) as call, pytest.raises(KernelError):
            call.run()
        client.drop(kernel=loaded.number)
        assert process.num_fds() == before


def test_all_parts_have_one_deadline(some: KernelClient) -> None:
    with pytest.raises(KernelError, match="expected an end within 200 ms") as raised:
        _run(
            some, kernel("(loop $again (br $again)) (i32.const 0)", more=_split()),
            np.zeros(_LARGE, np.float32), 200,
        )  # fmt: skip
    assert raised.value.failure is Failure.DEADLINE


@pytest.mark.parametrize(
    ("more", "changes", "reason"),
    [
        (_split("(i32.const 2)"), {}, r"softnpu_split returned 0x2; expected bits of its 1 inputs"),
        (_split("(i32.const -1)"), {}, r"softnpu_split returned 0xffffffff"),
        (_split("(unreachable)"), {}, "unreachable"),
        (_split("(loop $again (br $again)) (i32.const 0)"), {}, "still running at its deadline"),
        (
            _split(),
            {
                "shapes": """(func (export "softnpu_shapes") (param $call i32) (result i32) (local $to i32)
                  (local.set $to (i32.load offset=20 (local.get $call)))
                  (i32.store offset=8 (local.get $to) (i32.const 2))
                  (i64.store offset=16 (local.get $to) (i64.const 2))
                  (i64.store offset=24 (local.get $to) (i64.const 1024)) (i32.const 0))"""
            },
            r"softnpu_split cuts a tensor \[262144\]; expected 2 rows along dimension 0",
        ),
    ],
)  # fmt: skip
def test_a_split_that_cannot_be_is_refused(
    some: KernelClient, more: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(KernelError, match=reason):
        _run(
            some, kernel(f"(drop {X}) (i32.const 0)", more=more, **changes), np.zeros(_LARGE, np.float32), 200
        )


def test_a_split_of_another_type_is_no_kernel(some: KernelClient) -> None:
    with pytest.raises(KernelError, match="export 'softnpu_split' of another type"):
        some.load(kernel(more='(func (export "softnpu_split"))'))

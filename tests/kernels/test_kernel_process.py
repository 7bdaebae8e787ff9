"""The process of kernels: its rights, what it copies and sees, its death, the cache of compiled code."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from softnpu.emulator.common import linux
from softnpu.emulator.interface.environment import ENV_ENGINE_CACHE
from softnpu.emulator.kernels import code
from softnpu.emulator.kernels.client import KernelClient
from softnpu.emulator.kernels.errors import Failure, KernelError
from softnpu.emulator.kernels.process import KernelProcess
from softnpu.emulator.links.kernels import TensorPlace
from softnpu.tools.kernel.arrays import ArrayCall
from tests.support.kernels import ADD_ONE, X, Y, kernel, run

_PAGE = 4096
_ENDLESS = "(loop $again (br $again)) (i32.const 0)"


def test_it_is_locked_in(client: KernelClient) -> None:
    assert client.missing_protections == ()


def test_whole_pages_are_mapped_and_only_the_rest_is_copied(client: KernelClient) -> None:
    loaded = client.load(kernel())
    for elements, staged in ((1024, 0), (2048, 0), (1025, 8), (1, 8), (0, 0)):
        with ArrayCall(loaded, [("f32", (elements,))], {}) as call:
            call.inputs[0][:] = 41
            (found,) = call.run()
            assert found.tolist()[:1] == [42][:elements]
            assert call.call.staged == staged


def _sum_of_page(client: KernelClient, offset: int) -> tuple[float, bytes]:
    """Let a kernel read and overwrite what lies behind tensors of four bytes; return what it got."""
    body = f"""(local $at i32) (local $sum i32)
      (loop $next
        (local.set $sum (i32.add (local.get $sum) (i32.load8_u (i32.add (local.get $at) {X}))))
        (i32.store8 (i32.add (local.get $at) {Y}) (i32.const 9))
        (br_if $next (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 1))) (i32.const 3000))))
      (f32.store {Y} (f32.convert_i32_u (local.get $sum))) (i32.const 0)"""
    fd = linux.fixed_memfd("test", 4 * _PAGE)
    try:
        os.pwrite(fd, b"\x01" * 4 * _PAGE, 0)
        memory = client.add_memory(fd)
        places = [TensorPlace("f32", (1,), memory, at + offset) for at in (0, 2 * _PAGE)]
        call = client.load(kernel(body)).prepare(places[:1], places[1:], {})
        call.run()
        content = os.pread(fd, 4 * _PAGE, 0)
    finally:
        os.close(fd)
    at = 2 * _PAGE + offset
    return float(np.frombuffer(content[at : at + 4], np.float32)[0]), content[:at] + content[at + 4 :]


@pytest.mark.parametrize("offset", [0, 64])
def test_a_kernel_sees_and_changes_nothing_beside_its_tensors(client: KernelClient, offset: int) -> None:
    assert _sum_of_page(client, offset) == (4, b"\x01" * (4 * _PAGE - 4))


def test_calls_of_several_kernels_and_tensors_do_not_mix(client: KernelClient) -> None:
    twice = f"(f32.store {Y} (f32.mul (f32.load {X}) (f32.const 2))) (i32.const 0)"
    kernels = [client.load(kernel(body)) for body in (ADD_ONE, twice)]
    calls = [ArrayCall(each, [("f32", (1,))], {}) for each in kernels for _ in range(3)]
    for turn in range(40):
        for number, call in enumerate(calls):
            call.inputs[0][0] = number + turn
        found = [float(call.run()[0][0]) for call in calls]
        numbers = [number + turn for number in range(6)]
        assert found == [each + 1 for each in numbers[:3]] + [2 * each for each in numbers[3:]]
    for call in calls:
        call.close()
    with pytest.raises(KernelError, match="one that was prepared"):
        calls[0].run()


def test_its_death_is_an_error_and_a_new_one_goes_on() -> None:
    running = KernelProcess()
    with running as client, ArrayCall(client.load(kernel(_ENDLESS)), [("f32", (1,))], {}) as call:
        os.kill(running.process.pid, signal.SIGKILL)
        for attempt in (call.run, lambda: client.load(kernel())):
            with pytest.raises(KernelError) as raised:
                attempt()
            assert raised.value.failure is Failure.LOST
        assert "tests.Unary" in str(raised.value)
    with KernelProcess() as client:
        assert run(client, kernel()).tolist() == [42]


def test_code_is_compiled_once_and_damaged_code_never_used(
    private_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_ENGINE_CACHE, str(private_dir / "cache"))
    module = kernel()

    def is_from_cache() -> bool:
        with KernelProcess() as client:
            assert run(client, module).tolist() == [42]
            return client.load(module).is_from_cache

    assert not is_from_cache()
    assert code.keep(module)
    assert is_from_cache()
    (entry,) = (private_dir / "cache" / "kernels").iterdir()
    entry.chmod(0o600)
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 1
    entry.write_bytes(content)
    assert not is_from_cache()
    entry.chmod(0o666)  # of another user, for all it knows
    assert not is_from_cache()

"""Memory that an inference takes for sizes which it computes: as much as a session may have, and no more."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import psutil
import pytest
from openvino import opset15 as ops

from softnpu.driver import ZeError, ZeResult
from softnpu.emulator.common import private_memory
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.openvino import memory_limit
from tests.conftest import OpenContext, StartContext
from tests.support.dynamic import source
from tests.support.models import image, on_cpu
from tests.support.work import Loaded, check_works, failure, same

_SESSION = 64 << 20
_HUGE = 200_000_000  # elements: 0.8 GB


def _many_ones() -> ov.Model:
    """x [1], n [1] -> the sum of n times x, a scalar: nothing of its arguments is dynamic."""
    x, n = source([1]), source([1], "n", ov.Type.i64)
    total = ops.reduce_sum(ops.sqrt(ops.broadcast(x, n)), ops.constant(np.array([0])), keep_dims=False)
    return ov.Model([ops.result(total)], [x, n], "many_ones")


def _private_peak(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def test_an_inference_that_computes_large_sizes_is_refused_and_nothing_else(
    start_context: StartContext, open_context: OpenContext, private_dir: Path, digits: Path
) -> None:
    daemon, context = start_context(session_memory=_SESSION)
    path = private_dir / "many.xml"
    ov.save_model(_many_ones(), path, compress_to_fp16=False)
    loaded, queue = Loaded(context, path), context.create_command_queue()

    def total(count: int) -> float:
        (result,) = loaded.infer(queue, np.ones(1, np.float32), np.array([count]))
        return float(result)

    assert total(1000) == 1000
    before = _private_peak(daemon.engine().engine_pid)
    for _ in range(3):
        error = failure(lambda: total(_HUGE), ZeResult.ERROR_OUT_OF_DEVICE_MEMORY)
        assert error.info.object == "graph 'many'"
        assert error.info.found.startswith(f"{4 * _HUGE} bytes")
        assert "--session-memory" in error.info.hint
        assert total(1001) == 1001
    assert _private_peak(daemon.engine().engine_pid) - before < 256 << 20
    other = open_context(daemon)
    assert same(Loaded(other, digits).infer(other.create_command_queue(), image()), on_cpu(digits, image()))
    check_works(other)
    assert daemon.engine().restarts == 0


def test_all_that_meets_models_has_a_limit_of_memory(start_context: StartContext, digits: Path) -> None:
    daemon, context = start_context()
    Loaded(context, digits)
    (worker,) = daemon.status().compiler_pids
    sandboxed = [child.pid for child in psutil.Process(worker).children()]
    for pid in (daemon.engine().engine_pid, worker, *sandboxed):
        limits = Path(f"/proc/{pid}/limits").read_text()
        (line,) = (line for line in limits.splitlines() if line.startswith("Max data size"))
        soft, hard = line.split()[3:5]
        assert soft == hard != "unlimited", pid


def test_a_compilation_beyond_the_limit_of_memory_fails_alone(
    start_context: StartContext, private_dir: Path, digits: Path
) -> None:
    daemon, context = start_context()
    Loaded(context, digits)
    (worker,) = daemon.status().compiler_pids
    (sandboxed,) = psutil.Process(worker).children()
    used = int(Path(f"/proc/{sandboxed.pid}/statm").read_text().split()[5]) * resource.getpagesize()
    limit = (used + _SESSION,) * 2
    resource.prlimit(sandboxed.pid, resource.RLIMIT_DATA, limit)
    for ready in sandboxed.children():  # for the next job
        resource.prlimit(ready.pid, resource.RLIMIT_DATA, limit)
    x = source([1])
    value: Any = ops.constant(np.arange(1, 3, dtype=np.float32))
    for _ in range(26):  # 0.5 GB, when it is folded
        value = ops.concat([value, value], 0)
    path = private_dir / "large.xml"
    total = ops.reduce_sum(ops.floor(ops.add(value, x)), [0])  # OpenVINO is asked about a Floor, and folds
    ov.save_model(ov.Model([ops.result(total)], [x], "large"), path)
    with pytest.raises(ZeError) as raised:
        Loaded(context, path)
    assert raised.value.result == ZeResult.ERROR_OUT_OF_HOST_MEMORY
    Loaded(context, digits)
    assert daemon.status().compiler_pids == (worker,)


# ------------------------------------------------------------ the limit itself


@pytest.fixture
def _limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "_active", memory_limit._Limit(_SESSION))


def _soft() -> int:
    return resource.getrlimit(resource.RLIMIT_DATA)[0]


@pytest.mark.usefixtures("_limit")
def test_the_limit_is_lowered_for_the_inference_and_lifted_for_what_compiles() -> None:
    before, seen = _soft(), []

    def look() -> bool:
        seen.append(_soft())
        return False

    def compute() -> bool:
        seen.append(_soft())
        with memory_limit.lifted(), memory_limit.lifted():
            seen.append(_soft())
        seen.append(_soft())
        return False

    with memory_limit.lifted():
        assert not memory_limit.run(look, "m", 0)
    assert not memory_limit.run(compute, "m", 0)
    assert _soft() == before
    beside, low, lifted, again = seen
    assert beside == lifted == before != low
    assert again != before
    assert low != resource.RLIM_INFINITY


def test_nothing_is_called_where_a_session_may_have_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "_active", None)
    counts = private_memory.open_counts()
    most = private_memory.used(counts) + private_memory.usable()
    os.close(counts)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
    for session_memory, is_active in ((private_memory.usable(), False), (_SESSION, True)):
        memory_limit.begin(session_memory)
        assert (memory_limit._active is not None) == is_active


@pytest.mark.usefixtures("_limit")
def test_only_a_lack_of_memory_is_told_as_one() -> None:
    def fails(error: Exception) -> Any:
        def compute() -> bool:
            raise error

        return lambda: memory_limit.run(compute, "m", 0)

    before = _soft()
    with pytest.raises(RuntimeError, match="other"):
        fails(RuntimeError("other"))()
    for error in (MemoryError(), RuntimeError("std::bad_alloc"), RuntimeError("Failed to allocate 9 bytes")):
        with pytest.raises(Refused) as raised:
            fails(error)()
        assert raised.value.info.result == ZeResult.ERROR_OUT_OF_DEVICE_MEMORY
    assert _soft() == before

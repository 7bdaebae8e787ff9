"""`bench kernels`: own kernels in their sandbox, against numpy and a native build, one thread each."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from softnpu.emulator.kernels.client import LoadedKernel
from softnpu.emulator.kernels.description import Value
from softnpu.emulator.kernels.process import KernelProcess
from softnpu.tools.bench.result import Measurement, absolute, compared
from softnpu.tools.bench.rounds import interleave, median
from softnpu.tools.kernel.arrays import Array, ArrayCall
from softnpu.tools.kernel.build import FOLDER, TEMPLATE, build
from softnpu.tools.kernel.testing import values
from softnpu.tools.shared.failures import ToolError

BENCH: Final = "kernels"
_ELEMENTS: Final = 1 << 18
_CALLS: Final = 10
_GELU_NS, _CALL_US = 2.5, 15.0
_NATIVE: Final = """
#include <math.h>
void gelu(const float *x, float *y, long n) {
    for (long i = 0; i < n; i++) y[i] = x[i] * 0.5f * (1 + erff(x[i] * 0.70710678f));
}
void softmax(const float *x, float *y, long n) {
    float most = -INFINITY, sum = 0;
    for (long i = 0; i < n; i++) most = x[i] > most ? x[i] : most;
    for (long i = 0; i < n; i++) sum += y[i] = expf(x[i] - most);
    for (long i = 0; i < n; i++) y[i] /= sum;
}
"""
_BUILD: Final = ("-x", "c", "-", "-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", "-lm", "-o")


def run(rounds: int) -> Iterator[Measurement]:
    """Yield ns an element of GELU and softmax of 256 Ki f32, and the cost of a call."""
    with tempfile.TemporaryDirectory(prefix="softnpu-bench-") as folder, KernelProcess(threads=1) as client:
        native = _native(Path(folder))
        for name, at_most in (("gelu", _GELU_NS), ("softmax", None)):
            kernel = client.load(_built(name, Path(folder)))
            peers = {"numpy": _NUMPY[name], "cc -O3 -march=native": getattr(native, name, None)}
            yield from _against(kernel, name, peers, rounds, at_most)
        yield _overhead(client.load(_built(TEMPLATE.stem, Path(folder))), rounds)


def measure(
    kernel: LoadedKernel,
    single: LoadedKernel,
    shapes: Sequence[tuple[int, ...]],
    attributes: dict[str, Value],
    reference: Callable[..., Any] | None,
    *,
    rounds: int,
    seed: int,
) -> Iterator[Measurement]:
    """Yield ns an element of the inputs for each implementation of a kernel, against a numpy function.

    If it can be split, also against `single`, the same in a process with one thread.
    """
    described = kernel.description
    given = {
        each.name: value
        for each, value in zip(described.attributes, described.complete(attributes), strict=True)
    }
    for each in described.implementations:
        random = np.random.default_rng(seed)
        kinds = list(zip(each.inputs, shapes, strict=True))
        with ArrayCall(kernel, kinds, attributes) as call, ArrayCall(single, kinds, attributes) as alone:
            for place, other, element_type in zip(call.inputs, alone.inputs, each.inputs, strict=True):
                other[...] = place[...] = values(random, element_type, place.shape)
            sides = {"kernel": _inside(call)}
            if call.call.parts > 1:
                sides["one thread"] = _inside(alone)
                yield absolute(BENCH, f"{each.run}: parts", "", call.call.parts)
            if reference is not None:
                inputs = call.inputs

                def peer(inputs: list[Array] = inputs) -> None:
                    reference(*inputs, **given)

                sides["numpy"] = _timed(peer)
            times = interleave(sides, rounds + 1)
            yield absolute(BENCH, f"{each.run}: bytes copied", "B", call.call.staged)
        elements = max(1, sum(math.prod(shape) for shape in shapes))
        mine, *others = (median(side[1:]) / elements * 1e9 for side in times.values())
        metric = f"{each.run}: time of an element"
        if not others:
            yield absolute(BENCH, metric, "ns", mine)
        for name, time_ns in zip([*sides][1:], others, strict=True):
            yield compared(BENCH, metric, "ns", mine, name, time_ns)


def _against(
    kernel: LoadedKernel, name: str, peers: dict[str, Any], rounds: int, at_most: float | None
) -> Iterator[Measurement]:
    with ArrayCall(kernel, [("f32", (_ELEMENTS,))], {}) as call:
        call.inputs[0][:] = np.random.default_rng(0).standard_normal(_ELEMENTS)
        result = np.empty(_ELEMENTS, np.float32)
        sides = {"kernel": _inside(call)}
        for peer, function in peers.items():
            if function is not None:
                sides[peer] = _timed(lambda function=function: function(call.inputs[0], result), _CALLS)  # type: ignore[misc]
        times = interleave(sides, rounds + 1)
        if not np.allclose(call.run()[0], result, atol=1e-3):  # numpy's GELU is the one with tanh
            raise ToolError(f"kernel {name}", found="another result than its peers", expected="the same")
    own, *others = (median(side[1:]) / _ELEMENTS * 1e9 for side in times.values())
    metric = f"{name}, {_ELEMENTS >> 10} Ki f32: time of an element"
    yield absolute(BENCH, metric, "ns", own, at_most=at_most)
    for peer, time_ns in zip([*sides][1:], others, strict=True):
        yield compared(BENCH, metric, "ns", own, peer, time_ns)


def _overhead(kernel: LoadedKernel, rounds: int) -> Measurement:
    with ArrayCall(kernel, [("f32", (1024,))], {"a": 2.0}) as call:
        times = [_timed(call.call.run)() for _ in range(20 * rounds)]
    return absolute(BENCH, "a call with a page", "us", median(times) * 1e6, at_most=_CALL_US)


def _inside(call: ArrayCall) -> Callable[[], float]:
    """Return a turn of some calls, which returns the seconds of one in the process of kernels."""

    def turn() -> float:
        taken = 0
        for _ in range(_CALLS):
            call.run()
            taken += call.call.time_ns
        return taken / _CALLS / 1e9

    return turn


def _timed(function: Callable[[], object], calls: int = 1) -> Callable[[], float]:
    """Return a turn of some calls, which returns the seconds of one."""

    def turn() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - start) / calls

    return turn


def _built(name: str, folder: Path) -> bytes:
    target = folder / f"{name}.wasm"
    build(FOLDER / f"{name}.c", target)
    return target.read_bytes()


def _numpy_gelu(x: Array, y: Array) -> None:
    y[...] = x * 0.5 * (1 + np.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def _numpy_softmax(x: Array, y: Array) -> None:
    np.exp(x - x.max(), out=y)
    y /= y.sum()


_NUMPY: Final = {"gelu": _numpy_gelu, "softmax": _numpy_softmax}


def _native(folder: Path) -> Any:
    """Return an object with the same functions, built by this machine's compiler; None without one."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    library = folder / "native.so"
    if compiler is None:
        return None
    line = [compiler, *_BUILD, str(library)]
    done = subprocess.run(line, input=_NATIVE.encode(), capture_output=True, check=False)
    if done.returncode:
        return None
    loaded = ctypes.CDLL(str(library))

    class Native:
        """The functions on arrays."""

    for name in ("gelu", "softmax"):
        setattr(Native, name, staticmethod(_on_arrays(getattr(loaded, name))))
    return Native


def _on_arrays(function: Any) -> Callable[[Array, Array], None]:
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long)

    def call(x: Array, y: Array) -> None:
        function(x.ctypes.data, y.ctypes.data, x.size)

    return call

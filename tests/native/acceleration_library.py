"""Intel's NPU Acceleration Library on the emulated NPU: what its own tests try, counted.

    softnpu run -- python -m tests.native.acceleration_library PYTHON [GROUP...]

PYTHON is an interpreter with `intel-npu-acceleration-library`; docs/native.md says how to build one. Every
case has the sizes and the bound of the library's own test of that name (`test/python` of its repository; its
sdist has none). Models that those take from a hub are made of their configurations, with random weights. A
group has a process of its own, and another one after a case that ends it.
The file is a program of its own, which needs nothing of softnpu.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Case = Callable[..., None]
LONGEST = 300
"""Seconds after which a case is ended."""
GROUPS: dict[str, tuple[Case, Mapping[str, Sequence[object]], Callable[..., bool]]] = {}
"""Each group: its test, the values of each parameter, and which combinations there are."""


def group(
    applies: Callable[..., bool] = lambda **_: True, /, **grid: Sequence[object]
) -> Callable[[Case], Case]:
    """Register a function as a group of cases, one for each combination of values."""

    def add(case: Case) -> Case:
        GROUPS[case.__name__] = (case, grid, applies)
        return case

    return add


def combinations(name: str) -> Iterable[dict[str, object]]:
    """Return the arguments of each case of a group."""
    _, grid, applies = GROUPS[name]
    every = (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
    return (values for values in every if applies(**values))


def close(reference: Any, found: Any, bound: float) -> None:
    """Require that the unexplained part of the variance is below a bound, as the library's tests do."""
    import numpy as np

    expected, ours = (np.asarray(values, np.float64) for values in (reference, found))
    assert expected.shape == ours.shape, f"shape {ours.shape} instead of {expected.shape}"
    assert np.isfinite(expected).all(), "the reference of PyTorch is not finite"
    assert np.isfinite(ours).all(), "not finite"
    rows = len(expected) if expected.ndim == 2 else expected.size
    expected, ours = expected.reshape(rows, -1), ours.reshape(rows, -1)
    total = ((expected - expected.mean(0)) ** 2).sum(0)
    rest = ((expected - ours) ** 2).sum(0)
    parts = np.where(total > 0, rest / np.where(total > 0, total, 1), (rest > 0).astype(float))
    assert parts.mean() < bound, f"1 - R2 = {parts.mean()}, not below {bound}"


def serve(results: Connection, name: str, first: int) -> None:
    """Run the cases of one group from `first` on, and send the reason why each failed, or nothing."""
    import torch
    from intel_npu_acceleration_library.backend import clear_cache, npu_available

    assert npu_available(), "the library finds no NPU, and would compute on the CPU"
    load_groups()
    for values in itertools.islice(combinations(name), first, None):
        torch.manual_seed(42)
        reason = ""
        try:
            GROUPS[name][0](**values)
        except Exception as error:  # noqa: BLE001  (whatever the library raises is the result)
            where = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        clear_cache()
        results.send(reason)


def outcomes(name: str) -> Iterator[str]:
    """Yield the result of each case of a group; after one that ends the process, go on in another process."""
    start, done, total = multiprocessing.get_context("spawn"), 0, len(list(combinations(name)))
    while done < total:
        ours, theirs = start.Pipe()
        process = start.Process(target=serve, args=(theirs, name, done))
        process.start()
        theirs.close()
        try:
            while done < total:
                if not ours.poll(LONGEST):
                    process.kill()
                reason = ours.recv()
                done += 1
                yield reason
        except EOFError:
            process.join()
            done += 1
            yield f"the process ended with {process.exitcode}"
        process.join()


def declare_sizes() -> None:
    """Declare sizes as wide as the library's C functions take them.

    Its bindings say `int`. On Linux those on the stack come with whatever is in the upper half: the library
    throws through Python's frames, and the process ends.
    """
    from intel_npu_acceleration_library.backend.bindings import lib

    for function in (lib.slice, lib.convolution, lib.avg_pooling, lib.max_pooling):
        function.argtypes = [ctypes.c_size_t if kind is ctypes.c_int else kind for kind in function.argtypes]


def load_groups() -> None:
    """Import the cases, which need the library."""
    declare_sizes()
    for cases in ("operations", "modules"):
        importlib.import_module(f"tests.native.acceleration_{cases}")


def run(names: Sequence[str]) -> int:
    """Run groups, print how many cases of each passed and why others failed; return the number of those."""
    load_groups()
    passed = total = 0
    for name in names or GROUPS:
        results = list(zip(combinations(name), outcomes(name), strict=True))
        good = sum(not reason for _, reason in results)
        print(f"| {name} | {good} of {len(results)} |", flush=True)
        for values, reason in results:
            if reason:
                print(f"    {values}: {reason[:400]}", flush=True)
        passed, total = passed + good, total + len(results)
    print(f"| all | {passed} of {total} |")
    return int(passed != total)


def main(arguments: Sequence[str]) -> int:
    """Start the given interpreter on this folder's cases; without one, be that program."""
    if arguments and arguments[0].startswith("--cases"):
        return run(arguments[1:])
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    root = Path(__file__).parents[2]
    start = (
        f"import sys; sys.path.insert(0, {str(root)!r}); from tests.native.acceleration_library import main; "
    )
    with tempfile.TemporaryDirectory() as folder:  # the library caches models in the current directory
        command = [
            arguments[0],
            "-W",
            "ignore",
            "-c",
            start + "sys.exit(main(sys.argv[1:]))",
            "--cases",
        ]
        return subprocess.run([*command, *arguments[1:]], cwd=folder, env=os.environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

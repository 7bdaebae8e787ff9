"""Intel's NPU Acceleration Library, unmodified, on the emulated NPU: what its own tests try, counted.

    softnpu run -- python -m tests.native.acceleration_library PYTHON [GROUP...]

PYTHON is an interpreter with `intel-npu-acceleration-library`; docs/native.md says how to build one. Every
case has the sizes and the bound of the library's own test of that name (`test/python` of its repository; its
sdist has none). Models that those take from a hub are made of their configurations, with random weights.
The file is a program of its own, which needs nothing of softnpu.
"""

from __future__ import annotations

import importlib
import itertools
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Case = Callable[..., None]
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


def run(names: Sequence[str]) -> int:
    """Run groups, print how many cases of each passed and why others failed; return the number of those."""
    import torch
    from intel_npu_acceleration_library.backend import clear_cache, npu_available

    assert npu_available(), "the library finds no NPU, and would compute on the CPU"
    failures = total = 0
    for name in names or GROUPS:
        case, passed = GROUPS[name][0], 0
        failed: dict[str, str] = {}
        for values in combinations(name):
            torch.manual_seed(42)
            try:
                case(**values)
                passed += 1
            except Exception as error:  # noqa: BLE001  (whatever the library raises is the result)
                where = traceback.extract_tb(error.__traceback__)[-1]
                failed[str(values)] = (
                    f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
                )
            clear_cache()
        print(f"| {name} | {passed} of {passed + len(failed)} |", flush=True)
        for given, reason in failed.items():
            print(f"    {given}: {reason[:400]}", flush=True)
        failures += len(failed)
        total += passed + len(failed)
    print(f"| all | {total - failures} of {total} |")
    return failures


def main(arguments: Sequence[str]) -> int:
    """Start the given interpreter on this folder's cases; without one, be that program."""
    if arguments and arguments[0].startswith("--cases"):
        for cases in ("operations", "modules"):
            importlib.import_module(f"tests.native.acceleration_{cases}")
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

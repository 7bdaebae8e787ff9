"""The clients' workloads: models on disk, seeded inputs, and expected results from OpenVINO's CPU device."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LIST_FILE: Final = "workloads.json"
OWN_MODELS: Final = ("digits", "perceptron", "convolutions", "attention", "running-sums", "two-outputs")
"""Models made by `references`; the seed decides their sizes and weights."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One model: an IR, and `samples` runs of it, each of `steps` inferences (1 for a model without states).

    `archive` has the arrays `in.SAMPLE.STEP.INDEX`, `out.SAMPLE.STEP.INDEX` and `state.SAMPLE.STEP.VARIABLE`
    (numpy `.npz`); `states` names the variables; VARIABLE is an index of it. `streams`: whether the
    results are bitwise those of the CPU device in THROUGHPUT mode.
    """

    name: str
    xml: str
    archive: str
    inputs: int
    outputs: int
    samples: int
    steps: int
    states: list[str] = []
    streams: bool = False

    @property
    def path(self) -> Path:
        """The IR."""
        return Path(self.xml)


class Samples:
    """The arrays of a workload, read once."""

    def __init__(self, workload: Workload) -> None:
        with np.load(workload.archive, allow_pickle=False) as archive:
            self._arrays = {name: archive[name] for name in archive.files}
        self._workload = workload

    @property
    def workload(self) -> Workload:
        """The workload of these samples."""
        return self._workload

    def inputs(self, sample: int, step: int = 0) -> list[Array]:
        """Return the inputs in model order."""
        return [self._arrays[f"in.{sample}.{step}.{index}"] for index in range(self._workload.inputs)]

    def outputs(self, sample: int, step: int = 0) -> list[Array]:
        """Return the CPU device's outputs in model order."""
        return [self._arrays[f"out.{sample}.{step}.{index}"] for index in range(self._workload.outputs)]

    def states(self, sample: int, step: int = 0) -> list[Array]:
        """Return the CPU device's states after this inference, in the order of `Workload.states`."""
        return [self._arrays[f"state.{sample}.{step}.{index}"] for index in range(len(self._workload.states))]


def write_list(folder: Path, workloads: list[Workload]) -> None:
    """Save the list for `read_list`."""
    (folder / LIST_FILE).write_bytes(msgspec.json.encode(workloads))


def read_list(folder: Path) -> list[Workload]:
    """Return the workloads that `references` left in a folder."""
    return msgspec.json.decode((folder / LIST_FILE).read_bytes(), type=list[Workload])


def largest_difference(result: Array, expected: Array) -> float:
    """Return the largest absolute difference of two arrays; infinite where only one is NaN."""
    if not result.size:
        return 0.0
    a, b = result.astype(np.float64), expected.astype(np.float64)
    gap = np.abs(a - b)
    gap[np.isnan(a) & np.isnan(b)] = 0.0
    return float(np.where(np.isnan(gap), np.inf, gap).max())

"""What the clients compute: models on disk, seeded inputs, and what OpenVINO's CPU device makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LIST_FILE: Final = "workloads.json"
OWN_MODELS: Final = ("digits", "perceptron", "convolutions", "attention", "running-sums", "two-outputs")
"""Models that `references` makes itself; the seed decides their sizes and weights."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One model: an IR, and `samples` runs of it, each of `steps` inferences (1 for a model without states).

    `archive` has the arrays `in.SAMPLE.STEP.INDEX`, `out.SAMPLE.STEP.INDEX` and `state.SAMPLE.STEP.VARIABLE`
    (numpy `.npz`); `states` are the variables, by their index in this list. `streams` says that
    the numbers are the same bit by bit if the CPU device is asked for THROUGHPUT.
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
        """Whose samples they are."""
        return self._workload

    def inputs(self, sample: int, step: int = 0) -> list[Array]:
        """The inputs in the order of the model."""
        return [self._arrays[f"in.{sample}.{step}.{index}"] for index in range(self._workload.inputs)]

    def outputs(self, sample: int, step: int = 0) -> list[Array]:
        """The outputs of the CPU device in the order of the model."""
        return [self._arrays[f"out.{sample}.{step}.{index}"] for index in range(self._workload.outputs)]

    def states(self, sample: int, step: int = 0) -> list[Array]:
        """The states that the CPU device had after this inference, in the order of `Workload.states`."""
        return [self._arrays[f"state.{sample}.{step}.{index}"] for index in range(len(self._workload.states))]


def write_list(folder: Path, workloads: list[Workload]) -> None:
    """Keep the list for `read_list`."""
    (folder / LIST_FILE).write_bytes(msgspec.json.encode(workloads))


def read_list(folder: Path) -> list[Workload]:
    """The workloads that `references` left in a folder."""
    return msgspec.json.decode((folder / LIST_FILE).read_bytes(), type=list[Workload])


def largest_difference(result: Array, expected: Array) -> float:
    """The largest absolute difference of two arrays; infinite where one alone has no number."""
    if not result.size:
        return 0.0
    a, b = result.astype(np.float64), expected.astype(np.float64)
    gap = np.abs(a - b)
    gap[np.isnan(a) & np.isnan(b)] = 0.0
    return float(np.where(np.isnan(gap), np.inf, gap).max())

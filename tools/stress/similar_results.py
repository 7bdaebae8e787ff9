"""The origin of a wrong output: compared with everything that a client could have computed or received."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from softnpu.tools.stress.checking import Output
from softnpu.tools.stress.failure_report import SimilarResult
from softnpu.tools.stress.workloads import Array, Samples

_LEAST_SHARE: Final = 0.1
"""A smaller share of the wrong numbers is chance."""
_REPORTED: Final = 6


class _Known(NamedTuple):
    what: str
    model: str
    sample: int
    inference: int
    array: Array


def similar_results(output: Output, workloads: Sequence[Samples]) -> list[SimilarResult]:
    """Return matches for an output's wrong numbers, most similar first; none for unknown ones.

    A result is compared number by number from the start with the expected outputs, states and inputs of all
    samples of all models.
    """
    size = output.expected.dtype.itemsize
    samples = np.frombuffer(output.raw, np.uint8).reshape(-1, size)
    wrong = output.differs()
    similar = []
    for known in _known(workloads):
        other = np.frombuffer(known.array.tobytes(), np.uint8)
        other = other[: len(other) // size * size].reshape(-1, size)
        count = min(len(samples), len(other))
        if not count or known.array is output.expected:
            continue
        same = np.zeros(len(samples), np.bool_)
        same[:count] = (samples[:count] == other[:count]).all(axis=1)
        # zeros are common after a Relu
        telling = same & wrong & samples.any(axis=1)
        share = float(np.count_nonzero(telling)) / int(np.count_nonzero(wrong))
        if share >= _LEAST_SHARE:
            similar.append((float(same.mean()), share, known))
    similar.sort(key=lambda each: each[:2], reverse=True)
    return [
        SimilarResult(
            what=known.what,
            share=whole,
            share_of_wrong=share,
            model=known.model,
            sample=known.sample,
            inference=known.inference,
        )
        for whole, share, known in similar[:_REPORTED]
    ]


def _known(workloads: Sequence[Samples]) -> Iterator[_Known]:
    for samples in workloads:
        workload = samples.workload
        for sample in range(workload.samples):
            for step in range(workload.steps):
                layout = f", inference {step}" if workload.steps > 1 else ""
                of = f"'{workload.name}', sample {sample}{layout}"
                groups = (
                    ("output", samples.outputs(sample, step)),
                    ("state", samples.states(sample, step)),
                    ("input", samples.inputs(sample, step)),
                )
                for kind, arrays in groups:
                    for index, array in enumerate(arrays):
                        yield _Known(f"{kind} {index} of {of}", workload.name, sample, step, array)

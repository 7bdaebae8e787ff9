"""Figures in words: what is measured, against what, and whether that is better or worse than the target."""

from __future__ import annotations

from typing import Final, NamedTuple

from softnpu.tools.bench.result import Measurement


class Topic(NamedTuple):
    """The heading that a benchmark's figures are under, and the beginning of their names."""

    title: str
    prefix: str = ""


_EMPTY: Final = "An empty command and back: time"
_TOPICS: Final = {
    "submit": Topic(_EMPTY, "Python, "),
    "native": Topic(_EMPTY, "C++, "),
    "start": Topic("A whole small program, from start to end: time"),
    "load": Topic("First result of a new process: time"),
    "infer": Topic("One program: inferences a second"),
    "tokens": Topic("A language model: tokens a second"),
    "clients": Topic("Programs at once: inferences a second"),
    "memory": Topic("Programs at once: memory"),
    "weights": Topic("Large weights: time and memory"),
    "lists": Topic("A long command list: time of a command"),
    "copy": Topic("A large copy: bytes a second"),
    "kernels": Topic("Own kernels: time"),
    "farm": Topic("A farm of nodes: time of a batch, batches a second"),
    "scale": Topic("Growth: cost of one among many"),
    "neighbours": Topic("A small inference beside programs that flood the daemon: time"),
    "recovery": Topic("A death or a hang: time until others go on"),
    "counters": Topic("Counted for each inference"),
}
_SHORTER: Final = (
    ("round trip ", ""),
    (", cold: FEIL", ", nothing cached"),
    (", loaded by another process", ", in memory"),
    (": FIL", ""),
    (": total throughput", ""),
    (": throughput", ""),
    (": total,", ","),
)
_CPU: Final = "OpenVINO CPU"
_SMALLEST: Final = ", at the smallest"
_PEERS: Final = {
    _CPU: "OpenVINO's CPU device",
    "semaphore pair": "a pair of semaphores",
    "without Ray": "processes without Ray",
    "mean of all": "the mean of all",
    "at the cheapest": "the cheapest number",
}


def heading(row: Measurement) -> str:
    """Return what the figure belongs to, and against what it is measured."""
    title = _topic(row).title
    if row.peer is None:
        return title
    if row.peer.endswith(_SMALLEST):
        return f"{title}, against the smallest number"
    peer, _, processes = row.peer.partition(", ")
    against = (
        f"{processes} of OpenVINO's CPU" if peer == _CPU and processes else _PEERS.get(row.peer, row.peer)
    )
    return f"{title}, against {against}"


def label(row: Measurement) -> str:
    """Return what the figure is, below its heading."""
    text = _topic(row).prefix + row.metric
    for long, short in _SHORTER:
        text = text.replace(long, short)
    return text if row.size is None else f"{text}, {row.size}"


def figure(row: Measurement) -> str:
    """Return the ratio, or the value of a figure without a peer."""
    if row.ratio is None:
        return f"{row.value:.3g} {_unit(row)}"
    short = f"{row.ratio:.3g}"
    # a figure just beyond its target is not shown as equal to it
    return f"{row.ratio if row.target == float(short) else float(short):g} x"


def verdict(row: Measurement) -> str:
    """Return whether it is better or worse than the target; empty without a target."""
    if row.ok is None or row.target is None:
        return ""
    if row.target == 0 and row.ratio is None:
        return "as it must be" if row.ok else "must be 0"
    unit = _unit(row) if row.ratio is None else "x"
    return f"{'better' if row.ok else 'worse'} than the target of {row.target:g} {unit}"


def _unit(row: Measurement) -> str:
    """Return the unit below a heading, which says what it is one of."""
    return row.unit.removesuffix("/command")


def _topic(row: Measurement) -> Topic:
    return _TOPICS.get(row.bench, Topic(row.bench))

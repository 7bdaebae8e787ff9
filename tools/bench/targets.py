"""The target of each figure: a ratio to a peer of the same run. docs/benchmarks.md explains every line.

A figure is named by benchmark, metric and peer, where `*` matches anything; the first match counts, so a line
for one model precedes that for all models.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final, NamedTuple


class Target(NamedTuple):
    """The bound of a ratio: an upper one, or a lower one with `at_least`. None: the figure is only shown."""

    bench: str
    metric: str
    peer: str
    bound: float | None
    at_least: bool = False

    def allows(self, ratio: float) -> bool | None:
        """Return whether the ratio meets it."""
        if self.bound is None:
            return None
        return ratio >= self.bound if self.at_least else ratio <= self.bound


_CPU: Final = "OpenVINO CPU"
_SEMAPHORES: Final = "semaphore pair"

TARGETS: Final = (
    Target("load", "*, cold: FEIL", _CPU, 1.3),
    Target("load", "*, driver cache: FIL", _CPU, 1.0),
    Target("load", "*, CACHE_DIR: FIL", _CPU, 1.2),
    Target("load", "*, import: FIL", _CPU, 1.2),
    Target("load", "*, driver cache, loaded by another process: FIL", _CPU, 0.6),
    Target("load", "*, import, loaded by another process: FIL", _CPU, 0.7),
    Target("weights", "*, file: compile, cold", _CPU, 1.5),
    Target("weights", "*, file: compile, cached", _CPU, 0.8),
    Target("weights", "*, file: memory", _CPU, 0.6),
    Target("weights", "*, process memory: compile, cold", _CPU, 1.5),
    Target("weights", "*, process memory: peak memory", "the weights", 2.0),
    Target("start", "*: softnpu run, with a daemon", _CPU, 1.3),
    Target("start", "*: softnpu run, without", _CPU, 1.4),
    Target("start", "*: plugin, with a daemon", _CPU, 1.1),
    Target("start", "*: plugin, without", _CPU, 1.4),
    Target("clients", "digits: total throughput, *", f"{_CPU}, 1 process", None),
    Target("clients", "digits: total throughput, *", f"{_CPU}, *", 1.1, True),
    Target("clients", "*: total throughput, 64 processes", f"{_CPU}, 1 process", 0.97, True),
    Target("clients", "*: total throughput, 64 processes", f"{_CPU}, 64 processes", 1.3, True),
    Target("clients", "*: total throughput, *", f"{_CPU}, 1 process", 1.0, True),
    Target("clients", "*: total throughput, *", f"{_CPU}, *", 1.05, True),
    Target("clients", "*: fewest inferences of 64 processes", "mean of all", 0.85, True),
    Target("memory", "minilm, driver: total, 4 processes", "one process", 1.12),
    Target("memory", "minilm, plugin: total, 4 processes", "one process", 1.2),
    Target("memory", "minilm, driver: private pages of a client", "bare Python", 4.5),
    Target("memory", "minilm, plugin: private pages of a client", "a process with openvino", 1.1),
    Target("memory", "*: total, *", "one process", 1.5),
    Target("infer", "digits: throughput", _CPU, 0.7, True),
    Target("infer", "digits: throughput, 3 in flight", _CPU, 1.1, True),
    Target("infer", "*: throughput", _CPU, 0.9, True),
    Target("tokens", "*: plugin", _CPU, 0.98, True),
    Target("tokens", "*: unmodified OpenVINO", _CPU, 0.95, True),
    Target("submit", "round trip asleep, two cores", _SEMAPHORES, 1.15),
    Target("submit", "round trip asleep, one core", _SEMAPHORES, 2.5),
    Target("submit", "round trip with spin, two cores", _SEMAPHORES, 0.08),
    Target("native", "round trip asleep, two cores", _SEMAPHORES, 1.08),
    Target("native", "round trip asleep, one core", _SEMAPHORES, 1.6),
    Target("native", "round trip with spin, two cores", _SEMAPHORES, 0.06),
    Target("copy", "*", "numpy.copyto", 0.95, True),
    Target("farm", "a batch of *", "without Ray", 1.01),
    Target("neighbours", "*beside computation*", "alone", None),
    Target("neighbours", "an inference * beside *", "alone", 2.0),
    Target("scale", "*, at the largest", "*, at the smallest", 1.3),
)


EXPLAINED: Final = (
    ("load", "*, cold: *", "load, cold"),
    ("load", "*", "load, driver cache"),
    ("weights", "*, file: compile, cached", "weights, file"),
    ("weights", "*, process memory: *", "weights, process memory"),
    ("start", "*, without", "start, without a daemon"),
    ("clients", "*, 64 processes", "clients, 64 processes"),
    ("clients", "*", "clients, 8 processes"),
    ("memory", "*: total, *", "memory"),
    ("tokens", "*", "tokens"),
    ("submit", "*, two cores", "submit"),
    ("copy", "*", "copy"),
    ("infer", "digits: *", "Small models"),
    ("farm", "a batch of *", "farm"),
    ("counters", "submit, with spin: engine: system calls", "What an inference costs"),
    ("counters", "native, *: system calls", "What an inference costs"),
    ("neighbours", "*", "Beside neighbours"),
    ("scale", "*", "Growth"),
)
"""Figures by benchmark and metric, and where docs/benchmarks.md explains why they may miss their target."""


def explained(bench: str, metric: str) -> str:
    """Return the place that explains a missed target; empty if none does."""
    for name, pattern, place in EXPLAINED:
        if name == bench and fnmatchcase(metric, pattern):
            return place
    return ""


def find(bench: str, metric: str, peer: str) -> Target | None:
    """Return the target of a figure; None without one."""
    for target in TARGETS:
        if target.bench == bench and fnmatchcase(metric, target.metric) and fnmatchcase(peer, target.peer):
            return target
    return None

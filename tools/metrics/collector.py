"""The metrics of a daemon, by Prometheus conventions: base units, counters that end in `_total`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from softnpu.emulator.interface.records import LATENCY_BOUNDS_NS, STATE_NAMES
from softnpu.tools.shared.monitor.figures import DEVICE, FUNCTION, MODEL, SESSION, Figure
from softnpu.tools.shared.monitor.programs import Programs
from softnpu.tools.shared.monitor.sample import Monitor, Sample
from softnpu.tools.shared.monitor.views import View, device_name, user_name

if TYPE_CHECKING:
    from softnpu.emulator.interface.messages import EngineStatus

_DEVICE: Final = ("device", "platform")
_ORIGINS: Final = ("compiled", "cache", "native")


class DaemonCollector(Collector):
    """Queries the daemon at each scrape. `details`: also sessions and models, which come and go."""

    def __init__(self, monitor: Monitor, details: bool) -> None:
        self._monitor = monitor
        self._details = details
        self._programs = Programs()
        self._lock = threading.Lock()

    def describe(self) -> Iterable[Metric]:
        """Return nothing in advance: a registry's question would need the daemon."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield all current metrics; only `softnpu_up` while no daemon answers."""
        with self._lock:  # scrapes come in threads, and share one connection
            sample = self._monitor.poll()
        up = isinstance(sample, Sample)
        yield GaugeMetricFamily("softnpu_up", "Whether the daemon answers.", value=int(up))
        if isinstance(sample, Sample):
            yield from self._daemon(sample)
            yield from _devices(sample)
            yield from _histograms(sample)
            if self._details:
                yield from _details(sample, View.of(sample, None, self._programs))

    def _daemon(self, sample: Sample) -> Iterator[Metric]:
        state = sample.status
        info = {"version": state.server, "interface": state.interface}
        yield InfoMetricFamily("softnpu_daemon", "The daemon.", value=info)
        started = round(time.time() - state.uptime_s, 1)
        yield GaugeMetricFamily("softnpu_start_time_seconds", "When the daemon started.", value=started)
        yield GaugeMetricFamily("softnpu_sessions", "Sessions that exist.", value=state.session_count)
        errors = CounterMetricFamily(
            "softnpu_internal_errors", "Errors of the daemon's own code; its log has them."
        )
        errors.add_metric([], state.internal_errors)
        yield errors
        compilations = sample.compilation_count
        yield GaugeMetricFamily("softnpu_compilations", "Compiler jobs under way.", value=compilations)


def _labels(sample: Sample, engine: EngineStatus) -> list[str]:
    return [device_name(engine, sample.status), engine.device.platform]


def _devices(sample: Sample) -> Iterator[Metric]:
    engines = [(engine, _labels(sample, engine)) for engine in sample.status.engines]
    state = GaugeMetricFamily(
        "softnpu_device_state", "1 for the state of the device.", labels=(*_DEVICE, "state")
    )
    for engine, labels in engines:
        for name in STATE_NAMES.values():
            state.add_metric([*labels, name], int(engine.state == name))
    yield state
    yield from _families(DEVICE, _DEVICE, [(labels, engine) for engine, labels in engines])


def _families(
    figures: Iterable[Figure], labels: Sequence[str], reports: Sequence[tuple[Sequence[str], object]]
) -> Iterator[Metric]:
    """Yield a metric for each figure, of reports with the values of their labels."""
    for figure in figures:
        name = f"softnpu_{figure.metric}"
        family: CounterMetricFamily | GaugeMetricFamily = (
            CounterMetricFamily(name, figure.meaning, labels=labels)
            if name.endswith("_total")
            else GaugeMetricFamily(name, figure.meaning, labels=labels)
        )
        for values, report in reports:
            family.add_metric(values, figure.value(report))
        yield family


def _histograms(sample: Sample) -> Iterator[Metric]:
    labels = {engine.device.index: _labels(sample, engine) for engine in sample.status.engines}
    inferences = HistogramMetricFamily(
        "softnpu_inference_duration_seconds", "Inferences, each from its begin to its end.", labels=_DEVICE
    )
    loads = HistogramMetricFamily(
        "softnpu_load_duration_seconds", "Loads of models onto the device.", labels=_DEVICE
    )
    compilations = HistogramMetricFamily(
        "softnpu_compilation_duration_seconds",
        "Compilations, by where the graph came from.",
        labels=(*_DEVICE, "origin"),
    )
    for each in sample.histograms:
        buckets = list(_buckets(each.counts))
        sum_s = each.sum_ns / 1e9
        if each.of == "inference":
            inferences.add_metric(labels[each.device], buckets, sum_s)
        elif each.of == "load":
            loads.add_metric(labels[each.device], buckets, sum_s)
        elif each.of in _ORIGINS:
            compilations.add_metric([*labels[each.device], each.of], buckets, sum_s)
    yield from (inferences, loads, compilations)


def _buckets(counts: Iterable[int]) -> Iterator[tuple[str, float]]:
    bounds = [*(f"{bound / 1e9:.9g}" for bound in LATENCY_BOUNDS_NS), "+Inf"]
    total = 0
    for bound, count in zip(bounds, counts, strict=True):
        total += count
        yield bound, total


def _details(sample: Sample, view: View) -> Iterator[Metric]:
    """Yield the metrics of functions, sessions and models."""
    functions = [
        ([*_labels(sample, engine), user_name(each.uid), str(each.session or "")], each)
        for engine in sample.status.engines
        for each in engine.functions
    ]
    yield from _families(FUNCTION, (*_DEVICE, "user", "session"), functions)
    sessions = [([str(each.session), str(each.pid), each.program, each.user], each) for each in view.sessions]
    yield from _families(SESSION, ("session", "pid", "program", "user"), sessions)
    platforms = {device.name: device.platform for device in view.devices}
    models = [
        ([each.device, platforms[each.device], str(each.model), each.name], each) for each in view.models
    ]
    yield from _families(MODEL, (*_DEVICE, "model", "name"), models)

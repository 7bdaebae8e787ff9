"""The metrics of a daemon, by Prometheus conventions: base units, counters that end in `_total`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
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
from softnpu.tools.shared.monitor.programs import Programs
from softnpu.tools.shared.monitor.sample import Monitor, Sample
from softnpu.tools.shared.monitor.views import View, device_name, user_name

if TYPE_CHECKING:
    from softnpu.emulator.interface.messages import EngineStatus

_DEVICE: Final = ("device", "platform")
_GAUGES: Final = {
    "memory_used_bytes": ("memory_used", "Memory that sessions have allocated."),
    "queued_submissions": ("queued", "Submissions that have not ended."),
    "contexts": ("contexts", "Contexts that exist."),
    "command_queues": ("queues", "Command queues that exist."),
    "graphs": ("graphs", "Graphs that exist."),
    "models": ("images", "Models on the device, however many graphs use them."),
}
_COUNTERS: Final = {
    "submissions": ("submissions", "Submissions that have ended."),
    "commands": ("commands", "Commands of submissions that ended well."),
    "inferences": ("inferences", "Inferences of submissions that ended well."),
    "overlapped_inferences": ("overlapped", "Inferences that began before their turn, beside others."),
    "faults": ("faults", "Submissions that failed."),
    "hangs": ("hangs", "Times that the engine or a command made no progress and was ended."),
    "aborted_submissions": ("aborted", "Submissions that the device ended with DEVICE_LOST."),
    "offences": ("offences", "Resets that a submission was to blame for."),
    "refused_requests": ("refusals", "Requests refused because their process had caused resets."),
    "engine_restarts": ("restarts", "Engines that replaced one that had ended."),
    "failed_builds": ("build_failures", "Compilations and imports that failed."),
    "staged_bytes": ("staged_bytes", "Bytes copied because a tensor could not be used in place."),
    "read_bytes": ("read_bytes", "Bytes that commands have read."),
    "written_bytes": ("written_bytes", "Bytes that commands have written."),
}
_SECONDS: Final = {
    "busy_seconds": ("busy_ns", "Time in which the device executed commands."),
    "tile_busy_seconds": ("tile_busy_ns", "Time of inferences, times the tiles of each."),
}
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
                yield from _functions(sample)
                view = View.of(sample, None, self._programs)
                yield from _sessions(view)
                yield from _models(view)

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
    memory = GaugeMetricFamily("softnpu_memory_bytes", "Memory of the device.", labels=_DEVICE)
    tiles = GaugeMetricFamily("softnpu_tiles", "Tiles of the device.", labels=_DEVICE)
    for engine, labels in engines:
        memory.add_metric(labels, engine.device.memory_total)
        tiles.add_metric(labels, engine.device.tiles)
        for name in STATE_NAMES.values():
            state.add_metric([*labels, name], int(engine.state == name))
    yield from (state, memory, tiles)
    for name, (field, text) in _GAUGES.items():
        gauge = GaugeMetricFamily(f"softnpu_{name}", text, labels=_DEVICE)
        for engine, labels in engines:
            gauge.add_metric(labels, getattr(engine, field))
        yield gauge
    for table, unit in ((_COUNTERS, 1), (_SECONDS, 1e9)):
        for name, (field, text) in table.items():
            counter = CounterMetricFamily(f"softnpu_{name}", text, labels=_DEVICE)
            for engine, labels in engines:
                counter.add_metric(labels, getattr(engine, field) / unit)
            yield counter


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


def _functions(sample: Sample) -> Iterator[Metric]:
    labels = (*_DEVICE, "user", "session")
    memory = GaugeMetricFamily("softnpu_function_memory_bytes", "Memory of a function.", labels=labels)
    busy = CounterMetricFamily("softnpu_function_busy_seconds", "Device time of a function.", labels=labels)
    restarts = CounterMetricFamily(
        "softnpu_function_engine_restarts", "Engines of a function that replaced one.", labels=labels
    )
    for engine in sample.status.engines:
        for each in engine.functions:
            values = [*_labels(sample, engine), user_name(each.uid), str(each.session or "")]
            memory.add_metric(values, each.memory_used)
            busy.add_metric(values, each.busy_ns / 1e9)
            restarts.add_metric(values, each.restarts)
    yield from (memory, busy, restarts)


def _sessions(view: View) -> Iterator[Metric]:
    labels = ("session", "pid", "program", "user")
    memory = GaugeMetricFamily("softnpu_session_memory_bytes", "Memory of a session.", labels=labels)
    busy = CounterMetricFamily("softnpu_session_busy_seconds", "Device time of a session.", labels=labels)
    inferences = CounterMetricFamily("softnpu_session_inferences", "Inferences of a session.", labels=labels)
    for each in view.sessions:
        values = [str(each.session), str(each.pid), each.program, each.user]
        memory.add_metric(values, each.memory)
        busy.add_metric(values, each.busy_s)
        inferences.add_metric(values, each.inferences)
    yield from (memory, busy, inferences)


def _models(view: View) -> Iterator[Metric]:
    platforms = {device.name: device.platform for device in view.devices}
    labels = (*_DEVICE, "model", "name")
    memory = GaugeMetricFamily("softnpu_model_memory_bytes", "Blob and weights of a model.", labels=labels)
    busy = CounterMetricFamily("softnpu_model_busy_seconds", "Time of a model's inferences.", labels=labels)
    inferences = CounterMetricFamily("softnpu_model_inferences", "Inferences of a model.", labels=labels)
    for reported, each in zip(view.sample.models, view.models, strict=True):
        values = [each.device, platforms[each.device], str(each.model), each.name]
        memory.add_metric(values, each.memory)
        busy.add_metric(values, reported.busy_ns / 1e9)
        inferences.add_metric(values, each.inferences)
    yield from (memory, busy, inferences)

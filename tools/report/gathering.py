"""Run one model and gather the data of a report."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import openvino as ov

from softnpu.plugin import CompiledModel, InferRequest
from softnpu.tools.compare import tolerances
from softnpu.tools.compare.candidate import source_of
from softnpu.tools.compare.comparing import Comparing, Outcome
from softnpu.tools.compare.opening import Request, Sides, open_sides
from softnpu.tools.compare.runners import NpuRunner
from softnpu.tools.compare.tolerances import Tolerances
from softnpu.tools.predict import summary
from softnpu.tools.predict.prediction import predict
from softnpu.tools.predict.summary import Line
from softnpu.tools.report import roofline
from softnpu.tools.report.roofline import Roofline
from softnpu.tools.report.work import Work, parameters_of, work_of
from softnpu.tools.shared import progress

_NO_WORK: Final = Work(0.0, 0.0)


@dataclass(frozen=True)
class LayerTime:
    """A device layer's time: the median of all inferences, in seconds."""

    name: str
    kind: str
    unit: str
    seconds: float
    work: Work

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.work.operations / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Compilation:
    """One compilation: whether the driver's cache had the model, its stages, and the load, in seconds."""

    cached: bool
    seconds: float
    stages: Mapping[str, float]
    load_s: float

    @property
    def origin(self) -> str:
        """In words."""
        return "from the driver's cache" if self.cached else "compiled"


@dataclass(frozen=True)
class Gathered:
    """Everything about one model on one device."""

    sides: Sides
    model: ov.Model
    config: Mapping[str, str]
    parameters: Mapping[str, tuple[int, int]]
    work: Mapping[str, Work]
    compilations: Sequence[Compilation]
    first_s: float
    times_s: Sequence[float]
    layers: Sequence[LayerTime]
    memory_used: int
    tensors: int
    staged: int
    roof: Roofline
    outcome: Outcome
    tolerances: Tolerances
    environment: Mapping[str, str]
    predicted: Sequence[Line]

    @property
    def median_s(self) -> float:
        """The median of all inferences after the first."""
        return statistics.median(self.times_s)

    @property
    def operations(self) -> float:
        """Floating-point operations of one inference in convolutions and matrix products."""
        return sum(each.operations for each in self.work.values())

    def by_kind(self) -> list[tuple[str, float, int]]:
        """Return kinds of layers with their total time and count, longest first."""
        kinds: dict[str, list[float]] = {}
        for layer in self.layers:
            kinds.setdefault(layer.kind, []).append(layer.seconds)
        return sorted(
            ((kind, sum(times), len(times)) for kind, times in kinds.items()), key=lambda row: -row[1]
        )


def gather(request: Request, count: int, tell: Callable[[str], None]) -> Gathered:
    """Compile, run and compare the model. Raise as `open_sides` does."""
    tell("models")
    sides = open_sides(request)
    model = source_of(sides.candidate, f"model {request.model}")
    limits = tolerances.parse((), (), sides.candidate.precision, sides.reference.precision)
    outcome = Comparing(sides, limits, tell).outputs()
    tell("compile")
    runner = NpuRunner(request.device, {}, request.socket)
    config = {**request.config, "PERF_COUNT": "YES"}
    compiled, first = _compiled(runner, model, config)
    second, again = _compiled(runner, model, config)
    del second
    tell("inferences")
    request_of_model = compiled.create_infer_request()
    times, layers = _timed(request_of_model, sides.feeds.steps[0], count, model)
    tell("the real NPU")
    predicted = summary.summarise(predict(model, config=request.config))
    tell("this host")
    status = compiled.context.device.get_status()
    return Gathered(
        sides=sides,
        model=model,
        config=request.config,
        parameters=parameters_of(model),
        work=work_of(model),
        compilations=[first, again],
        first_s=times[0],
        times_s=times[1:],
        layers=layers,
        memory_used=status.memory_used,
        tensors=sum(each.byte_size for each in compiled.meta.arguments),
        staged=compiled.staged_bytes,
        roof=roofline.measure(),
        outcome=outcome,
        tolerances=limits,
        environment=_environment(compiled),
        predicted=predicted,
    )


def _compiled(
    runner: NpuRunner, model: ov.Model, config: Mapping[str, str]
) -> tuple[CompiledModel, Compilation]:
    with progress.stages() as stages:
        compiled = runner.core.compile_model(model, runner.device, config, progress=stages)
        stages.end()
    cached = bool(compiled.get_property("LOADED_FROM_CACHE"))
    taken, load = compiled.compile_ms / 1e3, compiled.load_ms / 1e3
    return compiled, Compilation(cached, taken, dict(stages.seconds), load)


def _timed(
    request: InferRequest, feed: Sequence[Any], count: int, model: ov.Model
) -> tuple[list[float], list[LayerTime]]:
    """Return the time of each inference, and the median of each layer over all but the first."""
    for index, value in enumerate(feed):
        tensor = request.get_input_tensor(index)
        tensor.shape = ov.Shape(value.shape)
        # the request's tensors lie in device memory: values written here are not copied again
        np.copyto(tensor.data, value)
    times: list[float] = []
    layers: dict[str, list[float]] = {}
    kinds: dict[str, tuple[str, str]] = {}
    for _ in range(count + 1):
        start = time.perf_counter()
        request.infer()
        times.append(time.perf_counter() - start)
        for layer in request.get_profiling_info():
            if layer.status == ov.ProfilingInfo.Status.EXECUTED:
                layers.setdefault(layer.node_name, []).append(layer.real_time.total_seconds())
                kinds[layer.node_name] = layer.node_type, layer.exec_type
    work = work_of(model)
    return times, [
        LayerTime(name, *kinds[name], statistics.median(taken[1:] or taken), work.get(name, _NO_WORK))
        for name, taken in layers.items()
    ]


def _environment(compiled: CompiledModel) -> dict[str, str]:
    info = compiled.context.device.info
    return {
        "device": f"{info.name}, platform {info.platform}, {info.tiles} tiles, emulated",
        "compiler": compiled.meta.compiler,
        "OpenVINO": ov.get_version(),
        "processor": _processor(),
        "cores": f"{len(os.sched_getaffinity(0))} for this process",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()

"""One model, run on one device: what `softnpu infer` measures and compares."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from softnpu.plugin import CompiledModel, Core, InferRequest
from softnpu.tools import inputs
from softnpu.tools.console import err
from softnpu.tools.failures import ToolError

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

# The compiler's last stage is followed by the device's loading, of which it knows nothing.
_STAGES = {"pack": "pack, then load"}


@dataclass(frozen=True)
class Job:
    """What to run: a model file, what its inputs are, OpenVINO properties, how many inferences to time."""

    model: Path
    shapes: dict[str, Shape] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    count: int = 20


@dataclass(frozen=True)
class Run:
    """How a job went on `device`. Times in seconds; `load_s` is None where it is part of compiling.

    `config` holds the properties in effect. `staged_by_driver` and `staged_by_engine` are the bytes that each
    copied for all inferences together; the engine counts for the whole device, so those of others as well.
    """

    device: str
    precision: str
    config: Mapping[str, str]
    shapes: dict[str, Shape]
    inputs: dict[str, Array]
    outputs: dict[str, Array]
    compile_s: float
    load_s: float | None
    first_s: float
    times_s: list[float]
    staged_by_driver: int = 0
    staged_by_engine: int = 0

    @property
    def median_s(self) -> float:
        return statistics.median(self.times_s)

    @property
    def p90_s(self) -> float:
        return float(np.quantile(self.times_s, 0.9))


def on_npu(job: Job, device: str, socket: Path | None = None) -> Run:
    """Runs the job on an emulated NPU. Inputs are written to where the device reads them.

    Raises `ToolError` for inputs that the model does not have or take, `softnpu.plugin.NpuError` and
    `softnpu.driver.ZeError` for what the plugin refuses.
    """
    core = Core(socket)
    arrays = {name: inputs.load_array(name, path) for name, path in job.files.items()}
    shapes = _static_shapes(core.read_model(job.model), job, arrays)
    compiled = _compile(core, job, device, shapes)
    request = compiled.create_infer_request()
    given = _write_inputs(job, arrays, compiled, request)
    status = compiled.context.device.get_status
    staged_before = status().staged_bytes
    first_s, times_s = _timed(request.infer, job.count)
    return Run(
        device=device,
        precision=compiled.meta.precision,
        config=compiled.meta.config,
        shapes=shapes,
        inputs=given,
        outputs={
            meta.name: np.array(request.get_tensor(port).data)
            for port, meta in zip(compiled.outputs, compiled.meta.outputs, strict=True)
        },
        compile_s=compiled.compile_ms / 1e3,
        load_s=compiled.load_ms / 1e3,
        first_s=first_s,
        times_s=times_s,
        staged_by_driver=compiled.staged_bytes,
        staged_by_engine=status().staged_bytes - staged_before,
    )


def _compile(core: Core, job: Job, device: str, shapes: dict[str, Shape]) -> CompiledModel:
    """Compiles and loads, with a progress bar where somebody can see it."""
    with Progress(
        TextColumn("compile: {task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    ) as bar:
        task = bar.add_task("start", total=1.0)

        def show(stage: str, done: float) -> None:
            bar.update(task, completed=done, description=_STAGES.get(stage, stage))

        return core.compile_model(job.model, device, job.config, shapes=shapes, progress=show)


def _write_inputs(
    job: Job, arrays: Mapping[str, Array], compiled: CompiledModel, request: InferRequest
) -> dict[str, Array]:
    """Fills every input with what the user gave or with random values; what was written, by argument."""
    written: dict[str, Array] = {}
    random = np.random.default_rng(job.seed)
    for port, meta in zip(compiled.inputs, compiled.meta.inputs, strict=True):
        # tensors of the request lie in device memory: what is written here is copied no more
        place = request.get_tensor(port).data
        array = _given(job, arrays, port, meta.name)
        if array is None:
            array = inputs.random_array(random, meta.name, place.dtype, place.shape)
        np.copyto(place, array)
        written[meta.name] = array
    return written


def peer_device(name: str) -> str:
    """A device of OpenVINO's own to compare with; `ToolError` with those that there are."""
    available = ov.Core().available_devices
    if name not in available:
        raise ToolError("--compare", f"{name!r}", f"a device that OpenVINO has here: {', '.join(available)}")
    return name


def on_openvino(job: Job, device: str, like: Run) -> Run:
    """The same inputs through OpenVINO's `device` in this process, with the properties that `like` had.

    Raises `ToolError` with OpenVINO's reason when it cannot.
    """
    try:
        return _on_openvino(job, device, like)
    except RuntimeError as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ToolError(f"model {job.model} on OpenVINO's {device}", lines[-1]) from error


def _on_openvino(job: Job, device: str, like: Run) -> Run:
    core = ov.Core()
    model = core.read_model(job.model)
    if like.shapes:
        model.reshape({_position(model, name): list(shape) for name, shape in like.shapes.items()})
    config = {name: value for name, value in like.config.items() if (name, value) != _ALL_THREADS}
    start = time.perf_counter()
    compiled = core.compile_model(model, device, config)
    compile_s = time.perf_counter() - start
    request = compiled.create_infer_request()
    for index, array in enumerate(like.inputs.values()):
        np.copyto(request.get_input_tensor(index).data, array)
    first_s, times_s = _timed(request.infer, job.count)
    values = [np.array(request.get_output_tensor(index).data) for index in range(len(compiled.outputs))]
    return Run(
        device=device,
        precision=like.precision,
        config=config,
        shapes=like.shapes,
        inputs=like.inputs,
        outputs=dict(zip(like.outputs, values, strict=True)),
        compile_s=compile_s,
        load_s=None,
        first_s=first_s,
        times_s=times_s,
    )


_ALL_THREADS = ("INFERENCE_NUM_THREADS", "0")  # our way to say what OpenVINO says by saying nothing


def _static_shapes(model: ov.Model, job: Job, arrays: Mapping[str, Array]) -> dict[str, Shape]:
    """Shapes to compile with: those asked for, and those of the given arrays where the model leaves them
    open. Refuses names that the model does not have, and an input that is left without a static shape."""
    for option, names in (("--shape", job.shapes), ("--input", job.files)):
        for name in names:
            _position(model, name, option)
    shapes = dict(job.shapes)
    for position, port in enumerate(model.inputs):
        if port.partial_shape.is_static or any(_is_named(port, name) for name in shapes):
            continue
        given = next((name for name in arrays if _is_named(port, name)), None)
        if given is None:
            name = _name(port, position)
            raise ToolError(
                f"model {job.model}, input '{name}'",
                f"shape {port.partial_shape}",
                "a static shape",
                f"give one with --shape {name}={_example(port)}",
            )
        shapes[given] = arrays[given].shape
    return shapes


def _given(job: Job, arrays: Mapping[str, Array], port: Any, name: str) -> Array | None:
    """The array that the user gave for this input, checked; None when there is none."""
    for key, array in arrays.items():
        if key == name or key in port.names:
            dtype, shape = port.element_type.to_dtype(), list(port.shape)
            inputs.check_array(key, job.files[key], array, dtype, shape)
            return array
    return None


def _position(model: ov.Model, name: str, option: str = "input") -> int:
    for position, port in enumerate(model.inputs):
        if _is_named(port, name):
            return position
    names = ", ".join(_name(port, position) for position, port in enumerate(model.inputs))
    raise ToolError(f"{option} {name}", "the model has no such input", f"one of: {names}")


def _is_named(port: Any, name: str) -> bool:
    return name in port.names or name == port.node.friendly_name


def _name(port: Any, position: int) -> str:
    return str(min(port.names, default=port.node.friendly_name or position))


def _example(port: Any) -> str:
    """The port's shape with 1 for what is open."""
    rank = port.partial_shape.rank
    if rank.is_dynamic:
        return "1,..."
    return ",".join(str(d.get_length()) if d.is_static else "1" for d in port.partial_shape)


def _timed(infer: Callable[[], object], count: int) -> tuple[float, list[float]]:
    """Seconds of the first inference, and of `count` more."""
    times = []
    for _ in range(count + 1):
        start = time.perf_counter()
        infer()
        times.append(time.perf_counter() - start)
    return times[0], times[1:]

"""One model, run on one device: the measurements and comparison of `softnpu infer`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.emulator.interface.profiling import CLOCK_PROPERTY
from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.plugin import CompiledModel, Core, InferRequest
from softnpu.tools.compare import feeds
from softnpu.tools.compare.feeds import Port
from softnpu.tools.compare.graph import names_in
from softnpu.tools.shared import inputs, progress
from softnpu.tools.shared.cpu_reference import compile_reference
from softnpu.tools.shared.failures import ToolError, UsageError
from softnpu.tools.shared.model_file import check_model, is_exported

Array = npt.NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """A run to make: a model file or blob, its `--input`s, OpenVINO properties, how many inferences to time.

    `source_model` is the model that a blob was compiled from. With `profile` the run has its layers.
    """

    model: Path
    shapes: dict[str, Shape] = field(default_factory=dict)
    inputs: Sequence[str] = ()
    config: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    count: int = 20
    source_model: Path | None = None
    profile: bool = False

    @property
    def is_blob(self) -> bool:
        """Whether the file is a compiled model."""
        return is_exported(self.model)


@dataclass(frozen=True)
class Run:
    """A job's result on `device`. Times in seconds; `load_s` is None where it is part of compiling.

    `config` holds the properties in effect. `staged_by_driver` and `staged_by_engine` are the bytes that each
    copied for all inferences together; the engine counts for the whole device, including others' bytes.
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
    layers: Sequence[ov.ProfilingInfo] = ()
    modelled_layers: bool = False
    """Whether the layers' times are those predicted for silicon."""
    default_precision: str = ""
    """The device's precision if none had been requested, if known."""

    @property
    def median_s(self) -> float:
        return statistics.median(self.times_s)

    @property
    def p90_s(self) -> float:
        return float(np.quantile(self.times_s, 0.9))


def on_npu(job: Job, device: str, socket: Path | None = None) -> Run:
    """Run the job on an emulated NPU. Inputs are written to the memory that the device reads.

    Raise `ToolError` for inputs that the model does not have or take, `softnpu.plugin.NpuError` and
    `softnpu.driver.ZeError` for the plugin's errors.
    """
    check_model(job.model, exported=True)
    core = Core(socket)
    if job.is_blob:
        compiled = core.import_model(job.model, device, job.config, model=_source_model(core, job))
        ports = _ports_of_blob(compiled)
        feed = _feed(job, ports, [(spec.name, *spec.names) for spec in compiled.signature.outputs])
        shapes = {port.names[0]: array.shape for port, array in zip(ports, feed, strict=True)}
    else:
        model = core.read_model(job.model)
        ports = _ports_of(model, job)
        feed = _feed(job, ports, [port.names for port in model.outputs], names_in(model))
        shapes = {
            port.names[0]: array.shape
            for own, port, array in zip(model.inputs, ports, feed, strict=True)
            if own.partial_shape.is_dynamic or _requested(job, port.names) is not None
        }
        compiled = _compile(core, job, device, shapes)
    request = compiled.create_infer_request()
    _write_inputs(feed, request)
    names = [spec.name for spec in compiled.signature.outputs]
    status = compiled.context.device.get_status
    staged_before = status().staged_bytes
    first_s, times_s = _timed(request.infer, job.count)
    return Run(
        device=device,
        precision=compiled.meta.precision,
        config=compiled.meta.config,
        shapes=shapes,
        inputs={port.names[0]: array for port, array in zip(ports, feed, strict=True)},
        outputs={name: np.array(request.get_output_tensor(at).data) for at, name in enumerate(names)},
        compile_s=compiled.compile_ms / 1e3,
        load_s=compiled.load_ms / 1e3,
        first_s=first_s,
        times_s=times_s,
        staged_by_driver=compiled.staged_bytes,
        staged_by_engine=status().staged_bytes - staged_before,
        layers=request.get_profiling_info() if job.profile else (),
        modelled_layers=compiled.context.device.info.clock != "host"
        or compiled.meta.config.get(CLOCK_PROPERTY) == "DEVICE",
    )


def _source_model(core: Core, job: Job) -> ov.Model | None:
    """Return the model of a blob, required if it has no weights of its own."""
    return None if job.source_model is None else core.read_model(job.source_model)


def _compile(core: Core, job: Job, device: str, shapes: dict[str, Shape]) -> CompiledModel:
    """Compile and load, with a progress bar if it is visible."""
    with progress.stages() as stages:
        return core.compile_model(job.model, device, job.config, shapes=shapes, progress=stages)


def _ports_of(model: ov.Model, job: Job) -> list[Port]:
    """Return the inputs of a model, with the requested shapes."""
    ports = []
    for at, port in enumerate(model.inputs):
        names = list(dict.fromkeys((_name(port, at), *sorted(port.names), port.node.friendly_name)))
        shape = _requested(job, names)
        partial = port.partial_shape if shape is None else ov.PartialShape(list(shape))
        ports.append(Port(names, port.element_type.to_dtype(), partial))
    return ports


def _ports_of_blob(compiled: CompiledModel) -> list[Port]:
    return [
        Port((spec.name, *spec.names), port.element_type.to_dtype(), port.partial_shape)
        for port, spec in zip(compiled.inputs, compiled.signature.inputs, strict=True)
    ]


def _feed(
    job: Job, ports: Sequence[Port], outputs: Sequence[Collection[str]], others: Collection[str] = ()
) -> Sequence[Array]:
    """Return the user's or random values of every input."""
    known = [port.names for port in ports]
    for name in job.shapes:
        inputs.position(f"--shape {name}", name, known)
    given = feeds.read(job.inputs, ports)
    feeds.check_names(given, ports, outputs, others)
    random = [port for port in ports if given.arrays.keys().isdisjoint(port.names)]
    shapes = {port.names[0]: _shape_of_input(job, port) for port in random}
    return feeds.make(given, ports, 1, job.seed, shapes).steps[0]


def _write_inputs(feed: Sequence[Array], request: InferRequest) -> None:
    for index, array in enumerate(feed):
        tensor = request.get_input_tensor(index)
        if tuple(tensor.shape) != array.shape:
            tensor.shape = ov.Shape(array.shape)
        # the request's tensors lie in device memory: values written here are not copied again
        np.copyto(tensor.data, array)


def _requested(job: Job, names: Collection[str]) -> Shape | None:
    return next((shape for key, shape in job.shapes.items() if key in names), None)


def _shape_of_input(job: Job, port: Port) -> Shape:
    """Return the shape of random values: the input's own, or within it that of --shape."""
    name, partial = port.names[0], port.shape
    given = _requested(job, port.names)
    if given is None and partial.is_dynamic:
        raise ToolError(
            f"model {job.model}, input '{name}'",
            found=f"shape {partial}",
            expected="a static shape",
            hint=f"give one with --shape {name}={_example(partial)}",
        )
    if given is not None and not partial.compatible(ov.PartialShape(list(given))):
        raise UsageError(f"--shape {name}", found=f"{list(given)}", expected=f"one within {partial}")
    return tuple(partial.to_shape()) if given is None else given


def peer_device(name: str) -> str:
    """Return one of OpenVINO's own devices to compare with; else raise `ToolError` listing them."""
    available = ov.Core().available_devices
    if name not in available:
        raise UsageError(
            "--compare",
            found=f"{name!r}",
            expected=f"a device that OpenVINO has here: {', '.join(available)}",
        )
    return name


def on_openvino(job: Job, device: str, like: Run) -> Run:
    """Run the same inputs through OpenVINO's `device` in this process, with the properties of `like`.

    OpenVINO's CPU device lacks our arithmetic, f16: it computes in f32 then.
    Raise `ToolError` with OpenVINO's reason when it cannot.
    """
    try:
        return _on_openvino(job, device, like)
    except RuntimeError as error:
        subject = f"model {job.model} on OpenVINO's {device}"
        raise ToolError(subject, found=openvino_errors.reason(error)) from error


def _on_openvino(job: Job, device: str, like: Run) -> Run:
    core = ov.Core()
    model = core.read_model(job.source_model or job.model)
    if like.shapes:
        model.reshape({_position(model, name): list(shape) for name, shape in like.shapes.items()})
    config = _config_for(device, like)
    start = time.perf_counter()
    compiled, config = compile_reference(core, model, device, config)
    compile_s = time.perf_counter() - start
    request = compiled.create_infer_request()
    for index, array in enumerate(like.inputs.values()):
        np.copyto(request.get_input_tensor(index).data, array)
    first_s, times_s = _timed(request.infer, job.count)
    values = [np.array(request.get_output_tensor(index).data) for index in range(len(compiled.outputs))]
    return Run(
        device=device,
        precision=config.get(_PRECISION, like.precision),
        default_precision=core.get_property(device, _PRECISION).to_string(),
        config=config,
        shapes=like.shapes,
        inputs=like.inputs,
        outputs=dict(zip(like.outputs, values, strict=True)),
        compile_s=compile_s,
        load_s=None,
        first_s=first_s,
        times_s=times_s,
    )


def _config_for(device: str, like: Run) -> dict[str, str]:
    config = {name: value for name, value in like.config.items() if (name, value) != _ALL_THREADS}
    if device.startswith("NPU"):
        return config
    if device.startswith("CPU") and like.precision == "f16":
        config[_PRECISION] = "f32"
    return {name: value for name, value in config.items() if not name.startswith("NPU_")}


_PRECISION = "INFERENCE_PRECISION_HINT"
_ALL_THREADS = ("INFERENCE_NUM_THREADS", "0")  # our form of OpenVINO's default


def _position(model: ov.Model, name: str) -> int:
    known = ((_name(port, at), *port.names, port.node.friendly_name) for at, port in enumerate(model.inputs))
    return inputs.position(f"input {name}", name, known)


def _name(port: Any, position: int) -> str:
    return str(min(port.names, default=port.node.friendly_name or position))


def _example(partial: ov.PartialShape) -> str:
    """Return the shape with 1 for open dimensions."""
    if partial.rank.is_dynamic:
        return "1,..."
    return ",".join(str(d.get_length()) if d.is_static else "1" for d in partial)


def _timed(infer: Callable[[], object], count: int) -> tuple[float, list[float]]:
    """Return seconds of the first inference, and of `count` more."""
    times = []
    for _ in range(count + 1):
        start = time.perf_counter()
        infer()
        times.append(time.perf_counter() - start)
    return times[0], times[1:]

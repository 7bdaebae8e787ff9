"""Both sides of a comparison, opened from the user's arguments, and their inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt
import openvino as ov

from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.tools.compare import feeds, graph
from softnpu.tools.compare.candidate import BlobCandidate, Candidate, ModelCandidate, model_port, source_of
from softnpu.tools.compare.feeds import Feeds, Given, Port
from softnpu.tools.compare.references import (
    NumbersFile,
    OnnxFile,
    OtherModel,
    Reference,
    SameModel,
    port_names,
)
from softnpu.tools.compare.runners import NpuRunner, OpenVinoRunner
from softnpu.tools.infer.inference_run import Job
from softnpu.tools.shared.failures import ToolError, UsageError
from softnpu.tools.shared.inputs import parse_config, parse_shapes, position
from softnpu.tools.shared.model_file import check_model

Array = npt.NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]

_ONNX_RUNTIME: Final = "onnxruntime"


@dataclass(frozen=True)
class Request:
    """A comparison to make. `against` None: outputs beside the inputs in a .npz file, else the CPU."""

    model: Path
    against: str | None = None
    device: str = "NPU"
    config: Mapping[str, str] = field(default_factory=dict)
    inputs: Sequence[str] = ()
    shapes: Shapes = field(default_factory=dict)
    steps: int = 1
    seed: int = 0
    bisect: bool = False
    source_model: Path | None = None
    socket: Path | None = None

    @classmethod
    def parsed(
        cls,
        model: Path,
        config: Sequence[str] | None,
        inputs: Sequence[str] | None,
        shapes: Sequence[str] | None,
        **others: Any,
    ) -> Request:
        """Return the request of a command's `--config`, `--inputs` and `--shape`."""
        properties = parse_config(config)
        return cls(model, config=properties, inputs=inputs or [], shapes=parse_shapes(shapes or []), **others)


@dataclass(frozen=True)
class Sides:
    """A comparison ready to run."""

    candidate: Candidate
    reference: Reference
    feeds: Feeds


def open_sides(request: Request) -> Sides:
    """Open and check the user's files. Raise `ToolError`, `softnpu.plugin.NpuError`, `OSError`."""
    check_model(request.model, exported=True)
    runner = NpuRunner(request.device, request.config, request.socket)
    candidate, given = _candidate(request, runner)
    made = feeds.make(given, candidate.inputs(), request.steps, request.seed, request.shapes)
    return Sides(candidate, _reference(request, runner, candidate, given, made), made)


def _candidate(request: Request, runner: NpuRunner) -> tuple[Candidate, Given]:
    if not Job(request.model).is_blob:
        if request.source_model is not None:
            raise UsageError(
                "--source-model",
                found=f"given, but {request.model} is no compiled model",
                expected="it with a compiled model only",
            )
        model = runner.core.read_model(request.model)
        ports = [model_port(port) for port in model.inputs]
        _check_shapes(request.shapes, ports)
        given = _given(request, ports, [port_names(port) for port in model.outputs], model)
        _reshape(model, ports, _shapes(ports, given, request))
        return ModelCandidate(graph.with_unique_names(model), runner), given
    path = request.source_model or _source_of(request.model)
    source = None if path is None else runner.core.read_model(path)
    compiled = runner.core.import_model(request.model, request.device, request.config, model=source)
    candidate = BlobCandidate(compiled, source, _runner_like(compiled, request, runner), request.model.name)
    ports = candidate.inputs()
    _check_shapes(request.shapes, ports)
    given = _given(request, ports, [names for _, names in candidate.outputs()], source)
    if source is not None:
        _reshape(source, ports, _shapes(ports, given, request), by_position=True)
        graph.with_unique_names(source)
    return candidate, given


def _given(
    request: Request, ports: Sequence[Port], outputs: Sequence[set[str]], model: ov.Model | None
) -> Given:
    """Return the user's inputs, and the reference numbers beside them."""
    given = feeds.read(request.inputs, _with_requested_shapes(ports, request.shapes))
    feeds.check_names(given, ports, outputs, graph.names_in(model) if model is not None else ())
    return given


def _runner_like(compiled: Any, request: Request, runner: NpuRunner) -> NpuRunner:
    """Return a runner that compiles with the settings of a compiled model."""
    precision = compiled.meta.precision
    like = NpuRunner(
        request.device, {"INFERENCE_PRECISION_HINT": precision, **request.config}, request.socket
    )
    like.core = runner.core
    return like


def _source_of(blob: Path) -> Path | None:
    """Return the model file named by a weightless export, if it still exists."""
    from softnpu.plugin.exported.blob_file import BlobFile

    with BlobFile.open(blob) as file:
        weights = None if file.is_raw else file.metadata().weights
    path = Path(weights.model) if weights is not None and weights.model else None
    return path if path is not None and path.is_file() else None


def _shapes(ports: Sequence[Port], given: Given, request: Request) -> dict[int, list[int]]:
    """Return each input's static shape by position: the requested one, else its array's, else its own."""
    shapes = {}
    for at, port in enumerate(ports):
        asked = next((request.shapes[name] for name in port.names if name in request.shapes), None)
        array = next((given.arrays[name] for name in port.names if name in given.arrays), None)
        if asked is not None:
            shapes[at] = list(asked)
        elif array is not None and port.shape.is_dynamic and port.shape.rank.is_static:
            extra = array.ndim - port.shape.rank.get_length()
            shape = list(array.shape[1:] if request.steps > 1 and extra == 1 else array.shape)
            if port.shape.compatible(ov.PartialShape(shape)):  # else it is rejected by name
                shapes[at] = shape
        elif port.shape.is_static:
            shapes[at] = list(port.shape.to_shape())
    return shapes


def _reshape(
    model: ov.Model, ports: Sequence[Port], shapes: Mapping[int, Sequence[int]], *, by_position: bool = False
) -> None:
    if not shapes or (not by_position and not any(port.shape.is_dynamic for port in ports)):
        different = [at for at, shape in shapes.items() if list(ports[at].shape.to_shape()) != list(shape)]
        if not different:
            return
    try:
        model.reshape({at: ov.PartialShape(list(shape)) for at, shape in shapes.items()})
    except RuntimeError as error:
        asked = ", ".join(f"{ports[at].names[0]}{list(shape)}" for at, shape in shapes.items())
        reason = openvino_errors.reason(error)
        raise UsageError(
            f"--shape {asked}", found=reason, expected="shapes that the model can have"
        ) from error


def _with_requested_shapes(ports: Sequence[Port], shapes: Shapes) -> list[Port]:
    """Return the inputs with the requested shapes: pictures are resized to them."""
    fixed = []
    for port in ports:
        asked = next((shapes[name] for name in port.names if name in shapes), None)
        fixed.append(port if asked is None else replace(port, shape=ov.PartialShape(list(asked))))
    return fixed


def _check_shapes(shapes: Shapes, ports: Sequence[Port]) -> None:
    for name, shape in shapes.items():
        port = ports[position(f"--shape {name}", name, (port.names for port in ports))]
        if not port.shape.rank.compatible(ov.PartialShape(list(shape)).rank):
            raise UsageError(f"--shape {name}", found=f"{list(shape)}", expected=f"one within {port.shape}")


# ---------------------------------------------------------------- reference


def _reference(
    request: Request, runner: NpuRunner, candidate: Candidate, given: Given, made: Feeds
) -> Reference:
    against = request.against
    outputs = [names for _, names in candidate.outputs()]
    if against is None:
        if given.archive is not None and all(names & given.arrays.keys() for names in outputs):
            return NumbersFile(given.archive, given.arrays, outputs)
        against = "CPU"
    path = Path(against)
    if path.suffix == ".npz":
        return NumbersFile(path, feeds.read_archive(path), outputs)
    model = source_of(
        candidate,
        f"compiled model {request.model}",
        found="without the model that it was made from",
        expected="it, for a reference other than a .npz file",
    )
    if against == _ONNX_RUNTIME:
        return OnnxFile(_onnx_file(request), model)
    if path.suffix or path.exists():
        return _other(path, model, made)
    if against.partition(".")[0] == runner.device.partition(".")[0]:
        return SameModel(model, _second_setting(request, runner, against))
    return SameModel(model, OpenVinoRunner(against))


def _other(path: Path, model: ov.Model, made: Feeds) -> Reference:
    runner = OpenVinoRunner("CPU")
    other = ov.Core().read_model(path) if path.exists() else None
    if other is None:
        raise UsageError(f"--against {path}", found="no such file", expected="a model, or a .npz file")
    reference = OtherModel(path, other, model, runner)
    shapes = {theirs: list(made.steps[0][ours].shape) for ours, theirs in enumerate(reference.inputs)}
    _reshape(other, [model_port(port) for port in other.inputs], shapes)
    return OtherModel(path, graph.with_unique_names(other), model, runner)


def _second_setting(request: Request, runner: NpuRunner, device: str) -> NpuRunner:
    """Return the NPU without the compared properties."""
    if not request.config and device == request.device:
        raise ToolError(
            f"--against {device}",
            found="the same device with the same properties",
            expected="--config KEY=VALUE, which the reference does not get",
        )
    plain = NpuRunner(device, {}, request.socket)
    plain.core = runner.core
    return plain


def _onnx_file(request: Request) -> Path:
    path = request.source_model or request.model
    if path.suffix != ".onnx":
        raise ToolError(
            f"--against {_ONNX_RUNTIME}",
            found=f"{path}",
            expected="a model in a .onnx file",
            hint="compare an IR with the .onnx file that it was made from: --against MODEL.onnx",
        )
    return path

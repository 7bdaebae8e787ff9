"""Executors of a model: the emulated NPU, one of OpenVINO's own devices, ONNX Runtime."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.plugin import CompiledModel, Core
from softnpu.tools.shared.cpu_reference import compile_reference
from softnpu.tools.shared.failures import ToolError

Array = npt.NDArray[Any]

_PRECISION: Final = "INFERENCE_PRECISION_HINT"
_CPU: Final = {_PRECISION: "f32", "EXECUTION_MODE_HINT": "ACCURACY", "PERFORMANCE_HINT": "LATENCY"}


class Runner(Protocol):
    """Executes models. `precision` is the type that it computes in, known once the first model has run."""

    name: str
    precision: str

    def run(self, model: ov.Model, feeds: Iterable[Sequence[Array]]) -> Iterator[list[Array]]:
        """Yield the results of an inference with each of `feeds` in order: states carry over."""


class NpuRunner:
    """The emulated NPU, with compilation properties."""

    def __init__(self, device: str, config: Mapping[str, str], socket: Path | None = None) -> None:
        self.name = " ".join([device, *(f"{key}={value}" for key, value in config.items())])
        self.precision = config.get(_PRECISION, "f32")
        self.device = device
        self.core = Core(socket)
        self._config = dict(config)

    def run(self, model: ov.Model, feeds: Iterable[Sequence[Array]]) -> Iterator[list[Array]]:
        """See `Runner.run`. Raise `softnpu.plugin.NpuError`."""
        return self.infer(self.core.compile_model(model, self.device, self._config), feeds)

    def infer(self, compiled: CompiledModel, feeds: Iterable[Sequence[Array]]) -> Iterator[list[Array]]:
        """Do the same with a compiled model."""
        self.precision = compiled.meta.precision
        return _inferred(compiled, feeds)


class OpenVinoRunner:
    """One of OpenVINO's own devices in this process, in f32, without the subgraphs that miscompute layers.

    If that takes a property, the name includes it from then on.
    """

    def __init__(self, device: str) -> None:
        self.name = device
        self.precision = "f32"
        self._device = device
        self._core = ov.Core()
        if device not in self._core.available_devices:
            raise ToolError(
                "--against",
                found=f"{device!r}",
                expected="a model, a .npz file, onnxruntime, NPU, or a device that OpenVINO has here: "
                + ", ".join(self._core.available_devices),
            )

    def run(self, model: ov.Model, feeds: Iterable[Sequence[Array]]) -> Iterator[list[Array]]:
        """See `Runner.run`. Raise `ToolError` with OpenVINO's reason."""
        try:
            compiled, config = compile_reference(self._core, model, self._device, _CPU)
            if chosen := [f"{key}={value}" for key, value in config.items() if key not in _CPU]:
                self.name = " ".join([self._device, *chosen])
            yield from _inferred(compiled, feeds)
        except RuntimeError as error:
            subject = f"model '{model.get_friendly_name()}' on {self.name}"
            raise ToolError(subject, found=openvino_errors.reason(error)) from error


class OnnxRunner:
    """A file on ONNX Runtime's CPU provider, without optimisations that change arithmetic."""

    name = "onnxruntime"
    precision = "f32"

    def __init__(self, path: Path) -> None:
        self._onnx, self._runtime = _imported("onnx"), _imported("onnxruntime")
        self._path = path
        self._model = self._onnx.load(str(path), load_external_data=False)
        graph = self._model.graph
        constants = {tensor.name for tensor in graph.initializer}
        self.inputs = [value.name for value in graph.input if value.name not in constants]
        self.outputs = [value.name for value in graph.output]
        self.tensors = {name for node in graph.node for name in node.output if name}

    def run(self, feeds: Iterable[Sequence[Array]], names: Sequence[str]) -> Iterator[list[Array]]:
        """Yield outputs, then the tensors called `names`, of an inference with each of `feeds`."""
        added = [name for name in names if name not in self.outputs]
        session = self._session(added)
        for feed in feeds:
            try:
                values = session.run(None, dict(zip(self.inputs, feed, strict=True)))
            except Exception as error:  # classes of an optional library
                raise ToolError(f"model {self._path} on onnxruntime", found=_first_line(error)) from error
            by_name = dict(zip((*self.outputs, *added), values, strict=True))
            yield [np.asarray(by_name[name]) for name in (*self.outputs, *names)]

    def _session(self, added: Sequence[str]) -> Any:
        options = self._runtime.SessionOptions()
        options.graph_optimization_level = self._runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.log_severity_level = 3
        source: Any = str(self._path)
        if added:
            # whole, with external weights: bytes have no folder to find them in
            model = self._onnx.load(str(self._path))
            model.graph.output.extend(self._onnx.helper.make_empty_tensor_value_info(name) for name in added)
            with closing(io.BytesIO()) as stream:
                self._onnx.save(model, stream)
                source = stream.getvalue()
        try:
            return self._runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # classes of an optional library
            raise ToolError(f"model {self._path} on onnxruntime", found=_first_line(error)) from error


def _imported(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ToolError(
            "--against onnxruntime",
            found=f"no module {name}",
            expected="it installed",
            hint="install it with: pip install 'softnpu[compare]'",
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _inferred(compiled: Any, feeds: Iterable[Sequence[Array]]) -> Iterator[list[Array]]:
    request = compiled.create_infer_request()
    for feed in feeds:
        request.infer(dict(enumerate(feed)))
        yield [_numbers(request.get_output_tensor(at)) for at in range(len(compiled.outputs))]


def _numbers(tensor: Any) -> Array:
    """Copy a tensor; numpy has no bf16, so its numbers are shown in f32."""
    value = np.array(tensor.data)
    if tensor.element_type == ov.Type.bf16:
        return (value.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return value

"""The behaviours, one side of a comparison, and the comparison."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import openvino
from openvino import opset13 as ops

MISSING: Final = {
    "core.register_plugin": "devices come from the daemon: a program cannot load another plugin",
    "core.register_plugins": "as register_plugin",
    "core.add_extension_template_extension": "needs a library of OpenVINO's build",
    "compiled_model.get_runtime_model": "a compiled model is a blob, no openvino.Model",
    "compiled_model.inputs_docs": "only OpenVINO makes a ConstOutput, of its own models; ports are Output",
    "compiled_model.const_output_runtime_info": "as inputs_docs",
    "string_infer.infer_request_infer": "strings are objects of one process, not of shared memory",
    "string_infer.compiled_model_infer": "as infer_request_infer",
}
"""OpenVINO's tests that do not pass here, and why."""


@dataclass
class Side:
    """OpenVINO, or the plugin in its place."""

    ov: ModuleType
    device: str
    folder: Path
    _compiled: dict[str, Any] = field(default_factory=dict)

    def compiled(self, make: Callable[..., openvino.Model], *arguments: Any) -> Any:
        """Compile a model, once for each side."""
        key = f"{make.__name__} {arguments}"
        if key not in self._compiled:
            self._compiled[key] = self.ov.Core().compile_model(make(*arguments), self.device)
        return self._compiled[key]

    def clear(self) -> None:
        """Forget the compiled models."""
        self._compiled.clear()

    def request(self, make: Callable[..., openvino.Model], *arguments: Any) -> Any:
        """Return a new request for a model."""
        return self.compiled(make, *arguments).create_infer_request()


Behaviour = Callable[[Side], Any]


def relu() -> openvino.Model:
    data = ops.parameter([1, 3, 4, 4], np.float32, name="data")
    result = ops.result(ops.relu(data, name="relu"), name="result")
    result.output(0).set_names({"result"})
    return openvino.Model([result], [data], "test_model")


def absolute(kind: Any = openvino.Type.f32) -> openvino.Model:
    data = ops.parameter([1, 4], kind)
    return openvino.Model([ops.abs(data)], [data], "absolute")


def concat(kind: Any = openvino.Type.f32, count: int = 2) -> openvino.Model:
    data = [ops.parameter([5], kind) for _ in range(count)]
    return openvino.Model([ops.concat(data, 0)], data, "concat")


def batched(kind: Any = openvino.Type.f32, batch: int = 4) -> openvino.Model:
    data = ops.parameter(openvino.PartialShape([batch, 3]), kind, name="data")
    data.set_layout(openvino.Layout("N..."))
    data.output(0).set_names({"data"})
    return openvino.Model([ops.relu(data)], [data], "batched")


def add(left: tuple[int, ...] = (2, 2), right: tuple[Any, ...] = (2, 2)) -> openvino.Model:
    data = [ops.parameter(openvino.PartialShape(list(shape)), np.float32) for shape in (left, right)]
    return openvino.Model([ops.add(*data)], data, "add")


def split(parts: int = 5) -> openvino.Model:
    data = ops.parameter([1, 20], np.float32, name="data")
    model = openvino.Model(ops.split(data, 1, parts).outputs(), [data], "split")
    for number, port in enumerate(model.outputs):
        port.tensor.names = {f"output_{number}"}
    return model


IMAGE: Final = np.random.default_rng(7).normal(size=(1, 3, 4, 4)).astype(np.float32)


def behaviours() -> dict[str, Behaviour]:
    """Return every behaviour, by its module and name."""
    from tests.plugin.api import async_infer_request, compiled_model, core, infer_request, ovdict, stateful

    found: dict[str, Behaviour] = {}
    for module in (core, compiled_model, infer_request, async_infer_request, ovdict, stateful):
        short = module.__name__.rpartition(".")[2]
        for name, function in vars(module).items():
            if inspect.isfunction(function) and function.__module__ == module.__name__ and name[0] != "_":
                found[f"{short}.{name}"] = function
    return found


def difference(behaviour: Behaviour, theirs: Side, ours: Side) -> str:
    """Return how the plugin differs from OpenVINO in a behaviour; empty if it does not."""
    expected, found = _outcome(behaviour, theirs), _outcome(behaviour, ours)
    if isinstance(expected, BaseException):
        same = isinstance(found, type(expected))
    else:
        same = not isinstance(found, BaseException) and _plain(found) == _plain(expected)
    return "" if same else f"{found!r}; expected {expected!r}"


def _outcome(behaviour: Behaviour, side: Side) -> Any:
    try:
        return behaviour(side)
    except Exception as error:  # noqa: BLE001 - the outcome
        return error.with_traceback(None)  # it would keep requests alive


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value

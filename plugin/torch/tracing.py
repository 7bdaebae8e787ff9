"""Traces a torch module and converts it to an `openvino.Model`. Only this module imports torch."""

from __future__ import annotations

import inspect
import logging
import os
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov

from softnpu.plugin.errors import ModelError
from softnpu.plugin.torch.module_signature import ModuleSignature, is_constant, parameters_of
from softnpu.plugin.torch.structure import OMITTED, Description, Node, Tensor, Unsupported, build, describe

Bounds = int | tuple[int, int] | None
Dynamic = Mapping[str, Mapping[int, Bounds]]
_REASON_LINES = 3
_SUPPORTED = "tensors, None, bool, int, float and str, in tuples, lists, dicts and dataclasses"


@dataclass
class Traced:
    """A traced module; `classes` are those of the containers in its results, by name."""

    model: Any
    signature: ModuleSignature
    classes: dict[str, type]


def torch_or_refuse() -> Any:
    """Import torch. Raises `ModelError` where it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise ModelError(
            "softnpu.plugin.torch.compile: torch cannot be imported"
            f" ({error}); expected torch 2.13 or newer. Install it with: pip install 'softnpu[torch]'."
            " A saved module needs no torch: softnpu.plugin.torch.load"
        ) from error
    return torch


def trace(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Dynamic) -> Traced:
    """Trace `module` with these arguments, in eval mode and without gradients, without copying its weights.

    Raises `ModelError` for another type, for wrong arguments, and for a module that cannot be traced or
    converted.
    """
    torch = torch_or_refuse()
    if not isinstance(module, torch.nn.Module) or isinstance(module, torch.jit.ScriptModule):
        raise ModelError(
            f"softnpu.plugin.torch.compile: {type(module).__name__} given; expected a torch.nn.Module."
            " Wrap functions in a module; model files go to softnpu.plugin.Core.compile_model"
        )
    tracer = _Tracer(torch, module, args, kwargs)
    with _evaluating(torch, module), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch and OpenVINO warn of each other's deprecated calls
        program = tracer.export(dynamic)
        model = tracer.convert(program)
    return tracer.finish(model, dynamic)


class _Tracer:
    """Traces one module."""

    def __init__(self, torch: Any, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._torch = torch
        self._module = module
        self._name = type(module).__name__
        self._given = Description()
        self._returned = Description()
        self._outputs: Node | None = None
        self._signature = inspect.signature(module.forward)
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            expected = f"arguments for {self._signature}"
            raise self._error("example inputs", found=str(error), expected=expected) from error
        present = set(bound.arguments)
        bound.apply_defaults()
        self._arguments = {
            name: self._described(name, OMITTED if name not in present and self._is_object(name) else value)
            for name, value in bound.arguments.items()
        }

    def _is_object(self, name: str) -> bool:
        """Return whether the default of a parameter is an object that cannot be saved."""
        default = self._signature.parameters[name].default
        return default is not inspect.Parameter.empty and not is_constant(default)

    def _described(self, name: str, value: Any) -> Node:
        try:
            return describe(value, name, self._given, self._as_example)
        except Unsupported as unsupported:
            raise self._error(
                f"argument '{unsupported.path}'", found=unsupported.type_name, expected=_SUPPORTED
            ) from unsupported

    def _as_example(self, value: Any) -> Tensor | None:
        return Tensor(index=0) if isinstance(value, self._torch.Tensor | np.ndarray) else None

    # ------------------------------------------------------------ torch

    def export(self, dynamic: Dynamic) -> Any:
        """Export the module with torch, as a function of the tensors among its arguments."""
        torch, tracer = self._torch, self
        base: Any = torch.nn.Module

        class Flat(base):  # type: ignore[misc]
            """Takes the tensors of the arguments, and returns those of the result."""

            def __init__(self) -> None:
                super().__init__()
                self.module = tracer._module

            def forward(self, *tensors: Any) -> Any:
                return tracer._call(self.module, tensors)

        examples, shapes = self._examples(dynamic)
        try:
            return torch.export.export(
                Flat(), tuple(examples), dynamic_shapes={"tensors": tuple(shapes)}, strict=False
            )
        except ModelError:
            raise
        except Exception as error:
            raise self._untraceable(error) from error

    def _call(self, module: Any, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Call the module with arguments of its own kinds; return the tensors of its result."""
        arguments = {
            name: build(node, tensors.__getitem__, self._given.classes)
            for name, node in self._arguments.items()
        }
        present = {name: value for name, value in arguments.items() if value is not OMITTED}
        bound = inspect.BoundArguments(self._signature, present)
        result = module(*bound.args, **bound.kwargs)
        self._returned = Description()
        try:
            self._outputs = describe(result, "", self._returned, self._as_result)
        except Unsupported as unsupported:
            part = f"result {unsupported.path!r}".removesuffix(" ''")
            raise self._error(part, found=unsupported.type_name, expected=_SUPPORTED) from unsupported
        if not self._returned.tensors:
            raise self._error("result", found="no tensor in it", expected="one tensor at least")
        return tuple(self._returned.tensors)

    def _as_result(self, value: Any) -> Tensor | None:
        torch = self._torch
        if isinstance(value, torch.Tensor):
            return Tensor(index=0)
        return Tensor(index=0, scalar=True) if isinstance(value, torch.SymInt) else None

    def _examples(self, dynamic: Dynamic) -> tuple[list[Any], list[dict[int, Any] | None]]:
        """Return the example tensors, and their dynamic dimensions for torch."""
        torch, paths = self._torch, self._given.paths
        unknown = sorted(dynamic.keys() - set(paths))
        if unknown:
            raise self._error(
                f"dynamic {unknown[0]!r}",
                found="no tensor of this name among the arguments",
                expected=" or ".join(paths),
            )
        examples, shapes = [], []
        for path, value in zip(paths, self._given.tensors, strict=True):
            example = torch.from_numpy(value) if isinstance(value, np.ndarray) else value.detach()
            dims: dict[int, Any] = {}
            for axis, bounds in dynamic.get(path, {}).items():
                low, high = self._bounds(path, axis, bounds, example.dim())
                dims[axis] = torch.export.Dim.DYNAMIC(min=low, max=high)
                if example.shape[axis] == 1 and (high is None or high > 1):
                    # torch specialises a dimension of 1
                    example = torch.cat([example, example], axis)
            examples.append(example)
            shapes.append(dims or None)
        return examples, shapes

    def _bounds(self, path: str, axis: int, bounds: Bounds, rank: int) -> tuple[int | None, int | None]:
        if not isinstance(axis, int) or not 0 <= axis < rank:
            expected = f"an axis from 0 to {rank - 1}"
            raise self._error(f"dynamic {path!r}", found=f"axis {axis!r}", expected=expected)
        low, high = (1, bounds) if isinstance(bounds, int) else bounds or (1, None)
        if high is not None and not 0 <= low <= high:
            part = f"dynamic {path!r}, axis {axis}"
            raise self._error(part, found=f"{bounds!r}", expected="None, MAX or (MIN, MAX)")
        return low, high

    # ------------------------------------------------------------ openvino

    def convert(self, program: Any) -> Any:
        """Convert to a model of OpenVINO, whose constants are the weights of the module in place.

        `openvino.convert_model` also folds weights into copies, and sends telemetry from a forked process.
        """
        from openvino.frontend import FrontEndManager
        from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder

        try:
            frontend = FrontEndManager().load_by_framework("pytorch")
            # in a variable, because the frontend uses it without keeping it alive
            with _without_decoder_log():
                decoder = TorchFXPythonDecoder.from_exported_program(
                    _Decomposed(program, self._check_changes)
                )
            return frontend.convert(frontend.load(decoder))
        except ModelError:
            raise
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reasons = [line.lstrip("- ") for line in lines if "No conversion rule found" in line] or lines[:1]
            raise self._error(
                "conversion",
                found=f"OpenVINO's PyTorch frontend says: {reasons[0] if reasons else type(error).__name__}",
                expected="operations that OpenVINO has",
                hint="Write the module without them, or compile it from another format (ONNX)",
            ) from error

    def _check_changes(self, signature: Any) -> None:
        """Raise `ModelError` if the program, by its signature after decomposition, changes its inputs."""
        paths = {f"tensors_{number}": path for number, path in enumerate(self._given.paths)}
        changed = [name.removeprefix("module.") for name in signature.buffers_to_mutate.values()]
        changed += [paths.get(name, name) for name in signature.user_inputs_to_mutate.values()]
        if changed:
            raise self._error(
                "forward",
                found=f"it changes {', '.join(map(repr, changed))} in place",
                expected="a module that changes neither its buffers nor its arguments",
                hint="Return the new values, and give them as arguments to the next call",
            )

    def finish(self, model: Any, dynamic: Dynamic) -> Traced:
        """Set shapes and names, and make the record of both structures."""
        assert self._outputs is not None
        by_name = {name: index for index, port in enumerate(model.inputs) for name in port.get_names()}
        inputs = [by_name.get(f"tensors_{number}", -1) for number in range(len(self._given.paths))]
        shapes = {}
        for index, path, value in zip(inputs, self._given.paths, self._given.tensors, strict=True):
            if index >= 0:
                shapes[index] = ov.PartialShape(self._shape(path, value, dynamic.get(path, {})))
        model.reshape(shapes)
        for index, path in zip(inputs, self._given.paths, strict=True):
            if index >= 0:
                _name(model.inputs[index], path)
        used = {name for port in model.inputs for name in port.get_names()}
        for port, path in zip(model.outputs, self._returned.paths, strict=True):
            name = path or "output"
            if name not in used and not used.intersection(port.get_names()):
                used.add(name)
                port.get_tensor().set_names({name})
        model.set_friendly_name(self._name)
        signature = ModuleSignature(
            name=self._name,
            parameters=parameters_of(self._signature),
            arguments=tuple(self._arguments.values()),
            inputs=tuple(inputs),
            outputs=self._outputs,
        )
        return Traced(model, signature, self._returned.classes)

    def _shape(self, path: str, value: Any, dynamic: Mapping[int, Bounds]) -> list[Any]:
        shape: list[Any] = [ov.Dimension(size) for size in value.shape]
        for axis, bounds in dynamic.items():
            low, high = self._bounds(path, axis, bounds, len(shape))
            shape[axis] = ov.Dimension(low, -1 if high is None else high)
        return shape

    # ------------------------------------------------------------ errors

    def _error(self, part: str, *, found: str, expected: str, hint: str = "") -> ModelError:
        text = f"module '{self._name}', {part}: {found}; expected {expected}"
        return ModelError(f"{text}. {hint}" if hint else text)

    def _untraceable(self, error: Exception) -> ModelError:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
        if "conflicts between user-specified ranges" in reason or "Constraints violated" in reason:
            reason = f"{type(error).__name__}: {' '.join(lines[1:_REASON_LINES])}"
            expected, hint = "dynamic dimensions", "Give fixed ones no bounds in `dynamic`"
        elif type(error).__name__ in {"GuardOnDataDependentSymNode", "UserError"}:
            expected = "control flow that does not depend on values of tensors"
            hint = "Use torch.where or torch.cond there, or compile the parts around it"
        else:
            expected, hint = "a module that torch.export accepts", "Compile the parts that it can trace"
        found = f"torch.export cannot trace it{_location(error)}: {reason}"
        return self._error("trace", found=found, expected=expected, hint=hint)


class _Decomposed:
    """Checks the program as OpenVINO's decoder decomposes it: a second decomposition costs half a second."""

    def __init__(self, program: Any, check: Callable[[Any], None]) -> None:
        self._program = program
        self._check = check

    def run_decompositions(self, *args: Any, **kwargs: Any) -> Any:
        decomposed = self._program.run_decompositions(*args, **kwargs)
        self._check(decomposed.graph_signature)
        return decomposed


def _name(port: Any, name: str) -> None:
    port.get_tensor().set_names({name})
    port.get_node().set_friendly_name(name)


def _location(error: BaseException) -> str:
    """Return the line of the user's program where tracing failed."""
    ours, theirs = os.path.dirname(__file__), f"{os.sep}torch{os.sep}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if theirs not in frame.filename.removeprefix(ours) and not frame.filename.startswith(ours)
    ]
    inside = [frame for frame in frames if frame.name == "forward"]
    if not inside:
        return ""
    return f" at {inside[-1].filename}:{inside[-1].lineno} ({inside[-1].line})"


@contextmanager
def _without_decoder_log() -> Iterator[None]:
    """Suppress the decoder's log records: tracebacks about operations that newer torch lacks."""

    def elsewhere(record: logging.LogRecord) -> bool:
        return os.path.basename(record.pathname) != "fx_decoder.py"

    root = logging.getLogger()
    root.addFilter(elsewhere)
    try:
        yield
    finally:
        root.removeFilter(elsewhere)


@contextmanager
def _evaluating(torch: Any, module: Any) -> Iterator[None]:
    """Put the module into eval mode, without gradients; restore the mode of each part afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode

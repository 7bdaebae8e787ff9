"""Modules of PyTorch on the emulated NPU: traced once, saved as one file, run where torch is not installed.

>>> from softnpu.plugin import torch as npu
>>> compiled = npu.compile(module, (example,))
>>> compiled(x)
>>> compiled.save("module.blob")

and in another process, with torch or without:

>>> npu.load("module.blob")(x)

Only `compile` needs torch (`pip install 'softnpu[torch]'`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from softnpu.plugin.core import Core
from softnpu.plugin.errors import ModelError
from softnpu.plugin.torch.compiled_module import CompiledModule
from softnpu.plugin.torch.module_signature import KEY, ModuleSignature
from softnpu.plugin.torch.tracing import Dynamic, torch_or_refuse, trace

__all__ = ["CompiledModule", "compile", "load", "save"]


def compile(  # noqa: A001 - as torch calls it
    module: Any,
    example_inputs: Any,
    *,
    device: str = "NPU",
    config: Mapping[str, Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic: Dynamic | None = None,
    core: Core | None = None,
) -> CompiledModule:
    """Trace a module and compile it for the device.

    `example_inputs` is a tensor, a tuple or list of the positional arguments, or a mapping of arguments by
    name; `example_kwargs` are further arguments by name. Tensors may be nested in tuples, lists, dicts and
    dataclasses. Other values (numbers, texts, None) become part of the trace: calls must repeat them.

    `dynamic` makes dimensions dynamic: for each tensor (`x`, or `batch.ids` in a container) the bounds of its
    axes, as MAX, (MIN, MAX), or None for no bound. All others are those of the example.

    The module is traced in eval mode and without gradients, and keeps its own modes. The trace refers to its
    weights; they are copied once, into sealed memory mapped by the compiler and the device.
    Raises `ModelError` for a module that cannot be traced, and the errors of `Core.compile_model`.
    """
    torch_or_refuse()
    args, kwargs = _arguments(example_inputs)
    traced = trace(module, args, {**kwargs, **(example_kwargs or {})}, dynamic or {})
    compiled = (core or Core()).compile_model(traced.model, device, config)
    return CompiledModule(compiled, traced.signature, traced.classes)


def load(
    path: str | Path,
    device: str = "NPU",
    config: Mapping[str, Any] | None = None,
    *,
    classes: Iterable[type] = (),
    core: Core | None = None,
) -> CompiledModule:
    """Load a module saved by `CompiledModule.save`, without torch. The device maps the weights.

    Dataclasses and named tuples in results become named tuples with the same names, or those of `classes`.
    Raises `ModelError` for another file, and the errors of `Core.import_model`.
    """
    compiled = (core or Core()).import_model(Path(path), device, config)
    text = compiled.extra.get(KEY)
    if text is None:
        raise ModelError(
            f"{path}: a compiled model without the record of a torch module; expected what"
            " CompiledModule.save wrote. Core.import_model takes this one"
        )
    signature = ModuleSignature.decode(text, str(path))
    return CompiledModule(compiled, signature, {kind.__qualname__: kind for kind in classes})


def save(module: CompiledModule, path: str | Path) -> None:
    """Write a compiled module to one file, for `load`: as `CompiledModule.save`."""
    module.save(path)


def __dir__() -> list[str]:
    return list(__all__)


def _arguments(examples: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(examples, Mapping):
        return (), examples
    if isinstance(examples, tuple | list):
        return tuple(examples), {}
    return (examples,), {}

"""The signature of a compiled module: the record of its arguments and results in an exported model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, cast

import msgspec
import numpy as np

from softnpu.plugin.errors import InputError, ModelError
from softnpu.plugin.torch.structure import OMITTED, Node, Omitted, Value, build, indices_in, match

KEY: Final = "torch.module"
"""The key of the record among the extra texts of a compiled model's metadata."""
_VERSION: Final = 1
T = TypeVar("T")
Kind = Literal["POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD", "VAR_POSITIONAL", "KEYWORD_ONLY", "VAR_KEYWORD"]


class Parameter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One parameter of `forward`. `kind` as named by `inspect`; `default` None when there is none."""

    name: str
    kind: Kind = "POSITIONAL_OR_KEYWORD"
    default: Value | Omitted | None = None


class ModuleSignature(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parameters of a module, and the structures of its arguments (in their order) and of its result.

    `inputs` has, for each tensor among the arguments, the index of the model's input; -1 for an unused
    tensor. Output `index` is that of the model.
    """

    name: str
    parameters: tuple[Parameter, ...]
    arguments: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: Node
    version: int = _VERSION

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], leaf: Callable[[Any, str], T]
    ) -> dict[int, T]:
        """Return a call's tensors by the model's input index, each as returned by `leaf(value, path)`.

        Raises `InputError` for arguments that differ from those of the trace.
        """
        try:
            bound = _inspectable(self.parameters).bind(*args, **kwargs)
        except TypeError as error:
            raise InputError(f"module '{self.name}': {error}; expected {self}") from error
        bound.apply_defaults()
        tensors: dict[int, T] = {}
        for node, (name, value) in zip(self.arguments, bound.arguments.items(), strict=True):
            match(node, value, name, tensors, leaf)
        return {self.inputs[index]: item for index, item in tensors.items() if self.inputs[index] >= 0}

    def __str__(self) -> str:
        """Return the parameters in Python: `(x, scale=2.0)`."""
        return str(_inspectable(self.parameters))

    def encode(self) -> str:
        """Encode as text, for the metadata of a compiled model."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str, where: str) -> ModuleSignature:
        """Decode a text. Raises `ModelError` for an invalid one and for another version."""
        try:
            signature = msgspec.json.decode(text, type=cls)
            signature._check()
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise ModelError(
                f"{where}: its record of a torch module cannot be read ({error}); expected what"
                " CompiledModule.save writes. Save the module again"
            ) from error
        if signature.version != _VERSION:
            raise ModelError(
                f"{where}: its record of a torch module has version {signature.version}; expected {_VERSION}."
                " Save the module again with this version of softnpu"
            )
        return signature

    def _check(self) -> None:
        """Raise `ValueError` for inconsistent parts."""
        _inspectable(self.parameters)
        if len(self.arguments) != len(self.parameters):
            raise ValueError(f"{len(self.arguments)} arguments, {len(self.parameters)} parameters")
        tensors = sorted(index for node in self.arguments for index in indices_in(node))
        if tensors != list(range(len(self.inputs))):
            raise ValueError(f"tensors {tensors} among the arguments, {len(self.inputs)} inputs")
        build(self.outputs, lambda _: np.float32(), {})


def parameters_of(signature: inspect.Signature) -> tuple[Parameter, ...]:
    """Return the parameters of a function as records."""
    return tuple(
        Parameter(name=name, kind=cast(Kind, parameter.kind.name), default=_default(parameter))
        for name, parameter in signature.parameters.items()
    )


def _default(parameter: inspect.Parameter) -> Value | Omitted | None:
    default = parameter.default
    if default is parameter.empty:
        return None
    return Value(value=default) if is_constant(default) else Omitted()


def is_constant(value: Any) -> bool:
    """Return whether a value can be saved as text."""
    return value is None or type(value) in (bool, int, float, str)


@functools.cache
def _inspectable(parameters: tuple[Parameter, ...]) -> inspect.Signature:
    """Return a signature that binds arguments like the module's own."""
    made = []
    for parameter in parameters:
        default: Any = inspect.Parameter.empty
        if parameter.default is not None:
            default = parameter.default.value if isinstance(parameter.default, Value) else OMITTED
        kind = getattr(inspect.Parameter, parameter.kind)
        made.append(inspect.Parameter(parameter.name, kind, default=default))
    return inspect.Signature(made)

"""How a compiled module is called and what it returns: the record that is saved beside the compiled model."""

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
"""Under which the record is kept among the extra texts of a compiled model's metadata."""
_VERSION: Final = 1
T = TypeVar("T")
Kind = Literal["POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD", "VAR_POSITIONAL", "KEYWORD_ONLY", "VAR_KEYWORD"]


class Parameter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One parameter of `forward`. `kind` as `inspect` names it; `default` None when there is none."""

    name: str
    kind: Kind = "POSITIONAL_OR_KEYWORD"
    default: Value | Omitted | None = None


class Form(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parameters of a module, the structures of its arguments (in their order) and of its result.

    `inputs` has, for each tensor among the arguments, the index of the model's input; -1 for a tensor that
    the module does not use. Output `index` is that of the model.
    """

    name: str
    parameters: tuple[Parameter, ...]
    arguments: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: Node
    version: int = _VERSION

    def bind(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        leaf: Callable[[Any, str], T],
    ) -> dict[int, T]:
        """The tensors of a call by the index of the model's input, each as `leaf(value, path)` gives it.

        Raises `InputError` for arguments that are not those with which the module was traced.
        """
        try:
            bound = _signature(self.parameters).bind(*args, **kwargs)
        except TypeError as error:
            raise InputError(f"module '{self.name}': {error}; expected {self.signature()}") from error
        bound.apply_defaults()
        found: dict[int, T] = {}
        for node, (name, value) in zip(self.arguments, bound.arguments.items(), strict=True):
            match(node, value, name, found, leaf)
        return {self.inputs[index]: item for index, item in found.items() if self.inputs[index] >= 0}

    def signature(self) -> str:
        """As it would be written: `(x, scale=2.0)`."""
        return str(_signature(self.parameters))

    def encode(self) -> str:
        """As text, for the metadata of a compiled model."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str, where: str) -> Form:
        """The form in a text. Raises `ModelError` when it is none of ours, or of a newer version."""
        try:
            form = msgspec.json.decode(text, type=cls)
            form._check()
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise ModelError(
                f"{where}: its record of a torch module cannot be read ({error}); expected what"
                " CompiledModule.save writes. Save the module again"
            ) from error
        if form.version != _VERSION:
            raise ModelError(
                f"{where}: its record of a torch module has version {form.version}; expected {_VERSION}."
                " Save the module again with this version of softnpu"
            )
        return form

    def _check(self) -> None:
        """Raises `ValueError` for parts that do not go together."""
        _signature(self.parameters)
        if len(self.arguments) != len(self.parameters):
            raise ValueError(f"{len(self.arguments)} arguments, {len(self.parameters)} parameters")
        given = sorted(index for node in self.arguments for index in indices_in(node))
        if given != list(range(len(self.inputs))):
            raise ValueError(f"tensors {given} among the arguments, {len(self.inputs)} inputs")
        build(self.outputs, lambda _: np.float32(), {})


def parameters_of(signature: inspect.Signature) -> tuple[Parameter, ...]:
    """The parameters of a function as a record."""
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
    """Whether a value can be written down."""
    return value is None or type(value) in (bool, int, float, str)


@functools.cache
def _signature(parameters: tuple[Parameter, ...]) -> inspect.Signature:
    """A signature that binds arguments as the module's own does; the module is not needed."""
    made = []
    for parameter in parameters:
        default: Any = inspect.Parameter.empty
        if parameter.default is not None:
            default = parameter.default.value if isinstance(parameter.default, Value) else OMITTED
        kind = getattr(inspect.Parameter, parameter.kind)
        made.append(inspect.Parameter(parameter.name, kind, default=default))
    return inspect.Signature(made)

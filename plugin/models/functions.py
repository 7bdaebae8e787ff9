"""Own kernels as numpy functions, for trying an idea: `@softnpu.kernel`."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, get_origin, get_type_hints

import msgspec

from softnpu.driver import Context
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.kernels import description
from softnpu.emulator.kernels.description import (
    ABI,
    OUT,
    Attribute,
    Function,
    FunctionDescription,
    Implementation,
)
from softnpu.plugin.errors import ModelError

if TYPE_CHECKING:
    from softnpu.emulator.kernels.function_process import Helper

_KINDS: Final = {int: "integer", float: "number", str: "text"}
_starting = threading.Lock()


class FunctionKernel:
    """A function that is a kernel: call it as before, or give it to `Core.add_extension`.

    `description` has no helper: each context has its own.
    """

    def __init__(self, function: Function, described: FunctionDescription) -> None:
        self.function, self.description = function, described
        self._helpers: weakref.WeakKeyDictionary[Context, Helper] = weakref.WeakKeyDictionary()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.function(*arguments, **keywords)

    @property
    def operation(self) -> Any:
        """The class of its operation, for models that the program builds: `affine.operation([x], a=2.0)`."""
        from softnpu.emulator.openvino.kernels import operations  # late: it loads OpenVINO

        return operations.operation(operations.FunctionModule(self.description))

    def content(self, context: Context) -> bytes:
        """Return what the compiler gets in the place of a module; its helper runs then.

        Raises `ModelError` if it cannot be forked, `ZeError`.
        """
        from softnpu.driver.kernel_helper import open_helper  # late: few programs have one
        from softnpu.emulator.kernels.function_process import Helper

        with _starting:
            helper = self._helpers.get(context)
            if helper is None or not helper.is_running:
                name, fd = open_helper(context)
                described = msgspec.structs.replace(self.description, helper=name)
                try:
                    helper = self._helpers[context] = Helper(fd, self.function, described)
                except OSError as error:
                    reason = f"no process can be forked for it: {error.strerror}; expected room for one"
                    raise ModelError(f"kernel {described.full_name}: {reason}") from error
        return helper.described.encode()


def kernel(name: str, *signatures: str) -> Callable[[Function], FunctionKernel]:
    """Make a numpy function the kernel `DOMAIN.NAME`, with a signature for each combination of types.

    >>> @softnpu.kernel("my.domain.Affine", "f32[...] -> f32[...]")
    ... def affine(x, a: float, b: float = 0.0):
    ...     return a * x + b

    Its first parameters are the inputs, the others attributes, whose kinds annotations or defaults tell; one
    named `out` gets the outputs, to be written in place. Raises `ModelError` for what is no kernel.
    """

    def decorate(function: Function) -> FunctionKernel:
        try:
            described = _described(name, signatures, function)
            description.read(described.encode())  # checks it
        except ValueError as error:
            raise ModelError(f"kernel {name}: {error}") from None
        except Refused as error:
            raise ModelError(f"kernel {name}: {error.info.found}; expected {error.info.expected}") from None
        return FunctionKernel(function, described)

    return decorate


def _described(name: str, signatures: Sequence[str], function: Function) -> FunctionDescription:
    from softnpu.emulator.kernels import patterns  # late, as are types: few programs have a function
    from softnpu.emulator.kernels.numpy_types import TYPES

    domain, _, short = name.rpartition(".")
    if not signatures:
        raise ValueError("no signature; expected one, such as 'f32[n, c] -> f32[n]'")
    implementations, shapes = [], []
    for text in signatures:
        inputs, outputs = patterns.parse(text)
        tensors = [*inputs, *outputs]
        for kind, _ in tensors:
            if kind not in TYPES:
                raise ValueError(f"type {kind!r}; expected one of numpy's: {', '.join(TYPES)}")
        types = [tuple(kind for kind, _ in side) for side in (inputs, outputs)]
        implementations.append(Implementation(inputs=types[0], outputs=types[1], run=function.__name__))
        shapes.append(tuple(pattern for _, pattern in tensors))
    counts = {(len(each.inputs), len(each.outputs)) for each in implementations}
    if len(counts) > 1:
        raise ValueError(f"signatures with other numbers of tensors: {sorted(counts)}; expected the same")
    ((input_count, output_count),) = counts
    names, attributes = _parameters(function, input_count)
    integers = [each.name for each in attributes if each.kind == "integer"]
    for each in shapes:
        if unknown := patterns.unknown_names(each[:input_count], each[input_count:], integers):
            raise ValueError(f"dimension {unknown[0]}; expected one of an input, or an integer attribute")
    return FunctionDescription(
        abi=ABI,
        domain=domain,
        name=short,
        inputs=tuple(names),
        outputs=("y",) if output_count == 1 else tuple(f"y{at}" for at in range(output_count)),
        implementations=tuple(implementations),
        attributes=tuple(attributes),
        shapes=tuple(shapes),
    )


def _parameters(function: Function, input_count: int) -> tuple[list[str], list[Attribute]]:
    """Return the names of the inputs, and the attributes, which are the parameters behind them."""
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name != OUT]
    if len(parameters) < input_count or any(
        each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters
    ):
        raise ValueError(
            f"parameters ({', '.join(map(str, parameters))}); expected {input_count} inputs first"
        )
    hints = get_type_hints(function)
    attributes = []
    for each in parameters[input_count:]:
        default = None if each.default is each.empty else each.default
        kind = _kind(hints.get(each.name, type(default)), default)
        if not kind:
            expected = "an annotation: int, float, str, list[int] or list[float]"
            raise ValueError(f"attribute {each}; expected {expected}, or a default of such a type")
        if isinstance(default, tuple):
            default = list(default)
        attributes.append(Attribute(name=each.name, kind=kind, default=default))
    return [each.name for each in parameters[:input_count]], attributes


def _kind(hint: Any, default: Any) -> str:
    if isinstance(default, list | tuple) and hint in (list, tuple):
        kinds = {_KINDS.get(type(each), "") for each in default}
        return "numbers" if "number" in kinds else "integers" if kinds == {"integer"} else ""
    if get_origin(hint) in (list, tuple):
        return {"integer": "integers", "number": "numbers"}.get(_KINDS.get(hint.__args__[0], ""), "")
    return _KINDS.get(hint, "")

"""A model compiled with OpenVINO's CPU device, and compiled again where that is the only way on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import openvino as ov

from softnpu.emulator.blob.container import GraphMeta
from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.common import model_bodies
from softnpu.emulator.interface import trace
from softnpu.emulator.openvino import memory_limit
from softnpu.emulator.openvino.defects import empty_tensors, quantised_subgraphs, remedies, shared_tensors
from softnpu.emulator.openvino.runtime import core, properties_of
from softnpu.emulator.openvino.weights import weight_pages

_MOST_EMPTY = 8  # sets of zero dimensions, before a model is compiled for all of them


class Compilation:
    """What bindings need of a compiled model, its constants being in a space of weights.

    `separated`: positions of outputs that `rounded_states` has changed; `unbound`: of those whose port
    changed shape during compilation. `computes_sizes`: whether sizes within the model depend on the values or
    dynamic shapes of its inputs; such a model is kept, to be compiled again.
    """

    meta: GraphMeta
    compiled: ov.CompiledModel
    origins: Mapping[int, shared_tensors.Origin]
    separated: frozenset[int] = frozenset()
    unbound: frozenset[int] = frozenset()
    _space: WeightSpace
    _model: ov.Model | None = None
    _is_spoiled = False
    compilations = 0
    has_layers = is_unfused = computes_sizes = False

    def _begin(self, model: ov.Model) -> None:
        """Compile a model."""
        self._compile_whole(model)
        # many exported models compute sizes from constants alone, which OpenVINO has folded now
        self.computes_sizes = self.computes_sizes and (
            any(body.is_dynamic() for body in model_bodies.all_bodies(model)) or _is_dynamic(self.compiled)
        )
        self._model = model if self.computes_sizes else None
        self._empty: set[empty_tensors.Empty] = set()
        self._takes_nothing = False  # guarded for any set of zero dimensions
        self._is_behind = False  # `compiled` is older than `_model`

    def renew(self) -> None:
        """Compile a model with dynamic dimensions again; requests made before must not be used.

        After a failed or cancelled inference OpenVINO's compiled model (2026.4) may permanently refuse valid
        shapes, or return results with the shapes of that inference, even in new requests. If compilation
        fails now, `mend` repeats it.
        """
        self._is_spoiled = self._model is not None
        with contextlib.suppress(RuntimeError, MemoryError):
            self.mend()

    def mend(self) -> None:
        """Retry a compilation that failed in `renew`. Raises `RuntimeError` or `MemoryError`."""
        if self._is_spoiled and self._model is not None:
            self._compile(self._model)
            self._is_spoiled = False

    def expect_empty(self, empty: empty_tensors.Empty) -> None:
        """Recompile the model if inputs with these dimensions at 0 require it.

        As after `renew`, earlier requests must not be used if `compilations` has changed.
        """
        if self._model is None or self._takes_nothing or empty in self._empty:
            return
        # a client may try all 2**n sets of dimensions
        is_last = len(self._empty) >= _MOST_EMPTY
        # a failed attempt may have guarded operations without compiling them
        was_behind, self._is_behind = self._is_behind, True
        if empty_tensors.guard(self._model, None if is_last else empty) or was_behind:
            self._compile_whole(self._model)
        self._is_behind = False
        self._empty.add(empty)
        self._takes_nothing = is_last

    def _compile(self, model: ov.Model) -> None:
        properties = properties_of(self.meta)
        if trace.active is not None and trace.active.layers:
            properties["PERF_COUNT"] = "YES"
        self.has_layers = properties.get("PERF_COUNT") == "YES"
        with memory_limit.lifted(), weight_pages.releasing(self._space):
            try:
                compiled = core().compile_model(model, "CPU", properties)
            except RuntimeError:
                if properties["NUM_STREAMS"] == "1":
                    raise
                properties["NUM_STREAMS"] = "1"  # with several, some models fail that run with one
                compiled = core().compile_model(model, "CPU", properties)
            self.compiled, used = remedies.recompiled(core(), model, compiled, properties)
        if quantised_subgraphs.UNFUSED.items() <= used.items():
            self.is_unfused = True
        self.compilations += 1

    def _compile_whole(self, model: ov.Model) -> None:
        """Compile it with all that depends on that."""
        self._compile(model)


def computes_sizes(model: ov.Model) -> bool:
    """Return whether a model has sizes that are not known before it is compiled."""
    return any(each.is_dynamic() for each in (model, *model_bodies.all_bodies(model)))


def _is_dynamic(compiled: ov.CompiledModel) -> bool:
    """Whether what OpenVINO executes has a tensor of a size that is not known.

    `Model.is_dynamic` (2026.4) fails for an input that nothing reads: it has no outputs there.
    """
    operations = compiled.get_runtime_model().get_ops()
    return any(port.partial_shape.is_dynamic for operation in operations for port in operation.outputs())


def other_shapes(meta: GraphMeta, compiled: ov.CompiledModel) -> Iterator[int]:
    """Yield the positions of static outputs whose port has another shape, or an open one."""
    variables = meta.dynamic_states
    outputs = [
        argument
        for index, argument in enumerate(meta.arguments)
        if not argument.input and argument.shape_of < 0 and index not in variables
    ]
    for position, (argument, port) in enumerate(zip(outputs, compiled.outputs, strict=True)):
        if not argument.is_dynamic and port.partial_shape != ov.PartialShape(list(argument.shape)):
            yield position

"""Refuse states that do not fit the attention fused with them, before OpenVINO computes it.

OpenVINO's CPU runtime (2026.4) fuses ScaledDotProductAttention with its variables for keys and values, their
Gather and their Concat. The fused operation takes most shapes from one of its inputs and uses them for the
others, so that shapes which Gather and Concat would refuse make it read out of bounds. Here their rules are
applied first, to the shapes that OpenVINO's own shape inference returns for the inputs of an inference.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import openvino as ov
from openvino import opset13

from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.emulator.openvino.fused_states import attention as fused_attention
from softnpu.emulator.openvino.fused_states.attention import OPEN, Cache, Pair, Shape, dimensions

Shapes = Mapping[str, Shape]
"""Shapes by variable; empty for a variable that starts from its initial value."""

_KNOWN = 64


class _Inferred(NamedTuple):
    """Shapes of the part appended to a variable and of its initial value; samples chosen by Gather."""

    new: Shape
    begin: Shape
    samples: int


_Result = dict[str, _Inferred]


class FusedStates:
    """The pairs of variables that a compiled model has fused with attention, and the shapes that fit them."""

    def __init__(self, model: ov.Model, compiled: ov.CompiledModel, name: str) -> None:
        self._subject = f"graph '{name}'"
        attentions = list(fused_attention.fused(compiled, self._subject))
        self._lock = threading.Lock()
        self._known: dict[tuple[frozenset[str], tuple[int, ...]], _Result] = {}
        self._needed: list[tuple[int, int]] = []
        self._pairs = self._prepare(model, attentions) if attentions else []

    def _prepare(self, model: ov.Model, attentions: Sequence[tuple[str, str, str]]) -> list[Pair]:
        shaped = model.clone()
        pairs = fused_attention.pairs(shaped, attentions, self._subject)
        # a variable is a parameter: inference then depends on its current shape
        self._parameters = list(shaped.get_parameters())
        self._positions: dict[str, int] = {}
        self._begins: dict[str, Any] = {}
        for reader in shaped.get_ordered_ops():
            if reader.get_type_name() != "ReadValue":
                continue
            variable = reader.get_variable_id()
            self._positions[variable] = len(self._parameters)
            if reader.get_input_size():
                self._begins[variable] = reader.input_value(0)
            output = reader.output(0)
            parameter = ov.op.Parameter(output.element_type, output.partial_shape)
            for target in output.get_target_inputs():
                target.replace_source_output(parameter.output(0))
            self._parameters.append(parameter)
        caches = [cache for pair in pairs for cache in (pair.keys, pair.values)]
        outputs = [each for cache in caches for each in (cache.chosen, cache.new)]
        joined = [cache.joined for cache in caches]
        results = [opset13.result(each) for each in (*outputs, *joined, *self._begins.values())]
        # copies, as the shape of a parameter changes
        self._declared = [tuple(dimensions(parameter.partial_shape)) for parameter in self._parameters]
        self._model = ov.Model(results, self._parameters, "shapes")
        return pairs

    # ------------------------------------------------------------ one inference

    def check(self, inputs: Mapping[int, Shape], states: Shapes) -> None:
        """Refuse with `ERROR_INVALID_ARGUMENT` states that do not match each other or the inputs.

        `inputs`: the shapes of the inputs with dynamic dimensions, by position.
        """
        if not self._pairs:
            return
        for pair in self._pairs:
            self._check_pair(pair, states[pair.keys.variable], states[pair.values.variable])
        inferred = self._infer(inputs, states)
        for pair in self._pairs:
            caches = []
            for cache in (pair.keys, pair.values):
                given = states[cache.variable]
                known = inferred[cache.variable]
                self._check_cache(cache, given or known.begin, known, begins=not given)
                caches.append((given or known.begin, known.new))
            (keys, new_keys), (values, new_values) = caches
            # initial values are known only now
            self._check_pair(pair, keys, values)
            if not _agree(new_keys, new_values, pair.one_shape):
                raise self._refused(
                    pair.keys.variable,
                    f"new keys {list(new_keys)} and new values {list(new_values)} for '"
                    f"{pair.values.variable}'",
                    "new keys and values whose shapes agree",
                )

    def _check_pair(self, pair: Pair, keys: Shape, values: Shape) -> None:
        if bool(keys) == bool(values) and _agree(keys, values, pair.one_shape):
            return
        raise self._refused(
            pair.keys.variable,
            f"{_text(keys)}, and {_text(values)} for variable '{pair.values.variable}'",
            f"both with the initial value, or shapes that agree: '{pair.attention}' uses them together",
            hint="set, or reset, both states together",
        )

    def _check_cache(self, cache: Cache, shape: Shape, known: _Inferred, *, begins: bool) -> None:
        for axis, (dim, new) in enumerate(zip(shape, known.new, strict=True)):
            if axis not in (cache.length, cache.batch) and dim != new:
                raise self._refused(
                    cache.variable,
                    _text(shape),
                    f"a shape that fits what is appended, {list(known.new)} along axis {cache.length}",
                )
        samples = known.new[cache.batch]
        if known.samples != samples:
            raise self._refused(
                cache.variable,
                f"{known.samples} beams for {samples} samples that are appended",
                "as many beams as samples",
            )
        if begins and shape[cache.length] and shape[cache.batch] != samples:
            raise self._refused(
                cache.variable,
                f"an initial value of shape {list(shape)} for {samples} samples",
                "an initial value with as many samples as the inputs",
            )

    # ------------------------------------------------------------ shape inference

    def _infer(self, inputs: Mapping[int, Shape], states: Shapes) -> _Result:
        """Infer with the shapes of an inference, or return the cached result for the dimensions in use."""
        given: dict[int, Shape] = dict(inputs)
        given |= {self._positions[name]: shape for name, shape in states.items() if shape}
        begins = frozenset(name for name, shape in states.items() if not shape)
        with self._lock:
            key = (begins, self._needed_of(given))
            if key in self._known:
                return self._known[key]
            try:
                shapes = self._first_inferred(given, begins)
            except RuntimeError as error:
                raise refuse(
                    ZeResult.ERROR_INVALID_ARGUMENT,
                    self._subject,
                    found=openvino_errors.reason(error),
                    expected="inputs and states whose shapes fit each other",
                ) from error
            if shapes is None:
                raise refuse(
                    ZeResult.ERROR_UNSUPPORTED_FEATURE,
                    self._subject,
                    found="keys and values whose shapes do not follow from those of the inputs",
                    expected="shapes that can be checked beforehand, as OpenVINO does not check them",
                )
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[begins, self._needed_of(given)] = shapes
            return shapes

    def _needed_of(self, given: Mapping[int, Shape]) -> tuple[int, ...]:
        # -1: a variable that starts
        return tuple(given[at][axis] if at in given else -1 for at, axis in self._needed)

    def _first_inferred(self, given: Mapping[int, Shape], begins: frozenset[str]) -> _Result | None:
        """Infer with the dimensions that mattered so far; if they do not suffice, find those that do."""
        opened = [list(declared) for declared in self._declared]
        for at, axis in self._needed:
            if at in given:
                opened[at][axis] = given[at][axis]
        shapes = self._results(self._infer_begins(opened, begins), begins)
        if shapes is not None:
            return shapes
        full = [list(given.get(at, declared)) for at, declared in enumerate(self._declared)]
        full = self._infer_begins(full, begins)
        shapes = self._results(full, begins)
        if shapes is not None:
            needed = self._find_needed(full, begins, shapes)
            self._needed += [each for each in needed if each not in self._needed]
            self._known.clear()
        return shapes

    def _infer_begins(self, dims: list[list[int]], begins: frozenset[str]) -> list[list[int]]:
        """Return `dims` of all parameters, with inferred ones for variables that start."""
        waiting = begins & self._begins.keys()
        while waiting:
            self._validate(dims)
            ready = {name: _static(self._begins[name]) for name in waiting}
            known = {name: shape for name, shape in ready.items() if shape is not None}
            if not known:
                break
            for name, shape in known.items():
                dims[self._positions[name]] = list(shape)
            waiting -= known.keys()
        return dims

    def _validate(self, dims: Sequence[Sequence[int]]) -> None:
        for parameter, each in zip(self._parameters, dims, strict=True):
            parameter.set_partial_shape(ov.PartialShape(list(each)))
        self._model.validate_nodes_and_infer_types()

    def _results(self, dims: Sequence[Sequence[int]], begins: frozenset[str]) -> _Result | None:
        """Return the inferred shapes; None if one stays open."""
        self._validate(dims)
        shapes = {}
        for cache in (each for pair in self._pairs for each in (pair.keys, pair.values)):
            new = _static(cache.new)
            samples = cache.chosen.partial_shape[cache.batch]
            begin: Shape | None = ()
            if cache.variable in begins:
                zeros = tuple(max(0, dim) for dim in cache.declared)
                begin = zeros if cache.begin is None else _static(cache.begin)
            if new is None or begin is None or samples.is_dynamic:
                return None
            shapes[cache.variable] = _Inferred(new, begin, samples.get_length())
        return shapes

    def _find_needed(
        self, full: Sequence[Sequence[int]], begins: frozenset[str], shapes: _Result
    ) -> list[tuple[int, int]]:
        """Return the dimensions that `shapes` depend on: with all others open the shapes are the same."""
        opened = [list(dims) for dims in full]
        needed: list[tuple[int, int]] = []

        def open_all(some: Sequence[tuple[int, int]]) -> None:
            # bisect: most dimensions of a large model do not matter
            for at, axis in some:
                opened[at][axis] = OPEN
            if not some or self._results(opened, begins) == shapes:
                return
            for at, axis in some:
                opened[at][axis] = full[at][axis]
            if len(some) == 1:
                needed.extend(some)
                return
            open_all(some[: len(some) // 2])
            open_all(some[len(some) // 2 :])

        open_all(
            [
                (at, axis)
                for at, declared in enumerate(self._declared)
                for axis, dim in enumerate(declared)
                if dim == OPEN
            ]
        )
        return needed

    # ------------------------------------------------------------ errors

    def _refused(self, variable: str, found: str, expected: str, hint: str = "") -> Refused:
        subject = f"{self._subject}, variable '{variable}'"
        return refuse(ZeResult.ERROR_INVALID_ARGUMENT, subject, found=found, expected=expected, hint=hint)


def _static(output: Any) -> Shape | None:
    shape = output.partial_shape
    return tuple(dimensions(shape)) if shape.is_static else None


def _agree(keys: Shape, values: Shape, one_shape: bool) -> bool:
    """Whether keys and values have the same shape; the last dimension may differ unless `one_shape`."""
    if one_shape:
        return keys == values
    return keys[:-1] == values[:-1]


def _text(shape: Shape) -> str:
    return f"shape {list(shape)}" if shape else "the initial value"

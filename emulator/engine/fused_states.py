"""Refuses states that do not fit an attention which OpenVINO has fused with them, before it computes.

OpenVINO's CPU runtime (2026.4) fuses ScaledDotProductAttention with its variables for keys and values, their
Gather and their Concat. The fused operation takes most shapes from one of its inputs and uses them for the
others, so what Gather and Concat would refuse makes it read other memory of the process. Here their rules
are applied first, to the shapes that OpenVINO's own shape inference gives for the inputs of an inference.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import openvino as ov
from openvino import opset13

from softnpu.emulator.common import openvino_errors
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
"""By variable; an empty one is that of a variable that begins with its initial value."""

_ATTENTION = "ScaledDotProductAttention"
_CONVERSIONS = {"Convert", "Reorder"}
_BEFORE_ATTENTION = {"Convert", "Reshape", "Unsqueeze", "Multiply", "Broadcast"}
_FUSED_INPUTS = 6  # query, key, value, beams and two variables; more with a mask and a scale
_KNOWN = 64
_OPEN = -1


class _Cache(NamedTuple):
    """A variable of keys or of values, by the operations around it in the model whose shapes are inferred."""

    variable: str
    begin: Any  # the output with the initial value; None for zeros
    chosen: Any  # what Gather gives
    new: Any  # what is appended
    joined: Any  # both
    length: int  # the axis that grows
    batch: int
    declared: ov.PartialShape


class _Pair(NamedTuple):
    """Keys and values of one attention. `one_shape`: they may not even differ in the last dimension."""

    attention: str
    keys: _Cache
    values: _Cache
    one_shape: bool


class _Inferred(NamedTuple):
    """Shapes of what is appended to a variable, of its initial value, and how many samples Gather chooses."""

    new: Shape
    begin: Shape
    samples: int


_Result = dict[str, _Inferred]


class FusedStates:
    """The pairs of variables that a compiled model has fused with attention, and the shapes that fit them."""

    def __init__(self, model: ov.Model, compiled: ov.CompiledModel, name: str) -> None:
        self._subject = f"graph '{name}'"
        fused = list(_fused(compiled, self._subject))
        self._lock = threading.Lock()
        self._known: dict[tuple[frozenset[str], tuple[int, ...]], _Result] = {}
        self._needed: list[tuple[int, int]] = []
        self._pairs = self._prepare(model, fused) if fused else []

    def _prepare(self, model: ov.Model, fused: Sequence[tuple[str, str, str]]) -> list[_Pair]:
        shaped = model.clone()
        readers: dict[str, list[Any]] = {}
        assigns: dict[str, Any] = {}
        for operation in shaped.get_ordered_ops():
            if operation.get_type_name() == "ReadValue":
                readers.setdefault(operation.friendly_name, []).append(operation)
            elif operation.get_type_name() == "Assign":
                assigns[operation.get_variable_id()] = operation
        pairs = []
        for attention, *names in fused:
            caches = [self._cache(attention, readers.get(name, []), assigns) for name in names]
            keys, values = caches
            if (keys.length, keys.batch) != (values.length, values.batch):
                raise self._unknown(attention, "keys and values along different axes")
            # the last axis is that of the features, and the memory for values is measured by that for keys
            one_shape = any(_is_transposed(cache.joined) or cache.declared[-1].is_dynamic for cache in caches)
            pairs.append(_Pair(attention, keys, values, one_shape))
        # a variable is a parameter: what is inferred then depends on its value of this inference
        self._parameters = list(shaped.get_parameters())
        self._positions: dict[str, int] = {}
        self._begins: dict[str, Any] = {}
        for reader in (each for named in readers.values() for each in named):
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
        self._declared = [parameter.partial_shape for parameter in self._parameters]
        self._model = ov.Model(results, self._parameters, "shapes")
        return pairs

    def _cache(self, attention: str, readers: Sequence[Any], assigns: Mapping[str, Any]) -> _Cache:
        if len(readers) != 1:
            raise self._unknown(attention, f"{len(readers)} ReadValue of one name")
        reader = readers[0]
        variable = reader.get_variable_id()
        joined = _before_conversions(assigns[variable].input_value(0)).node
        if joined.get_type_name() != "Concat" or joined.get_input_size() != 2:
            raise self._unknown(attention, f"a {joined.get_type_name()} before the Assign of '{variable}'")
        chosen = joined.input_value(0)
        gather = _before_conversions(chosen).node
        if gather.get_type_name() != "Gather":
            raise self._unknown(attention, f"a {gather.get_type_name()} after the ReadValue of '{variable}'")
        past = _before_conversions(gather.input_value(0)).node
        axis = gather.input_value(2).node
        if past.friendly_name != reader.friendly_name or axis.get_type_name() != "Constant":
            raise self._unknown(attention, f"another Gather than of '{variable}'")
        declared = reader.output(0).partial_shape
        rank = len(declared)
        begin = reader.input_value(0) if reader.get_input_size() else None
        length = int(joined.get_attributes()["axis"]) % rank
        batch = int(axis.get_data().reshape(-1)[0]) % rank
        return _Cache(
            variable, begin, chosen, joined.input_value(1), joined.output(0), length, batch, declared
        )

    # ------------------------------------------------------------ one inference

    def check(self, inputs: Mapping[int, Shape], states: Shapes) -> None:
        """Refuse with `ERROR_INVALID_ARGUMENT` states that do not fit each other, or the inputs.

        `inputs`: the shapes of the inputs with dynamic dimensions, by position.
        """
        if not self._pairs:
            return
        for pair in self._pairs:
            self._check_pair(pair, states[pair.keys.variable], states[pair.values.variable])
        inferred = self._infer(inputs, states)
        for pair in self._pairs:
            found = []
            for cache in (pair.keys, pair.values):
                given = states[cache.variable]
                known = inferred[cache.variable]
                self._check_cache(cache, given or known.begin, known, begins=not given)
                found.append((given or known.begin, known.new))
            (keys, new_keys), (values, new_values) = found
            # initial values are known only now
            self._check_pair(pair, keys, values)
            if not _agree(new_keys, new_values, pair.one_shape):
                raise self._refused(
                    pair.keys.variable,
                    f"new keys {list(new_keys)} and new values {list(new_values)} for '"
                    f"{pair.values.variable}'",
                    "new keys and values whose shapes agree",
                )

    def _check_pair(self, pair: _Pair, keys: Shape, values: Shape) -> None:
        if bool(keys) == bool(values) and _agree(keys, values, pair.one_shape):
            return
        raise self._refused(
            pair.keys.variable,
            f"{_text(keys)}, and {_text(values)} for variable '{pair.values.variable}'",
            f"both with the initial value, or shapes that agree: '{pair.attention}' uses them together",
            hint="set, or reset, both states together",
        )

    def _check_cache(self, cache: _Cache, shape: Shape, known: _Inferred, *, begins: bool) -> None:
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
        """Infer with the shapes of an inference, or return what is known for all dimensions that matter."""
        given: dict[int, Shape] = dict(inputs)
        given |= {self._positions[name]: shape for name, shape in states.items() if shape}
        begins = frozenset(name for name, shape in states.items() if not shape)
        with self._lock:
            key = (begins, self._needed_of(given))
            if key in self._known:
                return self._known[key]
            try:
                found = self._first_inferred(given, begins)
            except RuntimeError as error:
                raise refuse(
                    ZeResult.ERROR_INVALID_ARGUMENT,
                    self._subject,
                    found=openvino_errors.reason(error),
                    expected="inputs and states whose shapes fit each other",
                ) from error
            if found is None:
                raise refuse(
                    ZeResult.ERROR_UNSUPPORTED_FEATURE,
                    self._subject,
                    found="keys and values whose shapes do not follow from those of the inputs",
                    expected="shapes that can be checked beforehand, as OpenVINO does not check them",
                )
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[begins, self._needed_of(given)] = found
            return found

    def _needed_of(self, given: Mapping[int, Shape]) -> tuple[int, ...]:
        # -1: a variable that begins
        return tuple(given[at][axis] if at in given else -1 for at, axis in self._needed)

    def _first_inferred(self, given: Mapping[int, Shape], begins: frozenset[str]) -> _Result | None:
        """Infer with the dimensions that mattered so far; if they do not suffice find out which ones do."""
        opened = [_dimensions(declared) for declared in self._declared]
        for at, axis in self._needed:
            if at in given:
                opened[at][axis] = given[at][axis]
        found = self._results(self._begun(opened, begins), begins)
        if found is not None:
            return found
        full = [list(given.get(at, _dimensions(declared))) for at, declared in enumerate(self._declared)]
        full = self._begun(full, begins)
        found = self._results(full, begins)
        if found is not None:
            needed = self._find_needed(full, begins, found)
            self._needed += [each for each in needed if each not in self._needed]
            self._known.clear()
        return found

    def _begun(self, dims: list[list[int]], begins: frozenset[str]) -> list[list[int]]:
        """`dims` of all parameters, those of variables that begin as they are inferred."""
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
        """What is inferred; None if something of it stays open."""
        self._validate(dims)
        found = {}
        for cache in (each for pair in self._pairs for each in (pair.keys, pair.values)):
            new = _static(cache.new)
            samples = cache.chosen.partial_shape[cache.batch]
            begin: Shape | None = ()
            if cache.variable in begins:
                zeros = tuple(max(0, dim) for dim in _dimensions(cache.declared))
                begin = zeros if cache.begin is None else _static(cache.begin)
            if new is None or begin is None or samples.is_dynamic:
                return None
            found[cache.variable] = _Inferred(new, begin, samples.get_length())
        return found

    def _find_needed(
        self, full: Sequence[Sequence[int]], begins: frozenset[str], found: _Result
    ) -> list[tuple[int, int]]:
        """The dimensions that `found` depends on: it is the same while all others are open."""
        opened = [list(dims) for dims in full]
        needed = []
        for at, declared in enumerate(self._declared):
            for axis, dim in enumerate(declared):
                if dim.is_static:
                    continue
                before, opened[at][axis] = opened[at][axis], _OPEN
                if self._results(opened, begins) != found:
                    opened[at][axis] = before
                    needed.append((at, axis))
        return needed

    # ------------------------------------------------------------ errors

    def _refused(self, variable: str, found: str, expected: str, hint: str = "") -> Refused:
        subject = f"{self._subject}, variable '{variable}'"
        return refuse(ZeResult.ERROR_INVALID_ARGUMENT, subject, found=found, expected=expected, hint=hint)

    def _unknown(self, attention: str, found: str) -> Refused:
        return refuse(
            ZeResult.ERROR_UNSUPPORTED_FEATURE,
            f"{self._subject}, operation '{attention}'",
            found=f"fused with its variables, {found}",
            expected="for keys and values ReadValue, Gather, Concat and Assign, as OpenVINO checks no shapes",
        )


def _fused(compiled: ov.CompiledModel, subject: str) -> Iterator[tuple[str, str, str]]:
    """Names of the fused operations, each with those of the ReadValue of its keys and of its values."""
    for operation in compiled.get_runtime_model().get_ordered_ops():
        if _layer(operation) != _ATTENTION:
            continue
        last = []
        if operation.get_input_size() >= _FUSED_INPUTS:
            count = operation.get_input_size()
            last = [_before_conversions(operation.input_value(at)).node for at in (count - 2, count - 1)]
        are_variables = [_layer(node) == "MemoryInput" for node in last]
        if last and all(are_variables):
            yield operation.friendly_name, last[0].friendly_name, last[1].friendly_name
        elif any(are_variables) or _is_assigned(operation):
            raise refuse(
                ZeResult.ERROR_UNSUPPORTED_FEATURE,
                f"{subject}, operation '{operation.friendly_name}'",
                found="fused with variables in a way that is not known",
                expected="two variables, of keys and of values",
            )


def _layer(operation: Any) -> str:
    info = operation.rt_info
    return str(info["layerType"].astype(str)) if "layerType" in info else str(operation.get_type_name())


def _before_conversions(output: Any) -> Any:
    while _layer(output.node) in _CONVERSIONS:
        output = output.node.input_value(0)
    return output


def _is_assigned(operation: Any) -> bool:
    targets = [target for output in operation.outputs() for target in output.get_target_inputs()]
    return any(_layer(target.get_node()) == "MemoryOutput" for target in targets)


def _is_transposed(output: Any) -> bool:
    """Whether there is a Transpose between this output and its attention."""
    nodes = [target.get_node() for target in output.get_target_inputs()]
    return any(
        node.get_type_name() == "Transpose"
        or (node.get_type_name() in _BEFORE_ATTENTION and _is_transposed(node.output(0)))
        for node in nodes
    )


def _dimensions(shape: Any) -> list[int]:
    return [dim.get_length() if dim.is_static else _OPEN for dim in shape]


def _static(output: Any) -> Shape | None:
    shape = output.partial_shape
    return tuple(_dimensions(shape)) if shape.is_static else None


def _agree(keys: Shape, values: Shape, one_shape: bool) -> bool:
    """Whether keys and values have one shape, but for the last dimension unless `one_shape`."""
    if one_shape:
        return keys == values
    return keys[:-1] == values[:-1]


def _text(shape: Shape) -> str:
    return f"shape {list(shape)}" if shape else "the initial value"

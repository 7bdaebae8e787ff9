"""Rewrites a model so that OpenVINO's CPU runtime computes in f32 and rounds where the device does.

Runs before OpenVINO's own transformations: they still fuse the inside of a group, because roundings come only
behind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import openvino as ov

from softnpu.emulator.arithmetic import decompositions, divisors, groups, rounding
from softnpu.emulator.arithmetic import operation_types as types
from softnpu.emulator.arithmetic.groups import Name, Origin
from softnpu.emulator.arithmetic.settings import Arithmetic
from softnpu.emulator.common import packed_types
from softnpu.emulator.common.model_bodies import bodies_of

_FLOATS = frozenset({"f32", "f16", "f64"})
_OTHER_FLOATS = {"bf16": "f32"}
"""Types that the extension does not round. A conversion to one of them is what the model says, and stays."""
_EXACT = frozenset({"f16", "boolean", "i8", "u8", "i4", "u4"})
"""Types whose values are exact in f16 after a conversion to a float."""
_QUANTISED_INPUTS = frozenset(
    {*types.MULTIPLIERS, *types.MOVING, types.QUANTISED, "Add", "AvgPool", "Multiply"}
)


@dataclass(frozen=True)
class Rounding:
    """A rounding of a rewritten model: the layer before it, its type, the number of its counter."""

    layer: str
    kind: str
    counter: int


@dataclass
class Roundings:
    """All roundings of a model with its bodies. With `counted` each gets a counter, from `first` on."""

    counted: bool = False
    first: int = 0
    found: list[Rounding] = field(default_factory=list)

    def add(self, value: ov.Output, arithmetic: Arithmetic) -> ov.Output:
        layer = value.get_node()
        counter = self.first + len(self.found) if self.counted else -1
        name, index = layer.friendly_name, value.get_index()
        self.found.append(Rounding(name, layer.get_type_name(), counter))
        label = f"{name}/f16" if not index else f"{name}.{index}/f16"
        return rounding.operation(value, arithmetic.saturates, label, counter)


def rewrite(model: ov.Model, arithmetic: Arithmetic, counted: bool = False, first: int = 0) -> list[Rounding]:
    """Rewrite `model` in place for the arithmetic of the device; return its roundings.

    Refuses with `ERROR_UNSUPPORTED_FEATURE` if the extension is missing.
    """
    roundings = Roundings(counted, first)
    packed_types.widen(model, _OTHER_FLOATS)
    _rewrite(model, arithmetic, roundings, is_body=False)
    model.validate_nodes_and_infer_types()
    return roundings.found


def _rewrite(model: ov.Model, arithmetic: Arithmetic, roundings: Roundings, is_body: bool) -> None:
    for operation in model.get_ordered_ops():
        for body in bodies_of(operation):
            _rewrite(body, arithmetic, roundings, is_body=True)
    decompositions.decompose(model, arithmetic.kept)
    _Graph(model, arithmetic, roundings, is_body).rewrite()


class _Graph:
    """A model or a body during its rewriting."""

    def __init__(self, model: ov.Model, arithmetic: Arithmetic, roundings: Roundings, is_body: bool) -> None:
        self._operations = model.get_ordered_ops()
        self._arithmetic = arithmetic
        self._roundings = roundings
        self._is_body = is_body
        self._origin = groups.origins(model)
        self._in_f32 = groups.kept_in_f32(model, arithmetic.kept)
        self._inside: set[Name] = set()  # in a group, but not its last operation
        self._ends: set[Name] = set()  # of a group of several operations
        self._quantised: set[Name] = set()
        self._compressed: set[Name] = set()

    def rewrite(self) -> None:
        for operation in self._operations:
            self._note_group(operation)
        divided = divisors.to_clamp(self._operations, self._origin, self._in_f32)
        for operation in self._operations:
            name = operation.get_name()
            for output in operation.outputs():
                if output.get_element_type().get_type_name() not in _FLOATS or name in self._inside:
                    continue
                if self._origin[name] is Origin.DATA:
                    self._round(output)
                else:
                    self._round_known(output)
        for port in divided:
            divisors.clamp(port)

    def _note_group(self, operation: ov.Node) -> None:
        name, kind = operation.get_name(), operation.get_type_name()
        if self._origin[name] is not Origin.DATA:
            if _is_compressed(operation, self._compressed):
                self._compressed.add(name)
            return
        if kind == types.QUANTISED or (kind in types.MOVING and self._reads_quantised(operation)):
            self._quantised.add(name)
        if name in self._inside or kind in types.MOVING or kind in {"Parameter", "Result", types.QUANTISED}:
            return
        group = groups.chain(operation, self._origin, self._in_f32)
        self._inside |= {each.get_name() for each in group[:-1]}
        if len(group) > 1:
            self._ends.add(group[-1].get_name())

    def _reads_quantised(self, operation: ov.Node) -> bool:
        return any(port.get_node().get_name() in self._quantised for port in operation.input_values())

    def _round(self, output: ov.Output) -> None:
        """Round a data result for the operations that read it."""
        operation = output.get_node()
        name = operation.get_name()
        if name in self._quantised:
            readers = [each for each in self._readers(output) if _kind(each) not in _QUANTISED_INPUTS]
        elif self._is_exact(operation):
            return
        elif name in self._in_f32:
            ends = set() if self._is_body else {"Result"}
            readers = [each for each in self._readers(output) if _kind(each) not in ends]
        else:
            readers = self._readers(output)
        _redirect(readers, output, self._roundings, self._arithmetic)

    def _is_exact(self, operation: ov.Node) -> bool:
        """Return whether the results are f16 without rounding."""
        name, kind = operation.get_name(), operation.get_type_name()
        if name in self._in_f32 or name in self._ends:
            return False
        if kind == "Parameter":
            return self._is_body or operation.get_element_type().get_type_name() == "f16"
        if kind == "Gather":
            source = operation.input_value(0).get_node().get_name()  # a rounding is in no table
            return self._origin.get(source, Origin.DATA) is Origin.DATA
        if kind == "Convert":
            return operation.input_value(0).get_element_type().get_type_name() in _EXACT
        if kind in types.MOVING and operation.get_attributes().get("reduction", "none") != "none":
            return False
        return kind in types.MOVING or kind in types.FULL_PRECISION

    def _readers(self, output: ov.Output) -> list[ov.Input]:
        """Return the inputs to which a rounding of `output` applies.

        A layer in f32 reads f32 from inputs of the model, from integers and from other layers in f32; from
        the rest it reads their f16 values.
        """
        operation = output.get_node()
        name, from_parameter = operation.get_name(), operation.get_type_name() == "Parameter"
        in_full = from_parameter or name in self._quantised or name in self._in_f32
        in_f32 = self._in_f32 if in_full else set()
        return [
            each
            for each in output.get_target_inputs()
            if each.get_node().get_name() not in in_f32
            and _kind(each) != "ShapeOf"
            and not (from_parameter and _kind(each) == "Result")
        ]

    def _ends_body(self, reader: ov.Input) -> bool:
        return self._is_body and _kind(reader) == "Result"

    def _round_known(self, output: ov.Output) -> None:
        """Round a compiler-computed value where an operation on data reads it."""
        operation = output.get_node()
        readers = [
            each
            for each in output.get_target_inputs()
            if (self._origin[each.get_node().get_name()] is Origin.DATA or self._ends_body(each))
            and each.get_node().get_name() not in self._in_f32
            and not is_setting(each)
        ]
        if not readers or operation.get_name() in self._compressed:
            return
        if operation.get_type_name() != "Constant":
            # the compiler clamps constants, whatever an overflow gives later on
            _redirect(readers, output, Roundings(), Arithmetic())
            return
        constant = _rounded(operation)
        if constant is not operation:
            for reader in readers:
                reader.replace_source_output(constant.output(0))


def _redirect(
    readers: Iterable[ov.Input], output: ov.Output, roundings: Roundings, arithmetic: Arithmetic
) -> None:
    readers = list(readers)
    if readers:
        result = roundings.add(output, arithmetic)
        for reader in readers:
            reader.replace_source_output(result)


def _kind(reader: ov.Input) -> str:
    kind: str = reader.get_node().get_type_name()
    return kind


def is_setting(reader: ov.Input) -> bool:
    """Return whether an input keeps its constant: a setting, or a table whose selected rows are rounded."""
    kind, position = _kind(reader), reader.get_index()
    return position in types.FULL_PRECISION_INPUTS.get(kind, ()) or (kind == "Gather" and position == 0)


def _is_compressed(operation: ov.Node, compressed: set[Name]) -> bool:
    """Return whether constants are at most f16 in their file, or quantised: they are used unchanged.

    `compressed` are the earlier operations with such results.
    """
    kind = operation.get_type_name()
    if kind == "Constant":
        return bool(operation.get_element_type().get_type_name() == "f16")
    if kind == "Convert":
        source = operation.input_value(0).get_element_type()
        return bool(source.get_type_name() == "f16" or source.bitwidth <= 8)
    before = [port.get_node() for port in operation.input_values()]
    read = [each for each in before if each.get_type_name() != "Constant"]
    return kind == types.QUANTISED or any(each.get_name() in compressed for each in read)


def _rounded(constant: ov.op.Constant) -> ov.op.Constant:
    """Return a constant of the nearest f16, clamped as by the compiler; the same one if nothing changes."""
    if constant.get_element_type() == ov.Type.bf16:
        return constant  # 8 bits: exact in f16, within its range
    values = constant.data.astype(np.float32, copy=False)
    result = rounding.rounded(values, saturate=True)
    if np.array_equal(result, values, equal_nan=True):
        return constant
    made = ov.op.Constant(result.astype(constant.data.dtype, copy=False))
    made.set_friendly_name(constant.friendly_name)
    return made

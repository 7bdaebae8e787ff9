"""Models with own kernels: read them, and cut them at their kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import openvino as ov

from softnpu.emulator.blob import kernel_plan
from softnpu.emulator.blob.kernel_plan import KernelPlan, KernelRun, Part, Value
from softnpu.emulator.common.model_bodies import all_bodies
from softnpu.emulator.compiler import kernel_replacement
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.kernels import description, trust
from softnpu.emulator.kernels.process import check_installed
from softnpu.emulator.openvino.kernels import operations

_STRUCTURE = ("Parameter", "Constant", "Result")
_NEVER_FREE = ("RandomUniform", "Multinomial", "Result")
_Type = tuple[str, str]
_Source = tuple[str, int]
"""An output of an operation: its unique name, and which."""


class Kernels(NamedTuple):
    """The kernels that came with a model, by the type of their operations."""

    modules: tuple[bytes, ...]
    loaded: Mapping[_Type, tuple[int, Any]]

    @classmethod
    def register(cls, core: ov.Core, modules: Sequence[bytes], policy: str, subject: str) -> Kernels:
        """Teach OpenVINO the operations of these modules. Raises `KernelError`; refuses by `trust`."""
        trust.check(policy, subject, modules)
        if not all(map(description.is_function, modules)):
            check_installed()
        loaded: dict[_Type, tuple[int, Any]] = {}
        for number, content in enumerate(modules):
            module = operations.load(content)
            key = module.description.name, module.description.domain
            if key in loaded:
                raise refuse(
                    ZeResult.ERROR_INVALID_ARGUMENT,
                    f"kernel {module.description.full_name}",
                    found="two modules of this name",
                    expected="one",
                )
            loaded[key] = number, module
            core.add_extension(operations.operation(module))
        return cls(tuple(modules), loaded)

    def of(self, node: ov.Node) -> tuple[int, Any] | None:
        """Return number and module of an operation's kernel; None for one of OpenVINO's."""
        if not self.loaded:
            return None
        info = node.get_type_info()
        return self.loaded.get((info.name, str(info.version_id)))

    def replace(self, model: ov.Model, wanted: Mapping[str, str], subject: str) -> None:
        """Let kernels compute standard operations, those of `wanted`, by type; refuse what does not fit."""
        if wanted:
            modules = {module.description.full_name: module for _, module in self.loaded.values()}
            kernel_replacement.replace(model, wanted, modules, subject)

    def names(self, model: ov.Model) -> set[str]:
        """Return the friendly names of kernels' operations, and of inputs, constants and results beside them.

        OpenVINO's CPU runtime leaves these out of what it supports.
        """
        found = set()
        for node in model.get_ordered_ops():
            if self.of(node):
                beside = [each.get_node() for each in node.input_values()]
                beside += [
                    each.get_node() for output in node.outputs() for each in output.get_target_inputs()
                ]
                found |= {each.friendly_name for each in beside if each.get_type_name() in _STRUCTURE}
                found.add(node.friendly_name)
        return found

    def cut(self, model: ov.Model, subject: str) -> KernelPlan | None:
        """Cut a model at its kernels, and return the plan of its parts; None if it has none.

        Refuses with `ERROR_UNSUPPORTED_FEATURE` kernels in bodies, and tensors without bounds at the cuts.
        """
        return _cut(model, self, subject)


def _cut(model: ov.Model, kernels: Kernels, subject: str) -> KernelPlan | None:
    nodes = model.get_ordered_ops() if kernels.loaded else []
    if not any(kernels.of(node) for node in nodes):
        return None
    for body in all_bodies(model):
        for node in body.get_ordered_ops():
            if kernels.of(node):
                raise _unsupported(subject, node, "a kernel in the body of another operation", "one outside")
    if model.get_sinks():
        sink = model.get_sinks()[0]
        raise _unsupported(subject, sink, "a state with a changing shape beside kernels", "static states")
    _replace_shapes(nodes)
    plan = _Cut(model, model.get_ordered_ops(), kernels, subject).plan()
    if not kernel_plan.has_room(plan.values):
        found = f"tensors at kernels of more than {kernel_plan.MOST_ELEMENTS} elements together"
        raise refuse(ZeResult.ERROR_UNSUPPORTED_FEATURE, subject, found=found, expected="smaller ones")
    return plan


def _unsupported(subject: str, node: ov.Node, found: str, expected: str, hint: str = "") -> Refused:
    return refuse(
        ZeResult.ERROR_UNSUPPORTED_FEATURE,
        f"{subject}, operation '{node.friendly_name}'",
        found=found,
        expected=expected,
        hint=hint,
    )


def _value(output: ov.Output, subject: str) -> Value:
    """Return a tensor at a cut; refuse one without bounds."""
    kind, shape = output.get_element_type().get_type_name(), output.get_partial_shape()
    if shape.is_static:
        return Value(kind, tuple(shape.to_shape()))
    if shape.rank.is_dynamic or any(each.get_max_length() < 0 for each in shape):
        raise _unsupported(
            subject,
            output.get_node(),
            f"shape {shape} of a tensor that a kernel reads or gives, or that later parts read",
            "a bound for every dimension",
            "give the inputs bounds, as in compile_model(..., shapes={'x': ['1..8', 64]})",
        )
    highs = tuple(each.get_max_length() for each in shape)
    lows = tuple(each.get_min_length() for each in shape)
    return Value(kind, highs, lows)


def _replace_shapes(nodes: Sequence[ov.Node]) -> None:
    """Replace questions for shapes by answers: a part need not compute a tensor to know its shape."""
    for node in nodes:
        if node.get_type_name() == "ShapeOf" and node.get_input_partial_shape(0).is_static:
            shape = np.array(node.input_value(0).get_shape(), np.int64)
            answer = ov.op.Constant(node.get_output_element_type(0), ov.Shape([len(shape)]), shape)
            answer.set_friendly_name(node.friendly_name)
            ov.utils.replace_node(node, answer)


class _Cut:
    """The cut of one model. Level of an operation: the number of kernels before it on the longest way."""

    def __init__(self, model: ov.Model, nodes: Sequence[ov.Node], kernels: Kernels, subject: str) -> None:
        self._model, self._nodes, self._kernels, self._subject = model, nodes, kernels, subject
        self._levels: dict[str, int] = {}
        for node in nodes:
            self._levels[node.get_name()] = max((self._after(each) for each in _sources(node)), default=0)
        self._free = _free(nodes, kernels)
        self._values: dict[_Source, int] = {}
        self._records: list[Value] = []

    def plan(self) -> KernelPlan:
        """Cut it."""
        results, parameters = [*self._model.get_results()], [*self._model.get_parameters()]
        runs = [
            (self._levels[node.get_name()], self._run(node)) for node in self._nodes if self._is_kernel(node)
        ]
        of_result = {node.get_name(): self._levels[node.get_name()] for node in results}
        crossing = list(self._crossing())  # before anything is connected anew
        new_results = self._new_results(crossing)
        new_parameters = self._new_parameters(crossing)
        self._model.add_results([each for each, _, _ in new_results])
        self._model.add_parameters([each for each, _ in new_parameters])
        self._model.validate_nodes_and_infer_types()
        results += [each for each, _, _ in new_results]
        of_result |= {each.get_name(): level for each, _, level in new_results}
        parameters += [each for each, _ in new_parameters]
        steps: list[Part | KernelRun] = []
        for level in range(max(of_result.values()) + 1):
            outputs = tuple(at for at, each in enumerate(results) if of_result[each.get_name()] == level)
            if outputs:
                needed = _needed([results[at] for at in outputs])
                inputs = tuple(at for at, each in enumerate(parameters) if each.get_name() in needed)
                steps.append(Part(inputs=inputs, outputs=outputs))
            steps += [run for at, run in runs if at == level]
        steps += [run for at, run in runs if at > max(of_result.values())]
        return KernelPlan(
            modules=self._kernels.modules,
            values=tuple(self._records),
            parameters=tuple(number for _, number in new_parameters),
            results=tuple(number for _, number, _ in new_results),
            steps=tuple(steps),
        )

    def _is_kernel(self, node: ov.Node) -> bool:
        return self._kernels.of(node) is not None

    def _after(self, output: ov.Output) -> int:
        """Return the level from which on an output is there."""
        node = output.get_node()
        return self._levels[node.get_name()] + self._is_kernel(node)

    def _value(self, output: ov.Output) -> int:
        source = output.get_node().get_name(), output.get_index()
        if source not in self._values:
            self._values[source] = len(self._records)
            self._records.append(_value(output, self._subject))
        return self._values[source]

    def _run(self, node: Any) -> KernelRun:
        found = self._kernels.of(node)
        assert found is not None
        number, module = found
        return KernelRun(
            kernel=number,
            name=node.friendly_name,
            inputs=tuple(self._value(each) for each in _sources(node)),
            outputs=tuple(self._value(each) for each in node.outputs()),
            attributes=operations.given(module.description, node.get_attributes()),
        )

    def _crossing(self) -> Iterator[ov.Output]:
        """Yield the outputs of OpenVINO's operations that a later part reads, each once."""
        seen = set()
        for node in self._nodes:
            if self._is_kernel(node):
                continue
            for output in _sources(node):
                source = output.get_node()
                key = source.get_name(), output.get_index()
                is_early = self._levels[source.get_name()] < self._levels[node.get_name()]
                if self._is_kernel(source):
                    continue
                if is_early and source.get_name() not in self._free and key not in seen:
                    seen.add(key)
                    yield output

    def _new_results(self, crossing: Sequence[ov.Output]) -> list[tuple[Any, int, int]]:
        """Return a result for each value that OpenVINO computes, with its number and level."""
        made = []
        outputs = [*crossing]
        known = {(each.get_node().get_name(), each.get_index()) for each in crossing}
        for node in self._nodes:
            for output in _sources(node) if self._is_kernel(node) else ():
                key = output.get_node().get_name(), output.get_index()
                if key not in known and not self._is_kernel(output.get_node()):
                    known.add(key)
                    outputs.append(output)
        for output in outputs:
            result = ov.op.Result(output)
            number = self._value(output)
            result.set_friendly_name(f"softnpu_value_{number}")
            made.append((result, number, self._levels[output.get_node().get_name()]))
        return made

    def _new_parameters(self, crossing: Sequence[ov.Output]) -> list[tuple[Any, int]]:
        """Return an input for each value that OpenVINO reads, with its number; its readers read it."""
        made = []
        kernels = [each for node in self._nodes if self._is_kernel(node) for each in node.outputs()]
        for output in [*kernels, *crossing]:
            source = output.get_node()
            first = self._after(output)
            readers = [
                each
                for each in output.get_target_inputs()
                if (name := each.get_node().get_name()) in self._levels
                and not self._is_kernel(each.get_node())
                and (self._is_kernel(source) or self._levels[name] > first)
            ]
            if not readers:
                continue
            number = self._value(output)
            parameter = ov.op.Parameter(output.get_element_type(), output.get_partial_shape())
            parameter.set_friendly_name(f"softnpu_value_{number}_read")
            for each in readers:
                each.replace_source_output(parameter.output(0))
            made.append((parameter, number))
        return made


def _sources(node: ov.Node) -> list[ov.Output]:
    return list(node.input_values())


def _free(nodes: Sequence[ov.Node], kernels: Kernels) -> set[str]:
    """Return the operations that every part may have itself: inputs, and what is computed of constants.

    Also what is computed of the shapes of inputs: through a tensor bounds of later shapes would be lost.
    """
    constant: set[str] = set()
    for node in nodes:
        kind = node.get_type_name()
        if kind == "ShapeOf" and node.input_value(0).get_node().get_type_name() == "Parameter":
            constant.add(node.get_name())
        computed = node.get_input_size() and kind not in _NEVER_FREE and not kernels.of(node)
        if kind == "Constant" or (
            computed and all(each.get_node().get_name() in constant for each in node.input_values())
        ):
            constant.add(node.get_name())
    return constant | {node.get_name() for node in nodes if node.get_type_name() == "Parameter"}


def _needed(results: Sequence[ov.Node]) -> set[str]:
    """Return the names of all operations before these results."""
    found: set[str] = set()
    waiting = list(results)
    while waiting:
        node = waiting.pop()
        if node.get_name() not in found:
            found.add(node.get_name())
            waiting += [each.get_node() for each in node.input_values()]
    return found

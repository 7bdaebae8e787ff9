"""Support of shapes by the stack: of inputs, outputs and states, and between the operations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from softnpu.emulator.prediction.graph import DYNAMIC, Graph, Operation, Tensor
from softnpu.emulator.prediction.support.findings import Finding
from softnpu.emulator.prediction.support.rules import (
    MAX_ARGUMENT_NAME,
    MAX_ARGUMENT_RANK,
    MAX_DIMENSION,
    RULES,
)

_STATES = ("ReadValue", "Assign")
_LISTED = 3
_OPTIONS = 6


def check(graph: Graph) -> tuple[Finding, ...]:
    """Return the findings on a model's shapes; those of its bodies follow from these."""
    return (*_dynamic(graph), *_states(graph), *_ranks(graph), *_arguments(graph))


def is_unbounded(tensor: Tensor) -> bool:
    """Return whether a dimension has no upper bound."""
    if tensor.shape is None:
        return False
    upper = tensor.upper or tensor.shape
    return any(size == DYNAMIC and bound == DYNAMIC for size, bound in zip(tensor.shape, upper, strict=True))


def text(tensor: Tensor) -> str:
    """Return a shape as OpenVINO writes it: `[1,3,..640,?]`."""
    if tensor.shape is None:
        return "[...]"
    upper = tensor.upper or tensor.shape
    sizes = (
        str(size) if size != DYNAMIC else "?" if bound == DYNAMIC else f"..{bound}"
        for size, bound in zip(tensor.shape, upper, strict=True)
    )
    return f"[{','.join(sizes)}]"


def _dynamic(graph: Graph) -> Iterator[Finding]:
    without_rank = [each for each in graph if any(tensor.shape is None for tensor in each.outputs)]
    if without_rank:
        inputs = [each for each in without_rank if each.type == "Parameter"]
        yield RULES["shape.rank-open"].finding(
            f"open rank of {_named(graph, inputs or without_rank)}", _names(without_rank)
        )
    open_inputs = [each for each in graph.inputs if is_unbounded(each.outputs[0])]
    bounded = [
        each
        for each in graph.inputs
        if not each.outputs[0].static and each.outputs[0].shape is not None and each not in open_inputs
    ]
    if open_inputs and _only_batch_is_open(graph):
        finding = RULES["shape.batch"].finding(
            f"open batch of {_named(graph, open_inputs)}", _names(open_inputs)
        )
        yield replace(finding, hint=f"{_static(graph, open_inputs)}; {finding.hint}")
    elif open_inputs:
        concerned = [
            each for each in graph if any(map(is_unbounded, (*each.outputs, *graph.input_tensors(each))))
        ]
        finding = RULES["shape.unbounded"].finding(
            f"open dimensions of {_named(graph, open_inputs)}", _names(concerned)
        )
        yield replace(finding, hint=_static(graph, open_inputs))
    if bounded:
        finding = RULES["shape.bounded"].finding(
            f"bounded dimensions of {_named(graph, bounded)}", _names(bounded)
        )
        yield replace(finding, hint=f"{_static(graph, bounded)}; {finding.hint}")
    if not (without_rank or open_inputs or bounded or any(graph.of_type(*_STATES))):
        inferred = [each for each in graph.dynamic if each.type != "Result"]
        if inferred:
            yield RULES["shape.inferred"].finding(
                f"open dimensions of {_named(graph, inferred)}", _names(inferred)
            )


def _static(graph: Graph, inputs: Sequence[Operation]) -> str:
    """Say how to give inputs a static shape, with the options to fill in."""
    options = " ".join(
        f"--shape {_label(graph, each)}={_sizes(each.outputs[0])}" for each in inputs[:_OPTIONS]
    )
    more = " ..." if len(inputs) > _OPTIONS else ""
    return f"give every input a static shape: {options}{more} with numbers for ?, or Model.reshape"


def _sizes(tensor: Tensor) -> str:
    return ",".join("?" if size == DYNAMIC else str(size) for size in tensor.shape or ())


def _only_batch_is_open(graph: Graph) -> bool:
    """Return whether only the first dimension is dynamic, in every input and output."""
    if any(graph.of_type(*_STATES)):
        return False
    tensors = [each.outputs[0] for each in graph.inputs]
    tensors += [tensor for each in graph.results for tensor in graph.input_tensors(each)]
    return all(
        tensor.shape and tensor.shape[0] == DYNAMIC and DYNAMIC not in tensor.shape[1:] for tensor in tensors
    )


def _states(graph: Graph) -> Iterator[Finding]:
    states = [each for each in graph.of_type(*_STATES) if not all(tensor.static for tensor in each.outputs)]
    for rule, matches in (("state.unbounded", True), ("state.bounded", False)):
        matching = [each for each in states if any(map(_is_open, each.outputs)) is matches]
        if matching:
            yield RULES[rule].finding(f"shape of {_named(graph, matching, 'state')}", _names(matching))


def _is_open(tensor: Tensor) -> bool:
    return tensor.shape is None or is_unbounded(tensor)


def _ranks(graph: Graph) -> Iterator[Finding]:
    arguments = [each for each in (*graph.inputs, *graph.results, *graph.of_type(*_STATES)) if _is_high(each)]
    if arguments:
        yield RULES["rank.argument"].finding(f"rank of {_named(graph, arguments)}", _names(arguments))
        return
    inner = [each for each in graph if each.index not in graph.constant_like and _is_high(each)]
    if inner:
        yield RULES["rank.inner"].finding(f"rank of {_named(graph, inner, 'layer')}", _names(inner))


def _is_high(operation: Operation) -> bool:
    return any(len(tensor.shape or ()) > MAX_ARGUMENT_RANK for tensor in operation.outputs)


def _arguments(graph: Graph) -> Iterator[Finding]:
    arguments = (*graph.inputs, *graph.results)
    large = [
        each
        for each in arguments
        if any(size > MAX_DIMENSION for tensor in each.outputs for size in tensor.shape or ())
    ]
    if large:
        yield RULES["size.dimension"].finding(f"size of {_named(graph, large)}", _names(large))
    long = [each for each in arguments if len(_label(graph, each).encode()) >= MAX_ARGUMENT_NAME]
    if long:
        yield RULES["size.name"].finding(
            f"name of {_label(graph, long[0])[:40]}..., one of {len(long)}", _names(long)
        )


def _label(graph: Graph, operation: Operation) -> str:
    """Return the user-visible name: the tensor's for an input or output, the variable's for a state."""
    if operation.type in _STATES:
        return str(operation.attributes.get("variable_id", operation.name))
    if operation.type not in ("Parameter", "Result"):
        return operation.name
    names = operation.outputs[0].names if operation.outputs else ()
    producer = graph.producer(operation, 0)
    return names[0] if names else operation.name if producer is None else producer.name


def _named(graph: Graph, operations: list[Operation], noun: str = "") -> str:
    """Format the first three as `input 'x' [?,3]`; a state that is read and assigned counts once."""
    kinds = {"Parameter": "input", "Result": "output", "ReadValue": "state", "Assign": "state"}
    named = dict.fromkeys(
        f"{noun or kinds.get(each.type, 'layer')} '{_label(graph, each)}'"
        + (f" {text(each.outputs[0])}" if each.outputs else "")
        for each in operations
    )
    more = f" and {len(named) - _LISTED} more" if len(named) > _LISTED else ""
    return ", ".join(list(named)[:_LISTED]) + more


def _names(operations: Iterable[Operation]) -> list[str]:
    return [each.name for each in operations]

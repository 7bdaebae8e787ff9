"""Own kernels in the place of standard operations of a model, which the property NPU_KERNELS_FOR asks for.

A kernel has to be able to compute all that the operation says: an attribute that it does not know, or another
type or shape of its outputs, is refused. Which operations it got is then as for any own kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import openvino as ov

from softnpu.emulator.common.model_bodies import all_bodies
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.kernels.errors import KernelError
from softnpu.emulator.kernels.replacements import PROPERTY
from softnpu.emulator.openvino.kernels import operations
from softnpu.emulator.openvino.kernels.operations import Module


def replace(model: ov.Model, wanted: Mapping[str, str], modules: Mapping[str, Module], subject: str) -> None:
    """Replace all operations of some types by kernels, whose full names `wanted` has; refuse what cannot be.

    `modules`: the kernels that came with the model, by full name.
    """
    for kind, name in wanted.items():
        if name not in modules:
            raise _refused(
                subject,
                f"kernel {name}, which did not come with the model",
                f"one of: {', '.join(modules) or 'none came'}",
                "add it with Core.add_extension('kernel.wasm')",
            )
        replaced = [node for node in model.get_ordered_ops() if _is_standard(node, kind)]
        bodies = [node for body in all_bodies(model) for node in body.get_ordered_ops()]
        inside = [node for node in bodies if _is_standard(node, kind)]
        if inside:
            found = f"{kind} '{inside[0].friendly_name}' in the body of another operation"
            raise _refused(subject, found, "operations outside")
        if not replaced:
            known = sorted({node.get_type_name() for node in model.get_ops()})
            raise _refused(subject, f"{kind}, of which the model has none", f"one of: {', '.join(known)}")
        for node in replaced:
            _replace(node, modules[name], f"{subject}, operation '{node.friendly_name}'")


def _is_standard(node: ov.Node, kind: str) -> bool:
    return node.get_type_name() == kind and str(node.get_type_info().version_id).startswith("opset")


def _replace(node: ov.Node, module: Module, subject: str) -> None:
    described = module.description
    counts = node.get_input_size(), node.get_output_size()
    if counts != (len(described.inputs), len(described.outputs)):
        expected = f"{len(described.inputs)} and {len(described.outputs)}, as {described.full_name} has"
        raise _refused(subject, f"{counts[0]} inputs and {counts[1]} outputs", expected)
    attributes = {name.replace("-", "_"): _plain(value) for name, value in node.get_attributes().items()}
    known = {each.name for each in described.attributes}
    for name in sorted(set(attributes) - known):
        raise _refused(
            subject,
            f"attribute {name} = {attributes[name]!r}, which {described.full_name} does not know",
            f"one of: {', '.join(sorted(known)) or 'none'}",
            "declare it in the kernel's description, and refuse values that it cannot compute",
        )
    inputs = node.input_values()
    try:
        told = operations.outputs(
            module,
            [each.get_element_type().get_type_name() for each in inputs],
            [each.get_partial_shape() for each in inputs],
            attributes,
        )
    except KernelError as error:
        raise _refused(subject, f"{error.info.object}: {error.info.found}", error.info.expected) from error
    for at, (kind, shape) in enumerate(told):
        own_kind, own = node.get_output_element_type(at).get_type_name(), node.get_output_partial_shape(at)
        if kind != own_kind or not shape.compatible(own):
            found = f"output {described.outputs[at]} of {described.full_name}: {kind}{shape}"
            raise _refused(subject, found, f"{own_kind}{own}")
    made = operations.operation(module)(inputs, **attributes)
    made.set_friendly_name(node.friendly_name)
    ov.utils.replace_node(node, made)


def _plain(value: Any) -> Any:
    """Return an attribute as kernels have it: a boolean is an integer."""
    return int(value) if isinstance(value, bool) else value


def _refused(subject: str, found: str, expected: str, hint: str = "") -> Refused:
    return refuse(
        ZeResult.ERROR_INVALID_ARGUMENT,
        f"{subject}, property {PROPERTY}",
        found=found,
        expected=expected,
        hint=hint,
        property=PROPERTY,
    )

"""OpenVINO's CPU device as a reference, without the features that miscompute quantised layers."""

from __future__ import annotations

from collections.abc import Mapping

import openvino as ov

from softnpu.emulator.openvino.defects import saturated_sums
from softnpu.emulator.openvino.defects.quantised_subgraphs import UNFUSED, are_in


def compile_reference(
    core: ov.Core, model: ov.Model, device: str, config: Mapping[str, str]
) -> tuple[ov.CompiledModel, dict[str, str]]:
    """Compile `model` for an OpenVINO device; also return the properties in effect.

    On the CPU device quantised layers may compute wrong numbers, or crash the process at run time
    (docs/fidelity.md): without VNNI, and in subgraphs. An affected model is compiled to avoid this, unless
    `config` decides otherwise.
    """
    used = dict(config)
    if device.startswith("CPU"):
        used = saturated_sums.properties_for(model) | used
    compiled = core.compile_model(model, device, used)
    if device.startswith("CPU") and not UNFUSED.keys() & used.keys() and are_in(model, compiled):
        used |= UNFUSED
        compiled = core.compile_model(model, device, used)
    return compiled, used


def is_unfused(config: Mapping[str, str]) -> bool:
    """Return whether `config` keeps the CPU device from forming such subgraphs."""
    return UNFUSED.items() <= config.items()


def is_in_f32(config: Mapping[str, str]) -> bool:
    """Return whether `config` keeps the CPU device from computing quantised layers in 8 bits."""
    return saturated_sums.IN_F32.items() <= config.items()

"""Compile quantised models so that they are correct without VNNI too.

Without VNNI the CPU device (OpenVINO 2026.4) adds two 8-bit products in 16 bits, which saturate at half their
possible range: with AVX2 and AVX-512 alike results are silently wrong by a third of the largest. Without its
low precision transformations it computes the same layers in f32.
"""

from __future__ import annotations

from typing import Any, Final

import openvino as ov

from softnpu.emulator.common import processor
from softnpu.emulator.common.model_bodies import all_bodies

IN_F32: Final = {"LP_TRANSFORMS_MODE": "NO", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
"""Properties of the CPU device; they have no effect on a model without quantisation.

With EXECUTION_MODE_HINT=PERFORMANCE it also quantises the factors of 8-bit weights, if the processor can;
within ONEDNN_MAX_CPU_ISA oneDNN may then refuse: hence the second.
"""
_WEIGHTS_OF_INTEGERS: Final = ("i8", "u8", "i4", "u4")


def properties() -> dict[str, str]:
    """Return the properties that every model is compiled with on this host, besides its own."""
    return {} if processor.has_vnni() else dict(IN_F32)


def properties_for(model: ov.Model) -> dict[str, str]:
    """Return the same for a model they may affect; else nothing."""
    concerned = any(_concerns(node) for part in [model, *all_bodies(model)] for node in part.get_ops())
    return properties() if concerned else {}


def _concerns(node: Any) -> bool:
    kind = node.get_type_name()
    return kind == "FakeQuantize" or (
        kind == "Constant" and node.get_element_type().to_string() in _WEIGHTS_OF_INTEGERS
    )

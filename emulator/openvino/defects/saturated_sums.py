"""Compile quantised models so that they are right without VNNI too.

Without VNNI the CPU device (OpenVINO 2026.4) adds two products of 8 bits in 16 bits, which saturate at half
of what they may be: with AVX2 as with AVX-512 results are wrong by a third of the largest, and nothing says
so. Without its low precision transformations it computes the same layers in f32.
"""

from __future__ import annotations

from typing import Any, Final

import openvino as ov

from softnpu.emulator.common import processor
from softnpu.emulator.common.model_bodies import all_bodies

IN_F32: Final = {"LP_TRANSFORMS_MODE": "NO", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
"""Properties of the CPU device; they change nothing in a model that does not quantise.

With EXECUTION_MODE_HINT=PERFORMANCE it also quantises what is multiplied by weights of 8 bits, if the
processor can; within ONEDNN_MAX_CPU_ISA oneDNN may then refuse: hence the second.
"""
_WEIGHTS_OF_INTEGERS: Final = ("i8", "u8", "i4", "u4")


def properties() -> dict[str, str]:
    """Return what every model is compiled with on this host, besides its own properties."""
    return {} if processor.has_vnni() else dict(IN_F32)


def properties_for(model: ov.Model) -> dict[str, str]:
    """Return the same for a model in which they may change something; else nothing."""
    concerned = any(_concerns(node) for part in [model, *all_bodies(model)] for node in part.get_ops())
    return properties() if concerned else {}


def _concerns(node: Any) -> bool:
    kind = node.get_type_name()
    return kind == "FakeQuantize" or (
        kind == "Constant" and node.get_element_type().to_string() in _WEIGHTS_OF_INTEGERS
    )

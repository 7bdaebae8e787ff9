"""Find models that OpenVINO's CPU runtime computes wrongly with several streams.

The graphs of all streams are built concurrently and share constants. Where an operation computes a constant
in place from another computed one (Convert and Multiply of compressed weights), one stream may permanently
overwrite the other's second value with the first (2026.4). A single stream shares nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import openvino as ov

from softnpu.emulator.common.model_bodies import all_bodies

_LAYER = "layerType"


def are_wrong_for(model: ov.Model, compiled: ov.CompiledModel) -> bool:
    """Return whether constants are computed in several steps when streams are created.

    `compiled` shows the optimised model without bodies; these are judged by `model`.
    """
    return _has_steps(compiled.get_runtime_model().get_ordered_ops()) or any(
        _has_steps(body.get_ordered_ops()) for body in all_bodies(model)
    )


def _has_steps(operations: Sequence[Any]) -> bool:
    """Whether an operation on constants alone uses another's result. Sources come first."""
    steps: dict[str, int] = {}
    for operation in operations:
        kind = _kind(operation, operation.get_rt_info())
        sources = [port.get_node().get_name() for port in operation.input_values()]
        if kind in ("Const", "Constant"):
            steps[operation.get_name()] = 0
        elif kind not in ("Output", "Result") and sources and all(name in steps for name in sources):
            steps[operation.get_name()] = 1 + max(steps[name] for name in sources)
            if steps[operation.get_name()] > 1:
                return True
    return False


def _kind(operation: Any, info: Mapping[str, Any]) -> str:
    return str(info[_LAYER].astype(str)) if _LAYER in info else str(operation.get_type_name())

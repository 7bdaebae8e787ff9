"""Find the models that OpenVINO's CPU runtime computes wrongly with several streams.

The graphs of all streams are made at once and share constants. Where an operation computes a constant from
one that was computed as well, in its place (Convert and Multiply of compressed weights), one stream may write
the first value over the second one of the other, for good (2026.4). A single stream shares nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import openvino as ov

from softnpu.emulator.common.model_bodies import all_bodies

_LAYER = "layerType"


def are_wrong_for(model: ov.Model, compiled: ov.CompiledModel) -> bool:
    """Return whether constants are computed in several steps when streams are made.

    `compiled` shows what is left of the model, but no bodies: for them the model decides.
    """
    return _has_steps(compiled.get_runtime_model().get_ordered_ops()) or any(
        _has_steps(body.get_ordered_ops()) for body in all_bodies(model)
    )


def _has_steps(operations: Sequence[Any]) -> bool:
    """Whether an operation on constants alone uses the result of another one. Sources come first."""
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

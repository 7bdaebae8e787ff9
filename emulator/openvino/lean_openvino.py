"""Import OpenVINO without its model converter, in processes that only read IR.

The converter imports a command line, telemetry and much of the standard library. OpenVINO works without it.
For programs that use it see `plugin.late_converter`.
"""

from __future__ import annotations

import sys

_CONVERTER = "openvino.tools.ovc"


def leave_out_converter() -> None:
    """Hide the converter from `import openvino`; call this before the first import."""
    if "openvino" not in sys.modules:
        sys.modules[_CONVERTER] = None  # type: ignore[assignment]  # makes Python's import fail

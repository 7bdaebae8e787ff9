"""Import OpenVINO without its model converter, in processes that only read IR.

The converter brings a command line, telemetry and much of the standard library. OpenVINO does without it
where it is not installed. A program may use it: `plugin.late_converter`.
"""

from __future__ import annotations

import sys

_CONVERTER = "openvino.tools.ovc"


def leave_out_converter() -> None:
    """Have `import openvino` of this process find no converter; before the first one."""
    if "openvino" not in sys.modules:
        sys.modules[_CONVERTER] = None  # type: ignore[assignment]  # Python's way to say: not there

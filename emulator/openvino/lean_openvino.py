"""Import OpenVINO without its model converter, in processes that only read IR, and numpy without its texts.

The converter imports a command line, telemetry and much of the standard library. OpenVINO works without it.
For programs that use it see `plugin.late_converter`. The texts are what `help` prints.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import openvino as ov

_CONVERTER = "openvino.tools.ovc"
_TEXTS: Final = ("numpy._core._add_newdocs", "numpy._core._add_newdocs_scalars")
"""Modules that give numpy's functions their docstrings, and have nothing else: an eighth of its import."""
_IR: Final = b"""<net name="first" version="11"><layers>
<layer id="0" name="x" type="Parameter" version="opset1"><data shape="1" element_type="f32"/>
<output><port id="0" precision="FP32"><dim>1</dim></port></output></layer>
<layer id="1" name="y" type="Result" version="opset1">
<input><port id="0" precision="FP32"><dim>1</dim></port></input></layer>
</layers><edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/></edges></net>"""


def leave_out_unused() -> None:
    """Hide the converter from `import openvino`, and texts from numpy; call this before the first import."""
    if "numpy" not in sys.modules:
        sys.modules.update({name: ModuleType(name) for name in _TEXTS})
    if "openvino" not in sys.modules:
        sys.modules[_CONVERTER] = None  # type: ignore[assignment]  # makes Python's import fail


def load_reader(core: ov.Core) -> None:
    """Load what reads IRs, which OpenVINO does with the first one. It starts no thread."""
    core.read_model(_IR)

"""Import OpenVINO without its model converter, in processes that only read IR, and numpy without its texts.

The converter imports a command line, telemetry and much of the standard library. OpenVINO works without it.
For programs that use it see `plugin.late_converter`. The texts are what `help` prints.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import openvino as ov

_CONVERTER = "openvino.tools.ovc"
_TEXTS: Final = ("numpy._core._add_newdocs", "numpy._core._add_newdocs_scalars")
"""Modules that give numpy's functions their docstrings, and have nothing else: an eighth of its import."""
_TYPES: Final = "numpy._typing"
"""What numpy's annotations need: a fifth of its import."""
_OPERATIONS: Final = tuple(f"openvino.opset{number}" for number in range(1, 18))
"""Modules that build operations, a fifth of OpenVINO's import: few images need any, see `defects`."""
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


def put_off_unused() -> None:
    """Import modules that most engines do not use when they are; call this before the first import."""
    numpy = importlib.util.find_spec("numpy")
    if "numpy" not in sys.modules and numpy is not None:
        types = _Later(_TYPES)
        types.NDArray = list  # its only use: `NDArray[Any]` is the type of fields
        # a package, as Python looks for before it takes a name
        types.__path__ = [f"{folder}/_typing" for folder in numpy.submodule_search_locations or ()]
        sys.modules[_TYPES] = types
    if "openvino" not in sys.modules:
        sys.modules.update({name: _Later(name) for name in _OPERATIONS})


class _Later(ModuleType):
    """Stands for a module until something of it is used."""

    NDArray: object

    def __getattr__(self, name: str) -> Any:
        for each, module in list(sys.modules.items()):
            if type(module) is _Later:  # modules import parts of each other
                sys.modules.pop(each, None)
        return getattr(importlib.import_module(self.__name__), name)


def load_reader(core: ov.Core) -> None:
    """Load what reads IRs, which OpenVINO does with the first one. It starts no thread."""
    core.read_model(_IR)

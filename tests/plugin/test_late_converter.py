"""OpenVINO's model converter is imported on first use, and is then OpenVINO's own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.cases import case

pytestmark = pytest.mark.quick

_BEGIN = """
import sys
import softnpu.plugin as ov
import openvino
assert "openvino.tools.ovc" not in sys.modules
assert "convert_model" in dir(openvino) and "convert_model" in dir(ov)
"""
_END = """
assert found is sys.modules["openvino.tools.ovc"].convert_model is openvino.convert_model is ov.convert_model
assert openvino.frontend.tensorflow is sys.modules["openvino.frontend.tensorflow"]
"""
_USES = {
    "attribute": "found = openvino.convert_model",
    "attribute of the plugin": "found = ov.convert_model",
    "from": "from openvino import convert_model as found",
    "star": "from openvino import *; found = convert_model; Core, opset13, properties",
    "package": "found = openvino.tools.ovc.convert_model",
    "from package": "from openvino.tools import ovc; found = ovc.convert_model",
    "import": "import openvino.tools.ovc; found = openvino.tools.ovc.convert_model",
    "front end": "openvino.frontend.tensorflow; found = openvino.convert_model",
}


def _run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_way_to_use_it_finds_openvinos() -> None:
    for way, use in _USES.items():
        with case(way):
            _run(f"{_BEGIN}{use}{_END}")


def test_a_program_that_imported_openvino_already_has_it() -> None:
    _run(
        "import sys, openvino\nbefore = openvino.convert_model\nimport softnpu.plugin as ov\n"
        "assert ov.convert_model is before and '__getattr__' not in vars(openvino)"
    )


def test_a_name_that_openvino_lacks_is_an_attribute_error() -> None:
    _run(
        f"{_BEGIN}assert not hasattr(openvino, 'nothing') and not hasattr(openvino.tools, 'nothing')\n"
        "assert 'openvino.tools.ovc' not in sys.modules"
    )


def test_the_converter_is_absent_where_it_is_not_installed() -> None:
    _run(
        f"{_BEGIN}sys.modules['openvino.tools.ovc'] = None\n"
        "assert not hasattr(openvino, 'convert_model') and not hasattr(ov, 'convert_model')"
    )

"""OpenVINO's check whether a compiled model fits a device: RUNTIME_REQUIREMENTS, COMPATIBILITY_CHECK."""

from __future__ import annotations

from pathlib import Path

import openvino
import pytest

from softnpu.driver.native_library import NativeLibrary
from softnpu.driver.program_environment import ENV_COMPILER
from tests.conftest import StartDaemon
from tests.native.building import compile_program
from tests.native.conftest import OPENVINO, Run, finished

REQUIREMENTS = """
compiled = core.compile_model(digits(), "NPU")
text = compiled.get_property("RUNTIME_REQUIREMENTS")
assert core.import_model(io.BytesIO(blob_of(compiled)), "NPU").get_property("RUNTIME_REQUIREMENTS") == text
print(text)
"""
HELPERS = """
def blob_of(compiled):
    blob = compiled.export_model()
    return blob.getvalue() if isinstance(blob, io.BytesIO) else blob
"""


@pytest.mark.parametrize("way", ["driver", "plugin"])
def test_openvino_finds_a_model_compatible_with_its_platform_alone(
    start_daemon: StartDaemon,
    native: NativeLibrary,
    surroundings: dict[str, str],
    run: Run,
    digits: Path,
    tmp_path: Path,
    way: str,
) -> None:
    start_daemon()
    environment = {**surroundings, ENV_COMPILER: way}
    text = run(OPENVINO + HELPERS + REQUIREMENTS, str(digits), environment=environment).stdout.strip()
    package = Path(openvino.__file__).parent
    (library,) = (package / "libs").glob("libopenvino.so.*")
    flags = (f"-I{package / 'include'}", str(library), f"-Wl,-rpath,{library.parent}")
    check = compile_program("compatibility", native, tmp_path, *flags)
    done = finished([check, text, text.replace("4000", "5010"), "anything"], environment)
    assert done.stdout.split() == ["SUPPORTED", "UNSUPPORTED", "UNSUPPORTED"], text

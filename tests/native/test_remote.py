"""OpenVINO's remote tensors, which only its C++ interface offers completely."""

from __future__ import annotations

from pathlib import Path

import openvino
import pytest

from softnpu.driver.native_library import NativeLibrary
from tests.native.building import compile_program
from tests.native.conftest import finished
from tests.support.daemon import Daemon


def test_memory_of_every_origin_works_as_a_tensor(
    shared_daemon: Daemon, native: NativeLibrary, surroundings: dict[str, str], digits: Path, tmp_path: Path
) -> None:
    package = Path(openvino.__file__).parent
    library = next((package / "libs").glob("libopenvino.so.*"), None)
    if library is None or not (package / "include" / "openvino" / "openvino.hpp").exists():
        pytest.skip("this openvino package has no C++ headers")
    flags = (f"-I{package / 'include'}", str(library), f"-Wl,-rpath,{library.parent}")
    made = compile_program("remote_tensors", native, tmp_path, *flags)
    environment = {**surroundings, "SOFTNPU_SOCKET": str(shared_daemon.socket)}
    done = finished([made, str(digits), str(tmp_path / "input.bin")], environment)
    assert done.stdout.splitlines() == ["refused", "done"]

"""The native driver: its shared libraries, and the environment in which programs find them."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from softnpu.driver import program_environment
from softnpu.driver.errors import ZeError, error
from softnpu.emulator.common import native_files
from softnpu.emulator.interface.result import Refused, ZeResult

ENV_NATIVE_DIR = native_files.ENV_NATIVE_DIR
DRIVER_NAME = native_files.DRIVER_NAME
LOADER_NAME = program_environment.LOADER_NAME


@dataclass(frozen=True)
class NativeLibrary:
    """`driver` is for the official loader; `loader` replaces it for programs that bring none."""

    driver: Path
    loader: Path

    def environment(self, socket: Path, base: Mapping[str, str]) -> dict[str, str]:
        """Return `base` with the variables that make a program find the NPU of the daemon at `socket`.

        A daemon started by such a program gets back the original values.
        """
        try:
            return program_environment.of_program(str(self.driver), str(self.loader), str(socket), base)
        except Refused as refused:
            raise ZeError("zeInitDrivers", refused.info) from refused


def find() -> NativeLibrary:
    """Return the installed native driver. Raises `ZeError` with DEPENDENCY_UNAVAILABLE if not built."""
    path = native_files.folder()
    library = NativeLibrary(path / DRIVER_NAME, path / "loader" / LOADER_NAME)
    for file in (library.driver, library.loader):
        if not file.exists():
            raise error(
                "zeInitDrivers",
                ZeResult.ERROR_DEPENDENCY_UNAVAILABLE,
                "native driver",
                found=f"no file {file}",
                expected="the library that pip builds where it finds a C++ compiler",
                hint=f"install g++, then softnpu once more: {_install_command()}"
                + (f"; or unset {ENV_NATIVE_DIR}" if os.environ.get(ENV_NATIVE_DIR) else ""),
            )
    return library


def _install_command() -> str:
    """Return the command that rebuilds and reinstalls this package from its source."""
    import importlib.metadata

    source = "softnpu"
    try:
        origin = importlib.metadata.distribution("softnpu").read_text("direct_url.json")
        if origin is not None:
            source = shlex.quote(json.loads(origin)["url"].removeprefix("file://"))
    except (importlib.metadata.PackageNotFoundError, ValueError, KeyError):
        pass  # sources that were not installed
    return f"pip install --force-reinstall --no-deps {source}"

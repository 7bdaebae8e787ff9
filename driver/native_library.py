"""The native driver: its shared libraries, and the environment in which programs find them."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from softnpu.driver.errors import ZeError, error
from softnpu.emulator.common import native_files
from softnpu.emulator.interface.environment import ENV_PYTHON, ENV_SAVED_ENV, ENV_SOCKET, variables_outside
from softnpu.emulator.interface.result import Refused, ZeResult

ENV_NATIVE_DIR = native_files.ENV_NATIVE_DIR
DRIVER_NAME = native_files.DRIVER_NAME
LOADER_NAME = "libze_loader.so.1"
AUDIT_NAME = "libsoftnpu_audit.so"
"""Makes OpenVINO find the compiler of the loader's file in the place of Intel's library."""
ENV_COMPILER = "SOFTNPU_COMPILER"
"""Compiler of OpenVINO's plugin: `plugin`: ours; `driver`: none; `installed`: its own [auto]."""
_TUNABLES = "GLIBC_TUNABLES"
_STATIC_TLS = "glibc.rtld.optional_static_tls"
_TLS_BYTES = 8192
"""With an audit library glibc reserves thread-local memory before it knows the program's libraries.

Its reserve of 512 bytes is too small for an allocator such as jemalloc (3 KiB): the program would not start.
"""
_CHANGED = ("LD_AUDIT", _TUNABLES, "LD_LIBRARY_PATH", "ZE_ENABLE_ALT_DRIVERS", ENV_SOCKET, ENV_PYTHON)


@dataclass(frozen=True)
class NativeLibrary:
    """`driver` is for the official loader; `loader` replaces it for programs that bring none."""

    driver: Path
    loader: Path

    def environment(self, socket: Path, base: Mapping[str, str]) -> dict[str, str]:
        """Return `base` with the variables that make a program find the NPU of the daemon at `socket`.

        A daemon started by such a program gets back the original values.
        """
        saved = base.get(ENV_SAVED_ENV)
        before = base if saved is None else {**base, **_restored(saved)}
        folders = _ahead(str(self.loader.parent), base.get("LD_LIBRARY_PATH", ""), ":")
        drivers = _ahead(str(self.driver), base.get("ZE_ENABLE_ALT_DRIVERS", ""), ",")
        audit = self.driver.with_name(AUDIT_NAME)
        audited = audit.exists() and base.get(ENV_COMPILER) != "installed"
        return {
            **base,
            **(_audited(audit, base) if audited else {}),
            "LD_LIBRARY_PATH": folders,
            "ZE_ENABLE_ALT_DRIVERS": drivers,
            ENV_SOCKET: str(socket),
            ENV_PYTHON: sys.executable,
            ENV_SAVED_ENV: json.dumps({name: before.get(name, "") for name in _CHANGED}),
        }


def _audited(audit: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a program that has the audit library."""
    tunables = base.get(_TUNABLES, "")
    if f"{_STATIC_TLS}=" not in tunables:
        tunables = ":".join(part for part in (tunables, f"{_STATIC_TLS}={_TLS_BYTES}") if part)
    return {"LD_AUDIT": _ahead(str(audit), base.get("LD_AUDIT", ""), ":"), _TUNABLES: tunables}


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


def _ahead(first: str, rest: str, separator: str) -> str:
    """Return a list with `first` moved to the front."""
    others = (part for part in rest.split(separator) if part not in ("", first))
    return separator.join([first, *others])


def _restored(saved: str) -> dict[str, str]:
    try:
        outside = variables_outside(saved)
    except Refused as refused:
        raise ZeError("zeInitDrivers", refused.info) from refused
    return {name: value for name, value in outside.items() if name in _CHANGED}

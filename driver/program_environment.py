"""The variables with which a program finds the native driver. It imports little: a program waits for it."""

from __future__ import annotations

import os
import sys

from softnpu.emulator.interface.environment import ENV_PYTHON, ENV_SAVED_ENV, ENV_SOCKET, variables_outside

TYPE_CHECKING = False  # that of `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping

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


def of_program(driver: str, loader: str, socket: str, base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` with the variables that make a program find the NPU of the daemon at `socket`.

    A daemon started by such a program gets back the original values. Raises `Refused` for saved ones that
    `softnpu run` does not write.
    """
    saved = variables_outside(base.get(ENV_SAVED_ENV, ""))
    before = {**base, **{name: value for name, value in saved.items() if name in _CHANGED}}
    folders = _ahead(os.path.dirname(loader), base.get("LD_LIBRARY_PATH", ""), ":")
    drivers = _ahead(driver, base.get("ZE_ENABLE_ALT_DRIVERS", ""), ",")
    audit = os.path.join(os.path.dirname(driver), AUDIT_NAME)
    audited = os.path.exists(audit) and base.get(ENV_COMPILER) != "installed"
    return {
        **base,
        **(_audited(audit, base) if audited else {}),
        "LD_LIBRARY_PATH": folders,
        "ZE_ENABLE_ALT_DRIVERS": drivers,
        ENV_SOCKET: socket,
        ENV_PYTHON: sys.executable,
        ENV_SAVED_ENV: _json_of({name: before.get(name, "") for name in _CHANGED}),
    }


def _audited(audit: str, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a program that has the audit library."""
    tunables = base.get(_TUNABLES, "")
    if f"{_STATIC_TLS}=" not in tunables:
        tunables = ":".join(part for part in (tunables, f"{_STATIC_TLS}={_TLS_BYTES}") if part)
    return {"LD_AUDIT": _ahead(audit, base.get("LD_AUDIT", ""), ":"), _TUNABLES: tunables}


def _ahead(first: str, rest: str, separator: str) -> str:
    """Return a list with `first` moved to the front."""
    others = (part for part in rest.split(separator) if part not in ("", first))
    return separator.join([first, *others])


def _json_of(variables: dict[str, str]) -> str:
    plain = "".join(variables.values())
    if not (plain.isascii() and plain.isprintable()) or '"' in plain or "\\" in plain:
        import json  # late: few values need more than quotes

        return json.dumps(variables)
    return "{" + ", ".join(f'"{name}": "{value}"' for name, value in variables.items()) + "}"

"""A program environment that would break, or leak into, any process inheriting it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

_LIBRARY = """
#include <fcntl.h>
__attribute__((constructor)) static void loaded(void) { open(MARK, O_CREAT | O_WRONLY, 0600); }
"""


def intruding(folder: Path) -> dict[str, str]:
    """Return variables that load code, among harmless ones; loaded code leaves a mark in `folder`."""
    marks = folder / "marks"
    marks.mkdir()
    modules = folder / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(f"open({str(marks / 'sitecustomize')!r}, 'w')")
    (modules / "json.py").write_text(f"open({str(marks / 'json')!r}, 'w')")
    library = folder / "preloaded.so"
    source = folder / "preloaded.c"
    source.write_text(_LIBRARY)
    define = f'-DMARK="{marks / "preloaded"}"'
    subprocess.run(["cc", "-shared", "-fPIC", define, source, "-o", library], check=True, timeout=60)
    return {
        "PYTHONPATH": str(modules),
        "PYTHONHOME": "/nonexistent",
        "PYTHONSTARTUP": str(modules / "json.py"),
        "LD_PRELOAD": str(library),
        "LD_LIBRARY_PATH": str(folder),
        "LD_AUDIT": str(library),
        "OV_FRONTEND_PATH": str(folder),
        "OMP_NUM_THREADS": "1",
        "ONEDNN_MAX_CPU_ISA": "DEFAULT",
        "LC_ALL": "C.UTF-8",
        "SOFTNPU_LOG": "off",
        "XDG_SESSION_ID": "",
        "MADE_UP": "a=b\nc",
    }


def marks_in(folder: Path) -> list[str]:
    """Return the marks of loaded code."""
    return sorted(path.name for path in (folder / "marks").iterdir())


def of_process(pid: int) -> dict[str, str]:
    """Return a process's initial environment."""
    environ = Path(f"/proc/{pid}/environ").read_bytes()
    # glibc writes zeros between the tunables that it has read
    environ = environ.replace(b"\0glibc.", b":glibc.")
    entries = (entry.decode().partition("=") for entry in environ.split(b"\0") if entry)
    return {name: value for name, _, value in entries}


def intruders(names: Iterable[str]) -> set[str]:
    """Return the names that may load code, or concern one program."""
    starts = ("PYTHON", "LD_", "OV_", "OMP_", "MADE_UP")
    return {name for name in names if name.startswith(starts)}

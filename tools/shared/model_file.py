"""The file of a model that a command is given: what it is, and what to do about another one."""

from __future__ import annotations

from pathlib import Path

from softnpu.tools.shared.failures import ToolError


def is_exported(path: Path) -> bool:
    """Return whether a file is a compiled model."""
    from softnpu.emulator.blob.container import MAGIC  # late: not for --help

    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False  # the reader of the model reports what is wrong with the file


def check_model(path: Path, *, exported: bool = False) -> None:
    """Refuse what OpenVINO's readers would name less well. `exported`: a compiled model is welcome."""
    from softnpu.tools.models.catalogue import CATALOGUE

    if not path.exists():
        hint = f"'softnpu models get {path}' prints the path of that model" if str(path) in CATALOGUE else ""
        raise ToolError(
            f"model {path}", found="no such file", expected="a model that OpenVINO reads", hint=hint
        )
    if not exported and is_exported(path):
        raise ToolError(
            f"model {path}",
            found="a compiled model",
            expected="the model that it was compiled from",
            hint="'softnpu blob inspect' tells more about it",
        )
    described = path.with_suffix(".xml")
    if path.suffix == ".bin" and described.exists():
        raise ToolError(
            f"model {path}",
            found="the weights of a model",
            expected=f"its description, {described}",
        )

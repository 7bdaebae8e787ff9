"""Renders templates to pages. jinja2 is part of an extra, and named when it is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from softnpu.tools.shared.failures import ToolError, UsageError

_FOLDER: Final = Path(__file__).parent


def write(path: Path, template: str, values: Mapping[str, Any], **filters: Callable[..., str]) -> None:
    """Render a template of this folder to a file. Raise `ToolError` without jinja2, and `OSError`."""
    page = render(template, values, **filters).encode()
    try:
        path.write_bytes(page)
    except OSError as error:
        if error.filename is not None:
            raise
        if path.is_file():  # half a page
            path.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error


def check_target(option: str, path: Path) -> None:
    """Reject an unwritable page before anything runs."""
    require("jinja2", option)
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {path}", found="no such directory", expected="a directory that exists")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise ToolError(f"{option} {path}", found="no permission", expected="a file that can be written")


def render(template: str, values: Mapping[str, Any], **filters: Callable[..., str]) -> str:
    """Return the text of a page. Raise `ToolError` without jinja2."""
    jinja2 = require("jinja2", "a page")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(filters)
    text: str = environment.get_template(template).render(values)
    return text


def require(module: str, wanted_by: str) -> Any:
    """Import a module of the extra `report`. Raise `ToolError` with the command that installs it."""
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ToolError(
            wanted_by,
            found=f"no module {module}",
            expected="it installed",
            hint="install it with: pip install 'softnpu[report]'",
        ) from error

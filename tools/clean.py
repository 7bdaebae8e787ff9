"""`softnpu clean`: remove files left by daemons and commands, and on request the caches."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from softnpu.tools.shared import scratch
from softnpu.tools.shared.console import format_bytes, format_count, print_line
from softnpu.tools.shared.daemon_connection import SocketOption, socket_path

_FOLDERS_OF_CACHES: Final = ("ir", "weights", "checked", "expected")
"""IRs of models (`plugin/models/read_models.py`), digests of weights (`compiler/weight_records.py`), checked
blobs (`compiler/checked_blobs.py`) and images to prefetch (`openvino/cache/cpu_cache.py`)."""
_LOG_LINE: Final = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ +softnpu\.")
_LONGEST_BEGIN: Final = 200
_UNUSED_S: Final = 86400.0


def clean(
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Also compiled models, models from PyPI, extensions and reports of stress runs."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    socket: SocketOption = None,
) -> None:
    """Remove logs and leftovers of daemons and commands that have ended. What is in use stays."""
    freed = 0
    for path in _leftovers(socket_path(socket), everything):
        size = _size(path)
        freed += size
        print_line(f"{'would remove' if dry_run else 'removed'} {path}, {format_bytes(size)}")
        if not dry_run:
            _remove(path)
    if everything:
        freed += _clean_compiled_models(dry_run)
    print_line(f"{format_bytes(freed)} {'would be freed' if dry_run else 'freed'}")


def _leftovers(socket: Path, everything: bool) -> Iterator[Path]:
    from softnpu.emulator.interface import endpoint

    folder = socket.parent
    names = {path.name.partition(".sock.")[0] for path in folder.glob("*.sock.lo[cg]*")}
    for path in sorted({socket, *(folder / f"{name}.sock" for name in names)}):
        if not scratch.is_locked(endpoint.lock_path(path)):  # a running daemon holds it
            yield from _of_daemon(path)
    for pattern in scratch.PATTERNS:
        for path in sorted(Path(tempfile.gettempdir()).glob(pattern)):
            if _is_ours(path) and not _is_in_use(path, everything):
                yield path
    if everything:
        yield from _fetched_models()
        yield from _extensions()
        yield from _models_of_the_farm()


def _is_ours(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def _of_daemon(socket: Path) -> Iterator[Path]:
    """Yield the files of a dead daemon, but none that merely have such a name: a path may be mistyped.

    The record in a lock file proves ownership of the files beside it; a log must begin as ours do.
    """
    from softnpu.emulator.interface import endpoint

    lock = endpoint.lock_path(socket)
    proven = _is_ours(lock) and endpoint.read_record(socket) is not None
    for log in (endpoint.log_path(socket), endpoint.older_log_path(socket)):
        if _is_ours(log) and log.is_file() and (proven or _is_log(log)):
            yield log
    if proven:
        if _is_ours(socket) and stat.S_ISSOCK(socket.lstat().st_mode):
            yield socket
        yield lock


def _is_log(path: Path) -> bool:
    with path.open("rb") as file:
        return _LOG_LINE.match(file.readline(_LONGEST_BEGIN)) is not None


def _is_in_use(folder: Path, everything: bool) -> bool:
    """Return whether a temporary folder is in use by a command, or by a person who reads its reports."""
    if (folder / scratch.REPORTS).is_dir() and not everything:
        return True
    used = scratch.is_in_use(folder)
    return used if used is not None else _age_s(folder) < _UNUSED_S


def _age_s(path: Path) -> float:
    return time.time() - path.lstat().st_mtime


def _fetched_models() -> Iterator[Path]:
    from softnpu.tools.models.catalogue import CATALOGUE
    from softnpu.tools.models.fetch import directory

    folder = directory()
    for name in CATALOGUE:
        yield from (path for path in folder.glob(f"{name}-*") if (path / "manifest.json").exists())
        yield from (path for path in (folder / f"{name}.lock", folder / f".{name}.partial") if path.exists())


def _extensions() -> Iterator[Path]:
    from softnpu.emulator.arithmetic import library
    from softnpu.emulator.interface.result import Refused

    try:
        folder = library.folder()
    except Refused:
        return
    built = sorted(folder.glob(library.PATTERN))
    unfinished = [path for path in folder.glob(f"{library.SCRATCH}*") if _age_s(path) > _UNUSED_S]
    yield from (path for path in (*built, *unfinished) if _is_ours(path))


def _models_of_the_farm() -> Iterator[Path]:
    from softnpu.farm.blobs import PARTS, WHOLE, folder

    place = folder()
    unfinished = [path for path in place.glob(PARTS) if _age_s(path) > _UNUSED_S]
    yield from (path for path in (*sorted(place.glob(WHOLE)), *unfinished) if _is_ours(path))


def _clean_compiled_models(dry_run: bool) -> int:
    from softnpu.driver.cache_options import cache_options_from_environment
    from softnpu.emulator.interface import environment

    options = cache_options_from_environment(os.environ)
    folders = ["" if options is None else options.directory, environment.engine_cache()]
    paths = [Path(folder) / each for folder in folders if folder for each in ("", *_FOLDERS_OF_CACHES)]
    return sum(_clean_cache(path, dry_run) for path in paths if path.is_dir())


def _clean_cache(folder: Path, dry_run: bool) -> int:
    from softnpu.emulator.disk_cache import entry_files, maintenance

    removed = (
        entry_files.entries(folder) if dry_run else maintenance.remove(folder, lambda entries: entries)[0]
    )
    size = sum(entry.size for entry in removed)
    what = format_count(len(removed), "compiled model")
    print_line(f"{'would remove' if dry_run else 'removed'} {what} in {folder}, {format_bytes(size)}")
    return size


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files if file.is_file())


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()

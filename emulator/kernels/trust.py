"""Which own kernels a daemon runs: all, none, or those whose digests its owner has listed.

The list is a text file, one sha256 of a module a line, as `sha256sum FILE.wasm` prints it: what follows the
digest is a remark, and so is a line that begins with `#`. It is read again for each model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from softnpu.emulator.common import file_ownership
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.kernels import description
from softnpu.emulator.kernels.description import FunctionDescription

ALL, SIGNED, NONE = "all", "signed", "none"
_NAME: Final = "trusted-kernels"
_DIGEST: Final = r"[0-9a-fA-F]{64}"
_MOST_BYTES: Final = 1 << 20


def digest(module: bytes) -> str:
    """Return the digest of a module: its sha256, as `sha256sum` prints it."""
    import hashlib  # late: it loads a library, and few models have kernels

    return hashlib.sha256(module).hexdigest()


def folder() -> Path:
    """Return the folder of the list, which has nothing else; what locks itself in lets itself read it."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base, "softnpu")


def readable(policy: str) -> tuple[str, ...]:
    """Return the folders that a process needs to read for this policy; they exist then."""
    if policy != SIGNED:
        return ()
    try:
        folder().mkdir(0o700, parents=True, exist_ok=True)
    except OSError:
        return ()  # `check` says that there is no list
    return (str(folder()),)


def check(policy: str, subject: str, modules: Iterable[bytes]) -> None:
    """Refuse modules that a policy does not let run, naming the kernel, its digest and the next step."""
    if policy == ALL:
        return
    trusted = _trusted(subject) if policy == SIGNED else frozenset()
    for module in modules:
        found = digest(module)
        if found in trusted:
            continue
        described = description.read(module)
        kind = f"own kernel {described.full_name}, sha256 {found}"
        if isinstance(described, FunctionDescription):
            kind = f"own kernel {described.full_name}, a Python function, which has no digest"
        expected, hint = f"none, as this daemon was started with --kernels {NONE}", ""
        if policy == SIGNED:
            expected = (
                f"one of the digests in {folder() / _NAME}: this daemon was started with --kernels signed"
            )
            hint = "if you trust it: softnpu kernel trust FILE.wasm, as the user who runs the daemon"
        raise _refused(subject, kind, expected, hint)


def add(module: bytes) -> tuple[Path, bool]:
    """Add a kernel to the list; return the file, and whether it was not there."""
    name, found = description.read(module).full_name, digest(module)
    path = folder() / _NAME
    if path.exists() and found in _trusted(f"kernel {name}"):
        return path, False
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        size = os.fstat(fd).st_size
        # an editor may have left the last line without its end
        end = b"\n" if size and os.pread(fd, 1, size - 1) != b"\n" else b""
        os.write(fd, end + f"{found}  {name}\n".encode())
    finally:
        os.close(fd)
    return path, True


def _trusted(subject: str) -> frozenset[str]:
    """Return the digests of the list. Refuses a list that others could have written."""
    path = folder() / _NAME
    try:
        fd = file_ownership.open_trusted(path)
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        reason = f"{path}: {error.strerror}"
        raise _refused(subject, reason, "a list of kernels that its owner alone writes") from error
    with open(fd, encoding="utf-8", errors="replace") as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise _refused(subject, f"{path}: more than {_MOST_BYTES} bytes", "fewer digests")
    digests = set()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if not re.fullmatch(_DIGEST, words[0]):
            found = f"{path}, line {number}: {words[0][:80]!r}"
            raise _refused(subject, found, "a sha256 of 64 hexadecimal digits, or # before a remark")
        digests.add(words[0].lower())
    return frozenset(digests)


def _refused(subject: str, found: str, expected: str, hint: str = "") -> Refused:
    return refuse(ZeResult.ERROR_UNSUPPORTED_FEATURE, subject, found=found, expected=expected, hint=hint)

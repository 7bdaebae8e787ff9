"""A kernel's module: checked, compiled, and its code kept on disk."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from typing import Final

import wasmtime
from blake3 import blake3

from softnpu.emulator.disk_cache import cache_key
from softnpu.emulator.disk_cache.cache import ModelCache
from softnpu.emulator.kernels import description, machine
from softnpu.emulator.kernels.description import Description
from softnpu.emulator.kernels.errors import Failure, KernelError, failed
from softnpu.emulator.kernels.machine import Machine

MEMORY: Final = "memory"
SHAPES: Final = "softnpu_shapes"
SPLIT: Final = "softnpu_split"
"""Optional: which inputs are cut with the outputs along their outer axis, as bits; 0: it cannot be split."""
MOST_OWN_PAGES: Final = 1024
"""The largest memory that a module may begin with, in pages of 64 KiB."""
_BULK: Final = re.compile(rb"\xfc(?:[\x08\x0a\x0b]|[\x88\x8a\x8b]\x80{0,3}\x00)")
"""memory.init, memory.copy, memory.fill; what else has these bytes does no harm."""
_CACHE, _CACHE_LIMIT = "kernels", 64 << 20
_POINTER_TO_NUMBER: Final = (["i32"], ["i32"])


class KernelModule:
    """A compiled module and its description."""

    def __init__(self, machine: Machine, content: bytes, cache: CodeCache | None = None) -> None:
        """Compile a module; a cache may have its code. Refuses what is no kernel, naming the fault."""
        self.description = description.read(content)
        self.machine = machine
        found = None if cache is None else cache.load(machine, content)
        self.is_from_cache = found is not None
        self.compiled = found or _compiled(machine, content, self.description)
        _check(self.compiled, self.description)
        has_split = any(each.name == SPLIT for each in self.compiled.exports)
        # the virtual machine writes these by C's memmove, where a fault is none of the kernel's, but its own
        self.writes_in_bulk = _BULK.search(content) is not None
        self.can_split = has_split and not self.description.dynamic


class CodeCache:
    """Compiled code in the house's cache, which uses only entries that no other user could have written."""

    def __init__(self, entries: ModelCache) -> None:
        self.entries = entries

    @classmethod
    def open(cls) -> CodeCache | None:
        """Open the cache that the environment names; None if it is off or unusable."""
        entries = ModelCache.of_engine(_CACHE, _CACHE_LIMIT)
        return None if entries is None else cls(entries)

    def load(self, machine: Machine, content: bytes) -> wasmtime.Module | None:
        """Return a module whose code is here; None for a miss."""
        payload = self.entries.load(_key(content))
        if payload is None:
            return None
        try:
            return wasmtime.Module.deserialize(machine.engine, bytearray(payload))
        except wasmtime.WasmtimeError:
            return None

    def store(self, content: bytes, code: bytes) -> bool:
        """Keep the code of a module; return whether that succeeded."""
        return self.entries.store(_key(content), code)


@functools.cache
def _surroundings() -> bytes:
    version = importlib.metadata.version("wasmtime")
    return f"{version} {machine.VERSION} {cache_key.host()}".encode()


def _key(content: bytes) -> str:
    return ModelCache.key(blake3(content).digest(), _surroundings())


def _compiled(machine: Machine, content: bytes, described: Description) -> wasmtime.Module:
    try:
        return wasmtime.Module(machine.engine, content)
    except (wasmtime.WasmtimeError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise _refused(described, f"a module that does not compile: {reason}", "a valid one") from None


def _refused(described: Description, found: str, expected: str, hint: str = "") -> KernelError:
    return failed(Failure.MODULE, described.full_name, found, expected, hint)


def _check(module: wasmtime.Module, described: Description) -> None:
    """Refuse any import, and exports other than a kernel has."""
    for each in module.imports:
        hint = "a kernel has no other functions than its own; the linker left an undefined one"
        raise _refused(described, f"import {each.module}.{each.name}", "no imports", hint)
    exports = {each.name: each.type for each in module.exports}
    memory = exports.get(MEMORY)
    if not isinstance(memory, wasmtime.MemoryType):
        raise _refused(described, f"no memory '{MEMORY}' among the exports", "one")
    if memory.limits.min > MOST_OWN_PAGES or memory.limits.max is not None:
        found = f"memory of {memory.limits.min} pages, limited to {memory.limits.max or 'none'}"
        raise _refused(described, found, f"at most {MOST_OWN_PAGES} pages of 64 KiB, and no limit")
    optional = [SPLIT] if SPLIT in exports else []
    for name in (SHAPES, *optional, *(each.run for each in described.implementations)):
        function = exports.get(name)
        if function is None:
            raise _refused(described, f"no function '{name}' among the exports", "one")
        if not isinstance(function, wasmtime.FuncType) or _types(function) != _POINTER_TO_NUMBER:
            raise _refused(described, f"export '{name}' of another type", "int32_t (softnpu_call *)")


def _types(function: wasmtime.FuncType) -> tuple[list[str], list[str]]:
    return [str(each) for each in function.params], [str(each) for each in function.results]

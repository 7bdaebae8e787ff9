"""The cache of a context's decoded programs, each valid until a handle it uses is dropped."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

from softnpu.emulator.engine.commands.program import Program
from softnpu.emulator.engine.memory.address_space import AddressSpace
from softnpu.emulator.engine.share import Share

ProgramKey = tuple[int, int]  # handle and offset of a command buffer
_MAX_PROGRAMS = 4096
_MAX_BUFFER_BYTES = (
    16 * 1024 * 1024
)  # of all buffers with cached programs, each of which takes many times its buffer's size
_LONGEST_KEPT = 1024 * 1024
SESSION_BYTES = 256 * 1024 * 1024
"""Maximum bytes of one session's cached programs."""
_FOR_A_BYTE, _FOR_AN_INFERENCE = 16, 4096
"""Bytes of a program per byte of its buffer and per inference: measured, rounded up."""


class ProgramCache:
    """The programs of one context, least recently decoded first."""

    def __init__(self, space: AddressSpace, share: Share) -> None:
        self._space = space
        self._share = share
        self._programs: OrderedDict[ProgramKey, Program] = OrderedDict()
        self._ids: set[int] = set()  # of those
        self._buffer_bytes = 0
        self._users: dict[int, set[ProgramKey]] = {}
        self.evictions = 0
        """Count of programs evicted so far."""

    def get(self, buffer: int, offset: int, data: bytes) -> Program | None:
        """Return the program decoded from this buffer, if it still holds the same bytes."""
        program = self._programs.get((buffer, offset))
        return program if program is not None and program.data == data else None

    def holds(self, program: Program) -> bool:
        """Whether this very program is cached."""
        return id(program) in self._ids

    def add(self, buffer: int, offset: int, program: Program) -> None:
        """Cache a program for the next submission of the same buffer, unless it is very long.

        Skip it if one of its handles was dropped during decoding: it would never be evicted with that handle.
        """
        key = (buffer, offset)
        if key in self._programs:
            self._evict(key)
        is_live = all(handle in self._space for handle in (buffer, *program.uses))
        if len(program.data) > _LONGEST_KEPT or not is_live:
            return
        self._programs[key] = program
        self._ids.add(id(program))
        self._buffer_bytes += len(program.data)
        self._share.kept_bytes += _size(program)
        for handle in (buffer, *program.uses):
            self._users.setdefault(handle, set()).add(key)
        while self._is_over_limit():
            self._evict(next(iter(self._programs)))

    def evict_users(self, handle: int) -> None:
        """Evict the programs that use a handle: their views and infer requests keep freed memory mapped."""
        for key in tuple(self._users.get(handle, ())):
            self._evict(key)

    def drop(self, program: Program) -> None:
        """Evict this very program, if cached."""
        for key in [key for key, kept in self._programs.items() if kept is program]:
            self._evict(key)

    def clear(self) -> None:
        while self._programs:
            self._evict(next(iter(self._programs)))

    def clear_some(self, most: int) -> bool:
        """Drop up to `most` programs; return whether there was one."""
        keys = list(islice(self._programs, most))
        for key in keys:
            self._evict(key)
        return bool(keys)

    def _is_over_limit(self) -> bool:
        if len(self._programs) > _MAX_PROGRAMS or self._buffer_bytes > _MAX_BUFFER_BYTES:
            return True
        return self._share.kept_bytes > SESSION_BYTES and bool(self._programs)

    def _evict(self, key: ProgramKey) -> None:
        program = self._programs.pop(key)
        self._ids.discard(id(program))
        self.evictions += 1
        self._buffer_bytes -= len(program.data)
        self._share.kept_bytes -= _size(program)
        # a long-lived handle would otherwise keep the keys of all programs that ever used it
        for handle in (key[0], *program.uses):
            users = self._users.get(handle)
            if users is not None:
                users.discard(key)
                if not users:
                    del self._users[handle]


def _size(program: Program) -> int:
    """Estimate the bytes that a decoded program takes."""
    return _FOR_A_BYTE * len(program.data) + _FOR_AN_INFERENCE * program.inferences

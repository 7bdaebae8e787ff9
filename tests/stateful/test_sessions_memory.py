"""Sessions, contexts and memory, shared or not, while clients and engines are killed."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from softnpu.driver import ZeResult
from softnpu.emulator.supervisor.limits import ResourceLimits
from tests.conftest import StartDaemon
from tests.stateful.daemon_model import (
    Client,
    DaemonModel,
    ModelMemory,
    SequenceDaemons,
    run,
    short_and_long,
    some,
    zeros,
)
from tests.stateful.remote_session import RemoteError, RemoteSession

MIB = 1 << 20
_CLIENTS, _CONTEXTS, _ALLOCATIONS, _SESSION_BYTES, _USER_BYTES = 4, 3, 14, 5 * MIB, 9 * MIB
_LIMITS = ResourceLimits(
    session_contexts=_CONTEXTS,
    session_allocations=_ALLOCATIONS,
    user_sessions=_CLIENTS,
    user_memory=_USER_BYTES,
)
_PAGE = 4096
_sizes = st.sampled_from([1, 64, 100, 4096, 20_000, 300_000, 2 * MIB])


class SessionsAndMemory(DaemonModel):
    """Every byte of every allocation matches the model, and no limit is exceeded."""

    # ------------------------------------------------------------ connecting and leaving

    @precondition(lambda self: len(self.clients) < _CLIENTS)
    @rule()
    def open_session(self) -> None:
        client = self.open_client()
        self._new_context(client)

    @precondition(lambda self: len(self.clients) == _CLIENTS)
    @rule()
    def one_session_too_many(self) -> None:
        with pytest.raises(AssertionError, match="user-sessions"):
            RemoteSession(self.daemon.socket)

    @precondition(lambda self: self.clients)
    @rule(which=some)
    def close_session(self, which: int) -> None:
        client = self.pick(which)
        client.remote.leave()
        self.clients.remove(client)

    @precondition(lambda self: self.clients)
    @rule(which=some)
    def kill_client(self, which: int) -> None:
        client = self.pick(which)
        client.remote.kill()
        self.clients.remove(client)

    @precondition(lambda self: self.clients and self.engine_kills < 1)
    @rule()
    def the_engine_dies(self) -> None:
        self.kill_engine()

    # ------------------------------------------------------------ contexts

    @precondition(lambda self: self.clients)
    @rule(which=some)
    def create_context(self, which: int) -> None:
        self._new_context(self.pick(which))

    def _new_context(self, client: Client) -> None:
        name = self.name("context")
        if len(client.contexts) == _CONTEXTS:
            self._refused(client, ZeResult.ERROR_OUT_OF_HOST_MEMORY, "context", name)
            return
        client.remote.call("context", name)
        client.contexts.append(name)

    @precondition(lambda self: any(client.contexts for client in self.clients))
    @rule(which=some, context=some)
    def destroy_context(self, which: int, context: int) -> None:
        client = self.pick(which)
        if client.contexts:
            name = client.contexts[context % len(client.contexts)]
            client.remote.call("drop_context", name)
            client.drop_context(name)

    # ------------------------------------------------------------ memory

    @precondition(lambda self: any(client.contexts for client in self.clients))
    @rule(
        which=some,
        context=some,
        size=_sizes,
        kind=st.sampled_from(["host", "device", "shared", "control"]),
        exportable=st.booleans(),
    )
    def allocate(self, which: int, context: int, size: int, kind: str, exportable: bool) -> None:
        client = self.pick(which)
        if not client.contexts:
            return
        owner, name = client.contexts[context % len(client.contexts)], self.name("memory")
        result = self._no_room(client, size)
        if result is not None:
            self._refused(client, result, "allocate", owner, name, size, kind, exportable)
            return
        client.remote.call("allocate", owner, name, size, kind, exportable)
        # what an older segment held before is undefined
        client.remote.call("write", name, 0, 0, size)
        client.memory[name] = ModelMemory(owner, zeros(size), exportable)

    @precondition(lambda self: self._shareable())
    @rule(which=some, importer=some, context=some)
    def share(self, which: int, importer: int, context: int) -> None:
        shareable = self._shareable()
        exporter, name = shareable[which % len(shareable)]
        client = self.pick(importer)
        if not client.contexts:
            return
        block = exporter.memory[name]
        whole = block.data.base if block.data.base is not None else block.data
        if whole.size % _PAGE:
            # the importer sees the segment, which is whole pages
            grown = zeros(-(-whole.size // _PAGE) * _PAGE)
            grown[: whole.size] = whole
            block.data = grown[: block.data.size]
            whole = grown
        owner, mine = client.contexts[context % len(client.contexts)], self.name("import")
        result = self._no_room(client, whole.size)
        place = exporter.remote.call("share", name)
        if result is not None:
            self._refused(client, result, "import_memory", owner, mine, place)
            return
        client.remote.call("import_memory", owner, mine, place)
        client.memory[mine] = ModelMemory(owner, whole[:])

    @precondition(lambda self: any(client.memory for client in self.clients))
    @rule(which=some, memory=some, value=st.integers(0, 255), start=some, size=st.integers(1, 5000))
    def write(self, which: int, memory: int, value: int, start: int, size: int) -> None:
        client = self.pick(which)
        if not client.memory:
            return
        name, block = _nth(client.memory, memory)
        first = start % block.data.size
        last = min(block.data.size, first + size)
        client.remote.call("write", name, first, value, last - first)
        block.data[first:last] = value

    @precondition(lambda self: any(len(client.memory) > 1 for client in self.clients))
    @rule(which=some, first=some, second=some, value=st.integers(0, 255))
    def copy_on_the_device(self, which: int, first: int, second: int, value: int) -> None:
        client = self.pick(which)
        if not client.memory or self._no_room(client, 0, 3, 80 * 1024) is not None:
            return
        name, source = _nth(client.memory, first)
        inside = {key: block for key, block in client.memory.items() if block.context == source.context}
        other, target = _nth(inside, second)
        size = min(source.data.size, target.data.size)
        if target is source or target.data.base is source.data.base is not None:
            commands: list[list[Any]] = [["fill", other, 0, size, value]]
            target.data[:size] = value
        else:
            commands = [["copy", other, 0, name, 0, size]]
            target.data[:size] = source.data[:size]
        assert client.remote.call("run", source.context, commands) == 0

    @precondition(lambda self: any(client.memory for client in self.clients))
    @rule(which=some, memory=some, count=st.integers(1, 3))
    def free(self, which: int, memory: int, count: int) -> None:
        client = self.pick(which)
        names = sorted(client.memory)[memory % max(1, len(client.memory)) :][:count]
        if names:
            client.remote.call("free", *names)
            for name in names:
                del client.memory[name]

    # ------------------------------------------------------------ invariants

    @invariant()
    def accounts_are_exact(self) -> None:
        self.check_accounts()

    @invariant()
    def memory_is_as_written(self) -> None:
        for client in self.clients:
            for name, block in client.memory.items():
                expected = hashlib.blake2b(block.data.tobytes()).hexdigest()
                assert client.remote.call("digest", name) == expected, (
                    f"{name} of session {client.remote.session}"
                )

    def _shareable(self) -> list[tuple[Client, str]]:
        return [
            (client, name)
            for client in self.clients
            for name, block in client.memory.items()
            if block.exportable
        ]

    def _no_room(self, client: Client, size: int, count: int = 1, more: int = 0) -> ZeResult | None:
        if client.allocations + count > _ALLOCATIONS:
            return ZeResult.ERROR_OUT_OF_HOST_MEMORY
        if client.memory_used + size + more > _SESSION_BYTES:
            return ZeResult.ERROR_OUT_OF_DEVICE_MEMORY
        if sum(each.memory_used for each in self.clients) + size + more > _USER_BYTES:
            return ZeResult.ERROR_OUT_OF_DEVICE_MEMORY
        return None

    @staticmethod
    def _refused(client: Client, result: ZeResult, what: str, *arguments: Any) -> None:
        with pytest.raises(RemoteError) as caught:
            client.remote.call(what, *arguments)
        assert caught.value.result == result, str(caught.value)


def _nth(memory: dict[str, ModelMemory], index: int) -> tuple[str, ModelMemory]:
    return list(memory.items())[index % len(memory)]


@short_and_long
def test_sessions_and_memory(start_daemon: StartDaemon, long: bool) -> None:
    daemons = SequenceDaemons(start_daemon, limits=_LIMITS, memory=64 * MIB, session_memory=_SESSION_BYTES)
    run(lambda: SessionsAndMemory(daemons), examples=10, steps=30, long=long)

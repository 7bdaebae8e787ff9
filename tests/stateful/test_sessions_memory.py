"""Sessions, contexts and memory, shared or not, while clients and engines are killed."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from softnpu.driver import ZeResult
from softnpu.emulator.supervisor.limits import ResourceLimits
from tests.conftest import StartDaemon, StartPython
from tests.stateful.stage import RefusedFault, Stage
from tests.stateful.world import Client, Place, Theatre, World, run, zeros

MIB = 1 << 20
_CLIENTS, _CONTEXTS, _ALLOCATIONS, _SESSION_BYTES, _USER_BYTES = 4, 3, 14, 5 * MIB, 9 * MIB
_LIMITS = ResourceLimits(
    session_contexts=_CONTEXTS,
    session_allocations=_ALLOCATIONS,
    user_sessions=_CLIENTS,
    user_memory=_USER_BYTES,
)
_PAGE = 4096
_some = st.integers(0, 1000)
_sizes = st.sampled_from([1, 64, 100, 4096, 20_000, 300_000, 2 * MIB])


class SessionsAndMemory(World):
    """Every byte of every allocation is as the model has it, and no limit gives way."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.touched: set[int] = set()

    # ------------------------------------------------------------ coming and going

    @precondition(lambda self: len(self.clients) < _CLIENTS)
    @rule()
    def open_session(self) -> None:
        client = self.enter()
        self._new_context(client)

    @precondition(lambda self: len(self.clients) == _CLIENTS)
    @rule()
    def one_session_too_many(self) -> None:
        with pytest.raises(AssertionError, match="user-sessions"):
            self.stage.actor(self.daemon.socket)

    @precondition(lambda self: self.clients)
    @rule(which=_some)
    def close_session(self, which: int) -> None:
        client = self.pick(which)
        client.actor.leave()
        self.clients.remove(client)

    @precondition(lambda self: self.clients)
    @rule(which=_some)
    def kill_client(self, which: int) -> None:
        client = self.pick(which)
        client.actor.kill()
        self.clients.remove(client)

    @precondition(lambda self: self.clients and self.engine_kills < 1)
    @rule()
    def the_engine_dies(self) -> None:
        self.kill_engine()

    # ------------------------------------------------------------ contexts

    @precondition(lambda self: self.clients)
    @rule(which=_some)
    def create_context(self, which: int) -> None:
        self._new_context(self.pick(which))

    def _new_context(self, client: Client) -> None:
        name = self.name("context")
        if len(client.contexts) == _CONTEXTS:
            self._refused(client, ZeResult.ERROR_OUT_OF_HOST_MEMORY, "context", name)
            return
        client.actor.do("context", name)
        client.contexts.append(name)

    @precondition(lambda self: any(client.contexts for client in self.clients))
    @rule(which=_some, context=_some)
    def destroy_context(self, which: int, context: int) -> None:
        client = self.pick(which)
        if client.contexts:
            name = client.contexts[context % len(client.contexts)]
            client.actor.do("drop_context", name)
            client.drop_context(name)

    # ------------------------------------------------------------ memory

    @precondition(lambda self: any(client.contexts for client in self.clients))
    @rule(
        which=_some,
        context=_some,
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
        client.actor.do("allocate", owner, name, size, kind, exportable)
        # what an older segment held before is undefined
        client.actor.do("write", name, 0, 0, size)
        client.places[name] = Place(owner, zeros(size), exportable)

    @precondition(lambda self: self._shareable())
    @rule(which=_some, taker=_some, context=_some)
    def share(self, which: int, taker: int, context: int) -> None:
        shareable = self._shareable()
        giver, name = shareable[which % len(shareable)]
        client = self.pick(taker)
        if not client.contexts:
            return
        place = giver.places[name]
        whole = place.data.base if place.data.base is not None else place.data
        if whole.size % _PAGE:
            # the importer sees the segment, which is whole pages
            grown = zeros(-(-whole.size // _PAGE) * _PAGE)
            grown[: whole.size] = whole
            place.data = grown[: place.data.size]
            whole = grown
        owner, mine = client.contexts[context % len(client.contexts)], self.name("import")
        result = self._no_room(client, whole.size)
        fd = giver.actor.fetch("share", name)
        try:
            if result is not None:
                self._refused(client, result, "take", owner, mine, fds=[fd])
                return
            client.actor.give("take", owner, mine, fds=[fd])
        finally:
            os.close(fd)
        client.places[mine] = Place(owner, whole[:])

    @precondition(lambda self: any(client.places for client in self.clients))
    @rule(which=_some, memory=_some, value=st.integers(0, 255), start=_some, size=st.integers(1, 5000))
    def write(self, which: int, memory: int, value: int, start: int, size: int) -> None:
        client = self.pick(which)
        if not client.places:
            return
        name, place = _nth(client.places, memory)
        first = start % place.data.size
        last = min(place.data.size, first + size)
        client.actor.do("write", name, first, value, last - first)
        place.data[first:last] = value

    @precondition(lambda self: any(len(client.places) > 1 for client in self.clients))
    @rule(which=_some, first=_some, second=_some, value=st.integers(0, 255))
    def copy_on_the_device(self, which: int, first: int, second: int, value: int) -> None:
        client = self.pick(which)
        if not client.places or self._no_room(client, 0, 3, 80 * 1024) is not None:
            return
        name, source = _nth(client.places, first)
        inside = {key: place for key, place in client.places.items() if place.context == source.context}
        other, target = _nth(inside, second)
        size = min(source.data.size, target.data.size)
        if target is source or target.data.base is source.data.base is not None:
            orders: list[list[Any]] = [["fill", other, 0, size, value]]
            target.data[:size] = value
        else:
            orders = [["copy", other, 0, name, 0, size]]
            target.data[:size] = source.data[:size]
        assert client.actor.do("run", source.context, orders) == 0

    @precondition(lambda self: any(client.places for client in self.clients))
    @rule(which=_some, memory=_some, count=st.integers(1, 3))
    def free(self, which: int, memory: int, count: int) -> None:
        client = self.pick(which)
        names = sorted(client.places)[memory % max(1, len(client.places)) :][:count]
        if names:
            client.actor.do("free", *names)
            for name in names:
                del client.places[name]

    # ------------------------------------------------------------ what always holds

    @invariant()
    def accounts_are_exact(self) -> None:
        self.check_accounts()

    @invariant()
    def memory_is_as_written(self) -> None:
        for client in self.clients:
            for name, place in client.places.items():
                expected = hashlib.blake2b(place.data.tobytes()).hexdigest()
                assert client.actor.do("digest", name) == expected, (
                    f"{name} of session {client.actor.session}"
                )

    def _shareable(self) -> list[tuple[Client, str]]:
        return [
            (client, name)
            for client in self.clients
            for name, place in client.places.items()
            if place.exportable
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
    def _refused(
        client: Client, result: ZeResult, what: str, *arguments: Any, fds: list[int] | None = None
    ) -> None:
        with pytest.raises(RefusedFault) as caught:
            client.actor.give(what, *arguments, fds=fds or [])
        assert caught.value.result == result, str(caught.value)


def _nth(places: dict[str, Place], index: int) -> tuple[str, Place]:
    return list(places.items())[index % len(places)]


@pytest.mark.parametrize(
    "long", [False, pytest.param(True, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_sessions_and_memory(
    start_daemon: StartDaemon, start_python: StartPython, private_dir: Any, long: bool
) -> None:
    stage = Stage(start_python, private_dir)
    theatre = Theatre(start_daemon, stage, limits=_LIMITS, memory=64 * MIB, session_memory=_SESSION_BYTES)
    run(lambda: SessionsAndMemory(theatre), examples=10, steps=30, long=long)

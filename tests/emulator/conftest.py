"""Fixtures of hand-made clients, on the tests' shared daemon."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.conftest import StartPython
from tests.support.client import ClientProcess
from tests.support.daemon import Daemon
from tests.support.models import write_chain
from tests.support.other_users import BECOME, GUEST, AsUser
from tests.support.wire import OpenWire, Wire, WireContext, WireModel


@pytest.fixture
def open_wire() -> Iterator[OpenWire]:
    """Open hand-made sessions that end with the test."""
    with ExitStack() as stack:

        def open_one(daemon: Daemon) -> Wire:
            wire = stack.enter_context(Wire(daemon.socket))
            wire.hello()
            return wire

        yield open_one


@pytest.fixture
def wire(shared_daemon: Daemon) -> Iterator[Wire]:
    """Yield a hand-made session."""
    with Wire(shared_daemon.socket) as wire:
        wire.hello()
        yield wire


@pytest.fixture
def other_wire(shared_daemon: Daemon) -> Iterator[Wire]:
    """Yield another hand-made session, which nothing may disturb."""
    with Wire(shared_daemon.socket) as wire:
        wire.hello()
        yield wire
        WireContext(wire).check_works()


@pytest.fixture
def wire_context(wire: Wire) -> WireContext:
    """Return a context of the hand-made session."""
    return WireContext(wire)


@pytest.fixture
def chain(private_dir: Path) -> Iterator[WireModel]:
    """Yield a small model without weights."""
    with WireModel(write_chain(private_dir, 16, 4)) as model:
        yield model


@pytest.fixture
def as_user(start_python: StartPython) -> AsUser:
    def start(code: str, daemon: Daemon, uid: int = GUEST, **given: Any) -> ClientProcess:
        return start_python(BECOME + dedent(code), socket=str(daemon.socket), uid=uid, **given)

    return start


@pytest.fixture
def public_dir(private_dir: Path) -> Path:
    """Return a directory that everybody may traverse, like /run."""
    private_dir.chmod(0o711)
    return private_dir

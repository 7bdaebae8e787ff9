"""Settings that variables ask for, of a daemon that runs already: it has them, or the program is refused."""

from __future__ import annotations

import os

import pytest

from softnpu.driver import Driver, ZeResult
from softnpu.emulator.interface.environment import OF_SETTINGS
from softnpu.emulator.interface.messages import Clock
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.supervisor.clients import asked_settings
from softnpu.emulator.supervisor.settings import DaemonSettings
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.work import failure

OTHERS = {
    "SOFTNPU_DEVICES": "4000,4000",
    "SOFTNPU_CLOCK": "device",
    "SOFTNPU_INFERENCE_US": "7",
    "SOFTNPU_INJECT": "oom",
    "SOFTNPU_STRICT": "1",
    "SOFTNPU_SELF_CHECK": "0",  # the tests' daemons check themselves
    "SOFTNPU_NATIVE_TURNS": "0",
}


def test_every_setting_is_compared() -> None:
    every = {*OTHERS, "SOFTNPU_CHECK"}  # a session may be checked alone
    assert every == set(OF_SETTINGS) == set(asked_settings.of(DaemonSettings(socket="s")))


def test_a_daemon_that_is_checked_has_one_folder_of_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTNPU_CHECK", "/notes")
    settings = DaemonSettings(socket="s")
    asked_settings.check(settings, ["SOFTNPU_CHECK=/notes"], is_leased=False)
    with pytest.raises(Refused, match="/others"):
        asked_settings.check(settings, ["SOFTNPU_CHECK=/others"], is_leased=False)


@pytest.mark.parametrize(
    ("folder", "user", "result"),
    [
        ("/notes", os.getuid() + 1, ZeResult.ERROR_INSUFFICIENT_PERMISSIONS),
        ("notes", os.getuid(), ZeResult.ERROR_INVALID_ARGUMENT),
        ("/no\0tes", os.getuid(), ZeResult.ERROR_INVALID_ARGUMENT),
        ("/" + "n" * 4000, os.getuid(), ZeResult.ERROR_INVALID_ARGUMENT),
    ],
)
def test_notes_go_where_the_daemons_user_can_write(folder: str, user: int, result: ZeResult) -> None:
    with pytest.raises(Refused) as refused:
        asked_settings.notes_folder([f"SOFTNPU_CHECK={folder}"], user)
    assert refused.value.info.result == result


@pytest.mark.parametrize(("name", "value"), OTHERS.items())
def test_a_session_that_asks_for_other_settings_is_refused(
    shared_daemon: Daemon, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    info = failure(lambda: Driver.open(shared_daemon.socket), ZeResult.ERROR_NOT_AVAILABLE).info
    assert f"{value!r}, as {name}" in info.expected
    assert "softnpu stop" in info.hint
    # whoever ends that daemon, or only looks, asks for nothing
    Driver.open(shared_daemon.socket, role="monitor").destroy()
    failure(
        lambda: Driver.open(shared_daemon.socket, role="monitor", for_program=True),
        ZeResult.ERROR_NOT_AVAILABLE,
    )


def test_a_session_that_asks_for_the_daemons_settings_is_served(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(
        devices=("3720", "4000"), clock=Clock.DEVICE, inference_us=7, inject="slow=20ms:count=2, oom:after=9"
    )
    monkeypatch.setenv("SOFTNPU_DEVICES", "3720,4000")
    monkeypatch.setenv("SOFTNPU_CLOCK", "device")
    monkeypatch.setenv("SOFTNPU_INFERENCE_US", "007")
    monkeypatch.setenv("SOFTNPU_INJECT", "slow=20ms:count=2,oom:after=9")
    monkeypatch.setenv("SOFTNPU_STRICT", "0")
    Driver.open(daemon.socket).destroy()
    monkeypatch.setenv("SOFTNPU_DEVICES", "arrow-lake,Lunar Lake")
    Driver.open(daemon.socket).destroy()
    monkeypatch.setenv("SOFTNPU_INJECT", "explode")
    assert "explode" in str(failure(lambda: Driver.open(daemon.socket), ZeResult.ERROR_INVALID_ARGUMENT))


def test_a_lease_has_its_own_devices(farm: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    from softnpu.driver.lease import Lease

    with Lease.take(count=1, path=farm.socket) as lease:
        monkeypatch.setenv("SOFTNPU_LEASE", lease.token)
        monkeypatch.setenv("SOFTNPU_DEVICES", "5010")
        Driver.open(farm.socket).destroy()
        monkeypatch.setenv("SOFTNPU_CLOCK", "paced")
        failure(lambda: Driver.open(farm.socket), ZeResult.ERROR_NOT_AVAILABLE)


def test_a_setting_of_a_newer_program_is_refused_by_name(shared_daemon: Daemon) -> None:
    import msgspec

    from tests.support.wire import HELLO, Wire

    with Wire(shared_daemon.socket) as wire:
        info = wire.info(msgspec.structs.replace(HELLO, settings=("SOFTNPU_NEW=1",)))
    assert (info.result, info.found) == (ZeResult.ERROR_INVALID_ARGUMENT, "unknown to this daemon")
    assert "SOFTNPU_NEW" in info.object

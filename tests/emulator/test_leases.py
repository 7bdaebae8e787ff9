"""The daemon's leases: shares, roles, refusals."""

from __future__ import annotations

import msgspec
import pytest

from softnpu.driver import Driver, Lease, ZeResult
from softnpu.emulator.interface import messages as msg
from tests.conftest import FARM
from tests.support.daemon import Daemon
from tests.support.wire import HELLO, Wire
from tests.support.work import failure


def test_shares_of_a_device_add_up_to_one_and_leave_whole_devices_free(farm: Daemon) -> None:
    def take(share: int, platform: str = "4000") -> Lease:
        return Lease.take(farm.socket, platform=platform, share=share)

    with take(500) as one, take(300) as two, take(1000) as whole:
        assert (one.devices, two.devices, whole.devices) == ((0,), (0,), (2,))
        failure(lambda: take(201), ZeResult.ERROR_NOT_AVAILABLE)
        with take(200) as rest, take(1, "") as any_other:
            assert (rest.devices, any_other.devices) == ((0,), (1,))


@pytest.mark.parametrize(
    ("request_", "result"),
    [
        (msg.LeaseTake(count=0), ZeResult.ERROR_INVALID_ARGUMENT),
        (msg.LeaseTake(count=4), ZeResult.ERROR_INVALID_ARGUMENT),
        (msg.LeaseTake(count=2, platform="3720"), ZeResult.ERROR_INVALID_ARGUMENT),
        (msg.LeaseTake(count=2, platform="meteor-lake"), ZeResult.ERROR_INVALID_ARGUMENT),
        (msg.LeaseTake(share=0), ZeResult.ERROR_INVALID_ARGUMENT),
        (msg.LeaseTake(share=1001), ZeResult.ERROR_INVALID_ARGUMENT),
        (msg.LeaseTake(platform="x" * 60_000), ZeResult.ERROR_INVALID_ARGUMENT),
    ],
)
def test_a_lease_that_cannot_be_is_refused(farm: Daemon, request_: msg.LeaseTake, result: ZeResult) -> None:
    with Wire(farm.socket) as wire:
        wire.hello("lease")
        assert wire.info(request_).result == result
        wire.ask(msg.LeaseTake(), msg.Leased)
        assert wire.info(msg.LeaseTake()).result == ZeResult.ERROR_UNSUPPORTED_FEATURE, "one a connection"
        assert wire.info(msg.ContextCreate(device=0)).result == ZeResult.ERROR_INSUFFICIENT_PERMISSIONS


def test_who_may_take_a_lease_and_where(farm: Daemon, shared_daemon: Daemon) -> None:
    with Wire(farm.socket) as monitor:
        monitor.hello("monitor")
        assert monitor.info(msg.LeaseTake()).result == ZeResult.ERROR_INSUFFICIENT_PERMISSIONS
    failure(lambda: Lease.take(shared_daemon.socket), ZeResult.ERROR_UNSUPPORTED_FEATURE)
    with Wire(shared_daemon.socket) as wire:
        hello = msgspec.structs.replace(HELLO, lease="any")
        assert wire.info(hello).result == ZeResult.ERROR_INSUFFICIENT_PERMISSIONS, "a token is never ignored"


def test_a_session_reaches_no_device_of_another_lease(farm: Daemon) -> None:
    with Wire(farm.socket) as holder, Wire(farm.socket) as wire:
        holder.hello("lease")
        leased = holder.ask(msg.LeaseTake(platform="3720"), msg.Leased)
        welcome = wire.ask(msgspec.structs.replace(HELLO, lease=leased.token), msg.Welcome)
        assert [(device.index, device.platform) for device in welcome.devices] == [(0, "3720")]
        for index in (-1, 1, 2, 2**40):
            for request in (msg.ContextCreate(device=index), msg.CompilerOptions(device=index)):
                assert wire.info(request).result == ZeResult.ERROR_INVALID_ARGUMENT
        wire.ask(msg.ContextCreate(device=0), msg.ContextCreated)
        assert [engine.contexts for engine in farm.status().engines] == [0, 1, 0]
        (lease,) = farm.status().leases
        assert (lease.devices, lease.share, lease.sessions) == ((1,), 1000, 1)
        holder.close()
        number, answer = wire.receive()
        assert (number, type(answer)) == (0, msg.Failed)
        assert isinstance(answer, msg.Failed)
        assert answer.info.result == ZeResult.ERROR_DEVICE_LOST
        assert wire.closed()
    assert farm.status().leases == ()


def test_a_client_with_a_token_starts_no_daemon(
    farm: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("SOFTNPU_LEASE", "ended")
    error = failure(lambda: Driver.open(f"{tmp_path}/npu.sock"), ZeResult.ERROR_UNINITIALIZED)
    assert "SOFTNPU_LEASE" in error.info.hint
    with Driver.open(farm.socket, role="monitor") as monitor:
        assert len(monitor.devices) == len(FARM), "who looks on sees all"

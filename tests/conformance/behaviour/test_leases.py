"""Leases: a program with a token sees exactly the leased devices, for as long as the lease lasts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from softnpu.driver import Driver, Lease, ZeResult
from tests.conftest import FARM
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until
from tests.support.work import failure

ROOT = Path(__file__).parents[3]
IDS = {"4000": "0x643e", "3720": "0x7d1d"}
LOST, REFUSED = "ERROR_DEVICE_LOST", "ERROR_INSUFFICIENT_PERMISSIONS"

_PROGRAM = """
import sys
from pathlib import Path
from tests.conformance.drivers import choose
from tests.conformance.rig import Rig
from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import CommandQueueDesc

def initialised():
    try:
        return choose(sys.argv[1])(Path(sys.argv[2]))
    except Exception as error:
        print(repr(getattr(error, "result", error)), flush=True)

api = initialised()
if api is not None:
    rig = Rig(api)
    rig.check_works()
    print(*(hex(api.ze_device_get_properties(device).get().device_id) for device in rig.devices), flush=True)
    for line in sys.stdin:
        made = api.ze_command_queue_create(rig.context, rig.device, CommandQueueDesc())
        print(made.result.name, flush=True)
"""


class Program:
    """A program with the tested driver and a token; it has printed `first`."""

    def __init__(self, driver: str, socket: Path, token: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, driver, socket],
            cwd=ROOT,
            env={**os.environ, "SOFTNPU_LEASE": token, "SOFTNPU_LOG": "off"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._said = self._process.stdout
        self.first = self._said.readline().split()

    def tries(self) -> str:
        """Return the result of creating another queue."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        return self._said.readline().strip()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


Start = Callable[[str], Program]


@pytest.fixture
def start(farm: Daemon, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Start a program with the tested driver."""
    driver = str(request.config.getoption("--driver", "python"))
    programs: list[Program] = []

    def start(token: str) -> Program:
        programs.append(Program(driver, farm.socket, token))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


def test_a_program_sees_the_devices_of_its_lease_and_loses_them_with_it(farm: Daemon, start: Start) -> None:
    with Lease.take(farm.socket, platform="3720") as one, Lease.take(farm.socket, count=2) as two:
        assert (one.devices, two.devices) == ((1,), (0, 2))
        first, second = start(one.token), start(two.token)
        assert first.first == [IDS["3720"]]
        assert second.first == [IDS["4000"]] * 2
        one.destroy()
        assert first.tries() in (LOST, REFUSED), "the lease has ended"
        assert second.tries() == "SUCCESS", "the other one has not"
        assert REFUSED in " ".join(start(one.token).first), "no new session either"


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_program_without_a_lease_sees_no_device(start: Start, token: str) -> None:
    assert REFUSED in " ".join(start(token).first)


def test_the_death_of_who_took_it_ends_a_lease(farm: Daemon, start: Start) -> None:
    code = "import sys, time; from softnpu.driver import Lease; lease = Lease.take(sys.argv[1], count=3)"
    holder = subprocess.Popen(
        [sys.executable, "-c", f"{code}; print(lease.token, flush=True); time.sleep(600)", farm.socket],
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        program = start(holder.stdout.readline().strip())
        assert len(program.first) == 3
        failure(lambda: Lease.take(farm.socket), ZeResult.ERROR_NOT_AVAILABLE)
        holder.kill()
        wait_until(lambda: program.tries() in (LOST, REFUSED), what="the end of the lease")
    Lease.take(farm.socket, count=3).destroy()


def test_status_in_a_leased_session_is_that_of_its_devices(
    farm: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lease.take(farm.socket, platform="3720") as lease:
        monkeypatch.setenv("SOFTNPU_LEASE", lease.token)
        with Driver.open(farm.socket) as driver:
            (engine,) = driver.status().engines
            assert (engine.device.index, engine.device.platform) == (0, "3720")
            assert driver.devices[0].get_status().device == engine.device
        assert len(farm.status().engines) == len(FARM)

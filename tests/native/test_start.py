"""Finding the daemon: present, absent, started, another version."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import threading
from pathlib import Path

import msgspec
import pytest

from softnpu.emulator.interface.endpoint import read_record
from softnpu.emulator.interface.environment import of_daemon
from tests.conftest import StartDaemon
from tests.native.conftest import Run, client
from tests.support import program_environment
from tests.support.daemon import Daemon
from tests.support.waiting import wait_gone

INIT = """
import ctypes, sys
ze = ctypes.CDLL("libze_loader.so.1")
ze.zeInit.restype = ze.zeInitDrivers.restype = ctypes.c_uint32
class Desc(ctypes.Structure):
    _fields_ = [("stype", ctypes.c_uint32), ("next", ctypes.c_void_p), ("flags", ctypes.c_uint32)]
count = ctypes.c_uint32()
print(hex(ze.zeInitDrivers(ctypes.byref(count), None, ctypes.byref(Desc(0x20021, None, 2)))), count.value)
print(*(hex(ze.zeInit(flags)) for flags in (0, 1, 2, 3)))
"""
SUCCESS, UNINITIALIZED, INVALID_ARGUMENT = "0x0", "0x78000001", "0x78000004"
FOUND = [SUCCESS, "1", SUCCESS, UNINITIALIZED, SUCCESS, SUCCESS]
"""Output of INIT with a daemon; the flag 1 alone names no NPU."""


@pytest.mark.quick
def test_driver_is_found(start_daemon: StartDaemon, run: Run) -> None:
    start_daemon()
    assert run(INIT).stdout.split() == FOUND


def test_a_missing_daemon_is_uninitialized_and_reported_once(run: Run, private_dir: Path) -> None:
    done = run(INIT)
    assert done.stdout.split() == [UNINITIALIZED, "0", *[UNINITIALIZED] * 4]
    (line,) = [line for line in done.stderr.splitlines() if "npu.sock" in line]
    assert str(private_dir / "npu.sock") in line
    assert "softnpu daemon" in line


def test_a_daemon_with_other_settings_is_reported_once(start_daemon: StartDaemon, run: Run) -> None:
    start_daemon()
    assert run(INIT, environment={"SOFTNPU_DEVICES": "4000"}).stdout.split() == FOUND
    done = run(INIT, environment={"SOFTNPU_CLOCK": "device"})
    assert SUCCESS not in done.stdout.split()
    (line,) = done.stderr.splitlines()
    assert "it runs with 'host'; expected 'device', as SOFTNPU_CLOCK" in line
    assert "softnpu stop" in line


WRONG = ("5us", "-1", " 1", "1e3", "\u0661\u0662", "1000001", "9" * 40, "0" * 21)
RIGHT = ("", "0", "1000000", "0" * 19 + "7")
EACH = """
import os
for value in sys.argv[1:]:
    os.environ["SOFTNPU_SPIN_US"] = value
    print(hex(ze.zeInit(0)))
"""


def test_an_invalid_variable_is_refused_by_name(shared_daemon: Daemon, run: Run) -> None:
    environment = {"SOFTNPU_SOCKET": str(shared_daemon.socket), "SOFTNPU_SPIN_US": WRONG[0]}
    done = run(INIT + EACH, *WRONG, RIGHT[-1], environment=environment)
    assert done.stdout.split()[:5:2] == [INVALID_ARGUMENT] * 3
    assert done.stdout.split()[6:] == [INVALID_ARGUMENT] * len(WRONG) + [SUCCESS]
    for value in WRONG:
        assert f"SOFTNPU_SPIN_US: '{value}'" in done.stderr


@pytest.mark.parametrize("value", RIGHT)
def test_a_valid_variable_is_accepted(shared_daemon: Daemon, run: Run, value: str) -> None:
    environment = {"SOFTNPU_SOCKET": str(shared_daemon.socket), "SOFTNPU_SPIN_US": value}
    assert run(INIT, environment=environment).stdout.split() == FOUND


def test_a_missing_daemon_is_silent_on_request(run: Run) -> None:
    assert run(INIT, environment={"SOFTNPU_LOG": "off"}).stderr == ""


def test_a_daemon_inherits_nothing_of_the_program_but_a_short_list(
    surroundings: dict[str, str], private_dir: Path, tmp_path: Path
) -> None:
    code = (
        "import json, os, sys\nos.environ.update(json.loads(sys.argv[1]))"
        + INIT
        + "print(json.dumps(dict(os.environ)), flush=True)\nsys.stdin.read()"
    )
    place = private_dir / "npu.sock"
    variables = msgspec.json.encode(program_environment.intruding(tmp_path)).decode()
    environment = {**surroundings, "SOFTNPU_AUTOSTART": "1", "SOFTNPU_IDLE_S": "0.5"}
    with client(code, environment, f"{SUCCESS} 1", variables) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split() == FOUND[2:]
        theirs = msgspec.json.decode(process.stdout.readline(), type=dict[str, str])
        record = read_record(place)
        assert record is not None
        started = program_environment.of_process(record.pid)
        process.communicate()
    wait_gone(record.pid)

    assert program_environment.intruders(theirs)
    assert started == of_daemon(theirs), "both drivers have the same list"
    assert started.keys() >= {"PATH", "ONEDNN_MAX_CPU_ISA", "LC_ALL", "SOFTNPU_IDLE_S"}
    assert not program_environment.intruders(started)
    assert not program_environment.marks_in(tmp_path)


def test_a_daemon_serves_while_the_process_that_started_it_is_stopped(
    surroundings: dict[str, str], private_dir: Path, start_daemon: StartDaemon
) -> None:
    gate = os.open(private_dir, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(gate, fcntl.LOCK_EX)
    environment = {**surroundings, "SOFTNPU_AUTOSTART": "1"}
    with client("print('ready', flush=True)\n" + INIT, environment, "ready") as process:
        start_daemon()
        assert process.communicate()[0].split() == FOUND
    os.close(gate)


def test_daemon_that_cannot_be_started_is_reported_with_its_reason(run: Run) -> None:
    environment = {"SOFTNPU_AUTOSTART": "1", "SOFTNPU_PYTHON": "/nowhere/python"}
    done = run(INIT, environment=environment)
    assert done.stdout.split()[0] == UNINITIALIZED
    assert "/nowhere/python" in done.stderr


class OtherVersion:
    """A daemon that speaks interface 2.0."""

    def __init__(self, place: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(place))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:  # closed
                return
            frame = client.recv(1 << 16)
            (request,) = struct.unpack_from("<I", frame, 8)
            info = {
                "result": 0x78000002,
                "object": "firmware interface",
                "found": "client speaks 1.0",
                "expected": "2.0",
            }
            body = msgspec.msgpack.encode({"t": "failed", "info": info})
            client.send(struct.pack("<4sHHII", b"SNPU", 1, 0, request, len(body)) + body)
            client.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._socket.close()


def test_other_version_is_reported_with_both(run: Run, private_dir: Path) -> None:
    other = OtherVersion(private_dir / "npu.sock")
    try:
        done = run(INIT)
    finally:
        other.close()
    assert done.stdout.split()[0] == "0x78000002"
    assert "firmware interface: client speaks 1.0; the daemon wants 2.0; expected" in done.stderr
    assert done.stderr.count("firmware interface") == 1


def test_long_socket_paths_work(start_daemon: StartDaemon, run: Run, private_dir: Path) -> None:
    deep = private_dir / ("d" * 120)
    deep.mkdir()
    start_daemon(socket=str(deep / "npu.sock"))
    done = run(INIT, environment={"SOFTNPU_SOCKET": str(deep / "npu.sock")})
    assert done.stdout.split() == FOUND

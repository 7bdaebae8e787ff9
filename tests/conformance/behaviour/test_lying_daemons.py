"""A daemon, or a relay before it, gives wrong answers: the call is refused, no memory is touched."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from select import select

import msgspec
import pytest

from softnpu.emulator.common import linux
from softnpu.emulator.interface import endpoint
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.channel import Channel

ROOT = Path(__file__).parents[3]

_PROGRAM = """
import sys
from pathlib import Path
from tests.conformance.drivers import choose
from tests.conformance.rig import Rig
from tests.conformance.api.structures import CommandQueueDesc, HostMemDesc
rig = Rig(choose(sys.argv[1])(Path(sys.argv[2])))
for _ in range(3):
    made = rig.api.ze_mem_alloc_host(rig.context, HostMemDesc(), 5000)
    print(made.result.name, flush=True)
    if made.value is not None: rig.api.write(made.value, bytes(5000))
print(rig.api.ze_command_queue_create(rig.context, rig.device, CommandQueueDesc()).result.name)
"""

Lie = Callable[[msg.Answer, list[int]], msg.Answer]


def _behind_its_segment(answer: msg.Answer, _: list[int]) -> msg.Answer:
    if isinstance(answer, msg.MemAllocated) and not answer.fresh:
        return msgspec.structs.replace(answer, offset=1 << 40)
    return answer


def _partly_behind_its_segment(answer: msg.Answer, _: list[int]) -> msg.Answer:
    if isinstance(answer, msg.MemAllocated) and not answer.fresh:
        return msgspec.structs.replace(answer, offset=answer.segment_size - 64)
    return answer


def _in_an_empty_file(answer: msg.Answer, fds: list[int]) -> msg.Answer:
    if isinstance(answer, msg.MemAllocated) and fds:
        os.close(fds[0])
        fds[0] = linux.memfd("empty")
        return msgspec.structs.replace(answer, sparse=True)
    return answer


def _ring_behind_its_segment(answer: msg.Answer, _: list[int]) -> msg.Answer:
    if isinstance(answer, msg.QueueCreated):
        return msgspec.structs.replace(answer, ring=msgspec.structs.replace(answer.ring, offset=1 << 40))
    return answer


LOST, NO_MEMORY = "ERROR_DEVICE_LOST", "ERROR_OUT_OF_DEVICE_MEMORY"
LIES: dict[str, tuple[Lie, list[str]]] = {
    "memory behind its segment": (_behind_its_segment, ["SUCCESS", LOST]),
    "memory partly behind it": (_partly_behind_its_segment, ["SUCCESS", LOST]),
    "memory in an empty file": (_in_an_empty_file, [NO_MEMORY] * 3),
    "a ring behind its segment": (_ring_behind_its_segment, ["SUCCESS"] * 3 + [LOST]),
}


class Relay:
    """Serves one client at `path`, falsifying the answers of the daemon at `place`."""

    def __init__(self, path: Path, place: Path, lie: Lie) -> None:
        self._lie, self._place = lie, place
        self._listener = endpoint.new_socket()
        self._daemon = endpoint.new_socket()
        with endpoint.socket_address(path) as address:
            self._listener.bind(address)
        path.chmod(0o600)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        # not earlier: a daemon drops silent connections
        with endpoint.socket_address(self._place) as address:
            self._daemon.connect(address)
        ends = {client.fileno(): Channel(client), self._daemon.fileno(): Channel(self._daemon)}
        while True:
            for number in select(list(ends), [], [])[0]:
                packet = ends[number].receive()
                if packet is None:
                    client.close()
                    return
                fds, body = packet.take_fds(packet.fd_count), bytes(packet.body)
                if number == self._daemon.fileno():
                    body = msg.encode(self._lie(msg.decode_answer(body), fds))
                (other,) = ends.keys() - {number}
                ends[other].send(packet.request, body, fds)
                for fd in fds:
                    os.close(fd)

    def close(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._listener.close()
        self._daemon.close()


@pytest.mark.parametrize("lie", LIES)
def test_memory_that_is_not_there_is_refused(
    place: Path, request: pytest.FixtureRequest, private_dir: Path, lie: str
) -> None:
    tell, expected = LIES[lie]
    relay = Relay(private_dir / "relay.sock", place, tell)
    driver = str(request.config.getoption("--driver", "python"))
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, driver, private_dir / "relay.sock"],
        cwd=ROOT,
        env={**os.environ, "SOFTNPU_LOG": "off"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    relay.close()
    assert done.returncode == 0
    assert done.stdout.split()[: len(expected)] == expected

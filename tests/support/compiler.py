"""The compiler worker as a real process over a real channel, and on-disk models for it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openvino as ov
from blake3 import blake3
from openvino import opset15 as ops

from softnpu.emulator.blob.container import BlobReader, GraphMeta, Section, pack
from softnpu.emulator.blob.weights import Placement, const_layers, with_offsets
from softnpu.emulator.common import linux
from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.interface.messages import Failed, Message, Progress, WeightSource, encode
from softnpu.emulator.interface.records import PAGE
from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.links.compiler import Compiled, CompileJob, ImportJob, Outcome, Started, worker_decoder
from softnpu.emulator.supervisor.children.child_process import ONE_THREAD
from tests.support.waiting import wait_until, waits_for_job

DEADLINE_S = 60.0
PLATFORM = "4000"


@dataclass(frozen=True)
class Made:
    """A finished compilation: the answer, the contents of blob and placement."""

    answer: Compiled
    blob: bytes
    placement: bytes

    @property
    def reader(self) -> BlobReader:
        return BlobReader(self.blob)

    @property
    def meta(self) -> GraphMeta:
        return self.reader.metadata()

    @property
    def offsets(self) -> tuple[int, ...]:
        return Placement.decode(self.placement).offsets if self.placement else ()


class Worker:
    """A worker (two processes) and our end of its channel. Every wait has a deadline."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                worker_command(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **ONE_THREAD},
            )
        self.channel = Channel(ours)
        self.progress: list[Progress] = []
        self._request = 0
        started = self._receive(0, time.monotonic() + DEADLINE_S)[0]
        assert isinstance(started, Started)
        self.fork_server = started.pid
        self.of_job = 0
        """The process that has looked at the last model, or looks at it."""

    def close(self) -> None:
        self.channel.close()
        try:
            self.process.wait(DEADLINE_S)
        finally:
            self.process.kill()
            self.process.wait()

    def ask(self, body: bytes | Message, files: Sequence[int | bytes]) -> tuple[Outcome, list[int]]:
        """Return the outcome of one job and its descriptors; progress is kept in `progress`.

        `files` are descriptors, or contents to send as memory files.
        """
        self._request += 1
        self.progress = []
        made = {at: memory_file(file) for at, file in enumerate(files) if isinstance(file, bytes)}
        try:
            fds = [made[at] if isinstance(file, bytes) else file for at, file in enumerate(files)]
            self.channel.send(self._request, body if isinstance(body, bytes) else encode(body), fds)
        finally:
            for fd in made.values():
                os.close(fd)
        deadline = time.monotonic() + DEADLINE_S
        while True:
            outcome, fds = self._receive(self._request, deadline)
            if isinstance(outcome, Started):
                self.of_job = outcome.pid
                continue
            if not isinstance(outcome, Progress):
                return outcome, fds
            self.progress.append(outcome)

    def _receive(self, request: int, deadline: float) -> tuple[Outcome | Started, list[int]]:
        assert self.channel.wait_readable(deadline - time.monotonic()), "no answer in time"
        packet = self.channel.receive()
        assert packet is not None, "the worker closed the channel"
        with packet:
            assert packet.request == request
            return worker_decoder.decode(packet.body), packet.take_fds(packet.fd_count)

    def info(self, body: bytes | Message, files: Sequence[int | bytes]) -> ErrorInfo:
        """Return the error of a job that must fail; it carries no descriptor."""
        outcome, answered = self.ask(body, files)
        assert answered == []
        assert isinstance(outcome, Failed), outcome
        return outcome.info

    def content(self, body: Message, files: Sequence[int | bytes]) -> tuple[Message, bytes]:
        """Return the answer to a job, and the content of its only descriptor, which must be immutable."""
        outcome, (fd,) = self.ask(body, files)
        assert not isinstance(outcome, Failed | Progress), outcome
        return outcome, _content(fd)

    def blob(self, body: Message, files: Sequence[int | bytes]) -> Made:
        """Return the result of a compilation or import, with digests and lengths checked."""
        outcome, answered = self.ask(body, files)
        assert isinstance(outcome, Compiled), outcome
        contents = [_content(fd) for fd in answered]
        assert len(contents) == 1 + (outcome.placement_length > 0)
        blob, placement = contents[0], contents[1] if len(contents) > 1 else b""
        assert (len(blob), blake3(blob).digest()) == (outcome.blob_length, outcome.blob_digest)
        assert len(placement) == outcome.placement_length
        assert outcome.placement_digest == (blake3(placement).digest() if placement else b"")
        return Made(outcome, blob, placement)

    def fd_count(self) -> int:
        """Count its descriptors once it waits for a job: those of the last job are closed after the answer.

        A thread closes files on disk.
        """

        def settled() -> bool:
            on_disk = [target for target in self._open() if _is_on_disk(target)]
            return waits_for_job(self.process.pid) and not on_disk

        wait_until(settled, what="the worker waits for a job")
        return len(self._open())

    def _open(self) -> list[str]:
        """List the descriptors of both processes except standard streams."""
        opened = []
        for pid in (self.process.pid, self.fork_server):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with suppress(FileNotFoundError):
                    if int(fd) > 2:
                        opened.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        return opened

    def mappings(self, of: str) -> int:
        """How many mappings both of its processes have with these words in their names."""
        pids = self.process.pid, self.fork_server
        return sum(Path(f"/proc/{pid}/maps").read_text().count(of) for pid in pids)


class Files:
    """An on-disk IR with open descriptors: `xml`, and `bin` with `lead` bytes before the weights."""

    def __init__(self, folder: Path, model: ov.Model, lead: int = 0, name: str = "digits") -> None:
        path = folder / f"{name}.xml"
        ov.serialize(model, path)
        # offsets of constants are relative to the weights space, which begins with a page
        written = path.read_bytes()
        layers = const_layers(written)
        self.xml_data = with_offsets(written, layers, [layer.offset + lead % PAGE for layer in layers])
        path.write_bytes(self.xml_data)
        self.weights = path.with_suffix(".bin").read_bytes()
        path.with_suffix(".bin").write_bytes(bytes(lead) + self.weights)
        self.path = path
        self.xml = os.open(path, os.O_RDONLY)
        self.bin = os.open(path.with_suffix(".bin"), os.O_RDONLY)
        self.lead = lead
        self.name = name

    @property
    def fds(self) -> list[int]:
        return [self.xml, self.bin]

    @property
    def sources(self) -> tuple[WeightSource, ...]:
        return (WeightSource(offset=self.lead, length=len(self.weights)),)

    def job(self, **changes: object) -> CompileJob:
        job = CompileJob(
            name=self.name, platform=PLATFORM, xml_length=len(self.xml_data), weights=self.sources
        )
        return msgspec.structs.replace(job, **changes)

    def close(self) -> None:
        os.close(self.xml)
        os.close(self.bin)


WriteFiles = Callable[..., Files]
"""Write a model to disk; arguments as for `Files` without the folder. Close every opened file."""


@contextmanager
def writing(folder: Path) -> Iterator[WriteFiles]:
    """Write each model to a folder of its own below `folder`."""
    written: list[Files] = []

    def write(model: ov.Model, **how: Any) -> Files:
        place = folder / f"model{len(written)}"
        place.mkdir()
        written.append(Files(place, model, **how))
        return written[-1]

    try:
        yield write
    finally:
        for files in written:
            files.close()


def _is_on_disk(target: str) -> bool:
    return target.startswith("/") and not target.startswith(("/dev/", "/memfd:"))


def worker_command(fd: int) -> list[str]:
    return [sys.executable, "-m", "softnpu.emulator.compiler", str(fd), str(os.getpid())]


def convolution(shape: list[int], kernels: int = 4) -> ov.Model:
    """Return image -> 3x3 convolution -> relu with seeded weights; its input and output are named."""
    image = ops.parameter(shape, np.float32, name="image")
    image.output(0).set_names({"image", "pixels"})
    image.layout = ov.Layout("NCHW")
    weights = np.random.default_rng(0).standard_normal((kernels, 3, 3, 3), np.float32)
    node = ops.convolution(image, ops.constant(weights, name="kernels"), [1, 1], [0, 0], [0, 0], [1, 1])
    relu = ops.relu(node)
    relu.output(0).set_names({"scores"})
    return ov.Model([relu], [image], "digits")


def elementwise(element_type: ov.Type, shape: list[int]) -> ov.Model:
    """Return a model without constants that converts its input to f32."""
    tensor = ops.parameter(shape, element_type, name="data")
    return ov.Model([ops.convert(tensor, "f32")], [tensor], "elementwise")


def memory_file(content: bytes) -> int:
    fd = linux.memfd("test")
    os.write(fd, content)
    return fd


def import_job(made: Made | bytes, sources: tuple[WeightSource, ...] = ()) -> ImportJob:
    """Return an import job for a blob, with its placement if it has one."""
    if isinstance(made, bytes):
        return ImportJob(platform=PLATFORM, blob_length=len(made), weights=sources)
    return ImportJob(
        platform=PLATFORM,
        blob_length=len(made.blob),
        placement_length=len(made.placement),
        weights=sources,
    )


def altered(content: bytes, drop: tuple[Section, ...] = (), **sections: bytes) -> bytes:
    """Return the blob with sections replaced by name and checksums corrected."""
    reader = BlobReader(content)
    kept = {
        Section(kind): bytes(reader.read(Section(kind)))
        for kind, _, _ in reader.sections
        if Section(kind) not in drop
    }
    return pack(kept | {Section[name]: data for name, data in sections.items()})


def with_state(meta: GraphMeta, **changes: Any) -> dict[str, object]:
    """Return metadata with its first state changed."""
    return {"states": (msgspec.structs.replace(meta.states[0], **changes), *meta.states[1:])}


def with_argument(meta: GraphMeta, index: int, **changes: Any) -> dict[str, object]:
    """Return metadata with one argument changed."""
    arguments = list(meta.arguments)
    arguments[index] = msgspec.structs.replace(arguments[index], **changes)
    return {"arguments": tuple(arguments)}


def with_meta(content: bytes, **changes: object) -> bytes:
    """Return the blob with changed metadata."""
    meta: GraphMeta = msgspec.structs.replace(BlobReader(content).metadata(), **changes)
    return altered(content, METADATA=msgspec.msgpack.encode(meta))


def result(info: ErrorInfo) -> ZeResult:
    assert info.object
    assert info.found
    return ZeResult(info.result)


def _content(fd: int) -> bytes:
    try:
        assert linux.has_seals(fd, linux.SEALS_IMMUTABLE)
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)

"""What a compile job and an import job do, step by step.

A blob keeps the original XML and a reference to the original weights: writing the reshaped model again
would copy all its constants. `GraphMeta.shapes` says what has to be reshaped when it is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import openvino as ov

from softnpu.driver.compiler import checks, files, ir, options
from softnpu.driver.compiler.stages import Stages
from softnpu.emulator.interface import linux
from softnpu.emulator.interface.blob import (
    ArgumentMeta,
    BlobReader,
    GraphMeta,
    Section,
    WeightsReference,
    pack,
)
from softnpu.emulator.interface.channel import Packet
from softnpu.emulator.interface.compiling import Compiled, CompileJob, ImportJob
from softnpu.emulator.interface.messages import WeightSource
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

COMPILER = "softnpu-compiler 1.0"
_LOGGED = {"LOG_INFO", "LOG_DEBUG", "LOG_TRACE"}


@dataclass(frozen=True)
class Product:
    """A finished job: the answer, and the descriptor that goes with it. Whoever holds it closes `fd`."""

    answer: Compiled
    fd: int


class Compiler:
    """Runs jobs with one OpenVINO runtime, which is kept between jobs, so that its plugin is loaded once.

    Nothing of a job outlives it: no model, no mapping, no descriptor besides that of the product.
    """

    def __init__(self) -> None:
        self._core = ov.Core()
        self._capabilities = tuple(self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"))

    def compile(self, job: CompileJob, packet: Packet, stages: Stages) -> Product:
        """Compiles the IR of `packet`. `Refused` if that cannot be, `OSError` if a file cannot be read."""
        subject = f"model '{job.name}'"
        stages.begin("receive")
        with _descriptors(packet, job.weights) as fds:
            settings = options.effective(job.config, job.platform, self._capabilities, subject)
            xml = files.read_xml(fds[0], job.xml_length, f"{subject}, IR")
            weights = _map_weights(fds, job.weights, subject)

        stages.begin("read")
        model = ir.read(self._core, xml, weights, subject)
        stages.begin("shape")
        shapes = ir.reshape(model, job.shapes, subject)
        stages.begin("check")
        arguments = checks.arguments(model, subject)
        checks.check_operations(self._core, model, settings.precision, subject)
        meta = GraphMeta(
            name=job.name or model.get_friendly_name(),
            platform=job.platform,
            precision=settings.precision,
            config=settings.engine,
            arguments=arguments,
            operations=len(model.get_ops()),
            openvino=ov.get_version(),
            compiler=COMPILER,
            shapes=shapes,
        )
        del model  # its constants point into the mapping, which is read once more and then let go

        stages.begin("weights")
        digest = files.digest(weights, stages.advance) if weights else b""
        stages.begin("pack")
        blob = _packed(meta, xml, len(weights) if weights else 0, digest)
        stages.note(f"{meta.operations} operations, precision {meta.precision}, blob of {len(blob)} bytes")
        answer = Compiled(
            blob_length=len(blob),
            blob_digest=files.digest(memoryview(blob), _unreported),
            weights_digest=digest,
            log=stages.log() if settings.log_level in _LOGGED else "",
        )
        return Product(answer, linux.sealed_copy("blob", blob))

    def import_blob(self, job: ImportJob, packet: Packet, stages: Stages) -> Product:
        """Checks the blob of `packet` as if its content came from an enemy; refuses what is not whole.

        Weights that come with a blob that needs none are not looked at.
        """
        stages.begin("receive")
        with _descriptors(packet, job.weights) as fds:
            fd = files.immutable(fds[0], job.blob_length, "blob")
            try:
                blob = files.map_range(fd, 0, job.blob_length, "blob")
                reader = BlobReader(blob)
                meta = reader.metadata()
                self._check_target(meta, job.platform)
                stages.begin("weights")
                weights, weights_digest = _import_weights(reader, meta.name, fds, job.weights, stages)
                self._check_content(reader, meta, weights, stages)
                answer = Compiled(
                    blob_length=job.blob_length,
                    blob_digest=files.digest(blob, _unreported),
                    weights_digest=weights_digest,
                )
            except BaseException:
                os.close(fd)
                raise
        return Product(answer, fd)

    def _check_target(self, meta: GraphMeta, platform: str) -> None:
        """Refuses a blob that is for another platform, or not configured as this compiler does it."""
        subject = f"model '{meta.name}'"
        if meta.platform != platform:
            hint = "compile the model for this device"
            raise _invalid(f"{subject}, platform", f"'{meta.platform}'", f"'{platform}'", hint)
        settings = options.effective(meta.config, platform, self._capabilities, subject)
        if meta.config != settings.engine:
            raise _invalid(f"{subject}, config", f"{meta.config}", f"{settings.engine}")
        if meta.precision != settings.precision:
            raise _invalid(f"{subject}, precision", f"'{meta.precision}'", f"'{settings.precision}'")

    def _check_content(
        self, reader: BlobReader, meta: GraphMeta, weights: memoryview | None, stages: Stages
    ) -> None:
        """Refuses a blob whose IR cannot be read or is not what its metadata says."""
        subject = f"model '{meta.name}'"
        stages.begin("read")
        xml = bytes(reader.read(Section.IR))
        model = ir.read(self._core, xml, weights, subject, ZeResult.ERROR_INVALID_NATIVE_BINARY)
        stages.begin("shape")
        ir.reshape(model, meta.shapes, subject)
        stages.begin("check")
        # the engine binds client memory by what the metadata says, so it has to be what the IR says
        found, expected = _binding(meta.arguments), _binding(checks.arguments(model, subject))
        if found != expected:
            raise _invalid(f"{subject}, arguments", _first_difference(found, expected), "those of the IR")


@contextmanager
def _descriptors(packet: Packet, weights: WeightSource | None) -> Iterator[list[int]]:
    """The job's descriptors: the model, then the weights if there are any; closed after the block."""
    fds = packet.take_fds(1 if weights is None else 2)
    try:
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def _map_weights(fds: list[int], source: WeightSource | None, subject: str) -> memoryview | None:
    # a model without constants has an empty weights file
    if source is None or source.length == 0:
        return None
    return files.map_range(fds[1], source.offset, source.length, f"{subject}, weights")


def _packed(meta: GraphMeta, xml: bytes, weights_length: int, digest: bytes) -> bytes:
    sections: dict[Section, bytes | memoryview] = {
        Section.METADATA: msgspec.msgpack.encode(meta),
        Section.IR: xml,
    }
    if weights_length:
        reference = WeightsReference(length=weights_length, digest=digest)
        sections[Section.WEIGHTS_REFERENCE] = msgspec.msgpack.encode(reference)
    return pack(sections)


def _import_weights(
    reader: BlobReader, name: str, fds: list[int], source: WeightSource | None, stages: Stages
) -> tuple[memoryview | None, bytes]:
    """The weights of a blob, from inside it or checked against its reference; the digest if outside."""
    subject = f"model '{name}'"
    reference = reader.weights_reference()
    if reader.has(Section.WEIGHTS):
        if reference:
            raise _invalid(f"{subject}, weights", "both embedded and referenced", "one of the two")
        return reader.read(Section.WEIGHTS) or None, b""
    if reference is None:
        return None, b""
    hint = "give the weights file that the model was compiled with"
    if source is None or source.length != reference.length:
        found = f"{source.length} bytes" if source else "none came with the blob"
        raise _wrong_weights(subject, found, f"{reference.length} bytes", hint)
    weights = files.map_range(fds[1], source.offset, source.length, f"{subject}, weights")
    digest = files.digest(weights, stages.advance)
    if digest != reference.digest:
        hint = f"this is the wrong weights file; {hint}"
        raise _wrong_weights(subject, f"blake3 {_short(digest)}", _short(reference.digest), hint)
    return weights, digest


def _binding(arguments: tuple[ArgumentMeta, ...]) -> list[str]:
    """What binding memory depends on, one line an argument; names may differ between OpenVINO versions."""
    return [
        f"{'input' if argument.input else 'output'} {argument.element_type} {list(argument.shape)}"
        f" {argument.byte_size} bytes"
        for argument in arguments
    ]


def _first_difference(found: list[str], expected: list[str]) -> str:
    if len(found) != len(expected):
        return f"{len(found)} arguments, the IR has {len(expected)}"
    return next(
        f"argument {index} is {a}, in the IR {b}"
        for index, (a, b) in enumerate(zip(found, expected, strict=True))
        if a != b
    )


def _wrong_weights(subject: str, found: str, expected: str, hint: str) -> Refused:
    return refuse(ZeResult.ERROR_INVALID_ARGUMENT, f"{subject}, weights", found, expected, hint)


def _invalid(subject: str, found: str, expected: str, hint: str = "compile the model again") -> Refused:
    return refuse(ZeResult.ERROR_INVALID_NATIVE_BINARY, f"blob, {subject}", found, expected, hint)


def _short(digest: bytes) -> str:
    return digest.hex()[:16]


def _unreported(_: float) -> None:
    """Digests of blobs are quick: their progress is not told."""

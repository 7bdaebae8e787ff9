"""The request and the result of a compile job: the two records passed between its steps."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from softnpu.emulator.blob.container import SECURE
from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.compiler import build_flags, files, onnx_file, options
from softnpu.emulator.compiler.build_flags import BuildFlags
from softnpu.emulator.compiler.constants_file import ConstantsFile
from softnpu.emulator.compiler.digests import WeightDigests
from softnpu.emulator.compiler.options import Settings
from softnpu.emulator.interface.messages import GraphFlag
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.kernels import carried
from softnpu.emulator.links.compiler import CompileJob


class CompileRequest(msgspec.Struct, frozen=True):
    """A compile job, checked; its weights are mapped, `digests` are theirs.

    `xml` is the model, in the file `fd`: an IR, or a whole file of the job's format.
    """

    job: CompileJob
    subject: str
    settings: Settings
    flags: BuildFlags
    xml: bytes | memoryview
    fd: int
    kernels: list[bytes]
    weights: WeightSpace | None
    digests: WeightDigests | None

    @classmethod
    def receive(cls, job: CompileJob, fds: list[int], subject: str) -> CompileRequest:
        """Check a job and map its files. `fds` stay the caller's."""
        flags = build_flags.parse(job.build_flags, subject)
        if job.format:
            model = onnx_file.mapped(job, fds[0], subject)
            return cls(job, subject, settings(job, subject), flags, model, fds[0], [], None, None)
        xml, kernels = carried.take(files.read_xml(fds[0], job.xml_length, f"{subject}, IR"), subject)
        sources = fds[1 : 1 + len(job.weights)]
        weights = WeightSpace(job.weights, sources, subject) if job.weights else None
        digests = None if weights is None else WeightDigests(weights)
        if digests is not None and job.digests_length:
            digests.learn(os.pread(fds[-1], job.digests_length, 0))
        return cls(job, subject, settings(job, subject), flags, xml, fds[0], kernels, weights, digests)


def settings(job: CompileJob, subject: str) -> Settings:
    """Return the settings from a job's properties, build flags and flags."""
    flags = build_flags.parse(job.build_flags, subject)
    known = int(~GraphFlag.NONE)
    if job.flags & ~known or job.flags < 0:
        raise refuse(
            ZeResult.ERROR_INVALID_ENUMERATION,
            f"{subject}, flags",
            found=f"{job.flags:#x}",
            expected=f"bits of {known:#x}",
        )
    config = options.merged(job.config, flags.config, subject)
    if job.flags & GraphFlag.ENABLE_PROFILING:
        config[options.PROFILING] = "YES"
    if job.flags & GraphFlag.SECURE_COMPILE:
        config[SECURE] = "YES"
    return options.effective(config, job.platform, subject, flags.config).made_strict(job.strict)


class CompiledModel(msgspec.Struct, frozen=True):
    """The parts of the blob, the encoded placement, and where it came from; maybe a file with one part."""

    parts: Sequence[bytes | memoryview]
    placement: bytes
    origin: str
    file: ConstantsFile | None = None

    @property
    def length(self) -> int:
        """Bytes of the blob."""
        return sum(map(len, self.parts))

"""The private protocol between the supervisor and a compiler worker.

The worker is a program that gets the descriptor of its channel. It answers each job with any number of
`Progress` and then one outcome or `Failed`, all with the request id of the job. It keeps no state between
jobs: killing the worker cancels its job.
"""

from __future__ import annotations

import msgspec

from softnpu.emulator.interface.messages import (
    CacheOptions,
    CompilerOptionsAnswer,
    Failed,
    GraphExported,
    GraphQueried,
    Message,
    Progress,
    WeightSource,
)


class CompileJob(Message, frozen=True, kw_only=True, tag="compile_job"):
    """Compile an IR. Descriptors: the XML, then the sources of the weights. Outcome: `Compiled`.

    The fields mean the same as in `messages.GraphCreate`.
    """

    name: str
    platform: str
    xml_length: int
    weights: tuple[WeightSource, ...] = ()
    config: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    build_flags: str = ""
    flags: int = 0
    input_hash: int | None = None
    cache: CacheOptions | None = None


class ImportJob(Message, frozen=True, kw_only=True, tag="import_job"):
    """Check a native blob for `platform`. Outcome: `Compiled`.

    Descriptors: the blob, the placement if it has a length, then the sources of the weights. `deferred`: the
    engine compares the constants with their digests.
    """

    platform: str
    blob_length: int
    placement_length: int = 0
    weights: tuple[WeightSource, ...] = ()
    deferred: bool = False


class ExportJob(Message, frozen=True, kw_only=True, tag="export_job"):
    """Put the weights of a compiled model into its blob. Outcome: `GraphExported`.

    Descriptors as in `ImportJob`; blob and placement are those of a `Compiled`. With `offset` a file follows
    as the last descriptor: the result is written there from this byte on, and the outcome has no descriptor.
    """

    blob_length: int
    placement_length: int = 0
    weights: tuple[WeightSource, ...] = ()
    offset: int | None = None


class QueryJob(Message, frozen=True, kw_only=True, tag="query_job"):
    """List the layers of an IR that the device executes. Descriptors as in `CompileJob`.

    Outcome: `GraphQueried`. The fields mean the same as in `messages.GraphQuery`.
    """

    name: str
    platform: str
    xml_length: int
    weights: tuple[WeightSource, ...] = ()
    build_flags: str = ""


class OptionsJob(Message, frozen=True, kw_only=True, tag="options_job"):
    """List the options, and answer `messages.CompilerOptions`.

    Outcome: `CompilerOptionsAnswer`, without a descriptor.
    """

    platform: str
    option: str = ""
    value: str | None = None


class Compiled(Message, frozen=True, kw_only=True, tag="compiled"):
    """Descriptors: the blob, then the placement if it has a length; memory files with `SEALS_IMMUTABLE`.

    Digests are blake3. The blob is the same wherever the constants lie; the placement says where they do.
    `origin` is `compiled`, `cache` or `native`, `log` the build log. `platform` is what it was compiled for;
    empty for that of the device.
    """

    blob_length: int
    blob_digest: bytes
    placement_length: int = 0
    placement_digest: bytes = b""
    origin: str = "compiled"
    platform: str = ""
    log: str = ""


Job = CompileJob | ImportJob | ExportJob | QueryJob | OptionsJob
Result = Compiled | GraphExported | GraphQueried | CompilerOptionsAnswer
Outcome = Progress | Result | Failed

job_decoder: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)
outcome_decoder: msgspec.msgpack.Decoder[Outcome] = msgspec.msgpack.Decoder(Outcome)

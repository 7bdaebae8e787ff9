"""The private protocol between the supervisor and a compiler worker.

The worker is a program that gets the descriptor of its channel. It answers each job with any number of
`Progress` and then one outcome or `Failed`, all with the job's request id. It keeps no state between jobs:
killing the worker cancels its job.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from softnpu.emulator.interface.handles import Handle
from softnpu.emulator.interface.messages import (
    CompilerOptions,
    CompilerOptionsAnswer,
    Failed,
    GraphCreate,
    GraphExported,
    GraphImport,
    GraphQueried,
    GraphQuery,
    Message,
    Progress,
    WeightSource,
)
from softnpu.emulator.links.bounds import BadMessageError


class CompileJob(GraphCreate, frozen=True, kw_only=True, tag="compile_job"):
    """Compile an IR for `platform`. Descriptors and fields as in `GraphCreate`. Outcome: `Compiled`.

    `strict`: refuse what silicon is known to refuse, as the property NPU_STRICT does. `kernels`: which own
    kernels run. `digests_length`: only from the worker to its sandboxed process: the length of a last
    descriptor, with the digests of constants that the worker has computed for its cache.
    """

    platform: str
    context: Handle = 0
    strict: bool = False
    kernels: str = "all"
    digests_length: int = 0
    shared: bool = False


class ImportJob(GraphImport, frozen=True, kw_only=True, tag="import_job"):
    """Check a native blob for `platform`. Descriptors and fields as in `GraphImport`. Outcome: `Compiled`.

    `deferred`: the engine checks the constants against their digests. `strict`: accept only blobs compiled
    strictly. `remembered`: record checked blobs, and do not check recorded ones again. `is_checked`: only
    from the worker to its sandboxed process.
    """

    platform: str
    context: Handle = 0
    strict: bool = False
    remembered: bool = False
    is_checked: bool = False
    shared: bool = False


class ExportJob(Message, frozen=True, kw_only=True, tag="export_job"):
    """Put the weights of a compiled model into its blob. Outcome: `GraphExported`.

    Descriptors as in `ImportJob`; blob and placement are those of a `Compiled`. With `offset` a file follows
    as the last descriptor: the result is written there from this byte on, and the outcome has no descriptor.
    """

    blob_length: int
    placement_length: int = 0
    weights: tuple[WeightSource, ...] = ()
    offset: int | None = None
    shared: bool = False


class QueryJob(GraphQuery, frozen=True, kw_only=True, tag="query_job"):
    """List the layers of an IR that `platform` executes. Descriptors and fields as in `GraphQuery`.

    `strict`: omit layers that silicon is known to refuse. `kernels`: which own kernels run, if only to tell
    shapes. Outcome: `GraphQueried`.
    """

    platform: str
    context: Handle = 0
    strict: bool = False
    kernels: str = "all"
    shared: bool = False


class OptionsJob(CompilerOptions, frozen=True, kw_only=True, tag="options_job"):
    """Answer `CompilerOptions`. Outcome: `CompilerOptionsAnswer`, without a descriptor."""

    platform: str
    device: int = 0
    shared: bool = False


class Compiled(Message, frozen=True, kw_only=True, tag="compiled"):
    """Descriptors: the blob, then the placement if its length is not 0; memory files with `SEALS_IMMUTABLE`.

    Digests are blake3; the worker computes them, whatever it is told of them by what looked at the model. The
    blob is independent of the location of the constants, which the placement gives.
    `origin` is `compiled`, `cache` or `native`, `log` the build log. `platform` is the one it was compiled
    for; empty for that of the device. `name`: that of the model. `files`: `file_identities` of the sources of
    the weights, taken before they were read; of all sources of a deferred import.
    """

    blob_length: int
    blob_digest: bytes = b""
    placement_length: int = 0
    placement_digest: bytes = b""
    origin: str = "compiled"
    platform: str = ""
    log: str = ""
    name: str = ""
    files: tuple[bytes, ...] = ()


class Started(Message, frozen=True, kw_only=True, tag="started"):
    """A process that works for the worker.

    For request 0, in the worker's first frame: the one that loads what all jobs need. For any other: the one
    that does this job.
    """

    pid: int


J = TypeVar("J", bound=Message)


def job_of(kind: type[J], request: Message, **fields: object) -> J:
    """Build the job that serves a request, with additional fields."""
    return kind(**(msgspec.structs.asdict(request) | fields))


Job = CompileJob | ImportJob | ExportJob | QueryJob | OptionsJob
"""`shared`, in all of them: the daemon has other users, whose jobs debuggers of its own user must not see."""
Result = Compiled | GraphExported | GraphQueried | CompilerOptionsAnswer
Outcome = Progress | Result | Failed

job_decoder: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)
outcome_decoder: msgspec.msgpack.Decoder[Outcome] = msgspec.msgpack.Decoder(Outcome)
worker_decoder: msgspec.msgpack.Decoder[Outcome | Started] = msgspec.msgpack.Decoder(Outcome | Started)


_RESULTS: dict[type[Message], type[Message]] = {
    CompileJob: Compiled,
    ImportJob: Compiled,
    ExportJob: GraphExported,
    QueryJob: GraphQueried,
    OptionsJob: CompilerOptionsAnswer,
}


def lengths_of(outcome: Outcome, job: Job) -> tuple[int, ...]:
    """Return the lengths of the files sent with an outcome of this job.

    Raises `BadMessageError` for an outcome of another kind of job.
    """
    if isinstance(outcome, Result) and not isinstance(outcome, _RESULTS[type(job)]):
        raise BadMessageError(f"{type(outcome).__name__} as the outcome of {type(job).__name__}")
    match outcome:
        case Compiled(placement_length=0):
            return (outcome.blob_length,)
        case Compiled():
            return outcome.blob_length, outcome.placement_length
        case GraphExported() if isinstance(job, ExportJob) and job.offset is None:
            return (outcome.blob_length,)
        case GraphQueried():
            return (outcome.length,)
    return ()

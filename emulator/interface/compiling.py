"""What the supervisor and a compiler worker say to each other, over a channel of its own.

The worker is started as a program with the descriptor of its channel. It answers every job with any
number of `Progress` and then one `Compiled` or `Failed`, all with the request id of the job. It holds
no state between jobs: a job is cancelled by killing the worker.
"""

from __future__ import annotations

import msgspec

from softnpu.emulator.interface.messages import CacheOptions, Failed, Message, Progress, WeightSource


class CompileJob(Message, frozen=True, kw_only=True, tag="compile_job"):
    """Compile an IR. Descriptors: the XML, then the weights if `weights` is given.

    The fields mean the same as in `messages.GraphCreate`.
    """

    name: str
    platform: str
    xml_length: int
    weights: WeightSource | None = None
    config: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    cache: CacheOptions | None = None


class ImportJob(Message, frozen=True, kw_only=True, tag="import_job"):
    """Check a native blob for `platform`. Descriptors: the blob, then the weights if `weights` is given."""

    platform: str
    blob_length: int
    weights: WeightSource | None = None


class Compiled(Message, frozen=True, kw_only=True, tag="compiled"):
    """Descriptor: the blob, a memory file with `SEALS_IMMUTABLE`.

    `blob_digest` is the blake3 of the blob, `weights_digest` that of the weights outside it (empty if
    there are none), `log` the build log.
    """

    blob_length: int
    blob_digest: bytes
    weights_digest: bytes = b""
    log: str = ""


Job = CompileJob | ImportJob
Outcome = Progress | Compiled | Failed

job_decoder: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)
outcome_decoder: msgspec.msgpack.Decoder[Outcome] = msgspec.msgpack.Decoder(Outcome)

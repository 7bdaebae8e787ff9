"""What supervisor and compiler worker say to each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from softnpu.emulator.interface import messages
from softnpu.emulator.interface.messages import Message, WeightSource
from softnpu.emulator.links import compiler as link

_VECTORS: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "vectors.json").read_text())[
    "compiling"
]
_WEIGHTS = (WeightSource(offset=4096, length=65536),)
_CASES: dict[str, tuple[Message, Message]] = {
    "compile_job": (
        link.CompileJob(
            must=("weights",),
            name="net",
            platform="4000",
            xml_length=1000,
            weights=_WEIGHTS,
            config={"INFERENCE_PRECISION_HINT": "f32"},
            shapes={"image": (1, 3, 224, 224)},
            build_flags='--inputs_precisions="0:FP16"',
            flags=3,
            input_hash=2**64 - 1,
            cache=messages.CacheOptions(directory="/cache", limit=2**32),
        ),
        link.CompileJob(name="net", platform="4000", xml_length=1000),
    ),
    "import_job": (
        link.ImportJob(
            must=("weights",),
            platform="4000",
            blob_length=12345,
            placement_length=99,
            weights=_WEIGHTS,
            deferred=True,
        ),
        link.ImportJob(platform="4000", blob_length=12345),
    ),
    "export_job": (
        link.ExportJob(
            must=("weights",), blob_length=12345, placement_length=99, weights=_WEIGHTS, offset=4096
        ),
        link.ExportJob(blob_length=12345),
    ),
    "query_job": (
        link.QueryJob(
            must=("weights",),
            name="net",
            platform="4000",
            xml_length=1000,
            weights=_WEIGHTS,
            build_flags='--config PERF_COUNT="YES"',
        ),
        link.QueryJob(name="net", platform="4000", xml_length=1000),
    ),
    "options_job": (
        link.OptionsJob(must=("value",), platform="4000", option="PERF_COUNT", value="YES"),
        link.OptionsJob(platform="4000"),
    ),
    "compiled": (
        link.Compiled(
            must=("log",),
            blob_length=12345,
            blob_digest=bytes(range(32)),
            placement_length=99,
            placement_digest=bytes(range(32, 64)),
            origin="cache",
            platform="3720",
            log="done",
        ),
        link.Compiled(blob_length=12345, blob_digest=bytes(range(32))),
    ),
}


def _decode(tag: str, body: bytes) -> Message:
    if tag == "compiled":
        return link.outcome_decoder.decode(body)
    return link.job_decoder.decode(body)


@pytest.mark.parametrize("tag", _CASES)
def test_the_full_vector_sets_every_field(tag: str) -> None:
    full = _CASES[tag][0]
    assert set(msgspec.msgpack.decode(messages.encode(full))) == {"t", *full.__struct_fields__}


@pytest.mark.parametrize("form", ["full", "minimal"])
@pytest.mark.parametrize("tag", _CASES)
def test_a_message_keeps_its_bytes(tag: str, form: str) -> None:
    message = _CASES[tag][form == "minimal"]
    assert messages.encode(message).hex() == _VECTORS[tag][form]
    assert _decode(tag, bytes.fromhex(_VECTORS[tag][form])) == message


@pytest.mark.parametrize("tag", _CASES)
def test_a_message_without_one_of_its_required_fields_is_refused_by_its_name(tag: str) -> None:
    plain: dict[str, Any] = msgspec.msgpack.decode(messages.encode(_CASES[tag][1]))
    for name in plain.keys() - {"t"}:
        body = msgspec.msgpack.encode({key: value for key, value in plain.items() if key != name})
        with pytest.raises(msgspec.ValidationError, match=f"`{name}`"):
            _decode(tag, body)


def test_a_job_ends_with_progress_behind_it_or_a_refusal() -> None:
    progress = messages.Progress(stage="read", done=0.25)
    assert link.outcome_decoder.decode(messages.encode(progress)) == progress


def test_an_outcome_is_not_a_job() -> None:
    with pytest.raises(msgspec.ValidationError):
        link.job_decoder.decode(messages.encode(_CASES["compiled"][0]))

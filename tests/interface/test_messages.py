"""Control messages: their bytes, how they grow, and that a decoder survives any bytes."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softnpu.emulator.interface import messages
from softnpu.emulator.interface.messages import Message
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult
from tests.interface.injection_cases import INJECTION_CASES

_VECTORS: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "vectors.json").read_text())[
    "messages"
]
_CONTEXT, _MEMORY, _QUEUE, _GRAPH = (
    0x0100000100000000,
    0x0200000100000001,
    0x0300000100000002,
    0x0400000100000003,
)

_DEVICE = messages.DeviceInfo(
    index=1,
    platform="4000",
    name="Intel(R) AI Boost",
    device_id=0x643E,
    revision=3,
    tiles=6,
    slices=1,
    simd_width=4,
    eus_per_subslice=2048,
    core_clock_mhz=1950,
    timer_ns_per_tick=26.041666,
    memory_total=2**34,
    uuid=bytes(range(16)),
)
_LIMITS = messages.Limits(
    session_memory=2**33,
    contexts=64,
    allocations=4096,
    queues=128,
    graphs=256,
    compiles=4,
    queue_slots=4096,
    command_buffer=16777216,
    tdr_ms=2000,
)
_ENGINE = messages.EngineStatus(
    device=_DEVICE,
    engine_pid=4321,
    state="ready",
    restarts=1,
    memory_used=2**20,
    contexts=2,
    queues=3,
    graphs=4,
    images=5,
    submissions=600,
    commands=7000,
    inferences=80000,
    faults=9,
    busy_ns=10**12,
    staged_bytes=11,
    heartbeat_ns=2**40,
    hangs=12,
    aborted=13,
    offences=14,
    refusals=15,
    tile_busy_ns=10**11,
    overlapped=16,
    running=1,
)
_SESSION = messages.SessionStatus(
    session=7,
    pid=99,
    client="test",
    role="session",
    memory_used=4096,
    contexts=1,
    allocations=2,
    queues=3,
    graphs=4,
    uid=1000,
)
_USER = messages.UserStatus(
    uid=1000,
    connections=9,
    sessions=8,
    memory_used=8192,
    handles=7,
    queues=6,
    graphs=5,
    compiles=4,
    refusals=3,
)
_WEIGHTS = messages.WeightSource(offset=4096, length=65536)
_RING = messages.MemAllocated(memory=_MEMORY, segment=5, segment_size=2**21, offset=8192, fresh=False)

_CASES: dict[str, tuple[Message, Message]] = {
    "hello": (
        messages.Hello(must=("major",), major=1, minor=0, client="test", role="monitor"),
        messages.Hello(major=1, minor=0, client="test"),
    ),
    "context_create": (
        messages.ContextCreate(must=("device",), device=1),
        messages.ContextCreate(device=0),
    ),
    "context_destroy": (
        messages.ContextDestroy(must=("context",), context=_CONTEXT),
        messages.ContextDestroy(context=_CONTEXT),
    ),
    "mem_alloc": (
        messages.MemAlloc(
            must=("kind",), context=_CONTEXT, kind="device", size=2**33, alignment=4096, exportable=True
        ),
        messages.MemAlloc(context=_CONTEXT, kind="host", size=64),
    ),
    "mem_import": (
        messages.MemImport(must=("kind",), context=_CONTEXT, kind="shared"),
        messages.MemImport(context=_CONTEXT, kind="host"),
    ),
    "mem_free": (
        messages.MemFree(must=("memory",), memory=(_MEMORY, _MEMORY + 1)),
        messages.MemFree(memory=()),
    ),
    "queue_create": (
        messages.QueueCreate(must=("turbo",), context=_CONTEXT, slots=256, priority="high", turbo=True),
        messages.QueueCreate(context=_CONTEXT, slots=2),
    ),
    "queue_workload": (
        messages.QueueWorkload(must=("background",), queue=_QUEUE, background=True),
        messages.QueueWorkload(queue=_QUEUE, background=False),
    ),
    "queue_destroy": (
        messages.QueueDestroy(must=("queue",), queue=_QUEUE),
        messages.QueueDestroy(queue=_QUEUE),
    ),
    "graph_create": (
        messages.GraphCreate(
            must=("weights", "config"),
            context=_CONTEXT,
            name="net",
            xml_length=1000,
            weights=(_WEIGHTS, messages.WeightSource(offset=0, length=1)),
            config={"INFERENCE_PRECISION_HINT": "f32"},
            shapes={"image": (1, 3, 224, 224)},
            build_flags='--inputs_precisions="0:FP16"',
            flags=3,
            input_hash=2**64 - 1,
            cache=messages.CacheOptions(directory="/cache", limit=2**32),
        ),
        messages.GraphCreate(context=_CONTEXT, name="net", xml_length=1000),
    ),
    "graph_import": (
        messages.GraphImport(
            must=("weights",),
            context=_CONTEXT,
            blob_length=12345,
            placement_length=99,
            weights=(_WEIGHTS,),
            flags=4,
            deferred=True,
        ),
        messages.GraphImport(context=_CONTEXT, blob_length=12345),
    ),
    "graph_blob": (messages.GraphBlob(must=("graph",), graph=_GRAPH), messages.GraphBlob(graph=_GRAPH)),
    "graph_export": (
        messages.GraphExport(must=("graph",), graph=_GRAPH, offset=4096),
        messages.GraphExport(graph=_GRAPH),
    ),
    "graph_query": (
        messages.GraphQuery(
            must=("weights",),
            context=_CONTEXT,
            name="net",
            xml_length=1000,
            weights=(_WEIGHTS,),
            build_flags='--config PERF_COUNT="YES"',
        ),
        messages.GraphQuery(context=_CONTEXT, name="net", xml_length=1000),
    ),
    "compiler_options": (
        messages.CompilerOptions(must=("value",), device=1, option="PERF_COUNT", value="YES"),
        messages.CompilerOptions(device=0),
    ),
    "graph_initialize": (
        messages.GraphInitialize(must=("graph",), graph=_GRAPH),
        messages.GraphInitialize(graph=_GRAPH),
    ),
    "graph_destroy": (
        messages.GraphDestroy(must=("graph",), graph=_GRAPH),
        messages.GraphDestroy(graph=_GRAPH),
    ),
    "cancel": (messages.Cancel(must=("request",), request=77), messages.Cancel(request=77)),
    "context_memory": (
        messages.ContextMemory(must=("context",), context=_CONTEXT),
        messages.ContextMemory(context=_CONTEXT),
    ),
    "status": (messages.Status(must=("must",)), messages.Status()),
    "stop": (messages.Stop(must=("must",)), messages.Stop()),
    "ok": (messages.Ok(must=("must",)), messages.Ok()),
    "failed": (
        messages.Failed(
            must=("fault",),
            info=ErrorInfo(
                result=0x78000004, object="queue", found="3", expected="a power of two", hint="use 4"
            ),
        ),
        messages.Failed(info=ErrorInfo(result=0x70000001, object="device 0", found="engine lost")),
    ),
    "welcome": (
        messages.Welcome(
            must=("limits",),
            major=1,
            minor=0,
            server="softnpu 0.1.0",
            pid=1234,
            session=7,
            devices=(_DEVICE,),
            limits=_LIMITS,
        ),
        messages.Welcome(major=1, minor=0, server="", pid=1, session=1, devices=(), limits=_LIMITS),
    ),
    "context_created": (
        messages.ContextCreated(must=("context",), context=_CONTEXT),
        messages.ContextCreated(context=_CONTEXT),
    ),
    "mem_allocated": (
        messages.MemAllocated(
            must=("segment",), memory=_MEMORY, segment=5, segment_size=2**21, offset=8192, fresh=True
        ),
        _RING,
    ),
    "queue_created": (
        messages.QueueCreated(must=("ring",), queue=_QUEUE, ring=_RING),
        messages.QueueCreated(queue=_QUEUE, ring=_RING),
    ),
    "progress": (
        messages.Progress(must=("done",), stage="compile", done=0.5),
        messages.Progress(stage="", done=0.0),
    ),
    "graph_created": (
        messages.GraphCreated(
            must=("log",), graph=_GRAPH, blob_length=12345, compile_ms=1.5, log="done", origin="cache"
        ),
        messages.GraphCreated(graph=_GRAPH, blob_length=12345, compile_ms=1.5),
    ),
    "graph_blob_is": (
        messages.GraphBlobIs(must=("placement_length",), blob_length=12345, placement_length=99),
        messages.GraphBlobIs(blob_length=12345),
    ),
    "graph_exported": (
        messages.GraphExported(must=("blob_length",), blob_length=12345),
        messages.GraphExported(blob_length=12345),
    ),
    "graph_queried": (
        messages.GraphQueried(must=("length",), length=2000),
        messages.GraphQueried(length=0),
    ),
    "compiler_options_are": (
        messages.CompilerOptionsAre(
            must=("opset",), major=7, minor=6, opset=16, options=("PERF_COUNT",), supported=True
        ),
        messages.CompilerOptionsAre(major=7, minor=6, opset=16, options=()),
    ),
    "graph_initialized": (
        messages.GraphInitialized(must=("shared",), load_ms=2.5, shared=True),
        messages.GraphInitialized(load_ms=2.5, shared=False),
    ),
    "context_memory_is": (
        messages.ContextMemoryIs(must=("total",), total=2**34, allocated=4096, graphs=2**20),
        messages.ContextMemoryIs(total=0, allocated=0),
    ),
    "status_is": (
        messages.StatusIs(
            must=("sessions",),
            pid=1234,
            server="softnpu 0.1.0",
            socket="/run/user/1000/softnpu/softnpu.sock",
            uptime_s=12.5,
            interface="1.0",
            compiler_pids=(4322, 4323),
            engines=(_ENGINE,),
            session_count=1,
            sessions=(_SESSION,),
            users=(_USER,),
        ),
        messages.StatusIs(
            pid=1,
            server="",
            socket="",
            uptime_s=0.0,
            interface="1.0",
            compiler_pids=(),
            engines=(),
            session_count=0,
            sessions=(),
        ),
    ),
    **INJECTION_CASES,
}
_REQUEST_TAGS = [cls.__struct_config__.tag for cls in get_args(messages.Request)]
_ANSWER_TAGS = [cls.__struct_config__.tag for cls in get_args(messages.Answer)]


def _decode(tag: str, body: bytes) -> Message:
    if tag in _REQUEST_TAGS:
        return messages.decode_request(body)
    return messages.decode_answer(body)


def _with(tag: str, **fields: object) -> bytes:
    """The minimal message of `tag` with more or other fields, as a newer peer would send it."""
    plain: dict[str, Any] = msgspec.msgpack.decode(messages.encode(_CASES[tag][1]))
    return msgspec.msgpack.encode(plain | fields)


def _refusal(body: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        messages.decode_request(body)
    return caught.value


def test_every_message_has_a_vector() -> None:
    assert set(_CASES) == set(_VECTORS) == set(_REQUEST_TAGS) | set(_ANSWER_TAGS)


@pytest.mark.parametrize("tag", _CASES)
def test_the_full_vector_sets_every_field(tag: str) -> None:
    full = _CASES[tag][0]
    assert set(msgspec.msgpack.decode(messages.encode(full))) == {"t", *full.__struct_fields__}


@pytest.mark.parametrize("form", ["full", "minimal"])
@pytest.mark.parametrize("tag", _CASES)
def test_a_message_keeps_its_bytes(tag: str, form: str) -> None:
    message = _CASES[tag][form == "minimal"]
    assert messages.encode(message).hex() == _VECTORS[tag][form]


@pytest.mark.parametrize("form", ["full", "minimal"])
@pytest.mark.parametrize("tag", _CASES)
def test_a_message_decodes_from_its_bytes(tag: str, form: str) -> None:
    assert _decode(tag, bytes.fromhex(_VECTORS[tag][form])) == _CASES[tag][form == "minimal"]


@pytest.mark.parametrize("tag", _CASES)
def test_a_message_without_one_of_its_required_fields_is_refused_by_its_name(tag: str) -> None:
    plain: dict[str, Any] = msgspec.msgpack.decode(messages.encode(_CASES[tag][1]))
    for name in plain.keys() - {"t"}:
        body = msgspec.msgpack.encode({key: value for key, value in plain.items() if key != name})
        with pytest.raises(Refused, match=f"`{name}`"):
            _decode(tag, body)


@pytest.mark.parametrize("tag", _CASES)
def test_an_unknown_optional_field_is_skipped(tag: str) -> None:
    assert _decode(tag, _with(tag, colour={"deep": [1, 2, None]})) == _CASES[tag][1]


@pytest.mark.parametrize("tag", _CASES)
def test_an_unknown_required_field_is_refused_by_its_name(tag: str) -> None:
    with pytest.raises(Refused) as caught:
        _decode(tag, _with(tag, colour="red", must=("colour",)))
    assert caught.value.info.result == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert caught.value.info.found == "required field 'colour'"


def test_the_order_of_the_fields_is_free() -> None:
    body = msgspec.msgpack.encode({"minor": 0, "client": "test", "major": 1, "t": "hello"})
    assert messages.decode_request(body) == _CASES["hello"][1]


def test_an_answer_is_not_a_request_and_a_request_is_not_an_answer() -> None:
    assert _refusal(messages.encode(messages.Ok())).info.result == ZeResult.ERROR_INVALID_ARGUMENT
    with pytest.raises(Refused, match="stop"):
        messages.decode_answer(messages.encode(messages.Stop()))


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"major": 1, "minor": 0, "client": "test"}, "t"),
        ({"t": "hallo"}, "hallo"),
        ({"t": "hello", "major": 1, "minor": 0}, "client"),
        ({"t": "hello", "major": "1", "minor": 0, "client": ""}, "$.major"),
        ({"t": "mem_free", "memory": [1, 2.5]}, "$.memory[1]"),
        ({"t": "graph_import", "context": 1, "blob_length": 1, "weights": [{"offset": 1}]}, "$.weights[0]"),
        ([1, 2], "array"),
        (None, "None"),
    ],
)
def test_a_bad_message_is_refused_by_the_name_of_the_field(body: object, names: str) -> None:
    error = _refusal(msgspec.msgpack.encode(body))
    assert error.info.result == ZeResult.ERROR_INVALID_ARGUMENT
    assert names in error.info.found


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x82\xa1t\xa8mem_free\xa6memory\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x82\xa1t\xa4stop\xa1x" + b"\x91" * 60_000,
        b"\x84\xa1t\xa5hello\xa5major\x01\xa5minor\x00\xa6client\xa2\xff\xfe",
        b"\x81\xa1t\xa4stop!",
    ],
    ids=["nothing", "reserved byte", "huge array", "huge map", "deep nesting", "bad utf-8", "trailing byte"],
)
def test_hostile_encodings_are_refused(body: bytes) -> None:
    _refusal(body)


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_field_names = sorted({name for full, _ in _CASES.values() for name in full.__struct_fields__})


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_and_nothing_else(body: bytes) -> None:
    with contextlib.suppress(Refused):
        messages.decode_request(body)


@settings(max_examples=300)
@given(st.sampled_from(_REQUEST_TAGS), st.dictionaries(st.sampled_from(_field_names), _values, max_size=6))
def test_arbitrary_fields_are_refused_or_decoded_and_nothing_else(
    tag: str, fields: dict[str, object]
) -> None:
    with contextlib.suppress(Refused):
        messages.decode_request(_with(tag, **fields))


@settings(max_examples=300)
@given(
    st.sampled_from(_REQUEST_TAGS),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_mutated_messages_are_refused_or_decoded_and_nothing_else(
    tag: str, changes: list[tuple[int, int]]
) -> None:
    body = bytearray(bytes.fromhex(_VECTORS[tag]["full"]))
    for at, value in changes:
        body[at % len(body)] = value
    with contextlib.suppress(Refused):
        messages.decode_request(bytes(body))

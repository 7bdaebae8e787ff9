"""Blobs, IRs, weights and placements damaged behind valid checksums, and executions of accepted ones."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from blake3 import blake3

from softnpu.emulator.blob import container
from softnpu.emulator.blob.container import BlobReader, GraphMeta, Section, WeightsReference
from softnpu.emulator.common import linux
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.interface.messages import WeightSource
from softnpu.emulator.interface.records import PAGE
from tests.fuzz.attack_frames import Target
from tests.fuzz.connection import close_all
from tests.fuzz.dice import Dice
from tests.fuzz.hostile_objects import Model
from tests.fuzz.report import Tally, Violation
from tests.fuzz.rings import Arena

_AT_ONCE = 12
_ENTRY = struct.Struct("<IIQQ8x32s")
_MOST_BYTES = 1 << 20


@dataclass
class Attempt:
    """One request with its descriptors.

    `same`: no significant change, so it must be accepted. `wrong`: it must be refused.
    """

    name: str
    request: dict[str, Any]
    fds: list[int]
    same: bool = False
    executes: bool = False
    wrong: str = ""


def blobs_round(target: Target, dice: Dice, count: int, tally: Tally) -> None:
    """Run `count` imports, compilations and queries; load and execute successful imports."""
    arena = Arena(target, dice)
    try:
        for start in range(0, count, _AT_ONCE):
            attempts = [_attempt(target, dice, arena.context) for _ in range(min(_AT_ONCE, count - start))]
            try:
                _send(arena, attempts, tally)
            finally:
                close_all([fd for attempt in attempts for fd in attempt.fds])
        arena.check_works()
        arena.check_guards()
    finally:
        arena.close()


def _send(arena: Arena, attempts: list[Attempt], tally: Tally) -> None:
    encode = msgspec.msgpack.encode
    answers = arena.connection.exchange([(encode(one.request), one.fds) for one in attempts])
    for attempt, (answer, fds) in zip(attempts, answers, strict=True):
        close_all(fds)
        tally.saw(attempt.name, answer)
        if isinstance(answer, msg.Failed):
            if answer.info.object == "compiler worker" and attempt.request["t"] == "graph_import":
                raise Violation(f"{attempt.name}: a compiler worker died: {attempt.request}: {answer.info}")
            shallow = answer.info.object.startswith(("blob, magic", "control", "blob, header", "blob, total"))
            tally.deep["blobs"] += not shallow
            if attempt.same:
                raise Violation(f"{attempt.name}: refused although nothing is wrong: {answer.info}")
            continue
        tally.deep["blobs"] += 1
        if attempt.wrong:
            raise Violation(f"{attempt.name}: taken although {attempt.wrong} is wrong: {attempt.request}")
        if isinstance(answer, msg.GraphCreated):
            if attempt.executes:
                _execute(arena, answer, tally)
            arena.connection.ask(msg.GraphDestroy(graph=answer.graph))


def _execute(arena: Arena, created: msg.GraphCreated, tally: Tally) -> None:
    """Load and execute it on memory of the size given by its own metadata."""
    told, fds = arena.connection.ask(msg.GraphBlob(graph=created.graph))
    assert isinstance(told, msg.GraphBlobAnswer), told
    meta = BlobReader(os.pread(fds[0], told.blob_length, 0)).metadata()
    close_all(fds)
    ready, _ = arena.connection.ask(msg.GraphInitialize(graph=created.graph))
    tally.saw("graph loaded", ready)
    if isinstance(ready, msg.Failed) or sum(each.byte_size for each in meta.arguments) > _MOST_BYTES:
        return
    rooms = [arena.room(max(64, each.byte_size)) for each in meta.arguments]
    try:
        for room, argument in zip(rooms, meta.arguments, strict=True):
            if argument.shape_of >= 0:
                room.write(struct.pack(f"={argument.shape[0]}i", *[1] * argument.shape[0]))
        places = tuple(MemoryAt(room.handle, 0) for room in rooms)
        data = cmd.encode_buffer([cmd.encode_command(cmd.GraphExecute(created.graph, 1, places))])
        arena.buffer.write(data)
        result = arena.queue.wait(arena.queue.submit(arena.buffer, len(data)))
        (tally.refused if result else tally.accepted)["execution of a blob"] += 1
        if result:
            tally.info(arena.queue.info())
            if arena.queue.lost:
                arena.new_queue()
    finally:
        arena.connection.ask(msg.MemFree(memory=tuple(room.handle for room in rooms)))


def _attempt(target: Target, dice: Dice, context: int) -> Attempt:
    model = dice.pick(target.models)
    way = dice.choices(("sections", "header", "weights", "placement", "ir"), (10, 4, 4, 2, 3))[0]
    makers: dict[str, Callable[[Dice, Model, int], Attempt]] = {
        "sections": _sections,
        "header": _header,
        "weights": _weights,
        "placement": _placement,
        "ir": _ir,
    }
    if way in ("weights", "placement"):
        model = dice.pick([one for one in target.models if one.weights] + [model])
    return makers[way](dice, model, context)


def _file(dice: Dice, data: bytes) -> int:
    """Return a file with this content, sealed or not."""
    if dice.chance(0.7):
        return linux.sealed_copy("fuzz", data)
    fd = linux.memfd("fuzz")
    os.write(fd, data)
    return fd


def _import(context: int, data: bytes, model: Model, inside: bool, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"t": "graph_import", "context": context, "blob_length": len(data)}
    if not inside:
        fields |= {"placement_length": len(model.placement), "weights": msgspec.to_builtins(model.sources)}
    return fields | changes


def _with_blob(dice: Dice, model: Model, context: int, data: bytes, inside: bool, name: str) -> Attempt:
    fds = [_file(dice, data)]
    if not inside:
        fds += [os.dup(fd) for fd in model.import_fds[1:]]
    return Attempt(name, _import(context, data, model, inside), fds, executes=True)


# ------------------------------------------------------------ blobs


def packed(dice: Dice, sections: dict[int, bytes], tricks: bool = False) -> bytes:
    """Build a blob of these sections with valid checksums; with `tricks` its table is corrupt."""
    entries, body = [], b""
    table_end = container.HEADER_SIZE + len(sections) * _ENTRY.size
    at = -(-table_end // PAGE) * PAGE
    first = at
    victim = dice.randrange(len(sections)) if tricks else -1
    for number, (kind, content) in enumerate(sections.items()):
        told, offset, size, flags = kind, at, len(content), 1
        if number == victim:
            way = dice.randrange(5)
            offset = dice.unsigned(64) if way == 0 else offset + dice.pick((-4096, 1, 64, 4096, 0))
            size = dice.unsigned(64) if way == 1 else size + dice.pick((0, 1, -1, 4096, 1 << 20))
            told = dice.pick((0, 1, 2, 3, 4, 5, 2**32 - 1)) if way == 2 else kind
            flags = dice.unsigned(32) if way == 3 else flags
        entries.append(_ENTRY.pack(told, flags, offset % 2**64, size % 2**64, blake3(content).digest()))
        padded = -(-len(content) // PAGE) * PAGE
        body += content.ljust(padded, b"\0")
        at += padded
        last = len(content), padded
    data = bytes(first - table_end) + body[: len(body) - (last[1] - last[0])]
    table = b"".join(entries)
    total, count = table_end + len(data), len(entries)
    if tricks and dice.chance(0.2):
        total, count = dice.pick(((dice.unsigned(64), count), (total, dice.unsigned(32))))
    head = struct.pack("<8sHHIQ8x", container.MAGIC, container.MAJOR, container.MINOR, count, total)
    return head + blake3(head + bytes(32) + table).digest() + table + data


def _parts(data: bytes) -> dict[int, bytes]:
    reader = BlobReader(data)
    return {kind: bytes(reader.read(Section(kind))) for kind, _, _ in reader.sections}


def _sections(dice: Dice, model: Model, context: int) -> Attempt:
    """Damage sections but keep their checksums valid."""
    inside = dice.chance(0.5)
    parts = _parts(model.native if inside else model.blob)
    way = dice.randrange(6)
    name = "blob, damaged sections"
    same, wrong = False, ""
    if way == 0:
        parts[Section.METADATA] = _other_meta(dice, parts[Section.METADATA])
    elif way == 1 and Section.WEIGHTS_REFERENCE in parts:
        embedded = len(parts.get(Section.WEIGHTS, b""))
        parts[Section.WEIGHTS_REFERENCE], wrong = _other_reference(
            dice, parts[Section.WEIGHTS_REFERENCE], embedded
        )
    elif way == 2:
        kind = dice.pick(list(parts))
        parts[kind] = dice.damaged(parts[kind], 3)
    elif way == 3:
        parts[Section.IR] = _other_ir(dice, parts[Section.IR])
    elif way == 4:
        kind = dice.pick(list(parts))
        parts = {key: value for key, value in parts.items() if key != kind} or parts
        if dice.chance(0.4):
            parts[dice.pick((5, 77, 2**31))] = dice.randbytes(100)
    else:
        same = True
    attempt = _with_blob(dice, model, context, packed(dice, parts), inside, name)
    attempt.same, attempt.wrong = same, wrong
    return attempt


def _header(dice: Dice, model: Model, context: int) -> Attempt:
    """Corrupt the table, or change, cut or add bytes without a new checksum."""
    inside = dice.chance(0.5)
    whole = model.native if inside else model.blob
    if dice.chance(0.5):
        data = packed(dice, _parts(whole), tricks=True)
        changed = False  # the flag of a well-known section has no meaning
    elif dice.chance(0.7):
        _, start, size = dice.pick(BlobReader(whole).sections)
        at = start + dice.randrange(size) if dice.chance(0.8) else dice.randrange(len(whole))
        data = whole[:at] + bytes([whole[at] ^ 1 << dice.randrange(8)]) + whole[at + 1 :]
        changed = True
    else:
        data = whole[: dice.randint(1, len(whole) - 1)] + bytes(dice.pick((0, 1)))
        changed = len(data) != len(whole) or data != whole
    attempt = _with_blob(dice, model, context, data, inside, "blob, damaged header")
    if changed:
        attempt.wrong = "a checksum"
    if dice.chance(0.2):
        attempt.request["blob_length"] = dice.integer()
    return attempt


def _plain(record: msgspec.Struct) -> dict[str, Any]:
    """Return all fields, including defaults, as mutable maps and lists."""
    plain: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.to_builtins(record)))
    return plain


def _other_meta(dice: Dice, data: bytes) -> bytes:
    meta = _plain(msgspec.msgpack.decode(data, type=GraphMeta))
    way = dice.randrange(4)
    if way == 0:
        name = dice.pick(list(meta))
        meta[name] = _other(dice, meta[name])
    elif way == 1:
        argument = dice.pick(meta["arguments"])
        name = dice.pick(list(argument))
        argument[name] = _other(dice, argument[name])
    elif way == 2:
        meta["arguments"] = dice.pick(
            (meta["arguments"][::-1], meta["arguments"] * 2, meta["arguments"][1:], [])
        )
    else:
        states = [
            {
                "variable": dice.text()[:50],
                "input": dice.integer(),
                "output": dice.integer(),
                "initial": b"\1",
            }
        ]
        meta["states"] = states
    return msgspec.msgpack.encode(meta)


def _other(dice: Dice, value: Any) -> Any:
    """Return another value, mostly of the same type."""
    if dice.chance(0.05):
        return dice.pick((None, 1, "x", [], {}))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return dice.pick((value + 1, value - 1, 2 * value, dice.integer()))
    if isinstance(value, str):
        return dice.pick((dice.text()[:2000], value + "x", "f16", "[?]", "[1..8,?]", "4000"))
    if isinstance(value, bytes):
        return dice.damaged(value) if value else b"\0"
    if isinstance(value, list):
        return dice.pick((value[:-1], value * 2, [_other(dice, each) for each in value], [dice.integer()]))
    if isinstance(value, dict):
        return value | {dice.text()[:20]: dice.text()[:20]}
    return value


def _other_reference(dice: Dice, data: bytes, embedded: int) -> tuple[bytes, str]:
    """Change constants; also return what must be refused. `embedded`: bytes of constants in the blob."""
    wrong = ""
    fields = _plain(msgspec.msgpack.decode(data, type=WeightsReference))
    if dice.chance(0.2) or not fields["constants"]:
        before, fields["size"] = fields["size"], dice.integer()
        wrong = "the size" if fields["size"] != before else ""
    else:
        constant = dice.pick(fields["constants"])
        name = dice.pick(("offset", "length", "embedded", "embedded", "digest", "name"))
        before = constant.get(name, -1)
        constant[name] = _other(dice, before)
        if name in ("offset", "length") and constant[name] != before:
            wrong = f"the {name} of a constant"
        if name == "embedded" and isinstance(constant[name], int):
            wrong = "the place of a constant" if constant[name] > embedded - constant["length"] else ""
        if dice.chance(0.2):
            fields["constants"].append(dict(constant))
            wrong = "a constant twice"
    return msgspec.msgpack.encode(fields), wrong


def _other_ir(dice: Dice, xml: bytes) -> bytes:
    """Return an IR with a number or word changed."""
    numbers = [at for at in range(len(xml)) if xml[at : at + 1].isdigit()]
    way = dice.randrange(4)
    if way == 0 and numbers:
        at = dice.pick(numbers)
        return xml[:at] + str(dice.pick((0, 9, 1 << 31, 1 << 63, -1))).encode() + xml[at + 1 :]
    if way == 1:
        return dice.damaged(xml, 2)
    if way == 2:
        words = (
            (b"Parameter", b"Result"),
            (b"f32", b"i4"),
            (b"Const", b"Parameter"),
            (b"opset1", b"opset99"),
            (b"</layers>", b""),
            (b'from-layer="0"', b'from-layer="77"'),
            (b"<dim>", b"<dim>-"),
        )
        old, new = dice.pick(words)
        return xml.replace(old, new, dice.pick((1, -1)))
    return xml[: dice.randrange(1, len(xml))]


# ------------------------------------------------------------ weights and IRs


def _weights(dice: Dice, model: Model, context: int) -> Attempt:
    """Pair a valid blob with invalid weight ranges."""
    sources = [msgspec.to_builtins(source) for source in model.sources]
    fds = [linux.sealed_copy("fuzz", model.blob)]
    if model.placement:
        fds.append(linux.sealed_copy("fuzz", model.placement))
    content = model.weights
    if dice.chance(0.5):
        content = dice.damaged(content, 2) if dice.chance(0.6) else content[: dice.randint(0, len(content))]
    if not sources:
        sources = [msgspec.to_builtins(WeightSource(offset=0, length=64))]
    fds += [_file(dice, content) for _ in sources]
    if dice.chance(0.5):
        source = dice.pick(sources)
        name = dice.pick(("offset", "length"))
        source[name] = dice.pick((4096, 8192, 1 << 20, dice.integer(), dice.integer()))
    if dice.chance(0.2):
        more = dice.randint(1, 12)
        sources = (sources * 13)[: 1 + more]
        fds += [os.dup(fds[-1]) for _ in range(len(sources) - 1)]
    request = _import(context, model.blob, model, inside=False, weights=sources, deferred=dice.chance(0.4))
    return Attempt("weights", request, fds[:16], executes=True)


def _placement(dice: Dice, model: Model, context: int) -> Attempt:
    offsets = [dice.integer() for _ in range(dice.pick((0, 1, 1, 1, 2, 300)))]
    data = msgspec.msgpack.encode({"offsets": offsets})
    if dice.chance(0.3):
        data = dice.damaged(data)
    fds = [linux.sealed_copy("fuzz", model.blob), _file(dice, data), *[os.dup(fd) for fd in model.weight_fds]]
    length = len(data) if dice.chance(0.8) else dice.integer()
    if length <= 0:
        os.close(fds.pop(1))
    request = _import(context, model.blob, model, inside=False, placement_length=length)
    return Attempt("placement", request, fds, executes=True)


def _ir(dice: Dice, model: Model, context: int) -> Attempt:
    """Return a model to compile, or query, with invalid XML or weights."""
    xml = _other_ir(dice, model.xml)
    fields: dict[str, Any] = {
        "t": dice.pick(("graph_create", "graph_query")),
        "context": context,
        "name": dice.text()[:100],
        "xml_length": len(xml),
        "weights": msgspec.to_builtins(model.sources),
    }
    if fields["t"] == "graph_create":
        if dice.chance(0.3):
            fields["shapes"] = {
                dice.pick(("data", "x", "0")): [dice.integer() for _ in range(dice.randint(0, 4))]
            }
        if dice.chance(0.2):
            fields["config"] = {dice.pick(("NPU_TILES", "PERFORMANCE_HINT", "x")): dice.text()[:100]}
    if dice.chance(0.3):
        fields["build_flags"] = dice.pick(
            ('--inputs_precisions="0:FP16"', '--inputs_layouts="0:NHWC"', '--config A="B"', dice.text()[:500])
        )
    return Attempt(fields["t"], fields, [_file(dice, xml), *[os.dup(fd) for fd in model.weight_fds]])

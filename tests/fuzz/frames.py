"""Structure-aware frames: a driver's requests, many of them with one error.

The error places come from the message types themselves, so new fields are fuzzed automatically.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.frames import MAX_BODY
from softnpu.emulator.interface.handles import HandleKind
from softnpu.emulator.interface.metrics import MAX_PERIOD_NS, MIN_PERIOD_NS
from softnpu.emulator.supervisor.state.memory import KINDS
from softnpu.emulator.supervisor.state.objects import PRIORITIES
from tests.fuzz.dice import Dice
from tests.fuzz.hostile_objects import NO_ROOM, Descriptors, Model
from tests.fuzz.owned_objects import HANDLE_FIELDS, OwnedObjects

TYPES: dict[str, type[msg.Message]] = {
    kind.__struct_config__.tag: kind for kind in typing.get_args(msg.Request)
}
_FIELDS = {tag: msgspec.structs.fields(kind) for tag, kind in TYPES.items()}
_encode = msgspec.msgpack.Encoder().encode
# relative frequencies: compiler jobs cost milliseconds, everything else microseconds
_WEIGHTS = {
    "mem_alloc": 26, "mem_free": 16, "mem_import": 8, "mem_import_part": 4,
    "queue_create": 8, "queue_workload": 4,
    "queue_destroy": 8, "context_create": 5, "context_destroy": 3, "context_memory": 6, "cancel": 4,
    "context_release": 3, "context_idle": 2,
    "metric_stream_open": 3, "metric_stream_close": 3, "kernel_helper_open": 1,
    "status": 1, "activity": 1, "graph_blob": 3, "graph_initialize": 2,
    "graph_destroy": 2, "graph_expected": 2,
    "graph_create": 0.3, "graph_import": 0.5, "graph_export": 0.3, "graph_query": 0.3,
    "compiler_options": 0.5, "hello": 1, "stop": 1, "inject": 0.5, "inject_status": 0.5, "inject_clear": 0.5,
    "trace_start": 0.5, "trace_rings": 0.5, "trace_stop": 0.5, "trace_join": 0.5,
    "lease_take": 0.5,
}  # fmt: skip
_JOBS = {"graph_create", "graph_import", "graph_export", "graph_query", "compiler_options"}
SYNC = set(TYPES) - _JOBS - {"hello", "stop", "graph_initialize"}
"""Requests that must succeed if they are valid and within limits."""
_IMPORTS = {"mem_import", "mem_import_part"}
_MOST_CONTEXTS, _MOST_MEMORY, _MOST_QUEUES, _MOST_GRAPHS = 4, 60, 12, 6


@dataclass
class Frame:
    """One request. `wrong`: a certain error; `changed`: a possible error."""

    tag: str
    fields: dict[str, Any]
    fds: list[int] = field(default_factory=list)
    wrong: str = ""
    changed: str = ""
    body: bytes = b""


class FrameMaker:
    """Makes frames for one session. `foreign`: another session's handles, `exports`: segments to import."""

    def __init__(
        self,
        dice: Dice,
        held: OwnedObjects,
        models: list[Model],
        hostile_objects: Descriptors,
        foreign: list[int],
        exports: list[int],
        jobs: float,
    ) -> None:
        self.dice = dice
        self.held = held
        self._models = models
        self._hostile_objects = hostile_objects
        self._foreign = foreign
        self._exports = exports
        self._tags = list(TYPES)
        self._weights = [_WEIGHTS.get(tag, 0.5) * (jobs if tag in _JOBS else 1) for tag in self._tags]

    def make(self) -> Frame:
        """Return the next frame, encoded."""
        tag = self.dice.choices(self._tags, self._weights)[0]
        held = self.held
        if tag == "context_create" and len(held.contexts) >= _MOST_CONTEXTS:
            tag = "context_destroy"
        elif not held.contexts:
            tag = "context_create"
        elif tag == "mem_alloc" and len(held.memory) >= _MOST_MEMORY:
            tag = "mem_free"
        elif tag == "queue_create" and len(held.queues) >= _MOST_QUEUES:
            tag = "queue_destroy"
        elif tag in ("graph_create", "graph_import") and len(held.graphs) >= _MOST_GRAPHS:
            tag = "graph_destroy"
        if tag not in _WEIGHTS or tag == "stop" or (tag == "inject" and self.dice.chance(0.3)):
            return self._finished(self._softly(tag))
        frame = self._made(tag)
        if self.dice.chance(0.5):
            self._break(frame)
        return self._finished(frame)

    # ------------------------------------------------------------ valid requests

    def _made(self, tag: str) -> Frame:
        """Build a valid request: by its table, else with live handles alone."""
        if tag in _WITH_DESCRIPTORS:
            return _WITH_DESCRIPTORS[tag](self)
        if tag in _PLAIN:
            return Frame(tag, _PLAIN[tag](self.dice, self), wrong=NEVER.get(tag, ""))
        return self._right(tag)

    def _right(self, tag: str) -> Frame:
        names = [one.name for one in _FIELDS[tag] if one.required]
        return Frame(tag, {name: self[HANDLE_FIELDS[name]] for name in names}, wrong=NEVER.get(tag, ""))

    def __getitem__(self, kind: str) -> int:
        """Return a live handle, such as one of `contexts`; 0 if there is none."""
        table = getattr(self.held, kind)
        return self.dice.pick(list(table)) if table else 0

    def _softly(self, tag: str) -> Frame:
        """Add an unknown mandatory field: a valid request would stop the daemon, or inject faults."""
        fields = {one.name: self._of_type(one.type) for one in _FIELDS[tag] if one.required}
        return Frame(tag, fields | _SOFTLY, wrong="a field that nobody knows")

    def imported(self, tag: str, fields: dict[str, Any]) -> Frame:
        if not self._exports:
            return Frame(tag, fields, wrong="no descriptor")
        return Frame(tag, fields, [self.dice.pick(self._exports)])

    def imported_part(self) -> Frame:
        part = {"context": self["contexts"], "kind": self.dice.pick(KINDS), "offset": 0, "size": 4096}
        more = _some(self.dice, {"foreign": (0.5, True), "read_only": (0.1, True)})
        frame = self.imported("mem_import_part", part | more)
        if "read_only" in more:
            frame.wrong = "a descriptor that is open for writing"
        return frame

    def freed(self) -> Frame:
        usable = [handle for handle, held in self.held.memory.items() if not held.ring]
        count = min(len(usable), self.dice.pick((1, 1, 1, 2, 5)))
        return Frame("mem_free", {"memory": self.dice.sample(usable, count)})

    def exported(self) -> Frame:
        frame = self._right("graph_export")
        if self.dice.chance(0.4):
            frame.fields["offset"] = self.dice.pick((0, 100, 4096))
            frame.fds = [self._hostile_objects.by_kind["file"]]
        return frame

    def of_an_ir(self, tag: str) -> Frame:
        """Compile or query a model, with some of the optional fields of `_OF_AN_IR`."""
        model = self.dice.pick(self._models)
        weights = msgspec.to_builtins(model.sources)
        given = {"name": model.name, "xml_length": len(model.xml), "weights": weights}
        more = _some(self.dice, _OF_AN_IR[tag])
        return Frame(tag, {"context": self["contexts"], **given, **more}, [model.xml_fd, *model.weight_fds])

    def of_a_blob(self) -> Frame:
        model = self.dice.pick(self._models)
        fields = msgspec.to_builtins(model.import_request(self["contexts"]))
        del fields["t"]
        return Frame("graph_import", fields | _some(self.dice, {"deferred": (0.2, True)}), model.import_fds)

    # ------------------------------------------------------------ damage to them

    def _break(self, frame: Frame) -> None:
        ways = (self._handle, self._value, self._value, self._type, self._missing, self._unknown, self._must,
                self._descriptors, self._padding)  # fmt: skip
        self.dice.pick(ways)(frame)

    def _handle(self, frame: Frame) -> None:
        names = [name for name in (*HANDLE_FIELDS, "memory") if name in frame.fields]
        if not names:
            return
        name = names[0]
        frame.changed = "handle"
        if name == "memory":
            handles = list(frame.fields["memory"])
            handles.insert(self.dice.randint(0, len(handles)), self._bad_handle(HandleKind.MEMORY))
            frame.fields["memory"] = handles
            return
        frame.fields[name] = self._bad_handle(HandleKind[name.upper()])

    def _bad_handle(self, kind: HandleKind) -> int:
        """Return a handle that is stale, foreign, of another kind, or forged next to a live one."""
        dice, held = self.dice, self.held
        live = [*held.contexts, *held.memory, *held.queues, *held.graphs, *held.streams]
        way = dice.randrange(7)
        if way == 0 and held.stale:
            return dice.pick(held.stale)
        if way == 1 and self._foreign:
            return dice.pick(self._foreign)
        if way == 2 and held.rings:
            return dice.pick(list(held.rings.values()))
        if way == 3 and live:
            return dice.pick(live)
        if way == 4 and live:
            return dice.pick(live) + dice.pick((1, -1, 1 << 32, -(1 << 32), 1 << 56, 5 << 32, 1 << 31))
        if way == 5:
            return int(kind) << 56 | dice.unsigned(24) << 32 | dice.unsigned(8)
        return dice.integer()

    def _value(self, frame: Frame) -> None:
        """Give one field another value of the right type."""
        one = self.dice.pick(_FIELDS[frame.tag])
        if one.name == "must":
            return
        frame.changed = f"value of {one.name}"
        frame.fields[one.name] = self._of_type(one.type)
        if one.name in _RULES and not _RULES[one.name](frame.tag, frame.fields[one.name]):
            frame.wrong = frame.changed

    def _of_type(self, kind: Any) -> Any:
        dice = self.dice
        origin = typing.get_origin(kind)
        if kind is int:
            return dice.integer()
        if kind is str:
            return dice.text()
        if kind is float:
            return dice.pick((0.0, 1.0, -1.0, 0.5, 1e308, float("inf"), float("nan")))
        if kind is bool:
            return dice.chance(0.5)
        if origin in (types.UnionType, typing.Union):
            return self._of_type(dice.pick(typing.get_args(kind)))
        if origin is tuple:
            return [self._of_type(typing.get_args(kind)[0]) for _ in range(dice.pick((0, 1, 2, 14, 15, 40)))]
        if origin is dict:
            key, value = typing.get_args(kind)
            return {self._of_type(key): self._of_type(value) for _ in range(dice.pick((0, 1, 2, 9)))}
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return {each.name: self._of_type(each.type) for each in msgspec.structs.fields(kind)}
        return None

    def _type(self, frame: Frame) -> None:
        if not frame.fields:
            return
        name = self.dice.pick(list(frame.fields))
        frame.fields[name] = self.dice.pick(
            (
                3.5,
                b"\xff\xfe",
                msgspec.Raw(b"\xc1"),
                {"a": {"b": []}},
                [[[]]],
                msgspec.Raw(b"\xd9\x02\xff\xfe"),
            )
        )
        frame.wrong = f"type of {name}"

    def _missing(self, frame: Frame) -> None:
        required = [one.name for one in _FIELDS[frame.tag] if one.required and one.name in frame.fields]
        if required:
            name = self.dice.pick(required)
            del frame.fields[name]
            frame.wrong = f"{name} is missing"

    def _unknown(self, frame: Frame) -> None:
        """Add a field of a later version, to be skipped."""
        frame.fields["z" + self.dice.pick(("", "later", "é"))] = self.dice.pick((1, "x", [1, {"a": 2}], None))

    def _must(self, frame: Frame) -> None:
        if "must" in frame.fields:
            return  # it keeps the request from being honoured
        if self.dice.chance(0.5):
            frame.fields["must"] = [
                name for name in frame.fields if name in TYPES[frame.tag].__struct_fields__
            ]
            return
        frame.fields["must"] = ["later"]
        frame.wrong = "a field that nobody knows"

    def _descriptors(self, frame: Frame) -> None:
        dice, kinds = self.dice, self._hostile_objects.by_kind
        name = dice.pick(list(kinds))
        way = dice.randrange(4)
        if way == 0 or not frame.fds:
            frame.fds = [kinds[name]] * dice.pick((1, 1, 2, 16))
        elif way == 1:
            frame.fds = []
        elif way == 2:
            frame.fds = [*frame.fds, kinds[name]][:16]
        else:
            frame.fds = list(frame.fds)
            frame.fds[dice.randrange(len(frame.fds))] = kinds[name]
        frame.changed = f"descriptors: {name}"
        foreign = frame.fields.get("foreign") and name == "open memory"  # that others can truncate
        if frame.tag in _IMPORTS and (len(frame.fds) != 1 or (name in NO_ROOM and not foreign)):
            frame.wrong = frame.changed
        if kinds["socket"] in frame.fds:
            frame.wrong = "a socket"
        elif frame.tag in SYNC - _IMPORTS:
            frame.changed = ""  # closed, nothing more

    def longest(self) -> list[Frame]:
        """Return every request with a text, at maximum size: derived messages may be longer."""
        frames = []
        for tag in sorted(set(_WEIGHTS) - {"stop"}):
            for one in _FIELDS[tag]:
                if one.type is str or one.type == str | None:
                    frame = self._made(tag)
                    self._pad(frame, one.name, MAX_BODY)
                    frame.changed = f"a long {one.name}"
                    frames.append(self._finished(frame))
        return frames

    def _pad(self, frame: Frame, name: str, size: int) -> None:
        frame.fields[name] = ""
        room = size - len(_encode({"t": frame.tag, **frame.fields})) - 2
        frame.fields[name] = "x" * room

    def _padding(self, frame: Frame) -> None:
        """Pad a body to or near the maximum size, with a text or a skipped field."""
        texts = [one.name for one in _FIELDS[frame.tag] if one.type is str]
        name = self.dice.pick(texts) if texts and self.dice.chance(0.5) else "zz"
        self._pad(frame, name, MAX_BODY - self.dice.pick((0, 0, 1, 2, 3)))
        if name != "zz":
            frame.changed = f"a long {name}"

    def _finished(self, frame: Frame) -> Frame:
        body = _encode({"t": frame.tag, **frame.fields})
        if len(body) > MAX_BODY:  # several long texts exceed any frame
            frame.fields = {
                name: "x" if isinstance(value, str) else value for name, value in frame.fields.items()
            }
            frame.fields = {
                name: {} if isinstance(value, dict) else value for name, value in frame.fields.items()
            }
            frame.changed = frame.changed or "shortened"
            body = _encode({"t": frame.tag, **frame.fields})[:MAX_BODY]
        frame.body = body
        return frame


def _some(dice: Dice, optional: Mapping[str, tuple[float, Any]]) -> dict[str, Any]:
    """Return some optional fields: by their chance, with their value or one that a function chooses."""
    chosen = {name: value for name, (chance, value) in optional.items() if dice.chance(chance)}
    return {name: value(dice) if callable(value) else value for name, value in chosen.items()}


_SOFTLY = {"must": ("softly",)}
NEVER = {
    "hello": "a second hello", "inject": "a fault that there is not",
    "lease_take": "a session takes no lease", "trace_start": "rings of no size",
    "trace_rings": "no trace of this connection",
    "trace_stop": "no trace of this connection", "trace_join": "no trace is made",
}  # fmt: skip
"""Requests that would end or spoil the run if they were honoured, and what is wrong with them."""
_PLAIN: dict[str, Callable[[Dice, FrameMaker], dict[str, Any]]] = {
    "hello": lambda _dice, _live: {"major": 1, "minor": 0, "client": "again"},
    "inject": lambda dice, _live: {"kind": dice.text()},
    "lease_take": lambda dice, _live: {"count": dice.pick((0, 1, 2**40))},
    "trace_start": lambda dice, _live: {
        "records": dice.pick((-64, 0, 1, 63, 100, 1 << 17, 1 << 40)), **_SOFTLY,
    },
    "trace_join": lambda dice, _live: {"trace": dice.integer()},
    "cancel": lambda dice, _live: {"request": dice.integer()},
    "context_create": lambda _dice, _live: {"device": 0},
    # long periods: a stream's output is not under test here
    "metric_stream_open": lambda dice, live: {
        "context": live["contexts"], "period": dice.randint(10**9, MAX_PERIOD_NS),
    },
    "kernel_helper_open": lambda _dice, live: {"context": live["contexts"]},
    "graph_expected": lambda dice, live: {"context": live["contexts"], "hint": dice.randbytes(32)},
    "mem_alloc": lambda dice, live: {
        "context": live["contexts"], "kind": dice.pick(KINDS),
        "size": dice.pick((1, 64, 4096, dice.randint(1, 300_000), dice.randint(1, 8192), 1 << 21)),
        **_some(dice, {
            "alignment": (0.3, lambda dice: dice.pick((0, 1, 2, 64, 1024, 4096, 1 << 16))),
            "exportable": (0.15, True), "sparse": (0.1, True),
        }),
    },
    "queue_create": lambda dice, live: {
        "context": live["contexts"], "slots": 1 << dice.randint(1, 6),
        **_some(dice, {"priority": (0.4, lambda dice: dice.pick(list(PRIORITIES)))}),
    },
    "queue_workload": lambda dice, live: {"queue": live["queues"], "background": dice.chance(0.5)},
    "compiler_options": lambda dice, _live: {
        "device": 0, **_some(dice, {"option": (0.5, "NPU_TILES"), "value": (0.3, "2")}),
    },
}  # fmt: skip
"""Fields of valid requests without descriptors, by tag. Others have live handles alone."""
_OF_AN_IR: dict[str, dict[str, tuple[float, Any]]] = {
    "graph_create": {
        "config": (0.3, lambda dice: {"NPU_TILES": "2", "PERF_COUNT": dice.pick(("YES", "NO"))}),
        "build_flags": (0.2, '--inputs_precisions="0:FP16"'),
    },
    "graph_query": {},
}
_WITH_DESCRIPTORS: dict[str, Callable[[FrameMaker], Frame]] = {
    "mem_import": lambda maker: maker.imported(
        "mem_import", {"context": maker["contexts"], "kind": maker.dice.pick(KINDS)}
    ),
    "mem_import_part": FrameMaker.imported_part,
    "mem_free": FrameMaker.freed,
    "graph_export": FrameMaker.exported,
    "graph_create": lambda maker: maker.of_an_ir("graph_create"),
    "graph_query": lambda maker: maker.of_an_ir("graph_query"),
    "graph_import": FrameMaker.of_a_blob,
}
"""Valid requests with descriptors, or of handles that a session chooses in its own way."""


def _power_of_two(value: int) -> bool:
    return value >= 0 and not value & (value - 1)


_RULES: dict[str, Any] = {
    "device": lambda _tag, value: value == 0,
    "kind": lambda _tag, value: value in KINDS,
    "size": lambda _tag, value: 0 < value < 2**46,
    "alignment": lambda _tag, value: _power_of_two(value),
    "slots": lambda _tag, value: 2 <= value <= 4096 and _power_of_two(value),
    "priority": lambda _tag, value: value in PRIORITIES,
    "period": lambda _tag, value: MIN_PERIOD_NS <= value <= MAX_PERIOD_NS,
    "xml_length": lambda _tag, value: 0 < value < 2**46,
    "blob_length": lambda _tag, value: 0 < value < 2**46,
    "placement_length": lambda _tag, value: 0 <= value < 2**46,
}
"""Values that must be refused wherever they come, by field: False."""

"""Fault injection: every possible failure of a device, on a running daemon.

A kind of fault acts on one sort of operation: submissions, doorbells, loads of a graph, or requests. Of the
matching operations, the first `after` pass; each later one is hit with `probability`, until `count` were hit.
As text, for a daemon that starts:

    SOFTNPU_INJECT="hang:after=3, slow=20ms:count=*:probability=0.1:seed=7"
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from softnpu.emulator.interface.environment import ENV_INJECT
from softnpu.emulator.interface.result import ZeResult, refuse


class FaultKind(enum.StrEnum):
    """What goes wrong; the values are those of `softnpu inject`."""

    HANG = "hang"
    STALL = "stall"
    RESET = "reset"
    LOST = "lost"
    ECC = "ecc"
    FAIL = "fail"
    SLOW = "slow"
    DROP_SIGNAL = "drop-signal"
    DROP_DOORBELL = "drop-doorbell"
    LOAD_HANG = "load-hang"
    LOAD_CRASH = "load-crash"
    LOAD_FAIL = "load-fail"
    OOM = "oom"
    COMPILE_FAIL = "compile-fail"
    COMPILE_CRASH = "compile-crash"
    COMPILE_HANG = "compile-hang"
    COMPILE_SLOW = "compile-slow"
    IMPORT_FAIL = "import-fail"
    EXPORT_FAIL = "export-fail"
    REFUSE = "refuse"
    DELAY = "delay"
    DISCONNECT = "disconnect"
    DAEMON_DEATH = "daemon-death"


class Operation(enum.Enum):
    """The operations that a kind acts on."""

    SUBMISSION = "submission"
    DOORBELL = "doorbell"
    LOAD = "load"
    REQUEST = "request"


class Value(enum.Enum):
    """The type of value that a kind takes."""

    NONE = "none"
    TEXT = "the log of the compiler"
    SLOWNESS = "a time such as 20ms or 1.5s, or a factor such as 3x"
    TIME = "a time such as 20ms or 1.5s"
    RESULT = "an error such as ERROR_OUT_OF_HOST_MEMORY"
    MEMORY = "device or host"
    REQUEST = "a request such as queue_create, or with an error: queue_create=ERROR_NOT_AVAILABLE"
    REQUEST_TIME = "a request and a time, such as mem_alloc=200ms"


class KindInfo(NamedTuple):
    """A kind's operation, effect, value type, and default."""

    operation: Operation
    summary: str
    value: Value = Value.NONE
    default: str = ""
    requests: tuple[str, ...] = ()


KINDS: dict[FaultKind, KindInfo] = {
    FaultKind.HANG: KindInfo(
        Operation.SUBMISSION, "it makes no progress, and the engine does not answer: the watchdog resets it"
    ),
    FaultKind.STALL: KindInfo(
        Operation.SUBMISSION, "it makes no progress, the engine answers: the watchdog aborts it, no reset"
    ),
    FaultKind.RESET: KindInfo(
        Operation.SUBMISSION, "the engine dies under it and comes back: nothing is lost, it runs again"
    ),
    FaultKind.LOST: KindInfo(
        Operation.SUBMISSION, "it ends with DEVICE_LOST, and so does everything else of its queue"
    ),
    FaultKind.ECC: KindInfo(
        Operation.SUBMISSION, "an uncorrectable memory error: it ends with UNKNOWN, its outputs are void"
    ),
    FaultKind.FAIL: KindInfo(
        Operation.SUBMISSION, "it ends with an error, its queue goes on", Value.RESULT, "ERROR_UNKNOWN"
    ),
    FaultKind.SLOW: KindInfo(
        Operation.SUBMISSION, "it takes longer, and the device is busy with it", Value.SLOWNESS, "10ms"
    ),
    FaultKind.DROP_SIGNAL: KindInfo(
        Operation.SUBMISSION, "it runs, its end is not signalled: the device ends it with DEVICE_LOST"
    ),
    FaultKind.DROP_DOORBELL: KindInfo(
        Operation.DOORBELL, "it is lost: the next one works, or the device ends the work with DEVICE_LOST"
    ),
    FaultKind.LOAD_HANG: KindInfo(
        Operation.LOAD,
        "loading a graph makes no progress: the engine is reset and tries again; twice: refused",
    ),
    FaultKind.LOAD_CRASH: KindInfo(
        Operation.LOAD, "the engine dies while it loads a graph and tries again; twice: refused"
    ),
    FaultKind.LOAD_FAIL: KindInfo(
        Operation.REQUEST,
        "initialising a graph fails",
        Value.RESULT,
        "ERROR_MODULE_BUILD_FAILURE",
        ("graph_initialize",),
    ),
    FaultKind.OOM: KindInfo(
        Operation.REQUEST, "an allocation is out of memory", Value.MEMORY, "device", ("mem_alloc",)
    ),
    FaultKind.COMPILE_FAIL: KindInfo(
        Operation.REQUEST,
        "a compilation ends with MODULE_BUILD_FAILURE and a build log",
        Value.TEXT,
        "error: injected fault: the compiler does not like this model",
        ("graph_create",),
    ),
    FaultKind.COMPILE_CRASH: KindInfo(
        Operation.REQUEST, "the compiler dies over a model", requests=("graph_create",)
    ),
    FaultKind.COMPILE_HANG: KindInfo(
        Operation.REQUEST, "the compiler makes no progress, and is ended in 10 s", requests=("graph_create",)
    ),
    FaultKind.COMPILE_SLOW: KindInfo(
        Operation.REQUEST, "a compilation begins later", Value.TIME, "1s", ("graph_create",)
    ),
    FaultKind.IMPORT_FAIL: KindInfo(
        Operation.REQUEST,
        "importing a blob or memory of another process fails",
        Value.RESULT,
        requests=("graph_import", "mem_import"),
    ),
    FaultKind.EXPORT_FAIL: KindInfo(
        Operation.REQUEST,
        "exporting a blob, or allocating memory for other processes, fails",
        Value.RESULT,
        requests=("graph_export", "graph_blob", "mem_alloc"),
    ),
    FaultKind.REFUSE: KindInfo(Operation.REQUEST, "any request is refused", Value.REQUEST),
    FaultKind.DELAY: KindInfo(Operation.REQUEST, "any request is served later", Value.REQUEST_TIME),
    FaultKind.DISCONNECT: KindInfo(
        Operation.REQUEST, "the daemon ends the connection instead of serving a request"
    ),
    FaultKind.DAEMON_DEATH: KindInfo(
        Operation.REQUEST, "the daemon dies (SIGKILL) instead of serving a request"
    ),
}
"""Every kind, in the order of the documentation."""

REQUESTS = (
    "hello", "context_create", "context_destroy", "context_memory", "context_release", "context_idle",
    "mem_alloc", "mem_import", "mem_import_part", "mem_free", "queue_create", "queue_workload",
    "queue_destroy", "graph_create", "graph_import", "graph_blob", "graph_export", "graph_query",
    "graph_expected", "graph_initialize", "graph_destroy", "compiler_options", "cancel", "metric_stream_open",
    "metric_stream_close", "kernel_helper_open", "status",
)  # fmt: skip
"""Valid names for `refuse` and `delay`: tags of the interface. `hello` and `status` have no device."""

_refuse = partial(refuse, ZeResult.ERROR_INVALID_ARGUMENT)
_DEVICELESS = {FaultKind.DISCONNECT, FaultKind.DAEMON_DEATH}
# compiled when they are needed: every process of a daemon imports this module
_TIME = r"([0-9]+(?:\.[0-9]+)?)(us|ms|s)"
_FACTOR = r"([0-9]+(?:\.[0-9]+)?)x"
_NUMBER = r"[0-9eE.+-]{1,40}"
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_MAX_S = 3600.0
_MAX_FACTOR = 1000.0
_MAX_NUMBER = 2**63 - 1
_MAX_TEXT = 800


class Injection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One injected fault. `count` None: every match. No `sessions`: any. `device` None: any.

    `value`: in the kind's format, empty for its default.
    """

    kind: FaultKind
    value: str = ""
    device: int | None = None
    sessions: tuple[int, ...] = ()
    after: int = 0
    count: int | None = 1
    probability: float = 1.0
    seed: int = 0

    @property
    def kind_info(self) -> KindInfo:
        """The description of its kind."""
        return KINDS[self.kind]

    @property
    def effective(self) -> str:
        """Its value, or the default of its kind."""
        return self.value or self.kind_info.default

    @property
    def result(self) -> ZeResult | None:
        """The error named by its value, if any."""
        name = self.effective.rpartition("=")[2]
        return ZeResult[name] if name in ZeResult.__members__ else None

    @property
    def requests(self) -> tuple[str, ...]:
        """Tags of the requests on which it acts; empty: all of an open session."""
        if self.kind_info.value in (Value.REQUEST, Value.REQUEST_TIME):
            return (self.value.partition("=")[0],)
        return self.kind_info.requests

    @property
    def seconds(self) -> float:
        """Its value as a time; 0 if it is none."""
        match = re.fullmatch(_TIME, self.effective.rpartition("=")[2])
        return float(match[1]) * _UNITS[match[2]] if match else 0.0

    @property
    def factor(self) -> float:
        """Its value as a factor; 1 if it is none."""
        match = re.fullmatch(_FACTOR, self.effective)
        return float(match[1]) if match else 1.0

    def chosen(self, number: int) -> bool:
        """Return whether `probability` picks matching operation `number` (from 1)."""
        if self.probability >= 1.0:
            return True
        import hashlib  # late: it loads a library

        drawn = hashlib.blake2b(f"{self.seed}:{number}".encode(), digest_size=8).digest()
        return int.from_bytes(drawn, "little") / 2**64 < self.probability

    def check(self) -> None:
        """Refuse contradictory or out-of-range options, by their names."""
        info, name = self.kind_info, f"injection of {self.kind.value}"
        if not 0 <= self.after <= _MAX_NUMBER:
            raise _refuse(name, found=f"after {self.after}", expected="0 or more operations that pass")
        if self.count is not None and not 1 <= self.count <= _MAX_NUMBER:
            raise _refuse(
                name,
                found=f"count {self.count}",
                expected="1 or more operations that are hit, or * for every",
            )
        if not 0.0 < self.probability <= 1.0:
            raise _refuse(name, found=f"probability {self.probability:g}", expected="above 0, at most 1")
        if not 0 <= self.seed <= _MAX_NUMBER:
            raise _refuse(name, found=f"seed {self.seed}", expected=f"0 to {_MAX_NUMBER}")
        if self.device is not None and self._has_no_device():
            raise _refuse(
                name, found=f"device {self.device}", expected="none: it acts on connections, not on devices"
            )
        if self.sessions and info.operation is Operation.LOAD:
            raise _refuse(name, found="a session", expected="none: sessions share what is loaded")
        if self.sessions and self.requests == ("hello",):
            raise _refuse(name, found="a session", expected="none: it has no number before the handshake")
        self._check_value(name)

    def _has_no_device(self) -> bool:
        return self.kind in _DEVICELESS or self.requests in (("hello",), ("status",), ("cancel",))

    def _check_value(self, name: str) -> None:
        kind, text = self.kind_info.value, self.value
        if kind is Value.NONE:
            if text:
                raise _refuse(name, found=f"value {text!r}", expected="no value")
            return
        if len(text) > _MAX_TEXT:
            raise _refuse(name, found=f"a value of {len(text)} characters", expected=f"at most {_MAX_TEXT}")
        if not text and kind not in (Value.REQUEST, Value.REQUEST_TIME):
            return
        request, _, behind = text.partition("=")
        good = {
            Value.TEXT: True,
            Value.TIME: _is_time(text),
            Value.SLOWNESS: _is_time(text) or _is_factor(text),
            Value.RESULT: _is_error(text),
            Value.MEMORY: text in ("device", "host"),
            Value.REQUEST: request in REQUESTS and ("=" not in text or _is_error(behind)),
            Value.REQUEST_TIME: request in REQUESTS and _is_time(behind),
        }[kind]
        if not good:
            hint = f"requests: {', '.join(REQUESTS)}" if kind in (Value.REQUEST, Value.REQUEST_TIME) else ""
            raise _refuse(name, found=f"value {text!r}", expected=kind.value, hint=hint)


def kind_of(name: str) -> FaultKind:
    """Return the kind of this name; refuse an unknown one with the list of kinds."""
    try:
        return FaultKind(name)
    except ValueError:
        raise _refuse(
            "injection", found=f"no fault {name!r}", expected=f"one of {', '.join(FaultKind)}"
        ) from None


def parse(text: str) -> tuple[Injection, ...]:
    """Parse and check the injections in `text`. An unreadable part is refused by name."""
    parts = (part.strip() for part in text.split(","))
    return tuple(_parse_part(part) for part in parts if part)


def from_environment(environment: Mapping[str, str] = os.environ) -> str:
    """Return the value of `SOFTNPU_INJECT`."""
    return environment.get(ENV_INJECT, "")


def _parse_part(part: str) -> Injection:
    head, *parts = part.split(":")
    name, _, value = head.partition("=")
    texts: dict[str, str] = {}
    for option in parts:
        key, equals, text = option.partition("=")
        if not equals or key not in _OPTIONS or key in texts:
            known = ", ".join(f"{name}=" for name in _OPTIONS)
            raise _refuse(f"injection {part!r}", found=repr(option), expected=f"once each: {known}")
        texts[key] = text
    if "seed" in texts and "probability" not in texts:
        raise _refuse(f"injection {part!r}", found="seed without probability", expected="both, or no seed")
    kind = kind_of(name.strip())
    try:
        options = {key: _OPTIONS[key](text) for key, text in texts.items()}
        injection = Injection(kind=kind, value=value, **options)
    except ValueError as error:
        raise _refuse(f"injection {part!r}", found=str(error), expected="a number") from error
    injection.check()
    return injection


def count_of(text: str) -> int | None:
    """Parse a number; return None for `*`. Raises `ValueError` for anything else."""
    return None if text == "*" else _whole(text)


def _whole(text: str) -> int:
    return int(_plain(text))


def _fraction(text: str) -> float:
    return float(_plain(text))


def _plain(text: str) -> str:
    # Python also accepts digits of other scripts, spaces and underscores
    if not re.fullmatch(_NUMBER, text):
        raise ValueError(repr(text))
    return text


_OPTIONS: dict[str, Callable[[str], Any]] = {
    "after": _whole,
    "count": count_of,
    "probability": _fraction,
    "seed": _whole,
    "device": _whole,
}


def _is_time(text: str) -> bool:
    match = re.fullmatch(_TIME, text)
    return match is not None and 0 < float(match[1]) * _UNITS[match[2]] <= _MAX_S


def _is_factor(text: str) -> bool:
    match = re.fullmatch(_FACTOR, text)
    return match is not None and 1.0 < float(match[1]) <= _MAX_FACTOR


def _is_error(text: str) -> bool:
    return text.startswith("ERROR_") and text in ZeResult.__members__

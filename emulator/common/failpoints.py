"""Fail-points: named points of the code where a process can be made to die, hang or run out of resources.

They are enabled by `SOFTNPU_FAILPOINTS` in the environment of a process (its children inherit it) or by the
setting `failpoints` of a daemon:

    SOFTNPU_FAILPOINTS="engine.running=kill, compiler.compile=memory:2:1"

Each part is `POINT=ACTION[:COUNT[:AFTER]]`: the first AFTER (default 0) times nothing happens at the point,
then the action is taken COUNT (default 1, `*`: every) times. A daemon, its engines and its workers count
together, so `engine.running=kill` kills one engine and not also the next. A client counts for itself.

An inactive point costs one read of a variable of this module, about 25 ns:

    if failpoints.active is not None:
        failpoints.hit("engine.running")
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import time
import weakref
from typing import NamedTuple

from softnpu.emulator.common.shared_counts import SharedCounts

ENV_FAILPOINTS = "SOFTNPU_FAILPOINTS"
"""For tests: fail-points and what happens at them, such as `engine.running=kill`."""

POINTS = {
    # a client: the process with the driver
    "client.connect": "before it connects to the socket",
    "client.handshake": "its hello is sent, the answer not read",
    "client.context": "a request for a context is sent",
    "client.queue": "a request for a command queue is sent",
    "client.allocate": "a request for memory is sent",
    "client.map": "it has the descriptor of a segment, which is not mapped yet",
    "client.compile": "a model is sent to be compiled",
    "client.import": "memory or a blob is sent to be imported",
    "client.export": "a request for a blob with weights is sent",
    "client.load": "a request to initialise a graph is sent",
    "client.record": "a command list is about to be closed",
    "client.submit": "slots and tail of the ring are written, the doorbell is not rung",
    "client.running": "it is about to sleep until a submission ends",
    "client.completing": "a fence was signalled, and it has not looked at the result",
    "client.signal": "it is about to signal an event",
    "client.free": "a request to free memory is sent",
    "client.close": "it is about to close the connection",
    # an engine
    "engine.connect": "it runs, and has not read its first command",
    "engine.handshake": "it is about to report that it is ready",
    "engine.context": "it received a context",
    "engine.queue": "it received a command queue",
    "engine.allocate": "it received an allocation",
    "engine.map": "it received a segment, which is not mapped yet",
    "engine.load": "it is about to load a graph, in the thread that does",
    "engine.submit": "a submission is copied, and not logged as running",
    "engine.running": "a submission is logged as running, none of its commands has run in this slice",
    "engine.staged": "results that overwrite their inputs are staged and logged, none is copied",
    "engine.copied": "such results are copied, and it is not logged that the command has ended",
    "engine.completing": "the commands of a submission have run, nothing says so yet",
    "engine.event": "a command has changed an event, and is not logged as done",
    "engine.ended": "a submission is logged as ended, its fence is not signalled yet",
    "engine.signal": "the fence of a submission is signalled, the ring does not say so yet",
    "engine.free": "it is to free memory",
    "engine.close": "it is to remove a context",
    # a compiler worker
    "compiler.connect": "it runs, and has not read its first job",
    "compiler.compile": "it is about to compile a model",
    "compiler.import": "it is about to check a blob",
    "compiler.export": "it is about to write a blob with weights",
    "compiler.completing": "a job is done, and not answered",
    # the supervisor; those of requests: it was read, and has had no effect
    "supervisor.connect": "a connection is accepted",
    "supervisor.handshake": "a hello was read",
    "supervisor.context": "a request for a context was read",
    "supervisor.queue": "a request for a command queue was read",
    "supervisor.allocate": "a request for memory was read",
    "supervisor.compile": "a model was received",
    "supervisor.import": "memory or a blob was received",
    "supervisor.export": "a request for a blob with weights was read",
    "supervisor.load": "a request to initialise a graph was read",
    "supervisor.free": "a request to free memory was read",
    "supervisor.close": "a connection is about to end",
    "supervisor.idle": "its idle time is over; it has not checked for waiting connections",
    "supervisor.end": "it is about to end, and its socket still takes connections",
    "supervisor.release": "its socket takes no more connections; socket and lock file are still there",
}
"""Every point, and the state of the process there."""

ACTIONS = {
    "kill": "SIGKILL to itself",
    "stop": "SIGSTOP to itself",
    "abort": "SIGABRT to itself, without a core file",
    "memory": "raises MemoryError",
    "error": "raises ZeroDivisionError, as a defect of ours would",
    "descriptors": "no descriptor can be opened in this process from now on",
    "hang": "this thread sleeps forever",
    "sleep": "this thread sleeps: sleep(MILLISECONDS)",
    "load": "loads a library, which runs what is in it: load(PATH)",
    "trace": "writes the name of the point as a line to the end of a file: trace(PATH)",
}

_STEPS = {
    "hello": "handshake",
    "context_create": "context",
    "queue_create": "queue",
    "mem_alloc": "allocate",
    "mem_import": "import",
    "mem_free": "free",
    "graph_create": "compile",
    "graph_import": "import",
    "graph_export": "export",
    "graph_initialize": "load",
}
"""The step that a request of this tag is, in `client.STEP` and `supervisor.STEP`."""

_PART = re.compile(
    r"(?P<point>[\w.]+)=(?P<action>\w+)(?:\((?P<value>[^()]*)\))?(?::(?P<count>\d+|\*))?(?::(?P<after>\d+))?",
    re.ASCII,
)
_ENV_COUNTS = "SOFTNPU_FAILPOINTS_COUNTS"
_EVERY = 2**63


class Rule(NamedTuple):
    """The action at one point; `value` is the text in brackets, `slot` the number of its counter."""

    point: str
    action: str
    value: str
    times: int
    after: int
    slot: int


class Plan:
    """The rules of a process, and how often their points were reached: counters that processes share."""

    def __init__(self, rules: dict[str, Rule], counts: SharedCounts | None) -> None:
        self.rules = rules
        self.counts = counts
        # now: a process that is sandboxed opens no file
        traced = {rule.value for rule in rules.values() if rule.action == "trace"}
        self._traces = {path: _open_trace(path) for path in traced}
        weakref.finalize(self, _close_all, list(self._traces.values()))

    def hit(self, point: str) -> None:
        """The point is reached."""
        rule = self.rules.get(point)
        if rule is None or not self._due(rule):
            return
        if rule.action == "trace":
            os.write(self._traces[rule.value], f"{rule.point}\n".encode())
        else:
            _act(rule)

    def _due(self, rule: Rule) -> bool:
        assert self.counts is not None
        with self.counts.locked():
            before = self.counts.get(rule.slot)
            self.counts.put(rule.slot, before + 1)
        return 0 <= before - rule.after < rule.times


class FailpointError(ValueError):
    """A rule that cannot be understood: what is wrong with it, and what is expected."""

    def __init__(self, rule: str, found: str, expected: str) -> None:
        super().__init__(f"fail-point {rule!r}: {found}; expected {expected}")
        self.rule = rule
        self.found = found
        self.expected = expected


def parse(text: str) -> dict[str, Rule]:
    """Return the rules in `text`, by point. Raises `FailpointError`."""
    rules: dict[str, Rule] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _PART.fullmatch(part)
        if match is None:
            raise FailpointError(part, "not understood", "POINT=ACTION[:COUNT[:AFTER]]")
        point, action, value = match["point"], match["action"], match["value"] or ""
        if point not in POINTS:
            raise FailpointError(part, f"no point {point!r}", f"one of {', '.join(POINTS)}")
        if action not in ACTIONS:
            raise FailpointError(part, f"no action {action!r}", f"one of {', '.join(ACTIONS)}")
        if action == "sleep" and not (value.isascii() and value.isdigit()):
            raise FailpointError(part, f"sleep({value})", "sleep(MILLISECONDS)")
        if action in ("trace", "load") and not value.startswith("/"):
            raise FailpointError(part, f"{action}({value})", f"{action}(/ABSOLUTE/PATH)")
        count = _EVERY if match["count"] == "*" else int(match["count"] or 1)
        rules[point] = Rule(point, action, value, count, int(match["after"] or 0), len(rules))
    return rules


def configure(text: str) -> None:
    """Set the rules of this process and of the children that it starts from now on; none for no text."""
    global active
    rules = parse(text)
    active = Plan(rules, SharedCounts.new("failpoints", len(rules))) if rules else None
    if rules:
        os.environ[ENV_FAILPOINTS] = text
    else:
        os.environ.pop(ENV_FAILPOINTS, None)


def hit(point: str) -> None:
    """The point is reached: take its action, if it has one."""
    if active is not None:
        active.hit(point)


def hit_request(process: str, tag: str) -> None:
    """A request of this tag is on its way: `client` has sent it, `supervisor` has read it."""
    step = _STEPS.get(tag)
    if active is not None and step is not None:
        active.hit(f"{process}.{step}")


def inherited() -> tuple[dict[str, str], tuple[int, ...]]:
    """Return what a child needs to share this process's counters: variables, and descriptors to pass on."""
    if active is None or active.counts is None:
        return {}, ()
    return {_ENV_COUNTS: str(active.counts.fd)}, (active.counts.fd,)


def keep_active(keep: bool) -> None:
    """Keep `active` set without rules, because other code hooks into the points."""
    global active
    if keep and active is None:
        active = Plan({}, None)
    elif not keep and active is not None and not active.rules:
        active = None


def _act(rule: Rule) -> None:
    match rule.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "abort":
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.abort()
        case "memory":
            raise MemoryError(f"fail-point {rule.point}")
        case "error":
            raise ZeroDivisionError(f"fail-point {rule.point}")
        case "descriptors":
            _exhaust_descriptors()
        case "hang":
            while True:
                time.sleep(3600)
        case "sleep":
            time.sleep(int(rule.value) / 1000)
        case "load":
            ctypes.CDLL(rule.value)


def _exhaust_descriptors() -> None:
    # the kernel refuses every new descriptor whose number is not below the limit
    lowest = os.open("/", os.O_PATH | os.O_CLOEXEC)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _open_trace(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def from_environment() -> Plan | None:
    """Return the rules that the environment of this process names; None if it names none."""
    rules = parse(os.environ.get(ENV_FAILPOINTS, ""))
    if not rules:
        return None
    counts = os.environ.pop(_ENV_COUNTS, "")
    if counts:
        return Plan(rules, SharedCounts(int(counts), len(rules)))
    return Plan(rules, SharedCounts.new("failpoints", len(rules)))


active: Plan | None = from_environment()
"""The rules of this process; None without rules, unless `keep_active` holds it."""

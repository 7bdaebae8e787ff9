"""Injected faults of requests: which injections a request matches, and how a request is refused by one."""

from __future__ import annotations

import signal
from typing import NamedTuple

from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.injections import FaultKind, Injection
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.supervisor.requests.session import Session

WORKER_SIGNALS = {FaultKind.COMPILE_CRASH: signal.SIGKILL, FaultKind.COMPILE_HANG: signal.SIGSTOP}
"""The signals sent to the compiler worker of an injected request."""

_RESULTS = {
    FaultKind.COMPILE_FAIL: ZeResult.ERROR_MODULE_BUILD_FAILURE,
    FaultKind.LOAD_FAIL: ZeResult.ERROR_MODULE_BUILD_FAILURE,
}
_RESULTS_OF_REQUESTS = {
    "mem_alloc": ZeResult.ERROR_OUT_OF_DEVICE_MEMORY,
    "mem_import": ZeResult.ERROR_INVALID_ARGUMENT,
    "graph_create": ZeResult.ERROR_MODULE_BUILD_FAILURE,
    "graph_query": ZeResult.ERROR_MODULE_BUILD_FAILURE,
    "graph_initialize": ZeResult.ERROR_MODULE_BUILD_FAILURE,
    "graph_import": ZeResult.ERROR_INVALID_NATIVE_BINARY,
    "status": ZeResult.ERROR_DEVICE_LOST,
    "hello": ZeResult.ERROR_UNINITIALIZED,
}


class RequestTarget(NamedTuple):
    """A request that an injection may hit. `session` is None before the handshake, and for a monitor."""

    client: int
    session: Session | None
    request: msg.Request

    @property
    def tag(self) -> str:
        return str(type(self.request).__struct_config__.tag)

    def matches(self, injection: Injection) -> bool:
        """Whether the injection may act on this request; never for one of a monitor."""
        request = self.request
        if isinstance(request, msg.Hello):
            if request.role != "session" or injection.requests != ("hello",):
                return False
        elif self.session is None:
            return False
        if injection.requests and self.tag not in injection.requests:
            return False
        if injection.sessions and self.client not in injection.sessions:
            return False
        if isinstance(request, msg.MemAlloc):
            if injection.kind is FaultKind.EXPORT_FAIL and not request.exportable:
                return False
            if injection.kind is FaultKind.OOM and request.kind == "control":
                return False
        if injection.device is None:
            return True
        return self.session is not None and self.session.device_index(request) == injection.device


def injected_refusal(injection: Injection, tag: str) -> Refused:
    """Return the error with which an injection fails a request."""
    found = f"injected fault: {injection.kind.value}"
    if injection.kind is FaultKind.OOM:
        host = injection.effective == "host"
        result = ZeResult.ERROR_OUT_OF_HOST_MEMORY if host else ZeResult.ERROR_OUT_OF_DEVICE_MEMORY
        return refuse(result, "memory allocation", found=found, expected="free memory")
    if injection.kind is FaultKind.COMPILE_FAIL:
        return refuse(ZeResult.ERROR_MODULE_BUILD_FAILURE, "graph", found=injection.effective)
    if injection.kind is FaultKind.EXPORT_FAIL and tag != "mem_alloc":
        return refuse(injection.result or ZeResult.ERROR_UNKNOWN, tag, found=found)
    result_of_kind = injection.result or _RESULTS.get(injection.kind)
    return refuse(result_of_kind or _RESULTS_OF_REQUESTS.get(tag, ZeResult.ERROR_UNKNOWN), tag, found=found)

"""The plugin calls that a trace of this process records."""

from __future__ import annotations

from typing import Final

from softnpu.driver import tracing
from softnpu.plugin.async_infer_queue import AsyncInferQueue
from softnpu.plugin.compiled_model import CompiledModel
from softnpu.plugin.core import Core
from softnpu.plugin.requests.infer_request import InferRequest

_CALLS: Final[dict[type, tuple[str, ...]]] = {
    Core: ("read_model", "compile_model", "import_model", "query_model", "create_context"),
    CompiledModel: ("create_infer_request", "export_model", "infer_new_request", "release_memory"),
    InferRequest: ("infer", "start_async", "wait", "wait_for", "cancel", "reset_state"),
    AsyncInferQueue: ("start_async", "wait_all", "get_idle_request_id"),
}


def register() -> None:
    """Register the plugin's calls for tracing."""
    tracing.register(_methods)


def _methods() -> list[tracing.TracedMethod]:
    return [
        tracing.traced_call(owner, name, f"{owner.__name__}.{name}", may_wait=True)
        for owner, names in _CALLS.items()
        for name in names
    ]

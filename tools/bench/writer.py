"""A client of `bench tokens`: it holds a language model, and generates as many tokens as a turn requests."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np

_CONFIG: Final = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
_WARM_UP: Final = 3
PLUGIN: Final = "plugin"
"""The way through softnpu's plugin; any other is the name of an OpenVINO device."""
MOST: Final = 128
"""Tokens of a turn: the context of the model."""


class WriterStart(msgspec.Struct, frozen=True):
    """`way` is `PLUGIN` or an OpenVINO device; `model` is an IR, `socket` the daemon's."""

    way: str
    model: str
    socket: str


class WriterAnswer(msgspec.Struct, frozen=True):
    """One turn: its seconds, and a digest of the tokens and the last logits."""

    seconds: float
    digest: str


def prepare(start: WriterStart) -> Callable[[float], WriterAnswer]:
    """Load the model; return a function that writes this many tokens from the start, greedily."""
    if start.way == PLUGIN:
        from softnpu.plugin import Core

        compiled: Any = Core(start.socket).compile_model(start.model, "NPU", _CONFIG)
    else:
        import openvino as ov

        # the emulated device computes in f32, and the NPU plugin takes no such hint
        config = {"PERFORMANCE_HINT": "LATENCY"} if start.way == "NPU" else _CONFIG
        compiled = ov.Core().compile_model(start.model, start.way, config)
    request: Any = compiled.create_infer_request()
    token, position, logits = (request.get_tensor(name).data for name in ("token", "position", "logits"))

    def turn(count: float) -> WriterAnswer:
        request.reset_state()
        written = [0]
        begin = time.perf_counter()
        for at in range(int(count)):
            token[0] = written[-1]
            position[0] = at
            request.infer(share_outputs=True)
            written.append(int(logits.argmax()))
        seconds = time.perf_counter() - begin
        digest = hashlib.sha256(np.array(written).tobytes() + logits.tobytes()).hexdigest()
        return WriterAnswer(seconds, digest)

    turn(_WARM_UP)
    return turn

"""A process of `bench tokens`: it holds a language model, and makes as many tokens as its parent asks for."""

from __future__ import annotations

import hashlib
import sys
import time
from typing import Any

import msgspec
import numpy as np

from softnpu.emulator.common import linux
from softnpu.tools.bench.process import READY
from softnpu.tools.shared import failures

_CONFIG = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
_WARM_UP = 3
PLUGIN = "plugin"
"""The way through softnpu's plugin; any other one is the name of a device of OpenVINO's."""


class TokensAnswer(msgspec.Struct, frozen=True):
    """One turn: its seconds, and a digest of the tokens and of the last logits."""

    seconds: float
    digest: str


class Writer:
    """A request that makes one token after the other, always the likeliest."""

    def __init__(self, way: str, model: str, socket: str) -> None:
        if way == PLUGIN:
            from softnpu.plugin import Core

            core: Any = Core(socket)
            compiled = core.compile_model(model, "NPU", _CONFIG)
        else:
            import openvino as ov

            # the emulated device computes in f32, and the NPU's plugin takes no such hint
            config = {"PERFORMANCE_HINT": "LATENCY"} if way == "NPU" else _CONFIG
            compiled = ov.Core().compile_model(model, way, config)
        self._request: Any = compiled.create_infer_request()
        self._token = self._request.get_tensor("token").data
        self._position = self._request.get_tensor("position").data
        self._logits = self._request.get_tensor("logits").data

    def turn(self, count: int) -> TokensAnswer:
        """`count` tokens from the beginning."""
        self._request.reset_state()
        written = [0]
        start = time.perf_counter()
        for position in range(count):
            self._token[0] = written[-1]
            self._position[0] = position
            self._request.infer(share_outputs=True)
            written.append(int(self._logits.argmax()))
        seconds = time.perf_counter() - start
        digest = hashlib.sha256(np.array(written).tobytes() + self._logits.tobytes()).hexdigest()
        return TokensAnswer(seconds, digest)


def main(arguments: list[str]) -> int:
    """`WAY MODEL SOCKET PARENT-PID`: says `ready`, then a turn for each line with a number of tokens."""
    way, model, socket, parent = arguments
    linux.die_with_parent(int(parent))
    kinds: tuple[type[Exception], ...] = (*failures.expected(), RuntimeError)  # the second for OpenVINO's own
    try:
        writer = Writer(way, model, socket)
        writer.turn(_WARM_UP)
        print(READY, flush=True)
        for line in sys.stdin:
            print(msgspec.json.encode(writer.turn(int(line))).decode(), flush=True)
    except kinds as error:
        print(failures.describe(error), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

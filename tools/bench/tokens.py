"""`bench tokens`: a language model with states, token by token, against OpenVINO's CPU device.

Each side is a process of its own and they take turns: the plugin, unmodified OpenVINO on the emulated device,
and OpenVINO's CPU device. Each turn starts from the beginning, so all compute the same.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import openvino as ov

from softnpu.driver import native_library
from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.emulator.interface.environment import ENV_AUTOSTART
from softnpu.tools.bench import language_model
from softnpu.tools.bench.result import Measurement, absolute, compared
from softnpu.tools.bench.rounds import Round, interleave, median
from softnpu.tools.bench.worker import Worker
from softnpu.tools.bench.writer import PLUGIN, WriterAnswer, WriterStart
from softnpu.tools.shared.private_daemon import private_daemon

BENCH: Final = "tokens"
_PEER: Final = "OpenVINO CPU"
_NATIVE: Final = "unmodified OpenVINO"
_WAYS: Final = {PLUGIN: PLUGIN, _NATIVE: "NPU", _PEER: "CPU"}
_DEADLINE_S: Final = 120.0


def run(layers: int, width: int, count: int, rounds: int) -> Iterator[Measurement]:
    """Yield tokens a second; medians of `rounds` turns of `count` tokens each."""
    native = native_library.find()
    digests: set[str] = set()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="softnpu-bench-")))
        socket = stack.enter_context(private_daemon()).socket
        model = folder / "language_model.xml"
        ov.serialize(language_model.build(layers, width), model)
        base = {**os.environ, ENV_CACHE_DIR: "", ENV_AUTOSTART: "0"}

        def start(way: str) -> Worker:
            environment: Mapping[str, str] = native.environment(socket, base) if way == _NATIVE else base
            start = WriterStart(_WAYS[way], str(model), str(socket))
            return stack.enter_context(Worker(f"writer on {way}", "writer:prepare", start, environment))

        writers = {way: start(way) for way in _WAYS}
        for writer in writers.values():
            writer.wait_until_ready()
        sides: dict[str, Round] = {
            way: partial(_turn, writer, count, digests) for way, writer in writers.items()
        }
        rates = {way: count / median(times) for way, times in interleave(sides, rounds).items()}
    name = f"{layers} layers"
    for way in (PLUGIN, _NATIVE):
        yield compared(BENCH, f"{name}: {way}", "1/s", rates[way], _PEER, rates[_PEER])
    yield absolute(BENCH, f"{name}: outputs that differ", "outputs", len(digests) - 1, exactly=0)


def _turn(writer: Worker, count: int, digests: set[str]) -> float:
    writer.begin(count)
    answer = writer.answer(WriterAnswer, _DEADLINE_S)
    digests.add(answer.digest)
    return answer.seconds

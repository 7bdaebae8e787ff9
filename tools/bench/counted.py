"""A client of `bench counters`: it submits as often as a turn says, and lets itself be traced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from softnpu.tools.bench import client, system_calls, writer
from softnpu.tools.bench.client import ClientStart
from softnpu.tools.bench.writer import WriterStart

SUBMIT, INFER, TOKENS = "submit", "infer", "tokens"
_WARM_UP: Final = 20


class CountedStart(msgspec.Struct, frozen=True, kw_only=True):
    """`kind`: what is submitted. `way`: driver, plugin or openvino. `spin_us` bounds the busy wait."""

    kind: str
    way: str
    socket: str
    model: str = ""
    shapes: dict[str, tuple[int, ...]] = {}
    spin_us: int = 0


class CountedAnswer(msgspec.Struct, frozen=True):
    """The inferences of a turn."""

    count: int


def prepare(start: CountedStart) -> Callable[[float], CountedAnswer]:
    """Load what is submitted; return a function that submits it this many times, one at a time."""
    system_calls.allow_tracing()
    repeat = _WAYS[start.kind](start)
    repeat(_WARM_UP)

    def turn(count: float) -> CountedAnswer:
        repeat(int(count))
        return CountedAnswer(int(count))

    return turn


def _submit(start: CountedStart) -> Callable[[int], object]:
    from softnpu.driver import Driver
    from softnpu.tools.bench.submit import EmptySubmission

    driver = Driver.open(Path(start.socket), autostart=False)
    return _repeat(EmptySubmission(driver, start.spin_us).run)


def _infer(start: CountedStart) -> Callable[[int], object]:
    infer, _, _ = client.way(
        ClientStart(way=start.way, socket=start.socket, model=start.model, shapes=start.shapes)
    )
    return _repeat(infer)


def _tokens(start: CountedStart) -> Callable[[int], object]:
    way = writer.PLUGIN if start.way == "plugin" else "CPU"
    turn = writer.prepare(WriterStart(way, start.model, start.socket))
    return lambda count: [turn(min(writer.MOST, count - at)) for at in range(0, count, writer.MOST)]


def _repeat(step: Callable[[], object]) -> Callable[[int], object]:
    def run(count: int) -> None:
        for _ in range(count):
            step()

    return run


_WAYS: Final = {SUBMIT: _submit, INFER: _infer, TOKENS: _tokens}

"""Damaged safetensors files: refused, or every tensor lies inside the file."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

from softnpu.emulator.common import linux
from softnpu.plugin.models.safetensors import SafetensorsError, tensor_ranges
from tests.fuzz.dice import Dice
from tests.fuzz.report import Tally, Violation

_TYPES = ("F32", "F16", "I64", "BOOL", "F128", "")


def weights_files_round(dice: Dice, count: int, tally: Tally) -> None:
    """Check `count` files, read in this process: they never reach the daemon."""
    fd = linux.memfd("safetensors")
    try:
        for _ in range(count):
            data = _damaged(dice, *_good(dice))
            os.ftruncate(fd, 0)
            os.pwrite(fd, data, 0)
            try:
                places = tensor_ranges(fd)
            except SafetensorsError:
                tally.refused["safetensors"] += 1
                continue
            tally.accepted["safetensors"] += 1
            for name, place in places.items():
                if not 0 <= place.offset <= place.offset + place.length <= len(data):
                    raise Violation(f"tensor {name!r} lies outside of {len(data)} bytes: {place}")
            tally.deep["weights_files"] += 1
    finally:
        os.close(fd)


def _good(dice: Dice) -> tuple[dict[str, Any], bytes]:
    header: dict[str, Any] = {}
    at = 0
    for number in range(dice.randint(0, 4)):
        shape = [dice.randint(0, 5) for _ in range(dice.randint(0, 3))]
        size = 4
        for dim in shape:
            size *= dim
        header[f"t{number}"] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    if dice.chance(0.3):
        header["__metadata__"] = {"format": "pt"}
    return header, dice.randbytes(at)


def _damaged(dice: Dice, header: dict[str, Any], data: bytes) -> bytes:
    way = dice.randrange(7)
    tensors = [value for name, value in header.items() if name != "__metadata__"]
    if way == 0 and tensors:
        tensor = dice.pick(tensors)
        name = dice.pick(("dtype", "shape", "data_offsets"))
        tensor[name] = dice.pick(
            (dice.pick(_TYPES), [dice.integer(), dice.integer()], [dice.integer()] * 70, None, dice.integer())
        )
    elif way == 1 and len(tensors) > 1:
        tensors[0]["data_offsets"] = tensors[1]["data_offsets"]
    text = json.dumps(header).encode()
    if way == 2:
        text = dice.damaged(text, 3)
    elif way == 3:
        text = dice.pick((b"", b"[" * 50_000, b'{"a":' * 5_000, b"{}}", b"\xff\xfe{}", b'{"a":1e999}'))
    length = dice.unsigned(64) if way == 4 else len(text)
    whole = struct.pack("<Q", length) + text + data
    return whole[: dice.randint(0, len(whole))] if way == 5 else whole

"""The build flags line of `ze_graph_desc_t`: precisions and layouts of the arguments, and the configuration.

    --inputs_precisions="A:FP16 B:U8" --inputs_layouts="A:NCHW" --outputs_precisions="0:FP32"
    --outputs_layouts="0:NC" --config KEY="VALUE" OTHER="VALUE"

An argument goes by one of its names or, where no argument has that name, by its decimal index; a model that
says `use_indices_for_io_metadata` means indices only. Words may be in either case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from softnpu.emulator.compiler.older_clients import translated
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

PRECISIONS: dict[str, str] = {
    "FP64": "f64", "FP32": "f32", "FP16": "f16", "BF16": "bf16", "FP8_E4M3": "f8e4m3", "FP8_E5M2": "f8e5m2",
    "FP8_E8M0": "f8e8m0", "FP4_E2M1": "f4e2m1", "NF4": "nf4", "I64": "i64", "I32": "i32", "I16": "i16",
    "I8": "i8", "I4": "i4", "I2": "i2", "U64": "u64", "U32": "u32", "U16": "u16", "U8": "u8", "U4": "u4",
    "U2": "u2", "BIN": "u1", "BOOL": "boolean", "BOOLEAN": "boolean", "DYNAMIC": "dynamic",
}  # fmt: skip
"""The word of the flags for each element type of OpenVINO."""

LAYOUTS: dict[str, tuple[int, str]] = {
    "ANY": (-1, ""), "BLOCKED": (-1, ""), "**SCALAR**": (0, ""), "SCALAR": (0, ""), "C": (1, "C"),
    "NC": (2, "NC"), "CN": (2, "CN"), "HW": (2, "HW"), "CHW": (3, "CHW"), "NCHW": (4, "NCHW"),
    "NHWC": (4, "NHWC"), "OIHW": (4, "OIHW"), "NCDHW": (5, "NCDHW"), "NDHWC": (5, "NDHWC"),
}  # fmt: skip
"""Rank (-1: any) and dimensions of each layout; no dimensions: nothing is said about the order."""

DEFAULT_LAYOUTS = ("**SCALAR**", "C", "NC", "CHW", "NCHW", "NCDHW")
"""The layout by rank that changes nothing; BLOCKED above."""

_LISTS = ("inputs_precisions", "inputs_layouts", "outputs_precisions", "outputs_layouts")
_PART = re.compile(r'\s*(?:--(?P<list>[a-z_]+)="(?P<pairs>[^"]*)"|(?P<config>--config)(?=\s|$))')
_OPTION = re.compile(r'\s*(?P<name>[A-Za-z_][\w.]*)="(?P<value>[^"]*)"')
_LIMIT = 1 << 16


class BuildFlags(msgspec.Struct, frozen=True):
    """The parsed line. Lists map the name of an argument to a key of the tables above."""

    inputs_precisions: dict[str, str] = msgspec.field(default_factory=dict)
    inputs_layouts: dict[str, str] = msgspec.field(default_factory=dict)
    outputs_precisions: dict[str, str] = msgspec.field(default_factory=dict)
    outputs_layouts: dict[str, str] = msgspec.field(default_factory=dict)
    config: dict[str, str] = msgspec.field(default_factory=dict)

    def parts(self) -> dict[str, str]:
        """Return the flags on arguments as text in canonical order."""
        return {
            f"flags.{name}": " ".join(f"{key}:{value}" for key, value in sorted(getattr(self, name).items()))
            for name in _LISTS
            if getattr(self, name)
        }


def parse(line: str, subject: str) -> BuildFlags:
    """Parse a line; refuse unreadable parts with `ERROR_INVALID_ARGUMENT` and their position."""
    object_name = f"{subject}, build flags"
    if len(line) > _LIMIT:
        raise _bad(object_name, found=f"{len(line)} characters", expected=f"at most {_LIMIT}")
    text = line.rstrip("\0 \t\r\n")
    lists: dict[str, dict[str, str]] = {}
    config: dict[str, str] = {}
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            raise _bad(
                object_name,
                found=f"'{_cut(text[at:])}' at character {at}",
                expected='--LIST="..." or --config NAME="VALUE"',
            )
        at = part.end()
        if part["config"]:
            at = _read_config(text, at, config, object_name)
            continue
        name = part["list"]
        if name not in _LISTS:
            raise _bad(
                object_name,
                found=f"--{_cut(name)}",
                expected=" or ".join(f"--{known}" for known in (*_LISTS, "config")),
            )
        words: Mapping[str, object] = PRECISIONS if name.endswith("precisions") else LAYOUTS
        lists[name] = _read_pairs(part["pairs"], words, f"{object_name}, --{name}")
    return BuildFlags(**lists, config=translated(config, subject))


def _read_config(text: str, at: int, config: dict[str, str], object_name: str) -> int:
    """Read NAME="VALUE" pairs from `at` on; return where the next part begins."""
    while (option := _OPTION.match(text, at)) is not None:
        name, value = option["name"], option["value"]
        if config.setdefault(name, value) != value:
            raise _bad(
                f"{object_name}, {_cut(name)}",
                found=f"'{_cut(config[name])}' and '{_cut(value)}'",
                expected="one value",
            )
        at = option.end()
    return at


def _read_pairs(pairs: str, words: Mapping[str, object], object_name: str) -> dict[str, str]:
    """NAME:WORD pairs; a name may contain blanks and colons, so a pair ends at the first known word."""
    words_by_name: dict[str, str] = {}
    rest = pairs.strip()
    known = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    pair = re.compile(rf"(?P<name>.+?):(?P<word>{known})(?=\s|$)\s*", re.IGNORECASE)
    while rest:
        match = pair.match(rest)
        if match is None:
            raise _bad(
                object_name, found=f"'{_cut(rest)}'", expected=f"NAME:WORD with one of {', '.join(words)}"
            )
        name, word = match["name"], match["word"].upper()
        if words_by_name.setdefault(name, word) != word:
            raise _bad(
                object_name,
                found=f"'{_cut(name)}' as {words_by_name[name]} and as {word}",
                expected="each argument once",
            )
        rest = rest[match.end() :]
    return words_by_name


def _bad(object_name: str, *, found: str, expected: str) -> Refused:
    return refuse(ZeResult.ERROR_INVALID_ARGUMENT, object_name, found=found, expected=expected)


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."

"""What older releases of OpenVINO's plugin say in the build flags, in today's words.

Up to 2025.1 the plugin asks no compiler what it knows: it passes on the properties that a program has set,
some of its own among them, and the tiles by their former name. Intel's compiler knows them all, so they are
checked here. Those that concern the plugin alone go no further: they change no blob, and no key of a cache.
"""

from __future__ import annotations

from collections.abc import Mapping

from softnpu.emulator.compiler.option_values import Values, any_text, bad_value, choice, integer
from softnpu.emulator.compiler.options import TILES

FORMER_NAMES = {"NPU_DPU_GROUPS": TILES}
"""Today's name of each property that had another one."""

OF_THE_PLUGIN: dict[str, Values] = {
    "CACHE_DIR": any_text(),
    "ENABLE_CPU_PINNING": choice("NO", "YES"),
    "EXCLUSIVE_ASYNC_REQUESTS": choice("NO", "YES"),
    "LOADED_FROM_CACHE": choice("NO", "YES"),
    "NPU_COMPILER_TYPE": choice("DRIVER"),
    "NPU_CREATE_EXECUTOR": integer(0),
    "NPU_PROFILING_TYPE": choice("MODEL", "INFER"),
    "NPU_USE_ELF_COMPILER_BACKEND": choice("AUTO", "NO", "YES"),
    "NUM_STREAMS": choice("1", "AUTO"),
}
"""The values of the properties that are the plugin's affair, and nothing to a compiler."""


def translated(config: Mapping[str, str], subject: str) -> dict[str, str]:
    """Return the configuration of build flags in today's words.

    Refuses a value that a property does not have, and two of one property (`ERROR_INVALID_ARGUMENT`).
    """
    known: dict[str, str] = {}
    for name, value in config.items():
        if name in OF_THE_PLUGIN:
            allowed, accept = OF_THE_PLUGIN[name]
            if accept(value) is None:
                raise bad_value(name, value, allowed, subject)
            continue
        today = FORMER_NAMES.get(name, name)
        if known.setdefault(today, value) != value:
            raise bad_value(today, f"{known[today]}' and '{value}", "one value", subject)
    return known

"""Settings that programs ask for by variables, compared with those of a daemon that runs already.

This is the only place that decides whether they agree, for both drivers and every command.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from softnpu.emulator.interface import environment, injections
from softnpu.emulator.interface.environment import (
    ENV_CHECK,
    ENV_CLOCK,
    ENV_DEVICES,
    ENV_INFERENCE_US,
    ENV_INJECT,
    ENV_NATIVE_TURNS,
    ENV_SELF_CHECK,
    ENV_STRICT,
)
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.platforms import numbers
from softnpu.emulator.supervisor.settings import DaemonSettings

_SHOWN: Final = 200
_LONGEST_PATH: Final = 4000


def of(settings: DaemonSettings) -> dict[str, str]:
    """Return the settings of a daemon as the variables that ask for them."""
    return {
        ENV_DEVICES: ",".join(settings.devices),
        ENV_CLOCK: settings.clock.value,
        ENV_INFERENCE_US: str(settings.inference_us),
        ENV_INJECT: settings.inject or injections.from_environment(),
        ENV_STRICT: str(int(settings.is_strict)),
        ENV_SELF_CHECK: str(int(settings.checks_itself)),
        ENV_NATIVE_TURNS: str(int(environment.native_turns())),
        ENV_CHECK: os.environ.get(ENV_CHECK, ""),
    }


def corrected(settings: DaemonSettings, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in `base` that ask for other settings, with those of the daemon.

    For a program that was given this daemon explicitly.
    """
    return {
        name: own
        for name, own in of(settings).items()
        if base.get(name) and not _agree(name, base[name], own)
    }


def check(settings: DaemonSettings, asked: Sequence[str], *, is_leased: bool) -> None:
    """Refuse the first setting, as `NAME=value`, that is not the daemon's. A lease has its own devices."""
    owns = of(settings)
    for entry in asked:
        name, _, value = entry.partition("=")
        if name not in owns:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"setting {name[:_SHOWN]!r}",
                found="unknown to this daemon",
                expected=", ".join(owns),
                hint="end the daemon with 'softnpu stop'; the next program starts one of its own version",
            )
        if (name == ENV_DEVICES and is_leased) or _agree(name, value, owns[name]):
            continue
        if name == ENV_CHECK and not owns[name]:
            continue  # the session is checked alone
        asking = f"{name} or --platform" if name == ENV_DEVICES else name
        raise refuse(
            ZeResult.ERROR_NOT_AVAILABLE,
            f"daemon at {settings.socket}",
            found=f"it runs with {owns[name] or 'none'!r}"[:_SHOWN],
            expected=f"{value[:_SHOWN]!r}, as {asking} asks for",
            hint="leave that out, end that daemon with 'softnpu stop', or take another one with "
            "'softnpu run --private' or SOFTNPU_SOCKET",
        )


def notes_folder(asked: Sequence[str], uid: int) -> str:
    """Return where the notes of a session are that asks to be checked; empty: it does not.

    Its engine is a process of the daemon's user, and writes there: refuses others, and a relative path.
    """
    folder = dict(entry.split("=", 1) for entry in asked if "=" in entry).get(ENV_CHECK, "")
    if folder and uid != os.getuid():
        raise refuse(
            ZeResult.ERROR_INSUFFICIENT_PERMISSIONS,
            ENV_CHECK,
            found=f"user {uid}",
            expected=f"user {os.getuid()}, whose daemon this is",
            hint="check the program on a daemon of its own, with 'softnpu check'",
        )
    if folder and (not os.path.isabs(folder) or len(folder) > _LONGEST_PATH or "\0" in folder):
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            ENV_CHECK,
            found=folder[:_SHOWN],
            expected="the full path of a folder that can be written",
        )
    return folder


def _agree(name: str, value: str, own: str) -> bool:
    if name == ENV_INJECT:
        return injections.parse(value) == injections.parse(own)
    if name == ENV_INFERENCE_US:
        return (value.lstrip("0") or "0") == own
    if name == ENV_DEVICES:
        return numbers(value.split(",")) == numbers(own.split(","))
    return value == own

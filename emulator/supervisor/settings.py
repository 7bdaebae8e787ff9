"""The settings of a daemon."""

from __future__ import annotations

import enum
import math

import msgspec

from softnpu.emulator import platforms
from softnpu.emulator.common import failpoints
from softnpu.emulator.interface import commands, environment, injections, records
from softnpu.emulator.interface.environment import DEFAULT_SPIN_US, IDLE_TIMES, MAX_SPIN_US, is_idle_time
from softnpu.emulator.interface.messages import Clock, DeviceInfo, Limits
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.supervisor.limits import ResourceLimits
from softnpu.emulator.supervisor.tuning import Tuning

KERNELS = ("all", "signed", "none")
LOG_LEVELS = ("debug", "info", "warning", "error")
DEFAULT_TDR_MS = 2000
DEFAULT_COMMAND_LIMIT_S = 600.0
_MAX_DEVICES = 8
_MAX_ID = 2**32 - 2  # 2**32 - 1 stands for "no user"


class Isolation(enum.StrEnum):
    """The sharing of an engine: by the sessions of a user, or not at all."""

    USER = "user"
    SESSION = "session"


class DaemonSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one daemon. Memory in bytes (0: what the machine has), times as named.

    `idle_timeout_s` 0 means that the daemon stays; `spin_us` 0 that its engines never wait busily;
    `command_limit_s` 0 that a command may compute forever. `failpoints`: see `common.failpoints`.
    `inject`: see `interface.injections`, empty: what `SOFTNPU_INJECT` says.
    `kernels`: which own kernels run, one of `KERNELS`.
    `self_check`: engines try out every image that they load; off: what `SOFTNPU_SELF_CHECK` says.
    `clock`: which one the devices show, and whether they take the modelled time; `inference_us`: the modelled
    time of every inference, 0 for what `softnpu predict` says.
    `devices`: numbers of platforms, or their codenames, which become numbers.
    `strict`: models that silicon is known to refuse are refused; off: what `SOFTNPU_STRICT` says.
    `leased_only`: a session sees the devices of its lease, and none without one.
    `isolate`: who has a virtual function, which is an engine: each user, or each session.
    `sysfs`: a directory for files as the kernel's driver has them, empty: none.
    `allow_users` (uids) and `allow_groups` (gids) may connect besides the owner and root.
    """

    socket: str
    devices: tuple[str, ...] = (platforms.DEFAULT_PLATFORM,)
    log_level: str = "info"
    idle_timeout_s: float = 0.0
    memory: int = 0
    session_memory: int = 0
    tdr_ms: int = DEFAULT_TDR_MS
    spin_us: int = DEFAULT_SPIN_US
    max_clients: int = 4096
    command_limit_s: float = DEFAULT_COMMAND_LIMIT_S
    failpoints: str = ""
    inject: str = ""
    self_check: bool = False
    kernels: str = "all"
    clock: Clock = Clock.HOST
    inference_us: int = 0
    strict: bool = False
    leased_only: bool = False
    isolate: Isolation = Isolation.USER
    sysfs: str = ""
    limits: ResourceLimits = ResourceLimits()
    allow_users: tuple[int, ...] = ()
    allow_groups: tuple[int, ...] = ()
    tuning: Tuning = Tuning()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "devices", platforms.numbers(self.devices))

    def check(self) -> None:
        """Refuse settings that cannot work, naming the setting."""
        if not 1 <= len(self.devices) <= _MAX_DEVICES:
            raise _bad_option(
                "platform", found=f"{len(self.devices)} devices", expected=f"1 to {_MAX_DEVICES}"
            )
        for number in self.devices:
            if not platforms.check_platform(number).timed and self.clock is not Clock.HOST:
                raise _bad_option(
                    "clock",
                    found=f"{self.clock.value} for platform {platforms.title(number)}",
                    expected="host: no public source has the speed of that platform",
                )
        if self.kernels not in KERNELS:
            raise _bad_option("kernels", found=repr(self.kernels), expected=", ".join(KERNELS))
        if self.log_level not in LOG_LEVELS:
            raise _bad_option("log_level", found=repr(self.log_level), expected=" or ".join(LOG_LEVELS))
        if not is_idle_time(self.idle_timeout_s):
            raise _bad_option("idle_timeout", found=f"{self.idle_timeout_s:g}", expected=IDLE_TIMES)
        if not 0 <= self.spin_us <= MAX_SPIN_US:
            raise _bad_option("spin_us", found=self.spin_us, expected=f"0 to {MAX_SPIN_US} microseconds")
        for name in ("memory", "session_memory", "command_limit_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise _bad_option(name.removesuffix("_s"), found=getattr(self, name), expected="0 or more")
        if not 0 <= self.inference_us <= environment.MAX_INFERENCE_US:
            raise _bad_option(
                "inference_us", found=self.inference_us, expected=f"0 to {environment.MAX_INFERENCE_US}"
            )
        if self.inference_us and self.clock is Clock.HOST:
            raise _bad_option(
                "inference_us", found=self.inference_us, expected="--clock device, or --pace, beside it"
            )
        for name in ("tdr_ms", "max_clients"):
            if getattr(self, name) < 1:
                raise _bad_option(name, found=getattr(self, name), expected="1 or more")
        for name in ("allow_users", "allow_groups"):
            for number in getattr(self, name):
                if not 0 <= number <= _MAX_ID:
                    raise _bad_option(name[:-1], found=number, expected=f"0 to {_MAX_ID}")
        self.limits.check()
        try:
            failpoints.parse(self.failpoints)
        except failpoints.FailpointError as error:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"fail-point {error.rule!r}",
                found=error.found,
                expected=error.expected,
            ) from error
        # each refuses a bad value of its variable
        environment.self_check()
        environment.strict()
        environment.native_turns()
        if environment.check_folder() and self.is_shared:
            raise _bad_option(
                "allow_user or --allow-group",
                found=f"{environment.ENV_CHECK} beside it",
                expected="one of them: the programs of others cannot write notes",
            )
        for injection in self.injections():
            check_injected_device(injection, len(self.devices))

    def injections(self) -> tuple[injections.Injection, ...]:
        """Return the faults that are injected from the start on."""
        return injections.parse(self.inject or injections.from_environment())

    @property
    def checks_itself(self) -> bool:
        """Whether engines try out what they load."""
        return self.self_check or environment.self_check()

    @property
    def is_strict(self) -> bool:
        """Whether the compiler refuses what silicon refuses."""
        return self.strict or environment.strict()

    @property
    def is_shared(self) -> bool:
        """Whether others than its user may use the daemon."""
        return bool(self.allow_users or self.allow_groups)

    def device_infos(self) -> list[DeviceInfo]:
        """Return the devices as the handshake reports them."""
        memory = self.memory or platforms.usable_memory()
        infos = [platforms.describe(index, number, memory) for index, number in enumerate(self.devices)]
        return [msgspec.structs.replace(info, clock=self.clock) for info in infos]


def isolation(text: str) -> Isolation:
    """Parse the value of `--isolate`."""
    try:
        return Isolation(text)
    except ValueError:
        raise _bad_option("isolate", found=repr(text), expected=" or ".join(Isolation)) from None


def limits_for(settings: DaemonSettings) -> Limits:
    """Return the limits of one session under these settings."""
    return Limits(
        session_memory=settings.session_memory or settings.memory or platforms.usable_memory(),
        contexts=settings.limits.session_contexts,
        allocations=settings.limits.session_allocations,
        queues=settings.limits.session_queues,
        graphs=settings.limits.session_graphs,
        compiles=settings.limits.session_compiles,
        queue_slots=records.MAX_SLOTS,
        command_buffer=commands.MAX_BUFFER,
        tdr_ms=settings.tdr_ms,
    )


def check_injected_device(injection: injections.Injection, devices: int) -> None:
    """Refuse an injection on a device that does not exist."""
    if injection.device is not None and not 0 <= injection.device < devices:
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            f"injection of {injection.kind.value}",
            found=f"device {injection.device}",
            expected=f"0 to {devices - 1}",
        )


def _bad_option(option: str, *, found: object, expected: str) -> Refused:
    name = f"setting --{option.replace('_', '-')}"
    return refuse(ZeResult.ERROR_INVALID_ARGUMENT, name, found=str(found), expected=expected)

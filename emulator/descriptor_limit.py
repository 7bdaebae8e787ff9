"""The limit of descriptors of a daemon, which holds some for every session. It imports little."""

from __future__ import annotations

import resource

LEAST = 32


def raise_it() -> None:
    """Raise the soft limit to the hard one. Refuses one with which a daemon could serve no program at all."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < LEAST:
        from softnpu.emulator.interface.result import ZeResult, refuse  # late: most are far higher

        raise refuse(
            ZeResult.ERROR_OUT_OF_HOST_MEMORY,
            "limit of descriptors",
            found=f"{hard}",
            expected=f"{LEAST} or more",
            hint="raise it (ulimit -Hn, or --ulimit nofile of a container)",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

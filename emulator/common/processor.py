"""The processor's capabilities, and those that OpenVINO's CPU device may use."""

from __future__ import annotations

import functools
import os
from typing import Final

_CPUINFO: Final = "/proc/cpuinfo"
_LIMITS: Final = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Variables of oneDNN, which computes for the CPU device; the first that is not empty counts."""
_VNNI: Final = ("avx512_vnni", "avx_vnni")
_VNNI_WITHIN: Final = {
    "SSE41": (),
    "AVX": (),
    "AVX2": (),
    "AVX512_CORE": (),
    "AVX2_VNNI": ("avx_vnni",),
    "AVX2_VNNI_2": ("avx_vnni",),
    "AVX512_CORE_VNNI": ("avx512_vnni",),
    "AVX512_CORE_BF16": ("avx512_vnni",),
}
"""The capabilities left by limits. Other limits leave both; names unknown to oneDNN limit nothing."""


@functools.cache
def flags() -> frozenset[str]:
    """Return the first processor's capabilities, in the kernel's words; empty if unreadable."""
    try:
        with open(_CPUINFO, encoding="utf-8", errors="replace") as file:
            for line in file:
                # `flags` on x86, `Features` on ARM
                if line.lower().startswith(("flags", "features")):
                    return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()


def limit() -> str:
    """Return the instruction set that the environment limits oneDNN to; empty for none."""
    return next(filter(None, (os.environ.get(name, "") for name in _LIMITS)), "").upper()


def has_vnni() -> bool:
    """Whether oneDNN adds products of 8 bits in 32 bits."""
    return not flags().isdisjoint(_VNNI_WITHIN.get(limit(), _VNNI))

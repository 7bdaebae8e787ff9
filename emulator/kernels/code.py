"""`python -m softnpu.emulator.kernels.code MODULE-FD RESULT-FD`: compile a module for the cache of code.

What runs kernels cannot write that cache, as a kernel may have taken it over. This process never runs one and
is locked in before it sees it; `keep` starts it and stores the bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

from softnpu.emulator.common import linux
from softnpu.emulator.sandbox import sandbox

_DEADLINE_S: Final = 60.0
_MEMORY: Final = 1 << 30
_MOST_BYTES: Final = 64 << 20
_PROGRAM: Final = "softnpu.emulator.kernels.code"


def keep(content: bytes) -> bool:
    """Keep the code of a module that loads, for later processes of kernels; return whether that succeeded."""
    from softnpu.emulator.kernels.module import CodeCache

    cache = CodeCache.open()
    if cache is None:
        return False
    module, result = linux.sealed_copy("kernel", content), linux.memfd("code")
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", _PROGRAM, str(module), str(result)],
            pass_fds=(module, result),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_DEADLINE_S,
            check=False,
        )
        size = os.fstat(result).st_size
        if done.returncode or not 0 < size <= _MOST_BYTES:
            return False
        return cache.store(content, os.pread(result, size, 0))
    except subprocess.TimeoutExpired:
        return False
    finally:
        os.close(module)
        os.close(result)


def main(arguments: list[str]) -> int:
    """Compile the module of a descriptor into another."""
    module, result = map(int, arguments)
    from softnpu.emulator.kernels.machine import Machine
    from softnpu.emulator.kernels.module import KernelModule

    sandbox.enter(sandbox.Policy(memory=_MEMORY))
    content = os.pread(module, os.fstat(module).st_size, 0)
    compiled = memoryview(bytes(KernelModule(Machine(), content).compiled.serialize()))
    while compiled:
        compiled = compiled[os.write(result, compiled) :]
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

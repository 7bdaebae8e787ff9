"""The virtual machine of kernels: wasmtime, deterministic, with deadlines. One for each process.

Deterministic: relaxed instructions do the same on every processor, every NaN is the same one, and nothing can
be imported, so that there is no clock, no random number and no other thread.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Final

import wasmtime
from wasmtime import _bindings as bindings

TICK_S: Final = 0.02
VERSION: Final = "1"
"""Of the configuration: compiled code of another one is of no use."""
_STACK: Final = 512 << 10
_REST_S: Final = 1.0


class Deadlines:
    """A thread that counts epochs while kernels run: a run ends at most two ticks after its deadline.

    It rests while nothing runs, and starts with the first run, as Landlock holds for later threads only.
    """

    def __init__(self, engine: wasmtime.Engine) -> None:
        self._engine = engine
        self._awake = threading.Event()
        self._thread: threading.Thread | None = None
        self._last = 0.0
        self._lock = threading.Lock()  # runs begin and end in several threads
        self._running = 0

    def begin(self, store: wasmtime.Store, deadline_ms: int) -> None:
        """Give a run its deadline; `end` has to follow."""
        store.set_epoch_deadline(int(deadline_ms / 1e3 / TICK_S) + 2)
        with self._lock:
            self._running += 1
            if self._awake.is_set():
                return
            self._awake.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._count, name="epochs", daemon=True)
                self._thread.start()

    def end(self) -> None:
        """A run has ended."""
        with self._lock:
            self._running -= 1

    def _count(self) -> None:
        while True:
            self._awake.wait()
            time.sleep(TICK_S)
            self._engine.increment_epoch()
            now = time.monotonic()
            if self._running:
                self._last = now
            elif now - self._last > _REST_S:
                with self._lock:
                    if not self._running:
                        self._awake.clear()


class Machine:
    """What compiles and runs modules."""

    def __init__(self) -> None:
        config = wasmtime.Config()
        config.epoch_interruption = True
        config.wasm_relaxed_simd_deterministic = True
        config.cranelift_nan_canonicalization = True
        config.max_wasm_stack = _STACK
        for feature in ("threads", "memory64", "multi_memory", "gc", "function_references", "tail_call"):
            setattr(config, f"wasm_{feature}", False)
        self.engine = wasmtime.Engine(config)
        self.deadlines = Deadlines(self.engine)


class Function:
    """An exported function of one pointer that returns a number: called without converting anything."""

    def __init__(self, store: wasmtime.Store, function: wasmtime.Func) -> None:
        self._store = store
        self._function = function
        self._values = (bindings.wasmtime_val_raw_t * 1)()
        self._trap = ctypes.POINTER(bindings.wasm_trap_t)()

    def __call__(self, pointer: int) -> int:
        """Call it. Raises `wasmtime.Trap` or `wasmtime.WasmtimeError`."""
        self._values[0].i32 = pointer
        error = bindings.wasmtime_func_call_unchecked(
            self._store._context(),
            ctypes.byref(self._function._func),
            self._values,
            1,
            ctypes.byref(self._trap),
        )
        if self._trap:
            trap, self._trap = self._trap, ctypes.POINTER(bindings.wasm_trap_t)()
            raise wasmtime.Trap._from_ptr(trap)
        if error:
            raise wasmtime.WasmtimeError._from_ptr(error)
        return int(self._values[0].i32)

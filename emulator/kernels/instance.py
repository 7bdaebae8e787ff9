"""An instance of a kernel: its memory and functions. What traps is thrown away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import wasmtime

from softnpu.emulator.kernels import abi
from softnpu.emulator.kernels.abi import Block, TensorRecord
from softnpu.emulator.kernels.description import Value
from softnpu.emulator.kernels.errors import Failure, KernelError, failed
from softnpu.emulator.kernels.linear_memory import LinearMemory
from softnpu.emulator.kernels.machine import Function
from softnpu.emulator.kernels.module import MEMORY, SHAPES, SPLIT, KernelModule

ALLOWANCE: Final = 64 << 20
"""Bytes by which a kernel may grow its memory."""
_BLOCK: Final = 64 << 10
_MOST_MESSAGE: Final = 200
_MOST_SCRATCH: Final = 1 << 30
_TABLE_ELEMENTS: Final = 10_000
_TRAPS: Final = {
    wasmtime.TrapCode.STACK_OVERFLOW: (Failure.STACK, "stack overflow"),
    wasmtime.TrapCode.MEMORY_OUT_OF_BOUNDS: (
        Failure.BOUNDS, "an access outside of its memory, or a write to an input",
    ),
    wasmtime.TrapCode.TABLE_OUT_OF_BOUNDS: (Failure.BOUNDS, "an access outside of a table"),
    wasmtime.TrapCode.INTERRUPT: (Failure.DEADLINE, "still running at its deadline"),
}  # fmt: skip


class Instance:
    """A module with a memory. `deadline_ms` holds for each run."""

    def __init__(self, module: KernelModule, deadline_ms: int) -> None:
        self.module, self.deadline_ms = module, deadline_ms
        self.name = module.description.full_name
        self._deadlines = module.machine.deadlines
        self._store = wasmtime.Store(module.machine.engine)
        self._store.set_limits(table_elements=_TABLE_ELEMENTS, instances=1, tables=4, memories=1)
        with _Guard(self, deadline_ms):  # a module may have a function that runs at its start
            exports = wasmtime.Instance(self._store, module.compiled, []).exports(self._store)
        memory = exports[MEMORY]
        assert isinstance(memory, wasmtime.Memory)
        self.memory = LinearMemory(self._store, memory, ALLOWANCE)
        names = {SHAPES, *(each.run for each in module.description.implementations)}
        if module.can_split:
            names.add(SPLIT)
        self._functions = {name: Function(self._store, _function(exports[name])) for name in names}
        block = self.memory.allocate(_BLOCK)
        if block is None:
            raise failed(Failure.MEMORY, self.name, "no room for its arguments", f"{_BLOCK} bytes")
        self.block_at = block
        self.is_usable = True

    def shapes(
        self, implementation: int, inputs: Sequence[TensorRecord], attributes: Sequence[Value]
    ) -> tuple[list[TensorRecord], int]:
        """Ask for the outputs, without data, and for the size of the scratch memory."""
        chosen = self.module.description.implementations[implementation]
        outputs = [TensorRecord(each, ()) for each in chosen.outputs]
        block = self.encode(inputs, outputs, attributes)
        content = self.run(SHAPES, block)
        records = []
        for name, kind, shape in zip(
            self.module.description.outputs, chosen.outputs, block.outputs(content), strict=True
        ):
            if shape is None or abi.byte_size(kind, shape) > _MOST_SCRATCH:
                found = f"output {name}: an impossible shape from {SHAPES}"
                expected = f"at most {abi.MAX_RANK} dimensions, none negative, at most {_MOST_SCRATCH} bytes"
                raise failed(Failure.SHAPE, self.name, found, expected)
            records.append(TensorRecord(kind, shape))
        scratch = block.scratch_size(content)
        if scratch > _MOST_SCRATCH:
            raise failed(Failure.MEMORY, self.name, f"{scratch} bytes of scratch", f"at most {_MOST_SCRATCH}")
        return records, scratch

    def encode(
        self,
        inputs: Sequence[TensorRecord],
        outputs: Sequence[TensorRecord],
        attributes: Sequence[Value],
        scratch: tuple[int, int] = (0, 0),
    ) -> Block:
        """Return the block of a call."""
        names = (each.name for each in self.module.description.attributes)
        named = list(zip(names, attributes, strict=True))
        block = abi.encode(self.block_at, inputs, outputs, named, scratch=scratch)
        if len(block.content) > _BLOCK:
            found = f"attributes and tensors of {len(block.content)} bytes"
            raise failed(Failure.SHAPE, self.name, found, f"at most {_BLOCK}")
        return block

    def split(
        self, inputs: Sequence[TensorRecord], outputs: Sequence[TensorRecord], attributes: Sequence[Value]
    ) -> int:
        """Ask which inputs are cut if the call is split, as bits; 0: it cannot be."""
        code, _ = self._call(SPLIT, self.encode(inputs, outputs, attributes), self.deadline_ms)
        return code & 0xFFFFFFFF

    def run(self, function: str, block: Block, left_ms: int | None = None) -> bytes:
        """Call a function with a block; return the block up to its outputs as the kernel has left it.

        `left_ms`: less time than the deadline.
        """
        code, content = self._call(function, block, self.deadline_ms if left_ms is None else left_ms)
        if code:
            message = self.memory.read_text(block.error_pointer(content), _MOST_MESSAGE)
            raise failed(Failure.RETURNED, self.name, f"{function} returned {code}: {message or 'no reason'}")
        return content

    def _call(self, function: str, block: Block, left_ms: int) -> tuple[int, bytes]:
        self.memory.reset()
        self.memory.clear(self.block_at, _BLOCK)  # a kernel may have written behind the last one
        self.memory.write(block.at, block.content)
        with _Guard(self, left_ms):
            code = self._functions[function](block.at)
        content = self.memory.read(block.at, block.outputs_size)
        if not self.memory.is_intact():
            self.is_usable = False  # the next run begins with as much memory as this one
        return code, content


class _Guard:
    """A stretch in which a kernel runs: with a deadline, and what ends it is an error with its place."""

    def __init__(self, instance: Instance, left_ms: int) -> None:
        self._instance, self._left_ms = instance, left_ms

    def __enter__(self) -> None:
        self._instance._deadlines.begin(self._instance._store, self._left_ms)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._instance._deadlines.end()
        if isinstance(error, wasmtime.Trap | wasmtime.WasmtimeError):
            self._instance.is_usable = False
            raise _translated(error, self._instance) from None


def _translated(error: wasmtime.Trap | wasmtime.WasmtimeError, instance: Instance) -> KernelError:
    if not isinstance(error, wasmtime.Trap):
        reason = " ".join(str(error).split())[:_MOST_MESSAGE]
        return failed(Failure.MEMORY, instance.name, reason)
    code = error.trap_code
    known = None if code is None else _TRAPS.get(code)
    told = error.message.partition("wasm trap: ")[2].splitlines() or [error.message[:_MOST_MESSAGE]]
    failure, what = known or (Failure.TRAP, told[0])
    expected = f"an end within {instance.deadline_ms} ms" if failure is Failure.DEADLINE else ""
    return failed(failure, instance.name, f"{what}, {_place(error)}", expected)


def _place(trap: wasmtime.Trap) -> str:
    """Return where a trap was: function, offset in it, and offset in the module."""
    frames = trap.frames
    if not frames:
        return "at an unknown place"
    first = frames[0]
    name = first.func_name or f"function {first.func_index}"
    return f"in {name[:_MOST_MESSAGE]} at +{first.func_offset:#x} (module offset {first.module_offset:#x})"


def _function(export: object) -> wasmtime.Func:
    assert isinstance(export, wasmtime.Func)
    return export

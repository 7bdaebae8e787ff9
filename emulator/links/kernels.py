"""The private protocol with a process of kernels.

Its owner sends `Setup`, loads modules, announces memory files and prepares calls over the channel; each
request has one answer, the one named or `KernelFailed`, but for those with number 0. Prepared calls run by
way of the mailbox.
"""

from __future__ import annotations

import msgspec

from softnpu.emulator.interface.message import Message
from softnpu.emulator.interface.result import ErrorInfo


class TensorPlace(msgspec.Struct, frozen=True, array_like=True):
    """A dense tensor in an announced memory file, `offset` in bytes."""

    element_type: str
    shape: tuple[int, ...]
    memory: int = 0
    offset: int = 0


class Setup(Message, frozen=True, kw_only=True, tag="setup"):
    """The first message. Descriptors: the mailbox, and an eventfd that wakes. Answer: `Ready`.

    `memory`: bytes of private memory that the process may have. `threads`: that run kernels; 0: one for each
    core.
    """

    memory: int
    threads: int = 0


class LoadKernel(Message, frozen=True, kw_only=True, tag="load_kernel"):
    """Check and compile a module. Descriptor: a sealed memory file with it. Answer: `KernelLoaded`."""

    kernel: int
    length: int


class AddMemory(Message, frozen=True, kw_only=True, tag="add_memory"):
    """Announce a memory file, which cannot shrink. Descriptor: itself. Answer: `Done`."""

    memory: int


class AskShapes(Message, frozen=True, kw_only=True, tag="ask_shapes"):
    """Ask for the outputs for these inputs, whose places do not matter. Answer: `Shapes`."""

    kernel: int
    implementation: int
    attributes: list[int | float | str | list[int | float]]
    inputs: tuple[TensorPlace, ...]
    deadline_ms: int


class PrepareCall(AskShapes, frozen=True, kw_only=True, tag="prepare_call"):
    """Bind a call to its tensors. Answer: `Prepared`."""

    call: int
    outputs: tuple[TensorPlace, ...]


class Drop(Message, frozen=True, kw_only=True, tag="drop"):
    """Forget a call, a kernel or a memory file, the others being -1. Answer: `Done`."""

    call: int = -1
    kernel: int = -1
    memory: int = -1


class Ready(Message, frozen=True, kw_only=True, tag="ready"):
    """The process is locked in, but for what this machine lacks."""

    missing_protections: tuple[str, ...] = ()


class KernelLoaded(Message, frozen=True, kw_only=True, tag="kernel_loaded"):
    """A module is compiled: how long that took, and whether its code was on disk."""

    compile_us: int
    is_from_cache: bool


class Shapes(Message, frozen=True, kw_only=True, tag="shapes"):
    """The outputs, without places, and the bytes of scratch."""

    outputs: tuple[TensorPlace, ...]
    scratch: int


class Prepared(Message, frozen=True, kw_only=True, tag="prepared"):
    """A call can run; each run copies so many bytes of its tensors, if the outputs have their full size.

    `parts`: it is split into so many.
    """

    staged: int
    parts: int = 1


class Done(Message, frozen=True, kw_only=True, tag="done"):
    """It is done."""


class KernelFailed(Message, frozen=True, kw_only=True, tag="kernel_failed"):
    """It is not. `failure` is one of `kernels.errors.Failure`."""

    failure: str
    error: ErrorInfo


Command = Setup | LoadKernel | AddMemory | AskShapes | PrepareCall | Drop
Answer = Ready | KernelLoaded | Shapes | Prepared | Done | KernelFailed
command_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
answer_decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
encode = msgspec.msgpack.Encoder().encode

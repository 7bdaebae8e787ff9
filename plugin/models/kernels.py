"""Own kernels of the program: OpenVINO reads their operations, the compiler gets their modules."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from softnpu.driver import Context, GraphSource
from softnpu.emulator.common import linux
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.kernels import carried, description
from softnpu.emulator.kernels.process import check_installed
from softnpu.plugin import openvino_runtime
from softnpu.plugin.errors import ModelError
from softnpu.plugin.models.functions import FunctionKernel

SUFFIX: Final = ".wasm"
_added: dict[tuple[str, str], bytes | FunctionKernel] = {}
_adding = threading.Lock()


def add(file: str | os.PathLike[str]) -> None:
    """Add a kernel of a file. Raises `ModelError` for one that is none, or another one of the same name."""
    try:
        content = Path(file).read_bytes()
        described = description.read(content)
        check_installed()
        with _adding:
            key = described.domain, described.name
            if key in _added:
                if _added[key] != content:
                    raise ModelError(
                        f"kernel {file}: another {described.full_name} is there; expected one of a name"
                    )
                return
            from softnpu.emulator.openvino.kernels import operations  # late: it loads wasmtime

            module = operations.load(content)
            for extension in operations.extensions(module):
                openvino_runtime.add_extension(extension)
            _added[key] = content
    except OSError as error:
        raise ModelError(f"kernel {file}: {error.strerror}; expected a readable file") from error
    except Refused as error:
        raise ModelError(f"kernel {file}: {error.info}") from error


def add_function(kernel: FunctionKernel) -> None:
    """Add a function; a new one of the same signature takes the place of one before."""
    described = kernel.description
    key = described.domain, described.name
    with _adding:
        known = _added.get(key)
        if known is None:
            from softnpu.emulator.openvino.kernels import operations

            for extension in operations.extensions(operations.FunctionModule(described)):
                openvino_runtime.add_extension(extension)
        elif not isinstance(known, FunctionKernel) or known.description != described:
            raise ModelError(
                f"kernel {described.full_name}: another one is there, with other types, shapes or attributes;"
                " expected the same, or another name"
            )
        _added[key] = kernel


def attach(source: GraphSource, context: Context) -> bool:
    """Attach the kernels that a model names to its IR; return whether one of them is a function."""
    if not _added:
        return False
    xml = os.pread(source.xml_fd, source.xml_length, 0)
    named = [
        kernel
        for (domain, name), kernel in _added.items()
        if f'type="{name}" version="{domain}"'.encode() in xml
    ]
    functions = [each for each in named if isinstance(each, FunctionKernel)]
    used = [each.content(context) if isinstance(each, FunctionKernel) else each for each in named]
    if used:
        whole = carried.attach(xml, used)
        fd = linux.sealed_copy("ir", whole)
        os.close(source.xml_fd)
        source.xml_fd, source.xml_length = fd, len(whole)
    return bool(functions)

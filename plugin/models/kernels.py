"""Own kernels of the program: OpenVINO reads their operations, the compiler gets their modules."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import openvino as ov

from softnpu.driver import Context, GraphSource
from softnpu.emulator.common import linux
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.kernels import replacements
from softnpu.plugin import openvino_runtime
from softnpu.plugin.errors import ModelError, PropertyError

if TYPE_CHECKING:
    from softnpu.plugin.models.functions import FunctionKernel

SUFFIX: Final = ".wasm"
_added: dict[tuple[str, str], bytes | FunctionKernel] = {}
_adding = threading.Lock()


def add(file: str | os.PathLike[str]) -> None:
    """Add a kernel of a file. Raises `ModelError` for one that is none, or another one of the same name."""
    # late: few programs add a kernel
    from softnpu.emulator.kernels import description
    from softnpu.emulator.kernels.process import check_installed

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
    from softnpu.emulator.openvino.kernels import operations
    from softnpu.plugin.models.functions import FunctionKernel

    described = kernel.description
    key = described.domain, described.name
    with _adding:
        known = _added.get(key)
        if known is None:
            for extension in operations.extensions(operations.FunctionModule(described)):
                openvino_runtime.add_extension(extension)
        elif not isinstance(known, FunctionKernel) or known.description != described:
            raise ModelError(
                f"kernel {described.full_name}: another one is there, with other types, shapes or attributes;"
                " expected the same, or another name"
            )
        _added[key] = kernel


def attach(source: GraphSource, context: Context, wanted: str) -> bool:
    """Attach the kernels that a model names to its IR, and those of the property NPU_KERNELS_FOR.

    Returns whether one of them is a function. Raises `PropertyError` for one that is not there.
    """
    replacing = _replacing(wanted)
    if not _added:
        return False
    xml = os.pread(source.xml_fd, source.xml_length, 0)
    named = {
        kernel: None
        for (domain, name), kernel in _added.items()
        if f'type="{name}" version="{domain}"'.encode() in xml
    }
    used = list(named | replacing)
    if used:
        from softnpu.emulator.kernels import carried

        contents = [each if isinstance(each, bytes) else each.content(context) for each in used]
        whole = carried.attach(xml, contents)
        fd = linux.sealed_copy("ir", whole)
        os.close(source.xml_fd)
        source.xml_fd, source.xml_length = fd, len(whole)
    return not all(isinstance(each, bytes) for each in used)


def text_of(model: ov.Model, wanted: str) -> str:
    """Return the kernels of a model in memory as a text for its IR; empty without any. Like `attach`."""
    replacing = _replacing(wanted)
    kinds = (
        {(str(info.version_id), info.name) for info in (each.get_type_info() for each in model.get_ops())}
        if _added
        else set()
    )
    used = list({_added[kind]: None for kind in _added if kind in kinds} | replacing)
    if not used:
        return ""
    from softnpu.emulator.kernels import carried

    # whoever asks runs nothing: a function needs no helper
    return carried.text([each if isinstance(each, bytes) else each.description.encode() for each in used])


def _replacing(wanted: str) -> dict[bytes | FunctionKernel, None]:
    known = {f"{domain}.{name}": kernel for (domain, name), kernel in _added.items()}
    found: dict[bytes | FunctionKernel, None] = {}
    for name in (replacements.parse(wanted) or {}).values():
        if name not in known:
            raise PropertyError(
                f"property {replacements.PROPERTY}: kernel {name} is not there; expected one that"
                f" Core.add_extension was given: {', '.join(known) or 'none was'}"
            )
        found[known[name]] = None
    return found

"""Own kernels of the program: OpenVINO reads their operations, the compiler gets their modules."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

import openvino as ov

from softnpu.driver import GraphSource
from softnpu.emulator.common import linux
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.kernels import replacements
from softnpu.plugin import openvino_runtime
from softnpu.plugin.errors import ModelError, PropertyError

SUFFIX: Final = ".wasm"
_added: dict[tuple[str, str], bytes] = {}
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


def attach(source: GraphSource, wanted: str) -> None:
    """Attach the kernels that a model names to its IR, and those of the property NPU_KERNELS_FOR.

    Raises `PropertyError` for one that is not there.
    """
    replacing = _replacing(wanted)
    if not _added:
        return
    xml = os.pread(source.xml_fd, source.xml_length, 0)
    named = {
        content: None
        for (domain, name), content in _added.items()
        if f'type="{name}" version="{domain}"'.encode() in xml
    }
    used = list(named | replacing)
    if used:
        from softnpu.emulator.kernels import carried

        whole = carried.attach(xml, used)
        fd = linux.sealed_copy("ir", whole)
        os.close(source.xml_fd)
        source.xml_fd, source.xml_length = fd, len(whole)


def text_of(model: ov.Model, wanted: str) -> str:
    """Return the kernels of a model in memory as a text for its IR; empty without any. Like `attach`."""
    replacing = _replacing(wanted)
    kinds = (
        {(str(info.version_id), info.name) for info in (each.get_type_info() for each in model.get_ops())}
        if _added
        else set()
    )
    used = list({_added[kind]: None for kind in _added if kind in kinds} | replacing)
    from softnpu.emulator.kernels import carried

    return carried.text(used) if used else ""


def _replacing(wanted: str) -> dict[bytes, None]:
    known = {f"{domain}.{name}": content for (domain, name), content in _added.items()}
    found: dict[bytes, None] = {}
    for name in (replacements.parse(wanted) or {}).values():
        if name not in known:
            raise PropertyError(
                f"property {replacements.PROPERTY}: kernel {name} is not there; expected one that"
                f" Core.add_extension was given: {', '.join(known) or 'none was'}"
            )
        found[known[name]] = None
    return found

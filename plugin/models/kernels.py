"""Own kernels of the program: OpenVINO reads their operations, the compiler gets their modules."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from softnpu.driver import GraphSource
from softnpu.emulator.common import linux
from softnpu.emulator.interface.result import Refused
from softnpu.plugin import openvino_runtime
from softnpu.plugin.errors import ModelError

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


def attach(source: GraphSource) -> None:
    """Attach the kernels that a model names to its IR."""
    if not _added:
        return
    xml = os.pread(source.xml_fd, source.xml_length, 0)
    used = [
        content
        for (domain, name), content in _added.items()
        if f'type="{name}" version="{domain}"'.encode() in xml
    ]
    if used:
        from softnpu.emulator.kernels import carried

        whole = carried.attach(xml, used)
        fd = linux.sealed_copy("ir", whole)
        os.close(source.xml_fd)
        source.xml_fd, source.xml_length = fd, len(whole)

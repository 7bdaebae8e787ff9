"""ONNX files, which the sandboxed process of a job reads itself.

OpenVINO's frontend follows the paths of external data that are written in a model. Landlock denies them,
where the kernel has it; and a file in which such a path could be written is not shown to OpenVINO.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Final

from softnpu.emulator.common import linux
from softnpu.emulator.compiler import files
from softnpu.emulator.compiler.error_info import openvino_errors
from softnpu.emulator.interface.environment import PREFIXES_OF_OPENVINO
from softnpu.emulator.interface.messages import FORMAT, ONNX
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.links.compiler import CompileJob

if TYPE_CHECKING:
    import openvino as ov

_EXTERNAL: Final = b"location"
"""The key of an external path, whose bytes stand together however the file is encoded."""
_memmem = ctypes.CDLL(None).memmem  # a third of the time of Python's searches in a mapping
_memmem.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
_memmem.restype = ctypes.c_void_p


def mapped(job: CompileJob, fd: int, subject: str) -> memoryview:
    """Return the file of a job; refuse another format, weights beside it, and one that could change."""
    if job.format != ONNX:
        raise refuse(
            ZeResult.ERROR_UNSUPPORTED_FEATURE,
            f"{subject}, format",
            found=repr(job.format[:16]),
            expected=f"{ONNX!r}, or none for an IR",
            property=FORMAT,
        )
    if job.weights or not linux.has_seals(fd, linux.SEALS_IMMUTABLE):
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            f"{subject}, ONNX",
            found=f"{len(job.weights)} sources of weights" if job.weights else "a file that can change",
            expected="one immutable memory file",
        )
    if job.xml_length > files.XML_LIMIT:
        raise refuse(
            ZeResult.ERROR_UNSUPPORTED_SIZE,
            f"{subject}, ONNX",
            found=f"{job.xml_length} bytes",
            expected=f"at most {files.XML_LIMIT} bytes",
        )
    return files.map_range(fd, 0, job.xml_length, f"{subject}, ONNX")


def read(content: memoryview, fd: int, subject: str) -> ov.Model:
    """Return the model in the file `fd` with this content. Refuses external data, and what is no model."""
    import numpy as np  # OpenVINO has loaded it
    from openvino import frontend as frontends

    errors = (
        *(frontends.GeneralFailure, frontends.InitializationFailure, frontends.NotImplementedFailure),
        *(frontends.OpConversionFailure, frontends.OpValidationFailure),
    )

    start = np.frombuffer(content, np.uint8).ctypes.data
    if _memmem(start, len(content), _EXTERNAL, len(_EXTERNAL)):
        raise refuse(
            ZeResult.ERROR_UNSUPPORTED_FEATURE,
            f"{subject}, ONNX",
            found="the text 'location', as external data has it",
            expected="a model in one file",
        )
    for name in [name for name in os.environ if name.startswith(PREFIXES_OF_OPENVINO)]:
        del os.environ[name]  # the key of a model does not have them
    with openvino_errors(ZeResult.ERROR_INVALID_ARGUMENT, f"{subject}, ONNX", "a model that OpenVINO reads"):
        try:
            # `Core.read_model` would show what this one does not take to all others
            frontend = frontends.FrontEndManager().load_by_framework(ONNX)
            return frontend.convert(frontend.load(f"/proc/self/fd/{fd}"))
        except errors as error:
            raise RuntimeError(str(error)) from error

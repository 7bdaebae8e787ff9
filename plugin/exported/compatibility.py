"""Compatibility of exported models, without importing them: RUNTIME_REQUIREMENTS, COMPATIBILITY_CHECK.

The requirements are one line in the exported file, `platform=4000;blob=1.1;precision=f32;opset=13`:

    platform    the platform of the device
    blob        version of the native blob: of this major, and not newer
    precision   the host must compute in it: in f32 and f16 every host does
    opset       newest operation set of the model: at most the compiler's newest

A model with an unknown requirement is not supported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from softnpu.driver import Device
from softnpu.emulator.blob import container
from softnpu.emulator.blob.container import BlobReader, Section
from softnpu.emulator.compiler.options import NEWEST_OPSET
from softnpu.emulator.interface.result import Refused
from softnpu.plugin.errors import BlobError
from softnpu.plugin.exported.blob_file import BlobFile
from softnpu.plugin.openvino_runtime import cpu_capabilities

_OPSET: Final = re.compile(rb'\sversion="opset(\d{1,4})"')
_PAIR: Final = re.compile(r"([A-Za-z_]\w*)=([^=;]*)")
_VERSION: Final = re.compile(r"(\d{1,5})\.(\d{1,5})")
_CAPABILITY: Final = {"f32": "FP32", "bf16": "BF16", "f16": "FP16"}


@dataclass(frozen=True)
class Compatibility:
    """Whether a model can run on a device, and if not, why. True if it can."""

    supported: bool
    reason: str

    def __bool__(self) -> bool:
        return self.supported


@dataclass(frozen=True)
class Host:
    """The platform of a device, and a function that returns OPTIMIZATION_CAPABILITIES of its host."""

    platform: str
    capabilities: Callable[[], Collection[str]]


def host_of(device: Device) -> Host:
    """Return the host of a device, for the check of requirements."""
    return Host(device.info.platform, cpu_capabilities)


def requirements_of(reader: BlobReader) -> str:
    """Return the requirements of a native blob."""
    graph = reader.metadata()
    major, minor = container.version_of(bytes(reader.data[: container.HEADER_SIZE]))
    opset = max((int(number) for number in _OPSET.findall(reader.read(Section.IR))), default=1)
    return f"platform={graph.platform};blob={major}.{minor};precision={graph.precision};opset={opset}"


def looks_like_requirements(text: str) -> bool:
    """Return whether a text is a line of requirements, not a file name."""
    return all(_PAIR.fullmatch(pair) for pair in text.rstrip(";").split(";"))


def check(requirements: str, host: Host) -> Compatibility:
    """Return whether a host meets requirements, with the first unmet one as the reason."""
    pairs = [_PAIR.fullmatch(pair.strip()) for pair in requirements.rstrip("; ").split(";")]
    if not requirements.strip() or not all(pairs):
        return Compatibility(False, f"{requirements!r} is no list of requirements; expected NAME=VALUE;...")
    required = {pair[1]: pair[2] for pair in pairs if pair}
    if missing := [name for name in _CHECKS if name not in required]:
        return Compatibility(
            False, f"requirements without {', '.join(missing)}; expected {', '.join(_CHECKS)}"
        )
    for name, value in required.items():
        reason_for = _CHECKS.get(name)
        reason = f"{name} is not known to this version" if reason_for is None else reason_for(value, host)
        if reason:
            return Compatibility(False, f"{name}={value}: {reason}")
    return Compatibility(True, f"platform {host.platform} has all that it requires: {requirements}")


def _platform(value: str, host: Host) -> str:
    if value == host.platform:
        return ""
    return f"the device has platform {host.platform}; compile the model for it"


def _blob(value: str, _: Host) -> str:
    version = _VERSION.fullmatch(value)
    if version and int(version[1]) == container.MAJOR and int(version[2]) <= container.MINOR:
        return ""
    readable = f"{container.MAJOR}.0 to {container.MAJOR}.{container.MINOR}"
    return f"blobs of {readable} can be read; compile the model again"


def _precision(value: str, host: Host) -> str:
    capability = _CAPABILITY.get(value)
    if capability is None:
        return f"no precision; expected one of {', '.join(_CAPABILITY)}"
    if value in {"f32", "f16"} or capability in host.capabilities():
        return ""
    return "this host's processor cannot compute in it; compile the model for f32"


def _opset(value: str, _: Host) -> str:
    if value.isascii() and value.isdecimal() and len(value) < 6 and int(value) <= NEWEST_OPSET:
        return ""
    return f"operations up to opset {NEWEST_OPSET} can be read; use a newer OpenVINO"


_CHECKS: Mapping[str, Callable[[str, Host], str]] = {
    "platform": _platform,
    "blob": _blob,
    "precision": _precision,
    "opset": _opset,
}


def check_source(source: Any, host: Host) -> Compatibility:
    """Return whether an exported model, or a line of requirements, can run on a host; a damaged file cannot.

    Raises `BlobError` for a file that cannot be opened.
    """
    if isinstance(source, str) and looks_like_requirements(source) and not os.path.exists(source):
        return check(source, host)
    with BlobFile.open(source) as file:
        try:
            if file.has_metadata or not file.is_raw:
                return check(file.metadata().requirements, host)
            return check(requirements_of(file.part(file.raw_part())), host)
        except Refused as refused:
            return Compatibility(False, f"{file.name}: {refused.info}")
        except BlobError as failure:
            return Compatibility(False, str(failure))

"""The result of `Core.get_versions`: a record like `openvino.Version`, which Python cannot create."""

from __future__ import annotations

import msgspec
import openvino as ov

DESCRIPTION = "softnpu_plugin"


class Version(msgspec.Struct, frozen=True):
    """The fields of `openvino.Version`."""

    build_number: str
    description: str
    major: int
    minor: int
    patch: int

    def __repr__(self) -> str:
        return f"<Version: {self.build_number} {self.description}>"


def plugin_version() -> Version:
    """Return the version of this plugin; the build number includes that of OpenVINO."""
    import importlib.metadata  # late: it brings `email` and `zipfile`

    try:
        number = importlib.metadata.version("softnpu")
    except importlib.metadata.PackageNotFoundError:
        number = "0.0.0"
    parts = [int(part) if part.isdecimal() else 0 for part in (*number.split("."), "0", "0")]
    return Version(f"{number}-openvino-{ov.get_version()}", DESCRIPTION, *parts[:3])

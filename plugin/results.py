"""What an inference returns: a mapping from output ports to arrays, also by name and by index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy.typing as npt

from softnpu.plugin.ports import Port, PortKey, Ports


class Results(Mapping[PortKey, "npt.NDArray[Any]"]):
    """Read-only. Keys are the output ports; a name or an index finds the same arrays."""

    def __init__(self, ports: Ports, arrays: list[npt.NDArray[Any]]) -> None:
        self._ports = ports
        self._arrays = arrays

    def __getitem__(self, key: PortKey) -> npt.NDArray[Any]:
        return self._arrays[self._ports.find(key)]

    def __iter__(self) -> Iterator[Port]:
        return iter(self._ports)

    def __len__(self) -> int:
        return len(self._arrays)

    def to_tuple(self) -> tuple[npt.NDArray[Any], ...]:
        """The arrays in the order of the outputs."""
        return tuple(self._arrays)

    def __repr__(self) -> str:
        parts = (
            f"{port}: {array.dtype}{list(array.shape)}"
            for port, array in zip(self, self._arrays, strict=True)
        )
        return f"Results({', '.join(parts)})"

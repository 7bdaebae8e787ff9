"""The results of an inference: a mapping from output ports to arrays, also by name and by index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy.typing as npt
from openvino.utils.data_helpers import OVDict

from softnpu.plugin.errors import InputError, InputTypeError
from softnpu.plugin.ports import Port, PortKey, Ports

Array = npt.NDArray[Any]


class NoSuchOutput(InputError, KeyError):
    """There is no such output. Also a `KeyError`, as mappings and programs for OpenVINO expect."""

    __str__ = Exception.__str__  # KeyError would quote the text


class Results(OVDict):  # type: ignore[misc]
    """OpenVINO's `OVDict`: keys are the output ports; names and indices work too, from the end as well."""

    __slots__ = ("_made", "_ports", "_tensors")

    def __init__(self, ports: Ports, arrays: list[Array], tensors: Sequence[Any] = ()) -> None:
        self._ports = ports
        self._made = arrays
        self._tensors = tensors

    @classmethod
    def shared(cls, ports: Ports, tensors: Sequence[Any]) -> Results:
        """Return the views of tensors whose shapes do not change, each made when it is first read."""
        return cls(ports, [], tensors)

    @property
    def _arrays(self) -> list[Array]:
        if self._tensors:
            self._made, self._tensors = [tensor.data for tensor in self._tensors], ()
        return self._made

    @property
    def _dict(self) -> dict[Port, Array]:
        """What methods of `OVDict` read."""
        return self.to_dict()

    def __getitem__(self, key: PortKey) -> Array:
        if isinstance(key, int) and -len(self._arrays) <= key < 0:
            return self._arrays[key]
        try:
            return self._arrays[self._ports.find(key)]
        except InputError as failure:
            if isinstance(failure, InputTypeError) and not isinstance(key, int):
                raise
            raise NoSuchOutput(str(failure)) from None

    def __iter__(self) -> Iterator[Port]:
        return iter(self._ports)

    def __len__(self) -> int:
        return len(self._made) or len(self._tensors)

    def names(self) -> tuple[set[str], ...]:
        """Return the names of each output, in their order."""
        return tuple(set(port.get_names()) for port in self._ports)

    def to_dict(self) -> dict[Port, Array]:
        """Return the arrays by port, in a plain dictionary."""
        return dict(zip(self._ports, self._arrays, strict=True))

    def to_tuple(self) -> tuple[Array, ...]:
        """Return the arrays in the order of the outputs."""
        return tuple(self._arrays)

"""A compiler's input model: descriptors of the IR's XML and of its weights."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from softnpu.emulator.common import linux, model_texts
from softnpu.emulator.interface.messages import WeightSource


class WeightFile(msgspec.Struct, frozen=True):
    """Weights in a range of a descriptor, which belongs to its `GraphSource`."""

    fd: int
    offset: int
    length: int


class GraphSource(msgspec.Struct):
    """A compiler's input model. Nothing is copied: weights in a file are passed by descriptor.

    Offsets in the XML refer to the weights space (see `interface.weights`); with one file from offset 0 they
    are file offsets. With a `format` there is a whole model file in place of the XML. Owns the descriptors.
    """

    name: str
    xml_fd: int
    xml_length: int
    weights: tuple[WeightFile, ...] = ()
    format: str = ""
    _open: bool = True

    def __post_init__(self) -> None:
        self.name = model_texts.sendable(self.name)

    @classmethod
    def from_ir(cls, xml: Path, weights: Path | None = None, name: str | None = None) -> GraphSource:
        """Open an IR in files. Without `weights`: the .bin beside the XML, if there is one.

        Raises `OSError` when a file cannot be opened.
        """
        beside = xml.with_suffix(".bin")
        chosen = weights if weights is not None else beside if beside.exists() else None
        with ExitStack() as opened:
            xml_fd = _open_file(opened, xml)
            weights_fd = None if chosen is None else _open_file(opened, chosen)
            source = cls.from_descriptors(name or xml.stem, xml_fd, weights_fd)
            opened.pop_all()
        return source

    @classmethod
    def from_descriptors(cls, name: str, xml_fd: int, weights_fd: int | None) -> GraphSource:
        """Return an IR in descriptors, and take ownership of them; a memory file is not copied."""
        xml_length = os.fstat(xml_fd).st_size
        length = os.fstat(weights_fd).st_size if weights_fd is not None else 0
        if weights_fd is None:
            return cls(name, xml_fd, xml_length)
        if not length:
            os.close(weights_fd)
            return cls(name, xml_fd, xml_length)
        return cls(name, xml_fd, xml_length, (WeightFile(weights_fd, 0, length),))

    @classmethod
    def from_xml(
        cls, name: str, xml: bytes, weights_fd: int | None = None, weights: Sequence[WeightFile] = ()
    ) -> GraphSource:
        """Return an IR whose XML is in memory, with one whole file of weights, or several file ranges."""
        xml_fd = linux.sealed_copy("ir", xml)
        if weights:
            return cls(name, xml_fd, len(xml), tuple(weights))
        return cls.from_descriptors(name, xml_fd, weights_fd)

    @property
    def fds(self) -> list[int]:
        """The XML, then the sources of the weights."""
        return [self.xml_fd, *(file.fd for file in self.weights)]

    @property
    def sources(self) -> tuple[WeightSource, ...]:
        """The ranges of the weights, for a message."""
        return tuple(WeightSource(offset=file.offset, length=file.length) for file in self.weights)

    def close(self) -> None:
        """Close the descriptors; idempotent."""
        if self._open:
            self._open = False
            for fd in self.fds:
                os.close(fd)

    def __enter__(self) -> GraphSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_file(opened: ExitStack, path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    opened.callback(os.close, fd)
    return fd

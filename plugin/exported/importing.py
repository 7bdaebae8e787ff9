"""`Core.import_model`: an exported file becomes a graph; its weights bypass this process.

The device gets a small blob, and a descriptor of the file's range of constants: all processes that import the
file share its pages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openvino as ov
from msgspec.structs import replace

from softnpu.driver import Context, Graph, GraphSource, WeightFile
from softnpu.driver.graph_creation import import_blob
from softnpu.emulator.blob.container import ConstantReference, GraphMeta, Section
from softnpu.emulator.blob.weights import Placement
from softnpu.emulator.interface.records import PAGE
from softnpu.emulator.interface.result import Refused
from softnpu.plugin.batch.port_check import batch_mismatch
from softnpu.plugin.errors import BlobError, PropertyError, translated
from softnpu.plugin.exported import encryption
from softnpu.plugin.exported.blob_file import BlobFile
from softnpu.plugin.exported.metadata import INITIAL, MAIN, BlobPart, Metadata
from softnpu.plugin.loaded_model import LoadedModel
from softnpu.plugin.models import expected_graphs
from softnpu.plugin.properties import (
    PROPERTIES,
    Access,
    ModelProperties,
    PropertyPairs,
    parse,
    property_pairs,
)
from softnpu.plugin.properties.kinds import plain
from softnpu.plugin.signature import Signature

if TYPE_CHECKING:
    from softnpu.plugin.exported.weights_source import Located

_MODEL = "MODEL_PTR"


@dataclass(frozen=True)
class _BlobParts:
    """A blob, its external weights, and the placement of its constants in them."""

    blob: bytes | memoryview
    weights: Sequence[WeightFile]
    placement: Placement | None


def import_model(
    context: Context, source: Any, properties: ModelProperties, model: ov.Model | None = None
) -> LoadedModel:
    """Load the exported model in `source` (see `BlobFile.open`) onto the device of `context`.

    The file overrides `properties`, but for those given for this import.
    Raises `BlobError`, `PropertyError`, `DeviceLostError`, leaving nothing on the device.
    """
    hint = expected_graphs.expect_exported(context, source)
    with (
        BlobFile.open(source) as given,
        translated(f"import {given.name}", BlobError),
        encryption.decrypted(given, properties[encryption.PROPERTY]) as file,
        ExitStack() as stack,
    ):
        metadata = None if properties["NPU_IMPORT_RAW_BLOB"] else file.metadata()
        if metadata is not None:
            properties = _as_compiled(metadata, properties, file.name)

        def locate(constants: Sequence[ConstantReference]) -> Located:
            from softnpu.plugin.exported import weights_source  # late: for files without weights

            origin = None if metadata is None else metadata.weights
            path = properties["WEIGHTS_PATH"]
            return weights_source.locate(constants, origin, path, model, file.name, stack)

        return _Import(context, file, metadata, properties, locate, hint).run()


def import_cached(
    context: Context, path: Path, properties: ModelProperties, source: GraphSource, hint: bytes
) -> LoadedModel:
    """Load an entry of a cache; `source` is its model, and has the weights if the entry has none.

    `hint` is that of the graph (`expected_graphs`).

    Raises `DeviceLostError`, and `BlobError` for an entry that is damaged, does not fit, or belongs to
    another user; with CACHE_ENCRYPTION_CALLBACKS also for one that is not encrypted by them.
    """
    callbacks = properties[encryption.PROPERTY]
    with (
        BlobFile.open_entry(path) as given,
        translated(f"import {given.name}", BlobError),
        encryption.decrypted(given, callbacks, is_needed=callbacks is not None) as file,
        ExitStack() as stack,
    ):
        metadata = file.metadata()
        # whatever this compilation was given is in the key
        properties = _as_compiled(metadata, replace(properties, given=frozenset()), file.name)

        def locate(constants: Sequence[ConstantReference]) -> Located:
            from softnpu.plugin.exported import weights_source

            return weights_source.locate_in(source, constants, metadata.weights, file.name, stack)

        loaded = _Import(context, file, metadata, properties, locate, hint).run()
        return replace(loaded, from_cache=True)


@dataclass(frozen=True)
class _Import:
    """One import: the graphs of a file. `locate` finds the weights of a blob without weights."""

    context: Context
    file: BlobFile
    metadata: Metadata | None
    properties: ModelProperties
    locate: Callable[[Sequence[ConstantReference]], Located]
    hint: bytes

    @property
    def _deferred(self) -> bool:
        return bool(self.properties["NPU_DEFER_WEIGHTS_LOAD"])

    def run(self) -> LoadedModel:
        """Create the graphs; nothing stays on the device after an error."""
        metadata, file = self.metadata, self.file
        main = file.raw_part() if metadata is None else main_part(metadata, file.name)
        parts = self._parts(main, () if metadata is None else metadata.embedded)
        with ExitStack() as on_error:
            graph, initial, signature = self._graph(parts), None, None
            on_error.callback(graph.destroy)
            part = None if metadata is None else metadata.part(INITIAL)
            if part is not None:
                initial = self._graph(self._parts(part, ()))
                on_error.callback(initial.destroy)
            if metadata is not None:
                signature = _checked(metadata.signature, graph.meta, file.name)
            if not self._deferred:
                graph.initialize(self.hint)
            loaded = LoadedModel.of(
                self.context,
                graph,
                self.properties,
                signature,
                initial,
                parts.weights,
                "" if metadata is None or metadata.weights is None else metadata.weights.model,
                None if metadata is None else metadata.extra,
            )
            on_error.pop_all()
        return loaded

    def _graph(self, parts: _BlobParts) -> Graph:
        return import_blob(self.context, parts.blob, parts.weights, parts.placement, deferred=self._deferred)

    def _parts(self, part: BlobPart, embedded: Collection[int]) -> _BlobParts:
        file, reader = self.file, self.file.part(part)
        try:
            reference = reader.weights_reference()
            if reference is None:
                return _BlobParts(reader.data, (), None)
            if reference.outside:
                located = self.locate(reference.outside)
                return _BlobParts(reader.data, located.files, located.placement)
            section = reader.extent(Section.WEIGHTS)
            if section is None:
                return _BlobParts(reader.data, (), None)
            if not self._deferred:
                file.check_gaps(part, reader)
            from softnpu.plugin.exported import strip_weights

            stripped = strip_weights.strip(reader, embedded)
        except Refused as refused:
            raise BlobError(f"{file.name}: {refused.info}") from refused
        if not stripped.offsets:
            return _BlobParts(stripped.data, (), None)
        begin = file.offset + part.offset + section[0]
        lead = begin % PAGE  # where the source begins in the weights space
        placement = Placement(offsets=tuple(lead + offset for offset in stripped.offsets))
        return _BlobParts(stripped.data, [WeightFile(file.fd, begin, section[1])], placement)


def split_model(config: PropertyPairs, model: ov.Model | None) -> tuple[dict[Any, Any], ov.Model | None]:
    """Separate the model of `ov.properties.hint.model` from the other properties."""
    values = dict(property_pairs(config))
    return values, _model_in(plain(values.pop(_MODEL))) if _MODEL in values else model


def _model_in(value: Any) -> ov.Model:
    if isinstance(value, ov.Model):
        return value
    if type(value).__name__ == "Model":  # OpenVINO's own class, which `openvino.Model` wraps
        return ov.Model(value)
    raise PropertyError(f"property {_MODEL}: {type(value).__name__} given; expected an openvino.Model")


def main_part(metadata: Metadata, name: str) -> BlobPart:
    """Return the blob of the model itself. Raises `BlobError`."""
    part = metadata.part(MAIN)
    if part is None:
        raise BlobError(f"{name}: no blob '{MAIN}'; expected one")
    return part


def _as_compiled(metadata: Metadata, properties: ModelProperties, name: str) -> ModelProperties:
    """Return the properties of the compilation. Raises `PropertyError` for a given one that differs."""
    recorded = parse(
        {
            key: text
            for key, text in metadata.properties.items()
            if key in PROPERTIES and PROPERTIES[key].access is Access.RW
        }
    )
    for key in sorted(properties.given & recorded.keys()):
        if properties[key] != recorded[key]:
            text = PROPERTIES[key].text
            raise PropertyError(
                f"property {key}: value {text(properties[key])!r} for {name}, which was compiled with"
                f" {text(recorded[key])!r}; expected that. Compile the model again for another"
            )
    return replace(properties, values={**properties.values, **recorded})


def _checked(signature: Signature, graph: GraphMeta, name: str) -> Signature:
    """Return the signature. Raises `BlobError` unless its ports are arguments of the graph."""
    for ports, is_input in ((signature.inputs, True), (signature.outputs, False)):
        for port in ports:
            index = port.argument
            count = len(graph.arguments)
            exists = 0 <= index < count and -1 <= port.shape_argument < count
            if not exists or graph.arguments[index].input is not is_input:
                kind = "input" if is_input else "output"
                raise BlobError(f"{name}: {kind} '{port.name}' is argument {index}; expected an {kind}")
    problem = batch_mismatch(signature, graph)
    if problem:
        raise BlobError(f"{name}: batch: {problem}; expected the batch of an exported model")
    return signature

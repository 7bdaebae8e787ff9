"""`Core.import_model`: an exported file becomes a graph without its weights passing through this process.

Of a file with weights a small blob goes to the device, and the range of the file that has the constants goes
as a descriptor: all processes that import the file share its pages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openvino as ov

from softnpu.driver import Context, Graph, GraphSource, WeightFile
from softnpu.driver.graph_creation import import_blob
from softnpu.emulator.blob.container import ConstantReference, GraphMeta, Section
from softnpu.emulator.blob.weights import PAGE, Placement
from softnpu.emulator.interface.result import Refused
from softnpu.plugin import strip_weights, weights_source
from softnpu.plugin.batch.fitting import misfit
from softnpu.plugin.blob_file import BlobFile
from softnpu.plugin.compiled_model import CompiledModel
from softnpu.plugin.errors import BlobError, PropertyError, translated
from softnpu.plugin.exporting import Provenance
from softnpu.plugin.metadata import INITIAL, MAIN, BlobPart, Metadata, OriginSource
from softnpu.plugin.model_source import path_of
from softnpu.plugin.properties import PROPERTIES, Access, ModelProperties, parse
from softnpu.plugin.properties.kinds import plain
from softnpu.plugin.signature import Signature
from softnpu.plugin.weights_source import Located

_MODEL = "MODEL_PTR"


@dataclass(frozen=True)
class _Parts:
    """What the driver makes a graph of: a blob, the weights that are outside of it, and where they lie."""

    blob: bytes | memoryview
    weights: Sequence[WeightFile]
    placement: Placement | None


def import_model(
    context: Context,
    source: Any,
    properties: ModelProperties,
    config: Mapping[str, Any],
    model: ov.Model | None = None,
) -> CompiledModel:
    """The exported model in `source` (see `BlobFile.open`) on the device of `context`.

    `properties` hold where the file leaves them open; `config` are those that were given for this import.
    Raises `BlobError`, `PropertyError`, `DeviceLostError`; nothing is left then.
    """
    with BlobFile.open(source) as file, translated(f"import {file.name}", BlobError), ExitStack() as stack:
        metadata = None if properties["NPU_IMPORT_RAW_BLOB"] else file.metadata()
        if metadata is not None:
            properties = _as_compiled(metadata, properties, config, file.name)

        def locate(constants: Sequence[ConstantReference]) -> Located:
            origin = None if metadata is None else metadata.weights
            path = properties["WEIGHTS_PATH"]
            return weights_source.locate(constants, origin, path, model, file.name, stack)

        return _Import(context, file, metadata, properties, locate).run()


def import_cached(
    context: Context, path: Path, properties: ModelProperties, source: GraphSource
) -> CompiledModel:
    """The entry of a cache for the model in `source`, which has the weights if the entry has none.

    Raises `BlobError` for an entry that is damaged, does not fit or is another user's, `DeviceLostError`.
    """
    with (
        BlobFile.open_entry(path) as file,
        translated(f"import {file.name}", BlobError),
        ExitStack() as stack,
    ):
        metadata = file.metadata()
        properties = _as_compiled(metadata, properties, {}, file.name)

        def locate(constants: Sequence[ConstantReference]) -> Located:
            return weights_source.locate_in(source, constants, metadata.weights, file.name, stack)

        return _Import(context, file, metadata, properties, locate, from_cache=True).run()


class _Import:
    """One import: the graphs of a file. `locate` finds the weights of a blob that has none."""

    def __init__(
        self,
        context: Context,
        file: BlobFile,
        metadata: Metadata | None,
        properties: ModelProperties,
        locate: Callable[[Sequence[ConstantReference]], Located],
        from_cache: bool = False,
    ) -> None:
        self._context = context
        self._file = file
        self._metadata = metadata
        self._properties = properties
        self._locate = locate
        self._from_cache = from_cache
        self._deferred: bool = properties["NPU_DEFER_WEIGHTS_LOAD"]

    def run(self) -> CompiledModel:
        """The compiled model; nothing is left after an error."""
        metadata, file = self._metadata, self._file
        main = file.raw_part() if metadata is None else main_part(metadata, file.name)
        parts = self._parts(main, () if metadata is None else metadata.inside)
        made = [self._graph(parts)]
        try:
            second = None if metadata is None else metadata.part(INITIAL)
            if second is not None:
                made.append(self._graph(self._parts(second, ())))
            return self._compiled(made[0], made[1] if second is not None else None, parts)
        except BaseException:
            for each in made:
                each.destroy()
            raise

    def _compiled(self, graph: Graph, initial: Graph | None, parts: _Parts) -> CompiledModel:
        metadata = self._metadata
        signature = None
        if metadata is not None:
            signature = _checked(metadata.signature, graph.meta, self._file.name)
        if not self._deferred:
            graph.initialize()
        sources = tuple(
            OriginSource(path=path_of(each.fd), offset=each.offset, length=each.length)
            for each in parts.weights
        )
        known = "" if metadata is None or metadata.weights is None else metadata.weights.model
        provenance = Provenance(sources, self._from_cache, known)
        compiled = CompiledModel(self._context, graph, self._properties, signature, initial, provenance)
        compiled.extra = {} if metadata is None else dict(metadata.extra)
        return compiled

    def _graph(self, parts: _Parts) -> Graph:
        return import_blob(self._context, parts.blob, parts.weights, parts.placement, deferred=self._deferred)

    def _parts(self, part: BlobPart, inside: Collection[int]) -> _Parts:
        file, reader = self._file, self._file.part(part)
        try:
            reference = reader.weights_reference()
            if reference is None:
                return _Parts(reader.data, (), None)
            if reference.outside:
                found = self._locate(reference.outside)
                return _Parts(reader.data, found.files, found.placement)
            place = reader.extent(Section.WEIGHTS)
            if place is None:
                return _Parts(reader.data, (), None)
            if not self._deferred:
                file.check_gaps(part, reader)
            light = strip_weights.lighten(reader, inside)
        except Refused as refused:
            raise BlobError(f"{file.name}: {refused.info}") from refused
        if not light.places:
            return _Parts(light.data, (), None)
        begin = file.offset + part.offset + place[0]
        lead = begin % PAGE  # where the source begins in the weights space
        placement = Placement(offsets=tuple(lead + at for at in light.places))
        return _Parts(light.data, [WeightFile(file.fd, begin, place[1])], placement)


def split_model(
    config: Iterable[tuple[Any, Any]], model: ov.Model | None
) -> tuple[dict[Any, Any], ov.Model | None]:
    """The properties, and apart from them the model that `ov.properties.hint.model` gave among them."""
    values = {}
    for name, value in config:
        if name == _MODEL:
            model = _model_in(plain(value))
        else:
            values[name] = value
    return values, model


def _model_in(value: Any) -> ov.Model:
    if isinstance(value, ov.Model):
        return value
    if type(value).__name__ == "Model":  # OpenVINO's own class, which `openvino.Model` wraps
        return ov.Model(value)
    raise PropertyError(f"property {_MODEL}: {type(value).__name__} given; expected an openvino.Model")


def main_part(metadata: Metadata, name: str) -> BlobPart:
    """The blob of the model itself. Raises `BlobError`."""
    part = metadata.part(MAIN)
    if part is None:
        raise BlobError(f"{name}: no blob '{MAIN}'; expected one")
    return part


def _as_compiled(
    metadata: Metadata, properties: ModelProperties, config: Mapping[str, Any], name: str
) -> ModelProperties:
    """The properties, as the model was compiled. Raises `PropertyError` for others in `config`."""
    known = {
        name: text
        for name, text in metadata.properties.items()
        if name in PROPERTIES and PROPERTIES[name].access is Access.RW
    }
    recorded = parse(known)
    for given in sorted(config.keys() & recorded.keys()):
        if config[given] != recorded[given]:
            record = PROPERTIES[given]
            raise PropertyError(
                f"property {given}: value {record.text(config[given])!r} for {name}, which was compiled with"
                f" {record.text(recorded[given])!r}; expected that. Compile the model again for another"
            )
    return replace(properties, values={**properties.values, **recorded})


def _checked(signature: Signature, graph: GraphMeta, name: str) -> Signature:
    """The signature, if its ports are arguments of the graph. Raises `BlobError`."""
    for ports, is_input in ((signature.inputs, True), (signature.outputs, False)):
        for port in ports:
            index = port.argument
            count = len(graph.arguments)
            known = 0 <= index < count and -1 <= port.shape_argument < count
            if not known or graph.arguments[index].input is not is_input:
                kind = "input" if is_input else "output"
                raise BlobError(f"{name}: {kind} '{port.name}' is argument {index}; expected an {kind}")
    wrong = misfit(signature, graph)
    if wrong:
        raise BlobError(f"{name}: batch: {wrong}; expected the batch of an exported model")
    return signature

"""`softnpu blob`: inspect an exported model, and check without loading it whether it would run here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softnpu.tools.shared.console import JsonOption, format_bytes, print_json, print_line
from softnpu.tools.shared.groups import application

if TYPE_CHECKING:
    from softnpu.emulator.blob.container import BlobReader
    from softnpu.plugin.exported.blob_file import BlobFile
    from softnpu.plugin.exported.metadata import Metadata
    from softnpu.plugin.signature import PortSpec

app = application("blob", "Exported models: what is in one, does it run here.")

FileArgument = Annotated[Path, typer.Argument(help="What `export_model` or `softnpu compile` wrote.")]


@app.command()
def inspect(file: FileArgument, json_output: JsonOption = False) -> None:
    """Tell versions, ports, properties, sections, kernels, weights of an exported model. Needs no device."""
    from softnpu.plugin.exported.blob_file import BlobFile

    with BlobFile.open(file) as opened:
        description = _described(opened)
    if json_output:
        print_json(description)
        return
    versions = description["versions"]
    print_line(f"{file}: {format_bytes(description['size'])}, {_kind(description)}")
    for line in (
        f"model '{description['model']}', {description['operations']} operations, by {versions['compiler']}",
        f"requires {description['requirements']}",
        *(f"{name} {text}" for name, text in versions.items() if name != "compiler"),
    ):
        print_line(f"  {line}")
    for kind in ("inputs", "outputs"):
        print_line(f"{kind}")
        for port in description[kind]:
            layout = f", layout {port['layout']}" if port["layout"] else ""
            print_line(f"  {port['name']}: {port['element_type']} {port['shape']}{layout}")
    for part in description["blobs"]:
        print_line(f"blob '{part['kind']}': {format_bytes(part['size'])} at {part['offset']}")
        for section in part["sections"]:
            print_line(f"  {section['type']}: {format_bytes(section['size'])} at {section['offset']}")
    for each in description["kernels"]:
        print_line(f"kernel {each['name']}: {format_bytes(each['size'])}, sha256 {each['digest']}")
    _print_weights(description["weights"])
    if description["properties"]:
        print_line("compiled with")
        for name, value in description["properties"].items():
            if value:
                print_line(f"  {name} {value}")


@app.command()
def check(
    file: FileArgument,
    device: Annotated[int, typer.Option(help="Number of the device.", min=0)] = 0,
    json_output: JsonOption = False,
) -> None:
    """Tell whether an exported model can run on a device, and why not. Exit code 1 if it cannot."""
    from softnpu.plugin import Core

    core = Core()
    try:
        compatibility = core.check_compatibility(file, f"NPU.{device}")
    finally:
        core.unload_plugin()
    if json_output:
        print_json({"supported": compatibility.supported, "reason": compatibility.reason})
    else:
        print_line(f"{'SUPPORTED' if compatibility else 'UNSUPPORTED'}: {compatibility.reason}")
    if not compatibility:
        raise typer.Exit(1)


# ---------------------------------------------------------------- contents


def _described(file: BlobFile) -> dict[str, Any]:
    """Return everything to show, from the metadata, or for a native blob from the blob itself."""
    from softnpu.plugin.exported.compatibility import requirements_of
    from softnpu.plugin.signature import signature_of

    metadata = None if file.is_raw else file.metadata()
    parts = (file.raw_part(),) if metadata is None else metadata.blobs
    readers = [file.part(part) for part in parts]
    graph = readers[0].metadata()
    signature = signature_of(graph) if metadata is None else metadata.signature
    return {
        "file": file.name.removeprefix("exported model "),
        "size": file.length,
        "metadata": None if metadata is None else file.version,
        "model": signature.name,
        "operations": graph.operations,
        "requirements": requirements_of(readers[0]) if metadata is None else metadata.requirements,
        "versions": _versions(metadata, graph.openvino, graph.compiler),
        "inputs": [_port(port) for port in signature.inputs],
        "outputs": [_port(port) for port in signature.outputs],
        "batch": signature.batch,
        "blobs": [
            {"kind": part.kind, "offset": part.offset, "size": part.size, "sections": _sections(reader)}
            for part, reader in zip(parts, readers, strict=True)
        ],
        "kernels": [each for reader in readers for each in _kernels(reader)],
        "weights": _weights(metadata, readers[0]),
        "properties": dict(graph.config) if metadata is None else metadata.properties,
    }


def _versions(metadata: Metadata | None, openvino: str, compiler: str) -> dict[str, str]:
    if metadata is None:
        return {"openvino": openvino, "compiler": compiler}
    return {"openvino": metadata.openvino, "plugin": metadata.plugin, "compiler": metadata.compiler}


def _port(port: PortSpec) -> dict[str, Any]:
    return {
        "name": port.name,
        "names": list(port.names),
        "element_type": port.element_type,
        "shape": port.shape,
        "layout": port.layout,
    }


def _sections(reader: BlobReader) -> list[dict[str, Any]]:
    from softnpu.emulator.blob.container import Section

    return [
        {"type": Section(kind).name, "offset": offset, "size": size} for kind, offset, size in reader.sections
    ]


def _kernels(reader: BlobReader) -> list[dict[str, Any]]:
    from softnpu.emulator.blob import kernel_plan
    from softnpu.emulator.kernels import description, trust

    plan = kernel_plan.read(reader)
    return [
        {
            "name": description.read(each).full_name,
            "size": len(each),
            "digest": trust.digest(each),
        }
        for each in (() if plan is None else plan.modules)
    ]


def _weights(metadata: Metadata | None, reader: BlobReader) -> dict[str, Any]:
    """Return constants inside and outside; for those outside their former place."""
    reference = reader.weights_reference()
    constants = () if reference is None else reference.constants
    outside = () if reference is None else reference.outside
    origin = None if metadata is None else metadata.weights
    return {
        "constants": len(constants),
        "bytes": sum(constant.length for constant in constants),
        "outside": len(outside),
        "outside_bytes": sum(constant.length for constant in outside),
        "sources": [
            {"path": source.path, "offset": source.offset, "length": source.length}
            for source in (() if origin is None else origin.sources)
        ],
    }


# ---------------------------------------------------------------- words


def _kind(description: dict[str, Any]) -> str:
    if description["metadata"] is None:
        return "a native blob without metadata"
    return f"metadata {description['metadata']}"


def _print_weights(weights: dict[str, Any]) -> None:
    inside = weights["constants"] - weights["outside"]
    size = weights["bytes"] - weights["outside_bytes"]
    print_line(f"weights: {inside} constants inside, {format_bytes(size)}")
    if weights["outside"]:
        print_line(f"  {weights['outside']} outside, {format_bytes(weights['outside_bytes'])}")
    for source in weights["sources"]:
        where = source["path"] or "memory"
        print_line(f"  from {where}, {format_bytes(source['length'])} at {source['offset']}")

"""`softnpu compile`: compile a model to one loadable file, also for a platform absent here."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softnpu.tools.shared import completion
from softnpu.tools.shared.console import JsonOption, format_bytes, format_time, print_json, print_line
from softnpu.tools.shared.daemon_connection import SocketOption
from softnpu.tools.shared.failures import ToolError, UsageError
from softnpu.tools.shared.model_file import check_model
from softnpu.tools.shared.model_options import ConfigOption, ShapeOption

if TYPE_CHECKING:
    from softnpu.plugin import CompiledModel


def compile_model(
    model: Annotated[Path, typer.Argument(help="Any file that OpenVINO reads: .xml, .onnx, .tflite, ...")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="What to write [the model's name with .blob]."),
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.platforms,
            help="Compile for 3720, 4000, 5010, 5020 or a codename (lunar-lake), whether it is here or not.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Compile for this device: NPU, or NPU.N of several.")] = "NPU",
    shape: ShapeOption = None,
    config: ConfigOption = None,
    weightless: Annotated[
        bool, typer.Option("--weightless", help="Leave the weights out: they stay in the model's file.")
    ] = False,
    json_output: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Compile a model and write it to a file, to be run without the model, by `softnpu infer` for example."""
    from softnpu.emulator.platforms import check_platform
    from softnpu.plugin import Core
    from softnpu.tools.shared import inputs, progress

    target = Path(f"{model.stem}.blob") if output is None else output
    _check_target(model, target)
    number = platform and check_platform(platform).number
    chosen = _config(inputs.parse_config(config), number, weightless)
    shapes = inputs.parse_shapes(shape or [])
    check_model(model)
    # a present device would load the model, only to release it
    unloaded = {"NPU_DEFER_WEIGHTS_LOAD": "YES", **chosen}
    with progress.stages() as stages:
        compiled = Core(socket).compile_model(model, device, unloaded, shapes=shapes, progress=stages)
        stages.end()
    cached = compiled.get_property("LOADED_FROM_CACHE")
    name, chip, spent = compiled.meta.name, compiled.meta.platform, compiled.compile_ms / 1e3
    if not json_output:
        origin = "from the driver's cache" if cached else stages
        print_line(f"compiled '{name}' for platform {chip} in {format_time(spent)}: {origin}")
    started = time.perf_counter()
    compiled.export_model(target)
    taken = time.perf_counter() - started
    size, command = target.stat().st_size, _next(compiled, target, model if weightless else None)
    if json_output:
        document = {"model": name, "platform": chip, "origin": "cache" if cached else "compiled"}
        times = {"compile_s": spent, "stages_s": stages.seconds, "write_s": taken}
        print_json({**document, **times, "file": str(target), "size": size, "weightless": weightless})
        return
    inside = "without weights" if weightless else "with all weights"
    print_line(f"wrote {target}, {format_bytes(size)}, {inside}, in {format_time(taken)}")
    print_line(f"run it with: {command}")


def _check_target(model: Path, target: Path) -> None:
    """Refuse to overwrite the model, or write to a missing directory, before anything is compiled."""
    if model.exists() and target.exists() and model.samefile(target):
        raise UsageError(f"--output {target}", found="the model itself", expected="another file")
    if not target.absolute().parent.is_dir():
        raise UsageError(f"--output {target}", found="no such directory", expected="a directory that exists")
    if not os.access(target.absolute().parent, os.W_OK):  # a file is replaced
        raise ToolError(
            f"--output {target}", found="no permission", expected="a directory that can be written"
        )


def _config(given: Mapping[str, str], platform: str | None, weightless: bool) -> dict[str, str]:
    """Return the properties, including those set by options."""
    config = dict(given)
    options = {"--platform": ("NPU_PLATFORM", platform), "--weightless": ("ENABLE_WEIGHTLESS", "YES")}
    if not weightless:
        del options["--weightless"]
    for option, (name, value) in options.items():
        if value is not None and config.setdefault(name, value) != value:
            raise UsageError(
                option, found=f"{value}, and --config {name}={config[name]}", expected="one value"
            )
    return config


def _next(compiled: CompiledModel, target: Path, model: Path | None) -> str:
    parts: Sequence[str] = ["softnpu", "infer", _quoted(target)]
    if model is not None:
        parts = [*parts, "--source-model", _quoted(model)]
    here = compiled.context.device.info.platform
    wanted = compiled.meta.platform
    if wanted != here:
        return f"{' '.join(parts)}, with a device of that platform (softnpu daemon --platform {wanted})"
    return " ".join(parts)


def _quoted(path: Path) -> str:
    import shlex

    return shlex.quote(str(path))

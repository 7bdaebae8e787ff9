"""`openvino.Core` for the emulated NPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import openvino as ov

from softnpu.driver import Driver
from softnpu.plugin import model_source, properties
from softnpu.plugin.compiled_model import CompiledModel
from softnpu.plugin.devices import devices_at
from softnpu.plugin.errors import CompileError, PropertyError, translated


class Core:
    """Entry point of the plugin. `socket` chooses a daemon other than the user's own (`SOFTNPU_SOCKET`).

    The daemon is looked for (and started) at the first call that needs a device.
    """

    def __init__(self, socket: str | Path | None = None) -> None:
        self._devices = devices_at(None if socket is None else Path(socket).absolute())

    @property
    def available_devices(self) -> list[str]:
        """`["NPU"]`, or `["NPU.0", "NPU.1", ...]`."""
        return self._devices.names()

    @property
    def driver(self) -> Driver:
        """The driver underneath, for programs that want Level Zero objects."""
        return self._devices.driver()

    def unload_plugin(self, device_name: str = "NPU") -> None:
        """Gives everything back that this process has on the devices; the next call connects anew.

        Compiled models and infer requests cannot be used any more. Raises `PropertyError` for a device
        that is no NPU.
        """
        if device_name.partition(".")[0] != "NPU":
            raise PropertyError(f"device {device_name!r}: not an NPU; expected NPU")
        self._devices.close()

    def read_model(self, model: str | Path, weights: str | Path | None = None) -> ov.Model:
        """Reads a model of any format that OpenVINO reads. Raises `ModelError`."""
        return model_source.read_model(Path(model), None if weights is None else Path(weights))

    def compile_model(
        self,
        model: ov.Model | str | Path,
        device_name: str = "NPU",
        config: Mapping[str, Any] | None = None,
        *,
        weights: str | Path | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        progress: Callable[[str, float], None] | None = None,
    ) -> CompiledModel:
        """Compiles a model (an `openvino.Model` or a file) and loads it onto a device.

        `config` maps property names to values as in OpenVINO. Beyond OpenVINO: `shapes` gives inputs
        static shapes, `progress(stage, done)` is called on the way and cancels by raising.
        Raises `ModelError`, `CompileError`, `PropertyError`, `DeviceLostError`.
        """
        compiler_config, queue = properties.split(config or {})
        context = self._devices.context(device_name)
        if isinstance(model, ov.Model):
            source = model_source.from_model(model, model.get_friendly_name())
        else:
            source = model_source.from_path(Path(model), None if weights is None else Path(weights))
        asked = f"compile model '{source.name}' for {device_name}"
        with source, translated(asked, CompileError):
            graph = context.create_graph(source, compiler_config, shapes, progress)
            try:
                graph.initialize()
                return CompiledModel(context, graph, queue)
            except BaseException:
                graph.destroy()
                raise

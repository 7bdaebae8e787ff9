"""`openvino.Core` for the emulated NPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import openvino as ov

from softnpu.driver import Driver
from softnpu.driver.cache_options import cache_options_from_environment
from softnpu.driver.graph_creation import compile_source
from softnpu.plugin import log, model_source
from softnpu.plugin.compiled_model import CompiledModel
from softnpu.plugin.core_properties import CoreProperties, Pairs
from softnpu.plugin.devices import check_name, devices_at
from softnpu.plugin.errors import CompileError, translated
from softnpu.plugin.properties import PROPERTIES, ModelProperties
from softnpu.plugin.query import supported_operations
from softnpu.plugin.version import Version, plugin_version


class Core:
    """Entry point of the plugin. `socket` chooses a daemon other than the user's own (`SOFTNPU_SOCKET`).

    The daemon is looked for (and started) at the first call that needs a device.
    """

    def __init__(self, socket: str | Path | None = None) -> None:
        self._devices = devices_at(None if socket is None else Path(socket).absolute())
        self._properties = CoreProperties(self._devices)

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
        check_name(device_name)
        self._devices.close()

    def get_versions(self, device_name: str = "NPU") -> dict[str, Version]:
        """The version of this plugin, by the device's name. Raises `PropertyError` for another device."""
        check_name(device_name)
        return {device_name: plugin_version()}

    # ------------------------------------------------------------ properties

    def get_property(
        self,
        device_name: str = "NPU",
        property: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Any:
        """A property of a device; with one name alone, of `NPU`. `docs/plugin.md` has the table.

        `arguments` are values that hold for this question only. Raises `PropertyError`.
        """
        device, name = (device_name, property) if property is not None else ("NPU", device_name)
        return self._properties.get(device, name, arguments or {})

    def set_property(self, device_name: str | Pairs = "NPU", properties: Pairs | None = None) -> None:
        """Sets what holds for later `compile_model` calls on a device, on all of them without a number.

        `properties` maps names to values, or is one pair. Without a device's name it holds for all. Raises
        `PropertyError`, and sets nothing then.
        """
        if properties is None:
            self._properties.set("NPU", cast(Pairs, device_name))
        else:
            self._properties.set(cast(str, device_name), properties)

    # ------------------------------------------------------------ models

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
        index, properties = self._properties.resolve(device_name, config or {})
        properties.check()
        context = self._devices.context(index)
        if isinstance(model, ov.Model):
            source = model_source.from_model(model, model.get_friendly_name())
        else:
            source = model_source.from_path(Path(model), None if weights is None else Path(weights))
        asked = f"compile model '{source.name}' for {device_name}"
        with source, translated(asked, CompileError):
            graph = compile_source(
                context,
                source,
                config=properties.for_compiler(),
                shapes=shapes,
                flags=properties.for_graph(),
                cache=cache_options_from_environment(os.environ),
                progress=progress,
            )
            try:
                if not properties["NPU_DEFER_WEIGHTS_LOAD"]:
                    graph.initialize()
                compiled = CompiledModel(context, graph, properties)
            except BaseException:
                graph.destroy()
                raise
        _tell(compiled, graph.build_log, properties)
        return compiled

    def query_model(
        self, model: ov.Model, device_name: str = "NPU", properties: Mapping[str, Any] | None = None
    ) -> dict[str, str]:
        """The operations of a model that the device can run: `device_name` by friendly name.

        Raises `PropertyError`, and `CompileError` for a model that the compiler cannot read.
        """
        index, found = self._properties.resolve(device_name, properties or {})
        found.check()
        with translated(f"query model '{model.get_friendly_name()}' for {device_name}", CompileError):
            supported = supported_operations(self._devices.context(index), model, found.for_compiler())
        return dict.fromkeys(supported, device_name)


def _tell(compiled: CompiledModel, build_log: str, properties: ModelProperties) -> None:
    """The messages of a compilation."""
    level = properties["LOG_LEVEL"] if "LOG_LEVEL" in properties.given else None
    logger, name = log.model_log(level), compiled.meta.name
    logger.info(
        "model '%s': compiled for %s in %.1f ms, loaded in %.1f ms",
        name,
        properties.device_name,
        compiled.compile_ms,
        compiled.load_ms,
    )
    for line in build_log.splitlines():
        logger.info("model '%s', compiler: %s", name, line)
    for given in sorted(properties.given):
        logger.debug("model '%s', property %s: %s", name, given, PROPERTIES[given].text(properties[given]))

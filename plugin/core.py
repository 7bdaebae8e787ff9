"""`openvino.Core` for the emulated NPU."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

import openvino as ov

from softnpu.driver import Driver
from softnpu.driver.cache_options import cache_options_from_environment
from softnpu.driver.graph_creation import compile_source
from softnpu.plugin import importing, log, model_source
from softnpu.plugin.batch.plan import BATCH_MODE, plan_batch
from softnpu.plugin.blob_file import check_source
from softnpu.plugin.cached_models import look_up
from softnpu.plugin.compatibility import Compatibility
from softnpu.plugin.compiled_model import CompiledModel
from softnpu.plugin.core_properties import CoreProperties, Pairs, checked_pairs
from softnpu.plugin.devices import check_name, devices_at
from softnpu.plugin.dynamic_bounds import Shapes, with_bounds
from softnpu.plugin.errors import CompileError, PropertyError, translated
from softnpu.plugin.exporting import Provenance
from softnpu.plugin.openvino_runtime import runtime
from softnpu.plugin.properties import PROPERTIES, ModelProperties, host_of, parse
from softnpu.plugin.query import supported_operations
from softnpu.plugin.remote_context import RemoteContext
from softnpu.plugin.states import initial_config, needs_initial
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

    def get_available_devices(self) -> list[str]:
        """`available_devices`."""
        return self.available_devices

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

    def read_model(
        self, model: Any, weights: Any = None, config: Mapping[str, Any] | None = None
    ) -> ov.Model:
        """Reads a model of any format that OpenVINO reads, from a file or from memory. Raises `ModelError`.

        `config` is for OpenVINO's reader, such as ENABLE_MMAP.
        """
        if config or not _is_path(model) or not (weights is None or _is_path(weights)):
            return model_source.read_with(model, weights, config or {})
        return model_source.read_model(Path(model), None if weights is None else Path(weights))

    def compile_model(
        self,
        model: ov.Model | str | Path,
        device_name: str | RemoteContext | None = "NPU",
        config: Mapping[str, Any] | None = None,
        *,
        weights: str | Path | None = None,
        shapes: Shapes | None = None,
        progress: Callable[[str, float], None] | None = None,
    ) -> CompiledModel:
        """Compiles a model (an `openvino.Model` or a file) and loads it onto a device.

        `config` maps property names to values as in OpenVINO. With NPU_PLATFORM it is compiled for a platform
        that need not be there: such a model can be exported, not run. Beyond OpenVINO: `shapes` gives inputs
        shapes, with `-1` and `"1..8"` for dynamic dimensions; `progress(stage, done)` is called on the way
        and cancels by raising.
        Raises `ModelError`, `CompileError`, `PropertyError`, `DeviceLostError`.
        """
        device_name = self._device_of(device_name)
        index, properties = self._properties.resolve(device_name, config or {})
        properties.check()
        context = self._devices.context(index)
        bounded, static_shapes = with_bounds(model, weights, shapes)
        source, read = model_source.opened(
            bounded, None if weights is None else Path(weights), model_source.Form.of(properties)
        )
        asked = f"compile model '{source.name}' for {device_name}"
        with source, translated(asked, CompileError), ExitStack() as claims:
            plan = plan_batch(source, read, properties, static_shapes)
            logger = _logger(properties)
            if plan.message:
                logger.info("model '%s': %s", source.name, plan.message)
            make = partial(
                compile_source,
                context,
                source,
                shapes=plan.shapes,
                flags=properties.for_graph(),
                cache=cache_options_from_environment(os.environ),
                progress=progress,
            )
            config = plan.for_compiler(properties.for_compiler())
            # by the shapes that were asked for: with one sample for the compiler different batches are equal
            entry = look_up(context, source, properties, config, static_shapes, logger, claims)
            if entry is not None and entry.found is not None:
                logger.info("model '%s': imported from CACHE_DIR", source.name)
                return entry.found
            graph = make(config=config)
            try:
                initial = make(config=initial_config(config)) if needs_initial(graph.meta) else None
                here = graph.meta.platform == context.device.info.platform
                if here and not properties["NPU_DEFER_WEIGHTS_LOAD"]:
                    graph.initialize()
                file = "" if isinstance(model, ov.Model) else os.path.abspath(model)
                provenance = Provenance(model_source.origins(source), model=file)
                decided = properties.with_values({BATCH_MODE: plan.mode})
                signature = plan.signature(graph.meta)
                compiled = CompiledModel(context, graph, decided, signature, initial, provenance)
                if entry is not None and here:
                    entry.store(compiled)
            except BaseException:
                graph.destroy()
                raise
        _tell(compiled, graph.build_log, properties)
        return compiled

    def import_model(
        self,
        model_stream: Any,
        device_name: str = "NPU",
        config: Mapping[str, Any] | None = None,
        *,
        model: ov.Model | None = None,
    ) -> CompiledModel:
        """A model that `CompiledModel.export_model` wrote, on a device of its platform.

        `model_stream` is a binary stream, bytes, an `openvino.Tensor`, or beyond OpenVINO a path. Weights of
        a file are mapped by the device and not read here. `model` is the original of a file without weights,
        as `ov.properties.hint.model` in `config`. Raises `BlobError`, `PropertyError`, `DeviceLostError`.
        """
        given, model = importing.split_model(checked_pairs(config or {}), model)
        index, properties = self._properties.resolve(device_name, given)
        properties.check()
        context = self._devices.context(index)
        return importing.import_model(context, model_stream, properties, parse(given), model)

    def check_compatibility(self, model: Any, device_name: str = "NPU") -> Compatibility:
        """Whether an exported model can run on a device, and why not, without importing it.

        `model` is what `import_model` takes, or RUNTIME_REQUIREMENTS as text. Raises `BlobError` for a file
        that cannot be opened, `PropertyError` for a device that is not there.
        """
        index, _ = self._properties.resolve(device_name, {})
        return check_source(model, host_of(self._devices.driver().devices[index]))

    # ------------------------------------------------------------ device memory

    def create_context(
        self, device_name: str = "NPU", properties: Mapping[str, Any] | None = None
    ) -> RemoteContext:
        """A context that makes tensors in memory of a device.

        `properties` hold for all its tensors: MEM_TYPE, TENSOR_TYPE, MEM_HANDLE. Raises `PropertyError`.
        """
        index, _ = self._properties.resolve(device_name, {})
        return RemoteContext(self._devices, index, properties)

    def get_default_context(self, device_name: str = "NPU") -> RemoteContext:
        """The context of a device without properties of its own."""
        return self.create_context(device_name)

    def query_model(
        self, model: ov.Model, device_name: str = "NPU", config: Mapping[str, Any] | None = None
    ) -> dict[str, str]:
        """The operations of a model that the device can run: `device_name` by friendly name.

        Raises `PropertyError`, and `CompileError` for a model that the compiler cannot read.
        """
        index, found = self._properties.resolve(device_name, config or {})
        found.check()
        with translated(f"query model '{model.get_friendly_name()}' for {device_name}", CompileError):
            supported = supported_operations(self._devices.context(index), model, found.for_compiler())
        return dict.fromkeys(supported, device_name)

    def add_extension(self, extension: Any) -> None:
        """Teaches `read_model` operations or conversions of the program, as OpenVINO does.

        The compiler is another process and does not know them: a model has to be without them when it is
        compiled, or it is refused by the name of the operation.
        """
        runtime().add_extension(extension)

    def _device_of(self, device: str | RemoteContext | None) -> str:
        """The name of the device that is meant; None is the default one."""
        if not isinstance(device, RemoteContext):
            return "NPU" if device is None else device
        device.check_alive("compile_model")
        if device.devices is not self._devices:
            raise PropertyError(
                f"compile_model: a context of the daemon at {device.devices.socket}; expected one that this "
                "Core has made, with create_context"
            )
        return device.get_device_name()


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike)) and "<" not in str(value)


def compile_model(
    model: ov.Model | str | Path, device_name: str | None = "NPU", config: Mapping[str, Any] | None = None
) -> CompiledModel:
    """`Core().compile_model`, in one call."""
    return Core().compile_model(model, device_name, config)


def _tell(compiled: CompiledModel, build_log: str, properties: ModelProperties) -> None:
    """The messages of a compilation."""
    logger, name = _logger(properties), compiled.meta.name
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


def _logger(properties: ModelProperties) -> logging.Logger:
    return log.model_log(properties["LOG_LEVEL"] if "LOG_LEVEL" in properties.given else None)

"""`openvino.Core` for the emulated NPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import openvino as ov

from softnpu.driver import Driver
from softnpu.emulator.common import model_texts
from softnpu.plugin import compilation, openvino_runtime
from softnpu.plugin.compiled_model import CompiledModel
from softnpu.plugin.core_properties import CoreProperties
from softnpu.plugin.devices import check_name, devices_at
from softnpu.plugin.errors import CompileError, InputTypeError, PropertyError, translated
from softnpu.plugin.models import kernels
from softnpu.plugin.models.dynamic_bounds import Shapes
from softnpu.plugin.properties import PropertyPairs
from softnpu.plugin.remote.remote_context import RemoteContext
from softnpu.plugin.version import Version, plugin_version

if TYPE_CHECKING:
    from softnpu.plugin.exported.compatibility import Compatibility


class Core:
    """Entry point of the plugin. `socket` selects a daemon other than the user's own (`SOFTNPU_SOCKET`).

    The first call that needs a device connects to the daemon, and starts one if none runs.
    """

    def __init__(self, socket: str | Path | None = None) -> None:
        self._devices = devices_at(None if socket is None else Path(socket).absolute())
        self._properties = CoreProperties(self._devices)

    def __repr__(self) -> str:
        return f"<Core: available plugins[{', '.join(self.available_devices)}]>"

    @property
    def available_devices(self) -> list[str]:
        """`["NPU"]`, or `["NPU.0", "NPU.1", ...]`."""
        return self._devices.names()

    def get_available_devices(self) -> list[str]:
        """Return `available_devices`."""
        return self.available_devices

    @property
    def driver(self) -> Driver:
        """The underlying driver, for programs that use Level Zero objects."""
        return self._devices.driver()

    def unload_plugin(self, device_name: str = "NPU") -> None:
        """Release everything that this process has on the devices; the next call connects again.

        Compiled models and infer requests become unusable.
        Raises `PropertyError` for a device that is not an NPU.
        """
        check_name(device_name)
        self._devices.close()

    def get_versions(self, device_name: str = "NPU") -> dict[str, Version]:
        """Return this plugin's version, by device name. Raises `PropertyError` for another device."""
        check_name(device_name)
        return {device_name: plugin_version()}

    # ------------------------------------------------------------ properties

    def get_property(
        self,
        device_name: str = "NPU",
        property: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Any:
        """Read a property of a device; a lone name reads it from `NPU`. `docs/properties.md` has the table.

        `arguments` are property values for this call only.
        Raises `PropertyError`.
        """
        device, name = (device_name, property) if property is not None else ("NPU", device_name)
        return self._properties.get(device, name, arguments or {})

    def set_property(
        self, device_name: str | PropertyPairs = "NPU", properties: PropertyPairs | None = None
    ) -> None:
        """Set defaults for later `compile_model` calls on a device, or on all devices (`NPU`).

        `properties` maps names to values, or is one pair.
        Raises `PropertyError` and then sets nothing.
        """
        if properties is None:
            self._properties.set("NPU", cast(PropertyPairs, device_name))
        else:
            self._properties.set(cast(str, device_name), properties)

    # ------------------------------------------------------------ models

    def read_model(
        self, model: Any, weights: Any = None, config: Mapping[str, Any] | None = None
    ) -> ov.Model:
        """Read a model in any format that OpenVINO reads, from a file or from memory. Raises `ModelError`.

        `config` is for OpenVINO's reader, such as ENABLE_MMAP.
        """
        if _is_path(model) and (weights is None or _is_path(weights)):
            model, weights = Path(model), None if weights is None else Path(weights)
        elif isinstance(model, str):
            model = model.encode()  # OpenVINO takes weights in bytes only with a model in bytes
        return openvino_runtime.read_model(model, weights, config)

    def compile_model(
        self,
        model: ov.Model | str | bytes | Path,
        device_name: str | RemoteContext | None = "NPU",
        config: Mapping[str, Any] | None = None,
        *,
        weights: str | Path | bytes | ov.Tensor | None = None,
        shapes: Shapes | None = None,
        progress: Callable[[str, float], None] | None = None,
    ) -> CompiledModel:
        """Compile a model (an `openvino.Model`, a file, the text of an IR) and load it onto a device.

        `weights` are those of an IR: bytes, a tensor, or, beyond OpenVINO, a file. `config` maps property
        names to values as in OpenVINO. NPU_PLATFORM compiles for a platform that need not be present: such a
        model can be exported, not run. Beyond OpenVINO: `shapes` sets input shapes, with `-1` and `"1..8"`
        for dynamic dimensions; `progress(stage, done)` is called during compilation and cancels it by
        raising.
        Raises `ModelError`, `CompileError`, `PropertyError`, `DeviceLostError`.
        """
        properties = self._properties.resolve(self._name_of(device_name), config or {})
        if not isinstance(model, ov.Model) and not (_is_path(model) and _is_path(weights or "")):
            if not isinstance(weights, bytes | ov.Tensor | None):
                raise InputTypeError(
                    f"compile_model, weights: {type(weights).__name__}; expected bytes or a tensor"
                )
            model, weights = self.read_model(model, weights), None
        loaded = compilation.compile_model(
            self._devices.context(properties.device),
            model,
            properties,
            weights=None if weights is None else Path(cast(str, weights)),
            shapes=shapes,
            progress=progress,
        )
        return CompiledModel(loaded)

    def import_model(
        self,
        model_stream: Any,
        device_name: str = "NPU",
        config: Mapping[str, Any] | None = None,
        *,
        model: ov.Model | None = None,
    ) -> CompiledModel:
        """Load a model written by `CompiledModel.export_model` onto a device of its platform.

        `model_stream` is a binary stream, bytes, an `openvino.Tensor`, or, beyond OpenVINO, a path. The
        device maps the weights of a file; this process does not read them. `model` is the original of a file
        without weights, like `ov.properties.hint.model` in `config`.
        Raises `BlobError`, `PropertyError`, `DeviceLostError`.
        """
        from softnpu.plugin.exported import importing  # late: not every program imports

        config, model = importing.split_model(config or {}, model)
        properties = self._properties.resolve(device_name, config)
        context = self._devices.context(properties.device)
        return CompiledModel(importing.import_model(context, model_stream, properties, model))

    def check_compatibility(self, model: Any, device_name: str = "NPU") -> Compatibility:
        """Return whether an exported model can run on a device, and if not, why; without importing it.

        `model` is an argument of `import_model`, or RUNTIME_REQUIREMENTS as text.
        Raises `BlobError` for a file that cannot be opened, `PropertyError` for an unknown device.
        """
        from softnpu.plugin.exported import compatibility  # late: few programs ask

        index = self._properties.index(device_name)
        host = compatibility.host_of(self._devices.driver().devices[index])
        return compatibility.check_source(model, host)

    def query_model(
        self, model: ov.Model, device_name: str = "NPU", config: Mapping[str, Any] | None = None
    ) -> dict[str, str]:
        """Return the operations of a model that the device can run: `device_name` by friendly name.

        Raises `PropertyError`, and `CompileError` for a model that the compiler cannot read.
        """
        from softnpu.plugin.models import query  # late: few programs ask

        properties = self._properties.resolve(device_name, config or {})
        with translated(f"query model '{model_texts.friendly_name(model)}' for {device_name}", CompileError):
            supported = query.supported_operations(
                self._devices.context(properties.device), model, properties.for_compiler()
            )
        return dict.fromkeys(supported, device_name)

    def add_extension(self, extension: Any) -> None:
        """Add operations or conversions of the program to `read_model`, as OpenVINO does.

        The compiler is another process without them: it rejects, by name, extension operations left in a
        model. Beyond OpenVINO: a file `*.wasm` is an own kernel, whose operation the device executes; so is
        a function with `@softnpu.kernel`.
        Raises `ModelError` for one that is no kernel.
        """
        from softnpu.plugin.models.functions import FunctionKernel  # late: few programs have extensions

        if isinstance(extension, str | os.PathLike) and str(extension).endswith(kernels.SUFFIX):
            kernels.add(extension)
        elif isinstance(extension, FunctionKernel):
            kernels.add_function(extension)
        else:
            openvino_runtime.add_extension(extension)

    # ------------------------------------------------------------ device memory

    def create_context(
        self, device_name: str = "NPU", properties: Mapping[str, Any] | None = None
    ) -> RemoteContext:
        """Create a remote context, which creates tensors in memory of a device.

        `properties` hold for all its tensors: MEM_TYPE, TENSOR_TYPE, MEM_HANDLE.
        Raises `PropertyError`.
        """
        from softnpu.plugin.remote import remote_sharing  # late: it brings `multiprocessing`

        remote_sharing.register()
        return RemoteContext(self._devices, self._properties.index(device_name), properties)

    def get_default_context(self, device_name: str = "NPU") -> RemoteContext:
        """Return the remote context of a device without properties of its own."""
        return self.create_context(device_name)

    def _name_of(self, device: str | RemoteContext | None) -> str:
        """Return the name of a device, also if given by its context; None is the default device."""
        if not isinstance(device, RemoteContext):
            return "NPU" if device is None else device
        device.check_alive("compile_model")
        if device.devices is not self._devices:
            raise PropertyError(
                f"compile_model: a context of the daemon at {device.devices.socket}; expected one that this "
                "Core has made, with create_context"
            )
        return device.get_device_name()


def compile_model(
    model: ov.Model | str | Path, device_name: str | None = "NPU", config: Mapping[str, Any] | None = None
) -> CompiledModel:
    """Compile a model in one call, as `Core().compile_model` does."""
    return Core().compile_model(model, device_name, config)


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike)) and "<" not in str(value)

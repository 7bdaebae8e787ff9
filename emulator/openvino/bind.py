"""Choose the binding of an image."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.openvino.binding import Binding
from softnpu.emulator.openvino.dynamic.binding import bind_model
from softnpu.emulator.openvino.dynamic.states import StatefulBinding
from softnpu.emulator.openvino.image import LoadedImage


def bind(image: LoadedImage, views: Sequence[Bytes], count_copied: Callable[[int], None]) -> Binding:
    """Bind a request to one view per argument; `count_copied` receives the bytes copied per inference."""
    if image.has_kernels:
        from softnpu.emulator.openvino.kernels.binding import KernelBinding  # late: few models have any

        return KernelBinding(image, views, count_copied)  # type: ignore[arg-type]  # it is a KernelImage
    if image.meta.dynamic_states:
        return StatefulBinding(image, views, count_copied)
    return bind_model(image, views, count_copied)

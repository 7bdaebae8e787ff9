"""`Core.query_model`: the operations of a model that the device can run, from the driver's query network."""

from __future__ import annotations

import re
from collections.abc import Mapping

import openvino as ov

from softnpu.driver import Context, GraphDesc, GraphExtension
from softnpu.driver.graph_properties import GraphFormat
from softnpu.emulator.common import model_texts
from softnpu.emulator.kernels import replacements
from softnpu.plugin.models import kernels
from softnpu.plugin.models.serializer import no_copy_form


def supported_operations(context: Context, model: ov.Model, config: Mapping[str, str]) -> list[str]:
    """Return friendly names in execution order. Raises `ZeError` if the compiler cannot read the model."""
    extension = GraphExtension(context.device)
    version = extension.device_get_graph_properties().compiler_version
    wanted = config.get(replacements.PROPERTY, "")
    flags = " ".join(["--config", *(f'{name}="{value}"' for name, value in config.items())])
    desc = GraphDesc(
        format=GraphFormat.NGRAPH_LITE,
        input=no_copy_form(model, version, kernels=kernels.text_of(model, wanted)),
        build_flags=flags if config else None,
    )
    with extension.query_network_create(context, desc) as query:
        return _names(query.get_supported_layers(), model)


def _names(layers: str, model: ov.Model) -> list[str]:
    """Parse `<name><name>`. A name may contain brackets, so the model's names are searched."""
    known = [model_texts.friendly_name(operation) for operation in model.get_ops()]
    if any("<" in name or ">" in name for name in known):
        return [name for name in known if f"<{name}>" in layers]
    return re.findall("<([^>]*)>", layers)

"""The build flag NPU_STRICT (ours): unsupported operations are refused, and left out of query answers."""

from __future__ import annotations

from softnpu.emulator.interface.result import ZeResult
from tests.conformance import models
from tests.conformance.rig import Rig

STRICT = 'NPU_STRICT="YES"'


def test_a_graph_that_silicon_refuses_is_refused_with_the_rule_in_the_log(rig: Rig) -> None:
    assert rig.graph_from(rig.model_desc(models.open_relu("?,?")))
    desc = rig.model_desc(models.open_relu("?,?", config=STRICT))
    result, outcome = rig.api.ze_graph_create3(rig.context, rig.device, desc)
    assert result == ZeResult.ERROR_UNSUPPORTED_FEATURE
    _, text = rig.api.ze_graph_build_log_get_string2(outcome.log).get()
    assert "shape.unbounded" in text
    assert "npu_compiler" in text
    assert rig.graph_from(rig.model_desc(models.open_relu("1,4", config=STRICT)))


def test_a_query_leaves_out_what_silicon_refuses(rig: Rig) -> None:
    found = {}
    for config in ("", STRICT):
        desc = rig.model_desc(models.open_relu("?,?", config=config))
        query = rig.api.ze_graph_query_network_create2(rig.context, rig.device, desc).get()
        found[config] = rig.api.ze_graph_query_network_get_supported_layers(query).get()
        rig.api.ze_graph_query_network_destroy(query)
    assert "<x0>" in found[""]
    assert found[STRICT].strip("\0") == ""

"""Detection: regions, priors, non-maximum suppression."""

from __future__ import annotations

from typing import Any

from tests.fuzz.models.graph import Graph
from tests.fuzz.models.operations.table import Table

TABLE = Table()


def _boxes(graph: Graph, shape: list[int]) -> Any:
    """Return boxes whose second corner follows the first."""
    corner = graph.source([*shape, 2], "f32", (0, 5))
    size = graph.constant([*shape, 2], "f32", (1, 4))
    far = graph.add("Add", [corner, size], pooled=False)
    return graph.add("Concat", [corner, *far], {"axis": -1}, 1, pooled=False)[0]


@TABLE.entry("NonMaxSuppression", "NonMaxSuppression again")
def _suppression(graph: Graph) -> object:
    batch, boxes, classes = (graph.dice.randint(1, top) for top in (2, 6, 3))
    inputs = [
        _boxes(graph, [batch, boxes]),
        graph.source([batch, classes, boxes], "f32", constant=0.1),
        graph.number(graph.dice.randint(1, 6)),
        graph.number(graph.dice.pick((0.3, 0.5, 0.9)), "f32"),
        graph.number(graph.dice.pick((0.0, -1.0, 0.4)), "f32"),
    ]
    attributes = {
        "box_encoding": graph.dice.pick(("corner", "center")),
        "sort_result_descending": graph.dice.chance(0.5),
    }
    opset = graph.dice.pick((3, 4, 5, 9))
    attributes["output_type"] = graph.dice.pick(("i32", "i64"))
    return graph.add("NonMaxSuppression", inputs, attributes, opset)


@TABLE.entry("MatrixNms", "MulticlassNms")
def _matrix(graph: Graph) -> object:
    batch, boxes, classes = (graph.dice.randint(1, top) for top in (2, 5, 3))
    inputs = [_boxes(graph, [batch, boxes]), graph.source([batch, classes, boxes], "f32", constant=0.1)]
    attributes = {
        "sort_result_type": graph.dice.pick(("score", "classid")),
        "output_type": graph.dice.pick(("i32", "i64")),
        "nms_top_k": 4,
        "keep_top_k": 5,
        "background_class": -1,
    }
    if graph.dice.chance(0.5):
        return graph.add("MatrixNms", inputs, attributes, 8)
    return graph.add("MulticlassNms", inputs, {**attributes, "iou_threshold": 0.5}, graph.dice.pick((8, 9)))


@TABLE.entry("ROIAlign")
def _roi_align(graph: Graph) -> object:
    one = graph.value(("f32",), rank=4, filled=True)
    count = graph.dice.randint(1, 3)
    inputs = [one, _boxes(graph, [count]), graph.source([count], "i32", (0, next(iter(one.shape)) - 1))]
    attributes: dict[str, Any] = {
        "pooled_h": graph.dice.randint(1, 3),
        "pooled_w": graph.dice.randint(1, 3),
        "sampling_ratio": graph.dice.randint(0, 2),
        "spatial_scale": graph.dice.pick((0.5, 1.0)),
        "mode": graph.dice.pick(("avg", "max")),
    }
    if graph.dice.chance(0.5):
        return graph.add("ROIAlign", inputs, attributes, 3)
    mode = {"aligned_mode": graph.dice.pick(("asymmetric", "half_pixel", "half_pixel_for_nn"))}
    return graph.add("ROIAlign", inputs, {**attributes, **mode}, 9)


@TABLE.entry("ROIPooling", "PSROIPooling")
def _roi_pooling(graph: Graph) -> object:
    one = graph.value(("f32",), rank=4, filled=True)
    samples, channels = list(one.shape)[:2]
    count = graph.dice.randint(1, 3)
    which = graph.source([count, 1], "f32", (0, 0))
    boxes = graph.add("Concat", [which, _boxes(graph, [count])], {"axis": 1}, 1, pooled=False)
    del samples
    if channels % 4 == 0 and graph.dice.chance(0.5):
        attributes = {"output_dim": channels // 4, "group_size": 2, "spatial_scale": 0.5, "mode": "average"}
        return graph.add(
            "PSROIPooling", [one, *boxes], {**attributes, "spatial_bins_x": 1, "spatial_bins_y": 1}, 1
        )
    attributes = {"spatial_scale": 0.5, "method": graph.dice.pick(("max", "bilinear"))}
    return graph.add(
        "ROIPooling", [one, *boxes], {**attributes, "output_size": [2, 2], "pooled_h": 2, "pooled_w": 2}, 2
    )


@TABLE.entry("PriorBox", "PriorBoxClustered")
def _priors(graph: Graph) -> object:
    sizes = [graph.number([graph.dice.randint(1, 3), 2]), graph.number([20, 24])]
    if graph.dice.chance(0.5):
        attributes = {"width": [2.0, 3.0], "height": [3.0, 1.0], "clip": True, "step": 8.0, "offset": 0.5}
        return graph.add("PriorBoxClustered", sizes, {**attributes, "variance": [0.1, 0.1, 0.2, 0.2]}, 1)
    attributes = {
        "min_size": [4.0],
        "max_size": [8.0],
        "aspect_ratio": [2.0],
        "flip": True,
        "offset": 0.5,
        "step": 8.0,
    }
    return graph.add(
        "PriorBox", sizes, {**attributes, "variance": [0.1, 0.1, 0.2, 0.2]}, graph.dice.pick((1, 8))
    )


@TABLE.entry("RegionYolo", "ReorgYolo")
def _yolo(graph: Graph) -> object:
    if graph.dice.chance(0.5):
        one = graph.source(
            [graph.dice.randint(1, 2), 4, 2 * graph.dice.randint(1, 2), 4], "f32", constant=0.1
        )
        return graph.add("ReorgYolo", [one], {"stride": [2]}, 2)
    classes, regions = graph.dice.randint(1, 3), 2
    one = graph.source([1, regions * (classes + 5), 2, 3], "f32", constant=0.1)
    attributes = {
        "anchors": [1.0, 2.0, 3.0, 4.0],
        "axis": 1,
        "coords": 4,
        "classes": classes,
        "end_axis": 3,
        "num": regions,
    }
    return graph.add(
        "RegionYolo", [one], {**attributes, "do_softmax": graph.dice.chance(0.5), "mask": [0, 1]}, 1
    )


@TABLE.entry("CTCGreedyDecoder", "CTCGreedyDecoderSeqLen")
def _ctc(graph: Graph) -> object:
    steps, batch, classes = (graph.dice.randint(1, top) for top in (5, 3, 4))
    merge = {"merge_repeated": graph.dice.chance(0.5)}
    if graph.dice.chance(0.5):
        one = graph.source([steps, batch, classes], "f32", constant=0.1)
        mask = graph.number([[1.0] * batch] * steps, "f32")
        return graph.add("CTCGreedyDecoder", [one, mask], {"ctc_merge_repeated": merge["merge_repeated"]}, 1)
    one = graph.source([batch, steps, classes], "f32", constant=0.1)
    lengths = graph.source([batch], "i32", (1, steps))
    return graph.add("CTCGreedyDecoderSeqLen", [one, lengths], merge, 6)

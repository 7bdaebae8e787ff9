"""`test_ovdict.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from openvino.utils.data_helpers import OVDict

from tests.plugin.api.table import Side, absolute, split

_DATA = np.arange(20, dtype=np.float32).reshape(1, 20) - 7


def _results(side: Side, parts: int = 5) -> Iterator[Any]:
    yield side.compiled(split, parts)(_DATA)
    yield side.request(split, parts).infer(_DATA)


def ovdict_assign(side: Side) -> Any:
    next(_results(side))["some_name"] = 99


def ovdict_single_output_basic(side: Side) -> Any:
    results = side.compiled(absolute)(_DATA[:, :4])
    ports = side.compiled(absolute).outputs
    return (
        isinstance(results, OVDict),
        list(results) == ports,
        list(results.keys()) == ports,
        results[ports[0]],
    )


def ovdict_single_output_noname(side: Side) -> Any:
    side.compiled(absolute)(_DATA[:, :4])["some_name"]


def ovdict_single_output_wrongname(side: Side) -> Any:
    side.compiled(absolute)(_DATA[:, :4])[6]


def ovdict_single_output_dict(side: Side) -> Any:
    results = side.compiled(absolute)(_DATA[:, :4])
    native = (results.to_dict(), dict(results))
    return [(type(each), [value.tolist() for value in each.values()]) for each in native]


def ovdict_multi_output_basic(side: Side) -> Any:
    found = []
    for results in _results(side):
        found += [results[number] for number in range(5)]
        found += [results[f"output_{number}"] for number in range(5)]
        found += [results[port] for port in results]
    return found


def ovdict_multi_output_tuple0(side: Side) -> Any:
    return [(type(each.to_tuple()), each.to_tuple(), list(each.values())) for each in _results(side, 2)]


def ovdict_from_the_end(side: Side) -> Any:
    results = next(_results(side))
    return results[-1], results[-5], results.get(-6), results.names()


def ovdict_wrong_key(side: Side) -> Any:
    next(_results(side))[1.5]

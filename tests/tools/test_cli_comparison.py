"""Comparing results: the check must be able to fail."""

from __future__ import annotations

import math

import numpy as np
import pytest

from softnpu.tools.comparison import compare
from softnpu.tools.inputs import parse_shapes, random_array

pytestmark = pytest.mark.quick


_REFERENCE = np.array([[100.0, -1.0, 0.0, 1e-6]], np.float32)


def test_equal_bits_are_identical() -> None:
    found = compare(_REFERENCE.copy(), _REFERENCE)
    assert (found.absolute, found.relative, found.identical) == (0.0, 0.0, True)


def test_the_last_bit_is_noticed() -> None:
    value = _REFERENCE.copy()
    value[0, 1] = np.nextafter(value[0, 1], np.float32(0))
    found = compare(value, _REFERENCE)
    assert not found.identical
    assert 0 < found.relative < 1e-6
    assert found.within(1e-3)


def test_a_wrong_number_is_beyond_the_tolerance() -> None:
    value = _REFERENCE.copy()
    value[0, 1] = -1.01
    found = compare(value, _REFERENCE)
    assert found.absolute == pytest.approx(0.01, rel=1e-4)
    assert found.relative == pytest.approx(0.01 / 1.0, rel=1e-4)
    assert not found.within(1e-3)


def test_noise_beside_large_values_counts_against_their_size() -> None:
    value = _REFERENCE.copy()
    value[0, 3] = 3e-6
    assert compare(value, _REFERENCE).within(1e-3)


@pytest.mark.parametrize("where", ["value", "reference"])
def test_a_nan_on_one_side_only_is_never_within(where: str) -> None:
    sides = {"value": _REFERENCE.copy(), "reference": _REFERENCE.copy()}
    sides[where][0, 0] = math.nan
    found = compare(**sides)
    assert not found.within(1e9)


def test_an_infinity_on_one_side_only_is_never_within() -> None:
    value = _REFERENCE.copy()
    value[0, 0] = math.inf
    assert not compare(value, _REFERENCE).within(1e9)
    assert not compare(_REFERENCE, value).within(1e9)


def test_the_same_nan_and_infinity_on_both_sides_are_the_same() -> None:
    reference = np.array([math.nan, math.inf, -math.inf, 1.0], np.float32)
    assert compare(reference.copy(), reference).identical
    # another payload of the NaN: other bits, the same value
    other = reference.copy()
    other.view(np.uint32)[0] ^= 1
    found = compare(other, reference)
    assert not found.identical
    assert found.within(0.0)


def test_minus_zero_is_another_bit_pattern_of_the_same_number() -> None:
    found = compare(np.array([-0.0], np.float32), np.array([0.0], np.float32))
    assert not found.identical
    assert found.within(0.0)


@pytest.mark.parametrize("kind", [np.bool_, np.int64, np.uint8])
def test_whole_numbers_and_booleans_are_compared(kind: type[np.generic]) -> None:
    reference = np.array([1, 0, 1], kind)
    assert compare(reference.copy(), reference).identical
    found = compare(np.array([1, 1, 1], kind), reference)
    assert found.absolute == 1
    assert not found.within(1e-3)


def test_nothing_equals_nothing() -> None:
    assert compare(np.empty((0, 4), np.float32), np.empty((0, 4), np.float32)).identical


@pytest.mark.parametrize("other", [np.zeros((4, 1), np.float32), np.zeros((1, 4), np.float64)])
def test_another_shape_or_type_is_refused(other: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"float.* against float32 \[1, 4\]"):
        compare(other, _REFERENCE)


def test_random_values_fit_their_input() -> None:
    random = np.random.default_rng(0)
    ids = random_array(random, "input_ids", np.int64, (4, 100))
    assert ids.dtype == np.int64
    assert (ids.min(), ids.max()) == (0, 100)
    assert np.all(random_array(random, "attention_mask", np.int64, (1, 9)) == 1)
    assert np.all(random_array(random, "token_type_ids", np.int32, (1, 9)) == 0)
    assert set(random_array(random, "flag", np.bool_, (1, 99)).ravel().tolist()) == {True, False}
    pixels = random_array(random, "images", np.float16, (3, 8))
    assert pixels.dtype == np.float16
    assert 0 <= pixels.min() < pixels.max() <= 1


def test_a_tensor_name_may_hold_an_equals_sign() -> None:
    assert parse_shapes(["a=b=1,2"]) == {"a=b": (1, 2)}

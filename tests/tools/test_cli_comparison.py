"""Comparing results: the check must be able to fail."""

from __future__ import annotations

import math

import numpy as np
import pytest

from softnpu.tools.shared.comparison import Comparison, compare
from softnpu.tools.shared.inputs import parse_shapes, random_array

pytestmark = pytest.mark.quick


_REFERENCE = np.array([[100.0, -1.0, 0.0, 1e-6]], np.float32)


def _changed(place: int, number: float) -> np.ndarray:
    value = _REFERENCE.copy()
    value[0, place] = number
    return value


def test_equal_bits_are_identical_and_so_are_empty_tensors() -> None:
    found = compare(_REFERENCE.copy(), _REFERENCE)
    assert (found.absolute, found.relative, found.identical) == (0.0, 0.0, True)
    assert compare(np.empty((0, 4), np.float32), np.empty((0, 4), np.float32)).identical


def test_the_last_bit_and_the_sign_of_zero_are_noticed() -> None:
    found = compare(_changed(1, float(np.nextafter(np.float32(-1), np.float32(0)))), _REFERENCE)
    assert not found.identical
    assert 0 < found.relative < 1e-6
    assert found.within(1e-3)
    found = compare(_changed(2, -0.0), _REFERENCE)
    assert (found.identical, found.within(0.0)) == (False, True)


def test_a_wrong_number_is_beyond_the_tolerance() -> None:
    found = compare(_changed(1, -1.01), _REFERENCE)
    assert found.absolute == pytest.approx(0.01, rel=1e-4)
    assert found.relative == pytest.approx(0.01 / 1.0, rel=1e-4)
    assert not found.within(1e-3)
    assert Comparison({"a": found, "b": compare(_REFERENCE, _REFERENCE)}, 1e-3).beyond == ["a"]


def test_noise_is_judged_relative_to_the_largest_values() -> None:
    assert compare(_changed(3, 3e-6), _REFERENCE).within(1e-3)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_nan_or_infinity_on_one_side_is_never_within(number: float) -> None:
    value = _changed(0, number)
    assert not compare(value, _REFERENCE).within(1e9)
    assert not compare(_REFERENCE, value).within(1e9)


def test_the_same_nan_and_infinity_on_both_sides_are_the_same() -> None:
    reference = np.array([math.nan, math.inf, -math.inf, 1.0], np.float32)
    assert compare(reference.copy(), reference).identical
    other = reference.copy()
    other.view(np.uint32)[0] ^= 1  # another NaN payload: other bits, the same value
    found = compare(other, reference)
    assert (found.identical, found.within(0.0)) == (False, True)


@pytest.mark.parametrize("kind", [np.bool_, np.int64, np.uint8])
def test_whole_numbers_and_booleans_are_compared(kind: type[np.generic]) -> None:
    reference = np.array([1, 0, 1], kind)
    assert compare(reference.copy(), reference).identical
    found = compare(np.array([1, 1, 1], kind), reference)
    assert found.absolute == 1
    assert not found.within(1e-3)


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
    assert parse_shapes(["images[1,3]", "mask=4"]) == {"images": (1, 3), "mask": (4,)}

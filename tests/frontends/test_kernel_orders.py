"""Results of kernels lie in memory as what they are made of does, as in NumPy and PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilevm
from tilevm import lang

Function = Callable[..., Any]

ELEMENTWISE: dict[str, Function] = {
    "one": lambda x: x * 2 + 1,
    "several": lambda x: (x + 1, (x + 1) * x, -x),
    "compared": lambda x: x > 0,
    "of a row": lambda x: x - x[:1],
    "number first": lambda x: 2 - x,
}


def strides(x: Any) -> tuple[int, ...]:
    """Of dims with more than one element."""
    given = x.strides if isinstance(x, np.ndarray) else x.stride()
    return tuple(s for s, n in zip(given, x.shape, strict=True) if n > 1)


def check(kernel: Any, function: Function, *args: Any) -> None:
    found, expected = kernel(*args), function(*args)
    several = isinstance(expected, tuple)
    for mine, theirs in zip(found, expected, strict=True) if several else [(found, expected)]:
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))
        assert strides(mine) == strides(theirs)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_results_lie_as_their_argument(name: str) -> None:
    """One kernel, all orders, again and again, in NumPy's and PyTorch's arrays."""
    torch = pytest.importorskip("torch")
    function = ELEMENTWISE[name]
    kernel = tilevm.kernel(function)
    for sizes in ((3, 5, 4), (1, 5, 4), (3, 1, 1), (2, 3, 0), (1, 1, 1)):
        base = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes) - 7
        for axes in itertools.permutations(range(3)):
            x = base.transpose(axes)
            for _ in range(3):
                check(kernel, function, x)
                check(kernel, function, torch.from_numpy(base.copy()).permute(axes))


def test_images_with_channels_last_stay_so() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 3, 8, 5).contiguous(memory_format=torch.channels_last)
    kernel = tilevm.kernel(lambda x: x * 2)
    assert kernel(x).is_contiguous(memory_format=torch.channels_last)
    assert kernel(x.contiguous()).is_contiguous()


def test_the_first_operand_of_the_shape_decides() -> None:
    torch = pytest.importorskip("torch")

    def add(x: Any, y: Any) -> Any:
        return x + y

    kernel = tilevm.kernel(add)
    x = torch.randn(4, 6)
    for a, b in itertools.product((x, x.t().contiguous().t()), repeat=2):
        check(kernel, add, a, b)
    check(kernel, add, torch.randn(6), x.t().contiguous().t())
    check(kernel, add, torch.randn(4, 1), x.t().contiguous().t())


def test_strides_with_holes_and_backwards() -> None:
    twice = tilevm.kernel(lambda x: x * 2)
    x = np.arange(96.0).reshape(8, 12)
    check(twice, lambda x: x * 2, x[::2, ::3])
    check(twice, lambda x: x * 2, x.T[::3, ::2])
    np.testing.assert_array_equal(twice(x.T[::-1, ::-1]), x.T[::-1, ::-1] * 2)
    repeated = twice(np.broadcast_to(x[:, :1], (8, 5)))  # whose strides say nothing
    assert repeated.strides == (40, 8)
    np.testing.assert_array_equal(repeated, np.broadcast_to(x[:, :1] * 2, (8, 5)))


def test_a_transpose_within_is_followed() -> None:
    def function(x: Any, y: Any) -> Any:
        return x.T + y.T

    kernel = tilevm.kernel(function)
    x = np.arange(12.0).reshape(3, 4)
    check(kernel, function, x, x)
    check(kernel, function, x.T, x.T)


def test_other_results_are_row_major() -> None:
    """Products, sums, gathers, and results that are also seen in another shape."""
    x = np.arange(24.0).reshape(4, 6).T
    assert tilevm.kernel(lambda x: x @ x.T)(x).strides == (48, 8)
    assert tilevm.kernel(lambda x: lang.sum(x[:, :, None] * x[:, None], 1))(x).strides == (32, 8)
    y, flat = tilevm.kernel(lambda x: (y := x * 2, y.reshape(-1)))(x)
    np.testing.assert_array_equal(y, x * 2)
    np.testing.assert_array_equal(flat, (x * 2).reshape(-1))
    half, part = tilevm.kernel(lambda x: (y := x * 2, y[1:3]))(x)
    np.testing.assert_array_equal(half, x * 2)
    np.testing.assert_array_equal(part, x[1:3] * 2)


def test_normalised_rows_and_columns() -> None:
    x = np.random.default_rng(0).normal(size=(70, 33)).astype(np.float32)
    for axis in (0, 1):
        softmax = tilevm.kernel(lambda x, axis=axis: lang.softmax(x, axis))
        for given in (x, x.T, x[::2].T):
            e = np.exp(given - given.max(axis, keepdims=True))
            found = softmax(given)
            np.testing.assert_allclose(found, e / e.sum(axis, keepdims=True), rtol=2e-6)
            assert strides(found) == strides(given * 1)

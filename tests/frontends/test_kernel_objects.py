"""Kernels as Python's functions are used: in kernels, as methods, copied, pickled."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tilevm
from tilevm import lang
from tilevm.errors import CaptureError, ShapeError

HERE = r"test_kernel_objects\.py:\d+"
X = np.arange(6, dtype=np.float32).reshape(3, 2)


@pytest.fixture(autouse=True, params=["auto", "reference"])
def tier(request: pytest.FixtureRequest) -> Iterator[str]:
    with tilevm.config.patch(tier=request.param):
        yield request.param


@tilevm.kernel
def scaled(x: Any, by: float = 2.0) -> Any:
    return x * by


@tilevm.kernel(dims={"x": ("B", 2), "y": ("B",), "B": tilevm.Dim(min=2, max=8, multiple_of=2)})
def summed(x: Any, y: Any) -> Any:
    return lang.sum(x, 1) + y


class Scale:
    def __init__(self, by: float) -> None:
        self.by = by

    @tilevm.kernel(static=("self",))
    def __call__(self, x: Any) -> Any:
        return x * self.by

    @tilevm.kernel
    def refused(self, x: Any) -> Any:
        return x


def test_kernels_called_in_kernels_are_part_of_them() -> None:
    for _ in range(2):  # the second time, there is a variant of its own
        outer = tilevm.kernel(lambda x, n: scaled(x) + scaled(x, by=n) - scaled(x, x.shape[0]))
        np.testing.assert_array_equal(outer(X, 4.0), X * 3)
        operators = {node.op for node in outer.variants()[0].nodes}
        assert operators == {"mul", "add", "sub", "scalar", "size_value"}
        scaled(X)
        scaled(X)
    ones = tilevm.kernel(lambda: lang.ones(2))
    np.testing.assert_array_equal(tilevm.kernel(lambda x: x + ones())(X), X + 1)
    with pytest.raises(CaptureError, match=rf"{HERE}: an operand is a numpy\.ndarray"):
        tilevm.kernel(lambda x: scaled(x, X))(X)
    with pytest.raises(TypeError, match="argument"):
        tilevm.kernel(lambda x: scaled(x, 1, 2))(X)


def test_what_inner_kernels_declare_is_checked() -> None:
    outer = tilevm.kernel(lambda x, y: summed(x, y) * 2)
    for rows in (2, 4, 8):
        found = outer(np.ones((rows, 2)), np.ones(rows))
        np.testing.assert_array_equal(found, np.full(rows, 6.0))
    assert len(outer.variants()) == 1
    wrong = {
        "y.shape[0]": ((4, 2), (2,)),
        "x.shape[1]": ((4, 3), (4,)),
        "(x0 and max(2, min(x0, 8)))": ((10, 2), (10,)),
        "(x0 and (x0//2)*2)": ((5, 2), (5,)),
        "rank 1": ((4,), (4,)),
    }
    for told, shapes in wrong.items():
        with pytest.raises(ShapeError, match=HERE) as raised:
            outer(*map(np.ones, shapes))
        assert told in str(raised.value)


def test_methods() -> None:
    double, triple = Scale(2.0), Scale(3.0)
    for _ in range(3):
        np.testing.assert_array_equal(double(X), X * 2)
        np.testing.assert_array_equal(triple(X), X * 3)
        np.testing.assert_array_equal(Scale.__call__(double, X), X * 2)
    with pytest.raises(CaptureError, match=r'argument self(.|\n)*static=\("self",\)'):
        double.refused(X)
    assert "mul" in str(tilevm.explain(Scale.__call__)(triple, X))


def test_copies_and_pickles() -> None:
    for kernel in (scaled, Scale.__call__):
        assert copy.copy(kernel) is kernel
        assert copy.deepcopy({"kernel": kernel})["kernel"] is kernel
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            if kernel is scaled or protocol >= 4:
                assert pickle.loads(pickle.dumps(kernel, protocol)) is kernel
    for nameless in (tilevm.kernel(lambda x: x), tilevm.kernel(scaled._function)):
        assert copy.deepcopy(nameless) is nameless
        with pytest.raises((pickle.PicklingError, AttributeError), match=r"lambda|not the same"):
            pickle.dumps(nameless)

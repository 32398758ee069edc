"""What calls say that stop for what their data are: operator, place, index and sizes."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import tilevm
from tilevm import lang

_core = importlib.import_module("tilevm._core")

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def of_a_line(op: str, *dtypes: str, **attributes: Any) -> Any:
    """A program of one operator, at model.py:41."""
    program = _core.Program()
    inputs = [program.input(dtype, ["M", "N"]) for dtype in dtypes]
    program.output(program.add(op, inputs, attributes, line="model.py:41"))
    return _core.compile(program, [], single=True, framework="numpy")


def said(call: Any, *args: Any) -> str:
    """What the call's error says, every time: calls like earlier ones are replayed."""
    found = set()
    for _ in range(4):
        with pytest.raises((IndexError, RuntimeError)) as error:
            call(*args)
        found.add(str(error.value))
    (message,) = found
    return message


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
@pytest.mark.parametrize("bad", [4, 100, -5, -128])
def test_an_index_is_named(dtype: str, bad: int) -> None:
    if bad < 0 and dtype == "uint8":
        pytest.skip("has no such number")
    rows = tilevm.kernel(lambda x, i: x[i] * 2)
    for index in ([0, bad, 1], [[3, 1], [-1 if dtype != "uint8" else 2, bad]]):
        message = said(rows, ROWS, np.array(index, dtype))
        assert message.endswith(f"take: index {bad} is out of bounds for axis 0 with size 4")
        assert "test_failures.py:" in message


def test_an_index_is_found_whatever_its_strides() -> None:
    rows = tilevm.kernel(lambda x, i: x[i] * 2)
    every = np.array([[0, 99, 1, 99], [2, 99, 7, 99]])
    assert "index 7 is" in said(rows, ROWS, every[:, ::2])
    assert "index 7 is" in said(rows, ROWS, every[::-1, ::-2][:, 0:1] * 0 + 7)
    assert "index 9 is" in said(rows, ROWS, np.broadcast_to(np.int64(9), (5, 2)))


def test_sizes_are_those_of_the_gathered_axis() -> None:
    columns = tilevm.kernel(lambda x, i: lang.gather(x, i, 1) + 1)
    index = np.array([[0, 1], [2, 3], [0, 0], [0, 0]])
    assert "gather: index 3 is out of bounds for axis 1 with size 3" in said(columns, ROWS, index)
    rows = tilevm.kernel(lambda x, i: x[i] * 2)
    none = np.array([0])
    assert "index 0 is out of bounds for axis 0 with size 0" in said(rows, ROWS[:0], none)


def test_of_two_gathers_the_wrong_one_is_named() -> None:
    def both(x: Any, i: Any, j: Any) -> Any:
        first = x[i]
        return first + x[j]

    kernel = tilevm.kernel(both)
    line = both.__code__.co_firstlineno
    good, bad = np.array([0, 1]), np.array([2, 8])
    assert f"test_failures.py:{line + 2}: take: index 8 " in said(kernel, ROWS, good, bad)
    assert f"test_failures.py:{line + 1}: take: index 8 " in said(kernel, ROWS, bad, good)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int16", "bool"])
def test_an_index_is_checked_in_each_lane_of_a_vector(dtype: str) -> None:
    """Also of numbers whose low 32 bits are a place, in vectors and in what is left of them."""
    rows = tilevm.kernel(lambda x, i: lang.gather(x, i, 1))
    x = (np.arange(42).reshape(2, 21) % 5).astype(dtype)
    index = np.arange(21)[::-1].reshape(1, 21).repeat(2, 0)
    np.testing.assert_array_equal(rows(x, index), np.take_along_axis(x, index, 1))
    for lane in range(21):
        for wrong in (21, -1, 2**32, 2**32 + 3, -(2**32), -(2**32) + 1, 2**63 - 1, -(2**63)):
            bad = index.copy()
            bad[1, lane] = wrong
            with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for axis 1 with"):
                rows(x, bad)


def test_an_index_that_is_computed_is_not_guessed() -> None:
    shifted = tilevm.kernel(lambda x, i: x[i + 5] * 2)
    message = said(shifted, ROWS, np.array([-5, 1]))
    assert "take: an index is out of bounds for axis 0 with size 4" in message
    by_rule = tilevm.kernel(lambda x, i: lang.take(x, lang.where(i < 0, i + 3, i)) * 2)
    assert ": an index is out of bounds" in said(by_rule, ROWS, np.array([0, -9]))


@pytest.mark.parametrize("op", ["scatter", "scatter_add"])
def test_an_index_of_a_loop_is_named(op: str) -> None:
    run = of_a_line(op, "float32", "int64", "float32", axis=1)
    into, values = ROWS.copy(), np.ones((4, 3), np.float32)
    index = np.zeros((4, 3), np.int64)
    index[2, 1] = -1
    message = said(run, into, index, values)
    assert message == f"model.py:41: {op}: index -1 is out of bounds for axis 1 with size 3"


def test_an_index_is_named_in_blocks() -> None:
    torch = pytest.importorskip("torch")
    x, i = torch.ones(4, 3), torch.tensor([0, 7])

    def in_block(of: Any) -> None:
        with tilevm.fuse():
            of(x, i).sum().item()

    expected = "index 7 is out of bounds for axis 0 with size 4"
    assert f"take: {expected}" in said(in_block, lambda x, i: x[i] * 2)
    assert f"gather: {expected}" in said(in_block, lambda x, i: x.gather(0, i[:, None]) * 2)
    assert f"scatter: {expected}" in said(in_block, lambda x, i: x.scatter(0, i[:, None], 1.0) * 2)


@pytest.mark.parametrize("op", ["floor_div", "remainder", "fmod"])
def test_integer_division_by_zero(op: str) -> None:
    run = of_a_line(op, "int64", "int64")
    x, two = np.array([[7, -7]]), np.array([[2, 2]])
    expected = {"floor_div": x // two, "remainder": x % two, "fmod": np.fmod(x, two)}[op]
    np.testing.assert_array_equal(run(x, two), expected)
    message = said(run, x, np.array([[1, 0]]))
    assert message == f"model.py:41: {op}: ZeroDivisionError: integers are divided by 0"

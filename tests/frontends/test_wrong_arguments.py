"""Wrong arguments of operators, of `Dim` and of `compile`: errors of tilevm that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilevm
from tilevm import lang as typed_lang
from tilevm.errors import CaptureError, ShapeError, TilevmError

lang: Any = typed_lang  # calls below are wrong on purpose
X = np.ones((4, 6), np.float32)

# Function, its error, what the message says besides file and line.
WRONG: list[tuple[Callable[..., Any], type[TilevmError], tuple[str, ...]]] = [
    (lambda x: lang.split(x, 2.5), CaptureError, ("split: sections is 2.5", "a list of their")),
    (lambda x: lang.split(x, 0), CaptureError, ("split: sections is 0", "at least 1")),
    (lambda x: lang.split(x, [2, 3.5]), CaptureError, ("split: sections is [2, 3.5]", "sizes")),
    (lambda x: lang.split(x, 2, 7), ShapeError, ("split: axis 7", "float32[x0, x1]", "-2..1")),
    (lambda x: lang.split(x, 2, None), CaptureError, ("split: axis is None", "an int")),
    (lambda x: lang.pad(x, 1, 1), CaptureError, ("pad: low is 1", "width for each axis")),
    (lambda x: lang.pad(x, (1, 0), x), CaptureError, ("pad: high is of type float32[x0, x1]",)),
    (lambda x: lang.transpose(x, 1, 7), ShapeError, ("transpose: axis 7", "[x0, x1]", "-2..1")),
    (lambda x: lang.transpose(x, 1.5, 0), CaptureError, ("transpose: axis is 1.5", "an int")),
    (lambda x: x.transpose(-3, 0), ShapeError, ("transpose: axis -3", "Axes are in -2..1")),
    (lambda x: lang.select(x, 7, 0), ShapeError, ("select: axis 7", "Axes are in -2..1")),
    (lambda x: lang.select(lang.sum(x), 0, 1), ShapeError, ("select: axis 0", "has no axes")),
    (lambda x: lang.concat([]), CaptureError, ("concat: arrays is []", "concat([x, y])")),
    (lambda x: lang.concat(x), CaptureError, ("concat: arrays is of type", "concat([x, y])")),
    (lambda x: lang.concat(3), CaptureError, ("concat: arrays is 3", "concat([x, y])")),
    (lambda x: lang.stack([]), CaptureError, ("stack: arrays is []", "stack([x, y])")),
    (lambda x: lang.split(x, [1, 9]), ShapeError, ("split: sizes do not add up to", "x0 is 4")),
    (lambda x: lang.split(x, [1, 1]), ShapeError, ("(2 and x0)", "that of axis 0", "x0 is 4")),
    (lambda x: lang.split(x[:, :1], [1, 2], 1), ShapeError, ("split: sizes do", "of the axis")),
    (lambda x: lang.split(lang.ones(3), [1, 1]), ShapeError, ("split: sizes", "(2 and 3)")),
    (lambda x: lang.split(x, [-1, 5]), ShapeError, ("split: a size of sections is negative",)),
    (
        lambda x: lang.split(x, [x.shape[0] - x.shape[1], x.shape[1]]),
        ShapeError,
        ("is negative (x0 - x1 and", "x0 is 4, x1 is 6", "at least 0"),
    ),
    (lambda x: lang.full(1, 2**63), CaptureError, ("full: value is an int of 64 bits", "2.0**")),
    (lambda x: lang.pad(x, (1, 0), (0, 0), 2**70), CaptureError, ("pad: value is an int of 71",)),
    (lambda x: lang.full(1, np.uint64(2**63)), CaptureError, ("full: value is an int of 64",)),
    (lambda x: x * 2**63, CaptureError, ("an operand is an int of 64 bits", "write a float")),
    (lambda x: x[: 2**70], CaptureError, ("slice: stop is an int of 71 bits", "int64")),
    (lambda x: x[2**70], CaptureError, ("select: index is an int of 71 bits",)),
    (lambda x: x[-(2**70)], CaptureError, ("beside a size is an int of 71 bits",)),
    (lambda x: lang.sum(x, 2**70), CaptureError, ("sum: axes is an int of 71 bits",)),
    (lambda x: lang.arange(2**70), CaptureError, ("arange: a bound is an int of 71 bits",)),
    (lambda x: x.shape[0] < 2**63, CaptureError, ("compared with is an int of 64 bits",)),
    (lambda x: x.shape[0] ** 9, CaptureError, ("a size to the power of 9", "n**9.0")),
    (lambda x: lang.exp(x, x), CaptureError, ("exp: takes 1 operands, got 2", "docs/ops.md")),
]


@pytest.mark.parametrize(("function", "error", "said"), WRONG, ids=[said[0] for *_, said in WRONG])
def test_operators(
    function: Callable[..., Any], error: type[TilevmError], said: tuple[str, ...]
) -> None:
    with pytest.raises(error) as raised:
        tilevm.kernel(function)(X)
    line = f"test_wrong_arguments.py:{function.__code__.co_firstlineno}: "
    for text in (line, *said):
        assert text in str(raised.value)


def test_right_arguments_stay_right() -> None:
    assert [part.shape for part in tilevm.kernel(lambda x: lang.split(x, 2, -1))(X)] == [(4, 3)] * 2
    parts = tilevm.kernel(lambda x: lang.split(x, (1, x.shape[0] - 1)))(X)
    assert [part.shape for part in parts] == [(1, 6), (3, 6)]
    thirds = tilevm.kernel(lambda x: lang.split(x, (1, x.shape[0] - 1, 0)))
    for rows in (4, 1, 3):
        assert [part.shape[0] for part in thirds(X[:rows])] == [1, rows - 1, 0]
    with pytest.raises(ShapeError, match="split: a size of sections is negative"):
        thirds(X[:0])
    assert tilevm.kernel(lambda x: x[: 2**63 - 1] + 2**62)(X).shape == (4, 6)
    assert tilevm.kernel(lambda x: lang.select(x, np.int64(-1), 0))(X).shape == (4,)
    assert tilevm.kernel(lambda x: lang.transpose(x, -1, 0))(X).shape == (6, 4)
    assert tilevm.kernel(lambda x: lang.pad(x, [1, 0], (0, 2)))(X).shape == (5, 8)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"min": "a"}, "'a' is no int"),
        ({"max": 1.5}, "1.5 is no int"),
        ({"multiple_of": True}, "True is no int"),
        ({"likely": "ab"}, "likely is no tuple"),
        ({"likely": ("a",)}, "'a' is no int"),
        ({"max": 2**63}, "beyond int64"),
        ({"min": 5, "max": 2}, "0 <= min <= max"),
        ({"multiple_of": 0}, "multiple_of >= 1"),
    ],
)
def test_dims(facts: dict[str, Any], said: str) -> None:
    with pytest.raises(ShapeError, match=r"tilevm\.Dim: Dim\(") as raised:
        tilevm.Dim(**facts)
    assert said in str(raised.value)
    assert "\n  " in str(raised.value)


def test_options_of_kernels() -> None:
    def double(x: Any) -> Any:
        return x * 2

    wrong: tuple[dict[str, Any], ...] = (
        {"dims": 3},
        {"dims": {1: 2}},
        {"static": 3},
        {"static": "x"},
    )
    for options in wrong:
        with pytest.raises(CaptureError, match=r"test_wrong_arguments\.py:\d+: double: "):
            tilevm.kernel(**options)(double)


@pytest.mark.torch
def test_options_of_compile() -> None:
    pytest.importorskip("torch")
    three: Any = 3
    with pytest.raises(CaptureError, match=r"tilevm\.compile: dims is 3\n  Write"):
        tilevm.compile(abs, dims=three)
    with pytest.raises(CaptureError, match=r"tilevm\.compile: 3 cannot be called"):
        tilevm.compile(three)

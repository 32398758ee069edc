"""Steps that run other executables: branches, and loops over graphs, through `_core`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

_core = importlib.import_module("tilevm._core")
errors = importlib.import_module("tilevm.errors")

Build = Callable[..., Any]  # Program, its inputs -> outputs
TENSOR: tuple[str, list[Any], bool] = ("float32", ["N", 3], False)
NUMBER: tuple[str, list[Any], bool] = ("int64", [], True)


def compiled(build: Build, *inputs: tuple[str, list[Any], bool], **options: Any) -> Any:
    """The program whose outputs `build` returns."""
    program = _core.Program()
    outputs = build(program, *(program.input(*given) for given in inputs))
    for value in outputs if isinstance(outputs, tuple) else (outputs,):
        program.output(value)
    return _core.compile(
        program, [never] * len(options.get("nests", ())), framework="numpy", **options
    )


def never(*_: Any) -> Any:
    """What parts run instead of."""
    raise AssertionError("the framework was asked")


def part(build: Build, *inputs: tuple[str, list[Any], bool]) -> Any:
    """An executable for a step."""
    return compiled(build, *inputs, nested=True)


def scaled(factor: float) -> Build:
    """Of a tensor and a number x * factor + n."""

    def build(p: Any, x: int, n: int) -> int:
        times = p.add("mul", [x, p.add("scalar", [], {"value": factor})])
        return int(p.add("add", [times, n]))

    return build


def positive(p: Any, x: int) -> int:
    """Whether the sum is."""
    total = p.add("sum", [x], {"axes": [0, 1], "keepdims": False})
    return int(p.add("gt", [total, p.add("scalar", [], {"value": 0})]))


def choice(then: Any, otherwise: Any, places: tuple[int, ...] = (0, 1)) -> Any:
    """By the sum of a tensor, of which both branches get the double, and the number of rows."""

    def build(p: Any, x: int) -> Any:
        double = p.add("add", [x, x])
        rows = p.add("size_value", [], {"size": "N"})
        made = p.call(0, [positive(p, x), double, rows], [("float32", False, ("N", 3))])
        return p.add("neg", [made])

    parts = [(then, list(places)), (otherwise, list(places))]
    return compiled(build, TENSOR, nests={0: ("branch", parts)})


@pytest.mark.parametrize("n", [0, 1, 7, 64, 65])
def test_branches_read_memory_of_the_call(n: int) -> None:
    run = choice(part(scaled(3), TENSOR, NUMBER), part(scaled(-1), TENSOR, NUMBER))
    for sign in (1, -1, -1, 1):
        x = np.full((n, 3), sign, np.float32)
        factor = 3 if x.sum() > 0 else -1
        np.testing.assert_array_equal(run(x)[0], -(2 * x * factor + n))


def test_a_loop_carries_what_its_body_makes() -> None:
    def small(p: Any, x: int, limit: int) -> int:
        most = p.add("amax", [x], {"axes": [0, 1], "keepdims": False})
        return int(p.add("lt", [most, limit]))

    def build(p: Any, x: int, limit: int) -> Any:
        return p.call(0, [x, limit], [("float32", False, ("N", 3))])

    parts = [(part(small, TENSOR, NUMBER), [0, 1]), (part(scaled(2), TENSOR, NUMBER), [0, 1])]
    run = compiled(build, TENSOR, NUMBER, nests={0: ("repeat", parts)})
    for start, limit in ((1, 1), (1, 40), (3, 40), (50, 40)):
        x = np.full((5, 3), start, np.float32)
        want = x
        while want.max() < limit:
            want = want * 2 + limit
        (got,) = run(x, limit)
        np.testing.assert_array_equal(got, want)
        assert not np.shares_memory(got, x)


def test_what_a_part_is_given_and_gives() -> None:
    """Parts take operands in any order, or not at all, and never give these away."""
    same = part(lambda p, x: x, TENSOR)
    other = part(lambda p, x: p.add("permute", [x], {"axes": [0, 1]}), TENSOR)

    def build(p: Any, x: int) -> Any:
        return p.call(0, [positive(p, x), x, x], [("float32", False, ("N", 3))])

    run = compiled(build, TENSOR, nests={0: ("branch", [(same, [1]), (other, [0])])})
    for sign in (1, -1):
        x = np.full((4, 3), sign, np.float32)
        (got,) = run(x)
        np.testing.assert_array_equal(got, x)
        assert not np.shares_memory(got, x)


def test_what_decides_is_one_number() -> None:
    def build(p: Any, x: int) -> Any:
        return p.call(0, [x, x], [("float32", False, ("N", 3))])

    same = (part(lambda p, x: x, TENSOR), [0])
    run = compiled(build, TENSOR, nests={0: ("branch", [same, same])})
    with pytest.raises(
        errors.ShapeError, match="a branch: a tensor of 12 elements is not one number"
    ):
        run(np.ones((4, 3), np.float32))


def test_sizes_of_results_are_checked() -> None:
    def longer(p: Any, x: int, n: int) -> int:
        return int(p.add("concat", [x, x], {"axis": 0}))

    run = choice(part(scaled(3), TENSOR, NUMBER), part(longer, TENSOR, NUMBER))
    run(np.ones((4, 3), np.float32))
    with pytest.raises(errors.ShapeError, match="result 0 of the call-out"):
        run(-np.ones((4, 3), np.float32))


def test_parts_that_do_not_fit() -> None:
    good = part(scaled(3), TENSOR, NUMBER)
    wrong = [
        compiled(scaled(3), TENSOR, NUMBER),  # not nested
        part(scaled(3), ("float64", ["N", 3], False), NUMBER),
        part(scaled(3), ("float32", ["N"], False), NUMBER),
        part(lambda p, x, n: (x, x), TENSOR, NUMBER),
        part(lambda p, x, n: n, TENSOR, NUMBER),
    ]
    for one in wrong:
        with pytest.raises(errors.ShapeError, match="no executable for its step"):
            choice(good, one)
    for places in ((0,), (0, 2), (0, -1), (1, 0)):
        with pytest.raises(errors.ShapeError, match="no executable for its step"):
            choice(good, good, places)
    with pytest.raises(TypeError):
        choice(good, never)
    choice(good, part(scaled(2), TENSOR, NUMBER))
    with pytest.raises(errors.ShapeError, match="no executable for its step"):
        choice(good, part(scaled(2), TENSOR, NUMBER))  # it is another's now
    with pytest.raises(ValueError, match="branch or repeat"):
        compiled(lambda p, x: x, TENSOR, nests={0: ("choose", [])})


def test_memory_of_results_is_not_used_again_too_soon() -> None:
    """Results that no caller gets lie in frames of parts, which later steps and turns read."""

    def once(p: Any, x: int) -> Any:
        made = p.call(0, [positive(p, x), x], [("float32", False, ("N", 3))])
        again = p.call(1, [positive(p, made), made], [("float32", False, ("N", 3))])
        looped = p.call(2, [again], [("float32", False, ("N", 3))])
        return p.add("add", [p.add("mul", [made, again]), looped])

    def scale(factor: float) -> Any:
        return part(
            lambda p, x: p.add("mul", [x, p.add("scalar", [], {"value": factor})]), TENSOR
        ), [0]

    def negative(p: Any, x: int) -> int:
        return int(p.add("logical_not", [positive(p, x)]))

    nests = {
        0: ("branch", [scale(2), scale(3)]),
        1: ("branch", [scale(-1), scale(5)]),
        2: ("repeat", [(part(negative, TENSOR), [0]), scale(-7)]),
    }
    run = compiled(once, TENSOR, nests=nests)
    _core.set_poison(True)
    try:
        for n in (1, 7, 65, 40_000, 2, 40_000):
            for sign in (1, -1, 1):
                x = np.full((n, 3), sign, np.float32)
                made = x * (2 if sign > 0 else 3)
                again = made * (-1 if sign > 0 else 5)
                np.testing.assert_array_equal(run(x)[0], made * again + again * -7)
    finally:
        _core.set_poison(False)

"""Scans, scatters and orders, which are loops of their own: bit by bit what PyTorch computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilevm
from tilevm import lang

T = torch.Tensor
DTYPES = (
    "float32", "float64", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8",
)  # fmt: skip
SHAPES = ((7,), (0, 3), (33, 1), (2, 19, 5))
SPECIAL = (0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-40, 3e38, 1.0, 1.0, -1.0)


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> T:
    """Few different ones, so that some are equal; and of floats a few special ones."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-5, 6, shape, generator=generator)
    if dtype == "uint8":
        x = x.abs()
    kind: torch.dtype = getattr(torch, dtype)
    if not kind.is_floating_point:
        return x.to(kind)
    y = (x * 0.37).flatten()
    places = torch.randperm(y.numel(), generator=generator)[: y.numel() // 6]
    for i, place in enumerate(places.tolist()):
        y[place] = SPECIAL[(seed + i) % len(SPECIAL)]
    return y.view(shape).to(kind)


def layouts(x: T) -> list[T]:
    """The same elements row by row, column by column, and far apart."""
    turned = x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim())))
    apart = x.new_zeros(*(2 * n + 1 for n in x.shape))[tuple(slice(1, None, 2) for _ in x.shape)]
    return [x, turned, apart.copy_(x)]


def same(found: Any, expected: Any) -> None:
    """Equal results, bit by bit, but for what is in a NaN."""
    for f, e in zip(*(y if isinstance(y, tuple) else (y,) for y in (found, expected)), strict=True):
        assert f.dtype == e.dtype and f.shape == e.shape
        if e.is_floating_point():
            assert torch.equal(f.isnan(), e.isnan())
            assert torch.equal(f.signbit()[~f.isnan()], e.signbit()[~e.isnan()])
        assert torch.equal(f.nan_to_num(1.5), e.nan_to_num(1.5)), (f, e)


def check(function: Callable[..., Any], *cases: tuple[Any, ...]) -> None:
    """All in kernels and loops of the core, three times each: the third runs what was noted."""
    compiled = tilevm.compile(function)
    before = tilevm.stats()
    for arguments in cases:
        for _ in range(3):
            same(compiled(*arguments), function(*arguments))
    after = tilevm.stats()
    assert after["callouts"] == before["callouts"]
    assert after["flushes"] == before["flushes"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", [torch.cumsum, torch.cumprod])
def test_scans(op: Any, dtype: str) -> None:
    for shape in SHAPES:
        for axis in range(len(shape)):
            check(lambda x, axis=axis: op(x, axis), *((x,) for x in layouts(numbers(shape, dtype))))


@pytest.mark.parametrize("dtype", DTYPES)
def test_running_extremes(dtype: str) -> None:
    for shape in SHAPES:
        x = numbers(shape, dtype)
        check(lambda x: (x.cummax(-1).values, x.cummin(0).values), *((y,) for y in layouts(x)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_logarithms_of_running_sums(dtype: str) -> None:
    rounding = {"float64": 1e-14, "float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    compiled = tilevm.compile(lambda x: (x.logcumsumexp(0), x.logcumsumexp(-1)))
    before = tilevm.stats()
    for shape in SHAPES:
        x = numbers(shape, dtype)
        for y in layouts(x):
            for found, dim in zip(compiled(y), (0, -1), strict=True):
                exact = y.double().logcumsumexp(dim)
                scale = torch.cummax(y.double().abs().nan_to_num(0, 0, 0), dim).values + 1
                assert found.dtype == x.dtype
                assert torch.equal(found.isnan(), exact.isnan())
                assert torch.equal(found.isinf(), exact.to(x.dtype).isinf())
                error = ((found.double() - exact) / scale).nan_to_num(0, 0, 0)
                assert error.abs().max() < rounding if error.numel() else True
    rows = torch.tensor(
        [[-1e3, 0.0, -math.inf, 5], [-math.inf, -math.inf, 2, 2], [math.inf, 1, math.nan, 0]]
    )
    torch.testing.assert_close(compiled(rows)[1], rows.logcumsumexp(1), equal_nan=True)
    assert tilevm.stats()["callouts"] == before["callouts"]


def test_scans_of_a_scalar_and_to_another_dtype() -> None:
    check(lambda x: x.cumsum(0), (torch.tensor(2.5),))
    check(lambda x: (x.cumsum(0), x.cumsum(0, dtype=torch.int32)), (numbers((9,), "int8"),))
    check(lambda x: x.cumsum(0), (numbers((9,), "int8") > 0,))


@pytest.mark.parametrize("dtype", [*DTYPES, "bool"])
def test_differences(dtype: str) -> None:
    x, y = (numbers(shape, dtype) for shape in ((5, 7), (5, 1)))
    check(lambda x: (torch.diff(x, dim=0), torch.diff(x), torch.diff(x, 3)), (x,), (x.t(),))
    check(lambda x, y: torch.diff(x, 2, -1, y, x), (x, y), (x[:3], y[:3]))
    check(lambda x, y: (torch.diff(x, 0, 1, y), torch.diff(x, 9, 0)), (x, y))


def test_long_scans() -> None:
    """What overflows or cancels on the way is as PyTorch's."""
    x = torch.randn(3, 70_001) * 1e30
    check(lambda x: x.cumsum(1), (x,), (x.bfloat16(),))
    check(lambda x: x.cumsum(0), (x.t().contiguous(),))
    check(lambda x: x.cumprod(-1), (torch.rand(33, 1023) + 0.5,))


def indices(x: T, axis: int, shape: tuple[int, ...], seed: int = 1) -> T:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, max(x.shape[axis], 1), shape, generator=generator)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "op",
    [
        torch.scatter,
        torch.scatter_add,
        *(
            lambda x, d, i, s, how=how, whole=whole: torch.scatter_reduce(
                x, d, i, s, how, include_self=whole
            )
            for how in ("sum", "prod", "amax", "amin", "mean")
            for whole in (True, False)
        ),
    ],
)
def test_scatters(op: Any, dtype: str) -> None:
    for shape in ((7,), (2, 9, 5)):
        for axis in range(len(shape)):
            x = numbers(shape, dtype)
            if not x.shape[axis]:
                continue
            more = tuple(2 * n + 1 if d == axis else n for d, n in enumerate(shape))
            part = tuple(max(n - 1, 0) if d != axis else n for d, n in enumerate(more))
            source = numbers(more, dtype, 2)
            check(
                lambda x, i, s, axis=axis: op(x, axis, i, s),
                *((y, indices(x, axis, c), source) for y in layouts(x) for c in (more, part)),
            )


def test_scatter_of_a_number_and_of_bools() -> None:
    x, index = numbers((4, 5), "float32"), torch.tensor([[0, 3, 1]])
    check(lambda x, i: x.scatter(0, i, 2.5), (x, index))
    check(lambda x, i: x.scatter(1, i, True), (x > 0, index.t()))
    check(lambda x, i: x.scatter(0, i, 1.5), (torch.tensor(2.0), torch.tensor(0)))


def test_scatter_in_place_and_into_zeros() -> None:
    def counts(index: T, weight: T) -> T:
        return torch.zeros(7, 3).scatter_add_(0, index, weight) * 2

    def changed(x: T, index: T, weight: T) -> T:
        x.scatter_(0, index, weight)
        return x + 1

    index, weight = torch.randint(0, 7, (20, 3)), torch.randn(20, 3)
    check(counts, (index, weight))
    x, y = torch.zeros(7, 3), torch.zeros(7, 3)
    same(tilevm.compile(changed)(x, index, weight), changed(y, index, weight))
    same(x, y)


@pytest.mark.parametrize("dtype", ["int32", "int16", "int8", "uint8"])
def test_indices_of_few_bytes(dtype: str) -> None:
    kernel = tilevm.kernel(lambda x, i, s: lang.scatter_add(x, i, s, 0))
    x, source, index = torch.zeros(3), torch.ones(9), torch.randint(0, 3, (9,))
    same(kernel(x, index.to(getattr(torch, dtype)), source), x.scatter_add(0, index, source))


def test_sums_by_index_of_a_narrow_type() -> None:
    """Are rounded once, as scatters of eager code are; its index_add rounds after each term."""
    x, source = numbers((6, 4, 3), "bfloat16"), numbers((6, 9, 3), "bfloat16", 3)
    index = torch.randint(0, 4, (9,))
    added = tilevm.compile(lambda x, i, s: x.index_add(1, i, s, alpha=2))
    for y in layouts(x):
        exact = y.float().index_add(1, index, source.float(), alpha=2).bfloat16()
        same(added(y, index, source), exact)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_rows_by_index(dtype: str) -> None:
    x, source = numbers((6, 4, 3), dtype), numbers((6, 9, 3), dtype, 3)
    index = torch.randint(0, 4, (9,))
    if dtype != "bfloat16":  # see above
        check(lambda x, i, s: x.index_add(1, i, s), *((y, index, source) for y in layouts(x)))
        check(lambda x, i, s: x.index_add(1, i, s, alpha=2), (x, index.int(), source))
    check(lambda x, i, s: x.index_copy(1, i, s), (x, torch.randperm(4)[:3], source[:, :3]))
    check(lambda x, i: x.index_fill(1, i, 2), (x, torch.tensor([1, -1])))
    check(lambda x, i, s: x.index_reduce(1, i, s, "amax"), (x, index, source))
    check(lambda x, i: x.take(i), (x, index - 70))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_elements_that_are_added_by_index(dtype: str) -> None:
    x, values = numbers((6, 4, 3), dtype), numbers((9,), dtype, 3)
    index = torch.randint(0, 4, (9,)) - 2
    exact = x
    for at, value in zip(index.tolist(), values, strict=True):
        exact = exact.float() if dtype == "bfloat16" else exact  # rounded once, as above
        exact = exact.put(torch.tensor([at]), value[None].to(exact.dtype), accumulate=True)
    added = tilevm.compile(lambda x, i, s: x.put(i, s, accumulate=True))
    same(added(x, index, values), exact.to(x.dtype))


@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put(accumulate: bool) -> None:
    x, i, j = numbers((5, 6, 3), "float32"), torch.tensor([4, -1, 0]), torch.tensor([2, 2, -6])

    def put(x: T, *rest: Any) -> T:
        *places, values = rest
        return x.index_put(places, values, accumulate)

    check(put, (x, i, torch.randn(3, 6, 3)), (x, i, torch.randn(3)))
    check(put, (x, i, j, torch.randn(3, 3)), (x, i, j, torch.randn(())))
    check(put, (x, x[:, :, 0] > 0, torch.tensor(2.0)))

    def put_in_columns(x: T, i: T, values: T) -> T:
        y = x.clone()
        y[:, i] = values + y[:, i] if accumulate else values
        return y

    check(put_in_columns, (x, i, torch.randn(5, 3, 3)), (x, i, torch.randn(3)))


def test_indices_out_of_range_raise() -> None:
    x, source = torch.zeros(3, 4), torch.ones(3, 4)
    for index in (torch.full((3, 4), 3), torch.full((3, 4), -1)):
        compiled = tilevm.compile(lambda x, i, s: x.scatter_add(0, i, s))
        for _ in range(3):
            with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
                compiled(x, index, source)
        same(compiled(x, torch.zeros(3, 4, dtype=torch.int64), source)[0], torch.full((4,), 3.0))


def test_arguments_that_are_scattered_into_in_place() -> None:
    """In their own memory, and as they were where an index is out of range."""

    def write(x: T, index: T, source: T) -> T:
        x.index_copy_(1, index, source)
        x[:, index] += source
        return x * 2

    compiled = tilevm.compile(write)
    for turned in (False, True):
        x = torch.randn(9, 6, 4)
        x, source = (
            (x.transpose(0, 2), torch.randn(4, 2, 9)) if turned else (x, torch.randn(9, 2, 4))
        )
        y, kept = x.clone(), x.clone()
        index = torch.tensor([5, 0])
        for _ in range(3):
            same(compiled(x, index, source), write(y, index, source))
            same(x, y)
        kept.copy_(x)
        with pytest.raises((IndexError, RuntimeError)):
            compiled(x, torch.tensor([6, 0]), source)
        same(x[:, 1:5], kept[:, 1:5])


def test_what_is_scattered_may_be_the_argument_itself() -> None:
    def write(x: T, index: T) -> T:
        x.scatter_add_(0, index, x * 0.5)
        x.scatter_(0, index, x.flip(0))
        return x * 2

    x, index = torch.randn(7, 3), torch.randint(0, 7, (7, 3))
    y, compiled = x.clone(), tilevm.compile(write)
    for _ in range(3):
        same(compiled(x, index), write(y, index))
        same(x, y)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("descending", [False, True])
def test_orders(descending: bool, dtype: str) -> None:
    for shape in SHAPES:
        for axis in range(len(shape)):
            check(
                lambda x, axis=axis: tuple(
                    torch.sort(x, dim=axis, descending=descending, stable=True)
                ),
                *((y,) for y in layouts(numbers(shape, dtype))),
            )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [False, True])
def test_top(largest: bool, dtype: str) -> None:
    """Which of equal ones, too."""
    for shape, k in (((7,), 3), ((5, 3), 3), ((5, 3), 0), ((3, 700), 5), ((3, 700), 600)):
        check(
            lambda x, k=k: tuple(x.topk(k, -1, largest)),
            *((y,) for y in layouts(numbers(shape, dtype))),
        )
    check(lambda x, k: tuple(x.topk(k, 0)), *((numbers((9, 4), dtype), k) for k in (1, 4, 9)))


def test_other_orders() -> None:
    x = numbers((9, 5), "float32")
    check(lambda x: x.argsort(dim=0, stable=True), (x,))
    check(lambda x: torch.argsort(x, stable=True), (torch.tensor(3.0),))
    found = tilevm.compile(torch.sort)(torch.tensor([2.0, 1.0]))
    assert found.indices.tolist() == [1, 0]


def test_gradients_of_embeddings() -> None:
    """Rows that are asked for twice add up; the padding gets nothing."""
    index = torch.tensor([[1, 4, 1], [0, 2, 4]])
    for padding in (None, 4):
        weights = [torch.randn(6, 5).requires_grad_() for _ in range(2)]
        with torch.no_grad():
            weights[1].copy_(weights[0])

        def function(w: T, padding: Any = padding) -> T:
            return torch.nn.functional.embedding(index, w, padding).sin().sum()

        before = tilevm.stats()["callouts"]
        torch.compile(function, backend="tilevm")(weights[0]).backward()  # type: ignore[no-untyped-call]
        assert tilevm.stats()["callouts"] == before
        function(weights[1]).backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(weights[0].grad, weights[1].grad)


@pytest.mark.parametrize("dtype", DTYPES)
def test_orders_of_long_rows(dtype: str) -> None:
    """Counted byte by byte, with equal elements, zeros of both signs and NaN."""
    wide = torch.iinfo(torch.int64) if dtype == "int64" else torch.iinfo(torch.int32)
    x = numbers((3, 1023), dtype)
    y = torch.randint(wide.min, wide.max, (2, 300))
    y = y.to(x.dtype) if x.dtype.is_floating_point else y.remainder(2**63 - 1).to(x.dtype)
    for descending in (False, True):
        check(
            lambda x, d=descending: torch.sort(x, dim=1, stable=True, descending=d),
            (x,), (x[:, :95],), (x[:, :96],), (y,), (x[:, ::2],), (x.new_zeros(2, 999),),
        )  # fmt: skip
        check(lambda x, d=descending: x.sort(dim=0, descending=d).values, (x,), (y.t(),))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("right", [False, True])
def test_searches(dtype: str, right: bool) -> None:
    for n in (0, 1, 2, 7, 64, 65):
        line = numbers((n,), dtype).nan_to_num(2).sort().values
        for x in layouts(numbers((3, 21), dtype, 1)):
            check(lambda s, x: torch.searchsorted(s, x, right=right), (line, x))
            check(lambda s, x: torch.bucketize(x, s, right=right, out_int32=True), (line, x))
            lines = line.expand(3, n).contiguous()
            check(lambda s, x: torch.searchsorted(s, x, right=right), (lines, x))


def test_searches_of_numbers_and_by_a_sorter() -> None:
    line = torch.tensor([3.0, 1.0, 2.0, 2.0])
    check(lambda s: torch.searchsorted(s.sort().values, 2.0, side="right"), (line,))
    check(lambda s, x: torch.searchsorted(s, x, sorter=s.argsort()), (line, torch.randn(5)))
    broken = torch.tensor([1.0, float("nan"), 0.0, 5.0, float("nan")])
    check(lambda s, x: torch.searchsorted(s, x), (broken, torch.linspace(-1, 6, 29)))


@pytest.mark.parametrize("dtype", ["float32", "int64", "bfloat16"])
def test_places_in_the_order(dtype: str) -> None:
    """What does not say which of equal elements it is."""
    for x in (numbers((5, 19), dtype), numbers((5, 1), dtype), numbers((4, 200), dtype)):
        check(lambda x: (x.median(), x.median(1).values, x.median(0, keepdim=True).values), (x,))
        check(lambda x: (x.kthvalue(1, 1).values, torch.msort(x)), (x,))
        # of rows with NaN, PyTorch's mode is what its sort happens to leave behind
        check(lambda x: x.mode(1).values, (x.nan_to_num(1.0),))
        if x.is_floating_point():
            check(lambda x: (x.nanmedian(), x.nanmedian(1).values), (x,), (x * float("nan"),))
    check(lambda x: (x.median(), x.msort(), *x.median(0)), (torch.tensor(2.5),))


def test_places_of_different_elements() -> None:
    x = torch.randn(7, 33)
    check(lambda x: (*x.median(1), *x.kthvalue(5, 0), *x.mode(1), *x.sort(1), x.argsort(0)), (x,))
    x[2, 5] = float("nan")
    check(lambda x: (*x.median(1), *x.nanmedian(1), *x.sort(1, descending=True)), (x,))


@pytest.mark.parametrize("how", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_quantiles(how: str) -> None:
    x = numbers((6, 17), "float32").nan_to_num(0.5, 3.0, -3.0)
    broken = x.clone()
    broken[1, 3] = float("nan")
    broken[2] = float("nan")
    q = torch.tensor([0.0, 0.3, 0.5, 1.0])
    for f in (torch.quantile, torch.nanquantile):

        def several(x: T, f: Any = f) -> Any:
            return f(x, q, 1, interpolation=how), f(x, q, interpolation=how)

        def one(x: T, f: Any = f) -> Any:
            return f(x, 0.7, 0, True, interpolation=how)

        for function in (several, one):
            compiled = tilevm.compile(function)
            tilevm.stats.reset()
            for y in (x, broken):
                torch.testing.assert_close(compiled(y), function(y), equal_nan=True)
            assert not tilevm.stats()["callouts"]


@pytest.mark.parametrize("dtype", ["float32", "int64", "int8", "bfloat16"])
def test_members(dtype: str) -> None:
    x, test = numbers((9, 5), dtype), numbers((40,), dtype, 2)
    check(lambda x, t: (torch.isin(x, t), torch.isin(x, t[:1], invert=True)), (x, test))
    if dtype == "float32":
        inf, nan = float("inf"), float("nan")
        check(lambda x, t: torch.isin(x, t), (torch.tensor([inf, nan]), torch.tensor([nan, 1.0])))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scatters_hold_more_than_their_type_on_the_way(dtype: Any) -> None:
    """300 * 300 * 300 is beyond float16; 256 + 1 is 256 in bfloat16."""
    factors = torch.tensor([300.0, 300, 300, 1 / 512, 1 / 512]).to(dtype)
    terms = torch.tensor([256.0, 1, 1, 1, 1]).to(dtype)
    index = torch.zeros(5, dtype=torch.int64)
    start = torch.tensor([1.0, 7]).to(dtype)
    multiply = tilevm.kernel(lambda x, i, y: lang.scatter_mul(x, i, y, axis=0))
    add = tilevm.kernel(lambda x, i, y: lang.scatter_add(x, i, y, axis=0))
    product = factors.double().prod()
    torch.testing.assert_close(
        multiply(start, index, factors)[0].double(), product, rtol=1e-2, atol=0
    )
    assert add(start * 0, index, terms)[0] == 260
    assert multiply(start, index, factors)[1] == 7


# Loops large enough for threads, which take some rows, columns or searches each.


def on_threads(function: Callable[..., Any], *arguments: Any) -> None:
    compiled = tilevm.compile(function)
    expected = function(*arguments)
    for threads in (1, 2, 3, 7):
        with tilevm.config.patch(threads=threads):
            same(compiled(*arguments), expected)


@pytest.mark.parametrize("shape", [(70, 1031), (1031, 70), (3, 40_000), (40_000, 3), (5, 64, 131)])
def test_scans_and_orders_on_threads(shape: tuple[int, ...]) -> None:
    for dtype in ("float32", "bfloat16", "int64", "uint8"):
        for x in layouts(numbers(shape, dtype)):
            for axis in range(len(shape)):
                on_threads(lambda x, axis=axis: x.cumsum(axis), x)
                on_threads(lambda x, axis=axis: x.argsort(dim=axis, stable=True), x)
                on_threads(lambda x, axis=axis: x.cummax(axis).values, x)
            on_threads(lambda x: x.topk(3).values, x)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scatters_on_threads(axis: int) -> None:
    """Indices for some of the rows alone: what is behind them is copied."""
    generator = torch.Generator().manual_seed(axis)
    for shape, part in (((37, 51, 41), (37, 51, 41)), ((37, 51, 41), (30, 49, 40))):
        x = torch.randn(shape, generator=generator)
        index = torch.randint(0, shape[axis], part, generator=generator)
        source = torch.randn(part, generator=generator)
        for y, i, s in zip(layouts(x), layouts(index), layouts(source), strict=True):
            on_threads(lambda y, i, s: y.scatter_add(axis, i, s), y, i, s)
            on_threads(lambda y, i, s: y.scatter(axis, i, s), y, i.sort(axis).values, s * 0 + 1)
            on_threads(lambda y, i: y.scatter_reduce(axis, i, y, "amax"), y, i)


def test_rows_are_added_on_threads() -> None:
    x, index, source = torch.zeros(100, 1000), torch.arange(300) % 100, torch.randn(300, 1000)
    on_threads(lambda x, i, s: x.index_add(0, i, s), x, index, source)
    narrow = source.repeat(20, 1)[:, :15]
    on_threads(lambda x, i, s: x.index_add(0, i, s), x[:, :15], index.repeat(20), narrow)


def test_results_are_where_they_are_scattered_into() -> None:
    """In memory of their own at each call, also what is scattered into twice, or read besides."""

    def added(index: T, source: T) -> tuple[T, T, T]:
        once = torch.zeros(50, 7).index_add(0, index, source)
        doubled = source.sum(0).expand(50, 7) * 2
        read = doubled.index_add(0, index, source)
        return once, once.index_add(0, index, source), read + doubled

    compiled = tilevm.compile(added)
    index, source = torch.randint(0, 50, (30,)), torch.randint(-5, 6, (30, 7)).float()
    for _ in range(4):
        first, second = compiled(index, source), compiled(index, source)
        same(first, added(index, source))
        same(second, first)
        assert len({x.data_ptr() for x in (*first, *second)}) == 6


def test_a_scatter_that_fails_on_threads_writes_nothing() -> None:
    def scattered(x: T, index: T) -> T:
        return x.scatter_(0, index, 1.0)

    compiled = tilevm.compile(scattered)
    x, index = torch.zeros(400, 500), torch.randint(0, 400, (400, 500))
    compiled(x.clone(), index)
    for place in ((0, 0), (200, 499), (399, 499)):
        wrong = index.clone()
        wrong[place] = 400
        with tilevm.config.patch(threads=4, debug=1), pytest.raises(IndexError):
            compiled(x, wrong)
        assert not x.any()


def test_searches_on_threads() -> None:
    rows = torch.randn(5, 100).sort(-1).values
    wanted = torch.randn(5, 30_001)
    on_threads(torch.searchsorted, rows, wanted)
    on_threads(lambda r, x: torch.searchsorted(r, x, right=True), rows[0].contiguous(), wanted[1])
    on_threads(torch.bucketize, torch.randn(40_000), rows[2].contiguous())

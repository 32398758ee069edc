"""Folds of columns with many rows: machine code runs some rows of all columns at a time."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.differential.tiers import TIERS  # noqa: E402

import tilevm  # noqa: E402

FUNCTIONS: dict[str, Any] = {
    "sum": lambda x: x.sum(0),
    "prod": lambda x: (x / 64 + 1).prod(0),
    "extrema": lambda x: (x.amax(0), x.amin(0)),
    "places": lambda x: (x.argmax(0), x.argmin(0)),
    "any": lambda x: ((x > 3).any(0), (x > -3).all(0)),
    "moments": lambda x: (x.mean(0), x.var(0), x.amax(0), x.amin(0)),
    "softmax": lambda x: torch.softmax(x, 0),
    "norm": lambda x: (x - x.mean(0)) / (x.std(0) + 1e-5),
    "weights": lambda x: (x * torch.arange(x.shape[0])[:, None] / 64).mean(0),
    "outer": lambda x: x.view(x.shape[0] // 47, 47, -1).sum(1),
}
BOUNDS = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2}


def tuple_of(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def exact(name: str, x: Any) -> tuple[Any, ...]:
    return tuple_of(FUNCTIONS[name](x.double() if name not in ("places", "any") else x))


CASES = [(name, torch.float32) for name in FUNCTIONS] + [
    (name, dtype)
    for name in ("sum", "places", "moments")
    for dtype in (torch.float64, torch.bfloat16)
]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_long_columns(tier: str, name: str, dtype: Any) -> None:
    compiled = tilevm.compile(FUNCTIONS[name], tier=tier)
    torch.manual_seed(0)
    for rows, columns in ((47, 65), (94, 1030), (47 * 12, 330), (47 * 3, 5000), (47 * 24, 31)):
        memory = torch.randn(rows, columns + 300).to(dtype)
        for x in (memory[:, :columns].contiguous(), memory[:, 7 : 7 + columns], memory.T[:47, :]):
            for found, wanted in zip(tuple_of(compiled(x)), exact(name, x), strict=True):
                torch.testing.assert_close(
                    found, wanted, check_dtype=False, rtol=BOUNDS[dtype], atol=BOUNDS[dtype]
                )


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", ["sum", "extrema", "moments"])
def test_what_is_no_number(tier: str, name: str) -> None:
    x = torch.randn(150, 400)
    x[3, 5] = x[149, 6] = torch.nan
    x[70, 7] = torch.inf
    x[70, 8], x[71, 8] = torch.inf, -torch.inf
    x[:, 9] = -torch.inf
    x[:, 10] = -0.0
    found = tuple_of(tilevm.compile(FUNCTIONS[name], tier=tier)(x))
    for mine, theirs in zip(found, tuple_of(FUNCTIONS[name](x)), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=2e-5, atol=2e-5)


def moments(x: Any) -> tuple[Any, ...]:
    return x.mean(0), x.var(0, correction=0), ((x - x.mean(0)) ** 2).mean(0), x.sum(0)


def spread(kind: str, rows: int, columns: int) -> Any:
    x = torch.randn(rows, columns)
    if kind == "far":
        return x + 1e4
    if kind == "drift":
        return x + torch.arange(rows)[:, None]
    if kind.startswith("outlier"):
        x[min(int(kind[7:]), rows - 1)] = 1e6 * torch.rand(columns)
    return x


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kind", ["near", "far", "drift", "outlier0", "outlier8", "outlier9999"])
def test_variances_are_as_precise_as_eager(tier: str, kind: str) -> None:
    """Wherever the mean is, and the first value, from which others are taken."""
    torch.manual_seed(4)
    compiled = tilevm.compile(moments, tier=tier)
    for rows in (1, 2, 7, 8, 9, 16, 23, 64, 1023):
        x = spread(kind, rows, 67)
        for mine, theirs, exact in zip(compiled(x), moments(x), moments(x.double()), strict=True):
            scale = 2.0**-23 * exact.abs()
            error, bound = (mine - exact).abs(), (theirs - exact).abs().max()
            assert (error <= 1.5 * bound + 2 * scale).all(), (rows, error.max(), bound)


@pytest.mark.parametrize("tier", TIERS)
def test_equal_numbers_have_no_variance(tier: str) -> None:
    compiled = tilevm.compile(lambda x: (x.mean(0), x.var(0, correction=0)), tier=tier)
    numbers = torch.cat([torch.arange(1, 60) * (4 / 3), torch.tensor([1e-41, 3e38, -0.0])])
    for rows in (1, 2, 3, 5, 7, 8, 9, 64, 1000):
        x = numbers.expand(rows, -1).contiguous()
        mean, variance = compiled(x)
        assert (variance == 0).all(), rows
        if rows * 3e38 < 3.4e38:
            assert torch.equal(mean, numbers), rows
        assert torch.equal(mean[:-2], numbers[:-2]), rows


@pytest.mark.parametrize("tier", TIERS)
def test_variances_of_what_is_not_finite(tier: str) -> None:
    compiled = tilevm.compile(lambda x: (x.var(0), x.amax(0), x.amin(0)), tier=tier)
    for rows in (2, 7, 8, 9, 17, 300):
        for odd in (torch.nan, torch.inf, -torch.inf):
            for row in {0, 1, rows // 2, rows - 1}:
                x = torch.randn(rows, 37)
                x[row, ::2] = odd
                variance, most, least = compiled(x)
                assert variance[::2].isnan().all(), (rows, odd, row)
                assert variance[1::2].isfinite().all()
                assert torch.equal(most.nan_to_num(9), x.amax(0).nan_to_num(9))
                assert torch.equal(least.nan_to_num(9), x.amin(0).nan_to_num(9))
        x = torch.randn(rows, 37)
        x[0], x[rows - 1] = 3e38, -3e38  # too far apart for squares
        assert (compiled(x)[0] == torch.inf).all(), rows
        x = torch.randn(rows, 37) * 1e-41
        assert (compiled(x)[0] == 0).all()
    assert compiled(torch.randn(1, 37))[0].isnan().all()


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_parts_change_no_bit(tier: str, name: str) -> None:
    """Not the number of columns, nor that of threads."""
    torch.manual_seed(1)
    for rows in (47, 47 * 5, 47 * 21):
        x = torch.randn(rows, 1100)
        whole = tuple_of(tilevm.compile(FUNCTIONS[name], tier=tier)(x))
        threads = tuple_of(tilevm.compile(FUNCTIONS[name], tier=tier, threads=2)(x))
        few = x[:, 500:530].contiguous()
        alone = tuple_of(tilevm.compile(FUNCTIONS[name], tier=tier)(few))
        for a, b, c in zip(whole, threads, alone, strict=True):
            assert torch.equal(a, b)
            assert torch.equal(a[..., 500:530], c)


@pytest.mark.parametrize("tier", TIERS)
def test_sums_that_are_written_where_they_are_read(tier: str) -> None:
    """A value once a column that is stored between two passes, over what it was made of."""

    def step(x: Any, running: Any, spread: Any) -> Any:
        mean = x.mean(0)
        running.mul_(0.9).add_(mean, alpha=0.1)
        spread.add_(((x - mean) ** 2).sum(0))
        return (x - mean) * running

    torch.manual_seed(2)
    x = torch.randn(300, 500)
    mine = [torch.randn(500), torch.randn(500)]
    theirs = [t.clone() for t in mine]
    compiled = tilevm.compile(step, tier=tier)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, *mine), step(x, *theirs), rtol=1e-4, atol=1e-4)
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tier", TIERS)
def test_columns_in_place(tier: str) -> None:
    def center(x: Any) -> Any:
        x -= x.mean(0)
        return x.amax(0)

    torch.manual_seed(3)
    mine = torch.randn(200, 700)
    theirs = mine.clone()
    compiled = tilevm.compile(center, tier=tier)
    torch.testing.assert_close(compiled(mine), center(theirs), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_indices_that_are_out_of_range() -> None:
    """A gather that fails in a later part of the rows."""

    def gathered(x: Any, i: Any) -> Any:
        return x[i].sum(0)

    x, i = torch.randn(50, 300), torch.arange(100) % 50
    compiled = tilevm.compile(gathered)
    torch.testing.assert_close(compiled(x, i), gathered(x, i), rtol=1e-5, atol=1e-5)
    i[77] = 50
    with pytest.raises(IndexError):
        compiled(x, i)
    i[77] = 3
    torch.testing.assert_close(compiled(x, i), gathered(x, i), rtol=1e-5, atol=1e-5)

"""Rows of `torch_sets` against eager mode: no elements, one, all; counts and bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tilevm  # noqa: E402


def called_out() -> dict[str, int]:
    counts: dict[str, int] = tilevm.stats()["callouts"]
    return counts


@pytest.mark.parametrize("sizes", [(7,), (1,), (3, 5), (2, 3, 4), (64, 65)])
@pytest.mark.parametrize("kind", ["some", "none", "all"])
def test_not_zero(sizes: tuple[int, ...], kind: str) -> None:
    tilevm.stats.reset()
    x = {"some": torch.randn(sizes).relu(), "none": torch.zeros(sizes), "all": torch.ones(sizes)}
    nonzero = tilevm.compile(lambda x: (torch.nonzero(x), torch.argwhere(x > 0) * 2))
    for dtype in (torch.float32, torch.int64, torch.bool):
        given = x[kind].to(dtype)
        found = nonzero(given) if dtype is not torch.bool else nonzero(given.float())
        torch.testing.assert_close(found[0], torch.nonzero(given))
        torch.testing.assert_close(found[1], torch.argwhere(given > 0) * 2)
    columns = tilevm.compile(lambda x: torch.nonzero(x, as_tuple=True))(x[kind])
    torch.testing.assert_close(columns, torch.nonzero(x[kind], as_tuple=True))
    assert not called_out()


@pytest.mark.parametrize("size", [0, 3, 50])
def test_so_many_that_are_not_zero(size: int) -> None:
    tilevm.stats.reset()
    x = torch.randn(5, 7).relu()
    found = tilevm.compile(lambda x: torch.nonzero_static(x, size=size, fill_value=-3))(x)
    torch.testing.assert_close(found, torch.nonzero_static(x, size=size, fill_value=-3))
    assert not called_out()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool])
def test_masked_select(dtype: Any) -> None:
    tilevm.stats.reset()
    x = (torch.randn(4, 1, 5) * 3).to(dtype)
    mask = torch.rand(3, 5) > 0.4
    select = tilevm.compile(lambda x, m: torch.masked_select(x, m))
    for kept in (mask, torch.zeros_like(mask), torch.ones_like(mask)):
        torch.testing.assert_close(select(x, kept), torch.masked_select(x, kept))
    assert not called_out()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("r", [1, 2, 3])
def test_combinations(r: int, again: bool) -> None:
    tilevm.stats.reset()
    for size in (5, 2, 9):
        x = torch.randn(size)
        found = tilevm.compile(lambda x: torch.combinations(x, r, again))(x)
        torch.testing.assert_close(found, torch.combinations(x, r, again))
    assert not called_out()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int8])
@pytest.mark.parametrize("name", ["unique", "unique_consecutive"])
def test_unique(name: str, dtype: Any) -> None:
    tilevm.stats.reset()
    function = getattr(torch, name)
    compiled = tilevm.compile(lambda x: function(x, return_inverse=True, return_counts=True))
    for size in (1, 7, 65):
        x = torch.randint(-3, 4, (size,)).to(dtype)
        torch.testing.assert_close(
            compiled(x), function(x, return_inverse=True, return_counts=True)
        )
    assert not called_out()


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_runs_of_slices(dim: int) -> None:
    tilevm.stats.reset()
    given = {"return_inverse": True, "return_counts": True, "dim": dim}
    compiled = tilevm.compile(lambda x: torch.unique_consecutive(x, **given))
    for sizes in ((3, 4, 2), (6, 2, 3), (2, 9, 4)):
        x = torch.randint(0, 2, sizes).float()
        x = x.index_select(dim, torch.arange(sizes[dim]).div(2, rounding_mode="floor"))
        for found, expected in zip(compiled(x), torch.unique_consecutive(x, **given), strict=True):
            assert torch.equal(found, expected)
    assert not called_out()


def test_unique_of_what_is_no_number() -> None:
    x = torch.tensor([math.nan, 1.0, -0.0, math.inf, 0.0, math.nan, -math.inf, 1.0])
    found, expected = tilevm.compile(torch.unique)(x), torch.unique(x)
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("bounds", [(0, 0), (-1, 1), (-1.5, 2.25)])
def test_histc(bounds: tuple[float, float]) -> None:
    tilevm.stats.reset()
    count = tilevm.compile(lambda x, n: torch.histc(x, n, *bounds))
    for size in (1, 100, 1023):
        x = torch.randn(size)
        torch.testing.assert_close(count(x, 9), torch.histc(x, 9, *bounds))
    x[3] = math.nan
    if bounds[0] != bounds[1]:
        torch.testing.assert_close(count(x, 9), torch.histc(x, 9, *bounds))
    else:
        with pytest.raises(RuntimeError, match="finite"):
            count(x, 9)
    assert not called_out()


def test_histc_of_no_elements() -> None:
    tilevm.stats.reset()
    found = tilevm.compile(lambda x: torch.histc(x, 4, -1, 1))(torch.empty(0, 3))
    assert found.tolist() == [0, 0, 0, 0]
    assert not called_out()


@pytest.mark.parametrize("density", [False, True])
def test_histogram(density: bool) -> None:
    tilevm.stats.reset()
    x, weight = torch.randn(200), torch.rand(200)
    plain = tilevm.compile(lambda x: torch.histogram(x, 7, density=density))
    torch.testing.assert_close(plain(x), torch.histogram(x, 7, density=density))
    assert not called_out()
    ranged = tilevm.compile(
        lambda x, w: torch.histogram(x, 7, range=(-1.0, 2.0), weight=w, density=density)
    )
    expected = torch.histogram(x, 7, range=(-1.0, 2.0), weight=weight, density=density)
    torch.testing.assert_close(ranged(x, weight), expected)


@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4)])
@pytest.mark.parametrize("classes", [1, 3, 7])
def test_one_hot(shape: tuple[int, ...], classes: int) -> None:
    tilevm.stats.reset()
    x, weight = torch.randint(0, classes, shape), torch.randn(classes, 2)

    def rows(x: Any, weight: Any) -> Any:
        return F.one_hot(x, weight.shape[0]).float() @ weight, F.one_hot(x, classes)

    compiled = tilevm.compile(rows)
    torch.testing.assert_close(compiled(x, weight), rows(x, weight))
    assert not tilevm.stats()["callouts"]
    if x.numel():
        for wrong in (x + classes, x - classes):
            with pytest.raises(RuntimeError, match="Class values"):
                compiled(wrong, weight)


def test_one_hot_lies_in_memory_as_in_eager_code() -> None:
    def rows(x: Any) -> Any:
        return F.one_hot(x, 24), F.one_hot(x.t(), num_classes=24).float()

    compiled = tilevm.compile(rows)
    for x in (torch.arange(12).view(3, 4), torch.arange(12).view(3, 4).t()):
        for found, wanted in zip(compiled(x), rows(x), strict=True):
            assert torch.equal(found, wanted)
            assert found.stride() == wanted.stride()

"""Rows of `torch_resize` against eager mode: odd sizes, scales, grids that point anywhere."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tilevm  # noqa: E402

SIZES = {3: (2, 3, 7), 4: (2, 3, 7, 5), 5: (1, 2, 3, 5, 4)}
MODES = [("nearest", 3), ("nearest-exact", 4), ("nearest", 5), ("linear", 3), ("bilinear", 4),
         ("bicubic", 4), ("trilinear", 5)]  # fmt: skip


def called_out() -> dict[str, int]:
    counts: dict[str, int] = tilevm.stats()["callouts"]
    return counts


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize(("mode", "rank"), MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sizes(mode: str, rank: int, corners: bool, dtype: Any) -> None:
    if mode.startswith("nearest") and corners:
        pytest.skip("there are no corners")
    tilevm.stats.reset()
    x = torch.randn(SIZES[rank]).to(dtype)
    kept = {} if mode.startswith("nearest") else {"align_corners": corners}
    resize = tilevm.compile(lambda x, size: F.interpolate(x, size=size, mode=mode, **kept))
    for size in ((11, 9, 2)[: rank - 2], (7, 5, 4)[: rank - 2], (1, 1, 1)[: rank - 2]):
        expected = F.interpolate(x, size=size, mode=mode, **kept)
        found = resize(x, size)
        assert found.dtype == dtype
        tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
        torch.testing.assert_close(found, expected, **tolerance)
    assert not called_out()


@pytest.mark.parametrize("scale", [2, 0.5, 1.7, (1.5, 2.0)])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_scales(mode: str, scale: Any) -> None:
    resize = tilevm.compile(lambda x: F.interpolate(x, scale_factor=scale, mode=mode))
    for sizes in ((1, 3, 7, 5), (2, 1, 4, 6)):
        x = torch.randn(sizes)
        torch.testing.assert_close(resize(x), F.interpolate(x, scale_factor=scale, mode=mode))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_scales_that_are_not_whole(rank: int, mode: str) -> None:
    """Sizes may stay as they are, or double: PyTorch goes by either, depending on the rank."""
    tilevm.stats.reset()
    for scale in (0.3, 0.6, 1.05, 1.3, 2.1):
        resize = tilevm.compile(lambda x, s=scale: F.interpolate(x, scale_factor=s, mode=mode))
        for size in (4, 5, 9, 20):
            x = torch.randn(2, 3, *(size, 6, 5)[:rank])
            expected = F.interpolate(x, scale_factor=scale, mode=mode)
            assert torch.equal(resize(x), expected)
    assert not called_out()


@pytest.mark.parametrize("size", [(3, 4), (9, 8), (2, 9)])
def test_antialiased_between_corners(size: tuple[int, int]) -> None:
    tilevm.stats.reset()

    def smooth(x: Any) -> Any:
        return F.interpolate(x, size=size, mode="bilinear", antialias=True, align_corners=True)

    resize = tilevm.compile(smooth)
    for sizes in ((9, 8), (4, 5), (3, 4)):
        x = torch.randn(2, 3, *sizes)
        torch.testing.assert_close(resize(x), smooth(x))
    assert not called_out()


@pytest.mark.parametrize("size", [(3, 4), (9, 8), (2, 9)])
def test_antialiased(size: tuple[int, int]) -> None:
    tilevm.stats.reset()
    x = torch.randn(2, 3, 9, 8)
    x[0, 0, 8, 7] = math.inf
    resize = tilevm.compile(
        lambda x, size: F.interpolate(x, size=size, mode="bilinear", antialias=True)
    )
    expected = F.interpolate(x, size=size, mode="bilinear", antialias=True)
    torch.testing.assert_close(resize(x, size), expected)
    assert not called_out()


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(
    ("rank", "mode"),
    [(2, "bilinear"), (2, "nearest"), (2, "bicubic"), (3, "bilinear"), (3, "nearest")],
)
def test_grids(rank: int, mode: str, padding: str, corners: bool) -> None:
    tilevm.stats.reset()
    x = torch.randn((2, 3, 4, 5, 6)[: rank + 2])
    grid = torch.randn(2, *(4, 3, 2)[:rank], rank) * 1.5

    def sample(x: Any, grid: Any) -> Any:
        return F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=corners)

    found = tilevm.compile(sample)(x, grid)
    torch.testing.assert_close(found, sample(x, grid), rtol=1e-4, atol=1e-5)
    assert not called_out()


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grids_of_no_numbers_read_no_other_memory(padding: str, mode: str) -> None:
    x = torch.randn(1, 2, 4, 5)
    grid = torch.full((1, 2, 2, 2), math.nan)
    grid[0, 1] = 1e30
    grid[0, 1, 1] = -math.inf

    def sample(x: Any, grid: Any) -> Any:
        return F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=False)

    found = tilevm.compile(sample)(x, grid)
    assert found.shape == sample(x, grid).shape


def test_large_bicubic_grids_are_called_out() -> None:
    tilevm.stats.reset()
    x, grid = torch.randn(1, 2, 4, 5), torch.rand(1, 40, 60, 2)
    sample = tilevm.compile(lambda x, g: F.grid_sample(x, g, mode="bicubic", align_corners=True))
    expected = F.grid_sample(x, grid, mode="bicubic", align_corners=True)
    torch.testing.assert_close(sample(x, grid), expected)
    assert called_out() == {"aten.grid_sampler.default": 1}

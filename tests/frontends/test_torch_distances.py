"""Rows of `torch_distances` against eager mode."""

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


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.5, math.inf])
@pytest.mark.parametrize("sizes", [((7, 5), (3, 5)), ((2, 64, 9), (2, 30, 9)), ((1, 1), (1, 1))])
def test_cdist(p: float, sizes: Any) -> None:
    tilevm.stats.reset()
    x, y = (torch.randn(s) for s in sizes)
    distance = tilevm.compile(lambda x, y: torch.cdist(x, y, p=p))
    exact = torch.cdist(x.double(), y.double(), p=p)
    torch.testing.assert_close(distance(x, y).double(), exact, rtol=1e-4, atol=1e-3)
    assert not called_out()


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, math.inf])
@pytest.mark.parametrize("rows", [2, 3, 7, 65, 128, 200])
def test_pdist(p: float, rows: int) -> None:
    x = torch.randn(rows, 5)
    torch.testing.assert_close(tilevm.compile(lambda x: F.pdist(x, p))(x), F.pdist(x, p))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 12])
def test_matrix_power(n: int) -> None:
    tilevm.stats.reset()
    x = torch.randn(2, 7, 7) / 3
    found = tilevm.compile(lambda x, n: torch.linalg.matrix_power(x, n))(x, n)
    torch.testing.assert_close(found, torch.linalg.matrix_power(x, n))
    assert not called_out()


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding", [None, 2, -1])
@pytest.mark.parametrize("last", [False, True])
def test_embedding_bag(mode: str, padding: int | None, last: bool) -> None:
    tilevm.stats.reset()
    weight, index = torch.randn(10, 5), torch.tensor([1, 2, 9, 4, 9, 2, 0])
    offsets = torch.tensor([0, 0, 3, 7])  # the first and the last one are empty

    def bags(w: Any, i: Any, o: Any) -> Any:
        return F.embedding_bag(i, w, o, mode=mode, padding_idx=padding, include_last_offset=last)

    found = tilevm.compile(bags)(weight, index, offsets)
    torch.testing.assert_close(found, bags(weight, index, offsets))
    assert not called_out()


@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "max", "min"])
@pytest.mark.parametrize("initial", [None, 2.0])
def test_segments(reduce: str, initial: float | None) -> None:
    tilevm.stats.reset()
    x, lengths = torch.randn(7, 3), torch.tensor([2, 0, 4, 1])

    def segments(x: Any, n: Any) -> Any:
        return torch.segment_reduce(x, reduce, lengths=n, initial=initial)

    compiled = tilevm.compile(segments)
    expected = segments(x, lengths)
    torch.testing.assert_close(compiled(x, lengths), expected, equal_nan=True)
    assert not called_out()
    with pytest.raises(RuntimeError):
        compiled(x, torch.tensor([2, 0, 4, 2]))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("sizes", [(5,), (4, 6)])
def test_multilabel_margin_loss(sizes: tuple[int, ...], reduction: str) -> None:
    tilevm.stats.reset()
    x = torch.randn(sizes)
    target = torch.randint(0, sizes[-1], sizes)
    target[..., 2] = -1
    loss = tilevm.compile(lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction))
    expected = F.multilabel_margin_loss(x, target, reduction=reduction)
    torch.testing.assert_close(loss(x, target), expected)
    assert not called_out()


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("size", [2, 3])
def test_places_of_adaptive_maxima(rank: int, size: int) -> None:
    tilevm.stats.reset()
    pool = (F.adaptive_max_pool1d, F.adaptive_max_pool2d)[rank - 1]
    x = torch.randint(0, 3, (2, 3, 7, 5)[: rank + 2]).float()  # many are equal
    x[0, 0, ..., 1] = math.nan
    x[0, 0, ..., 3] = math.nan
    found = tilevm.compile(lambda x: pool(x, size, return_indices=True))(x)
    expected = pool(x, size, return_indices=True)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert not called_out()


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
def test_gradients_behind_autograd(p: float) -> None:
    """`torch.compile` hands over gradients as operators of their own; rows that are equal too."""
    torch._dynamo.reset()

    def cdist(x: Any, y: Any) -> Any:
        return torch.cdist(x, y, p)

    def pdist(x: Any, y: Any) -> Any:
        return F.pdist(x, p) + y.sum()

    for function in (cdist, pdist):
        compiled = torch.compile(function, backend="tilevm", dynamic=True)
        tilevm.stats.reset()
        for rows in (4, 7, 2):
            x = torch.randn(rows, 3)
            x[1] = x[0]
            y = torch.cat([torch.randn(5, 3), x[:1]])
            x.requires_grad_()
            y.requires_grad_()
            weight = torch.randn(function(x, y).shape)
            found, expected = (
                torch.autograd.grad((run(x, y) * weight).sum(), (x, y))
                for run in (compiled, function)
            )
            torch.testing.assert_close(found, expected)
        assert not tilevm.stats()["callouts"]


def test_gradients_of_batches_that_are_broadcast() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(torch.cdist, backend="tilevm", dynamic=True)
    x = torch.randn(1, 4, 3, requires_grad=True)
    y = torch.randn(2, 5, 6, 3, requires_grad=True)
    tilevm.stats.reset()
    found, expected = (
        torch.autograd.grad(run(x, y).square().sum(), (x, y)) for run in (compiled, torch.cdist)
    )
    torch.testing.assert_close(found, expected)
    assert not tilevm.stats()["callouts"]


def test_multilabel_margin_loss_in_blocks() -> None:
    x, target = torch.randn(4, 6), torch.tensor([[1, 3, -1, 2, 0, 0]]).expand(4, 6).contiguous()
    with tilevm.config.patch(templates=1), tilevm.fuse():
        loss = F.multilabel_margin_loss(x * 2, target)
        parts = torch.ops.aten.multilabel_margin_loss_forward(x, target, 0)
    torch.testing.assert_close(loss, F.multilabel_margin_loss(x * 2, target))
    torch.testing.assert_close(parts, torch.ops.aten.multilabel_margin_loss_forward(x, target, 0))

"""Scans, scatters and orders in blocks of `tilevm.fuse()`: recorded, and equal to eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.eager.compare import tensors_in

import tilevm

T = torch.Tensor
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
ENDS = {"end of the block"}


@pytest.fixture(autouse=True)
def _begun() -> None:
    """The first block of a process looks at tensors of its own."""
    with tilevm.fuse():
        pass


def check(function: Callable[..., Any], *arguments: Any) -> None:
    """Twice: the second time the segment is known. Nothing but the end of the block runs it."""
    for _ in range(2):
        copies = [a.clone() if isinstance(a, T) else a for a in arguments]
        expected = function(*copies)
        tilevm.stats.reset()
        given = [a.clone() if isinstance(a, T) else a for a in arguments]
        with tilevm.fuse():
            found = function(*given)
        assert set(tilevm.stats()["flushes"]) <= ENDS
        for f, e in zip(tensors_in([found, given]), tensors_in([expected, copies]), strict=True):
            assert f.dtype == e.dtype and f.stride() == e.stride()
            torch.testing.assert_close(f, e, rtol=0, atol=0, equal_nan=True)


def some(dtype: torch.dtype, *shape: int) -> T:
    x = torch.randint(-9, 9, shape)
    return (x * 0.7).to(dtype) if dtype.is_floating_point else x.abs().to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scans(dtype: torch.dtype) -> None:
    x = some(dtype, 5, 9)
    check(lambda x: (x + x).cumsum(-1) + 1, x)
    check(lambda x: x.cumsum(0, dtype=torch.float32) * 2, x.t())
    check(lambda x: (x * 1).cumprod(1), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_orders(dtype: torch.dtype) -> None:
    x = some(dtype, 6, 40)
    check(lambda x: tuple((x + 1).sort(dim=0, stable=True)), x)
    check(lambda x: tuple((x + 1).sort(dim=-1, descending=True, stable=True)), x)
    check(lambda x: tuple((x + x).topk(3)), x)
    check(lambda x: tuple((x + x).topk(30, 1, False)), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scatters(dtype: torch.dtype) -> None:
    x, source = some(dtype, 6, 5), some(dtype, 9, 7)
    index = torch.randint(0, 6, (9, 5))
    check(lambda x, i, s: (x + 1).scatter(0, i, s), x, index, source)
    check(lambda x, i, s: (x + 1).scatter_add(0, i, s), x, index, source)
    check(lambda x, i: (x + 1).scatter(1, i, 3), x, index[:6] // 2)
    check(lambda x, i, s: x.scatter_add_(0, i, s) + 1, x, index, source)
    if dtype not in (torch.bfloat16, torch.uint8):
        check(
            lambda x, i, s: (x + 1).index_add(1, i, s), x, torch.tensor([1, 1, 4]), source[:6, :3]
        )
        check(lambda x, i, s: x.index_add_(0, i, s[:, :5]), x, index[:, 0], source)


def test_gradients_of_embeddings() -> None:
    weight = torch.randn(11, 4, requires_grad=True)
    index = torch.tensor([[1, 4, 1], [0, 2, 4]])

    def loss() -> T:
        return torch.nn.functional.embedding(index, weight, 4).sin().sum()

    (expected,) = torch.autograd.grad(loss(), weight)
    tilevm.stats.reset()
    with tilevm.fuse():
        (found,) = torch.autograd.grad(loss(), weight)
    assert set(tilevm.stats()["flushes"]) <= ENDS
    torch.testing.assert_close(found, expected)


def test_indices_out_of_range_raise() -> None:
    x, source = torch.zeros(3, 4), torch.ones(3, 4)
    with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"), tilevm.fuse():
        (x + 1).scatter_add(0, torch.full((3, 4), 3), source).sum().item()


def test_large_tensors_are_not_copied_for_a_few_elements() -> None:
    """What writes in place writes a few elements in eager code."""
    x, index = torch.zeros(4096, 8), torch.zeros(1, 8, dtype=torch.int64)
    tilevm.stats.reset()
    with tilevm.fuse():
        x.scatter_(0, index, 1.0)
    assert not tilevm.stats()["flushes"]
    assert x[0].sum() == 8

"""Results that must lie in another order than what they are views of."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
tilevm = pytest.importorskip("tilevm")

DTYPES = [torch.uint8, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", [(0, 2, 1), (2, 1, 0), (1, 2, 0)], ids=str)
def test_permuted(dtype: Any, order: tuple[int, ...]) -> None:
    """Whole squares of the copy, what is left of them, and strides that share cache sets."""
    compiled = tilevm.compile(lambda x: x.permute(order).contiguous())
    for sizes in [(3, 17, 33), (1, 16, 16), (2, 1, 5), (64, 2, 48), (5, 31, 1), (2, 300, 70)]:
        x = torch.randint(0, 200, sizes, dtype=torch.uint8).to(dtype)
        result = compiled(x)
        assert torch.equal(result, x.permute(order))
        assert result.is_contiguous()
        assert result.data_ptr() != x.data_ptr() or x.permute(order).is_contiguous()


def test_any_layout() -> None:
    """Steps, flips, repeated elements, and orders of up to five axes."""
    draw = random.Random(0)
    for rank in range(1, 6):
        views = [any_view(draw, rank) for _ in range(12)]
        compiled = tilevm.compile(lambda x, views=views: [view(x) for view in views])
        for _ in range(2):
            x = torch.randn([draw.choice([2, 5, 17, 40]) for _ in range(rank)])
            for result, view in zip(compiled(x), views, strict=True):
                assert torch.equal(result, view(x))


def any_view(draw: random.Random, rank: int) -> Any:
    """A function whose result is a copy of some view of its argument."""
    order = draw.sample(range(rank), rank)
    steps = tuple(slice(None, None, draw.choice([1, 1, 2])) for _ in range(rank))
    flipped = [d for d in range(rank) if draw.random() < 0.2]
    repeated = draw.random() < 0.3

    def view(x: Any) -> Any:
        x = x[steps].permute(order)
        x = x.flip(flipped) if flipped else x
        return (x[:1].expand(3, *x.shape[1:]) if repeated else x).contiguous()

    return view


def test_written_to_an_input() -> None:
    """What a function writes into a strided argument."""

    def turn(x: Any, y: Any) -> None:
        y.copy_(x.transpose(0, 1))

    compiled = tilevm.compile(turn)
    for rows, columns in [(33, 70), (16, 16), (1, 5), (130, 3)]:
        x = torch.randn(rows, columns)
        y = torch.zeros(columns, 2 * rows)
        compiled(x, y[:, ::2])
        assert torch.equal(y[:, ::2], x.t())
        assert not y[:, 1::2].any()

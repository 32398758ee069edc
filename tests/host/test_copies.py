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


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool, torch.float16, torch.int64], ids=str)
def test_repeats(dtype: Any) -> None:
    """Elements and lines, long and short, that come again; of any size."""

    def repeat(x: Any, times: int) -> Any:
        return [
            x.repeat_interleave(times, 1),
            x.repeat_interleave(times, 0),
            x.repeat(times, 1),
            x.t()[:, :, None].expand(-1, -1, times).flatten(1),
            x[:, ::2].contiguous(),
            torch.stack([x] * 3, -1),
        ]

    compiled = tilevm.compile(repeat)
    for times in (1, 2, 3, 4, 5, 8):
        for sizes in [(1, 1), (3, 5), (16, 4), (17, 33), (2, 1031), (70, 600), (0, 3), (5, 0)]:
            x = torch.randint(0, 200, sizes, dtype=torch.uint8).to(dtype)
            for y in (x, x.t().contiguous().t(), torch.cat([x, x], 1)[:, : sizes[1]]):
                for result, expected in zip(compiled(y, times), repeat(y, times), strict=True):
                    assert torch.equal(result, expected)


def test_reshapes_that_copy_are_handed_out_as_they_are() -> None:
    """Only what lies in an argument's memory is copied once more."""
    compiled = tilevm.compile(lambda x, y: x.repeat_interleave(y.shape[0], 0))
    x = torch.randn(300, 400)
    for times in (3, 1, 2):
        result = compiled(x, torch.empty(times))
        assert torch.equal(result, x.repeat_interleave(times, 0))
        result.zero_()
        assert x.abs().sum() > 0
    places = {compiled(x, torch.empty(3)).data_ptr() for _ in range(6)}
    assert len(places) == 1  # a second one would be where it was copied from


def test_results_that_share_what_a_reshape_copied() -> None:
    def both(x: Any) -> Any:
        y = x.t().reshape(-1)
        return y, y[1:], x.t().flatten(), x.repeat_interleave(2, 1)

    compiled = tilevm.compile(both)
    for sizes in [(3, 4), (1, 5), (6, 1)]:
        x = torch.randn(sizes)
        given, expected = x.clone(), both(x.clone())
        found = compiled(given)
        for result, wanted in zip(found, expected, strict=True):
            assert torch.equal(result, wanted)
        for i in range(4):
            for results in (found, expected):
                results[i].add_(i + 1)
        for result, wanted in zip(found, expected, strict=True):
            assert torch.equal(result, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_copies_on_threads(dtype: Any) -> None:
    copied = [
        tilevm.compile(lambda x: x.t().contiguous()),
        tilevm.compile(lambda x: x.flip(0).contiguous()),
        tilevm.compile(lambda x: x[:, ::2].t().contiguous()),
    ]
    for sizes in [(1031, 2053), (3, 700_001), (700_001, 3)]:
        x = torch.randint(0, 200, sizes, dtype=torch.uint8).to(dtype)
        for compiled in copied:
            with tilevm.config.patch(threads=1):
                expected = compiled(x)
            for threads in (2, 3, 64):
                with tilevm.config.patch(threads=threads):
                    assert torch.equal(compiled(x), expected), (sizes, threads)
        assert torch.equal(copied[0](x), x.t())

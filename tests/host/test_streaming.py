"""Results larger than caches are stored past them: the same bits as when they are small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilevm

ROWS, COLUMNS, CHUNK = 2048, 4096, 16  # at least 16 MiB of any dtype here; chunks stay in caches
LAYOUT = "outputs past the caches"


def leaves(outputs: Any) -> tuple[torch.Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def chain(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x * y + 1, x - y


def softmax(x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.softmax(x, -1), (x > y).to(torch.int64)


def long_body(x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.tanh(torch.exp(x) * torch.sigmoid(y)) - torch.erf(x)


def streams(function: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> bool:
    return LAYOUT in str(tilevm.explain(function)(x, y))


@pytest.fixture(autouse=True)
def _machine_code() -> None:
    if tilevm.config.tier != "auto" or not streams(chain, *[torch.ones(ROWS, COLUMNS)] * 2):
        pytest.skip("nothing streams here: no machine code, or a larger cache")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32])
@pytest.mark.parametrize("function", [chain, softmax, long_body])
@pytest.mark.parametrize("columns", [COLUMNS, COLUMNS - 1, COLUMNS - 16])
def test_bits_are_those_of_small_calls(
    function: Callable[..., Any], dtype: torch.dtype, columns: int
) -> None:
    if not dtype.is_floating_point and function is not chain:
        pytest.skip("of floats")
    torch.manual_seed(0)
    x, y = ((torch.randn(ROWS, columns) * 3).to(dtype) for _ in range(2))
    compiled = tilevm.compile(function)
    large = compiled(x, y)
    for row in range(0, ROWS, 8 * CHUNK):
        part = slice(row, row + CHUNK)
        small = compiled(x[part].clone(), y[part].clone())
        for a, b in zip(leaves(large), leaves(small), strict=True):
            assert torch.equal(a[part].view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize(
    ("rows", "columns"), [(ROWS, COLUMNS), (ROWS, COLUMNS - 1), (ROWS + 40, COLUMNS - 16)]
)
def test_results_across_the_lines_of_others(rows: int, columns: int) -> None:
    """Some are written by a copy; lines of the caches begin where rows do, or do not."""

    def across(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.relu(x.t() * 2 + y), x + y.t()

    x, y = torch.randn(rows, columns), torch.randn(columns, rows)
    for _ in range(2):
        found = tilevm.compile(across)(x, y)
        for a, b in zip(found, across(x, y), strict=True):
            assert torch.equal(a, b)


def test_few_long_rows_of_copies() -> None:
    """Copies are cut where lines of the caches begin in what is stored."""

    def turned(x: torch.Tensor) -> torch.Tensor:
        return (x.t() * 2 + 1).contiguous()

    for rows in (2, 3, 5, 7):
        x = torch.randn(1 << 22, rows)
        assert torch.equal(tilevm.compile(turned)(x), turned(x))


def test_what_is_read_again_or_not_aligned_does_not_stream() -> None:
    x = torch.randn(ROWS, COLUMNS)
    assert not streams(lambda x, y: (x + y).sum(), x, x)
    assert not streams(lambda x, y: torch.cumsum(x + y, 1), x, x)  # a later step reads it
    assert not streams(lambda x, y: (z := x + y, torch.cumsum(z, 1)), x, x)
    odd = torch.randn(ROWS, COLUMNS - 1)
    assert streams(chain, odd, odd)  # one long row
    assert not streams(softmax, odd, odd)  # rows begin anywhere
    assert not streams(chain, x[:CHUNK], x[:CHUNK])

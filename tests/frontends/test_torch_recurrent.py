"""Cells of `torch_recurrent` against eager mode."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tilevm  # noqa: E402


def loop(cell: nn.Module, x: Any) -> Any:
    """The last state of a cell over the rows of x."""
    state = None
    for row in x:
        state = cell(row, state)
    return state


def called_out() -> dict[str, int]:
    counts: dict[str, int] = tilevm.stats()["callouts"]
    return counts


def relu_cell(given: int, hidden: int, bias: bool = True) -> nn.RNNCell:
    return nn.RNNCell(given, hidden, bias, "relu")


CELLS: dict[str, Any] = {
    "gru": nn.GRUCell,
    "lstm": nn.LSTMCell,
    "tanh": nn.RNNCell,
    "relu": relu_cell,
}


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [(5, 3, 7, 11), (1, 1, 1, 1), (3, 0, 4, 5), (2, 17, 33, 64)])
def test_cells(name: str, bias: bool, sizes: tuple[int, ...]) -> None:
    steps, batch, given, hidden = sizes
    torch.manual_seed(0)
    cell = CELLS[name](given, hidden, bias=bias)
    x = torch.randn(steps, batch, given)
    tilevm.stats.reset()
    with torch.no_grad():
        found = tilevm.compile(lambda x: loop(cell, x))(x)
        exact = loop(cell.double(), x.double())
    torch.testing.assert_close(found, exact, check_dtype=False, rtol=1e-5, atol=1e-5)
    assert not called_out()


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes(name: str, dtype: Any) -> None:
    torch.manual_seed(0)
    cell = CELLS[name](8, 16).to(dtype)
    x = torch.randn(4, 3, 8).to(dtype)
    with torch.no_grad():
        found = tilevm.compile(lambda x: loop(cell, x))(x)
        assert (found[0] if name == "lstm" else found).dtype is dtype
        exact = loop(cell.double(), x.double())
    bound = 2e-2 if dtype is torch.bfloat16 else 1e-12  # roundings of some steps
    torch.testing.assert_close(found, exact, check_dtype=False, rtol=bound, atol=bound)


def test_one_row_without_a_batch() -> None:
    cell, x = nn.GRUCell(6, 5), torch.randn(3, 6)
    with torch.no_grad():
        torch.testing.assert_close(tilevm.compile(lambda x: loop(cell, x))(x), loop(cell, x))


@pytest.mark.parametrize("name", CELLS)
def test_a_batch_that_changes(name: str) -> None:
    cell = CELLS[name](6, 5)
    compiled = tilevm.compile(lambda x: loop(cell, x))
    tilevm.stats.reset()
    with torch.no_grad():
        for batch in (4, 1, 9, 0, 31):
            x = torch.randn(3, batch, 6)
            torch.testing.assert_close(compiled(x), loop(cell, x))
    assert tilevm.stats()["captures"] == 1


@pytest.mark.parametrize("name", CELLS)
def test_gradients(name: str) -> None:
    torch.manual_seed(0)
    cell, x = CELLS[name](6, 5), torch.randn(3, 4, 6)

    def loss(x: Any) -> Any:
        state = loop(cell, x)
        return (state[0] + state[1] if isinstance(state, tuple) else state).square().sum()

    found = []
    for function in (loss, tilevm.compile(loss)):
        cell.zero_grad()
        function(x).backward()
        found.append([p.grad.clone() for p in cell.parameters()])
    torch.testing.assert_close(found[1], found[0])

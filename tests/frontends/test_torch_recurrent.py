"""Cells of `torch_recurrent` against eager mode."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tilevm  # noqa: E402
from tilevm.frontends import torch_tracing  # noqa: E402


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


LAYERS: dict[str, Any] = {
    "lstm": lambda: nn.LSTM(6, 5),
    "lstm_two": lambda: nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True),
    "lstm_projected": lambda: nn.LSTM(6, 5, proj_size=3),
    "gru": lambda: nn.GRU(6, 5, 2, bias=False),
    "tanh": lambda: nn.RNN(6, 5, bidirectional=True),
    "relu": lambda: nn.RNN(6, 5, nonlinearity="relu"),
    "dropout_off": lambda: nn.LSTM(6, 5, 2, dropout=0.5).eval(),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_any_length(name: str) -> None:
    torch.manual_seed(0)
    layers = LAYERS[name]()

    def model(x: Any) -> Any:
        out, state = layers(torch.tanh(x))
        return torch.relu(out + 1), state

    compiled = tilevm.compile(model)
    tilevm.stats.reset()
    with torch.no_grad():
        for sizes in ((4, 3, 6), (9, 3, 6), (2, 7, 6), (1, 1, 6)):
            x = torch.randn(sizes)
            torch.testing.assert_close(compiled(x), model(x))
    stats = tilevm.stats()
    assert stats["captures"] == 1 and not stats["flushes"], stats
    assert sum(stats["callouts"].values()) == 4
    assert all(w is p for w, p in zip(layers._flat_weights, layers.parameters(), strict=True))


def test_layers_with_a_state_and_packed_ones() -> None:
    layers = nn.GRU(6, 5)
    x, state = torch.randn(4, 3, 6), torch.randn(1, 3, 5)
    with torch.no_grad():
        torch.testing.assert_close(tilevm.compile(layers)(x, state), layers(x, state))

        def packed(x: Any) -> Any:
            given = nn.utils.rnn.pack_padded_sequence(x, [4, 3, 1])
            return nn.utils.rnn.pad_packed_sequence(layers(given)[0])[0]

        torch.testing.assert_close(tilevm.compile(packed)(x), packed(x))


def test_layers_that_draw() -> None:
    torch.manual_seed(0)
    layers, x = nn.LSTM(6, 5, 2, dropout=0.5), torch.randn(4, 3, 6)
    with torch.no_grad():
        compiled = tilevm.compile(layers)
        compiled(x)
        torch.manual_seed(7)
        found = compiled(x)
        torch.manual_seed(7)
        torch.testing.assert_close(found, layers(x))


def test_layers_of_a_weight_that_is_replaced() -> None:
    layers, x = nn.LSTM(6, 5), torch.randn(4, 3, 6)
    compiled = tilevm.compile(layers)
    with torch.no_grad():
        compiled(x)
        layers.weight_hh_l0 = nn.Parameter(torch.zeros(20, 5))
        torch.testing.assert_close(compiled(x), layers(x))
        list(layers.parameters())[-1].add_(1)
        torch.testing.assert_close(compiled(x), layers(x))


def test_layers_train() -> None:
    layers, x = nn.LSTM(6, 5), torch.randn(4, 3, 6)
    grads = []
    for function in (layers, tilevm.compile(layers)):
        layers.zero_grad()
        function(x)[0].square().sum().backward()
        given: list[Any] = [p.grad for p in layers.parameters()]
        grads.append([g.clone() for g in given])
    torch.testing.assert_close(*grads)


@pytest.mark.filterwarnings("error:.*autograd kernel was not registered")
def test_other_threads_train_during_a_trace() -> None:
    layers, x = nn.LSTM(6, 5), torch.randn(4, 3, 6)
    exact = torch.autograd.grad(layers(x)[0].sum(), list(layers.parameters()))
    with torch_tracing.export(()), ThreadPoolExecutor(1) as other:
        out = other.submit(lambda: layers(x)[0]).result()
    found = torch.autograd.grad(out.sum(), list(layers.parameters()))
    torch.testing.assert_close(found, exact)


def test_training_that_pytorch_leaves_to_itself_is_counted() -> None:
    layer = torch.nn.LSTM(4, 3)
    compiled = tilevm.compile(layer)
    tilevm.stats.reset()
    for length in (5, 7):
        compiled(torch.randn(length, 2, 4))[0].sum().backward()
    ((reason, calls),) = tilevm.stats()["flushes"].items()
    assert "makes no graph" in reason and calls == 2

"""Recurrent cells, a step each, as the operators they consist of, out of place.

PyTorch's own make them in place on views, which asks of a batch whether it is at least 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import linear

Tensor = torch.Tensor
Bias = Tensor | None


def _check(name: str, x: Tensor, state: Tensor) -> None:
    if x.shape[0] != state.shape[0]:
        raise ValueError(f"{name}: the input has {x.shape[0]} rows, the state {state.shape[0]}")


def rnn_tanh_cell(
    x: Tensor, state: Tensor, of_x: Tensor, of_state: Tensor, bias_x: Bias = None, bias: Bias = None
) -> Tensor:
    """The next state: tanh of what input and state give."""
    _check("rnn_tanh_cell", x, state)
    return torch.tanh(linear(state, of_state, bias) + linear(x, of_x, bias_x))


def rnn_relu_cell(
    x: Tensor, state: Tensor, of_x: Tensor, of_state: Tensor, bias_x: Bias = None, bias: Bias = None
) -> Tensor:
    """The next state: relu of what input and state give."""
    _check("rnn_relu_cell", x, state)
    return torch.relu(linear(state, of_state, bias) + linear(x, of_x, bias_x))


def gru_cell(
    x: Tensor, state: Tensor, of_x: Tensor, of_state: Tensor, bias_x: Bias = None, bias: Bias = None
) -> Tensor:
    """The next state; weights of the reset gate, the update gate and the new state, in rows."""
    _check("gru_cell", x, state)
    x_reset, x_update, x_new = linear(x, of_x, bias_x).chunk(3, 1)
    reset, update, new = linear(state, of_state, bias).chunk(3, 1)
    new = torch.tanh(x_new + new * torch.sigmoid(reset + x_reset))
    return (state - new) * torch.sigmoid(update + x_update) + new


def lstm_cell(
    x: Tensor,
    states: Sequence[Tensor],
    of_x: Tensor,
    of_state: Tensor,
    bias_x: Bias = None,
    bias: Bias = None,
) -> tuple[Tensor, Tensor]:
    """The next state and cell; weights of the gates in, forget, new and out, in rows."""
    state, cell = states
    _check("lstm_cell", x, state)
    gates = linear(state, of_state, bias) + linear(x, of_x, bias_x)
    into, forget, new, show = gates.chunk(4, 1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(into) * torch.tanh(new)
    return torch.sigmoid(show) * torch.tanh(cell), cell


CELLS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (rnn_tanh_cell, rnn_relu_cell, gru_cell, lstm_cell)
}

"""Recurrent networks while a function is traced: cells, a step each, and whole layers.

Cells are the operators they consist of, out of place. PyTorch's own make them in place on views,
which asks of a batch whether it is at least 2. Layers stay one operator, which PyTorch runs: a
trace of it would have a step for each element of a sequence, whose length must then not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import _VF
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


# Layers ------------------------------------------------------------------------------------------

_REST = "Tensor[] weights, bool bias, int layers, float drop, bool train, bool both, bool first"
_library: Any = torch.library.Library("tilevm", "FRAGMENT")  # type: ignore[no-untyped-call]


def _define(name: str) -> Callable[..., Any]:
    """An operator that is PyTorch's function of that name, and says what sizes it makes."""
    several = name == "lstm"
    states = "Tensor[] states" if several else "Tensor states"
    results = "Tensor, Tensor, Tensor" if several else "Tensor, Tensor"
    _library.define(f"{name}_layers(Tensor x, {states}, {_REST}) -> ({results})")
    whole: Callable[..., Any] = getattr(_VF, name)
    _library.impl(f"{name}_layers", whole, "CompositeExplicitAutograd")

    def sizes(x: Tensor, states: Any, *rest: Any) -> tuple[Tensor, ...]:
        kept = list(states) if several else [states]
        directions = 2 if rest[5] else 1
        out = x.new_empty([*x.shape[:-1], directions * kept[0].shape[-1]])
        return (out, *(torch.empty_like(s, memory_format=torch.contiguous_format) for s in kept))

    torch.library.register_fake(f"tilevm::{name}_layers", sizes, lib=_library)
    operator = getattr(torch.ops.tilevm, f"{name}_layers").default

    def layers(x: Tensor, states: Any, *rest: Any) -> Any:
        packed = not isinstance(rest[0], list | tuple)  # steps of several lengths
        draws = rest[4] and rest[3]
        # The operator has no gradient, which other threads may want while one traces.
        if packed or draws or torch.is_grad_enabled():
            return whole(x, states, *rest)
        return operator(x, list(states) if several else states, *rest)

    return layers


LAYERS = {name: _define(name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}

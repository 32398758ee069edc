"""What AOTAutograd makes of operators and their gradients before they are imported."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import get_decompositions

_aten = torch.ops.aten
_MEAN, _NONE = 1, 0  # of a loss's `reduction`


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """By operator."""
    table: dict[Any, Callable[..., Any]] = get_decompositions(
        [
            _aten.gelu_backward,
            _aten.native_layer_norm_backward,
            _aten._native_batch_norm_legit_functional,
            _aten.batch_norm_backward,
            _aten.native_batch_norm_backward,
            _aten._softmax_backward_data,
            _aten._log_softmax_backward_data,
            _aten.tanh_backward,
            _aten.sigmoid_backward,
            _aten.silu_backward,
            _aten.threshold_backward,
            _aten.leaky_relu_backward,
            _aten.elu_backward,
            _aten.hardtanh_backward,
            _aten.hardswish_backward,
            _aten.hardsigmoid_backward,
            _aten.softplus_backward,
            _aten.glu,
            _aten.glu_backward,
            _aten.slice_backward,
            _aten.select_backward,
            _aten.mse_loss,
            _aten.mse_loss_backward,
            _aten.smooth_l1_loss,
            _aten.smooth_l1_loss_backward,
            _aten.nll_loss_forward,
            _aten.native_dropout_backward,
            _aten._prelu_kernel_backward,
            _aten.binary_cross_entropy_backward,
            _aten.col2im,
            _aten.diagonal_backward,
            _aten.native_group_norm_backward,
            _aten.reflection_pad1d_backward,
            _aten.reflection_pad2d_backward,
            _aten.reflection_pad3d_backward,
            _aten.rrelu_with_noise_backward,
            _aten.unfold_backward,
            _aten._to_copy,
        ]
    )
    table.pop(_aten._to_copy.default, None)
    table[_aten.nll_loss_backward.default] = _nll_loss_backward
    table[_aten._efficientzerotensor.default] = torch.zeros  # which has memory
    return table


def _nll_loss_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    """Without a scatter: an element asks whether it is its row's target, in any loop.

    x: [N, C] or [C]. Where the target is `ignore_index`, the gradient is 0.
    """
    axis = x.dim() - 1
    if reduction == _MEAN:
        grad = grad / total_weight
    elif reduction == _NONE and x.dim() == 2:
        grad = grad.unsqueeze(axis)
    target = target.reshape(target.shape[: x.dim() - 1]).unsqueeze(axis)
    chosen = torch.arange(x.shape[axis], device=x.device) == target
    if weight is not None:
        grad = grad * weight
    return torch.where(chosen & (target != ignore_index), -grad, 0.0).to(x.dtype)

"""Functions of PyTorch that ask tensors for their values, while a function is traced: as what they
consist of, where that needs no values.

The originals run where these do not know what to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

Tensor = torch.Tensor
_cov, _corrcoef = torch.cov, torch.corrcoef
_gaussian_nll_loss = functional.gaussian_nll_loss


def _check_all(condition: Tensor) -> None:
    """Let calls check that a condition holds for all elements; where not, they run eagerly."""
    torch._check(condition.logical_not().sum().item() == 0)  # type: ignore[no-untyped-call]


def _is_integral(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype is torch.bool)


def cov(x: Tensor, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Tensor:
    """Of variables in rows."""
    weights = [w for w in (fweights, aweights) if w is not None]
    count = x.shape[-1] if x.dim() else 1
    fits = all(isinstance(w, Tensor) and w.dim() == 1 and w.shape[0] == count for w in weights)
    kinds = (fweights is None or _is_integral(fweights)) and (
        aweights is None or aweights.is_floating_point()
    )
    if not (fits and kinds) or x.dim() > 2 or not (x.is_floating_point() or x.is_complex()):
        return _cov(x, correction=correction, fweights=fweights, aweights=aweights)
    rows = x if x.dim() == 2 else x.reshape(1, -1)
    if not weights:
        if count <= correction:  # PyTorch warns of it
            return _cov(x, correction=correction)
        away = rows - rows.sum(1, keepdim=True) / count
        plain: Tensor = away @ away.mT.conj() / (count - correction)
        return plain.squeeze()
    for w in weights:
        _check_all(w >= 0)
    weight = weights[0] if len(weights) == 1 else weights[0] * weights[1]
    total = weight.sum()
    mean = (rows * weight).sum(1, keepdim=True) / total
    if aweights is None or correction == 0:
        freedom = total - correction
    else:
        freedom = total - correction * (weight * aweights).sum() / total
    _check_all((total > 0) & (freedom > 0))
    away = rows - mean
    found: Tensor = away @ (away * weight).mT.conj() / freedom
    return found.squeeze()


def corrcoef(x: Tensor) -> Tensor:
    """Covariances over both deviations."""
    if x.dim() > 2 or x.is_complex():
        return _corrcoef(x)
    found = cov(x)
    if not found.dim():
        return found / found
    deviation = found.diagonal().sqrt()
    return (found / deviation[:, None] / deviation).clip(-1, 1)


def gaussian_nll_loss(
    x: Tensor,
    target: Tensor,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Where no gradient is asked for: of the variance, PyTorch has none where it is small."""
    if isinstance(var, Tensor) and var.shape == x.shape[:-1]:
        var = var.unsqueeze(-1)
    alike = isinstance(var, Tensor) and var.dim() == x.dim() and var.shape[:-1] == x.shape[:-1]
    alike = alike and var.dtype == x.dtype == target.dtype
    if not alike or var.shape[-1] not in (1, x.shape[-1]) or var.requires_grad:
        return _gaussian_nll_loss(x, target, var, full=full, eps=eps, reduction=reduction)
    _check_all((var < 0).logical_not())
    var = var.clamp(min=eps)
    loss: Tensor = 0.5 * (var.log() + (x - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


COMPOSED: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.cov: cov,
    torch.Tensor.cov: cov,
    torch.corrcoef: corrcoef,
    torch.Tensor.corrcoef: corrcoef,
    functional.gaussian_nll_loss: gaussian_nll_loss,
}

"""Functions of PyTorch that ask tensors for their values, or sizes for theirs, while a function is
traced: as what they consist of, where that needs none.

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
_linspace, _logspace = torch.linspace, torch.logspace
_gaussian_nll_loss, _affine_grid = functional.gaussian_nll_loss, functional.affine_grid


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


# Of these, PyTorch has but one number of steps, which is an int.
_LINES = {torch.float32, torch.float64, torch.bfloat16, torch.float16}
_COUNTS = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}  # by float64, cut off


def linspace(start: Any, end: Any, steps: Any, **options: Any) -> Tensor:
    """For any number of steps, by PyTorch's own formula: both halves from their ends."""
    dtype = options.get("dtype") or torch.get_default_dtype()
    numbers = isinstance(start, int | float) and isinstance(end, int | float)
    fits = isinstance(steps, torch.SymInt) and numbers and options.get("out") is None
    if not fits or dtype not in _LINES | _COUNTS or steps <= 1:
        return _linspace(start, end, steps, **options)
    computed = torch.float64 if dtype in _COUNTS else dtype
    first = torch.full((), start, dtype=dtype).to(computed)
    last = torch.full((), end, dtype=dtype).to(computed)
    i = torch.arange(steps)
    step = (last - first) / (steps - 1)
    below, above = first + step * i, last - step * (steps - 1 - i)
    line = torch.where(i < steps // 2, below, above).to(dtype)
    return line.requires_grad_() if options.get("requires_grad") else line


def logspace(start: Any, end: Any, steps: Any, base: Any = 10.0, **options: Any) -> Tensor:
    """Powers of the base."""
    dtype = options.get("dtype") or torch.get_default_dtype()
    fits = isinstance(steps, torch.SymInt) and options.get("out") is None
    if not fits or dtype not in (torch.float32, torch.float64) or isinstance(base, Tensor):
        return _logspace(start, end, steps, base, **options)
    line: Tensor = base ** linspace(start, end, steps, dtype=dtype)
    return line.requires_grad_() if options.get("requires_grad") else line


def _line(n: Any, align_corners: bool, like: Tensor) -> Tensor:
    """Places of n pixels, 2 or more, from -1 to 1: centres, or with the corners' at the ends."""
    line = linspace(-1, 1, n, dtype=like.dtype)
    return line if align_corners else line * (n - 1) / n


def affine_grid(theta: Tensor, size: Any, align_corners: bool | None = None) -> Tensor:
    """For any size: PyTorch's own compares all sizes with each other, and keeps those it met."""
    spatial = size[2:]
    rank = len(spatial)
    fits = rank in (2, 3) and theta.is_floating_point() and theta.dim() == 3
    fits = fits and tuple(theta.shape) == (size[0], rank, rank + 1) and align_corners is not None
    if not fits or not all(n > 1 for n in spatial) or size[0] <= 0 or size[1] <= 0:
        return _affine_grid(theta, size, align_corners=align_corners)
    rows = theta.reshape(size[0], *[1] * rank, rank, rank + 1)
    grid: Tensor = rows[..., rank]
    for axis in range(rank):  # the last one is x, which comes first
        shape = [n if i == axis else 1 for i, n in enumerate(spatial)]
        line = _line(spatial[axis], bool(align_corners), theta).reshape(1, *shape, 1)
        grid = grid + line * rows[..., rank - 1 - axis]
    return grid


COMPOSED: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.cov: cov,
    torch.Tensor.cov: cov,
    torch.corrcoef: corrcoef,
    torch.Tensor.corrcoef: corrcoef,
    functional.gaussian_nll_loss: gaussian_nll_loss,
    functional.affine_grid: affine_grid,
    torch.linspace: linspace,
    torch.logspace: logspace,
}

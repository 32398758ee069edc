"""Functions of PyTorch that ask tensors for their values, or sizes for theirs, while a function is
traced: as what they consist of, where that needs none.

The originals run where these do not know what to do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional

Tensor = torch.Tensor
_cov, _corrcoef = torch.cov, torch.corrcoef
_max_pool1d: Any = functional.max_pool1d
_binary_cross_entropy: Any = functional.binary_cross_entropy
_linspace, _logspace = torch.linspace, torch.logspace
_gaussian_nll_loss, _affine_grid = functional.gaussian_nll_loss, functional.affine_grid


def _check_all(condition: Tensor) -> None:
    """Let calls check that a condition holds for all elements; where not, they run eagerly."""
    torch._assert_async(condition.all(), "what PyTorch checks of its arguments does not hold")


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
    if not (fits and kinds) or x.dim() > 2 or x.dtype is torch.bool:
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


def binary_cross_entropy(x: Tensor, *more: Any, **named: Any) -> Tensor:
    """Of probabilities, which PyTorch's decomposition does not ask for."""
    if isinstance(x, Tensor) and x.is_floating_point():
        p = x.detach()
        _check_all((p >= 0) & (p <= 1))
    loss: Tensor = _binary_cross_entropy(x, *more, **named)
    return loss


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


# Of these, PyTorch takes sizes for numbers that do not change.
_tensor = torch.tensor


def _has_symbols(data: Any) -> bool:
    kinds = torch.SymInt | torch.SymFloat
    return isinstance(data, kinds) or (
        isinstance(data, list | tuple) and any(map(_has_symbols, data))
    )


def _numbers(data: Any) -> Iterator[Any]:
    for item in data:
        yield from _numbers(item) if isinstance(item, list | tuple) else (item,)


def tensor(data: Any, **options: Any) -> Tensor:
    """Of a list or a `torch.Size`: each number by itself."""
    several = isinstance(data, list | tuple) and _has_symbols(data)
    if not several or any(isinstance(x, Tensor) for x in _numbers(data)):
        return _tensor(data, **options)
    floats = any(isinstance(x, float | torch.SymFloat) for x in _numbers(data))
    dtype = options.pop("dtype", None) or (torch.get_default_dtype() if floats else torch.int64)
    with_grad = options.pop("requires_grad", False)
    made = torch.stack([tensor(item, dtype=dtype, **options) for item in data])
    return made.requires_grad_() if with_grad else made


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of sizes has memory of its own anyway."""
    make = tensor if _has_symbols(data) else torch.as_tensor
    return make(data, dtype=dtype, device=device)


def new_tensor(x: Tensor, data: Any, **options: Any) -> Tensor:
    """With the type of `x`."""
    if not _has_symbols(data):
        return x.new_tensor(data, **options)
    return tensor(data, **{"dtype": x.dtype, "device": x.device, **options})


# What may be said of windows that changes nothing where there is one.
_ONE_WINDOW = {"dilation": 1, "ceil_mode": False, "return_indices": False}


def _is_default(stride: Any) -> bool:
    """Whether windows follow each other. 0, which is none, PyTorch refuses."""
    return stride is None or (isinstance(stride, list | tuple) and not stride)


def max_pool1d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """As windows of one row: PyTorch's own, without gradients, is for one length only."""
    lengths = [kernel_size, kernel_size if _is_default(stride) else stride, padding, dilation]
    lengths = [n[0] if isinstance(n, list | tuple) and len(n) == 1 else n for n in lengths]
    fits = not any(isinstance(n, list | tuple) for n in lengths) and x.is_floating_point()
    if not fits or x.dim() not in (2, 3):
        return _max_pool1d(
            x, kernel_size, stride, padding, dilation, ceil_mode, return_indices=return_indices
        )
    rows = [(neutral, n) for neutral, n in zip((1, 1, 0, 1), lengths, strict=True)]
    pool: Any = functional.max_pool2d
    found = pool(x.unsqueeze(-2), *rows, ceil_mode=ceil_mode, return_indices=return_indices)
    return tuple(t.squeeze(-2) for t in found) if return_indices else found.squeeze(-2)


def broadcast_tensors(*given: Tensor) -> tuple[Tensor, ...]:
    """As the views that they are."""
    shape: Any = torch.broadcast_shapes(*(t.shape for t in given))  # type: ignore[no-untyped-call]
    return tuple(t.expand(shape) for t in given)


def allclose(
    x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    """Whether all are close: PyTorch asks for it where it is called."""
    return torch.isclose(x, y, rtol, atol, equal_nan).all().item()


def equal(x: Tensor, y: Tensor) -> Any:
    """Whether sizes and all elements are equal."""
    return tuple(x.shape) == tuple(y.shape) and (x == y).all().item()


def _pooling(original: Callable[..., Any], rank: int, largest: bool) -> Callable[..., Any]:
    def pool(
        x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, *more: Any, **named: Any
    ) -> Any:
        """Over windows as long as their dims: one place each, whatever its size is."""
        widths = list(kernel_size) if isinstance(kernel_size, list | tuple) else [kernel_size]
        widths = widths * rank if len(widths) == 1 else widths
        whole = []
        plain = _is_default(stride) and padding == 0 and not more
        plain = plain and x.is_floating_point() and x.dim() in (rank + 1, rank + 2)
        if plain and all(_ONE_WINDOW.get(k) == v for k, v in named.items()):
            whole = _whole_dims(x, widths, rank)
        if not whole or any(n <= 0 for n in x.shape):
            return original(x, kernel_size, stride, padding, *more, **named)
        if not largest:
            return x.mean(whole, keepdim=True)
        shape = [1 if d - x.dim() in whole else n for d, n in enumerate(x.shape)]
        # The first of equal ones has the gradient, as it has in a window.
        flat = x.flatten(-2) if len(whole) == 2 else x.movedim(whole[0], -1)
        return flat.max(-1).values.reshape(shape)

    return pool


def _whole_dims(x: Tensor, widths: list[Any], rank: int) -> list[int]:
    """The last dims that windows cover, where these are of one element in the others."""
    if len(widths) != rank:
        return []
    pairs = list(zip(range(-rank, 0), widths, strict=True))
    whole = [d for d, n in pairs if _is_size(n, x.shape[d])]
    return whole if all(type(n) is int and n == 1 for d, n in pairs if d not in whole) else []


def _is_size(width: Any, size: Any) -> bool:
    return isinstance(width, torch.SymInt) and statically_known_true(width == size)


COMPOSED: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.cov: cov,
    torch.Tensor.cov: cov,
    torch.corrcoef: corrcoef,
    torch.Tensor.corrcoef: corrcoef,
    functional.binary_cross_entropy: binary_cross_entropy,
    functional.gaussian_nll_loss: gaussian_nll_loss,
    functional.affine_grid: affine_grid,
    torch.linspace: linspace,
    torch.logspace: logspace,
    torch.tensor: tensor,
    torch.as_tensor: as_tensor,
    torch.Tensor.new_tensor: new_tensor,
    torch._is_all_true: torch.all,
    torch._is_any_true: torch.any,
    torch.allclose: allclose,
    torch.Tensor.allclose: allclose,
    torch.equal: equal,
    torch.Tensor.equal: equal,
    torch.broadcast_tensors: broadcast_tensors,
    torch.max_pool1d: max_pool1d,
    functional.max_pool1d: _pooling(max_pool1d, 1, largest=True),
    functional.max_pool1d_with_indices: functools.partial(max_pool1d, return_indices=True),
    functional.max_pool2d: _pooling(functional.max_pool2d, 2, largest=True),
    torch.avg_pool1d: _pooling(torch.avg_pool1d, 1, largest=False),
    functional.avg_pool2d: _pooling(functional.avg_pool2d, 2, largest=False),
}

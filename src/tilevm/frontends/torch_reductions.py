"""ATen's reductions, and rows of softmax and norms: rows as in `torch_ops`."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends.torch_ops import (
    ROWS,
    Tensor,
    Unsupported,
    axes_of,
    axis_of,
    constant,
    packet,
    row,
)

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["ROWS"]

# Reductions --------------------------------------------------------------------------------------


def as_dtype(b: Importer, x: Tensor, dtype: torch.dtype | None) -> int:
    """The tensor's value as dtype; None: as it is."""
    return x.id if dtype is None else b.cast(x.id, dtype)


def _reduce(b: Importer, op: str, x: int, rank: int, dims: Any, keep: bool) -> int:
    return b.add(op, x, axes=axes_of(dims, rank), keepdims=keep)


@row("sum", "prod")
def _fold_all(b: Importer, out: Any, x: Tensor, dtype: Any = None) -> int:
    return _reduce(b, packet(b), as_dtype(b, x, dtype), x.rank, None, False)


@row("sum.dim_IntList", "prod.dim_int")
def _fold(b: Importer, out: Any, x: Tensor, dims: Any, keep: bool, dtype: Any = None) -> int:
    return _reduce(b, packet(b), as_dtype(b, x, dtype), x.rank, dims, keep)


@row("mean")
def _mean_all(b: Importer, out: Any, x: Tensor, dtype: Any = None) -> int:
    return _reduce(b, "mean", as_dtype(b, x, dtype), x.rank, None, False)


@row("mean.dim")
def _mean(b: Importer, out: Any, x: Tensor, dims: Any, keep: bool, dtype: Any = None) -> int:
    return _reduce(b, "mean", as_dtype(b, x, dtype), x.rank, dims, keep)


@row("amax", "amin", "any.dims", "all.dims", "any.dim", "all.dim")
def _fold_same(b: Importer, out: Any, x: Tensor, dims: Any, keep: bool) -> int:
    return _reduce(b, packet(b), x.id, x.rank, dims, keep)


@row("any", "all")
def _fold_bool(b: Importer, out: Any, x: Tensor) -> int:
    return _reduce(b, packet(b), x.id, x.rank, None, False)


@row("max", "min")
def _extreme(b: Importer, out: Any, x: Tensor) -> int:
    return _reduce(b, f"a{packet(b)}", x.id, x.rank, None, False)


@row("max.dim", "min.dim")
def _extreme_dim(b: Importer, out: Any, x: Tensor, dim: int, keep: bool) -> tuple[Any, ...]:
    if not x.rank:
        return x, b.add("full", shape=[], value=0, dtype="int64")
    name, axis = packet(b), axis_of(dim, x.rank)
    value = b.add(f"a{name}", x.id, axes=[axis], keepdims=keep) if b.used(0) else None
    index = b.add(f"arg{name}", x.id, axis=axis, keepdims=keep) if b.used(1) else None
    return value, index


@row("argmax", "argmin")
def _arg(b: Importer, out: Any, x: Tensor, dim: int | None, keep: bool) -> int:
    if dim is None or not x.rank:
        flat = b.add("reshape", x.id, shape=[b.size(x.fake.numel())])
        index = b.add(packet(b), flat, axis=0, keepdims=False)
        return b.add("reshape", index, shape=[1] * out.dim()) if out.dim() else index
    return b.add(packet(b), x.id, axis=axis_of(dim, x.rank), keepdims=keep)


# PyTorch's words; of sizes that are known where a program is made.
_NO_FREEDOM = (
    "degrees of freedom is <= 0. Correction should be strictly less than the reduction factor "
    "(input numel divided by output numel)."
)


def _variance(b: Importer, x: Tensor, dims: Any, correction: Any, keep: bool) -> int:
    axes = axes_of(dims, x.rank)
    by = 1 if correction is None else correction
    counts = [x.shape[axis] for axis in axes]
    known = all(isinstance(n, int) for n in counts)
    empty = any(n == 0 for n in x.shape if isinstance(n, int))
    if empty or (known and math.prod(counts) <= by):
        where = f" ({b.line})" if b.line else ""
        warnings.warn(f"{packet(b)}(): {_NO_FREEDOM}{where}", UserWarning, stacklevel=1)
    return b.add("var", x.id, axes=axes, keepdims=keep, correction=by)


@row("var.correction")
def _var(b: Importer, out: Any, x: Tensor, dims: Any, correction: Any, keep: bool) -> int:
    return _variance(b, x, dims, correction, keep)


@row("std.correction")
def _std(b: Importer, out: Any, x: Tensor, dims: Any, correction: Any, keep: bool) -> int:
    return b.add("sqrt", _variance(b, x, dims, correction, keep))


@row("var.dim")
def _var_dim(b: Importer, out: Any, x: Tensor, dims: Any, unbiased: bool, keep: bool) -> int:
    return _variance(b, x, dims, int(unbiased), keep)


@row("std.dim")
def _std_dim(b: Importer, out: Any, x: Tensor, dims: Any, unbiased: bool, keep: bool) -> int:
    return b.add("sqrt", _variance(b, x, dims, int(unbiased), keep))


@row("var")
def _var_all(b: Importer, out: Any, x: Tensor, unbiased: bool) -> int:
    return _variance(b, x, None, int(unbiased), False)


@row("std")
def _std_all(b: Importer, out: Any, x: Tensor, unbiased: bool) -> int:
    return b.add("sqrt", _variance(b, x, None, int(unbiased), False))


@row("var_mean")
def _var_mean_all(b: Importer, out: Any, x: Tensor, unbiased: bool) -> Any:
    return _var_mean(b, out, x, None, int(unbiased), False)


@row("var_mean.dim")
def _var_mean_dim(b: Importer, out: Any, x: Tensor, dims: Any, unbiased: bool, keep: bool) -> Any:
    return _var_mean(b, out, x, dims, int(unbiased), keep)


@row("var_mean.correction")
def _var_mean(b: Importer, out: Any, x: Tensor, dims: Any, correction: Any, keep: bool) -> Any:
    return (
        _variance(b, x, dims, correction, keep),
        _reduce(b, "mean", x.id, x.rank, dims, keep),
    )


@row("logsumexp")
def _logsumexp(b: Importer, out: Any, x: Tensor, dims: Any, keep: bool) -> int:
    axes = axes_of(dims, x.rank)
    value = b.cast(x.id, out.dtype)
    if not axes:
        return value
    top = b.add("amax", value, axes=axes, keepdims=True)
    infinite = b.add("eq", b.add("abs", top), b.number(math.inf))
    top = b.add("where", infinite, b.number(0.0), top)
    total = b.add("sum", b.add("exp", b.add("sub", value, top)), axes=axes, keepdims=keep)
    return b.add("add", b.add("log", total), top if keep else b.add("squeeze", top, axes=axes))


@row("norm.ScalarOpt_dim", "linalg_vector_norm")
def norm(b: Importer, out: Any, x: Tensor, p: Any, dims: Any, keep: bool, *dtype: Any) -> int:
    """Of the elements over `dims`."""
    if not x.is_float:
        raise Unsupported("a norm of integers")
    p = None if p is None else constant(p)
    value = b.cast(x.id, out.dtype)

    def fold(op: str, value: int) -> int:
        return _reduce(b, op, value, x.rank, dims, keep)

    if p is None or p == 2:
        return b.add("sqrt", fold("sum", b.add("mul", value, value)))
    size = b.add("abs", value)
    if p == 1:
        return fold("sum", size)
    if p == 0:
        return fold("sum", b.cast(b.add("ne", size, b.number(0)), out.dtype))
    if abs(p) == math.inf:
        return fold("amax" if p > 0 else "amin", size)
    return b.add("pow", fold("sum", b.add("pow", size, b.number(p))), b.number(1 / p))


@row("norm.Scalar", "norm.ScalarOpt_dtype")
def _norm_all(b: Importer, out: Any, x: Tensor, p: Any = None, dtype: Any = None) -> Any:
    return norm(b, out, x, p, None, False)


@row("dist")
def _dist(b: Importer, out: Any, x: Tensor, y: Tensor, p: Any) -> Any:
    apart = b.cast(b.add("sub", x.id, y.id), out.dtype)
    fake = torch.broadcast_tensors(x.fake, y.fake)[0]  # type: ignore[no-untyped-call]
    return norm(b, out, Tensor(apart, fake), p, None, False)


# Rows --------------------------------------------------------------------------------------------


def _check_scalar(dim: Any) -> None:
    if dim not in (0, -1):
        raise Unsupported("a dim that a scalar does not have")  # PyTorch says so


@row("softmax.int", "log_softmax.int")
def _softmax(b: Importer, out: Any, x: Tensor, dim: int, dtype: Any = None) -> int:
    value = as_dtype(b, x, dtype)
    if not out.is_floating_point():
        raise Unsupported("not floating point")  # PyTorch says so
    if not x.rank:
        _check_scalar(dim)
        row = b.add(packet(b), b.add("reshape", value, shape=[1]), axis=0)
        return b.add("reshape", row, shape=[])
    return b.add(packet(b), value, axis=axis_of(dim, x.rank))


@row("_softmax", "_log_softmax")
def _softmax_raw(b: Importer, out: Any, x: Tensor, dim: int, half_to_float: bool) -> int:
    if half_to_float or not x.is_float:
        raise Unsupported("half_to_float, or not floating point")
    if x.rank:
        return b.add(packet(b)[1:], x.id, axis=axis_of(dim, x.rank))
    _check_scalar(dim)
    row_of_one = b.add("reshape", x.id, shape=[1])
    return b.add("reshape", b.add(packet(b)[1:], row_of_one, axis=0), shape=[])


def affine(b: Importer, x: int, weight: Tensor | None, bias: Tensor | None) -> int:
    """`x * weight + bias`, of what there is."""
    if weight is not None:
        x = b.add("mul", x, weight.id)
    return x if bias is None else b.add("add", x, bias.id)


@row("layer_norm")
def _layer_norm(
    b: Importer, out: Any, x: Tensor, shape: Any, weight: Any, bias: Any, eps: Any, *_: Any
) -> int:
    axes = list(range(x.rank - len(shape), x.rank))
    return affine(b, b.add("layer_norm", x.id, axes=axes, eps=constant(eps)), weight, bias)


@row("native_layer_norm")
def _native_layer_norm(
    b: Importer, out: Any, x: Tensor, shape: Any, weight: Any, bias: Any, eps: Any
) -> tuple[Any, ...]:
    axes = list(range(x.rank - len(shape), x.rank))
    value = _layer_norm(b, out, x, shape, weight, bias, eps)
    mean = b.add("mean", x.id, axes=axes, keepdims=True) if b.used(1) else None
    rstd = None
    if b.used(2):
        variance = b.add("var", x.id, axes=axes, keepdims=True, correction=0)
        rstd = b.add("rsqrt", b.add("add", variance, b.number(eps)))
    return value, mean, rstd


@row("rms_norm")
def _rms_norm(b: Importer, out: Any, x: Tensor, shape: Any, weight: Any, eps: Any) -> int:
    axes = list(range(x.rank - len(shape), x.rank))
    computed = x.dtype if x.dtype == torch.float64 else torch.float32
    small = torch.finfo(computed).eps if eps is None else constant(eps)
    return affine(b, b.add("rms_norm", x.id, axes=axes, eps=small), weight, None)


@row("_fused_rms_norm")
def _fused_rms_norm(
    b: Importer, out: Any, x: Tensor, shape: Any, weight: Any, eps: Any
) -> tuple[Any, ...]:
    if b.used(1):
        raise Unsupported("the reciprocal norm is used")
    return _rms_norm(b, out, x, shape, weight, eps), None

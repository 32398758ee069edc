"""Sums of complex numbers and products of their matrices: rows as in `torch_complex`."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends.torch_complex import (
    Complex,
    Like,
    Parts,
    add,
    conj,
    made,
    parts_of,
    product,
    quotient,
    row,
    row_of,
    with_whole,
)
from tilevm.frontends.torch_ops import Tensor, Unsupported, axes_of, is_number, is_small

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["row_of"]

_MOST_SUMMED = 32768  # parts are folded by kernels of their own, which each read everything


def _total(b: Importer, out: Any, x: Tensor, dims: Any, keep: bool) -> Parts:
    if not is_small(b, x.fake.numel(), _MOST_SUMMED):
        raise Unsupported(f"a sum of more than {_MOST_SUMMED} complex numbers")
    axes = axes_of(dims, x.rank)
    real, imag = parts_of(b, x, out)
    fold = functools.partial(b.add, "sum", axes=axes, keepdims=keep)
    return fold(real), fold(imag)


@row("sum")
def _sum_all(b: Importer, out: Any, x: Tensor, dtype: Any = None) -> Complex:
    return made(b, out, *_total(b, out, x, None, False))


@row("sum.dim_IntList")
def _sum(b: Importer, out: Any, x: Tensor, dims: Any, keep: bool, dtype: Any = None) -> Complex:
    return made(b, out, *_total(b, out, x, dims, keep))


@row("mean")
def _mean_all(b: Importer, out: Any, x: Tensor, dtype: Any = None) -> Any:
    return _mean(b, out, x, None, False)


@row("mean.dim")
def _mean(b: Importer, out: Any, x: Tensor, dims: Any, keep: bool, dtype: Any = None) -> Complex:
    count: Any = math.prod(x.shape[axis] for axis in axes_of(dims, x.rank))
    total = _total(b, out, x, dims, keep)
    return made(b, out, *quotient(b, total, parts_of(b, count)))


def _check(out: Any, *operands: Tensor) -> None:
    for x in (out, *operands):
        if x.dtype is not torch.complex64:
            raise Unsupported(f"matrix multiply of {str(x.dtype)[6:]}")


def _matrices(b: Importer, x: Tensor, y: Tensor, out: Any) -> Complex:
    """The product x @ y as one of real matrices.

    Elements of a row of x are pairs (a, c) beside each other already. An element (e, f) of y
    becomes the rows (e, f) and (-f, e), so that the result is of pairs, too.
    """
    _check(out, x, y)
    left = b.add("reshape", x.id, shape=b.shape([*x.shape[:-1], x.shape[-1] * 2]))
    real, imag = parts_of(b, y)
    *batch, inner = y.shape if y.rank == 1 else y.shape[:-1]
    width = 2 if y.rank == 1 else y.shape[-1] * 2

    def beside(first: int, second: int, axis: int) -> int:
        ends = [b.add("unsqueeze", v, axis=axis) for v in (first, second)]
        return b.add("concat", *ends, axis=axis)

    upper = beside(real, imag, y.rank)
    lower = beside(b.add("neg", imag), real, y.rank)
    both = beside(upper, lower, len(batch) + 1)  # [..., inner, 2, columns, 2]
    right = b.add("reshape", both, shape=b.shape([*batch, inner * 2, width]))
    value = b.add("matmul", left, right)
    shape = b.shape([*out.shape, 2])
    value = b.add("reshape", value, shape=shape)
    parts = [b.add("select", value, axis=out.dim(), index=i) for i in (0, 1)]
    return with_whole(b, made(b, out, parts[0], parts[1]), value, shape)


@row("mm", "bmm", "matmul", "linalg_matmul", "mv", "dot")
def _matmul(b: Importer, out: Any, x: Tensor, y: Tensor) -> Complex:
    return _matrices(b, x, y, out)


@row("vdot")
def _vdot(b: Importer, out: Any, x: Tensor, y: Tensor) -> Complex:
    return _matrices(b, conj(b, x.fake, x), y, out)


@row("linear")
def _linear(b: Importer, out: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
    if weight.rank == 2:
        real, imag = (b.add("permute", part, axes=[1, 0]) for part in parts_of(b, weight))
        turned = Like(weight.fake)
        turned.shape, turned.dtype = list(weight.shape)[::-1], weight.dtype
        weight = Complex(b, (real, imag), turned)  # type: ignore[arg-type]
    value = _matrices(b, x, weight, out)
    return value if bias is None else add(b, out, value, bias)


@row("addmm", "baddbmm", "addmv")
def _addmm(b: Importer, out: Any, x: Tensor, y: Tensor, z: Tensor, beta: Any, alpha: Any) -> Any:
    value = product(b, parts_of(b, _matrices(b, y, z, out)), parts_of(b, alpha))
    if is_number(beta) and beta == 0:  # x is not read, even if NaN
        return made(b, out, *value)
    addend = product(b, parts_of(b, x, out), parts_of(b, beta))
    if isinstance(beta, torch.SymInt | torch.SymFloat):
        none = b.add("eq", b.number(beta), b.number(0))
        addend = (
            b.add("where", none, b.number(0.0), addend[0]),
            b.add("where", none, b.number(0.0), addend[1]),
        )
    real, imag = (b.add("add", u, v) for u, v in zip(addend, value, strict=True))
    return made(b, out, real, imag)


@row("outer", "ger")
def _outer(b: Importer, out: Any, x: Tensor, y: Tensor) -> Complex:
    real, imag = (b.add("unsqueeze", part, axis=1) for part in parts_of(b, x))
    return made(b, out, *product(b, (real, imag), parts_of(b, y)))

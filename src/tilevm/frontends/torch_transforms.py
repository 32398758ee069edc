"""ATen's Fourier transforms of short rows, as products with the matrix of the transform.

Rows as in `torch_complex`; operands may be real. What is longer stays PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends.torch_complex import (
    COMPLEX,
    PARTS,
    Complex,
    is_complex,
    made,
    parts_of,
)
from tilevm.frontends.torch_complex_products import row_of
from tilevm.frontends.torch_ops import ROWS, Row, Tensor, Unsupported, axis_of, is_number, is_small

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["PARTS", "is_complex", "row_of"]

_AS_IT_IS, _BY_ROOT, _BY_COUNT = 0, 1, 2  # how ATen's own transforms are scaled
_MOST = 32  # elements of a row
_MOST_IN_ALL = 2048  # where PyTorch's transforms take less time, if nothing else is fused with ours
_SPLIT = 2.0**35 + 1  # leaves 18 bits of a float64


def row(*names: str) -> Callable[[Row], Row]:
    """Enter a function for operands of both kinds."""

    def enter(function: Row) -> Row:
        for name in names:
            ROWS[f"aten.{name}.default"] = COMPLEX[f"aten.{name}.default"] = function
        return function

    return enter


@dataclass(frozen=True)
class _Signal:
    """What is transformed: its parts, of these sizes; `imag` None: it is real."""

    real: int
    imag: int | None
    sizes: tuple[Any, ...]


def _signal(b: Importer, x: Tensor) -> _Signal:
    if x.dtype not in (torch.complex64, torch.float32):
        raise Unsupported(f"a transform of {str(x.dtype)[6:]}")
    if not is_small(b, x.fake.numel(), _MOST_IN_ALL):
        raise Unsupported(f"more than {_MOST_IN_ALL} elements")
    real, imag = parts_of(b, x) if is_complex(x) else (x.id, None)
    return _Signal(real, imag, tuple(x.shape))


def _length(b: Importer, n: Any) -> Any:
    """The number of elements of a row, which is from 1 to `_MOST`, by guards."""
    if not is_small(b, n, _MOST):
        raise Unsupported(f"rows of more than {_MOST} elements")
    if is_number(n):
        if n < 1:
            raise Unsupported("no elements")
    else:
        b.at_least(n, 1)
    return n


def _least(b: Importer, size: Any, n: Any) -> Any:
    """The smaller one, as in the example, by a guard."""
    if b.size(size) == b.size(n):
        return n
    known = is_number(size), is_number(n)
    if all(known):
        return min(size, n)
    hints = [v if is_number(v) else v.node.hint for v in (size, n)]
    if None in hints or any(b.sizes.depends_on_data(v) for v in (size, n) if not is_number(v)):
        raise Unsupported("rows whose length depends on data")
    small, large = (size, n) if hints[0] <= hints[1] else (n, size)
    b.at_least(large - small, 0)
    return small


def _waves(b: Importer, n: Any, rows: Any, columns: Any, scale: int | None) -> tuple[int, int]:
    """Cosine and sine of 2 pi j k / n, float32 of [rows, columns], times `scale`.

    Of j * k whole turns are taken off, exactly. The angle is an exact product with the first 18
    bits of 2 pi / n, and what the others add: cos(a + d) = cos a - d sin a.
    """
    count = b.cast(b.number(n), torch.float32)
    j, k = (b.cast(b.add("iota", size=b.size(size)), torch.float32) for size in (rows, columns))
    place = b.add("mul", b.add("unsqueeze", j, axis=1), k)
    turns = b.add("round", b.add("div", place, count))
    place = b.add("sub", place, b.add("mul", turns, count))
    step = b.add("div", b.number(2 * math.pi), b.cast(b.number(n), torch.float64))
    big = b.add("mul", step, b.number(_SPLIT))
    first = b.add("sub", big, b.add("sub", big, step))
    angle, rest = (
        b.add("mul", place, b.cast(part, torch.float32))
        for part in (first, b.add("sub", step, first))
    )
    cosine, sine = b.add("cos", angle), b.add("sin", angle)
    waves = (
        b.add("sub", cosine, b.add("mul", rest, sine)),
        b.add("add", sine, b.add("mul", rest, cosine)),
    )
    if scale is None:
        return waves
    return b.add("mul", waves[0], scale), b.add("mul", waves[1], scale)


def _scale(b: Importer, norm: str | int | None, n: Any, inverse: bool) -> int | None:
    """What a transform is multiplied with; None for 1. norm: a mode, or ATen's number for it."""
    if norm in ("ortho", _BY_ROOT):
        root = b.add("sqrt", b.cast(b.number(n), torch.float64))
        return b.cast(b.add("reciprocal", root), torch.float32)
    if norm == _AS_IT_IS or (norm != _BY_COUNT and (norm == "forward") == inverse):
        return None
    return b.cast(b.add("reciprocal", b.cast(b.number(n), torch.float64)), torch.float32)


def _joined(b: Importer, *values: int, axis: int) -> int:
    return values[0] if len(values) == 1 else b.add("concat", *values, axis=axis)


def _rows(b: Importer, x: _Signal, axis: int, count: Any) -> tuple[list[int], list[int]]:
    """The parts, with `axis` last and only its first elements; the order of axes."""
    order = [d for d in range(len(x.sizes)) if d != axis] + [axis]
    last = len(order) - 1
    parts = []
    for part in (x.real, x.imag):
        if part is None:
            continue
        value = part if order == sorted(order) else b.add("permute", part, axes=order)
        if b.size(count) != b.size(x.sizes[axis]):
            value = b.add("slice", value, axis=last, start=0, stop=b.size(count), step=1)
        parts.append(value)
    return parts, order


def _back(b: Importer, value: int, order: Sequence[int]) -> int:
    if list(order) == sorted(order):
        return value
    return b.add("permute", value, axes=[order.index(d) for d in range(len(order))])


def _to_frequencies(
    b: Importer, x: _Signal, axis: int, n: Any, norm: str | int | None, *, inverse: bool = False,
    half: bool = False,
) -> _Signal:  # fmt: skip
    """The transform along an axis, of its first n elements or with zeros behind them.

    half: the frequencies up to n / 2 alone.
    """
    n = _length(b, x.sizes[axis] if n is None else n)
    count = _least(b, x.sizes[axis], n)
    columns = n // 2 + 1 if half else n
    cosine, sine = _waves(b, n, count, columns, _scale(b, norm, n, inverse))
    if not inverse:
        sine = b.add("neg", sine)
    parts, order = _rows(b, x, axis, count)
    matrix = _joined(b, cosine, sine, axis=1)
    if len(parts) == 2:
        lower = _joined(b, b.add("neg", sine), cosine, axis=1)
        matrix = _joined(b, matrix, lower, axis=0)
    last = len(order) - 1
    both = b.add("matmul", _joined(b, *parts, axis=last), matrix)
    cut = {"axis": last, "step": 1}
    real = b.add("slice", both, start=0, stop=b.size(columns), **cut)
    imag = b.add("slice", both, start=b.size(columns), stop=b.size(columns * 2), **cut)
    sizes = tuple(columns if d == axis else size for d, size in enumerate(x.sizes))
    return _Signal(_back(b, real, order), _back(b, imag, order), sizes)


def _to_real(
    b: Importer, x: _Signal, axis: int, n: Any, norm: str | int | None, *, inverse: bool = True
) -> _Signal:
    """The n real numbers whose frequencies up to n / 2 are given; not `inverse`: conjugated."""
    n = _length(b, (x.sizes[axis] - 1) * 2 if n is None else n)
    count = _least(b, x.sizes[axis], n // 2 + 1)
    cosine, sine = _waves(b, n, count, n, _scale(b, norm, n, inverse))
    # Frequencies between the first one and n / 2 stand for two.
    place = b.add("unsqueeze", b.add("iota", size=b.size(count)), axis=1)
    single = b.add(
        "logical_or",
        b.add("eq", place, b.number(0)),
        b.add("eq", b.add("mul", place, b.number(2)), b.number(n)),
    )
    weight = b.cast(b.add("where", single, b.number(1.0), b.number(2.0)), torch.float32)
    cosine, sine = (b.add("mul", wave, weight) for wave in (cosine, sine))
    parts, order = _rows(b, x, axis, count)
    rows = [cosine, b.add("neg", sine) if inverse else sine][: len(parts)]
    value = b.add("matmul", _joined(b, *parts, axis=len(order) - 1), _joined(b, *rows, axis=0))
    sizes = tuple(n if d == axis else size for d, size in enumerate(x.sizes))
    return _Signal(_back(b, value, order), None, sizes)


def _finish(b: Importer, out: Any, x: _Signal) -> Any:
    if x.imag is None:
        return x.real
    result: Complex = made(b, out, x.real, x.imag)
    return result


# One axis ----------------------------------------------------------------------------------------


@row("fft_fft")
def _fft(b: Importer, out: Any, x: Tensor, n: Any, dim: int, norm: str | None) -> Any:
    return _finish(b, out, _to_frequencies(b, _signal(b, x), axis_of(dim, x.rank), n, norm))


@row("fft_ifft")
def _ifft(b: Importer, out: Any, x: Tensor, n: Any, dim: int, norm: str | None) -> Any:
    axis = axis_of(dim, x.rank)
    return _finish(b, out, _to_frequencies(b, _signal(b, x), axis, n, norm, inverse=True))


@row("fft_rfft")
def _rfft(b: Importer, out: Any, x: Tensor, n: Any, dim: int, norm: str | None) -> Any:
    axis = axis_of(dim, x.rank)
    return _finish(b, out, _to_frequencies(b, _signal(b, x), axis, n, norm, half=True))


@row("fft_ihfft")
def _ihfft(b: Importer, out: Any, x: Tensor, n: Any, dim: int, norm: str | None) -> Any:
    axis = axis_of(dim, x.rank)
    found = _to_frequencies(b, _signal(b, x), axis, n, norm, inverse=True, half=True)
    return _finish(b, out, found)


@row("fft_irfft")
def _irfft(b: Importer, out: Any, x: Tensor, n: Any, dim: int, norm: str | None) -> Any:
    return _finish(b, out, _to_real(b, _signal(b, x), axis_of(dim, x.rank), n, norm))


@row("fft_hfft")
def _hfft(b: Importer, out: Any, x: Tensor, n: Any, dim: int, norm: str | None) -> Any:
    axis = axis_of(dim, x.rank)
    return _finish(b, out, _to_real(b, _signal(b, x), axis, n, norm, inverse=False))


@row("_fft_c2c")
def _c2c(b: Importer, out: Any, x: Tensor, dims: Any, norm: int, forward: bool) -> Any:
    axes = [(axis_of(d, x.rank), None) for d in dims]
    return _finish(b, out, _all(b, _signal(b, x), axes, norm, not forward))


@row("_fft_r2c")
def _r2c(b: Importer, out: Any, x: Tensor, dims: Any, norm: int, half: bool) -> Any:
    *others, last = (axis_of(d, x.rank) for d in dims)
    found = _to_frequencies(b, _signal(b, x), last, None, norm, half=half)
    return _finish(b, out, _all(b, found, [(axis, None) for axis in others], norm, False))


@row("_fft_c2r")
def _c2r(b: Importer, out: Any, x: Tensor, dims: Any, norm: int, n: Any) -> Any:
    *others, last = (axis_of(d, x.rank) for d in dims)
    found = _all(b, _signal(b, x), [(axis, None) for axis in others], norm, True)
    return _finish(b, out, _to_real(b, found, last, n, norm))


# Several axes ------------------------------------------------------------------------------------


def _axes(x: Tensor, s: Any, dims: Any) -> list[tuple[int, Any]]:
    """Each axis, with the number of its elements that are transformed; None: all."""
    if dims is None:
        dims = range(x.rank - len(s), x.rank) if s is not None else range(x.rank)
    counts = [None] * len(dims) if s is None else list(s)
    axes = [axis_of(d, x.rank) for d in dims]
    return [
        (axis, None if n is None or (is_number(n) and n == -1) else n)
        for axis, n in zip(axes, counts, strict=True)
    ]


def _all(
    b: Importer, x: _Signal, axes: Sequence[tuple[int, Any]], norm: str | int | None, inverse: bool
) -> _Signal:
    for axis, n in reversed(axes):
        x = _to_frequencies(b, x, axis, n, norm, inverse=inverse)
    return x


def _over_axes(inverse: bool) -> Row:
    def run(b: Importer, out: Any, x: Tensor, s: Any, dims: Any, norm: str | None) -> Any:
        return _finish(b, out, _all(b, _signal(b, x), _axes(x, s, dims), norm, inverse))

    return run


row("fft_fft2", "fft_fftn")(_over_axes(False))
row("fft_ifft2", "fft_ifftn")(_over_axes(True))


def _from_real(inverse: bool) -> Row:
    def run(b: Importer, out: Any, x: Tensor, s: Any, dims: Any, norm: str | None) -> Any:
        *others, (axis, n) = _axes(x, s, dims)
        half = _to_frequencies(b, _signal(b, x), axis, n, norm, inverse=inverse, half=True)
        return _finish(b, out, _all(b, half, others, norm, inverse))

    return run


row("fft_rfft2", "fft_rfftn")(_from_real(False))
row("fft_ihfft2", "fft_ihfftn")(_from_real(True))


def _into_real(inverse: bool) -> Row:
    def run(b: Importer, out: Any, x: Tensor, s: Any, dims: Any, norm: str | None) -> Any:
        *others, (axis, n) = _axes(x, s, dims)
        found = _all(b, _signal(b, x), others, norm, inverse)
        return _finish(b, out, _to_real(b, found, axis, n, norm, inverse=inverse))

    return run


row("fft_irfft2", "fft_irfftn")(_into_real(True))
row("fft_hfft2", "fft_hfftn")(_into_real(False))

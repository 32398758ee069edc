"""ATen's gradients of operators over windows: pooling and padding. Rows as in `torch_ops`.

Of windows that overlap, each element takes what every window has for it: slices of one array are
added, so that nothing is written at places that data say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends.torch_loops import planes
from tilevm.frontends.torch_ops import Tensor, Unsupported, fixed, is_number, row
from tilevm.frontends.torch_views import filled
from tilevm.frontends.torch_windows import (
    ROWS,
    Axis,
    axes_of_windows,
    over_counts,
    wanted_of,
    widths_of,
)

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["ROWS"]

_MOST = 32  # windows that an element is in, and parts of an adaptive pool


class _Array:
    """A value of the program whose sizes change, an axis at a time."""

    def __init__(self, b: Importer, value: int, sizes: Any) -> None:
        self.b, self.value, self.sizes = b, value, list(sizes)

    def _now(self, value: int, axis: int, size: Any) -> _Array:
        return _Array(self.b, value, [*self.sizes[:axis], size, *self.sizes[axis + 1 :]])

    def part(self, axis: int, start: Any, size: Any) -> _Array:
        """`size` elements from `start` on."""
        bounds = {"start": self.b.size(start), "stop": self.b.size(start + size), "step": 1}
        return self._now(self.b.add("slice", self.value, axis=axis, **bounds), axis, size)

    def padded(self, axis: int, low: Any, high: Any) -> _Array:
        """Zeros before and behind it."""
        lows, highs = ([0] * len(self.sizes) for _ in range(2))
        lows[axis], highs[axis] = low, high
        wide = {"low": self.b.shape(lows), "high": self.b.shape(highs), "value": 0}
        size = self.sizes[axis] + low + high
        return self._now(self.b.add("pad", self.value, **wide), axis, size)

    def repeated(self, axis: int, times: int, apart: int) -> _Array:
        """Each element `times` in a row, then zeros up to `apart`."""
        b, sizes = self.b, self.sizes
        column = [*sizes[: axis + 1], 1, *sizes[axis + 1 :]]
        made = _Array(b, b.add("unsqueeze", self.value, axis=axis + 1), column)
        if times > 1:
            wide = [*sizes[: axis + 1], times, *sizes[axis + 1 :]]
            made = _Array(b, b.add("expand", made.value, shape=b.shape(wide)), wide)
        if apart > times:
            made = made.padded(axis + 1, 0, apart - times)
        whole = [*sizes[:axis], sizes[axis] * apart, *sizes[axis + 1 :]]
        return _Array(b, b.add("reshape", made.value, shape=b.shape(whole)), whole)

    def plus(self, other: _Array) -> _Array:
        """The sum of two of the same sizes."""
        return _Array(self.b, self.b.add("add", self.value, other.value), self.sizes)


def _spread(x: _Array, a: Axis) -> _Array:
    """The sum, for each element of the axis, over the windows that have it."""
    overlap = a.kernel > a.stride
    if overlap and a.kernel > _MOST:
        raise Unsupported("windows of many elements")
    if len(x.sizes) >= 8:
        raise Unsupported("too many axes")
    wide = x.repeated(a.axis, 1 if overlap else a.kernel, a.stride)
    low = a.kernel - 1 if overlap else 0
    least: Any = torch.sym_max
    wide = wide.padded(a.axis, low, least(a.size + a.padding - a.out * a.stride, 0))
    total = wide.part(a.axis, a.padding + low, a.size)
    for t in range(1, a.kernel if overlap else 1):
        total = total.plus(wide.part(a.axis, a.padding + low - t, a.size))
    return total


@row("avg_pool2d_backward", "avg_pool3d_backward")
def _avg_pool_backward(
    b: Importer, out: Any, grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any,
    ceil: bool, count_padding: bool, divisor: Any,
) -> int:  # fmt: skip
    axes = axes_of_windows(b, x, grad.fake, kernel, stride, padding)
    if not x.is_float or not (divisor is None or is_number(divisor)):
        raise Unsupported("integers, or a divisor that is not known")
    shares = over_counts(b, grad.id, axes, x, ceil, count_padding, divisor)
    made = _Array(b, shares, grad.shape)
    for a in axes:
        made = _spread(made, a)
    return made.value


@row("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def _adaptive_avg_pool_backward(b: Importer, out: Any, grad: Tensor, x: Tensor) -> int:
    axes = 2 if "2d" in str(b.node.target) else 3  # type: ignore[union-attr]  # it is called
    first = x.rank - axes
    made = _Array(b, b.cast(grad.id, x.dtype), grad.shape)
    for axis, parts in enumerate(wanted_of(b, grad.shape[first:]), first):
        size = x.shape[axis]
        if b.size(parts) == b.size(size):
            continue
        if not is_number(parts) or not 0 < parts <= _MOST or not x.is_float:
            raise Unsupported("integers, or windows that are many, or not known")
        b.at_least(size, 1)
        made = _of_parts(made, axis, parts, size)
    return made.value


def _of_parts(x: _Array, axis: int, parts: int, size: Any) -> _Array:
    """Each of the windows that an adaptive pool cuts an axis into has its share for all of it."""
    b, total = x.b, None
    for i in range(parts):
        start, stop = i * size // parts, ((i + 1) * size + parts - 1) // parts
        one = b.add("unsqueeze", b.add("select", x.value, axis=axis, index=i), axis=axis)
        share = b.add("div", one, b.number(stop - start))
        wide = [*x.sizes[:axis], stop - start, *x.sizes[axis + 1 :]]
        window = _Array(b, b.add("expand", share, shape=b.shape(wide)), wide)
        window = window.padded(axis, start, size - stop)
        total = window if total is None else total.plus(window)
    assert total is not None
    return total


@row("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward")
def _adaptive_max_pool_backward(
    b: Importer, out: Any, grad: Tensor, x: Tensor, index: Tensor
) -> int:
    axes = 2 if "2d" in str(b.node.target) else 3  # type: ignore[union-attr]  # it is called
    return planes(b, "scatter_add", grad, index, x.shape, axes)


@row("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def _replicate_backward(b: Importer, out: Any, grad: Tensor, x: Tensor, pad: Any) -> int:
    """What was put before the first element is added to it, and what behind the last to that."""
    made = _Array(b, grad.id, grad.shape)
    for axis, (low, high) in enumerate(widths_of(x.rank, fixed(b, list(pad)))):
        if not (is_number(low) and is_number(high)):
            raise Unsupported("padding that is not known")
        size = x.shape[axis]
        b.at_least(size, 1)
        before, behind = max(low, 0), max(high, 0)
        inner = made.part(axis, before, made.sizes[axis] - before - behind)
        inner = inner.padded(axis, max(-low, 0), max(-high, 0))
        inner.sizes[axis] = size
        for start, width, room in (
            (0, before, (0, size - 1)),
            (made.sizes[axis] - behind, behind, (size - 1, 0)),
        ):
            if width:
                edge = made.part(axis, start, width)
                total = b.add("sum", edge.value, axes=[axis], keepdims=True)
                sizes = [*made.sizes[:axis], 1, *made.sizes[axis + 1 :]]
                inner = inner.plus(_Array(b, total, sizes).padded(axis, *room))
        made = inner
    return made.value


@row("masked_scatter_backward")
def _masked_scatter_backward(b: Importer, out: Any, grad: Tensor, mask: Tensor, sizes: Any) -> int:
    """What the i-th true element has is the i-th; zeros where there are not as many."""
    total, count = grad.fake.numel(), out.numel()
    flat = [b.size(total)]
    wide = b.add("expand", mask.id, shape=b.shape(grad.shape)) if grad.rank else mask.id
    kept = b.add("reshape", wide, shape=flat)
    place = b.add("sub", b.add("cumsum", kept, axis=0), b.number(1))
    place = b.add("where", kept, b.add("minimum", place, b.number(count)), b.number(count))
    source = b.add("reshape", grad.id, shape=flat)
    made = b.add("scatter", filled(b, 0, grad.dtype, [count + 1]), place, source, axis=0)
    made = b.add("slice", made, axis=0, start=0, stop=b.size(count), step=1)
    return b.add("reshape", made, shape=b.shape(out.shape))

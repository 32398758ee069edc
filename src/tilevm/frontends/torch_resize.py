"""ATen operators that read images between their pixels: resizing, and sampling at the points of a
grid. Rows as in `torch_ops`.

Places are computed in the type that PyTorch computes them in: a place that is rounded otherwise is
another pixel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends.torch_ops import Tensor, Unsupported, is_number, is_small, row
from tilevm.frontends.torch_window_gradients import ROWS

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["ROWS"]

_A = -0.75  # of the cubic convolution
# Elements of a result; indices that vary along rows are slow: PyTorch is quicker, but for images of
# three dims.
_MOST = 1 << 16
Taps = list[tuple[int, int]]  # places and weights, of each element of an axis


def _computed(dtype: torch.dtype) -> torch.dtype:
    """What places and sums are computed in."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def _refuse_large(b: Importer, out: torch.Tensor, most_axes: int = 3) -> None:
    if out.dim() - 2 <= most_axes and not is_small(b, out.numel(), _MOST):
        raise Unsupported("a large image")


def _refuse_none(b: Importer, size: Any) -> None:
    """A result without elements, of which PyTorch says what is wrong, is not for rows."""
    if is_number(size) and size < 1:
        raise Unsupported("a result without elements")
    b.at_least(size, 1)


class _Numbers:
    """Arithmetic on floats of one type."""

    def __init__(self, b: Importer, dtype: torch.dtype) -> None:
        self.b = b
        self.dtype = dtype

    def of(self, value: Any) -> int:
        """A number, or a size."""
        return self.b.cast(self.b.number(value), self.dtype)

    def do(self, op: str, *values: int | float) -> int:
        """An operator of the table; floats are numbers."""
        return self.b.add(op, *(self.of(v) if isinstance(v, float) else v for v in values))

    def within(self, value: int, last: int) -> int:
        """`value` from 0 to `last`."""
        return self.do("minimum", self.do("maximum", value, 0.0), last)

    def place(self, value: int) -> int:
        """A whole number as an index."""
        return self.b.cast(value, torch.int64)

    def cubic(self, t: int) -> list[int]:
        """Weights of the four pixels around a place that lies `t` behind the second one."""

        def far(d: int) -> int:
            inner = self.do("sub", self.do("mul", d, _A), self.of(5 * _A))
            inner = self.do("add", self.do("mul", inner, d), self.of(8 * _A))
            return self.do("sub", self.do("mul", inner, d), self.of(4 * _A))

        def near(d: int) -> int:
            inner = self.do("sub", self.do("mul", d, _A + 2), self.of(_A + 3))
            inner = self.do("mul", self.do("mul", inner, d), d)
            return self.do("add", inner, 1.0)

        rest = self.do("sub", self.of(1.0), t)
        return [far(self.do("add", t, 1.0)), near(t), near(rest), far(self.do("add", rest, 1.0))]


# Resizing ----------------------------------------------------------------------------------------


def _scales(count: int, given: Sequence[Any]) -> list[Any]:
    """By axis: a list or nothing, or one each."""
    if len(given) == 1 and (given[0] is None or isinstance(given[0], list | tuple)):
        return [None] * count if given[0] is None else list(given[0])
    return list(given)


def _step(n: _Numbers, size: Any, out: Any, scale: Any) -> int:
    """How many pixels lie between two of the result."""
    if scale is None:
        return n.do("div", n.of(size), n.of(out))
    if is_number(scale):
        return n.of(1.0 / scale) if scale > 0 else n.do("div", n.of(size), n.of(out))
    return n.b.cast(n.b.add("div", n.b.number(1.0), n.b.number(scale)), n.dtype)


def _steps(n: _Numbers, out: Any) -> int:
    return n.b.cast(n.b.add("iota", size=n.b.size(out)), n.dtype)


def _between(n: _Numbers, size: Any, out: Any, scale: Any, corners: bool) -> int:
    """Where the elements of the result lie among the pixels."""
    i = _steps(n, out)
    if corners:
        intervals = n.do("maximum", n.of(out - 1), 1.0)
        step = n.do("div", n.of(size - 1), intervals)
        if is_number(out) and out <= 1:
            step = n.of(0.0)
        elif not is_number(out):
            step = n.do("where", n.b.add("gt", n.b.number(out), n.b.number(1)), step, 0.0)
        return n.do("mul", i, step)
    at = n.do("mul", n.do("add", i, 0.5), _step(n, size, out, scale))
    return n.do("sub", at, 0.5)


def _linear(n: _Numbers, size: Any, out: Any, scale: Any, corners: bool) -> Taps:
    at = n.do("maximum", _between(n, size, out, scale, corners), 0.0)
    if not (is_number(size) and is_number(out)):  # the same size: the same pixels
        same = n.b.add("eq", n.b.number(size), n.b.number(out))
        at = n.do("where", same, _steps(n, out), at)
    last = n.of(size - 1)
    first = n.do("minimum", n.do("floor", at), last)
    weight = n.within(n.do("sub", at, first), n.of(1.0))
    second = n.do("minimum", n.do("add", first, 1.0), last)
    return [(n.place(first), n.do("sub", n.of(1.0), weight)), (n.place(second), weight)]


def _cubic(n: _Numbers, size: Any, out: Any, scale: Any, corners: bool) -> Taps:
    at = _between(n, size, out, scale, corners)
    base = n.do("floor", at)
    last = n.of(size - 1)
    places = [n.place(n.within(n.do("add", base, float(i - 1)), last)) for i in range(4)]
    return list(zip(places, n.cubic(n.do("sub", at, base)), strict=True))


def _resized(
    b: Importer, out: torch.Tensor, x: Tensor, corners: bool, scales: Sequence[Any],
    taps: Callable[..., Taps],
) -> int:  # fmt: skip
    """An axis after the other, the last one first."""
    if not x.is_float:
        raise Unsupported("an image of integers")
    if taps is _linear:
        _refuse_large(b, out, 2)
    n = _Numbers(b, _computed(x.dtype))
    count = x.rank - 2
    value = b.cast(x.id, n.dtype)
    for axis, scale in reversed(list(zip(range(2, x.rank), _scales(count, scales), strict=True))):
        size, wanted = x.shape[axis], out.shape[axis]
        b.at_least(size, 1)
        _refuse_none(b, wanted)
        if b.size(size) == b.size(wanted):
            continue
        shape = [1] * x.rank
        shape[axis] = wanted
        total = -1
        for place, weight in taps(n, size, wanted, scale, corners):
            part = b.add("take", value, place, axis=axis)
            part = b.add("mul", part, b.add("reshape", weight, shape=b.shape(shape)))
            total = part if total < 0 else b.add("add", total, part)
        value = total
    return value


@row("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_linear1d.vec",
     "upsample_bilinear2d.vec", "upsample_trilinear3d.vec")  # fmt: skip
def _upsample_linear(
    b: Importer, out: Any, x: Tensor, size: Any, corners: bool, *scales: Any
) -> int:
    return _resized(b, out, x, corners, scales, _linear)


@row("upsample_bicubic2d", "upsample_bicubic2d.vec")
def _upsample_cubic(
    b: Importer, out: Any, x: Tensor, size: Any, corners: bool, *scales: Any
) -> int:
    return _resized(b, out, x, corners, scales, _cubic)


def _copied(n: _Numbers, size: Any, out: Any, at: int) -> int:
    """Where pixels are copied as often as the sizes say, whatever scale is given: once, or twice.

    at: otherwise.
    """
    for times in (2, 1):
        if is_number(size) and is_number(out) and out != times * size:
            continue
        equal = n.b.add("eq", n.b.number(out), n.b.number(times * size))
        known = n.do("div", _steps(n, out), float(times))
        at = n.do("where", equal, known, at)
    return at


def _nearest(b: Importer, out: Any, x: Tensor, scales: Sequence[Any], exact: bool) -> int:
    _refuse_large(b, out, 2)
    n = _Numbers(b, _computed(x.dtype))
    value = x.id
    each = list(zip(range(2, x.rank), _scales(x.rank - 2, scales), strict=True))
    whole = all(s is None or (is_number(s) and s == int(s)) for _, s in each)
    if exact and x.dtype is torch.float64 and not whole:
        raise Unsupported("a scale that PyTorch rounds to float32")
    for axis, scale in reversed(each):  # rows are copied whole
        size, wanted = x.shape[axis], out.shape[axis]
        b.at_least(size, 1)
        _refuse_none(b, wanted)
        if b.size(size) == b.size(wanted) and scale is None:
            continue
        at, step = _steps(n, wanted), _step(n, size, wanted, scale)
        if exact:
            at = n.do("sub", n.do("mul", n.do("add", at, 0.5), step), 0.5)
            at = n.do("add", n.do("maximum", at, 0.0), 0.5)
        else:
            at = n.do("mul", at, step)
            if len(each) == 2:  # of others, PyTorch goes by the scale
                at = _copied(n, size, wanted, at)
        place = n.place(n.do("minimum", n.do("floor", at), n.of(size - 1)))
        value = b.add("take", value, place, axis=axis)
    return value


@row("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_nearest1d.vec",
     "upsample_nearest2d.vec", "upsample_nearest3d.vec")  # fmt: skip
def _upsample_nearest(b: Importer, out: Any, x: Tensor, size: Any, *scales: Any) -> int:
    return _nearest(b, out, x, scales, False)


@row("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
     "_upsample_nearest_exact1d.vec", "_upsample_nearest_exact2d.vec",
     "_upsample_nearest_exact3d.vec")  # fmt: skip
def _upsample_nearest_exact(b: Importer, out: Any, x: Tensor, size: Any, *scales: Any) -> int:
    return _nearest(b, out, x, scales, True)


_RATIOS = (1, 2, 4, 8, 12)  # of a size to the result's, which taps are for


def _ratio(b: Importer, size: Any, out: Any, scale: Any) -> int:
    """How many pixels, at most, lie between two of the result; for sizes, a guard says so.

    size, out: how many there are, or lie between the corners.
    """
    if scale is not None:
        if not is_number(scale) or scale <= 0:
            raise Unsupported("a scale that is not known")
        times: int = math.ceil(1 / scale)
        return times
    for ratio in _RATIOS:
        room = ratio * out - size
        if is_number(room):
            if room >= 0:
                return ratio
        elif room.node.hint is not None and room.node.hint >= 0:
            b.at_least(room, 0)
            return ratio
    raise Unsupported("a much smaller image")


@row("_upsample_bilinear2d_aa", "_upsample_bilinear2d_aa.vec")
def _antialiased(b: Importer, out: Any, x: Tensor, size: Any, corners: bool, *scales: Any) -> int:
    """Means of all pixels that lie nearer than those of the result do to each other, by a tent."""
    if x.dtype is not torch.float32:
        raise Unsupported("other dtypes")
    n = _Numbers(b, x.dtype)
    value = x.id
    for axis, scale in reversed(list(zip((2, 3), _scales(2, scales), strict=True))):
        pixels, wanted = x.shape[axis], out.shape[axis]
        b.at_least(pixels, 1)
        edge = 1 if corners else 0
        if corners and is_number(wanted) and wanted < 2:
            raise Unsupported("corners of one pixel")
        b.at_least(wanted, 1 + edge)
        given = None if corners else scale
        reach = _ratio(b, pixels - edge, wanted - edge, given)
        if reach > _RATIOS[-1]:
            raise Unsupported("a much smaller image")
        step = n.do("maximum", _step(n, pixels - edge, wanted - edge, given), 0.0)
        support = n.do("maximum", step, 1.0)
        center = n.do("mul", n.do("add", _steps(n, wanted), 0.5), step)
        first = n.do("trunc", n.do("add", n.do("sub", center, support), 0.5))
        first = n.do("maximum", first, 0.0)
        end = n.do("trunc", n.do("add", n.do("add", center, support), 0.5))
        end = n.do("minimum", end, n.of(pixels))
        same = b.add("eq", b.number(pixels), b.number(wanted))  # the pixel itself
        end = n.do("where", same, n.do("minimum", end, n.do("add", first, 1.0)), end)
        taps = []
        for j in range(2 * reach + 1):
            at = n.do("add", first, float(j))
            away = n.do("sub", n.do("add", at, 0.5), center)
            tent = n.do("sub", n.of(1.0), n.do("abs", n.do("div", away, support)))
            inside = n.do("lt", at, end)
            weight = n.do("where", inside, n.do("maximum", tent, 0.0), 0.0)
            taps.append((n.place(n.within(at, n.of(pixels - 1))), inside, weight))
        total = taps[0][2]
        for _, _, weight in taps[1:]:
            total = n.do("add", total, weight)
        shape = [1] * x.rank
        shape[axis] = wanted
        made = -1
        for place, inside, weight in taps:
            part = b.add("take", value, place, axis=axis)
            share, ok = (
                b.add("reshape", v, shape=b.shape(shape))
                for v in (n.do("div", weight, total), inside)
            )
            part = n.do("where", ok, b.add("mul", part, share), 0.0)
            made = part if made < 0 else b.add("add", made, part)
        value = made
    return value


# Grids -------------------------------------------------------------------------------------------

_ZEROS, _BORDER, _REFLECTION = range(3)
_NEAREST, _BICUBIC = 1, 2  # of 3 modes, the first of which is bilinear
_MOST_CUBIC = 1 << 12


class _Axis:
    """An axis that a grid points into."""

    def __init__(
        self, n: _Numbers, size: Any, padding: int, corners: bool, index: torch.dtype
    ) -> None:
        self.n, self.padding, self.corners, self.index = n, padding, corners, index
        self.size, self.last, self.count = size, n.of(size - 1), n.of(size)

    def pixels(self, at: int) -> int:
        """From -1 .. 1 to pixels."""
        n = self.n
        moved = n.do("add", at, 1.0)
        if self.corners:
            return n.do("mul", n.do("mul", moved, 0.5), self.last)
        return n.do("mul", n.do("sub", n.do("mul", moved, self.count), 1.0), 0.5)

    def _reflected(self, at: int) -> int:
        n = self.n
        low = 0.0 if self.corners else -0.5
        span = self.last if self.corners else self.count
        away = n.do("abs", n.do("sub", at, low))
        rest = n.do("fmod", away, span)
        flips = n.do("floor", n.do("div", away, span))
        odd = n.do("ne", n.do("remainder", flips, 2.0), 0.0)
        value = n.do("add", n.do("where", odd, n.do("sub", span, rest), rest), low)
        return n.do("where", n.do("eq", span, 0.0), n.of(0.0), value)

    def padded(self, at: int) -> int:
        """Where it reads, what is no number at 0."""
        n = self.n
        if self.padding == _ZEROS:
            return at
        if self.padding == _REFLECTION:
            at = self._reflected(at)
        return n.do("where", n.do("isnan", at), n.of(0.0), n.within(at, self.last))

    def inside(self, at: int) -> tuple[int, int]:
        """The pixel, or one that is there, and whether it is."""
        n = self.n
        ok = n.do("logical_and", n.do("ge", at, 0.0), n.do("le", at, self.last))
        return n.b.cast(n.do("where", ok, at, n.of(0.0)), self.index), ok

    def taps(self, at: int, mode: int) -> list[tuple[int, int | None]]:
        """Pixels around a place, and their weights."""
        n = self.n
        if mode == _NEAREST:
            return [(n.do("round", self.padded(at)), None)]
        if mode == _BICUBIC:  # a place beyond an edge reads as the edge says, pixel by pixel
            base = n.do("floor", at)
            pixels = [self.padded(n.do("add", base, float(i - 1))) for i in range(4)]
            return list(zip(pixels, n.cubic(n.do("sub", at, base)), strict=True))
        at = self.padded(at)
        first = n.do("floor", at)
        second = n.do("add", first, 1.0)
        return [(first, n.do("sub", second, at)), (second, n.do("sub", at, first))]


@row("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(
    b: Importer, out: Any, x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool
) -> int:
    """x: [N, C, sizes]; grid: [N, sizes of the result, axes], the last axis first."""
    count = x.rank - 2
    if x.dtype != grid.dtype or x.dtype not in (torch.float32, torch.float64):
        raise Unsupported("other dtypes")  # of 16 bits, PyTorch rounds places, too
    # Of a cubic, sixteen places an element, for each channel: PyTorch is quicker.
    if mode == _BICUBIC and not is_small(b, out.numel(), _MOST_CUBIC):
        raise Unsupported("a large image")
    _refuse_large(b, out)
    n = _Numbers(b, _computed(x.dtype))
    sizes = x.shape[2:]
    for size in (x.shape[1], *sizes):
        b.at_least(size, 1)
    many = math.prod(grid.shape[1:-1])
    points = b.cast(grid.id, n.dtype)
    # Places in 32 bits are as many to a vector as pixels.
    index = torch.int32 if is_small(b, math.prod(sizes), (1 << 31) - 1) else torch.int64
    taps = []
    for i, size in enumerate(sizes):
        axis = _Axis(n, size, padding, corners, index)
        at = b.add("select", points, axis=grid.rank - 1, index=count - 1 - i)
        at = b.add("reshape", at, shape=b.shape([grid.shape[0], 1, many]))
        taps.append([(*axis.inside(p), w) for p, w in axis.taps(axis.pixels(at), mode)])
    image = b.cast(x.id, n.dtype)
    image = b.add("reshape", image, shape=b.shape([*x.shape[:2], math.prod(sizes)]))
    total = -1
    for corner in product(*taps):
        position = ok = weight = -1
        for size, (place, inside, part) in zip(sizes, corner, strict=True):
            stride = b.cast(b.number(size), index)
            scaled = b.add("mul", position, stride) if position >= 0 else -1
            position = place if scaled < 0 else b.add("add", scaled, place)
            ok = inside if ok < 0 else b.add("logical_and", ok, inside)
            if part is not None:
                weight = part if weight < 0 else b.add("mul", weight, part)
        wide = b.add("expand", position, shape=b.shape([*x.shape[:2], many]))
        value = b.add("gather", image, wide, axis=2)
        value = b.add("where", ok, value, n.of(0.0))
        if weight >= 0:
            value = b.add("mul", value, weight)
        total = value if total < 0 else b.add("add", total, value)
    return b.add("reshape", total, shape=b.shape(out.shape))

"""ATen's functions of real numbers that are made of others: rows as in `torch_ops`.

Each is accurate to some units in the last place where its result is small, and ends where PyTorch's
does: beyond a threshold, a form that does not overflow before the function does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends.torch_convolutions import ROWS
from tilevm.frontends.torch_ops import Tensor, Unsupported, is_number, row

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["ROWS"]

_LARGE = 20.0  # from here on e^-x is nothing beside e^x, in any dtype
_HUGE = {torch.float16: 1e4}  # from here on 1 is nothing beside x^2; else:
_HUGER = 1e8


def _float(b: Importer, out: Any, x: Any) -> int:
    """The operand as the result's dtype: integers have no fractions."""
    return b.cast(b.operand(x), out.dtype)


def _odd(b: Importer, x: int, positive: int) -> int:
    """`positive` with the sign of x, and x where that is 0."""
    signed = b.add("where", b.add("lt", x, b.number(0)), b.add("neg", positive), positive)
    return b.add("where", b.add("eq", x, b.number(0)), x, signed)


def _cathetus(b: Importer, x: int) -> int:
    """sqrt(1 - x^2), without cancellation near 1."""
    one = b.number(1.0)
    return b.add("sqrt", b.add("mul", b.add("sub", one, x), b.add("add", one, x)))


@row("asin", "arcsin")
def _asin(b: Importer, out: Any, x: Tensor) -> int:
    value = _float(b, out, x)
    return b.add("atan2", value, _cathetus(b, value))


@row("acos", "arccos")
def _acos(b: Importer, out: Any, x: Tensor) -> int:
    value = _float(b, out, x)
    return b.add("atan2", _cathetus(b, value), value)


@row("atan", "arctan")
def _atan(b: Importer, out: Any, x: Tensor) -> int:
    return b.add("atan2", _float(b, out, x), b.number(1.0))


def _half_powers(b: Importer, a: int) -> int:
    """e^a / 2, which overflows as late as that does."""
    root = b.add("exp", b.add("mul", a, b.number(0.5)))
    return b.add("mul", b.add("mul", root, b.number(0.5)), root)


@row("sinh")
def _sinh(b: Importer, out: Any, x: Tensor) -> int:
    value = _float(b, out, x)
    a = b.add("abs", value)
    t = b.add("expm1", a)
    near = b.add("add", t, b.add("div", t, b.add("add", t, b.number(1.0))))
    far = b.add("gt", a, b.number(_LARGE))
    return _odd(
        b, value, b.add("where", far, _half_powers(b, a), b.add("mul", near, b.number(0.5)))
    )


@row("cosh")
def _cosh(b: Importer, out: Any, x: Tensor) -> int:
    a = b.add("abs", _float(b, out, x))
    near = b.add("add", b.add("exp", a), b.add("exp", b.add("neg", a)))
    far = b.add("gt", a, b.number(_LARGE))
    return b.add("where", far, _half_powers(b, a), b.add("mul", near, b.number(0.5)))


def _is_far(b: Importer, out: Any, a: int) -> int:
    return b.add("gt", a, b.number(_HUGE.get(out.dtype, _HUGER)))


def _log_of_twice(b: Importer, a: int) -> int:
    return b.add("add", b.add("log", a), b.number(math.log(2)))


@row("asinh", "arcsinh")
def _asinh(b: Importer, out: Any, x: Tensor) -> int:
    value = _float(b, out, x)
    a, one = b.add("abs", value), b.number(1.0)
    square = b.add("mul", a, a)
    root = b.add("sqrt", b.add("add", square, one))
    near = b.add("log1p", b.add("add", a, b.add("div", square, b.add("add", one, root))))
    far = _is_far(b, out, a)
    return _odd(b, value, b.add("where", far, _log_of_twice(b, a), near))


@row("acosh", "arccosh")
def _acosh(b: Importer, out: Any, x: Tensor) -> int:
    value = _float(b, out, x)
    t = b.add("sub", value, b.number(1.0))
    root = b.add("sqrt", b.add("mul", t, b.add("add", t, b.number(2.0))))
    inside = b.add("where", b.add("lt", value, b.number(1.0)), b.number(math.nan), root)
    near = b.add("log1p", b.add("add", t, inside))
    return b.add("where", _is_far(b, out, value), _log_of_twice(b, value), near)


@row("atanh", "arctanh")
def _atanh(b: Importer, out: Any, x: Tensor) -> int:
    value = _float(b, out, x)
    a = b.add("abs", value)
    ratio = b.add("div", b.add("add", a, a), b.add("sub", b.number(1.0), a))
    return _odd(b, value, b.add("mul", b.add("log1p", ratio), b.number(0.5)))


@row("hypot")
def _hypot(b: Importer, out: Any, x: Tensor, y: Tensor) -> int:
    """Scaled by the larger one, so that no square overflows."""
    one, other = (b.add("abs", _float(b, out, v)) for v in (x, y))
    large, small = b.add("maximum", one, other), b.add("minimum", one, other)
    ratio = b.add("div", small, large)
    root = b.add("sqrt", b.add("add", b.add("mul", ratio, ratio), b.number(1.0)))
    value = b.add("where", b.add("eq", large, b.number(0)), large, b.add("mul", large, root))
    infinite = b.add("logical_or", b.add("isinf", one), b.add("isinf", other))
    return b.add("where", infinite, b.number(math.inf), value)


@row("prims::fma")
def _fma(b: Importer, out: Any, x: Any, y: Any, z: Any) -> int:
    """X * y + z, rounded once: in the dtype that holds the product exactly."""
    if out.dtype == torch.float64:
        raise Unsupported("no dtype holds a product of float64 exactly")
    wide = torch.float64 if out.dtype == torch.float32 else torch.float32
    one, other, addend = (b.cast(b.operand(v), wide) for v in (x, y, z))
    return b.cast(b.add("add", b.add("mul", one, other), addend), out.dtype)


@row("angle")
def _angle(b: Importer, out: Any, x: Tensor) -> int:
    value = _float(b, out, x)
    half, none = (b.cast(b.number(n), out.dtype) for n in (math.pi, 0.0))
    turned = b.add("where", b.add("lt", value, b.number(0)), half, none)
    return b.add("where", b.add("isnan", value), value, turned)


@row("logit")
def _logit(b: Importer, out: Any, x: Tensor, eps: Any = None) -> int:
    value = _float(b, out, x)
    if eps is not None:
        if not is_number(eps):
            raise Unsupported("the margin is not known")
        value = b.add("maximum", value, b.number(eps))
        value = b.add("minimum", value, b.number(1.0 - eps))
    return b.add("log", b.add("div", value, b.add("sub", b.number(1.0), value)))


@row("prelu", "_prelu_kernel")
def _prelu(b: Importer, out: Any, x: Tensor, weight: Tensor) -> int:
    """weight: one number, or one for each of axis 1; of the kernel, it broadcasts."""
    slope = weight.id
    if x.rank != weight.rank:
        sizes = [1] * x.rank
        if x.rank > 1:
            sizes[1] = weight.fake.numel()
        slope = b.add("reshape", slope, shape=b.shape(sizes))
    positive = b.add("gt", x.id, b.number(0))
    return b.add("where", positive, x.id, b.add("mul", x.id, slope))


@row("bilinear")
def _bilinear(
    b: Importer, out: Any, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None
) -> int:
    """A product with all of the weight, [I, O * J], and of its rows with y."""
    if any(t.dtype is not torch.float32 for t in (x, y, weight)):
        raise Unsupported("products of other dtypes")
    many, inner, other = weight.shape
    turned = b.add("permute", weight.id, axes=[1, 0, 2])
    turned = b.add("reshape", turned, shape=b.shape([inner, many * other]))
    rows = b.add("reshape", b.add("matmul", x.id, turned), shape=b.shape([*out.shape, other]))
    products = b.add("mul", rows, b.add("unsqueeze", y.id, axis=y.rank - 1))
    value = b.add("sum", products, axes=[out.dim()], keepdims=False)
    return value if bias is None else b.add("add", value, bias.id)


# Neighbours and exponents ------------------------------------------------------------------------


@row("nextafter")
def _nextafter(b: Importer, out: Any, x: Tensor, y: Tensor) -> int:
    """Moved in float64 by more than half of what lies between numbers, and less than all of it
    and a half, which rounds to the neighbour.
    """
    if out.dtype is not torch.float32:
        raise Unsupported(f"neighbours in {str(out.dtype)[6:]}")
    narrow, goal = b.cast(x.id, out.dtype), b.cast(y.id, out.dtype)
    value = b.cast(narrow, torch.float64)
    size = b.add("abs", value)
    step = b.add("mul", size, b.number(1.25 * 2.0**-24))
    step = b.add("maximum", step, b.number(0.75 * 2.0**-149))
    up = b.add("gt", goal, narrow)
    moved = b.add("where", up, b.add("add", value, step), b.add("sub", value, step))
    largest = b.number(torch.finfo(torch.float32).max)
    ends = b.add("where", up, b.add("neg", largest), largest)
    moved = b.cast(b.add("where", b.add("isinf", value), ends, moved), out.dtype)
    # Of a number next to 0 the sign stays.
    moved = b.add("where", b.add("eq", moved, b.number(0)), b.add("copysign", moved, narrow), moved)
    same = b.add("where", b.add("eq", narrow, goal), goal, moved)
    broken = b.add("logical_or", b.add("isnan", narrow), b.add("isnan", goal))
    return b.add("where", broken, b.add("add", narrow, goal), same)


@row("frexp.Tensor")
def _frexp(b: Importer, out: Any, x: Tensor) -> tuple[int, int]:
    """Digit by digit of the exponent, by exact products in float64."""
    if x.dtype is not torch.float32:
        raise Unsupported(f"parts of {str(x.dtype)[6:]}")
    value = b.cast(x.id, torch.float64)
    shift = 150  # from here on all numbers but 0 are 1/2 or more
    part = b.add("mul", value, b.number(2.0**shift))
    exponent = b.cast(b.number(-float(shift)), torch.float64)
    for digit in (256, 128, 64, 32, 16, 8, 4, 2, 1):
        large = b.add("ge", b.add("abs", part), b.number(2.0 ** (digit - 1)))
        part = b.add("where", large, b.add("mul", part, b.number(2.0**-digit)), part)
        exponent = b.add("where", large, b.add("add", exponent, b.number(float(digit))), exponent)
    zero = b.add("eq", value, b.number(0))
    plain = b.add("logical_and", b.add("isfinite", value), b.add("logical_not", zero))
    part = b.add("where", plain, part, value)
    exponent = b.add("where", plain, exponent, b.number(0.0))
    return b.cast(part, x.dtype), b.cast(exponent, torch.int32)

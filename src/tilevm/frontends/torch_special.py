"""ATen's special functions, as arithmetic on the operators of the table: rows as in `torch_ops`.

Values of 16 bits are computed with as float32. Ranges are told apart at the end: what a form gives
outside of its own range, be it NaN, is not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends import torch_coefficients as known
from tilevm.frontends.torch_functions import ROWS
from tilevm.frontends.torch_ops import Tensor, Unsupported, is_number, row

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["ROWS"]


@dataclass(frozen=True)
class Value:
    """A value of the program that Python's operators append to."""

    b: Importer
    id: int
    dtype: torch.dtype

    def of(self, op: str, *others: Value | float) -> Value:
        """The operator of the table of this and the others."""
        ids = (o.id if isinstance(o, Value) else self.b.number(float(o)) for o in others)
        return Value(self.b, self.b.add(op, self.id, *ids), self.dtype)

    def __add__(self, other: Value | float) -> Value:
        return self.of("add", other)

    def __sub__(self, other: Value | float) -> Value:
        return self.of("sub", other)

    def __mul__(self, other: Value | float) -> Value:
        return self.of("mul", other)

    def __truediv__(self, other: Value | float) -> Value:
        return self.of("div", other)

    def __radd__(self, other: float) -> Value:
        return self.of("add", other)

    def __rsub__(self, other: float) -> Value:
        return self.number(other).of("sub", self)

    def __rmul__(self, other: float) -> Value:
        return self.of("mul", other)

    def __rtruediv__(self, other: float) -> Value:
        return self.number(other).of("div", self)

    def __neg__(self) -> Value:
        return self.of("neg")

    def cast(self, dtype: torch.dtype) -> Value:
        """The same, as another dtype."""
        return Value(self.b, self.b.cast(self.id, dtype), dtype)

    def number(self, value: float) -> Value:
        """A number of the same dtype."""
        return Value(self.b, self.b.cast(self.b.number(float(value)), self.dtype), self.dtype)


def where(condition: Value, x: Value | float, y: Value | float) -> Value:
    """`x` where the condition holds, `y` elsewhere."""
    return condition.of("where", x, y)


def _polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """By Horner's rule, the highest power first."""
    value = x * coefficients[0] + coefficients[1] if coefficients[0] != 1 else x + coefficients[1]
    for c in coefficients[2:]:
        value = value * x + c
    return value


def _ratio(x: Value, above: Sequence[float], below: Sequence[float]) -> Value:
    return _polynomial(x, above) / _polynomial(x, below)


def _series(x: Value, coefficients: Sequence[float]) -> Value:
    """A Chebyshev series on [-2, 2], the last term first, by Clenshaw's rule.

    Terms that a sum of this dtype does not see are left out.
    """
    least = torch.finfo(x.dtype).eps / 16 * max(map(abs, coefficients))
    first = next(i for i, c in enumerate(coefficients) if abs(c) > least)
    kept = coefficients[first:]
    before, value = x.number(0.0), x.number(kept[0])
    last = before
    for c in kept[1:]:
        last, before = before, value
        value = x * before - last + c
    return (value - last) * 0.5


_Function = Callable[[Value], Value]


def _row(
    *names: str, narrow: bool = False, double: bool = False
) -> Callable[[_Function], _Function]:
    """Enter a function of one value of float32 as the row of operators of a tensor.

    narrow: or of 16 bits, where PyTorch has some. double: or of float64; others call the C library
    there, which takes longer than PyTorch does.
    """

    def enter(function: _Function) -> _Function:
        def run(b: Importer, out: Any, x: Tensor) -> int:
            return function(wide(b, out, x, narrow, double)).id

        row(*names)(run)
        return function

    return enter


def wide(b: Importer, out: Any, x: Tensor, narrow: bool = True, double: bool = False) -> Value:
    allowed = {torch.float32: True, torch.float64: double}
    if not allowed.get(out.dtype, narrow):
        raise Unsupported(f"functions of {str(out.dtype)[6:]}")
    dtype = torch.float64 if out.dtype == torch.float64 else torch.float32
    return Value(b, b.cast(b.cast(x.id, out.dtype), dtype), dtype)


# Modified Bessel functions -----------------------------------------------------------------------


def _i_near(a: Value, order: int) -> Value:
    """e^-a I(a) where a <= 8."""
    value = _series(a / 2.0 - 2.0, known.I0_NEAR if order == 0 else known.I1_NEAR)
    return value * a if order else value


def _i_scaled(x: Value, order: int, factor: _Function | None = None) -> Value:
    """I(x), times e^-|x| unless there is a factor."""
    a = x.of("abs")
    near = _i_near(a, order)
    far = _series(32.0 / a - 2.0, known.I0_FAR if order == 0 else known.I1_FAR)
    if factor is not None:
        scale = factor(a)
        near, far = scale * near, scale * far
    value = where(a.of("le", 8.0), near, far / a.of("sqrt"))
    return where(x.of("lt", 0.0), -value, value) if order else value


def _exp(x: Value) -> Value:
    return x.of("exp")


@_row("special_modified_bessel_i0", double=True)
@_row("i0", "special_i0", narrow=True, double=True)
def _i0(x: Value) -> Value:
    return _i_scaled(x, 0, _exp)


@_row("special_i0e", narrow=True, double=True)
def _i0e(x: Value) -> Value:
    return _i_scaled(x, 0)


@_row("special_modified_bessel_i1", double=True)
@_row("special_i1", narrow=True, double=True)
def _i1(x: Value) -> Value:
    return _i_scaled(x, 1, _exp)


@_row("special_i1e", narrow=True, double=True)
def _i1e(x: Value) -> Value:
    return _i_scaled(x, 1)


def _k(x: Value, order: int, scaled: bool) -> Value:
    inside = (x * 0.5).of("log") * (_exp(x) * _i_near(x, order))
    square = x * x - 2.0
    if order:
        near = inside + _series(square, known.K1_NEAR) / x
    else:
        near = _series(square, known.K0_NEAR) - inside
    far = _series(8.0 / x - 2.0, known.K1_FAR if order else known.K0_FAR)
    if scaled:
        near = near * _exp(x)
    else:
        far = _exp(-x) * far
    value = where(x.of("le", 2.0), near, far / x.of("sqrt"))
    value = where(x.of("eq", 0.0), math.inf, value)
    return where(x.of("lt", 0.0), math.nan, value)


@_row("special_modified_bessel_k0")
def _k0(x: Value) -> Value:
    return _k(x, 0, False)


@_row("special_modified_bessel_k1")
def _k1(x: Value) -> Value:
    return _k(x, 1, False)


@_row("special_scaled_modified_bessel_k0", double=True)
def _k0_scaled(x: Value) -> Value:
    return _k(x, 0, True)


@_row("special_scaled_modified_bessel_k1", double=True)
def _k1_scaled(x: Value) -> Value:
    return _k(x, 1, True)


# Bessel functions --------------------------------------------------------------------------------

_EDGE = 5.0  # from here on, a wave
_TWO_OVER_PI = 2 / math.pi
_ZEROS = (  # squared, of J0 and J1
    (5.78318596294678452118, 30.4712623436620863991),
    (14.6819706421238932572, 49.2184563216946036703),
)


def _j_near(x: Value, order: int) -> Value:
    square = x * x
    first, second = _ZEROS[order]
    if order:
        ratio = _ratio(square, known.BESSEL_JP1, known.BESSEL_JQ1)
        return ratio * x * (square - first) * (square - second)
    value = (square - first) * (square - second) * _polynomial(square, known.BESSEL_JP0)
    value = value / _polynomial(square, known.BESSEL_JQ0)
    return where(x.of("lt", 1e-5), 1.0 - square / 4.0, value)


def _wave(x: Value, order: int, second: bool) -> Value:
    """J, or Y, of x > 5."""
    above, below = (
        ((known.BESSEL_PP1, known.BESSEL_PQ1), (known.BESSEL_QP1, known.BESSEL_QQ1))
        if order
        else ((known.BESSEL_PP0, known.BESSEL_PQ0), (known.BESSEL_QP0, known.BESSEL_QQ0))
    )
    inverse = _EDGE / x
    square = inverse * inverse if order else 25.0 / (x * x)
    p, q = _ratio(square, *above), inverse * _ratio(square, *below)
    phase = x - (2 * order + 1) * math.pi / 4
    sine, cosine = phase.of("sin"), phase.of("cos")
    sum_of = p * sine + q * cosine if second else p * cosine - q * sine
    return sum_of * math.sqrt(_TWO_OVER_PI) / x.of("sqrt")


@_row("special_bessel_j0")
def _j0(x: Value) -> Value:
    a = x.of("abs")
    return where(a.of("le", _EDGE), _j_near(a, 0), _wave(a, 0, False))


@_row("special_bessel_j1")
def _j1(x: Value) -> Value:
    a = x.of("abs")
    value = where(a.of("le", _EDGE), _j_near(a, 1), _wave(a, 1, False))
    return where(x.of("lt", 0.0), -value, value)


def _y(x: Value, order: int) -> Value:
    square, log = x * x, x.of("log")
    if order:
        near = x * _ratio(square, known.BESSEL_YP1, known.BESSEL_YQ1)
        near = near + _TWO_OVER_PI * (_j_near(x, 1) * log - 1.0 / x)
    else:
        near = _ratio(square, known.BESSEL_YP0, known.BESSEL_YQ0)
        near = near + _TWO_OVER_PI * log * _j_near(x, 0)
    value = where(x.of("le", _EDGE), near, _wave(x, order, True))
    value = where(x.of("eq", 0.0), -math.inf, value)
    return where(x.of("lt", 0.0), math.nan, value)


@_row("special_bessel_y0")
def _y0(x: Value) -> Value:
    return _y(x, 0)


@_row("special_bessel_y1")
def _y1(x: Value) -> Value:
    return _y(x, 1)


@_row("special_spherical_bessel_j0")
def _spherical_j0(x: Value) -> Value:
    """sin(x) / x; near 0 its Taylor series."""
    terms = [(-1) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1)]
    near = _polynomial(x * x, terms)
    value = where(x.of("abs").of("lt", 0.5), near, x.of("sin") / x)
    return where(x.of("isinf"), 0.0, value)


# Airy functions ----------------------------------------------------------------------------------

_AIRY_EDGE = 2.09
_AIRY_AT_0 = 0.355028053887817239260, 0.258819403792806798405  # Ai(0), -Ai'(0)
_ROOT_PI = math.sqrt(math.pi)


def _airy_near(x: Value) -> Value:
    """Of |x| <= 2.09, by the power series of Abramowitz and Stegun 10.4.3."""
    cube = x * x * x
    largest, terms = _AIRY_EDGE**3, 1
    size = 1.0
    while size > torch.finfo(x.dtype).eps / 4:
        size *= largest / ((3 * terms) * (3 * terms - 1))
        terms += 1
    one = two = 1.0
    ones, twos = [1.0], [1.0]
    for k in range(1, terms):
        one /= (3 * k - 1) * (3 * k)
        two /= (3 * k) * (3 * k + 1)
        ones.append(one)
        twos.append(two)
    f, g = _polynomial(cube, ones[::-1]), _polynomial(cube, twos[::-1])
    return _AIRY_AT_0[0] * f - _AIRY_AT_0[1] * x * g


@_row("special_airy_ai")
def _airy(x: Value) -> Value:
    a = x.of("abs")
    root = a.of("sqrt")
    zeta = 2.0 * a * root / 3.0
    inverse = 1.0 / zeta
    decay = _ratio(inverse, known.AIRY_AN, known.AIRY_AD) / (2.0 * root.of("sqrt") * _exp(zeta))
    square = inverse * inverse
    phase = zeta + math.pi / 4
    f = 1.0 + square * _ratio(square, known.AIRY_AFN, known.AIRY_AFD)
    g = inverse * _ratio(square, known.AIRY_AGN, known.AIRY_AGD)
    wave = (phase.of("sin") * f - phase.of("cos") * g) / root.of("sqrt")
    far = where(x.of("gt", 0.0), decay, wave) * (1 / _ROOT_PI)
    value = where(a.of("le", _AIRY_EDGE), _airy_near(x), far)
    value = where(x.of("gt", 103.892), 0.0, value)
    return where(x.of("isinf"), math.nan, value)


# Error functions ---------------------------------------------------------------------------------

_MIDDLE = 0.46875  # below, 1 - erf(x) is as good


def _tail(a: Value) -> Value:
    """e^(a^2) erfc(a) where a > 0.46875."""
    near, square = a.of("le", 4.0), 1.0 / (a * a)
    rest = _polynomial(square, known.ERFC_Q)
    far = rest * (1 / _ROOT_PI) - square * _polynomial(square, known.ERFC_P)
    above = where(near, _polynomial(a, known.ERFC_C), far)
    return above / where(near, _polynomial(a, known.ERFC_D), a * rest)


_NOTHING = 30.0  # e^(-a^2) is 0 here in float32


@_row("erfc", "special_erfc", narrow=True)
def _erfc(x: Value) -> Value:
    """The ratio in float64, so that what is rounded are the two powers of e."""
    a = x.of("abs").of("minimum", _NOTHING)
    few = (a * 16.0).of("trunc") * (1 / 16)  # its square is exact
    power = (_exp(-(few * few)) * _exp((few - a) * (a + few))).cast(torch.float64)
    tail = power * _tail(a.cast(torch.float64))
    far = where(x.of("lt", 0.0), 2.0 - tail, tail).cast(x.dtype)
    return where(a.of("le", _MIDDLE), 1.0 - x.of("erf"), far)


@_row("special_erfcx")
def _erfcx(x: Value) -> Value:
    a = x.of("abs")
    square = _exp(x * x)
    near = square * (1.0 - x.of("erf"))
    far = _tail(a)
    far = where(x.of("lt", 0.0), 2.0 * square - far, far)
    value = where(a.of("le", _MIDDLE), near, far)
    value = where(x.of("gt", 5e7), (1 / _ROOT_PI) / x, value)  # its square is infinite
    return where(x.of("lt", -26.7), math.inf, value)


@_row("special_log_ndtr")
def _log_ndtr(x: Value) -> Value:
    t = x * math.sqrt(0.5)
    low = (_erfcx(-t) / 2.0).of("log") - t * t
    high = (-_erfc(t) / 2.0).of("log1p")
    return where(x.of("lt", -1.0), low, high)


@row("erfinv", "special_erfinv")
def _erfinv(b: Importer, out: Any, given: Tensor) -> int:
    x = wide(b, out, given)
    w = -((1.0 - x) * (1.0 + x)).of("log")
    near = _polynomial(w - 2.5, known.ERFINV_NEAR)
    far = _polynomial(w.of("sqrt") - 3.0, known.ERFINV_FAR)
    value = where(w.of("lt", 5.0), near, far) * x
    return where(x.of("abs").of("eq", 1.0), x * math.inf, value).id


@_row("special_ndtri")
def _ndtri(x: Value) -> Value:
    edge = math.exp(-2)
    upper = x.of("gt", 1 - edge)
    y = where(upper, 1.0 - x, x)
    centred = y - 0.5
    square = centred * centred
    middle = centred + centred * (square * _ratio(square, known.NDTRI_P0, known.NDTRI_Q0))
    middle = middle * math.sqrt(2 * math.pi)
    z = (-2.0 * y.of("log")).of("sqrt")
    inverse = 1.0 / z
    near, far = (
        inverse * _ratio(inverse, p, q)
        for p, q in ((known.NDTRI_P1, known.NDTRI_Q1), (known.NDTRI_P2, known.NDTRI_Q2))
    )
    tail = z - z.of("log") / z - where(z.of("lt", 8.0), near, far)
    tail = where(upper, tail, -tail)
    value = where(y.of("gt", edge), middle, tail)
    value = where(x.of("eq", 0.0), -math.inf, where(x.of("eq", 1.0), math.inf, value))
    return where(x.of("lt", 0.0).of("logical_or", x.of("gt", 1.0)), math.nan, value)


@_row("log10", narrow=True)
def _log10(x: Value) -> Value:
    """Exact for powers of 10, in float32."""
    return x.of("log") / math.log(10)


# Gamma function ----------------------------------------------------------------------------------

_LGAMMA_EDGE = 8  # from here on, Stirling's series: Abramowitz and Stegun 6.1.41
_STIRLING = (1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


@_row("lgamma", "special_gammaln", narrow=True)
def _lgamma(x: Value) -> Value:
    """In float64: of two large terms little is left near the zeros, which lie close below 0.

    Up to 8 by recurrence (6.1.15), below 0 by reflection (6.1.17); both are factors of one
    logarithm.
    """
    wide = Value(x.b, x.b.cast(x.id, torch.float64), torch.float64)
    a = wide.of("abs")
    near = a.of("lt", float(_LGAMMA_EDGE))
    factors = a
    for k in range(1, _LGAMMA_EDGE):
        factors = factors * (a + float(k))
    factors = where(near, factors, 1.0)
    z = where(near, a + float(_LGAMMA_EDGE), a)
    inverse = 1.0 / z
    rest = inverse * _polynomial(inverse * inverse, _STIRLING)
    value = (z - 0.5) * (z.of("log") - 1.0) + (_HALF_LOG_2PI - 0.5) + rest
    part = a - a.of("round")
    sine = (part * math.pi).of("sin").of("abs")
    below = wide.of("lt", 0.0)
    above = where(below, math.pi * factors, 1.0)
    log = (above / where(below, a * sine, factors)).of("log")
    value = where(below, -value, value) + log
    value = where(a.of("eq", math.inf), math.inf, value)
    return Value(x.b, x.b.cast(value.id, x.dtype), x.dtype)


@row("mvlgamma", "special_multigammaln")
def _mvlgamma(b: Importer, out: Any, x: Tensor, p: Any) -> int:
    """Sum of lgamma(x - j / 2) for j < p, and a constant."""
    if not is_number(p) or p < 1:
        raise Unsupported("the dimension is not known")
    value = wide(b, out, x)
    sum_of = _lgamma(value)
    for j in range(1, p):
        sum_of = sum_of + _lgamma(value - j / 2)
    constant: float = p * (p - 1) / 4 * math.log(math.pi)
    return (sum_of + constant).id


# Derivatives of the gamma function's logarithm ---------------------------------------------------

_STEPS = 10  # by which small arguments are shifted, until the asymptotic series holds
# Abramowitz and Stegun 6.3.18: Bernoulli numbers B(2k) / 2k from k = 7 down to 1.
_DIGAMMA = (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)


@_row("digamma", "special_digamma", "special_psi", narrow=True)
def digamma(x: Value) -> Value:
    """By reflection below 0 (6.3.7), and recurrence (6.3.6)."""
    negative = x.of("lt", 0.0)
    y = where(negative, 1.0 - x, x)
    small = y.of("lt", float(_STEPS))
    sum_of = 1.0 / y
    for k in range(1, _STEPS):
        sum_of = sum_of + 1.0 / (y + float(k))
    z = where(small, y + float(_STEPS), y)
    square = 1.0 / (z * z)
    value = z.of("log") - 0.5 / z - square * _polynomial(square, _DIGAMMA)
    value = where(small, value - sum_of, value)
    part = x - x.of("round")
    reflected = value - math.pi / (part * math.pi).of("tan")
    reflected = where(part.of("eq", 0.0), math.nan, reflected)
    value = where(negative, reflected, value)
    value = where(x.of("eq", 0.0), x.number(math.inf).of("copysign", -x), value)
    return where(x.of("eq", -math.inf), math.nan, value)


_TRIGAMMA_STEPS = 6


def trigamma(x: Value) -> Value:
    """As digamma: 6.4.7, 6.4.6, 6.4.12."""
    low = x.of("lt", 0.5)
    y = where(low, 1.0 - x, x)
    sum_of = 1.0 / (y * y)
    for k in range(1, _TRIGAMMA_STEPS):
        z = y + float(k)
        sum_of = sum_of + 1.0 / (z * z)
    z = y + float(_TRIGAMMA_STEPS)
    square = 1.0 / (z * z)
    series = 1.0 / 6 - square * (1.0 / 30 - square * (1.0 / 42))
    value = sum_of + (1.0 + 0.5 / z + square * series) / z
    sine = (x * math.pi).of("sin")
    return where(low, math.pi**2 / (sine * sine) - value, value)

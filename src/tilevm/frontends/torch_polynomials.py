"""ATen's functions that take as many steps as an element of a tensor says: orthogonal polynomials,
the zeta function. Rows as in `torch_ops`.

Each takes a fixed number of steps, and calls check that these are enough: others run eagerly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends.torch_data import most_of, operand_at_most
from tilevm.frontends.torch_ops import Tensor, Unsupported, fixed, is_number, row
from tilevm.frontends.torch_special import ROWS, Value, digamma, trigamma, where, wide

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["ROWS"]

_MOST = 32  # the degree up to which calls stay in the core; each is a step of the recurrence

_First = Callable[[Value], Value]  # of degree 1
_Next = Callable[[int, Value, Value, Value], Value]  # k, x, degree k, degree k - 1: degree k + 1


def _twice(k: int, x: Value, p: Value, before: Value) -> Value:
    return (x + x) * p - before


def _hermite_h(k: int, x: Value, p: Value, before: Value) -> Value:
    return (x + x) * p - before * (2.0 * k)


def _hermite_he(k: int, x: Value, p: Value, before: Value) -> Value:
    return x * p - before * float(k)


def _laguerre(k: int, x: Value, p: Value, before: Value) -> Value:
    return (((2.0 * k + 1.0) - x) * p - before * float(k)) / (k + 1.0)


def _legendre(k: int, x: Value, p: Value, before: Value) -> Value:
    return (x * (2.0 * k + 1.0) * p - before * float(k)) / (k + 1.0)


# By name: degree 1, and how the next one follows. Shifted ones are those of 2 x - 1.
_RECURRENCES: dict[str, tuple[_First, _Next]] = {
    "chebyshev_polynomial_t": (lambda x: x, _twice),
    "chebyshev_polynomial_u": (lambda x: x + x, _twice),
    "chebyshev_polynomial_v": (lambda x: x + x - 1.0, _twice),
    "chebyshev_polynomial_w": (lambda x: x + x + 1.0, _twice),
    "hermite_polynomial_h": (lambda x: x + x, _hermite_h),
    "hermite_polynomial_he": (lambda x: x, _hermite_he),
    "laguerre_polynomial_l": (lambda x: 1.0 - x, _laguerre),
    "legendre_polynomial_p": (lambda x: x, _legendre),
}


def _polynomial(name: str, shifted: bool) -> None:
    first, following = _RECURRENCES[name]

    def run(b: Importer, out: Any, x: Any, degree: Any) -> int:
        if out.dtype is not torch.float32:  # PyTorch takes other forms, or rounds as often
            raise Unsupported(f"polynomials of {str(out.dtype)[6:]}")
        if is_number(degree) and degree > _MOST:
            raise Unsupported(f"a degree above {_MOST}")

        def given(value: Any) -> Value:
            """Of float64, after it was rounded to what PyTorch computes in."""
            narrow = b.cast(b.operand(value), out.dtype)
            return Value(b, b.cast(narrow, torch.float64), torch.float64)

        n = given(degree).of("trunc")
        if isinstance(degree, Tensor):
            operand_at_most(b, degree, _MOST, f"{name}: a degree above {_MOST}")
        elif not is_number(degree):
            most_of(b, n.id, 0, _MOST, f"{name}: a degree above {_MOST}")
        argument = given(x)
        if shifted:
            argument = argument + argument - 1.0
        before, p = argument.number(1.0), first(argument)
        value = where(n.of("eq", 0.0), 1.0, p)
        for k in range(1, _MOST):
            before, p = p, following(k, argument, p, before)
            value = where(n.of("gt", float(k)), p, value)
        return where(n.of("ge", 0.0), value, 0.0).id

    prefix = "special_shifted_" if shifted else "special_"
    row(*(prefix + name + end for end in ("", ".x_scalar", ".n_scalar")))(run)


for _name in _RECURRENCES:
    _polynomial(_name, False)
    if _name.startswith("chebyshev"):
        _polynomial(_name, True)


# Zeta --------------------------------------------------------------------------------------------

_SUMMED = 9  # terms before Euler's and Maclaurin's formula takes over
# (2 j)! / B(2 j): what the terms of the formula are divided by.
_DIVISORS = (
    12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9,
    7.47242496e10, -2.950130727918164224e12, 1.1646782814350067249e14,
    -4.5979787224074726105e15, 1.8152105401943546773e17, -7.1661652561756670113e18,
)  # fmt: skip


def _sum_of_powers(x: Value, q: Value) -> tuple[Value, Value]:
    """The sum of (q + k)^-x over k, and the last power that was added; q > 0, of float64, as the
    sums are. Powers are of float32.
    """
    wide = x.cast(torch.float64)
    term = total = wide.number(0.0)
    for k in range(_SUMMED + 1):
        place = (q + float(k)).cast(torch.float32)
        term = place.of("pow", -x).cast(torch.float64)
        total = total + term
    end = place.cast(torch.float64)
    total = total + term * end / (wide - 1.0) - term * 0.5
    factor = term
    for j, divisor in enumerate(_DIVISORS):
        if j:
            factor = factor * ((wide + (2.0 * j - 1.0)) / end)
        factor = factor * ((wide + 2.0 * j) / end)
        total = total + factor / divisor
    return total, term


def _zeta_of(b: Importer, x: Value, q: Value) -> Value:
    """The sum of (q + k)^-x over k, of x > 1.

    Of negative q and whole x, what lies below 0 is finite: the sums from the distance to the next
    whole number below and from 1 - q on differ by it, and its sign is that of (-1)^x.
    """
    integral = q.of("eq", q.of("floor"))
    whole = x.of("eq", x.of("floor"))
    negative = q.of("lt", 0.0)
    size = q.of("abs").cast(torch.float64)
    rest = size - size.of("floor")
    start = where(negative, 1.0 - rest, q.cast(torch.float64))
    total, last = _sum_of_powers(x, start)
    value = total.cast(torch.float32)
    tiny = last.of("eq", 0.0).of("logical_and", x.of("gt", 1e6))
    value = where(tiny, q.of("pow", -x), value)
    value = where(x.of("isinf").of("logical_and", q.of("gt", 1.0)), math.nan, value)
    below = _sum_of_powers(x, rest)[0] - _sum_of_powers(x, size + 1.0)[0]
    odd = (x * 0.5).of("ne", (x * 0.5).of("floor"))
    signed = where(odd, total - below, total + below).cast(torch.float32)
    signed = where(x.of("isinf"), math.inf, signed)  # some power is of less than 1
    value = where(negative, where(whole, signed, math.nan), value)
    value = where(q.of("le", 0.0).of("logical_and", integral), math.inf, value)
    value = where(x.of("eq", 1.0), math.inf, value)
    return where(x.of("lt", 1.0), math.nan, value)


def _value(b: Importer, out: Any, x: Any) -> Value:
    if out.dtype is not torch.float32:
        raise Unsupported(f"zeta of {str(out.dtype)[6:]}")
    return Value(b, b.cast(b.operand(x), torch.float32), torch.float32)


@row("special_zeta", "special_zeta.self_scalar", "special_zeta.other_scalar")
def _zeta(b: Importer, out: Any, x: Any, q: Any) -> int:
    return _zeta_of(b, _value(b, out, x), _value(b, out, q)).id


@row("polygamma", "special_polygamma")
def _polygamma(b: Importer, out: Any, n: Any, x: Tensor) -> int:
    n = fixed(b, n)
    if not is_number(n):
        raise Unsupported("a derivative of unknown order")
    if n < 2:
        return (trigamma if n else digamma)(wide(b, out, x)).id
    value = _value(b, out, x)
    factor = (1.0 if n % 2 else -1.0) * math.exp(math.lgamma(n + 1.0))
    if not math.isfinite(factor) or factor > torch.finfo(torch.float32).max:
        raise Unsupported(f"a derivative of order {n}")
    return (_zeta_of(b, value.number(n + 1.0), value) * factor).id

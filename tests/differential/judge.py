"""Whether a result is right: DESIGN section 11.

Integers and bools are exact. Floats: infinities and NaN where the reference has them; elsewhere the
largest error against float64 is at most 1.5 times that of PyTorch eager, plus 2 units in the last
place of the output's dtype. The reference is itself rounded to that dtype: half of these units.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilevm.ir.types import numpy_dtype

Array = Any
_EXPONENT = {  # least exponent, bits of the fraction
    "float32": (-126, 23),
    "bfloat16": (-126, 7),
    "float64": (-1022, 52),
    "float16": (-14, 10),
}
UNITS = 2.0
TIMES = 1.5


def ulp(x: Array, dtype: str) -> Array:
    """The distance to the next value of `dtype` at |x|."""
    least, bits = _EXPONENT[dtype]
    _, exponent = np.frexp(np.abs(x))
    return np.ldexp(np.ones((), x.dtype), np.maximum(exponent - 1, least) - bits)


def is_float(x: Array) -> bool:
    return x.dtype.name in _EXPONENT


def wide(x: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(np.float64)


def same_bits(x: Array, y: Array) -> bool:
    return bool(x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes())


def at(wrong: Array, **values: Array) -> str:
    """The first elements that are wrong, for messages."""
    where = [tuple(int(i) for i in index) for index in np.argwhere(wrong)[:4]]
    rows = [
        f"  {list(index)}: " + ", ".join(f"{k} {v[index]!r}" for k, v in values.items())
        for index in where
    ]
    return f"{np.count_nonzero(wrong)} of {np.size(wrong)} elements\n" + "\n".join(rows)


def check(
    found: Array,
    expected: Array,
    eager: Array | None = None,
    *,
    by: str = "units",
    zeros: bool = False,
) -> None:
    """`found` against the reference's result and eager's, which gives the yardstick.

    by: "units", errors in units of each element's last place; "largest", the largest error there
    is, for sums that cancel. zeros: the sign of zero must be eager's.
    """
    assert found.dtype == expected.dtype, f"dtype {found.dtype}, the reference's {expected.dtype}"
    assert found.shape == expected.shape, f"shape {found.shape}, the reference's {expected.shape}"
    if eager is not None:
        assert found.dtype == eager.dtype, f"dtype {found.dtype}, eager's {eager.dtype}"
        assert found.shape == eager.shape, f"shape {found.shape}, eager's {eager.shape}"
    if not is_float(found):
        wrong = found != expected
        assert not np.any(wrong), at(wrong, found=found, expected=expected)
        return
    f, e = wide(found), wide(expected)
    finite = np.isfinite(e)
    wrong = ~finite & ~((f == e) | (np.isnan(f) & np.isnan(e)))
    assert not np.any(wrong), at(wrong, found=f, expected=e)
    unit = ulp(np.where(finite, e, 0), found.dtype.name)
    error = np.where(finite, np.abs(np.where(finite, f, 0) - np.where(finite, e, 0)), 0)
    allowed = UNITS * unit
    g = None if eager is None else wide(eager)
    if g is not None:
        both = finite & np.isfinite(g)
        theirs = np.where(both, np.abs(np.where(both, g, 0) - np.where(both, e, 0)), 0)
        if by == "units":
            allowed += TIMES * np.max(theirs / unit, initial=0) * unit
        else:
            allowed += TIMES * np.max(theirs, initial=0)
    wrong = (error > allowed) | (finite & ~np.isfinite(f))
    values = {"found": f, "expected": e, **({} if g is None else {"eager": g})}
    assert not np.any(wrong), f"{at(wrong, **values)}\n  allowed {np.max(allowed / unit)} units"
    if zeros and g is not None:
        zero = (e == 0) & (f == 0) & (g == 0)
        wrong = zero & (np.signbit(f) != np.signbit(g))
        assert not np.any(wrong), "sign of zero: " + at(wrong, **values)


def bits_of(dtype: str) -> int:
    return int(numpy_dtype(dtype).itemsize * 8)

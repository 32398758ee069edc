"""Whether results are what they should be, but for rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tilevm.ir.types import FLOATS

Array = np.ndarray[Any, Any]
# Up or down at random, or all to a number. As text: to look at numpy.random imports it.
Towards: TypeAlias = "np.random.Generator | float"

UNITS = 64  # a result that differs by more units of the largest value is wrong
COARSE_UNITS = 4  # of the coarsest type that a value on the way was rounded to
TIMES = 8  # what small changes on the way do to a result may count as rounding, so often
SAMPLES = 8  # of such changes at random
_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def differences(
    found: Sequence[Array],
    exact: Sequence[Array],
    *,
    dtypes: Sequence[str] = (),
    samples: Sequence[Sequence[Array]] = (),
) -> list[str]:
    """What is wrong with results, beyond rounding.

    dtypes: of values on the way. samples: what the exact results may as well be; elements that are
    not finite in one of them, or integers that differ, are not compared.
    """
    wrong = []
    if len(found) != len(exact):
        return [f"{len(found)} results, not {len(exact)}"]
    coarsest = max((_EPSILON.get(dtype, 0.0) for dtype in dtypes), default=0.0)
    for i, (a, b) in enumerate(zip(found, exact, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            wrong.append(f"result {i} is {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}")
            continue
        unit = _EPSILON.get(a.dtype.name, 0.0)
        x, y = _wide(a), _wide(b)
        off = _distance(x, y)
        finite = np.abs(y[np.isfinite(y)]) if unit else np.zeros(0)
        allowed: Any = max(UNITS * unit, COARSE_UNITS * coarsest) * float(finite.max(initial=0.0))
        for sample in samples:
            if sample[i].shape != b.shape:
                off[...] = 0  # its size depends on rounding
                continue
            moved = _distance(_wide(sample[i]), y)
            off[~np.isfinite(moved) if unit else moved > 0] = 0
            if unit:
                allowed = max(allowed, TIMES * float(moved[np.isfinite(moved)].max(initial=0.0)))
        if off.size and off.max() > allowed:
            at = np.unravel_index(int(off.argmax()), off.shape)
            where = [int(index) for index in at]
            count = int((off > allowed).sum())
            wrong.append(f"result {i}{where} is {x[at]}, not {y[at]} ({count} of {off.size})")
    return wrong


def disagreements(
    found: Sequence[Array],
    exact: Sequence[Array],
    again: Callable[[Towards | None], Sequence[Array]],
    dtypes: Sequence[str],
) -> list[str]:
    """`differences` that are left when rounding may have been magnified on the way.

    again: the exact results once more, with inputs and values on the way `nudged`; with None,
    computed in another way that is as right. It is only asked where something differs.
    """
    if not differences(found, exact, dtypes=dtypes):
        return []
    ways = [None, -np.inf, np.inf, 0.0, *map(np.random.default_rng, range(SAMPLES))]
    samples = [again(towards) for towards in ways]
    return differences(found, exact, dtypes=dtypes, samples=samples)


def nudged(array: Array, towards: Towards, units: int = 1) -> Array:
    """Floats moved to a neighbour, NaN to one of that sign; other arrays as they are.

    units: of the last place, that finite numbers move on by.
    """
    if array.dtype.name not in FLOATS:
        return array
    if isinstance(towards, np.random.Generator):
        there = towards.choice([-np.inf, np.inf], size=array.shape).astype(array.dtype)
    else:
        there = np.full(array.shape, towards, array.dtype)
    with np.errstate(all="ignore"):
        moved = np.nextafter(array, there)
        if units > 1:
            moved = np.where(np.isfinite(moved), array + units * (moved - array), moved)
        return np.asarray(np.where(np.isnan(moved), np.copysign(moved, there), moved))


def _wide(x: Array) -> Array:
    """As it is compared: floats in float64."""
    return x.astype(np.float64) if x.dtype.name in FLOATS else x


def _distance(x: Array, y: Array) -> Array:
    """How far elements are apart; of what is no float, 0 or 1."""
    if x.dtype != np.float64:
        return np.array(x != y, np.float64)
    with np.errstate(all="ignore"):
        off = np.abs(x - y)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.array(np.where(same, 0.0, np.where(np.isnan(off), np.inf, off)))

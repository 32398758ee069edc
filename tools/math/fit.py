"""Fit every polynomial of core/exec/math and write core/exec/math/coefficients.gen.h.

    python tools/math/fit.py            # rewrite the header, print each fit's error

Method: minimax by Lawson's iteration on a dense Chebyshev grid, the function itself in 40-digit
arithmetic, with a weight that makes the error relative to what the caller finally returns.
Coefficients are rounded to float32 one at a time, lowest power first, and the rest are fitted again
after each rounding: a greedy form of Brisebarre, Muller, Tisserand, "Computing machine-efficient
polynomial approximations", ACM TOMS 2006.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mpmath import mp, mpf

mp.dps = 40
Fn = Callable[[mpf], mpf]
HEADER = Path(__file__).parents[2] / "core" / "exec" / "math" / "coefficients.gen.h"
GRID = 600
LAWSON_STEPS = 150


@dataclass(frozen=True)
class Fit:
    """`sum c[k] x**powers[k]` near `f` on [lo, hi]; `weight` scales the error."""

    name: str
    doc: str
    f: Fn
    weight: Fn
    lo: mpf
    hi: mpf
    powers: tuple[int, ...]


def lawson(basis: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Coefficients c that nearly minimise max |basis @ c - target|.

    Source: Lawson's iteration, J. Rice and K. Usow, "The Lawson algorithm and extensions", 1968.
    Unlike Remez exchange it does not need a Haar basis, which x, x^2, ... on [-a, a] is not.
    """
    share = np.full(len(target), 1 / len(target))
    best, best_err = np.zeros(basis.shape[1]), np.inf
    for _ in range(LAWSON_STEPS):
        root = np.sqrt(share)
        c = np.linalg.lstsq(basis * root[:, None], target * root, rcond=None)[0]
        err = np.abs(basis @ c - target)
        if err.max() < best_err:
            best, best_err = c, err.max()
        share = share * err / (share @ err)
    return best


def rounded(fit: Fit) -> tuple[list[np.float32], float]:
    """float32 coefficients and the largest weighted error they leave."""
    half, mid = (fit.hi - fit.lo) / 2, (fit.hi + fit.lo) / 2
    xs = [mid - half * mp.cos(mp.pi * (i + mpf(1) / 2) / GRID) for i in range(GRID)]
    ws = [fit.weight(x) for x in xs]
    left = [w * fit.f(x) for x, w in zip(xs, ws, strict=True)]  # what is still to be matched
    columns = [[w * x**p for x, w in zip(xs, ws, strict=True)] for p in fit.powers]
    basis = np.array(columns, dtype=np.float64).T
    scale = np.abs(basis).max(axis=0)
    out: list[np.float32] = []
    for k, column in enumerate(columns):
        target = np.array(left, dtype=np.float64)
        c = np.float32(lawson(basis[:, k:] / scale[k:], target)[0] / scale[k])
        out.append(c)
        left = [y - mpf(float(c)) * b for y, b in zip(left, column, strict=True)]
    return out, float(max(abs(y) for y in left))


LN2 = mp.log(2)
SLACK = mpf("1.002")  # a rounded multiple of the period can push the reduced argument past half


def atanh_log2(q2: mpf) -> mpf:
    """(log2((1+q)/(1-q)) - (2/ln 2) q) / q^3 as a function of q^2."""
    q = mp.sqrt(q2)
    return (mp.atanh(q) - q) * 2 / LN2 / q**3


TINY = mpf(10) ** -6
FITS = (
    Fit(
        "kExp",
        "(e^r - 1 - r) / r^2, |r| <= ln2/2; error relative to e^r",
        lambda r: (mp.expm1(r) - r) / r**2,
        lambda r: r**2 / mp.exp(r),
        -LN2 / 2 * SLACK,
        LN2 / 2 * SLACK,
        tuple(range(5)),
    ),
    Fit(
        "kExpm1",
        "(e^r - 1 - r) / r^2, |r| <= ln2/2; error relative to e^r - 1",
        lambda r: (mp.expm1(r) - r) / r**2,
        lambda r: r**2 / mp.expm1(r),
        -LN2 / 2 * SLACK,
        LN2 / 2 * SLACK,
        tuple(range(6)),
    ),
    Fit(
        "kExp2",
        "(2^r - 1) / r, |r| <= 1/2; error relative to 2^r",
        lambda r: mp.expm1(r * LN2) / r,
        lambda r: r / mpf(2) ** r,
        -mpf(1) / 2,
        mpf(1) / 2,
        tuple(range(6)),
    ),
    Fit(
        "kExpWeight",
        "(2^-r - 1) / r, |r| <= 1/2; error relative to 2^-r",
        lambda r: mp.expm1(-r * LN2) / r,
        lambda r: r * mpf(2) ** r,
        -mpf(1) / 2 * SLACK,
        mpf(1) / 2 * SLACK,
        tuple(range(4)),
    ),
    Fit(
        "kLog",
        "(log(1+f) - f + f^2/2) / f^3, f in [-1/3, 1/3]; relative to log(1+f)",
        lambda f: (mp.log1p(f) - f + f**2 / 2) / f**3,
        lambda f: f**3 / mp.log1p(f),
        -mpf(1) / 3 * SLACK,
        mpf(1) / 3 * SLACK,
        tuple(range(8)),
    ),
    Fit(
        "kLog2",
        "(log2(1+f) - f/ln2) / f^2, f in [sqrt(1/2)-1, sqrt(2)-1]; relative to log2(1+f)",
        lambda f: (mp.log1p(f) - f) / LN2 / f**2,
        lambda f: f**2 * LN2 / mp.log1p(f),
        mp.sqrt(mpf(1) / 2) - 1 - TINY,
        mp.sqrt(2) - 1 + TINY,
        tuple(range(9)),
    ),
    Fit(
        "kAtanhLog2",
        "(log2((1+q)/(1-q)) - 2q/ln2) / q^3 in q^2, |q| <= 0.1716; relative to log2",
        atanh_log2,
        lambda s: s ** mpf("1.5") / mp.atanh(mp.sqrt(s)) * LN2 / 2,
        mpf(10) ** -9,
        mpf("0.1716") ** 2,
        tuple(range(4)),
    ),
    Fit(
        "kSin",
        "(sin r - r) / r^3 in r^2, |r| <= pi/4; relative to sin r",
        lambda s: (mp.sin(mp.sqrt(s)) - mp.sqrt(s)) / s ** mpf("1.5"),
        lambda s: s ** mpf("1.5") / mp.sin(mp.sqrt(s)),
        mpf(10) ** -9,
        (mp.pi / 4 * mpf("1.01")) ** 2,
        tuple(range(3)),
    ),
    Fit(
        "kCos",
        "(cos r - 1 + r^2/2) / r^4 in r^2, |r| <= pi/4; relative to cos r",
        lambda s: (mp.cos(mp.sqrt(s)) - 1 + s / 2) / s**2,
        lambda s: s**2 / mp.cos(mp.sqrt(s)),
        mpf(10) ** -9,
        (mp.pi / 4 * mpf("1.01")) ** 2,
        tuple(range(3)),
    ),
    Fit(
        "kTan",
        "(tan r - r) / r^3 in r^2, |r| <= pi/4; relative to tan r",
        lambda s: (mp.tan(mp.sqrt(s)) - mp.sqrt(s)) / s ** mpf("1.5"),
        lambda s: s ** mpf("1.5") / mp.tan(mp.sqrt(s)),
        mpf(10) ** -9,
        (mp.pi / 4 * mpf("1.01")) ** 2,
        tuple(range(7)),
    ),
    Fit(
        "kAtan",
        "(atan a - a) / a^3 in a^2, a in [0, 1]; relative to atan a",
        lambda s: (mp.atan(mp.sqrt(s)) - mp.sqrt(s)) / s ** mpf("1.5"),
        lambda s: s ** mpf("1.5") / mp.atan(mp.sqrt(s)),
        mpf(10) ** -9,
        mpf(1),
        tuple(range(9)),
    ),
    Fit(
        "kErfSmall",
        "(erf t - t) / t in t^2, |t| <= 0.9375; relative to erf t",
        lambda s: mp.erf(mp.sqrt(s)) / mp.sqrt(s) - 1,
        lambda s: mp.sqrt(s) / mp.erf(mp.sqrt(s)),
        mpf(10) ** -9,
        mpf("0.94") ** 2,
        tuple(range(7)),
    ),
    Fit(
        "kErfTail",
        "log(erfc t) / t, t in [0.93, 6]; error of log(erfc t) times erfc t / erf t",
        lambda t: mp.log(mp.erfc(t)) / t,
        lambda t: t * (mp.erfc(t) + mpf(10) ** -9) / mp.erf(t),
        mpf("0.93"),
        mpf(6),
        tuple(range(8)),
    ),
    Fit(
        "kGeluTail",
        "log(erfc(a / sqrt 2)) / a, a in [0, 6]; error of gelu(-a), relative to a",
        lambda a: mp.log(mp.erfc(a / mp.sqrt(2))) / a,
        lambda a: a * (mp.erfc(a / mp.sqrt(2)) / 2 + mpf(10) ** -9),
        TINY,
        mpf(6),
        tuple(range(8)),
    ),
)


def main() -> None:
    """Write the header."""
    lines = [
        "// Generated by tools/math/fit.py. Do not edit.",
        "#ifndef TILEVM_CORE_EXEC_MATH_COEFFICIENTS_GEN_H_",
        "#define TILEVM_CORE_EXEC_MATH_COEFFICIENTS_GEN_H_",
        "",
        "namespace tilevm::math {",
        "// Lowest power first.",
    ]
    for fit in FITS:
        coeffs, err = rounded(fit)
        bits = float(-mp.log(err, 2))
        print(f"{fit.name:12} 2^-{bits:.1f}  {[float(c) for c in coeffs]}", flush=True)
        lines.append(f"// {fit.doc}. Error 2^-{bits:.1f}.")
        lines.append(f"inline constexpr float {fit.name}[] = {{")
        lines += [f"    {float(c).hex()}f,  // {float(c):.9g}" for c in coeffs]
        lines.append("};")
    lines += ["}  // namespace tilevm::math", "", "#endif", ""]
    HEADER.write_text("\n".join(lines))


if __name__ == "__main__":
    main()

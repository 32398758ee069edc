"""Rows of `torch_polynomials`: degrees of all kinds, arguments of any size; and some functions of
floats' parts.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilevm  # noqa: E402

CHEBYSHEV = [f"chebyshev_polynomial_{k}" for k in "tuvw"]
NAMES = [*CHEBYSHEV, *(f"shifted_{name}" for name in CHEBYSHEV), "hermite_polynomial_h",
         "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"]  # fmt: skip
NUMBERS = [0.0, -0.0, 1e-30, 1e-40, 0.3, -0.7, 1.0, -1.0, 1.001, -2.5, 1e3, math.inf, math.nan]


def called_out() -> dict[str, int]:
    counts: dict[str, int] = tilevm.stats()["callouts"]
    return counts


@pytest.mark.parametrize("name", NAMES)
def test_polynomials(name: str) -> None:
    tilevm.stats.reset()
    function = getattr(torch.special, name)
    x = torch.cat([torch.linspace(-1, 1, 41), torch.tensor([1.5, -3.0, 10.0])])[:, None]
    n = torch.tensor([-1.0, 0, 1, 2, 3, 5.7, 6, 9, 15, 32, -0.5, math.nan])[None]
    compiled = tilevm.compile(lambda x, n: function(x, n))
    exact = function(x.double(), n.double()).float().double()  # which may overflow
    torch.testing.assert_close(compiled(x, n).double(), exact, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert not called_out()
    assert not any("eager" in reason for reason in tilevm.stats()["flushes"])


@pytest.mark.parametrize("name", ["chebyshev_polynomial_t", "laguerre_polynomial_l"])
def test_high_degrees_run_eagerly(name: str) -> None:
    function = getattr(torch.special, name)
    x, n = torch.linspace(-0.9, 0.9, 7), torch.full((7,), 50.0)
    compiled = tilevm.compile(lambda x, n: function(x, n))
    torch.testing.assert_close(compiled(x, n * 0 + 2), function(x, n * 0 + 2))
    torch.testing.assert_close(compiled(x, n), function(x, n), equal_nan=True)


def test_zeta() -> None:
    tilevm.stats.reset()
    x = torch.tensor([0.5, 1.0, 1.0001, 1.5, 2, 7, 30, 120, 1e5, math.inf, math.nan])[:, None]
    q = torch.tensor([1e-3, 0.25, 1, 2, 5.5, 40, 1e3, 0.0, -1.0, -2.5, math.nan])[None]
    compiled = tilevm.compile(lambda x, q: torch.special.zeta(x, q))
    exact = torch.special.zeta(x.double(), q.double())
    torch.testing.assert_close(
        compiled(x, q).double(), exact.float().double(), rtol=4e-6, atol=1e-37, equal_nan=True
    )
    assert not called_out()


def test_zeta_of_negative_numbers() -> None:
    tilevm.stats.reset()
    x = torch.tensor([2.0, 3, 4, 7, 12, 2.5, math.inf, math.nan])[:, None]
    q = torch.tensor([-1e-3, -0.25, -0.999, -2.5, -7.75, -100.5, -1000.25, -3.0, -math.inf])[None]
    found = tilevm.compile(lambda x, q: torch.special.zeta(x, q))(x, q)
    exact = torch.special.zeta(x.double(), q.double())
    # Odd powers of -0.5 and 0.5 are each other's opposite.
    torch.testing.assert_close(
        found.double(), exact.float().double(), rtol=4e-6, atol=1e-13, equal_nan=True
    )
    assert not called_out()


@pytest.mark.parametrize("order", [2, 3, 4])
def test_polygamma(order: int) -> None:
    tilevm.stats.reset()
    x = torch.tensor([1e-2, 0.3, 1.0, 2.7, 30.0, 500.0, -0.4, -1.5, -6.3])
    found = tilevm.compile(lambda x, n: torch.polygamma(n, x))(x, order)
    torch.testing.assert_close(
        found.double(), torch.polygamma(order, x.double()), rtol=4e-6, atol=0
    )
    assert not called_out()


def test_erfc() -> None:
    tilevm.stats.reset()
    x = torch.cat([torch.linspace(-6, 10.5, 4001), torch.tensor(NUMBERS)])
    found = tilevm.compile(torch.erfc)(x)
    exact = torch.erfc(x.double())
    torch.testing.assert_close(found.double(), exact, rtol=6e-7, atol=3e-45, equal_nan=True)
    assert not called_out()


def test_neighbours() -> None:
    tilevm.stats.reset()
    info = torch.finfo(torch.float32)
    some = [*NUMBERS, -math.inf, info.max, -info.max, info.tiny, -info.tiny, 1.4e-45, 2.0, 4096.0]
    some += [info.tiny * 2, info.tiny * 1.9999999, 0.99999994]
    x, y = torch.tensor(some)[:, None], torch.tensor(some)[None]
    found = tilevm.compile(torch.nextafter)(x, y)
    expected = torch.nextafter(x, y)
    known = ~expected.isnan()
    assert torch.equal(found.isnan(), expected.isnan())
    kept = [v[known].view(torch.int32) for v in (found, expected)]
    assert torch.equal(*kept)  # bit for bit, the sign of 0 included
    assert not called_out()


def test_parts() -> None:
    tilevm.stats.reset()
    info = torch.finfo(torch.float32)
    finite = [v for v in NUMBERS if math.isfinite(v)]
    x = torch.tensor([*finite, info.max, -info.max, info.tiny, 1.4e-45, -1e-42, 0.5, 0.49999997])
    found: Any = tilevm.compile(lambda x: torch.frexp(x))(x)
    mantissa, exponent = torch.frexp(x)
    assert torch.equal(found[0].view(torch.int32), mantissa.view(torch.int32))
    assert torch.equal(found[1], exponent)
    assert found[1].dtype == torch.int32
    broken = tilevm.compile(lambda x: torch.frexp(x))(torch.tensor([math.inf, -math.inf, math.nan]))
    assert broken[0][0] == math.inf
    assert broken[0][2].isnan()
    assert not called_out()

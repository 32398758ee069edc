"""Integers of 64 bits from and to floats on every tier: AVX2 has no instructions for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.differential.tiers import TIERS  # noqa: E402

import tilevm  # noqa: E402

N = 5003


@pytest.fixture(autouse=True, params=TIERS)
def tier(request: pytest.FixtureRequest) -> Iterator[None]:
    with tilevm.config.patch(tier=request.param):
        yield


def integers() -> Iterator[Any]:
    """Of all sizes, and near the middle between two floats, where what is rounded first decides."""
    rng = np.random.default_rng(0)
    yield rng.integers(-(2**63), 2**63 - 1, N) >> rng.integers(0, 64, N)
    for bits in (24, 53):
        shift = rng.integers(1, 63 - bits, N)
        middle = (rng.integers(2 ** (bits - 1), 2**bits, N) << shift) + (1 << (shift - 1))
        yield (middle + rng.integers(-2, 3, N)) * rng.choice([-1, 1], N)
    yield np.array([0, 1, -1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), -(2**63) + 1])


def floats() -> Iterator[Any]:
    """Of all bits, with fractions, and at the ends of what integers there are."""
    rng = np.random.default_rng(1)
    yield rng.integers(0, 2**32, N, dtype=np.uint32).view(np.float32)
    yield rng.integers(0, 2**64, N, dtype=np.uint64).view(np.float64)
    yield rng.standard_normal(N) * 2.0 ** rng.integers(0, 66, N)
    ends = [2.0**63, -(2.0**63), 2.0**62, -0.0, 0.5, -0.999, 2.0**31, -(2.0**32), 2.0**52 + 0.5]
    yield np.array([*ends, np.nan, np.inf, -np.inf, np.nextafter(2.0**63, 0)])


def test_integers_to_floats() -> None:
    compiled = tilevm.compile(lambda x: (x.float(), x.double(), x.to(torch.bfloat16)))
    for values in integers():
        x = torch.from_numpy(values)
        for found, expected in zip(
            compiled(x), (x.float(), x.double(), x.to(torch.bfloat16)), strict=True
        ):
            assert torch.equal(found, expected)


def test_floats_to_integers() -> None:
    """Towards zero; the lowest one for what is out of range, as eager code on x86 has it."""
    compiled = tilevm.compile(lambda x: x.long())
    for values in floats():
        x = torch.from_numpy(values)
        inside = torch.from_numpy(np.abs(values) < 2.0**63)
        found = compiled(x)
        assert torch.equal(found[inside], x.long()[inside])
        assert torch.equal(found[~inside], torch.full_like(found[~inside], -(2**63)))

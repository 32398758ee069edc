"""Random functions, a short run; `random_functions.py` runs more."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.frontends.random_functions import check_seed

import tilevm

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("start", range(0, 40, 10))
def test_random_functions(start: int) -> None:
    before = tilevm.stats()["captures"]
    for seed in range(start, start + 10):
        report = check_seed(seed)
        assert report is None, report
    assert tilevm.stats()["captures"] > before

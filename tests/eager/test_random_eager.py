"""Random programs, a short run; and each that was once wrong, by name."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.eager.random_eager import check_seed, failure  # noqa: E402

import tilevm  # noqa: E402


@pytest.mark.parametrize("start", range(0, 300, 25))
def test_random_programs(start: int) -> None:
    before = tilevm.stats()["launches"]
    for seed in range(start, start + 25):
        report = check_seed(seed)
        assert report is None, report
    assert tilevm.stats()["launches"] > before


# Programs that were wrong. {name: text}
REGRESSIONS: dict[str, str] = {}


@pytest.mark.parametrize("name", REGRESSIONS)
def test_programs_that_were_wrong(name: str) -> None:
    assert failure(REGRESSIONS[name]) is None

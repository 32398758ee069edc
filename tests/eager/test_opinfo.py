"""A few of PyTorch's own samples of every operator."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # which PyTorch's samples import

from tests.eager import opinfo  # noqa: E402

import tilevm  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("dtype", opinfo.DTYPES, ids=str)
def test_samples(dtype: Any) -> None:
    wrong = []
    with tilevm.config.patch(templates=1):
        for batch in opinfo.batches(opinfo.every_sample([dtype], 1), seed=0):
            wrong += opinfo.check(batch)
    assert not wrong, "\n".join(wrong)

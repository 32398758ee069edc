"""A few architectures of transformers; all of them by `python -m tests.conformance.models`."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.conformance import models  # noqa: E402
from tests.conformance.architectures import ARCHITECTURES  # noqa: E402

import tilevm  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GPT-2", "ViT"])
def test_architecture(name: str) -> None:
    (architecture,) = (a for a in ARCHITECTURES if a.name == name)
    with tilevm.config.patch(failures="off"):
        row = models.examine(architecture)
    parts = [row.compile, row.inference, row.training]
    assert parts == ["ok"] * 3 and row.generation in ("ok", "-")
    assert row.captures <= row.theirs
    assert not [reason for reason in row.eager if reason.startswith("eager")]


def test_what_is_off_is_found() -> None:
    exact = [torch.ones(3, dtype=torch.float64)]
    eager = [torch.tensor([1.0, 1.0, 1.0000001])]
    assert not models.off(eager, eager, exact)
    assert models.off([torch.tensor([1.0, 1.0, 1.001])], eager, exact)
    assert models.off([torch.ones(2)], eager, exact)
    assert models.off([torch.tensor([1.0, float("nan"), 1.0])], eager, exact)

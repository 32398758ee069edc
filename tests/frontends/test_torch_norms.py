"""Norms that train: results, and running statistics that they change."""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tilevm  # noqa: E402

DOORS: dict[str, Any] = {
    "tilevm.compile": tilevm.compile,
    "torch.compile": functools.partial(torch.compile, backend="tilevm", dynamic=True),
}


def called_out() -> dict[str, int]:
    counts: dict[str, int] = tilevm.stats()["callouts"]
    return counts


def _running(channels: int) -> list[Any]:
    return [torch.randn(channels), torch.rand(channels) + 0.5]


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm", [F.batch_norm, F.instance_norm])
@pytest.mark.parametrize("door", DOORS)
def test_running_statistics(door: str, norm: Any, dtype: Any, training: bool, affine: bool) -> None:
    torch.compiler.reset()
    tilevm.stats.reset()
    x = (torch.randn(4, 3, 5, 7) * 3 + 1).to(dtype)
    scale = [torch.randn(3).to(dtype), torch.randn(3).to(dtype)] if affine else [None, None]
    kept = [v.to(dtype) for v in _running(3)]
    ours, theirs = ([v.clone() for v in kept] for _ in range(2))
    compiled = DOORS[door](lambda x, m, v, w, c: norm(x, m, v, w, c, training, 0.3, 1e-4))
    for _ in range(2):
        found = compiled(x, *ours, *scale)
        expected = norm(x, *theirs, *scale, training, 0.3, 1e-4)
        tolerance = {"rtol": 2e-2, "atol": 4e-2} if dtype is torch.bfloat16 else {}
        torch.testing.assert_close(found, expected, **tolerance)
        torch.testing.assert_close(ours, theirs, **tolerance)
    assert not called_out()
    assert not tilevm.stats()["flushes"]


@pytest.mark.parametrize("door", DOORS)
def test_module_that_trains(door: str) -> None:
    torch.compiler.reset()
    tilevm.stats.reset()
    modules = [torch.nn.BatchNorm2d(3).train() for _ in range(2)]
    x = torch.randn(4, 3, 5, 7)
    with torch.no_grad():
        compiled = DOORS[door](modules[0])
        for _ in range(3):
            torch.testing.assert_close(compiled(x), modules[1](x))
    torch.testing.assert_close(modules[0].state_dict(), modules[1].state_dict())
    assert not called_out()


def test_without_running_statistics() -> None:
    tilevm.stats.reset()
    x = torch.randn(4, 3, 6)
    compiled = tilevm.compile(lambda x: F.batch_norm(x, None, None, training=True))
    torch.testing.assert_close(compiled(x), F.batch_norm(x, None, None, training=True))
    assert not called_out()


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_safe_softmax(dim: int) -> None:
    tilevm.stats.reset()
    x = torch.randn(4, 5)
    x[1] = -torch.inf
    x[:, 2] = -torch.inf
    compiled = tilevm.compile(lambda x: torch.ops.aten._safe_softmax(x, dim))
    torch.testing.assert_close(compiled(x), torch.ops.aten._safe_softmax(x, dim))
    assert not called_out()


@pytest.mark.parametrize("format", ["channels_last", "channels_last_3d"])
def test_results_without_weights_lie_as_in_eager_code(format: str) -> None:
    spatial = (5, 6) if format == "channels_last" else (2, 5, 6)
    x = torch.randn(2, 8, *spatial).to(memory_format=getattr(torch, format))

    def fn(x: Any) -> Any:
        return F.group_norm(x, 4)

    with torch.no_grad():
        result, want = torch.compile(fn, backend="tilevm")(x), fn(x)
    torch.testing.assert_close(result, want)
    assert result.stride() == want.stride()

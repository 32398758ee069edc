"""Large products, which processors with AMX compute by products of bfloat16, of every value.

And how precise products of few rows are.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tests.frontends.test_torch_products import check  # noqa: E402
from torch import nn  # noqa: E402

import tilevm  # noqa: E402

INF, NAN = float("inf"), float("nan")


def many(*shape: int, seed: int = 0, spread: float = 0.0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    return x * torch.exp2(spread * torch.randn(shape, generator=generator))


def plain_product(x: Any, w: Any) -> Any:
    return x @ w


@pytest.mark.parametrize("spread", [0.0, 4.0])
@pytest.mark.parametrize("k", [64, 512, 3072])
@pytest.mark.parametrize("positive", [False, True])
def test_large_products_are_as_precise_as_eager(spread: float, k: int, positive: bool) -> None:
    x, w = many(130, k, spread=spread), many(k, 120, seed=1, spread=spread)
    if positive:
        x, w = x.abs(), w.abs()
    exact, scale = x.double() @ w.double(), x.double().abs() @ w.double().abs()
    want, got = (
        (y.double() - exact).abs() / scale for y in (x @ w, tilevm.compile(plain_product)(x, w))
    )
    assert got.square().mean().sqrt() <= 1.5 * want.square().mean().sqrt()
    assert got.max() <= 2 * want.max()


ODD = {
    "infinite": [INF, -INF],
    "nan": [NAN],
    "largest": [3.4e38, -3.0e38, 1.8e38],
    "denormal": [1e-40, -3e-45],
    "tiny": [1e-37, -2e-30],
}


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("where", ["x", "w", "both"])
@pytest.mark.parametrize("odd", ODD)
def test_large_products_of_odd_values(odd: str, where: str, freeze: bool) -> None:
    """Elements that are no sum of three of bfloat16, or whose products are none."""
    x, w = many(257, 100), many(100, 130, seed=1)
    for name, factor, seed in (("x", x, 2), ("w", w, 3)):
        if where not in (name, "both"):
            continue
        generator = torch.Generator().manual_seed(seed)
        for value in ODD[odd]:
            at = torch.randint(factor.numel(), (5,), generator=generator)
            factor.view(-1)[at] = value
    if odd in ("denormal", "tiny"):  # alone in a row and in a column, where they are all there is
        x[200] = 0
        x[200, 7] = ODD[odd][0]
        w[7, :64] = 2.0**40
    if odd == "largest":  # of sums that no float32 holds, the order decides what they are
        x, w = (x * 2.0**-80 if where != "x" else x), (w * 2.0**-80 if where != "w" else w)
    module = nn.Linear(100, 130, bias=False)
    module.weight.data = w.t().contiguous()
    got: Any = None
    with torch.no_grad():
        if freeze:
            got = tilevm.compile(module, freeze=True)(x)
        else:
            got = tilevm.compile(plain_product)(x, w)
    exact = x.double() @ w.double()
    assert torch.equal(got.isnan(), exact.isnan())
    finite = exact.abs() < 3e38
    bound = 2e-5 * (x.double().abs() @ w.double().abs()) + 1e-43
    assert ((got.double() - exact).abs() <= bound)[finite].all()
    infinite = exact.isinf()
    assert torch.equal(got[infinite].double(), exact[infinite])


@pytest.mark.parametrize("where", ["x", "w"])
def test_zeros_meet_the_largest_elements(where: str) -> None:
    """An element that rounds to infinity as a bfloat16 is still finite."""
    x, w = many(130, 64) * 2.0**-20, many(64, 130, seed=1) * 2.0**-20
    if where == "x":
        x[:, 3], w[:, :64] = 3.4e38, 0
    else:
        x[:40], w[3] = 0, -3.4e38
    got = tilevm.compile(plain_product)(x, w)
    zeros = got[:, :64] if where == "x" else got[:40]
    assert torch.equal(zeros, torch.zeros_like(zeros))
    torch.testing.assert_close(got, (x.double() @ w.double()).float(), rtol=1e-5, atol=1e-9)


def test_odd_values_do_not_depend_on_threads() -> None:
    x, w = many(300, 100), many(100, 200, seed=1)
    x[17, 3], x[250, 99], w[5, 40], w[8, 199] = 1e-41, INF, 2e-36, NAN
    compiled = tilevm.compile(plain_product)
    results = []
    for threads in (1, 2, 5):
        with tilevm.config.patch(threads=threads):
            results.append(compiled(x, w).numpy().tobytes())
    assert len(set(results)) == 1


def test_large_products_of_bfloat16_at_every_edge() -> None:
    compiled, turned = tilevm.compile(plain_product), tilevm.compile(F.linear)
    for m in (3, 16, 17, 33, 400):
        for n in (1, 15, 16, 17, 33, 65):
            for k in (1, 31, 32, 33, 65, 513):
                x, w = many(m, k).bfloat16(), many(k, n, seed=1).bfloat16()
                check(compiled, plain_product, [x, w])
                check(turned, F.linear, [x, w.t().contiguous()])


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("k", [128, 192, 280, 768])
@pytest.mark.parametrize("m", [5, 8, 12])
def test_sums_of_few_rows_are_precise(m: int, k: int, freeze: bool) -> None:
    """As those of lanes, which libraries use there.

    Positive numbers: one after the other, their sums would be wrong by 2 to 3.5 units.
    """
    generator = torch.Generator().manual_seed(m + k)
    x, layer = torch.rand(m, k, generator=generator), nn.Linear(k, 300, bias=False).eval()
    layer.weight.data = torch.rand(300, k, generator=generator)
    with torch.no_grad():
        got = tilevm.compile(layer, freeze=freeze)(x).double()
    exact = x.double() @ layer.weight.detach().double().T
    assert ((got - exact) / exact).square().mean().sqrt() <= 1.3 * 2.0**-24

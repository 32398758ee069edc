"""`torch.set_float32_matmul_precision`: by AMX, float32 in fewer pieces of bfloat16; float16."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tests.differential.tiers import runs  # noqa: E402
from torch import nn  # noqa: E402

import tilevm  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not runs("amx"), reason="no AMX: products of float32 are of float32"),
]

# Beside the sum of magnitudes: what both factors and the sum lose at most, and what is lost at
# least somewhere, if there are so few pieces.
LOST: dict[str, tuple[float, float]] = {
    "highest": (2.0**-21, 0.0),
    "high": (2.0**-14, 2.0**-20),
    "medium": (2.0**-6.9, 2.0**-12),
}

# Of attention, whose results are about 1.
OF_ATTENTION = {"highest": 2e-6, "high": 1e-4, "medium": 0.05}


@pytest.fixture(autouse=True)
def highest() -> Iterator[None]:
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision("highest")


def many(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def product(x: Any, w: Any) -> Any:
    return x @ w.T


def lost(got: Any, x: Any, w: Any) -> float:
    """The largest error, beside the sum of magnitudes."""
    exact, scale = x.double() @ w.double().T, x.double().abs() @ w.double().abs().T
    return float(((got.double() - exact).abs() / scale).max())


def within(got: Any, x: Any, w: Any, precision: str) -> bool:
    most, least = LOST[precision]
    return least <= lost(got, x, w) <= most


@pytest.mark.parametrize("precision", LOST)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rows", [64, 130, 257])
def test_products_lose_what_was_asked_for(precision: str, turned: bool, rows: int) -> None:
    x, w = many(rows, 300), many(129, 300, seed=1)
    if turned:
        w = w.T.contiguous().T
    torch.set_float32_matmul_precision(precision)
    assert within(tilevm.compile(product)(x, w), x, w, precision)


def test_the_setting_of_the_backend_counts() -> None:
    x, w = many(128, 300), many(128, 300, seed=1)
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    assert within(tilevm.compile(product)(x, w), x, w, "medium")
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"
    assert within(tilevm.compile(product)(x, w), x, w, "highest")


@pytest.mark.parametrize("freeze", [False, True])
def test_each_call_asks(freeze: bool) -> None:
    """Also where it is repeated, and where weights were packed for another precision."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(many(160, 96, seed=1))

        def forward(self, x: Any) -> Any:
            return product(x, self.weight)

    layer = Layer().eval()
    x = many(40, 96)
    compiled = tilevm.compile(layer, freeze=freeze)
    with torch.no_grad():
        for precision in [*LOST, *reversed(LOST), "high", "highest"]:
            torch.set_float32_matmul_precision(precision)
            for _ in range(4):
                got = compiled(x)
                few = not freeze and precision != "medium"  # rows, for that
                assert within(got, x, layer.weight, "highest" if few else precision)


@pytest.mark.parametrize("precision", LOST)
def test_other_doors(precision: str) -> None:
    x, w = many(128, 200), many(128, 200, seed=1)
    torch.set_float32_matmul_precision(precision)
    with tilevm.fuse():
        recorded = product(x, w)
    assert within(recorded, x, w, precision)
    torch._dynamo.reset()
    assert within(torch.compile(product, backend="tilevm")(x, w), x, w, precision)
    torch._dynamo.reset()


@pytest.mark.parametrize("precision", LOST)
def test_threads_change_nothing(precision: str) -> None:
    x, w = many(300, 200), many(260, 200, seed=1)
    torch.set_float32_matmul_precision(precision)
    compiled = tilevm.compile(lambda x, w: F.gelu(product(x, w)))
    results = []
    for threads in (1, 2, 3):
        with tilevm.config.patch(threads=threads):
            results.append(compiled(x, w))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("tier", ["avx512", "avx2", "interp"])
def test_without_amx_nothing_is_lost(tier: str) -> None:
    x, w = many(130, 300), many(129, 300, seed=1)
    torch.set_float32_matmul_precision("medium")
    with tilevm.config.patch(tier=tier):
        assert within(tilevm.compile(product)(x, w), x, w, "highest")


def test_other_dtypes_and_convolutions_stay() -> None:
    def convolved(x: Any, w: Any) -> Any:
        return F.conv2d(x, w, padding=1)

    images, filters = many(2, 64, 20, 20), many(96, 64, 3, 3, seed=1)
    narrow = [many(128, 200).bfloat16(), many(128, 200, seed=1).bfloat16()]
    for f, args in ((convolved, [images, filters]), (product, narrow)):
        want = tilevm.compile(f)(*args)
        torch.set_float32_matmul_precision("medium")
        assert torch.equal(tilevm.compile(f)(*args), want)
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("precision", LOST)
def test_numbers_that_are_no_sum_of_pieces(precision: str) -> None:
    x, w = many(128, 200), many(128, 200, seed=1)
    x[3, 5], x[40, 7], x[41, 0], x[100] = float("inf"), float("nan"), 3.4e38, 1e-40
    torch.set_float32_matmul_precision(precision)
    got, want = tilevm.compile(product)(x, w), product(x.double(), w.double()).float()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isposinf(), want.isposinf())
    assert torch.equal(got.isneginf(), want.isneginf())
    for row in (3, 41, 100):  # these are computed by float32
        finite = want[row].isfinite()
        torch.testing.assert_close(got[row][finite], want[row][finite], rtol=1e-5, atol=1e-44)
    usual = [i for i in range(128) if i not in (3, 40, 41, 100)]
    assert within(got[usual], x[usual], w, precision)


@pytest.mark.parametrize("precision", LOST)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(precision: str, causal: bool) -> None:
    q, k, v = (many(1, 3, 130, 64, seed=s) for s in range(3))
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=causal)
    torch.set_float32_matmul_precision(precision)
    f = tilevm.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal))
    assert (f(q, k, v) - exact).abs().max() <= OF_ATTENTION[precision]


@pytest.mark.parametrize("precision", LOST)
@pytest.mark.parametrize("k", [32, 300])
def test_checked_calls_are_right(precision: str, k: int) -> None:
    """Also where terms cancel, so that a sum is off by much more than that of float32 would be."""
    x, w = many(300, k), many(290, k, seed=1)
    x[:, 1::2], w[:, 1::2] = x[:, ::2], -w[:, ::2] * (1 + 2e-3 * many(290, k // 2, seed=2))
    torch.set_float32_matmul_precision(precision)
    compiled = tilevm.compile(product)
    before = tilevm.stats()["checks"].get("torch: right", 0)
    with tilevm.config.patch(check=1):
        compiled(x, w)
    assert tilevm.stats()["checks"]["torch: right"] == before + 1


def test_explanations_tell() -> None:
    x, w = many(128, 1024), many(256, 1024, seed=1)
    for precision, words in (("highest", "by pieces"), ("high", "by pieces of 16 bits")):
        torch.set_float32_matmul_precision(precision)
        report = tilevm.compile(product).explain(x, w)
        (step,) = (step["text"] for step in report.steps if "by pieces" in step["text"])
        assert words in step
        assert (" bits" in step) == (" bits" in words)


@pytest.mark.parametrize("scale", [2.0**-24, 2.0**-14, 2.0**-8, 1.0, 8.0])
def test_float16_loses_no_more_than_eager_code(scale: float) -> None:
    """Denormals, too: 2^-24 is the smallest float16."""
    compiled = tilevm.compile(product)
    for rows, depth, columns in ((128, 256, 768), (97, 257, 130), (200, 64, 96), (300, 31, 64)):
        for turned in (False, True):
            x, w = (many(rows, depth) * scale).half(), many(columns, depth, seed=1).half()
            x = x.T.contiguous().T if turned else x
            found, expected, exact = compiled(x, w), product(x, w), product(x.double(), w.double())
            errors = [(y.double() - exact).abs().max().item() for y in (found, expected)]
            assert errors[0] <= 1.5 * errors[1]
    report = str(compiled.explain(many(128, 256).half(), many(768, 256).half()))
    assert "packed pieces of 16 bits" in report


def test_float16_that_is_not_finite() -> None:
    x, w = many(128, 256).half(), many(256, 256, seed=1).half()
    x[3, 5], x[7, 11], x[9, 1], w[2, 3], w[4, 4] = math.inf, math.nan, 65504.0, -math.inf, 65504.0
    found, expected = tilevm.compile(product)(x, w), product(x, w)
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=2e-3, atol=1e-2)
    assert found.isinf().any()
    assert found.isnan().any()

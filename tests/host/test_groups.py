"""Products of groups of rows, each with a matrix of its own, as of experts.

Judged by float64, as in chain_programs.py: errors are measured against the largest element.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tests.differential.tiers import runs  # noqa: E402
from tests.host.chain_programs import FLOATS, MOST, factor, results, tensor, wide  # noqa: E402
from torch import nn  # noqa: E402

import tilevm  # noqa: E402
from tilevm import lang  # noqa: E402

TIERS = [tier for tier in ("avx512", "avx2", "neon", "interp") if runs(tier)]
GROUPS = [
    [0], [1], [17], [240], [0, 0], [5, 0], [0, 5], [3, 0, 4], [1, 1, 1], [16, 17, 0, 250, 1],
    [33, 2, 64, 0, 0, 7, 241],
]  # fmt: skip


@tilevm.kernel
def product(x: Any, w: Any, ends: Any) -> Any:
    return lang.grouped_matmul(x, w, ends)


@tilevm.kernel
def swiglu(x: Any, w: Any, u: Any, ends: Any, scale: Any) -> Any:
    gate, up = lang.grouped_matmul(x, w, ends), lang.grouped_matmul(x, u, ends)
    return lang.silu(gate) * up * scale


@tilevm.kernel
def norm(x: Any, w: Any, ends: Any) -> Any:
    return lang.softmax(lang.grouped_matmul(x, w, ends), -1)


def exact(x: Any, w: Any, ends: Any) -> Any:
    out = torch.zeros(x.shape[0], w.shape[2], dtype=torch.float64)
    first = 0
    for group, end in enumerate(ends.tolist()):
        out[first:end] = x[first:end].double() @ w[group].double()
        first = end
    return out


def ends_of(counts: Sequence[int], dtype: Any = torch.int32) -> Any:
    return torch.tensor(counts).cumsum(0).to(dtype)


def check(found: Any, want: Any) -> None:
    assert found.shape == want.shape
    if not want.numel():
        return
    off = (found.double() - want).abs().amax().item()
    most = MOST[found.dtype] * (want.abs().amax().item() + 0.1)
    assert off <= most, f"{[*found.shape]}: off by {off}, not {most}"


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sizes(dtype: Any, tier: str) -> None:
    generator = random.Random(f"{dtype} {tier}")
    with tilevm.config.patch(tier=tier, verify=True):
        for counts in GROUPS:
            rest = generator.choice([0, 0, 1, 40])  # rows that are in no group
            k, n = generator.choice([0, 1, 31, 64, 257]), generator.choice([1, 16, 31, 64, 300])
            x = tensor(sum(counts) + rest, k, dtype=dtype)
            w = factor(len(counts), k, n, dtype=dtype)
            ends = ends_of(counts, generator.choice([torch.int32, torch.int64]))
            check(product(x, w, ends), exact(x, w, ends))


def strided(x: Any, how: int) -> Any:
    """Equal to x, in another order or with gaps."""
    if how == 0:
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if how == 1:
        return torch.stack([x, x * 0 + 7], -1)[..., 0]
    return x.flip(0).contiguous().flip(0)


@pytest.mark.parametrize("how", range(3))
def test_strides(how: int) -> None:
    for counts in GROUPS:
        x, w, ends = tensor(sum(counts), 33), factor(len(counts), 33, 20), ends_of(counts)
        check(product(strided(x, how), w, ends), exact(x, w, ends))
        check(product(x, strided(w, how), ends), exact(x, w, ends))
        apart = torch.stack([ends, ends * 0 - 1], -1)[..., 0]
        check(product(x, w, apart), exact(x, w, ends))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_kernels_behind_products(dtype: Any) -> None:
    for counts in GROUPS:
        x, ends = tensor(sum(counts) + 3, 31, dtype=dtype), ends_of(counts)
        w, u = (factor(len(counts), 31, 48, dtype=dtype, seed=s) for s in (0, 1))
        scale = tensor(sum(counts) + 3, 1, dtype=dtype)
        want = F.silu(exact(x, w, ends)) * exact(x, u, ends) * scale.double()
        check(swiglu(x, w, u, ends, scale), want)
        check(norm(x, w, ends), exact(x, w, ends).softmax(-1))


def test_they_run_in_one_step_with_what_follows() -> None:
    counts = [5, 9]
    x, ends, w, u = tensor(14, 32), ends_of(counts), factor(2, 32, 48), factor(2, 32, 48, seed=1)

    def gated(x: Any, ends: Any) -> Any:
        return F.silu(F.grouped_mm(x, w, offs=ends)) * F.grouped_mm(x, u, offs=ends)

    cases = [(norm, (x, w, ends), 1), (gated, (x, ends), 2)]
    cases.append((swiglu, (x, w, u, ends, tensor(14, 1)), 2))  # its sizes are checked to be equal
    for fn, args, products in cases:
        steps = str(tilevm.explain(fn)(*args)).partition("steps:")[2].partition("cuts:")[0]
        assert steps.count("chain over rows") == 1
        assert "in groups that end at" in steps
        assert steps.count("= product of") == products
        assert "[9, 32] x [32, 48] by" in steps  # of the largest group


def test_two_kinds_of_groups_stay_apart() -> None:
    @tilevm.kernel
    def both(x: Any, w: Any, ends: Any, others: Any) -> Any:
        return lang.grouped_matmul(x, w, ends) + lang.grouped_matmul(x, w, others)

    @tilevm.kernel
    def beside(x: Any, w: Any, ends: Any, v: Any) -> Any:
        return lang.tanh(lang.grouped_matmul(x, w, ends) + x @ v)

    @tilevm.kernel
    def twice(x: Any, w: Any, v: Any, ends: Any) -> Any:
        hidden = lang.softmax(lang.grouped_matmul(x, w, ends), -1)
        return lang.grouped_matmul(hidden, v, ends)

    x, w, v = tensor(20, 31), factor(3, 31, 16), factor(31, 16)
    ends, others = ends_of([3, 0, 12]), ends_of([0, 18, 1])
    check(both(x, w, ends, others), exact(x, w, ends) + exact(x, w, others))
    check(beside(x, w, ends, v), torch.tanh(exact(x, w, ends) + x.double() @ v.double()))
    hidden, last = exact(x, w, ends).softmax(-1), factor(3, 16, 5)
    check(twice(x, w, last, ends), exact(hidden, last, ends))


def test_ends_that_a_kernel_makes() -> None:
    @tilevm.kernel
    def counted(x: Any, w: Any, counts: Any) -> Any:
        return lang.relu(lang.grouped_matmul(x, w, lang.cumsum(counts, 0)))

    for counts in ([1, 2, 3], [0, 6, 0], [6, 0, 0], [0, 0, 0]):
        x, w = tensor(6, 8), factor(3, 8, 5)
        found = counted(x, w, torch.tensor(counts))
        check(found, exact(x, w, ends_of(counts)).relu())


@pytest.mark.parametrize("counts", [[3, -1, 3], [3, 3, 5], [-1, 5, 5], [2**40, 0, 0]])
def test_ends_that_do_not_ascend(counts: list[int]) -> None:
    ends = torch.tensor(counts).cumsum(0)
    x, w = tensor(10, 8), factor(3, 8, 5)
    with pytest.raises(IndexError, match=r"group \d ends at row .*begins at row"):
        product(x, w, ends)
    check(product(x, w, ends_of([3, 3, 4])), exact(x, w, ends_of([3, 3, 4])))


@pytest.mark.parametrize(
    ("shapes", "dtypes", "problem"),
    [
        ([(4, 3), (2, 5, 6), (2,)], "ffi", "inner dimensions differ"),
        ([(4, 3), (2, 3, 6), (3,)], "ffi", "numbers of groups differ"),
        ([(4, 3), (3, 6), (2,)], "ffi", "operands have rank 2, 2 and 1"),
        ([(4, 3), (2, 3, 6), (2,)], "fff", "an index must be an integer"),
        ([(4, 3), (2, 3, 6), (2,)], "dfi", "dtypes differ"),
        ([(4, 3), (2, 3, 6), (2,)], "ddi", "are of float32, bfloat16 and float16"),
    ],
)
def test_what_does_not_fit(shapes: list[tuple[int, ...]], dtypes: str, problem: str) -> None:
    named = {"f": torch.float32, "d": torch.float64, "i": torch.int64}
    args = [torch.zeros(s, dtype=named[d]) for s, d in zip(shapes, dtypes, strict=True)]
    with pytest.raises(tilevm.errors.TilevmError, match=problem):
        product(*args)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    try:
        for counts in ([300, 0, 20, 1], [7, 9]):
            x, ends = tensor(sum(counts) + 2, 300), ends_of(counts)
            w, u = factor(len(counts), 300, 700), factor(len(counts), 300, 700, seed=1)
            scale, found = tensor(sum(counts) + 2, 1), []
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                found.append(swiglu(x, w, u, ends, scale))
            assert torch.equal(found[0], found[1])
            assert torch.equal(found[0], found[2])
    finally:
        torch.set_num_threads(before)


# PyTorch's operators ----------------------------------------------------------------------------

Function = Callable[..., Any]


class Experts(nn.Module):
    def __init__(self, groups: int, k: int, n: int, dtype: Any) -> None:
        super().__init__()
        self.up = nn.Parameter(factor(groups, 2 * n, k, dtype=dtype))
        self.down = nn.Parameter(factor(groups, k, n, dtype=dtype))

    def forward(self, x: Any, ends: Any) -> Any:
        gate, up = F.grouped_mm(x, self.up.transpose(1, 2), offs=ends).chunk(2, -1)
        return F.grouped_mm(F.silu(gate) * up, self.down.transpose(1, 2), offs=ends)

    def exact(self, x: Any, ends: Any) -> Any:
        gate, up = exact(x, self.up.transpose(1, 2), ends).chunk(2, -1)
        return exact(F.silu(gate) * up, self.down.transpose(1, 2), ends)


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this PyTorch has no grouped_mm")
@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_experts(dtype: Any, freeze: bool) -> None:
    model = Experts(4, 32, 48, dtype)
    compiled = tilevm.compile(model, freeze=freeze)
    tilevm.stats.reset()
    with torch.no_grad():
        for counts in ([3, 0, 2, 4], [100, 1, 0, 60], [0, 0, 0, 1], [300, 300, 300, 300]):
            x, ends = tensor(sum(counts), 32, dtype=dtype), ends_of(counts)
            for _ in range(3):
                check(compiled(x, ends), model.exact(x, ends))
    stats = tilevm.stats()
    assert not stats["callouts"]
    assert not stats["flushes"]
    assert stats["captures"] == 1


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this PyTorch has no grouped_mm")
def test_the_other_layouts() -> None:
    ends = ends_of([8, 0, 16])
    cases: list[tuple[Function, list[Any]]] = [
        (lambda x, y, e: F.grouped_mm(x, y), [tensor(3, 5, 16), factor(3, 16, 8)]),
        (lambda x, y, e: F.grouped_mm(x, y, offs=e), [tensor(3, 8, 16), factor(16, 24)]),
        (lambda x, y, e: F.grouped_mm(x, y, offs=e), [tensor(8, 24), factor(24, 16)]),
    ]
    for i, (fn, args) in enumerate(cases):
        x, y = (a.bfloat16() for a in args)
        tilevm.stats.reset()
        found = tilevm.compile(fn)(x, y, ends)
        check(found, wide(fn(x, y, ends)))
        assert found.stride() == fn(x, y, ends).stride()
        # Matrices that are sums over a group's columns are PyTorch's.
        assert bool(tilevm.stats()["callouts"]) == (i == 2)


def test_what_transformers_calls() -> None:
    pytest.importorskip("transformers.integrations.moe")
    fallback = torch.ops.transformers.grouped_mm_fallback

    def fn(x: Any, w: Any, ends: Any) -> Any:
        return torch.tanh(fallback(x, w, ends))

    compiled = tilevm.compile(fn)
    tilevm.stats.reset()
    for counts in ([3, 0, 2], [40, 41, 42]):
        x, w, ends = tensor(sum(counts) + 4, 31), factor(3, 31, 20), ends_of(counts)
        check(results(compiled(x, w, ends))[0], exact(x, w, ends).tanh())
    assert not tilevm.stats()["callouts"]

"""Matrix products with kernels around them: what runs for some rows at a time is right for all."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tests.differential.tiers import runs  # noqa: E402
from tests.host.chain_programs import (  # noqa: E402
    FLOATS,
    PLAIN,
    Function,
    Shape,
    attention,
    check,
    factor,
    operands,
    tensor,
)  # fmt: skip

import tilevm  # noqa: E402
from tilevm import lang  # noqa: E402

TIERS = [tier for tier in ("avx512", "avx2", "neon", "interp") if runs(tier)]


# Sizes --------------------------------------------------------------------------------------------

M = [0, 1, 2, 3, 5, 7, 12, 13, 16, 17, 31, 32, 33, 96, 97, 240, 241, 256, 257, 487]
K = [0, 1, 31, 64, 255, 257, 600]
N = [1, 2, 31, 33, 65, 300]


def triples(seed: int, count: int = 1) -> list[tuple[int, int, int]]:
    """Each M, `count` times; each K and N several times."""
    rng = random.Random(seed)
    k: list[int] = []
    n: list[int] = []
    for _ in range(count * len(M)):
        k, n = k or rng.sample(K, len(K)), n or rng.sample(N, len(N))
    found = []
    for _ in range(count):
        for m in M:
            found.append((m, k.pop() if k else rng.choice(K), n.pop() if n else rng.choice(N)))
    return found


@pytest.mark.parametrize("name", PLAIN)
def test_sizes(name: str) -> None:
    fn = PLAIN[name]
    compiled = tilevm.compile(fn)
    tilevm.stats.reset()
    for m, k, n in triples(len(name)):
        if name == "all rows behind two products" and k == 0:
            continue
        check(compiled, fn, *operands(m, k, n, torch.float32))
    assert not tilevm.stats()["flushes"]


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
@pytest.mark.parametrize("name", PLAIN)
def test_low_precision(name: str, dtype: Any) -> None:
    fn = PLAIN[name]
    compiled = tilevm.compile(fn)
    for m, k, n in [(1, 31, 33), (17, 64, 2), (5, 257, 65), (97, 31, 31), (257, 255, 300)]:
        check(compiled, fn, *operands(m, k, n, dtype))


BY_COLUMNS = [
    "product", "gelu", "residual", "swiglu", "transposed result", "transposed result and rows",
    "concat", "concat of rows", "causal", "positions", "a new axis in front", "softmax", "mlp",
    "halves", "reversed columns",
]  # fmt: skip


@pytest.mark.parametrize("name", BY_COLUMNS)
def test_factors_that_are_packed_for_some_columns_at_a_time(name: str) -> None:
    fn = PLAIN[name]
    compiled = tilevm.compile(fn)
    for m, k, n in [(97, 2100, 1031), (270, 640, 3500)]:
        check(compiled, fn, *operands(m, k, n, torch.float32))


def test_products_whose_sizes_are_checked_to_be_equal_run_together() -> None:
    @tilevm.kernel
    def kernel(x: Any, w: Any, u: Any) -> Any:
        return lang.silu(x @ w) * (x @ u)

    def fn(x: Any, w: Any, u: Any) -> Any:
        return F.silu(x @ w) * (x @ u)

    x, w, u = tensor(5, 31), factor(31, 16), factor(31, 16, seed=1)
    check(kernel, fn, x, w, u)
    assert str(tilevm.explain(kernel)(x, w, u)).count("= product of") == 2
    steps = str(tilevm.explain(kernel)(x, w, u)).partition("steps:")[2].partition("cuts:")[0]
    assert steps.count("chain over rows") == 1
    for other, problem in ((factor(31, 17), "do not broadcast"), (factor(30, 16), "inner dim")):
        with pytest.raises(tilevm.errors.ShapeError, match=problem):
            kernel(x, w, other)


def test_tables_that_are_indexed_by_columns() -> None:
    @tilevm.kernel
    def kernel(x: Any, w: Any, table: Any, i: Any) -> Any:
        return lang.tanh(x @ w) * lang.take(table, i, 0)

    def fn(x: Any, w: Any, table: Any, i: Any) -> Any:
        return torch.tanh(x @ w) * table[i]

    for m, k, n in [(97, 2100, 1031), (7, 3, 5), (33, 40, 65)]:
        i = torch.arange(n).flip(0) % 19
        check(kernel, fn, tensor(m, k), factor(k, n), tensor(19), i)
        i = (torch.arange(m * n) % 19).reshape(m, n)
        check(kernel, fn, tensor(m, k), factor(k, n), tensor(19), i)


# Batches ------------------------------------------------------------------------------------------

BATCHES: list[tuple[Shape, Shape]] = [
    ((3,), ()), ((), (3,)), ((3,), (3,)), ((1,), (3,)), ((3,), (1,)), ((0,), (0,)),
    ((2, 0), (1, 0)), ((2, 3), (3,)), ((2, 1), (3,)), ((2, 1), (1, 3)), ((2, 3), (2, 1)),
    ((1, 1), (2, 3)),
    ((2, 3), ()), ((5, 1, 2), (3, 1)), ((2, 1, 3), (2, 4, 1)), ((300,), ()), ((40, 3), (40, 1)),
]  # fmt: skip
INNER = [(1, 31, 33), (7, 64, 5), (33, 1, 2), (13, 0, 3), (0, 3, 3), (2, 5, 1), (65, 33, 65)]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("left", "right"), BATCHES, ids=str)
def test_batches(left: Shape, right: Shape, dtype: Any) -> None:
    def fn(x: Any, w: Any, d: Any, b: Any) -> Any:
        y = torch.softmax(x @ w + b, -1)
        return y @ d, y.sum(-1), (x @ w).amax(-1), torch.tanh(x @ w)

    compiled = tilevm.compile(fn)
    new = {"dtype": dtype}
    for m, k, n in INNER:
        args = [
            tensor(*left, m, k, **new),
            factor(*right, k, n, **new),
            factor(*right, n, k, **new),
            tensor(n, **new),
        ]
        check(compiled, fn, *args)


@pytest.mark.parametrize("name", ["sum", "amax", "softmax"])
def test_folds_of_batches(name: str) -> None:
    folds: dict[str, Function] = {
        "sum": lambda y: (torch.tanh(y).sum(0), torch.tanh(y).sum((0, 2))),
        "amax": lambda y: (y.amax((1, 2)), y.amax(0)),
        "softmax": lambda y: (torch.softmax(y, 0), torch.softmax(y, 1)),
    }

    def fn(x: Any, w: Any) -> Any:
        return folds[name](x @ w)

    sizes = [(2, 7, 8, 9), (3, 33, 31, 2), (1, 1, 1, 1), (5, 65, 5, 65)]
    compiled = tilevm.compile(fn)
    for batch, m, k, n in sizes:
        check(compiled, fn, tensor(batch, m, k), factor(k, n))
        check(compiled, fn, tensor(batch, m, k), factor(batch, k, n))


# Attention ----------------------------------------------------------------------------------------

SIZES = [(2, 3, 7, 7, 8), (1, 1, 1, 1, 1), (2, 2, 13, 31, 16), (3, 1, 5, 2, 4), (1, 4, 65, 130, 64)]
SIZES += [(1, 2, 300, 257, 16), (0, 2, 3, 3, 4), (2, 3, 0, 5, 4)]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", ["qk", "b1qk", "bh1k", "k", "b11k", "1hq1", "bhqk", "111k"])
def test_attention(shape: str, dtype: Any) -> None:
    compiled = tilevm.compile(attention)
    for each in SIZES:
        of = dict(zip("bhqkd", each, strict=True)) | {"1": 1}
        q, k, v = (tensor(*[of[c] for c in dims], dtype=dtype) for dims in ("bhqd", "bhkd", "bhkd"))
        check(compiled, attention, q, k, v, tensor(*[of[c] for c in shape], dtype=dtype))


def heads(x: Any, w: Any, mask: Any) -> Any:
    """Of width 8: x [B, S, 32], w [32, 96] to [B, S, 32]."""
    q, k, v = ((x @ part).unflatten(-1, (4, 8)).transpose(1, 2) for part in w.chunk(3, -1))
    return attention(q, k, v, mask).transpose(1, 2).flatten(2)


def causal(x: Any, w: Any, mask: Any) -> Any:
    steps = torch.arange(x.shape[1])
    seen = torch.where(steps[:, None] >= steps, 0.0, -1e4).to(x.dtype)
    return heads(x, w, seen) @ w[:, :32] + x


def grouped(x: Any, w: Any, mask: Any) -> Any:
    """Two heads of queries share keys and values."""
    y = (x @ w).unflatten(-1, (12, 8)).transpose(1, 2)
    q = y[:, :8].unflatten(1, (4, 2))
    k, v = y[:, 8:10].repeat(1, 2, 1, 1), y[:, 8:12]
    return attention(q, k[:, :, None], v[:, :, None], 0).flatten(1, 2).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("fn", [heads, causal, grouped])
def test_heads(fn: Function, dtype: Any) -> None:
    compiled = tilevm.compile(fn)
    for b, s in [(2, 7), (1, 13), (3, 2), (1, 1), (2, 65), (1, 300), (40, 5)]:
        mask = tensor(b, 1, 1, s, dtype=dtype)
        check(compiled, fn, tensor(b, s, 32, dtype=dtype), factor(32, 96, dtype=dtype), mask)


# Memory -------------------------------------------------------------------------------------------


def layouts(x: Any) -> list[Any]:
    """Tensors of this shape in other orders, with gaps, and with repeated elements."""
    room = x.new_full([2 * n + 3 for n in x.shape], torch.nan)
    gaps = room[tuple(slice(3, 2 * n + 3, 2) for n in x.shape)]
    columns = x.new_full([*x.shape[:-1], x.shape[-1] + 5], torch.nan)[..., 3 : x.shape[-1] + 3]
    return [
        x,
        x.mT.contiguous().mT,
        gaps.copy_(x),
        columns.copy_(x),
        x[:1].expand(x.shape),
        x[..., :1].expand(x.shape),
        x.transpose(0, -1).contiguous().transpose(0, -1),
    ]


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
def test_layouts(batch: Shape) -> None:
    def fn(x: Any, w: Any, d: Any) -> Any:
        return torch.softmax(x @ w, -1) @ d + x

    compiled = tilevm.compile(fn)
    for m, k, n in [(6, 9, 10), (33, 40, 17)]:
        x, w, d = tensor(*batch, m, k), factor(*batch, k, n), factor(*batch, n, k)
        lefts, rights = layouts(x), layouts(w)
        for i in range(len(lefts)):
            for j in (i, i + 1, i + 3):
                check(compiled, fn, lefts[i], rights[j % len(rights)], d)
        for right in layouts(d):
            check(compiled, fn, x, w, right)


SAME: dict[str, Function] = {
    "x x": lambda x: x @ x,
    "x xT": lambda x: x @ x.t(),
    "xT x": lambda x: torch.tanh(x.t() @ x),
    "kernel, its square": lambda x: torch.tanh(torch.tanh(x @ x) @ torch.tanh(x @ x)),
    "kernel by its transpose": lambda x: torch.tanh(x @ x) @ torch.tanh(x @ x).t(),
    "two kernels of one product": lambda x: torch.tanh(x @ x) @ torch.sigmoid(x @ x),
    "power": lambda x: x @ x @ x @ x,
    "product of a kernel and x": lambda x: torch.softmax(x @ x, -1) @ x,
    "x and a kernel": lambda x: x @ torch.softmax(x @ x, -1),
    "plus itself": lambda x: x @ x + x + x.t(),
    "plus its transpose": lambda x: torch.tanh(x @ x) + torch.tanh(x @ x).t(),
    "sums as a row": lambda x: torch.sigmoid(torch.tanh(x @ x)) @ x + torch.tanh(x @ x).sum(-1),
}


@pytest.mark.parametrize("name", SAME)
def test_same_tensor(name: str) -> None:
    fn = SAME[name]
    compiled = tilevm.compile(fn)
    for n in (2, 3, 13, 31, 65, 257, 0, 1):
        check(compiled, fn, tensor(n, n) / max(n, 1) ** 0.5)


def test_order_of_results_is_eagers() -> None:
    def fn(x: Any, w: Any) -> Any:
        y = torch.tanh(x @ w)
        heads = (x @ w * 2).unflatten(-1, (4, -1)).permute(0, 2, 1, 3)
        return y.transpose(0, 1), y.permute(2, 0, 1) + 1, heads * 2, heads.flatten(0, 1)

    compiled = tilevm.compile(fn)
    for b, s in [(2, 7), (3, 33)]:
        x, w = tensor(b, s, 12), factor(12, 20)
        check(compiled, fn, x, w)
        assert [y.stride() for y in compiled(x, w)] == [y.stride() for y in fn(x, w)]


# Kernels that do not run row by row ---------------------------------------------------------------


@tilevm.kernel
def one_column(x: Any, w: Any, b: Any, d: Any) -> Any:
    return ((x @ w) * b) @ d


@tilevm.kernel
def sum_and_max(x: Any, w: Any) -> Any:
    return lang.max(lang.sum(x @ w, -1))


@tilevm.kernel
def chosen(x: Any, w: Any, table: Any) -> Any:
    return lang.take(table, lang.argmax(x @ w, -1), 0)


@tilevm.kernel
def chosen_rows(x: Any, w: Any, i: Any) -> Any:
    return lang.take(lang.tanh(x @ w), i, 0) + lang.sum(x @ w)


@tilevm.kernel
def chosen_columns(x: Any, w: Any, i: Any) -> Any:
    return lang.take(x @ w, i, 1) * 2


@tilevm.kernel
def sums_times(x: Any, w: Any, g: Any, d: Any) -> Any:
    return lang.sum(x @ w * g, -1).T @ d


@tilevm.kernel
def square(x: Any, w: Any) -> Any:
    h = x @ w
    return lang.tanh(h) @ lang.sigmoid(h)


@tilevm.kernel
def row_of_sums(x: Any, w: Any, d: Any) -> Any:
    h = lang.tanh(x @ w)
    return lang.sigmoid(h) @ d + lang.sum(h, -1)


@pytest.mark.parametrize("m", [1, 5, 17, 300, 700])
def test_kernels(m: int) -> None:
    x, w = tensor(m, 30), factor(30, 50)
    i = torch.arange(3 * m) % m
    cases: list[tuple[Any, Function, list[Any]]] = [
        (one_column, lambda x, w, b, d: ((x @ w) * b) @ d,
         [x, w[:, :1], tensor(20), factor(20, 5)]),
        (sum_and_max, lambda x, w: (x @ w).sum(-1).amax(), [x, w]),
        (chosen, lambda x, w, t: t[(x @ w).argmax(-1)], [x, w, tensor(50, 7)]),
        (chosen_rows, lambda x, w, i: torch.tanh(x @ w)[i] + (x @ w).sum(), [x, w, i]),
        (chosen_columns, lambda x, w, i: (x @ w)[:, i] * 2, [x, w, i % 50]),
        (sums_times, lambda x, w, g, d: (x @ w * g).sum(-1).T @ d,
         [x, w, tensor(9, m, 50), factor(9, 5)]),
        (square, lambda x, w: torch.tanh(x @ w) @ torch.sigmoid(x @ w), [x, factor(30, m)]),
        (row_of_sums, lambda x, w, d: torch.tanh(x @ w).sigmoid() @ d + torch.tanh(x @ w).sum(-1),
         [x, w, factor(50, m)]),
    ]  # fmt: skip
    for kernel, fn, args in cases:
        check(kernel, fn, *args)


def test_sizes_that_depend_on_data() -> None:
    def fn(x: Any, w: Any, d: Any) -> Any:
        rows = x[:, 0].nonzero()[:, 0]
        y = torch.tanh(x[rows] @ w)
        return y @ d, torch.softmax(y @ y.t(), -1) @ x[rows], x @ w

    compiled = tilevm.compile(fn)
    for m in (7, 13, 33, 300, 2):
        x = tensor(m, 12)
        x[1::3, 0] = 0
        check(compiled, fn, x, factor(12, 20), factor(20, 5))
    x[:, 0] = 0
    check(compiled, fn, x, factor(12, 20), factor(20, 5))


def test_an_index_out_of_range_is_refused() -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        chosen_rows(tensor(4, 30), factor(30, 50), torch.tensor([4]))
    with pytest.raises(IndexError, match="out of bounds"):
        chosen_columns(tensor(400, 30), factor(30, 50), torch.tensor([50]))
    with pytest.raises(IndexError, match="out of bounds"):
        chosen(tensor(400, 30), factor(30, 50), tensor(3, 7))


# Tiers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", PLAIN)
def test_tiers(name: str, tier: str) -> None:
    fn = PLAIN[name]
    with tilevm.config.patch(tier=tier, verify=True):
        compiled = tilevm.compile(fn)
        for m, k, n in [(1, 31, 33), (17, 257, 65), (257, 64, 31)]:
            check(compiled, fn, *operands(m, k, n, torch.float32))

"""Products, contractions and attention through `tilevm.compile`, against eager and float64."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from math import isnan
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ml_dtypes  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from tests.differential import judge  # noqa: E402
from torch import nn  # noqa: E402

import tilevm  # noqa: E402

Shape = tuple[int, ...]
Function = Callable[..., Any]
Case = tuple[str, Function, list[list[Shape]]]

FLOATS = [torch.float32, torch.bfloat16, torch.float16]
INF, NAN = float("inf"), float("nan")
sdpa: Any = F.scaled_dot_product_attention


def array(x: Any) -> Any:
    x = x.detach().contiguous()
    if x.dtype is torch.bfloat16:
        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()


def wide(value: Any) -> Any:
    return (
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
    )


def tensors(shapes: Sequence[Shape], dtype: Any, seed: int = 0) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def check(compiled: Any, fn: Function, args: Sequence[Any]) -> None:
    """As near to float64 as DESIGN wants; special values where eager has them.

    Of low precision the reference is itself rounded, to what eager has. Eager may be off by half a
    unit of the largest element; so may a product that is rounded before something is added.
    """
    with torch.no_grad():
        want = fn(*args)
        exact = fn(*map(wide, args)).to(want.dtype)
        got = compiled(*args)
    odd = ~want.isfinite() | ~exact.isfinite()
    exact = torch.where(odd, want, exact)
    if want.dtype in (torch.bfloat16, torch.float16) and want.numel():
        half = torch.finfo(want.dtype).eps / 2 * exact.masked_fill(odd, 0).abs().amax()
        want = want + half
    judge.check(array(got), array(exact), array(want), by="largest")


def sizes(text: str, *choices: Shape) -> list[list[Shape]]:
    """Shapes by letters, as `mk kn`, for each choice of sizes in order of appearance."""
    names = list(dict.fromkeys(text.replace(" ", "")))
    return [
        [tuple(dict(zip(names, choice, strict=True))[n] for n in word) for word in text.split(" ")]
        for choice in choices
    ]


THREE = [(7, 8, 5), (1, 1, 1), (13, 31, 17), (2, 0, 3), (0, 4, 3), (3, 5, 0), (64, 33, 1)]
FOUR = [(2, 7, 8, 5), (1, 1, 1, 1), (3, 13, 31, 17), (2, 3, 0, 4), (0, 3, 2, 2)]

CASES: list[Case] = [
    ("mm", torch.mm, sizes("mk kn", *THREE)),
    ("mm transposed", lambda x, y: x.t() @ y.t(), sizes("km nk", *THREE)),
    ("bmm", torch.bmm, sizes("bmk bkn", *FOUR)),
    ("matmul", torch.matmul, sizes("mk kn", *THREE)),
    ("matmul batched", torch.matmul, sizes("bmk kn", *FOUR)),
    ("matmul vector", torch.matmul, sizes("bmk k", *[c[:3] for c in FOUR])),
    ("vector matmul", torch.matmul, sizes("m bmk", *[c[:3] for c in THREE])),
    (
        "matmul broadcast", lambda x, y: x[:, None] @ y,
        sizes("bmk hkn", (2, 3, 4, 5, 6), (7, 1, 2, 3, 2)),
    ),
    ("expanded", lambda x, y: x.expand(4, -1, -1) @ y.expand(4, -1, -1), sizes("mk kn", *THREE)),
    ("strided", lambda x, y: x[:, ::2] @ y[::2], sizes("mk kn", *THREE)),
    ("linalg.matmul", torch.linalg.matmul, sizes("mk kn", *THREE)),
    ("mv", torch.mv, sizes("mk k", *[c[:2] for c in THREE])),
    ("inner", torch.inner, sizes("mk nk", *THREE)),
    ("inner batched", torch.inner, sizes("bmk nk", *[(b, m, k, n) for b, m, k, n in FOUR])),
    ("outer", torch.outer, sizes("m n", (7, 5), (1, 1), (0, 3))),
    ("linear", F.linear, sizes("mk nk", *THREE)),
    ("linear bias", F.linear, sizes("mk nk n", *THREE)),
    ("linear batched", F.linear, sizes("bmk nk n", *FOUR)),
    ("linear vector", F.linear, sizes("k nk n", (8, 5), (1, 1), (31, 7))),
    ("linear one row", F.linear, sizes("mk k", (7, 8), (3, 31))),
    ("addmm", torch.addmm, sizes("n mk kn", *[(n, m, k) for m, k, n in THREE])),
    ("addmm full", torch.addmm, sizes("mn mk kn", *[(m, n, k) for m, k, n in THREE])),
    (
        "addmm scaled", lambda c, x, y: torch.addmm(c, x, y, beta=0.5, alpha=-2),
        sizes("n mk kn", *[(n, m, k) for m, k, n in THREE]),
    ),
    (
        "addmm in place", lambda c, x, y: (c * 1).addmm_(x, y, beta=2),
        sizes("mn mk kn", *[(m, n, k) for m, k, n in THREE]),
    ),
    (
        "addmm beta 0", lambda c, x, y: torch.addmm(c * NAN, x, y, beta=0),
        sizes("n mk kn", *[(n, m, k) for m, k, n in THREE]),
    ),
    ("baddbmm", torch.baddbmm, sizes("bmn bmk bkn", *[(b, m, n, k) for b, m, k, n in FOUR])),
    (
        "baddbmm beta 0", lambda c, x, y: torch.baddbmm(c * NAN, x, y, beta=0, alpha=0.25),
        sizes("bmn bmk bkn", *[(b, m, n, k) for b, m, k, n in FOUR]),
    ),
    (
        "addmv", lambda c, x, y: torch.addmv(c, x, y, alpha=3),
        sizes("m mk k", (7, 8), (1, 1), (2, 0)),
    ),
    (
        "addbmm", lambda c, x, y: torch.addbmm(c, x, y, beta=0.5),
        sizes("mn bmk bkn", *[(m, n, b, k) for b, m, k, n in FOUR[:4]]),
    ),
    ("addr", lambda c, x, y: torch.addr(c, x, y, alpha=2), sizes("mn m n", (7, 5), (1, 1), (0, 3))),
    ("tensordot", lambda x, y: torch.tensordot(x, y, 1), sizes("amk kn", *FOUR)),
    (
        "tensordot dims", lambda x, y: torch.tensordot(x, y, ([2, 0], [1, 0])),
        sizes("amk akn", *FOUR[:4]),
    ),
    *[
        (f"einsum {text}", lambda *xs, text=text: torch.einsum(text, *xs), sizes(shapes, *choices))
        for text, shapes, choices in (
            ("ij,jk->ik", "ij jk", THREE),
            ("ij,jk", "ij jk", THREE),
            ("ij,kj->ki", "ij kj", THREE),
            ("bij,bjk->bik", "bij bjk", FOUR),
            ("bhid,bhjd->bhij", "bhid bhjd", [(2, 3, 5, 4, 7), (1, 2, 1, 3, 1)]),
            ("bhij,bjhd->bihd", "bhij bjhd", [(2, 3, 5, 4, 7), (1, 2, 1, 3, 1)]),
            ("bshd,hdm->bsm", "bshd hdm", [(2, 5, 3, 4, 7)]),
            ("...ij,jk->...ik", "abij jk", [(2, 3, 5, 4, 7)]),
            ("i,j->ji", "i j", [(3, 4)]),
            ("i,i", "i i", [(5,), (1,)]),
            ("ij,ij->i", "ij ij", [(3, 4), (5, 0)]),
            ("ijk->ki", "ijk", [(3, 4, 5)]),
            ("ijl,jk->ik", "ijl jk", [(3, 4, 5, 6)]),
        )
    ],
]  # fmt: skip


@pytest.mark.parametrize("dot", [torch.dot, torch.vdot])
@pytest.mark.parametrize("length", [0, 1, 7, 31, 300])
def test_dot(dot: Function, length: int) -> None:
    """One element may be nothing but what is left of large terms: the bound is theirs.

    Source: Higham, Accuracy and Stability of Numerical Algorithms, section 3.1.
    """
    compiled = tilevm.compile(dot)
    for seed in range(20):
        x, y = tensors([(length,), (length,)], torch.float32, seed)
        error = (compiled(x, y).double() - dot(x.double(), y.double())).abs()
        assert error <= length * 2.0**-24 * (x.double() * y.double()).abs().sum()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("name", "fn", "shapes"), CASES, ids=[c[0] for c in CASES])
def test_product(name: str, fn: Function, shapes: list[list[Shape]], dtype: Any) -> None:
    compiled = tilevm.compile(fn)
    tilevm.stats.reset()
    for seed, each in enumerate(shapes):
        check(compiled, fn, tensors(each, dtype, seed))
    assert not tilevm.stats()["flushes"]
    assert not named(compiled, *tensors(shapes[0], dtype))


def named(compiled: Any, *args: Any) -> list[str]:
    """Operators of ATen that are called out."""
    with torch.no_grad():
        report = tilevm.explain(compiled)(*args)
    return [c.name for c in report.callouts if c.name.startswith("aten.")]


@pytest.mark.parametrize(("name", "fn", "shapes"), CASES[:20], ids=[c[0] for c in CASES[:20]])
def test_special_values(name: str, fn: Function, shapes: list[list[Shape]]) -> None:
    compiled = tilevm.compile(fn)
    for value in (NAN, INF, -INF):
        args = tensors(shapes[0], torch.float32)
        args[0].view(-1)[1] = value
        check(compiled, fn, args)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_layouts(dtype: Any) -> None:
    fn = tilevm.compile(torch.matmul)
    x, y = tensors([(6, 9, 10), (6, 10, 8)], dtype)
    for left in (
        x,
        x.mT.contiguous().mT,
        x[:1].expand(6, -1, -1),
        x.transpose(0, 1).contiguous().transpose(0, 1),
    ):
        for right in (y, y.mT.contiguous().mT, y[..., :1].expand(-1, -1, 4), y[..., ::2]):
            check(fn, torch.matmul, [left, right])


def test_nothing_to_sum_leaves_the_bias() -> None:
    fn = tilevm.compile(F.linear)
    x, w, bias = torch.ones(3, 0), torch.ones(4, 0), torch.arange(4.0)
    with torch.no_grad():
        assert torch.equal(fn(x, w, bias), bias.expand(3, 4))
        assert torch.equal(fn(x, w), torch.zeros(3, 4))


def test_one_capture_for_all_sizes() -> None:
    def fn(x: Any, w: Any, bias: Any, y: Any) -> Any:
        return torch.baddbmm(F.linear(x, w, bias), x, y, alpha=0.5) @ w

    compiled = tilevm.compile(fn)
    tilevm.stats.reset()
    for b, m, k in [(2, 7, 8), (3, 13, 31), (5, 2, 3), (2, 65, 64)]:
        check(compiled, fn, tensors([(b, m, k), (k, k), (k,), (b, k, k)], torch.float32))
    assert tilevm.stats()["captures"] == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.complex128], ids=str)
def test_other_dtypes_are_called_out(dtype: Any) -> None:
    x = torch.randn(3, 3).mul(5).to(dtype)
    fn = tilevm.compile(lambda x: x @ x)
    assert torch.equal(fn(x), x @ x)
    (call,) = fn.explain(x).callouts
    assert (call.name, str(dtype)[6:] in call.reason) == ("aten.matmul.default", True)


def test_own_and_called_out_on_one_line() -> None:
    fn = tilevm.compile(lambda x: (x @ x, x.double() @ x.double()))
    names = [c.name for c in fn.explain(torch.ones(2, 2)).callouts]
    assert names.count("aten.matmul.default") == 1


@pytest.mark.parametrize("seed", range(40))
def test_random_contraction(seed: int) -> None:
    rng = random.Random(seed)
    letters = "abcdefg"[: rng.randint(1, 6)]
    left, right = (rng.sample(letters, rng.randint(0, min(4, len(letters)))) for _ in range(2))
    used = sorted({*left, *right})
    to = rng.sample(used, rng.randint(0, len(used)))
    text = f"{''.join(left)},{''.join(right)}->{''.join(to)}"

    def fn(x: Any, y: Any) -> Any:
        return torch.einsum(text, x, y)

    compiled = tilevm.compile(fn)
    tilevm.stats.reset()
    for least in (2, 2, 0):
        of = {letter: rng.randint(least, 6) for letter in letters}
        shapes = [tuple(of[letter] for letter in side) for side in (left, right)]
        args = tensors(shapes, torch.float32, seed)
        with torch.no_grad():
            got, exact = compiled(*args), fn(*map(wide, args)).float()
        torch.testing.assert_close(got, exact, rtol=1e-4, atol=1e-4)
    assert not tilevm.stats()["flushes"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.einsum("ij,jk,kl->il", x, x, x),
        lambda x: torch.einsum("ii,ij->j", x, x),
        lambda x: torch.einsum("bij,cjk->ik", x[None], x[None]),
        lambda x: torch.linalg.multi_dot([x, x, x]),
        lambda x: sdpa(x[None], x[None], x[None], dropout_p=0.0, attn_mask=None),
    ],
)
def test_rare_forms(fn: Function) -> None:
    check(tilevm.compile(fn), fn, tensors([(5, 5)], torch.float32))


def test_errors_are_pytorchs() -> None:
    wrong: list[tuple[Function, list[Shape]]] = [
        (torch.mm, [(2, 3), (4, 5)]),
        (torch.dot, [(3,), (4,)]),
        (F.linear, [(2, 3), (4, 5)]),
        (torch.bmm, [(2, 3, 4), (3, 4, 5)]),
    ]
    for fn, shapes in wrong:
        compiled = tilevm.compile(fn)
        with pytest.raises(RuntimeError):
            compiled(*tensors(shapes, torch.float32))
    with pytest.raises(RuntimeError, match="dtype"):
        tilevm.compile(torch.mm)(torch.ones(2, 2), torch.ones(2, 2).bfloat16())


# Attention ---------------------------------------------------------------------------------------


def qkv(
    batch: int, heads: int, queries: int, keys: int, width: int, dtype: Any, seed: int = 0
) -> list[Any]:
    return tensors(
        [(batch, heads, queries, width), (batch, heads, keys, width), (batch, heads, keys, width)],
        dtype,
        seed,
    )


# With few elements, how near eager is would be luck.
SIZES = [
    (32, 3, 7, 7, 8),
    (1, 1, 1, 1, 1),
    (16, 2, 13, 31, 16),
    (99, 1, 5, 2, 4),
    (1, 2, 65, 130, 64),
]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3, 1.0, 4.0])
def test_attention(dtype: Any, causal: bool, scale: float | None) -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        return sdpa(q, k, v, is_causal=causal, scale=scale)

    compiled = tilevm.compile(fn)
    tilevm.stats.reset()
    for seed, each in enumerate(SIZES):
        check(compiled, fn, qkv(*each, dtype, seed))
    assert not named(compiled, *qkv(*SIZES[0], dtype))
    assert not tilevm.stats()["flushes"]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", ["bool", "additive", "float32"])
@pytest.mark.parametrize("shape", ["qk", "1k", "bhqk", "b11k", "11qk", "1hqk"])
def test_masks(dtype: Any, kind: str, shape: str) -> None:
    def fn(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return sdpa(q, k, v, attn_mask=mask)

    compiled = tilevm.compile(fn)
    for seed, each in enumerate(SIZES):
        of = dict(zip("bhqk", each, strict=False)) | {"1": 1}
        generator = torch.Generator().manual_seed(seed)
        seen = torch.rand([of[c] for c in shape], generator=generator) < 0.7
        seen[..., 0, :] = False  # a row, or all, without any key
        mask = seen
        if kind != "bool":
            noise = torch.randn(seen.shape, generator=generator).masked_fill(~seen, -INF)
            mask = noise.to(dtype if kind == "additive" else torch.float32)
        check(compiled, fn, [*qkv(*each, dtype, seed), mask])
    assert not named(compiled, *qkv(*SIZES[2], dtype), torch.ones(13, 31, dtype=torch.bool))


@pytest.mark.parametrize("kind", ["bool", "additive"])
def test_all_masked_is_zero(kind: str) -> None:
    compiled = tilevm.compile(lambda q, k, v, mask: sdpa(q, k, v, mask))
    q, k, v = qkv(2, 2, 5, 6, 4, torch.float32)
    seen = torch.ones(5, 6, dtype=torch.bool)
    seen[2] = False
    mask = seen if kind == "bool" else torch.zeros(5, 6).masked_fill(~seen, -INF)
    with torch.no_grad():
        got = compiled(q, k, v, mask)
    assert not got[:, :, 2].any()
    assert got[:, :, 3].any()


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("operand", range(3))
@pytest.mark.parametrize("masked", [False, True])
def test_attention_to_special_values(value: float, operand: int, masked: bool) -> None:
    def fn(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return sdpa(q, k, v, mask if masked else None)

    if operand == 0 and isnan(value) and not masked:
        pytest.skip("PyTorch's kernel takes a row of NaN for one that is masked")
    args = qkv(1, 2, 5, 6, 4, torch.float32)
    args[operand][0, 0, 3] = value
    mask = torch.ones(5, 6, dtype=torch.bool)
    mask[:, 3] = False
    check(tilevm.compile(fn), fn, [*args, mask])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("mask", ["", "qk", "b1qk", "bhqk", "causal"])
def test_grouped_heads(dtype: Any, mask: str) -> None:
    def fn(q: Any, k: Any, v: Any, seen: Any) -> Any:
        given = seen if mask not in ("", "causal") else None
        return sdpa(q, k, v, given, is_causal=mask == "causal", enable_gqa=True)

    compiled = tilevm.compile(fn)
    tilevm.stats.reset()
    for seed, (heads, shared) in enumerate([(8, 2), (6, 3), (12, 4), (4, 1), (4, 4)]):
        q, _, _ = qkv(2, heads, 5, 7, 8, dtype, seed)
        _, k, v = qkv(2, shared, 5, 7, 8, dtype, seed)
        of = {"b": 2, "1": 1, "h": heads, "q": 5, "k": 7}
        seen = torch.rand([of.get(c, 1) for c in mask or "1"]) < 0.8
        check(compiled, fn, [q, k, v, seen])
        assert not named(compiled, q, k, v, seen)
    assert tilevm.stats()["captures"] <= 3


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_grouped_heads_of_the_kernel_itself(dtype: Any) -> None:
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def fn(*projected: Any) -> Any:
        heads = zip(projected, (8, 2, 2), strict=True)
        return flash(*(x.unflatten(-1, (n, 8)).transpose(1, 2) for x, n in heads))[0]

    compiled = tilevm.compile(fn)
    q, k, v = tensors([(2, 5, 64), (2, 7, 16), (2, 7, 16)], dtype)
    parts = [wide(x).unflatten(-1, (-1, 8)).transpose(1, 2) for x in (q, k, v)]
    exact = sdpa(*parts, enable_gqa=True).to(dtype)
    judge.check(array(compiled(q, k, v)), array(exact), array(fn(q, k, v)), by="largest")
    assert not named(compiled, q, k, v)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_shapes_that_pytorch_does_without_its_kernel(dtype: Any) -> None:
    fn = tilevm.compile(lambda q, k, v: sdpa(q, k, v))
    several: list[list[Shape]] = [
        [(5, 8), (7, 8), (7, 8)],
        [(3, 5, 8), (3, 7, 8), (3, 7, 8)],
        [(2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)],
        [(2, 2, 3, 5, 8), (2, 2, 3, 7, 8), (2, 2, 3, 7, 8)],
        [(2, 3, 5, 8), (1, 3, 7, 8), (1, 3, 7, 8)],
        [(3, 5, 8), (3, 0, 8), (3, 0, 8)],
        [(2, 3, 5, 8), (2, 3, 0, 8), (2, 3, 0, 8)],
        [(2, 3, 5, 0), (2, 3, 7, 0), (2, 3, 7, 8)],
        [(2, 3, 0, 8), (2, 3, 7, 8), (2, 3, 7, 8)],
    ]
    for shapes in several:
        args = tensors(shapes, dtype)
        check(fn, sdpa, args)
        assert not named(fn, *args)


def test_lengths_change_with_one_capture() -> None:
    def fn(x: Any, w: Any, mask: Any) -> Any:
        parts = F.linear(x, w).reshape(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        y = sdpa(parts[0] / 8, parts[1] / 4, parts[2], mask[:, None, None])
        return y.transpose(1, 2).flatten(2)

    compiled = tilevm.compile(fn)
    tilevm.stats.reset()
    for b, s in [(2, 7), (3, 13), (2, 64), (5, 2), (1, 9)]:
        mask = torch.rand(b, s) < 0.7
        check(compiled, fn, [*tensors([(b, s, 32), (96, 32)], torch.float32), mask])
    assert tilevm.stats()["captures"] == 1


def test_order_in_memory_is_eagers() -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        return sdpa(q, k, v)

    args = [t.mT.contiguous().mT for t in qkv(2, 3, 5, 5, 8, torch.float32)]
    tilevm.stats.reset()
    with torch.no_grad():
        got, want = tilevm.compile(fn)(*args), fn(*args)
    assert not tilevm.stats()["callouts"]
    assert got.stride() == want.stride()


def test_dropout_is_called_out() -> None:
    fn = tilevm.compile(lambda q, k, v: sdpa(q, k, v, dropout_p=0.5))
    args = qkv(1, 2, 5, 5, 8, torch.float32)
    with torch.no_grad():
        torch.manual_seed(0)
        got = fn(*args)
        torch.manual_seed(0)
        torch.testing.assert_close(got, sdpa(*args, dropout_p=0.5))
    assert named(fn, *args) == ["aten.scaled_dot_product_attention.default"]


def test_attention_written_out() -> None:
    def fn(q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = q @ k.mT / q.shape[-1] ** 0.5 + mask
        return torch.softmax(scores, -1) @ v

    compiled = tilevm.compile(fn)
    for each in SIZES:
        args = qkv(*each, torch.float32)
        check(compiled, fn, [*args, torch.randn(each[2], each[3])])
    assert not named(compiled, *args, torch.randn(each[2], each[3]))


# Other doors -------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32, bias=False)
        self.causal = causal

    def forward(self, x: Any) -> Any:
        parts = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        y = sdpa(parts[0], parts[1], parts[2], is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


def compiled_by(door: str, model: Any) -> Any:
    torch._dynamo.reset()
    if door == "tilevm":
        return tilevm.compile(model)
    return torch.compile(model, backend="tilevm", dynamic=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("door", ["tilevm", "torch"])
def test_model(door: str, causal: bool) -> None:
    torch.manual_seed(0)
    model = Attention(causal).eval()
    compiled = compiled_by(door, model)
    tilevm.stats.reset()
    with torch.no_grad():
        for b, s in [(2, 7), (3, 13), (2, 64)]:
            x = torch.randn(b, s, 32)
            torch.testing.assert_close(compiled(x), model(x))
    stats = tilevm.stats()
    assert stats["captures"] == 1
    assert not stats["flushes"]
    assert not stats["callouts"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("door", ["tilevm", "torch"])
def test_gradient_step(door: str, causal: bool) -> None:
    torch.manual_seed(0)
    model = Attention(causal)
    compiled = compiled_by(door, model)
    for b, s in [(2, 7), (3, 13)]:
        x = torch.randn(b, s, 32, requires_grad=True)
        given = [x, *model.parameters()]
        want = torch.autograd.grad(model(x).square().mean(), given)
        got = torch.autograd.grad(compiled(x).square().mean(), given)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w)


@pytest.mark.parametrize("door", ["tilevm", "torch"])
def test_gradient_of_products(door: str) -> None:
    def fn(mask: Any, c: Any, x: Any, y: Any) -> Any:
        z = torch.addmm(c, x, y, beta=0.5, alpha=2)
        p = torch.softmax((z @ z.mT).masked_fill(mask, -INF), -1)
        return torch.einsum("ij,jk->ki", p, z) @ x

    compiled = compiled_by(door, fn)
    for m, k, n in [(5, 4, 3), (7, 8, 9)]:
        args = [t.requires_grad_() for t in tensors([(n,), (m, k), (k, n)], torch.float32)]
        mask = torch.ones(m, m).triu(1).bool()
        want = torch.autograd.grad(fn(mask, *args).square().sum(), args)
        got = torch.autograd.grad(compiled(mask, *args).square().sum(), args)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("door", ["tilevm", "torch"])
@pytest.mark.parametrize("grad", [False, True])
def test_autocast(door: str, grad: bool) -> None:
    torch.manual_seed(0)
    model = Attention(False)
    compiled = compiled_by(door, model)
    x = torch.randn(2, 9, 32)
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(grad):
        got, want = compiled(x), model(x)
    assert got.dtype is want.dtype is torch.bfloat16
    torch.testing.assert_close(got, want, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
@pytest.mark.parametrize(
    ("one", "other", "dim"),
    [((5, 3), (5, 3), -1), ((3,), (3,), 0), ((1, 3, 4), (6, 3, 1), 1), ((0, 3), (0, 3), -1)],
)
def test_cross(dtype: Any, one: Any, other: Any, dim: int) -> None:
    tilevm.stats.reset()
    x, y = (torch.randint(-9, 9, sizes).to(dtype) for sizes in (one, other))
    found = tilevm.compile(lambda x, y: torch.linalg.cross(x, y, dim=dim))(x, y)
    exact = torch.linalg.cross(x, y, dim=dim)
    assert found.stride() == exact.stride()
    torch.testing.assert_close(found, exact)
    assert not tilevm.stats()["callouts"]


def test_bilinear() -> None:
    def function(x: Any, y: Any, w: Any) -> Any:
        return F.bilinear(x, y, w, w[:, 0, 0])

    w = torch.randn(6, 5, 7, requires_grad=True)
    for sizes in ((4,), (2, 3), ()):
        x, y = (torch.randn(*sizes, n, requires_grad=True) for n in (5, 7))
        expected = torch.autograd.grad(function(x, y, w).square().sum(), (x, y, w))
        with tilevm.config.patch(templates=1), tilevm.fuse():
            found = torch.autograd.grad(function(x, y, w).square().sum(), (x, y, w))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

"""Every row of `torch_ops`, through `tilevm.compile`, against eager and float64."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tilevm  # noqa: E402

Case = tuple[str, Callable[..., Any], str]  # name, function, dtypes of the arguments by letter

UNARY = (
    "abs neg sign exp exp2 expm1 sin cos tan tanh sigmoid erf relu floor ceil round trunc isnan "
    "isinf isfinite square"
)
ACTIVATIONS = (
    "silu gelu relu6 hardtanh hardsigmoid hardswish leaky_relu elu softplus logsigmoid mish"
)
LOGICAL = "logical_and logical_or logical_xor"
BITWISE = "bitwise_and bitwise_or bitwise_xor"
SCALARS = (
    ("x + 2", "f"), ("2 - x", "f"), ("x * 0.5", "h"), ("x / 3", "l"), ("x // 2", "l"),
    ("x % 3", "l"), ("x + 1.5", "l"), ("x * True", "l"), ("1 / x", "p"), ("x > 0.5", "f"),
    ("x ** 2", "f"), ("x ** 3", "f"), ("x ** 0.5", "p"), ("x ** -1", "p"), ("x ** -0.5", "p"),
    ("x ** 1.7", "p"), ("2 ** x", "f"), ("x ** 2", "l"), ("x ** 2.0", "l"), ("x & 3", "l"),
    ("~x", "b"), ("x ^ True", "b"), ("-x", "f"), ("abs(x)", "l"), ("x.float() + 1", "l"),
)  # fmt: skip
REDUCTIONS = (
    ("sum", "f"), ("sum", "l"), ("sum", "b"), ("mean", "f"), ("mean", "h"), ("amax", "f"),
    ("amin", "l"), ("any", "b"), ("all", "b"), ("var", "f"), ("std", "f"),
)  # fmt: skip

# f float32, h bfloat16, d float64, e float16, l int64, i int32, s int16, c int8, u uint8, b bool,
# p positive float32, n int64 in 1..8
CASES: list[Case] = [
    *[(name, getattr(torch, name), "f") for name in UNARY.split()],
    *[(name, getattr(torch, name), "p") for name in "log log2 log1p sqrt rsqrt reciprocal".split()],
    *[(f"F.{name}", getattr(F, name), "f") for name in ACTIVATIONS.split()],
    ("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), "f"),
    ("threshold", lambda x: F.threshold(x, 0.1, -2.0), "f"),
    *[(f"bf16 {name}", getattr(torch, name), "h") for name in "exp tanh sigmoid neg abs".split()],
    *[(f"int {name}", getattr(torch, name), "l") for name in "abs neg sign exp sqrt isnan".split()],
    ("logical_not", torch.logical_not, "f"),
    ("bitwise_not", torch.bitwise_not, "l"),
    *[
        (f"{name} {kinds}", getattr(torch, name), kinds)
        for name in "add sub mul div maximum minimum eq ne lt le gt ge".split()
        for kinds in ("ff", "ll", "fl", "fh", "li", "hh")
    ],
    *[(f"{name} ff", getattr(torch, name), "ff") for name in "atan2 fmod remainder".split()],
    *[(f"{name} ln", getattr(torch, name), "ln") for name in "fmod remainder floor_divide".split()],
    ("floor_divide ff", torch.floor_divide, "ff"),
    *[
        (f"{name} bb", getattr(torch, name), "bb")
        for name in f"{LOGICAL} {BITWISE} add mul".split()
    ],
    *[(f"{name} ll", getattr(torch, name), "ll") for name in BITWISE.split()],
    ("shift left", lambda x, n: x << n, "ln"),
    ("shift right", lambda x, n: x >> n, "ln"),
    *[(f"scalar {text}", eval(f"lambda x: {text}"), kinds) for text, kinds in SCALARS],
    ("pow tensor", torch.pow, "pf"),
    ("add alpha", lambda x, y: torch.add(x, y, alpha=2.5), "ff"),
    ("sub alpha", lambda x, y: torch.sub(x, y, alpha=3), "ll"),
    ("rsub", lambda x, y: torch.rsub(x, y, alpha=2), "ff"),
    ("div floor", lambda x, y: torch.div(x, y, rounding_mode="floor"), "fp"),
    ("div trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc"), "fp"),
    *[
        (f"div trunc {kinds}", lambda x, y: torch.div(x, y, rounding_mode="trunc"), kinds)
        for kinds in ("ln", "in", "cn", "un", "sn")
    ],
    ("div trunc by a number", lambda x: torch.div(x, -3, rounding_mode="trunc"), "l"),
    ("where", lambda b, x, y: torch.where(b, x, y), "bff"),
    ("where scalar", lambda b, x: torch.where(b, x, -1.0), "bf"),
    ("where mixed", lambda b, x, y: torch.where(b, x, y), "bfl"),
    ("masked_fill", lambda x, b: x.masked_fill(b, float("-inf")), "fb"),
    ("masked_fill tensor", lambda x, b: x.masked_fill(b, torch.tensor(3.0)), "fb"),
    ("clamp", lambda x: x.clamp(-0.5, 0.5), "f"),
    ("clamp min", lambda x: x.clamp(min=0), "l"),
    ("clamp tensors", torch.clamp, "fff"),
    ("clamp_max", lambda x: torch.clamp_max(x, 0.2), "f"),
    ("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.5), "fff"),
    ("addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=2), "ffp"),
    ("lerp", lambda x, y: torch.lerp(x, y, 0.3), "ff"),
    ("lerp far", lambda x, y: torch.lerp(x, y, 0.7), "ff"),
    ("lerp tensor", torch.lerp, "fff"),
    # reductions
    *[
        (f"{name} {kind} {args}", eval(f"lambda x: x.{name}({args})"), kind)
        for name, kind in REDUCTIONS
        for args in ("", "0", "-1", "-1, keepdim=True", "(0, 1)")
    ],
    ("sum dtype", lambda x: x.sum(-1, dtype=torch.float32), "l"),
    ("sum int32", lambda x: x.sum(), "i"),
    ("prod", lambda x: x.prod(-1), "f"),
    ("max full", lambda x: x.max(), "f"),
    ("max dim", lambda x: torch.max(x, -1), "f"),
    ("min dim", lambda x: torch.min(x, 0, keepdim=True), "f"),
    ("max values", lambda x: torch.max(x, -1).values, "f"),
    ("argmax", lambda x: x.argmax(-1), "f"),
    ("argmin all", lambda x: x.argmin(), "f"),
    ("var unbiased", lambda x: x.var(-1, unbiased=False), "f"),
    ("var correction", lambda x: torch.var(x, -1, correction=0, keepdim=True), "f"),
    ("var_mean", lambda x: torch.var_mean(x, -1), "f"),
    ("logsumexp", lambda x: torch.logsumexp(x, -1), "f"),
    ("norm", lambda x: x.norm(dim=-1), "f"),
    ("vector_norm", lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True), "f"),
    ("normalize", lambda x: F.normalize(x, dim=-1), "f"),
    # rows
    ("softmax", lambda x: x.softmax(-1), "f"),
    ("softmax 0", lambda x: F.softmax(x, 0), "f"),
    ("softmax dtype", lambda x: F.softmax(x, -1, dtype=torch.float32), "h"),
    ("log_softmax", lambda x: F.log_softmax(x, -1), "f"),
    ("layer_norm", lambda x: F.layer_norm(x, x.shape[-1:]), "f"),
    ("layer_norm affine", lambda x, w: F.layer_norm(x, x.shape[-1:], w[0], w[0]), "ff"),
    ("rms_norm", lambda x, w: F.rms_norm(x, x.shape[-1:], w[0], 1e-5), "ff"),
    ("rms_norm eps", lambda x: F.rms_norm(x, x.shape[-1:]), "f"),
    # views
    ("reshape", lambda x: x.reshape(-1), "f"),
    ("view", lambda x: (x + 1).view(x.shape[1], x.shape[0]), "f"),
    ("flatten", lambda x: (x + 1).flatten(), "f"),
    ("unflatten", lambda x: torch.cat([x, x], 0).unflatten(0, (2, -1)) + 1, "f"),
    ("transpose", lambda x: x.transpose(0, 1) + 1, "f"),
    ("t", lambda x: x.t() * 2, "f"),
    ("permute", lambda x: x[None].permute(2, 0, 1) * 2, "f"),
    ("mT", lambda x: x.mT * 2, "f"),
    ("movedim", lambda x: x[None].movedim(0, 2) * 2, "f"),
    ("expand", lambda x: x[None].expand(3, -1, -1) + 1, "f"),
    ("expand_as", lambda x: x[:1].expand_as(x) + 1, "f"),
    ("unsqueeze", lambda x: x.unsqueeze(-1) * 2, "f"),
    ("squeeze", lambda x: x.unsqueeze(1).squeeze(1) * 2, "f"),
    ("slice", lambda x: x[:, 1:5] * 2, "f"),
    ("slice negative", lambda x: x[:, -3:] * 2, "f"),
    ("slice step", lambda x: x[:, ::2] * 2, "f"),
    ("slice end", lambda x: x[:, :-1] * 2, "f"),
    ("select", lambda x: x[:, -1] * 2, "f"),
    ("narrow", lambda x: x.narrow(1, 1, 2) * 2, "f"),
    ("split", lambda x: torch.split(torch.cat([x, x], 1), x.shape[1], 1), "f"),
    ("split sizes", lambda x: [p + 1 for p in _twice(x).split([1, 2 * x.shape[1] - 1], 1)], "f"),
    ("chunk", lambda x: [p * 2 for p in torch.cat([x, x], 1).chunk(2, 1)], "f"),
    ("unbind", lambda x: [p * 2 for p in torch.stack([x, x + 1]).unbind(0)], "f"),
    ("flip", lambda x: x.flip(0) + 1, "f"),
    ("flip both", lambda x: x.flip(0, 1) + 1, "f"),
    ("repeat", lambda x: x.repeat(2, 3), "f"),
    ("repeat more", lambda x: x.repeat(2, 1, 1), "f"),
    ("repeat_interleave", lambda x: x.repeat_interleave(3, 1), "f"),
    # layout, gathers
    ("cat", lambda x, y: torch.cat([x, y], 1), "ff"),
    ("cat promotes", lambda x, y: torch.cat([x, y]), "fl"),
    ("stack", lambda x, y: torch.stack([x, y], 1), "ff"),
    ("pad", lambda x: F.pad(x, (1, 2), value=3.0), "f"),
    ("pad both", lambda x: F.pad(x, (1, 2, 0, 1)), "f"),
    ("tril", lambda x: x.tril(), "f"),
    ("triu", lambda x: x.triu(1), "f"),
    ("embedding", lambda x, i: F.embedding(i % x.shape[0], x), "fn"),
    ("index_select", lambda x, i: x.index_select(0, i[0] % x.shape[0]), "fn"),
    ("gather", lambda x, i: x.gather(1, i % x.shape[1]), "fn"),
    ("index", lambda x, i: x[i[0] % x.shape[0]], "fn"),
    ("index negative", lambda x, i: x[:, -1 - (i[0] % x.shape[1])], "fn"),
    ("index pair", lambda x, i: x[i[0] % x.shape[0], i[0] % x.shape[1]], "fn"),
    ("index iota", lambda x: x[_iota(x, 0)[:, None, None], _iota(x, 1)] * 2, "f"),
    # create
    ("zeros", lambda x: torch.zeros(x.shape[0], 3) + x[:, :1], "f"),
    ("ones_like", lambda x: torch.ones_like(x) + x, "f"),
    ("full", lambda x: torch.full((x.shape[0],), 2.5) * 2, "f"),
    ("full_like", lambda x: torch.full_like(x, 7) + x, "l"),
    ("new_zeros", lambda x: x.new_zeros(x.shape[1]) + x, "f"),
    ("arange", lambda x: torch.arange(x.shape[1]) + x, "l"),
    ("arange start", lambda x: torch.arange(2, 2 + x.shape[1]) * 2, "l"),
    ("arange step", lambda x: torch.arange(0, 2 * x.shape[1], 2) + 0, "l"),
    ("arange float", lambda x: torch.arange(x.shape[1], dtype=torch.float32) * x, "f"),
    ("scalar tensor", lambda x: x + torch.tensor(2.0), "f"),
    ("size arithmetic", lambda x: x * x.shape[1] + x.shape[0] // 2, "f"),
    ("size division", lambda x: x / x.shape[1], "f"),
    # casts and the same tensor
    ("to", lambda x: x.to(torch.bfloat16) + 1, "f"),
    ("to int", lambda x: (x * 10).to(torch.int32), "f"),
    ("to bool", lambda x: x.bool(), "l"),
    ("type_as", lambda x, y: x.type_as(y) + y, "lf"),
    ("clone", lambda x: x.clone().contiguous().detach() + 1, "f"),
    ("dropout", lambda x: F.dropout(x, 0.5, training=False) + 1, "f"),
    # in place, on intermediates
    ("add_", lambda x: (x * 2).add_(1).mul_(x), "f"),
    ("masked_fill_", lambda x, b: (x * 2).masked_fill_(b, 0), "fb"),
    ("assign", lambda x: _assign(x), "f"),
]


def _twice(x: Any) -> Any:
    return torch.cat([x, x], 1)


def _iota(x: Any, axis: int) -> Any:
    return torch.arange(x.shape[axis])


def _assign(x: Any) -> Any:
    y = torch.zeros(x.shape[0], x.shape[1] + 1)
    y[:, 1:] = x
    return y + 1


CASES += [
    *[
        (f"{name} {kind}", getattr(torch, name), kind)
        for name in "exp tanh sigmoid neg abs sqrt floor sin erf isnan amax".split()
        for kind in "de"
    ],
    # Of float64, eager is no measure: its sums err by more. See tests/differential.
    *[(f"{name} e", getattr(torch, name), "e") for name in "sum mean var".split()],
    ("layer_norm e", lambda x: F.layer_norm(x, x.shape[1:]), "e"),
    *[
        (f"{name} {kind}", getattr(torch, name), kind)
        for name in "neg abs sign bitwise_not exp sum prod amax argmax any all".split()
        for kind in "csu"
        if (name, kind) != ("prod", "s")
    ],
    *[
        (f"{name} {kinds}", getattr(torch, name), kinds)
        for name in "add sub mul maximum lt eq".split()
        for kinds in "dd ee cc uu ss cu de fd cl uf es".split()
    ],
    *[
        (f"{expression} {kind}", eval(f"lambda x: {expression}"), kind)
        for expression in ("x + 300", "3 - x", "x * 2.5", "x < 100", "x // 7", "x % 5", "-x >> 1")
        for kind in "csu"
    ],
    *[(f"softmax {kind}", lambda x: x.softmax(-1), kind) for kind in "de"],
    *[(f"to {d}", lambda x, d=d: x.to(d) + 1, "f") for d in (torch.float64, torch.float16)],
    ("image", lambda x: ((x.float() / 255 - 0.45) / 0.22).half(), "u"),
    ("quantise", lambda x: (x * 10).round().clamp(-128, 127).to(torch.int8), "f"),
    ("dequantise", lambda x, y: x.float() * 0.1 + y.to(torch.float32), "cf"),
]


SHAPES = [(7, 8), (1, 1), (3, 65), (64, 2), (2, 0), (1, 5), (0, 3), (5, 1)]

IMPOSSIBLE = (RuntimeError, IndexError, ValueError)  # eager refuses these sizes


def make(kind: str, shape: tuple[int, ...], seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    return {
        "f": lambda: x,
        "h": lambda: x.bfloat16(),
        "p": lambda: x.abs() + 0.1,
        "d": lambda: x.double() * 1.1,
        "e": lambda: x.half(),
        "s": lambda: torch.randint(-(2**15), 2**15, shape, generator=generator).short(),
        "c": lambda: torch.randint(-128, 128, shape, generator=generator).char(),
        "u": lambda: torch.randint(0, 256, shape, generator=generator).byte(),
        "l": lambda: torch.randint(-20, 20, shape, generator=generator),
        "i": lambda: torch.randint(-20, 20, shape, generator=generator, dtype=torch.int32),
        "n": lambda: torch.randint(1, 9, shape, generator=generator),
        "b": lambda: x > 0,
    }[kind]()


def tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in tensors(item)]


def agree(got: Any, want: Any, exact: Any) -> None:
    """As near to float64 as 1.5 times eager's error and 2 units; the same otherwise."""
    got, want, exact = tensors(got), tensors(want), tensors(exact)
    assert len(got) == len(want)
    for g, w, e in zip(got, want, exact, strict=True):
        assert g.dtype == w.dtype
        assert g.shape == w.shape
        if not w.dtype.is_floating_point:
            assert torch.equal(g, w)
            continue
        scale = e.abs().nan_to_num(0.0).amax().item() if e.numel() else 0.0
        unit = torch.finfo(w.dtype).eps * max(scale, 1e-6) if scale != float("inf") else 1.0
        same = (g == w) | (g.isnan() & w.isnan())
        error = torch.where(same, 0.0, (g.double() - e.double()).abs())
        eager = torch.where(same, 0.0, (w.double() - e.double()).abs())
        bound = 1.5 * (eager.amax().item() if e.numel() else 0.0) + 2 * unit
        assert not error.isnan().any()
        assert error.numel() == 0 or error.amax().item() <= bound


@pytest.mark.parametrize(("name", "fn", "kinds"), CASES, ids=[c[0] for c in CASES])
def test_row_agrees_with_eager(name: str, fn: Callable[..., Any], kinds: str) -> None:
    compiled = tilevm.compile(fn)
    tilevm.stats.reset()
    called = 0
    for seed, shape in enumerate(SHAPES):
        args = [make(kind, shape, seed + 10 * i) for i, kind in enumerate(kinds)]
        try:
            want = fn(*args)
        except IMPOSSIBLE:
            continue
        exact = fn(*[a.double() if a.dtype.is_floating_point else a for a in args])
        with torch.no_grad():
            agree(compiled(*args), want, exact)
        called += 1
    assert called >= 3
    flushes = tilevm.stats()["flushes"]
    assert not flushes, flushes


CALLED_OUT = {"masked_fill tensor", "div trunc", "assign"}


@pytest.mark.parametrize(("name", "fn", "kinds"), CASES, ids=[c[0] for c in CASES])
def test_row_is_not_called_out(name: str, fn: Callable[..., Any], kinds: str) -> None:
    compiled = tilevm.compile(fn)
    args = [make(kind, (7, 8), 10 * i) for i, kind in enumerate(kinds)]
    report = tilevm.explain(compiled)(*args)
    assert not [str(c) for c in report.callouts if name not in CALLED_OUT]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_rms_norm_without_an_epsilon(dtype: Any) -> None:
    """PyTorch takes that of the type it computes in."""
    x = (torch.linspace(-1, 1, 64).reshape(4, 16) * 0.02).to(dtype)
    found = tilevm.compile(lambda x: F.rms_norm(x, (16,)))(x)
    torch.testing.assert_close(found, F.rms_norm(x, (16,)))


def test_no_degrees_of_freedom_are_warned_of_where_they_are_known() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.std(0), backend="tilevm")
    with pytest.warns(UserWarning, match=r"std\(\): degrees of freedom is <= 0.*test_torch_ops.py"):
        assert compiled(torch.ones(1, 4)).isnan().all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(torch.rand(3, 4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("exponent", [0.5, -0.5, -1.0, -2.0, 2.0, 3.0])
def test_powers_that_are_other_operators(exponent: float, dtype: Any) -> None:
    """Roots of -0 and -inf are others than powers, which PyTorch has of float16 alone."""
    x = torch.tensor([-math.inf, -4.0, -0.0, 0.0, 4.0, math.inf, math.nan], dtype=dtype)
    for run in (tilevm.compile(lambda x: x**exponent), _fused(lambda x: x**exponent)):
        found, expected = run(x), x**exponent
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found.signbit() & ~found.isnan(), expected.signbit() & ~found.isnan())


def _fused(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any) -> Any:
        with tilevm.fuse():
            return function(x)

    return run

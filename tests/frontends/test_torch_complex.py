"""Complex tensors as pairs of reals, and Fourier transforms of short rows, against eager mode."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilevm  # noqa: E402

Tensor = Any
C64, C128 = torch.complex64, torch.complex128
SIZES = [0, 1, 2, 7, 65, 1023]
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "as made": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT,
    "every second": lambda x: torch.stack([x, x * 9], -1)[..., 0],
    "expanded": lambda x: x[:1].expand(x.shape),
    "conjugated": lambda x: x.conj(),
    "conjugated and transposed": lambda x: x.mH.contiguous().mH,
}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.manual_seed(0)
    tilevm.stats.reset()


def called_out() -> dict[str, int]:
    counts: dict[str, int] = tilevm.stats()["callouts"]
    return counts


def eager_reasons() -> list[str]:
    return list(tilevm.stats()["flushes"])


def z_of(*sizes: int, dtype: Any = C64) -> Tensor:
    return torch.randn(sizes, dtype=dtype)


def flat(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple | list) else [result]


def same(function: Any, *args: Any, compiled: Any = None, **tolerance: Any) -> None:
    """Twice, since the second call of a kind takes another way."""
    compiled = compiled or tilevm.compile(function)
    with torch.no_grad():
        expected = flat(function(*args))
        for _ in range(2):
            for ours, theirs in zip(flat(compiled(*args)), expected, strict=True):
                assert ours.is_conj() in (False, theirs.is_conj())
                torch.testing.assert_close(ours, theirs, equal_nan=True, **tolerance)


def in_kernels(function: Any, *args: Any, **options: Any) -> None:
    same(function, *args, **options)
    assert not called_out()
    assert not eager_reasons()


OF_ONE: dict[str, Callable[[Tensor], Any]] = {
    "neg": lambda z: -z,
    "conj": lambda z: z.conj() * 1,
    "conj_physical": torch.conj_physical,
    "resolve_conj": lambda z: (z + 1).conj().resolve_conj(),
    "imag of conj": lambda z: (z * 2).conj().imag + 1,
    "real": lambda z: z.real + 1,
    "imag": lambda z: z.imag + 1,
    "view_as_real": lambda z: torch.view_as_real(z * 2) + 1,
    "there and back": lambda z: torch.view_as_complex(torch.view_as_real(z * 1) * 2) * 1j,
    "number": lambda z: z * 2.5 + 1j - (3 + 1j),
    "number first": lambda z: (1 - 2j) * z + (2 - z) + 1j / (z + 9),
    "halves": lambda z: z / 2,
    "square": lambda z: z**2 + torch.square(z),
    "cube": lambda z: z**3,
    "abs": torch.abs,
    "angle": torch.angle,
    "sgn": torch.sgn,
    "exp": torch.exp,
    "reciprocal": lambda z: torch.reciprocal(z + 9),
    "sum": lambda z: (z.sum(), z.sum(0), z.sum(-1, keepdim=True)),
    "eq": lambda z: (z == z, z != z, z == 1, z != 1j),  # noqa: PLR0124
    "isnan": lambda z: (z.isnan(), z.isinf(), z.isfinite()),
    "where": lambda z: torch.where(z.real > 0, z, 0) + torch.where(z.imag > 0, 1j, z),
    "masked_fill": lambda z: z.masked_fill(z.real > 0, 2 + 1j),
    "logical": lambda z: (torch.logical_not(z), torch.logical_and(z, z.real)),
    "zeros": lambda z: torch.zeros_like(z) + torch.ones_like(z) + torch.full_like(z, 2j),
    "to real": lambda z: torch.complex(z.real, z.imag).to(torch.complex128).imag,
    "from real": lambda z: z.real.to(C64) + z.imag.to(torch.cfloat) * 1j,
    "from integers": lambda z: z.real.int() * z,
    "bool": lambda z: z.to(torch.bool),
    "polar": lambda z: torch.polar(z.abs(), z.angle()),
    "addcmul": lambda z: torch.addcmul(z, z, z, value=2j) + torch.addcdiv(z, z, z + 9),
    "cumsum": lambda z: z.cumsum(-1),
}
VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "reshape": lambda z: (z * 2).reshape(-1),
    "permute": lambda z: (z * 2).permute(1, 0),
    "adjoint": lambda z: (z * 2).mH + z.mH,
    "unsqueeze": lambda z: (z[:, None] * z[None]).squeeze(-1),
    "slice": lambda z: z[1:, ::2] * 2,
    "select": lambda z: z[-1] * z[:, -1:],
    "expand": lambda z: z[:1].expand(3, -1, -1) * 2,
    "cat": lambda z: torch.cat([z, z.real, z.conj()], -1),
    "stack": lambda z: torch.stack([z, z * 1j], -1),
    "flip": lambda z: z.flip(0, -1) * 1j,
    "roll": lambda z: z.roll((1, 2), (0, 1)),
    "repeat": lambda z: z.repeat(2, 3),
    "split": lambda z: [part * 2 for part in z.tensor_split(3, -1)],
    "unbind": lambda z: [row + 1 for row in z.unbind(0)],
    "index_select": lambda z: z.index_select(0, torch.tensor([1, 0, 1])) * 2,
    "index": lambda z: z[torch.tensor([1, 0, -1])] * 2,
    "gather": lambda z: z.gather(1, torch.tensor([[0, 1], [1, 0]])),
    "tril": lambda z: z.tril() + z.triu(1),
    "diagonal": lambda z: (z.diagonal() * 2, z.diagonal().sum()),
    "diag_embed": lambda z: torch.diag_embed(z),
    "pad": lambda z: torch.nn.functional.pad(z, (1, 2)),
    "movedim": lambda z: z[None].movedim(0, -1) * 2,
    "index_add": lambda z: z.index_add(0, torch.tensor([1, 0]), z[:2]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OF_ONE)
def test_operators_of_one(name: str, layout: str) -> None:
    tolerance = {"rtol": 4e-6, "atol": 1e-5}  # of sums of 37 and of e^z
    same(OF_ONE[name], LAYOUTS[layout](z_of(5, 37)), **tolerance)
    assert not called_out()
    assert not eager_reasons()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", OF_ONE)
def test_sizes(name: str, n: int) -> None:
    if name == "sum" and n == 0:
        return same(OF_ONE[name], z_of(n, 3))
    in_kernels(OF_ONE[name], z_of(n, 3), rtol=4e-6, atol=1e-4)
    return None


@pytest.mark.parametrize("name", [n for n in OF_ONE if n not in ("adjoint",)])
def test_single_numbers(name: str) -> None:
    in_kernels(OF_ONE[name], torch.tensor(0.5 - 2j))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", VIEWS)
def test_views_and_moves(name: str, layout: str) -> None:
    in_kernels(VIEWS[name], LAYOUTS[layout](z_of(5, 37)))


SPECIAL = [0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan, 1e30, 1e-30, 3e38]


def _special() -> tuple[Tensor, Tensor]:
    z = torch.tensor([complex(a, b) for a, b in itertools.product(SPECIAL, SPECIAL)])
    return z[:, None].expand(100, 100).contiguous(), z[None].expand(100, 100).contiguous()


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_what_is_not_finite(name: str) -> None:
    function = getattr(torch, name)
    in_kernels(lambda z, w: function(z, w), *_special(), rtol=2e-6, atol=0)


@pytest.mark.parametrize("name", ["abs", "angle", "reciprocal", "isnan", "isinf", "exp"])
def test_what_is_not_finite_of_one(name: str) -> None:
    function = getattr(torch, name)
    in_kernels(lambda z: function(z), _special()[0][:, 0], rtol=4e-6, atol=0)


@pytest.mark.parametrize("number", [2.0, 0.0, math.inf, 3, 2j, 1 + 1j, complex(1, math.inf)])
def test_numbers_are_complex_numbers(number: Any) -> None:
    in_kernels(
        lambda z: (z * number, z / number, z + number), _special()[0][:, 0], rtol=2e-6, atol=0
    )


def test_large_and_small_are_divided() -> None:
    z = torch.tensor([1e30 + 1e30j, 1e-30 - 2e-30j, 3e38 + 1e38j, 1e-38 + 0j])
    in_kernels(lambda z: (z / z, z.abs(), z.reciprocal()), z, rtol=1e-5, atol=0)


def test_numbers_of_two_kinds() -> None:
    in_kernels(lambda z, w: z * w + w, z_of(7), z_of(7, dtype=C128))
    in_kernels(lambda z, w: z * w, z_of(7), torch.randn(7, dtype=torch.float64))
    in_kernels(lambda z: (z / 3, z.exp(), z.sum()), z_of(7, dtype=C128))


def test_means() -> None:
    in_kernels(lambda z: (z.mean(), z.mean(-1), z.mean((0, 1), True)), z_of(7, 33))


# Products ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((7, 5), (5, 3)), ((1, 1), (1, 1)), ((2, 7, 33), (2, 33, 5)), ((7, 5), (5,)),
        ((5,), (5, 3)), ((2, 3, 7, 5), (5, 9)), ((5,), (5,)), ((64, 65), (65, 67)),
        ((0, 5), (5, 3)), ((3, 0), (0, 2)),
    ],
)  # fmt: skip
def test_matmul(one: Any, other: Any) -> None:
    in_kernels(torch.matmul, z_of(*one), z_of(*other), rtol=1e-5, atol=3e-5)


def test_other_products() -> None:
    z, w, v = z_of(7, 5), z_of(3, 5), z_of(5)
    close = {"rtol": 1e-5, "atol": 1e-5}
    in_kernels(lambda z, w: z @ w.mH + (z @ w.mT).conj(), z, w, **close)
    in_kernels(lambda v: (torch.vdot(v, v), torch.dot(v, v), torch.outer(v, v)), v, **close)
    in_kernels(lambda z, w, v: torch.nn.functional.linear(z, w, v[:3]), z, w, v, **close)
    in_kernels(lambda z, w, v: torch.addmm(v[:3], z, w.mT, beta=2, alpha=1j), z, w, v, **close)


def test_pytorch_s_are_quicker() -> None:
    """Contractions, and sums of many numbers: no kernels are made of them."""
    z, w = z_of(7, 5), z_of(3, 5)
    same(lambda z, w: torch.einsum("ik,jk->ij", z, w) + 1, z, w, rtol=1e-5, atol=1e-5)
    same(lambda z, w: torch.tensordot(z, w, ([1], [1])) + 1, z, w, rtol=1e-5, atol=1e-5)
    assert len(called_out()) == 2
    total = tilevm.compile(lambda z: (z * 2).sum(-1))
    tilevm.stats.reset()
    same(lambda z: (z * 2).sum(-1), z_of(33, 7), compiled=total, rtol=1e-5, atol=1e-5)
    assert not called_out()
    same(lambda z: (z * 2).sum(-1), z_of(300, 170), compiled=total, rtol=1e-5, atol=1e-4)
    assert list(called_out()) == ["aten.sum.dim_IntList"]


# Fourier transforms ------------------------------------------------------------------------------

CLOSE = {"rtol": 1e-5, "atol": 2e-5}


@pytest.mark.parametrize("norm", [None, "backward", "ortho", "forward"])
@pytest.mark.parametrize("n", [None, 1, 4, 9, 32])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_transforms(name: str, n: int | None, norm: str | None) -> None:
    function = getattr(torch.fft, name)
    real = name in ("rfft", "ihfft")
    for dim in (-1, 0):
        x = torch.randn(7, 11) if real else z_of(7, 11)
        in_kernels(lambda x, dim=dim: function(x, n, dim, norm), x, **CLOSE)


@pytest.mark.parametrize("name", ["fft", "ifft", "hfft", "irfft"])
def test_transforms_of_reals(name: str) -> None:
    function = getattr(torch.fft, name)
    in_kernels(lambda x: function(x), torch.randn(3, 8), **CLOSE)


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("name", ["fft2", "ifft2", "rfft2", "irfft2", "hfft2", "ihfft2"])
def test_transforms_of_planes(name: str, norm: str | None) -> None:
    function = getattr(torch.fft, name)
    x = torch.randn(2, 5, 8) if name in ("rfft2", "ihfft2") else z_of(2, 5, 8)
    in_kernels(lambda x: (function(x, norm=norm), function(x, s=(4, 9), norm=norm)), x, **CLOSE)
    whole = getattr(torch.fft, name[:-1] + "n")
    in_kernels(lambda x: (whole(x, norm=norm), whole(x, dim=(1, 0), norm=norm)), x, **CLOSE)


def test_a_transform_is_as_exact_as_its_type() -> None:
    for n in (2, 4, 8, 15, 32):
        x = torch.randint(-4, 5, (9, n)).float()
        with torch.no_grad():
            found = tilevm.compile(torch.fft.fft)(x)
        exact = torch.fft.fft(x.double())
        assert (found - exact).abs().max() < 1e-6 * n


def test_short_rows_of_any_length_are_one_capture() -> None:
    compiled = tilevm.compile(lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2j, n=x.shape[-1]))
    for rows, n in [(3, 8), (5, 9), (1, 2), (60, 31), (2, 3)]:
        same(lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2j, n=x.shape[-1]),
             torch.randn(rows, n), compiled=compiled, **CLOSE)  # fmt: skip
    assert tilevm.stats()["captures"] == 1
    assert not called_out()


def test_many_rows_are_called_out() -> None:
    compiled = tilevm.compile(torch.fft.rfft)
    for rows in (3, 64, 257, 1000):
        same(torch.fft.rfft, torch.randn(rows, 8), compiled=compiled, **CLOSE)
    assert tilevm.stats()["captures"] == 2
    assert called_out() == {"aten.fft_rfft.default": 4}


def test_long_rows_are_called_out() -> None:
    compiled = tilevm.compile(torch.fft.rfft)
    for n in (8, 9, 1000, 4096):
        same(torch.fft.rfft, torch.randn(3, n), compiled=compiled, rtol=1e-4, atol=1e-4)
    assert tilevm.stats()["captures"] == 2
    assert called_out() == {"aten.fft_rfft.default": 4}


def test_mixing_of_fnet() -> None:
    def mix(x: Tensor) -> Tensor:
        return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real

    in_kernels(mix, torch.randn(2, 7, 32), rtol=1e-5, atol=1e-4)


# Whole functions ---------------------------------------------------------------------------------


def _rotated(q: Tensor, k: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    """Llama's `apply_rotary_emb`."""
    q_ = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
    k_ = torch.view_as_complex(k.float().reshape(*k.shape[:-1], -1, 2))
    freqs_cis = freqs_cis.view(1, q_.shape[1], 1, q_.shape[3])
    q_out = torch.view_as_real(q_ * freqs_cis).flatten(3)
    k_out = torch.view_as_real(k_ * freqs_cis).flatten(3)
    return q_out.type_as(q), k_out.type_as(k)


def _freqs_cis(dim: int, end: int) -> Tensor:
    freqs = 1.0 / (10000.0 ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    freqs = torch.outer(torch.arange(end, dtype=torch.float32), freqs)
    return torch.polar(torch.ones_like(freqs), freqs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rotary_embedding(dtype: Any) -> None:
    compiled = tilevm.compile(_rotated)
    for batch, n, heads, groups, width in [(1, 7, 8, 2, 64), (2, 13, 4, 4, 64), (3, 1, 2, 1, 64)]:
        q, k = (torch.randn(batch, n, h, width).to(dtype) for h in (heads, groups))
        same(_rotated, q, k, _freqs_cis(width, n), compiled=compiled)
    assert not called_out()
    assert not eager_reasons()


def test_frequencies() -> None:
    in_kernels(lambda x: _freqs_cis(64, 33) * x, torch.randn(33, 1), rtol=1e-5, atol=1e-5)


def test_one_capture_for_all_sizes() -> None:
    def function(z: Tensor, w: Tensor) -> Tensor:
        return (z * w.conj()).sum(-1) / (w.abs() + 1).sum(-1)

    compiled = tilevm.compile(function)
    for n, m in [(3, 5), (1, 7), (64, 1), (17, 33)]:
        same(function, z_of(n, m), z_of(n, m), compiled=compiled, rtol=1e-5, atol=1e-5)
    assert tilevm.stats()["captures"] == 1
    assert not called_out()


def test_calls_like_earlier_ones_repeat() -> None:
    compiled = tilevm.compile(lambda z: z * 2j)
    for _ in range(5):
        z = z_of(7, 5)
        assert torch.equal(compiled(z), z * 2j)
    assert tilevm.stats()["repeated_calls"] >= 3


# Memory ------------------------------------------------------------------------------------------


def test_results_are_tensors_of_their_own() -> None:
    z = z_of(7, 5)
    result = tilevm.compile(lambda z: z * 2)(z)
    assert (result.dtype, result.is_contiguous(), result._is_view()) == (C64, True, False)
    result.mul_(2)
    torch.testing.assert_close(result, z * 4)


def test_order_of_dims_is_eagers() -> None:
    z = z_of(5, 7).mT
    result = tilevm.compile(lambda z: z * 2)(z)
    assert result.stride() == (z * 2).stride()


@pytest.mark.parametrize("layout", ["as made", "transposed", "every second"])
def test_inputs_are_written(layout: str) -> None:
    def function(z: Tensor, w: Tensor) -> Tensor:
        z.mul_(w).add_(1j)
        return z.sum(-1)

    ours = LAYOUTS[layout](z_of(5, 7))
    theirs, w = ours.clone(), z_of(5, 7)
    compiled = tilevm.compile(function)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(ours, w), function(theirs, w))
            torch.testing.assert_close(ours, theirs)
    assert not eager_reasons()


def test_conjugated_inputs_are_written() -> None:
    ours = z_of(5)
    theirs = ours.clone()
    function = tilevm.compile(lambda z: z.mul_(2j))
    for z, f in ((ours, function), (theirs, lambda z: z.mul_(2j))):
        with torch.no_grad():
            f(z.conj())
            f(z)
            f(z.conj())
    torch.testing.assert_close(ours, theirs)


def test_parts_of_inputs_are_written() -> None:
    def function(z: Tensor) -> Tensor:
        z.real.mul_(2)
        z.imag[:1] = 3
        return z * 1

    ours = z_of(5)
    theirs = ours.clone()
    with torch.no_grad():
        torch.testing.assert_close(tilevm.compile(function)(ours), function(theirs))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "name", ["real", "imag", "conj", "mT", "mH", "view_as_real", "slice", "reshape"]
)
def test_views_of_inputs_stay_views(name: str) -> None:
    views: dict[str, Callable[[Tensor], Tensor]] = {
        "real": lambda z: z.real,
        "imag": lambda z: z.imag,
        "conj": lambda z: z.conj(),
        "mT": lambda z: z.mT,
        "mH": lambda z: z.mH,
        "view_as_real": torch.view_as_real,
        "slice": lambda z: z[1:, ::2],
        "reshape": lambda z: z.reshape(-1),
    }
    view, z = views[name], z_of(5, 7)
    with torch.no_grad():
        result, other = tilevm.compile(lambda z: (view(z), z * 2))(z)
        torch.testing.assert_close(other, z * 2)
        assert torch.equal(result, view(z))
        z.add_(1)
        assert torch.equal(result, view(z))


def test_a_view_of_a_real_input() -> None:
    x = torch.randn(5, 2)
    result = tilevm.compile(torch.view_as_complex)(x)
    x.add_(1)
    assert torch.equal(result, torch.view_as_complex(x))


def test_results_that_share_memory_share_it() -> None:
    def function(z: Tensor) -> Any:
        w = z * 2
        return w, w.real, torch.view_as_real(w)

    with torch.no_grad():
        whole, part, pairs = tilevm.compile(function)(z_of(5))
    torch.testing.assert_close(whole.real, part)
    torch.testing.assert_close(torch.view_as_real(whole), pairs)


def test_ranks() -> None:
    in_kernels(lambda z: z * 2, z_of(1, 2, 1, 2, 1, 2, 1))
    same(lambda z: z * 2, z_of(1, 2, 1, 2, 1, 2, 1, 2))  # with its parts it has 9 dims
    assert eager_reasons() == ["eager: a tensor has rank 9, more than 8"]


# Call-outs ---------------------------------------------------------------------------------------


def test_call_outs_take_and_give_complex_tensors() -> None:
    same(lambda z: torch.linalg.inv(z + 1) * 2, z_of(5, 5), rtol=1e-3, atol=1e-3)
    same(lambda z: (z * 2).sqrt() + z.log().conj(), z_of(5, 7))
    same(lambda z: torch.linalg.svdvals(z.mH * 2), z_of(5, 7), rtol=1e-4, atol=1e-4)
    same(lambda z: [x.abs() for x in torch.linalg.qr(z)], z_of(5, 5), rtol=1e-4, atol=1e-4)
    same(lambda z: z.sqrt().mT, z_of(5, 7))
    same(lambda z: torch.cat([z.sin(), z[:, ::2].cos()], -1), z_of(5, 7), rtol=1e-4, atol=1e-4)
    same(lambda z: torch.view_as_real(z).logcumsumexp(0) * z.real[..., None], z_of(5, 7))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_halves_are_called_out() -> None:
    z = z_of(5).to(torch.complex32)
    same(lambda z: z.to(C64) * 2, z)
    same(
        lambda z: (z.to(torch.complex32) + z.to(torch.complex32)).to(C64),
        z_of(5),
        atol=1e-2,
        rtol=1e-2,
    )


def test_branches() -> None:
    def function(z: Tensor) -> Tensor:
        return torch.cond(z.real.sum() > 0, lambda z: z * 2, lambda z: z.conj() + 1j, (z,))

    for sign in (1, -1):
        same(function, torch.complex(torch.rand(7), torch.rand(7)) * sign)


# Gradients ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda z: (z * z.conj()).real.sum(),
        lambda z: (z / (z + 3)).abs().sum(),
        lambda z: (z.exp() * 2j + z).imag.sum(),
        lambda z: (z @ z.mH).real.sum(),
        lambda z: torch.fft.fft(z).abs().pow(2).sum(),
        lambda z: torch.view_as_real(z * 1j).pow(2).sum(),
        lambda z: (z.mT.reshape(-1)[::2] * (1 + 2j)).abs().sum(),
    ],
)
def test_gradients(function: Any) -> None:
    ours = z_of(5, 7).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    for compiled in (tilevm.compile(function), torch.compile(function, backend="tilevm")):
        ours.grad = theirs.grad = None
        loss, expected = compiled(ours), function(theirs)
        torch.testing.assert_close(loss, expected)
        loss.backward()
        expected.backward()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)


def test_gradients_of_complex_results() -> None:
    def function(z: Tensor, w: Tensor) -> Tensor:
        return z * w.conj() + 1

    compiled = torch.compile(function, backend="tilevm")
    z, w, gradient = z_of(5), z_of(5), z_of(5)
    for given in (gradient, gradient.conj()):
        pairs = [[x.clone().requires_grad_() for x in (z, w)] for _ in range(2)]
        for f, (a, b) in zip((compiled, function), pairs, strict=True):
            f(a, b).backward(given)
        for ours, theirs in zip(*pairs, strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)


def test_gradients_of_a_rotary_embedding() -> None:
    q, k, freqs = torch.randn(2, 7, 4, 8), torch.randn(2, 7, 2, 8), _freqs_cis(8, 7)
    compiled = torch.compile(_rotated, backend="tilevm", dynamic=True)
    pairs = [[x.clone().requires_grad_() for x in (q, k)] for _ in range(2)]
    for f, (a, b) in zip((compiled, _rotated), pairs, strict=True):
        sum(x.pow(2).sum() for x in f(a, b, freqs)).backward()
    for ours, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert not called_out()


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8, torch.float32], ids=str)
def test_beside_real_numbers(dtype: Any) -> None:
    """What becomes complex has no imaginary part, whatever it was."""

    def function(x: Any, z: Any) -> Any:
        return (
            torch.cat([x, z]),
            torch.stack([z, x], 1),
            torch.hstack([x, z, x]),
            torch.block_diag(x, z),
            torch.select_scatter(z, x[0], 0, 1),
            torch.slice_scatter(z, x[:1], 0, 0, 1),
            z.index_add(0, torch.tensor([1, 0]), z),
        )

    x = (torch.arange(6).reshape(2, 3) % 3).to(dtype)
    z = torch.randn(2, 3) + 2j
    expected = function(x, z)
    torch.testing.assert_close(tilevm.compile(function)(x, z), expected)
    with tilevm.config.patch(templates=1), tilevm.fuse():
        recorded = function(x, z * 1)
    torch.testing.assert_close(recorded, expected)


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_sums_that_are_real() -> None:
    """PyTorch's, as operators that are called."""
    z = torch.randn(6, dtype=torch.complex64)
    functions: list[Any] = [
        lambda z: z.sum(dtype=torch.int16),
        lambda z: z.cumsum(0, dtype=torch.float64),
    ]
    for function in functions:
        compiled, want = tilevm.compile(function), function(z)
        tilevm.stats.reset()
        torch.testing.assert_close(compiled(z), want)
        assert not tilevm.stats()["flushes"] and tilevm.stats()["callouts"]

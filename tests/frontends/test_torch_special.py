"""Rows of `torch_special` and `torch_strided`, and adaptive pools, against eager mode."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tilevm  # noqa: E402

FUNCTIONS = {
    "i0": torch.i0, "digamma": torch.digamma, "erfinv": torch.erfinv, "log10": torch.log10,
    "lgamma": torch.lgamma, "mvlgamma": lambda x: torch.mvlgamma(x, 3),
    "trigamma": lambda x: torch.polygamma(1, x),
    **{
        name: getattr(torch.special, name)
        for name in (
            "i0e i1 i1e modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 "
            "modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 bessel_j0 "
            "bessel_j1 bessel_y0 bessel_y1 spherical_bessel_j0 airy_ai erfcx log_ndtr ndtri"
        ).split()
    },
}  # fmt: skip
NARROW = ("i0", "lgamma", "i0e", "i1", "i1e", "digamma", "erfinv", "log10", "trigamma")
DOUBLE = ("i0", "i0e", "i1", "i1e", "scaled_modified_bessel_k0")


def numbers(dtype: Any) -> Any:
    """Around the edges of ranges, large and small ones, and what is none."""
    info = torch.finfo(dtype)
    some = [0.0, 1e-8, 1e-4, 0.1, 0.46875, 0.5, 0.999, 1.0, 1.001, 1.4616, 2.0, 2.09, 3.99, 4.0]
    some += [5.0, 5.01, 8.0, 8.01, 10.0, 26.8, 80.0, 88.9, 103.9, 700.0, 1e20, info.tiny / 8]
    some += [info.tiny, info.max, math.inf, math.nan]
    values = torch.tensor([s * v for v in some for s in (1, -1)], dtype=torch.float64)
    return torch.cat([values, torch.linspace(-12.3, 12.2, 997, dtype=torch.float64)]).to(dtype)


def check(function: Any, *arguments: Any, **tolerance: Any) -> None:
    """As eager mode, and without a call-out."""
    tilevm.stats.reset()
    found, expected = tilevm.compile(function)(*arguments), function(*arguments)
    assert not tilevm.stats()["callouts"]
    torch.testing.assert_close(found, expected, equal_nan=True, **tolerance)


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_functions(name: str) -> None:
    function = FUNCTIONS[name]
    check(lambda x: function(x), numbers(torch.float32))
    for dtype in (torch.bfloat16, torch.float16) if name in NARROW else ():
        check(lambda x: function(x), numbers(dtype))
    if name in DOUBLE:
        check(lambda x: function(x), numbers(torch.float64))
    check(lambda x: function(x), torch.tensor([-3, 0, 1, 2, 9], dtype=torch.int16))
    check(lambda x: function(x), torch.empty(0, 3))
    check(lambda x: function(x), torch.tensor(0.75))


def test_powers_of_ten_are_exact() -> None:
    x = torch.tensor([10.0**k for k in range(11)])
    check(lambda x: torch.log10(x), x, rtol=0, atol=0)


def test_lgamma_near_its_zeros() -> None:
    """Of two nearly equal terms: each float32 around the zeros from -2 to -4, and others."""
    zeros = torch.tensor([-2.4570247, -2.7476826, -3.1435809, -3.955294, 1.0, 2.0])
    bits = zeros.view(torch.int32)[:, None] + torch.arange(-500, 500, dtype=torch.int32)
    x = torch.cat([bits.view(torch.float32).flatten(), torch.linspace(-30, 30, 9973)])
    found = tilevm.compile(lambda x: torch.lgamma(x))(x).double()
    exact = torch.lgamma(x.double())
    units = (found - exact).abs() / (exact.abs() * torch.finfo(torch.float32).eps)
    assert units[exact.isfinite() & (exact != 0)].max() <= 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_signs(dtype: Any) -> None:
    x = numbers(dtype)
    x = torch.cat([x, -x])
    y = x.flip(0)

    def signs(x: Any, y: Any) -> Any:
        return torch.copysign(x, y), torch.copysign(x, -2), torch.signbit(x)

    check(signs, x, y)
    check(lambda x, y: torch.copysign(x, y).signbit(), x, y)


def test_signs_of_integers() -> None:
    for dtype in (torch.int64, torch.int8, torch.uint8, torch.bool):
        x = torch.tensor([0, 1, 5, 100]).to(dtype)
        check(lambda x: (torch.copysign(x, -1.0), torch.signbit(x)), x)
    check(lambda x: torch.signbit(x - 5), torch.arange(9))


@pytest.mark.parametrize("offset", [-7, -2, 0, 1, 3, 9])
def test_diagonals(offset: int) -> None:
    x = torch.randn(4, 7, 5)
    check(lambda x: x.diagonal(offset, 1, 2) * 2, x)
    check(lambda x: torch.linalg.diagonal(x.mT, offset=offset) + 1, x)
    check(lambda x: torch.diagonal_copy(x, offset, 2, 0), x)
    check(lambda x: (x * 2).diagonal(offset), torch.randn(6, 6))
    part = torch.randn(5, torch.empty(4, 7).diagonal(offset).numel())
    check(lambda x, y: torch.diagonal_scatter(x, y, offset, 0, 1), x, part)


def test_parts_are_written() -> None:
    x = torch.randn(6, 9)
    for step in (2, 3, 5):
        part = torch.randn(6, len(range(1, 9, step)))
        check(lambda x, y, s=step: torch.slice_scatter(x, y, 1, 1, None, s), x, part)
        check(
            lambda x, y, s=step: torch.slice_scatter(x, y, 0, -8, None, s), x.t(), part.t()[:, :6]
        )
    part = torch.randn(2, 3)
    check(lambda x, y: torch.as_strided_scatter(x * 2, y, (2, 3), (9, 2), 4), x, part)
    check(lambda x, y: torch.as_strided_scatter(x, y, (2, 3), (9, 2), 4), x, part)
    check(lambda x: torch.as_strided_copy(x, (2, 3), (9, 2), 4), x)


def test_views_that_begin_where_data_say() -> None:
    x = torch.randn(4, 9)
    narrow = tilevm.compile(lambda x, start: x.narrow(1, start, 3))
    tilevm.stats.reset()
    for start in (0, 2, 6, -3):
        place = torch.tensor(start)
        part = narrow(x, place)
        assert torch.equal(part, x.narrow(1, place, 3))
        part.fill_(start)
        assert torch.equal(part, x.narrow(1, place, 3))
    with pytest.raises((IndexError, RuntimeError)):
        narrow(x, torch.tensor(8))
    assert not tilevm.stats()["callouts"]


def test_windows_beside_each_other() -> None:
    x = torch.randn(2, 3, 13, 9)
    check(lambda x: x.unfold(2, 4, 4).unfold(3, 3, 3) * 2, x)
    check(lambda x: torch.unfold_copy(x, 2, 4, 3), x)
    check(lambda x: x.unfold(2, 5, 3), x)  # a view of the argument
    check(lambda x: (x * 2).unfold(2, 5, 3), x[:, :2, :, :3])


def test_indices_on_axes_apart() -> None:
    x, i, j = torch.randn(4, 5, 6, 3), torch.tensor([3, 0, -1]), torch.tensor([2, -3, 0])
    check(lambda x, i, j: x[i, :, j] * 1, x, i, j)
    check(lambda x, i, j: x[:, i, :, j] * 1, x, i, j)
    check(lambda x, i, j: x[i[:, None], :, j], x, i, j)

    def put(x: Any, i: Any, j: Any, accumulate: bool) -> Any:
        value = torch.arange(15.0).view(3, 5, 1)
        return torch.ops.aten.index_put(x * 1, [i, None, j], value, accumulate)

    for accumulate in (False, True):
        check(lambda x, i, j, a=accumulate: put(x, i, j, a), x, torch.tensor([3, 0, 3]), j)


def test_rows_that_a_mask_chooses_are_written() -> None:
    x, mask = torch.randn(5, 3), torch.tensor([True, False, True, True, False])
    row = torch.randn(3)
    for accumulate in (False, True):
        check(lambda x, m, r, a=accumulate: x.index_put((m,), r, a), x, mask, row)
        check(lambda x, m, r, a=accumulate: x.index_put((m,), r[0], a), x, mask, row)


def test_scalars_as_rows() -> None:
    x, place = torch.tensor(2.5), torch.tensor(0)
    check(lambda x, i: x.gather(0, i) + 1, x, place)
    check(lambda x, i: (x * 1).reshape(1).gather(0, i), x, place)
    check(lambda x: x.topk(1), x)
    check(lambda x, i: x.scatter(0, i, 3.0, reduce="multiply"), x, place)
    rows = torch.tensor([[1, 0, 1]])
    check(lambda x, i: x.scatter(0, i, 3.0, reduce="add"), torch.randn(2, 3), rows)


def test_sums_to_sizes() -> None:
    x = torch.randn(4, 5, 6)
    check(lambda x: x.sum_to_size(5, 6), x)
    check(lambda x: x.sum_to_size(4, 1, 6), x)
    check(lambda x, *sizes: x.sum_to_size(*sizes), x, 5, 1)
    check(lambda x: x.sum_to_size(4, 5, 6) * 2, x)


def test_axes_found_by_their_size() -> None:
    for shape in ((3, 3), (5, 3), (2, 3, 3)):
        check(lambda x, y: torch.cross(x, y), torch.randn(shape), torch.randn(shape))
    ones, x = torch.randn(1, 1, 1), torch.randn(4, 1, 5)
    check(lambda x, y: torch.tensordot(x, y, ([0, 1], [2, 0])), ones, x)
    check(lambda x, y: torch.tensordot(x, y, ([2], [1])), x, ones)


def test_slices_with_a_step_that_is_given() -> None:
    check(lambda x, step: x[1::step] * 2, torch.randn(9, 2), 3)
    check(lambda x, step: x[:, ::step], torch.randn(9, 5), 2)


def test_circular_padding_that_cuts() -> None:
    x = torch.randn(2, 3, 6, 7)
    for pad in ((-1, 2, 1, 0), (-2, -1, -3, 1), (3, -2, 0, 0)):
        check(lambda x, pad=pad: torch.nn.functional.pad(x, pad, "circular"), x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_repetitions(dtype: Any) -> None:
    x, times = torch.randn(4, 3), torch.tensor([2, 0, 1, 3], dtype=dtype)
    check(lambda x, t: x.repeat_interleave(t, 0) * 2, x, times)
    check(lambda x, t: x.repeat_interleave(t, 0, output_size=6), x, times)
    check(lambda x, t: x.repeat_interleave(t[:1]), x, times)
    check(lambda t: t.repeat_interleave(t), times)
    check(lambda t: torch.repeat_interleave(t), times)
    compiled = tilevm.compile(lambda x, t: x.repeat_interleave(t, 0))
    for wrong, error in (([1, -1, 0, 0], "negative"), ([1, 2], "size")):
        with pytest.raises(RuntimeError, match=error):
            compiled(x, torch.tensor(wrong, dtype=dtype))
    check(lambda x, t: x.repeat_interleave(t, 0), x, times * 0)


@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "max", "min"])
def test_segments_of_each_row(reduce: str) -> None:
    x = torch.randn(3, 6, 2)
    lengths = torch.tensor([[1, 2, 3], [0, 6, 0], [4, 0, 2]])
    offsets = torch.nn.functional.pad(lengths.cumsum(1), (1, 0))
    for initial in (None, 2.0):
        given = functools.partial(
            torch.segment_reduce, reduce=reduce, axis=1, initial=initial, unsafe=True
        )
        check(lambda x, n, f=given: f(x, lengths=n), x, lengths)
        check(lambda x, n, f=given: f(x, offsets=n), x, offsets)


def test_sums_of_areas_so_far() -> None:
    check(lambda y: torch.cumulative_trapezoid(y, dx=0.5), torch.randn(3, 5))
    check(lambda x: torch.unbind_copy(x, 1)[2] * 2, torch.randn(3, 5))


def test_what_pytorch_refuses() -> None:
    x, y = torch.randn(3), torch.randn(3)
    zeros, lines = torch.zeros(3, 3), torch.arange(3)
    cases: list[tuple[Any, ...]] = [
        (lambda x: x.softmax(0), torch.tensor([1, 2])),
        (lambda x: x.log_softmax(0), torch.tensor(1)),
        (lambda x: x.softmax(1), torch.tensor(1.0)),
        (lambda x, t: x.repeat_interleave(t, 0), x, torch.ones(3)),
        (lambda x, t: x.repeat_interleave(t, 0), x, torch.tensor([True, False, True])),
        (lambda x, w: torch.cov(x, fweights=w), zeros, torch.ones(3).bool()),
        (torch.nn.functional.gaussian_nll_loss, x, y, torch.ones(3, dtype=torch.int64)),
        (lambda a, b, s: torch.arange(a, b, s), 0.1, 0, 2),
        (lambda x: torch.nn.functional.interpolate(x, scale_factor=0.6), torch.ones(1, 1, 1)),
        (lambda x, i: (x * 1).index_put((i, i), x[:, 0].double()), zeros, lines),
        (torch.cross, x, y.double()),
    ]
    for function, *arguments in cases:
        compiled = tilevm.compile(lambda *a, f=function: f(*a))
        with pytest.raises((RuntimeError, NotImplementedError, IndexError)) as expected:
            function(*arguments)
        with pytest.raises(expected.type):
            compiled(*arguments)


def test_blocks() -> None:
    blocks = [torch.randn(2, 3), torch.randn(4), torch.tensor(2.0), torch.ones(3, 2).long()]
    check(lambda *xs: torch.block_diag(*xs), *blocks)
    check(lambda x: torch.block_diag(x), blocks[0])
    check(lambda x, y: torch._chunk_cat([x, y], 0, 3), torch.randn(7, 2), torch.randn(4, 2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_adaptive_pools(dtype: Any) -> None:
    x = torch.randn(2, 3, 13, 11).to(dtype)
    x[0, 1, 5, 4], x[1, 2, 0, 0], x[1, 0, 12, 10] = math.inf, math.nan, -math.inf
    for sizes in ((7, 7), (1, 5), (13, 3), (16, 2)):
        check(lambda x, s=sizes: F.adaptive_avg_pool2d(x, s), x)
        check(lambda x, s=sizes: F.adaptive_max_pool2d(x, s), x)
    check(lambda x: F.adaptive_avg_pool1d(x[0], 4), x)
    check(lambda x: F.adaptive_max_pool3d(x, (2, 3, 4)), x)


@pytest.mark.parametrize("shape", [(5,), (2, 3), ()])
def test_bilinear(shape: Any) -> None:
    x, y = torch.randn(*shape, 4), torch.randn(*shape, 6)
    check(F.bilinear, x, y, torch.randn(3, 4, 6), torch.randn(3))
    check(lambda x, y, w: F.bilinear(x, y, w), x, y, torch.randn(1, 4, 6))


def test_sums_at_places_that_may_be_outside() -> None:
    x, values = torch.randn(4, 5), torch.randn(7)
    rows, columns = torch.tensor([0, 9, -1, 3, 0, 3, -7]), torch.tensor([1, 2, -5, 4, 1, 8, 0])
    mask = (rows.abs() < 4) & (columns < 5)
    put = torch.ops.aten._unsafe_masked_index_put_accumulate
    check(lambda x, m, i, j, v: put(x, m, [i, j], v), x, mask, rows, columns, values)


def test_the_same_number_of_elements() -> None:
    check(lambda x: (x * 2).resize_(3, 4), torch.randn(2, 6))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.int32])
def test_ldexp_by_exponents_whose_power_overflows(dtype: Any) -> None:
    limit = torch.finfo(dtype) if dtype.is_floating_point else torch.finfo(torch.float32)
    least = round(math.log2(limit.tiny * limit.eps))
    values = [0.0, -0.0, math.inf, math.nan, 1.0, 3.0, -1.75, limit.max, limit.tiny * 0.75]
    x = torch.tensor(values, dtype=torch.float64)
    exponents = torch.tensor([-(2**30), 2 * least, least, -1, 0, 1, -least, -2 * least, 10**9])
    x = (x if dtype.is_floating_point else x.nan_to_num(7, 7).clamp(-9, 9)).to(dtype)[:, None]
    compiled = tilevm.compile(torch.ldexp)
    for shift in (0, 3):
        want, found = torch.ldexp(x, exponents + shift), compiled(x, exponents + shift)
        torch.testing.assert_close(found, want, rtol=0, atol=0, equal_nan=True)
    with tilevm.config.patch(templates=1), tilevm.fuse():
        found = torch.ldexp(x, exponents)
    torch.testing.assert_close(found, torch.ldexp(x, exponents), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool])
def test_integers_that_are_filled_with_a_float(dtype: Any) -> None:
    """Those that are not masked have more digits than the number's float32."""
    x = torch.tensor([1, 2**24 + 1, 2**31 - 1, 2**53 + 1, 2**62 + 1]).to(dtype)
    for value in (0.0, 2.5, 255.0 if dtype is torch.uint8 else -1.0):
        functions: tuple[Any, ...] = (
            lambda x, value=value: x.masked_fill(torch.arange(len(x)) < 1, value),
            lambda x, value=value: (x | 1).masked_fill_(torch.arange(len(x)) < 1, value),
        )
        for function in functions:
            assert torch.equal(tilevm.compile(function)(x), function(x))
            with tilevm.config.patch(templates=1), tilevm.fuse():
                found = function(x)
            assert torch.equal(found, function(x))


@pytest.mark.parametrize("function", [torch.xlogy, torch.special.xlog1py])
def test_integers_beside_halves_are_halves_first(function: Any) -> None:
    x, y = torch.tensor([0.25, 1.0, 0.0]).half(), torch.tensor([70000, 3001, 257])
    compiled = tilevm.compile(function)
    torch.testing.assert_close(compiled(x, y), function(x, y))
    torch.testing.assert_close(compiled(y, x), function(y, x))


def test_heaviside_of_two_dtypes_raises_as_in_eager_code() -> None:
    x = torch.tensor([-1.0, 0.0, 2.0])
    compiled = tilevm.compile(torch.heaviside)
    assert torch.equal(compiled(x, x), torch.heaviside(x, x))
    for dtype in (torch.float64, torch.int64, torch.float16):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="different dtypes"):
                compiled(x, x.to(dtype))
        with pytest.raises(RuntimeError, match="different dtypes"):
            with tilevm.config.patch(templates=1), tilevm.fuse():
                torch.heaviside(x, x.to(dtype))

"""`@tilevm.kernel` on every tier, against PyTorch; and what it refuses, with what words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tilevm
from tilevm import lang
from tilevm.errors import CaptureError, DeviceError, DTypeError, ShapeError, TilevmError
from tilevm.frontends.kernel import Kernel
from tilevm.frontends.symbolic import Array
from tilevm.ir.ops import OPS, Class

SIZES = [0, 1, 7, 64, 65]
HERE = r"test_kernel\.py:\d+"


@pytest.fixture(autouse=True, params=["auto", "interp", "reference"])
def tier(request: pytest.FixtureRequest) -> Iterator[str]:
    with tilevm.config.patch(tier=request.param):
        yield request.param


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, equal_nan=True)


# What runs ----------------------------------------------------------------------------------------


@tilevm.kernel
def scaled_softmax(x: Any, bias: Any, scale: float) -> Any:
    return lang.softmax(x * scale + bias, -1)


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("columns", SIZES)
def test_one_trace_serves_every_size(rows: int, columns: int) -> None:
    x, bias = randn(rows, columns), randn(columns)
    close(scaled_softmax(x, bias, 0.5), (x * 0.5 + bias).softmax(-1))


def test_new_sizes_and_numbers_capture_nothing_new() -> None:
    @tilevm.kernel
    def f(x: Any, bias: Any, scale: float) -> Any:
        return lang.exp(x * scale) + bias

    for n in SIZES:
        x, bias = randn(n, 5), randn(5)
        close(f(x, bias, n / 8), (x * (n / 8)).exp() + bias)
    assert len(f.variants()) == 1
    assert "float32[x0, x1]" in str(f.graph(x, bias, 1.0).types()["x"])


def test_slices_of_size_1_broadcast() -> None:
    @tilevm.kernel
    def f(x: Any) -> Any:
        return x - x[:1] + x[-1:] * x[:, :1]

    def shift(x: Any) -> Any:
        return x - x[:1] + x[-1:] * x[:, :1]

    for rows, columns in [(3, 4), (5, 2), (1, 4), (3, 1), (0, 3), (1, 1), (3, 4)]:
        x = randn(rows, columns)
        close(f(x), shift(x))
    assert len(f.variants()) <= 4
    with pytest.raises(ShapeError, match=rf"{HERE}: sub: shapes do not broadcast"):
        tilevm.kernel(lambda x: x - x[:2])(randn(3, 4))


def test_sizes_of_1_broadcast_where_their_partner_is_not_1() -> None:
    @tilevm.kernel
    def f(x: Any, y: Any) -> Any:
        return x + y

    shapes = [((3, 4), (3, 4)), ((3, 4), (1, 4)), ((3, 1), (1, 4)), ((1, 1), (1, 1))]
    for _ in range(2):
        for a, b in shapes:
            x, y = randn(*a), randn(*b)
            close(f(x, y), x + y)
    assert len(f.variants()) == 3  # (1, 1) with (1, 1) needs none of its own
    with pytest.raises(ShapeError, match=rf"{HERE}: add: shapes do not broadcast(.|\n)*x1 is 4"):
        f(randn(3, 4), randn(3, 5))


def test_numpy_in_numpy_out() -> None:
    x, bias = np.ones((2, 3), np.float32), np.arange(3, dtype=np.float32)
    found = scaled_softmax(x, bias, 1.0)
    assert type(found) is np.ndarray
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-6)


def test_results_in_containers() -> None:
    @tilevm.kernel
    def f(x: Any) -> Any:
        return {"same": x, "total": lang.sum(x), "size": x.shape[0]}

    x = randn(3)
    found = f(x)
    assert list(found) == ["same", "total", "size"]
    close(found["same"], x)
    close(found["size"], torch.tensor(3))
    assert tilevm.kernel(lambda x: (x, x + 1))(x)[1].dtype == torch.float32
    assert isinstance(tilevm.kernel(lambda x: [x])(x), list)
    assert tilevm.kernel(lambda n: n * 0.5)(3) == 1.5


def test_numbers_promote_by_their_kind() -> None:
    double = tilevm.kernel(lambda x, n: x * n)
    x = torch.arange(3)
    assert double(x, 2).dtype == torch.int64
    assert double(x, 2.0).dtype == torch.float32
    assert double(x, 2).tolist() == double(x, np.int64(2)).tolist() == [0, 2, 4]
    assert double(x.bool(), 2).dtype == torch.int64


def test_keywords_defaults_and_static_values() -> None:
    @tilevm.kernel
    def f(x: Any, n: float = 2.0, *, axis: int = 0, name: str | None = None) -> Any:
        y = lang.sum(x, axis) * n
        return y + 1 if name == "plus" else y

    x = randn(3, 4)
    close(f(x), x.sum(0) * 2)
    close(f(x, name="plus"), x.sum(0) * 2 + 1)
    close(f(n=3.0, x=x), x.sum(0) * 3)
    assert len(f.variants()) == 3

    @tilevm.kernel(static=("axis",))
    def g(x: Any, axis: int) -> Any:
        return lang.sum(x, axis)

    close(g(x, 1), x.sum(1))
    close(g(x, 0), x.sum(0))


def test_static_values_that_are_equal_but_not_the_same() -> None:
    first = tilevm.kernel(lambda x, t: x * t[0])
    x = torch.arange(3)
    dtypes = [first(x, t).dtype for t in ((2,), (2.0,), (2,))]
    assert dtypes == [torch.int64, torch.float32, torch.int64]
    assert len(first.variants()) == 2

    chosen = tilevm.kernel(static=("t",))(lambda x, t: x + 1 if t[0][0] is True else x / t[1])
    for t in (((True,), 0.0), ((1,), 0.0), ((1.0,), -0.0), ((1,), 0.0)):
        close(chosen(x, t), x + 1 if t[0][0] is True else x / t[1])
    assert len(chosen.variants()) == 3

    sets = tilevm.kernel(static=("t",))(lambda x, t: x * next(iter(t)))
    assert [sets(x, frozenset((t,))).dtype for t in (1, 1.0)] == [torch.int64, torch.float32]

    scaled = tilevm.kernel(static=("t",))(lambda x, t: x * t)
    for nan in (float("nan"), float("nan"), -float("nan")):
        assert scaled(x, nan).isnan().all()
    assert len(scaled.variants()) == 1
    assert (1 / scaled(torch.ones(1), 0.0), 1 / scaled(torch.ones(1), -0.0)) == (
        math.inf,
        -math.inf,
    )


def test_strides_and_offsets() -> None:
    x = randn(9, 10)
    f = tilevm.kernel(lambda x, y: lang.sum(x * 2 + y, -1))
    close(f(x.t()[1:, ::2], x[0, :5]), (x.t()[1:, ::2] * 2 + x[0, :5]).sum(-1))
    close(f(x[::3], x[:1].expand(3, 10)), (x[::3] * 2 + x[:1]).sum(-1))


INDEXING: list[Callable[[Any], Any]] = [
    lambda x: x[0],
    lambda x: x[-1, 1:],
    lambda x: x[..., -2],
    lambda x: x[:, None, 1, ..., None],
    lambda x: x[1:-1, ::2],
    lambda x: x[:, 5:3],
    lambda x: x[:100, -100:],
    lambda x: x.T + x.T,
    lambda x: x.mT * 2,
    lambda x: x[: x.shape[1] // 2],
    lambda x: x[x.shape[0] - 1],
    lambda x: x.reshape(-1) + 1,
    lambda x: x.reshape(x.shape[1], -1),
    lambda x: x.reshape(x.shape[0] * x.shape[1], 1),
    lambda x: x.sum() / x.shape[0],
    lambda x: x * x.shape[1] ** -0.5,
    lambda x: x.exp().sqrt(),
    lambda x: x.reshape(x.shape[0] ** 1, -1) * (x.shape[0] ** 2 + x.shape[1] ** 0),
    lambda x: x.sum() * x.shape[0] ** 2.0,
]


@pytest.mark.parametrize("index", range(len(INDEXING)))
def test_indexing_as_in_torch(index: int) -> None:
    x = randn(4, 6)
    close(tilevm.kernel(INDEXING[index])(x), INDEXING[index](x))


def test_reversed_and_by_array() -> None:
    x, i = randn(4, 6), torch.tensor([[2, 0], [1, 1]])
    close(tilevm.kernel(lambda x: x[::-1] * 1)(x), x.flip(0))
    close(tilevm.kernel(lambda x, i: x[:, i])(x, i), x[:, i])
    close(tilevm.kernel(lambda x, i: lang.take(x, i, 0))(x, i), x[i])
    close(tilevm.kernel(lambda x, i: lang.gather(x, i, 1))(x, i), x.gather(1, i))
    close(tilevm.kernel(lang.embedding)(i, x), F.embedding(i, x))


PYTHON_OPERATORS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y - 2 * y / 3,
    lambda x, y: 1 - x,
    lambda x, y: 2 / (abs(y) + 1),
    lambda x, y: x // 0.3 + (x % 0.7),
    lambda x, y: x**2 + abs(y) ** 0.5 + 2.0**x,
    lambda x, y: -x + (+y),
    lambda x, y: (x < y) & (x >= 0) | ~(y != x) ^ (x <= y),
    lambda x, y: (x > y) == (y < x),
    lambda x, y: x @ y.T,
]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_elements_of_an_index_count_from_the_end(dtype: str) -> None:
    """As in NumPy and PyTorch; the size need not be a number of the index's dtype."""
    columns = tilevm.kernel(lambda x, i: x[..., i] * 2)
    x = np.arange(900, dtype=np.float32).reshape(3, 300)
    for given in ([[0, 5], [127, 3]], [[-1, 5], [-128, 0]]):
        if dtype != "uint8" or min(map(min, given)) >= 0:
            i = np.array(given, dtype)
            np.testing.assert_array_equal(columns(x, i), x[..., i] * 2)
    with pytest.raises(IndexError, match="out of bounds for axis 1 with size 300"):
        columns(x, np.array([0, -301]))
    with pytest.raises(IndexError, match="index -1 is out of bounds for axis 0 with size 3"):
        tilevm.kernel(lambda x, i: lang.take(x, i, 0))(x, np.array([-1]))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_an_index_of_floats_is_refused(dtype: str) -> None:
    rows = tilevm.kernel(lambda x, i: x[i])
    for index in (np.array([0, 1.9, -0.5], dtype), np.array(1.0, dtype), np.zeros(0, dtype)):
        with pytest.raises(DTypeError, match="take: an index must be an integer"):
            rows(np.ones(3), index)
    with pytest.raises(DTypeError, match="take: an index must be an integer"):
        tilevm.kernel(lambda x, i: x[i / 2])(np.ones(3), np.array([1, 2]))
    with pytest.raises(DTypeError, match="take: an index must be an integer"):
        rows(np.ones(3), 1.7)


def test_arrays_that_mean_more_than_their_elements_are_refused(tmp_path: Path) -> None:
    total = tilevm.kernel(lambda x: x.sum())
    x = np.array([1.0, 2.0, 1e9])
    assert float(total(x)) == x.sum()  # calls like this one run without Python
    for given, kind in (
        (np.ma.masked_array(x, [False, False, True]), "numpy.ma.*MaskedArray"),
        (x.view(type("Metres", (np.ndarray,), {})), "Metres"),
    ):
        with pytest.raises(DTypeError, match=f"x is a .*{kind}.*, which means more"):
            total(given)
    mapped = np.memmap(tmp_path / "x", np.float64, "w+", shape=(3,))
    mapped[:] = x
    assert float(total(mapped)) == x.sum()


def test_wrong_arguments_name_the_kernel() -> None:
    @tilevm.kernel
    def add(x: Any, y: Any) -> Any:
        return x + y

    outer = tilevm.kernel(lambda x: add(x) * 2)
    x = np.ones(3)
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("missing a required argument: 'y'", lambda: add(x)),
        ("missing a required argument: 'y'", lambda: outer(x)),
        ("too many positional arguments", lambda: add(x, x, x)),
        ("got an unexpected keyword argument 'z'", lambda: add(x, z=x)),
    ]
    for what, call in calls:
        with pytest.raises(TypeError, match=r"test_kernel.py:\d+: add: ") as error:
            call()
        assert what in str(error.value)
        assert "Call it as add(x: " in str(error.value)


def test_ranks_go_up_to_8() -> None:
    twice = tilevm.kernel(lambda x: x * 2)
    x = np.arange(2.0**8).reshape((2,) * 8)
    np.testing.assert_array_equal(twice(x), x * 2)
    with pytest.raises(ShapeError, match=r"<lambda>: parameter x has rank 9, more than 8\n  Resh"):
        twice(x[None])


def test_a_kernel_that_calls_itself_without_end_is_refused() -> None:
    @tilevm.kernel
    def again(x: Any) -> Any:
        return again(x + 1)

    with pytest.raises(CaptureError, match=r"test_kernel.py:\d+: again: calls itself without end"):
        again(np.ones(3))


@pytest.mark.parametrize("index", range(len(PYTHON_OPERATORS)))
def test_python_operators(index: int) -> None:
    function, x, y = PYTHON_OPERATORS[index], randn(4, 6), randn(4, 6).flip(0)
    close(tilevm.kernel(function)(x, y), function(x, y))


@pytest.mark.parametrize("dtype", ["float64", "float16", "int16", "int8", "uint8"])
def test_arrays_of_every_dtype(dtype: str) -> None:
    double = tilevm.kernel(lambda x: (x + x, x > 3, x.sum(-1)))
    for array in (np.arange(24).reshape(4, 6) * 11, np.arange(24).reshape(6, 4).T):
        x = array.astype(dtype)
        total = x.astype(np.float32).sum(-1).astype(dtype) if dtype == "float16" else x.sum(-1)
        total = total.astype(np.int64) if "int" in dtype else total
        for found, want in zip(double(x), (x + x, x > 3, total), strict=True):
            assert found.dtype == want.dtype
            np.testing.assert_array_equal(found, want)
        t = torch.from_numpy(np.ascontiguousarray(x))
        assert torch.equal(double(t)[0], t + t)


def test_arithmetic_of_numbers_is_as_precise_as_the_array() -> None:
    scaled = tilevm.kernel(lambda x, n: x * (n / 3 + 0.1))
    x = torch.randn(7, dtype=torch.float64)
    for n in (0.7, 1 / 7, 1e300):
        torch.testing.assert_close(scaled(x, n), x * (n / 3 + 0.1), rtol=3e-16, atol=0)
        y = x.float()
        close(scaled(y, n), y * (n / 3 + 0.1))


def test_integer_operators() -> None:
    x, y = torch.arange(-4, 4), torch.arange(8)

    def function(x: Any, y: Any) -> Any:
        return (x << (y & 3)) + (x >> 1) - (x // 3) * (x % 3) ^ y

    close(tilevm.kernel(function)(x, y), function(x, y))
    close(tilevm.kernel(lambda x: np.float32(2) * x)(randn(3)), randn(3) * 2)
    for exponent in (2, 2.0, 3.0):
        close(tilevm.kernel(lambda x, n=exponent: x**n)(x.short()), x.short() ** exponent)


def test_powers_of_sizes_are_sizes() -> None:
    x = torch.ones(5000, dtype=torch.int64)
    found = tilevm.kernel(lambda x: x[:1] + (x.shape[0] ** 2 + 1))(x)
    assert (found.dtype, found.item()) == (torch.int64, 25000002)
    close(tilevm.kernel(lambda x: lang.zeros(x.shape[0] ** np.int64(3)))(x[:2]), torch.zeros(8))


def _scatter(how: str, reduce: str) -> tuple[Any, Any]:
    """Ours and PyTorch's, at places that the array's own order says."""

    def ours(x: Any) -> Any:
        return getattr(lang, f"scatter{how}")(x, lang.argsort(x, 1), x + 1, 1)

    def theirs(x: Any) -> Any:
        index = x.argsort(1)
        return x.scatter_reduce(1, index, x + 1, reduce) if reduce else x.scatter(1, index, x + 1)

    return ours, theirs


LANGUAGE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "square": (lang.square, torch.square),
    "clip": (lambda x: lang.clip(x, -0.5, 0.5), lambda x: x.clip(-0.5, 0.5)),
    "clip_low": (lambda x: x.clip(0.1), lambda x: x.clip(0.1)),
    "clip_high": (lambda x: x.clamp(high=0.1), lambda x: x.clamp(max=0.1)),
    "gelu": (lang.gelu, F.gelu),
    "gelu_tanh": (lambda x: lang.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh")),
    "cast": (lambda x: lang.cast(x, lang.bfloat16), lambda x: x.bfloat16()),
    "astype": (lambda x: x.astype(torch.int32), lambda x: x.int()),
    "mean": (lambda x: x.mean(axis=(0, 1), keepdims=True), lambda x: x.mean((0, 1), True)),
    "max": (lambda x: lang.max(x, 0), lambda x: x.amax(0)),
    "min": (lang.min, torch.min),
    "prod": (lambda x: x.prod(1), lambda x: x.prod(1)),
    "var": (lambda x: x.var(-1), lambda x: x.var(-1)),
    "std": (lambda x: lang.std(x, 0, correction=0), lambda x: x.std(0, correction=0)),
    "any": (lambda x: lang.any(x > 1, 1), lambda x: (x > 1).any(1)),
    "all": (lambda x: lang.all(x > -1), lambda x: (x > -1).all()),
    "argmax": (lang.argmax, torch.argmax),
    "argmax_keep": (
        lambda x: lang.argmax(x, keepdims=True) + x.argmin(0),
        lambda x: x.argmax().reshape(1, 1) + x.argmin(0),
    ),
    "log_softmax": (lambda x: lang.log_softmax(x, 0), lambda x: x.log_softmax(0)),
    "layer_norm": (
        lambda x: lang.layer_norm(x, x[0], x[1], 1e-5),
        lambda x: F.layer_norm(x, (6,), x[0], x[1], 1e-5),
    ),
    "rms_norm": (lambda x: lang.rms_norm(x, x[0]), lambda x: F.rms_norm(x, (6,), x[0], 1e-6)),
    "where": (lambda x: lang.where(x > 0, x, 0.0), lambda x: torch.where(x > 0, x, 0.0)),
    "concat": (lambda x: lang.concat([x, x[:1]]), lambda x: torch.cat([x, x[:1]])),
    "stack": (lambda x: lang.stack([x, -x], 1), lambda x: torch.stack([x, -x], 1)),
    "split": (lambda x: lang.split(x, 3, 1)[1] * 2, lambda x: x.split(2, 1)[1] * 2),
    "split_sizes": (
        lambda x: lang.split(x, [1, x.shape[1] - 1], -1)[1] + 1,
        lambda x: x[:, 1:] + 1,
    ),
    "pad": (lambda x: lang.pad(x, [1, 0], [0, 2], 3.0), lambda x: F.pad(x, (0, 2, 1, 0), value=3)),
    "flip": (lang.flip, lambda x: x.flip(0, 1)),
    "flip_none": (lambda x: lang.flip(x, ()) + 0, lambda x: x.flip(()) + 0),
    "permute": (lambda x: x.permute(1, 0) + 0, lambda x: x.permute(1, 0) + 0),
    "transpose": (lambda x: x.transpose(0, 1) + 0, lambda x: x.t() + 0),
    "expand": (lambda x: lang.expand(x, 2, -1, -1) + 0, lambda x: x.expand(2, -1, -1) + 0),
    "squeeze": (lambda x: x[:1].squeeze(0) + 0, lambda x: x[0] + 0),
    "unsqueeze": (lambda x: x.unsqueeze(-1) + 0, lambda x: x.unsqueeze(-1) + 0),
    "zeros": (lambda x: x + lang.zeros(x.shape), lambda x: x),
    "ones": (lambda x: lang.ones(3, lang.int32), lambda x: torch.ones(3, dtype=torch.int32)),
    "full": (lambda x: lang.full((2, x.shape[0]), 7), lambda x: torch.full((2, len(x)), 7)),
    "full_like": (lambda x: lang.full_like(x, 2), lambda x: torch.full_like(x, 2)),
    "full_of": (lambda x: lang.full(4, x[0, 0]), lambda x: x[0, 0].expand(4).clone()),
    "zeros_like": (lang.zeros_like, torch.zeros_like),
    "ones_like": (lambda x: lang.ones_like(x, "bool"), lambda x: torch.ones_like(x).bool()),
    "arange": (lambda x: x + lang.arange(x.shape[1]), lambda x: x + torch.arange(x.shape[1])),
    "arange_step": (lambda x: lang.arange(9, 0, -4), lambda x: torch.arange(9, 0, -4)),
    "arange_float": (
        lambda x: lang.arange(1, x.shape[0] + 5, 3, dtype="float32"),
        lambda x: torch.arange(1, len(x) + 5, 3, dtype=torch.float32),
    ),
    "arange_empty": (
        lambda x: lang.arange(0, x.shape[0], -1) + lang.arange(x.shape[0] - 9) + lang.arange(2 - 9),
        lambda x: torch.arange(0),
    ),
    "full_of_scalars": (
        lambda x: lang.where(lang.full(1, np.True_), lang.full(1, np.int64(2**53 + 1)), 0),
        lambda x: torch.tensor([2**53 + 1]),
    ),
    "cumsum": (lambda x: lang.cumsum(x, 1), lambda x: x.cumsum(1)),
    "cumprod": (lambda x: lang.cumprod(x, 0), lambda x: x.cumprod(0)),
    "cummax": (lambda x: lang.cummax(x, 1), lambda x: x.cummax(1).values),
    "cummin": (lambda x: lang.cummin(x, 1), lambda x: x.cummin(1).values),
    "logcumsumexp": (lambda x: lang.logcumsumexp(x, 1), lambda x: x.logcumsumexp(1)),
    "argsort": (lambda x: lang.argsort(x, 0, True), lambda x: x.argsort(0, True)),
    "searchsorted": (
        lambda x: lang.searchsorted(lang.cumsum(lang.abs(x), 1), x, 1, right=True),
        lambda x: torch.searchsorted(x.abs().cumsum(1), x, right=True),
    ),
    "argtopk": (lambda x: lang.argtopk(x, 2), lambda x: x.topk(2).indices),
    **{
        f"scatter{how}": _scatter(how, reduce)
        for how, reduce in (
            ("", ""),
            ("_add", "sum"),
            ("_mul", "prod"),
            ("_max", "amax"),
            ("_min", "amin"),
        )
    },
    "constants": (lambda x: x * lang.pi + lang.e, lambda x: x * math.pi + math.e),
}


@pytest.mark.parametrize("name", list(LANGUAGE))
def test_language(name: str) -> None:
    ours, theirs = LANGUAGE[name]
    x = randn(4, 6)
    close(tilevm.kernel(ours)(x), theirs(x))


def test_every_operator_of_the_table_can_be_said() -> None:
    creators = {"scalar": "Python numbers", "size_value": "x.shape", "iota": "arange", "call": ""}
    for op in OPS:
        names = {"amax": "max", "amin": "min", "gelu_tanh": "gelu"}
        assert op.name in creators or callable(getattr(lang, names.get(op.name, op.name)))
    unary = [op.name for op in OPS if op.cls is Class.ELEMENTWISE and op.inputs == 1]
    assert set(unary) <= set(dir(lang)) | {"cast"}
    with pytest.raises(AttributeError, match="no 'nope'"):
        lang.nope  # noqa: B018


def test_branches_on_sizes_trace_again_only_when_they_turn() -> None:
    @tilevm.kernel
    def f(x: Any) -> Any:
        assert x.shape[0] * 2 != x.shape[0] * 2 + 1  # known for every size: no guard
        return x * 2 if x.shape[0] > 3 else x

    for n in (2, 3, 4, 5, 2, 64):
        close(f(randn(n)), randn(n) * (2 if n > 3 else 1))
    assert len(f.variants()) == 2


def test_kernels_run_in_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    f = tilevm.kernel(lambda x, y: lang.softmax(x + y, -1))

    def work(n: int) -> bool:
        x, y = torch.randn(n, 9), torch.randn(9)
        return torch.allclose(f(x, y), (x + y).softmax(-1), atol=1e-6)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, [n % 13 + 2 for n in range(200)]))
    assert len(f.variants()) == 1


# Dimensions ---------------------------------------------------------------------------------------

ROWS = tilevm.Dim(min=2, max=8, multiple_of=2)


@tilevm.kernel(dims={"D": tilevm.Dim(max=16)})
def named(x: Annotated[Array, ROWS, "D"], y: Annotated[Array, "D"], z: Any) -> Any:
    return x + y + lang.sum(z)


@tilevm.kernel(dims={"x": ("B", 4), "y": (..., "B")})
def fixed(x: Any, y: Any) -> Any:
    return x.sum(1) + y


def test_dimensions_by_annotation_or_argument() -> None:
    x, y = randn(4, 5), randn(5)
    close(named(x, y, y), x + y + y.sum())
    assert str(named.variants()[0].symbols[0]) == "x0 in 2..8, x0 % 2 == 0"
    close(fixed(randn(3, 4), randn(2, 2, 3)), randn(3, 4).sum(1) + randn(2, 2, 3))
    assert "float32[B, 4]" in str(fixed.variants()[0].types()["x"])


def test_annotations_as_text() -> None:
    def f(x, y):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return x + y

    f.__annotations__ = {"x": 'Array["B", "D"]', "y": 'Array["D"]', "return": "nowhere.Foo"}
    kernel = tilevm.kernel(f)
    close(kernel(randn(3, 4), randn(4)), randn(3, 4) + randn(4))
    f.__annotations__ = {"x": 'Array["B", nowhere]'}
    with pytest.raises(CaptureError, match=rf"{HERE}: the annotation .*nowhere(.|\n)*dims="):
        tilevm.kernel(f)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: named(randn(3, 5), randn(5), randn(1)),
            r"x\.shape\[0\] is 3 .*x0 in 2\.\.8, x0 %",
        ),
        (lambda: named(randn(10, 5), randn(5), randn(1)), r"x\.shape\[0\] is 10 .*\n.*change the"),
        (
            lambda: named(randn(4, 5), randn(6), randn(1)),
            r"y\.shape\[0\] is 6 .*shape\[1\] is 5: bo",
        ),
        (lambda: named(randn(4, 17), randn(17), randn(1)), r"contradicts D in 0\.\.16"),
        (
            lambda: named(randn(4), randn(5), randn(1)),
            r"x has rank 1, its annotation says \[x0, D\]",
        ),
        (lambda: fixed(randn(3, 5), randn(3)), r"x\.shape\[1\] is 5 .*must be 4"),
        (lambda: fixed(randn(3, 4), randn(2)), r"both are B"),
    ],
)
def test_sizes_that_contradict_a_declaration(call: Callable[[], Any], message: str) -> None:
    for _ in range(2):
        with pytest.raises(ShapeError, match=rf"{HERE}: (named|fixed): .*{message}"):
            call()
        named(randn(4, 5), randn(5), randn(1))
        fixed(randn(3, 4), randn(3))


# What is refused ----------------------------------------------------------------------------------


def same(x: Any, y: Any = 0) -> Any:
    return x + y


@pytest.mark.parametrize(
    ("error", "arguments", "message"),
    [
        (
            CaptureError,
            lambda: (randn(2), np.ones(2, np.float32)),
            "x is of torch and y is of numpy",
        ),
        (
            DTypeError,
            lambda: (torch.ones(2, dtype=torch.complex64),),
            r"parameter x is complex64\[2\]\n.*convert x before",
        ),
        (DTypeError, lambda: (np.ones(2, ">f4"),), "x has bytes in the other order"),
        (DTypeError, lambda: (np.array(["a"]),), "parameter x is str"),
        (DeviceError, lambda: (torch.ones(2, device="meta"),), r"x is on meta\n.*x\.cpu\(\)"),
        (DeviceError, lambda: (torch.ones(2).to_sparse(),), "x is no plain strided tensor"),
        (TilevmError, lambda: (randn(2).requires_grad_(),), r"x requires gradients.*\n.*no_grad"),
        (CaptureError, lambda: (randn(2), [1]), "argument y is a builtins.list"),
        (CaptureError, lambda: (randn(2), object()), "argument y is a builtins.object"),
        (CaptureError, lambda: (randn(2), 2**63), r"argument y is an int of 64 .*\n.*float\(y\)"),
        (CaptureError, lambda: (randn(2), np.uint64(2**63)), "argument y is an int of 64 bits"),
        (ShapeError, lambda: (randn(2), randn(3)), "add: shapes do not broadcast"),
    ],
)
def test_bad_arguments(
    error: type[Exception], arguments: Callable[[], tuple[Any, ...]], message: str
) -> None:
    kernel = tilevm.kernel(same)
    for _ in range(2):
        with pytest.raises(error, match=rf"{HERE}: .*{message}"):
            kernel(*arguments())
        kernel(randn(2), randn(2))
    with torch.no_grad():
        kernel(randn(2).requires_grad_(), 1)


def test_wrong_counts_are_type_errors() -> None:
    for arguments in ((), (randn(2), 1, 2)):
        with pytest.raises(TypeError, match="argument"):
            tilevm.kernel(same)(*arguments)


def _loop(x: Any) -> Any:
    total = 0
    for i in range(x.shape[0]):
        total = total + x[i]
    return total


def _assign(x: Any) -> Any:
    x[0] = 1
    return x


def _branch(x: Any) -> Any:
    return x if lang.sum(x) > 0 else -x


OUTSIDE = torch.ones(2)

BODIES: list[tuple[Callable[[Any], Any], str]] = [
    (_branch, r"(`if`|.*)on an array(.|\n)*lang\.where"),
    (lambda x: x and x, r"on an array(.|\n)*& \| ~"),
    (lambda x: max(x[0], x[1]), r"on an array(.|\n)*lang\.maximum"),
    (lambda x: print(x) or x, r"the value of an array is asked for(.|\n)*outside"),
    (lambda x: float(x.sum()), "the value of an array is asked for"),
    (lambda x: f"{x}", "the value of an array is asked for"),
    (_loop, r"the size x0 is used as a Python int(.|\n)*dims="),
    (lambda x: [y for y in x], r"a loop over an array of type float32\[x0\]"),
    (lambda x: len(x), r"len\(\) of an array(.|\n)*x\.shape\[0\]"),
    (_assign, r"an assignment to elements(.|\n)*lang\.where"),
    (lambda x: x.nope, "no attribute 'nope'"),
    (lambda x: x[x > 0], r"indexed by a mask(.|\n)*lang\.where"),
    (lambda x: x["a"], "an index is a str"),
    (lambda x: x[0, 0], "2 indices for"),
    (lambda x: x[::-2], "a slice has step -2"),
    (lambda x: x + OUTSIDE, r"an operand is a torch\.Tensor(.|\n)*arguments"),
    (lambda x: x + "a", "an operand is a builtins.str"),
    (lambda x: np.exp(x), r"numpy\.exp is called(.|\n)*tilevm\.lang"),
    (lambda x: np.sum(x, axis=0), r"numpy\.sum is called(.|\n)*lang\.sum"),
    (lambda x: np.where(x > 0, x, 0), r"numpy\.where is called(.|\n)*lang\.where"),
    (lambda x: np.asarray(x), "NumPy function"),
    (lambda x: torch.exp(x), r"torch's exp is called(.|\n)*tilevm\.lang"),
    (lambda x: None, r"the kernel returns a NoneType(.|\n)*Return an array"),
    (lambda x: [[x]], "containers in containers"),
    (lambda x: lang.softmax(x, axis=x), "a parameter of an operator is an array"),
    (lambda x: lang.arange(x.dtype), "arange of a str"),
    (lambda x: lang.gelu(x, "fast"), r"gelu\(approximate='fast'\)"),
    (lambda x: lang.clip(x), "clip without limits"),
]


@pytest.mark.parametrize("index", range(len(BODIES)))
def test_unsupported_python_names_line_and_remedy(index: int) -> None:
    body, message = BODIES[index]
    with pytest.raises(CaptureError, match=rf"{HERE}: (.|\n)*{message}") as error:
        tilevm.kernel(body)(randn(2))
    assert "\n  " in str(error.value), "a remedy"


def test_errors_of_operators_name_the_line_of_the_kernel() -> None:
    @tilevm.kernel
    def f(x: Any) -> Any:
        return ~x

    with pytest.raises(DTypeError, match=rf"{HERE}: bitwise_not(.|\n)*float32\[x0\]"):
        f(randn(2))
    with pytest.raises(ShapeError, match=rf"{HERE}: sum: axis 3"):
        tilevm.kernel(lambda x: lang.sum(x, 3))(randn(2))


def test_indices_are_checked() -> None:
    f = tilevm.kernel(lang.take)
    with pytest.raises(IndexError):
        f(randn(3), torch.tensor([3]))


def test_the_language_works_only_in_kernels() -> None:
    with pytest.raises(CaptureError, match=r"no kernel is being traced(.|\n)*@tilevm\.kernel"):
        lang.exp(2.0)
    leaked: list[Any] = []

    def leak(x: Any) -> Any:
        leaked.append(x)
        return x

    tilevm.kernel(leak)(randn(2))
    with pytest.raises(CaptureError, match="of another kernel"):
        tilevm.kernel(lambda x: x + leaked[0])(randn(2))


def test_bad_decorations() -> None:
    with pytest.raises(CaptureError, match="decorates functions"):
        tilevm.kernel(3)  # type: ignore[call-overload]
    with pytest.raises(CaptureError, match=rf"{HERE}: .*takes any number"):
        tilevm.kernel(lambda *xs: xs)
    with pytest.raises(CaptureError, match="static names"):
        tilevm.kernel(static=("n",))(same)
    with pytest.raises(CaptureError, match=r"dims\['B'\] is 'x'"):
        tilevm.kernel(dims={"B": "x"})(same)
    with pytest.raises(CaptureError, match="has a dimension 'a b'"):
        tilevm.kernel(dims={"x": ("a b",)})(same)


def test_a_kernel_keeps_the_functions_name() -> None:
    assert isinstance(scaled_softmax, Kernel)
    assert scaled_softmax.__name__ == "scaled_softmax"


def test_captures_are_counted() -> None:
    before = tilevm.stats()["captures"]
    kernel = tilevm.kernel(same)
    kernel(randn(2), 1.0)
    kernel(randn(3), 2.0)
    assert tilevm.stats()["captures"] == before + 1


# Parameters of operators --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x.sum(axis=1.5), r"axes is \(1.5,\)"),
        (lambda x: x.softmax(axis="0"), "axis is '0'"),
        (lambda x: x.permute(0.5, 1), "axes is"),
        (lambda x: x.reshape(2.5, 3), "shape is"),
        (lambda x: 1 in x, "`in`"),
        (lambda x: x.astype("float99"), "float99"),
    ],
)
def test_parameters_of_a_wrong_kind(function: Any, said: str) -> None:
    with pytest.raises(TilevmError, match=rf"test_kernel\.py:\d+: .*{said}[^\n]*\n  \w"):
        tilevm.kernel(function)(np.ones((3, 4), np.float32))


def test_arrays_that_are_not_aligned() -> None:
    x = np.zeros(17, np.uint8)[1:].view(np.float32)
    with pytest.raises(DeviceError, match=r"test_kernel\.py:\d+: x is not aligned"):
        tilevm.kernel(lambda x: x + 1)(x)


def test_names_that_only_graphs_have() -> None:
    with pytest.raises(AttributeError, match=r"lang\.arange"):
        _ = lang.iota


def test_more_elements_than_can_be_counted() -> None:
    """2^66 elements, which are 0 in 64 bits, and 2^64 + 2^33, which are 2^33."""
    if tilevm.config.tier == "reference":
        pytest.skip("it copies what is expanded")
    one = np.ones((1, 1), np.float32)
    for rows, columns in ((1 << 33, 1 << 33), ((1 << 31) + 1, 1 << 33)):
        tall, wide = np.broadcast_to(one, (rows, 1)), np.broadcast_to(one, (1, columns))
        for fold in (lang.sum, lang.max):
            with pytest.raises(ShapeError, match=rf"axes of {rows}, {columns}"):
                tilevm.kernel(lambda x, y, fold=fold: fold(x * y))(tall, wide)

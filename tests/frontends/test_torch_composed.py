"""Functions of PyTorch that ask for values, captured as what they consist of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

import tilevm  # noqa: E402

pytestmark = pytest.mark.torch


def check(function: Callable[..., Any], *cases: tuple[Any, ...]) -> None:
    """As eager mode, in kernels alone."""
    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    for arguments in cases:
        torch.testing.assert_close(compiled(*arguments), function(*arguments), equal_nan=True)
    stats = tilevm.stats()
    assert not stats["callouts"]
    assert not stats["flushes"]


@pytest.mark.parametrize("correction", [0, 1, 2])
def test_covariances(correction: int) -> None:
    sizes = ((3, 7), (5, 4), (2, 64))
    xs = [torch.randn(size) for size in sizes]
    check(lambda x: torch.cov(x, correction=correction), *((x,) for x in xs))
    check(lambda x: x.cov(correction=correction), (torch.randn(9),))
    rows = [(x, torch.randint(1, 5, x.shape[1:]), torch.rand(x.shape[1:]) + 0.1) for x in xs]
    check(lambda x, f, a: torch.cov(x, correction=correction, fweights=f), *rows)
    check(lambda x, f, a: torch.cov(x, correction=correction, aweights=a), *rows)
    check(lambda x, f, a: torch.cov(x, correction=correction, fweights=f, aweights=a), *rows)


def test_correlations() -> None:
    check(torch.corrcoef, (torch.randn(3, 7),), (torch.randn(5, 4),))
    check(lambda x: x.corrcoef(), (torch.randn(9),))
    check(lambda x: x.cov() + x.corrcoef(), (torch.zeros(3, 4),))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_covariances_of_integers(dtype: Any) -> None:
    torch.manual_seed(0)  # others cancel to less than what either rounds
    xs = [torch.randint(0, 200, size).to(dtype) for size in ((3, 7), (5, 4))]
    rows = [(x, torch.randint(1, 5, x.shape[1:]), torch.rand(x.shape[1:]) + 0.1) for x in xs]
    check(lambda x, f, a: (torch.cov(x), torch.corrcoef(x), x[0].cov()), *rows)
    check(lambda x, f, a: torch.cov(x, fweights=f, aweights=a), *rows)
    with pytest.raises(RuntimeError, match="bool dtype"):
        tilevm.compile(torch.cov)(xs[0] > 3)


def test_weights_that_do_not_fit() -> None:
    x = torch.randn(3, 4)

    def function(x: Any, w: Any) -> Any:
        return torch.cov(x, fweights=w)

    compiled = tilevm.compile(function)
    for weights in ([1, 2, 1, 1], [1, -2, 1, 1], [0, 0, 0, 0], [1, 2, 1]):
        w = torch.tensor(weights)
        try:
            expected = function(x, w)
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as found:
                compiled(x, w)
            assert str(found.value).partition("\n")[0] == str(error).partition("\n")[0]
        else:
            torch.testing.assert_close(compiled(x, w), expected, equal_nan=True)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_too_few_observations_warn() -> None:
    compiled = tilevm.compile(torch.cov)
    x = torch.randn(3, 1)
    torch.testing.assert_close(compiled(x), torch.cov(x), equal_nan=True)
    torch.testing.assert_close(compiled(torch.ones(3, 5)), torch.zeros(3, 3))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_gaussian_losses(reduction: str) -> None:
    def loss(x: Any, target: Any, var: Any) -> Any:
        return functional.gaussian_nll_loss(x, target, var, full=True, reduction=reduction)

    cases = []
    for shape in ((4, 6), (2, 3, 5)):
        x, target = torch.randn(2, *shape)
        var = torch.rand(shape)
        var[0] = 0
        cases.append((x, target, var))
    check(loss, *cases)
    check(loss, (*cases[0][:2], cases[0][2][:, :1]))
    check(loss, (*cases[0][:2], cases[0][2][:, 0]))
    compiled = tilevm.compile(loss)
    for _ in range(2):
        with pytest.raises(ValueError, match="negative"):
            compiled(*cases[0][:2], -cases[0][2] - 1)
    assert compiled(*cases[0]).isfinite().all()


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64])
@pytest.mark.parametrize(("start", "end"), [(-1, 1), (0.1, 7), (3, 3), (5, -2.5)])
def test_linspace_is_captured_for_any_number_of_steps(dtype: Any, start: Any, end: Any) -> None:
    def line(x: Any) -> Any:
        return torch.linspace(start, end, x.shape[0], dtype=dtype)

    compiled = tilevm.compile(line)
    before = tilevm.stats()
    with torch.no_grad():
        for n in (3, 5, 7, 8, 2, 100, 1001):
            found, expected = compiled(torch.ones(n)), line(torch.ones(n))
            assert found.dtype == expected.dtype
            close = 4 * torch.finfo(found.dtype).eps * max(abs(start), abs(end))
            torch.testing.assert_close(found, expected, rtol=0, atol=close)
            assert torch.equal(found[[0, -1]], expected[[0, -1]])
        assert tilevm.stats()["captures"] - before["captures"] == 1
        for n in (1, 0):
            assert torch.equal(compiled(torch.ones(n)), line(torch.ones(n)))
    assert tilevm.stats()["flushes"] == before["flushes"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.uint8])
def test_linspace_of_narrow_numbers_and_ints(dtype: Any) -> None:
    def line(x: Any) -> Any:
        return torch.linspace(0, 100, x.shape[0], dtype=dtype)

    compiled = tilevm.compile(line)
    before = tilevm.stats()["captures"]
    for n in (3, 5, 8, 11, 101):
        expected = line(torch.ones(n))
        rtol = 0 if not dtype.is_floating_point else 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(compiled(torch.ones(n)), expected, rtol=rtol, atol=0)
    assert tilevm.stats()["captures"] - before == 1


def test_logspace_is_captured_for_any_number_of_steps() -> None:
    for base in (10.0, 2.0):

        def line(x: Any, base: float = base) -> Any:
            return torch.logspace(-1, 2, x.shape[0], base) + x

        compiled = tilevm.compile(line)
        before = tilevm.stats()["captures"]
        for n in (3, 5, 8, 2, 101):
            torch.testing.assert_close(compiled(torch.ones(n)), line(torch.ones(n)))
        assert tilevm.stats()["captures"] - before == 1


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("rank", [2, 3])
def test_affine_grids_are_captured_for_any_size(align_corners: bool, rank: int) -> None:
    def grid(x: Any, theta: Any) -> Any:
        return functional.affine_grid(theta, x.shape, align_corners=align_corners)

    compiled = tilevm.compile(grid)
    before = tilevm.stats()["captures"]
    with torch.no_grad():
        for n, *sizes in ((2, 5, 7, 3), (4, 3, 2, 9), (3, 8, 8, 2), (1, 2, 13, 5)):
            x = torch.ones(n, 3, *sizes[:rank])
            theta = torch.randn(n, rank, rank + 1)
            expected = grid(x, theta)
            torch.testing.assert_close(compiled(x, theta), expected, rtol=2e-6, atol=2e-6)
    assert tilevm.stats()["captures"] - before == 1
    x, theta = torch.ones(2, 3, *[4, 5, 6][:rank]), torch.randn(2, rank, rank + 1)
    found = []
    for run, leaf in ((compiled, theta.clone()), (grid, theta.clone()), (grid, theta.double())):
        run(x.to(leaf.dtype), leaf.requires_grad_()).square().sum().backward()
        found.append(leaf.grad)
    ours, theirs, exact = found
    # Sums of some hundred numbers, of which eager code's are further from those of float64.
    assert (ours - exact).abs().max() <= 1.5 * (theirs - exact).abs().max() + 1e-5


def test_affine_grids_that_pytorch_refuses_are_refused() -> None:
    compiled = tilevm.compile(lambda t, size: functional.affine_grid(t, size, align_corners=False))
    for theta, size, kind in (
        (torch.ones(2, 2, 3), [2, 3, 0, 5], ValueError),
        (torch.ones(2, 3, 3), [2, 3, 4, 5], ValueError),
        (torch.ones(2, 2, 3).long(), [2, 3, 4, 5], ValueError),
        (torch.ones(2, 2, 3), [2, 3, 4], NotImplementedError),
    ):
        with pytest.raises(kind) as expected:
            functional.affine_grid(theta, size, align_corners=False)
        with pytest.raises(kind) as found:
            compiled(theta, size)
        assert type(found.value) is type(expected.value) is kind
        assert str(found.value) == str(expected.value)


@pytest.mark.parametrize(
    "how",
    [
        {}, {"stride": 1}, {"stride": 3, "padding": 1}, {"dilation": 2}, {"ceil_mode": True},
        {"return_indices": True}, {"stride": (2,), "padding": (1,), "return_indices": True},
    ],
)  # fmt: skip
def test_maxima_of_windows_in_one_dim_for_any_length(how: dict[str, Any]) -> None:
    def direct(x: Any) -> Any:
        return functional.max_pool1d(x, 3, **how)

    layer = torch.nn.MaxPool1d(3, **how)
    for function in (direct, layer):
        compiled = tilevm.compile(function)
        tilevm.stats.reset()
        for rows, n in ((2, 17), (5, 9), (3, 101), (4, 10)):
            x = torch.randn(rows, 4, n)
            x[0, 0, 3] = float("nan")
            torch.testing.assert_close(compiled(x), function(x), equal_nan=True)
        assert tilevm.stats()["captures"] == 1
        assert not tilevm.stats()["flushes"] and not tilevm.stats()["callouts"]
    unbatched = torch.randn(4, 9)
    torch.testing.assert_close(tilevm.compile(direct)(unbatched), direct(unbatched))
    with pytest.raises(RuntimeError):
        tilevm.compile(direct)(torch.randn(2, 4, 0))


@pytest.mark.parametrize("pool", [functional.max_pool1d, functional.avg_pool1d])
def test_windows_that_do_not_move_are_refused(pool: Callable[..., Any]) -> None:
    x = torch.randn(2, 4, 9)
    three: Callable[..., Any] = lambda x: pool(x, 3, stride=0)  # noqa: E731
    whole: Callable[..., Any] = lambda x: pool(x, x.shape[-1], stride=0)  # noqa: E731
    for function in (three, whole):
        with pytest.raises(RuntimeError, match="stride"):
            function(x)
        with pytest.raises(RuntimeError, match="stride"):
            tilevm.compile(function)(x)


def test_whether_tensors_are_equal_as_a_result() -> None:
    def function(x: Any, y: Any) -> Any:
        return torch.allclose(x, y), torch.equal(x, y), x.equal(y), x.allclose(y, atol=1.0)

    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    x = torch.randn(4, 5)
    for y in (x.clone(), x + 1e-6, x + 0.5, x + 9, x * float("nan")):
        assert compiled(x, y) == function(x, y)
    assert tilevm.stats()["captures"] == 1 and not tilevm.stats()["flushes"]
    with pytest.raises(RuntimeError) as expected:
        function(x, x[:3])
    with pytest.raises(RuntimeError) as found:
        compiled(x, x[:3])
    assert str(found.value) == str(expected.value)


def test_tensors_of_the_same_sizes() -> None:
    def function(x: Any, y: Any) -> Any:
        a, b, c = torch.broadcast_tensors(x, y, torch.ones(()))
        d, e = torch.broadcast_tensors(x[:, :1], x)
        return a + b * c, d + e, torch._is_all_true(x > 0), torch._is_any_true(x > 2)

    tensors = [(torch.randn(n, m), torch.randn(m)) for n, m in ((3, 4), (5, 7), (2, 9))]
    check(function, *tensors)


def test_windows_of_spectra() -> None:
    check(lambda x: x * torch.hann_window(16), (torch.randn(3, 16),), (torch.randn(5, 16),))


def test_pixels_from_channels() -> None:
    convolution = torch.nn.Conv2d(3, 8, 1).eval()

    def function(x: Any) -> Any:
        return functional.pixel_shuffle(convolution(x), 2)

    with torch.no_grad():
        check(function, *((torch.randn(2, 3, h, w),) for h, w in ((5, 7), (3, 4), (8, 2))))


@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_weights_as_directions_and_lengths(dim: int | None, dtype: Any) -> None:
    layer = torch.nn.Linear(7, 5).to(dtype)
    layer = torch.nn.utils.parametrizations.weight_norm(layer, dim=dim)
    compiled = tilevm.compile(layer)
    near = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
    tilevm.stats.reset()
    for rows in (3, 8):
        x = torch.randn(rows, 7, dtype=dtype)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), layer(x), **near)
        if dtype is torch.bfloat16:  # gradients are rounded at other places
            continue
        found = []
        for run in (compiled, layer):
            layer.zero_grad()
            run(x).square().sum().backward()
            found.append([p.grad for p in layer.parameters()])
        torch.testing.assert_close(found[0], found[1])
    assert not tilevm.stats()["flushes"]
    assert not any("weight_norm" in name for name in tilevm.stats()["callouts"])


def test_masks_of_transformers_are_taken_as_they_are() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).eval()
    square = torch.nn.Transformer.generate_square_subsequent_mask

    def causal(x: Any) -> Any:
        return encoder(x, mask=square(x.shape[1]))

    with torch.no_grad():
        for function in (causal, lambda x: encoder(x, mask=torch.zeros(x.shape[1], x.shape[1]))):
            compiled = tilevm.compile(function)
            tilevm.stats.reset()
            for n in (5, 9, 3):
                x = torch.randn(2, n, 16)
                torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-5)
            assert tilevm.stats()["captures"] == 1 and not tilevm.stats()["flushes"]


@pytest.mark.parametrize("dim", [-3, -2, -1, 0, 1, 2])
def test_lengths_of_weights_along_any_dim(dim: int) -> None:
    v = torch.randn(4, 5, 6)
    g = torch.rand([n if dim != -1 and axis == dim % 3 else 1 for axis, n in enumerate(v.shape)])
    norm: Any = torch._weight_norm
    check(lambda v, g: norm(v, g, dim), (v, g))

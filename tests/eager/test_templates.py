"""Operators without a row, recorded as what captured graphs make of them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tests.eager import compare  # noqa: E402
from tests.eager.compare import agree, filled, recorded, tensors_in  # noqa: E402

import tilevm  # noqa: E402
from tilevm.frontends import torch_templates  # noqa: E402
from tilevm.frontends.torch_eager import pending  # noqa: E402

Function = Callable[..., Any]

# name: function of x [rows, columns] of float32 and k of its sizes, of int64 in 0..2
OPERATORS: dict[str, Function] = {
    "acos": lambda x, k: torch.acos(x / 100),
    "sinh": lambda x, k: torch.sinh(x / 8),
    "erfinv": lambda x, k: torch.erfinv(x / 100),
    "logit": lambda x, k: torch.logit(x / 200 + 0.5, 1e-3),
    "nan_to_num": lambda x, k: torch.nan_to_num(x.log(), nan=3.0),
    "hypot": lambda x, k: torch.hypot(x, x + 1),
    "logaddexp": lambda x, k: torch.logaddexp(x, -x),
    "heaviside": lambda x, k: torch.heaviside(x, x[0]),
    "prelu": lambda x, k: F.prelu(x, x[0, :1] / 8),
    "glu": lambda x, k: F.glu(torch.cat([x, x + 1], 1)),
    "cummax": lambda x, k: torch.cummax(x, 1),
    "logcumsumexp": lambda x, k: torch.logcumsumexp(x, 0),
    "sort": lambda x, k: torch.sort(x, dim=1, descending=True, stable=True),
    "kthvalue": lambda x, k: torch.kthvalue(x, 2, 1)[0],
    "roll": lambda x, k: torch.roll(x, (1, -2), (0, 1)),
    "flip": lambda x, k: x.flip(0, 1),
    "tril": lambda x, k: x.tril(-1) + x.triu(1),
    "index_copy": lambda x, k: x.index_copy(0, k[0, :1], x[1:2] * 2),
    "scatter_reduce": lambda x, k: x.scatter_reduce(0, k, x * 3, "amax"),
    "searchsorted": lambda x, k: torch.searchsorted(torch.arange(9.0) - 4, x),
    "pad": lambda x, k: F.pad(x, (1, 2, 0, 3), value=0.5),
    "reflect": lambda x, k: F.pad(x[None], (2, 1), mode="reflect"),
    "avg_pool": lambda x, k: F.avg_pool2d(x[None, None], 2, 1, 1),
    "max_pool": lambda x, k: F.max_pool2d(x[None, None], 2, 1, return_indices=True),
    "interpolate": lambda x, k: F.interpolate(x[None], scale_factor=2.0),
    "group_norm": lambda x, k: F.group_norm(torch.stack([x, x * 2], 1), 2),
    "softshrink": lambda x, k: F.softshrink(x, 0.3),
    "huber": lambda x, k: F.huber_loss(x, x * 1.5),
    "logsumexp": lambda x, k: torch.logsumexp(x, 1),
    "norm": lambda x, k: torch.linalg.vector_norm(x, 1, 1),
    "aminmax": lambda x, k: torch.aminmax(x, dim=1),
    "unbind_copy": lambda x, k: torch.unbind_copy(x[:3]),
    "conv": lambda x, k: F.conv2d(x[None, None], x[:2, :2][None, None] / 16, padding=1),
    "dtype": lambda x, k: torch.nansum(x, 1, dtype=torch.float64),
}
SIZES = ((3, 4), (7, 5), (3, 16), (33, 31))


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    with tilevm.config.patch(templates=1):
        yield


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the operators that a template is asked for from here on."""
    names: list[str] = []
    template_of = torch_templates.template_of

    def noting(name: str, overload: str, arguments: Any) -> int:
        names.append(name)
        return template_of(name, overload, arguments)

    monkeypatch.setattr(torch_templates, "template_of", noting)
    return names


def inputs(rows: int, columns: int) -> tuple[Any, Any]:
    x = torch.arange(rows * columns).reshape(rows, columns)
    return ((x * 7919) % 17 - 8).float(), x % 3


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_wait(name: str, asked: list[str]) -> None:
    function = OPERATORS[name]
    for sizes in SIZES:
        x, k = inputs(*sizes)
        with tilevm.fuse():
            found = function(x * 2 - x, k + 0)
            compare.recorded(*tensors_in(found))
        compare.same(found, function(*inputs(*sizes)), exact=False)
        if sizes == SIZES[0]:
            first = len(asked)
    # Sizes that are no others' and neither 0 nor 1 are the same kind of call.
    assert len(asked) <= 2 * first  # small integers among the arguments are what they are


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (1, 1), (1, 5), (5, 1), (4, 4)], ids=str)
def test_unusual_sizes(sizes: tuple[int, int]) -> None:
    def function(x: Any) -> Any:
        return x.flip(1).roll(1, 0), torch.nan_to_num(x / 0).cummax(1), F.pad(x, (1, 1)), x.tril()

    agree(function, torch.randn(sizes))


def test_layouts() -> None:
    x = torch.randn(2, 3, 4, 5)
    images = (x, x.contiguous(memory_format=torch.channels_last), x.permute(3, 1, 0, 2))

    def function(x: Any) -> Any:
        pooled = F.max_pool2d(x, 2, 1), F.interpolate(x, (7, 3)), torch.hypot(x, x)
        return *pooled, x.sort(1), x[:, :, ::2].cummax(1)

    for image in images:
        agree(function, image, exact=False)


def test_sizes_that_a_kind_of_call_is_not_for() -> None:
    """A pad of 3 needs more than 3 elements; PyTorch says so."""

    def function(x: Any) -> Any:
        return F.pad(x, (3, 3), mode="reflect")

    agree(function, torch.randn(2, 5))
    for columns in (2, 3):
        with tilevm.fuse(), pytest.raises(RuntimeError) as ours:
            function(torch.randn(2, columns))
        with pytest.raises(RuntimeError) as theirs:
            function(torch.randn(2, columns))
        assert str(ours.value) == str(theirs.value)
    agree(function, torch.randn(2, 9))


def test_errors_are_pytorchs() -> None:
    wrong = (
        lambda x: torch.cummax(x, 2), lambda x: torch.roll(x, 1, 5),
        lambda x: F.pixel_shuffle(x[None], 2), lambda x: torch.logaddexp(x, x[:, :2]),
        lambda x: F.max_pool2d(x[None], 9), lambda x: torch.kthvalue(x, 20, 1),
    )  # fmt: skip
    for function in wrong:
        with pytest.raises((RuntimeError, IndexError)) as theirs:
            function(torch.randn(3, 4))
        with tilevm.fuse(), pytest.raises((RuntimeError, IndexError)) as ours:
            function(torch.randn(3, 4) * 2)
        assert (type(ours.value), str(ours.value)) == (type(theirs.value), str(theirs.value))


def test_integers_divided_by_zero_raise_at_once() -> None:
    x = torch.arange(4)
    with tilevm.fuse():
        for function in (torch.fmod, torch.remainder, torch.floor_divide):
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                function(x, x)


@pytest.mark.parametrize("calls", [0, 3])
def test_from_which_call_on(calls: int, asked: list[str]) -> None:
    waits = []
    with tilevm.config.patch(templates=calls), tilevm.fuse():
        for i in range(5):
            x = torch.randn(5, 6, 7 + i)
            y = torch.cummin(x, 2)[0]
            waits.append(pending(y))
    assert waits == ([False] * 5 if calls == 0 else [False, False, True, True, True])
    assert len(asked) == (calls > 0)


_ONCE = """
import torch
import tilevm
from tilevm.frontends.torch_eager import pending

def waits(number):
    with tilevm.fuse():
        return pending(torch.nan_to_num(torch.randn(4, 5), number))

with tilevm.config.patch(templates=2):
    assert not any(waits(1 + i / 1024) for i in range(600))
    print([waits(0.5) for _ in range(3)])
"""


def test_kinds_that_come_once_take_no_place() -> None:
    """However many there are, one that comes again is asked for; of 64 in a process."""
    run = subprocess.run([sys.executable, "-c", _ONCE], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[False, True, True]"


def test_kinds_that_have_none_are_asked_for_once(asked: list[str]) -> None:
    for _ in range(3):
        agree(
            lambda x: torch.linalg.det(x @ x.mT + torch.eye(4)), torch.randn(3, 4, 4), exact=False
        )
    assert len(asked) == len(set(asked))


def test_gradients() -> None:
    def function(x: Any) -> Any:
        y = F.max_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 2)
        z = torch.logaddexp(y, -y).cumsum(-1) + F.avg_pool2d(x, 2, padding=1)[..., :1]
        torch.asinh(z).sum().backward()
        return x.grad

    agree(function, torch.randn(2, 3, 6, 7, requires_grad=True), exact=False)


class Models:
    """Of images, with what normalises batches."""

    @staticmethod
    def batches(*sizes: int) -> Iterator[Any]:
        torch.manual_seed(0)
        for n in sizes:
            yield torch.randn(n, 3, 6, 5)

    @staticmethod
    def net() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
            torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(8, 2),
        )  # fmt: skip


def test_batch_norms_track_statistics() -> None:
    """Their operator writes what its schema does not say."""

    def train(model: Any, batches: Any) -> list[Any]:
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        losses = []
        for x in batches:
            optimiser.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimiser.step()
            losses.append(loss)
        model.eval()
        return [*losses, model(torch.ones(2, 3, 6, 5)), *model.state_dict().values()]

    expected = train(Models.net(), Models.batches(4, 7, 5))
    with tilevm.fuse():
        found = train(Models.net(), Models.batches(4, 7, 5))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_statistics_read_before_a_batch_norm_are_those_before() -> None:
    def function(x: Any, mean: Any, var: Any) -> Any:
        before = mean + 1, var * 2
        y = F.batch_norm(x, mean, var, training=True)
        return (
            *before,
            y,
            mean * 2,
            F.batch_norm(x, mean, var),
            F.batch_norm(x, None, None, training=True),
        )

    given = torch.randn(4, 3, 5, 5), torch.zeros(3), torch.ones(3)
    for calls in (0, 1):
        with tilevm.config.patch(templates=calls):
            agree(function, *given, exact=False)
    last = given[0].to(memory_format=torch.channels_last)
    agree(function, last, *given[1:], exact=False)
    agree(function, *(x.double() for x in given), exact=False)
    agree(lambda x, m, v: function(x, m * 1, v * 1), *given, exact=False)  # that wait themselves


def test_threads_that_ask_at_once() -> None:
    results: list[Any] = []

    def run(seed: int) -> None:
        x = torch.randn(6, 7, generator=torch.Generator().manual_seed(seed))
        with tilevm.fuse():
            y = torch.logit(torch.sigmoid(x)).roll(seed, 1).cummin(0)[0]
        results.append((y, torch.logit(torch.sigmoid(x)).roll(seed, 1).cummin(0)[0]))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == len(threads)
    for found, expected in results:
        torch.testing.assert_close(found, expected)


def test_in_a_block_within_a_trace() -> None:
    """The thread that traces has PyTorch's lock of traces; who is asked needs none."""

    def constant() -> Any:
        with tilevm.fuse():
            return torch.arange(6.0).reshape(2, 3).sinh().roll(1, 1)

    apart: Any = torch.compiler.disable(constant)
    function: Any = torch.compile(lambda x: torch.sinh(x) + apart(), backend="eager")
    torch.testing.assert_close(function(torch.ones(2, 3)), torch.ones(2, 3).sinh() + constant())


def test_explain_names_what_stays() -> None:
    def function(x: Any) -> Any:
        with tilevm.fuse():
            return torch.linalg.det(x) + torch.sinh(x).sum()

    shown = str(tilevm.explain(function)(torch.randn(3, 3)))
    assert "linalg_det" in shown
    assert "sinh" not in shown


def test_operands_with_gaps() -> None:
    """Elements lie where they do, whatever is between."""
    wide = torch.randn(6, 9, 11)
    parts = wide[:, 1:6, ::2], wide[::2, :, 3:].transpose(0, 2), wide[:4, 2:7, 5]
    for part in parts:
        agree(lambda x: (x.cummax(0).values, torch.hypot(x, x + 1), x.flip(0)), part)
    line = torch.arange(40.0)[::2]
    agree(lambda x: torch.searchsorted(x, 7.5), line)
    spectrum = torch.view_as_complex(torch.randn(5, 6, 7, 2))[:, :3, :5]
    agree(lambda x: torch.fft.irfft2(x, (3, 8)), spectrum, exact=False)


def test_limits_of_elements() -> None:
    """Of a degree above what a program has steps for, PyTorch computes it."""
    function = torch.special.chebyshev_polynomial_t
    x = torch.linspace(-1, 1, 9)
    degrees = torch.arange(9.0)
    agree(function, x, degrees, exact=False)
    with tilevm.fuse():
        y = function(x, degrees)
        recorded(y)
        filled(function(x, degrees * 10), function(x, degrees + x * 0 + torch.ones(()) * 40))
    agree(lambda x, n: function(x, n * 2), x, degrees, exact=False)
    agree(function, x, torch.full((9,), float("nan")), exact=False)


def test_strides_of_convolutions_are_no_sizes() -> None:
    """Though they are as large as some: another size asks for no other program."""
    for rows in (9, 12, 15):
        agree(
            lambda x: F.conv3d(x, torch.ones(3, 1, 3, 1, 2), stride=(2, 1, 2), groups=3),
            torch.randn(rows - 6, 3, rows, 2, 6),
            exact=False,
        )
        x = torch.randn(3, rows, 5, 6)
        agree(lambda x: F.adaptive_avg_pool3d(x, (3, 2, 4)), x, exact=False)

"""Random numbers in compiled functions: eager's, and eager's generator behind them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tilevm  # noqa: E402
from tilevm.frontends import torch_random  # noqa: E402

pytestmark = pytest.mark.torch
recorder = pytest.importorskip("tilevm._recorder")

DRAWN: dict[str, Callable[[Any], Any]] = {
    "rand": lambda x: torch.rand(x.shape[0], 3) + x[:, :3],
    "rand of float64": lambda x: torch.rand(x.shape, dtype=torch.float64) * 2,
    "rand_like": lambda x: torch.rand_like(x) * x,
    "uniform_": lambda x: torch.empty_like(x).uniform_() + x,
    "uniform_ of float64": lambda x: torch.empty_like(x, dtype=torch.float64).uniform_(0, 3),
    "randint": lambda x: torch.randint(0, 10, x.shape) + torch.randint(5, (3, 1))[0],
    "randint of float32": lambda x: torch.randint(-7, 9, x.shape, dtype=torch.float32) * x,
    "randint_like": lambda x: torch.randint_like(x, -3, 1000),
    "uniform_ that rounds up": lambda x: torch.empty_like(x).uniform_(100, 100.0001),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli of float64": lambda x: torch.bernoulli(x.double().sigmoid()),
}
# Within units in the last place.
MADE: dict[str, Callable[[Any], Any]] = {
    "randn": lambda x: torch.randn(x.shape) * x,
    "randn_like": lambda x: torch.randn_like(x) + torch.randn(3)[:, None, None],
    "normal_": lambda x: torch.empty_like(x).normal_(3, 0.25),
    "normal": lambda x: torch.normal(2.0, 3.0, x.shape) + torch.normal(x, 0.5),
    "normal_ of float64": lambda x: torch.empty_like(x).double().normal_(3, 0.25),
    "log_normal_": lambda x: torch.empty_like(x).log_normal_(0.5, 0.25),
    "log_normal_ of float64": lambda x: torch.empty_like(x).double().log_normal_(),
    "exponential_": lambda x: torch.empty_like(x).exponential_(2.5),
    "cauchy_": lambda x: torch.empty_like(x).double().cauchy_(1, 2).atan(),
    "geometric_": lambda x: torch.empty_like(x).geometric_(0.3),
    "several": lambda x: torch.randn(3) + x.flatten()[:1].exponential_() + torch.randn(2, 1),
}
# PyTorch leaves these to MKL on some vendors' processors, whose numbers are others.
CHOSEN: dict[str, Callable[[Any], Any]] = {
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.3) + x,
    "bernoulli_ of int64": lambda x: torch.empty_like(x, dtype=torch.int64).bernoulli_(0.7),
    "dropout": lambda x: F.dropout(x * 2, 0.1) + 1,
    "dropout of bfloat16": lambda x: F.dropout(x.bfloat16(), 0.25),
    "several": lambda x: F.dropout(F.dropout(x, 0.1) * 2, 0.5) + torch.rand_like(x),
    "dropout of channels": lambda x: F.dropout2d(x[:, :, None, None].expand(-1, -1, 2, 3) + 0, 0.4),
    "nothing is kept": lambda x: F.dropout(x, 1.0),
    "everything is kept": lambda x: F.dropout(x, 0.0) + F.dropout(x, 0.5, training=False),
}


def drawn(function: Callable[[Any], Any], x: Any, before: int) -> Any:
    """The result, and the generator afterwards, when `before` words were drawn first."""
    torch.manual_seed(3)
    torch.rand(before)
    return function(x), torch.get_rng_state()


@pytest.mark.parametrize("name", [*DRAWN, *MADE, *CHOSEN])
def test_as_eager_draws(name: str) -> None:
    function = {**DRAWN, **MADE, **CHOSEN}[name]
    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    for rows in (4, 1, 700, 0, 33):
        x = torch.randn(rows, 8)
        for before in (0, 5, 623, 624):
            expected, left = drawn(function, x, before)
            found, ours = drawn(compiled, x, before)
            assert found.dtype == expected.dtype
            near = found.dtype is torch.bfloat16 or name in MADE
            torch.testing.assert_close(found, expected, **({} if near else {"rtol": 0, "atol": 0}))
            assert torch.equal(ours, left)
    if name in DRAWN or torch_random._is_eagers("bernoulli_.float"):
        assert not tilevm.stats()["callouts"]
    assert not tilevm.stats()["flushes"]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 255, 65537, (1 << 28) - 1])
def test_integers_from_all_words(count: int) -> None:
    """Quotients are estimated: every remainder is right, the first and the last ones too."""
    function = lambda x: torch.randint(-5, count - 5, x.shape)  # noqa: E731
    x = torch.empty(100_000)
    torch.testing.assert_close(drawn(tilevm.compile(function), x, 0), drawn(function, x, 0))


def test_between_other_bounds() -> None:
    """PyTorch's compiler may add with the product, or after it is rounded."""
    function = lambda x: torch.empty_like(x).uniform_(-2.5, 3.25)  # noqa: E731
    x = torch.empty(999)
    expected, left = drawn(function, x, 1)
    found, ours = drawn(tilevm.compile(function), x, 1)
    torch.testing.assert_close(found, expected)
    assert torch.equal(ours, left)


def test_gradients() -> None:
    tilevm.stats.reset()

    def function(x: Any) -> Any:
        return (F.dropout2d(F.dropout(x.exp(), 0.3), 0.5) * x).sum()

    compiled = tilevm.compile(function)
    results = []
    for run in (function, compiled):
        x = torch.linspace(-1, 1, 96).view(4, 3, 4, 2).requires_grad_()
        torch.manual_seed(5)
        run(x).backward()
        results.append((x.grad, torch.get_rng_state()))
    torch.testing.assert_close(results[1], results[0])
    stats = tilevm.stats()
    assert not stats["flushes"]
    if torch_random._is_eagers("bernoulli_.float"):
        assert not stats["callouts"]


def test_native_dropout() -> None:
    def function(x: Any) -> Any:
        first = torch.native_dropout(x, 0.4, True)
        return (*first, *torch.native_dropout(x + 1, 0.4, False), *torch.native_dropout(x, 1, None))

    compiled = tilevm.compile(function)
    for rows in (5, 0, 1):
        x = torch.randn(rows, 3)
        expected, left = drawn(function, x, 1)
        found, ours = drawn(compiled, x, 1)
        torch.testing.assert_close(found, expected)
        assert torch.equal(ours, left)


def test_torch_compile() -> None:
    def function(x: Any) -> Any:
        return F.dropout(x + 1, 0.4) * torch.rand_like(x)

    compiled = torch.compile(function, backend="tilevm", dynamic=True)
    for n in (5, 8):
        x = torch.ones(n, 3)
        expected, left = drawn(function, x, 2)
        found, ours = drawn(compiled, x, 2)
        torch.testing.assert_close(found, expected)
        assert torch.equal(ours, left)


def test_a_chance_that_is_none_is_eagers_error() -> None:
    compiled = tilevm.compile(lambda x: torch.bernoulli(x) * 2)
    compiled(torch.full((3,), 0.5))
    for bad in (1.5, -0.1, torch.nan):
        x = torch.tensor([0.5, bad, 0.2])
        with pytest.raises(RuntimeError, match="p"):
            compiled(x)


WRONG: dict[str, Callable[[Any], Any]] = {
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(1.5),
    "bernoulli_ of NaN": lambda x: torch.empty_like(x).bernoulli_(torch.nan),
    "dropout": lambda x: torch.dropout(x, 1.5, True),
    "dropout below 0": lambda x: torch.dropout(x, -0.1, True),
    "feature_dropout": lambda x: torch.feature_dropout(x, 1.5, True),
    "native_dropout": lambda x: torch.native_dropout(x, 1.5, True)[0],
    "uniform_": lambda x: torch.empty_like(x).uniform_(3, 1),
    "uniform_ from NaN": lambda x: torch.empty_like(x).uniform_(torch.nan, 1),
    "uniform_ to infinity": lambda x: torch.empty_like(x).uniform_(0, torch.inf),
    "uniform_ between huge ones": lambda x: torch.empty_like(x).uniform_(-3e38, 3e38),
    "randint": lambda x: torch.randint(5, 5, x.shape),
    "randint beyond uint8": lambda x: torch.randint(0, 300, x.shape, dtype=torch.uint8),
    "randint beyond bool": lambda x: torch.randint(0, 3, x.shape, dtype=torch.bool),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_eager_refuses(name: str) -> None:
    with pytest.raises(RuntimeError) as expected:
        WRONG[name](torch.ones(4, 5))
    with pytest.raises(RuntimeError) as found:
        tilevm.compile(WRONG[name])(torch.ones(4, 5))
    assert str(expected.value).partition("\n")[0] in str(found.value)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float16, torch.bfloat16])
def test_integers_up_to_what_a_dtype_has(dtype: Any) -> None:
    high = {torch.bool: 2, torch.uint8: 256, torch.float16: 2048, torch.bfloat16: 256}[dtype]
    function = lambda x: torch.randint(0, high, x.shape, dtype=dtype)  # noqa: E731
    x = torch.empty(5000)
    expected = drawn(function, x, 0)
    tilevm.stats.reset()
    torch.testing.assert_close(drawn(tilevm.compile(function), x, 0), expected)
    assert not tilevm.stats()["callouts"]


def test_other_ways_stay_pytorchs() -> None:
    """Another order of dims, types whose numbers are made otherwise, numbers of two words."""
    functions = {
        "aten.uniform.default": lambda x: torch.empty_like(x).bfloat16().uniform_(),
        "aten.normal_functional.default": lambda x: torch.empty_like(x).bfloat16().normal_(),
        "aten.exponential.default": lambda x: torch.empty_like(x).half().exponential_(2.0),
        "aten.rand.default": lambda x: torch.rand(x.shape, dtype=torch.float16),
        "aten.rand_like.default": lambda x: torch.rand_like(x.t()),
        "aten.randint.low": lambda x: torch.randint(0, 1 << 40, x.shape),
        "aten.randint_like.low_dtype": lambda x: torch.randint_like(x.half(), 0, 5000),
    }
    for name, function in functions.items():
        compiled = tilevm.compile(function)
        tilevm.stats.reset()
        x = torch.ones(6, 5)
        results = []
        for run in (function, compiled):
            torch.manual_seed(1)
            results.append(run(x))
        assert torch.equal(*results)
        assert [*tilevm.stats()["callouts"]] == [name]


def test_other_generators() -> None:
    generator = torch.Generator()
    function = lambda x: torch.empty_like(x).uniform_(generator=generator) + x  # noqa: E731
    results = []
    for run in (function, tilevm.compile(function)):
        generator.manual_seed(2)
        results.append((run(torch.ones(5)), run(torch.ones(3)), generator.get_state()))
    torch.testing.assert_close(results[1], results[0])


def test_where_eager_draws_otherwise_it_stays_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Recorder:
        def draws_as_eager(self, name: str) -> bool:
            return name != "uniform_"

    monkeypatch.setattr(torch_random, "_recorder", Recorder)
    assert not torch_random._is_eagers("uniform_")
    tilevm.stats.reset()
    tilevm.compile(lambda x: torch.rand_like(x))(torch.ones(3))
    assert tilevm.stats()["callouts"]


def test_captures_draw_nothing() -> None:
    """Not even when PyTorch imports modules that do: it has not in a process that is new."""
    program = (
        "import torch, tilevm\n"
        "f = tilevm.compile(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))\n"
        "before = torch.get_rng_state()\n"
        "f(torch.ones(3))\n"
        "assert tilevm.stats()['captures'] == 1\n"
        "print(torch.equal(torch.get_rng_state(), before))\n"
    )
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("True\n", 0), ran.stderr


def test_what_is_drawn_into() -> None:
    words = torch.empty(3, dtype=torch.int32)
    recorder.draw(words[:0], "words")
    for wrong in (torch.empty(3), torch.empty(4, 4, dtype=torch.int32).t()[1:]):
        with pytest.raises(ValueError, match="contiguous tensors of Int on the CPU with words"):
            recorder.draw(wrong, "words")
    for arguments in ((3, "words"), (words, "wards")):
        with pytest.raises(TypeError, match="takes a tensor and what to draw"):
            recorder.draw(*arguments)
    with pytest.raises(ValueError, match="no distribution zipf_"):
        recorder.draws_as_eager("zipf_")

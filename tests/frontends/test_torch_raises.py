"""Branches on data that end in an error: captured, and the error is raised as in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.raising import FUNCTIONS, LIMIT, SUBTLE  # noqa: E402

import tilevm  # noqa: E402

pytestmark = pytest.mark.torch


def outcome(function: Callable[[Any], Any], x: Any) -> tuple[Any, ...]:
    """The result or the error, what the argument is then, and the next random number."""
    torch.manual_seed(0)
    try:
        result = function(x)
    except (AssertionError, ValueError, RuntimeError) as error:
        text = str(error) if "condition" not in str(error) else "an assertion of PyTorch"
        return type(error), text, x, torch.rand(1)
    except ZeroDivisionError as error:
        return type(error), str(error), x, torch.rand(1)
    return result, "", x, torch.rand(1)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_branches_that_end_in_an_error_are_captured(function: Callable[[Any], Any]) -> None:
    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    for rows in (5, 9, 2, 30):
        x = torch.randn(rows, 3).clamp(-2, 2)
        found, expected = outcome(compiled, x.clone()), outcome(function, x.clone())
        assert found[1] == expected[1]
        torch.testing.assert_close((found[0], *found[2:]), (expected[0], *expected[2:]))
    assert tilevm.stats()["captures"] == 1
    assert not tilevm.stats()["flushes"]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_their_errors_are_those_of_eager_mode(function: Callable[[Any], Any]) -> None:
    compiled = tilevm.compile(function)
    for first, value in ((2.0, 9.0), (9.0, 2.0), (2.0, float("nan")), (1.0, 1.0), (9.0, 9.0)):
        for rows in (4, 1, 7):
            x = torch.randn(rows, 3).clamp(-2, 2)
            x[-1, 1], x[0, 0] = value, first
            found, expected = outcome(compiled, x.clone()), outcome(function, x.clone())
            assert found[1] == expected[1]
            if expected[1] or isinstance(expected[0], type):
                assert found[0] is expected[0]
            else:
                torch.testing.assert_close(found[0], expected[0], equal_nan=True)
            torch.testing.assert_close(found[2:], expected[2:], equal_nan=True)


@pytest.mark.parametrize("function", SUBTLE)
def test_numbers_are_those_that_python_computes_with(function: Callable[[Any], Any]) -> None:
    compiled = tilevm.compile(function)
    for value in (1.0, 9.0, float("nan"), 0.1, LIMIT, 0.0, float("inf"), -1.0, -float("inf"), 2.0):
        for rows in (2, 5):
            x = torch.full((rows, 3), value)
            found, expected = outcome(compiled, x.clone()), outcome(function, x.clone())
            assert found[1] == expected[1]
            if isinstance(expected[0], type):
                assert found[0] is expected[0]
            else:
                torch.testing.assert_close(found[0], expected[0], equal_nan=True)


def test_a_branch_that_does_not_end_in_an_error_stays_one() -> None:
    def function(x: Any) -> Any:
        if (x > LIMIT).any():
            return x * 0
        return x * 2

    compiled = tilevm.compile(function)
    for x in (torch.ones(3), torch.full((3,), 9.0), torch.ones(5)):
        torch.testing.assert_close(compiled(x), function(x))


@pytest.fixture
def validation() -> Iterator[None]:
    """That of arguments of distributions, which `torch.compile` turns off for the whole process."""
    kind = torch.distributions.Distribution
    before = kind._validate_args
    kind.set_default_validate_args(True)
    yield
    kind.set_default_validate_args(before)


def _distributions(x: Any) -> dict[str, Any]:
    d = torch.distributions
    return {
        "normal": d.Normal(x, x.exp()),
        "laplace": d.Laplace(x, 2.0),
        "categorical": d.Categorical(logits=x),
        "bernoulli": d.Bernoulli(logits=x),
        "gamma": d.Gamma(x.exp(), x.exp()),
        "independent": d.Independent(d.Normal(x, 1.0), 1),
        "mixture": d.MixtureSameFamily(d.Categorical(logits=x), d.Normal(x, 1.0)),
        "uniform": d.Uniform(x - 9, x + 9),
        "bent": d.TransformedDistribution(d.Normal(x, x.exp()), [d.ExpTransform()]),
    }


NAMES = [
    "normal", "laplace", "categorical", "bernoulli", "gamma", "independent", "mixture", "uniform",
    "bent",
]  # fmt: skip


@pytest.mark.usefixtures("validation")
@pytest.mark.parametrize("has_grad", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_distributions_check_what_they_are_given(name: str, has_grad: bool) -> None:
    def function(x: Any) -> Any:
        chosen = _distributions(x)[name]
        value = torch.ones_like(x[..., 0] if name in ("categorical", "mixture") else x)
        return chosen.log_prob(value), chosen.mean if name != "bent" else x

    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    with torch.set_grad_enabled(has_grad):
        for rows in (4, 9, 2):
            x = torch.randn(rows, 5)
            torch.testing.assert_close(compiled(x), function(x), equal_nan=True)
        assert tilevm.stats()["captures"] == 1
        assert not tilevm.stats()["flushes"] and not tilevm.stats()["callouts"]
        x[1, 2] = float("nan")
        with pytest.raises(ValueError, match="nan"):
            compiled(x)


DRAWS: dict[str, Callable[[Any], Any]] = {
    "normal": lambda x: torch.distributions.Normal(x, x.exp()).sample(),
    "reparametrised": lambda x: torch.distributions.Normal(x, x.exp()).rsample(),
    "dirichlet": lambda x: torch.distributions.Dirichlet(x.exp()).sample(),
    "binomial": lambda x: torch.distributions.Binomial(9, logits=x).sample(),
    "several": lambda x: torch.distributions.MultivariateNormal(x, torch.eye(5) + 0.5).sample(),
    "categorical": lambda x: torch.distributions.Categorical(logits=x).sample((3,)),
}


@pytest.mark.usefixtures("validation")
@pytest.mark.parametrize("name", DRAWS)
def test_draws_of_distributions(name: str) -> None:
    compiled = tilevm.compile(DRAWS[name])
    tilevm.stats.reset()
    for rows in (4, 9, 2):
        x = torch.randn(rows, 5)
        found = []
        for function in (compiled, DRAWS[name]):
            torch.manual_seed(rows)
            found.append((function(x), torch.rand(2)))
        torch.testing.assert_close(found[0], found[1])
    assert tilevm.stats()["captures"] == 1
    assert not tilevm.stats()["flushes"]


def test_deviations_below_zero() -> None:
    compiled = tilevm.compile(lambda mean, deviation: torch.normal(mean, deviation))
    mean, deviation = torch.zeros(3), torch.tensor([1.0, -1.0, 2.0])
    compiled(mean, deviation.abs())
    with pytest.raises(RuntimeError, match="std >= 0"):
        compiled(mean, deviation)
    found = []
    for function in (compiled, torch.normal):  # dtypes that differ
        torch.manual_seed(0)
        found.append(function(mean + 0.1, deviation.abs().double() / 3))
    assert torch.equal(*found)


@pytest.mark.usefixtures("validation")
def test_matrices_that_are_not_positive_definite() -> None:
    def function(x: Any, covariance: Any) -> Any:
        return torch.distributions.MultivariateNormal(x, covariance).log_prob(x * 2)

    compiled = tilevm.compile(function)
    x, good = torch.randn(4, 3), torch.eye(3) + 0.1
    torch.testing.assert_close(compiled(x, good), function(x, good))
    asymmetric = good + torch.arange(9.0).reshape(3, 3)
    for bad in (asymmetric, -good, good * float("nan"), good[:2]):
        with pytest.raises((ValueError, RuntimeError)) as expected:
            function(x, bad)
        with pytest.raises(type(expected.value)):
            compiled(x, bad)


def test_a_call_that_raises_first_leaves_others_to_be_captured() -> None:
    def f(x: Any) -> Any:
        if len(x) % 2:
            raise ValueError("odd")
        return x * 2

    compiled = tilevm.compile(f)
    tilevm.stats.reset()
    for n in (3, 5, 4, 6, 7, 8):
        if n % 2:
            with pytest.raises(ValueError, match="odd"):
                compiled(torch.ones(n))
        else:
            torch.testing.assert_close(compiled(torch.ones(n)), f(torch.ones(n)))
    assert tilevm.stats()["captures"] == 1
    for _ in range(20):  # of each of these, a trace would be a long way to the same error
        with pytest.raises(ValueError, match="odd"):
            compiled(torch.ones(9))
    assert sum(tilevm.stats()["flushes"].values()) == 23

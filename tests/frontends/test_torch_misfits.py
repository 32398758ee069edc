"""Arguments that do not fit, though PyTorch's metadata do not say so: eager code's errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilevm  # noqa: E402

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def fresh() -> None:
    tilevm.stats.reset()


def copies(args: Sequence[Any], gradients: bool) -> list[Any]:
    made = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
    if gradients:
        for x in made:
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                x.requires_grad_()
    return made


def outcome(function: Function, args: Sequence[Any], gradients: bool = False) -> Any:
    """What a call gives, or the name of its error."""
    given = copies(args, gradients)
    with torch.set_grad_enabled(gradients):
        try:
            result = function(*given)
        except (RuntimeError, IndexError) as error:
            return type(error).__name__
    return result.detach()


def check(
    compiled: Function, function: Function, args: Sequence[Any], gradients: bool = False
) -> bool:
    """Whether eager code takes them; a call does as it does."""
    want, got = (outcome(f, args, gradients) for f in (function, compiled))
    if isinstance(want, str):
        assert got == want
        return False
    torch.testing.assert_close(got, want, equal_nan=True)
    return True


# Results that cannot hold what is written -------------------------------------------------------

WRITES: dict[str, Function] = {
    "add": lambda x, y: x.add_(y),
    "add with alpha": lambda x, y: x.add_(y, alpha=2),
    "sub": lambda x, y: x.sub_(y),
    "mul": lambda x, y: x.mul_(y),
    "div": lambda x, y: x.div_(y),
    "addcmul": lambda x, y: x.addcmul_(y, y),
    "a number": lambda x, y: x.add_(2j).add_(y.real),
    "a part": lambda x, y: x[:, 1:].mul_(y[:, 1:]),
    "what the function makes": lambda x, y: (x * 2).add_(y),
    "out=": lambda x, y: torch.mul(x, y, out=torch.empty_like(x)),
}


@pytest.mark.parametrize("name", WRITES)
def test_complex_numbers_do_not_become_real_in_place(name: str) -> None:
    function = WRITES[name]
    compiled = tilevm.compile(function)
    for n, dtype in ((5, torch.float32), (1, torch.bfloat16), (0, torch.float32), (7, torch.int64)):
        x = torch.ones(n, 3)
        assert not check(compiled, function, [x.to(dtype), x * 1j])
        assert check(compiled, function, [x * 2j, x * 1j])
    assert tilevm.stats()["captures"] == 1


def test_nor_with_gradients() -> None:
    def function(x: Any, y: Any) -> Any:
        return (x * 2).add_(y * 1j)

    assert not check(tilevm.compile(function), function, [torch.ones(3), torch.ones(3)], True)


def test_an_error_that_is_caught() -> None:
    def function(x: Any, y: Any) -> Any:
        try:
            return x.add_(y)
        except RuntimeError:
            return x * 7

    check(tilevm.compile(function), function, [torch.ones(3), torch.ones(3) * 1j])


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_copies_of_complex_numbers_may_be_real() -> None:
    def function(x: Any, y: Any) -> Any:
        return (x * 2).copy_(y).add_(y.real)

    compiled = tilevm.compile(function)
    for n in (5, 1, 0, 7):
        assert check(compiled, function, [torch.ones(n, 3), torch.ones(n, 3) * (2 + 1j)])
    assert tilevm.stats()["captures"] == 1

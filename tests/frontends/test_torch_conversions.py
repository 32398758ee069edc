"""Python's conversions of sizes and of data, and indices from the end: captured once or twice."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import tilevm  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="code does not say what it calls"),
]

HALVES = {"of 15": 3}


def nested(x: Any) -> Any:
    rows = [int(n * 0.5) for n in (len(x), len(x) + 2)]
    until: Callable[[Any], Any] = lambda n: x[: int(n)] * float(n)  # noqa: E731
    return until(rows[0]), x[rows[1] :] + rows[1]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(7, 5)

    def keep(self, x: Any) -> int:
        return math.ceil(len(x) * 0.3)

    def forward(self, x: Any) -> Any:
        return self.linear(x)[: self.keep(x)].relu()


def own_len(x: Any) -> Any:
    def len(x: Any) -> int:  # as a function's own variable
        return 2

    return x * len(x)


def attention(x: Any) -> Any:
    x = x[None]
    return functional.scaled_dot_product_attention(x, x, x, scale=1 / math.sqrt(x.shape[-1]))


# Of sizes: a function of x, and how many captures sizes from 0 to 40 need at most.
OF_SIZES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "int of a float": (lambda x: x[: int(x.shape[0] * 0.5)] * 2, 1),
    "int of a root": (lambda x: x[: int(len(x) ** 0.5)] * 2, 1),
    "int": (lambda x: x * int(x.shape[0]), 1),
    "float": (lambda x: x / float(x.shape[0] + 1), 1),
    "len": (lambda x: x.reshape(len(x), 7) * len(x), 1),
    "len over two": (lambda x: x[: int(len(x) / 2)] * 2, 1),
    "ceil": (lambda x: x[: math.ceil(len(x) / 3)] * 2, 1),
    "round": (lambda x: x[: round(len(x) / 2)] * 2, 1),
    "sum": (lambda x: x * sum(int(n) for n in x.shape), 1),
    "nested": (nested, 1),
    "arange": (lambda x: torch.arange(len(x)) * 2 + 1, 1),
    "randperm": (lambda x: x[torch.randperm(len(x))].sort(0)[0], 1),
    "type of a size": (lambda x: x * (2 if type(x.shape[0]) is int else 3), 1),
    "type of a sum": (lambda x: x * (2 if isinstance(x.shape[0] + 1, int) else 3), 1),
    "type of a quotient": (lambda x: x * (2 if isinstance(len(x) / 2, float) else 3), 1),
    "other type": (lambda x: x * (2 if isinstance(len(x), str | float) else 3), 1),
    "type of a tensor": (lambda x: x * (2 if type(x) is torch.Tensor else 3), 1),
    "ints that Python makes": (
        lambda x: x * (int("3") + int("ff", 16) + int(2.5) + len([1, 2])),
        1,
    ),
    "its own function": (own_len, 1),
    "module": (Layer(), 1),
    "abs": (lambda x: x * abs(x.shape[0] - 20), 1),
    "divmod": (lambda x: x[: divmod(len(x), 3)[0]] * divmod(len(x), 3)[1], 1),
    "NumPy's root": (lambda x: x / np.sqrt(len(x) + 1), 1),
    "scale of attention": (attention, 2),
    "tensor of sizes": (lambda x: x * torch.tensor(x.shape).prod(), 1),
    "as_tensor": (lambda x: x * torch.as_tensor(len(x)) + torch.as_tensor([1, len(x)]).sum(), 1),
    "new_tensor": (lambda x: x.new_tensor([len(x), 0.5]) + 1, 1),
    "largest of all rows": (lambda x: functional.max_pool1d(x.T[None], len(x)) * 2, 2),
    "mean of all rows": (lambda x: functional.avg_pool1d(x.T, len(x)) * 2, 2),
    "largest of all": (lambda x: functional.max_pool2d(x[None], x.shape) * 2, 2),
    "mean of rows of a plane": (lambda x: functional.avg_pool2d(x[None], (len(x), 1)) * 2, 2),
    "negative half": (lambda x: x[-(x.shape[0] // 2) :] * 2, 3),
    "until a half from the end": (lambda x: x[..., : -(x.shape[-1] // 2)] * 2, 1),
    "minus 20": (lambda x: x[: x.shape[0] - 20] * 2, 3),
    "from minus 20": (lambda x: x[None, x.shape[0] - 20 :] * 2, 3),
}


@pytest.mark.parametrize("name", OF_SIZES)
def test_of_sizes(name: str) -> None:
    function, most = OF_SIZES[name]
    compiled = tilevm.compile(function)
    before = tilevm.stats()
    with torch.no_grad():
        for n in (15, 9, 40, 21, 20, 33, 2, 7, 1, 0):
            x = torch.randn(n, 7)
            found, wanted = (outcome(f, x) for f in (compiled, function))
            assert_equal(found, wanted)
    after = tilevm.stats()
    if wanted is not RuntimeError:  # of windows without elements
        assert after["flushes"] == before["flushes"]
    assert after["captures"] - before["captures"] <= most


def test_gradients_of_windows_as_long_as_their_dims() -> None:
    """The first of equal elements has it."""
    compiled = tilevm.compile(lambda x: functional.max_pool2d(x[None], x.shape)[0])
    for n in (3, 4, 5):
        x = torch.ones(n, 7).index_fill(0, torch.tensor([2]), 2.0).requires_grad_()
        wanted = functional.max_pool2d(x[None], x.shape).sum()
        found = compiled(x).sum()
        assert_equal(torch.autograd.grad(found, x), torch.autograd.grad(wanted, x))


def test_texts_of_sizes_are_of_numbers() -> None:
    """The text of a symbol is nothing that a function could look up."""
    functions: list[Callable[[Any], Any]] = [
        lambda x: x * HALVES.get(f"of {x.shape[0]}", 2),
        lambda x: x * (3 if str(len(x)) == "15" else 2),
        lambda x: x * (3 if f"{len(x):03d}" == "015" else 2),
        lambda x: x * (3 if repr(x.shape) == "torch.Size([15, 7])" else 2),
        lambda x: x * (3 if f"{x.shape[0] / 2}" == "7.5" else 2),
    ]
    for function in functions:
        compiled = tilevm.compile(function)
        for n in (9, 15, 16):
            x = torch.randn(n, 7)
            assert_equal(compiled(x), function(x))


# Of data: a function of x and k, and whether a call where k is negative may run eagerly.
OF_DATA: dict[str, tuple[Callable[[Any, Any], Any], bool]] = {
    "slice": (lambda x, k: x[: int(k)] * 2, True),
    "rest": (lambda x, k: x[int(k) :].sum(0), True),
    "last": (lambda x, k: x[-int(k) :] * 2, False),
    "all but the last": (lambda x, k: x[: -int(k)] * 2, False),
    "halves": (lambda x, k: x[: int(k) // 2] * 2, True),
    "from the end": (lambda x, k: x[: -(k.item() // 2)] * 2, False),
    "sum": (lambda x, k: x[: int((x[:, 0] > 0).sum())] * 2, False),
    "number": (lambda x, k: x * int(k), False),
    "of a dim": (lambda x, k: x * int(k[None]) + float(k[None, None]), False),
    "float": (lambda x, k: x / (float(k) + 0.5), False),
    "float of half": (lambda x, k: x / (float(k.half()) + 0.5), False),
    "bool": (lambda x, k: x * int(k > 2) + float(k > 3), False),
    "most": (lambda x, k: x[: int(k.abs().float().sqrt())] + 1, False),
    "arange": (lambda x, k: torch.arange(int(k.abs())) * 2, False),
    "largest": (lambda x, k: x * max(int(k), len(x)) + min(len(x), int(k), 5), False),
    "slice of most": (lambda x, k: x[: max(min(int(k), len(x)), 1)] * 2, False),
    "matches": (lambda x, k: torch.zeros(int(k), 7).copy_(x[: int(k)]) + 1, True),
    "pad": (lambda x, k: functional.pad(x, (0, int(k.abs()))), False),
    "mask": (lambda x, k: torch.arange(int(k.abs()))[None] < torch.tensor([[2], [4]]), False),
}


@pytest.mark.parametrize("name", OF_DATA)
def test_of_data(name: str) -> None:
    function, may_flush = OF_DATA[name]
    compiled = tilevm.compile(function)
    before = tilevm.stats()
    for n, k in ((15, 3), (9, 5), (21, 1), (8, 8), (9, 0), (9, 4)):
        x = torch.randn(n, 7)
        assert_equal(compiled(x, torch.tensor(k)), function(x, torch.tensor(k)))
    after = tilevm.stats()
    assert after["flushes"] == before["flushes"]
    assert after["captures"] - before["captures"] == 1
    for n, k in ((9, -1), (9, -2), (9, -4), (9, -30), (9, 20)):
        x = torch.randn(n, 7)
        found, wanted = (outcome(f, x, torch.tensor(k)) for f in (compiled, function))
        assert_equal(found, wanted)
    if not may_flush:
        assert tilevm.stats()["flushes"] == before["flushes"]


def test_floats_of_data_that_are_no_ints() -> None:
    compiled = tilevm.compile(lambda x, v: x * int(v))
    x = torch.randn(3)
    for value in (2.5, -2.5, 1e15):
        assert_equal(compiled(x, torch.tensor(value, dtype=torch.float64)), x * int(value))
    for value, error in ((math.nan, ValueError), (math.inf, OverflowError), (1e30, OverflowError)):
        with pytest.raises(error):
            compiled(x, torch.tensor(value))


def test_what_data_say_is_checked() -> None:
    """Where PyTorch raises, nothing is written, and nothing is returned."""

    def written(x: Any, k: Any) -> Any:
        x[: int(k)] = torch.arange(3.0)[:, None]
        return x * 2

    def counted(x: Any, k: Any) -> Any:
        return torch.arange(-3, int(k), 2)

    for function in (written, counted):
        compiled = tilevm.compile(function)
        for k in (3, 2, 5, 0, -1, -2, -3, -4, -5, 1):
            x, y = (torch.linspace(0, 1, 35).reshape(7, 5) for _ in range(2))
            found = outcome(compiled, x, torch.tensor(k))
            assert_equal(found, outcome(function, y, torch.tensor(k)))
            assert torch.equal(x, y)


def test_numbers_that_are_rounded_to_tens() -> None:
    compiled = tilevm.compile(
        lambda x: (x * round(len(x), -1), x + round(number=len(x), ndigits=-1))
    )
    for n in (33, 7, 2):
        x = torch.randn(n, 2)
        assert_equal(compiled(x), (x * round(n, -1), x + round(n, -1)))


def test_tensors_of_tensors_and_sizes() -> None:
    compiled = tilevm.compile(lambda x: torch.tensor([x.sum(), len(x)]))
    for n in (3, 4):
        x = torch.full((n,), 0.3)
        assert_equal(compiled(x), torch.tensor([x.sum(), n]))


@pytest.mark.parametrize("sizes", [(0, 3), (1, 2, 3, 4), (2, 0)], ids=str)
def test_windows_that_pytorch_refuses(sizes: tuple[int, ...]) -> None:
    def largest(x: Any) -> Any:
        return functional.max_pool1d(x, x.shape[-1])

    for dtype in (torch.float32, torch.int64):
        x = torch.ones(sizes, dtype=dtype)
        assert_equal(outcome(tilevm.compile(largest), x), outcome(largest, x))


def test_indices_from_the_end_by_numbers_of_the_call() -> None:
    def ends(x: Any, k: int) -> Any:
        x = x.clone()
        x[-k:, 1] = 5
        x[:, None, :-k] += 1
        return x[-k:], x[k:-k], x[torch.tensor([0, 1]), -k:]

    compiled = tilevm.compile(ends)
    before = tilevm.stats()["captures"]
    for n, k in ((15, 3), (9, 5), (21, 2), (6, 2), (33, 4), (3, 3), (2, 5), (5, 1)):
        x = torch.randn(n, 7)
        assert_equal(compiled(x, k), ends(x, k))
    assert tilevm.stats()["captures"] - before <= 3


def test_what_needs_plain_numbers_gets_them() -> None:
    """The size of the call, for which alone the capture holds."""
    functions: list[Callable[[Any], Any]] = [
        lambda x: x * len([0] * len(x)),
        lambda x: x * np.float32(len(x)),
        lambda x: torch.stack([x[i] * i for i in range(len(x))]),
    ]
    for function in functions:
        compiled = tilevm.compile(function)
        before = tilevm.stats()
        for n in (3, 4):
            x = torch.randn(n, 7)
            assert_equal(compiled(x), function(x))
        after = tilevm.stats()
        assert after["flushes"] == before["flushes"]
        assert after["captures"] - before["captures"] == 2


def test_code_is_as_before() -> None:
    def function(x: Any) -> Any:
        return x * len(x)

    code = function.__code__
    tilevm.compile(function)(torch.randn(3))
    assert function.__code__ is code

    def fails(x: Any) -> Any:
        raise KeyError(len(x))

    code = fails.__code__
    with pytest.raises(KeyError, match="3"):
        tilevm.compile(fails)(torch.randn(3))
    assert fails.__code__ is code


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        result = function(*args)
        return result + 0 if isinstance(result, torch.Tensor) else result
    except (RuntimeError, ValueError, IndexError) as error:
        return type(error)


def assert_equal(found: Any, wanted: Any) -> None:
    if isinstance(found, type) or isinstance(wanted, type):  # of errors
        assert found is wanted
    else:
        torch.testing.assert_close(found, wanted)

"""Wrong arguments raise eager's error, where eager raises it; then everything goes on."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tests.eager import compare  # noqa: E402
from tests.eager.compare import grid, same  # noqa: E402

import tilevm  # noqa: E402
from tilevm.frontends.torch_eager import pending  # noqa: E402

MOST = sys.maxsize
Function = Callable[..., Any]
# Functions of x [3, 4] of float32 and k [3, 4] of int64 that raise.
WRONG: dict[str, Function] = {
    "sizes": lambda x, k: x + torch.ones(5),
    "sizes of three": lambda x, k: torch.where(x > 0, x, torch.ones(7, 1, 2)),
    "sizes in place": lambda x, k: x.add_(torch.ones(2, 3, 4)),
    "sizes of in place, smaller": lambda x, k: x[0].add_(x),
    "matmul": lambda x, k: x @ x,
    "matmul of numbers": lambda x, k: x @ x.sum(),
    "mm": lambda x, k: torch.mm(x, x[0]),
    "bmm": lambda x, k: torch.bmm(x, x),
    "linear": lambda x, k: F.linear(x, torch.ones(3, 3)),
    "addmm": lambda x, k: torch.addmm(torch.ones(9), x, x.t()),
    "matmul of dtypes": lambda x, k: x @ x.double().t(),
    "linear of dtypes": lambda x, k: F.linear(x, x.bfloat16()),
    "axis": lambda x, k: x.sum(2),
    "axis, negative": lambda x, k: x.softmax(-3),
    "axis twice": lambda x, k: x.sum((0, -2)),
    "amax of nothing": lambda x, k: x[:0].amax(0),
    "argmax of nothing": lambda x, k: x[:0].argmax(),
    "mean of integers": lambda x, k: k.mean(),
    "softmax of integers": lambda x, k: k.softmax(-1),
    "bits of floats": lambda x, k: x & 1,
    "not of floats": lambda x, k: ~x,
    "minus of bools": lambda x, k: (x > 0) - (x > 1),
    "negative bool": lambda x, k: -(x > 0),
    "integers to a negative power": lambda x, k: k ** (-1),
    "integers divided in place": lambda x, k: k.div_(2),
    "floats into integers": lambda x, k: k.add_(0.5),
    "floats into integers, tensor": lambda x, k: k.add_(x),
    "out of a wrong dtype": lambda x, k: torch.add(x, x, out=k),
    "where of no bool": lambda x, k: torch.where(x, x, x),
    "masked_fill of no mask": lambda x, k: x.masked_fill(x, 1),
    "masked_fill of a wrong dtype": lambda x, k: k.masked_fill_(k > 0, torch.tensor([1, 2])),
    "view": lambda x, k: x.view(5, 2),
    "view of what is turned": lambda x, k: x.t().view(-1),
    "view of another dtype": lambda x, k: x.t().view(torch.float64),
    "reshape": lambda x, k: x.reshape(7, -1),
    "expand": lambda x, k: x.expand(3, 5),
    "permute": lambda x, k: x.permute(0, 0),
    "transpose": lambda x, k: x.transpose(0, 2),
    "unsqueeze": lambda x, k: x.unsqueeze(4),
    "select": lambda x, k: x[3],
    "select, negative": lambda x, k: x.select(0, -4),
    "too many indices": lambda x, k: x[0, 0, 0],
    "slice backwards": lambda x, k: x[::-1],
    "narrow": lambda x, k: x.narrow(0, 2, 2),
    "split": lambda x, k: x.split([1, 1]),
    "chunk": lambda x, k: x.chunk(0),
    "steps beyond": lambda x, k: x[::MOST],
    "steps beyond, as an operator": lambda x, k: torch.ops.aten.slice(x, 0, 0, 3, MOST),
    "chunks beyond": lambda x, k: x.chunk(MOST),
    "chunks beyond, as a function": lambda x, k: torch.chunk(x, MOST, 1),
    "a part beyond": lambda x, k: x.split([1, MOST]),
    "as many elements, modulo 2 ** 64": lambda x, k: x.view(4, 3 + 2**62),
    "cat": lambda x, k: torch.cat([x, torch.ones(3, 5)]),
    "cat of nothing": lambda x, k: torch.cat([]),
    "stack": lambda x, k: torch.stack([x, x[0]]),
    "layer_norm": lambda x, k: F.layer_norm(x, (5,)),
    "layer_norm, weights": lambda x, k: F.layer_norm(x, (4,), torch.ones(3)),
    "gather": lambda x, k: x.gather(0, k[0]),
    "gather of a wrong dtype": lambda x, k: x.gather(0, x),
    "index_select": lambda x, k: x.index_select(0, x[0]),
    "index by floats": lambda x, k: x[x],
    "index by too much": lambda x, k: x[x[:2] > 0],
    "embedding": lambda x, k: F.embedding(x, x),
    "clamp of nothing": lambda x, k: x.clamp(),
    "item of many": lambda x, k: x.item(),
    "bool of many": lambda x, k: bool(x),
    "iteration of a number": lambda x, k: list(x.sum()),
    "len of a number": lambda x, k: len(x.sum()),
    "index of a float": lambda x, k: range(x.sum()),
    "cross_entropy": lambda x, k: F.cross_entropy(x, k[0]),
    "grad of no number": lambda x, k: (x * 2).requires_grad_().mul(2).backward(),
    "grad of nothing": lambda x, k: x.sum().backward(),
    "numpy of a gradient": lambda x, k: x.requires_grad_().mul(2).numpy(),
    "argument": lambda x, k: torch.add(x, x, beta=2),
    "argument missing": lambda x, k: torch.where(x > 0, x, input=x, other=None),
    "a string": lambda x, k: x + "1",
    "None": lambda x, k: torch.exp(None),
    "device": lambda x, k: x + torch.ones(4, device="meta"),
    "resize of a shared": lambda x, k: x.requires_grad_().resize_(2),
    "copy_": lambda x, k: x.copy_(torch.ones(5)),
    "setitem": lambda x, k: x.__setitem__(0, torch.ones(5)),
    "setitem out of range": lambda x, k: x.__setitem__(5, 1.0),
    "dropout": lambda x, k: F.dropout(x, 1.5),
    "attention": lambda x, k: F.scaled_dot_product_attention(x[None], x[None, :, :3], x[None]),
    "lerp": lambda x, k: torch.lerp(x, x.double(), 0.5),
    "clone of an unknown format": lambda x, k: x.clone(memory_format=torch.channels_last),
    "maximum of a number": lambda x, k: torch.maximum(x, 2),
    "minimum of a number": lambda x, k: x.minimum(2.5),
    **{
        f"{name} of integers": lambda x, k, name=name: getattr(F, name)(k)
        for name in "silu mish hardswish hardsigmoid leaky_relu".split()
    },
    "silu of integers, in place": lambda x, k: F.silu(k, inplace=True),
    "threshold of bools": lambda x, k: F.threshold(k > 0, 1, 2),
    "addcdiv of integers": lambda x, k: torch.addcdiv(x, k, k + 1),
    "filled with a negative fraction": lambda x, k: k.to(torch.uint8).fill_(-1.5),
    "scatter of a negative fraction": lambda x, k: k.to(torch.uint8).scatter(0, k.long(), -1.5),
    "a choice of bools and a large number": lambda x, k: torch.where(k > 0, k > 1, 1e39),
    "clamp of bools by a large number": lambda x, k: (k > 0).clamp(min=1e39),
    "linspace to a large number": lambda x, k: torch.linspace(0, 1e39, 3),
    **{
        f"{name}, a number beyond the dtype": lambda x, k, f=f: f(k.to(torch.int8), 300)
        for name, f in {
            "masked_fill": lambda n, big: n.masked_fill(n > 0, big),
            "fill_": lambda n, big: n.fill_(big),
            "clamp": lambda n, big: n.clamp(0, big),
            "clamp_min": lambda n, big: n.clamp_min(big),
            "where": lambda n, big: torch.where(n > 0, n, big),
            "where, first": lambda n, big: torch.where(n > 0, big, n),
            "scatter": lambda n, big: n.scatter(0, n.long(), big),
            "threshold": lambda n, big: F.threshold(n, 1, big),
            "alpha": lambda n, big: torch.add(n, n, alpha=big),
            "alpha, method": lambda n, big: n.sub(n, alpha=-big),
            "pow": lambda n, big: n**big,
            "hardtanh": lambda n, big: F.hardtanh(n.half(), -1.0, big * 1e3),
            "lerp": lambda n, big: n.bfloat16().lerp(n.bfloat16(), big * 1e37),
        }.items()
    },
}
# These raise at the latest when somebody looks.
OUT_OF_RANGE: dict[str, Function] = {
    "index": lambda x, i: x[i],
    "index, negative": lambda x, i: x[-i - 1],
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "embedding": lambda x, i: F.embedding(i, x),
    "take": lambda x, i: x.take(i * 100),
    "setitem": lambda x, i: x.index_put((i,), torch.tensor(1.0)),
    "index_add": lambda x, i: x.index_add(0, i, x[: len(i)]),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "one_hot": lambda x, i: F.one_hot(i, 3),
    "nll_loss": lambda x, i: F.nll_loss(x[:2, :3], i),
}


def raised(function: Function, *arguments: Any) -> BaseException:
    with pytest.raises(Exception) as info:
        function(*arguments)
    return info.value


def told(error: BaseException) -> tuple[type, str]:
    """Type and message, without the stack of C++ that some builds add."""
    return type(error), str(error).partition("\nException raised from")[0]


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_eagers(name: str) -> None:
    """At the call, for what is given and for what is pending; nothing has happened to either."""
    function = WRONG[name]
    x, k = grid(), torch.arange(12).view(3, 4)
    expected = told(raised(function, x.clone(), k.clone()))
    with tilevm.fuse():
        assert told(raised(function, x.clone(), k.clone())) == expected
        given, indices = grid(), torch.arange(12).view(3, 4)
        assert told(raised(function, given, indices)) == expected
        y, n = x * 2, k + 0
        kept = y + 1
        expected = told(raised(function, x * 2, k + 0))
        assert told(raised(function, y, n)) == expected
        later = kept - y.detach()
        compare.recorded(later)
    same((kept, later), (x * 2 + 1, torch.ones(3, 4)))
    same((given.detach(), indices), (x, k))


def test_numbers_beyond_a_dtype_that_eager_takes() -> None:
    n = torch.arange(-6, 6).to(torch.int8)

    def function(n: Any) -> list[Any]:
        chosen = torch.where(n > 0, n, 300.5)
        low = F.threshold(n, 0.5, 2.5)  # of n's dtype
        return [n + 300, n * 300, n - 300.5, n > 300, chosen, low, n.half() * 1e9, n.bool() & True]

    compare.agree(function, n)


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_indices_out_of_range(name: str) -> None:
    function = OUT_OF_RANGE[name]
    x, i = grid(), torch.tensor([1, 3])
    kind, text = told(raised(function, x, i))
    with tilevm.fuse():
        kept = x * 2
        error = raised(lambda: function(x * 1, i + 0).tolist())
        # gather has a RuntimeError for it, in PyTorch.
        assert isinstance(error, (kind, IndexError)), f"{error!r}, eager's {text!r}"
        later = kept + 1
    same((kept, later), (grid() * 2, grid() * 2 + 1))


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_indices_out_of_range_behind_the_block(name: str) -> None:
    """What does not depend on it is right; what does, raises whenever it is looked at."""
    kept = []
    with pytest.raises((IndexError, RuntimeError)):
        with tilevm.fuse():
            kept.append(grid() + 1)
            wrong = OUT_OF_RANGE[name](grid() * 1, torch.tensor([1, 3]))
            kept.append(grid() + 2)
        compare.recorded(wrong)
        raised(wrong.tolist)
        wrong.tolist()
    for n, x in enumerate(kept):
        same(x, grid() + n + 1)


def test_division_by_zero_of_integers() -> None:
    with tilevm.fuse():
        k = torch.arange(3) * 1
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            (7 // k).tolist()
        assert (k // 2).tolist() == [0, 0, 1]


@pytest.mark.parametrize("name", ["var", "std", "var_mean"])
def test_no_degrees_of_freedom_are_warned_of(name: str) -> None:
    function = getattr(torch, name)
    for x, by in ((torch.ones(1, 4), 1), (torch.ones(3, 4), 3), (torch.ones(3, 0), 0)):
        for _ in range(2):
            with (
                pytest.warns(UserWarning, match=rf"{name}\(\): degrees of freedom is <= 0"),
                tilevm.fuse(),
            ):
                function(x * 2, 0, correction=by)
    with warnings.catch_warnings(), tilevm.fuse():
        warnings.simplefilter("error")
        assert pending(torch.var(torch.ones(1, 4) * 2, 0, correction=0))


def test_errors_name_the_line() -> None:
    """The traceback of an error of sizes ends where the operator is called."""
    with tilevm.fuse():
        error = raised(lambda: (grid() * 2) + torch.ones(5))
    trace = error.__traceback__
    names = []
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert names[-1] == "<lambda>"

"""Writing in place: to what is pending, to views of it, to tensors that recorded operators read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tests.eager import compare  # noqa: E402
from tests.eager.compare import agree, grid, same  # noqa: E402
from torch import nn  # noqa: E402

import tilevm  # noqa: E402

Function = Callable[..., Any]
# Each writes into x [3, 4] of float32; y is like it.
WRITES: dict[str, Function] = {
    "add_": lambda x, y: x.add_(y),
    "add_, number": lambda x, y: x.add_(1),
    "sub_": lambda x, y: x.sub_(y, alpha=2),
    "mul_": lambda x, y: x.mul_(y),
    "div_": lambda x, y: x.div_(4),
    "+=": lambda x, y: x.__iadd__(y),
    "pow_": lambda x, y: x.pow_(2),
    "relu_": lambda x, y: x.relu_(),
    "F.relu": lambda x, y: F.relu(x, inplace=True),
    "clamp_": lambda x, y: x.clamp_(-1, 2),
    "neg_": lambda x, y: x.neg_(),
    "abs_": lambda x, y: x.abs_(),
    "copy_": lambda x, y: x.copy_(y),
    "copy_, broadcast": lambda x, y: x.copy_(y[0]),
    "copy_, other dtype": lambda x, y: x.copy_(y.long()),
    "copy_ of itself": lambda x, y: x.copy_(x),
    "fill_": lambda x, y: x.fill_(7),
    "fill_, tensor": lambda x, y: x.fill_(y[1, 1]),
    "zero_": lambda x, y: x.zero_(),
    "masked_fill_": lambda x, y: x.masked_fill_(y > 0, -1.0),
    "where, out": lambda x, y: torch.where(y > 0, y, y * 2, out=x),
    "out": lambda x, y: torch.add(y, y, out=x),
    "out of a product": lambda x, y: torch.mm(y, torch.eye(4), out=x),
    "out is an operand": lambda x, y: torch.mul(x, y, out=x),
    "setitem": lambda x, y: x.__setitem__(1, 5.0),
    "setitem, tensor": lambda x, y: x.__setitem__((slice(None), 2), y[:, 0]),
    "setitem, all": lambda x, y: x.__setitem__(..., y),
    "setitem, mask": lambda x, y: x.__setitem__(y > 0, 0.5),
    "setitem, indices": lambda x, y: x.__setitem__(torch.tensor([2, 0]), y[:2]),
    "index_put_": lambda x, y: x.index_put_((torch.tensor([0, 0]),), y[:2], accumulate=True),
    "index_add_": lambda x, y: x.index_add_(0, torch.tensor([1, 1]), y[:2]),
    "scatter_": lambda x, y: x.scatter_(1, torch.zeros(3, 1, dtype=torch.int64), 9.0),
    "addcmul_": lambda x, y: x.addcmul_(y, y, value=0.5),
    "lerp_": lambda x, y: x.lerp_(y, 0.5),
    "view, add_": lambda x, y: x.view(-1).add_(1),
    "t, mul_": lambda x, y: x.t().mul_(2),
    "row, fill_": lambda x, y: x[0].fill_(3),
    "column, copy_": lambda x, y: x[:, 1].copy_(y[:, 2]),
    "overlapping parts": lambda x, y: x[:, 1:].add_(x[:, :-1].clone()),
    "diagonal": lambda x, y: x.diagonal().zero_(),
    "unbind": lambda x, y: [row.mul_(i) for i, row in enumerate(x.unbind(0))],
    "split": lambda x, y: x.split(2, 1)[1].zero_(),
    "detach": lambda x, y: x.detach().add_(1),
    "data": lambda x, y: x.data.mul_(2),
    "data is set": lambda x, y: setattr(x, "data", y * 2),
    "set_": lambda x, y: x.set_(y + 1),
    "resize_": lambda x, y: x.resize_(2, 3),
    "resize_ from nothing": lambda x, y: x.resize_(0).resize_(3, 4).copy_(y),
    "t_": lambda x, y: x.t_(),
    "unsqueeze_": lambda x, y: x.unsqueeze_(0),
    "requires_grad_": lambda x, y: x.requires_grad_(),
    "foreach": lambda x, y: torch._foreach_add_([x, x.clone()], [y, y]),
    "foreach, number": lambda x, y: torch._foreach_mul_([x], 3.0),
    "cumsum_": lambda x, y: x.cumsum_(0),
    "sort, out": lambda x, y: torch.sort(y, out=(x, torch.empty(0, dtype=torch.int64)))[0],
    "bernoulli_": lambda x, y: x.bernoulli_(0.5),
    "normal_": lambda x, y: x.normal_(),
    "init": lambda x, y: nn.init.xavier_uniform_(x),
    "twice": lambda x, y: x.add_(y).mul_(2).sub_(y),
    "NumPy": lambda x, y: np.multiply(x.numpy(), 2, out=x.numpy()).shape,
    "address": lambda x, y: torch.from_dlpack(x).fill_(4),
}
MADE: dict[str, Function] = {
    "given": lambda x: x,
    "pending": lambda x: x + 1,
    "a view of what is pending": lambda x: (x.repeat(1, 2) + 1)[:, ::2],
    "a view of what is given": lambda x: x.view(3, 2, 2).view(3, 4),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("made", MADE)
def test_writes(made: str, write: str) -> None:
    """Values computed from x before the write keep what they saw; views and later ones see it."""

    def function(given: Any, y: Any) -> Any:
        x = MADE[made](given)
        before, view = x * 2 + y, x[1:]
        WRITES[write](x, y)
        after = x + 0.5
        return x, before, view, after, x._version, view._version

    agree(function, grid() + 1, grid().flip(1))


@pytest.mark.parametrize("write", WRITES)
def test_writes_of_what_is_pending(write: str) -> None:
    def function(x: Any, y: Any) -> Any:
        before = x * 1
        WRITES[write](x, y * 2)
        return before, x

    agree(function, grid() + 1, grid().flip(1))


def test_writes_stay_recorded() -> None:
    with tilevm.fuse():
        x = grid() * 2
        y = x.t()
        x.add_(1)
        compare.recorded(x, y)
        x[0] = 7.0
        compare.recorded(x)
        x[1].copy_(x[2])
        y.mul_(2)
        z = x + y.t()
        assert x._version == y._version == 4
    e = grid() * 2
    e.add_(1)
    e[0] = 7.0
    e[1].copy_(e[2])
    e.mul_(2)
    same((x.tolist(), z.tolist()), (e.tolist(), (e + e).tolist()))


def test_writing_to_an_input_after_it_was_read() -> None:
    """What was recorded reads the values from before, whichever way the write takes."""

    def function(x: Any) -> Any:
        a = x + 1
        x.add_(10)
        b = x + 1
        x.t().fill_(2)
        c = x + 1
        x.data.zero_()
        d = x + 1
        with torch.no_grad():
            x[0] = 3
        return a, b, c, d, x

    agree(function, grid())


def test_writing_through_another_view_of_an_input() -> None:
    base = grid(4, 6)

    def function(base: Any) -> Any:
        left, right = base[:, :3], base[:, 2:]
        a = left * 2
        right.add_(100)
        b = left * 2
        base.view(-1)[::5] = -1
        return a, b, left + 0, right + 0, base

    agree(function, base)


def test_inputs_are_written_when_the_block_ends() -> None:
    """Memory of a tensor that is not ours to hold back is right behind the block, for anyone."""
    x = grid()
    array = x.numpy()
    with tilevm.fuse():
        x.mul_(2).add_(1)
    np.testing.assert_array_equal(array, (grid() * 2 + 1).numpy())


def test_inputs_are_written_before_others_read_them() -> None:
    x = grid()
    with tilevm.fuse():
        x.mul_(2)
        assert x.sort().values.tolist() == (grid() * 2).sort().values.tolist()
        x.add_(1)
        assert x.numpy().tolist() == (grid() * 2 + 1).tolist()
        x.add_(1)
        assert x.untyped_storage().tolist() == (grid() * 2 + 2).untyped_storage().tolist()


def test_an_exception_does_not_lose_writes() -> None:
    x = grid()
    with pytest.raises(RuntimeError), tilevm.fuse():
        x.add_(1)
        x.add_(torch.ones(7))
    same(x.tolist(), (grid() + 1).tolist())


def test_an_input_that_dies_before_the_look() -> None:
    with tilevm.fuse():
        x = grid()
        y = x + 1
        del x
        junk = [torch.full((3, 4), 9.0) for _ in range(20)]
    same(y, grid() + 1)
    del junk


def test_chains_of_writes() -> None:
    """As optimisers, running statistics and caches are written."""

    def function(x: Any, total: Any, cache: Any) -> Any:
        for i in range(7):
            total.mul_(0.9).add_(x * i, alpha=0.1)
            cache[i % 3] = total.sum(0)
            cache[:, i % 4].add_(1)
        return total, cache, cache.sum(0)

    agree(function, grid(), torch.zeros(3, 4), torch.zeros(3, 4), exact=False)


def test_one_storage_many_views() -> None:
    def function(x: Any) -> Any:
        y = x * 1
        views = [y, y.t(), y[1], y[:, 1:3], y.view(2, 6), y.as_strided((5,), (2,), 1), y.detach()]
        for i, view in enumerate(views):
            view.add_(i)
            view.mul_(-1)
        return views

    agree(function, grid())


def test_buffers_of_modules() -> None:
    def function(module: Any, x: Any) -> Any:
        for _ in range(3):
            x = module(x)
        return x, *module.buffers()

    for module in (nn.BatchNorm1d(4), nn.BatchNorm1d(4, momentum=None), nn.BatchNorm1d(4).eval()):
        agree(function, module, grid() / 4, exact=False)


def test_expanded_targets_raise() -> None:
    with tilevm.fuse():
        x = (grid() + 1)[:, :1].expand(3, 5)
        with pytest.raises(RuntimeError, match="single memory location"):
            x.add_(1)


def test_a_copy_of_what_was_read_is_made_at_once() -> None:
    """An operator that is made of others may look at memory without asking anybody."""

    def function(x: Any) -> Any:
        at = torch.tensor([1, 2, 4])
        later = at + 1
        return torch.tensor_split(x, torch.empty(3, dtype=torch.int64).copy_(at), 1), later

    agree(function, grid())


def test_what_fails_beside_a_write_does_not_repeat_it() -> None:
    x, table = torch.ones(3), torch.ones(4, 3)
    with tilevm.fuse():
        x.add_(1)
        lost = F.embedding(torch.tensor([1, 9]), table)
        x.mul_(3)
        with pytest.raises(IndexError):
            lost.sum().item()
    assert x.tolist() == [6, 6, 6]


def test_writes_that_overlap_keep_their_order() -> None:
    def function(x: Any, y: Any) -> Any:
        x[1:].add_(y[1:])
        x[:2].mul_(y[:2])
        x.view(-1)[3:9].copy_(y.view(-1)[:6] * 2)
        x[:, 1::2].neg_()
        return x, y

    agree(function, grid(), grid() + 1)


def test_what_was_read_before_is_not_overwritten() -> None:
    def function(x: Any, y: Any) -> Any:
        product = x @ y.t()
        turned = x.t() + 1
        x.add_(y)
        y.copy_(x.flip(1))
        return x, y, product, turned, x.softmax(-1) + product.sum()

    agree(function, grid(), grid() + 1, exact=False)


def test_many_tensors() -> None:
    """As optimisers write them, more than a segment takes."""

    def function(tensors: Any) -> Any:
        for x, m in zip(tensors[::2], tensors[1::2], strict=True):
            m.lerp_(x, 0.1)
            x.addcmul_(m, m, value=-0.5)
        return tensors

    agree(function, [grid() + i for i in range(700)], exact=False)


def test_memory_that_is_shared_until_written() -> None:
    def function(x: Any) -> Any:
        y = torch._lazy_clone(x)
        y.add_(1)
        return x, y * 2, y

    agree(function, grid())


def test_what_waits_becomes_another_view() -> None:
    def turned(x: Any) -> Any:
        y = x * 2
        z = y.view(-1)
        y.unsqueeze_(1).transpose_(0, 1)
        y += 1
        y.squeeze_(0).t_()
        y[0] = 5
        w = (x + 1)[None].squeeze_()
        return y, z, y.contiguous() * 3, w.unsqueeze_(-1).squeeze_(-1)

    for sizes in ((3, 4), (1, 5), (1, 1), (0, 3)):
        agree(turned, torch.randn(sizes))
    with tilevm.fuse():
        y = (torch.randn(3, 4) * 2).t_().unsqueeze_(0)
        compare.recorded(y)
        assert y.sum(-1).shape == (1, 4)

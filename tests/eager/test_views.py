"""Which tensors share memory, and how they lie in it, is as in eager code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.eager import compare  # noqa: E402
from tests.eager.compare import agree, grid, same  # noqa: E402

import tilevm  # noqa: E402

Function = Callable[..., Any]
# Functions of what is pending; which of these are views, and which copies, depends on strides.
MAYBE_VIEWS: dict[str, Function] = {
    "contiguous": lambda x: x.contiguous(),
    "contiguous, transposed": lambda x: x.t().contiguous(),
    "contiguous, one row": lambda x: x[:1].t().contiguous(),
    "reshape": lambda x: x.reshape(2, 6),
    "reshape, transposed": lambda x: x.t().reshape(2, 6),
    "flatten, transposed": lambda x: x.t().flatten(),
    "ravel": lambda x: x.ravel(),
    "to, same dtype": lambda x: x.to(torch.float32),
    "to, other dtype": lambda x: x.to(torch.float64),
    "to, copied": lambda x: x.to(torch.float32, copy=True),
    "float": lambda x: x.float(),
    "type_as": lambda x: x.type_as(torch.ones(1)),
    "expand": lambda x: x.expand(2, 3, 4),
    "expand_as": lambda x: x[0].expand_as(x),
    "broadcast_to": lambda x: torch.broadcast_to(x[:, :1], (3, 4)),
    "repeat": lambda x: x.repeat(2, 1),
    "repeat, once": lambda x: x.repeat(1, 1),
    "positive": lambda x: +x,
    "real": lambda x: x.real,
    "atleast_3d": lambda x: torch.atleast_3d(x),
    "meshgrid": lambda x: torch.meshgrid(x[0], x[:, 0], indexing="ij"),
    "movedim": lambda x: x.movedim(0, 1),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "diagonal": lambda x: x.diagonal(1),
    "tensor_split": lambda x: x.tensor_split(3, 1),
    "hsplit": lambda x: x.hsplit(2),
    "view_as": lambda x: x.view_as(x),
    "view, other dtype": lambda x: x.view(torch.int32),
    "view, narrower dtype": lambda x: x.view(torch.int16),
    "squeeze": lambda x: x[None, :, None].squeeze(),
    "squeeze of nothing": lambda x: x.squeeze(0),
    "index": lambda x: x[1:, None, ::2],
    "index, list": lambda x: x[[0, 2]],
    "index, number": lambda x: x[-1, -1],
    "clone": lambda x: x.clone(),
    "clone, transposed": lambda x: x.t().clone(),
    "clone, contiguous": lambda x: x.t().clone(memory_format=torch.contiguous_format),
    "clone of an expanded": lambda x: x[:, :1].expand(3, 5).clone(),
    "dropout, evaluated": lambda x: torch.nn.functional.dropout(x, 0.5, training=False),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
    "identity": torch.nn.Identity(),
    "detach": lambda x: x.detach(),
    "alias": torch.ops.aten.alias,
    "sum of no axis": lambda x: x[:1].sum(0),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "cat of one": lambda x: torch.cat([x]),
    "where": lambda x: torch.where(x > 0, x, x.t().reshape(3, 4)),
}


@pytest.mark.parametrize("name", MAYBE_VIEWS)
def test_memory_is_as_in_eager(name: str) -> None:
    def function(x: Any) -> Any:
        y = x + 1
        z = MAYBE_VIEWS[name](y)
        return y, z

    found = compare.tensors_in(agree(function, grid()))
    torch.manual_seed(0)
    expected = compare.tensors_in(function(grid()))
    for x in (found, expected):
        x[0].view(-1)[:5] = 50
    same(found, expected)


# Strides of results, for operands as they lie in memory.
OPERANDS: dict[str, Function] = {
    "dense": lambda: torch.rand(2, 3, 4, 5),
    "transposed": lambda: torch.rand(5, 4, 3, 2).permute(3, 2, 1, 0),
    "channels last": lambda: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "every other": lambda: torch.rand(2, 3, 4, 10)[..., ::2],
    "every other, turned": lambda: torch.rand(4, 6, 10, 2)[::2, ::2, ::2].permute(3, 1, 0, 2),
    "expanded": lambda: torch.rand(2, 1, 4, 1).expand(2, 3, 4, 5),
    "ones": lambda: torch.rand(1, 3, 1, 5),
    "ones with odd strides": lambda: torch.rand(60).as_strided((1, 3, 1, 5), (7, 5, 9, 1)),
    "empty": lambda: torch.rand(2, 0, 4, 5),
    "empty, turned": lambda: torch.rand(5, 0, 4, 2).permute(3, 1, 2, 0),
    "vector": lambda: torch.rand(5),
    "number": lambda: torch.rand(()),
}
SHAPED: dict[str, Function] = {
    "unary": lambda x: x.exp(),
    "cast": lambda x: x.double(),
    "compare": lambda x: x > 0.5,
    "with a number": lambda x: x * 2,
    "with a vector": lambda x: x + torch.ones(5),
    "with a column": lambda x: x + torch.ones(4, 1),
    "with dense": lambda x: x + torch.ones(2, 3, 4, 5),
    "dense first": lambda x: torch.ones(2, 3, 4, 5) + x,
    "where": lambda x: torch.where(x > 0.5, x, 0.0),
    "softmax": lambda x: x.softmax(-1),
    "sum": lambda x: x.sum(-1),
    "sum of two": lambda x: x.sum((0, -1), keepdim=True),
    "amax": lambda x: x.amax(0),
    "argmax": lambda x: x.argmax(0),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous(),
    "zeros_like": torch.zeros_like,
    "cat": lambda x: torch.cat([x, x], -1),
    "stack": lambda x: torch.stack([x, x]),
    "select": lambda x: x.select(0, 0) + 1,
    "gather": lambda x: x.gather(0, torch.zeros_like(x, dtype=torch.int64)),
    "index_select": lambda x: x.index_select(0, torch.tensor([0])),
    "addcmul": lambda x: torch.addcmul(x, x, x),
    "masked_fill": lambda x: x.masked_fill(x > 0.5, 0),
    "relu of a sum": lambda x: torch.relu(x + x.t() if x.ndim < 3 else x + x.transpose(0, 0)),
    "flip": lambda x: x.flip(0),
    "matmul": lambda x: x @ torch.ones(5, 2),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
}


@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("name", SHAPED)
def test_strides_are_eagers(name: str, operand: str) -> None:
    """Also where the operand is pending: of whatever strides it then has."""
    x = OPERANDS[operand]()
    try:
        SHAPED[name](x)
    except (RuntimeError, IndexError):
        with tilevm.fuse(), pytest.raises((RuntimeError, IndexError)):
            SHAPED[name](x)
        return

    def function(x: Any) -> Any:
        first = SHAPED[name](x)
        return first, SHAPED[name](x * 0.5 + 0.25), first.t() if first.ndim == 2 else first[None]

    agree(function, x, exact=False)


def test_channels_last_stays() -> None:
    with tilevm.fuse():
        x = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
        y = torch.relu(x * 2) + 1
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert not y.is_contiguous()


def test_a_view_outlives_its_base() -> None:
    with tilevm.fuse():
        x = grid() * 2
        y = x[1:].t()
        del x
    same(y.tolist(), (grid() * 2)[1:].t().tolist())
    assert y.untyped_storage().nbytes() == 48


def test_bases_are_known() -> None:
    with tilevm.fuse():
        x = grid() + 1
        y = x.t()[1]
        assert y._base is x
        assert y.detach()._base is None or y.detach()._base is x.detach()._base
        assert x.is_set_to(x.view(3, 4))
        assert y.data_ptr() - x.data_ptr() == 4
        assert x.data_ptr() == x.detach().data_ptr() == x.data.data_ptr()


def test_memory_stays_where_it_is() -> None:
    """An address once given stays valid, and later writes land there."""
    with tilevm.fuse():
        x = grid() + 1
        address = x.data_ptr()
        array = x.numpy()
        x.mul_(2)
        x[0] += 1
        y = x + 1
        assert x.data_ptr() == address
        assert array.tolist() == x.tolist()
        assert y.tolist() == (torch.from_numpy(array) + 1).tolist()


def test_writes_through_an_array_are_seen() -> None:
    """An array of what was filled inside the block is its memory; so is one of an input."""
    with tilevm.fuse():
        x = grid() + 1
        array = x.numpy()
        array[:] = 3
        y = x * 2
        y.tolist()
        array[:] = 4
        z = x * 2
        assert z.tolist() == [[8.0] * 4] * 3
    assert y.tolist() == [[6.0] * 4] * 3

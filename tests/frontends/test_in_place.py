"""What a function changes is made where it lies, if nothing is lost by that."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilevm

Tensor = torch.Tensor
CASES: dict[str, Callable[..., Any]] = {}


def case(function: Callable[..., Any]) -> Callable[..., Any]:
    CASES[function.__name__] = function
    return function


@case
def momentum(x: Tensor, m: Tensor, y: Tensor) -> Any:
    m.mul_(0.9).add_(y)
    x.sub_(m * 0.1)


@case
def swapped(x: Tensor, m: Tensor, y: Tensor) -> Any:
    old = x.clone()
    x.copy_(m)
    m.copy_(old)


@case
def shifted(x: Tensor, m: Tensor, y: Tensor) -> Any:
    x[1:].copy_(x[:-1].clone())


@case
def reversed_rows(x: Tensor, m: Tensor, y: Tensor) -> Any:
    x.copy_(x.flip(0))


@case
def read_later(x: Tensor, m: Tensor, y: Tensor) -> Any:
    before = x @ m.t()
    x.add_(1)
    return before, x.sum()


@case
def old_and_new(x: Tensor, m: Tensor, y: Tensor) -> Any:
    old = x + 0
    x.add_(y)
    return old * 2, x * 2


@case
def normalised(x: Tensor, m: Tensor, y: Tensor) -> Any:
    x.copy_(torch.softmax(x, -1))
    m.sub_(m.mean(-1, keepdim=True))


@case
def broadcast_source(x: Tensor, m: Tensor, y: Tensor) -> Any:
    x.add_(x[:1].clone())
    m.mul_(m.sum())


@case
def only_written(x: Tensor, m: Tensor, y: Tensor) -> Any:
    x.copy_(y.exp())
    m.zero_()


@case
def twice_the_same(x: Tensor, m: Tensor, y: Tensor) -> Any:
    z = x * 3
    x.copy_(z)
    m.copy_(z)
    return z


@case
def views_returned(x: Tensor, m: Tensor, y: Tensor) -> Any:
    x.mul_(2)
    return x[1:], x.t()


@case
def narrower(x: Tensor, m: Tensor, y: Tensor) -> Any:
    x.copy_(y.to(torch.bfloat16))


@case
def products(x: Tensor, m: Tensor, y: Tensor) -> Any:
    x.add_(x @ (m.t() @ y))


def tensors(layout: str, rows: int, columns: int, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(3)
    made = []
    for _ in range(3):
        whole = torch.randn(2 * columns + 1, rows + 1).to(dtype)
        if layout == "dense":
            made.append(whole[:columns, :rows].t().contiguous())
        elif layout == "transposed":
            made.append(whole[:columns, :rows].contiguous().t())
        else:
            made.append(whole.t()[:rows, 1 : 2 * columns : 2])
    return made


def agree(found: Any, wanted: Any, rounding: float, told: str) -> None:
    torch.testing.assert_close(
        found, wanted, rtol=rounding, atol=rounding, msg=lambda m: f"{told}: {m}"
    )


@pytest.mark.parametrize("tier", ["auto", "interp"])
@pytest.mark.parametrize("name", list(CASES))
def test_as_eager(name: str, tier: str) -> None:
    function = CASES[name]
    kinds = [("strided", torch.float32)]
    if tier == "auto":
        kinds += [("dense", torch.float32), ("transposed", torch.float32)]
        kinds += [("dense", torch.bfloat16)]
    sizes = ((5, 7), (1, 3), (33, 64), (0, 4))
    compiled = tilevm.compile(function, tier=tier)
    for (layout, dtype), (rows, columns) in itertools.product(kinds, sizes):
        ours, theirs = (tensors(layout, rows, columns, dtype) for _ in range(2))
        if rows == 0 and name in ("shifted", "normalised"):
            continue
        with torch.no_grad():
            found, wanted = compiled(*ours), function(*theirs)
        told = f"{name} {layout} {rows} x {columns} {dtype}"
        rounding = 2e-2 if dtype == torch.bfloat16 else 1e-5
        for a, b in zip(ours, theirs, strict=True):
            agree(a, b, rounding, told)
            assert a._version == b._version or a._version > 0, told
            assert (a._version > 0) == (b._version > 0), told
        agree(found, wanted, rounding, told)


def test_made_in_place() -> None:
    compiled = tilevm.compile(momentum)
    with torch.no_grad():
        told = str(compiled.explain(*tensors("dense", 5, 7, torch.float32)))
    assert told.count("in the place of") == 2


def test_memory_that_is_shared_until_written() -> None:
    x = torch.arange(6.0)
    other = torch._lazy_clone(x)
    with torch.no_grad():
        tilevm.compile(lambda x: x.mul_(2))(other)
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    assert other.tolist() == [0, 2, 4, 6, 8, 10]


def test_inference_tensors() -> None:
    with torch.inference_mode():
        x = torch.ones(3)
        tilevm.compile(lambda x: x.add_(1))(x)
    assert x.tolist() == [2, 2, 2]


def test_a_leaf_that_requires_grad() -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        tilevm.compile(lambda x: x.add_(1))(x)
    assert x.tolist() == [1, 1, 1]


def test_saved_for_backward() -> None:
    x, w = torch.ones(3), torch.ones(3, requires_grad=True)
    loss = (w * x).sum()
    with torch.no_grad():
        tilevm.compile(lambda x: x.add_(1))(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(loss)


def test_buffers_of_modules() -> None:
    class Count(torch.nn.Module):
        total: Tensor
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(4))
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x.sum(0))
            self.calls += 1
            return x / self.total

    ours, theirs = Count(), Count()
    compiled = tilevm.compile(ours)
    torch.manual_seed(0)
    with torch.no_grad():
        for rows in (3, 1, 5, 8):
            x = torch.rand(rows, 4) + 1
            torch.testing.assert_close(compiled(x), theirs(x))
            torch.testing.assert_close(ours.total, theirs.total)
    assert int(ours.calls) == 4


@pytest.mark.parametrize("dtype", [torch.complex64, torch.uint16, torch.float8_e4m3fn])
def test_dtypes_that_kernels_do_not_have(dtype: torch.dtype) -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        x.copy_(y)
        return y

    x, y = torch.ones(3).to(dtype), torch.zeros(3).to(dtype)
    with torch.no_grad():
        tilevm.compile(function)(x, y)
    assert x.to(torch.complex64).tolist() == [0, 0, 0]


def test_buffers_of_such_dtypes() -> None:
    class Filter(torch.nn.Module):
        h: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("h", torch.zeros(1, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Any:
            self.h.mul_(0.5).add_(x)
            return self.h.real * 1

    ours, theirs = Filter(), Filter()
    compiled = tilevm.compile(ours)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(torch.ones(1)), theirs(torch.ones(1)))
    torch.testing.assert_close(ours.h, theirs.h)


@pytest.mark.filterwarnings("error::FutureWarning")
def test_warnings_of_pytorch_about_itself_stop_nothing() -> None:
    x, before = torch.ones(3), tilevm.stats()["captures"]
    with torch.no_grad():
        tilevm.compile(lambda x: x.add_(1))(x)
    assert tilevm.stats()["captures"] == before + 1


def twice(x: Tensor) -> Any:
    """A list that has a tensor twice, and one that has another's memory."""
    y = x * 1
    torch._foreach_add_([y, y], 1)
    torch._foreach_mul_([y, y[1:]], 2)
    return y


def of_lists(x: Tensor) -> Any:
    y, z = x * 1, x * 2
    torch._foreach_mul_([y, z], [z, y])
    torch._foreach_copy_([y], [z])
    return y, z


def of_arguments(x: Tensor) -> Any:
    torch._foreach_sub_([x, x[:1]], 1)
    torch._foreach_exp_([x])
    return x * 2


def expanded(x: Tensor) -> Any:
    """Elements that are written share memory."""
    x.expand(2, *x.shape).fill_(2)
    y = x * 3
    y.unsqueeze(0).expand(3, *y.shape).zero_()
    return y + x


def drawn(x: Tensor) -> Any:
    """In the order of memory."""
    y = torch.empty_like(x.t()).cauchy_()
    return y, x.t().clone().bernoulli_(0.5) - 1, torch.rand_like(x)


def resized(x: Tensor) -> Any:
    """What is given for a result, and another view of its memory, which stays as it is."""
    y = x.sum(0, keepdim=True)
    torch.add(x, 1, out=y.detach())
    return y


@pytest.mark.parametrize("function", [twice, of_lists, of_arguments, expanded, drawn, resized])
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_what_making_a_graph_functional_does_not_know(function: Callable[[Tensor], Any]) -> None:
    torch._dynamo.reset()
    doors = (tilevm.compile(function), torch.compile(function, backend="tilevm", dynamic=True))
    for compiled in doors if function is not resized else doors[:1]:
        with torch.no_grad():
            for rows in (3, 5):
                x = torch.randn(rows, 4)
                y = x.clone()
                torch.manual_seed(0)
                found = compiled(x)
                torch.manual_seed(0)
                torch.testing.assert_close(found, function(y))
                torch.testing.assert_close(x, y)


def by_one(x: Tensor) -> Any:
    x[1:] += x[:-1]
    return x


def of_a_value(x: Tensor) -> Any:
    y = x * 2
    y[1:] = y[:-1]
    return y


def with_a_transposed(x: Tensor) -> Any:
    return x.sub_(x.t())


def by_a_number_of_it(x: Tensor) -> Any:
    return x.div_(x[0, 0])


def given_a_part(x: Tensor) -> Any:
    return torch.exp(x[1:], out=x[:-1])


def at_indices(x: Tensor) -> Any:
    return x.index_add_(0, torch.arange(x.shape[0]), x)


def rows_of_it(x: Tensor) -> Any:
    return torch.cat([x[:1], x[2:]], out=x[:-1])


def of_bits(x: Tensor) -> Any:
    x.view(torch.int32)[1:].bitwise_and_(x.view(torch.int32)[:-1])
    return x


WITH_GRADIENTS = [by_one, of_a_value, with_a_transposed, by_a_number_of_it, at_indices]
OVERLAPPING = [
    *((function, True) for function in WITH_GRADIENTS),
    *((function, False) for function in (*WITH_GRADIENTS, given_a_part, rows_of_it, of_bits)),
]


@pytest.mark.parametrize(("function", "gradients"), OVERLAPPING)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.filterwarnings("ignore:Error detected in")
def test_what_is_written_overlaps_what_is_read(
    function: Callable[[Tensor], Any], gradients: bool
) -> None:
    compiled = tilevm.compile(lambda x: function(x * 1 if gradients else x))
    for n in (4, 5):
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            compiled(torch.ones(n, n, requires_grad=gradients))


def halves(x: Tensor) -> Any:
    x[: x.shape[0] // 2] += x[x.shape[0] // 2 :]
    x[1] *= x[0]
    return x


def the_same(x: Tensor) -> Any:
    x += x
    x.mul_(x.view(-1).view_as(x))
    x.t().add_(x.t())
    return torch.exp(x, out=x)


def filled_with_its_own(x: Tensor) -> Any:
    x[1:].fill_(x[0, 0])
    return x.masked_fill_(x > 1, x[1, 1])


@pytest.mark.parametrize("function", [halves, the_same, filled_with_its_own])
def test_what_is_written_lies_beside_what_is_read(function: Callable[[Tensor], Any]) -> None:
    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    for n in (4, 6, 8):
        x = torch.randn(n, 3)
        y = x.clone()
        torch.testing.assert_close(compiled(x), function(y))
        torch.testing.assert_close(x, y)
    assert not tilevm.stats()["flushes"]
    assert tilevm.stats()["captures"] == 1


def test_sizes_say_what_overlaps() -> None:
    def function(x: Tensor, k: int) -> Tensor:
        x[k:] += x[:-k]
        return x

    compiled = tilevm.compile(function)
    for k in (5, 4, 3, 2, 6):
        x, y = torch.arange(8.0), torch.arange(8.0)
        if k < 4:
            with pytest.raises(RuntimeError, match="refer to a single memory location"):
                compiled(x, k)
            continue
        assert torch.equal(compiled(x, k), function(y, k)) and torch.equal(x, y)


def cache(x: Tensor, m: Tensor, y: Tensor) -> Any:
    x[:, 2:5] = y[:, 0:1]
    return x[:, :5], x.sum()


def before_and_after(x: Tensor, m: Tensor, y: Tensor) -> Any:
    view = x[1:]
    x.mul_(2)
    return view, view + 1, x[None].squeeze(0)


def by_a_view(x: Tensor, m: Tensor, y: Tensor) -> Any:
    rest = x.t().relu_()
    return rest, x, rest[0], m


def of_two(x: Tensor, m: Tensor, y: Tensor) -> Any:
    first, second = x.chunk(2, 1)
    first.add_(1)
    m.t()[:2].zero_()
    return second, first, m.select(1, 0)


def of_chosen_rows(x: Tensor, m: Tensor, y: Tensor) -> Any:
    x.add_(1)
    return x.view(*x.shape, 1), x.diagonal(), x[..., None, :].expand(-1, 2, -1)


# (PyTorch asks whether strides of what is written in part are other sizes: that runs eagerly.)
_IN_PART = (cache, of_two)
VIEWED = [
    (function, layout)
    for function in (*_IN_PART, before_and_after, by_a_view, of_chosen_rows)
    for layout in ("dense", "transposed", "strided")
    if layout != "strided" or function not in _IN_PART
]


@pytest.mark.parametrize(("function", "layout"), VIEWED)
def test_views_of_what_is_changed(function: Callable[..., Any], layout: str) -> None:
    compiled, before = tilevm.compile(function), tilevm.stats()
    for rows, columns in ((5, 8), (3, 6), (9, 14)):
        ours, theirs = (tensors(layout, rows, columns, torch.float32) for _ in range(2))
        with torch.no_grad():
            found, wanted = compiled(*ours), function(*theirs)
        agree(found, wanted, 1e-5, layout)
        for a, b in zip(found, wanted, strict=True):
            assert a.stride() == b.stride() and a.storage_offset() == b.storage_offset()
            assert a._version == b._version
            for x, y in zip(ours, theirs, strict=True):
                assert (a is x) == (b is y)
                assert _one_memory(a, x) == _one_memory(b, y)
    assert tilevm.stats()["captures"] > before["captures"]
    assert tilevm.stats()["flushes"] == before["flushes"]


def _one_memory(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def test_views_of_a_cache_that_a_module_keeps() -> None:
    class Cache(torch.nn.Module):
        keys: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", torch.zeros(2, 16, 4))

        def forward(self, x: Tensor, at: int) -> Any:
            self.keys[:, at : at + x.shape[1]] = x
            return self.keys[:, : at + x.shape[1]]

    ours, theirs = Cache(), Cache()
    compiled, at = tilevm.compile(ours), 0
    with torch.no_grad():
        for many in (5, 1, 1, 3):
            x = torch.rand(2, many, 4)
            found, wanted = compiled(x, at), theirs(x, at)
            agree(found, wanted, 0, "cache")
            assert _one_memory(found, ours.keys)
            assert found.stride() == wanted.stride()
            at += many
    agree(ours.keys, theirs.keys, 0, "cache")


def test_an_argument_that_is_given_another_shape() -> None:
    def turned(x: Tensor) -> Tensor:
        return x.t_() * 2

    tilevm.stats.reset()
    x, y = torch.ones(2, 3), torch.ones(2, 3)
    assert torch.equal(tilevm.compile(turned)(x), turned(y)) and x.shape == y.shape
    reason = "eager: aten.t_.default gives an argument another shape"
    assert tilevm.stats()["flushes"] == {reason: 1}

"""Which tensors share memory with which, and what a call changes, are as in eager code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tilevm  # noqa: E402


@pytest.fixture(autouse=True)
def fresh_stats() -> None:
    tilevm.stats.reset()
    torch._dynamo.reset()


def by_dynamo(fn: Callable[..., Any]) -> Callable[..., Any]:
    door: Callable[..., Any] = torch.compile(fn, backend="tilevm", dynamic=True)
    return door


DOORS = pytest.mark.parametrize("door", [tilevm.compile, by_dynamo], ids=["compile", "dynamo"])


def reasons() -> list[str]:
    return [key for key in tilevm.stats()["flushes"] if key.startswith("eager")]


def start(x: Any) -> int:
    return int(x.untyped_storage().data_ptr())


def relations(args: list[Any], result: Any) -> list[Any]:
    """Values, strides, and which of the arguments and results are one, or share memory."""
    out = result if isinstance(result, tuple | list) else (result,)
    every = [*args, *out]
    return [
        [(x.tolist(), x.shape, x.stride()) for x in every],
        [[x is y for x in every] for y in args],
        [[start(x) == start(y) for x in every] for y in every],
    ]


def grid() -> Any:
    return torch.arange(6.0).view(2, 3)


def cloned(x: Any) -> Any:
    y = x + 1
    return y, y.clone()


def turned(x: Any) -> Any:
    y = x + 1
    return y, y.t()


def filled(x: Any) -> Any:
    y = x * 1
    seen = torch.meshgrid(y, y, indexing="ij")[0]
    y.fill_(3)
    return seen + 1


def windows_and_copies(x: Any) -> Any:
    y = x.unfold(1, 2, 1)
    return y, y.contiguous(), y.to(y.dtype, copy=True)


def and_itself(view: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def of_result(x: Any) -> Any:
        y = x * 2
        return y, view(y)

    return of_result


RESULTS: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "clone": (lambda x: x.clone(), grid),
    "clone of a clone": (cloned, grid),
    "clone of an expanded": (lambda x: x.clone(), lambda: torch.ones(2, 1).expand(2, 3)),
    "contiguous": (lambda x: x.contiguous(), grid),
    "contiguous, transposed": (lambda x: x.t().contiguous(), grid),
    "contiguous, one row": (lambda x: x.t().contiguous(), lambda: torch.ones(1, 3)),
    "to, copied": (lambda x: x.to(torch.float32, copy=True), grid),
    "to": (lambda x: x.to(torch.float32), grid),
    "cat of one": (lambda x: torch.cat([x]), grid),
    "repeated, size 1": (lambda x: x.repeat_interleave(2, -1), lambda: torch.ones(2, 1)),
    "sum repeated, size 1": (lambda x: (x + 1).repeat(1, 2), lambda: torch.ones(2, 1)),
    "view and value": (turned, grid),
    "equal values": (lambda x: (x + 1, x + 1), grid),
    "view of a view": (lambda x: x.t()[1:], grid),
    "old value": (lambda x: (x.clone(), x.add_(1))[0], grid),
    "add_": (lambda x: x.add_(1), grid),
    "view of a changed": (lambda x: (x.mul_(2), x[1:])[1], grid),
    "view before a change": (lambda x: (x[1:], x.mul_(2))[0], grid),
    "meshgrid of a changed": (filled, lambda: torch.arange(3.0)),
    "contiguous windows of one": (lambda x: x.unfold(0, 1, 2).contiguous(), lambda: grid()[0]),
    "contiguous windows": (lambda x: x.unfold(0, 2, 1).contiguous(), lambda: grid()[0]),
    "clone of windows": (lambda x: x.unfold(0, 2, 1).clone(), lambda: grid()[0]),
    "windows and copies": (windows_and_copies, grid),
    "contiguous, of memory": (lambda x: x.as_strided((3, 1), (2, 1)).contiguous(), grid),
    "diagonal of a result": (and_itself(lambda y: y.diagonal()), grid),
    "part of a diagonal": (and_itself(lambda y: y.diagonal(1)[1:]), grid),
    "windows of a result": (and_itself(lambda y: y.unfold(1, 2, 1)), grid),
    "diagonal of windows": (and_itself(lambda y: y.unfold(1, 2, 1).diagonal(0, 0, 1)), grid),
}


@DOORS
@pytest.mark.parametrize("name", RESULTS)
def test_results_share_what_eager_results_share(name: str, door: Callable[..., Any]) -> None:
    fn, make = RESULTS[name]
    compiled = door(fn)
    for _ in range(2):
        x, y = make(), make()
        with torch.no_grad():
            assert relations([x], compiled(x)) == relations([y], fn(y))


def test_arguments_swap() -> None:
    def swap(a: Any, b: Any) -> None:
        old = a.clone()
        a.copy_(b)
        b.copy_(old)

    a, b = torch.zeros(2), torch.ones(2)
    tilevm.compile(swap)(a, b)
    assert (a.tolist(), b.tolist()) == ([1, 1], [0, 0])
    assert not reasons()


def test_one_tensor_as_two_arguments() -> None:
    def bump(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * 2

    def which(x: Any, y: Any) -> Any:
        return x * 2 if x is y else x * 3

    bumped, found = tilevm.compile(bump), tilevm.compile(which)
    for _ in range(3):
        a, b = torch.ones(3), torch.ones(3)
        assert bumped(a, b).tolist() == [2] * 3
        assert bumped(b, b).tolist() == [4] * 3
        assert (found(a, b).tolist(), found(b, b).tolist()) == ([6] * 3, [4] * 3)
    assert not reasons()


def test_arguments_that_overlap_are_changed_eagerly() -> None:
    def bump(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * 2

    compiled = tilevm.compile(bump)
    for _ in range(2):
        base = torch.zeros(4)
        assert compiled(base[:2], base[1:3]).tolist() == [2, 0]
        assert len(reasons()) == 1
        tilevm.stats.reset()
        assert compiled(torch.zeros(2), torch.zeros(2)).tolist() == [0, 0]
        assert not reasons()


class Grows(nn.Module):
    """Keeps its inputs, and its last result."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(0, 4))
        self.kept: Any
        self.last: Any = None
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.kept = torch.cat([self.kept, x])
        self.last = x * 2
        self.calls += 1
        return self.kept.sum()


@DOORS
def test_modules_that_set_attributes(door: Callable[..., Any]) -> None:
    model = Grows()
    compiled = door(model)
    with torch.no_grad():
        sums = [compiled(torch.ones(3, 4)).item() for _ in range(6)]
    assert sums == [12 * n for n in range(1, 7)]
    assert (model.kept.shape, model.calls) == ((18, 4), 6)
    assert type(model.last) is torch.Tensor


def test_a_module_that_sets_up_a_table_once_is_compiled_later() -> None:
    class Lazy(nn.Module):
        table: Any = None

        def forward(self, x: Any) -> Any:
            if self.table is None:
                self.table = torch.ones(4)
            return x + self.table

    compiled = tilevm.compile(Lazy())
    for _ in range(3):
        assert compiled(torch.ones(2, 4)).sum().item() == 16
    assert (tilevm.stats()["captures"], list(tilevm.stats()["flushes"].values())) == (1, [1])


FOUND: list[Any] = []


def remember(x: Any) -> None:
    FOUND.append(x)


def test_tensors_that_are_kept_are_real() -> None:
    held: list[Any] = []
    total = 0

    def direct(x: Any) -> Any:
        nonlocal total
        held.append(x * 2)
        total += 1
        return x + 1

    def hidden(x: Any) -> Any:
        remember(x * 2)
        return x + 1

    for fn in (direct, hidden):
        compiled = tilevm.compile(fn)
        for _ in range(6):
            assert compiled(torch.ones(2)).tolist() == [2, 2]
    assert total == 6
    for kept in (held, FOUND):
        assert [type(x) for x in kept] == [torch.Tensor] * 6


def test_a_generator_gives_real_tensors() -> None:
    compiled = tilevm.compile(lambda x: (y * 2 for y in x))
    for _ in range(2):
        assert [y.tolist() for y in compiled(torch.ones(2))] == [2, 2]


def test_sizes_that_are_zero_by_chance() -> None:
    def window(k: Any) -> Any:
        return (k[:, max(k.shape[1] - 4, 0) :] * 2).sum(1)

    def half(x: Any) -> Any:
        return x[(x.shape[0] - 1) // 2 :] + 1

    for fn in (window, half):
        compiled = tilevm.compile(fn)
        for n in (2, 3, 6):
            x = torch.ones(n, n, 1)
            assert compiled(x).tolist() == fn(x).tolist()


def test_strides_count_from_where_memory_begins() -> None:
    base = torch.arange(20.0)
    functions: tuple[Callable[[Any], Any], ...] = (
        lambda x: x.as_strided((2, 2), (1, 2), 1),
        lambda x: x.as_strided((2, 2), (1, 2), 1) + 1,
        lambda x: torch.as_strided_copy(x, (2, 2), (1, 2), 1),
        lambda x: torch.as_strided_scatter(x, x[:4].reshape(2, 2) * 0, (2, 2), (1, 2), 6),
    )
    for fn in functions:
        compiled = tilevm.compile(fn)
        for x in (base, base[3:], base[5:], base[4:12]):
            assert compiled(x).tolist() == fn(x).tolist()


@pytest.mark.parametrize("door", ["compile", "torch.compile"])
def test_writes_through_windows_with_gaps(door: str) -> None:
    def twice(x: Any) -> Any:
        x.unfold(0, 2, 3).mul_(2)
        return x

    def of_a_copy(x: Any) -> Any:
        y = x.clone()
        y.unfold(0, 2, 3).mul_(2)
        return y + 1

    for fn in (twice, of_a_copy):
        torch._dynamo.reset()
        if door == "compile":
            compiled = tilevm.compile(fn)
        else:
            compiled = torch.compile(fn, backend="tilevm", dynamic=True)
        for n in (5, 8):
            x, y = torch.arange(1.0, n + 1), torch.arange(1.0, n + 1)
            assert compiled(x).tolist() == fn(y).tolist()
            assert x.tolist() == y.tolist()


def test_strides_that_are_read() -> None:
    def copied(x: Any) -> Any:
        return x.as_strided(x.shape, x.stride()) + 1

    def asks(x: Any) -> Any:
        return x + (1 if x.stride(-1) == 1 else 2)

    for fn in (copied, asks):
        compiled = tilevm.compile(fn)
        for x in (
            torch.arange(6.0).view(1, 6),
            torch.arange(7.0)[None][:, 1::2],
            torch.arange(9.0)[None][:, 1::3],
            torch.arange(12.0).view(2, 6),
            torch.arange(12.0).view(2, 6)[:, ::2],
        ):
            assert compiled(x).tolist() == fn(x).tolist()


def test_forward_may_be_replaced() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    compiled = tilevm.compile(model)
    x = torch.ones(1, 3)
    with torch.no_grad():
        compiled(x)
        compiled(x)
        model[0].forward = lambda x: x * 3
        assert compiled(x).tolist() == [[3, 3, 3]]
        hook = nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 0)
        try:
            assert compiled(x).tolist() == [[0, 0, 0]]
        finally:
            hook.remove()
        assert compiled(x).tolist() == [[3, 3, 3]]


@DOORS
def test_what_eager_refuses_is_refused(door: Callable[..., Any]) -> None:
    ints, bools, floats = torch.ones(3, dtype=torch.int64), torch.ones(3).bool(), torch.ones(3)
    calls: list[tuple[Callable[..., Any], list[Any]]] = [
        (lambda x: x.mul_(1.5), [ints]),
        (lambda x: (x + 1).mul_(1.5), [ints]),
        (lambda x, y: x - y, [floats, bools]),
        (lambda x: 1 - x, [bools]),
        (lambda x, i: torch.index_select(x, 0, i), [torch.zeros(3, 0), torch.tensor([7])]),
    ]
    for fn, args in calls:
        with pytest.raises(RuntimeError):
            door(fn)(*args)


def test_the_first_use_may_be_a_training_step() -> None:
    text = (
        "import torch, tilevm\n"
        "c = tilevm.compile(lambda x: x.softmax(-1))\n"
        "c(torch.randn(4, 5, requires_grad=True)).sum().backward()\n"
        "assert not tilevm.stats()['flushes'], tilevm.stats()\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", text], check=True, timeout=300)


def into(a: Any, b: Any, c: Any, i: Any) -> tuple[Any, ...]:
    return (torch.add(a, b, out=c),)


def into_a_part(a: Any, b: Any, c: Any, i: Any) -> tuple[Any, ...]:
    torch.mul(a[:2], b[:2], out=c[1:])
    return (c,)


def into_two(a: Any, b: Any, c: Any, i: Any) -> tuple[Any, ...]:
    values, indices = torch.max(a, 1, out=(c[0], i))
    return c, indices, values * 2


@pytest.mark.parametrize("function", [into, into_a_part, into_two])
def test_results_of_out_are_that_argument(function: Callable[..., Any]) -> None:
    compiled = tilevm.compile(function)

    def arguments() -> list[Any]:
        c = torch.zeros(3, 3).t()
        return [torch.ones(3, 3), torch.arange(9.0).view(3, 3), c, torch.zeros(3).long()]

    def same(results: Any, given: list[Any]) -> list[list[bool]]:
        return [[x is y for y in given] for x in results]

    for _ in range(3):
        ours, eager = arguments(), arguments()
        found, expected = compiled(*ours), function(*eager)
        assert same(found, ours) == same(expected, eager)
        for x, y in zip([*found, *ours], [*expected, *eager], strict=True):
            torch.testing.assert_close(x, y)
            assert x.stride() == y.stride()


@pytest.mark.parametrize("shape", [(4, 5, 6), (3, 3, 2)])
def test_views_that_rows_copy_are_made_of_their_base(shape: tuple[int, ...]) -> None:
    """AOTAutograd makes a view of a result anew, with the strides that it has."""

    def function(x: Any) -> Any:
        y = x * 2
        diagonal = y.diagonal()
        windows = y.unfold(0, 2, 1)
        return diagonal, diagonal.view_as(diagonal), windows, windows[..., 1], y

    torch._dynamo.reset()
    for compiled in (
        tilevm.compile(function),
        torch.compile(function, backend="tilevm", dynamic=True),
    ):
        x = torch.randn(shape, requires_grad=True)
        found, expected = compiled(x), function(x)
        torch.testing.assert_close(found, expected)
        assert [y.stride() for y in found] == [y.stride() for y in expected]
        gradients = [torch.autograd.grad(y[1].sum() + y[3].sum(), x)[0] for y in (found, expected)]
        torch.testing.assert_close(*gradients)


def test_data_of_tensors() -> None:
    module = nn.Linear(4, 4)

    def read(x: Any) -> Any:
        hidden = x.data @ module.weight.data
        return hidden.data, x.data, (hidden + 1).data.exp()

    compiled = tilevm.compile(read)
    for rows in (3, 5):
        x = torch.rand(rows, 4, requires_grad=True)
        found, expected = compiled(x), read(x)
        torch.testing.assert_close(found, expected)
        assert not any(y.requires_grad for y in found)
        assert found[1].data_ptr() == x.data_ptr()
    assert tilevm.stats()["captures"] == 1


def test_writes_to_data_have_no_version() -> None:
    def write(x: Any) -> Any:
        x.data.mul_(2)
        return x + 1

    x = torch.rand(3, 4)
    expected = x * 2 + 1
    torch.testing.assert_close(tilevm.compile(write)(x), expected)
    assert x._version == 0
    assert "eager: `data` is read where tensors are changed" in str(tilevm.stats()["flushes"])


def flattened(x: Any) -> Any:
    y = x * 2
    return y, y.permute(1, 0, 2, 3).flatten(2)


def heads(x: Any) -> Any:
    y = (x * 2).transpose(1, 2)
    return y, y.permute(2, 0, 1, 3).reshape(x.shape[1], x.shape[0], -1)


def copied(x: Any) -> Any:
    y = (x * 2).transpose(1, 2)
    return y, y.flatten(1), y.reshape(-1, x.shape[3])


def flattened_alone(x: Any) -> Any:
    return ((x * 2).permute(1, 0, 2, 3).flatten(2),)


@pytest.mark.parametrize("function", [flattened, heads, copied, flattened_alone])
def test_reshapes_of_permuted_results_are_views_where_they_are_in_eager_code(
    function: Callable[..., Any],
) -> None:
    """Also where sizes might be 0, so that nobody can tell strides apart."""
    compiled = tilevm.compile(function)
    for sizes in [
        (5, 7, 6, 9),
        (2, 2, 2, 6),
        (3, 1, 4, 5),
        (1, 3, 4, 5),
        (0, 3, 4, 3),
        (3, 4, 1, 3),
    ]:
        if 0 in sizes and function is heads:
            continue  # eager code cannot tell a size
        x = torch.randn(sizes)
        found, wanted = compiled(x), function(x)
        for got, own in zip(found, wanted, strict=True):
            torch.testing.assert_close(got, own)
            moving = [d for d, size in enumerate(own.shape) if size > 1 and own.numel()]
            assert [got.stride(d) for d in moving] == [own.stride(d) for d in moving]
        if x.numel():
            shared = [storage(y) == storage(wanted[0]) for y in wanted]
            assert [storage(y) == storage(found[0]) for y in found] == shared


def storage(x: Any) -> int:
    return int(x.untyped_storage().data_ptr())


COPIES: dict[str, Any] = {
    "clone": lambda x: x.clone(),
    "index": lambda x: x[torch.arange(x.shape[0])],
    "index_of_columns": lambda x: x.t()[torch.arange(x.shape[1])],
    "repeat": lambda x: x.repeat(1, 1),
    "cat": lambda x: torch.cat([x]),
    "columns": lambda x: x.t().clone(),
    "of_a_value": lambda x: x.tanh().clone(),
    "stack": lambda x: torch.stack([x])[0],
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_parts_of_a_copy(name: str, gradients: bool, whole: bool) -> None:
    """Which a program finds to be what it is a copy of: parts begin where they do in eager code."""

    def parts(x: Any) -> Any:
        copy = COPIES[name](x)
        found = copy.tensor_split(2, 0)
        return (copy, *found) if whole else found

    compiled = tilevm.compile(parts)
    for rows, columns in ((6, 4), (8, 2)):
        x = torch.randn(rows, columns).requires_grad_(gradients)
        results = compiled(x), parts(x)
        torch.testing.assert_close(*results)
        if whole or gradients:  # else each part has memory of its own
            assert [y.stride() for y in results[0]] == [y.stride() for y in results[1]]
        if whole and gradients:
            memory = [len({y.untyped_storage().data_ptr() for y in found}) for found in results]
            assert memory[0] == memory[1]


@pytest.mark.parametrize("gradients", [False, True])
def test_parts_of_a_copy_whose_sizes_only_the_data_know(gradients: bool) -> None:
    def parts(x: Any) -> Any:
        copy, rows = x.clone(), int((x[:, 0] > 0).sum())
        return copy, copy[rows:]

    compiled = tilevm.compile(parts)
    for seed in (0, 1):
        x = torch.randn(7, 3, generator=torch.Generator().manual_seed(seed))
        x.requires_grad_(gradients)
        torch.testing.assert_close(compiled(x), parts(x))
    assert gradients or not tilevm.stats()["flushes"]

"""Arguments that do not fit, though PyTorch's metadata do not say so: eager code's errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

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
        assert isinstance(got, str) and got in (want, "TorchRuntimeError")  # Dynamo's own
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


# Sources of other sizes -------------------------------------------------------------------------

INDEXED: dict[str, Function] = {
    "index_add": lambda x, i, s: x.index_add(0, i, s),
    "index_add_": lambda x, i, s: x.index_add_(0, i, s),
    "with alpha": lambda x, i, s: x.index_add(-x.dim(), i, s, alpha=2),
    "index_copy": lambda x, i, s: x.index_copy(0, i, s),
    "index_copy_": lambda x, i, s: x.index_copy_(0, i, s),
    "index_reduce": lambda x, i, s: x.index_reduce(0, i, s, "amax"),
    "index_reduce_": lambda x, i, s: x.index_reduce_(0, i, s, "mean", include_self=False),
}
# Sizes of x and of the source; the index has as many elements as the source has rows.
SOURCES = [
    ((3, 4), (1, 1)), ((3, 4), (1, 4)), ((3, 4), (2, 1)), ((3, 4), (2, 4)), ((3, 4), (0, 1)),
    ((3, 4), (0, 4)), ((3, 1), (2, 1)), ((3, 1), (2, 4)), ((5, 6), (2, 5)), ((5, 6), (5, 6)),
    ((3, 0), (1, 0)), ((3, 0), (1, 1)), ((3, 5), (3, 0)), ((3,), (2,)), ((3,), ()), ((), ()),
    ((), (1,)), ((3, 4), (4,)), ((3, 4), (1, 1, 4)),
]  # fmt: skip


def indexed(x: tuple[int, ...], source: tuple[int, ...]) -> list[Any]:
    index = torch.arange(source[0] if source else 1) % max(x[0] if x else 1, 1)
    return [torch.ones(x), index, torch.full(source, 2.0)]


@pytest.mark.filterwarnings("ignore:Error detected in", "ignore:index_reduce")
@pytest.mark.parametrize("door", ["tilevm.compile", "gradients", "torch.compile"])
@pytest.mark.parametrize("name", INDEXED)
def test_sources_are_as_large_as_what_they_are_written_to(name: str, door: str) -> None:
    function, gradients = INDEXED[name], door == "gradients" and name[-1] != "_"
    if door == "torch.compile":
        torch._dynamo.reset()
        compiled: Function = torch.compile(function, backend="tilevm")
    else:
        compiled = tilevm.compile(function)
    for sizes in SOURCES:
        check(compiled, function, indexed(*sizes), gradients)


@pytest.mark.parametrize("name", INDEXED)
def test_sources_that_fit_are_one_capture(name: str) -> None:
    compiled = tilevm.compile(INDEXED[name])
    for rows, columns, count in ((3, 4, 2), (5, 1, 1), (9, 7, 9), (4, 0, 3), (6, 6, 0), (2, 5, 2)):
        args = indexed((rows, columns), (count, columns))
        assert check(compiled, INDEXED[name], args)
    assert tilevm.stats()["captures"] == 1
    assert not tilevm.stats()["callouts"]


# What is added to a product ---------------------------------------------------------------------

sdpa: Any = F.scaled_dot_product_attention
HEAD: tuple[int, ...] = (1, 1, 1, 4)
# Each with sizes of which eager code refuses the first ones, and takes those after `None`.
ADDED: dict[str, tuple[Function, list[Any]]] = {
    "linear": (F.linear, [
        [(3, 4), (1, 4), (5,)], [(2, 3, 4), (1, 4), (5,)], [(4,), (1, 4), (5,)],
        [(0, 4), (1, 4), (5,)], [(3, 4), (1, 4), (0,)], [(1, 4), (3, 4), (3, 1)],
        [(3, 4), (1, 4), (2, 1, 1)], [(4,), (3, 4), (2, 3)], None,
        [(3, 4), (1, 4), (1,)], [(3, 4), (5, 4), (1,)], [(3, 4), (5, 4), ()], [(4,), (5, 4), (5,)],
    ]),
    "addmm": (lambda x, y, z: torch.addmm(z, x, y), [
        [(1, 3), (3, 1), (1, 7)], [(2, 3), (3, 1), (7,)], [(2, 3), (3, 1), (2, 0)],
        [(1, 3), (3, 1), (2, 1, 1)], None, [(2, 3), (3, 1), (2, 1)], [(2, 3), (3, 5), (2, 1)],
    ]),
    "addmm without": (lambda x, y, z: torch.addmm(z, x, y, beta=0), [
        [(1, 3), (3, 1), (1, 7)], [(2, 3), (3, 2), (5, 7)], [(2, 3), (3, 2), (3,)], None,
        [(2, 3), (3, 1), (2, 1)], [(2, 3), (3, 5), (1, 5)], [(2, 3), (3, 5), (5,)],
    ]),
    "addmm_": (lambda x, y, z: (z * 2).addmm_(x, y), [
        [(1, 3), (3, 1), (2, 2)], [(2, 3), (3, 2), (1, 1)], None, [(2, 3), (3, 1), (2, 1)],
    ]),
    "addmv": (lambda x, y, z: torch.addmv(z, x, y), [
        [(1, 3), (3,), (5,)], [(1, 3), (3,), (0,)], [(1, 3), (3,), (5, 1)], None,
        [(1, 3), (3,), (1,)], [(5, 3), (3,), (1,)], [(5, 3), (3,), ()],
    ]),
    "addmv_": (lambda x, y, z: (z * 2).addmv_(x, y), [[(1, 3), (3,), (5,)], None]),
    "addr": (lambda x, y, z: torch.addr(z, x, y), [
        [(1,), (1,), (2, 2)], [(1,), (2,), (2, 2)], None, [(3,), (2,), (3, 1)],
    ]),
    "baddbmm": (lambda x, y, z: torch.baddbmm(z, x, y), [
        [(1, 1, 3), (1, 3, 1), (2, 2, 2)], None, [(2, 1, 3), (2, 3, 5), (1, 5)],
    ]),
    "addbmm": (lambda x, y, z: torch.addbmm(z, x, y), [
        [(2, 1, 3), (2, 3, 1), (2, 2)], None, [(2, 1, 3), (2, 3, 5), (5,)],
    ]),
    "attention": (lambda q, k, mask: sdpa(q, k, k, mask), [
        *([HEAD, HEAD, m] for m in ((2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (2, 1))),
        [HEAD, HEAD, (1, 1, 1, 1, 1)], [(1, 1, 4), (1, 5, 4), (2, 1, 5)], None,
        [HEAD, HEAD, (1, 1, 1, 1)], [(2, 1, 3, 4), (2, 1, 5, 4), (2, 1, 1, 5)],
    ]),
}  # fmt: skip


def of_sizes(sizes: Sequence[tuple[int, ...]]) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator) for size in sizes]


@pytest.mark.filterwarnings("ignore:Error detected in")
@pytest.mark.parametrize("door", ["tilevm.compile", "gradients", "torch.compile"])
@pytest.mark.parametrize("name", ADDED)
def test_what_is_added_is_no_larger_than_the_product(name: str, door: str) -> None:
    function, cases = ADDED[name]
    torch._dynamo.reset()
    one = tilevm.compile(function)
    for i, sizes in enumerate(cases):
        if sizes is None:
            continue
        args = of_sizes(sizes)
        own: Function = tilevm.compile(function)
        if door == "torch.compile":
            torch._dynamo.reset()
            own = torch.compile(function, backend="tilevm")
        fits = check(own, function, args, door == "gradients")
        assert fits == (i > cases.index(None))
        if door == "tilevm.compile":  # after others, too
            check(one, function, args)


USUAL: dict[str, Function] = {
    "linear": lambda m, k, n: [(m, k), (n, k), (n,)],
    "addmm": lambda m, k, n: [(m, k), (k, n), (n,)],
    "addmm without": lambda m, k, n: [(m, k), (k, n), (n,)],
    "addmm_": lambda m, k, n: [(m, k), (k, n), (m, n)],
    "addmv_": lambda m, k, n: [(m, k), (k,), (m,)],
    "addr": lambda m, k, n: [(m,), (n,), (m, n)],
    "baddbmm": lambda m, k, n: [(2, m, k), (2, k, n), (2, m, n)],
    "addbmm": lambda m, k, n: [(2, m, k), (2, k, n), (m, n)],
    "attention": lambda m, k, n: [(2, m, k + 1), (2, n + 1, k + 1), (1, m, n + 1)],
}
SIZES = [(5, 4, 3), (2, 7, 6), (1, 4, 3), (0, 2, 5), (3, 1, 1), (1, 1, 1), (4, 0, 2), (3, 2, 0)]


@pytest.mark.parametrize("name", USUAL)
def test_what_is_added_to_products_of_all_sizes(name: str) -> None:
    function, compiled = ADDED[name][0], tilevm.compile(ADDED[name][0])
    for sizes in SIZES:
        assert check(compiled, function, of_sizes(USUAL[name](*sizes)))
    # PyTorch's metadata of these ask whether there is an element.
    assert tilevm.stats()["captures"] == 1 + (name in ("addmv_", "attention"))
    assert not tilevm.stats()["callouts"]
    wrong = next(sizes for sizes in ADDED[name][1] if len(sizes) == 3)
    assert not check(compiled, function, of_sizes(wrong))
    for sizes in SIZES:
        assert check(compiled, function, of_sizes(USUAL[name](*sizes)))


def test_a_module_with_a_bias_of_another_size() -> None:
    layer = torch.nn.Linear(4, 1)
    layer.bias = torch.nn.Parameter(torch.ones(5))
    with pytest.raises(RuntimeError, match="must match"):
        tilevm.compile(layer)(torch.ones(3, 4))


# Numbers that are not what they have to be ------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("gradients", [False, True])
def test_probabilities_lie_between_0_and_1(gradients: bool, reduction: str) -> None:
    def function(x: Any, y: Any) -> Any:
        return F.binary_cross_entropy(x, y, reduction=reduction)

    compiled = tilevm.compile(function)
    for n in (5, 1, 0, 7):
        x = torch.linspace(0, 1, n) if n else torch.ones(0)
        assert check(compiled, function, [x, torch.ones(n)], gradients)
        for wrong in (2.0, -0.5, float("nan"), float("inf")) if n else ():
            y = x.clone()
            y[-1] = wrong
            assert not check(compiled, function, [y, torch.ones(n)], gradients)
        assert check(compiled, function, [x, torch.ones(n)], gradients)
    if not gradients:
        assert tilevm.stats()["captures"] == 1
        assert not tilevm.stats()["callouts"]


def test_a_complex_number_is_true_if_any_part_of_it_is() -> None:
    compiled = tilevm.compile(lambda x, z: x.copy_(z))
    z = torch.tensor([1j, 0, 1, complex(0, float("nan"))])
    for n in (4, 1, 0):
        x = torch.zeros(n, dtype=torch.bool)
        assert compiled(x, z[:n]).tolist() == z[:n].bool().tolist() == x.tolist()

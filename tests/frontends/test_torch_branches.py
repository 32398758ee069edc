"""`torch.cond` and `torch.while_loop`: captured with all their branches."""

from __future__ import annotations

import gc
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tilevm  # noqa: E402

pytestmark = pytest.mark.torch


def eager(function: Callable[..., Any], *args: Any) -> Any:
    """What a function means: Python's branches and loops, which PyTorch would compile first."""

    def cond(decides: Any, then: Any, otherwise: Any, operands: Any = ()) -> Any:
        return then(*operands) if decides else otherwise(*operands)

    def while_loop(test: Any, body: Any, carried: Any) -> Any:
        while test(*carried):
            carried = body(*carried)
        return carried

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "cond", cond)
        patch.setattr(torch, "while_loop", while_loop)
        return function(*args)


def plain(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: torch.relu(x) + 1, lambda x: x * 2 - 1, (x,))


def nested(x: Any) -> Any:
    def inner(x: Any) -> Any:
        return torch.cond(x[0, 0] > 0.5, lambda x: x.exp(), lambda x: x.sin(), (x,)) + 1

    return torch.cond(x.sum() > 0, inner, lambda x: x * 2 - 1, (x,)) * 2


def several(x: Any) -> Any:
    a, b = torch.cond(
        x.mean() > 0,
        lambda x, y: (x + y.sum(), y * 1),
        lambda x, y: (x - y[0], y.exp()),
        (x, x[:, 0] * 2),
    )
    return a * b[:, None], b


def closure(x: Any) -> Any:
    total = x.sum(0)
    return torch.cond(x.sum() > 0, lambda x: x * total, lambda x: x + total, (x,))


def loop(x: Any) -> Any:
    return torch.while_loop(
        lambda i, y: (i < 20) & (y.abs().max() < 100),
        lambda i, y: (i + 1, y * 2),
        (torch.zeros((), dtype=torch.int64), x),
    )


def never(x: Any) -> Any:
    """Its body does not run."""
    (y,) = torch.while_loop(lambda y: y.sum() != y.sum(), lambda y: (y * 2,), (x,))
    return y


def loop_without_end(x: Any) -> Any:
    """If all elements are 1."""
    return torch.while_loop(lambda y: y.sum() == y.numel(), lambda y: (y * 1,), (x,))


def constants(x: Any) -> Any:
    """Its branches hold tensors of their own."""
    return torch.cond(
        x.sum() > 0, lambda x: x + torch.tensor([2.0]), lambda x: x * torch.tensor(3.0), (x,)
    )


def copies(x: Any) -> Any:
    """A branch that gives what it was given, twice."""
    return torch.cond(
        x.sum() > 0, lambda x: (x.clone(), x.clone()), lambda x: (x * 2, x + 1), (x * 2,)
    )


def views(x: Any) -> Any:
    """Branches take and give tensors whose dims lie in another order."""
    return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y.exp(), (x.t(),)).t()


def nothing(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda: torch.ones(3), lambda: torch.zeros(3), ())


def products(x: Any) -> Any:
    return torch.cond(
        x.sum() > 0, lambda x: (x @ x.t()).softmax(-1), lambda x: (x @ x.t()).relu(), (x,)
    )


def sizes(x: Any) -> Any:
    """Results of a size that follows from those of the operands."""
    return torch.cond(
        x.sum() > 0, lambda x: torch.cat([x, x]) + 1, lambda x: torch.cat([x * 2, x]), (x,)
    )


def half(x: Any) -> Any:
    return torch.cond(
        (x.sum() > 0).reshape(1), lambda x: x.bfloat16() * 3, lambda x: (x + 0.1).bfloat16(), (x,)
    )


def branch_in_loop(x: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        return i + 1, torch.cond(y.sum() > 5, lambda y: y - 1, lambda y: y * 1.5 + 1, (y,))

    return torch.while_loop(lambda i, y: i < 7, body, (torch.zeros((), dtype=torch.int64), x))


def loop_in_loop(x: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        start = torch.zeros((), dtype=torch.int64)
        _, z = torch.while_loop(lambda j, z: j < i, lambda j, z: (j + 1, z * 1.1 + 1), (start, y))
        return i + 1, z

    return torch.while_loop(lambda i, y: i < 4, body, (torch.zeros((), dtype=torch.int64), x))


def loop_in_branch(x: Any) -> Any:
    def until(x: Any) -> Any:
        return torch.while_loop(lambda y: y.max() < 50, lambda y: (y * 2 + 1,), (x,))[0]

    return torch.cond(x.sum() > 0, until, lambda x: x - 1, (x,))


def counted(x: Any) -> Any:
    """An int that a loop carries, and gives back."""
    n, y = torch.while_loop(
        lambda i, y: i < x.shape[0] + 2, lambda i, y: (i + 2, y * 1.5 + i), (0, x)
    )
    return y + n


def conditions_of_ints(x: Any) -> Any:
    i, j, y = torch.while_loop(
        lambda i, j, y: torch.sym_not((i > 30) | (j < -7)),
        lambda i, j, y: (i + j + 3, j - y.shape[0], y + (i - j)),
        (x.shape[1], 5, x),
    )
    return y * j + i


def parts_of_ints(x: Any) -> Any:
    """Sizes that the ints decide, within and behind."""

    def body(i: Any, y: Any) -> Any:
        return i + 1, y + torch.arange(i + 1).sum() + torch.ones(i, 2).sum()

    n, y = torch.while_loop(lambda i, y: i < 5, body, (1, x))
    return y, torch.arange(n) * 2


def ints_in_loops(x: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        j, z = torch.while_loop(lambda j, z: j < i, lambda j, z: (j + 1, z * 1.1 + j), (0, y))
        return i + 1, z + j

    return torch.while_loop(lambda i, y: i < 4, body, (0, x))[1]


def never_counted(x: Any) -> Any:
    i, n, y = torch.while_loop(
        lambda i, n, y: n < 0, lambda i, n, y: (i + 1, n - 1, y * 2), (7, x.shape[0], x)
    )
    return y * i, torch.ones(n)


def ints_of_branches(x: Any) -> Any:
    n = torch.cond(x.sum() > 0, lambda: 3, lambda: 8, ())
    return torch.full((n, 2), 0.5), x * n


FUNCTIONS: list[Callable[[Any], Any]] = [
    plain, nested, several, closure, loop, never, constants, copies, views, nothing, products,
    sizes, half, branch_in_loop, loop_in_loop, loop_in_branch, counted, conditions_of_ints,
    parts_of_ints, ints_in_loops, never_counted, ints_of_branches,
]  # fmt: skip
SIZES = [(3, 4), (5, 6), (2, 2), (1, 3), (1, 1), (7, 1), (31, 37)]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_takes_the_branch_of_the_data(function: Callable[[Any], Any]) -> None:
    torch._dynamo.reset()
    compiled = tilevm.compile(function)
    tilevm.stats.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        for size in SIZES:
            for sign in (1, -1, -1, 1, 1):
                x = torch.rand(*size) * sign
                torch.testing.assert_close(compiled(x), eager(function, x))
    assert not tilevm.stats()["flushes"]
    assert not tilevm.stats()["callouts"]
    assert tilevm.stats()["captures"] <= 3  # PyTorch looks at sizes of 1


def test_results_are_not_the_arguments() -> None:
    compiled = tilevm.compile(never)
    with torch.no_grad():
        x = torch.rand(3, 4)
        y = compiled(x)
    y += 1
    assert not torch.equal(x, y)


@pytest.mark.parametrize("function", [plain, nested, loop, copies, branch_in_loop, counted])
def test_as_a_backend(function: Callable[[Any], Any]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="tilevm", dynamic=True)
    tilevm.stats.reset()
    with torch.no_grad():
        for size in SIZES[:4]:
            for sign in (1, -1, -1, 1):
                x = torch.rand(*size) * sign
                torch.testing.assert_close(compiled(x), eager(function, x))
    counted = tilevm.stats()
    assert not counted["flushes"]
    assert not counted["callouts"]


@pytest.mark.parametrize("size", [(0, 3), (3, 0)])
def test_no_elements(size: tuple[int, int]) -> None:
    with torch.no_grad():
        for function in (plain, copies, sizes, products):
            x = torch.rand(*size)
            torch.testing.assert_close(tilevm.compile(function)(x), eager(function, x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32, torch.uint8])
def test_dtypes(dtype: Any) -> None:
    def chosen(x: Any) -> Any:
        return torch.cond(x.sum() > 50, lambda x: x * 2 + x, lambda x: x - x.amin(), (x,))

    compiled = tilevm.compile(chosen)
    with torch.no_grad():
        for n in (0, 1, 7, 64, 65, 3):
            for high in (3, 90):
                x = torch.randint(0, high, (n + 1,)).to(dtype)
                torch.testing.assert_close(compiled(x), eager(chosen, x), rtol=0, atol=0)


def test_a_call_like_others_takes_its_own_branch() -> None:
    """What calls are like says nothing of the branch: both are noted, and neither is run again for
    the other.
    """
    compiled = tilevm.compile(several)
    calls = [torch.rand(7, 33) * sign for sign in (1, -1)]
    with torch.no_grad():
        want = [eager(several, x) for x in calls]
        for turn in range(40):
            which = (turn * turn // 3) % 2
            torch.testing.assert_close(compiled(calls[which]), want[which])
        tilevm.stats.reset()
        compiled(calls[0])
    assert tilevm.stats()["repeated_calls"] == 1  # that of the branch


def test_layouts_of_a_branch() -> None:
    compiled = tilevm.compile(plain)
    with torch.no_grad():
        for x in (torch.rand(6, 8), torch.rand(8, 6).t(), torch.rand(6, 16)[:, ::2], torch.rand(8)):
            given = x.expand(6, 8)
            for y in (given, -given, given):
                torch.testing.assert_close(compiled(y), eager(plain, y))


def test_ints_of_a_call() -> None:
    """Sizes, and ints that are arguments, reach the branches as numbers."""

    def chosen(x: Any, n: int) -> Any:
        return torch.cond(
            x.sum() > 0, lambda x: x[: x.shape[0] // 2 + 1] * n, lambda x: x[: n + 1] * 2, (x,)
        )

    torch._dynamo.reset()
    compiled = torch.compile(chosen, backend="tilevm", dynamic=True)
    tilevm.stats.reset()
    with torch.no_grad():
        for n in (5, 6, 11, 12):
            for sign in (1, -1):
                x = torch.rand(2 * n, 3) * sign
                torch.testing.assert_close(compiled(x, n), eager(chosen, x, n))
    assert not tilevm.stats()["callouts"]
    assert not tilevm.stats()["flushes"]


@pytest.mark.parametrize("factor", [2, 3, 1 << 30, 1 << 40])
def test_ints_of_loops_are_pythons(factor: int) -> None:
    """They leave 64 bits: the call runs eagerly, and says so."""

    def power(x: Any) -> Any:
        return torch.while_loop(
            lambda i, n, y: n < 70, lambda i, n, y: (i * factor - 1, n + 1, y * 1), (2, 0, x)
        )

    compiled = tilevm.compile(power)
    tilevm.stats.reset()
    with torch.no_grad():
        assert compiled(torch.ones(2))[0] == eager(power, torch.ones(2))[0]
    assert tilevm.stats()["flushes"]


def test_products_of_ints_of_loops() -> None:
    """Which may leave 64 bits at once."""

    def factorial(x: Any) -> Any:
        return torch.while_loop(
            lambda i, n, y: n < 30, lambda i, n, y: (i * n, n + 1, y + n), (1, 1, x)
        )

    with torch.no_grad():
        i, n, y = tilevm.compile(factorial)(torch.ones(2))
    assert (i, n, y[0]) == (*eager(factorial, torch.ones(2))[:2], 436)


def test_conditions_over_sizes() -> None:
    def chosen(x: Any) -> Any:
        return torch.cond(2 * x.shape[0] > x.shape[1], lambda x: x + 1, lambda x: x * 2, (x,))

    torch._dynamo.reset()
    compiled = torch.compile(chosen, backend="tilevm", dynamic=True)
    tilevm.stats.reset()
    with torch.no_grad():
        for size in (*SIZES[:2], (3, 7), (8, 30), (31, 37)):
            x = torch.rand(*size)
            torch.testing.assert_close(compiled(x), eager(chosen, x))
    assert not tilevm.stats()["flushes"]


def test_sizes_that_the_data_know() -> None:
    """Branches that bring a size, and that take one."""

    def chosen(x: Any) -> Any:
        y = torch.cond(x.sum() > 0, lambda x: x[x > 0.5] * 2, lambda x: x[x < -0.7] - 1, (x,))
        return torch.cond(y.sum() > 0, lambda y: y + 1, lambda y: y * 3, (y,)) * 2

    compiled = tilevm.compile(chosen)
    tilevm.stats.reset()
    with torch.no_grad():
        for n in (3, 8, 64):
            for sign in (1, -1, 1):
                x = torch.rand(n) * sign
                torch.testing.assert_close(compiled(x), eager(chosen, x))
    assert not tilevm.stats()["flushes"]


def test_call_outs_in_branches() -> None:
    """They get tensors: arguments, views of these, and what kernels made."""

    def chosen(x: Any) -> Any:
        y = x * 2
        return torch.cond(
            x.sum() > 0,
            lambda x, y: torch.linalg.svdvals(y.t())[:1] + x,
            lambda x, y: torch.pinverse(x).sum() + y.exp(),
            (x, y),
        )

    compiled = tilevm.compile(chosen)
    with torch.no_grad():
        for size in ((3, 4), (6, 5)):
            for sign in (1, -1, 1):
                x = torch.rand(*size) * sign
                torch.testing.assert_close(compiled(x), eager(chosen, x))
        tilevm.stats.reset()
        compiled(torch.rand(3, 4))
        compiled(-torch.rand(3, 4))
    assert tilevm.stats()["callouts"] == {
        "aten.linalg_svdvals.default": 1, "aten.pinverse.default": 1
    }  # fmt: skip


def test_random_numbers_in_a_branch() -> None:
    def chosen(x: Any) -> Any:
        return torch.cond(
            x.sum() > 0, lambda x: torch.nn.functional.dropout(x, 0.5), lambda x: x * 2, (x,)
        )

    compiled = tilevm.compile(chosen)
    with torch.no_grad():
        x = torch.rand(9, 9)
        for _ in range(3):
            torch.manual_seed(3)
            got = compiled(x)
            torch.manual_seed(3)
            torch.testing.assert_close(got, eager(chosen, x))


@pytest.mark.parametrize("door", ["compile", "backend"])
def test_gradients(door: str) -> None:
    weight = nn.Parameter(torch.randn(5, 5))

    def chosen(x: Any) -> Any:
        return torch.cond(
            x.sum() > 0, lambda x: torch.tanh(x @ weight), lambda x: (x * 2) @ weight.t(), (x,)
        ).sum()

    torch._dynamo.reset()
    compiled = (
        tilevm.compile(chosen) if door == "compile" else torch.compile(chosen, backend="tilevm")
    )
    tilevm.stats.reset()
    for n, sign in ((3, 1), (3, -1), (4, -1), (4, 1)):
        x = (torch.rand(n, 5) * sign).requires_grad_()
        got = torch.autograd.grad(compiled(x), (x, weight))
        torch.testing.assert_close(got, torch.autograd.grad(eager(chosen, x), (x, weight)))
    assert not tilevm.stats()["flushes"]


def test_inference_mode() -> None:
    compiled = tilevm.compile(plain)
    with torch.inference_mode():
        for sign in (1, -1):
            x = torch.rand(3, 4) * sign
            torch.testing.assert_close(compiled(x), eager(plain, x))


class Chosen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(64, 32), nn.Linear(64, 32)

    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: self.one(x).relu(), lambda x: self.other(x), (x,))


def test_weights() -> None:
    """Of a module whose layers branches call; they may change."""
    module = Chosen()
    compiled = tilevm.compile(module)
    tilevm.stats.reset()
    with torch.no_grad():
        for n in (1, 7, 96):
            for sign in (1, -1, 1):
                x = torch.rand(n, 64) * sign
                torch.testing.assert_close(compiled(x), eager(module, x))
            module.one.weight.mul_(3)
            module.other.bias = nn.Parameter(torch.randn(32))
    assert not tilevm.stats()["flushes"]


def test_frozen_weights_are_packed_and_released() -> None:
    def call() -> None:
        module = Chosen()
        compiled = tilevm.compile(module, freeze=True)
        with torch.no_grad():
            for sign in (1, -1, 1):
                x = torch.rand(96, 64) * sign
                torch.testing.assert_close(compiled(x), eager(module, x))

    before = tilevm.stats()["packed_bytes"]
    call()
    assert tilevm.stats()["packed_bytes"] - before >= 2 * 64 * 32 * 4  # of both branches
    torch._dynamo.reset()
    gc.collect()
    assert tilevm.stats()["packed_bytes"] == before


def test_threads_call_at_once() -> None:
    compiled = {function: tilevm.compile(function) for function in (nested, branch_in_loop)}
    with torch.no_grad():
        calls = [
            (function, x := torch.rand(3 + n % 3, 4) * (-1) ** (n // 3), eager(function, x))
            for function in compiled
            for n in range(6)
        ]
    wrong: list[Any] = []

    def work(first: int) -> None:
        with torch.no_grad():
            for turn in range(600):
                function, x, want = calls[(first + turn * 7) % len(calls)]
                try:
                    torch.testing.assert_close(compiled[function](x), want)
                except (AssertionError, RuntimeError) as error:
                    wrong.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_errors_say_where() -> None:
    def chosen(x: Any, i: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x[i] * 2, lambda x: x[i] + 1, (x,))

    compiled = tilevm.compile(chosen)
    said = r"test_torch_branches.py:\d+: take: index 7 is out of bounds for axis 0 with size 3"
    with torch.no_grad():
        compiled(torch.ones(3, 4), torch.tensor([1, 2]))
        with tilevm.config.patch(debug=1):  # else the function runs eagerly, and raises its own
            with pytest.raises(IndexError, match=said):
                compiled(torch.ones(3, 4), torch.tensor([1, 7]))
        torch.testing.assert_close(
            compiled(-torch.ones(3, 4), torch.tensor([1, 2])), torch.zeros(2, 4)
        )


def test_python_goes_on_while_a_loop_runs(request: pytest.FixtureRequest) -> None:
    """A loop lets other threads run, and ends where the user stops it."""
    compiled = tilevm.compile(loop_without_end)
    turns = []
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            turns.append(time.perf_counter())
            time.sleep(0.002)

    def interrupt() -> None:
        stop.wait(0.6)
        signal.raise_signal(signal.SIGINT)

    x = torch.ones(3, 4)
    # Shells start what runs in the background with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with torch.no_grad():
        compiled(x * 2)
        others = [threading.Thread(target=job) for job in (count, interrupt)]
        for thread in others:
            thread.start()
        with pytest.raises(KeyboardInterrupt):
            compiled(x)
        stop.set()
        for thread in others:
            thread.join()
    assert len(turns) > 20


def test_explained() -> None:
    with torch.no_grad():
        report = tilevm.explain(nested)(torch.ones(5, 6))
    (step,) = (s for s in report.to_json(limits=False)["steps"] if s["kind"] == "branch")
    taken, other = report.parts
    assert (step["name"], taken.does, other.does) == ("cond", "if true", "if false")
    assert step["index"] == taken.step == other.step
    assert step["ns"] > 0
    assert not report.callouts
    assert taken.explanation.profiles
    assert other.explanation.untimed == "it did not run"
    inner = taken.explanation.parts[0].explanation
    assert [row["op"] for row in inner.operators] == ["exp"]
    text = str(report)
    assert "= branch cond(" in text
    assert "nested: cond, if true: cond, if true: 1 kernel launches" in text


def test_a_program_is_freed_with_its_branches() -> None:
    compiled = tilevm.compile(nested)
    with torch.no_grad():
        compiled(torch.ones(3, 4))
    (capture,) = compiled.captures
    executable = capture.captured.executable
    held = weakref.ref(compiled)
    del compiled, capture
    with torch.no_grad():
        assert executable(torch.ones(3, 4))  # by itself, it has all it needs
    gc.collect()
    assert held() is None


def test_only_one_branch_runs() -> None:
    compiled = tilevm.compile(plain)
    with torch.no_grad():
        compiled(torch.ones(3, 4))
        tilevm.stats.reset()
        compiled(torch.ones(3, 4))
    counted = tilevm.stats()
    assert counted["callouts"] == {}
    assert counted["launches"] == 2  # the sum and its test; the branch

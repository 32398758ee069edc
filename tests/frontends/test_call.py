"""Calls that run without Python: which do, and that all others are what they were before."""

from __future__ import annotations

import copy
import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import tilevm  # noqa: E402
from tilevm import errors  # noqa: E402
from tilevm.frontends import torch_guards  # noqa: E402


@pytest.fixture(autouse=True)
def fresh_stats() -> None:
    tilevm.stats.reset()


def captures() -> int:
    return int(tilevm.stats()["captures"])


def slow_calls(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Arguments of the calls of `compiled` that come to Python from now on."""
    seen: list[Any] = []
    kind = type(compiled)
    call = kind._call

    def spy(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(args)
        return call(self, *args, **kwargs)

    monkeypatch.setattr(kind, "_call", spy)
    return seen


def settled(fn: Callable[..., Any], *args: Any) -> Any:
    """`fn` compiled, with a variant for calls like this one."""
    compiled = tilevm.compile(fn)
    for _ in range(2):
        compiled(*args)
    assert len(compiled._ready) == 1, compiled.guards
    return compiled


def mad(x: Any, y: Any, z: Any) -> Any:
    return x * y + z


def three(*shape: int) -> list[Any]:
    return [torch.randn(*shape) for _ in range(3)]


def test_steady_calls_do_not_come_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = settled(mad, *three(7, 33))
    seen = slow_calls(compiled, monkeypatch)
    for shape in [(7, 33), (2, 5), (64, 1000)]:
        args = three(*shape)
        torch.testing.assert_close(compiled(*args), mad(*args))
    assert not seen
    assert captures() == 1
    compiled(three(7, 33)[0], y=three(7, 33)[1], z=three(7, 33)[2])
    assert len(seen) == 1


def test_results_of_two_calls_share_no_storage() -> None:
    args = three(7, 33)
    compiled = settled(mad, *args)
    first, second = compiled(*args), compiled(*args)
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
    kept = first.clone()
    second.zero_()
    assert torch.equal(first, kept)
    assert (first.is_leaf, first.requires_grad, first._version) == (True, False, 0)
    first.resize_(2, 2)  # torch owns it


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (lambda x, y: (x + y, x * y), tuple),
        (lambda x, y: [x + y, x * y], list),
        (lambda x, y: (x + y,), tuple),
        (lambda x, y: {"sum": x + y}, dict),
        (lambda x, y: (x + y, None, 3), tuple),
        (lambda x, y: (x.t(), x + y), tuple),
    ],
)
def test_kinds_of_results(fn: Any, kind: type) -> None:
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    compiled = settled(fn, x, y)
    got = compiled(x, y)
    assert type(got) is kind
    torch.testing.assert_close(got, fn(x, y))


def test_a_result_twice_is_one_tensor() -> None:
    def fn(x: Any) -> Any:
        y = x + 1
        return y, y

    compiled = settled(fn, torch.randn(3))
    first, second = compiled(torch.randn(3))
    assert first is second


class Tagged(torch.Tensor):  # type: ignore[misc, name-defined]  # torch is Any after importorskip
    pass


class Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch's
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except Exception as error:
        return type(error), str(error)


def odd_tensors() -> dict[str, Callable[[], Any]]:
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    return {
        "parameter": lambda: nn.Parameter(base.clone(), requires_grad=False),
        "wants gradient": lambda: base.clone().requires_grad_(),
        "subclass": lambda: base.clone().as_subclass(Tagged),
        "meta": lambda: base.to("meta"),
        "sparse": lambda: base.to_sparse(),
        "conj": lambda: torch.complex(base, base).conj(),
        "neg": lambda: torch._neg_view(base),
        "empty": lambda: torch.empty(0, 4),
        "one row": lambda: base[:1],
        "transposed": lambda: base.reshape(4, 3).t(),
        "expanded": lambda: base[:1].expand(3, 4),
        "offset": lambda: torch.cat([base, base])[2:5],
        "other dtype": lambda: base.double(),
        "integers": lambda: base.long(),
        "other rank": lambda: base[0],
        "rank 0": lambda: torch.tensor(2.0),
        "int": lambda: 3,
        "float": lambda: 2.5,
        "None": lambda: None,
        "bool": lambda: True,
        "NumPy scalar": lambda: np.float64(2.5),
        "NumPy array": lambda: np.ones((3, 4), np.float32),
        "list": lambda: [1.0],
        "huge int": lambda: 2**80,
    }


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "plain": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "functions": Functions,
    "operators": Operators,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # NumPy's, of a tensor and an array
@pytest.mark.parametrize("kind", odd_tensors())
def test_odd_arguments_are_as_without_variants(kind: str) -> None:
    """Each call of a function that has variants gives what `_call` alone gives."""
    x = torch.randn(3, 4)
    fast, slow = (settled(lambda a, b: a * 2 + b, x, x) for _ in range(2))
    odd = odd_tensors()[kind]()
    for mode in [*MODES, *MODES]:
        slow._ready.clear()
        with MODES[mode]():
            want = outcome(slow._call, x, odd)
            got = outcome(fast, x, odd)
        if not isinstance(want, torch.Tensor):
            assert got == want, mode
            continue
        assert type(got) is type(want)
        assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
        assert (got.requires_grad, got.is_inference()) == (want.requires_grad, want.is_inference())
        if got.device.type == "cpu":
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(fast(x, x), x * 2 + x)


def test_function_modes_see_what_they_saw() -> None:
    x = torch.randn(3, 4)
    compiled = settled(lambda a: a + 1, x)
    with Functions() as mode:
        compiled(x)
    assert mode.names  # properties of the arguments, which Python reads


def test_gradients_after_calls_without() -> None:
    x = torch.randn(3, 4)
    compiled = settled(lambda a: (a * a).sum(), x)
    wanting = x.clone().requires_grad_()
    compiled(wanting).backward()
    torch.testing.assert_close(wanting.grad, 2 * x)


def test_no_warning_of_unboxed_arguments(recwarn: pytest.WarningsRecorder) -> None:
    compiled = tilevm.compile(lambda a: (a * a).sum())
    compiled(torch.randn(3, requires_grad=True)).backward()
    assert not [w for w in recwarn if "boxed" in str(w.message)]


def test_numbers_and_strings() -> None:
    def fn(x: Any, n: Any, how: str, flag: bool, nothing: None) -> Any:
        y = x * n if how == "times" else x + n
        return -y if flag else y

    x = torch.randn(3, 4)
    compiled = tilevm.compile(fn)
    calls = [
        (n, how, flag) for n in (2, 2.5, 3) for how in ("times", "plus") for flag in (True, False)
    ]
    for _ in range(3):
        for n, how, flag in calls:
            want = fn(x, n, how, flag, None)
            got = compiled(x, n, how, flag, None)
            torch.testing.assert_close(got, want)
    assert captures() == 8  # two kinds of numbers
    before = captures()
    torch.testing.assert_close(compiled(x, 7, "".join(["ti", "mes"]), True, None), -(x * 7))
    assert captures() == before


def test_a_number_that_decides() -> None:
    compiled = tilevm.compile(lambda x, n: x + 1 if n > 2 else x - 1)
    x = torch.randn(3)
    for n in (1, 5, 2, 3, 5, 1, 2.0, 2.5, float("nan"), 2.5, 2.0):
        torch.testing.assert_close(compiled(x, n), x + 1 if n > 2 else x - 1)


def test_broadcasts_have_variants_of_their_own() -> None:
    compiled = tilevm.compile(lambda x, y: x + y)
    for _ in range(3):
        for a, b in [((4, 5), (4, 5)), ((4, 5), (1, 5)), ((1, 5), (4, 5)), ((4, 1), (4, 5))]:
            x, y = torch.randn(a), torch.randn(b)
            torch.testing.assert_close(compiled(x, y), x + y)
    assert len(compiled._ready) > 1
    with pytest.raises(RuntimeError):
        compiled(torch.randn(4, 5), torch.randn(3, 5))


def test_dims_are_checked_at_each_call() -> None:
    rows = tilevm.Dim(min=2, max=8, multiple_of=2)
    compiled = tilevm.compile(lambda x, y: x + y, dims={"x": {0: rows}, "y": {0: rows}})
    for n in (2, 4, 8):
        compiled(torch.randn(n, 3), torch.randn(n, 3))
    assert len(compiled._ready) == 1
    for n in (1, 3, 10):
        with pytest.raises(errors.ShapeError, match="dims says"):
            compiled(torch.randn(n, 3), torch.randn(n, 3))


# Modules ----------------------------------------------------------------------------------------


def frozen(module: Any) -> Any:
    return module.requires_grad_(False).eval()


def model() -> Any:
    return frozen(nn.Sequential(nn.LayerNorm(8), nn.Dropout(0.5), nn.Linear(8, 8)))


def test_modules_run_without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model()
    compiled = settled(net, torch.randn(3, 8))
    seen = slow_calls(compiled, monkeypatch)
    x = torch.randn(5, 8)
    torch.testing.assert_close(compiled(x), net(x))
    assert not seen


CHANGES: dict[str, Callable[[Any], Any]] = {
    "write": lambda net: net[0].weight.data.fill_(3),
    "in place": lambda net: net[0].weight.mul_(2),
    "other memory": lambda net: setattr(net[0].weight, "data", torch.randn(8)),
    "replaced": lambda net: setattr(net[0], "weight", nn.Parameter(torch.randn(8), False)),
    "other dtype": lambda net: net.double(),
    "load": lambda net: net.load_state_dict({k: v + 1 for k, v in net.state_dict().items()}),
    "submodule": lambda net: net.__setitem__(0, frozen(nn.RMSNorm(8))),
    "removed bias": lambda net: setattr(net[0], "bias", None),
    "hook": lambda net: net[0].register_forward_hook(lambda m, args, out: out * 2),
    "pre-hook": lambda net: net[0].register_forward_pre_hook(lambda m, args: (args[0] + 1,)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_a_module_are_seen(change: str) -> None:
    net = model()
    compiled = settled(net, torch.randn(3, 8))
    with torch.no_grad():
        CHANGES[change](net)
    x = torch.randn(5, 8, dtype=net[2].weight.dtype)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), net(x))


def test_training_and_gradients_of_a_module() -> None:
    net = model()
    x = torch.randn(400, 8)
    compiled = settled(net, x)
    net.train()
    assert not torch.equal(compiled(x), compiled(x))  # Dropout draws
    compiled.eval()
    torch.testing.assert_close(compiled(x), net(x))
    net.requires_grad_(True)
    compiled(x).sum().backward()
    assert net[2].weight.grad is not None
    with torch.no_grad():
        assert not compiled(x).requires_grad


def test_compiled_modules_are_copied() -> None:
    compiled = settled(model(), torch.randn(3, 8))
    other = copy.deepcopy(compiled)
    x = torch.randn(3, 8)
    torch.testing.assert_close(other(x), compiled(x))
    with torch.no_grad():
        dict(other.named_parameters())["0.bias"].add_(1)
    assert not torch.allclose(other(x), compiled(x))


def test_what_is_compiled_is_collected() -> None:
    def fn(x: Any) -> Any:
        return {"y": x + 1}  # built by Python, which refers back to what is compiled

    compiled = settled(fn, torch.randn(3))
    compiled.itself = compiled
    gone = weakref.ref(compiled)
    del compiled
    gc.collect()
    assert gone() is None


# Threads, processes, other compilers --------------------------------------------------------------


def test_threads_call_at_once() -> None:
    compiled = tilevm.compile(mad)
    wrong: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for i in range(100):
            shape = [(3, 5), (7, 33), (64, 300)][(i + seed) % 3]
            args = [torch.randn(shape, generator=generator) for _ in range(3)]
            if not torch.allclose(compiled(*args), mad(*args), atol=1e-5):
                wrong.append(f"{seed}: {i}")
            if seed == 0 and i % 10 == 0:
                compiled._renew()  # drops the variants that others run

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_first_calls_of_threads_capture_once() -> None:
    functions = [tilevm.compile(lambda x, k=k: x * k + 1) for k in range(3)]
    threads = [
        threading.Thread(target=lambda f=f: f(torch.ones(4, 5))) for f in functions for _ in "abc"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(f.captures) for f in functions] == [1, 1, 1]
    tilevm.stats.reset()  # traces at once left torch's settings changed for later ones
    rows = tilevm.compile(lambda x: x[:1].expand_as(x) + 1)
    x = torch.randn(3, 5)
    assert torch.equal(rows(x), x[:1].expand_as(x) + 1)
    assert not tilevm.stats()["flushes"]


def test_threads_capture_with_gradients_and_without() -> None:
    """Dynamo's traces set what is torch's for the whole process as ours do."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    compiled = tilevm.compile(net)
    given = [torch.randn(n, 8) for n in range(1, 12)]
    with torch.no_grad():
        wanted = [net(x) for x in given]
    wrong: list[str] = []
    tilevm.stats.reset()

    def work() -> None:
        try:
            for i, (x, want) in enumerate(zip(given, wanted, strict=True)):
                with torch.set_grad_enabled(i % 2 == 0):
                    if not torch.allclose(compiled(x), want, atol=1e-5):
                        wrong.append(f"{i}")
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not tilevm.stats()["flushes"]


def test_threads_call_a_module_while_it_is_captured() -> None:
    """The trace exchanges its parameters: calls with gradients and of the module itself wait."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    compiled = tilevm.compile(net)
    x = torch.randn(5, 8)
    want = net(x).detach()
    compiled(x)
    wrong: list[str] = []
    done = threading.Event()
    tilevm.stats.reset()

    def work(called: Any) -> None:
        while not done.wait(0.001):
            try:
                got = called(x)
                if type(got) is not torch.Tensor or not torch.allclose(got, want, atol=1e-5):
                    wrong.append(f"{type(got)}")
            except Exception as error:
                wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(f,)) for f in (net, compiled)]
    for thread in threads:
        thread.start()
    try:
        with torch.no_grad():
            for rank in range(2, 5):
                given = torch.randn(*[2] * rank, 8)
                torch.testing.assert_close(compiled(given), net(given))
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert not tilevm.stats()["flushes"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork with threads
def test_a_forked_child_calls() -> None:
    args = three(300, 1000)
    compiled = settled(mad, *args)
    want = compiled(*args).numpy().copy()
    child = os.fork()
    if child == 0:  # PyTorch's own threads would hang here: NumPy compares
        signal.alarm(20)
        os._exit(0 if np.array_equal(compiled(*args).numpy(), want) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_vmap_is_as_without_variants() -> None:
    x = torch.randn(3, 4)
    fast, slow = settled(lambda a: a * 2, x), tilevm.compile(lambda a: a * 2)
    slow(x)
    want = outcome(torch.vmap(slow._call), torch.randn(2, 3, 4).fill_(1))
    got = outcome(torch.vmap(fast), torch.randn(2, 3, 4).fill_(1))
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want)
    else:
        assert got == want


def test_inside_torch_compile() -> None:
    x = torch.randn(3, 4)
    compiled = settled(lambda a: a * 2, x)
    outer = torch.compile(lambda a: compiled(a) + 1, backend="eager")
    torch.testing.assert_close(outer(x), x * 2 + 1)


# Kernels ------------------------------------------------------------------------------------------


def test_kernels_run_without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    @tilevm.kernel
    def scaled(x: Any, n: float, flag: bool) -> Any:
        return x * n if flag else x + n

    x = torch.randn(3, 4)
    scaled(x, 2.0, True)
    seen = slow_calls(scaled, monkeypatch)
    torch.testing.assert_close(scaled(torch.ones(5, 6), 3.0, True), torch.full((5, 6), 3.0))
    assert not seen
    torch.testing.assert_close(scaled(x, 3.0, False), x + 3.0)
    torch.testing.assert_close(scaled(x, 3, False), x + 3)  # another signature
    torch.testing.assert_close(scaled(x, np.float64(3), True), x * 3)
    torch.testing.assert_close(scaled(x.long(), 3, True), x.long() * 3)
    np.testing.assert_allclose(scaled(x.numpy(), 3.0, True), x.numpy() * 3)
    with pytest.raises(errors.TilevmError, match="requires gradients"):
        scaled(x.clone().requires_grad_(), 3.0, True)
    assert len(scaled._ready) == 1


# Guards -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "known"),
    [
        ("l[0].shape[1] == l[1].shape[0]", True),
        ("2*l[0].shape[0] + 1 <= l[1]", True),
        ("(l[0].shape[1] % 8 == 0 or l[0].shape[0] != -1) and not l[1] < 3", True),
        ("min(l[0].shape[0], 4) == (l[1] // 2)", True),
        ("l[1] == 2.5", True),
        ("l[1] == -2.5", True),
        ("l[1] != l[1]", True),
        ("math.sqrt(l[1]) < 3", False),
        ("l[0].shape[0] < l[1] < 7", False),
        ("l[1] < 2.5", False),
        ("l[0].shape[0]**2 < 5", False),
        ("l[0].stride() == (1 * max(l[0].shape[1], 1), 1, )", True),
        ("l[0].stride() == ()", True),
        ("l[0].stride() != (1, )", False),
        ("l[0].stride()[0] == 1", False),
    ],
)
def test_guards_that_the_core_evaluates(source: str, known: bool) -> None:
    assert (torch_guards.steps([source], [0, 1]) is not None) is known


def test_guards_of_sizes() -> None:
    """Branches over sizes, taken by variants as by Python."""

    def fn(x: Any, n: int) -> Any:
        rows, columns = x.shape
        if rows % 4 == 3:
            return x + n
        if rows * columns > 50 and columns // 2 < n:
            return x - n
        return x * 2 if rows < columns else x * n

    compiled = tilevm.compile(fn)
    cases = [(r, c, n) for r in (2, 3, 5, 8, 11) for c in (3, 6, 13) for n in (2, 5, 40)]
    for _ in range(2):
        for rows, columns, n in cases:
            x = torch.randn(rows, columns)
            torch.testing.assert_close(compiled(x, n), fn(x, n))
    assert compiled._ready

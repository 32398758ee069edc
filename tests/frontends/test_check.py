"""`tilevm.config.check`: calls are compared with what they mean, and raise where they differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilevm
from tilevm import lang
from tilevm.errors import InternalError, WrongResult
from tilevm.ir.compare import Towards, differences, disagreements, nudged
from tilevm.ir.types import numpy_dtype
from tilevm.runtime import failure
from tilevm.runtime import program as runtime
from tilevm.tools import archive


class Off:
    """An executable whose first result is 1 too much."""

    def __init__(self, executable: Callable[..., Any]) -> None:
        self.executable = executable

    def __call__(self, *args: Any) -> Any:
        found = self.executable(*args)
        return (found[0] + 1, *found[1:]) if isinstance(found, tuple) else found + 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executable, name)


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    right = runtime.compile_program
    monkeypatch.setattr(runtime, "compile_program", lambda *a, **k: Off(right(*a, **k)))


@pytest.fixture(autouse=True)
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(failure, "_saved", [])
    with tilevm.config.patch(check=1, debug=0, failures=str(tmp_path / "saved")):
        tilevm.stats.reset()
        yield


def checks() -> dict[str, int]:
    found: dict[str, int] = tilevm.stats()["checks"]
    return found


def saved_in(error: Exception) -> archive.Call:
    found = re.search(r"tilevm replay (\S+)", str(error))
    assert found
    return archive.load(Path(found[1]))


def new_kernel() -> Any:
    @tilevm.kernel
    def scaled(x: Any, n: int) -> Any:
        return lang.tanh(x) * n

    return scaled


# Kernels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int32"])
@pytest.mark.parametrize("n", [0, 1, 7, 65])
def test_kernels_are_right(dtype: str, n: int) -> None:
    @tilevm.kernel
    def centred(x: Any) -> Any:
        return {"a": x - lang.max(x, -1, keepdims=True), "b": lang.sum(x, 0)}

    x = np.linspace(-3, 3, n * 33).reshape(n, 33).astype(numpy_dtype(dtype))
    centred(x)
    assert checks() == {"kernel: right": 1}


def test_a_kernel_that_is_wrong(wrong: None) -> None:
    x = np.linspace(-1, 1, 21, dtype=np.float32).reshape(3, 7)
    with pytest.raises(WrongResult) as caught:
        new_kernel()(x, 2)
    told = str(caught.value)
    assert "scaled: result 0[" in told
    assert "(21 of 21)" in told
    assert "x: float32[3, 7], 2" in told
    assert isinstance(caught.value, InternalError)
    assert checks() == {"kernel: wrong": 1}
    call = saved_in(caught.value)
    np.testing.assert_array_equal(call.inputs[0], x)
    assert call.inputs[1] == 2


def test_every_nth_call_of_each() -> None:
    kernels, x = [new_kernel(), new_kernel()], np.ones(5, np.float32)
    with tilevm.config.patch(check=3):
        for _ in range(7):
            for kernel in kernels:
                kernel(x, 2)
    assert checks() == {"kernel: right": 6}  # of each the calls 0, 3 and 6


def test_off_again(wrong: None) -> None:
    kernel, x = new_kernel(), np.ones(5, np.float32)
    with tilevm.config.patch(check=0):
        kernel(x, 2)
        with tilevm.config.patch(check=True), pytest.raises(WrongResult):
            kernel(x, 2)
        kernel(x, 2)
    assert checks() == {"kernel: wrong": 1}


def test_calls_run_without_python_when_it_is_off() -> None:
    kernel, x = new_kernel(), np.ones(5, np.float32)
    for check, ready in ((0, 1), (1, 0), (0, 1)):
        with tilevm.config.patch(check=check):
            kernel(x, 2)
            assert len(kernel._ready) == ready


def test_spellings() -> None:
    with tilevm.config.patch(check=True):
        assert tilevm.config.check == 1
    with tilevm.config.patch(check=False):
        assert tilevm.config.check == 0
    for value in (-1, 0.5, "all"):
        with pytest.raises(ValueError, match="check"), tilevm.config.patch(check=value):
            pass


# What counts as different -----------------------------------------------------------------------


def test_what_rounding_magnifies_is_no_difference() -> None:
    """A sum that cancels: its largest value says nothing of the rounding on the way."""
    x = np.linspace(1, 2, 1001, dtype=np.float32)

    def cancelled(towards: Towards | None) -> list[Any]:
        moved = x if towards is None else nudged(x, towards)
        return [np.array([np.sum(moved.astype(np.float64) * 1e3) - 1501500.0], np.float32)]

    exact = cancelled(None)
    found = [exact[0] + np.float32(0.05)]
    assert differences(found, exact)
    assert not disagreements(found, exact, cancelled, ["float32"])
    assert disagreements([exact[0] + 500], exact, cancelled, ["float32"])


def test_elements_that_depend_on_rounding_are_not_compared() -> None:
    x = np.array([0.5, 1.0], np.float32)

    def above(towards: Towards | None) -> list[Any]:
        return [(x if towards is None else nudged(x, towards)) > 1.0]

    exact = above(None)
    assert not disagreements([np.array([False, True])], exact, above, ["float32"])
    assert disagreements([np.array([True, False])], exact, above, ["float32"])


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_nudges_are_to_neighbours(dtype: str) -> None:
    x = np.linspace(-2, 2, 101).astype(numpy_dtype(dtype))
    moved = nudged(x, np.random.default_rng(0))
    assert moved.dtype == x.dtype
    steps = {"float32": 23, "float64": 52, "bfloat16": 7, "float16": 10}[dtype]
    off = np.abs(moved.astype(np.float64) - x.astype(np.float64))
    assert (off > 0).all()
    assert (off <= 2.0 ** (1 - steps)).all()
    nothing = np.full(9, np.nan).astype(numpy_dtype(dtype))
    assert np.signbit(nudged(nothing, -np.inf)).all()
    assert not np.signbit(nudged(nothing, np.inf)).any()
    whole = np.arange(3)
    assert nudged(whole, np.random.default_rng(0)) is whole


# PyTorch ----------------------------------------------------------------------------------------

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_compiled_functions_are_right() -> None:
    compiled = tilevm.compile(lambda x, y, p: ((x @ y).softmax(-1) * p, x.sum(0), x.shape[0]))
    with torch.no_grad():
        for n in (0, 1, 7):
            compiled(torch.randn(n, 8), torch.randn(8, 5), 2.5)
    assert checks() == {"torch: right": 3}


def test_a_compiled_function_that_is_wrong(wrong: None) -> None:
    compiled = tilevm.compile(lambda x, p: (x * p).tanh())
    x = torch.linspace(-1, 1, 21).reshape(3, 7)
    with pytest.raises(WrongResult, match=r"result 0\[") as caught:
        compiled(x, 2.5)
    assert "float32[3, 7], 2.5" in str(caught.value)
    assert checks() == {"torch: wrong": 1}
    call = saved_in(caught.value)
    np.testing.assert_array_equal(call.inputs[0], x.numpy())
    assert call.inputs[1] == 2.5


def test_inputs_that_change_are_compared_as_they_were() -> None:
    def step(x: Any, y: Any) -> Any:
        y.mul_(2).add_(x)
        return y.sum(), x.t()

    compiled = tilevm.compile(step)
    x, y = torch.ones(3, 4), torch.ones(3, 4)
    compiled(x, y)
    compiled(x, y)
    assert y.tolist() == [[7.0] * 4] * 3
    assert checks() == {"torch: right": 2}


def test_a_wrong_result_changes_no_input(wrong: None) -> None:
    y = torch.ones(3)
    with pytest.raises(WrongResult):
        tilevm.compile(lambda y: y.add_(1))(y)
    assert y.tolist() == [1.0] * 3


def test_state_of_modules_moves_on_once() -> None:
    twins = [torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4)]
    compiled, x = tilevm.compile(twins[0]), torch.randn(8, 4)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
            twins[1](x)
    torch.testing.assert_close(twins[0].state_dict(), twins[1].state_dict())
    assert checks() == {"torch: right": 3}


def test_random_numbers_are_drawn_once() -> None:
    def noisy(x: Any) -> Any:
        return torch.nn.functional.dropout(x * 2, 0.5) + torch.rand_like(x)

    compiled, x = tilevm.compile(noisy), torch.ones(64)
    torch.manual_seed(0)
    found = [compiled(x), compiled(x)]
    state = torch.get_rng_state()
    torch.manual_seed(0)
    torch.testing.assert_close(found, [noisy(x), noisy(x)])
    assert torch.equal(state, torch.get_rng_state())
    assert checks() == {"torch: right": 2}


def test_forward_and_backward() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU(), torch.nn.Linear(8, 1)
    )
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="tilevm")
    compiled(torch.randn(4, 8)).sum().backward()
    # The gradient of the bias before the norm is 0 but for rounding.
    assert checks() == {"torch: right": 2}


def test_a_backward_graph_that_is_wrong(wrong: None) -> None:
    torch._dynamo.reset()
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(WrongResult):
        torch.compile(lambda x: (x * x).sum(), backend="tilevm")(x)


def test_memory_that_arguments_share() -> None:
    base = torch.randn(4, 6)
    compiled = tilevm.compile(lambda a, b, c: (a + b.sum(), c * 2))
    compiled(base[1:], base[:, ::2], base.expand(3, 4, 6))
    assert checks() == {"torch: right": 1}


def test_branches_on_data() -> None:
    def chosen(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    compiled = tilevm.compile(chosen)
    compiled(torch.ones(5))
    compiled(-torch.ones(5))
    assert checks() == {"torch: right": 2}


def test_sizes_that_data_know() -> None:
    compiled = tilevm.compile(lambda x: (x[x > 0] * 2, x.nonzero()))
    for n in (1, 5, 64):
        compiled(torch.randn(n))
    assert checks() == {"torch: right": 3}


def test_switching_captures_again_and_back() -> None:
    compiled, x = tilevm.compile(lambda x: x * 2), torch.ones(3)
    with tilevm.config.patch(check=0):
        compiled(x)
        compiled(x)
        assert len(compiled._ready) == 1
        with tilevm.config.patch(check=2):
            for _ in range(4):
                compiled(x)
            assert len(compiled._ready) == 0
        assert checks() == {"torch: right": 2}
        compiled(x)
        compiled(x)
        assert len(compiled._ready) == 1
    assert checks() == {"torch: right": 2}


def test_what_pytorch_refuses_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> Any:
        raise IndexError("index out of range")

    monkeypatch.setattr(torch.fx.Interpreter, "run", refused)
    with pytest.raises(WrongResult, match="PyTorch raises IndexError: index out of range"):
        tilevm.compile(lambda x: x * 2)(torch.ones(3))

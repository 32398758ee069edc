"""`freeze`: weights packed once, shared, bounded, released; and never without it."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.differential import judge  # noqa: E402
from torch import nn  # noqa: E402

import tilevm  # noqa: E402

pytestmark = pytest.mark.torch

ROWS = [0, 1, 2, 7, 33, 128, 300]


@pytest.fixture(autouse=True)
def nothing_packed() -> Any:
    """What another test left is gone, and this one leaves nothing."""
    gc.collect()
    assert packed() == 0
    yield
    torch._dynamo.reset()
    gc.collect()
    assert packed() == 0


def packed() -> int:
    count: int = tilevm.stats()["packed_bytes"]
    return count


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(65, 200)
        self.down = nn.Linear(200, 65)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def mlp(seed: int = 0) -> Mlp:
    torch.manual_seed(seed)
    return Mlp().eval()


def explained(compiled: Any, *args: Any) -> str:
    return "\n".join(step["text"] for step in compiled.explain(*args).steps)


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    with torch.no_grad():
        yield


# What it computes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_results_are_as_exact(dtype: Any) -> None:
    module = mlp().to(dtype)
    compiled = tilevm.compile(module, freeze=True)
    exact = copy.deepcopy(module).double()
    for rows in [*ROWS, 7]:
        x = torch.randn(rows, 65).to(dtype)
        want, best = module(x).float(), exact(x.double()).to(dtype).float()
        if dtype is not torch.float32 and rows:
            want = want + torch.finfo(dtype).eps / 2 * best.abs().amax()
        judge.check(compiled(x).float().numpy(), best.numpy(), want.numpy(), by="largest")
    assert packed() > 0
    assert "packed ahead" in explained(compiled, torch.randn(300, 65).to(dtype))


def test_weights_of_8_bits_with_a_buffer_as_scale() -> None:
    class Int8(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", torch.randint(-127, 128, (200, 65), dtype=torch.int8))
            self.register_buffer("scale", torch.rand(200))

        def forward(self, x: Any) -> Any:
            return torch.nn.functional.linear(x, self.w.to(x.dtype)) * self.scale

    module = Int8()
    compiled = tilevm.compile(module, freeze=True)
    for rows in ROWS:
        x = torch.randn(rows, 65)
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-5, atol=1e-3)
    assert "packed ahead" in explained(compiled, torch.randn(300, 65))


@pytest.mark.parametrize("transposed", [False, True])
def test_factors_that_are_views_of_weights(transposed: bool) -> None:
    weight = nn.Parameter(torch.randn(90, 4, 80))

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: Any) -> Any:
            part = self.weight[3:73, 2]
            return x @ (part if transposed else part.t())

    module = Part()
    compiled = tilevm.compile(module, freeze=True)
    for rows in ROWS:
        x = torch.randn(rows, 70 if transposed else 80)
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
    assert packed() > 0


def test_one_thread_and_several_give_the_same() -> None:
    large = nn.Linear(1024, 768)  # packed for any number of rows
    module = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), large, nn.LayerNorm(768))
    several = tilevm.compile(module.eval(), freeze=True, threads=3)
    one = tilevm.compile(module, freeze=True, threads=1)
    for rows in [1, 2, 3, 7, 33, 49, 300]:
        x = torch.randn(rows, 256)
        assert torch.equal(several(x), one(x))
        torch.testing.assert_close(one(x), module(x), rtol=1e-4, atol=1e-4)


def test_captured_constants_of_functions() -> None:
    weight = torch.randn(65, 90)
    compiled = tilevm.compile(lambda x: torch.relu(x @ weight), freeze=True)
    x = torch.randn(33, 65)
    torch.testing.assert_close(compiled(x), torch.relu(x @ weight))
    assert packed() > 0


def test_left_factors_and_arguments_are_not_packed() -> None:
    weight = nn.Parameter(torch.randn(65, 90))

    class Left(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: Any, y: Any) -> Any:
            return self.weight @ x, x @ y

    compiled = tilevm.compile(Left(), freeze=True)
    x, y = torch.randn(90, 65), torch.randn(65, 33)
    compiled(x, y)
    assert packed() == 0


def test_a_buffer_that_the_function_changes_is_no_weight() -> None:
    class Running(nn.Module):
        state: Any
        view: Any

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.randn(65, 65))
            self.register_buffer("view", self.state.t())

        def forward(self, x: Any) -> Any:
            self.state.mul_(0.5)
            return x @ self.state + x @ self.view

    module = Running()
    twin = copy.deepcopy(module)
    twin.view = twin.state.t()
    compiled = tilevm.compile(module, freeze=True)
    for _ in range(3):
        x = torch.randn(300, 65)
        torch.testing.assert_close(compiled(x), twin(x), rtol=1e-4, atol=1e-4)
    assert packed() == 0


# What is kept -------------------------------------------------------------------------------------


def test_packed_once_at_the_first_call_that_wants_it() -> None:
    module = mlp()
    compiled = tilevm.compile(module, freeze=True)
    compiled(torch.randn(1, 65))
    assert packed() == 0, "one row is quicker as it is"
    compiled(torch.randn(33, 65))
    assert packed() >= 2 * 4 * 65 * 200
    counts = []
    for _ in range(2):  # many rows may want another form than few
        for rows in ROWS:
            compiled(torch.randn(rows, 65))
        counts.append(packed())
    count = counts[0]
    assert counts[1] == count
    tilevm.stats.reset()
    assert packed() == count, "it is a state, not a count of events"


def test_programs_share() -> None:
    module = mlp()
    x = torch.randn(33, 65)
    first = tilevm.compile(module, freeze=True)
    first(x)
    count = packed()
    second = tilevm.compile(module, freeze=True)  # other captures of the same weights
    second(x)
    second(x[:, None])
    # Another tensor over the same memory.
    weight, bias = module.up.weight.detach(), module.up.bias.detach()
    alias = tilevm.compile(lambda x: torch.nn.functional.linear(x, weight, bias), freeze=True)
    alias(x)
    graph = torch.compile(module, backend="tilevm", options={"freeze": True})
    graph(x)
    assert packed() == count
    del first, second
    gc.collect()
    assert packed() == count
    del graph
    torch._dynamo.reset()
    gc.collect()
    assert 0 < packed() < count, "of the alias alone"


def test_released_with_the_function() -> None:
    module = mlp()
    compiled = tilevm.compile(module, freeze=True)
    compiled(torch.randn(33, 65))
    assert packed() > 0
    del compiled
    gc.collect()
    assert packed() == 0


def test_released_with_the_weights() -> None:
    """Dynamo's graphs do not hold their weights: what was packed goes while the graph stays."""
    modules = [mlp(seed) for seed in range(3)]

    def call(module: Any, x: Any) -> Any:
        return module(x)

    compiled = torch.compile(call, backend="tilevm", options={"freeze": True}, dynamic=True)
    x = torch.randn(33, 65)
    counts = []
    for module in modules:
        torch.testing.assert_close(compiled(module, x), module(x))
        counts.append(packed())
    assert counts == [counts[0], 2 * counts[0], 3 * counts[0]]
    for module in [*modules, *modules]:  # in turn, without packing anew
        torch.testing.assert_close(compiled(module, x), module(x))
    assert packed() == counts[2]
    del module
    while modules:
        modules.pop()
        gc.collect()
        assert packed() == len(modules) * counts[0]


def test_new_weights_at_the_address_of_old_ones() -> None:
    def call(module: Any, x: Any) -> Any:
        return module(x)

    compiled = torch.compile(call, backend="tilevm", options={"freeze": True}, dynamic=True)
    x = torch.randn(33, 65)
    addresses = []
    for seed in range(20):
        module = mlp(seed)
        addresses.append(module.up.weight.data_ptr())
        torch.testing.assert_close(compiled(module, x), module(x))
        del module
    gc.collect()
    assert packed() == 0
    if os.environ.get("TILEVM_SANITIZED") != "address":  # which gives no address soon again
        assert len(set(addresses)) < len(addresses), "the allocator gave no address twice"


def test_bounded() -> None:
    module = mlp()
    x = torch.randn(33, 65)
    plain = tilevm.compile(module)(x)
    with tilevm.config.patch(packed_memory=4 * 65 * 200 * 2):  # one of the two
        compiled = tilevm.compile(module, freeze=True)
        torch.testing.assert_close(compiled(x), plain)
        assert 0 < packed() <= tilevm.config.packed_memory
        text = explained(compiled, x)
        assert text.count("packed ahead") == 1, text
    with tilevm.config.patch(packed_memory=1):
        compiled = tilevm.compile(mlp(), freeze=True)
        assert torch.equal(compiled(x), plain)
        assert torch.equal(compiled(x), plain)
        assert "packed ahead" not in explained(compiled, x)
    compiled(x)  # there is room now
    assert explained(compiled, x).count("packed ahead") == 2


def test_threads() -> None:
    module = mlp()
    inputs = [torch.randn(rows, 65) for rows in ROWS]
    want = [module(x) for x in inputs]
    compiled = tilevm.compile(module, freeze=True)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with torch.no_grad():
                for _ in range(20):
                    for x, y in zip(inputs, want, strict=True):
                        torch.testing.assert_close(compiled(x), y)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    one = tilevm.compile(module, freeze=True)
    count = packed()
    one(inputs[-1])
    assert packed() == count, "all threads shared"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork() -> None:
    code = (
        "import os, torch, tilevm\n"
        "torch.manual_seed(0)\n"
        "module = torch.nn.Linear(65, 200).eval()\n"
        "x = torch.randn(33, 65)\n"
        "with torch.no_grad():\n"
        "    compiled = tilevm.compile(module, freeze=True)\n"
        "    before = compiled(x)\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        other = tilevm.compile(torch.nn.Linear(65, 90).eval(), freeze=True)\n"
        "        other(x)\n"
        "        os._exit(0 if torch.equal(compiled(x), before) else 1)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "    assert torch.equal(compiled(x), before)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# What is seen -------------------------------------------------------------------------------------


def test_a_parameter_that_is_replaced_is_seen() -> None:
    module = mlp()
    compiled = tilevm.compile(module, freeze=True)
    x = torch.randn(33, 65)
    compiled(x)
    count = packed()
    module.up.weight = nn.Parameter(torch.randn(200, 65))
    torch.testing.assert_close(compiled(x), module(x))
    gc.collect()
    assert packed() == count
    other = mlp(1)
    module.load_state_dict(other.state_dict(), assign=True)
    torch.testing.assert_close(compiled(x), other(x))


def test_memory_that_is_replaced_is_seen() -> None:
    """It is not promised, but costs nothing."""
    module = mlp()
    compiled = tilevm.compile(module, freeze=True)
    x = torch.randn(33, 65)
    compiled(x)
    old = module.up.weight.data
    module.up.weight.data = torch.randn(200, 65)
    torch.testing.assert_close(compiled(x), module(x))
    module.up.weight.data = old
    torch.testing.assert_close(compiled(x), module(x))


def test_calls_that_want_gradients_read_the_weights() -> None:
    module = mlp()
    compiled = tilevm.compile(module, freeze=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    x = torch.randn(33, 65)
    with torch.enable_grad():
        for _ in range(3):
            want = module(x).square().mean()
            loss = compiled(x).square().mean()
            torch.testing.assert_close(loss, want)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert packed() == 0


def test_kept_by_copies_and_pickles() -> None:
    x = torch.randn(33, 65)
    compiled = tilevm.compile(mlp(), freeze=True)
    for twin in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        before = packed()
        torch.testing.assert_close(twin(x), compiled(x))
        assert packed() > before


def test_wrong_values_are_refused() -> None:
    with pytest.raises(TypeError, match="freeze is 1, which is neither False nor True"):
        tilevm.compile(mlp(), freeze=1)  # type: ignore[arg-type]
    decorated = tilevm.compile(freeze=True)(mlp())
    decorated(torch.randn(33, 65))
    assert packed() > 0


# Without it ---------------------------------------------------------------------------------------


def by_adam(module: Any) -> None:
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1, fused=True)
    for parameter in module.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    for parameter in module.parameters():
        parameter.grad = None


def by_data(module: Any) -> None:
    module.up.weight.data = torch.randn(200, 65)


def by_data_in_place(module: Any) -> None:
    module.up.weight.data.mul_(3)


def by_numpy(module: Any) -> None:
    module.up.weight.detach().numpy()[...] *= -2


def by_state_dict(module: Any) -> None:
    module.load_state_dict(mlp(7).state_dict())


CHANGES = [by_adam, by_data, by_data_in_place, by_numpy, by_state_dict]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("rows", [1, 33, 300])
@pytest.mark.parametrize("door", ["compile", "torch_compile"])
def test_without_freeze_new_weights_are_served(
    change: Callable[[Any], None], rows: int, door: str
) -> None:
    module = mlp()
    compiled = (
        tilevm.compile(module)
        if door == "compile"
        else torch.compile(module, backend="tilevm", dynamic=True)
    )
    x = torch.randn(rows, 65)
    for calls in (1, 3):
        for _ in range(calls):
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
        change(module)
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
    assert packed() == 0

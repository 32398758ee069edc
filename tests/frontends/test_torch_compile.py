"""`tilevm.compile`: keys, guards, containers, modules, mutation, fallbacks."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tilevm  # noqa: E402
from tilevm import errors  # noqa: E402


@pytest.fixture(autouse=True)
def fresh_stats() -> None:
    tilevm.stats.reset()


def captures() -> int:
    return int(tilevm.stats()["captures"])


def eager_reasons() -> list[str]:
    return [key for key in tilevm.stats()["flushes"] if key.startswith("eager")]


@dataclass
class Pair:
    first: Any
    second: Any


class Named(NamedTuple):
    x: Any
    y: Any


class Cache:
    """As the caches of language models: grows in place."""

    def __init__(self) -> None:
        self.layers: list[Any] = []
        self.seen = 0

    def update(self, x: Any) -> Any:
        if not self.layers:
            self.layers.append(x * 1)
        else:
            self.layers[0] = torch.cat([self.layers[0], x], 0)
        self.seen = self.seen + x.shape[0]
        return self.layers[0]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.drop = nn.Dropout(0.5)
        self.b = nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        return self.b(self.drop(self.norm(torch.relu(self.a(x)))))

    def extra(self) -> str:
        return "extra"


def net() -> Net:
    torch.manual_seed(0)
    model = Net().eval()
    model.requires_grad_(False)
    return model


# Sizes and guards


def test_one_capture_for_all_sizes() -> None:
    f = tilevm.compile(lambda x, w: torch.softmax(x @ w, -1) + 1)
    for m, k, n in [(3, 4, 5), (1, 4, 5), (7, 1, 2), (2, 3, 1), (1, 1, 1), (0, 4, 5), (64, 65, 3)]:
        x, w = torch.randn(m, k), torch.randn(k, n)
        torch.testing.assert_close(f(x, w), torch.softmax(x @ w, -1) + 1)
    assert captures() == 1


def test_first_call_of_size_one() -> None:
    f = tilevm.compile(lambda x: x * 2 + x.sum(0))
    for n in (1, 5, 0, 1):
        x = torch.randn(n, 3)
        torch.testing.assert_close(f(x), x * 2 + x.sum(0))
    assert captures() == 1


def test_broadcast_pattern_is_seen() -> None:
    f = tilevm.compile(lambda x, y: x + y)
    for a, b in [
        ((4, 3), (4, 3)),
        ((4, 3), (1, 3)),
        ((1, 3), (4, 3)),
        ((1, 1), (5, 2)),
        ((2, 3), (2, 3)),
    ]:
        x, y = torch.randn(a), torch.randn(b)
        torch.testing.assert_close(f(x, y), x + y)
    assert not eager_reasons()


def test_parameter_of_stand_in_size_does_not_confuse() -> None:
    for n in range(2, 45):
        w = torch.randn(n)
        f = tilevm.compile(lambda x, w=w: x * w)
        torch.testing.assert_close(f(torch.ones(1)), w)


def test_branch_on_size_is_a_guard() -> None:
    def f(x: Any) -> Any:
        return x + 1 if x.shape[0] > 3 else x * 2

    compiled = tilevm.compile(f)
    for n in (5, 2, 9, 1, 0, 4):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), f(x))
    assert captures() == 2
    assert "shape[0] > 3" in compiled.guards
    assert "Not seen" in compiled.guards


@pytest.mark.parametrize("first", [4, 0])
def test_branch_on_empty(first: int) -> None:
    def f(x: Any) -> Any:
        return x.sum() + 1 if x.numel() else x.sum() - 1

    compiled = tilevm.compile(f)
    for n in (first, 0, 3, 0):
        x = torch.ones(n)
        assert compiled(x) == f(x)


def test_squeeze_sees_ones() -> None:
    f = tilevm.compile(lambda x: x.squeeze(0) * 2)
    assert f(torch.ones(3, 4)).shape == (3, 4)
    assert f(torch.ones(1, 4)).shape == (4,)
    assert f(torch.ones(2, 4)).shape == (2, 4)


def test_loop_over_a_size() -> None:
    def f(x: Any) -> Any:
        total = x[0]
        for i in range(1, x.shape[0]):
            total = total + x[i]
        return total

    compiled = tilevm.compile(f)
    for n in (3, 4, 3):
        x = torch.randn(n, 2)
        torch.testing.assert_close(compiled(x), f(x))
    assert captures() == 2


def test_derived_size() -> None:
    f = tilevm.compile(lambda x: x.reshape(2, -1) + 1)
    for n in (6, 10, 2):
        assert f(torch.ones(n)).shape == (2, n // 2)
    assert captures() == 1
    with pytest.raises(RuntimeError):
        f(torch.ones(7))


def test_dims_are_checked_and_used() -> None:
    dim = tilevm.Dim(min=2, max=64, multiple_of=2)
    f = tilevm.compile(lambda x: x + 1, dims={"x": {0: dim}})
    assert f(torch.ones(4)).sum() == 8
    with pytest.raises(errors.ShapeError, match=r"x\.shape\[0\] is 3"):
        f(torch.ones(3))


# Numbers


def test_numbers_are_run_time_scalars() -> None:
    f = tilevm.compile(lambda x, a, n: x * a + n)
    for a, n in [(0.5, 3), (2.5, 7), (-1.0, 100), (float("inf"), 5)]:
        torch.testing.assert_close(f(torch.ones(3), a, n), torch.ones(3) * a + n)
    assert captures() == 1


def test_number_that_decides_is_a_guard() -> None:
    def f(x: Any, p: float, dim: int) -> Any:
        return x.sum(dim) * 2 if p > 0.5 else x.sum(dim)

    compiled = tilevm.compile(f)
    for p, dim in [(0.7, 0), (0.2, 0), (0.7, 1), (0.7, -1)]:
        torch.testing.assert_close(compiled(torch.ones(2, 3), p, dim), f(torch.ones(2, 3), p, dim))
    assert not eager_reasons()


def test_types_of_numbers_are_keys() -> None:
    f = tilevm.compile(lambda x, n: x * n)
    assert f(torch.arange(3), 2).dtype == torch.int64
    assert f(torch.arange(3), 2.0).dtype == torch.float32
    assert f(torch.arange(3), True).dtype == torch.int64


# Containers


def test_containers_in_and_out() -> None:
    def f(x: Any, *, rest: Any, flag: bool = True, none: Any = None) -> Any:
        a, (b, c) = rest["a"], rest["bc"]
        return {
            "sum": x + a, "pair": Pair(b * 2, None), "named": Named(c, [x, none]), "flag": flag,
            "ordered": OrderedDict(k=c + 1), "n": x.shape[0], "text": "t",
        }  # fmt: skip

    compiled = tilevm.compile(f)
    for n in (3, 5):
        x = torch.randn(n)
        rest = {"a": x + 1, "bc": (x + 2, x + 3)}
        got, want = compiled(x, rest=rest), f(x, rest=rest)
        torch.testing.assert_close(got["sum"], want["sum"])
        assert isinstance(got["pair"], Pair)
        assert got["pair"].second is None
        torch.testing.assert_close(got["pair"].first, want["pair"].first)
        assert isinstance(got["named"], Named)
        assert got["named"].x is rest["bc"][1]
        assert got["named"].y[0] is x
        assert type(got["ordered"]) is OrderedDict
        assert (got["n"], got["flag"], got["text"]) == (n, True, "t")
    assert captures() == 1
    assert (
        compiled(
            torch.ones(3), rest=rest | {"a": torch.ones(3), "bc": [torch.ones(3)] * 2}, flag=False
        )["flag"]
        is False
    )


def test_dataclass_argument() -> None:
    f = tilevm.compile(lambda p: p.first + p.second)
    torch.testing.assert_close(f(Pair(torch.ones(3), 2.0)), torch.full((3,), 3.0))
    torch.testing.assert_close(f(Pair(torch.ones(4), 3.0)), torch.full((4,), 4.0))
    assert captures() == 1


def test_cache_objects_grow_in_place() -> None:
    def f(x: Any, cache: Any) -> Any:
        return cache.update(x).sum(0), cache

    compiled = tilevm.compile(f)
    want_cache, got_cache = Cache(), Cache()
    for n in (3, 1, 1, 2):
        x = torch.randn(n, 4)
        want, _ = f(x, want_cache)
        got, same = compiled(x, got_cache)
        assert same is got_cache
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(got_cache.layers[0], want_cache.layers[0])
        assert got_cache.seen == want_cache.seen
    assert captures() <= 3
    assert not eager_reasons()


# Memory


def test_results_do_not_share_storage() -> None:
    f = tilevm.compile(lambda x: x * 2)
    x = torch.ones(4)
    a, b = f(x), f(x)
    assert a.data_ptr() != b.data_ptr()


def test_views_of_inputs_are_views() -> None:
    f = tilevm.compile(lambda x: (x, x[:, 1:], x.t(), x + 1))
    for n in (3, 5):
        x = torch.randn(n, 4)
        same, part, turned, other = f(x)
        assert same is x
        assert part.data_ptr() == x[:, 1:].data_ptr()
        assert turned.stride() == x.t().stride()
        part.fill_(7)
        assert (x[:, 1:] == 7).all()
        assert other.data_ptr() != x.data_ptr()
    assert captures() == 1


@pytest.mark.parametrize("change", ["t", "slice", "step", "expand", "channels_last"])
def test_strides(change: str) -> None:
    def layout(x: Any) -> Any:
        return {
            "t": lambda: x.transpose(1, 2),
            "slice": lambda: x[:, 1:],
            "step": lambda: x[:, :, ::2],
            "expand": lambda: x[:, :1].expand_as(x),
            "channels_last": lambda: x[None].contiguous(memory_format=torch.channels_last),
        }[change]()

    f = tilevm.compile(lambda x: torch.relu(x) + 1)
    for n in (3, 5):
        x = layout(torch.randn(n, 4, 6))
        want = torch.relu(x) + 1
        torch.testing.assert_close(f(x), want)
        if change != "expand":
            assert f(x).stride() == want.stride()


GAPS: dict[str, tuple[Any, Any]] = {
    "gaps in both dims": (torch.empty(6, 8)[::2, ::2], torch.empty(4, 3).t()),
    "... of a transpose": (torch.empty(8, 6)[::2, ::2].t(), torch.empty(3, 4)),
    "... after another": (torch.empty(4, 3).t(), torch.empty(6, 8)[::2, ::2]),
    "... in three": (torch.empty(4, 6, 8)[:, ::2, ::2], torch.empty(4, 4, 3).transpose(1, 2)),
    "a gap in one": (torch.empty(3, 8)[:, :4], torch.empty(4, 3).t()),
    "a gap between columns": (torch.empty(3, 16)[:, :8:2], torch.empty(4, 3).t()),
}


@pytest.mark.parametrize("name", GAPS)
def test_results_lie_as_the_first_operand_does(name: str) -> None:
    x, y = GAPS[name]
    f = tilevm.compile(lambda x, y: (x + y, x * 2, x.exp() + y.mT.mT))
    for a, b in ((x, y), (y, x), (x, x), (y, y)):
        want = (a + b, a * 2, a.exp() + b)
        assert [z.stride() for z in f(a, b)] == [z.stride() for z in want]
    assert not tilevm.stats()["flushes"]


def test_mutated_argument_and_buffer() -> None:
    class Count(nn.Module):
        n: Any

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.n.add_(1)
            x.mul_(2)
            return x + self.n

    model = Count()
    compiled = tilevm.compile(copy.deepcopy(model))
    for n in (2, 4):
        x, y = torch.ones(n, 3), torch.ones(n, 3)
        torch.testing.assert_close(compiled(y), model(x))
        torch.testing.assert_close(y, x)
        torch.testing.assert_close(compiled.n, model.n)
    assert captures() == 1
    assert not eager_reasons()


# Modules


def test_module_keeps_its_face() -> None:
    model = net()
    compiled: Any = tilevm.compile(model)
    face: type = type(compiled)
    assert issubclass(face, nn.Module)
    assert list(compiled.state_dict()) == list(model.state_dict())
    assert compiled.a is model.a
    assert compiled.extra() == "extra"
    assert [n for n, _ in compiled.named_parameters()] == [n for n, _ in model.named_parameters()]
    x = torch.randn(5, 8)
    torch.testing.assert_close(compiled(x), model(x))
    for clone in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        torch.testing.assert_close(clone(x), model(x))
        assert clone.a is not model.a


def test_train_and_eval() -> None:
    model = net()
    compiled = tilevm.compile(model)
    x = torch.ones(64, 8)
    torch.testing.assert_close(compiled(x), model(x))
    assert compiled.train() is compiled
    assert model.drop.training
    torch.manual_seed(1)
    got = compiled(x)
    torch.manual_seed(1)
    torch.testing.assert_close(got, model(x))
    model.drop.eval()
    torch.testing.assert_close(compiled(x), model(x))
    compiled.eval()
    assert not model.training
    torch.testing.assert_close(compiled(x), model(x))


def test_weights_are_read_at_each_call() -> None:
    model = net()
    compiled = tilevm.compile(model)
    x = torch.rand(3, 8)  # positive: with weights near 1, no sum is much smaller than its terms
    compiled(x)
    model.a.weight.mul_(2)
    torch.testing.assert_close(compiled(x), model(x))
    model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()})
    torch.testing.assert_close(compiled(x), model(x))
    model.a.bias.data = torch.randn(16)
    torch.testing.assert_close(compiled(x), model(x))
    assert captures() == 1
    model.b.weight = nn.Parameter(torch.randn(4, 16), requires_grad=False)
    torch.testing.assert_close(compiled(x), model(x))
    model.b = nn.Linear(16, 2).requires_grad_(False)
    torch.testing.assert_close(compiled(x), model(x))
    model.to(torch.bfloat16)
    torch.testing.assert_close(compiled(x.bfloat16()), model(x.bfloat16()), rtol=0.02, atol=0.02)
    assert not eager_reasons()


def test_function_over_a_module() -> None:
    model = net()
    f = tilevm.compile(lambda x: model(x) * 2)
    x = torch.randn(3, 8)
    torch.testing.assert_close(f(x), model(x) * 2)
    model.a.weight.zero_()
    torch.testing.assert_close(f(x), model(x) * 2)
    model.b = nn.Linear(16, 2).requires_grad_(False)
    torch.testing.assert_close(f(x), model(x) * 2)


def test_decorated_method() -> None:
    class Scale:
        def __init__(self, by: float) -> None:
            self.by = torch.tensor(by)

        @tilevm.compile
        def run(self, x: Any) -> Any:
            return x * self.by

    assert Scale(3.0).run(torch.ones(2)).sum() == 6
    assert Scale(4.0).run(torch.ones(2)).sum() == 8


# Gradients and modes


def test_gradients_are_eagers() -> None:
    torch.manual_seed(0)
    model = Net().eval()
    compiled = tilevm.compile(model)
    for n in (3, 5):
        x = torch.randn(n, 8, requires_grad=True)
        want = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
        y = compiled(x)
        assert y.requires_grad
        got = torch.autograd.grad(y.square().sum(), [x, *model.parameters()])
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        assert not compiled(x).requires_grad


def test_autocast() -> None:
    model = net()
    compiled = tilevm.compile(model)
    x = torch.randn(3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        got, want = compiled(x), model(x)
    assert got.dtype == want.dtype == torch.bfloat16
    torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)
    assert compiled(x).dtype == torch.float32


def test_default_dtype_is_a_key() -> None:
    f = tilevm.compile(lambda x: x / 2)
    assert f(torch.arange(3)).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert f(torch.arange(3)).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


# What cannot be captured


def test_branch_on_data_is_recorded() -> None:
    def f(x: Any) -> Any:
        return x * 2 if x.sum() > 0 else x - 1

    compiled = tilevm.compile(f)
    for sign in (1, -1):
        x = torch.full((3,), float(sign))
        torch.testing.assert_close(compiled(x), f(x))
    assert not eager_reasons()
    assert [n for r, n in tilevm.stats()["flushes"].items() if r.startswith("fuse: ")] == [2]
    assert "recorded: GuardOnDataDependentSymNode" in compiled.guards
    with pytest.raises(errors.CaptureError, match="runs eagerly"):
        compiled.explain(torch.ones(3))


def test_unknown_operator_is_called_out_with_its_reason() -> None:
    f = tilevm.compile(
        lambda x: torch.linalg.inv(x) + torch.matrix_exp(x) + x.to(torch.float8_e4m3fn).float()
    )
    x = torch.eye(3) * 2
    torch.testing.assert_close(f(x), torch.linalg.inv(x) + torch.matrix_exp(x) + x)
    reasons = {c.name: c.reason for c in f.explain(x).callouts}
    assert reasons["aten.matrix_exp.default"] == "not in the table of operators"
    assert "dtype float8_e4m3fn" in reasons.values()
    assert any("linalg_inv" in name for name in reasons)


def test_random_numbers_are_drawn_in_order() -> None:
    def f(x: Any) -> Any:
        return x + torch.rand_like(x), torch.randn(x.shape[0]) * 2, torch.rand_like(x)

    compiled = tilevm.compile(f)
    x = torch.ones(5)
    for _ in range(2):
        torch.manual_seed(3)
        got = compiled(x)
        torch.manual_seed(3)
        torch.testing.assert_close(got, f(x))


def test_errors_of_the_function_are_its_own() -> None:
    f = tilevm.compile(lambda x, y: x @ y)
    with pytest.raises(RuntimeError):
        f(torch.ones(2, 3), torch.ones(4, 5))
    with pytest.raises(TypeError, match="no option nonsense; there are: dims, freeze, tier"):
        tilevm.compile(lambda x: x, nonsense=1)
    with pytest.raises(TypeError, match="function or a module"):
        tilevm.compile(cast(Any, 3))


def test_subclass_runs_eagerly() -> None:
    Mine = type("Mine", (torch.Tensor,), {})

    f = tilevm.compile(lambda x: x + 1)
    got = f(torch.ones(3).as_subclass(Mine))
    assert isinstance(got, Mine)
    assert eager_reasons()


def test_explain_text() -> None:
    f = tilevm.compile(lambda x, w: torch.softmax(x @ w, -1) * 2)
    text = str(tilevm.explain(f)(torch.randn(3, 4), torch.randn(4, 5)))
    for part in ("graph:", "guards:", "steps:", "cuts", "call-outs:", "matmul", "exp_f32"):
        assert part in text
    assert "test_torch_compile.py" in text


def test_square_root_of_a_size_is_no_constant() -> None:
    import math

    def f(q: Any) -> Any:
        return torch.softmax(q @ q.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1)

    plain = math.sqrt
    compiled = tilevm.compile(f)
    for sizes in ((3, 64), (7, 40), (2, 3), (5, 1), (1, 9)):
        x = torch.randn(*sizes)
        torch.testing.assert_close(compiled(x), f(x))
    assert len(compiled.captures) == 1
    assert not compiled.explain(torch.ones(3, 4)).callouts
    assert math.sqrt is plain


def test_causal_where_sizes_say_so() -> None:
    attention = torch.nn.functional.scaled_dot_product_attention

    def f(q: Any, k: Any) -> Any:
        causal = q.shape[-2] > 1
        return torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=causal)

    compiled = tilevm.compile(f)
    for queries, keys in ((5, 5), (1, 5), (2, 7), (1, 1)):
        q, k = torch.randn(2, queries, 8), torch.randn(2, keys, 8)
        torch.testing.assert_close(compiled(q, k), f(q, k))
    assert not eager_reasons()
    assert torch.nn.functional.scaled_dot_product_attention is attention


def test_errors_of_the_function_are_shown_alone() -> None:
    """Not as if they came of what tilevm tried before."""
    for f in (
        lambda x: x.view(2, -1),
        lambda x: x[torch.tensor(9)],
        lambda x: dict[str, int]()["a"],
    ):
        compiled = tilevm.compile(f)
        for _ in range(2):
            with pytest.raises((RuntimeError, LookupError)) as error:
                compiled(torch.randn(3, 3))
            assert error.value.__context__ is None

"""`tilevm.compile` does not raise where eager does not: it captures the call or runs it eagerly."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import tilevm
from tilevm import errors


@pytest.fixture(autouse=True)
def fresh_counters() -> Iterator[None]:
    tilevm.stats.reset()
    yield


def reasons() -> str:
    return " | ".join(tilevm.stats()["flushes"])


def same(f: Callable[..., Any], *calls: tuple[Any, ...]) -> Any:
    """Compare all calls, each twice, with eager; returns the compiled function."""
    compiled = tilevm.compile(f)
    for args in calls:
        for _ in range(2):
            torch.testing.assert_close(compiled(*args), f(*args))
    return compiled


# What is captured ---------------------------------------------------------------------------------


def test_negative_index_that_varies() -> None:
    x = torch.arange(7.0)
    same(lambda x, k: x[-k] + 1, (x, 2), (x, 5), (x, -3), (x, 2))
    same(lambda x, k: x[k] + 1, (x, 2), (x, -5), (x, 0))
    same(lambda x: x[-(x.shape[0] // 2)] + 1, (x,), (x[:4],))
    assert not reasons()


def test_index_out_of_range_is_eagers_error() -> None:
    compiled = tilevm.compile(lambda x, k: x[k] + 1)
    compiled(torch.arange(7.0), 2)
    with pytest.raises(IndexError):
        compiled(torch.arange(7.0), 9)


def test_numbers_are_numbers_to_isinstance() -> None:
    def f(x: Any, n: Any, a: Any) -> Any:
        part = slice(-n, None) if isinstance(n, int) else n
        return x[part] * a if isinstance(a, float) else x[part]

    x = torch.arange(6.0)
    same(f, (x, 1, 2.5), (x, 3, 1.5), (x, 0, 1.5), (x, torch.tensor([1, 2]), 2.0))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int8, torch.complex64, torch.uint16]
)
def test_squeeze_keeps_the_rank_of_other_sizes(dtype: torch.dtype) -> None:
    calls = [(torch.ones(n, 2, dtype=dtype),) for n in (5, 1, 3, 1)]
    same(lambda x: x.squeeze(0), *calls)
    same(lambda x: x.clone().squeeze(), *calls)
    assert not reasons()


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_views_of_another_tensors_shape(dtype: torch.dtype) -> None:
    for f in (
        lambda x, y: x.view_as(x),
        lambda x, y: x.view_as(y),
        lambda x, y: x.reshape_as(y),
        lambda x, y: x[:, :1].expand_as(x),
        lambda x, y: x.type_as(x),
    ):
        same(
            f, *[(torch.ones(n, 4, dtype=dtype), torch.ones(2 * n, 2, dtype=dtype)) for n in (3, 5)]
        )
    x = torch.ones(3, 4, dtype=dtype)
    assert tilevm.compile(lambda x: x.view_as(x))(x).data_ptr() == x.data_ptr()


def test_broadcast_with_a_size_that_depends_on_data() -> None:
    calls = [(torch.arange(float(n)), torch.ones(m)) for n, m in ((5, 4), (5, 1), (2, 5), (5, 4))]
    same(lambda x, y: x[x > 0] + y, *calls)


def test_generate_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=16, vocab_size=50,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(3, 50, (2, 5))
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, **options)
    model.forward = tilevm.compile(model.forward)
    assert torch.equal(model.generate(ids, **options), expected)
    assert not reasons()


# Gradients ----------------------------------------------------------------------------------------


def gradients(f: Callable[..., Any], module: Any, x: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    f(x).square().sum().backward()
    return [p.grad.clone() for p in module.parameters()]


def test_training_of_a_convolution() -> None:
    module = torch.nn.Conv2d(3, 4, 3)
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(
        gradients(tilevm.compile(module), module, x), gradients(module, module, x)
    )
    assert not reasons()


def test_constants_in_graphs_that_are_differentiated() -> None:
    def f(x: Any) -> Any:
        return (x[torch.tensor([0, 0, 2])] * torch.tensor([1.0, 2.0, 3.0])).sum()

    compiled = tilevm.compile(f)
    for n in (3, 5):
        x = torch.randn(n, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        compiled(x).backward()
        f(y).backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert not reasons()


@pytest.mark.parametrize("factor", [2.5, 0.7, 1.1])
def test_sizes_that_floats_make(factor: float) -> None:
    """Of one capture, also where the exact product would be rounded to another size."""

    def resized(x: Any, factor: Any) -> Any:
        return torch.nn.functional.interpolate(x, scale_factor=factor) * 2

    def constant(x: Any) -> Any:
        return resized(x, factor), x.new_zeros(math.ceil(x.shape[3] * factor)) + 1

    images = [torch.randn(2, 3, n, 20 - n) for n in (10, 5, 13, 9)]
    same(constant, *((x,) for x in images))
    same(resized, *((x, factor) for x in images))
    assert tilevm.stats()["captures"] == 2
    assert not reasons()


@pytest.mark.parametrize(
    "function",
    [
        lambda n: torch.signal.windows.hann(n) * 2,
        lambda n: torch.signal.windows.nuttall(n, sym=False),
        lambda n: torch.unravel_index(torch.arange(n), (4, n)),
    ],
)
def test_constants_that_are_detached(function: Any) -> None:
    same(function, (10,), (7,))
    assert not reasons()


@pytest.mark.parametrize(
    "name", ["dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"]
)
@pytest.mark.parametrize("options", [{"training": False}, {"p": 0.0}])
def test_dropouts_that_do_nothing(name: str, options: dict[str, Any]) -> None:
    """Their result is the argument."""
    dropout = getattr(torch.nn.functional, name)
    compiled = tilevm.compile(lambda x: (dropout(x, **options), x + 1))
    x = torch.randn(2, 3, 4, 5, 6)
    found, more = compiled(x)
    assert found.data_ptr() == x.data_ptr() and torch.equal(found, x)
    assert torch.equal(more, x + 1)
    assert not reasons()


def test_sizes_inside_of_operators() -> None:
    """Which only the data know, and which are of none of the results."""

    def f(x: Any, i: Any, before: int, after: int) -> Any:
        padded = torch.nn.functional.pad(x, (before, after, -1, 1), mode="circular")
        return padded * 2, torch.combinations(x[0, 0]).sum(0), x.narrow(2, i, 2) * 3

    same(f, *((torch.randn(2, 5, n), torch.tensor(n - 4), 2, 0) for n in (5, 7)))
    assert not reasons()


def test_constants_that_are_changed() -> None:
    def f(x: Any) -> Any:
        made = torch.tensor([1.0, 2.0])
        made += x
        return made.sum(), made * x

    same(f, (torch.randn(2),), (torch.randn(2),))
    assert not reasons()


# What runs eagerly --------------------------------------------------------------------------------


def test_an_expanded_tensor_is_filled() -> None:
    def f(x: Any) -> Any:
        return x.fill_(3) + 1

    compiled = tilevm.compile(f)
    base = torch.zeros(1)
    assert compiled(base.expand(4)).tolist() == [4.0] * 4
    assert base.item() == 3
    assert "expanded tensor" in reasons()


@pytest.fixture
def operators() -> Iterator[Any]:
    """Operators whose metadata are wrong: another dtype, and an error."""
    made: Any = torch.library  # without types
    library = made.Library("tilevm_wrong", "FRAGMENT")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CPU")
    library.impl("double", lambda x: x.double(), "Meta")
    library.define("untraced(Tensor x) -> Tensor")
    library.impl("untraced", lambda x: x.clone(), "CPU")
    library.impl("untraced", lambda x: x.nonesuch(), "Meta")
    yield torch.ops.tilevm_wrong
    library._destroy()


@pytest.mark.parametrize("wants_gradient", [False, True])
def test_results_that_metadata_do_not_tell(operators: Any, wants_gradient: bool) -> None:
    """They are found when the call runs: of a graph of torch.compile as of tilevm.compile."""

    def f(x: Any, y: Any) -> Any:
        return operators.double(y * 3), x + 1

    x, y = torch.randn(4, requires_grad=wants_gradient), torch.randn(4)
    torch._dynamo.reset()
    for compiled in (torch.compile(f, backend="tilevm"), tilevm.compile(f)):
        tilevm.stats.reset()
        for _ in range(2):
            torch.testing.assert_close(compiled(x, y), f(x, y))
        assert "must be float64, but is torch.float32" in reasons()


def test_gradients_of_what_dynamo_cannot_trace(operators: Any) -> None:
    def f(x: Any) -> Any:
        return operators.untraced(x.detach()) + x * 2

    compiled = tilevm.compile(f)
    for _ in range(5):
        x = torch.randn(3, requires_grad=True)
        y = compiled(x)
        torch.testing.assert_close(y, f(x))
        (found,) = torch.autograd.grad(y.sum(), x)
        assert found.tolist() == [2.0] * 3
    assert sum(tilevm.stats()["flushes"].values()) == 5


def test_gradients_of_what_dynamo_can_trace_of_other_arguments(operators: Any) -> None:
    def f(x: Any, plain: bool) -> Any:
        return x * 2 if plain else operators.untraced(x.detach()) + x * 2

    compiled = tilevm.compile(f)
    for plain in (True, False, True, False, True):
        x = torch.randn(3, requires_grad=True)
        torch.testing.assert_close(compiled(x, plain), f(x, plain))
    assert sum(tilevm.stats()["flushes"].values()) == 2


def test_gradients_of_what_dynamo_cannot_trace_after_a_graph_break(operators: Any) -> None:
    """What came before has run: once."""
    ran: list[int] = []

    def f(x: Any) -> Any:
        y = x * 2
        torch._dynamo.graph_break()
        ran.append(1)
        torch._dynamo.graph_break()
        return operators.untraced(y.detach()) + y

    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        tilevm.compile(f)(torch.randn(3, requires_grad=True))
    assert ran == [1]


@pytest.mark.parametrize("name", ["hessian", "jacrev", "jacfwd"])
def test_transforms_that_dynamo_leaves_in_the_middle(name: str) -> None:
    """A trace that fails inside of forward mode leaves no level of it behind."""
    transform = getattr(torch.func, name)

    def f(x: Any) -> Any:
        return transform(lambda a: (a**3).sum())(x)

    compiled = tilevm.compile(f)
    for n in (3, 4, 3):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), f(x))


def test_gradients_are_asked_for_again() -> None:
    compiled = tilevm.compile(lambda x: (x.exp() * x).softmax(-1))
    results = []
    for f in (compiled, compiled._fn):
        x = torch.linspace(0, 1, 6).view(2, 3).requires_grad_()
        y = f(x)
        y[0, 0].backward(retain_graph=True)
        y[1].square().sum().backward(retain_graph=True)
        y[0, 1].backward()
        results.append(x.grad)
    torch.testing.assert_close(*results)


def test_batch_norm_without_channels() -> None:
    """PyTorch looks for their number where there is none."""
    compiled = tilevm.compile(torch.nn.functional.batch_norm)
    with pytest.raises(RuntimeError):
        compiled(torch.randn(4), torch.zeros(5), torch.ones(5))
    assert "without channels" in reasons()


def test_views_whose_places_only_the_data_know() -> None:
    compiled = tilevm.compile(lambda x, i: x.tensor_split(i))
    x, i = torch.zeros(9), torch.tensor([2, 5])
    for part in compiled(x, i):
        part.add_(1)
    assert x.tolist() == [1.0] * 9
    assert reasons().count("a result is a view of an input") == 1
    tilevm.compile(lambda x, i: x.narrow(0, i, 2))(x, i[0]).add_(1)  # made of what is given
    assert x.tolist() == [1.0] * 2 + [2.0] * 2 + [1.0] * 5
    assert reasons().count("a result is a view of an input") == 1


def test_transforms_of_torch_func() -> None:
    compiled = tilevm.compile(lambda x: x * 2)
    x = torch.ones(3, 4)
    compiled(x[0])
    compiled(x)
    torch.testing.assert_close(torch.func.vmap(compiled)(x), x * 2)
    torch.testing.assert_close(torch.func.jvp(compiled, (x,), (x,))[1], x * 2)
    torch.testing.assert_close(torch.func.grad(lambda x: compiled(x).sum())(x), x * 0 + 2)
    assert "torch.func" in reasons()


def test_ints_of_more_than_64_bits() -> None:
    x = torch.ones(3)
    same(lambda x, n: x + (n >> 60), (x, 2**70), (x, 2**61))
    assert "64 bits" in reasons()


def test_calls_without_arguments() -> None:
    same(lambda: torch.ones(3) * 2, ())
    assert "no tensors or numbers" in reasons()


def test_branch_on_data_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    same(lambda x: x + 1 if x.sum() > 0 else x, (torch.ones(3),), (-torch.ones(3),))
    assert capfd.readouterr() == ("", "")
    assert "data-dependent" in reasons()


def test_results_that_hide_tensors() -> None:
    compiled = tilevm.compile(lambda x: (y for y in x))
    assert [type(y) for y in compiled(torch.ones(2, 3))] == [torch.Tensor] * 2
    later = tilevm.compile(lambda x: lambda: x + 1)(torch.ones(2))
    torch.testing.assert_close(later(), torch.full((2,), 2.0))


# Messages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("knobs", "said"), [({"tier": "gpu"}, "tier"), ({"threads": -3}, "-3")])
def test_knobs_are_checked(knobs: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tilevm.compile(torch.relu, **knobs)


def test_dims_by_name() -> None:
    f = tilevm.compile(lambda x, y: x + y, dims={"x": ("B", 4), "y": ("B", None), "B": small()})
    assert f(torch.ones(2, 4), torch.ones(2, 4)).sum() == 16
    for x, y, said in [((2, 4), (3, 4), "equal"), ((2, 5), (2, 5), "is 5"), ((9, 4), (9, 4), "9")]:
        with pytest.raises(errors.ShapeError, match=said):
            f(torch.ones(x), torch.ones(y))


def small() -> tilevm.Dim:
    return tilevm.Dim(max=8)


@pytest.mark.parametrize("dims", [{"x": 3}, {"x": {0: "a", "b": 3}}, {"x": (1.5,)}])
def test_dims_that_say_nothing(dims: Any) -> None:
    with pytest.raises(errors.CaptureError, match=r"dims\['x'\] is"):
        tilevm.compile(torch.relu, dims=dims)


def test_dims_of_an_axis_that_is_not_there() -> None:
    f = tilevm.compile(lambda x: x * 2, dims={"x": {7: tilevm.Dim(4)}})
    with pytest.raises(errors.ShapeError, match="no axis 7"):
        f(torch.ones(3, 4))


# Found by PyTorch's own samples -------------------------------------------------------------------


def test_seeds_inside_run_eagerly() -> None:
    def f(x: Any) -> Any:
        torch.manual_seed(3)
        return x + torch.rand(3)

    compiled = tilevm.compile(f)
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.zeros(3)), f(torch.zeros(3)))
    assert "state of random numbers" in reasons()


def test_seeds_of_other_threads_are_theirs() -> None:
    found: list[Any] = []

    def f(x: Any) -> Any:
        thread = threading.Thread(target=lambda: found.append(torch.manual_seed(5)))
        thread.start()
        thread.join()
        return x + 1

    tilevm.compile(f)(torch.zeros(3))
    assert found


def test_arguments_that_are_sparse_or_have_slots() -> None:
    @dataclass(slots=True)
    class Options:
        scale: float
        tensor: Any

    dense = torch.eye(3)
    compiled = same(lambda x: x * 2, (dense,))
    assert compiled(dense.to_sparse_csr()).layout is torch.sparse_csr
    assert "torch.sparse_csr" in reasons()
    tilevm.stats.reset()
    same(
        lambda x, options: x * options.scale + options.tensor,
        (dense, Options(2.0, torch.ones(3))),
        (dense, Options(3.0, torch.zeros(3))),
    )
    assert not reasons()


def test_numbers_of_operators_that_are_called_out() -> None:
    x = torch.randn(4, 4)
    same(lambda x, n: torch.cumsum(x, n), (x, 0), (x, 1), (x, -1))
    same(lambda x, a: torch.index_add(x, 0, torch.tensor([1]), x[:1], alpha=a), (x, 2.5), (x, 0.5))
    same(lambda x, a, b: torch.histc(x, 4, a, b), (x, -1.0, 1.5), (x, -2.0, 2.0))
    same(lambda x, p: torch.cdist(x, x, p), (x, math.inf), (x, 1.0), (x, -0.0))
    assert not reasons()


def test_shifts_that_become_negative() -> None:
    x = torch.arange(6.0)
    same(lambda x, n: torch.roll(x, n), (x, 2), (x, -1), (x, 0), (x, -4))
    assert not reasons()


@pytest.mark.parametrize("shape", [(5, 7), (1, 1), (2, 3), (3, 0), (0, 2), (64, 65)])
def test_shifts_of_any_length(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    same(
        lambda x, n: (
            x.roll(1),
            x.roll((1, -2), (0, 1)),
            x.roll((3, n), (-1, -1)),
            x.t().roll(100, 0),
            (x + 1).roll(n, 1) * 2,
        ),
        *((x, n) for n in (0, 1, -1, 3, -1000)),
    )
    assert not reasons()


def test_slices_as_arguments() -> None:
    x = torch.arange(12.0).reshape(4, 3)
    same(lambda x, s: x[s] * 2, (x, slice(1, 3)), (x, slice(0, 2)), (x, slice(None, None)))
    assert not reasons()


def test_squeeze_of_no_dims() -> None:
    x = torch.randn(1, 3, 1)
    same(lambda x: x.clone().squeeze(()), (x,))
    same(lambda x: torch.squeeze_copy(x), (x,), (x[:, :1],))
    assert not reasons()


def test_sizes_that_only_the_data_of_a_scalar_know() -> None:
    same(lambda x: torch.nonzero(x), (torch.tensor(3.0),), (torch.tensor(0.0),))
    same(lambda x: torch.unique(x), (torch.tensor(3.0),))
    assert not reasons()


BYTES = torch.tensor([100, -100], dtype=torch.int8)
BEYOND: dict[str, tuple[Callable[..., Any], Any]] = {
    "clamp": (lambda x: x.clamp(max=300), BYTES),
    "clamp_min": (lambda x: x.clamp_min(300), BYTES),
    "clamp half": (lambda x: x.clamp(min=70000.0), BYTES.half()),
    "clamp float": (lambda x: x.clamp(max=1e39), BYTES.float()),
    "full": (lambda x: torch.full((2,), 300, dtype=torch.int8) + x, BYTES),
    "full_like": (lambda x: torch.full_like(x, 300), BYTES),
    "full_like nan": (lambda x: torch.full_like(x, math.nan), BYTES.long()),
    "full_like -1.0": (lambda x: torch.full_like(x, -1.0), BYTES.byte()),
    "fill": (lambda x: x.clone().fill_(300), BYTES),
    "where": (lambda x: torch.where(x > 0, x, 300), BYTES),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 300), BYTES),
    "masked_fill half": (lambda x: x.masked_fill(x > 0, -1e9), BYTES.half()),
    "pad": (lambda x: torch.nn.functional.pad(x, (1, 1), value=300), BYTES),
}


@pytest.mark.parametrize("name", BEYOND)
def test_numbers_that_a_dtype_does_not_have_raise(name: str) -> None:
    f, x = BEYOND[name]
    compiled = tilevm.compile(f)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cannot be converted to type"):
            f(x)
        with pytest.raises(RuntimeError, match="cannot be converted to type"):
            compiled(x)


def test_numbers_that_a_dtype_has_after_all() -> None:
    same(
        lambda x: x.clamp(min=-math.inf, max=math.inf).masked_fill(x > 0, math.inf), (BYTES.half(),)
    )
    same(lambda x: torch.full_like(x, -1).clamp(max=-3), (BYTES.byte(),))  # wraps
    same(lambda x: x.clamp(max=3.5) + torch.full_like(x, 126.9), (BYTES,))
    assert not reasons()
    assert not tilevm.stats()["callouts"]


# What PyTorch runs, and asks for no strides -------------------------------------------------------


@torch.library.custom_op("tilevm_tests::by_memory", mutates_args=())
def by_memory(x: torch.Tensor) -> torch.Tensor:
    """The elements in the order in which they lie in memory."""
    return x.as_strided((x.numel(),), (1,)).clone()


@by_memory.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.numel())


@pytest.mark.parametrize("name", ["custom", "as_strided", "weight norm"])
def test_memory_is_in_the_order_that_was_traced(name: str) -> None:
    """Convolutions give images whose channels are last."""
    torch.manual_seed(0)
    window = torch.randn(4, 4, 3, 3)
    if name == "weight norm":
        layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(4, 4, 3))
        x = torch.randn(2, 4, 9)
        found = gradients(tilevm.compile(layer), layer, x)
        torch.testing.assert_close(found, gradients(layer, layer, x))
        return
    images = torch.nn.functional.conv2d
    functions = {
        "custom": lambda x: by_memory(images(x, window).relu()),
        "as_strided": lambda x: images(x, window).as_strided((5,), (3,)),
    }
    same(functions[name], (torch.randn(2, 4, 9, 9),), (torch.randn(1, 4, 5, 7),))


@pytest.mark.parametrize("gradients", [False, True])
def test_draws_that_wait_for_kernels_keep_their_order(gradients: bool) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p = x.softmax(-1)
        return torch.multinomial(p, 1), torch.bernoulli(p), torch.poisson(p), torch.rand(3)

    compiled = tilevm.compile(f)
    x = torch.linspace(-1, 1, 20).view(5, 4).requires_grad_(gradients)
    for _ in range(2):
        torch.manual_seed(0)
        expected = f(x)
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(x), expected)

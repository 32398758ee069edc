"""Ways into the recorder that pass Python's slots, methods, functions and modules: as in eager."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tests.eager import compare  # noqa: E402
from tests.eager.compare import agree, filled, grid, recorded, same  # noqa: E402
from torch import nn  # noqa: E402

import tilevm  # noqa: E402

Function = Callable[..., Any]


def _like_rows(x: Any) -> Any:
    return torch.arange(x.shape[0], device="cpu")


# Of x with two dims, of any dtype that the operator has; what raises must raise alike.
FUNCTIONS: dict[str, Function] = {
    "+": lambda x: (x + 2, 2 + x, x + x, x + 0.5, x + True),
    "-": lambda x: (x - 2, 2 - x, x - x),
    "*": lambda x: (x * 2, 0.5 * x, x * x[0]),
    "/": lambda x: (x / 2, 1 / x, x / x, 3.5 / (x + 1)),
    "//": lambda x: (x // 2, x // -3, x // 1.5),
    "%": lambda x: (x % 3, x % -2, x % 1.5),
    "**": lambda x: (x**2, x**3, x**0, x**2.0),
    "**, roots": lambda x: (x.abs().float() + 1) ** 0.5,
    "** of a number": lambda x: 2.0 ** (x.float() / 8),
    "// of a number": lambda x: 7 // (x.float() + 0.5),
    "&": lambda x: (x & x, x & 1, x & True),
    "|": lambda x: (x | x, x | 2, x ^ x, x ^ 1, ~x),
    "unary": lambda x: (-x, +x, abs(x)),
    "compare": lambda x: (x == 1, x != x[0], x < 0.5, x <= x[0], x > 2, x >= True),
    "compare with others": lambda x: (x == None, x != "x"),  # noqa: E711
    "reflected compare": lambda x: (1 < x, 0.5 >= x),
    "@": lambda x: x @ x.mT,
    "list of equals": lambda x: [x[0] is x[0]],
    "softmax": lambda x: (x.softmax(-1), torch.softmax(x, 0), F.softmax(x, dim=1)),
    "log_softmax": lambda x: (x.log_softmax(dim=0), torch.log_softmax(x, 1)),
    "softmax, dtype": lambda x: x.softmax(-1, dtype=torch.float64),
    "sum": lambda x: (x.sum(), x.sum(0), x.sum((0, 1)), x.sum(-1, keepdim=True), torch.sum(x, 1)),
    "sum, dtype": lambda x: (x.sum(dtype=torch.float64), x.sum(0, dtype=torch.int64)),
    "sum of no dims": lambda x: (x.sum(()), x.sum(dim=None)),
    "mean": lambda x: (x.mean(), x.mean(0), torch.mean(x, [0, 1], True)),
    "prod": lambda x: (x.prod(), x.prod(-1), x.prod(dim=0, keepdim=True)),
    "amax": lambda x: (x.amax(), x.amax(0), x.amin((0, 1)), x.amin(-1, keepdim=True)),
    "max": lambda x: (x.max(), x.min(), tuple(x.max(0)), tuple(x.min(dim=-1, keepdim=True))),
    "max of two": lambda x: (x.max(x + 1), torch.max(x, x - 1)),
    "argmax": lambda x: (x.argmax(), x.argmin(1), x.argmax(dim=0, keepdim=True)),
    "any": lambda x: ((x > 0).any(), (x > 0).all(), (x > 0).any(0), (x > 1).all(-1, True)),
    "square": lambda x: x.square(),
    "clamp": lambda x: (x.clamp(min=0), x.clamp(-1, 2), torch.clamp(x, max=1), x.clamp(0.5)),
    "clamp by tensors": lambda x: x.clamp(x - 1, x),
    "cumsum": lambda x: (x.cumsum(0), torch.cumsum(x, dim=1), x.cumsum(0, dtype=torch.float64)),
    "gather": lambda x: x.gather(1, torch.zeros(2, 1, dtype=torch.int64)[: x.shape[0]]),
    "topk": lambda x: (*x.topk(2), *torch.topk(x, 1, 0, False)),
    "topk, fields": lambda x: (x.topk(2).values, x.topk(2).indices, x.max(1).values),
    "masked_fill": lambda x: (x.masked_fill(x > 0, 7), x.masked_fill(x > 0, 2.0)),
    "where": lambda x: (torch.where(x > 0, x, 0), torch.where(x > 0, 1.5, x)),
    "where of tensors": lambda x: (torch.where(x > 0, x, x[0]), torch.where(x > 0, x.t(), x.t())),
    "where of numbers": lambda x: torch.where(x > 0, 1, 0.5),
    "where alone": lambda x: torch.where(x > 0),
    "where alone, a row": lambda x: torch.where(x[0] > 0),
    "where, used": lambda x: x[torch.where(x > 0)],
    "cat": lambda x: (torch.cat([x, x]), torch.cat((x, x), 1), torch.cat([x, x], dim=-1)),
    "cat of two dtypes": lambda x: torch.cat([x, x.double()]),
    "stack": lambda x: (torch.stack([x, x]), torch.stack((x[0], x[1]), dim=1)),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "layer_norm, both": lambda x: F.layer_norm(x, x.shape, x + 1, x, 0.1),
    "gelu": lambda x: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.relu(x)),
    "embedding": lambda x: F.embedding(torch.zeros(2, 2, dtype=torch.int64), x),
    "views": lambda x: (x.unsqueeze(1), x.transpose(0, 1), x.t(), x.flatten(), x.permute(1, 0)),
    "reshapes": lambda x: (x.view(-1), x.reshape(1, *x.shape), x.view((1, *x.shape))),
    "reshapes by keyword": lambda x: (x.reshape(shape=(-1,)), x.expand(size=(2, *x.shape))),
    "expand": lambda x: (x.expand(2, -1, -1), x[:1].expand(3, x.shape[1]), x.expand((2, *x.shape))),
    "view of a dtype": lambda x: x.view(torch.uint8),
    "chunk": lambda x: (*x.chunk(2), *x.chunk(3, 1), *torch.chunk(x, 2, dim=-1), *x.chunk(9)),
    "unbind": lambda x: (*x.unbind(), *x.unbind(1), *x.unbind(dim=0)),
    "loop": lambda x: list(x),
    "chunks that are written": lambda x: [part.mul_(2) for part in (x * 1).chunk(2, 1)],
    "index": lambda x: (x[0], x[-1], x[1:], x[:, 0], x[:, -1], x[0, 1], x[..., 0], x[None]),
    "index, steps": lambda x: (x[::2], x[:, 1::2], x[5:], x[-2:], x[:-1], x[2:1], x[:]),
    "index, new dims": lambda x: (x[:, None], x[None, :, None, 0], x[..., None], x[...]),
    "index, tensors": lambda x: (x[torch.tensor([1, 0])], x[:, torch.tensor([[1], [0]])]),
    "index, two tensors": lambda x: x[torch.tensor([1, 0]), torch.tensor([0, 1])],
    "index, with others": lambda x: (x[torch.tensor([1, 0]), 1:], x[torch.tensor([0, 1]), None]),
    "index, apart": lambda x: x[None, torch.tensor([0, 1]), None, torch.tensor([0, 1])],
    "index, one number": lambda x: (x[torch.tensor(1)], x[torch.tensor(1), :2]),
    "index, computed": lambda x: x[_like_rows(x).flip(0) + 0],
    "index, computed number": lambda x: x[_like_rows(x).amax() - 1, 1:],
    "index, negative tensors": lambda x: x[torch.tensor([-1, 0, -2])],
    "index, mask": lambda x: (x[x[:, 0] > 0], x[x > 0], x[:, x[0] > 0]),
    "index, mask of nothing": lambda x: (x[x[:, 0] > 100], x[x[:, 0] < 100]),
    "index, mask and others": lambda x: (x[x[:, 0] > 0, 1], x[x[:, 0] > 0, :2]),
    "index, bool": lambda x: (x[True], x[False], x[None, True]),
    "index, list": lambda x: (x[[1, 0]], x[[0, 1], [1, 0]], x[0:2, [1]]),
    "index, bytes": lambda x: x[torch.tensor([1, 0, 1], dtype=torch.uint8)[: x.shape[0]]],
    "index of an index": lambda x: x[1:][:, 1:][0][None],
    "+=": lambda x: _after(x * 1, lambda y: y.__iadd__(2)),
    "in place": lambda x: _after(x * 1, lambda y: _in_place(y, x)),
    "in place, plain": lambda x: _after(x.clone(), lambda y: _in_place(y, x)),
    "in place, sums of products": lambda x: _after(
        x * 1, lambda y: y.addcmul_(x, x, value=0.5).addcdiv_(x, x.abs() + 1, value=-0.25)
    ),
    "in place, lerp_": lambda x: _after(x + 0, lambda y: y.lerp_(x + 1, 0.25)),
    "linear": lambda x: F.linear(x, x, x[:, 0].contiguous()),
}


def _after(x: Any, write: Function) -> Any:
    write(x)
    return x, x._version


def _in_place(y: Any, x: Any) -> None:
    y += x
    y -= 1
    y *= x[0]
    y /= 2
    y[0] += 1


def _layouts(dtype: Any) -> dict[str, Any]:
    x = grid(3, 4, dtype)
    return {
        "rows": x,
        "columns": grid(4, 3, dtype).t(),
        "apart": grid(6, 8, dtype)[::2, ::2],
        "repeated": grid(1, 4, dtype).expand(3, 4),
        "wide": grid(7, 65, dtype),
    }


ROUNDED = ("log_softmax",)  # by eager code on the way
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def _outcome(function: Function, x: Any, pending: bool) -> Any:
    """Of x, or of what is computed from it; or the error."""
    given = x.logical_not().logical_not() if x.dtype is torch.bool else x * 1
    try:
        return function(given if pending else x)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("pending", [False, True], ids=["plain", "pending"])
def test_functions(name: str, pending: bool) -> None:
    function = FUNCTIONS[name]
    for dtype in DTYPES:
        if dtype is torch.bfloat16 and name in ROUNDED:
            continue
        for layout, x in _layouts(dtype).items():
            for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
                with mode():
                    expected = _outcome(function, x, pending)
                    with tilevm.fuse():
                        found = _outcome(function, x, pending)
                    try:
                        same(found, expected, exact=False)
                    except AssertionError as error:
                        raise AssertionError(f"{dtype}, {layout}, {mode.__name__}") from error


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (1, 1), (1, 7), (7, 1), (1023, 2)], ids=str)
def test_sizes(shape: tuple[int, int]) -> None:
    for name, function in FUNCTIONS.items():
        x = grid(*shape) % 7 - 3
        with torch.no_grad():
            expected = _outcome(function, x, True)
            if isinstance(expected, tuple) and expected and expected[0] is IndexError:
                continue  # which a block raises when somebody looks
            with tilevm.fuse():
                found = _outcome(function, x, True)
        try:
            same(found, expected, exact=False)
        except AssertionError as error:
            raise AssertionError(name) from error


WRONG: dict[str, Function] = {
    "index out of range": lambda x: x[3],
    "index too long": lambda x: x[0, 0, 0],
    "index by a float": lambda x: x[1.0],
    "index by a text": lambda x: x["a"],
    "index of a number": lambda x: x.sum()[0],
    "step of nothing": lambda x: x[::0],
    "step back": lambda x: x[::-1],
    "mask of other sizes": lambda x: x[torch.tensor([True, False])],
    "mask of other sizes, computed": lambda x: x[x[0] > 0],
    "added to a text": lambda x: x + "a",
    "text added": lambda x: "a" + x,
    "power of three": lambda x: pow(x, 2, 3),
    "product of numbers": lambda x: x @ 2,
    "no chunks": lambda x: x.chunk(0),
    "chunks of no axis": lambda x: x.chunk(2, 5),
    "chunks of a number": lambda x: x.sum().chunk(2),
    "unbind of no axis": lambda x: x.unbind(2),
    "value by position": lambda x: x.addcmul_(x, x, 0.5),
    "dtype by position": lambda x: x.sum(0, False, torch.float64),
    "no such keyword": lambda x: x.sum(axes=0),
    "twice the same": lambda x: x.softmax(0, dim=0),
    "too many": lambda x: x.square(1),
    "many": lambda x: x.sum(1, 2, 3, 4, 5, 6, 7, 8, 9),
    "a float for an axis": lambda x: x.softmax(0.0),
    "topk of too many": lambda x: x.topk(9),
    "cat of nothing": lambda x: torch.cat([]),
    "cat of a tensor": lambda x: torch.cat(x),
    "cat of numbers": lambda x: torch.cat([x, 2]),
    "in place of other sizes": lambda x: x[0].__iadd__(x),
    "in place into integers": lambda x: x.long().__itruediv__(2),
    "cell of other sizes": lambda x: nn.GRUCell(5, 4)(x, x),
    "cell of another state": lambda x: nn.GRUCell(4, 4)(x, x[:2]),
    "cell of no batch": lambda x: nn.LSTMCell(4, 4)(x[None]),
    "module without arguments": lambda x: nn.Linear(4, 2)(),
    "module with too many": lambda x: nn.Linear(4, 2)(x, x),
    "module of other sizes": lambda x: nn.Linear(5, 2)(x),
    "norm of other sizes": lambda x: nn.LayerNorm(5)(x),
    "look up floats": lambda x: nn.Embedding(3, 2)(x),
    "look up out of range": lambda x: nn.Embedding(3, 2)(x.long() + 100)[0].sum().item(),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name: str) -> None:
    def run() -> tuple[type, str]:
        with pytest.raises(Exception) as caught:
            WRONG[name](grid() * 1)
        return type(caught.value), str(caught.value).split("\n")[0]

    with torch.no_grad():
        expected = run()
        with tilevm.fuse():
            found = run()
    if name == "look up out of range":
        assert found[0] is expected[0]
    else:
        assert found == expected


def _cells(dtype: Any, bias: bool) -> list[Any]:
    torch.manual_seed(0)
    kinds = (nn.GRUCell, nn.LSTMCell, nn.RNNCell)
    return [kind(5, n, bias=bias, dtype=dtype) for kind in kinds for n in (1, 3, 64)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_cells(dtype: Any, bias: bool) -> None:
    """In loops, with states that wait and that do not, of batches and of one row."""
    for cell in _cells(dtype, bias):

        def steps(x: Any, cell: Any = cell) -> Any:
            state, states = None, []
            for row in x:
                state = cell(row) if state is None else cell(row, state)
                states.append(state)
            return states

        for shape in ((3, 4, 5), (2, 1, 5), (3, 5)):
            x = grid(1, torch.Size(shape).numel(), dtype).reshape(shape) / 16
            for mode in (torch.no_grad, torch.inference_mode):
                with mode():
                    expected = steps(x)
                    with tilevm.fuse():
                        found = steps(x)
                    for f, e in zip(
                        compare.tensors_in(found), compare.tensors_in(expected), strict=True
                    ):
                        limit = {"rtol": 0.02, "atol": 0.02} if dtype is torch.bfloat16 else {}
                        torch.testing.assert_close(f, e, **limit)
                        assert (f.stride(), f.is_inference()) == (e.stride(), e.is_inference())
                        if not f.is_inference():
                            assert f._version == e._version


def test_cells_are_recorded() -> None:
    x = grid(3, 4)
    with torch.no_grad(), tilevm.fuse():
        recorded(nn.GRUCell(4, 4)(x, x))
        recorded(*nn.LSTMCell(4, 4)(x, (x, x)))
        recorded(nn.Linear(4, 2)(x))
        recorded(nn.LayerNorm(4)(x), nn.Embedding(3, 4)(torch.tensor([0, 2])), nn.SiLU()(x))
        recorded(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))(x))


def test_cells_with_gradients() -> None:
    cell = nn.GRUCell(4, 4)
    x = grid(3, 4)

    def step(x: Any) -> Any:
        cell.zero_grad()
        cell(x, cell(x, x)).sum().backward()
        return [1 * p.grad for p in cell.parameters() if p.grad is not None]

    agree(step, x, exact=False)


class Doubled(nn.Linear):
    """Another class, with another forward."""

    def forward(self, x: Any) -> Any:
        return 2 * super().forward(x)


class Plain(nn.Linear):
    """Another class."""


def _linear() -> Any:
    torch.manual_seed(1)
    return nn.Linear(4, 2)


def test_modules_do_what_they_would() -> None:
    """Hooks, changed methods, parameters by other means, subclasses."""
    x = grid(3, 4)
    calls: list[str] = []

    def doubled(m: Any, args: Any, out: Any) -> Any:
        calls.append("hook")
        return out * 2

    def hooked(x: Any) -> Any:
        m = _linear()
        m.register_forward_hook(doubled)
        m.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
        return m(x)

    def replaced(x: Any) -> Any:
        m = _linear()
        m.forward = lambda x: x * 3
        return m(x)

    def normed(x: Any) -> Any:
        return nn.utils.weight_norm(_linear())(x), nn.utils.parametrizations.weight_norm(_linear())(
            x
        )

    def without(x: Any) -> Any:
        m = _linear()
        m.bias = None
        return m(x), nn.LayerNorm(4, elementwise_affine=False)(x), nn.LayerNorm(4, bias=False)(x)

    def subclasses(x: Any) -> Any:
        torch.manual_seed(2)
        return Doubled(4, 2)(x), Plain(4, 2)(x)

    def in_place(x: Any) -> Any:
        y = x * 1
        return nn.ReLU(inplace=True)(y), y, y._version

    def by_name(x: Any) -> Any:
        return _linear()(input=x)

    def scaled(x: Any) -> Any:
        torch.manual_seed(3)
        m = nn.Embedding(3, 4, max_norm=0.5)
        return m(torch.tensor([0, 2])), m.weight.detach()

    def nothing(x: Any) -> Any:
        return nn.Sequential()(x), nn.Sequential(nn.Tanh(), nn.Sigmoid())(x)

    cases = (hooked, replaced, normed, without, subclasses, in_place, by_name, scaled, nothing)
    for case in cases:
        with torch.no_grad():
            agree(case, x, exact=False)
    assert calls == ["hook"] * 2


def test_changed_functions_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    x, m = grid(3, 4), _linear()
    monkeypatch.setattr(F, "linear", lambda x, w, b: x * 5)
    with torch.no_grad(), tilevm.fuse():
        assert torch.equal(m(x), x * 5)
    monkeypatch.undo()
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x * 6)
    with torch.no_grad(), tilevm.fuse():
        assert torch.equal(m(x), x * 6)
    monkeypatch.undo()
    monkeypatch.setattr(nn.Module, "__call__", lambda self, x: x * 7)
    with torch.no_grad(), tilevm.fuse():
        assert torch.equal(m(x), x * 7)
    monkeypatch.undo()
    with torch.no_grad():
        agree(m, x, exact=False)


def test_global_hooks_run() -> None:
    x, m, called = grid(3, 4), _linear(), []
    handle = nn.modules.module.register_module_forward_hook(lambda *args: called.append(1))
    try:
        with torch.no_grad(), tilevm.fuse():
            m(x)
    finally:
        handle.remove()
    assert called == [1]


def test_profilers_see_python() -> None:
    """Whoever watches calls of Python sees those of modules."""
    x, m, names = grid(3, 4), _linear(), []

    def watch(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)

    with torch.no_grad(), tilevm.fuse():
        sys.setprofile(watch)
        try:
            m(x)
        finally:
            sys.setprofile(None)
    assert "forward" in names


class Marked(torch.Tensor):  # type: ignore[misc, name-defined, unused-ignore]
    """A subclass with operators of its own."""

    def __radd__(self, other: Any) -> Any:
        return "reflected"

    def __getitem__(self, index: Any) -> Any:
        return "index"

    def __eq__(self, other: object) -> Any:
        return "equal"

    __hash__ = torch.Tensor.__hash__


def test_subclasses_have_their_operators() -> None:
    x = grid()
    y = x.as_subclass(Marked)
    with torch.no_grad(), tilevm.fuse():
        assert (x + y, y[0], y == x) == ("reflected", "index", "equal")
        assert type(y * 2) is Marked
        assert type(2 - y) is Marked
        p = nn.Parameter(x)
        recorded(x + p, p + x, p * 2, p[0] * 1, 1 / p)


def test_views_are_views() -> None:
    """What autograd says of views, and what writing to them does."""
    x = grid()
    for mode in (torch.no_grad, torch.enable_grad):
        facts = []
        for fused in (False, True):
            with mode(), tilevm.fuse(enabled=fused):
                base, plain = x * 1, x.clone()
                views = [base[0], base[:, 1:], *base.chunk(2), *base.unbind(1), plain[1], base.t()]
                views += [base.unsqueeze(0), plain[:, None], *plain.chunk(2, 1)]
                before = [v._is_view() for v in views], [v._base is not None for v in views]
                views[0].add_(1)
                plain[1].mul_(2)
                versions = base._version, plain._version, [v._version for v in views]
                kinds = [torch._C._autograd._get_creation_meta(v) for v in views]
                facts.append((before, versions, [str(k) for k in kinds], base.tolist()))
        assert facts[0] == facts[1]


def test_multi_output_views_refuse_gradients() -> None:
    leaf = grid().requires_grad_()

    def write(part: Any) -> str:
        with pytest.raises(RuntimeError) as caught:
            part.mul_(leaf[: part.shape[0], : part.shape[1]])
        return str(caught.value)

    def run() -> list[str]:
        base = grid() * 1
        first = write(base.chunk(2, 1)[0])
        with torch.no_grad():
            second = base.chunk(2, 1)[0]
        return [first, write(second)]

    expected = run()
    with tilevm.fuse():
        assert run() == expected


def test_single_numbers_are_written_at_once() -> None:
    def run() -> Any:
        step, exact = torch.tensor(1.0), torch.tensor(3.0, dtype=torch.float64)
        count = torch.tensor(2)
        for _ in range(3):
            step += 1
            step *= 0.1
            step -= 0.7
            step /= 3
            exact += 0.1
            count += 2
        return step, exact, count, step._version, exact._version

    expected = run()
    with torch.no_grad(), tilevm.fuse():
        found = run()
        filled(found[0], found[1])
    same(found, expected)


def test_single_numbers_that_wait_are_not() -> None:
    """A number takes part in what waits where what it reads does, or somebody read it."""

    def run(x: Any) -> Any:
        total = torch.zeros(1)
        total += x.sum()
        total += 2
        read = total * 2
        total *= 3
        scale = torch.ones(())
        y = x * scale
        scale += 1
        return total, read, y, x * scale

    with torch.no_grad():
        agree(run, grid())


def test_versions_of_products() -> None:
    """PyTorch adds to some products in place."""
    w, b = grid(2, 4), grid(1, 2)[0]
    with torch.no_grad():
        for shape in ((4,), (3, 4), (2, 3, 4), (1, 2, 3, 4)):
            for stride in (1, 2):
                x = torch.zeros(*shape[:-1], 4 * stride)[..., ::stride]
                agree(lambda x: (F.linear(x, w), F.linear(x, w, b)), x)


@pytest.mark.parametrize("turned", [False, True])
def test_overlapping_operands(turned: bool) -> None:
    """What reads elements that it writes, other than its own, is as eager code has it."""

    def run(x: Any) -> Any:
        x = x.t() if turned else x
        first = x[:, :1]
        x[..., ::2].sub_(first)
        x[:, 1].add_(x[:, 3])
        x[0] += x[:, 0]
        return x

    with torch.no_grad():
        agree(run, grid(4, 4))
        agree(lambda x: run(x * 1), grid(4, 4))


def test_gradients_are_added_while_they_wait() -> None:
    """Autograd adds what comes over several ways without looking."""
    x = grid().requires_grad_()
    before = compare.flushes()
    with tilevm.fuse():
        y = x * 2
        (y.sin() + y.cos() + y[0] + y[:, 1:].sum()).sum().backward()
        assert compare.flushes() == before
    z = grid().requires_grad_()
    y = z * 2
    (y.sin() + y.cos() + y[0] + y[:, 1:].sum()).sum().backward()
    torch.testing.assert_close(x.grad, z.grad)


@pytest.mark.parametrize(
    "part", ["x[1]", "x[-1, 2]", "x[1:]", "x[:, 1:3]", "x[:, -1]", "x[::2]", "x[3:]", "x[0:0]"]
)
def test_gradients_of_parts(part: str) -> None:
    def run(x: Any) -> Any:
        x = x.detach().requires_grad_()
        y = x * 2
        eval(part, {"x": y}).square().sum().backward()
        return x.grad * 1

    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        agree(run, grid(dtype=dtype))
        agree(run, grid(4, 3, dtype).t())


def test_hooks_of_gradients_look() -> None:
    def run(x: Any) -> Any:
        x = x.detach().requires_grad_()
        found = []
        y = x * 2
        y.register_hook(lambda g: found.append(g.numpy().copy().tolist()))
        (y.sin() + y * y).sum().backward()
        return found

    agree(run, grid())

"""Traces with `torch_savings` and `torch_likenesses` against traces without."""

from __future__ import annotations

import contextlib
import dis
import gc
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx import proxy  # noqa: E402
from torch.fx.experimental import proxy_tensor  # noqa: E402
from torch.fx.experimental.sym_node import SymNode  # noqa: E402
from torch.nn import functional  # noqa: E402

import tilevm  # noqa: E402
from tilevm.frontends import torch_capture, torch_savings, torch_surroundings, torch_tracing  # noqa: E402

SIZES = (torch.SymInt, torch.SymBool, torch.SymFloat)


def described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return *value.shape, value.stride(), value.storage_offset(), value.dtype
    return [*map(described, value)] if isinstance(value, list | tuple) else str(value)


def nodes(graph: Any) -> Iterator[str]:
    """Each node but those of sizes, which are written as what they are."""
    names: dict[Any, Any] = {}
    memory: dict[int, int] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, SIZES):
            names[node] = str(value)
            continue
        names[node] = f"%{len(names)}" if node.op == "placeholder" else f"%{node.op}{len(memory)}"
        shared = None
        if isinstance(value, torch.Tensor):
            shared = memory.setdefault(value.untyped_storage()._cdata, len(memory))
        if node.op == "output":  # which sizes the gradient is given may differ
            continue
        given = torch.fx.node.map_arg((node.args, node.kwargs), names.__getitem__)
        places = node.meta.get("stack_trace"), node.meta.get("nn_module_stack")
        yield str((node.op, node.target, given, described(value), shared, *places))


def layer(x: Any) -> Any:
    torch.manual_seed(0)
    made = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.Sequential(made, made, nn.LayerNorm(16))


class Views(nn.Module):
    def forward(self, x: Any) -> Any:
        y = x.transpose(0, 1)[1:, ::2].expand(3, -1, -1, -1)
        z = torch.cat([y[0], y[1].neg()], -1).mean(-1, keepdim=True)
        parts = x.permute(2, 0, 1).reshape(-1, x.shape[1]).split(4)
        a, b = torch.var_mean(x, 1), x.max(1)
        return y + 1, z, [p * 2 for p in parts], a, b.values, x.new_zeros(x.shape[0], 2)


class Masks(nn.Module):
    def forward(self, x: Any) -> Any:
        chosen = x[x[:, 0, 0] > 0]
        both = torch.where(chosen > 0, chosen, -chosen) + 1
        return both.sum(1), torch.where(chosen > 0, chosen, -chosen) + 2


class Convolutions(nn.Module):
    def forward(self, x: Any) -> Any:
        y = x.unsqueeze(1).to(memory_format=torch.channels_last)
        kernel = torch.ones(3, 1, 3, 3)
        y = functional.conv2d(y, kernel, padding=1)
        z = functional.conv2d(y, torch.ones(3, 3, 3, 3), padding=1)
        return functional.max_pool2d(z + y, 2), z * y


class Late(nn.Module):
    """Sizes that are no more than not negative, and operators that are taken apart afterwards."""

    def forward(self, x: Any) -> Any:
        y = functional.conv1d(x[:, :1], x[:1, :1, ::2], padding=1)
        return torch.nan_to_num(y, 7.0, 9.0), torch.nan_to_num(y, 6.0)


class Conjugates(nn.Module):
    def forward(self, x: Any) -> Any:
        z = torch.complex(x, x.flip(0)).conj()
        return torch.view_as_real(z.resolve_conj() * 2), z.isnan(), torch.where(x > 0, z, z.mH.mH)


MODULES: dict[str, Callable[[Any], Any]] = {
    "layer": layer,
    "views": lambda x: Views(),
    "masks": lambda x: Masks(),
    "convolutions": lambda x: Convolutions(),
    "late": lambda x: Late(),
    "conjugates": lambda x: Conjugates(),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("rows", [5, 1])
@pytest.mark.parametrize("gradients", [False, True])
def test_graphs(name: str, rows: int, gradients: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(rows, 8, 16).add_(0.5).requires_grad_(gradients)
    module = MODULES[name](x)
    found = []
    for savings in (torch_savings.savings, contextlib.nullcontext):
        monkeypatch.setattr(torch_tracing, "savings", savings)
        compiled = tilevm.compile(module)
        with torch.set_grad_enabled(gradients):
            compiled(x)
        captures = compiled._tilevm.captures
        graphs = [[*nodes(capture.captured.graph)] for capture in captures]
        steps = [str(capture.captured.executable.steps()) for capture in captures]
        found.append((compiled.guards, graphs, [c.differentiable for c in captures], steps))
    assert found[0] == found[1]


def test_all_is_put_back() -> None:
    def fails(x: Any) -> Any:
        raise ValueError("no")

    modules: tuple[Any, Any] = proxy, proxy_tensor

    def now() -> list[Any]:
        return [
            FakeTensorMode._dispatch_impl,
            modules[0].CapturedTraceback,
            modules[1]._extract_tensor_metadata,
            *(vars(SymNode)[name] for name in ("add", "eq", "sym_max")),
        ]

    before = now()
    tilevm.compile(lambda x: x + 1)(torch.ones(3))
    with pytest.raises(ValueError, match="no"):
        tilevm.compile(fails)(torch.ones(3))
    assert now() == before


@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_is_as_it_was(collects: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt, seen = torch_capture._attempt, []

    def watched(*args: Any) -> Any:
        seen.append(gc.isenabled())
        return attempt(*args)

    monkeypatch.setattr(torch_capture, "_attempt", watched)
    (gc.enable if collects else gc.disable)()
    try:
        tilevm.compile(lambda x: x + 1)(torch.ones(3))
        assert gc.isenabled() is collects
    finally:
        gc.enable()
    assert seen == [False]


def test_globals_are_those_of_dis() -> None:
    def named(code: CodeType) -> set[str]:
        steps = dis.get_instructions(code)
        inner = (c for c in code.co_consts if isinstance(c, CodeType))
        return {s.argval for s in steps if s.opname == "LOAD_GLOBAL"}.union(*map(named, inner))

    many = "\n".join(f"  a{i}(b{i}.c{i})" for i in range(400))
    scope: dict[str, Any] = {}
    exec(f"def many():\n{many}\n  return lambda: [print(len(x)) for x in y]", scope)
    functions = [scope["many"], functional.interpolate, nn.Module._call_impl, nodes, test_graphs]
    for function in functions:
        assert torch_surroundings._globals_of(function.__code__) == named(function.__code__)

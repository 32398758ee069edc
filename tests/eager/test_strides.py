"""Strides, dtypes and values of elementwise results for operands that lie in memory in any way."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tests.eager import compare  # noqa: E402

import tilevm  # noqa: E402

Function = Callable[..., Any]
aten = torch.ops.aten
# Functions of one, two, three tensors of floats between 0 and 1.
ALONE: dict[str, Function] = {
    "exp": torch.exp,
    "positive": torch.positive,
    "square": torch.square,
    "clone": torch.clone,
    "double": lambda x: x.double(),
    "copied": lambda x: x.to(torch.float32, copy=True),
    "contiguous": lambda x: x.contiguous(),
    "x * 2": lambda x: x * 2,
    "2 - x": lambda x: 2 - x,
    "x ** 2": lambda x: x**2,
    "x ** 0.3": lambda x: x**0.3,
    "2 ** x": lambda x: 2**x,
    "x > 0.5": lambda x: x > 0.5,
    "x % 0.3": lambda x: x % 0.3,
    "clamp": lambda x: x.clamp(0.2, 0.8),
    "clamp_min": lambda x: x.clamp_min(0.5),
    "hardtanh": lambda x: F.hardtanh(x, 0.1, 0.5),
    "relu6": F.relu6,
    "gelu": F.gelu,
    "silu": F.silu,
    "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "threshold": lambda x: F.threshold(x, 0.5, 3.0),
    "mish": F.mish,
    "masked_fill": lambda x: x.masked_fill(x > 0.5, 2.0),
    "where, numbers": lambda x: torch.where(x > 0.5, x, 1.0),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(0),
    "zeros_like": torch.zeros_like,
    "sum": lambda x: x.sum(0),
    "sum, kept": lambda x: x.sum(-1, keepdim=True),
    "sum, all": lambda x: x.sum(),
    "std": lambda x: x.std(-1),
    "any": lambda x: (x > 0.5).any(0),
    "cat": lambda x: torch.cat([x, x], -1),
    "stack": lambda x: torch.stack([x, x], 1),
    "flip": lambda x: x.flip(0),
    "reshape": lambda x: x.reshape(-1),
    "expand_as": lambda x: x.expand(2, *x.shape) + 1,
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "index_select": lambda x: x.index_select(-1, torch.zeros(2, dtype=torch.int64)),
    "gather": lambda x: x.gather(0, torch.zeros_like(x, dtype=torch.int64)),
    "embedding": lambda x: F.embedding(torch.zeros(2, 3, dtype=torch.int64), x),
    "mm": lambda x: x @ x.mT,
    "exp of integers": lambda x: torch.exp((x * 4).int()),
    "long": lambda x: (x * 4).long() / 3,
    "index": lambda x: x[..., torch.zeros(2, dtype=torch.int64)],
}
TWO: dict[str, Function] = {
    "x + y": lambda x, y: x + y,
    "x - 2 y": lambda x, y: torch.sub(x, y, alpha=2),
    "rsub": torch.rsub,
    "x / y": lambda x, y: x / y,
    "maximum": torch.maximum,
    "x < y": lambda x, y: x < y,
    "pow": lambda x, y: x**y,
    "logical_and": torch.logical_and,
    "atan2": torch.atan2,
    "remainder": lambda x, y: x % y,
    "lerp, number": lambda x, y: torch.lerp(x, y, 0.25),
    "masked_fill": lambda x, y: x.masked_fill(y > 0.5, 0.0),
    "where, number": lambda x, y: torch.where(y > 0.5, x, 0.0),
    "clamp_min": lambda x, y: x.clamp_min(y),
    "mixed": lambda x, y: x.double() * y,
    "compared, mixed": lambda x, y: x.double() < y,
    "mask": lambda x, y: (x > 0.5) * y,
    "where, mixed": lambda x, y: torch.where(x > 0.5, y, y.double()),
    "where, masks": lambda x, y: torch.where(x > 0.5, y > 0.5, y),
    "add_": lambda x, y: x.clone().add_(y.expand(x.shape)),
    "cat": lambda x, y: torch.cat([x, y.expand(x.shape)]),
}
# Functions of two tensors of equal sizes.
ALIKE: dict[str, Function] = {
    "tanh_backward": aten.tanh_backward,
    "sigmoid_backward": aten.sigmoid_backward,
    "silu_backward": aten.silu_backward,
    "gelu_backward": aten.gelu_backward,
    "threshold_backward": lambda x, y: aten.threshold_backward(x, y, 0.5),
    "hardtanh_backward": lambda x, y: aten.hardtanh_backward(x, y, 0.2, 0.6),
    "leaky_relu_backward": lambda x, y: aten.leaky_relu_backward(x, y, 0.1, False),
    "softmax_backward": lambda x, y: aten._softmax_backward_data(x, y, -1, torch.float32),
}
THREE: dict[str, Function] = {
    "where": lambda x, y, z: torch.where(x > 0.5, y, z),
    "addcmul": lambda x, y, z: torch.addcmul(x, y, z, value=0.5),
    "addcdiv": torch.addcdiv,
    "lerp": torch.lerp,
    "clamp": lambda x, y, z: torch.clamp(x, y, z),
    "sum of three": lambda x, y, z: x + y * z,
}
SHAPES = (
    *((), (1,), (0,), (3,), (2, 3), (1, 3), (2, 1), (1, 1), (0, 2), (2, 0), (3, 3)),
    *((2, 1, 3), (1, 2, 2), (2, 0, 3), (0, 1, 2), (2, 3, 2), (1, 3, 2, 2), (2, 3, 1, 2)),
    *((2, 1, 2, 3), (1, 0, 3, 0), (2, 3, 2, 2), (1, 3, 1, 2, 2), (2, 2, 3, 2, 2)),
)


def ways(shape: tuple[int, ...]) -> dict[str, Any]:
    """Tensors of this shape, each lying in memory in its own way."""
    torch.manual_seed(0)
    rank = len(shape)
    found = {"dense": torch.rand(shape)}
    if rank == 0:
        return found
    found["turned"] = torch.rand(shape[::-1]).permute(*reversed(range(rank)))
    found["stepped"] = torch.rand(*shape[:-1], 2 * shape[-1])[..., ::2]
    found["stepped outside"] = torch.rand(2 * shape[0], *shape[1:])[::2]
    found["a part"] = torch.rand(shape[0] + 2, *shape[1:])[1:-1]
    found["expanded"] = torch.rand(shape[1:]).expand(shape)
    found["expanded inside"] = torch.rand(*shape[:-1], 1).expand(shape)
    found["a number"] = torch.rand(()).expand(shape)
    if rank > 1:
        found["swapped"] = torch.rand(shape[1], shape[0], *shape[2:]).transpose(0, 1)
        found["swapped inside"] = torch.rand(*shape[:-2], shape[-1], shape[-2]).mT
        found["stepped, turned"] = torch.rand(*shape[::-1], 2)[..., 0].permute(
            *reversed(range(rank))
        )
    if rank == 4:
        found["channels last"] = torch.rand(shape).contiguous(memory_format=torch.channels_last)
    if rank == 5:
        found["channels last"] = torch.rand(shape).contiguous(memory_format=torch.channels_last_3d)
    return found


def partners(shape: tuple[int, ...], rng: random.Random) -> list[Any]:
    """What broadcasts with it, in some of its ways."""
    shapes = {shape, *(shape[i:] for i in range(len(shape) + 1))}
    shapes |= {tuple(1 if i == k else n for i, n in enumerate(shape)) for k in range(len(shape))}
    every = [x for s in sorted(shapes) for x in ways(s).values()]
    return rng.sample(every, min(len(every), 9))


def result(function: Function, operands: tuple[Any, ...]) -> Any:
    try:
        return function(*operands)
    except (RuntimeError, IndexError, ValueError) as error:
        return type(error).__name__


def check(cases: list[tuple[str, Function, tuple[Any, ...]]]) -> None:
    """Each as it is, and of what is pending with the same strides."""
    expected = [result(function, operands) for _, function, operands in cases]
    with tilevm.fuse():
        found = [result(function, operands) for _, function, operands in cases]
        wait = torch.tensor(True)
        pending = [
            result(function, tuple(torch.where(wait, x, x) for x in operands))
            for _, function, operands in cases
        ]
    wrong = []
    for (name, function, operands), f, p, e in zip(cases, found, pending, expected, strict=True):
        layouts = [(tuple(x.shape), x.stride()) for x in operands]
        try:
            compare.same(f, e, exact=False)
            again = tuple(torch.where(wait, x, x) for x in operands)
            compare.same(p, result(function, again), exact=False)
        except AssertionError as error:
            wrong.append(f"{name} of {layouts}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_operand(shape: tuple[int, ...]) -> None:
    check([(n, f, (x,)) for n, f in ALONE.items() for x in ways(shape).values()])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_two_operands(shape: tuple[int, ...]) -> None:
    rng = random.Random(0)
    every = list(ways(shape).values())
    cases = []
    for name, function in TWO.items():
        others = partners(shape, rng)
        pairs = list(itertools.product(every, others)) + list(itertools.product(others, every))
        cases += [(name, function, pair) for pair in rng.sample(pairs, min(len(pairs), 20))]
    pairs = list(itertools.product(every, every))
    for name, function in ALIKE.items():
        cases += [(name, function, pair) for pair in rng.sample(pairs, min(len(pairs), 20))]
    check(cases)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_three_operands(shape: tuple[int, ...]) -> None:
    rng = random.Random(0)
    every = list(ways(shape).values())
    cases = []
    for name, function in THREE.items():
        for _ in range(25):
            operands = [rng.choice(every), *rng.sample(partners(shape, rng) + every, 2)]
            rng.shuffle(operands)
            cases.append((name, function, tuple(operands)))
    check(cases)


@pytest.mark.parametrize("sizes", [(1, 4, 1, 13), (2, 8, 1, 31), (1, 17, 2, 1), (3, 1, 5, 2)])
def test_channels_last_with_sizes_of_one(sizes: tuple[int, ...]) -> None:
    """Dense, but PyTorch takes it for an image first, whose strides of size 1 are others."""
    n, c, h, w = sizes
    x = torch.rand(n, h, w, c).permute(0, 3, 1, 2).squeeze(0).unsqueeze(0)
    with tilevm.fuse():
        found = [x * x, -x, torch.where(x > 0.5, x, x + 1), x.double() * 2]
    expected = [x * x, -x, torch.where(x > 0.5, x, x + 1), x.double() * 2]
    assert [y.stride() for y in found] == [y.stride() for y in expected]


def test_parts_of_what_has_no_element() -> None:
    """Its strides may be 0, by which nothing may be divided."""
    x, y = torch.ones(2, 3, 1).permute(1, 0, 2), torch.ones(1, 1, 0)
    with tilevm.fuse():
        z = x * y
        assert z.stride() == (x * y).stride() == (0, 0, 1)
        z[1].tanh_()
        z[..., 0:1].add_(1)
        z[:, 1] = 2
    assert z.shape == (3, 2, 0)

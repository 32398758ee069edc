"""What a case is: a function as people write it, its inputs, and the sizes it is measured with.

An input reads `x: float32[M, N]`; `< V` bounds integers, `> 0` makes floats positive. `T` stands
for the case's element type. Sizes are in the order of the names in `sizes`.
"""

from __future__ import annotations

import copy
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Function = Callable[..., Any]
Sweep = tuple[tuple[int, ...], ...]

_INPUT = re.compile(r"(\w+): (\w+)\[([^]]*)\](?: < (\w+)| > 0)?$")
_QUICK = 3  # sizes of a sweep that --quick keeps


@dataclass(frozen=True)
class Case:
    """`make()` gives the function or module.

    kernel: its name in kernels.py, "" if it has none. quick: sizes for `--quick`; (): three of the
    sweep. by: the size over which the report shows ratios, "" for none. alone: the products that it
    has, of the same inputs and with nothing around them.
    """

    name: str
    suite: str
    make: Callable[[], Function]
    inputs: tuple[str, ...]
    sizes: tuple[str, ...]
    sweep: Sweep
    dtype: str = "float32"
    kernel: str = ""
    callouts: tuple[str, ...] = ()  # parts of operators' names that it does not claim to speed up
    quick: Sweep = ()
    by: str = ""
    alone: Function | None = None

    def shapes(self, *, quick: bool) -> Sweep:
        """The sizes to measure, small to large."""
        last = len(self.sweep) - 1
        if quick and self.quick:
            return self.quick
        if not quick or last < _QUICK:
            return self.sweep
        return tuple(self.sweep[i * last // (_QUICK - 1)] for i in range(_QUICK))

    def tensors(self, sizes: Sequence[int]) -> list[torch.Tensor]:
        """Random inputs of these sizes, the same ones each time."""
        env = dict(zip(self.sizes, sizes, strict=True))
        seed = zlib.crc32(f"{self.name}{tuple(sizes)}".encode())
        generator = torch.Generator().manual_seed(seed)
        return [_tensor(text, self.dtype, env, generator) for text in self.inputs]

    def symbolic(self) -> list[tuple[str, list[str | int]]]:
        """Name and dimensions of each input."""
        parts = [_parse(text) for text in self.inputs]
        return [(name, [int(d) if d.isdigit() else d for d in dims]) for name, _, dims, _ in parts]


def given(function: Function) -> Callable[[], Function]:
    """`make` of a case that is a plain function."""
    return lambda: function


def random(module: Callable[[], torch.nn.Module]) -> Function:
    """A module with random weights, the same ones each time."""
    torch.manual_seed(0)
    return module().eval()


def exactly(function: Function) -> Function:
    """The same function for float64 inputs: modules get float64 parameters."""
    if isinstance(function, torch.nn.Module):
        return copy.deepcopy(function).double()
    return function


def _parse(text: str) -> tuple[str, str, list[str], str]:
    match = _INPUT.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not an input: write `x: float32[M, N]`")
    name, dtype, dims, bound = match.groups()
    return name, dtype, [d.strip() for d in dims.split(",") if d.strip()], bound or text[-1]


def _tensor(
    text: str, default: str, env: dict[str, int], generator: torch.Generator
) -> torch.Tensor:
    _, name, dims, bound = _parse(text)
    dtype: torch.dtype = getattr(torch, default if name == "T" else name)
    shape = [env[d] if d in env else int(d) for d in dims]
    if dtype == torch.bool:
        mask = torch.rand(shape, generator=generator) < 0.8
        mask[..., :1] = True  # no row without an element
        return mask
    if not dtype.is_floating_point:
        most = env[bound] if bound in env else int(bound) if bound.isdigit() else 100
        return torch.randint(0, most, shape, generator=generator, dtype=dtype)
    if bound == "0":
        return (torch.rand(shape, generator=generator) + 0.1).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)

"""What the machine can do at best, measured here, and what a case asks of it, counted.

The limit of a case is the largest of: bytes of inputs and outputs over bandwidth; flops of matrix
products over the best product's rate in the same element type; vector operations over the rate at
which the one in float32 issues multiply-adds. No program is faster unless it computes less. A
product of one row asks for its weights' bytes and little else, so bandwidth is that of reading
alone where that is more than of copies.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tilevm.tools.bench.costs import COSTS


@dataclass(frozen=True)
class Work:
    """What a call asks for."""

    bytes: int
    flops: int
    vector_ops: int
    dtype: str = "float32"  # of the products, if there are any


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.vector_ops = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2].strip("_")
        cost = COSTS.get(name, 1 if torch.Tag.pointwise in func.tags else 0)
        tensors = [x for x in (*args, out) if isinstance(x, torch.Tensor)]
        self.vector_ops += cost * max((x.numel() for x in tensors), default=0)
        if name == _ATTENTION:
            causal = bool(args[4]) if len(args) > 4 else False
            self.vector_ops += COSTS["softmax"] * _scores(args[0].shape, args[1].shape, causal)
        return out


def _weights(module: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters that a call reads whole: a lookup touches few rows of a table."""
    tables = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    found = {
        id(p): p
        for part in module.modules()
        if not isinstance(part, tables)
        for p in part.parameters(recurse=False)
    }
    return list(found.values())


_ATTENTION = "scaled_dot_product_flash_attention_for_cpu"


def _scores(query: Sequence[int], key: Sequence[int], causal: bool) -> int:
    """Pairs of a query and a key that attention looks at."""
    rows, columns = query[-2], key[-2]
    edge = min(rows, columns) if causal else 0  # the first queries do not see all keys
    return math.prod(query[:-2]) * (edge * (edge + 1) // 2 + (rows - edge) * columns)


def _attention_flops(
    query: Sequence[int],
    key: Sequence[int],
    value: Sequence[int],
    dropout: float = 0.0,
    causal: bool = False,
    *args: Any,
    **kwargs: Any,
) -> int:
    """Both products of attention, which PyTorch's counter does not know on this device."""
    return 2 * _scores(query, key, causal) * (query[-1] + value[-1])


def _grouped_flops(rows: Sequence[int], matrices: Sequence[int], *args: Any, **kwargs: Any) -> int:
    """Of products of groups of rows that have a matrix each."""
    return 2 * math.prod(rows) * matrices[-1]


_FLOPS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten._grouped_mm: _grouped_flops,
}


def count(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Work:
    """The work of one call. Memory is each input and output once; parameters are inputs."""
    counter = _Counter()
    flops = FlopCounterMode(display=False, custom_mapping=_FLOPS)
    with torch.no_grad(), flops, counter:
        outputs = function(*inputs)
    held = [*inputs, *(outputs if isinstance(outputs, tuple | list) else (outputs,))]
    if isinstance(function, torch.nn.Module):
        held += _weights(function)
    floating = [x.dtype for x in held if isinstance(x, torch.Tensor) and x.is_floating_point()]
    return Work(
        sum(x.numel() * x.element_size() for x in held if isinstance(x, torch.Tensor)),
        flops.get_total_flops(),
        counter.vector_ops,
        str(floating[0])[6:] if floating else "float32",
    )


@dataclass
class Machine:
    """Best rates measured so far at one number of threads.

    flops_s: of products, by their dtype. bandwidth: bytes a second by log2 of how many there are.
    """

    threads: int
    flops_s: dict[str, float] = field(default_factory=dict)
    bandwidth: dict[int, float] = field(default_factory=dict)

    def measure(self, works: Sequence[Work]) -> None:
        """Measure the rates that these works need; others may use the machine, so often."""
        for dtype in {"float32", *(work.dtype for work in works if work.flops)}:
            self.flops_s[dtype] = max(self.flops_s.get(dtype, 0.0), _product_rate(dtype))
        tiny = torch.zeros(4)
        overhead_s = _seconds(lambda: tiny.copy_(tiny), 0.01)
        for key in {size_class(work) for work in works}:
            source = torch.ones((1 << key) // 8)
            target = torch.empty_like(source)
            ways = (
                functools.partial(target.copy_, source),
                functools.partial(torch.dot, source, target),
            )
            seconds = min(_seconds(way, 0.03) for way in ways)
            rate = (1 << key) / max(seconds - overhead_s, 1e-9)
            self.bandwidth[key] = max(self.bandwidth.get(key, 0.0), rate)

    def absorb(self, other: Machine) -> None:
        """Take over what another process measured, where it is more."""
        for dtype, rate in other.flops_s.items():
            self.flops_s[dtype] = max(self.flops_s.get(dtype, 0.0), rate)
        for key, rate in other.bandwidth.items():
            self.bandwidth[key] = max(self.bandwidth.get(key, 0.0), rate)

    def limit_s(self, work: Work) -> float:
        """Seconds that no program beats. The work's rates must have been measured."""
        return max(
            work.bytes / self.bandwidth[size_class(work)],
            work.flops / self.flops_s[work.dtype] if work.flops else 0.0,
            work.vector_ops / (self.flops_s["float32"] / 2),  # a multiply-add is two flops
        )


def size_class(work: Work) -> int:
    """The log2 of bytes by which bandwidths are measured."""
    return max(14, work.bytes.bit_length())


SIDE = 1024  # of the matrices whose product is the measure


@functools.cache
def _products(dtype: str) -> tuple[Callable[[], Any], ...]:
    """The same product by torch, by oneDNN with packed weights, and by tilevm."""
    import tilevm

    kind: torch.dtype = getattr(torch, dtype)
    a, b = torch.randn(SIDE, SIDE).to(kind), torch.randn(SIDE, SIDE).to(kind)
    own = tilevm.compile(torch.mm)
    ways: list[Callable[[], Any]] = [lambda: torch.mm(a, b), lambda: own(a, b)]
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(a.to_mkldnn(), SIDE)
        linear = torch.ops.mkldnn._linear_pointwise
        linear(b, packed, None, "none", [], "")
        ways.append(lambda: linear(b, packed, None, "none", [], ""))
    except (AttributeError, RuntimeError, NotImplementedError):
        pass  # a build without oneDNN
    return tuple(ways)


def _product_rate(dtype: str) -> float:
    """Flops a second of the best matrix product there is."""
    return 2 * SIDE**3 / min(_seconds(way, 0.03) for way in _products(dtype))


def _seconds(call: Callable[[], Any], least_s: float) -> float:
    """Best time of a call in some batches of it; each batch lasts a fifth of `least_s`."""
    call()
    begin = time.perf_counter()
    call()
    many = max(1, int(least_s / 5 / max(time.perf_counter() - begin, 1e-7)))
    samples = []
    for _ in range(7):
        begin = time.perf_counter()
        for _ in range(many):
            call()
        samples.append((time.perf_counter() - begin) / many)
    return min(samples)

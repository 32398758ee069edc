"""What the machine can do at best, measured here, and what a case asks of it, counted.

The limit of a case is the largest of: bytes of inputs and outputs over bandwidth; flops of matrix
products over the best product's rate; vector operations over the rate at which that product
issues multiply-adds. No program is faster unless it computes less.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

# Vector operations an element, where it is not one: what a good polynomial takes, or the
# processor's divider. Names are ATen's, without overload and underscore.
COSTS = {
    "div": 6,
    "reciprocal": 6,
    "sqrt": 8,
    "rsqrt": 8,
    "exp": 10,
    "log": 12,
    "tanh": 16,
    "sigmoid": 16,
    "silu": 17,
    "erf": 18,
    "gelu": 20,
    "pow": 1,  # a square
    "softmax": 14,
    "log_softmax": 14,
    "native_layer_norm": 6,
    "native_batch_norm": 2,
    "batch_norm_no_training": 2,
    "native_batch_norm_legit_no_training": 2,
    "remainder": 8,
    "var": 3,
    "sum": 1,
    "mean": 1,
    "amax": 1,
    "amin": 1,
}


@dataclass(frozen=True)
class Work:
    """What a call asks for."""

    bytes: int
    flops: int
    vector_ops: int


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
        return out


def count(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Work:
    """The work of one call. Memory is each input and output once; parameters are inputs."""
    counter = _Counter()
    flops = FlopCounterMode(display=False)
    with torch.no_grad(), flops, counter:
        outputs = function(*inputs)
    held = [*inputs, *(outputs if isinstance(outputs, tuple | list) else (outputs,))]
    if isinstance(function, torch.nn.Module):
        # A lookup touches few rows of a table.
        held += [p for n, p in function.named_parameters() if "embedding" not in n.lower()]
    return Work(
        sum(x.numel() * x.element_size() for x in held if isinstance(x, torch.Tensor)),
        flops.get_total_flops(),
        counter.vector_ops,
    )


@dataclass
class Machine:
    """Best rates measured so far at one number of threads; bandwidth by size class."""

    threads: int
    flops_s: float = 0.0
    bandwidth: dict[int, float] = field(default_factory=dict)  # log2 of bytes -> bytes a second

    def measure(self, works: Iterable[Work]) -> None:
        """Measure the rates that these works need; others may use the machine, so often."""
        self.flops_s = max(self.flops_s, _product_rate())
        tiny = torch.zeros(4)
        overhead_s = _seconds(lambda: tiny.copy_(tiny), 0.01)
        for key in {_size_class(work) for work in works}:
            source = torch.ones((1 << key) // 8)
            target = torch.empty_like(source)
            seconds = _seconds(functools.partial(target.copy_, source), 0.05)
            rate = (1 << key) / max(seconds - overhead_s, 1e-9)
            self.bandwidth[key] = max(self.bandwidth.get(key, 0.0), rate)

    def absorb(self, other: Machine) -> None:
        """Take over what another process measured, where it is more."""
        self.flops_s = max(self.flops_s, other.flops_s)
        for key, rate in other.bandwidth.items():
            self.bandwidth[key] = max(self.bandwidth.get(key, 0.0), rate)

    def limit_s(self, work: Work) -> float:
        """Seconds that no program beats. The work's size class must have been measured."""
        return max(
            work.bytes / self.bandwidth[_size_class(work)],
            work.flops / self.flops_s,
            work.vector_ops / (self.flops_s / 2),  # a multiply-add is two flops
        )


def _size_class(work: Work) -> int:
    return max(14, work.bytes.bit_length())


def _product_rate() -> float:
    """Flops a second of the best matrix product there is."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    ways: list[Callable[[], Any]] = [lambda: torch.mm(a, b)]
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(a.to_mkldnn(), 1024)
        linear = torch.ops.mkldnn._linear_pointwise
        linear(b, packed, None, "none", [], "")
        ways.append(lambda: linear(b, packed, None, "none", [], ""))
    except (AttributeError, RuntimeError, NotImplementedError):
        pass  # a build without oneDNN
    return 2 * 1024**3 / min(_seconds(way, 0.1) for way in ways)


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

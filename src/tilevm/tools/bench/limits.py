"""What the machine can do at best, measured here, and what a case asks of it, counted.

The limit of a case is the largest of: bytes of inputs and outputs over bandwidth; flops of matrix
products over the best product's rate; vector operations over the rate at which that product
issues multiply-adds. No program is faster unless it computes less.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
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
    """Measured rates at one number of threads; bandwidth by size class."""

    threads: int
    flops_s: float = 0.0
    overhead_s: float = 0.0  # of the smallest copy
    bandwidth: dict[int, float] = field(default_factory=dict)  # log2 of bytes -> bytes a second

    def measure(self) -> None:
        """Measure what does not depend on the size."""
        tiny = torch.zeros(4)
        self.overhead_s = _seconds(lambda: tiny.copy_(tiny), 0.01)
        a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
        ways: list[Callable[[], Any]] = [lambda: torch.mm(a, b)]
        try:
            packed = torch.ops.mkldnn._reorder_linear_weight(a.to_mkldnn(), 1024)
            linear = torch.ops.mkldnn._linear_pointwise
            linear(b, packed, None, "none", [], "")
            ways.append(lambda: linear(b, packed, None, "none", [], ""))
        except (AttributeError, RuntimeError, NotImplementedError):
            pass  # a build without oneDNN
        self.flops_s = 2 * 1024**3 / min(_seconds(way, 0.2) for way in ways)

    def limit_s(self, work: Work) -> float:
        """Seconds that no program beats."""
        times = [work.bytes / self._bandwidth(work.bytes)]
        times.append(work.flops / self.flops_s)
        times.append(work.vector_ops / (self.flops_s / 2))  # a multiply-add is two flops
        return max(times)

    def _bandwidth(self, bytes_: int) -> float:
        """Bytes read and written a second by a copy that touches as much."""
        key = max(14, bytes_.bit_length())
        if key not in self.bandwidth:
            source = torch.ones((1 << key) // 8)
            target = torch.empty_like(source)
            seconds = _seconds(lambda: target.copy_(source), 0.05)
            self.bandwidth[key] = (1 << key) / max(seconds - self.overhead_s, 1e-9)
        return self.bandwidth[key]


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
    return min(statistics.median(samples), *samples)

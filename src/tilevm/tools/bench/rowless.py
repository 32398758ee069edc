"""Operators that `tilevm.fuse` has no row for, one by one in a block, over eager code.

`python -m tilevm.tools.bench.rowless` prints medians of interleaved rounds, and what the first call
took, in which a template is made; names among the arguments choose operators.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional

import tilevm

ROWS, COLUMNS = 512, 1024


class Inputs:
    """Of all cases; elements as they are drawn from one seed."""

    def __init__(self, rows: int, columns: int) -> None:
        def normal(*sizes: int) -> Any:
            return torch.randn(*sizes, generator=generator)

        generator = torch.Generator().manual_seed(0)
        self.x = normal(rows, columns)
        self.y = normal(rows, columns)
        self.p = torch.rand(rows, columns, generator=generator)
        self.k = torch.randint(0, rows, (rows, columns), generator=generator)
        self.bounds = torch.linspace(0, 1, 100)
        self.images = normal(4, 32, 56, 56)
        self.weight, self.each = normal(32, 32, 3, 3), normal(32, 1, 3, 3)
        self.places = torch.rand(4, 56, 56, 2, generator=generator) * 2 - 1
        self.vector = normal(columns)


Case = Callable[[Inputs], Any]
CASES: dict[str, Case] = {
    "acos": lambda i: torch.acos(i.p),
    "atan": lambda i: torch.atan(i.x),
    "asinh": lambda i: torch.asinh(i.x),
    "erfc": lambda i: torch.erfc(i.x),
    "erfinv": lambda i: torch.erfinv(i.p),
    "lgamma": lambda i: torch.lgamma(i.x),
    "logit": lambda i: torch.logit(i.p),
    "nan_to_num": lambda i: torch.nan_to_num(i.x),
    "hypot": lambda i: torch.hypot(i.x, i.y),
    "logaddexp": lambda i: torch.logaddexp(i.x, i.y),
    "heaviside": lambda i: torch.heaviside(i.x, i.y),
    "frexp": lambda i: torch.frexp(i.x),
    "glu": lambda i: functional.glu(i.x),
    "logsigmoid": lambda i: functional.logsigmoid(i.x),
    "cummax": lambda i: torch.cummax(i.x, 1),
    "logcumsumexp": lambda i: torch.logcumsumexp(i.x, 1),
    "sort": lambda i: torch.sort(i.x, 1),
    "kthvalue": lambda i: torch.kthvalue(i.x, 10, 1),
    "median": lambda i: torch.median(i.x, 1),
    "roll": lambda i: torch.roll(i.x, 3, 1),
    "flip": lambda i: torch.flip(i.x, [1]),
    "tril": lambda i: torch.tril(i.x),
    "take": lambda i: torch.take(i.x, i.k),
    "index_copy": lambda i: torch.index_copy(i.x, 0, torch.arange(len(i.x)), i.y),
    "scatter_reduce": lambda i: torch.scatter_reduce(i.x, 0, i.k, i.y, "amax"),
    "bucketize": lambda i: torch.bucketize(i.p, i.bounds),
    "logsumexp": lambda i: torch.logsumexp(i.x, 1),
    "vector_norm, 1": lambda i: torch.linalg.vector_norm(i.x, 1, 1),
    "aminmax": lambda i: torch.aminmax(i.x, dim=1),
    "count_nonzero": lambda i: torch.count_nonzero(i.x, 1),
    "huber_loss": lambda i: functional.huber_loss(i.x, i.y),
    "binary_cross_entropy": lambda i: functional.binary_cross_entropy(i.p, i.p),
    "addmv": lambda i: torch.addmv(i.x[:, 0].contiguous(), i.x, i.vector),
    "avg_pool2d": lambda i: functional.avg_pool2d(i.images, 2),
    "max_pool2d": lambda i: functional.max_pool2d(i.images, 3, 2, 1),
    "adaptive_avg_pool2d": lambda i: functional.adaptive_avg_pool2d(i.images, 7),
    "pad": lambda i: functional.pad(i.images, (1, 1, 1, 1)),
    "pad, reflect": lambda i: functional.pad(i.images, (1, 1, 1, 1), mode="reflect"),
    "interpolate, nearest": lambda i: functional.interpolate(i.images, scale_factor=2),
    "interpolate, bilinear": lambda i: functional.interpolate(
        i.images, scale_factor=2, mode="bilinear", align_corners=False
    ),
    "unfold": lambda i: functional.unfold(i.images, 3),
    "grid_sample": lambda i: functional.grid_sample(i.images, i.places, align_corners=False),
    "group_norm": lambda i: functional.group_norm(i.images, 8),
    "conv2d": lambda i: functional.conv2d(i.images, i.weight, padding=1),
    "conv2d, depthwise": lambda i: functional.conv2d(i.images, i.each, padding=1, groups=32),
    "conv_transpose2d": lambda i: functional.conv_transpose2d(i.images, i.weight, stride=2),
}


def _in_block(function: Case, inputs: Inputs) -> Any:
    with tilevm.fuse():
        return function(inputs)


def measure(inputs: Inputs, names: Sequence[str], rounds: int) -> Iterator[tuple[str, Any]]:
    """Each case with eager's time, ours, and our first call's, in seconds."""
    for name in names:
        function = CASES[name]
        begin = time.perf_counter()
        _in_block(function, inputs)
        first = time.perf_counter() - begin
        taken: tuple[list[float], list[float]] = [], []
        calls = functools.partial(function, inputs), functools.partial(_in_block, function, inputs)
        for round_number in range(rounds + 1):  # the first one is for what happens once
            for call, times in zip(calls, taken, strict=True):
                begin = time.perf_counter()
                call()
                if round_number > 0:
                    times.append(time.perf_counter() - begin)
        yield name, (*map(statistics.median, taken), first)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="of operators: " + ", ".join(CASES))
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in CASES]
    if unknown:
        parser.error(f"no such operator: {', '.join(unknown)}")
    torch.set_num_threads(options.threads)
    inputs = Inputs(options.rows, COLUMNS)
    ratios = []
    print(f"{'ms':<24}{'eager':>9}{'block':>9}{'ratio':>7}{'first call':>12}")
    with tilevm.config.patch(templates=1), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, (eager, ours, first) in measure(
            inputs, options.names or [*CASES], options.rounds
        ):
            ratios.append(ours / eager)
            row = f"{1e3 * eager:>9.3f}{1e3 * ours:>9.3f}{ratios[-1]:>7.2f}{1e3 * first:>12.1f}"
            print(f"{name:<24}{row}", flush=True)
    geomean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(f"geomean {geomean:.2f}, longest {max(ratios):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Random numbers in captured graphs over eager code, which draws the same ones.

`python -m tilevm.tools.bench.draws` prints nanoseconds an element, medians of interleaved rounds;
`--rows`, `--rounds` and `--threads` say of what.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional

import tilevm

COLUMNS = 768


def _dropout_add_norm(x: Any, y: Any) -> Any:
    """Behind a layer of a transformer that trains."""
    return functional.layer_norm(x + functional.dropout(y, 0.1), (COLUMNS,))


CASES: dict[str, Callable[[Any, Any], Any]] = {
    "dropout": lambda x, y: functional.dropout(x, 0.1),
    "dropout, add, layer norm": _dropout_add_norm,
    "rand_like": lambda x, y: torch.rand_like(x),
    "uniform_ from -1 to 1": lambda x, y: torch.empty_like(x).uniform_(-1, 1),
    "bernoulli of each chance": lambda x, y: torch.bernoulli(x),
    "randn_like": lambda x, y: torch.randn_like(x),
    "noise": lambda x, y: y + torch.exp(0.5 * x) * torch.randn_like(x),
    "log_normal_": lambda x, y: torch.empty_like(x).log_normal_(),
    "exponential_": lambda x, y: torch.empty_like(x).exponential_(),
    "cauchy_": lambda x, y: torch.empty_like(x).cauchy_(),
    "geometric_": lambda x, y: torch.empty_like(x).geometric_(0.3),
    "randint below 1000": lambda x, y: torch.randint(0, 1000, x.shape),
}


def measure(rows: int, rounds: int) -> Iterator[tuple[str, float, float]]:
    """Each case with eager's time and ours, in ns an element."""
    x, y = torch.rand(rows, COLUMNS), torch.randn(rows, COLUMNS)
    for name, function in CASES.items():
        contestants = function, tilevm.compile(function)
        taken: tuple[list[float], list[float]] = [], []
        with torch.no_grad():
            for round_number in range(rounds + 2):  # the first two are for what happens once
                for call, times in zip(contestants, taken, strict=True):
                    begin = time.perf_counter()
                    call(x, y)
                    if round_number > 1:
                        times.append(time.perf_counter() - begin)
        eager, ours = (1e9 * statistics.median(times) / x.numel() for times in taken)
        yield name, eager, ours


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 if PyTorch drew some of the numbers after all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1024, help=f"of {COLUMNS} elements")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    tilevm.stats.reset()
    print(f"{'ns an element':<28}{'eager':>8}{'ours':>8}{'ratio':>8}")
    for name, eager, ours in measure(options.rows, options.rounds):
        print(f"{name:<28}{eager:>8.2f}{ours:>8.2f}{ours / eager:>8.2f}")
    stats = tilevm.stats()
    for name, count in {**stats["callouts"], **stats["flushes"]}.items():
        print(f"PyTorch's: {name}, {count} times")
    return int(bool(stats["callouts"] or stats["flushes"]))


if __name__ == "__main__":
    sys.exit(main())

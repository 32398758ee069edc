"""Resident memory of a process that compiles many programs and makes many calls.

`python -m tilevm.tools.bench.memory` prints a table; `--programs` and `--calls` say how many.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import tilevm
from tilevm import lang
from tilevm.runtime import program as runtime

PAGE_BYTES = 4096


@dataclass(frozen=True)
class Sample:
    """Memory after `count` programs or calls of a phase."""

    phase: str
    count: int
    resident_bytes: int
    code_bytes: int  # machine code in use
    buffer_bytes: int  # kept for later calls

    def __str__(self) -> str:
        mib = [size / 2**20 for size in (self.resident_bytes, self.code_bytes, self.buffer_bytes)]
        return f"{self.phase:<34}{self.count:>8}{mib[0]:>12.1f}{mib[1]:>10.2f}{mib[2]:>10.2f}"


HEADER = f"{'MiB':<34}{'count':>8}{'resident':>12}{'code':>10}{'buffers':>10}"


def resident_bytes() -> int:
    """Of this process, now."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * PAGE_BYTES


def sample(phase: str, count: int) -> Sample:
    """Memory now, after what only the garbage collector can free is gone."""
    gc.collect()
    return Sample(
        phase,
        count,
        resident_bytes(),
        runtime.code_memory()["used_bytes"],
        runtime.memory()["idle_bytes"],
    )


def distinct(number: int) -> Callable[..., Any]:
    """A function like no other: operators and constants depend on the bits of `number`."""

    def function(x: Any, y: Any) -> Any:
        for bit in range(14):
            x = lang.tanh(x) + y * (number + bit) if number >> bit & 1 else lang.exp(-x * y)
        return x - lang.max(x, -1, keepdims=True) if number & 1 else x

    return function


def run(programs: int, calls: int, samples: int = 10) -> Iterator[Sample]:
    """Every phase, with memory at equal distances; first after one program, as the basis."""
    x = np.linspace(-1, 1, 6 * 34, dtype=np.float32).reshape(6, 34)
    phases: list[tuple[str, int, Callable[[], Callable[[int], Any]]]] = [
        ("kernels that come and go", programs, lambda: lambda i: tilevm.kernel(distinct(i))(x, x)),
        ("programs of one kernel", programs, lambda: _signatures(x)),
        ("calls, sizes that change", calls, _sizes),
        ("calls, layouts that change", calls, _layouts),
    ]
    if find_spec("torch") is not None:
        captures = programs // 20  # each takes tens of milliseconds
        phases += [
            ("tilevm.compile, come and go", captures, _compiled),
            ("tilevm.compile of one function", captures, _captures),
            ("calls of tilevm.compile, sizes", calls, _compiled_sizes),
        ]
    for name, total, begin in phases:
        work = begin()
        work(0)
        yield sample(name, 1)
        done = 1
        for part in range(1, samples + 1):
            while done < total * part // samples:
                work(done)
                done += 1
            yield sample(name, done)


def _signatures(x: Any) -> Callable[[int], Any]:
    """Calls of one kernel, each with a static value of its own."""

    def function(x: Any, number: Any) -> Any:
        return distinct(int(number))(x, x)

    kernel = tilevm.kernel(static=("number",))(function)
    return lambda i: kernel(x, str(i))


def _sizes() -> Callable[[int], Any]:
    """Calls of one kernel with up to 16,000 elements, hardly ever as many as before."""
    kernel = tilevm.kernel(distinct(5))
    data = np.ones(1 << 15, np.float32)

    def call(i: int) -> Any:
        rows, columns = 1 + i * 7919 % 61, 1 + i * 104729 % 257
        x = data[: rows * columns].reshape(rows, columns)
        return kernel(x, x)

    return call


def _layouts() -> Callable[[int], Any]:
    """Calls of one kernel of six operands, in all orders of their dims."""

    def total(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
        return a + b * c - d * e + f

    kernel = tilevm.kernel(total)
    whole = np.ones((9, 9), np.float32)
    kinds = (whole, whole.T, whole[:, :1], whole[:1], np.ones((9, 18), np.float32)[:, ::2])

    def call(i: int) -> Any:
        return kernel(*(kinds[i // len(kinds) ** k % len(kinds)] for k in range(6)))

    return call


def _torch_function(number: int) -> Callable[..., Any]:
    import torch

    def function(x: Any, y: Any) -> Any:
        return torch.softmax(torch.tanh(x) * number + y, -1)

    return function


def _compiled() -> Callable[[int], Any]:
    """Functions that are captured, called once, and dropped."""
    import torch

    x = torch.ones(6, 34)
    return lambda i: tilevm.compile(_torch_function(i))(x, x)


def _captures() -> Callable[[int], Any]:
    """Calls of one function, each with a string of its own, which is part of the key."""
    import torch

    x = torch.ones(6, 34)

    def function(x: Any, name: str) -> Any:
        return _torch_function(len(name))(x, x)

    compiled = tilevm.compile(function)
    return lambda i: compiled(x, str(i))


def _compiled_sizes() -> Callable[[int], Any]:
    """Calls with sizes hardly ever as before."""
    import torch

    compiled = tilevm.compile(_torch_function(3))
    data = torch.ones(1 << 15)

    def call(i: int) -> Any:
        rows, columns = 2 + i * 7919 % 61, 2 + i * 104729 % 257
        x = data[: rows * columns].view(rows, columns)
        return compiled(x, x)

    return call


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tilevm.tools.bench.memory")
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=50_000)
    options = parser.parse_args(arguments)
    print(HEADER)
    for one in run(options.programs, options.calls):
        print(one, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How long compiling takes: distinct random programs of 1 to 60 operators, by tilevm and Inductor.

`python -m tilevm.tools.bench.compiling` prints medians. Each program is compiled once by each, for
inputs of 7x33, after both have compiled another. `core` is what the core's counters say: program to
machine code, without the Python that traces it. `first call` is the first call less a later one.
Inductor takes a second or more for each: `--inductor` says how many of the programs it gets.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

import tilevm
from tilevm import lang
from tilevm.runtime import program as runtime

MOST_OPERATORS = 60
UNARY = "exp tanh sigmoid neg abs relu sqrt gelu silu erf".split()
BINARY = ("{} + {}", "{} - {}", "{} * {}", "{} / {}", "n.maximum({}, {})")
ROWS = "total largest mean".split()
Function = Callable[..., Any]

_TORCH = SimpleNamespace(
    **{name: getattr(torch, name) for name in UNARY if hasattr(torch, name)},
    gelu=torch.nn.functional.gelu,
    silu=torch.nn.functional.silu,
    maximum=torch.maximum,
    where=torch.where,
    softmax=lambda x: torch.softmax(x, -1),
    total=lambda x: x.sum(-1, keepdim=True),
    largest=lambda x: x.amax(-1, keepdim=True),
    mean=lambda x: x.mean(-1, keepdim=True),
)
_LANG = SimpleNamespace(
    **{name: getattr(lang, name) for name in UNARY},
    maximum=lang.maximum,
    where=lang.where,
    softmax=lambda x: lang.softmax(x, -1),
    total=lambda x: lang.sum(x, -1, keepdims=True),
    largest=lambda x: lang.max(x, -1, keepdims=True),
    mean=lambda x: lang.mean(x, -1, keepdims=True),
)


def source(number: int, operators: int) -> str:
    """Python text of a function of x, y [B, C] and b [C]; `n` is the namespace of operators.

    Operators take one of the last four values, as in code that people write. All values that no
    operator uses are results.
    """
    chance = random.Random(number)
    values, unused = ["x", "y"], set[str]()
    lines = []

    def pick() -> str:
        name = chance.choice(values[-4:])
        unused.discard(name)
        return name

    for i in range(operators):
        kind, name = chance.randrange(20), f"v{i}"
        if kind < 6:
            text = f"n.{chance.choice(UNARY)}({pick()})"
        elif kind < 13:
            text = chance.choice(BINARY).format(pick(), pick())
        elif kind < 15:
            text = chance.choice(BINARY[:4]).format(pick(), 0.5 + chance.randrange(8))
        elif kind < 16:
            text = chance.choice(BINARY[:3]).format(pick(), "b")
        elif kind < 17:
            text = f"n.where({pick()} < {pick()}, {pick()}, {pick()})"
        elif kind < 19:
            of = pick()
            text = chance.choice(BINARY[:4]).format(of, f"n.{chance.choice(ROWS)}({of})")
        else:
            text = f"n.softmax({pick()})"
        lines.append(f"    {name} = {text}\n")
        values.append(name)
        unused.add(name)
    results = ", ".join(name for name in values if name in unused)
    return f"def program(x, y, b):\n{''.join(lines)}    return {results}\n"


def function(text: str, operators: SimpleNamespace) -> Function:
    """The function that the text defines."""
    scope: dict[str, Any] = {"n": operators}
    exec(compile(text, "<program>", "exec"), scope)
    made: Function = scope["program"]
    return made


def excess_s(call: Callable[[], Any]) -> float:
    """What the first call takes longer than a later one."""
    start = time.perf_counter()
    call()
    first = time.perf_counter() - start
    later = []
    for _ in range(5):
        start = time.perf_counter()
        call()
        later.append(time.perf_counter() - start)
    return first - min(later)


def core_us(kernel: Any, inputs: Sequence[Any]) -> float:
    """Of a fresh compile in the core, by its counters."""
    executable: Any = runtime.compile_program(kernel.graph(*inputs).to_program(), ())
    tilevm.stats.reset()
    executable(*inputs)
    total: float = executable.compile_us + tilevm.stats()["compile_total_us"]
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, prog="compiling")
    parser.add_argument("--programs", type=int, default=240)
    parser.add_argument("--inductor", type=int, default=24, help="programs that Inductor compiles")
    options = parser.parse_args(arguments)
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    torch.set_num_threads(1)
    x, y, b = torch.rand(7, 33), torch.rand(7, 33), torch.rand(33)
    core, first, inductor = [], [], []
    both: list[tuple[float, float, float]] = []
    step = max(1, options.programs // max(1, options.inductor))
    for number in range(-1, options.programs):  # the first is not counted
        text = source(number, 1 + number % MOST_OPERATORS)
        kernel = tilevm.kernel(function(text, _LANG))
        first_s = excess_s(lambda kernel=kernel: kernel(x, y, b))  # type: ignore[misc]
        us = core_us(kernel, (x, y, b))
        inductor_s = 0.0
        if options.inductor and (number < 0 or number % step == 0):
            torch._dynamo.reset()
            compiled = torch.compile(function(text, _TORCH), dynamic=False)
            inductor_s = excess_s(lambda compiled=compiled: compiled(x, y, b))  # type: ignore[misc]
        if number < 0:
            continue
        core.append(us)
        first.append(first_s)
        if inductor_s:
            inductor.append(inductor_s)
            both.append((us, first_s, inductor_s))
            print(f"\r{number + 1} of {options.programs}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(f"{len(core)} programs of 1 to {MOST_OPERATORS} operators, inputs of 7x33, one thread")
    print(f"core:       median {statistics.median(core):8.1f} us, longest {max(core):8.1f} us")
    print(f"first call: median {statistics.median(first) * 1e6:8.1f} us")
    if both:
        by_core = statistics.median(s / us * 1e6 for us, _, s in both)
        by_call = statistics.median(s / f for _, f, s in both)
        print(
            f"Inductor on {len(both)} of them: median {statistics.median(inductor):.2f} s; "
            f"{by_core:,.0f} times the core, {by_call:,.0f} times the first call"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

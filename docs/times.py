"""Prints the table of times in ARCHITECTURE.md: `python docs/times.py`. Best of many runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd

import tilevm
from tilevm import lang
from tilevm.runtime import program as runtime

REPEATS = 2000


@tilevm.kernel
def softmax(x: Any) -> Any:
    e = lang.exp(x - lang.max(x, axis=-1, keepdims=True))
    return e / lang.sum(e, axis=-1, keepdims=True)


@tilevm.kernel
def add(x: Any, y: Any) -> Any:
    return x + y


def best_us(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Microseconds of the fastest of `repeats` runs."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter_ns()
        work()
        best = min(best, time.perf_counter_ns() - start)
    return best / 1e3


def compiles(repeats: int = 200) -> tuple[float, float]:
    """Microseconds of compiling softmax from its program, and of its first launch's encoding."""
    x = torch.randn(7, 33)
    graph = softmax.graph(x)
    plan, encode = float("inf"), float("inf")
    for _ in range(repeats):
        run: Any = runtime.compile_program(graph.to_program(), (), single=True)
        plan = min(plan, run.compile_us)
        tilevm.stats.reset()
        run(x)
        encode = min(encode, tilevm.stats()["compile_total_us"])
    return plan, encode


def ready(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
    """A backend without work: its results are there already."""
    results = tuple(torch.empty_like(x) for x in graph(*examples))
    return lambda *inputs: results


def through_dynamo(backend: Any) -> Callable[..., Any]:
    """`x * y + z` with code of its own, since Dynamo keeps what it knows by code."""
    scope: dict[str, Any] = {}
    exec("def multiply_add(x, y, z): return x * y + z", scope)
    compiled: Callable[..., Any] = torch.compile(
        scope["multiply_add"], backend=backend, dynamic=True
    )
    return compiled


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    x, y = torch.randn(7, 33), torch.randn(7, 33)
    compiled = tilevm.compile(lambda a, b: a + b)
    compiled(x, y)
    executable: Any = runtime.compile_program(add.graph(x, y).to_program(), (), single=True)
    executable(x, y)
    graph = softmax.graph(x)
    ours = through_dynamo("tilevm")
    empty = through_dynamo(aot_autograd(fw_compiler=ready))

    def retrace() -> None:
        softmax.forget()
        softmax.graph(x)

    plan, encode = compiles()
    rows = (
        ("trace a kernel of 5 operators (Python)", best_us(retrace, 200)),
        ("build its program from a graph, typing each operator", best_us(graph.to_program, 200)),
        ("compile: lower, fuse, host program", plan),
        ("first launch of a layout class: encode, prepare, emit machine code", encode),
        ("call `x + y` of 7x33: the executable itself", best_us(lambda: executable(x, y))),
        ("... through `@tilevm.kernel`", best_us(lambda: add(x, y))),
        ("... through `tilevm.compile`", best_us(lambda: compiled(x, y))),
        ("... eager PyTorch", best_us(lambda: x + y)),
        ("call `x * y + z`: `torch.compile` with tilevm", best_us(lambda: ours(x, y, x))),
        (
            "... `torch.compile` with AOTAutograd and results that are there already",
            best_us(lambda: empty(x, y, x)),
        ),
    )
    print("| what | microseconds |\n|---|---|")
    for what, us in rows:
        print(f"| {what} | {us:.2f} |")


if __name__ == "__main__":
    main()

"""What sizes cost that are not known ahead: `python -m tilevm.tools.bench.dynamic`.

stream: shapes that were never seen; what a call of one takes beyond a call of one that was.
static: the same graph with all sizes known, by tilevm and by Inductor, over the dynamic one.
compile: microseconds in the core for graphs of 10 to 10,000 operators: lowered, fused, the host
program made; and what first launches encode and emit besides.
host: calls of models whose kernels have next to nothing to do.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import tilevm
from tilevm.runtime import program as runtime
from tilevm.tools.bench import cases, compiling
from tilevm.tools.bench.case import Case
from tilevm.tools.bench.report import geomean

STREAM = ("bias_gelu", "softmax", "layer_norm", "rms_norm", "bert_layer")
STATIC = ("softmax", "layer_norm", "chain20", "bert_layer", "llama_layer", "bert4")
OPERATORS = (10, 100, 1000, 10_000)
BLOCK = 20  # shapes of a stream between a shape and the same again
LATER = 7  # calls of a shape one after the other


def timed(call: Callable[[], Any]) -> float:
    """Seconds."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def stream(case: Case, count: int) -> dict[str, float]:
    """Of shapes drawn between the least and the largest of the case's sweep.

    `new`: a call of a shape that was never seen; `again`: of the same shape, BLOCK shapes later;
    `control`: what is said of the two, of `again` and a third such call, which is what the machine
    adds by itself. All have fresh inputs and follow a call of another shape. `later`: calls of a
    shape one after the other.
    """
    drawn = random.Random(1)
    spans = [
        (max(min(column), 2), min(max(column), 300)) for column in zip(*case.sweep, strict=True)
    ]
    shapes: dict[tuple[int, ...], None] = {}
    for _ in range(20 * count):
        shapes[tuple(drawn.randint(*span) for span in spans)] = None
        if len(shapes) == count:
            break
    compiled = tilevm.compile(case.make())
    captures = tilevm.stats()["captures"]
    passes: list[list[float]] = [[], [], []]
    later: list[float] = []
    # Soon after each other, since machines are not equally quick for minutes.
    order = list(shapes)
    for start in range(0, len(order), BLOCK):
        block = order[start : start + BLOCK]
        for times in passes:
            for sizes in block:
                inputs = case.tensors(sizes)
                times.append(timed(lambda inputs=inputs: compiled(*inputs)))  # type: ignore[misc]
        for sizes in block:
            inputs = case.tensors(sizes)
            calls = [
                timed(lambda inputs=inputs: compiled(*inputs))  # type: ignore[misc]
                for _ in range(LATER)
            ]
            later.append(statistics.median(calls))
    new, again, third = passes
    return {
        "shapes": len(shapes),
        "captures": tilevm.stats()["captures"] - captures,
        "later us": 1e6 * statistics.median(later),
        "again us": 1e6 * statistics.median(again),
        **{f"new, {name}": value for name, value in _excess(new, again).items()},
        **{f"control, {name}": value for name, value in _excess(again, third).items()},
    }


def _excess(times: list[float], others: list[float]) -> dict[str, float]:
    """Without the first calls of all, which capture and compile."""
    pairs = list(zip(times[3:], others[3:], strict=True))
    excess = sorted(1e6 * (a - b) for a, b in pairs)
    relative = sorted(100 * (a - b) / b for a, b in pairs)
    ninety_nine = int(0.99 * len(pairs))
    return {
        "excess us": statistics.median(excess),
        "%": statistics.median(relative),
        "p99 us": excess[ninety_nine],
        "p99 %": relative[ninety_nine],
    }


def static(case: Case, sizes: Sequence[int]) -> dict[str, float]:
    """Microseconds of what the backends of torch.compile made, called without Dynamo's guards,
    which cost more where sizes are unknown, whatever the backend.
    """
    function, inputs = case.make(), case.tensors(sizes)
    kinds = {
        "tilevm": ("tilevm", True),
        "tilevm, sizes known": ("tilevm", False),
        "Inductor": ("inductor", True),
        "Inductor, sizes known": ("inductor", False),
    }
    calls: dict[str, Callable[..., Any]] = {}
    for name, (backend, dynamic) in kinds.items():
        torch._dynamo.reset()
        calls[name] = _compiled(function, inputs, backend, dynamic)
        for _ in range(3):
            calls[name]()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    once = max(timed(call) for call in calls.values())
    # In other orders each time: what was called before decides what caches hold.
    order = list(calls)
    drawn = random.Random(1)
    for _ in range(int(min(200, max(9, 0.2 / once)))):
        drawn.shuffle(order)
        for name in order:
            samples[name].append(1e6 * timed(calls[name]))
    return {name: statistics.median(s) for name, s in samples.items()}


def _compiled(
    function: Callable[..., Any], inputs: Sequence[Any], backend: str, dynamic: bool
) -> Callable[[], Any]:
    """What `backend` made of the function's graph, with the arguments that Dynamo calls it with."""
    found: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def make(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        made: Callable[..., Any] = torch._dynamo.lookup_backend(backend)(graph, examples)

        def call(*arguments: Any) -> Any:
            found.append((made, arguments))
            return made(*arguments)

        return call

    torch.compile(function, backend=make, dynamic=dynamic)(*inputs)
    if len(found) != 1:
        raise RuntimeError(f"{len(found)} graphs of one function")
    made, arguments = found[0]
    return lambda: made(*arguments)


def compile_us(operators: int) -> tuple[float, float]:
    """Of a random program of so many operators: the core's compile; encoding and emitting."""
    kernel = tilevm.kernel(
        compiling.function(compiling.source(operators, operators), compiling._LANG)
    )
    x, y, b = torch.rand(7, 33), torch.rand(7, 33), torch.rand(33)
    graph = kernel.graph(x, y, b)
    core, emit = [], []
    for _ in range(5 if operators < 5000 else 2):
        executable: Any = runtime.compile_program(graph.to_program(), ())
        tilevm.stats.reset()
        executable(x, y, b)
        core.append(executable.compile_us)
        emit.append(tilevm.stats()["compile_total_us"])
    return min(core), min(emit)


def host_us() -> dict[str, float]:
    """A BERT of 4 layers and 16 features on 4 tokens."""
    from transformers import BertConfig, BertModel

    config: Any = BertConfig(
        hidden_size=16, intermediate_size=16, num_attention_heads=2, num_hidden_layers=4,
        vocab_size=50,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    bert: Any = BertModel
    model = bert(config, add_pooling_layer=False).eval()
    compiled = tilevm.compile(lambda ids, mask: model(ids, mask).last_hidden_state)
    ids, mask = torch.randint(0, 50, (1, 4)), torch.ones(1, 4, dtype=torch.int64)
    compiled(ids, mask)
    compiled(ids[:, :3], mask[:, :3])
    before = tilevm.stats()["launches"]
    compiled(ids, mask)
    launches = tilevm.stats()["launches"] - before
    samples = [1e6 * timed(lambda: compiled(ids, mask)) for _ in range(3000)]
    return {"launches": launches, "median us": statistics.median(samples), "least us": min(samples)}


def _table(rows: Sequence[tuple[str, dict[str, float]]]) -> None:
    print(f"| case | {' | '.join(rows[0][1])} |")
    print("|" + "---|" * (len(rows[0][1]) + 1))
    for name, row in rows:
        print(f"| {name} | {' | '.join(f'{value:.4g}' for value in row.values())} |", flush=True)
    print()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, prog="python -m tilevm.tools.bench.dynamic"
    )
    parts = ("stream", "static", "compile", "host")
    parser.add_argument("--part", action="append", choices=parts)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--shapes", type=int, default=1000, help="of a stream")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    wanted = options.part or parts
    with torch.no_grad():
        if "stream" in wanted:
            _table([(name, stream(cases.CASES[name], options.shapes)) for name in STREAM])
        if "static" in wanted:
            rows = []
            for name in STATIC:
                case = cases.CASES[name]
                for sizes in case.shapes(quick=True):
                    rows.append((f"{name} {sizes}", static(case, sizes)))
            _table(rows)
            for peer in ("tilevm", "Inductor"):
                known = geomean([row[f"{peer}, sizes known"] / row[peer] for _, row in rows])
                print(f"{peer}: sizes known over not known {known:.3f}")
            best = geomean([row["tilevm"] / row["Inductor, sizes known"] for _, row in rows])
            print(f"tilevm, not known, over Inductor, known: {best:.3f}\n")
        if "compile" in wanted:
            measured = [(n, compile_us(n)) for n in OPERATORS]
            _table(
                [
                    (f"{n} operators", {"core us": core, "a operator": core / n, "emit us": emit})
                    for n, (core, emit) in measured
                ]
            )
        if "host" in wanted:
            _table([("BERT, 4 layers of 16", host_us())])
    return 0


if __name__ == "__main__":
    sys.exit(main())

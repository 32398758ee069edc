"""What `tilevm.fuse()` is worth: code that nobody captures, eager against fused against Inductor.

`python -m tilevm.tools.bench.eager` prints tables; `--case`, `--threads 2`, `--quick`, `--json`.
`--peers fuse,compile,inductor` adds `tilevm.compile`, which captures what it can of the same code.
Contestants take turns, call by call round the inputs of the case; each call ends when its results
have an address. `first` is the first call of a process that has run other code; `new` the
first call of inputs whose sizes were not seen. Inductor's compile time is not part of its times;
its recompiles are counted. `--accuracy` trains the small transformer for 200 steps, both ways.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import tilevm
from tilevm.tools.bench.cases_eager import TRAINING, EagerCase, chain, eager_cases
from tilevm.tools.bench.contestants import twin
from tilevm.tools.bench.measure import BATCH_S, _captures
from tilevm.tools.bench.report import geomean
from tilevm.tools.bench.run import environment

Function = Callable[..., Any]
ROUNDS = (5, 200)
LEAST_S = 0.3  # of each contestant and case
STEPS = 200


def looked_at(results: Any) -> Any:
    """The results, when they have values."""
    for x in pytree.tree_leaves(results):
        if isinstance(x, torch.Tensor):
            x.data_ptr()
    return results


def _eager(case: EagerCase, function: Function) -> Function:
    def call(*args: Any) -> Any:  # as the others are called
        return function(*args)

    return call


def _fuse(case: EagerCase, function: Function) -> Function:
    def call(*args: Any) -> Any:
        with tilevm.fuse():
            return function(*args)

    return call


def _compile(case: EagerCase, function: Function) -> Function:
    return tilevm.compile(function)  # type: ignore[no-any-return, unused-ignore]


def _inductor(case: EagerCase, function: Function) -> Function:
    compiled: Function = torch.compile(twin(function, f"{case.name}_inductor"), dynamic=True)
    return compiled


CONTESTANTS: dict[str, Callable[[EagerCase, Function], Function]] = {
    "eager": _eager,
    "fuse": _fuse,
    "compile": _compile,
    "inductor": _inductor,
}


class Contest:
    """One case: contestants with functions, inputs and parameters of their own."""

    def __init__(self, case: EagerCase, keys: Sequence[str]) -> None:
        self.case = case
        self.calls: dict[str, tuple[Function, list[tuple[Any, ...]]]] = {}
        self.result: dict[str, Any] = {"name": case.name, "kind": case.kind, "errors": {}}
        for key in keys:
            function, calls = case.make()
            self.calls[key] = CONTESTANTS[key](case, function), list(calls)

    def run(self, least_s: float) -> dict[str, Any]:
        """First calls, then steady ones in turns."""
        with torch.enable_grad() if self.case.grad else torch.no_grad():
            first = {key: self._first(key) for key in list(self.calls)}
            self._steady(least_s)
        self.result["first_us"] = {k: t[0] for k, t in first.items() if k in self.calls}
        self.result["new_us"] = {
            k: statistics.median(t[1:] or t) for k, t in first.items() if k in self.calls
        }
        return self.result

    def _first(self, key: str) -> list[float]:
        """Microseconds of each call of the first round."""
        call, inputs = self.calls[key]
        before, times = _captures(key), []
        stats = tilevm.stats()
        try:
            for args in inputs:
                begin = time.perf_counter()
                looked_at(call(*args))
                times.append(1e6 * (time.perf_counter() - begin))
        except Exception as error:
            del self.calls[key]
            self.result["errors"][key] = f"{type(error).__name__}: {error}"[:200]
            return times
        if key == "inductor":
            self.result["graphs"] = _captures(key) - before
            for args in inputs:  # the second round may compile again, for what was seen as static
                looked_at(call(*args))
        if key == "fuse":
            self.result["fuse"] = {
                name: tilevm.stats()[name] - stats[name]
                for name in ("compiles", "cache_hits", "launches")
            }
        return times

    def _steady(self, least_s: float) -> None:
        samples: dict[str, list[float]] = {key: [] for key in self.calls}
        keys = list(self.calls)
        once = max(self._round(key, 1) for key in keys)
        many = max(1, round(BATCH_S / max(once, 1e-7)))
        rounds = least_s / (once * many)
        gc.collect()
        gc.disable()
        try:
            for turn in range(int(min(ROUNDS[1], max(ROUNDS[0], rounds)))):
                start = turn % len(keys)
                for key in keys[start:] + keys[:start]:
                    samples[key].append(1e6 * self._round(key, many))
        finally:
            gc.enable()
        self.result["median_us"] = {k: statistics.median(s) for k, s in samples.items()}

    def _round(self, key: str, many: int) -> float:
        """Seconds of a call: the mean over all inputs, so many times."""
        call, inputs = self.calls[key]
        begin = time.perf_counter()
        for _ in range(many):
            for args in inputs:
                looked_at(call(*args))
        return (time.perf_counter() - begin) / (many * len(inputs))


def warm_up() -> None:
    """Load what each contestant needs: cases pay for their own segments only."""
    x = torch.rand(5, 5).requires_grad_()
    for _ in range(2):
        (x @ x).exp().sum().backward()  # type: ignore[no-untyped-call]
        with tilevm.fuse():
            (x @ x).exp().sum().backward()  # type: ignore[no-untyped-call]
            looked_at(x.grad)


def _operators(x: torch.Tensor, y: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """20 operators, element by element, of which each reads the result before."""
    unary = (torch.tanh, torch.exp, torch.relu, torch.sigmoid, torch.abs, torch.neg)
    binary = (torch.add, torch.mul, torch.sub, torch.maximum)
    values = [x, y]
    for _ in range(20):
        if rng.random() < 0.4:
            values.append(rng.choice(unary)(values[-1]))
        else:
            values.append(rng.choice(binary)(values[-1], rng.choice(values)))
    return values[-1]


def segments(many: int = 100) -> dict[str, float]:
    """Microseconds of recording, of a flush that compiles, and of one whose segment is known.

    Segments are of 20 operators.
    """
    x, y = torch.rand(8, 8), torch.rand(8, 8)
    recording, new, cached = [], [], []
    with torch.no_grad(), tilevm.fuse():
        for i in range(many):
            z = _operators(x, y, random.Random(i))  # a segment like no other
            new.append(_timed(z.data_ptr))
        for _ in range(10 * many):
            begin = time.perf_counter()
            z = chain(x, y)
            recording.append(1e6 * (time.perf_counter() - begin))
            cached.append(_timed(z.data_ptr))
    return {
        "recording, an operator": statistics.median(recording) / 20,
        "flush, new": statistics.median(new),
        "flush, known": statistics.median(cached),
    }


def _timed(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - begin)


def accuracy(steps: int = STEPS) -> dict[str, Any]:
    """Losses of the same training, eager and fused."""
    (case,) = (c for c in eager_cases() if c.name == TRAINING)
    losses: dict[str, list[float]] = {}
    for key, block in (("eager", contextlib.nullcontext), ("fuse", tilevm.fuse)):
        step, calls = case.make()
        found = []
        for i in range(steps):
            with block():
                loss = step(*calls[i % len(calls)])
            found.append(float(loss))
        losses[key] = found
    off = max(abs(a - b) / abs(a) for a, b in zip(losses["eager"], losses["fuse"], strict=True))
    last = {key: found[-1] for key, found in losses.items()}
    return {"steps": steps, "largest_relative_difference": off, "last": last}


def table(found: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    rows = [
        "| case | eager us | fuse | compile | Inductor | first, eager | first, fuse | new, eager "
        "| new, fuse | graphs of Inductor | segments compiled |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        median, eager = row["median_us"], row["median_us"]["eager"]
        cells = [row["name"], f"{eager:.1f}"]
        for key in ("fuse", "compile", "inductor"):
            failed = row["errors"].get(key, "").partition(":")[0]
            cells.append(f"{median[key] / eager:.2f}" if key in median else failed)
        for kind in ("first_us", "new_us"):
            cells += [
                f"{row[kind][key]:.0f}" if key in row[kind] else "" for key in ("eager", "fuse")
            ]
        cells += [str(row.get("graphs", "")), str(row.get("fuse", {}).get("compiles", ""))]
        rows.append(f"| {' | '.join(cells)} |")
    for kind in ("chain", "program"):
        ratios = [
            r["median_us"]["fuse"] / r["median_us"]["eager"]
            for r in found
            if r["kind"] == kind and "fuse" in r["median_us"]
        ]
        if ratios:
            rows.append(f"\n{kind}s: fuse over eager {geomean(ratios):.2f}, {len(ratios)} cases")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tilevm.tools.bench.eager")
    parser.add_argument("--case", action="append", help="names that contain this; may be repeated")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peers", default="fuse,inductor", help="besides eager")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no Inductor")
    parser.add_argument("--accuracy", action="store_true", help="only train, and compare losses")
    parser.add_argument("--json", type=Path, help="write everything that was measured")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.accuracy:
        print(json.dumps(accuracy(), indent=1))
        return 0
    torch._dynamo.config.recompile_limit = 64  # type: ignore[attr-defined, unused-ignore]
    peers = [key for key in options.peers.split(",") if key]
    keys = ["eager", *(k for k in peers if not (options.quick and k == "inductor"))]
    warm_up()
    found = []
    for case in eager_cases():
        if options.case and not any(part in case.name for part in options.case):
            continue
        print(f"\r{case.name:<30}", end="", file=sys.stderr, flush=True)
        found.append(Contest(case, keys).run(LEAST_S / (6 if options.quick else 1)))
    print(file=sys.stderr)
    if not found:
        sys.stderr.write(f"no case is called {options.case}\n")
        return 2
    print(table(found))
    steps = segments() if "fuse" in keys else {}
    print("\n" + "\n".join(f"{name}: {us:.2f} us" for name, us in steps.items()))
    if options.json:
        everything = {
            "environment": environment(),
            "threads": options.threads,
            "cases": found,
            "segments_us": steps,
        }
        options.json.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    return 1 if any("fuse" in row["errors"] for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())

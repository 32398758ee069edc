"""Training steps: forward, backward and AdamW, of batches whose length changes from step to step.

`python -m tilevm.tools.bench.training` prints medians of steps in turns, as ratios to eager code.
`--accuracy` trains for 200 steps instead and compares losses: with those of eager code, and what
rounding does to eager code itself, whose weights then start off by a unit in the last place.
Differences are told over the first loss.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

import tilevm
from tilevm.tools.bench.cases_training import CASES, TrainingCase, lengths
from tilevm.tools.bench.report import geomean

STEPS = 200
TURNS = 15
Step = Callable[..., torch.Tensor]


def _compiled(loss: Callable[..., Any], model: torch.nn.Module, backend: str) -> Step:
    run: Step = torch.compile(lambda *batch: loss(model, *batch), backend=backend, dynamic=True)
    return run


FORWARD: dict[str, Callable[[Callable[..., Any], torch.nn.Module], Step]] = {
    "eager": lambda loss, model: lambda *batch: loss(model, *batch),
    "tilevm": lambda loss, model: _compiled(loss, model, "tilevm"),
    "compile": lambda loss, model: tilevm.compile(lambda *batch: loss(model, *batch)),
    "inductor": lambda loss, model: _compiled(loss, model, "inductor"),
    "fuse": lambda loss, model: lambda *batch: loss(model, *batch),
}


def trainer(model: torch.nn.Module, loss: Callable[..., Any], key: str, steps: str = "") -> Step:
    """A function that takes a batch, makes a step and returns the loss.

    steps: how the optimiser runs: as it is, recorded by `tilevm.fuse` ("fuse"), or captured by the
    backend that the model has ("compile").
    """
    if steps not in ("", "fuse", "compile"):
        raise SystemExit(f"{key}+{steps}: the optimiser can be +fuse or +compile")
    optimiser = torch.optim.AdamW(model.parameters(), 1e-4)
    forward = FORWARD[key](loss, model)
    optimise: Callable[[], Any] = optimiser.step
    if steps == "compile":
        whole = key == "compile"
        optimise = tilevm.compile(optimise) if whole else torch.compile(optimise, backend=key)

    def step(*batch: torch.Tensor) -> torch.Tensor:
        optimiser.zero_grad(set_to_none=True)
        found = forward(*batch)
        found.backward()  # type: ignore[no-untyped-call]
        with tilevm.fuse() if steps == "fuse" else nullcontext():
            optimise()
        return found.detach()

    def recorded(*batch: torch.Tensor) -> torch.Tensor:
        with tilevm.fuse():
            return step(*batch)

    return recorded if key == "fuse" else step


def _models(
    case: TrainingCase, keys: Sequence[str]
) -> tuple[dict[str, torch.nn.Module], Callable[..., Any]]:
    torch.manual_seed(0)
    model, loss = case.make()
    return {key: copy.deepcopy(model).train() for key in keys}, loss


def times(case: TrainingCase, keys: Sequence[str]) -> dict[int, dict[str, float]]:
    """Median milliseconds of a step, by length and contestant."""
    models, loss = _models(case, keys)
    steps = {}
    for key in keys:
        name, _, optimiser = key.partition("+")
        steps[key] = trainer(models[key], loss, name, optimiser)
    generator = torch.Generator().manual_seed(1)
    for length in [*case.lengths, *case.lengths]:
        batch = case.batch(length, generator)
        for step in steps.values():
            step(*batch)
    found = {}
    for length in case.lengths:
        samples: dict[str, list[float]] = {key: [] for key in keys}
        for turn in range(TURNS):
            batch = case.batch(length, generator)
            first = turn % len(keys)
            for key in [*keys[first:], *keys[:first]]:
                begin = time.perf_counter()
                steps[key](*batch).item()
                samples[key].append(1e3 * (time.perf_counter() - begin))
        found[length] = {key: statistics.median(s) for key, s in samples.items()}
    return found


def losses(case: TrainingCase, keys: Sequence[str], count: int = STEPS) -> dict[str, list[float]]:
    """Losses of training with the same batches and the same random draws."""
    models, loss = _models(case, keys)
    found = {}
    for key in keys:
        if key == "eager, rounded":
            with torch.no_grad():
                for weight in models[key].parameters():
                    weight.mul_(1 + 2.0**-23)
        name, _, optimiser = key.partition(",")[0].partition("+")
        step = trainer(models[key], loss, name, optimiser)
        generator = torch.Generator().manual_seed(2)
        torch.manual_seed(3)
        found[key] = [
            step(*case.batch(length, generator)).item() for length in lengths(case, count)
        ]
    return found


def _print_times(case: TrainingCase, keys: Sequence[str]) -> dict[str, list[float]]:
    ratios: dict[str, list[float]] = {key: [] for key in keys}
    for length, row in times(case, keys).items():
        over = {key: ms / row["eager"] for key, ms in row.items()}
        for key, ratio in over.items():
            ratios[key].append(ratio)
        told = " | ".join(f"{over[key]:.2f}" for key in keys[1:])
        print(f"| {case.name}, {length} | {row['eager']:.2f} | {told} |", flush=True)
    return ratios


def _print_losses(case: TrainingCase, peers: Sequence[str]) -> None:
    found = losses(case, ["eager", "eager, rounded", *peers])
    for key, row in found.items():
        # Over the first loss: one near 0 is what is left of larger numbers, and so are its digits.
        pairs = zip(row, found["eager"], strict=True)
        off = [abs(a - b) / abs(found["eager"][0]) for a, b in pairs]
        print(
            f"| {case.name} | {key} | {row[0]:.5f} | {row[-1]:.5f} | {max(off):.1e} "
            f"| {statistics.median(off):.1e} |",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, prog="python -m tilevm.tools.bench.training"
    )
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--peers",
        default="compile,tilevm,tilevm+compile,tilevm+fuse,fuse,inductor,inductor+compile",
        help='besides eager; "compile": tilevm.compile, "tilevm": torch.compile; "+fuse": the '
        'optimiser under tilevm.fuse(); "+compile": captured, too',
    )
    parser.add_argument("--accuracy", action="store_true", help="only losses of 200 steps")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    keys = ["eager", *options.peers.split(",")]
    if options.accuracy:
        print("| model | how | first loss | last | largest difference | median |")
        print("|---|---|---|---|---|---|")
    else:
        print(f"| model, length | eager ms | {' | '.join(keys[1:])} |")
        print("|" + "---|" * (len(keys) + 1))
    ratios: dict[str, list[float]] = {key: [] for key in keys}
    for case in CASES:
        if options.case and case.name not in options.case:
            continue
        torch._dynamo.reset()
        if options.accuracy:
            _print_losses(case, keys[1:])
            continue
        for key, found in _print_times(case, keys).items():
            ratios[key] += found
    if not options.accuracy:
        told = " | ".join(f"{geomean(ratios[key]):.2f}" for key in keys[1:])
        print(f"| geomean | | {told} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

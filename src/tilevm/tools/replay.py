"""A saved call, run again on every tier: `tilevm replay FILE`."""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilevm.errors import TilevmError
from tilevm.ir import reference
from tilevm.ir.compare import differences
from tilevm.ir.text import to_text
from tilevm.ir.types import FLOATS
from tilevm.tools import callout
from tilevm.tools.archive import Call, load, restored, stored
from tilevm.tools.worker import Worker, WorkerError

TIERS = ("reference", "interp", "auto")
LIMIT_S = 600.0  # for the call on one tier; beyond it the call hangs


@dataclass(frozen=True)
class Outcome:
    """What a tier made of the call. error: instead of results."""

    tier: str
    results: tuple[Any, ...] = ()
    error: str = ""


def run_tier(call: Call, tier: str) -> tuple[Any, ...]:
    """The results of the call on one tier."""
    from tilevm.config import config
    from tilevm.runtime import program as runtime

    functions = functions_of(call)
    if tier == "reference":
        return reference.evaluate(call.graph, *call.inputs, targets=functions)
    names = [name for name, _ in call.graph.params]
    with config.patch(tier=tier):
        executable = runtime.compile_program(
            call.graph.to_program(), functions, framework="numpy", input_names=names
        )
        return tuple(np.array(x) for x in executable(*call.inputs))


def functions_of(call: Call) -> list[callout.Call]:
    """What the call calls out. Random numbers are drawn anew, the same each time."""
    if not call.targets:
        return []
    import torch

    torch.manual_seed(0)
    return [callout.function(text) for text in call.targets]


class Tier:
    """A tier in a process of its own, which it may take down."""

    def __init__(self, path: Path, tier: str) -> None:
        bound_memory()
        self._call = load(path)
        self._tier = tier

    def results(self) -> list[Any]:
        """The results; what no other process knows how to read as its bits."""
        types = self._call.graph.types()
        found = zip(run_tier(self._call, self._tier), self._call.graph.results, strict=True)
        return [stored(x, types[name]) for x, name in found]


def bound_memory() -> None:
    """What needs more than three quarters of the machine's memory fails in this process.

    Otherwise the system ends some process, which need not be this one.
    """
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def replay(path: Path) -> list[Outcome]:
    """The outcome on each tier, each in its own process."""
    call = load(path)
    types = call.graph.types()
    outcomes = []
    for tier in TIERS:
        worker = Worker("tilevm.tools.replay:Tier", (path, tier), {})
        try:
            answer = worker.call("results", limit_s=LIMIT_S)
            found = zip(answer, call.graph.results, strict=True)
            outcomes.append(Outcome(tier, tuple(restored(x, types[name]) for x, name in found)))
        except WorkerError as error:
            outcomes.append(Outcome(tier, error=error.summary))
        finally:
            worker.close()
    return outcomes


def run(path: Path) -> int:
    """Print the call and its outcomes. Returns the exit code: 1 if tiers differ."""
    try:
        call = load(path)
    except (TilevmError, OSError) as error:
        sys.stderr.write(f"tilevm replay: {error}\n")
        return 2
    print(to_text(call.graph))
    for (name, type_), value in zip(call.graph.params, call.inputs, strict=True):
        print(f"  {name}: {type_} is {described(value)}")
    if call.note:
        print(f"  saved because: {call.note}")
    outcomes = replay(path)
    exact = outcomes[0]
    code = 0
    for outcome in outcomes:
        told = outcome.error or "as the reference"
        if outcome.error:
            code = 1
        elif outcome is exact:
            told = ", ".join(described(x) for x in outcome.results)
        elif exact.error:
            told = "runs; there is nothing to compare with"
        elif wrong := differences(outcome.results, exact.results):
            told, code = "DIFFERS: " + "; ".join(wrong), 1
        print(f"{outcome.tier:>10}  {told}")
    return code


def described(value: Any) -> str:
    """What an input or result is, in a line."""
    if not isinstance(value, np.ndarray):
        return str(value)
    told = f"{value.dtype}{list(value.shape)}"
    if not value.size:
        return told
    wide = value.astype(np.float64) if value.dtype.name in FLOATS else value
    if value.size == 1:
        return f"{told} {wide.reshape(-1)[0]}"
    return f"{told} of {wide.min()} to {wide.max()}"

"""Random programs under `tilevm.fuse()` against eager mode.

    python tests/eager/random_eager.py --start 0 --count 2000

Everything alive at the end is compared: values within the noise that other ways to compute may
have (tolerance.py), dtypes, sizes, strides, which share memory, versions, gradients, errors. A
failing program is shrunk and printed as Python text. `--seed` runs one seed again, `--file` a text.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.eager.compare import bits, sharing
from tests.eager.programs import Block, Statement, namespace, random_program, text_of
from tests.eager.tolerance import wrong

import tilevm

HEAD = """import torch, torch.nn.functional as F, tilevm
from tests.eager.programs import make
from tilevm import fuse
look, told = (lambda x: print("look", x)), (lambda e: print("told", e))
"""


@dataclass
class Outcome:
    """What is left of a run. `facts`: all but values, by what they are of."""

    facts: dict[str, Any]
    values: list[torch.Tensor]
    names: list[str]


def outcome(text: str, fuse: Callable[[], Any], order: int) -> Outcome:
    """Run, then look at everything in some order. Raises: what the program does."""
    env = namespace(fuse)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(text, "<program>", "exec"), env)
        return _looked_at(env, order)


def _looked_at(env: dict[str, Any], order: int) -> Outcome:
    alive = {k: x for k, x in env.items() if isinstance(x, torch.Tensor)}
    gradients = {f"{k}.grad": x.grad for k, x in alive.items() if _is_leaf(x) is True}
    every = alive | {k: x for k, x in gradients.items() if x is not None}
    facts: dict[str, Any] = {"names": sorted(every)}
    names = sorted(every)
    random.Random(order).shuffle(names)
    found: dict[str, torch.Tensor] = {}
    for name in names:
        x = every[name]
        # Whether autograd adds to a gradient in place depends on who else holds it, and so do
        # strides that say nothing.
        gradient = any(x is g for g in gradients.values())
        version = "" if gradient else f"version {x._version}, "
        sizes = zip(x.stride(), x.shape, strict=True)
        strides = tuple(0 if gradient and size == 1 else stride for stride, size in sizes)
        facts[name] = (
            f"{x.dtype} {list(x.shape)} strides {strides} from {x.storage_offset()}, "
            f"{version}grad {x.requires_grad}, leaf {_is_leaf(x)}"
        )
        found[name] = _real(x.data.clone())
    for i, note in enumerate(env["notes"]):
        if isinstance(note, str):
            facts[f"note {i}"] = note
        else:
            found[f"note {i}"] = _real(note)
    facts["sharing"] = sharing([every[name] for name in names])
    facts["writes"] = _writes([every[name] for name in names])
    kept = sorted(found)
    return Outcome(facts, [found[name] for name in kept], kept)


def _real(x: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def _is_leaf(x: torch.Tensor) -> bool | str:
    """Or the error of a view whose base was written where that is forbidden."""
    try:
        return x.is_leaf
    except RuntimeError as error:
        return str(error)


def _writes(tensors: list[torch.Tensor]) -> list[list[Any]]:
    """Which elements of which tensors change when the first element of one is written."""
    changes = []
    for x in [x for x in tensors if x.numel()][:3]:
        before = [bits(y).copy() for y in tensors]
        first = x.data[(0,) * x.ndim]
        if x.is_complex():
            x.data[(0,) * x.ndim] = 100 if first != 100 else 0
        else:
            x.data[(0,) * x.ndim] = ~first if x.dtype is torch.bool else 100 - first.nan_to_num(0)
        after = [bits(y) for y in tensors]
        pairs = zip(after, before, strict=True)
        changes.append([np.flatnonzero(a != b).tolist() for a, b in pairs])
    return changes


def failure(text: str, seed: int = 0) -> str | None:
    """What is wrong under `fuse`; None: nothing, or eager mode does not take the program.

    It runs three times: segments that were run twice run again as they were noted. What the
    recorder has no row for is asked for at once.
    """
    try:
        expected = outcome(text, contextlib.nullcontext, seed)
    except Exception:
        return None
    for _ in range(3):
        found = _difference(text, seed, expected)
        if found:
            return found
    return None


def _difference(text: str, seed: int, expected: Outcome) -> str | None:
    try:
        with tilevm.config.patch(templates=1):
            found = outcome(text, tilevm.fuse, seed)
    except Exception as error:
        return f"raises {type(error).__name__}: {str(error)[:300]}"
    finally:
        _switch_off()
    for key in expected.facts:
        if found.facts.get(key) != expected.facts[key]:
            return f"{key}: {found.facts.get(key)}\n  eager's: {expected.facts[key]}"[:2000]
    if found.names != expected.names:
        return f"notes differ: {found.names}, eager's {expected.names}"
    for name, f, e in zip(found.names, found.values, expected.values, strict=True):
        if (f.dtype, f.shape) != (e.dtype, e.shape):
            return f"{name}: {f.dtype} {list(f.shape)}, eager's {e.dtype} {list(e.shape)}"

    def again() -> list[torch.Tensor]:
        return outcome(text, contextlib.nullcontext, seed).values

    rows = wrong(found.values, expected.values, again)
    named = [r.replace(r.split(":")[0], found.names[int(r.split(":")[0][7:])], 1) for r in rows]
    return "values: " + "\n  ".join(named) if rows else None


def _switch_off() -> None:
    """A program that failed may have left a block open."""
    gc.collect(0)


def kind(found: str | None) -> str:
    """What failures that are alike have in common."""
    words = (found or "").split(":")
    if words[0].startswith("raises"):
        return words[0]
    return words[0] if words[0] in ("values", "sharing", "writes", "names") else "facts"


# Shrinking --------------------------------------------------------------------------------------


def smaller(program: list[Statement]) -> Iterator[list[Statement]]:
    """Programs without some statements, the last ones first; blocks replaced by their bodies."""
    many = len(program)
    chunk = many // 2
    while chunk > 1:
        for at in range(many - chunk, -1, -chunk):
            yield program[:at] + program[at + chunk :]
        chunk //= 2
    for i in range(many - 1, -1, -1):
        s = program[i]
        yield program[:i] + program[i + 1 :]
        if isinstance(s, Block):
            if not s.tail:
                yield program[:i] + s.body + program[i + 1 :]
            for body in smaller(s.body):
                yield [*program[:i], Block(s.head, body, s.tail), *program[i + 1 :]]


def shrunk(
    program: list[Statement], wrong_in: Callable[[str], str | None], limit_s: float = 30.0
) -> list[Statement]:
    """A smaller program that fails alike. wrong_in: what is wrong in a program's text."""
    wanted = kind(wrong_in(text_of(program)))
    end = time.monotonic() + limit_s
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for candidate in smaller(program):
            if time.monotonic() > end:
                break
            found = wrong_in(text_of(candidate))
            if found and kind(found) == wanted:
                program, changed = candidate, True
                break
    return program


def check_seed(seed: int) -> str | None:
    """The report of one random program; None if it is right."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = random_program(seed)
    if not failure(text_of(program), seed):
        return None
    program = shrunk(program, lambda text: failure(text, seed))
    text = text_of(program)
    wrong_now = failure(text, seed) or "not seen again"
    rows = "\n".join(f"# {row}" for row in wrong_now.splitlines())
    return f"# seed {seed}\n{HEAD}{text}{rows}\n"


def main() -> int:
    """Run many seeds, print what fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--file", type=Path, help="a program's text")
    parser.add_argument("--most", type=int, default=20, help="stop after so many failures")
    parser.add_argument("--show", action="store_true", help="print each program before it runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.file:
        found = failure(options.file.read_text(encoding="utf-8").replace(HEAD, ""))
        print(found)
        return bool(found)
    one = options.seed is not None
    seeds = [options.seed] if one else range(options.start, options.start + options.count)
    failed: list[int] = []
    for seed in seeds:
        if options.show:
            print(f"# seed {seed}\n{HEAD}{text_of(random_program(seed))}", flush=True)
        report = check_seed(seed)
        if report:
            failed.append(seed)
            print(f"--- FAILED\n{report}", flush=True)
            if len(failed) >= options.most:
                break
    print(f"{len(seeds)} programs, failed: {failed or 'none'}; {tilevm.stats()['flushes']}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

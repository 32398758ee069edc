"""Random functions of plain PyTorch through `tilevm.compile`, against eager mode.

    python tests/frontends/random_functions.py --start 0 --count 500

Functions take what the statements of `tests/eager` work on, and return what these make; some take
it in an object, a dict or a list, beside numbers that they use and change, and that change between
calls. They are called with two sizes each, where eager mode takes both. Results, arguments that are
written to, and gradients must be eager's: dtypes, sizes, which share memory with an argument,
values within the noise that other ways to compute may have. `--seed` runs one again.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.eager import statements
from tests.eager.programs import Block, Generator, Statement, namespace, text_of
from tests.eager.random_eager import kind, shrunk
from tests.eager.tolerance import wrong

import tilevm

Run = Callable[[Any], Any]

# What is looked at in between makes functions eager, and so do modules that begin in them.
_OTHERS = {"look", "drop", "differentiate", "cell", "exchange"}
KINDS = tuple(row for row in statements.KINDS if row[1].__name__ not in _OTHERS)

# Of NaN, PyTorch's vectors have another gradient than what is left of them.
_OF_TWO_MINDS = ("F.elu", "F.hardswish", "F.hardtanh", "F.relu6")


class FunctionGenerator(Generator):
    """Programs of one function, and a call."""

    def function(self) -> list[Statement]:
        rng = self.rng
        self.shape = tuple(rng.choice((0, 1, 2, 3, 5, 8, 17)) for _ in range(rng.choice([1, 2, 3])))
        for _ in range(rng.randint(1, 3)):
            self.parameter()
        self.run("torch.manual_seed(0)")
        given, taken = self.out, list(self.names)
        self.out, before = [], len(self.names)
        many = rng.randint(2, 12)
        while many:
            many -= 1
            (draw,) = rng.choices([row[1] for row in KINDS], [row[0] for row in KINDS])
            with contextlib.suppress(IndexError, RuntimeError):
                draw(self)
        body: list[Statement] = [s for s in self.out if isinstance(s, str)]
        made = self.names[before:]
        if taken and rng.random() < 0.4:
            box = rng.choice(BOXES)
            body = [*box.unpacked(taken), *self.with_numbers(box, body, taken, made)]
            call = ["results += run(f)(box)", box.shown()]
            first = [box.made(taken), *call, *box.changed(rng), *call]
            second = [box.made(taken, "y"), *call]
            head = "def f(box):"
        else:
            arguments = ", ".join(taken)
            first = [f"results += run(f)({arguments})"]
            second = [f"results += run(f)({arguments.replace('x', 'y')})"]
            head = f"def f({arguments}):"
        f = Block(head, [*body, f"return ({', '.join(made)},)"])
        program = [*given, f, "results = ()", *first]
        again = [*program, *self.other_sizes(given), *second]
        with contextlib.suppress(Exception):
            outcome(text_of(again), lambda f: f)
            return again
        return program

    def with_numbers(
        self, box: Box, body: list[Statement], taken: list[str], made: list[str]
    ) -> list[Statement]:
        """The body, with statements in between that use and change what is in the box."""
        rng, out = self.rng, list(body)
        for i in range(rng.randint(1, 4)):
            x, value = rng.choice(taken), f"o{i}"
            uses = (
                f"{value} = {x} * {box.at('k')}",
                f"{value} = {x} + 1 if {box.at('on')} else {x} - 1",
                f"{value} = ({x}, {x} + {x})[{box.at('k')} % 2]",
                f"{box.at('k')} += 1; {value} = {x} * 1",
                f"{box.at('last')} = {value} = {x} * 2",
                f"{value} = {box.at('last')} * {box.at('k')}",
                f"{box.at('on')} = not {box.at('on')}; {value} = {x} * {box.at('on')}",
            )
            out.insert(rng.randint(0, len(out)), rng.choice(uses))
            made.append(value)
        return out

    def other_sizes(self, given: list[Statement]) -> list[Statement]:
        """What makes arguments of other sizes."""
        rng = self.rng
        other = {n: rng.choice((2, 3, 4, 6, 7, 11)) if n > 1 else n for n in range(32)}

        def changed(found: re.Match[str]) -> str:
            return f"y{found[1]}({tuple(other[int(n)] for n in re.findall('[0-9]+', found[2]))}"

        texts = [s for s in given if isinstance(s, str)]
        return [re.sub(r"^x(.*make)\(([^)]*\))", changed, s) for s in texts]


class Thing:
    """An object with attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


@dataclass(frozen=True)
class Box:
    """How arguments are packed: source that makes the box, and source of what is in it."""

    maker: str  # of keyword arguments
    item: str  # of a name

    def at(self, name: str) -> str:
        """What has that name."""
        return "box" + self.item.format(name)

    def made(self, names: list[str], letter: str = "x") -> str:
        """A statement: a box with these tensors, and numbers."""
        tensors = "".join(f"{x}={x.replace('x', letter)}, " for x in names)
        return "box = " + self.maker.format(f"{tensors}k=2, on=True, last=0.5")

    def unpacked(self, names: list[str]) -> list[str]:
        """Statements of the function that begin it."""
        return [f"{x} = {self.at(x)}" for x in names]

    def changed(self, rng: random.Random) -> list[str]:
        """Statements between calls."""
        return rng.sample([f"{self.at('k')} = 5", f"{self.at('on')} = False"], rng.randint(0, 2))

    def shown(self) -> str:
        """A statement that has what is in the box among the results."""
        values = "".join(f"torch.as_tensor({self.at(name)}), " for name in ("k", "on", "last"))
        return f"results += ({values})"


BOXES = (
    Box("Thing({})", ".{}"),
    Box("SimpleNamespace({})", ".{}"),
    Box("dict({})", "['{}']"),
    Box("[dict({})]", "[0]['{}']"),
    Box("Thing(inner=Thing({}))", ".inner.{}"),
    Box("{{'inner': (Thing({}), 1)}}", "['inner'][0].{}"),
)


def outcome(text: str, run: Run) -> tuple[dict[str, str], list[torch.Tensor], list[str]]:
    """Facts, values and their names, of results and arguments."""
    env = {**namespace(contextlib.nullcontext), "run": run}
    env |= {"Thing": Thing, "SimpleNamespace": SimpleNamespace}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(text, "<program>", "exec"), env)
    given = {k: x for k, x in env.items() if isinstance(x, torch.Tensor)}
    made = {f"result {i}": x for i, x in enumerate(env["results"]) if isinstance(x, torch.Tensor)}
    if not any(name in text for name in _OF_TWO_MINDS):
        _differentiate(list(made.values()))
    slopes = {f"{k}.grad": x.grad for k, x in given.items() if x.is_leaf and x.grad is not None}
    every = {**given, **made, **slopes}
    facts = {"names": str(sorted(every))}
    stores = {k: x.untyped_storage().data_ptr() for k, x in given.items() if x.numel()}
    for name, x in every.items():
        shares = [k for k, store in stores.items() if store == x.untyped_storage().data_ptr()]
        # (Strides are what the metadata of captured graphs say, which are not always eager code's.)
        facts[name] = f"{x.dtype} {list(x.shape)}, memory of {shares}"
    values = [x.detach().clone() for x in every.values()]
    real = [torch.view_as_real(x.resolve_conj()) if x.is_complex() else x for x in values]
    return facts, real, list(every)


def _differentiate(results: list[torch.Tensor]) -> None:
    """Of a sum in which each element has its own weight."""
    total = torch.zeros((), dtype=torch.float64)
    for x in results:
        if x.requires_grad:
            real = torch.view_as_real(x) if x.is_complex() else x
            weights = torch.linspace(0.5, 1.5, real.numel(), dtype=torch.float64)
            total = total + (real.double().reshape(-1) * weights).sum()
    if total.requires_grad:
        total.backward()  # type: ignore[no-untyped-call]


def failure(text: str) -> str | None:
    """What is wrong when compiled; None: nothing, or eager mode does not take the function."""
    try:
        expected, values, names = outcome(text, lambda f: f)
    except Exception:
        return None
    found = _difference(text, expected, values, names, tilevm.compile)
    if found and kind(_difference(text, expected, values, names, _pytorchs)) == kind(found):
        return None  # PyTorch's own capture fails alike
    return found


def _pytorchs(f: Any) -> Any:
    return torch.compile(f, backend="aot_eager", dynamic=True)


def _difference(
    text: str, expected: dict[str, str], values: list[torch.Tensor], names: list[str], compile: Run
) -> str | None:
    """What is wrong of two calls."""
    torch._dynamo.reset()
    compiled: dict[str, Any] = {}

    def run(f: Any) -> Any:
        def call(*args: Any) -> Any:  # the second call runs what the first one made
            if "made" not in compiled:
                compiled["made"] = compile(f)
            return compiled["made"](*args)

        return call

    for _ in range(2):
        try:
            facts, found, _ = outcome(text, run)
        except Exception as error:
            if "storage that is not resizable" in str(error):  # docs/limits.md
                return None
            error = getattr(error, "inner_exception", error)  # of a backend
            return f"raises {type(error).__name__}: {str(error)[:300]}"
        for key, fact in expected.items():
            if facts.get(key) != fact:
                return f"{key}: {facts.get(key)}\n  eager's: {fact}"
        rows = wrong(found, values, lambda: outcome(text, lambda f: f)[1])
        if rows:
            return "values: " + "\n  ".join(rows) + f" of {names}"
    return None


def check_seed(seed: int) -> str | None:
    """The report of one random function; None if it is right."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = FunctionGenerator(random.Random(seed)).function()
    if not failure(text_of(program)):
        return None
    program = shrunk(program, failure)
    text = text_of(program)
    rows = "\n".join(f"# {row}" for row in (failure(text) or "not seen again").splitlines())
    return f"# seed {seed}\n{text}{rows}\n"


def main() -> int:
    """Run many seeds, print what fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, help="only this one")
    options = parser.parse_args()
    torch.set_num_threads(1)
    first, count = (options.seed, 1) if options.seed is not None else (options.start, options.count)
    failed = []
    for seed in range(first, first + count):
        report = check_seed(seed)
        if report:
            failed.append(seed)
            print(f"--- FAILED\n{report}", flush=True)
    print(f"{count} functions, failed: {failed or 'none'}; {tilevm.stats()['flushes']}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

"""docs/conformance.md, from the findings in build/conformance.

python -m tests.conformance.page
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tests.conformance.doors import DOORS
from tests.conformance.judge import SKIPPED, VERDICTS
from tests.conformance.opinfo import RESULTS, ROOT
from tests.conformance.samples import DTYPES, MODES, cases
from tests.conformance.samples import SKIPPED as LEFT_OUT

COLUMNS = (*VERDICTS, "CRASH", SKIPPED)
BAD = ("raises", "WRONG", "CRASH")
Rows = list[dict[str, Any]]

HEAD = f"""# Conformance

Made by `python -m tests.conformance.page`, with torch {{version}} on a CPU, from what these find:

```sh
python -m tests.conformance.opinfo  # --door, --op, --dtype, --mode, --most, --all, --part
python -m tests.conformance.models  # --name
```

Each sample is one of PyTorch's own (OpInfo), run through a door and in eager mode, with the same
random state. **ok**: the same dtype, sizes and values, all of it in kernels of tilevm.
**{VERDICTS[1]}**: the same, and some operators were PyTorch's (in `fuse`: were not recorded, or
made what was recorded so far run; `config.templates` is 1, so that first calls count).
**{VERDICTS[2]}**: the same, since the call ran eagerly. **raises**: where eager mode does not.
**WRONG**: other values, beyond PyTorch's own tolerance and beyond what rounding at each operator
explains. **{SKIPPED}**: eager mode raises, or differs from itself, or Dynamo raises whatever the
backend. Numbers among the arguments are arguments of the compiled function. A gradient counts with
the results of the call that it is of.
By default two samples of an operator are run; the tables say how many operators the last runs had.
"""


def load(folder: Path) -> dict[tuple[str, str, str], Rows]:
    """Findings by door, dtype and mode."""
    found = {}
    for door in DOORS:
        for dtype in DTYPES:
            for mode in MODES:
                path = folder / f"{door}-{dtype}-{mode}.jsonl"
                if path.exists():
                    found[door, dtype, mode] = lines(path)
    return found


def lines(path: Path) -> Rows:
    """JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Iterator[str]:
    """In Markdown."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def counts(found: dict[tuple[str, str, str], Rows]) -> Iterator[str]:
    """Samples by door, mode and dtype."""
    for mode in MODES:
        yield f"\n## Samples, {mode}\n"
        rows = []
        for (door, dtype, other), findings in found.items():
            if other == mode:
                verdicts = Counter(row["verdict"] for row in findings)
                run = len({row["op"] for row in findings})
                known = len(cases(dtype, mode))
                rows.append((door, dtype, f"{run} of {known}", *(verdicts[c] for c in COLUMNS)))
        yield from table(("door", "dtype", "operators", *COLUMNS), rows)


def by_operator(rows: Rows) -> dict[str, Rows]:
    """Findings of each operator, without skipped samples and operators."""
    found = defaultdict(list)
    for row in rows:
        if row["verdict"] != SKIPPED:
            found[row["op"]].append(row)
    return found


def without_callouts(found: dict[tuple[str, str, str], Rows]) -> Iterator[str]:
    """How many operators need nobody."""
    yield "\n## Operators without call-outs, float32\n"
    yield "Operators all of whose samples are ok.\n"
    rows = []
    for door in DOORS:
        for mode in MODES:
            operators = by_operator(found.get((door, "float32", mode), []))
            if operators:
                whole = sum(all(r["verdict"] == "ok" for r in o) for o in operators.values())
                share = f"{100 * whole / len(operators):.1f} %"
                rows.append((door, mode, len(operators), whole, share))
    yield from table(("door", "mode", "operators", "without", "share"), rows)


def needs(found: dict[tuple[str, str, str], Rows]) -> Iterator[str]:
    """Which operators PyTorch runs, and which fall back."""
    for door in ("compile", "fuse"):
        rows = found.get((door, "float32", "forward"), [])
        yield f"\n## What PyTorch runs, `tilevm.{door}`, float32, forward\n"
        callers = {name for row in rows if row["verdict"] == "callouts" for name in row["names"]}
        names = sorted(n.removeprefix("aten.").removesuffix(".default") for n in callers)
        yield from wrapped(", ".join(f"`{name}`" for name in names))
    yield "\n## What falls back\n"
    reasons = defaultdict(set)
    for (door, _, _), findings in found.items():
        for row in findings:
            if row["verdict"] == "fallback":
                reasons[door, general(row["reason"])].add(row["op"])
    listed = sorted(reasons.items(), key=lambda item: (item[0][0], -len(item[1])))
    yield from table(
        ("door", "reason", "operators"),
        [(door, escaped(reason), some(operators)) for (door, reason), operators in listed],
    )


def general(reason: str) -> str:
    """A reason without the names and numbers of one case."""
    reason = re.sub(r"\([^)]*\)|\[[^\]]*\]|'[^']*'|<[^>]*>", "…", reason)
    reason = re.sub(r"\b[su]\d+\b|\d+", "n", reason)
    return reason[:110]


def escaped(text: str) -> str:
    """For a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def some(names: set[str], most: int = 6) -> str:
    """The first few."""
    listed = sorted(names)
    more = f", and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(f"`{n}`" for n in listed[:most]) + more


def bad(found: dict[tuple[str, str, str], Rows]) -> Iterator[str]:
    """Everything that must not be."""
    yield "\n## Wrong, raising, crashing\n"
    places = defaultdict(set)
    for (door, dtype, mode), findings in found.items():
        for row in findings:
            if row["verdict"] in BAD:
                what = escaped(general(row["reason"]))
                places[row["op"], row["verdict"], door, mode, what].add(dtype)
    rows = [(f"`{op}`", *rest, ", ".join(sorted(d))) for (op, *rest), d in sorted(places.items())]
    if not rows:
        yield "Nothing."
        return
    yield from table(("operator", "verdict", "door", "mode", "what", "dtypes"), rows)


def skipped(found: dict[tuple[str, str, str], Rows]) -> Iterator[str]:
    """What was not judged, and why."""
    yield "\n## Skipped\n"
    reasons = defaultdict(set)
    for name, reason in LEFT_OUT.items():
        reasons[reason].add(name)
    for findings in found.values():
        for row in findings:
            if row["verdict"] == SKIPPED:
                reasons[general(row["reason"])].add(row["op"])
    yield from table(
        ("reason", "operators"), [(escaped(r), some(names)) for r, names in reasons.items()]
    )


def models(folder: Path, page: Path) -> Iterator[str]:
    """Architectures; where none were run, what the page says of them already."""
    path = folder / "models.jsonl"
    title = "\n## Architectures of transformers\n"
    if not path.exists():
        before = page.read_text() if page.exists() else ""
        section = before.partition(title)[2].partition("\n## ")[0]
        older = "\nOf an earlier run than the rest.\n"
        if section:
            yield title + older + section.removeprefix(older).removesuffix("\n")
        return
    rows = lines(path)
    yield title
    yield (
        "At tiny sizes, with random weights, float32. Inference: five calls of four sizes,\n"
        "through `tilevm.compile` and `torch.compile`. Generation: greedy, with a cache.\n"
        "Training: loss and all gradients, two sizes. Right is what is at most 10 times as far\n"
        "from float64 as eager mode, or within 1e-5 of the largest element. Captures: graphs of\n"
        "the five calls through `torch.compile`; in brackets those of an empty backend.\n"
    )
    shown = []
    for row in rows:
        parts = [row[k] for k in ("compile", "inference", "generation", "training")]
        names = sorted(n.removeprefix("aten.").removesuffix(".default") for n in row["callouts"])
        graphs = f"{row['captures']} ({row['theirs']})"
        shown.append((row["name"], *map(escaped, parts), graphs, ", ".join(names)))
    head = ("model", "tilevm.compile", "torch.compile", "generation", "training", "captures")
    yield from table((*head, "call-outs"), shown)
    eager = {reason for row in rows for reason in row["eager"] if reason.startswith("eager")}
    if eager:
        yield "\nRan eagerly, somewhere: " + "; ".join(sorted(map(escaped, eager))) + "."


def wrapped(text: str, width: int = 130) -> Iterator[str]:
    """Lines of at most `width` characters."""
    line = ""
    for word in text.split():
        if len(line) + len(word) >= width:
            yield line
            line = ""
        line += f" {word}" if line else word
    yield line


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "conformance.md")
    options = parser.parse_args()
    found = load(options.results)
    parts = (
        counts(found), without_callouts(found), bad(found), models(options.results, options.out),
        needs(found), skipped(found),
    )  # fmt: skip
    text = HEAD.format(version=torch.__version__.partition("+")[0])
    options.out.write_text(text + "".join(f"{line}\n" for part in parts for line in part))


if __name__ == "__main__":
    main()

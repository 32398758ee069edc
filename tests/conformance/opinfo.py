"""PyTorch's own samples of every operator through the three doors, against eager mode.

    python -m tests.conformance.opinfo --dtype float32 --most 4
    python -m tests.conformance.opinfo --door compile --op nn.functional.gelu --all --print
    python -m tests.conformance.opinfo --op dropout --again
    python -m tests.conformance.page

Findings go to files in build/conformance, a line a sample, unless `--op` chooses; the page is made
of these. With `--again` those of `--op` take the place of what the files say of these operators.
Operators run in another process, so that a crash has the name of one. `--part 2/8` runs every
eighth of them, from the third on; part 0 begins the files anew, others append to them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.conformance import judge, samples
from tests.conformance.doors import DOORS, Door

import tilevm

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build" / "conformance"
OPERATOR_S = 600  # an operator that takes longer hangs


@dataclass(frozen=True)
class Work:
    """What one process runs: all operators of a door, a dtype and a mode, or some."""

    door: str
    dtype: str
    mode: str
    most: int
    names: tuple[str, ...] = ()
    part: tuple[int, int] = (0, 1)

    def cases(self) -> list[samples.Case]:
        """In order."""
        found = samples.cases(self.dtype, self.mode)
        if self.names:
            found = [c for c in found if any(n in c.name for n in self.names)]
        return found[self.part[0] :: self.part[1]]

    @property
    def file(self) -> str:
        """Name of the file of findings."""
        return f"{self.door}-{self.dtype}-{self.mode}.jsonl"


def findings(door: Door, case: samples.Case, most: int) -> Iterator[tuple[int, judge.Finding]]:
    """Of one operator, by the number of the sample."""
    operator = case.op.op

    def function(*args: Any, **kwargs: Any) -> Any:
        return operator(*args, **kwargs)

    wrapped = door.wrap(function)
    for number, sample in case.samples(most):
        yield number, judge.judged(door, wrapped, case, sample)


def prepare() -> None:
    """One thread, no limit of captures, no saved calls, templates from the first call on."""
    torch.set_num_threads(1)
    tilevm.config.failures = "off"
    tilevm.config.templates = 1
    torch._dynamo.config.recompile_limit = 10_000
    torch._dynamo.config.accumulated_recompile_limit = 100_000


def child(work: Work, begin: int) -> None:
    """Run the operators from number `begin` on; lines to stdout."""
    prepare()
    door = Door(work.door)
    for index, case in enumerate(work.cases()):
        if index < begin:
            continue
        print(json.dumps({"begin": index, "op": case.name}), flush=True)
        signal.alarm(OPERATOR_S)  # ends this process
        try:
            for number, finding in findings(door, case, work.most):
                row = {"op": case.name, "sample": number, **vars(finding)}
                print(json.dumps(row), flush=True)
        except Exception as error:  # of the samples themselves
            reason = f"no samples: {type(error).__name__}: {error}".partition("\n")[0]
            print(json.dumps({"op": case.name, "sample": 0, **vars(_skip(reason))}), flush=True)


def _skip(reason: str) -> judge.Finding:
    return judge.Finding(judge.SKIPPED, reason=reason)


def parent(work: Work, folder: Path, show: bool, again: bool = False) -> Counter[str]:
    """Run all of it in other processes, a new one after each crash. Gives samples by verdict."""
    total = len(work.cases())
    begin = 0
    counts: Counter[str] = Counter()
    path = Path(os.devnull)
    if not work.names:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / work.file
        if work.part[0] == 0:
            path.unlink(missing_ok=True)
    elif again:
        path = folder / work.file
        chosen = {case.name for case in work.cases()}
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(x for x in lines if json.loads(x)["op"] not in chosen))
    with path.open("a") as file:
        while begin < total:
            last: dict[str, Any] = {"begin": begin - 1, "op": "before the first operator"}
            for row in _rows(work, begin):
                if "begin" in row:
                    last = row
                    continue
                counts[row["verdict"]] += 1
                file.write(json.dumps(row) + "\n")
                file.flush()
                if show and row["verdict"] != "ok":
                    names = ", ".join(row.get("names", ()))
                    print(f"{row['op']} {row['sample']}: {row['verdict']} {names}{row['reason']}")
            begin = last["begin"] + 1
    return counts


def _rows(work: Work, begin: int) -> Iterator[dict[str, Any]]:
    """Lines of a process; one about its end, if that was a crash."""
    command = [sys.executable, "-m", "tests.conformance.opinfo", "--child", str(begin)]
    command += ["--door", work.door, "--dtype", work.dtype, "--mode", work.mode]
    command += ["--most", str(work.most), "--part", f"{work.part[0]}/{work.part[1]}"]
    for name in work.names:
        command += ["--op", name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
        cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    last: dict[str, Any] = {"op": "before the first operator", "begin": begin}
    try:
        for line in process.stdout:
            row = json.loads(line) if line.startswith("{") else {}
            if "begin" in row:
                last = row
            if row:
                yield row
    finally:
        process.kill()
        status = process.wait()
    if status:
        ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        yield {"op": last["op"], "sample": -1, "verdict": "CRASH", "names": [], "reason": ended}
        yield {"begin": last["begin"], "op": last["op"]}


def main() -> None:
    """Run what the options say; print how many samples ended how."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--door", action="append", choices=DOORS, default=[])
    parser.add_argument("--op", action="append", default=[], help="names that contain this")
    known = (*samples.DTYPES, *samples.COMPLEX)
    parser.add_argument("--again", action="store_true", help="with --op: their lines of the files")
    parser.add_argument("--dtype", action="append", choices=known, default=[])
    parser.add_argument("--mode", action="append", choices=samples.MODES, default=[])
    parser.add_argument("--most", type=int, default=2, help="samples of an operator and dtype")
    parser.add_argument("--all", action="store_true", help="every sample")
    parser.add_argument("--part", default="0/1", help="which of how many parts of the operators")
    parser.add_argument("--print", action="store_true", help="what is not ok, as it is found")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    first, _, count = options.part.partition("/")
    most = 10**6 if options.all else options.most
    for door in options.door or DOORS:
        for dtype in options.dtype or samples.DTYPES:
            for mode in options.mode or samples.MODES:
                if mode == "gradient" and not samples.is_continuous(dtype):
                    continue
                part = (int(first), int(count))
                work = Work(door, dtype, mode, most, tuple(options.op), part)
                if options.child is not None:
                    child(work, options.child)
                    continue
                begin = time.monotonic()
                counts = parent(work, options.results, options.print, options.again)
                took = time.monotonic() - begin
                print(f"{door} {dtype} {mode}: {dict(counts)}, {took:.0f} s", flush=True)


if __name__ == "__main__":
    main()

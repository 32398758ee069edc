"""`tilevm demo`: a real sentence encoder on real sentences, each of another length.

Every contestant has a process of its own, so that none finds another's compiler warm. They take
turns: a block of sentences once (what a user waits for) and at once again (the steady time).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tilevm.tools.encoder import LONGEST, Encoder, Tokens
from tilevm.tools.progress import Progress
from tilevm.tools.sentences import collect
from tilevm.tools.worker import Worker, WorkerError

COUNT, QUICK_COUNT = 254, 48
BLOCK = 16
QUESTIONS = (
    "How do I read the options on the command line?",
    "write messages to a log file",
    "compute the average of some numbers",
    "replace parts of a string by a pattern",
)


NEW_LENGTHS = (
    "new lengths: what the first calls of all texts but the first took longer than the same calls\n"
    "again. Eager has this too: it is what the machine adds by itself, below zero at times."
)


@dataclass(frozen=True)
class Contestant:
    """A way to run the model. `backend`: of torch.compile, with dynamic=True."""

    key: str
    label: str
    backend: str = ""


EAGER = Contestant("eager", "eager")
INDUCTOR = Contestant("inductor", "torch.compile, Inductor", "inductor")
TORCH_DOOR = Contestant("torch_compile", 'torch.compile(backend="tilevm")', "tilevm")
OWN_DOOR = Contestant("tilevm", "tilevm.compile")
IDENTITY = Contestant("identity", "torch.compile, AOTAutograd + identity", "aot_eager")
DYNAMO = Contestant("dynamo", "torch.compile, Dynamo alone", "eager")


class Runner:
    """A contestant in its process: the model, loaded, and the sentences as token ids."""

    def __init__(self, contestant: Contestant, threads: int, ids: Sequence[Sequence[int]]) -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self._contestant = contestant
        self._model = Encoder()
        self._inputs = [torch.tensor([row]) for row in ids]
        self._call: Callable[..., torch.Tensor] = self._model

    def load(self) -> None:
        """Nothing more than what __init__ did."""

    def first(self) -> float:
        """Seconds from the loaded model to the first embedding, with the compiler's import."""
        begin = time.perf_counter()
        if self._contestant == OWN_DOOR:
            import tilevm

            self._call = tilevm.compile(self._model)
        elif self._contestant.backend:
            backend = self._contestant.backend
            self._call = torch.compile(self._model, backend=backend, dynamic=True)
        self._embed(self._inputs[0])
        return time.perf_counter() - begin

    def block(self, start: int, stop: int) -> tuple[list[float], list[float], Any]:
        """Seconds of each sentence the first time and again; embeddings."""
        once: list[float] = []
        again: list[float] = []
        embeddings = []
        for seconds in (once, again):
            for ids in self._inputs[start:stop]:
                begin = time.perf_counter()
                embedding = self._embed(ids)
                seconds.append(time.perf_counter() - begin)
                if seconds is once:
                    embeddings.append(embedding.numpy()[0])
        return once, again, np.stack(embeddings)

    def captures(self) -> int:
        """Graphs captured so far."""
        if self._contestant == OWN_DOOR:
            import tilevm

            return int(tilevm.stats()["captures"])
        if not self._contestant.backend:
            return 0
        from torch._dynamo.utils import counters

        return int(counters["stats"]["unique_graphs"])

    def callouts(self) -> dict[str, int]:
        """Operators that one call runs outside of tilevm, by name."""
        import tilevm

        before = tilevm.stats()["callouts"]
        self._embed(self._inputs[0])
        after = tilevm.stats()["callouts"]
        more = {name: n - before.get(name, 0) for name, n in after.items()}
        return {name: n for name, n in more.items() if n}

    def embed(self, ids: Sequence[Sequence[int]]) -> Any:
        """Embeddings of other texts."""
        return np.concatenate([self._embed(torch.tensor([row])).numpy() for row in ids])

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self._call(ids, torch.ones_like(ids))


@dataclass
class Row:
    """What was measured of a contestant; `failure`: why it was not."""

    contestant: Contestant
    first_s: float = 0.0
    captures: int = 0
    later_captures: int = 0
    callouts: dict[str, int] = field(default_factory=dict)
    once_s: list[float] = field(default_factory=list)
    again_s: list[float] = field(default_factory=list)
    embeddings: list[Any] = field(default_factory=list)
    failure: str = ""

    @property
    def compile_s(self) -> float:
        """First-call excess: what the calls took longer than the same calls again."""
        return self.first_s - self.again_s[0] + self.later_s

    @property
    def later_s(self) -> float:
        """The part of `compile_s` that comes after the first result.

        Eager has it as well: libraries prepare for a new size, and caches are cold in each turn.
        """
        return sum(self.once_s[1:]) - sum(self.again_s[1:])

    @property
    def latencies_ms(self) -> list[float]:
        """Of the first call of each sentence but the very first."""
        return [1e3 * s for s in self.once_s[1:]]

    def error(self, exact: Any) -> float:
        """Largest absolute difference of the embeddings from `exact`."""
        return float(np.abs(np.concatenate(self.embeddings) - exact).max())


def run(*, quick: bool, threads: int, all_peers: bool, questions: Sequence[str] = QUESTIONS) -> int:
    """Measure, print, and return the exit code: 1 if a contestant failed."""
    threads = threads or torch.get_num_threads()
    contestants = [EAGER, TORCH_DOOR, OWN_DOOR]
    if not quick:
        contestants.insert(1, INDUCTOR)
    if all_peers:
        contestants[-2:-2] = [DYNAMO, IDENTITY]
    tokens = Tokens()
    texts = collect(tokens.lengths, LONGEST, QUICK_COUNT if quick else COUNT)
    inputs = [tokens.inputs(text)[0] for text in texts]
    lengths = [ids.shape[1] for ids in inputs]
    print(
        f"MiniLM-L6 encodes {len(texts)} texts of {min(lengths)} to {max(lengths)} tokens, "
        f"{len(set(lengths))} different lengths, one a call; {_threads(threads)}."
    )
    blocks = -(-len(texts) // BLOCK)
    units = len(texts) + len(contestants) * (blocks + 2)
    with Progress(units) as bar, _workers(contestants, threads, inputs) as workers:
        exact = _exact(inputs, bar)
        rows = [_first(c, w, bar) for c, w in zip(contestants, workers, strict=True)]
        for block in range(blocks):
            turn = block % len(rows)  # another one begins each time
            pairs = list(zip(rows, workers, strict=True))
            for row, worker in pairs[turn:] + pairs[:turn]:
                _block(row, worker, block * BLOCK, bar)
        for row, worker in zip(rows, workers, strict=True):
            _finish(row, worker)
        found = [r for r in rows if not r.failure]
        best = found[-1] if found else None
        if best is not None:
            ids = [tokens.inputs(text)[0][0].tolist() for text in questions]
            asked = workers[rows.index(best)].call("embed", ids)
    print("\n" + table(rows, exact))
    print(NEW_LENGTHS)
    print("\n" + "\n".join(judge(rows, exact)))
    if best is not None:
        print(f"\nNearest texts, by {best.contestant.label}:")
        print(nearest(questions, asked, texts, np.concatenate(best.embeddings)))
    return 1 if len(found) < len(rows) else 0


@contextmanager
def _workers(
    contestants: Sequence[Contestant], threads: int, inputs: Sequence[torch.Tensor]
) -> Iterator[list[Worker]]:
    """A process each, loading, with an empty folder for what compilers keep on disk."""
    ids = [x[0].tolist() for x in inputs]
    workers: list[Worker] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            for contestant in contestants:
                cache = str(Path(folder) / contestant.key)
                environment = {"TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": str(threads)}
                arguments = (contestant, threads, ids)
                workers.append(Worker("tilevm.tools.demo:Runner", arguments, environment))
                workers[-1].send("load")
            yield workers
        finally:
            for worker in workers:
                worker.close()


def _exact(inputs: Sequence[torch.Tensor], bar: Progress) -> Any:
    """Embeddings computed in float64."""
    model = Encoder().double()
    rows = []
    with torch.no_grad():
        for ids in inputs:
            bar.step("float64")
            rows.append(model(ids, torch.ones_like(ids)).numpy())
    return np.concatenate(rows)


def _first(contestant: Contestant, worker: Worker, bar: Progress) -> Row:
    row = Row(contestant)
    bar.step(f"{contestant.label}: first result")
    try:
        worker.receive()
        row.first_s = worker.call("first")
        row.captures = worker.call("captures")
    except WorkerError as error:
        row.failure = error.summary
    bar.step()
    return row


def _block(row: Row, worker: Worker, start: int, bar: Progress) -> None:
    if not row.failure:
        bar.say(f"{row.contestant.label}: texts {start + 1}...")
        try:
            once, again, embeddings = worker.call("block", start, start + BLOCK)
        except WorkerError as error:
            row.failure = error.summary
        else:
            row.once_s += once
            row.again_s += again
            row.embeddings.append(embeddings)
    bar.step()


def _finish(row: Row, worker: Worker) -> None:
    if row.failure:
        return
    try:
        row.later_captures = worker.call("captures") - row.captures
        if row.contestant in (TORCH_DOOR, OWN_DOOR):
            row.callouts = worker.call("callouts")
    except WorkerError as error:
        row.failure = error.summary


# Report -----------------------------------------------------------------------------------------


def table(rows: Sequence[Row], exact: Any) -> str:
    """What was measured, a line a contestant."""
    head = (
        "",
        "first result",
        "new lengths",
        "captures",
        "recompiles",
        "median",
        "p99",
        "error against float64",
    )
    lines: list[tuple[str, ...]] = [head]
    for row in rows:
        if row.failure:
            lines.append((row.contestant.label, f"failed: {row.failure}", *[""] * 6))
            continue
        compiled = row.contestant != EAGER
        lines.append(
            (
                row.contestant.label,
                f"{row.first_s:.2f} s",
                f"{row.later_s:+.2f} s",
                str(row.captures) if compiled else "",
                str(row.later_captures) if compiled else "",
                f"{statistics.median(row.latencies_ms):.2f} ms",
                f"{np.percentile(row.latencies_ms, 99):.2f} ms",
                f"{row.error(exact):.2e}",
            )
        )
    widths = [max(len(line[i]) for line in lines if not _failed(line)) for i in range(len(head))]
    text = []
    for line in lines:
        if _failed(line):
            text.append(f"{line[0]:<{widths[0]}}  {line[1]}")
        else:
            cells = [f"{cell:>{w}}" for cell, w in zip(line[1:], widths[1:], strict=True)]
            text.append("  ".join([f"{line[0]:<{widths[0]}}", *cells]))
    return "\n".join(text)


def judge(rows: Sequence[Row], exact: Any) -> list[str]:
    """What this project promises of the demo, and whether it holds."""
    by = {row.contestant.key: row for row in rows if not row.failure}
    promises: list[tuple[bool, str]] = []
    own, door, eager = by.get("tilevm"), by.get("torch_compile"), by.get("eager")
    for row in (own, door):
        if row and eager:
            allowed = 1.5 * eager.error(exact) + 2 * float(np.spacing(np.float32(abs(exact).max())))
            promises.append(
                (
                    row.error(exact) <= allowed,
                    f"{row.contestant.label}: error {row.error(exact):.2e}, allowed "
                    f"{allowed:.2e} (1.5 times eager's + 2 ulp)",
                )
            )
    if own:
        promises.append(
            (
                own.later_captures == 0,
                f"{own.contestant.label}: {own.later_captures} captures after the first",
            )
        )
        if inductor := by.get("inductor"):
            ratio = inductor.compile_s / max(own.compile_s, 1e-9)
            told = (
                f"{own.contestant.label}: first result and new lengths take 1/{ratio:.1f} of "
                "Inductor's (1/8)"
            )
            promises.append((ratio >= 8, told))
    if door and (identity := by.get("identity")):
        ratio = door.compile_s / identity.compile_s
        told = f"{door.contestant.label}: compiling takes {ratio:.2f} of the identity's (1.1)"
        promises.append((ratio <= 1.1, told))
    lines = [f"{'yes' if holds else 'NO '}  {told}" for holds, told in promises]
    for row in (door, own):
        if row and row.callouts:
            called = ", ".join(f"{n} {name}" for name, n in sorted(row.callouts.items()))
            lines.append(f"     {row.contestant.label}: a call calls out {called}")
    return lines


def nearest(questions: Sequence[str], asked: Any, texts: Sequence[str], embeddings: Any) -> str:
    """The two texts closest to each question, with the cosine of the angle."""
    lines = []
    for question, similarity in zip(questions, asked @ embeddings.T, strict=True):
        lines.append(f"  {question}")
        for i in np.argsort(-similarity)[:2]:
            text = texts[i] if len(texts[i]) <= 100 else f"{texts[i][:97]}..."
            lines.append(f"    {similarity[i]:.2f}  {text}")
    return "\n".join(lines)


def _failed(line: Sequence[str]) -> bool:
    return line[1].startswith("failed: ")


def _threads(count: int) -> str:
    return "one thread" if count == 1 else f"{count} threads"

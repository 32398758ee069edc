"""`tilevm bench`: goes through the cases, in processes that may die, and writes the reports."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from tilevm.tools.bench import cases, contestants, limits, report
from tilevm.tools.bench.case import Case
from tilevm.tools.machine import processor
from tilevm.tools.progress import Progress
from tilevm.tools.worker import Worker, WorkerDied, WorkerError

CASE_LIMIT_S = 900.0


def main(options: argparse.Namespace) -> int:
    """Measure what is asked for, print the tables, write the files. Returns the exit code."""
    try:
        chosen = cases.select(options.suite, options.case)
        keys = _keys(options)
    except ValueError as error:
        sys.stderr.write(f"tilevm bench: {error}\n")
        return 2
    if options.list:
        for case in chosen:
            print(f"{case.name:<20} {case.suite:<10} {', '.join(case.sizes)}: {case.sweep}")
        print("columns:", ", ".join(contestants.BY_KEY))
        return 0
    end = time.monotonic() + options.budget if options.budget else float("inf")
    found: dict[str, Any] = {"environment": environment(), "quick": options.quick, "runs": []}
    with Progress(len(chosen) * len(options.threads)) as bar:
        for threads in options.threads:
            found["runs"].append(_run(chosen, keys, threads, options.quick, end, bar))
    text = report.markdown(found)
    print(text)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    if options.plot:
        report.plot(found, options.plot)
    return 1 if report.failures(found) else 0


def environment() -> dict[str, Any]:
    """Machine, versions and commit, without which numbers mean nothing."""
    versions = {}
    for package in ("tilevm", "torch", "numpy", "transformers", "onnxruntime", "onnx", "jax"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "commit": _git("rev-parse", "--short", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no", "--", "src", "core")),
        "load": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d"),
    }


def _git(*arguments: str) -> str:
    folder = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _keys(options: argparse.Namespace) -> list[str]:
    """Contestants to run: eager always."""
    known = contestants.BY_KEY
    if options.peers is not None:
        names = [n for part in options.peers for n in _expand(part)]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(f"no column is called {unknown}; there are tilevm, {', '.join(known)}")
        return ["eager", *(name for name in names if name != "eager")]
    return [c.key for c in contestants.available() if c.quick or not options.quick]


def _expand(name: str) -> Sequence[str]:
    return contestants.TILEVM if name == "tilevm" else (name,)


def _run(
    chosen: Sequence[Case],
    keys: Sequence[str],
    threads: int,
    quick: bool,
    end: float,
    bar: Progress,
) -> dict[str, Any]:
    """All cases at one number of threads. A process serves one case, with --quick all of them."""
    run: dict[str, Any] = {"threads": threads, "cases": [], "skipped": []}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        processes = _Processes(threads, quick, Path(folder))
        try:
            for case in chosen:
                left = end - time.monotonic()
                bar.step(f"{case.name}, {threads} thread{'s' * (threads > 1)}")
                if left <= 0:
                    run["skipped"].append(case.name)
                    continue
                run["cases"].append(processes.measure(case, keys, min(left + 30, CASE_LIMIT_S)))
        finally:
            processes.close()
    machine = processes.machine
    for row in [row for case in run["cases"] for row in case["shapes"]]:
        work = limits.Work(row["bytes"], row["flops"], row["vector_ops"], row["dtype"])
        row["limit_us"] = 1e6 * machine.limit_s(work)
    run["machine"] = asdict(machine)
    return run


class _Processes:
    """The process that measures; another one after each case, or only when it died."""

    def __init__(self, threads: int, quick: bool, folder: Path) -> None:
        self._threads = threads
        self._quick = quick
        self._folder = folder
        self._worker: Worker | None = None
        self._count = 0
        self.machine = limits.Machine(threads)

    def measure(self, case: Case, keys: Sequence[str], limit_s: float) -> dict[str, Any]:
        """The case; without contestants that killed the process, which are told of."""
        dead: dict[str, str] = {}
        while True:
            left = [key for key in keys if key not in dead]
            try:
                with self._process() as worker:
                    result: dict[str, Any] = worker.call("case", case.name, left, limit_s=limit_s)
                    self.machine.absorb(worker.call("machine"))
                break
            except WorkerDied as error:
                culprit = self._stage().read_text(encoding="utf-8") or "eager"
                self.close()
                if culprit not in left or culprit == "eager":
                    return _lost(case, str(error))
                dead[culprit] = str(error)
            except WorkerError as error:
                return _lost(case, error.summary)
        for key, text in dead.items():
            result["contestants"][key] = {"error": text}
        return result

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _stage(self) -> Path:
        return self._folder / f"stage{self._count}"

    @contextmanager
    def _process(self) -> Iterator[Worker]:
        if self._worker is None:
            self._count += 1
            self._stage().write_text("", encoding="utf-8")
            environment = {
                "OMP_NUM_THREADS": str(self._threads),
                "TORCHINDUCTOR_CACHE_DIR": str(self._folder / f"cache{self._count}"),
                "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
                "NPROC": str(self._threads),  # of JAX
                "JAX_PLATFORMS": "cpu",
            }
            arguments = (self._threads, self._quick, self._stage())
            self._worker = Worker("tilevm.tools.bench.measure:Bench", arguments, environment)
        yield self._worker
        if not self._quick:
            self.close()


def _lost(case: Case, error: str) -> dict[str, Any]:
    return {
        "name": case.name,
        "suite": case.suite,
        "dtype": case.dtype,
        "sizes": list(case.sizes),
        "by": case.by,
        "shapes": [],
        "contestants": {"eager": {"error": error}},
    }

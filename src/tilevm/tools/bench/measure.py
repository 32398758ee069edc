"""Measures one case: each contestant's first calls, then all of them in turns.

Runs in a process of its own (worker.py), since what compilers keep is part of what is measured.
"""

from __future__ import annotations

import ctypes
import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tilevm.tools.bench import cases, contestants, limits
from tilevm.tools.bench.case import Case, Function, exactly
from tilevm.tools.bench.contestants import TILEVM, Contestant

BATCH_S = 3e-4  # a sample is that long at least
ROUNDS = (7, 200)
OWN_CALLS = 3  # before each batch; one where a call takes LONG_S
LONG_S = 2e-2


class Bench:
    """What a process measures with. stage: a file that says what runs, for when it dies."""

    def __init__(self, threads: int, quick: bool, stage: Path) -> None:
        torch.set_num_threads(threads)
        torch._dynamo.config.recompile_limit = 256  # type: ignore[attr-defined, unused-ignore]
        torch._dynamo.config.accumulated_recompile_limit = 4096  # type: ignore[attr-defined, unused-ignore]
        self._quick = quick
        self._least_s = 0.02 if quick else 0.1
        self._stage = stage
        self._machine = limits.Machine(threads)
        self._warm: set[str] = set()

    def machine(self) -> limits.Machine:
        """Measured rates."""
        return self._machine

    def case(self, name: str, keys: Sequence[str]) -> dict[str, Any]:
        """All that is measured of a case, for the contestants of these keys."""
        case = cases.CASES[name]
        rivals = [c for c in contestants.available() if c.key in keys and c.takes(case)]
        self._warm_up(rivals)
        with torch.no_grad():
            return _Measurement(self, case, rivals).run()

    def at(self, key: str) -> None:
        """Note what runs from now on."""
        self._stage.write_text(key, encoding="utf-8")

    def _warm_up(self, rivals: Sequence[Contestant]) -> None:
        """Import what each contestant needs: a case pays for its own graphs only."""
        warm = Case("warm_up", "operators", lambda: torch.neg, (), ("M",), ((5,),))

        def negative(x: Any) -> Any:
            return -x

        for rival in rivals:
            if rival.key in self._warm or rival.key in ("eager", "onnxruntime", "jax"):
                continue
            self._warm.add(rival.key)
            self.at(rival.key)
            if rival.key == "kernel":
                import tilevm

                tilevm.kernel(negative)(torch.ones(5))
                continue
            try:
                rival.build(warm, negative)(torch.ones(5))
            except Exception as error:
                sys.stderr.write(f"tilevm bench: {rival.label} fails on -x: {_told(error)}\n")


class _Measurement:
    def __init__(self, bench: Bench, case: Case, rivals: Sequence[Contestant]) -> None:
        self._bench = bench
        self._case = case
        self._rivals = rivals
        self._shapes = case.shapes(quick=bench._quick)
        self._inputs = [case.tensors(sizes) for sizes in self._shapes]
        self._function = case.make()
        self._calls: dict[str, Function] = {}
        self._first_s: dict[str, list[float]] = {}
        self._results: dict[str, dict[str, Any]] = {}
        self._alone: dict[str, Function] = {}  # the products of the case, by who computes them
        if case.alone is not None:
            alone = [r for r in rivals if r.key in ("eager", "compile")]
            self._alone = {f"{r.key} alone": r.build(case, case.alone) for r in alone}

    def run(self) -> dict[str, Any]:
        exact = [self._exact(inputs) for inputs in self._inputs]
        for rival in self._rivals:
            self._results[rival.key] = self._first_calls(rival, exact)
        rows = [self._steady(i) for i in range(len(self._shapes))]
        works = [limits.count(self._function, inputs) for inputs in self._inputs]
        self._bench.machine().measure(works)
        rows = [row | asdict(work) for row, work in zip(rows, works, strict=True)]
        for key, result in self._results.items():
            if key in self._calls:
                steady = [row["median_us"][key] for row in rows]
                spent = sum(self._first_s[key]) - 1e-6 * sum(steady)
                result["compile_s"] = max(0.0, spent)
                result["peak_extra_bytes"] = self._memory(key)
        return {
            "name": self._case.name,
            "suite": self._case.suite,
            "dtype": self._case.dtype,
            "sizes": list(self._case.sizes),
            "by": self._case.by,
            "shapes": rows,
            "contestants": self._results,
        }

    # First calls --------------------------------------------------------------------------------

    def _exact(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        function = exactly(self._function)
        wide = [x.double() if x.is_floating_point() else x for x in inputs]
        return _flat(function(*wide))

    def _first_calls(
        self, rival: Contestant, exact: Sequence[list[torch.Tensor]]
    ) -> dict[str, Any]:
        """Build, call each shape once, and check what comes out."""
        self._bench.at(rival.key)
        result: dict[str, Any] = {"error": "", "accuracy": []}
        before, captured = _counters(), _captures(rival.key)
        seconds: list[float] = []
        outputs = []
        call: Function | None = None
        first = 0
        try:
            for i, inputs in enumerate(self._inputs):
                begin = time.perf_counter()
                if call is None:
                    call = rival.build(self._case, self._function)
                found = call(*inputs)
                seconds.append(time.perf_counter() - begin)
                outputs.append(_flat(rival.tensors(found)))
                if i == 0:
                    first = _captures(rival.key, call) - captured
        except Exception as error:
            result["error"] = _told(error)
            return result
        assert call is not None
        result["captures"] = first
        result["recompiles"] = _captures(rival.key, call) - captured - first
        if rival.key in TILEVM:
            result["core"] = _difference(before, _counters())
            result["callouts"] = self._callouts(call)
            result["falls_back"] = [r for r in result["core"].get("flushes", {}) if "eager" in r]
        for found, wanted, inputs in zip(outputs, exact, self._inputs, strict=True):
            eager = _flat(self._function(*inputs))
            wrong, share = _compare(found, wanted, eager)
            if wrong:
                result["error"] = f"wrong: {wrong}"
                return result
            result["accuracy"].append(share)
        result["accuracy"] = max(result["accuracy"])
        result["claims"] = not result.get("falls_back") and not any(
            not any(part in name for part in self._case.callouts)
            for name in result.get("callouts", {})
        )
        self._calls[rival.key] = call
        self._first_s[rival.key] = seconds
        return result

    def _callouts(self, call: Function) -> dict[str, int]:
        before = _counters()["callouts"]
        call(*self._inputs[-1])
        after = _counters()["callouts"]
        return {n: c - before.get(n, 0) for n, c in after.items() if c > before.get(n, 0)}

    # Steady times -------------------------------------------------------------------------------

    def _steady(self, index: int) -> dict[str, Any]:
        """Medians of all contestants, a batch each in turn.

        Each batch follows OWN_CALLS that are not counted, so that caches hold what its own calls
        leave there. Else what contestants share, as weights are that only some pack, would be
        there for them and not for the others. Seven tokens of T5 with packed weights, after
        eager calls, ms: 4.5, 4.2, 2.8, 2.3, 2.3 (Intel Granite Rapids).
        """
        inputs = self._inputs[index]
        batches: dict[str, tuple[Function, int, int]] = {}
        rounds = 0.0
        for key, call in [*self._calls.items(), *self._alone.items()]:
            self._bench.at(key)
            call(*inputs)
            once = _time(call, inputs, 1)
            many = max(1, math.ceil(BATCH_S / max(once, 1e-7)))
            once = _time(call, inputs, many)
            batches[key] = (call, many, OWN_CALLS if once < LONG_S else 1)
            rounds = max(rounds, self._bench._least_s / max(once * many, 1e-9))
        samples: dict[str, list[float]] = {key: [] for key in batches}
        keys = list(batches)
        gc.collect()
        gc.disable()
        try:
            for turn in range(min(ROUNDS[1], max(ROUNDS[0], math.ceil(rounds)))):
                start = turn % len(keys)
                for key in keys[start:] + keys[:start]:
                    call, many, own = batches[key]
                    _time(call, inputs, own)
                    samples[key].append(_time(call, inputs, many))
        finally:
            gc.enable()
        medians = {key: 1e6 * statistics.median(found) for key, found in samples.items()}
        return {
            "sizes": list(self._shapes[index]),
            "median_us": {key: medians[key] for key in self._calls},
            "quartiles_us": {key: _quartiles(samples[key]) for key in self._calls},
            "alone_us": min((medians[key] for key in self._alone), default=None),
        }

    # Memory -------------------------------------------------------------------------------------

    def _memory(self, key: str) -> int | None:
        """Bytes that a call of the largest shape needs at most, beside inputs and outputs.

        None: not known; ONNX Runtime and JAX keep what they once had.
        """
        if key in ("onnxruntime", "jax"):
            return None
        self._bench.at(key)
        call, inputs = self._calls[key], self._inputs[-1]
        call(*inputs)
        if key in TILEVM:  # give back what it keeps for later calls
            _free_memory()
        gc.collect()
        _trim()
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            before = _status("VmRSS")
            outputs = call(*inputs)
            peak = _status("VmHWM")
        except (OSError, StopIteration):
            return None
        return max(0, peak - before - _own_bytes(_flat(outputs), inputs))


def _own_bytes(outputs: Sequence[Any], inputs: Sequence[torch.Tensor]) -> int:
    """Bytes of the storages of tensors among outputs that are not those of inputs."""
    given = {x.untyped_storage().data_ptr() for x in inputs}
    storages = [x.untyped_storage() for x in outputs if isinstance(x, torch.Tensor)]
    sizes = {s.data_ptr(): s.nbytes() for s in storages if s.data_ptr() not in given}
    return sum(sizes.values())


def _time(call: Function, inputs: Sequence[torch.Tensor], many: int) -> float:
    """Seconds of a call, the mean of a batch."""
    begin = time.perf_counter()
    for _ in range(many):
        call(*inputs)
    return (time.perf_counter() - begin) / many


def _quartiles(samples: Sequence[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(samples, n=4)
    return 1e6 * low, 1e6 * high


def _flat(outputs: Any) -> list[torch.Tensor]:
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


def _compare(
    found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]
) -> tuple[str, float]:
    """What is wrong, and the largest error as a share of what is allowed.

    Allowed: 1.5 times eager's error plus 2 units of the type at the largest value. Ten times as
    much is wrong.
    """
    if len(found) != len(wanted):
        return f"{len(found)} outputs, not {len(wanted)}", math.inf
    worst = 0.0
    for i, (x, y, e) in enumerate(zip(found, wanted, eager, strict=True)):
        if x.shape != y.shape:
            return f"output {i} has sizes {list(x.shape)}, not {list(y.shape)}", math.inf
        if x.dtype != e.dtype:
            return f"output {i} is {x.dtype}, not {e.dtype}", math.inf
        if x.numel() == 0:
            continue
        unit = torch.finfo(x.dtype).eps if x.dtype.is_floating_point else 0.0
        scale = float(y.double().abs().nan_to_num(0, 0, 0).max())
        allowed = 1.5 * _largest(e, y) + 2 * unit * scale
        error = _largest(x, y)
        share = error / allowed if allowed else math.inf if error else 0.0
        if not share <= 10:
            return f"output {i} is {error:.2e} off, {allowed:.2e} is allowed", share
        worst = max(worst, share)
    return "", worst


def _largest(x: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest difference; infinities and NaNs of equal kind differ by nothing."""
    a, b = x.double(), exact.double()
    same = (a == b) | (a.isnan() & b.isnan())
    return float(torch.where(same, 0.0, (a - b).abs()).max())


def _captures(key: str, call: Any = None) -> int:
    """Graphs made so far; for contestants that count themselves."""
    if hasattr(call, "compiled"):
        return int(call.compiled())
    if key == "jax":
        return 0  # nothing is built yet
    if key in TILEVM and key != "torch_compile":
        return int(_counters()["captures"])
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _counters() -> dict[str, Any]:
    if "tilevm" not in sys.modules or "tilevm._core" not in sys.modules:
        return {"captures": 0, "callouts": {}, "flushes": {}}
    import tilevm

    return tilevm.stats()


def _difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What was counted between; maxima as they are."""
    found: dict[str, Any] = {}
    for name, value in after.items():
        if isinstance(value, dict):
            old = before.get(name, {})
            found[name] = {k: n - old.get(k, 0) for k, n in value.items() if n > old.get(k, 0)}
        else:
            maximum = name in ("compile_max_us", "peak_bytes")
            found[name] = value if maximum else value - before.get(name, 0)
    return found


def _free_memory() -> None:
    """Give back the buffers that tilevm keeps for later calls."""
    core: Any = sys.modules["tilevm._core"]
    core.free_memory()


def _trim() -> None:
    """Give free memory back to the system, so that what a call takes is seen."""
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status(field: str) -> int:
    """Bytes of a row of /proc/self/status."""
    rows = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    row = next(row for row in rows if row.startswith(f"{field}:"))
    return 1024 * int(row.split()[1])


def _told(error: Exception) -> str:
    cause = error.__cause__ or error
    text = str(cause).strip().partition("\n")[0]
    return f"{type(cause).__name__}: {text}"[:300]

"""A failing call in a file, and run again on every tier: `tilevm replay FILE`.

The file is a zip archive of three members and holds no code: graph.txt (the graph as text),
inputs.npz (arrays and numbers, in the order of its parameters; bfloat16 as its bits) and call.json
(versions, what went wrong, and the names of the operators that the graph calls out).
"""

from __future__ import annotations

import inspect
import io
import json
import platform
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilevm.errors import ParseError, TilevmError
from tilevm.ir import reference
from tilevm.ir.graph import Graph
from tilevm.ir.text import from_core, from_text, to_text
from tilevm.ir.types import FLOATS, WEAK, Symbol, Type, numpy_dtype
from tilevm.runtime.program import program_text
from tilevm.tools.worker import Worker, WorkerError

FORMAT = 1
TIERS = ("reference", "interp", "auto")
_UNBOUNDED = 2**63 - 1
UNITS = 64  # a tier that differs by more units of the largest value is wrong
_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


@dataclass(frozen=True)
class Call:
    """A graph and what it was called with. targets: names of what its calls call, by index."""

    graph: Graph
    inputs: tuple[Any, ...]
    note: str = ""
    targets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What a tier made of the call. error: instead of results."""

    tier: str
    results: tuple[Any, ...] = ()
    error: str = ""


def save(
    path: Path,
    called: Any,
    inputs: Sequence[Any],
    *,
    note: str = "",
    targets: Sequence[str] = (),
) -> None:
    """Write a call of a graph, or of what `@tilevm.kernel` made, to a file.

    inputs: the graph's, or the kernel's positional arguments: arrays of NumPy or torch, numbers.
    """
    graph, values = _graph_of(called, inputs)
    arrays = {
        f"input{i}": _stored(value, type_)
        for i, (value, (_, type_)) in enumerate(zip(values, graph.params, strict=True))
    }
    packed = io.BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type, unused-ignore]
    told = {
        "format": FORMAT,
        "note": note,
        "targets": list(targets),
        "sizes": reference.bind(graph, values),
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("graph.txt", to_text(graph))
        archive.writestr("inputs.npz", packed.getvalue())
        archive.writestr("call.json", json.dumps(told, indent=1))


def save_executable(
    path: Path, executable: Callable[..., Any], inputs: Sequence[Any], *, note: str = ""
) -> None:
    """Write a call of a compiled program to a file. Raises: ParseError, if text cannot hold it."""
    text, facts, targets = program_text(executable)
    symbols = [
        Symbol(name, max(least, 0), None if most == _UNBOUNDED else most, multiple)
        for name, least, most, multiple in facts
    ]
    save(path, from_core(text, symbols), inputs, note=note, targets=targets)


def load(path: Path) -> Call:
    """The call in a file. Raises: ParseError, which says what is wrong with it."""
    try:
        with zipfile.ZipFile(path) as archive:
            told = json.loads(archive.read("call.json"))
            graph = from_text(archive.read("graph.txt").decode())
            packed = np.load(io.BytesIO(archive.read("inputs.npz")), allow_pickle=False)
            if told["format"] != FORMAT:
                raise ParseError(f"{path} has format {told['format']}, this reads {FORMAT}")
            inputs = tuple(
                _restored(packed[f"input{i}"], type_) for i, (_, type_) in enumerate(graph.params)
            )
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        if isinstance(error, TilevmError):
            raise
        raise ParseError(f"{path} is not a saved call: {error}") from error
    return Call(graph, inputs, str(told["note"]), tuple(told["targets"]))


def run_tier(call: Call, tier: str) -> tuple[Any, ...]:
    """The results of the call on one tier."""
    from tilevm.config import config
    from tilevm.runtime import program as runtime

    functions = [_target(name) for name in call.targets]
    if tier == "reference":
        return reference.evaluate(call.graph, *call.inputs, targets=functions)
    names = [name for name, _ in call.graph.params]
    with config.patch(tier=tier):
        executable = runtime.compile_program(
            call.graph.to_program(), functions, framework="numpy", input_names=names
        )
        return tuple(np.array(x) for x in executable(*call.inputs))


class Tier:
    """A tier in a process of its own, which it may take down."""

    def __init__(self, path: Path, tier: str) -> None:
        self._call = load(path)
        self._tier = tier

    def results(self) -> list[Any]:
        """The results; what no other process knows how to read as its bits."""
        types = self._call.graph.types()
        found = zip(run_tier(self._call, self._tier), self._call.graph.results, strict=True)
        return [_stored(x, types[name]) for x, name in found]


def replay(path: Path) -> list[Outcome]:
    """The outcome on each tier, each in its own process."""
    call = load(path)
    types = call.graph.types()
    outcomes = []
    for tier in TIERS:
        worker = Worker("tilevm.tools.replay:Tier", (path, tier), {})
        try:
            found = zip(worker.call("results"), call.graph.results, strict=True)
            outcomes.append(Outcome(tier, tuple(_restored(x, types[name]) for x, name in found)))
        except WorkerError as error:
            outcomes.append(Outcome(tier, error=error.summary))
        finally:
            worker.close()
    return outcomes


def run(path: Path) -> int:
    """Print the call and its outcomes. Returns the exit code: 1 if tiers differ."""
    try:
        call = load(path)
    except TilevmError as error:
        sys.stderr.write(f"tilevm replay: {error}\n")
        return 2
    print(to_text(call.graph))
    for (name, type_), value in zip(call.graph.params, call.inputs, strict=True):
        print(f"  {name}: {type_} is {_described(value)}")
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
            told = ", ".join(_described(x) for x in outcome.results)
        elif exact.error:
            told = "runs; there is nothing to compare with"
        elif wrong := differences(outcome.results, exact.results):
            told, code = "DIFFERS: " + "; ".join(wrong), 1
        print(f"{outcome.tier:>10}  {told}")
    return code


def differences(found: Sequence[Any], exact: Sequence[Any]) -> list[str]:
    """What is wrong with results, beyond rounding."""
    wrong = []
    if len(found) != len(exact):
        return [f"{len(found)} results, not {len(exact)}"]
    for i, (a, b) in enumerate(zip(found, exact, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            wrong.append(f"result {i} is {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}")
            continue
        unit = _EPSILON.get(a.dtype.name, 0.0)
        wide = np.float64 if unit else a.dtype
        x, y = a.astype(wide), b.astype(wide)
        with np.errstate(all="ignore"):
            off = np.abs(x - y) if unit else (x != y).astype(np.float64)
        same = (x == y) | (np.isnan(x) & np.isnan(y)) if unit else x == y
        off = np.where(same, 0.0, np.where(np.isnan(off), np.inf, off))
        finite = np.abs(y[np.isfinite(y)]) if unit else np.zeros(0)
        allowed = UNITS * unit * float(finite.max(initial=0.0))
        if off.size and off.max() > allowed:
            at = np.unravel_index(int(off.argmax()), off.shape)
            where = [int(index) for index in at]
            count = int((off > allowed).sum())
            wrong.append(f"result {i}{where} is {x[at]}, not {y[at]} ({count} of {off.size})")
    return wrong


def _graph_of(called: Any, inputs: Sequence[Any]) -> tuple[Graph, list[Any]]:
    """The graph of a call and its inputs as NumPy arrays and numbers."""
    if isinstance(called, Graph):
        graph, values = called, list(inputs)
    else:
        graph = called.graph(*inputs)
        bound = inspect.signature(called).bind(*inputs).arguments
        values = [bound[name] for name, _ in graph.params]
    typed = zip(values, graph.params, strict=True)
    return graph, [_numpy(value, type_) for value, (_, type_) in typed]


def _numpy(value: Any, type_: Type) -> Any:
    if type_.weak:
        return value
    if type(value).__module__.partition(".")[0] == "torch":
        if type_.dtype == "bfloat16":
            import torch

            bits = value.detach().contiguous().view(torch.int16)
            return bits.numpy().view(numpy_dtype("bfloat16"))
        return value.detach().numpy()
    return np.asarray(value)


def _stored(value: Any, type_: Type) -> Any:
    """An array that NumPy's format holds."""
    array = np.asarray(value)
    return array.view(np.uint16) if type_.dtype == "bfloat16" and not type_.weak else array


def _restored(array: Any, type_: Type) -> Any:
    if type_.weak:
        python = {"float": float, "int": int, "bool": bool}[WEAK[type_.dtype]]
        return python(array)
    return array.view(numpy_dtype("bfloat16")) if type_.dtype == "bfloat16" else array


def _target(name: str) -> Callable[..., Any]:
    """The operator of ATen of that name, on arrays. Raises: ParseError."""
    import torch

    parts = name.split(".")
    if parts[0] != "aten" or len(parts) != 3:
        raise ParseError(f"the graph calls out {name}, which cannot be found by its name")
    operator = getattr(getattr(torch.ops.aten, parts[1]), parts[2])

    def call(*arrays: Any) -> Any:
        found = operator(*(torch.from_numpy(np.array(x)) for x in arrays))
        many = isinstance(found, tuple | list)
        return [x.numpy() for x in found] if many else found.numpy()

    return call


def _described(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return str(value)
    told = f"{value.dtype}{list(value.shape)}"
    if not value.size:
        return told
    wide = value.astype(np.float64) if value.dtype.name in FLOATS else value
    if value.size == 1:
        return f"{told} {wide.reshape(-1)[0]}"
    return f"{told} of {wide.min()} to {wide.max()}"

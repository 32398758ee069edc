"""`tilevm.explain(f)(*args)`: what a call runs, from the graph down to machine code."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilevm.errors import CaptureError, describe
from tilevm.runtime.program import program_text
from tilevm.tools import assembly, explain_data

MOST_S = 1.0  # that calls for times may take together


@dataclass(frozen=True)
class CallOut:
    """An operator that the host framework runs."""

    name: str
    reason: str
    line: str


@dataclass(frozen=True)
class Explanation:
    """What runs for a call. `str()` of it is the report; the parts are there for programs.

    graph: the program, one line an operator. guards: what it assumes of a call. steps, kernels,
    operators, decisions, memory: as the core describes them, kernels with the variants encoded so
    far; `asm` adds "assembly" to these, as `tilevm.tools.assembly` reads it. symbols: (name, min,
    max, multiple_of). compiling: (phase, microseconds). profiles: what each timed call took and
    had to do; `untimed`: why there is none, or not more than one.
    """

    title: str
    graph: str
    guards: tuple[str, ...]
    steps: tuple[dict[str, Any], ...] = ()
    kernels: tuple[dict[str, Any], ...] = ()
    callouts: tuple[CallOut, ...] = ()
    operators: tuple[dict[str, Any], ...] = ()
    decisions: tuple[dict[str, Any], ...] = ()
    interface: dict[str, Any] | None = None
    memory: dict[str, Any] | None = None
    symbols: tuple[tuple[str, int, int, int], ...] = ()
    compiling: tuple[tuple[str, float], ...] = ()
    profiles: tuple[dict[str, Any], ...] = ()
    untimed: str = ""

    @property
    def cuts(self) -> tuple[tuple[str, str], ...]:
        """Values stored between kernels, each with the first reason for it."""
        first: dict[str, str] = {}
        for decision in self.decisions:
            first.setdefault(f"%{decision['value']}: {decision['type']}", decision["reason"])
        return tuple(first.items())

    def to_json(self, *, limits: bool = True) -> dict[str, Any]:
        """All of it as plain data; docs/explain.md has the keys.

        limits: with what the machine could do at best, measured once a process (a second or two).
        """
        return explain_data.to_json(self, limits=limits)

    def to_html(self, *, limits: bool = True) -> str:
        """All of it as one page that needs nothing else. limits: as `to_json`."""
        from tilevm.tools.explain_page import page

        return page(self.to_json(limits=limits))

    def save(self, path: str | Path) -> None:
        """Write a page, plain data or text: .html, .json or .txt. Raises: ValueError."""
        path = Path(path)
        if path.suffix == ".html":
            text = self.to_html()
        elif path.suffix == ".json":
            text = json.dumps(self.to_json(), indent=1)
        elif path.suffix == ".txt":
            text = str(self)
        else:
            raise ValueError(f"{path} ends in {path.suffix!r}: use .html, .json or .txt")
        path.write_text(text, encoding="utf-8")

    def __str__(self) -> str:
        kernels = sum(step["kind"] in ("kernel", "chain") for step in self.steps)
        memory = explain_data.memory_rows(self)
        parts = [
            f"{self.title}: {kernels} kernel launches, {len(self.callouts)} call-outs",
            _section("graph", self.graph.splitlines()),
            _section("guards", self.guards or ("none: any sizes",)),
            _section("steps", [step["text"] for step in self.steps]),
            _section("cuts: values stored between kernels", explain_data.decision_rows(self)),
            _section("memory: buffers between steps", memory),
            _section("call-outs", self._callout_rows()),
        ]
        parts += [_kernel(number, kernel) for number, kernel in enumerate(self.kernels)]
        return "\n".join(part for part in parts if part)

    def __repr__(self) -> str:
        return str(self)

    def _callout_rows(self) -> list[str]:
        counts = Counter((c.name, c.reason) for c in self.callouts)
        return [
            f"{count:4} {name}: {reason} ({', '.join(self._lines(name, reason))})"
            for (name, reason), count in counts.items()
        ] or ["none"]

    def _lines(self, name: str, reason: str) -> list[str]:
        found = [c.line for c in self.callouts if (c.name, c.reason) == (name, reason)]
        return list(dict.fromkeys(line or "?" for line in found))


def _section(title: str, rows: Any) -> str:
    return "\n".join([f"\n{title}:", *(f"  {row}" for row in rows)]) if rows else ""


def _kernel(number: int, kernel: dict[str, Any]) -> str:
    rows = [f"axes: {', '.join(kernel['axes'])}", *kernel["nodes"]]
    for variant in kernel["variants"]:
        why = f", not native: {variant['why_interp']}" if variant.get("why_interp") else ""
        rows.append(f"bytecode for {variant['layout']} ({variant['tier']}{why}):")
        rows += [f"  {line}" for line in variant["disassembly"].splitlines()]
        if variant.get("assembly"):
            rows.append(f"machine code for {variant['layout']} ({variant['tier']}):")
            rows += [f"  {line}" for line in assembly.rows(variant)]
    return _section(f"kernel {number} {kernel['name']}", rows)


def explain(function: Any, *, asm: bool = False, runs: int = 5) -> Callable[..., Explanation]:
    """A function that takes a call's arguments, makes the call, and says what ran.

    function: what `tilevm.kernel` or `tilevm.compile` returned; anything else is compiled first.
    asm: also the machine code, each instruction below that of the bytecode which it is for.
    runs: how often the call is made again to time its steps, for a second at most; never, if it
    changes its arguments.
    Raises: CaptureError, if the call runs eagerly: the message is the reason; if it is no function.
    """
    if not callable(function):
        what = f"tilevm.explain of {function!r}, which cannot be called"
        raise CaptureError(describe(what, remedy="Write tilevm.explain(function)(*arguments)."))

    def run(*args: Any, **kwargs: Any) -> Explanation:
        if hasattr(function, "variants") and hasattr(function, "graph"):
            return _explain_kernel(function, args, kwargs, asm, runs)
        from tilevm.frontends.torch_compile import Compiled, CompiledModule, compile

        made = function if isinstance(function, Compiled | CompiledModule) else compile(function)
        compiled = made._tilevm if isinstance(made, CompiledModule) else made
        return _explain_capture(compiled, args, kwargs, asm, runs)

    return run


def _explain_capture(compiled: Any, args: Any, kwargs: Any, asm: bool, runs: int) -> Explanation:
    import torch

    known = [capture.captured.executable for capture in compiled.captures]
    with _profiled(known):
        capture = compiled.find(*args, **kwargs)
        executable = capture.captured.executable
        imported = capture.captured.imported
        if capture.repeatable:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                profiles = _profiles(executable, lambda: compiled(*args, **kwargs), runs)
            untimed = "" if profiles else "no calls were made for it: runs=0"
        else:
            once = executable.profile()
            profiles = [] if once is None else [once]
            untimed = "the call changes its arguments, and so was made only once" + (
                ", to capture it" if once is None else ""
            )
    callouts = tuple(CallOut(c.name, c.reason, c.line or "") for c in imported.callouts)
    title = getattr(compiled, "__name__", None) or type(compiled._fn).__name__
    compiling = (("capture by torch.export, and import", capture.capture_s * 1e6),)
    return _explanation(
        title, executable, capture.conditions, callouts, asm, compiling, profiles, untimed
    )


def _explain_kernel(kernel: Any, args: Any, kwargs: Any, asm: bool, runs: int) -> Explanation:
    from tilevm.ir.text import to_text

    kernel(*args, **kwargs)
    graph = kernel.graph(*args, **kwargs)
    for variant in kernel._variants.values() if hasattr(kernel, "_variants") else ():
        for one in variant if isinstance(variant, list | tuple) else (variant,):
            if one.graph == graph and hasattr(one.run, "steps"):
                guards = tuple(str(guard) for guard in one.guards)
                with _profiled([one.run]):
                    profiles = _profiles(one.run, lambda: kernel(*args, **kwargs), runs)
                return _explanation(kernel.__name__, one.run, guards, (), asm, (), profiles, "")
    return Explanation(kernel.__name__, to_text(graph), ())


@contextmanager
def _profiled(executables: Sequence[Any]) -> Iterator[None]:
    """Calls of these note what each of their steps takes."""
    for executable in executables:
        executable.set_profiled(True)
    try:
        yield
    finally:
        for executable in executables:
            executable.set_profiled(False)


def _profiles(executable: Any, call: Callable[[], Any], runs: int) -> list[dict[str, Any]]:
    """What each of some calls took. The first call of all has compiled, and is not among them."""
    found: list[dict[str, Any]] = []
    end = time.perf_counter() + MOST_S
    with _profiled([executable]):
        for _ in range(runs):
            call()
            found.append(executable.profile())
            if time.perf_counter() > end:
                break
    return found


def _products(executable: Any, callouts: tuple[CallOut, ...]) -> list[CallOut]:
    """The program's own products that the framework runs."""
    # In the executable, calls of torch.matmul have the same name, but no line.
    others = sum(c.name == "aten.matmul.default" for c in callouts)
    lines = sorted(line for name, line in executable.callouts() if name == "matmul")
    return [CallOut("matmul", "matrix multiply", line) for line in lines[others:]]


def _explanation(
    title: str,
    executable: Any,
    guards: tuple[str, ...],
    callouts: tuple[CallOut, ...],
    asm: bool,
    compiling: tuple[tuple[str, float], ...],
    profiles: Sequence[dict[str, Any]],
    untimed: str,
) -> Explanation:
    if not hasattr(executable, "steps"):
        raise CaptureError(f"{title} runs on the reference, which has no kernels")
    kernels = tuple(executable.kernels_with_assembly() if asm else executable.kernels())
    lower_us, fuse_us = executable.lower_us, executable.fuse_us
    return Explanation(
        title=title,
        graph=executable.plan_text().partition("\nsteps:")[0],
        guards=guards,
        steps=tuple(executable.steps()),
        kernels=kernels,
        callouts=(*callouts, *_products(executable, callouts)),
        operators=tuple(executable.operators()),
        decisions=tuple(executable.decisions()),
        interface=executable.interface(),
        memory=executable.memory(),
        symbols=tuple(program_text(executable).symbols),
        compiling=(
            *compiling,
            ("lower", lower_us),
            ("fuse", fuse_us),
            ("host program", executable.compile_us - lower_us - fuse_us),
            ("encode and emit", sum(v["compile_us"] for k in kernels for v in k["variants"])),
        ),
        profiles=tuple(profiles),
        untimed=untimed,
    )

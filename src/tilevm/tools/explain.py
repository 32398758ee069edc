"""`tilevm.explain(f)(*args)`: what a call runs, from the graph down to machine code, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilevm.errors import CaptureError, describe
from tilevm.tools import archive, assembly


@dataclass(frozen=True)
class CallOut:
    """An operator that the host framework runs."""

    name: str
    reason: str
    line: str


@dataclass(frozen=True)
class Explanation:
    """What runs for a call. `str()` of it is the report; the parts are there for programs.

    graph: the program, one line an operator. guards: what it assumes of a call. kernels: as the
    core describes them, with the variants encoded so far; `asm` adds "assembly" to these, as
    `tilevm.tools.assembly` reads it. cuts: (value, why a kernel ends there).
    """

    title: str
    graph: str
    guards: tuple[str, ...]
    steps: tuple[dict[str, Any], ...]
    kernels: tuple[dict[str, Any], ...]
    cuts: tuple[tuple[str, str], ...]
    callouts: tuple[CallOut, ...]

    def __str__(self) -> str:
        kernels = sum(step["kind"] in ("kernel", "chain") for step in self.steps)
        parts = [
            f"{self.title}: {kernels} kernel launches, {len(self.callouts)} call-outs",
            _section("graph", self.graph.splitlines()),
            _section("guards", self.guards or ("none: any sizes",)),
            _section("steps", [step["text"] for step in self.steps]),
            _section("cuts: values stored between kernels", [f"{v}: {r}" for v, r in self.cuts]),
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


def explain(
    function: Any, *, asm: bool = False, save: str | Path | None = None
) -> Callable[..., Explanation]:
    """A function that takes a call's arguments, makes the call, and says what ran.

    function: what `tilevm.kernel` or `tilevm.compile` returned; anything else is compiled first.
    asm: also the machine code, each instruction below that of the bytecode which it is for.
    save: a file for `tilevm replay`, with the graph, the sizes, the inputs as they were before the
        call (but buffers of a module as it left them), and this report, bytecode included.
    Raises: CaptureError, if the call runs eagerly: the message is the reason; if it is no function.
    """
    if not callable(function):
        what = f"tilevm.explain of {function!r}, which cannot be called"
        raise CaptureError(describe(what, remedy="Write tilevm.explain(function)(*arguments)."))

    def run(*args: Any, **kwargs: Any) -> Explanation:
        if hasattr(function, "variants") and hasattr(function, "graph"):
            return _explain_kernel(function, args, kwargs, asm, save)
        from tilevm.frontends.torch_compile import Compiled, CompiledModule, compile

        made = function if isinstance(function, Compiled | CompiledModule) else compile(function)
        compiled = made._tilevm if isinstance(made, CompiledModule) else made
        return _explain_capture(compiled, args, kwargs, asm, save)

    return run


def _explain_capture(
    compiled: Any, args: Any, kwargs: Any, asm: bool, save: str | Path | None
) -> Explanation:
    before = compiled.leaves(*args, **kwargs) if save else []
    capture = compiled.find(*args, **kwargs)
    imported = capture.captured.imported
    callouts = tuple(CallOut(c.name, c.reason, c.line or "") for c in imported.callouts)
    executable = capture.captured.executable
    found = _explanation(compiled.title, executable, capture.conditions, callouts, asm)
    if save:
        _save(save, executable, capture.inputs(before), found)
    return found


def _save(path: str | Path, called: Any, inputs: Sequence[Any], found: Explanation) -> None:
    archive.save(
        Path(path), called, inputs, note="tilevm.explain", more={"explain.txt": str(found)}
    )


def _explain_kernel(
    kernel: Any, args: Any, kwargs: Any, asm: bool, save: str | Path | None
) -> Explanation:
    from tilevm.ir.text import to_text

    kernel(*args, **kwargs)
    graph = kernel.graph(*args, **kwargs)
    found = Explanation(kernel.__name__, to_text(graph), (), (), (), (), ())
    for variant in kernel._variants.values() if hasattr(kernel, "_variants") else ():
        for one in variant if isinstance(variant, list | tuple) else (variant,):
            if one.graph == graph and hasattr(one.run, "steps"):
                guards = tuple(str(guard) for guard in one.guards)
                found = _explanation(kernel.__name__, one.run, guards, (), asm)
                break
    if save:
        _save(save, graph, kernel.inputs(*args, **kwargs), found)
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
) -> Explanation:
    if not hasattr(executable, "steps"):
        raise CaptureError(f"{title} runs on the reference, which has no kernels")
    return Explanation(
        title=title,
        graph=executable.plan_text().partition("\nsteps:")[0],
        guards=guards,
        steps=tuple(executable.steps()),
        kernels=tuple(executable.kernels_with_assembly() if asm else executable.kernels()),
        cuts=tuple(executable.cuts()),
        callouts=(*callouts, *_products(executable, callouts)),
    )

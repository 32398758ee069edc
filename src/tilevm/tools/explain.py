"""`tilevm.explain(f)(*args)`: what a call runs, from the graph down to machine code."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, overload

from tilevm.errors import CaptureError, TilevmError, describe
from tilevm.runtime.program import watch_segments, watched_segments
from tilevm.tools import archive, explain_data
from tilevm.tools.explanation import CallOut, Explanation, Part, Recording, Segment

__all__ = ["CallOut", "Explanation", "Recording", "Segment", "explain"]

MOST_S = 1.0  # that calls for times may take together
NOT_RECORDED = "tilevm.fuse() does not record it, or not with these arguments"
READS_A_NUMBER = "aten::_local_scalar_dense"
UNTIMED = "no calls were made for it"


@overload
def explain(
    function: Any,
    *,
    asm: bool = ...,
    runs: int = ...,
    recorded: Literal[False] = ...,
    save: str | Path | None = ...,
) -> Callable[..., Explanation]: ...
@overload
def explain(
    function: Any, *, asm: bool = ..., runs: int = ..., recorded: Literal[True]
) -> Callable[..., Recording]: ...
@overload
def explain(
    function: Any, *, asm: bool = ..., runs: int = ..., recorded: bool
) -> Callable[..., Explanation | Recording]: ...
def explain(
    function: Any,
    *,
    asm: bool = False,
    runs: int = 5,
    recorded: bool = False,
    save: str | Path | None = None,
) -> Callable[..., Explanation | Recording]:
    """A function that takes a call's arguments, makes the call, and says what ran.

    function: what `tilevm.kernel` or `tilevm.compile` returned; anything else is compiled first.
    asm: also the machine code, each instruction below that of the bytecode which it is for.
    runs: how often the call is made again to time its steps, for a second at most; never, if it
    changes its arguments.
    recorded: call it once under `tilevm.fuse()`, and say in which segments its operators ran.
    save: a file for `tilevm replay`, with the graph, the sizes, the inputs as they were before the
        call (but buffers of a module as it left them), and this report, bytecode included. Not of
        what is recorded. What cannot be saved is warned of.
    Raises: CaptureError, if the call runs eagerly: the message is the reason; if it is no function.
    """
    if not callable(function):
        what = f"tilevm.explain of {function!r}, which cannot be called"
        raise CaptureError(describe(what, remedy="Write tilevm.explain(function)(*arguments)."))
    if recorded and save:
        raise CaptureError(describe("what is recorded cannot be saved", remedy="Leave out `save`."))

    def run(*args: Any, **kwargs: Any) -> Explanation | Recording:
        if recorded:
            return _explain_recorded(function, args, kwargs, asm)
        if hasattr(function, "variants") and hasattr(function, "graph"):
            return _explain_kernel(function, args, kwargs, asm, runs, save)
        from tilevm import compile  # which says what to do without torch
        from tilevm.frontends.torch_compile import CompiledModule
        from tilevm.frontends.torch_compiled import Compiled

        made = function if isinstance(function, Compiled | CompiledModule) else compile(function)
        compiled = made._tilevm if isinstance(made, CompiledModule) else made
        return _explain_capture(compiled, args, kwargs, asm, runs, save)

    return run


def _explain_capture(
    compiled: Any, args: Any, kwargs: Any, asm: bool, runs: int, save: str | Path | None
) -> Explanation:
    import torch

    from tilevm.frontends import torch_tree

    leaves: list[Any] = []
    try:
        torch_tree.signature((args, kwargs), leaves, [], {}, {})
    except torch_tree.Unsupported as error:
        what = f"this call of {compiled.title} runs eagerly: {error}"
        remedy = "Give it tensors: torch.from_numpy(x) of an array; tilevm.kernel takes arrays."
        raise CaptureError(describe(what, remedy=remedy)) from None
    before = compiled.leaves(*args, **kwargs) if save else []
    known = [capture.captured.executable for capture in compiled.captures]
    with _profiled(known):
        capture = compiled.find(*args, **kwargs)
        executable = capture.captured.executable
        imported = capture.captured.imported
        if capture.repeatable:
            with compiled.captured(leaves), torch.random.fork_rng(devices=[]):
                profiles = _profiles(executable, lambda: compiled(*args, **kwargs), runs)
            untimed = "" if profiles else UNTIMED
        else:
            once = executable.profile()
            profiles = [] if once is None else [once]
            untimed = "the call changes its arguments, and so was made only once" + (
                ", to capture it" if once is None else ""
            )
    callouts = tuple(CallOut(c.name, c.reason, c.line or "") for c in imported.callouts)
    compiling = (("capture by torch.export, and import", capture.capture_s * 1e6),)
    names = capture.input_names(compiled.leaf_names(*args, **kwargs), compiled.tensor_names())
    found = _explanation(
        compiled.title,
        executable,
        capture.conditions,
        callouts,
        asm,
        compiling,
        profiles,
        untimed,
        names,
    )
    if save:
        _save(save, executable, capture.inputs(before), found)
    return found


def _save(path: str | Path, called: Any, inputs: Sequence[Any], found: Explanation) -> None:
    told = {"explain.txt": found.to_text(limits=False)}
    try:
        archive.save(Path(path), called, inputs, note="tilevm.explain", more=told, runnable=True)
    except (TilevmError, ValueError, OSError) as error:  # the report is there all the same
        warnings.warn(f"the call is not saved in {path}: {error}", stacklevel=4)


def _explain_kernel(
    kernel: Any, args: Any, kwargs: Any, asm: bool, runs: int, save: str | Path | None
) -> Explanation:
    from tilevm.ir.text import to_text

    kernel(*args, **kwargs)
    graph = kernel.graph(*args, **kwargs)
    found = Explanation(kernel.__name__, to_text(graph), ())
    for variant in list(kernel._variants.values()) if hasattr(kernel, "_variants") else ():
        for one in variant if isinstance(variant, list | tuple) else (variant,):
            if one.graph == graph and hasattr(one.run, "steps"):
                guards = tuple(str(guard) for guard in one.guards)
                with _profiled([one.run]):
                    profiles = _profiles(one.run, lambda: kernel(*args, **kwargs), runs)
                untimed = "" if profiles else UNTIMED
                names = [name for name, _ in one.graph.params]
                found = _explanation(
                    kernel.__name__, one.run, guards, (), asm, (), profiles, untimed, names
                )
                break
    if save:
        _save(save, graph, kernel.inputs(*args, **kwargs), found)
    return found


def _explain_recorded(function: Any, args: Any, kwargs: Any, asm: bool) -> Recording:
    from tilevm import fuse
    from tilevm.tools import recording

    title = getattr(function, "__name__", None) or type(function).__name__
    block = fuse()  # the recorder tries itself when it is first needed
    held = []  # what nobody holds is not computed
    watch_segments()
    callers = recording.Callers()
    try:
        with block, callers:
            held.append(function(*args, **kwargs))
    finally:
        runs, eager = watched_segments(assembly=asm)
    callouts = tuple(
        CallOut(name.replace("::", "."), NOT_RECORDED, callers.of_operator(i))
        for i, name in enumerate(eager)
        if name != READS_A_NUMBER  # no work by itself; what it ended says who asked
    )
    runs = [
        (f"{why}{callers.of_segment(i)}", one, profile)
        for i, (why, one, profile) in enumerate(runs)
    ]
    described = {id(one): one for _, one, _ in runs}  # equal segments are one object
    segments = []
    for number, (key, one) in enumerate(described.items()):
        own = [(reason, profile) for reason, other, profile in runs if id(other) == key]
        profiles = [profile for _, profile in own]
        once = "it ran once, and what was new of it was compiled meanwhile"
        explanation = _assembled(
            f"{title}, segment {number}",
            one,
            profiles=tuple(profiles[1:] or profiles),
            untimed="" if len(profiles) > 1 else once,
        )
        segments.append(Segment(dict(Counter(reason for reason, _ in own)), explanation))
    return Recording(title, tuple(segments), callouts)


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
            profile = executable.profile()
            if profile is None:  # another program ran, or none
                break
            found.append(profile)
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
    names: Sequence[str],
) -> Explanation:
    if not hasattr(executable, "steps"):
        raise CaptureError(f"{title} runs on the reference, which has no kernels")
    lower_us, fuse_us = executable.lower_us, executable.fuse_us
    return _assembled(
        title,
        executable.explained(asm),
        guards=guards,
        callouts=(*callouts, *_products(executable, callouts)),
        compiling=(
            *compiling,
            ("lower", lower_us),
            ("fuse", fuse_us),
            ("host program", executable.compile_us - lower_us - fuse_us),
        ),
        profiles=tuple(profiles),
        untimed=untimed,
        names=names,
    )


def _assembled(
    title: str,
    described: Mapping[str, Any],
    *,
    guards: tuple[str, ...] = (),
    callouts: tuple[CallOut, ...] = (),
    compiling: tuple[tuple[str, float], ...] = (),
    profiles: tuple[dict[str, Any], ...] = (),
    untimed: str = "",
    names: Sequence[str] = (),
) -> Explanation:
    """What the core describes, with what Python knows of it."""
    variants = [v for kernel in described["kernels"] for v in kernel["variants"]]
    operators = explain_data.operators(described)
    parts = []
    for i, part in enumerate(described["parts"]):
        does = f"{described['steps'][part['step']]['name']}, {part['does']}"
        own = tuple(p["parts"][i] for p in profiles if p["parts"][i] is not None)
        skipped = "" if own or not profiles else "it did not run"
        known = {step["name"] for step in part["steps"] if step["kind"] == "call"}
        called = tuple(c for c in callouts if c.name in known)
        explanation = _assembled(
            f"{title}: {does}", part, callouts=called, profiles=own, untimed=skipped
        )
        parts.append(Part(part["step"], part["does"], explanation))
    return Explanation(
        title=title,
        graph=described["graph"],
        guards=guards,
        steps=tuple(described["steps"]),
        kernels=tuple(described["kernels"]),
        callouts=callouts,
        operators=operators,
        decisions=explain_data.decisions(described, operators),
        interface=described["interface"],
        names=tuple(names),
        memory=described["memory"],
        symbols=tuple(described["symbols"]),
        compiling=(*compiling, ("encode and emit", sum(v["compile_us"] for v in variants))),
        profiles=profiles,
        untimed=untimed,
        parts=tuple(parts),
    )

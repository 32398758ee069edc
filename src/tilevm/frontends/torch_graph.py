"""The door `torch.compile(model, backend="tilevm")`, and the home of `tilevm.compile`."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.fx
from torch._dynamo.exc import RestartAnalysis
from torch.fx.experimental.proxy_tensor import make_fx

from tilevm.config import config
from tilevm.errors import TilevmError
from tilevm.frontends import (
    torch_gradients,
    torch_in_place,
    torch_memory,
    torch_norms,
    torch_program,
)
from tilevm.frontends.captures import capturing
from tilevm.frontends.torch_compile import check_freeze, compile
from tilevm.frontends.torch_decompose import foreach
from tilevm.frontends.torch_program import Captured
from tilevm.frontends.torch_recurrent import CELLS
from tilevm.runtime.program import check_knobs
from tilevm.stats import stats

Compiled = Callable[..., Any]


def backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Compiled:
    """Compile a graph of Dynamo; the entry point of the backend "tilevm".

    `mode` is one of torch.compile's and changes nothing; `options` are knobs of
    `tilevm.config` for this graph alone: tier, threads, verify; and `freeze`, as for
    `tilevm.compile`.
    A graph that cannot be imported runs eagerly, counted under `flushes` with the reason.
    """
    knobs, freeze = _knobs(mode, options)
    given, kept = _with_attributes_given(gm)
    placeholders = given.graph.find_nodes(op="placeholder")
    fakes = [node.meta.get("example_value") for node in placeholders]
    try:
        if not _needs_gradients(gm, fakes) and not _differentiates(gm):
            try:
                captured = capture(given, fakes, knobs, freeze=freeze)
                run = torch_program.or_eager(captured, given)
                return (lambda *args: run(*args, *kept)) if kept else run
            except torch_program.Mutates:
                pass  # AOTAutograd copies results back, for whatever shares memory
        return _through_autograd(gm, example_inputs, knobs)
    except RestartAnalysis:
        raise  # Dynamo asks itself to trace again
    except Exception as reason:
        if config.debug:
            raise
        stats.add("flushes", f"eager: {torch_program.reason_of(reason)}")
        return gm.forward


def _with_attributes_given(gm: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The graph with the tensors that it holds as further inputs, and these tensors.

    They are what Dynamo takes to stay where it is, and graphs may write: parameters that an
    optimiser changes, and its state.
    """
    held = {
        str(node.target): operator.attrgetter(str(node.target))(gm)
        for node in gm.graph.find_nodes(op="get_attr")
    }
    held = {name: value for name, value in held.items() if isinstance(value, torch.Tensor)}
    if not held:
        return gm, []
    given = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
    first = next(n for n in given.graph.nodes if n.op != "placeholder")
    inputs: dict[str, torch.fx.Node] = {}
    for i, name in enumerate(held):
        with given.graph.inserting_before(first):
            inputs[name] = given.graph.placeholder(f"held_{i}")
    for node in given.graph.find_nodes(op="get_attr"):
        if str(node.target) in inputs:
            inputs[str(node.target)].meta.update(node.meta)
            node.replace_all_uses_with(inputs[str(node.target)])
            given.graph.erase_node(node)
    given.recompile()
    return given, list(held.values())


def capture(
    gm: torch.fx.GraphModule, fakes: Sequence[Any], knobs: dict[str, Any], *, freeze: bool = False
) -> Captured:
    """Dynamo's graph as a program, without AOTAutograd. Raises: Refused.

    freeze: what is a module's does not change.
    """
    with capturing("a graph of torch.compile"):
        traced = to_aten(gm, fakes)
        if any("_foreach_" in getattr(n.target, "__name__", "") for n in gm.graph.nodes):
            gm = traced  # where each tensor of a list is changed by itself
        torch_memory.check_in_place(traced.graph)
        frozen = _owned_by_modules(gm) if freeze else None
        if following := torch_norms.follows(traced.graph):
            gm = traced = to_aten(traced, fakes, more=following)  # which says what it changes
        try:
            return torch_program.build(traced.graph, fakes, knobs, frozen=frozen)
        except torch_program.Mutates:
            torch_in_place.check(traced.graph)
            traced = to_aten(gm, fakes, functional=True)
            return torch_in_place.capture(traced.graph, fakes, knobs)


def _owned_by_modules(gm: torch.fx.GraphModule) -> set[int]:
    """Inputs that Dynamo found in modules: parameters, buffers and other attributes."""
    return {
        i
        for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))
        if "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {})
    }


@functools.cache
def _decomposed() -> dict[Any, Callable[..., Any]]:
    """Operators that change lists of tensors, and recurrent cells: as what they consist of."""
    cells = {getattr(torch.ops.aten, name).default: cell for name, cell in CELLS.items()}
    changing = {target: each for target, each in foreach().items() if target._schema.is_mutable}
    return cells | changing


def to_aten(
    gm: torch.fx.GraphModule,
    fakes: Sequence[Any],
    *,
    functional: bool = False,
    more: Mapping[Any, Callable[..., Any]] | None = None,
) -> torch.fx.GraphModule:
    """A graph of torch functions as ATen operators, composite ones whole, for these FakeTensors.

    functional: nothing is changed in place, but inputs at the end; composite ones are not whole.
    more: what else stands for the operators it consists of.
    """
    mode = next((f.fake_mode for f in fakes if hasattr(f, "fake_mode")), None)
    mode = mode or torch._guards.detect_fake_mode()  # of Dynamo, if no input is a tensor
    # Autocast is resolved below the level at which composite operators are still whole, and so are
    # transforms of torch.func.
    below = torch.is_autocast_enabled("cpu") or any(
        name in ("_enter_autocast", "wrap_with_autocast", "_vmap_increment_nesting")
        for name in _functions_of(gm)
    )
    run: Callable[..., Any] = torch.fx.Interpreter(gm).run
    decompositions = _decomposed() | dict(more or {})
    if functional:
        run = torch.func.functionalize(run, remove="mutations")
        decompositions = decompositions | torch_gradients.decompositions()
    with mode or nullcontext(), torch.no_grad(), torch.fx.traceback.preserve_node_meta():
        trace = make_fx(
            run,
            decomposition_table=decompositions,
            tracing_mode="real",
            pre_dispatch=not (below or functional),
            _allow_non_fake_inputs=True,
        )
        return trace(*fakes)


def _needs_gradients(gm: torch.fx.GraphModule, fakes: Sequence[Any]) -> bool:
    required = any(isinstance(f, torch.Tensor) and f.requires_grad for f in fakes)
    enables = any(
        node.target is torch._C._set_grad_enabled and node.args[0] for node in gm.graph.nodes
    )
    return required and (torch.is_grad_enabled() or enables)


def _functions_of(gm: torch.fx.GraphModule) -> Iterator[str]:
    """Names of what it and the graphs within it call."""
    for module in gm.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                yield getattr(node.target, "__name__", "")


def _differentiates(gm: torch.fx.GraphModule) -> bool:
    """Whether the graph has transforms of torch.func that take derivatives."""
    names = ("_grad_increment_nesting", "_jvp_increment_nesting", "_enter_dual_level")
    return any(name in names for name in _functions_of(gm))


def _through_autograd(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], knobs: dict[str, Any]
) -> Compiled:
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func

    def lower(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        # Boxed: a list of arguments, which it empties, so that memory is free as soon as it can be.
        return make_boxed_func(torch_program.compile_aten(graph, knobs))

    def forward(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        # What comes behind the function's own results is for the gradient's graph, in any layout.
        context = torch._guards.TracingContext.try_get()
        seen = context.fw_metadata if context else None
        own = seen.num_forward_returns if seen else None
        # A gradient's graph writes nothing that it is given: it may be asked for again.
        if seen and seen.bw_donated_idxs:
            seen.bw_donated_idxs.clear()
        return make_boxed_func(torch_program.compile_aten(graph, knobs, own))

    with capturing("a graph of torch.compile, through AOTAutograd"):
        compiled: Compiled = aot_autograd(
            fw_compiler=forward,
            bw_compiler=lower,
            inference_compiler=lower,
            decompositions=torch_gradients.decompositions(),
        )(gm, list(example_inputs))
        return compiled


_MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def _knobs(mode: str | None, options: dict[str, Any] | None) -> tuple[dict[str, Any], bool]:
    """Knobs, and whether to freeze."""
    source = 'torch.compile(backend="tilevm")'
    if mode not in _MODES:
        raise ValueError(f"{source}: mode is {mode!r}, which is not one of: {_MODES[1:]}")
    knobs = dict(options or {})
    freeze = check_freeze(knobs.pop("freeze", False), source)
    return check_knobs(config.checked_local(knobs, source, ("freeze",)), source), freeze


__all__ = ["TilevmError", "backend", "capture", "compile", "to_aten"]

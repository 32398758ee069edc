"""One capture: torch.export of a call with symbolic sizes, tried until its guards hold for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.fx.experimental._config as symbolic_config
from torch import nn
from torch.export import Dim as ExportDim
from torch.fx import proxy
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from tilevm.frontends import (
    torch_decompose,
    torch_dims,
    torch_memory,
    torch_norms,
    torch_outside,
    torch_products,
    torch_regions,
    torch_sizes,
    torch_strides,
    torch_tracing,
    torch_tree,
)
from tilevm.frontends.torch_assemble import Capture, assemble
from tilevm.frontends.torch_conditions import Condition, predicate
from tilevm.frontends.torch_data import UsedInPython
from tilevm.frontends.torch_differentiate import Transforms, asked_for_gradients
from tilevm.frontends.torch_effects import Draws, Effects
from tilevm.frontends.torch_exported import Call, Plan
from tilevm.frontends.torch_memory import OfEager, Refused, check_functional
from tilevm.frontends.torch_outside import Outside
from tilevm.frontends.torch_program import Mutates
from tilevm.frontends.torch_surroundings import functions_of
from tilevm.ir.types import Dim


class NoArguments(Refused):
    """There is nothing that a capture would be a function of."""


def capture(
    fn: Callable[..., Any],
    modules: Mapping[str, nn.Module],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    dims: torch_dims.Dims | None,
    knobs: dict[str, Any],
    freeze: bool = False,
    gradients: bool = False,
) -> Capture:
    """Capture `fn(*args, **kwargs)` for all sizes that take the same branches.

    freeze: parameters, buffers and constants that it does not change keep their elements.
    gradients: results can be differentiated.

    Raises: ShapeError, if a size contradicts `dims`; anything else, if `fn` cannot be captured.
    """
    leaves: list[Any] = []
    tree = torch_tree.flatten((tuple(args), dict(kwargs)), leaves, shared={})
    if not leaves:
        raise NoArguments("the call has no tensors or numbers")
    facts = torch_dims.facts_of(fn, args, kwargs, dims, leaves)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu":
            raise Refused(f"an argument is on {leaf.device.type}")
    small = frozenset(
        (index, axis)
        for index, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor)
        for axis, size in enumerate(leaf.shape)
        if size < 2
    )
    numbers = any(not isinstance(x, torch.Tensor) for x in leaves)
    outside = Outside(fn, modules)
    plans = [Plan(frozenset(), True)]
    tried: set[Plan] = set()
    first: Exception | None = None
    found: Capture | None = None
    while plans:
        plan = plans.pop(0)
        if plan in tried:
            continue
        tried.add(plan)
        try:
            call = Call(fn, modules, tree, leaves, outside, plan.conversions, gradients)
            made, conditions = _attempt(call, plan, facts, knobs, freeze)
        except Exception as error:
            if call.seen.missed:
                outside.learn(call.seen.missed)
                tried.remove(plan)
                plans.insert(0, plan)
                continue
            if call.seen.transforms:  # Dynamo traces what is inside
                raise Transforms("the function has transforms of torch.func") from error
            if isinstance(error, Effects):
                raise
            if found is not None:
                return found
            if isinstance(error, torch_tracing.OtherBranch):
                plans += _fixing(plan, error.about)
                continue
            if first is None or isinstance(error, OfEager):  # which says how to run
                first = error
            plans.append(replace(plan, positive=True))
            if isinstance(error, GuardOnDataDependentSymNode):
                # PyTorch then takes for granted that sizes are 2 or more, unless they are fixed.
                plans.insert(0, replace(plan, fixed=small, oblivious=False))
            elif call.seen.converts:  # to what needs plain numbers
                plans.append(replace(plan, conversions=False))
        else:
            failing = [c for c in conditions if not _holds(c, made.binds, leaves)]
            if found is not None:
                return found if failing or len(made.pinned) >= len(found.pinned) else made
            if not failing and made.pinned and not plan.positive:
                # As x[:1] + x[mask]: the rows of one must be those of the other, unless one is 1.
                found = made
                plans.insert(0, replace(plan, positive=True))
                continue
            if not failing:
                return made
            plans += _fixing(plan, frozenset(p for c in failing for p in c.about) & small)
        plans += [replace(plan, fixed=small)] if small else []
        plans += [Plan(frozenset(), False), Plan(small, False)] if numbers else []
    raise first or Refused("no capture whose guards hold for the sizes of its own call")


def _fixing(plan: Plan, about: frozenset[tuple[int, int]]) -> list[Plan]:
    """What to try where guards fail: sizes of 0 and 1 that these are about stay what they are."""
    return [replace(plan, fixed=plan.fixed | about), replace(plan, unify=False)]


def _holds(condition: Condition, binds: tuple[str, ...], leaves: list[Any]) -> bool:
    return bool(predicate([condition], binds)(leaves))


def _attempt(
    call: Call,
    plan: Plan,
    facts: dict[tuple[int, int], Dim],
    knobs: dict[str, Any],
    freeze: bool,
) -> tuple[Capture, list[Condition]]:
    leaves = call.constants
    taken = {n for x in leaves if isinstance(x, torch.Tensor) for n in x.shape}
    stand_ins = {n: next(h for h in _STAND_INS[n] if h not in taken) for n in (0, 1)}
    examples: list[Any] = []
    shapes: list[Any] = []
    first = torch_memory.first_of(leaves)
    sharing = torch_memory.share_memory(leaves)
    for index, leaf in enumerate(leaves):
        if first[index] != index:
            continue
        if isinstance(leaf, torch.Tensor):
            fixed = {axis for at, axis in plan.fixed if at == index}
            example, dynamic = _example(leaf, stand_ins, fixed, sharing)
        elif not plan.numbers or (type(leaf) is int and leaf < 0):
            continue
        elif type(leaf) is float:
            example, dynamic = torch.zeros((), dtype=torch.float64), None
        else:
            example, dynamic = leaf, ExportDim.AUTO
        call.given.append((index, type(leaf) is float))
        examples.append(example)
        shapes.append(dynamic)
    settings: Any = symbolic_config
    oblivious = settings.patch(
        backed_size_oblivious=plan.oblivious, soft_pending_unbacked_not_found_error=True
    )
    from_zero = nullcontext() if plan.positive else torch_tracing.sizes_from_zero()
    # Export keeps stack frames of methods called `forward`, and of functions registered so.
    modules = list(call.modules())[1:]
    for function in functions_of(call.function, modules):
        proxy._register_stack_trace_anchor(function)
    kept = torch_tracing.containers_kept(modules)
    has_grad = torch.is_grad_enabled()
    tracing = torch_tracing.export(modules)
    orders, strides = torch_strides.by_example(), torch_strides.of_elements()
    with (
        tracing, from_zero, oblivious, kept, orders, strides,
        torch.set_grad_enabled(call.gradients),
        asked_for_gradients(has_grad and not call.gradients),
    ):  # fmt: skip
        varying = {"traced": tuple(shapes)} if shapes else None
        program = torch.export.export(call, tuple(examples), dynamic_shapes=varying, strict=False)
        torch_regions.check(
            program.graph_module, has_grad, call.seen.wants_gradients, call.gradients
        )
        try:
            return _checked(call, program, plan, facts, knobs, freeze)
        finally:
            torch_sizes.let_go(program.graph)


def _checked(
    call: Call,
    program: Any,
    plan: Plan,
    facts: dict[tuple[int, int], Dim],
    knobs: dict[str, Any],
    freeze: bool,
) -> tuple[Capture, list[Condition]]:
    """Compile the exported program, if it does all that the function does."""
    if call.seen.changed:
        kind = Draws if call.seen.draws else Effects
        raise kind(f"the function changes {call.seen.changed}, which outlives the call")
    call.seen.made.check()
    if call.seen.compares_identity and call.seen.reads_items:
        raise UsedInPython("`is True` may be asked of what data decide")
    if call.seen.data and torch_memory.changed_memory(program.graph):
        raise Refused("`data` is read where tensors are changed: writes to it have no version")
    if not call.gradients:
        torch_regions.inline(program.graph_module)
    torch_decompose.one_by_one(program.graph)
    torch_memory.check_in_place(program.graph)
    if call.gradients:
        torch_products.check_addends(program.graph)
    torch_outside.check_constants(program)
    call.seen.strides |= torch_strides.has_strides(program.graph)
    following = torch_norms.follows(program.graph)
    try:
        if following and not call.gradients:
            raise Mutates("running statistics are changed in place")
        return assemble(call, program, plan, facts, knobs, freeze)
    except Mutates:
        check_functional(program.graph)
        kept = torch_memory.changed_inputs(program.graph)
        program = program.run_decompositions(following)
        return assemble(call, program, plan, facts, knobs, freeze, kept)


# What stands for a size of 0 or 1 while capturing: unusual sizes, so that no branch expects them.
_STAND_INS = {1: (7, 11, 13, 17, 19, 23, 29, 31, 37, 41), 0: (43, 47, 53, 59, 61, 67, 71, 73, 79)}


def _example(
    leaf: torch.Tensor, stand_ins: Mapping[int, int], fixed: set[int], sharing: bool
) -> tuple[torch.Tensor, Any]:
    """A tensor laid out as `leaf` with other sizes for 0 and 1, and what export may vary."""
    sizes = [n if d in fixed else stand_ins.get(n, n) for d, n in enumerate(leaf.shape)]
    dynamic = {d: ExportDim.STATIC if d in fixed else ExportDim.AUTO for d in range(leaf.dim())}
    if sizes == list(leaf.shape) and not sharing:
        return leaf.detach(), dynamic
    if leaf.is_contiguous():
        return torch.empty(sizes, dtype=leaf.dtype), dynamic
    strides = list(leaf.stride())
    least = 1
    for d in reversed([d for d in torch_tree.layout(leaf) if d >= 0]):
        strides[d] = max(strides[d], least)
        least = strides[d] * max(sizes[d], 1)
    return torch.empty_strided(sizes, strides, dtype=leaf.dtype), dynamic

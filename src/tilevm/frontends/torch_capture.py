"""One capture: torch.export of a call with symbolic sizes, guards, and what runs instead."""

from __future__ import annotations

import linecache
import math
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import torch
import torch.fx.experimental._config as symbolic_config
from torch import nn
from torch.export import Dim as ExportDim
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import proxy
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from tilevm.frontends import (
    torch_dims,
    torch_effects,
    torch_memory,
    torch_norms,
    torch_outside,
    torch_program,
    torch_sizes,
    torch_strides,
    torch_tracing,
    torch_tree,
)
from tilevm.frontends.torch_effects import Effects
from tilevm.frontends.torch_memory import Refused, View, check_functional
from tilevm.frontends.torch_outside import Outside
from tilevm.frontends.torch_program import Captured, FloatInput, Mutates
from tilevm.frontends.torch_sizes import Sizes
from tilevm.frontends.torch_state import State
from tilevm.frontends.torch_tree import Branch, Constant, Leaf, Tree
from tilevm.ir.types import Dim


@dataclass(frozen=True)
class Direct:
    """How the core runs a capture without Python: what `add_variant` takes."""

    inputs: tuple[int, ...]  # of the executable: a leaf, or ~index of a bound tensor
    outputs: tuple[int, ...]
    result: str


@dataclass
class Capture:
    """A compiled call. `holds(leaves)`: whether it may run for a call with these leaves."""

    holds: Callable[[Sequence[Any]], bool]
    run: Callable[[Sequence[Any], Any, Any], Any]
    conditions: tuple[str, ...]
    captured: Captured
    bound: tuple[torch.Tensor, ...]
    binds: tuple[str, ...]  # Python statements that bind the symbols of the guards
    sources: tuple[str, ...]  # Python source of each condition
    direct: Direct | None  # None: Python runs around the executable
    given: Callable[[Sequence[Any]], tuple[Any, ...]]  # the graph's inputs, from the leaves
    writes_memory: bool = False  # so arguments must not share any
    repeatable: bool = True  # a call changes nothing but its results
    capture_s: float = 0.0  # what making this took
    settled: bool = False  # the core has a variant for it, or cannot have one
    frozen: bool = False  # elements of bound tensors may be packed
    updates: int = 0  # of the state that `bound` is of
    _bound_types: tuple[Any, ...] = ()
    _places: tuple[tuple[Any, ...], ...] = ()  # of each bound tensor, where the state has it

    def __post_init__(self) -> None:
        self._bound_types = tuple((t.dtype, tuple(t.shape)) for t in self.bound)

    def found_in(self, state: State) -> None:
        """Remember where the bound tensors are, so that others there can take their place."""
        at: dict[int, list[Any]] = {}
        for place, tensor in state.tensors.items():
            at.setdefault(id(tensor), []).append(place)
        self.updates = state.updates
        self._places = tuple(tuple(at.get(id(t), ())) for t in self.bound)

    def follow(self, state: State) -> bool:
        """Bind the tensors that are there now. False: another capture is needed."""
        bound: list[torch.Tensor] = []
        for tensor, places in zip(self.bound, self._places, strict=True):
            now = {id(t): t for p in places if (t := state.tensors.get(p)) is not None}
            if places and len(now) != 1:
                return False
            bound.append(next(iter(now.values()), tensor))
        same = all(a is b for a, b in zip(bound, self.bound, strict=True))
        if self.frozen and not same:
            return False
        self.updates, self.bound = state.updates, tuple(bound)
        for function in (self.run, self.given):
            function.__globals__.update({f"b{i}": t for i, t in enumerate(bound)})
        return True

    @property
    def pinned(self) -> list[str]:
        """Equalities of sizes of data that calls check."""
        return self.captured.imported.pinned

    @property
    def may_draw_twice(self) -> bool:
        """Whether a call may fail, to run eagerly, after it has drawn random numbers."""
        imported = self.captured.imported
        return imported.draws and imported.brings

    def fits(self) -> bool:
        """Whether parameters and buffers still have the types of the capture."""
        return self._bound_types == tuple((t.dtype, tuple(t.shape)) for t in self.bound)

    def may_run(self, leaves: Sequence[Any]) -> bool:
        """Whether nothing that the call changes is seen under another name."""
        return not (self.writes_memory and torch_memory.share_memory(leaves, self.bound))

    def inputs(self, leaves: Sequence[Any]) -> list[Any]:
        """What the executable is called with."""
        return self.captured.given(self.given(leaves))

    def holds_safely(self, leaves: Sequence[Any]) -> bool:
        """`holds`, for leaves that may be of another key."""
        try:
            return self.holds(leaves)
        except (AttributeError, IndexError, TypeError, ValueError):
            return False

    def describe(self) -> str:
        """The guards, for people."""
        return " and ".join(self.conditions) or "any sizes"


@dataclass(frozen=True)
class Plan:
    """How one attempt treats what is special.

    fixed: (leaf, axis) of sizes 0 and 1 that stay what they are. numbers: whether they may vary.
    unify: whether guards may make sizes equal that are equal in this call. positive: whether a
    guard excludes sizes of 0, which lets PyTorch know that x[:1] has a size of 1. oblivious:
    whether questions that sizes do not decide have an answer that is right for most: x[:n] is then
    as long as the data say; else a guard says that n is no more than x.shape[0].
    """

    fixed: frozenset[tuple[int, int]]
    numbers: bool
    unify: bool = True
    positive: bool = False
    oblivious: bool = True


@dataclass(frozen=True)
class Condition:
    """A guard: Python source over the leaves `l`, text for people, and the sizes it is about."""

    source: str
    text: str
    about: frozenset[tuple[int, int]] = frozenset()


class _Seen:
    """What a trace found: export puts attributes of a module back as they were."""

    result: Any = None
    writes: list[tuple[Any, Branch]]
    changed: str = ""  # what the function changed besides its arguments
    made: torch_effects.Made
    strides: bool = False  # whether it read strides of tensors
    missed: Sequence[torch.Tensor] = ()  # that it needs and has not


class _Call(nn.Module):
    """What is exported: the function over leaves. Keeps the structure of the result."""

    function: Callable[..., Any]
    tree: Tree
    constants: list[Any]
    given: list[tuple[int, bool]]  # per traced leaf: its index, and whether it is a float
    held: dict[int, str]  # names of parameters and buffers, by id
    outside: Outside
    seen: _Seen

    def __init__(
        self,
        fn: Callable[..., Any],
        modules: Mapping[str, nn.Module],
        tree: Tree,
        leaves: list[Any],
        outside: Outside,
    ) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(f"m_{name}", module)
        outside.register(self)
        self.__dict__["held"] = {id(t): name for name, t in self._held()}
        self.__dict__["outside"] = outside
        self.__dict__["function"] = fn
        self.__dict__["tree"] = tree
        self.__dict__["constants"] = leaves
        self.__dict__["given"] = []
        self.__dict__["seen"] = _Seen()

    def forward(self, *traced: Any) -> tuple[Any, ...]:
        leaves = list(self.constants)
        for (index, is_float), value in zip(self.given, traced, strict=True):
            leaves[index] = torch_tracing.number(value.item() if is_float else value)
        leaves = [leaves[first] for first in torch_memory.first_of(self.constants)]
        args, kwargs = torch_tree.build(self.tree, leaves)
        before: dict[tuple[Any, ...], Any] = dict(torch_tree.containers((args, kwargs)))
        known = {id(value): path for path, value in before.items() if path}
        state = {path: _shallow(value) for path, value in before.items()}
        around = torch_effects.Before(self.function, list(self.modules())[1:])
        now = dict(self._held())
        outside = self.outside.traced({at: now[name] for at, name in self.held.items()})
        self.seen.missed = outside.missed
        try:
            with torch_tracing.no_seeds(), torch_strides.reads() as reads, outside:
                result = self.function(*args, **kwargs)
        finally:
            self.seen.changed = around.undo(outside.known())
        out: list[Any] = []
        tree = torch_tree.flatten(result, out, known)
        _refuse_hidden(tree)
        writes = []
        for path, value in before.items():
            if not path or _shallow_equal(_shallow(value), state[path]):
                continue
            _, keys, children = torch_tree.parts(value) or ("", (), ())
            inner = {k: v for k, v in known.items() if v != path}
            built = tuple(torch_tree.flatten(child, out, inner) for child in children)
            kind = (torch_tree.parts(value) or ("",))[0]
            writes.append((path, Branch(kind, type(value), keys, built)))
        self.seen.result, self.seen.writes = tree, writes
        self.seen.strides = reads.any
        given = (*traced, *self.parameters(), *self.buffers())
        self.seen.made = torch_effects.Made(given)
        out = [outside.stand_in(value) for value in out]
        if outside.missed:
            raise Refused("the function has tensors that no argument brings")
        return tuple(out)

    def _held(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.named_parameters()
        yield from self.named_buffers()


def _refuse_hidden(tree: Tree) -> None:
    """Raise Refused where a result may hold tensors that were not found: a generator, a set."""
    if isinstance(tree, Branch):
        for child in tree.children:
            _refuse_hidden(child)
    elif isinstance(tree, Constant):
        value = tree.value
        plain = isinstance(value, torch_tree.ATOMS) or not isinstance(value, Iterable)
        if not plain or isinstance(value, FunctionType):
            raise Refused(f"a result is a {type(value).__name__}")


def _shallow(value: Any) -> tuple[Any, ...]:
    _, keys, children = torch_tree.parts(value) or ("", (), ())
    return (keys, children)


def _shallow_equal(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return (
        a[0] == b[0]
        and len(a[1]) == len(b[1])
        and all(x is y for x, y in zip(a[1], b[1], strict=True))
    )


def capture(
    fn: Callable[..., Any],
    modules: Mapping[str, nn.Module],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    dims: torch_dims.Dims | None,
    knobs: dict[str, Any],
    freeze: bool = False,
) -> Capture:
    """Capture `fn(*args, **kwargs)` for all sizes that take the same branches.

    freeze: parameters, buffers and constants that it does not change keep their elements.

    Raises: ShapeError, if a size contradicts `dims`; anything else, if `fn` cannot be captured.
    """
    leaves: list[Any] = []
    tree = torch_tree.flatten((tuple(args), dict(kwargs)), leaves)
    if not leaves:
        raise Refused("the call has no tensors or numbers")
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
            call = _Call(fn, modules, tree, leaves, outside)
            made, conditions = _attempt(call, plan, facts, knobs, freeze)
        except Exception as error:
            if call.seen.missed:
                outside.learn(call.seen.missed)
                tried.remove(plan)
                plans.insert(0, plan)
                continue
            if isinstance(error, Effects):
                raise
            first = first or error
            if found is not None:
                return found
            plans.append(replace(plan, positive=True))
            if isinstance(error, GuardOnDataDependentSymNode):
                # PyTorch then takes for granted that sizes are 2 or more, unless they are fixed.
                plans.insert(0, replace(plan, fixed=small, oblivious=False))
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
            # Fix only what the guards that fail are about.
            about = frozenset(place for c in failing for place in c.about) & small
            plans.append(replace(plan, fixed=plan.fixed | about))
            plans.append(replace(plan, unify=False))
        plans += [replace(plan, fixed=small)] if small else []
        plans += [Plan(frozenset(), False), Plan(small, False)] if numbers else []
    raise first or Refused("no capture whose guards hold for the sizes of its own call")


def _holds(condition: Condition, binds: tuple[str, ...], leaves: list[Any]) -> bool:
    return bool(_predicate([condition], binds)(leaves))


def _predicate(conditions: Sequence[Condition], binds: Sequence[str]) -> Any:
    """`holds(leaves)`: whether all conditions do."""
    test = " and ".join(c.source for c in conditions) or "True"
    used = [line for line in binds if re.search(rf"\b{line.partition(' ')[0]}\b", test)]
    lines = [*used, f"return {test}"]
    if "//" in test or "%" in test:
        body = [f"  {line}" for line in lines]
        lines = ["try:", *body, "except ZeroDivisionError:", "  return False"]
    return _function("holds(l)", lines, {"math": math})


def _attempt(
    call: _Call,
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
    proxy._register_stack_trace_anchor(getattr(call.function, "__func__", call.function))
    kept = torch_tracing.containers_kept(list(call.modules())[1:])
    with torch_tracing.export(), from_zero, oblivious, kept, torch.no_grad():
        varying = {"traced": tuple(shapes)} if shapes else None
        program = torch.export.export(call, tuple(examples), dynamic_shapes=varying, strict=False)
        try:
            return _checked(call, program, leaves, plan, facts, knobs, freeze)
        finally:
            torch_sizes.let_go(program.graph)


def _checked(
    call: _Call,
    program: Any,
    leaves: list[Any],
    plan: Plan,
    facts: dict[tuple[int, int], Dim],
    knobs: dict[str, Any],
    freeze: bool,
) -> tuple[Capture, list[Condition]]:
    """Compile the exported program, if it does all that the function does."""
    result, writes = call.seen.result, call.seen.writes
    if call.seen.changed:
        raise Effects(f"the function changes {call.seen.changed}, which outlives the call")
    call.seen.made.check()
    torch_memory.check_in_place(program.graph)
    torch_outside.check_constants(program)
    call.seen.strides |= torch_strides.has_strides(program.graph)
    following = torch_norms.follows(program.graph)
    try:
        if following:
            raise Mutates("running statistics are changed in place")
        return _finish(call, program, result, writes, leaves, plan, facts, knobs, freeze)
    except Mutates:
        check_functional(program.graph)
        kept = torch_memory.changed_inputs(program.graph)
        program = program.run_decompositions(following)
        return _finish(call, program, result, writes, leaves, plan, facts, knobs, freeze, kept)


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


def _finish(
    call: _Call,
    program: Any,
    result: Tree,
    writes: list[tuple[Any, Branch]],
    leaves: list[Any],
    plan: Plan,
    facts: dict[tuple[int, int], Dim],
    knobs: dict[str, Any],
    freeze: bool,
    kept: Mapping[int, str] | None = None,
) -> tuple[Capture, list[Condition]]:
    """Compile the exported program, and write what runs around it.

    kept: results that are an input itself, which the function changes: their index, its name.
    """
    signature = program.graph_signature
    _forget_unused(program)
    placeholders = program.graph.find_nodes(op="placeholder")
    bound: list[torch.Tensor] = []
    inputs: list[Any] = []
    names: list[str] = []
    tensors: dict[str, str] = {}  # parameter or buffer -> its name in the wrapper
    users = iter(call.given)
    places: dict[int, int] = {}  # input of the program -> leaf
    by_name: dict[str, str] = {}
    known_as: dict[str, str] = {}  # placeholder -> its name in the wrapper
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        value = node.meta.get("val")
        if spec.kind is InputKind.USER_INPUT:
            index, is_float = next(users)
            places[len(inputs)] = index
            inputs.append(FloatInput() if is_float else value)
            names.append(f"l[{index}]")
            by_name[spec.arg.name] = known_as[node.name] = f"l[{index}]"
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            tensors[spec.target] = known_as[node.name] = f"b{len(bound)}"
            names.append(f"b{len(bound)}")
            bound.append(_tensor(call, program, spec))
            inputs.append(value)
        else:
            raise Refused(f"the graph has an input of kind {spec.kind.name}")
    known = {
        (place, axis): dim
        for place, index in places.items()
        for (leaf, axis), dim in facts.items()
        if leaf == index
    }
    changed: dict[int, str] = {}  # results that the function writes to an input: their index
    for position, spec in enumerate(signature.output_specs):
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
            changed[position] = tensors[spec.target]
            _refuse_overlap(bound[int(tensors[spec.target][1:])])
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            changed[position] = by_name[spec.target]
            _refuse_overlap(leaves[int(by_name[spec.target][2:-1])])
    captured = torch_program.build(
        program.graph,
        inputs,
        knobs,
        own_guards=plan.unify,
        facts=known,
        frozen=_unchanged(signature, names, tensors, bound) if freeze else None,
        writes={position: names.index(name) for position, name in changed.items()},
    )
    conditions = _conditions(captured.sizes, inputs, places, leaves, call, captured, plan)
    constants: dict[str, Any] = {
        "inner": captured.run,
        "math": math,
        "changed": torch_memory.note_changes,
    }
    constants |= {f"b{i}": t for i, t in enumerate(bound)}
    outputs: list[str] = []
    writes_memory = False
    lines = [f"o = inner({', '.join(names)})"]
    for position, spec in enumerate(signature.output_specs):
        text = f"o[{position}]"
        if spec.kind is OutputKind.USER_OUTPUT:
            source = (kept or {}).get(len(outputs))
            outputs.append(text if source is None else known_as[source])
            continue
        if isinstance(captured.imported.outputs[position], View):
            raise Refused("an input becomes a view of another")
        name = changed.get(position)
        if name is None:
            raise Refused(f"the graph has an output of kind {spec.kind.name}")
        result_of = captured.imported.outputs[position]
        if type(result_of) is int and captured.imported.written[result_of] >= 0:
            # That its memory is asked for ends what it shares until somebody writes.
            lines.insert(0, f"{name}.data_ptr()")
            lines.append(f"changed([{name}])")
        else:
            lines.append(f"{name}.copy_({text})")
        writes_memory = True
    built = torch_tree.source(result, lambda i: outputs[i], constants, "(args, kwargs)")
    lines.append(f"r = {built}")
    for path, tree in writes:
        target = "(args, kwargs)" + "".join(torch_tree.step_source(k, n) for k, n in path)
        lines += _write(target, tree, outputs, constants)
    lines.append("return r")
    if lines[-2] == f"r = {built}":
        lines[-2:] = [f"return {built}"]
    run = _function("run(l, args, kwargs)", lines, constants)
    binds = tuple(
        f"{symbol} = l[{places[i]}]" + (f".shape[{d}]" if d >= 0 else "")
        for symbol, i, d in captured.sizes.sources
        if i in places
    )
    said = tuple(c.text for c in conditions)
    sources = tuple(_spelled(c.source, binds) for c in conditions)
    holds = _predicate(conditions, binds)
    direct = None if writes else _direct(captured, names, result, signature)
    given = _function("given(l)", [f"return ({''.join(f'{n}, ' for n in names)})"], constants)
    made = Capture(
        holds,
        run,
        said,
        captured,
        tuple(bound),
        binds,
        sources,
        direct,
        given,
        writes_memory,
        repeatable=not (writes_memory or writes),
        frozen=freeze,
    )
    return made, conditions


def _forget_unused(program: Any) -> None:
    """Drop inputs for tensors from outside that the function might have read, and did not."""
    specs = program.graph_signature.input_specs
    nodes = program.graph.find_nodes(op="placeholder")
    unused = [
        i
        for i, (node, spec) in enumerate(zip(nodes, specs, strict=True))
        if torch_outside.is_outside(spec.target) and not node.users
    ]
    for index in reversed(unused):
        program.graph.erase_node(nodes[index])
        del specs[index]


def _unchanged(
    signature: Any, names: Sequence[str], tensors: Mapping[str, str], bound: Sequence[torch.Tensor]
) -> set[int]:
    """Inputs of the program that are bound, and share no memory with what the program changes."""

    def memory(name: str) -> int:
        return bound[int(name[1:])].untyped_storage().data_ptr()

    changed = {
        memory(tensors[spec.target])
        for spec in signature.output_specs
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
    }
    return {i for i, n in enumerate(names) if n[0] == "b" and memory(n) not in changed}


def _refuse_overlap(changed: torch.Tensor) -> None:
    """Raise Refused if elements share memory: fill_ takes that, the copy_ that stands for it not.

    The order of dims in the key marks such tensors, so this need not be asked at each call.
    """
    if torch_memory.overlaps_itself(changed):
        raise Refused("an expanded tensor is changed in place")


def _spelled(source: str, binds: Sequence[str]) -> str:
    """`source` with what its symbols are bound to in place of their names."""
    for line in binds:
        symbol, _, value = line.partition(" = ")
        source = re.sub(rf"\b{symbol}\b", value, source)
    return source


def _direct(
    captured: Captured, names: Sequence[str], result: Tree, signature: Any
) -> Direct | None:
    """None, if Python has more to do than to pass inputs and outputs on."""
    imported = captured.imported
    kinds = {spec.kind for spec in signature.output_specs}
    if imported.float_inputs or kinds - {OutputKind.USER_OUTPUT}:
        return None
    if imported.draws and imported.brings:
        return None
    if any(place >= len(names) for place in imported.passed):  # a constant of the graph
        return None
    given = [names[i] for i in imported.passed]  # "l[0]", a leaf; "b0", a bound tensor
    inputs = tuple(~int(n[1:]) if n[0] == "b" else int(n[2:-1]) for n in given)
    flat = isinstance(result, Branch) and result.type in (tuple, list)
    leaves = result.children if isinstance(result, Branch) and flat else (result,)
    outputs: list[Any] = [imported.outputs[t.index] for t in leaves if isinstance(t, Leaf)]
    if len(outputs) < len(leaves) or any(type(output) is not int for output in outputs):
        return None
    kind = result.type.__name__ if isinstance(result, Branch) else "single"
    return Direct(inputs, tuple(outputs), kind)


def _write(target: str, tree: Branch, outputs: list[str], constants: dict[str, Any]) -> list[str]:
    """Statements that leave a container of the arguments as the function left it."""
    made = [
        torch_tree.source(child, lambda i: outputs[i], constants, "(args, kwargs)")
        for child in tree.children
    ]
    if tree.kind == "object":
        return [f"{target}.{k} = {m}" for k, m in zip(tree.keys, made, strict=True)]
    if tree.kind == "sequence":
        if not issubclass(tree.type, list):
            raise Refused(f"a {tree.type.__name__} among the arguments is changed")
        return [f"{target}[:] = [{', '.join(made)}]"]
    pairs = ", ".join(f"{k!r}: {m}" for k, m in zip(tree.keys, made, strict=True))
    return [f"w = {{{pairs}}}", f"{target}.clear()", f"{target}.update(w)"]


_count = 0


def _function(head: str, lines: list[str], names: dict[str, Any]) -> Any:
    """The function of this source, which tracebacks show."""
    global _count  # noqa: PLW0603
    _count += 1
    text = f"def {head}:\n" + "".join(f"  {line}\n" for line in lines)
    path = f"<tilevm capture {_count}>"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    scope = dict(names)
    exec(compile(text, path, "exec"), scope)
    made = scope[head.partition("(")[0]]
    weakref.finalize(made, linecache.cache.pop, path, None)
    return made


def _tensor(call: _Call, program: Any, spec: Any) -> torch.Tensor:
    """The tensor itself that a parameter, buffer or constant of the graph stands for."""
    if spec.kind is InputKind.PARAMETER:
        return call.get_parameter(spec.target)
    if spec.kind is InputKind.BUFFER:
        try:
            return call.get_buffer(spec.target)
        except AttributeError:
            pass
    value = program.constants[spec.target]
    if not isinstance(value, torch.Tensor):
        raise Refused(f"the graph has a constant that is a {type(value).__name__}")
    return value


def _conditions(
    sizes: Sizes,
    inputs: list[Any],
    places: dict[int, int],
    leaves: list[Any],
    call: _Call,
    captured: Captured,
    plan: Plan,
) -> list[Condition]:
    """The guards of a capture, without repetitions."""
    found: dict[str, Condition] = {}
    where = {s: (places[i], d) for s, i, d in sizes.sources if i in places}
    written = {s: str(s) for s in where}
    said = {s: torch_tree.place(call.tree, *at) for s, at in where.items()}
    sources = set(where.values())
    shown: dict[Any, set[tuple[int, int]]] = {}  # symbol -> all places whose size it is part of
    for place, index in places.items():
        value = inputs[place]
        for d, size in enumerate(value.shape) if isinstance(value, torch.Tensor) else [(-1, value)]:
            if isinstance(size, torch.SymInt):
                for symbol in sizes.expr(size).free_symbols:
                    shown.setdefault(symbol, set()).add((index, d))

    def add(expr: Any, *, test: str = "", at: tuple[int, int] | None = None) -> None:
        """`expr test`; with `at`, `expr == the size there`."""
        expr = sizes.over_sources(expr)
        if not set(expr.free_symbols) <= set(where):
            raise Refused(f"a guard is over {expr}")
        about = {at} if at else set()
        about.update(*(shown[s] for s in expr.free_symbols))
        texts = []
        for names, place in ((written, torch_tree.source_place), (said, torch_tree.place)):
            text = sizes.python(expr, names)
            tail = f" == {place(call.tree, *at)}" if at else test
            texts.append(f"({text}){tail}" if " or " in text or " and " in text else text + tail)
        found.setdefault(texts[0], Condition(texts[0], texts[1], frozenset(about)))

    def equal(at: tuple[int, int], value: Any) -> None:
        """The size or number at that place is `value`."""
        test = f" == {repr(value).replace('inf', '1e999')}"  # a literal, as other numbers are
        source = torch_tree.source_place(call.tree, *at)
        if isinstance(value, float) and math.isnan(value):
            test = f" != {source}"  # NaN
        text = torch_tree.place(call.tree, *at) + f" == {value!r}"
        found.setdefault(source + test, Condition(source + test, text, frozenset({at})))

    for place, index in places.items():
        value = inputs[place]
        axes = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(-1, value)]
        for d, size in axes:
            if (index, d) in sources or isinstance(size, FloatInput):
                continue
            if isinstance(size, torch.SymInt):
                add(size.node.expr, at=(index, d))
            else:
                equal((index, d), size)
    traced = {index for index, _ in call.given}
    for index, value in enumerate(leaves):
        if index not in traced and not isinstance(value, torch.Tensor):
            equal((index, -1), value)
    for symbol, (_, axis) in where.items():
        least = sizes.least(symbol) if axis < 0 or not plan.oblivious else None
        if least is not None:
            add(symbol, test=f" >= {least}")  # what the trace took for granted
    if plan.positive:
        for symbol, (_, axis) in where.items():
            if axis >= 0:
                add(symbol, test=" >= 1")
    if call.seen.strides:
        for index in traced:
            if isinstance(leaves[index], torch.Tensor):
                source, text = (
                    torch_strides.row_major(name, leaves[index].dim())
                    for name in (f"l[{index}]", torch_tree.leaf_name(call.tree, index))
                )
                found.setdefault(source, Condition(source, text))
    for expr in sizes.guards():
        add(expr)
    for expr, factor in sizes.divides:
        add(expr, test=f" % {factor} == 0")
    for expr, test in captured.imported.assumed:
        add(expr, test=f" {test}")
    return list(found.values())

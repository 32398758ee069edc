"""An exported program compiled, with what runs around it: a capture."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx
from torch.export.graph_signature import InputKind, OutputKind

from tilevm.frontends import (
    generated,
    torch_joint,
    torch_memory,
    torch_outside,
    torch_program,
    torch_tree,
)
from tilevm.frontends.torch_conditions import Condition, conditions_of, predicate, spelled
from tilevm.frontends.torch_exported import Call, Plan
from tilevm.frontends.torch_memory import Refused, View
from tilevm.frontends.torch_program import Captured, FloatInput
from tilevm.frontends.torch_state import State
from tilevm.frontends.torch_tree import Branch, Leaf, Tree
from tilevm.ir.types import Dim

_MUTATIONS = (
    OutputKind.BUFFER_MUTATION,
    OutputKind.PARAMETER_MUTATION,
    OutputKind.USER_INPUT_MUTATION,
)


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
    differentiable: bool = False  # its results have gradients
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
        """Whether all that the call changes may be, and none of it is seen under another name."""
        if not self.writes_memory:
            return True
        tensors = (t for t in leaves if isinstance(t, torch.Tensor))
        if not torch.is_inference_mode_enabled() and any(t.is_inference() for t in tensors):
            return False  # what eager code refuses to change may be among them
        return not torch_memory.share_memory(leaves, self.bound)

    def inputs(self, leaves: Sequence[Any]) -> list[Any]:
        """What the executable is called with."""
        return self.captured.given(self.given(leaves))

    def input_names(self, leaves: Sequence[str], tensors: Mapping[int, str]) -> list[str]:
        """Of each input of the executable its name: a leaf's, or a bound tensor's; "": unknown.

        tensors: names of the modules' parameters and buffers, by id.
        """
        outside = {
            id(t): str(places[0][1])
            for t, places in zip(self.bound, self._places, strict=True)
            if places and isinstance(places[0][1], str)
        }
        known = {**outside, **tensors}
        names = [x if isinstance(x, str) else known.get(id(x), "") for x in self.given(leaves)]
        return [names[i] if i < len(names) else "" for i in self.captured.imported.passed]

    def holds_safely(self, leaves: Sequence[Any]) -> bool:
        """`holds`, for leaves that may be of another key."""
        try:
            return self.holds(leaves)
        except (AttributeError, IndexError, TypeError, ValueError):
            return False

    def describe(self) -> str:
        """The guards, for people."""
        said = " and ".join(self.conditions) or "any sizes"
        return f"with gradients, {said}" if self.differentiable else said


class _Inputs:
    """What the exported program is called with, and the name of each in the wrapper.

    `l[i]` is leaf i of the call; `b0`, `b1`, ... are parameters, buffers and constants.
    """

    def __init__(self, call: Call, program: Any) -> None:
        self.values: list[Any] = []  # of the program's inputs
        self.wanted: list[bool] = []  # whether each requires gradients
        self.names: list[str] = []
        self.places: dict[int, int] = {}  # input -> leaf
        self.bound: list[torch.Tensor] = []
        self.by_target: dict[str, str] = {}  # parameter, buffer or argument -> its name
        self.by_node: dict[str, str] = {}  # placeholder -> its name
        users = iter(call.given)
        placeholders = program.graph.find_nodes(op="placeholder")
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
            value = node.meta.get("val")
            wanted = False
            if spec.kind is InputKind.USER_INPUT:
                index, is_float = next(users)
                self.places[len(self.values)] = index
                name, target = f"l[{index}]", spec.arg.name
                if is_float and call.gradients:
                    name = f"tensor({name}, dtype=float64)"
                elif is_float:
                    value = FloatInput()
                wanted = getattr(call.constants[index], "requires_grad", False)
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                name, target = f"b{len(self.bound)}", spec.target
                self.bound.append(_tensor(call, program, spec))
                wanted = self.bound[-1].requires_grad
            else:
                raise Refused(f"the graph has an input of kind {spec.kind.name}")
            self.values.append(value)
            self.wanted.append(wanted)
            self.names.append(name)
            self.by_target[target] = self.by_node[node.name] = name

    def differentiable(self) -> list[Any]:
        """FakeTensors, and numbers, for the program's inputs: leaves of autograd."""
        made = []
        for value, wanted in zip(self.values, self.wanted, strict=True):
            is_tensor = isinstance(value, torch.Tensor)
            made.append(value.detach().requires_grad_(wanted) if is_tensor else value)
        return made

    def tensor(self, name: str, leaves: Sequence[Any]) -> Any:
        """What goes by that name."""
        return self.bound[int(name[1:])] if name[0] == "b" else leaves[int(name[2:-1])]

    def changed(self, signature: Any, leaves: Sequence[Any]) -> dict[int, str]:
        """Results that the function writes to an input: their index, and the input's name."""
        found: dict[int, str] = {}
        for position, spec in enumerate(signature.output_specs):
            if spec.kind in _MUTATIONS:
                found[position] = self.by_target[spec.target]
                _refuse_overlap(self.tensor(found[position], leaves))
        return found

    def unchanged(self, changed: Mapping[int, str]) -> set[int]:
        """Inputs that are bound, and share no memory with what the program changes."""

        def memory(name: str) -> int:
            return self.bound[int(name[1:])].untyped_storage().data_ptr()

        written = {memory(name) for name in changed.values() if name[0] == "b"}
        return {i for i, n in enumerate(self.names) if n[0] == "b" and memory(n) not in written}


def assemble(
    call: Call,
    program: Any,
    plan: Plan,
    facts: dict[tuple[int, int], Dim],
    knobs: dict[str, Any],
    freeze: bool,
    kept: Mapping[int, tuple[str, View]] | None = None,
) -> tuple[Capture, list[Condition]]:
    """Compile the exported program, and write what runs around it.

    kept: results that are an input itself, which the function changes, or a view of one: their
    index, the name of the input and what makes the view.
    """
    leaves, writes = call.constants, call.seen.writes
    signature = program.graph_signature
    _forget_unused(program)
    given = _Inputs(call, program)
    changed = given.changed(signature, leaves)
    names = [node.name for node in program.graph.find_nodes(op="placeholder")]
    specs = enumerate(signature.output_specs)
    results = [place for place, spec in specs if spec.kind is OutputKind.USER_OUTPUT]
    joint = backward = None
    graph, inputs = program.graph, given.values
    if call.gradients:
        if changed:
            raise Refused("an input is changed, where gradients are wanted")
        joint = torch_joint.differentiate(program.graph_module, given.differentiable())
        graph, inputs = joint.forward.graph, _metadata(joint.forward)
    build = functools.partial(
        torch_program.build,
        graph,
        inputs,
        knobs,
        views=joint is None,
        ordered=joint.n_outputs if joint else None,
        own_guards=plan.unify,
        arguments=given.places,
        facts={
            (place, axis): dim
            for place, index in given.places.items()
            for (leaf, axis), dim in facts.items()
            if leaf == index
        },
        frozen=given.unchanged(changed) if freeze and joint is None else None,
        writes={position: given.names.index(name) for position, name in changed.items()},
        kept={
            results[index]: replace(view, source=names.index(name))
            for index, (name, view) in (kept or {}).items()
            if view.steps
        },
    )
    captured = build()
    if joint is not None and joint.backward is not None:
        backward = torch_program.build(
            joint.backward.graph,
            _metadata(joint.backward),
            knobs,
            views=False,
            own_guards=True,
            gradient_of=captured,
        )
        if captured.sizes.are_old:
            captured = build()
        captured.imported.assumed += backward.imported.assumed
    conditions = conditions_of(captured, given.values, given.places, call, plan)
    constants: dict[str, Any] = {
        "inner": torch_joint.runner(joint, captured, backward) if joint else captured.run,
        "tensor": torch.tensor,
        "float64": torch.float64,
        "math": math,
        "changed": torch_memory.note_changes,
    }
    constants |= {f"b{i}": t for i, t in enumerate(given.bound)}
    same = {i: given.by_node[name] for i, (name, view) in (kept or {}).items() if not view.steps}
    lines = _wrapper(call, given, captured, signature, changed, same, constants)
    passed = "".join(f"{name}, " for name in given.names)
    binds = tuple(
        f"{symbol} = l[{given.places[i]}]" + (f".shape[{d}]" if d >= 0 else "")
        for symbol, i, d in captured.sizes.sources
        if i in given.places
    )
    made = Capture(
        predicate(conditions, binds),
        generated.function("run(l, args, kwargs)", lines, constants),
        tuple(c.text for c in conditions),
        captured,
        tuple(given.bound),
        binds,
        tuple(spelled(c.source, binds) for c in conditions),
        None if writes or joint else _direct(captured, given.names, call.seen.result, signature),
        generated.function("given(l)", [f"return ({passed})"], constants),
        writes_memory=bool(changed or (joint and joint.changed)),
        repeatable=not (changed or writes or (joint and joint.changed)),
        frozen=freeze and joint is None,
        differentiable=joint is not None,
    )
    return made, conditions


def _metadata(gm: torch.fx.GraphModule) -> list[Any]:
    return [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]


def _wrapper(
    call: Call,
    given: _Inputs,
    captured: Captured,
    signature: Any,
    changed: Mapping[int, str],
    same: Mapping[int, str],
    constants: dict[str, Any],
) -> list[str]:
    """Lines that run the program, write what it changes, and build the call's result.

    same: results that are an input itself: its text.
    """
    outputs: list[str] = []
    lines = [f"o = inner({', '.join(given.names)})"]
    imported = captured.imported
    for position, spec in enumerate(signature.output_specs):
        text = f"o[{position}]"
        if spec.kind is OutputKind.USER_OUTPUT:
            outputs.append(same.get(len(outputs), text))
            continue
        result = imported.outputs[position]
        if isinstance(result, View):
            raise Refused("an input becomes a view of another")
        if position not in changed:
            raise Refused(f"the graph has an output of kind {spec.kind.name}")
        name = changed[position]
        if type(result) is int and imported.written[result] >= 0:
            # That its memory is asked for ends what it shares until somebody writes.
            lines.insert(0, f"{name}.data_ptr()")
            lines.append(f"changed([{name}])")
        else:
            lines.append(f"{name}.copy_({text})")
    built = torch_tree.source(call.seen.result, lambda i: outputs[i], constants, "(args, kwargs)")
    if not call.seen.writes:
        return [*lines, f"return {built}"]
    lines.append(f"r = {built}")
    for path, tree in call.seen.writes:
        target = "(args, kwargs)" + "".join(torch_tree.step_source(k, n) for k, n in path)
        lines += _write(target, tree, outputs, constants)
    return [*lines, "return r"]


def _tensor(call: Call, program: Any, spec: Any) -> torch.Tensor:
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


def _refuse_overlap(changed: torch.Tensor) -> None:
    """Raise Refused if elements share memory: fill_ takes that, the copy_ that stands for it not.

    The order of dims in the key marks such tensors, so this need not be asked at each call.
    """
    if torch_memory.overlaps_itself(changed):
        raise Refused("an expanded tensor is changed in place")


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

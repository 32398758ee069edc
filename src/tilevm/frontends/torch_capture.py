"""One capture: torch.export of a call with symbolic sizes, guards, and what runs instead."""

from __future__ import annotations

import inspect
import linecache
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx.experimental._config as symbolic_config
from torch import nn
from torch.export import Dim as ExportDim
from torch.export.graph_signature import InputKind, OutputKind

from tilevm.errors import ShapeError
from tilevm.frontends import torch_program, torch_tree
from tilevm.frontends.torch_import import Refused
from tilevm.frontends.torch_program import Captured, FloatInput, Mutates
from tilevm.frontends.torch_sizes import MOST, Sizes
from tilevm.frontends.torch_tree import Branch, Leaf, Tree
from tilevm.ir.types import Dim

Dims = Mapping[str, Mapping[int, Dim]]


@dataclass
class Capture:
    """A compiled call. `holds(leaves)`: whether it may run for a call with these leaves."""

    holds: Callable[[Sequence[Any]], bool]
    run: Callable[[Sequence[Any], Any, Any], Any]
    conditions: tuple[str, ...]
    captured: Captured
    bound: tuple[torch.Tensor, ...]
    _bound_types: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self._bound_types = tuple((t.dtype, tuple(t.shape)) for t in self.bound)

    def fits(self) -> bool:
        """Whether parameters and buffers still have the types of the capture."""
        return self._bound_types == tuple((t.dtype, tuple(t.shape)) for t in self.bound)

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
    """How one attempt treats what is special: sizes 0 and 1, and numbers."""

    ones_dynamic: bool
    numbers_dynamic: bool


class _Seen:
    """What a trace found: export puts attributes of a module back as they were."""

    result: Any = None
    writes: list[tuple[Any, Branch]]


class _Call(nn.Module):
    """What is exported: the function over leaves. Keeps the structure of the result."""

    def __init__(
        self, fn: Callable[..., Any], modules: Mapping[str, nn.Module], tree: Tree, leaves: list[Any]
    ) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(f"m_{name}", module)
        self.__dict__["function"] = fn
        self.__dict__["tree"] = tree
        self.__dict__["constants"] = leaves
        self.__dict__["given"] = []  # per traced leaf: its index, and whether it is a float
        self.__dict__["seen"] = _Seen()

    def forward(self, *traced: Any) -> tuple[Any, ...]:
        leaves = list(self.constants)
        for (index, is_float), value in zip(self.given, traced, strict=True):
            leaves[index] = value.item() if is_float else value
        args, kwargs = torch_tree.build(self.tree, leaves)
        before: dict[tuple[Any, ...], Any] = dict(torch_tree.containers((args, kwargs)))
        known = {id(value): path for path, value in before.items() if path}
        state = {path: _shallow(value) for path, value in before.items()}
        result = self.function(*args, **kwargs)
        out: list[Any] = []
        tree = torch_tree.flatten(result, out, known)
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
        return tuple(out)


def _shallow(value: Any) -> tuple[Any, ...]:
    _, keys, children = torch_tree.parts(value) or ("", (), ())
    return (keys, children)


def _shallow_equal(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return a[0] == b[0] and len(a[1]) == len(b[1]) and all(
        x is y for x, y in zip(a[1], b[1], strict=True)
    )


def capture(
    fn: Callable[..., Any],
    modules: Mapping[str, nn.Module],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    dims: Dims | None,
    knobs: dict[str, Any],
) -> Capture:
    """Capture `fn(*args, **kwargs)` for all sizes that take the same branches.

    Raises: ShapeError, if a size contradicts `dims`; anything else, if `fn` cannot be captured.
    """
    leaves: list[Any] = []
    tree = torch_tree.flatten((tuple(args), dict(kwargs)), leaves)
    facts = _facts(fn, args, kwargs, dims, tree, leaves)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu":
            raise Refused(f"an argument is on {leaf.device.type}")
    small = any(isinstance(x, torch.Tensor) and any(n < 2 for n in x.shape) for x in leaves)
    numbers = any(not isinstance(x, torch.Tensor) for x in leaves)
    plans = [Plan(True, True)]
    plans += [Plan(False, True)] if small else []
    plans += [Plan(True, False)] if numbers else []
    plans += [Plan(False, False)] if small and numbers else []
    first: Exception | None = None
    for plan in plans:
        try:
            made = _attempt(fn, modules, tree, leaves, plan, facts, knobs)
        except ShapeError:
            raise
        except Exception as error:
            first = first or error
            continue
        if made.holds(leaves):
            return made
    raise first or Refused("no capture whose guards hold for the sizes of its own call")


def _attempt(
    fn: Callable[..., Any],
    modules: Mapping[str, nn.Module],
    tree: Tree,
    leaves: list[Any],
    plan: Plan,
    facts: dict[tuple[int, int], Dim],
    knobs: dict[str, Any],
) -> Capture:
    call = _Call(fn, modules, tree, leaves)
    taken = {n for x in leaves if isinstance(x, torch.Tensor) for n in x.shape}
    stand_ins = {n: next(h for h in _STAND_INS[n] if h not in taken) for n in (0, 1)}
    examples: list[Any] = []
    shapes: list[Any] = []
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            example, dynamic = _example(leaf, stand_ins if plan.ones_dynamic else {})
        elif not plan.numbers_dynamic or (type(leaf) is int and leaf < 0):
            continue
        elif type(leaf) is float:
            example, dynamic = torch.zeros((), dtype=torch.float64), None
        else:
            example, dynamic = leaf, ExportDim.AUTO
        call.given.append((index, type(leaf) is float))
        examples.append(example)
        shapes.append(dynamic)
    with _quiet(), symbolic_config.patch(backed_size_oblivious=True), torch.no_grad():
        program = torch.export.export(
            call, tuple(examples), dynamic_shapes={"traced": tuple(shapes)}, strict=False
        )
        result, writes = call.seen.result, call.seen.writes
        try:
            return _finish(call, program, result, writes, leaves, plan, facts, knobs)
        except Mutates:
            program = program.run_decompositions({})
            return _finish(call, program, result, writes, leaves, plan, facts, knobs)


# What stands for a size of 0 or 1 while capturing: unusual sizes, so that no branch expects them.
_STAND_INS = {1: (7, 11, 13, 17, 19, 23, 29, 31, 37, 41), 0: (43, 47, 53, 59, 61, 67, 71, 73, 79)}


def _example(leaf: torch.Tensor, stand_ins: Mapping[int, int]) -> tuple[torch.Tensor, Any]:
    """A tensor laid out as `leaf` with other sizes for 0 and 1, and what export may vary."""
    sizes = [stand_ins.get(n, n) for n in leaf.shape]
    dynamic = {
        d: ExportDim.STATIC if n < 2 else ExportDim.AUTO for d, n in enumerate(sizes)
    }
    if sizes == list(leaf.shape):
        return leaf.detach(), dynamic
    order = [d if d >= 0 else ~d for d in torch_tree.layout(leaf)]
    if leaf.is_contiguous():
        order = list(range(leaf.dim()))
    example = torch.empty([sizes[d] for d in order], dtype=leaf.dtype)
    return example.permute([order.index(d) for d in range(leaf.dim())]), dynamic


@contextmanager
def _quiet() -> Iterator[None]:
    """No messages of export about what it could not do: we try again, or run eagerly."""
    names = ("torch.export", "torch.fx.experimental.symbolic_shapes", "torch._export")
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _finish(
    call: _Call,
    program: Any,
    result: Tree,
    writes: list[tuple[Any, Tree]],
    leaves: list[Any],
    plan: Plan,
    facts: dict[tuple[int, int], Dim],
    knobs: dict[str, Any],
) -> Capture:
    """Compile the exported program, and write what runs around it."""
    signature = program.graph_signature
    placeholders = program.graph.find_nodes(op="placeholder")
    bound: list[torch.Tensor] = []
    inputs: list[Any] = []
    names: list[str] = []
    tensors: dict[str, str] = {}  # parameter or buffer -> its name in the wrapper
    users = iter(call.given)
    places: dict[int, int] = {}  # input of the program -> leaf
    by_name: dict[str, str] = {}
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        value = node.meta.get("val")
        if spec.kind is InputKind.USER_INPUT:
            index, is_float = next(users)
            places[len(inputs)] = index
            inputs.append(FloatInput() if is_float else value)
            names.append(f"l[{index}]")
            by_name[spec.arg.name] = f"l[{index}]"
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            tensors[spec.target] = f"b{len(bound)}"
            names.append(f"b{len(bound)}")
            bound.append(_tensor(call, program, spec))
            inputs.append(value)
        else:
            raise Refused(f"the graph has an input of kind {spec.kind.name}")
    captured = torch_program.build(program.graph, inputs, knobs)
    conditions = _conditions(captured.sizes, inputs, places, leaves, call, captured, facts)
    constants: dict[str, Any] = {"inner": captured.run, "math": __import__("math")}
    constants |= {f"b{i}": t for i, t in enumerate(bound)}
    outputs: list[str] = []
    lines = [f"o = inner({', '.join(names)})"]
    for position, spec in enumerate(signature.output_specs):
        text = f"o[{position}]"
        if spec.kind is OutputKind.USER_OUTPUT:
            outputs.append(text)
        elif spec.kind is OutputKind.BUFFER_MUTATION:
            lines.append(f"{tensors[spec.target]}.copy_({text})")
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            lines.append(f"{by_name[spec.target]}.copy_({text})")
        else:
            raise Refused(f"the graph has an output of kind {spec.kind.name}")
    built = torch_tree.source(result, lambda i: outputs[i], constants, "(args, kwargs)")
    lines.append(f"r = {built}")
    for path, tree in writes:
        assert isinstance(tree, Branch)
        target = "(args, kwargs)" + "".join(torch_tree.step_source(k, n) for k, n in path)
        lines += _write(target, tree, outputs, constants)
    lines.append("return r")
    if lines[-2] == f"r = {built}":
        lines[-2:] = [f"return {built}"]
    run = _function("run(l, args, kwargs)", lines, constants)
    test = " and ".join(text for text, _ in conditions) or "True"
    binds = [f"{_symbol(s)} = l[{places[i]}]" + (f".shape[{d}]" if d >= 0 else "") for s, i, d in captured.sizes.sources if i in places]
    holds = _function("holds(l)", [*binds, f"return {test}"], {"math": constants["math"]})
    return Capture(holds, run, tuple(said for _, said in conditions), captured, tuple(bound))


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
    exec(compile(text, path, "exec"), scope)  # noqa: S102
    return scope[head.partition("(")[0]]


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


def _symbol(symbol: Any) -> str:
    return str(symbol)


def _conditions(
    sizes: Sizes,
    inputs: list[Any],
    places: dict[int, int],
    leaves: list[Any],
    call: _Call,
    captured: Captured,
    facts: dict[tuple[int, int], Dim],
) -> list[tuple[str, str]]:
    """Guards as (Python source over the leaves `l`, text for people)."""
    found: list[tuple[str, str]] = []
    written = {s: _symbol(s) for s, i, _ in sizes.sources if i in places}
    said = {
        s: f"{_leaf_name(call.tree, places[i])}" + (f".shape[{d}]" if d >= 0 else "")
        for s, i, d in sizes.sources
        if i in places
    }
    sources = {(i, d) for _, i, d in sizes.sources}

    def add(template: str, expr: Any) -> None:
        expr = sizes.over_sources(expr)
        if not set(expr.free_symbols) <= set(written):
            raise Refused(f"a guard is over {expr}")
        item = (
            template.format(sizes.python(expr, written)),
            template.format(sizes.python(expr, said)),
        )
        if item not in found:
            found.append(item)

    for place, index in places.items():
        value, leaf = inputs[place], f"l[{index}]"
        name = _leaf_name(call.tree, index)
        if isinstance(value, torch.Tensor):
            for d, size in enumerate(value.shape):
                if (place, d) in sources:
                    continue
                if isinstance(size, int):
                    found.append((f"{leaf}.shape[{d}] == {size}", f"{name}.shape[{d}] == {size}"))
                else:
                    add("{} == " + f"{leaf}.shape[{d}]", size.node.expr)
                    found[-1] = (found[-1][0], found[-1][1].replace(leaf, name))
        elif isinstance(value, torch.SymInt):
            if (place, -1) not in sources:
                add("{} == " + leaf, value.node.expr)
        elif isinstance(value, int | float):
            found.append((f"{leaf} == {value!r}", f"{name} == {value!r}"))
    traced = {index for index, _ in call.given}
    for index, value in enumerate(leaves):
        if index not in traced:
            name = _leaf_name(call.tree, index)
            same = f"!= l[{index}]" if value != value else f"== {value!r}"
            found.append((f"l[{index}] {same}", f"{name} {same.replace(f'l[{index}]', name)}"))
    environment = sizes.env
    if environment is not None:
        ints = {s for s, i, d in sizes.sources if d < 0}
        for symbol in written:
            bounds = environment.var_to_range.get(symbol)
            if bounds is None:
                continue
            low, high = bounds.lower, bounds.upper
            if isinstance(low, sympy.Integer) and (int(low) > 0 or symbol in ints):
                add("{} >= " + str(low), symbol)
            if isinstance(high, sympy.Integer) and int(high) < MOST // 2:
                add("{} <= " + str(high), symbol)
        for guard in environment.guards:
            expr = environment.replace(guard.expr)
            if expr not in (sympy.true, True):
                add("{}", expr)
        for deferred in environment.deferred_runtime_asserts.values():
            for item in deferred:
                expr = environment.replace(item.expr)
                if expr not in (sympy.true, True):
                    add("{}", expr)
    for expr, factor in sizes.divides:
        add("{} % " + f"{factor} == 0", expr)
    for size in captured.imported.not_one:
        add("{} != 1", size.node.expr)
    return found


def _leaf_name(tree: Tree, index: int) -> str:
    """`args[0]`, `input_ids`, `args[1]['x']`: where a leaf is in the call."""

    def find(tree: Tree, text: str) -> str | None:
        if isinstance(tree, Leaf):
            return text if tree.index == index else None
        if isinstance(tree, Branch):
            for key, child in zip(tree.keys, tree.children, strict=True):
                step = f".{key}" if tree.kind == "object" else f"[{key!r}]"
                found = find(child, text + step)
                if found is not None:
                    return found
        return None

    assert isinstance(tree, Branch)
    args, kwargs = tree.children
    assert isinstance(kwargs, Branch)
    for key, child in zip(kwargs.keys, kwargs.children, strict=True):
        if (found := find(child, str(key))) is not None:
            return found
    return find(args, "args") or f"leaf {index}"


def _facts(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dims: Dims | None,
    tree: Tree,
    leaves: list[Any],
) -> dict[tuple[int, int], Dim]:
    """(leaf, axis) -> what the user knows of it. Raises: ShapeError, if a size contradicts it."""
    if not dims:
        return {}
    forward = fn.forward if isinstance(fn, nn.Module) else fn
    given = inspect.signature(forward).bind(*args, **kwargs).arguments
    by_id = {id(leaf): index for index, leaf in enumerate(leaves)}
    found: dict[tuple[int, int], Dim] = {}
    seen: dict[int, tuple[str, int]] = {}
    for name, axes in dims.items():
        value = given.get(name)
        if not isinstance(value, torch.Tensor):
            raise ShapeError(f"dims: there is no tensor argument {name!r} in this call")
        for axis, dim in axes.items():
            size = value.shape[axis]
            where = f"{name}.shape[{axis}]"
            if not dim.holds(size):
                raise ShapeError(f"{where} is {size}, but dims says {dim}: pass a size it allows")
            other = seen.setdefault(id(dim), (where, size))
            if other[1] != size:
                raise ShapeError(
                    f"{where} is {size} and {other[0]} is {other[1]}, but dims says they are equal"
                )
            found[by_id[id(value)], axis % value.dim()] = dim
    return found

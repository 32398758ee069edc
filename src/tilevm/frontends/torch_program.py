"""From an ATen graph to something to call: the executable, and what Python must do around it."""

from __future__ import annotations

import operator
import traceback
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy  # type: ignore[import-untyped]  # has no types
import torch
import torch.fx
from torch._dynamo.exc import RestartAnalysis
from torch.fx._lazy_graph_module import _LazyGraphModule

from tilevm.config import config
from tilevm.errors import InternalError, ShapeError, WrongResult
from tilevm.frontends import (
    torch_check,
    torch_convolutions,
    torch_data,
    torch_decompose,
    torch_frozen,
    torch_imported,
)
from tilevm.frontends.torch_import import LIBRARY, Importer, Unify, place_of
from tilevm.frontends.torch_imported import FloatInput, Imported
from tilevm.frontends.torch_memory import Given, Mutates, Refused, View
from tilevm.frontends.torch_sizes import MODULES, Sizes, Untranslatable
from tilevm.ir.types import Dim
from tilevm.runtime import measured
from tilevm.runtime import program as runtime
from tilevm.stats import stats

runtime.on_frozen(torch_frozen.owner)
measured.load_once(torch.__version__)

__all__ = ["Captured", "FloatInput", "Mutates", "build", "compile_aten", "or_eager", "reason_of"]


@dataclass(frozen=True)
class Captured:
    """A compiled graph. `run` takes the graph's inputs and returns a tuple of its outputs."""

    imported: Imported
    sizes: Sizes
    executable: Callable[..., Any]
    run: Callable[..., Any]
    graph: torch.fx.Graph
    fixed: Mapping[int, torch.Tensor]  # tensors that are no arguments, by the place of their input

    def given(self, args: Sequence[Any]) -> list[Any]:
        """The executable's inputs for these of the graph."""
        values = [*args, *self.fixed.values()]
        return [
            values[i].item() if position in self.imported.float_inputs else values[i]
            for position, i in enumerate(self.imported.passed)
        ]


def build(
    graph: torch.fx.Graph,
    inputs: Sequence[Any],
    knobs: dict[str, Any],
    *,
    views: bool = True,
    own_guards: bool = False,
    arguments: Collection[int] = (),
    facts: Mapping[tuple[int, int], Dim] | None = None,
    frozen: Collection[int] | None = None,
    writes: Mapping[int, int] | None = None,
    apart: bool = False,
    inner: bool = False,
    ordered: int | None = None,
    kept: Mapping[int, View] | None = None,
    gradient_of: Captured | None = None,
) -> Captured:
    """Compile `graph`, whose placeholders stand for `inputs` (FakeTensors, SymInts, numbers).

    views: outputs that share memory with an input in eager code do so. own_guards: the caller
    checks `imported.assumed` and that inputs with one symbol agree; otherwise ShapeEnv's guards
    are what is checked. arguments: inputs of which the caller can check anything. facts: what the
    caller promises of (input, axis).
    frozen: inputs whose elements do not change, if constants of the graph do not either.
    writes: results, by index, that the executable may write to an input, which they then are: see
    `imported.written`. apart: calls where such an input shares memory with another are refused.
    inner: it is a part of another graph, which is checked as a whole.
    ordered: how many results have to lie in memory as in eager code; None: all.
    kept: results, by index, that are views of an input whatever the graph makes them of.
    gradient_of: AOTAutograd made it of formulas of that, whose numbers divide as those of C++ do;
    what it asks of sizes, that one's guards say.

    Raises: Refused, if the graph has something that a program cannot hold; Mutates, if it changes
    an input.
    """
    if config.check:
        writes = None  # a result that is wrong shall change nothing
        if kept:
            raise Refused("a result is a view of an input that is changed once it is checked")
    whole = graph
    graph = torch_decompose.decomposed(graph)
    placeholders = graph.find_nodes(op="placeholder")
    constants = _constants(graph)
    made = (node.meta.get("val") for node in graph.nodes if node.op == "call_function")
    environment: Any = next((s.node.shape_env for s in _symbolic([*inputs, *made])), None)
    unified: dict[Any, Any] = {}
    least: dict[Any, int] = {}

    def compile_inner(graph: torch.fx.Graph, inputs: list[Any], unchanged: set[int]) -> Captured:
        known = None if frozen is None else unchanged
        return build(graph, inputs, knobs, views=False, inner=True, frozen=known)

    while True:
        try:
            sizes = Sizes(inputs, environment, unified, facts, inner, least)
            may_unify = own_guards and gradient_of is None
            importer = Importer(graph, sizes, may_unify=may_unify, compile_inner=compile_inner)
            importer.makes_views = not views
            if gradient_of is not None:
                importer.is_gradient = True
                importer.ints_of_call = set(gradient_of.imported.int_symbols.values())
            importer.arguments_of_calls = arguments
            importer.unchanged = {
                *(placeholders[place] for place in frozen or ()),
                *([] if frozen is None else constants),
            }
            importer.inputs([*placeholders, *constants], [*inputs, *constants.values()])
            torch_convolutions.images(importer)
            (output,) = graph.find_nodes(op="output")
            results = output.args[0]
            results = results if isinstance(results, list | tuple) else (results,)
            importer.targets = {
                results[position]: placeholders[index]
                for position, index in (writes or {}).items()
                if isinstance(results[position], torch.fx.Node)
            }
            importer.run()
            torch_imported.outputs(importer, results, views, writes, ordered, inner, kept)
            # The import itself may have asked of sizes what is now a guard, or what calls check.
            if not sizes.are_old and sizes.learned() == least:
                break
            least = sizes.learned()
        except Unify as pair:
            unified = {old: pair.kept if new == pair.gone else new for old, new in unified.items()}
            unified[pair.gone] = pair.kept
        except Untranslatable as error:
            raise Refused(f"a size is not an expression of the inputs' sizes: {error}") from error
    if not own_guards:
        for expr, test in importer.result.assumed:
            relation = sympy.Ne if test.startswith("!=") else sympy.Ge
            condition = relation(expr, int(test.split()[1]))
            if condition != sympy.true and not _guarded(environment, condition):
                raise Refused(f"the graph needs {condition}, which does not hold")
    held = [*constants.values(), *(tensor for tensor, _ in importer.constants)]
    fixed = {len(placeholders) + i: value for i, value in enumerate(held)}
    unchanged = () if frozen is None else {*frozen, *fixed}
    executable = importer.result.compile(
        knobs, unchanged, detached=not views, apart=apart, nested=inner
    )
    run = _around(importer.result, sizes, executable, len(placeholders), fixed)
    captured = Captured(importer.result, sizes, executable, run, whole, fixed)
    if config.check and not inner:
        run = torch_check.checked(run, whole, executable, captured.given)
        return replace(captured, run=run)
    return captured


def _guarded(environment: Any, condition: Any) -> bool:
    """Whether a condition holds, and is a guard from now on. Raises: Refused."""
    if not environment.frozen:
        return bool(environment.evaluate_expr(condition))
    try:
        with environment.error_on_new_guards():
            return bool(environment.evaluate_expr(condition))
    except RuntimeError as error:
        raise Refused(f"the graph needs {condition}, and its guards are made already") from error


def or_eager(captured: Captured, graph: torch.fx.GraphModule) -> Callable[..., Any]:
    """What runs a captured graph; if that fails, when it has changed nothing, the graph as it is.

    PyTorch may take what its metadata does not say, as results of another dtype. Where it raises,
    too, our error is closer to the call: the graph's operators need not be those of the function.
    Of what it asserts of data, PyTorch's is. An index that is out of range is a RuntimeError where
    PyTorch raises that.
    """
    run, imported = captured.run, captured.imported
    may_draw_twice = imported.draws and bool(imported.targets)

    def call(*args: Any) -> Any:
        drawn = torch.get_rng_state() if may_draw_twice else None
        try:
            return run(*args)
        except WrongResult:
            raise
        except Exception as error:
            if config.debug:
                raise
            if drawn is not None:
                torch.set_rng_state(drawn)
            try:
                _LazyGraphModule.force_recompile(graph)  # else it prints where it failed
                results = graph.forward(*args)
            except Exception as theirs:
                of_data = isinstance(error, ShapeError) and torch_data.REFUSED in str(error)
                if isinstance(error, IndexError) and _says_runtime_error(theirs, graph):
                    error = RuntimeError(str(error))
                raise (theirs if of_data else error) from None  # what was asserted has its text
            if isinstance(error, InternalError):  # a defect: it says where the call is saved
                warnings.warn(f"runs eagerly: {error}", stacklevel=2)
            stats.add("flushes", f"eager: {reason_of(error)}")
            return results

    return call


def _says_runtime_error(theirs: Exception, graph: torch.fx.GraphModule) -> bool:
    """Whether eager code does where a graph does. Losses, which AOTAutograd makes of gathers, raise
    another error than these.
    """
    gathers = (node for node in graph.graph.nodes if "gather" in str(node.target))
    made_of = ((node.meta.get("original_aten", node.target), node.target) for node in gathers)
    return type(theirs) is RuntimeError and all(str(a) == str(b) for a, b in made_of)


def reason_of(error: Exception) -> str:
    """One line that says why a capture failed, and at which line of the user's, if at one."""
    text = str(error).strip().partition("\n")[0]
    frames = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)]
    users = [frame for frame in frames if not frame[0].startswith(LIBRARY)]
    text += f" ({place_of(*users[-1])})" if users else ""
    return text if isinstance(error, Refused) else f"{type(error).__name__}: {text}"


def compile_aten(
    gm: torch.fx.GraphModule, knobs: dict[str, Any], ordered: int | None = None
) -> Callable[..., Any]:
    """A functional graph of AOTAutograd, compiled; as it is, counted, if it cannot be.

    ordered: as for build().
    """
    inputs = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
    try:
        return or_eager(build(gm.graph, inputs, knobs, views=False, ordered=ordered), gm)
    except RestartAnalysis:
        raise
    except Exception as error:
        if config.debug:
            raise
        stats.add("flushes", f"eager: {reason_of(error)}")
        return gm.forward


def _constants(graph: torch.fx.Graph) -> dict[torch.fx.Node, torch.Tensor]:
    """Tensors that the graph's module holds: inputs of the program, which nobody passes."""
    found = {}
    for node in graph.find_nodes(op="get_attr"):
        value = operator.attrgetter(node.target)(graph.owning_module)
        if isinstance(value, torch.Tensor):
            found[node] = value
    return found


def _symbolic(inputs: Sequence[Any]) -> Any:
    for value in inputs:
        sizes: Any = value.shape if isinstance(value, torch.Tensor) else (value,)
        yield from (s for s in sizes if isinstance(s, torch.SymInt))


def _around(
    result: Imported,
    sizes: Sizes,
    executable: Callable[..., Any],
    count: int,
    fixed: Mapping[int, torch.Tensor],
) -> Callable[..., Any]:
    """`executable` itself if it takes the inputs and gives the outputs as they are.

    fixed: tensors that are no arguments, by the place of their input.
    """
    changed = {place for place in result.written if place >= 0}
    # An input that is conjugated when it is read: in memory of its own, if nobody writes to it.
    conjugated = {i for i in result.complex_inputs if result.passed[i] not in changed}
    same_inputs = result.passed == list(range(count)) and not (result.float_inputs or conjugated)
    if same_inputs and result.outputs == list(range(len(result.outputs))):
        return executable
    constants: dict[str, Any] = {
        "exe": executable,
        "getitem": operator.getitem,
        **MODULES,
        **{f"a{i}": value for i, value in fixed.items()},
    }
    names = [f"a{i}" for i in range(count)]
    passed = [
        f"a{i}"
        + (".item()" if position in result.float_inputs else "")
        + (".resolve_conj()" if position in conjugated else "")
        for position, i in enumerate(result.passed)
    ]
    needs: set[Any] = set()
    written = {symbol: f"z{i}" for i, (symbol, _, _) in enumerate(sizes.sources)}

    def source(size: Any) -> str:
        expr = sizes.expr(size)
        needs.update(expr.free_symbols)
        missing = [s for s in expr.free_symbols if s not in written]
        if missing:
            raise Refused(f"an output is {expr}, which is not an expression of the inputs' sizes")
        return sizes.python(expr, written)

    def constant(value: Any) -> str:
        if isinstance(value, torch.SymInt | torch.SymBool | torch.SymFloat):
            return source(value)
        if isinstance(value, list | tuple):
            return f"[{', '.join(constant(v) for v in value)}]"
        if isinstance(value, Given):
            return f"a{value.source}"
        name = f"k{len(constants)}"
        constants[name] = value
        return name

    def view(item: View) -> str:
        text = f"a{item.source}"
        for function, args, kwargs in item.steps:
            parts = [text, *(constant(a) for a in args)]
            parts += [f"{k}={constant(v)}" for k, v in kwargs.items()]
            text = f"{constant(function)}({', '.join(parts)})"
        return text

    outputs = []
    for item in result.outputs:
        if isinstance(item, int):
            outputs.append(f"o[{item}]")
        elif isinstance(item, View):
            outputs.append(view(item))
        else:
            kind, value = item
            if kind == "part":
                layout = [constant([*n]) for n in (value[1].shape, value[1].stride())]
                start = constant(value[1].storage_offset())
                outputs.append(f"o[{value[0]}].as_strided({', '.join(layout)}, {start}).detach()")
            elif kind in ("item", "conj"):
                outputs.append(f"o[{value}].{kind}()")
            else:
                outputs.append(source(value) if kind == "size" else constant(value))
    bindings = [
        f"  {written[s]} = a{i}" + (f".shape[{d}]" if d >= 0 else "")
        for s, i, d in sizes.sources
        if s in needs
    ]
    lines = [f"def run({', '.join(names)}):", f"  o = exe({', '.join(passed)})", *bindings]
    lines.append(f"  return ({''.join(f'{o}, ' for o in outputs)})")
    exec("\n".join(lines), constants)
    run: Callable[..., Any] = constants["run"]
    return run

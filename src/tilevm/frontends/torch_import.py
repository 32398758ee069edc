"""FX graphs of ATen operators, with FakeTensor metadata, as programs of the core."""

from __future__ import annotations

import functools
import operator
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sympy  # type: ignore[import-untyped]  # has no types
import torch
import torch.fx
from torch._ops import HigherOrderOperator, OpOverload

from tilevm.errors import DTypeError, ShapeError
from tilevm.frontends import (
    torch_branches,
    torch_callouts,
    torch_data,
    torch_random,  # noqa: F401  # its rows
    torch_tokens,
)
from tilevm.frontends.torch_imported import FloatInput, Imported, memory_of, short_name
from tilevm.frontends.torch_memory import (
    Mutations,
    Refused,
    functional,
    storages,
)
from tilevm.frontends.torch_ops import Tensor, Unsupported, takes
from tilevm.frontends.torch_sizes import Sizes, Untranslatable
from tilevm.frontends.torch_transforms import is_complex, row_of
from tilevm.ir.types import MAX_RANK
from tilevm.runtime import program as runtime

if TYPE_CHECKING:
    from tilevm.frontends.torch_masks import Chosen
    from tilevm.frontends.torch_program import Captured

# Checks that export and make_fx leave in the graph; shape guards say the same.
ASSERTIONS = {
    "aten._assert_tensor_metadata.default",
    "aten._assert_async.msg",
    "aten._assert_scalar.default",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
}
_ITEM = {"aten.item.default", "aten._local_scalar_dense.default"}
# Arithmetic of floats in expressions of sizes: sympy's name, the table's.
_FLOATS = {
    "FloatTrueDiv": "div", "IntTrueDiv": "div", "FloatPow": "pow", "Mul": "mul", "Add": "add",
}  # fmt: skip
_STATE = {"_set_grad_enabled", "_enter_autocast", "_exit_autocast"}


class Unify(Exception):
    """Start again with two symbols as one; a guard will say that they are equal."""

    def __init__(self, gone: sympy.Symbol, kept: sympy.Symbol) -> None:
        super().__init__(gone, kept)
        self.gone, self.kept = gone, kept


# Where no line is the user's.
LIBRARY = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parents[1]}{os.sep}", "<")


def line_of(node: torch.fx.Node) -> str | None:
    """`model.py:41`: the innermost frame of the user's code, or of PyTorch's if there is none.

    In a module of another one: `model.py:41 in layers.0.norm`.
    """
    trace = node.meta.get("stack_trace")
    if not trace:
        return None
    frames = [frame.partition('", line ') for frame in trace.split('File "')[1:]]
    if not frames:
        return None
    users = [frame for frame in frames if not frame[0].startswith(LIBRARY)]
    path, _, rest = (users or frames)[-1]
    place = place_of(path, rest.partition(",")[0].partition("\n")[0])
    module = _module_of(node)
    return f"{place} in {module}" if module else place


# What is called, which `torch_exported.Call` and Dynamo have under a name.
_ROOT = re.compile(r"m_module(\b\.?|_)|m_|L\['\w+'\]\.?|")


def _module_of(node: torch.fx.Node) -> str:
    """The path of the innermost module whose `forward` made it; empty: that which was called."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    return _ROOT.sub("", str(next(reversed(stack.values()))[0]), count=1)


def place_of(path: str, line: int | str) -> str:
    """`model.py:41`."""
    return f"{path.rpartition('/')[2]}:{line}"


class Importer:
    """Translates one graph, node by node. What `torch_ops` rows see as `b`."""

    def __init__(
        self,
        graph: torch.fx.Graph,
        sizes: Sizes,
        *,
        may_unify: bool,
        compile_inner: Callable[[torch.fx.Graph, list[Any], set[int]], Captured],
    ) -> None:
        self.graph = graph
        self.compile_inner = compile_inner
        self.may_unify = may_unify
        self.sizes = sizes
        self.program = runtime.new_program()
        self.result = Imported(self.program)
        self.values: dict[torch.fx.Node, Any] = {}
        self.targets: dict[torch.fx.Node, torch.fx.Node] = {}  # result: the input it is written to
        self.items: set[int] = set()  # values that are floats read from tensors
        self.replaced: dict[torch.fx.Node, torch.fx.Node] = {}
        self.complex_values: set[int] = set()  # values that are pairs, of complex tensors
        self.unchanged: set[torch.fx.Node] = set()  # inputs whose elements do not change
        self.is_gradient = False  # numbers are computed by PyTorch's formulas, not by Python
        self.ints_of_call: set[str] = set()  # of a gradient, whose own are sizes as well
        self.makes_views = False  # results that share memory with an input: the program has them
        self.arguments_of_calls: Collection[int] = ()  # inputs of which guards may ask anything
        self.given: dict[int, int] = {}  # the memory of all inputs, and whose it is
        self.given_back: set[int] = set()  # values of call-outs that are views of inputs
        self.n_given = 0  # inputs of the graph, with its constants
        self.constants: list[tuple[torch.Tensor, int]] = []  # of graphs inside, and their values
        self.iotas: dict[int, tuple[Any, int]] = {}  # value: (size, dim) of 0, 1, ... along dim
        self.chosen: dict[int, Chosen] = {}  # by the mask
        # Of templates: values, and what none of their elements is above.
        self.limits: list[tuple[int, float]] | None = None
        self.line: str | None = None
        self.node: torch.fx.Node | None = None
        self._last_place: tuple[str | None, dict[str, Any] | None] = (None, None)
        self._last_line: str | None = None

    # What rows call -----------------------------------------------------------------------------

    def add(self, op: str, *inputs: int, **params: Any) -> int:
        """Append an operator of the table."""
        return self.program.add(op, inputs, params, self.line)

    def number(self, value: Any) -> int:
        """A Python number, or a size, as a weak scalar."""
        symbolic = isinstance(value, torch.SymInt | torch.SymFloat)
        if symbolic and not self.is_gradient and torch_data.is_number(self, value):
            torch_data.check_number(self, value.node.expr)
        if isinstance(value, torch.SymInt):
            return self.add("size_value", size=self.size(value))
        if isinstance(value, torch.SymFloat):
            return self.float_of(value.node.expr)
        if isinstance(value, torch.SymBool | complex):
            raise Unsupported(f"an argument is a {type(value).__name__}")
        return self.add("scalar", value=value)

    def float_of(self, expr: Any, wide: bool = False) -> int:
        """A float computed from sizes and from floats that calls bring, as a weak scalar.

        wide: in float64, as Python computes.
        """
        of = functools.partial(self.float_of, wide=wide)
        known = self.values.get(expr)
        if known is not None:
            return self.cast(int(known), torch.float64) if wide else int(known)
        if expr.is_number:
            return self.add("scalar", value=float(expr))
        kind = type(expr).__name__
        if expr.is_integer or kind == "ToFloat":
            return self.add("size_value", size=self.size(expr if expr.is_integer else expr.args[0]))
        if kind == "OpaqueUnaryFn_sqrt":
            return self.add("sqrt", of(expr.args[0]))
        op = _FLOATS.get(kind)
        if op is None:
            raise Unsupported(f"an argument is {expr}")
        if op == "pow" and abs(expr.args[1]) == 0.5:
            root = self.add("sqrt", of(expr.args[0]))
            return root if expr.args[1] > 0 else self.add("reciprocal", root)
        first, *rest = map(of, expr.args)
        return functools.reduce(lambda x, y: self.add(op, x, y), rest, first)

    def operand(self, value: Any) -> int:
        """A tensor or a number as a value of the program."""
        return value.id if isinstance(value, Tensor) else self.number(value)

    def size(self, value: Any) -> int | str:
        """A Python int or SymInt as the core takes it."""
        try:
            return self.sizes.text(value)
        except Untranslatable:
            if not torch_data.compute(self, value):
                raise
            return self.sizes.text(value)

    def shape(self, sizes: Iterable[Any]) -> list[int | str]:
        """Sizes as the core takes them."""
        return [s if type(s) is int else self.size(s) for s in sizes]

    def held_shape(self, value: torch.Tensor) -> list[int | str]:
        """Sizes of what holds a tensor: one more for the parts of complex numbers."""
        return [*self.shape(value.shape), *([2] if is_complex(value) else [])]

    def dtype(self, value: int) -> str:
        """Name of the dtype of a value."""
        return self.program.type(value)[0]

    def cast(self, value: int, dtype: torch.dtype) -> int:
        """`value` as dtype; the same value if it is that already."""
        name = short_name(dtype)
        kind, weak, _ = self.program.type(value)
        return value if kind == name and not weak else self.add("cast", value, dtype=name)

    def used(self, index: int) -> bool:
        """Whether result `index` of the current node is used."""
        assert self.node is not None
        return any(
            user.target is not operator.getitem or (user.args[1] == index and user.users)
            for user in self.node.users
        )

    def constant(self, tensor: torch.Tensor) -> int:
        """A tensor that a graph inside holds, as an input of this one that nobody passes."""
        for known, value in self.constants:
            if known is tensor:
                return value
        value = self.program.input(short_name(tensor.dtype), self.held_shape(tensor))
        self.result.input_names.append(f"constant{len(self.constants)}")
        self.result.memory[0].append(next(iter(storages(tensor)), id(tensor)))
        self.result.passed.append(self.n_given + len(self.constants))
        self.constants.append((tensor, value))
        return value

    def is_given(self, value: torch.Tensor) -> bool:
        """Whether a tensor shares memory with an input."""
        return any(memory in self.given for memory in storages(value))

    def same(self, value: torch.Tensor, x: Tensor) -> None:
        """Raise Unsupported if `value` is a copy of a view of an input that PyTorch made."""
        if x.id in self.given_back and storages(value) != storages(x.fake):
            raise Unsupported("a copy of a view that PyTorch made")

    def need_start(self, value: torch.Tensor) -> None:
        """Record that the graph is right only if the tensor's memory begins where it does.

        Raises: Unsupported, if nobody would check that of an input.
        """
        offset = value.storage_offset()
        places = {self.given[memory] for memory in storages(value) if memory in self.given}
        if not isinstance(offset, int) or offset or not places <= set(self.arguments_of_calls):
            raise Unsupported("a part of memory")
        self.result.from_start |= places

    def not_one(self, size: Any) -> None:
        """Record that the graph is right only if `size` is not 1."""
        if not isinstance(size, torch.SymInt):
            return
        if self.sizes.depends_on_data(size):
            torch_data.require(
                self, sympy.Ne(self.sizes.expr(size), 1), "a size that depends on data is 1"
            )
        else:
            self.result.assumed.append((self.sizes.expr(size), "!= 1"))

    def at_least(self, size: Any, least: int) -> None:
        """Record that the graph is right only if `size` is `least` or more."""
        if isinstance(size, torch.SymInt):
            expr = self.sizes.expr(size)
            if self.sizes.depends_on_data(size):
                torch_data.require(self, sympy.Ge(expr, least), f"{expr} must be at least {least}")
                return
            self.sizes.learn_least(expr, least)
            self.result.assumed.append((expr, f">= {least}"))

    def is_negative(self, number: Any) -> bool:
        """Whether an int is below 0; if it is not known, as in the example, by a guard."""
        if isinstance(number, int):
            return number < 0
        if self.sizes.depends_on_data(number):
            self.at_least(number, 0)
            return False
        if number.node.hint < 0:
            self.at_least(-number, 1)
            return True
        self.at_least(number, 0)
        return False

    def same_size(self, a: Any, b: Any) -> bool:
        """Whether two sizes are equal; may make it so, by a guard."""
        if self.size(a) == self.size(b):
            return True
        if self.may_unify and isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
            one, other = self.sizes.expr(a), self.sizes.expr(b)
            if isinstance(one, sympy.Symbol) and isinstance(other, sympy.Symbol):
                if a.node.hint == b.node.hint is not None:
                    raise Unify(other, one)
        return False

    def must_fit(self, value: Any, dtype: torch.dtype) -> None:
        """Record that the graph is right only if a number is one of a dtype of integers."""
        torch_data.must_fit(self, value, dtype)

    def call_out(
        self, target: OpOverload, name: str, arguments: list[Any], value: Any, reason: str
    ) -> Any:
        """Leave the operator to PyTorch."""
        return torch_callouts.call_out(self, target, name, arguments, value, reason)

    # Nodes --------------------------------------------------------------------------------------

    def inputs(self, placeholders: Sequence[torch.fx.Node], values: Sequence[Any]) -> None:
        """Append the graph's inputs; `values` are their FakeTensors, SymInts and numbers."""
        result = self.result
        self.n_given = len(placeholders)
        for name, low, high, multiple in self.sizes.symbols():
            self.program.symbol(name, low, high, multiple)
        for place, (node, value) in enumerate(zip(placeholders, values, strict=True)):
            index = len(result.input_names)
            if isinstance(value, torch.Tensor):
                if (item := _float_of(node, value)) is not None:
                    result.float_inputs.append(index)
                    number = self.program.input("float64", [], True)
                    self.values[item.node.expr] = number
                    self.values[node] = number
                elif torch_tokens.is_token(node):
                    continue
                else:
                    self.check(value)
                    number = self.program.input(short_name(value.dtype), self.held_shape(value))
                    self.values[node] = Tensor(number, value)
                    if is_complex(value):
                        self.complex_values.add(number)
                        result.complex_inputs.append(index)
            elif isinstance(value, FloatInput):
                self.values[node] = self.program.input("float64", [], True)
            elif isinstance(value, torch.SymFloat):
                number = self.program.input("float64", [], True)
                self.values[value.node.expr] = number
            elif isinstance(value, torch.SymInt | int) and not isinstance(value, bool):
                number = self.program.input("int64", [], True)
                text = self.size(value)
                if isinstance(text, str) and text.isidentifier():
                    result.int_symbols[index] = text
            else:
                continue
            result.memory[0].append(memory_of(value, node))
            self.given.update(dict.fromkeys(storages(value), place))
            result.input_names.append(node.name)
            result.passed.append(place)

    def check(self, value: torch.Tensor) -> None:
        """Raise Refused for a tensor that programs cannot hold."""
        if value.device.type != "cpu":
            raise Refused(f"a tensor is on {value.device.type}")
        if value.layout is not torch.strided:
            raise Refused(f"a tensor is {value.layout}")
        rank = value.dim() + is_complex(value)
        if rank > MAX_RANK:
            raise Refused(f"a tensor has rank {rank}, more than {MAX_RANK}")

    def run(self) -> None:
        """Translate all nodes but inputs and outputs."""
        mutations = Mutations(self.graph)
        for node in self.graph.nodes:
            if node.op == "call_function":
                self.visit(node, mutations)
            elif node.op == "get_attr":
                value = operator.attrgetter(node.target)(self.graph.owning_module)
                if isinstance(value, torch.fx.GraphModule):
                    self.values[node] = value
                elif node not in self.values and node.users:
                    raise Refused(f"the graph has a constant that is no tensor: {node.target}")
            elif node.op not in ("placeholder", "output"):
                raise Refused(f"the graph has a {node.op}: {node.target}")

    def visit(self, node: torch.fx.Node, mutations: Mutations) -> None:
        """Translate a call."""
        target = node.target
        if target is operator.getitem:
            source = self.values.get(self.resolve(node.args[0]))
            if source is not None:
                self.values[node] = source[node.args[1]]
            return
        value = node.meta.get("val")
        if str(target) in _ITEM:
            self.line = line_of(node)
            torch_data.read_item(self, node, value)
            return
        if isinstance(value, torch.SymInt | int | torch.SymBool | bool | torch.SymFloat):
            return  # users read the metadata
        if isinstance(target, HigherOrderOperator):
            self.node, self.line = node, line_of(node)
            torch_data.bring(self, node)
            if target is torch_tokens.with_effects:
                self.values[node] = torch_tokens.call(self, node, value)
                return
            arguments = [self.held(argument) for argument in node.args]
            results = torch_branches.branch(self, target.__name__, arguments, value)
            self.values[node] = tuple(results)
            return
        if not isinstance(target, OpOverload):
            if getattr(target, "__name__", "") in _STATE:
                return
            raise Refused(f"the graph calls {getattr(target, '__name__', target)}")
        name = str(target)
        if name in ASSERTIONS:
            torch_data.check_assertion(self, node)
            return
        if value is None:
            if target._schema.returns and not (node.users or node.is_impure()):
                return  # a dtype, asked for while it was traced
            raise Refused(f"{name} returns nothing")
        self.node = node
        place = node.meta.get("stack_trace"), node.meta.get("nn_module_stack")
        if place[0] is not self._last_place[0] or place[1] != self._last_place[1]:
            self._last_place = place
            self._last_line = line_of(node)
        self.line = self._last_line
        if target._schema.is_mutable:
            mutations.check(node)
            target, name = functional(target)
        arguments = self.arguments(target, node.args, node.kwargs)
        tensors = value if isinstance(value, tuple | list) else (value,)
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                self.check(tensor)
        self.result.draws |= torch.Tag.nondeterministic_seeded in target.tags
        self.result.brings |= torch.Tag.dynamic_output_shape in target.tags
        results = self.lower(target, name, arguments, value)
        self.values[node] = results
        if node.target is not target:
            self.replaced[mutations.mutated(node)] = node

    def resolve(self, node: Any) -> Any:
        """The node that holds what `node` holds now, after in-place operators."""
        while node in self.replaced:
            node = self.replaced[node]
        return node

    def lower(self, target: OpOverload, name: str, arguments: list[Any], value: Any) -> Any:
        """Apply the operator's row, or call out."""
        try:
            row = row_of(name, _tensors([arguments, value]))
            assert self.node is not None
            symbols = torch_data.brought(self.node)
            counts = name in torch_data.COUNTING
            if symbols and not counts and not torch_data.infers(self, name, arguments):
                raise Unsupported("its size depends on data")
            if row is None:
                raise Unsupported("not in the table of operators")
            for tensor in _tensors([arguments, value]):
                if short_name(tensor.dtype) == "opaque":
                    raise Unsupported(f"dtype {str(tensor.dtype)[6:]}")
            if not takes(name, [x.dtype for x in _tensors(arguments)]):
                raise Unsupported("PyTorch has none of these dtypes")
            out = row(self, value, *arguments)
            for symbol in [] if counts else symbols:
                torch_data.define(self, symbol, value, out)
            if not symbols:
                torch_data.check_slice(self, name, arguments, value, out)
        except (Unsupported, Untranslatable, ShapeError, DTypeError) as reason:
            return self.call_out(target, name, arguments, value, str(reason))
        if isinstance(out, tuple):
            return tuple(
                v if v is None or isinstance(v, Tensor) else self.finish(v, f)
                for v, f in zip(out, value, strict=True)
            )
        return out if isinstance(out, Tensor) else self.finish(out, value)

    def finish(self, value: int, fake: torch.Tensor) -> Tensor:
        """PyTorch's metadata is the truth: cast and shape where inference says otherwise."""
        kind, weak, shape = self.program.type(value)
        if weak or kind != short_name(fake.dtype):
            value = self.add("cast", value, dtype=short_name(fake.dtype))
        if len(shape) != fake.dim():
            raise ShapeError(f"{self.line}: inferred rank {len(shape)}, PyTorch says {fake.dim()}")
        return Tensor(value, fake)

    def arguments(
        self, target: OpOverload, given: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """Arguments in the schema's order, defaults filled in, nodes replaced by what they hold."""
        filled: list[Any] = []
        for position, argument in enumerate(target._schema.arguments):
            if position < len(given):
                filled.append(self.held(given[position]))
            elif argument.name in kwargs:
                filled.append(self.held(kwargs[argument.name]))
            else:
                filled.append(argument.default_value if argument.has_default_value() else None)
        return filled

    def held(self, argument: Any) -> Any:
        """What an argument of a node stands for."""
        if isinstance(argument, torch.fx.Node):
            node = self.resolve(argument)
            value = self.values.get(node)
            if isinstance(value, Tensor | tuple | torch.fx.GraphModule):
                return value
            known = node.meta.get("val")
            if isinstance(known, torch.SymInt | torch.SymFloat | torch.SymBool | int | float):
                return known
            raise Refused(f"{node} has no value")
        if isinstance(argument, list | tuple):
            return [self.held(item) for item in argument]
        return argument


def _float_of(node: torch.fx.Node, value: torch.Tensor) -> torch.SymFloat | None:
    """The float that Dynamo has put this input in the place of: the graph only reads its item.

    Any tensor of a number has a memo of its item, if somebody asked.
    """
    item = getattr(value, "item_memo", None)
    only = all(str(user.target) in _ITEM for user in node.users)
    return item if only and isinstance(item, torch.SymFloat) else None


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value.fake
        elif isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)

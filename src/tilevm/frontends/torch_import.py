"""FX graphs of ATen operators, with FakeTensor metadata, as programs of the core."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sympy  # type: ignore[import-untyped]  # has no types
import torch
import torch.fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from tilevm.errors import DTypeError, ShapeError
from tilevm.frontends import torch_branches, torch_complex, torch_data, torch_tokens
from tilevm.frontends.torch_memory import (
    Mutations,
    Refused,
    functional,
    may_alias,
    storages,
    view_of,
)
from tilevm.frontends.torch_ops import Tensor, Unsupported
from tilevm.frontends.torch_sizes import MODULES, Sizes, Untranslatable
from tilevm.frontends.torch_transforms import PARTS, is_complex, row_of
from tilevm.frontends.torch_views import squeezed
from tilevm.ir.types import DTYPES
from tilevm.runtime import program as runtime

MAX_RANK = 8

# C functions with the operator's signature that are quicker to call than the OpOverload.
FAST: dict[str, Callable[..., Any]] = {
    "aten.mm.default": torch.mm,
    "aten.bmm.default": torch.bmm,
    "aten.addmm.default": torch.addmm,
    "aten.baddbmm.default": torch.baddbmm,
    "aten.matmul.default": torch.matmul,
    "aten.linear.default": torch._C._nn.linear,
    "aten.scaled_dot_product_attention.default": torch._C._nn.scaled_dot_product_attention,
    "aten.cumsum.default": torch.cumsum,
    "aten.sort.default": torch.sort,
    "aten.topk.default": torch.topk,
}

# Called out by design: the reason is always the same.
BY_DESIGN = {
    "_scaled_dot_product_flash_attention_for_cpu_backward": "gradient of attention",
}

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


class FloatInput:
    """Stands for an input that is a Python float: the graph has a tensor and reads its item."""


@dataclass(frozen=True)
class CallOut:
    """An operator that stays PyTorch's: which, why, where."""

    name: str
    reason: str
    line: str | None


@dataclass
class Imported:
    """A program and what calling it takes.

    `memory`: for each input and each output of the program, what identifies the memory that it has
    in eager code.
    `written`: per output of the program the input of the graph that it is written to, or -1.
    `outputs`: per output of the graph, an index into the program's outputs, or a View of an input,
    or ("size", expression), a Python int, or ("item", index), an output that is a Python number, or
    ("conj", index), of which it is the conjugate, or ("const", value).
    """

    program: runtime.Program | None
    targets: list[Callable[..., Any]] = field(default_factory=list)
    callouts: list[CallOut] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    orders: list[Sequence[int] | None] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    complex_inputs: list[int] = field(default_factory=list)  # which of the program are complex
    complex_outputs: list[int] = field(default_factory=list)
    memory: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    int_symbols: dict[int, str] = field(default_factory=dict)
    float_inputs: list[int] = field(default_factory=list)
    input_names: list[str] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)  # which inputs of the graph the program has
    assumed: list[tuple[Any, str]] = field(default_factory=list)  # expression, test: (s, "!= 1")
    draws: bool = False  # whether it draws random numbers
    brings: bool = False  # whether data bring sizes
    pinned: list[str] = field(default_factory=list)  # what calls check of sizes of data

    def compile(
        self,
        knobs: Mapping[str, Any],
        frozen: Collection[int] = (),
        detached: bool = False,
        apart: bool = False,
    ) -> Callable[..., Any]:
        """The executable, with these knobs of its own. The program is used up.

        frozen: inputs of the graph whose elements do not change. detached: results that share
        memory are no views of each other, as autograd sees it. apart: inputs that are written
        must share no memory with others.
        """
        program, self.program = self.program, None
        assert program is not None
        number: dict[int, int] = {}
        places = {place: i for i, place in enumerate(self.passed)}
        groups = [[number.setdefault(m, len(number)) for m in side] for side in self.memory]
        # The core tries PyTorch's functions when it first needs them: on real tensors.
        with _disable_current_modes():
            return runtime.compile_program(
                program,
                self.targets,
                framework="torch",
                input_names=self.input_names,
                int_symbols=self.int_symbols,
                output_orders=self.orders,
                whole_outputs=self.whole,
                memory_groups=(groups[0], groups[1]),
                frozen=[i for i, place in enumerate(self.passed) if place in frozen],
                written_to=[places.get(place, -1) for place in self.written],
                apart=apart,
                complex_inputs=self.complex_inputs,
                complex_outputs=self.complex_outputs,
                detached=detached,
                **knobs,
            )


def short_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32, and for its pairs; `opaque` for what kernels do not know."""
    name = str(PARTS.get(dtype, dtype))[6:]
    return name if name in DTYPES else "opaque"


_LIBRARY = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


def line_of(node: torch.fx.Node) -> str | None:
    """`model.py:41`: the innermost frame of the user's code, or of PyTorch's if there is none."""
    trace = node.meta.get("stack_trace")
    if not trace:
        return None
    frames = [frame.partition('", line ') for frame in trace.split('File "')[1:]]
    if not frames:
        return None
    users = [frame for frame in frames if not frame[0].startswith(_LIBRARY)]
    path, _, rest = (users or frames)[-1]
    return f"{path.rpartition('/')[2]}:{rest.partition(',')[0].partition(chr(10))[0]}"


def hints(sizes: Iterable[Any]) -> list[int]:
    """Sizes as they are in the example; adds no guard."""
    return [s if isinstance(s, int) else int(s.node.hint) for s in sizes]


def order_of(value: torch.Tensor) -> list[int] | None:
    """Dims outermost to innermost if the layout is dense, else None."""
    try:
        shape, strides = hints(value.shape), hints(value.stride())
    except (AttributeError, TypeError):
        return None
    dims = [d for d, n in enumerate(shape) if n != 1]
    order = sorted(dims, key=lambda d: -strides[d])
    expected = 1
    for d in reversed(order):
        if strides[d] != expected:
            return None
        expected *= shape[d]
    if order == dims:
        return list(range(len(shape)))
    inner = set(order)
    return [d for d in range(len(shape)) if d not in inner] + order


class Importer:
    """Translates one graph, node by node. What `torch_ops` rows see as `b`."""

    def __init__(
        self,
        graph: torch.fx.Graph,
        sizes: Sizes,
        *,
        may_unify: bool,
        compile_inner: Callable[[torch.fx.Graph, list[Any]], Callable[..., Any]],
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
        self.iotas: dict[int, tuple[Any, int]] = {}  # value: (size, dim) of 0, 1, ... along dim
        self.line: str | None = None
        self.node: torch.fx.Node | None = None
        self._last_trace: tuple[str | None, str | None] = (None, None)

    # What rows call -----------------------------------------------------------------------------

    def add(self, op: str, *inputs: int, **params: Any) -> int:
        """Append an operator of the table."""
        return self.program.add(op, inputs, params, self.line)

    def number(self, value: Any) -> int:
        """A Python number, or a size, as a weak scalar."""
        if isinstance(value, torch.SymInt | torch.SymFloat) and torch_data.is_number(self, value):
            torch_data.check_number(self, value.node.expr)
        if isinstance(value, torch.SymInt):
            return self.add("size_value", size=self.size(value))
        if isinstance(value, torch.SymFloat):
            return self.float_of(value.node.expr)
        if isinstance(value, torch.SymBool | complex):
            raise Unsupported(f"an argument is a {type(value).__name__}")
        return self.add("scalar", value=value)

    def float_of(self, expr: Any) -> int:
        """A float computed from sizes and from floats that calls bring, as a weak scalar."""
        known = self.values.get(expr)
        if known is not None:
            return int(known)
        if expr.is_number:
            return self.add("scalar", value=float(expr))
        kind = type(expr).__name__
        if expr.is_integer or kind == "ToFloat":
            return self.add("size_value", size=self.size(expr if expr.is_integer else expr.args[0]))
        if kind == "OpaqueUnaryFn_sqrt":
            return self.add("sqrt", self.float_of(expr.args[0]))
        op = _FLOATS.get(kind)
        if op is None:
            raise Unsupported(f"an argument is {expr}")
        if op == "pow" and abs(expr.args[1]) == 0.5:
            root = self.add("sqrt", self.float_of(expr.args[0]))
            return root if expr.args[1] > 0 else self.add("reciprocal", root)
        first, *rest = map(self.float_of, expr.args)
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

    # Nodes --------------------------------------------------------------------------------------

    def inputs(self, placeholders: Sequence[torch.fx.Node], values: Sequence[Any]) -> None:
        """Append the graph's inputs; `values` are their FakeTensors, SymInts and numbers."""
        result = self.result
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
            raise Refused(f"{name} returns nothing")
        self.node = node
        trace = node.meta.get("stack_trace")
        if trace is not self._last_trace[0]:
            self._last_trace = (trace, line_of(node))
        self.line = self._last_trace[1]
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
                raise Unsupported(
                    BY_DESIGN.get(target._schema.name[6:], "not in the table of operators")
                )
            for tensor in _tensors([arguments, value]):
                if short_name(tensor.dtype) == "opaque":
                    raise Unsupported(f"dtype {str(tensor.dtype)[6:]}")
            out = row(self, value, *arguments)
            for symbol in [] if counts else symbols:
                torch_data.define(self, symbol, value, out)
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

    # Call-outs ----------------------------------------------------------------------------------

    def call_out(
        self, target: OpOverload, name: str, arguments: list[Any], value: Any, reason: str
    ) -> Any:
        """Leave the operator to PyTorch."""
        assert self.node is not None
        torch_data.bring(self, self.node)
        several = isinstance(value, tuple | list)
        fakes = list(value) if several else [value]
        present = [i for i, fake in enumerate(fakes) if fake is not None]
        if target._schema.name == "aten::squeeze":
            squeezed(self, *arguments)  # its rank depends on sizes, whoever runs it
        function, inputs = self.bind(target, name, arguments)
        if isinstance(value, list) or len(present) < len(fakes):
            function = _as_tuple(function, present)
        made = iter(self.call(function, name, reason, inputs, [fakes[i] for i in present]))
        results = tuple(None if fake is None else next(made) for fake in fakes)
        return results if several else results[0]

    def call(
        self,
        function: Callable[..., Any],
        name: str,
        reason: str,
        inputs: list[int],
        fakes: list[Any],
    ) -> list[Tensor]:
        """Append a call-out to `function`, whose results are like `fakes`."""
        if not all(isinstance(fake, torch.Tensor) for fake in fakes):
            raise Refused(f"{name} returns something that is not a tensor")
        types = [(short_name(f.dtype), False, tuple(self.held_shape(f))) for f in fakes]
        self.result.callouts.append(CallOut(name, reason, self.line))
        first = self.program.call(len(self.result.targets), inputs, types)
        given = [i for i, value in enumerate(inputs) if value in self.complex_values]
        made = [i for i, fake in enumerate(fakes) if is_complex(fake)]
        self.result.targets.append(torch_complex.around(function, name, given, made))
        self.complex_values.update(first + i for i in made)
        return [Tensor(first + i, fake) for i, fake in enumerate(fakes)]

    def bind(
        self, target: OpOverload, name: str, arguments: list[Any]
    ) -> tuple[Callable[..., Any], list[int]]:
        """A function of the values in order that calls `target`, and the values.

        The function is PyTorch's own where the arguments are just the tensors.
        """
        schema = target._schema.arguments
        function = FAST.get(name, target)
        last = len(arguments)
        while last and schema[last - 1].has_default_value():
            default = schema[last - 1].default_value
            if arguments[last - 1] is not default and not _same(arguments[last - 1], default):
                break
            last -= 1
        inputs: list[int] = []
        constants: dict[str, Any] = {"f": function, **MODULES}
        parts: list[str] = []
        plain = True
        for argument, given in zip(schema[:last], arguments, strict=False):
            if argument.has_default_value() and _same(given, argument.default_value):
                if argument.kwarg_only:
                    continue
            elif isinstance(given, Tensor) and not argument.kwarg_only:
                inputs.append(given.id)
                parts.append(f"a{len(inputs) - 1}")
                continue
            plain = False
            text = self.source(given, inputs, constants)
            parts.append(f"{argument.name}={text}" if argument.kwarg_only else text)
        if plain:
            return function, inputs
        names = ", ".join(f"a{i}" for i in range(len(inputs)))
        bound = eval(f"lambda {names}: f({', '.join(parts)})", constants)
        bound.__name__ = bound.__qualname__ = name
        return bound, inputs

    def source(self, given: Any, inputs: list[int], constants: dict[str, Any]) -> str:
        """Python source of an argument of a call-out; values it needs are appended to `inputs`."""
        if isinstance(given, Tensor):
            inputs.append(given.id)
            return f"a{len(inputs) - 1}"
        if isinstance(given, list | tuple):
            return f"[{', '.join(self.source(item, inputs, constants) for item in given)}]"
        if isinstance(given, torch.SymInt):
            text = self.size(given)
            if isinstance(text, int):
                return str(text)
            inputs.append(self.number(given))
            return f"int(a{len(inputs) - 1})"
        if isinstance(given, torch.SymFloat):
            return f"float({self.computed(given, inputs)})"
        if isinstance(given, torch.SymBool):
            return self.computed(given, inputs)
        if isinstance(given, bool | int) or given is None:
            return repr(given)
        constants[f"c{len(constants)}"] = given
        return f"c{len(constants) - 1}"

    def computed(self, given: Any, inputs: list[int]) -> str:
        """A float or bool computed from sizes, as Python source."""
        names: dict[Any, str] = {}
        for symbol in given.node.expr.free_symbols:
            known = self.values.get(symbol)
            size = self.sizes.symbol_text(symbol) if known is None else None
            inputs.append(int(known) if known is not None else self.add("size_value", size=size))
            names[symbol] = f"a{len(inputs) - 1}"
        return self.sizes.python(given.node.expr, names)


def _as_tuple(function: Callable[..., Any], present: Sequence[int]) -> Callable[..., Any]:
    """The same with a tuple of those results; the others are None."""

    def as_tuple(*values: Any) -> tuple[Any, ...]:
        results = function(*values)
        return tuple(results[i] for i in present)

    as_tuple.__name__ = getattr(function, "__name__", "call")
    return as_tuple


def _same(a: Any, b: Any) -> bool:
    """Whether an argument has its default's value."""
    if isinstance(a, Tensor | torch.SymInt | torch.SymFloat | torch.SymBool):
        return False
    return type(a) is type(b) and bool(a == b)


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


def _source(node: torch.fx.Node) -> Any:
    """Metadata of a node's first argument."""
    return node.args[0].meta["val"] if isinstance(node.args[0], torch.fx.Node) else None


def memory_of(value: Any, node: torch.fx.Node) -> int:
    """What identifies the memory of a value; `node` where it has none to share."""
    return next(iter(storages(value)), id(node))


def outputs(
    importer: Importer,
    results: Sequence[Any],
    views: bool = True,
    writes: Mapping[int, int] | None = None,
    ordered: int | None = None,
) -> None:
    """Append the graph's outputs. With `views`, those that alias an input stay views of it.

    writes: results, by index, that are written to an input. ordered: how many results have to lie
    in memory as in eager code; None: all.
    """
    result = importer.result
    places = {node: i for i, node in enumerate(importer.graph.find_nodes(op="placeholder"))}
    given = {m for node in places for m in storages(node.meta.get("val"))}
    seen: dict[tuple[int, int], int] = {}
    for position, item in enumerate(results):
        target = (writes or {}).get(position, -1)
        if not isinstance(item, torch.fx.Node):
            result.outputs.append(("const", item))
            continue
        node = importer.resolve(item)
        view = view_of(importer, node, places) if views else None
        if view is not None:
            result.outputs.append(view)
            continue
        value = importer.values.get(node)
        if isinstance(value, Tensor):
            # Not the value's own metadata: a copy is the same value with memory of its own.
            fake = node.meta["val"]
            if short_name(fake.dtype) == "opaque":
                target = -1  # the core does not know how large its elements are
            lazily = is_complex(fake) and fake.is_conj() and target < 0
            if lazily:  # in memory as in eager code, which conjugates when elements are read
                value = torch_complex.conj(importer, fake, value)
            memory = memory_of(fake, node)
            if views and memory in given:
                raise Refused(f"a result is a view of an input that {node.target} makes")
            if views and may_alias(node) and given.intersection(storages(_source(node))):
                for size in _source(node).shape:  # with a size of 1 it may be no copy
                    importer.not_one(size)
            place = (value.id, memory if target < 0 else ~target)
            if place not in seen:
                if is_complex(fake):
                    result.complex_outputs.append(len(seen))
                seen[place] = len(seen)
                importer.program.output(value.id)
                result.memory[1].append(memory)
                asked = ordered is None or position < ordered
                order = order_of(fake) if asked else None
                last = [fake.dim()] if is_complex(fake) else []
                result.orders.append(None if order is None else [*order, *last])
                result.whole.append(not any(type(s) is int and s == 0 for s in fake.stride()))
                result.written.append(target)
            result.outputs.append(("conj", seen[place]) if lazily else seen[place])
            continue
        known = node.meta.get("val")
        if isinstance(known, torch.SymInt | torch.SymFloat) and torch_data.is_number(
            importer, known
        ):
            if isinstance(known, torch.SymFloat) and not known.node.expr.is_Symbol:
                raise torch_data.UsedInPython("a float that Python computes from data is a result")
            importer.program.output(importer.number(known))
            seen[len(seen), 0] = len(seen)  # a place of its own
            result.memory[1].append(id(node))
            result.orders.append(None)
            result.whole.append(False)
            result.written.append(-1)
            result.outputs.append(("item", len(seen) - 1))
        elif isinstance(known, torch.SymInt | torch.SymBool | torch.SymFloat):
            result.outputs.append(("size", known))
        elif isinstance(known, int | float | bool) or known is None:
            result.outputs.append(("const", known))
        else:
            raise Refused(f"output {node} is a {type(known).__name__}")

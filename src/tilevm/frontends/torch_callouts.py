"""Operators that stay PyTorch's: calls to its functions inside programs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from tilevm.frontends import torch_data
from tilevm.frontends.torch_imported import CallOut, short_name
from tilevm.frontends.torch_memory import Refused
from tilevm.frontends.torch_ops import Tensor
from tilevm.frontends.torch_sizes import MODULES
from tilevm.frontends.torch_transforms import is_complex
from tilevm.frontends.torch_views import squeezed

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

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


def call_out(
    b: Importer, target: OpOverload, name: str, arguments: list[Any], value: Any, reason: str
) -> Any:
    """Leave the operator to PyTorch."""
    assert b.node is not None
    torch_data.bring_by_call(b, b.node)
    several = isinstance(value, tuple | list)
    fakes = list(value) if several else [value]
    # Of what nobody uses, PyTorch may return nothing, as of gradients that it was not asked for.
    present = [i for i, fake in enumerate(fakes) if fake is not None and (not several or b.used(i))]
    if target._schema.name == "aten::squeeze":
        squeezed(b, *arguments)  # its rank depends on sizes, whoever runs it
    function, inputs, source = bind(b, target, name, arguments)
    if _trusts_strides(target):
        function = _in_traced_order(function, name, inputs, arguments)
    if isinstance(value, list) or len(present) < len(fakes):
        function = _as_tuple(function, present)
        source += f"[{', '.join(map(str, present)) or '()'}]"
    made = call(b, function, name, reason, inputs, [fakes[i] for i in present], source)
    results = dict(zip(present, made, strict=True))
    b.given_back |= {x.id for x in made if b.is_given(x.fake)}
    return tuple(map(results.get, range(len(fakes)))) if several else results[0]


def _trusts_strides(target: OpOverload) -> bool:
    """Whether the operator may take for granted that strides are those that were traced: of other
    libraries, what PyTorch calls itself, and what reads memory by numbers.
    """
    namespace, name = target._schema.name.split("::")
    return namespace != "aten" or name.startswith(("_", "as_strided"))


def _in_traced_order(
    function: Callable[..., Any], name: str, inputs: list[int], arguments: list[Any]
) -> Callable[..., Any]:
    """`function`, of tensors that are row-major, or have their channels last, where they were when
    it was traced. Images that convolutions make have their channels last, whatever was traced.
    """
    fakes = {x.id: x.fake for x in pytree.tree_leaves(arguments) if isinstance(x, Tensor)}
    formats = [_memory_format(fakes[i]) if i in fakes else None for i in inputs]
    if not any(formats):
        return function

    def call(*args: Any) -> Any:
        return function(
            *(
                x if form is None else x.contiguous(memory_format=form)
                for x, form in zip(args, formats, strict=True)
            )
        )

    call.__name__ = call.__qualname__ = name
    return call


def _memory_format(fake: torch.Tensor) -> torch.memory_format | None:
    if is_complex(fake) or fake.dim() < 2:
        return None
    if fake.is_contiguous():
        return torch.contiguous_format
    by_rank = {4: torch.channels_last, 5: torch.channels_last_3d}
    form = by_rank.get(fake.dim())
    return form if form and fake.is_contiguous(memory_format=form) else None


def call(
    b: Importer,
    function: Callable[..., Any],
    name: str,
    reason: str,
    inputs: list[int],
    fakes: list[Any],
    source: str = "",
) -> list[Tensor]:
    """Append a call-out to `function`, whose results are like `fakes`.

    source: as `bind` gives it; "": text cannot say what is called.
    """
    b.result.callouts.append(CallOut(name, reason, b.line))
    return append(b, function, name, inputs, fakes, source)


def append(
    b: Importer,
    function: Callable[..., Any],
    name: str,
    inputs: list[int],
    fakes: list[Any],
    source: str = "",
) -> list[Tensor]:
    """Append a step that `function` tells the meaning of, a call-out or not. As `call`."""
    if not all(isinstance(fake, torch.Tensor) for fake in fakes):
        raise Refused(f"{name} returns something that is not a tensor")
    types = [(short_name(f.dtype), False, tuple(b.held_shape(f))) for f in fakes]
    given = [i for i, value in enumerate(inputs) if value in b.complex_values]
    made = [i for i, fake in enumerate(fakes) if is_complex(fake)]
    for i in given:
        source = re.sub(rf"\ba{i}\b", f"complex(a{i})", source)
    function = _around(function, name, given, made)
    first = step(b, function, inputs, types, source or name)
    b.complex_values.update(first + i for i in made)
    return [Tensor(first + i, fake) for i, fake in enumerate(fakes)]


def _around(
    function: Callable[..., Any], name: str, given: Sequence[int], made: Sequence[int]
) -> Callable[..., Any]:
    """`function`, for arguments and results of which these are complex: outside they are pairs."""
    if not given and not made:
        return function

    def call(*args: Any) -> Any:
        values = list(args)
        for i in given:
            values[i] = _as_complex(values[i])
        results = function(*values)
        if isinstance(results, torch.Tensor):
            return torch.view_as_real(results.resolve_conj()) if made else results
        results = list(results)
        for i in made:
            results[i] = torch.view_as_real(results[i].resolve_conj())
        return tuple(results)

    call.__name__ = call.__qualname__ = name
    return call


def _as_complex(pairs: torch.Tensor) -> torch.Tensor:
    *strides, last = pairs.stride()
    if last != 1 or any(n % 2 for n in strides) or pairs.storage_offset() % 2:
        pairs = pairs.contiguous()
    return torch.view_as_complex(pairs)


def step(
    b: Importer, function: Callable[..., Any], inputs: list[int], types: list[Any], source: str
) -> int:
    """Append a step; its first value. types: dtype, whether it is weak, and sizes of each."""
    first = b.program.call(len(b.result.targets), inputs, types, ordered=_is_ordered(b.node))
    b.result.targets.append(function)
    b.result.sources.append(source)
    return first


def _is_ordered(node: torch.fx.Node | None) -> bool:
    """Whether others of its kind must not run before it: it draws random numbers, or may."""
    target = node.target if node is not None else None
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return True
    return torch.Tag.nondeterministic_seeded in target.tags


def bind(
    b: Importer, target: OpOverload, name: str, arguments: list[Any]
) -> tuple[Callable[..., Any], list[int], str]:
    """A function of the values in order that calls `target`, the values, and its source.

    The function is PyTorch's own where the arguments are just the tensors. The source is what
    `tilevm.tools.callout` reads: `aten.cumsum.default(a0, 1)`, or `aten.sort.default(a0)[1]`, where
    only some of its results are used.
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
        text = _source_of(b, given, inputs, constants)
        parts.append(f"{argument.name}={text}" if argument.kwarg_only else text)
    source = f"{name}({', '.join(parts)})"
    if plain:
        return function, inputs, source
    names = ", ".join(f"a{i}" for i in range(len(inputs)))
    bound = eval(f"lambda {names}: f({', '.join(parts)})", constants)
    bound.__name__ = bound.__qualname__ = name
    return bound, inputs, source


def _source_of(b: Importer, given: Any, inputs: list[int], constants: dict[str, Any]) -> str:
    """Python source of an argument of a call-out; values it needs are appended to `inputs`."""
    if isinstance(given, Tensor):
        inputs.append(given.id)
        return f"a{len(inputs) - 1}"
    if isinstance(given, list | tuple):
        return f"[{', '.join(_source_of(b, item, inputs, constants) for item in given)}]"
    if isinstance(given, torch.SymInt):
        text = b.size(given)
        if isinstance(text, int):
            return str(text)
        inputs.append(b.number(given))
        return f"int(a{len(inputs) - 1})"
    if isinstance(given, torch.SymFloat):
        return f"float({_computed(b, given, inputs)})"
    if isinstance(given, torch.SymBool):
        return _computed(b, given, inputs)
    if isinstance(given, bool | int | str) or given is None:
        return repr(given)
    if isinstance(given, float):
        return repr(given) if math.isfinite(given) else f"float('{given}')"
    if isinstance(given, complex):
        return f"complex({given.real!r}, {given.imag!r})"
    if isinstance(given, torch.dtype | torch.layout | torch.memory_format):
        return str(given)  # torch.float32
    if isinstance(given, torch.device):
        return f"torch.device({str(given)!r})"
    constants[f"c{len(constants)}"] = given
    return f"c{len(constants) - 1}"


def _computed(b: Importer, given: Any, inputs: list[int]) -> str:
    """A float or bool computed from sizes, as Python source."""
    names: dict[Any, str] = {}
    for symbol in given.node.expr.free_symbols:
        known = b.values.get(symbol)
        size = b.sizes.symbol_text(symbol) if known is None else None
        inputs.append(int(known) if known is not None else b.add("size_value", size=size))
        names[symbol] = f"a{len(inputs) - 1}"
    return b.sizes.python(given.node.expr, names)


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

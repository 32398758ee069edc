"""What PyTorch and Python are like while a function is traced."""

from __future__ import annotations

import functools
import importlib
import linecache
import logging
import math
import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._dynamo import config as dynamo_config
from torch._dynamo import convert_frame
from torch._subclasses import fake_impls
from torch.distributions import constraints
from torch.export import _trace
from torch.fx import _symbolic_trace, graph_module
from torch.fx.experimental import recording, sym_node, symbolic_shapes
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.nn import functional
from torch.nn.modules import transformer
from torch.utils._pytree import tree_map_only

from tilevm.config import config
from tilevm.frontends.torch_effects import FOLLOWING, Draws
from tilevm.frontends.torch_memory import Refused
from tilevm.frontends.torch_recurrent import CELLS, LAYERS
from tilevm.frontends.torch_savings import savings

# One thread at a time: a trace sets what is torch's for the whole process, and two that end in
# another order than they began would leave it set. Dynamo's traces are no different.
capturing: Any = convert_frame.compile_lock
# A forked child has no thread that would give the lock back.
os.register_at_fork(after_in_child=capturing._at_fork_reinit)
MOST_WAITING_S = 60.0  # a trace that waits for the thread that waits for it
# The modules whose parameters a trace has exchanged for its own, by id, and its thread.
_traced: tuple[frozenset[int], int] = frozenset(), 0
# One thread at a time changes what all of them see.
changing = threading.RLock()
_TORCH = str(Path(torch.__file__).parent) + os.sep  # and not torchvision
_COMPILERS = (_TORCH, str(Path(__file__).parent.parent) + os.sep)
_TESTING = str(Path(torch.__file__).parent / "testing")
os.register_at_fork(after_in_child=changing._at_fork_reinit)  # type: ignore[attr-defined]


def is_of_torch(path: str) -> bool:
    """Whether a file is PyTorch's."""
    return path.startswith(_TORCH)


def is_of_compilers(path: str) -> bool:
    """Whether a file is PyTorch's or ours."""
    return path.startswith(_COMPILERS)


@contextmanager
def export(modules: Iterable[nn.Module]) -> Iterator[None]:
    """All that holds for every trace, which goes through `modules`."""
    _import_what_draws()
    modules = list(modules)
    uncached = dynamo_config.patch(fake_tensor_cache_enabled=False)  # `savings` has another
    with _quiet(), _no_sources_kept(), _sizes_as_arguments(), _recurrent(), _more_operators():
        with _alone(modules), _of_this_thread(), _texts_of_numbers(), _without_branches(), uncached:
            with savings():
                yield


@contextmanager
def unwarned() -> Iterator[None]:
    """Without what PyTorch warns its own code of, which would be an error where warnings are."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*treespec, LeafSpec", FutureWarning)
        yield


@contextmanager
def without_errors() -> Iterator[None]:
    """PyTorch logs errors of metadata, which are no news where something else is tried then."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def unhooked() -> Iterator[None]:
    """Without the hooks on saved tensors that a call is in, as those of `checkpoint`.

    What a trace saves is nothing that the function does.
    """
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(_itself, _itself):
        yield


def _itself(x: torch.Tensor) -> torch.Tensor:
    return x


@functools.cache
def _import_what_draws() -> None:
    """PyTorch imports its examples of exports where it first explains one, and these make modules
    with random parameters.
    """
    with suppress(ImportError), torch.random.fork_rng(devices=[]):
        importlib.import_module("torch._export.db.examples")


def wait_for(modules: Iterable[nn.Module]) -> None:
    """Return when no other thread traces one of these modules."""
    traced, thread = _traced
    if traced and thread != threading.get_ident() and any(id(m) in traced for m in modules):
        if capturing.acquire(timeout=MOST_WAITING_S):
            capturing.release()


@contextmanager
def _alone(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Calls of these modules by other threads wait: they would find what the trace puts there."""
    global _traced  # noqa: PLW0603
    kind: Any = nn.Module
    call, before = kind.__call__, _traced

    @functools.wraps(call)
    def run(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling():  # of a branch of torch.cond, in this thread
            wait_for((self,))
        return call(self, *args, **kwargs)

    _traced = frozenset(map(id, modules)), threading.get_ident()
    kind.__call__ = run
    try:
        yield
    finally:
        kind.__call__ = call
        _traced = before


@contextmanager
def _of_this_thread() -> Iterator[None]:
    """Other threads call modules as ever: a trace has methods of `nn.Module` of its own."""
    patcher: Any = _symbolic_trace._Patcher
    patch, mine = patcher.patch_method, threading.get_ident()

    def patch_method(self: Any, kind: type, name: str, method: Any, **how: Any) -> None:
        before = getattr(kind, name)

        @functools.wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            chosen = method if threading.get_ident() == mine else before
            return chosen(*args, **kwargs)

        patch(self, kind, name, run, **how)

    patcher.patch_method = patch_method
    try:
        yield
    finally:
        patcher.patch_method = patch


_STANDS_FOR = "_tilevm_stands_for"


def instead(made: Any, original: Any) -> Any:
    """`made`, by which a trace replaces a function of PyTorch for a while."""
    setattr(made, _STANDS_FOR, original)
    return made


def original_of(function: Any) -> Any:
    """The function, or that of which a trace, of another thread maybe, has another in its place."""
    return getattr(function, _STANDS_FOR, function) if callable(function) else function


@contextmanager
def containers_kept(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Leave lists, dicts and their like among attributes the objects that they are.

    Export puts equal ones in their place, which others do not share.
    """
    before = [
        (held, key, value)
        for held in map(vars, modules)
        for key, value in held.items()
        if isinstance(value, list | tuple | dict | deque) and key not in FOLLOWING
    ]
    try:
        yield
    finally:
        for held, key, value in before:
            if held.get(key) is not value and type(held.get(key)) is type(value):
                held[key] = value


@contextmanager
def no_seeds() -> Iterator[None]:
    """While the function itself runs: what would set the state of random numbers raises Effects.

    No graph would have that.
    """
    names = ("manual_seed", "seed", "set_rng_state")
    modules: tuple[Any, Any] = torch, torch.random
    before = [(module, name, getattr(module, name)) for module in modules for name in names]

    mine = threading.get_ident()

    def refusing(function: Any) -> Any:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_code.co_filename
            compiler = is_of_torch(caller) and not caller.startswith(_TESTING)
            if compiler or threading.get_ident() != mine:  # Dynamo puts back what it finds
                return function(*args, **kwargs)
            raise Draws("the function sets the state of random numbers, which outlives the call")

        return refuse

    with changing:
        for module, name, function in before:
            setattr(module, name, instead(refusing(function), function))
        try:
            yield
        finally:
            for module, name, function in before:
                setattr(module, name, function)


@contextmanager
def _sizes_as_arguments() -> Iterator[None]:
    """Functions that would take a size for one number only take it as the symbol that it is.

    The square root of a size, by which attention is scaled, stays an expression. A comparison of
    sizes as `is_causal` becomes a guard.
    """
    root = math.sqrt
    attention: Any = functional.scaled_dot_product_attention

    def sqrt(x: Any, /) -> Any:
        return torch.sym_sqrt(x) if isinstance(x, torch.SymInt | torch.SymFloat) else root(x)

    def attention_of_sizes(*args: Any, **kwargs: Any) -> Any:
        values = [bool(v) if isinstance(v, torch.SymBool) else v for v in args]
        named = {k: bool(v) if isinstance(v, torch.SymBool) else v for k, v in kwargs.items()}
        return attention(*values, **named)

    modules: tuple[Any, Any] = math, functional
    instead(attention_of_sizes, attention)
    with changing, _no_sizes_beyond():
        modules[0].sqrt, modules[1].scaled_dot_product_attention = sqrt, attention_of_sizes
        symbols: tuple[Any, ...] = torch.SymInt, torch.SymFloat
        for kind in symbols:
            kind.sqrt = torch.sym_sqrt
        try:
            yield
        finally:
            modules[0].sqrt, modules[1].scaled_dot_product_attention = root, attention
            for kind in symbols:
                del kind.sqrt


@contextmanager
def _no_sizes_beyond() -> Iterator[None]:
    """Batch norm of fewer than two dims is refused, not traced.

    PyTorch reads the size of dim 1 without a look at the rank: of symbols, that is a pointer, and
    the process may die.
    """
    module: Any = torch
    whole = module.batch_norm

    def batch_norm(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if x.dim() < 2:
            raise Refused("batch norm of a tensor without channels")
        result: torch.Tensor = whole(x, *args, **kwargs)
        return result

    module.batch_norm = instead(batch_norm, whole)
    try:
        yield
    finally:
        module.batch_norm = whole


@contextmanager
def _recurrent() -> Iterator[None]:
    """Recurrent cells are traced as what they consist of, layers as one operator."""
    modules: tuple[Any, Any] = torch, torch._VF
    traced = CELLS | LAYERS
    with changing:
        before = [(module, name, getattr(module, name)) for module in modules for name in traced]
        for module, name, _ in before:
            original = getattr(torch._C._VariableFunctions, name)
            setattr(module, name, instead(traced[name], original))
        try:
            yield
        finally:
            for module, name, function in before:
                setattr(module, name, function)


def _is_causal(mask: Any, given: bool | None = None, size: Any = None) -> bool:
    """Not a look at the elements: that a mask is causal is only a hint, which need not be given."""
    return given is True


def _is_symmetric(self: Any, value: Any) -> Any:
    square = super(constraints._Symmetric, self).check(value)
    if value.shape[-2] != value.shape[-1]:
        return square
    return torch.isclose(value, value.mT, atol=1e-6).all(-2).all(-1)


def _is_positive_definite(self: Any, value: Any) -> Any:
    """Not by another way for those that are not symmetric."""
    symmetric = super(constraints._PositiveDefinite, self).check(value)
    return symmetric & torch.linalg.cholesky_ex(value).info.eq(0)


def _one_hot(*given: Any, **named: Any) -> Any:
    """In memory as eager code's, which is row-major, and not as a comparison of the classes."""
    rows = tree_map_only(torch.Tensor, torch.Tensor.contiguous, (given, named))
    return torch._C._nn.one_hot(*rows[0], **rows[1])


# Functions of PyTorch that branch on data, or on whether they are traced, and what does the same
# without.
_BRANCHES: tuple[tuple[Any, str, Any], ...] = (
    (functional, "one_hot", _one_hot),
    (transformer, "_detect_is_causal_mask", _is_causal),
    (constraints._Symmetric, "check", _is_symmetric),
    (constraints._PositiveDefinite, "check", _is_positive_definite),
)


@contextmanager
def _without_branches() -> Iterator[None]:
    """Some functions of PyTorch ask neither data nor modes."""
    with changing:
        before = [getattr(owner, name) for owner, name, _ in _BRANCHES]
        for (owner, name, made), original in zip(_BRANCHES, before, strict=True):
            setattr(owner, name, instead(made, original))
        try:
            yield
        finally:
            for (owner, name, _), original in zip(_BRANCHES, before, strict=True):
                setattr(owner, name, original)


# What symbols stand for.
PLAIN: dict[Any, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_SYMBOLIC = tuple(PLAIN)


def symbols_of_data(value: Any) -> frozenset[Any]:
    """Of what stands for a number: the symbols in it that only the data know."""
    return frozenset(free_unbacked_symbols(value) if isinstance(value, _SYMBOLIC) else ())


def _asks(symbolic: type, plain: type) -> type:
    """What `__class__` is for the code that asks: a plain number's, but for PyTorch itself.

    isinstance(n, int) is true of the numbers of a call, so it must be while that is traced.
    """
    return symbolic if is_of_torch(sys._getframe(2).f_code.co_filename) else plain


class _Int(torch.SymInt):
    @property  # type: ignore[misc]  # a class is not often a property
    def __class__(self) -> type:
        return _asks(torch.SymInt, int)


class _Float(torch.SymFloat):
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return _asks(torch.SymFloat, float)


def number(value: Any) -> Any:
    """A leaf as the function gets it."""
    kinds: dict[type, Any] = {torch.SymInt: _Int, torch.SymFloat: _Float}
    kind = kinds.get(type(value))
    return value if kind is None else kind(value.node)


@contextmanager
def _texts_of_numbers() -> Iterator[None]:
    """Texts that the function makes of symbols are those of the numbers, which the graph is for.

    It may look something up by such a text, or by the number. PyTorch and we have the symbol's.
    """
    names = ("__str__", "__repr__", "__format__", "__hash__")
    before = [(kind, name, vars(kind).get(name)) for kind in PLAIN for name in names]

    def text(kind: Any, name: str) -> Any:
        of_symbol, plain = getattr(kind, name), PLAIN[kind]
        # We put back dicts that have symbols among their keys.
        compilers = _TORCH if name == "__hash__" else _COMPILERS

        @functools.wraps(of_symbol)
        def make(self: Any, *args: Any) -> Any:
            asked_by = sys._getframe(1).f_code.co_filename
            known = self if asked_by.startswith(compilers) else plain(self)
            return (of_symbol if known is self else getattr(plain, name))(known, *args)

        return make

    with changing:
        for kind, name, _ in before:
            setattr(kind, name, text(kind, name))
        try:
            yield
        finally:
            for kind, name, method in before:
                if method is None:
                    delattr(kind, name)
                else:
                    setattr(kind, name, method)


@contextmanager
def _no_sources_kept() -> Iterator[None]:
    """Forget the source of the graphs that are made: fx keeps each for tracebacks, for ever."""
    kept: dict[str, str] = graph_module._loader.eval_cache
    before = len(kept)
    try:
        yield
    finally:
        for name in list(kept)[before:]:
            del kept[name]
            linecache.cache.pop(name, None)


@contextmanager
def sizes_from_zero() -> Iterator[None]:
    """Symbols of sizes are 0 or more while this holds.

    PyTorch calls them positive, from which sympy concludes `size != 0` without a guard: a branch
    on an empty tensor would be lost.
    """
    module: Any = symbolic_shapes
    make = module.make_symbol

    def make_symbol(kind: Any, number: int, **assumptions: Any) -> Any:
        if assumptions.pop("positive", None):
            assumptions["nonnegative"] = True
        return make(kind, number, **assumptions)

    with changing:
        module.make_symbol = make_symbol
        try:
            yield
        finally:
            module.make_symbol = make


class OtherBranch(Exception):
    """A trace goes where the call that it is for would not."""

    def __init__(self, about: frozenset[tuple[int, int]]) -> None:
        super().__init__("a branch is taken that sizes of 0 or 1 do not take")
        self.about = about


_DECIDING = tuple(str(module.__file__) for module in (torch, sym_node, symbolic_shapes, recording))


def _asks_in_torch() -> bool:
    """Whether code of PyTorch asks, or some that it generated: it may expect no error there."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if path not in _DECIDING and not path.startswith(_COMPILERS[1]):
            return path == "<string>" or is_of_torch(path)
        frame = frame.f_back
    return True


@contextmanager
def ends_at_other_branches(
    sizes: Iterable[tuple[Any, int, tuple[int, int]]],
) -> Iterator[None]:
    """A trace raises OtherBranch where its guards would not hold for the call.

    sizes: of the trace, the number that each is in the call, and which leaf's dim it is. Where a
    call has 0 or 1, its trace has other numbers.
    """
    here: dict[Any, int] = {}
    places: dict[Any, set[tuple[int, int]]] = {}
    environment: Any = None
    for size, number, place in sizes:
        if isinstance(size, torch.SymInt) and (expr := size.node.expr).is_Symbol:
            environment = size.node.shape_env
            here[expr] = number
            places.setdefault(expr, set()).add(place)
    small = {s for s, number in here.items() if number < 2}
    if not small:
        yield
        return
    kind: Any = symbolic_shapes.ShapeEnv
    evaluate = kind.evaluate_expr

    @functools.wraps(evaluate)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = len(self.guards)
        result = evaluate(self, *args, **kwargs)
        for guard in self.guards[before:] if self is environment else ():
            symbols = guard.expr.free_symbols
            if not small & symbols or not symbols <= here.keys() or _asks_in_torch():
                continue
            if guard.expr.subs({s: here[s] for s in symbols}) == False:  # noqa: E712  # sympy's
                raise OtherBranch(frozenset(p for s in small & symbols for p in places[s]))
        return result

    with changing:
        kind.evaluate_expr = checked
        try:
            yield
        finally:
            kind.evaluate_expr = evaluate


def _grouped_product(
    mode: Any, function: Any, x: Any, y: Any, ends: Any = None, bias: Any = None, dtype: Any = None
) -> Any:
    """What PyTorch's gives, without values: it knows none but bfloat16, as on GPUs."""
    if x.dtype is torch.bfloat16 or x.dtype is not y.dtype:
        return NotImplemented
    rows, columns = x.shape[-2], y.shape[-1]
    if x.dim() == 2 and y.dim() == 2:
        return x.new_empty(ends.shape[0], rows, columns)
    return x.new_empty((rows, columns) if 2 in (x.dim(), y.dim()) else (*x.shape[:-1], columns))


def _like_the_first(mode: Any, function: Any, x: Any, *others: Any, **named: Any) -> Any:
    return x.new_empty(x.shape)


# Operators that eager code computes and PyTorch cannot trace: what their results are like.
_UNKNOWN = {
    "_grouped_mm": _grouped_product,  # of float32 and float16
    "_sample_dirichlet": _like_the_first,
    "binomial": _like_the_first,
}


@contextmanager
def _more_operators() -> Iterator[None]:
    """These can be traced."""
    known: dict[Any, Any] = fake_impls.op_implementations_dict
    packets = ((getattr(torch.ops.aten, name, None), made) for name, made in _UNKNOWN.items())
    added = {p.default: made for p, made in packets if p is not None and p.default not in known}
    known.update(added)
    try:
        yield
    finally:
        for operator in added:
            known.pop(operator, None)


@contextmanager
def _quiet() -> Iterator[None]:
    """No messages of export about what it could not do: we try again, or run eagerly."""
    names = ("torch.export", "torch.fx", "torch._export", "torch._subclasses", "torch._dynamo")
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    if not config.debug:
        # It prints the graph that it has where a branch depends on values.
        vars(_trace)["print"] = lambda *_, **__: None
    try:
        yield
    finally:
        vars(_trace).pop("print", None)
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)

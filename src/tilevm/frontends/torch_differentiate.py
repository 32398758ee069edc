"""Functions that PyTorch differentiates: what Dynamo makes of them, and what it cannot."""

from __future__ import annotations

import builtins
import contextlib
import dis
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
import torch.fx
from torch import nn
from torch._dynamo.exc import TorchDynamoException
from torch.autograd import forward_ad

from tilevm.frontends.torch_memory import Refused
from tilevm.frontends.torch_tracing import changing, instead, is_of_compilers, without_errors

_transform = torch._C._functorch.peek_interpreter_stack

_OWN = "<a function that tilevm differentiates>"


def is_of_the_whole(error: TorchDynamoException | AssertionError) -> bool:
    """Whether Dynamo was at the whole function, so that nothing of it has run yet."""
    if isinstance(error, TorchDynamoException):
        stack: Any = getattr(error, "real_stack", None)
        return bool(stack) and bool(stack[0].filename == _OWN)
    # Guards that do not hold for the call that they were made of: transforms inside of others.
    frames = traceback.walk_tb(error.__traceback__)
    runs = any(frame.f_code.co_filename == _OWN for frame, _ in frames)
    return str(error).startswith("Guard failed on the same frame") and not runs


def in_transform() -> bool:
    """Whether tensors may stand for others: within vmap, jvp, grad, or a level of forward mode."""
    return _transform() is not None or forward_ad._current_level >= 0


def leave_transforms() -> None:
    """End the transforms, and levels of forward mode, that a trace that failed has left begun."""
    functorch: Any = torch._C._functorch
    if functorch.get_dynamic_layer_stack_depth() > 0:
        functorch.pop_dynamic_layer_stack_and_undo_to_depth(0)
    with contextlib.suppress(RuntimeError):  # there is none: Dynamo may say so without having left
        torch._C._exit_dual_level(level=0)
    forward_ad._current_level = -1


def _own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same as a code object of its own: Dynamo has a limit of captures for each of these.

    The function is a variable of a closure: Dynamo keeps globals for good, and what they refer to.
    """
    scope: dict[str, Any] = {}
    text = (
        "def enclose(function):\n"
        "    def call(*args, **kwargs): return function(*args, **kwargs)\n"
        "    return call"
    )
    exec(builtins.compile(text, _OWN, "exec"), scope)
    made: Callable[..., Any] = scope["enclose"](function)
    return made


NO_GRAPH = "PyTorch's compiler makes no graph of it, as of LSTMs, and says nothing"
PIECES = "PyTorch's compiler breaks it into small pieces"
_NEEDS_SIZES = "on tensor with symbolic sizes/strides"  # as forward mode does of views
# Of so few operators, calls of AOTAutograd's functions take longer than what is fused saves: at
# 64 x 8, a product, a mask and a mean took 2.5 times eager mode's time, under `fuse` 0.9 to 1.1.
_FEW = 40


class Graph(NamedTuple):
    """One that Dynamo has made: how many operators it has, and in which thread."""

    size: int
    thread: int


def through_dynamo(
    fn: Callable[..., Any], knobs: Mapping[str, Any]
) -> tuple[Callable[..., Any], list[Graph]]:
    """A function that Dynamo captures for our backend; and a list of the graphs that it makes.

    For all sizes, or for those of each call, where PyTorch's metadata needs to know them.
    """
    from tilevm.frontends.torch_graph import backend  # which stands above captures

    graphs: list[Graph] = []

    def counted(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        size = sum(node.op.startswith("call_") for node in gm.graph.nodes)
        graphs.append(Graph(size, threading.get_ident()))
        return backend(gm, inputs, options=dict(knobs))

    run = torch.compile(_own_code(fn), backend=counted, dynamic=True)

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal run
        try:
            with contextlib.nullcontext() if graphs else without_errors():
                return run(*args, **kwargs)
        except TorchDynamoException as error:
            if _NEEDS_SIZES not in str(error) or not is_of_the_whole(error):
                raise
        leave_transforms()
        run = torch.compile(_own_code(fn), backend=counted, dynamic=False)
        return run(*args, **kwargs)

    return call, graphs


def in_small_pieces(graphs: Sequence[Graph]) -> bool:
    """Whether this thread's first call made several graphs of few operators, all together."""
    sizes = [graph.size for graph in graphs if graph.thread == threading.get_ident()]
    return len(sizes) > 1 and sum(sizes) < _FEW


@dataclass(frozen=True)
class Differentiates:
    """What the code of a function says of how it differentiates.

    Of what comes before the first call of `backward`, Dynamo makes one node of autograd: what that
    frees, another finds no more, where eager code has separate graphs; and it has no second
    derivatives. After `p -= p.grad`, it takes `p` for another tensor: `p.grad = None` is lost.
    """

    calls: int = 0  # of `backward`, in its own code
    twice: bool = False  # it, or what it calls, has second derivatives
    forgets: bool = False  # its own code sets `grad` of what it may have changed in place


def differentiates(fn: Any, functions: Iterable[FunctionType]) -> Differentiates:
    """What the code of a function, or of a module's `forward`, says, and that of what it calls."""
    function = getattr(fn.forward if isinstance(fn, nn.Module) else fn, "__func__", fn)
    code = getattr(inspect.unwrap(function), "__code__", None)
    steps = [] if code is None else list(dis.get_instructions(code))
    return Differentiates(
        calls=sum(step.argval == "backward" for step in steps),
        twice=any(_makes_graph(called.__code__) for called in functions),
        forgets=any(s.argval == "grad" for s in steps if _sets(s))
        and any(map(_is_in_place, steps)),
    )


def _makes_graph(code: CodeType) -> bool:
    """Whether there is a call with an argument `create_graph`."""
    consts = code.co_consts
    return any("create_graph" in names for names in consts if isinstance(names, tuple)) or any(
        _makes_graph(inner) for inner in consts if isinstance(inner, CodeType)
    )


def _sets(step: dis.Instruction) -> bool:
    return step.opname in ("STORE_ATTR", "DELETE_ATTR")


def _is_in_place(step: dis.Instruction) -> bool:
    """Of `x -= y`, or of `x.sub_(y)`, whose result may have a name."""
    if step.opname.startswith("INPLACE_"):  # before Python 3.11
        return True
    if step.opname == "BINARY_OP":
        return step.argrepr.endswith("=")
    name = step.argval if step.opname in ("LOAD_METHOD", "LOAD_ATTR") else ""
    return isinstance(name, str) and name.endswith("_") and not name.endswith("__")


_DIFFERENTIATE = tuple(
    str(Path(torch.__file__).parent / name)
    for name in ("autograd/__init__.py", "_functorch/eager_transforms.py", "_functorch/vmap.py")
)


class Transforms(Refused):
    """Something in the function ran inside of a transform of torch.func, and the trace failed."""


class Asks(Refused):
    """The function asks whether gradients are recorded, which a trace answers for itself."""


@contextlib.contextmanager
def asked_for_gradients(refused: bool) -> Iterator[None]:
    """refused: raise Asks if the function itself, not PyTorch, asks, and the answer is no."""
    if not refused:
        yield
        return
    module: Any = torch
    original = module.is_grad_enabled

    def is_grad_enabled() -> bool:
        enabled: bool = original()
        if not enabled and not is_of_compilers(sys._getframe(1).f_code.co_filename):
            raise Asks("the function asks whether gradients are recorded")
        return enabled

    with changing:
        module.is_grad_enabled = instead(is_grad_enabled, original)
        try:
            yield
        finally:
            module.is_grad_enabled = original


def is_differentiated(error: BaseException) -> bool:
    """Whether a trace failed where the function differentiates or asks, or for its transforms."""
    if isinstance(error, Transforms | Asks):
        return True
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_filename.startswith(_DIFFERENTIATE) for frame, _ in frames)

"""Functions that PyTorch differentiates: what Dynamo makes of them, and what it cannot."""

from __future__ import annotations

import builtins
import dis
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import TorchDynamoException

_OWN = "<a function that tilevm differentiates>"


def is_of_the_whole(error: TorchDynamoException) -> bool:
    """Whether Dynamo was at the whole function, so that nothing of it has run yet."""
    stack: Any = getattr(error, "real_stack", None)
    return bool(stack) and bool(stack[0].filename == _OWN)


def own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same as a code object of its own: Dynamo has a limit of captures for each of these."""
    scope: dict[str, Any] = {"function": function}
    text = "def call(*args, **kwargs): return function(*args, **kwargs)"
    exec(builtins.compile(text, _OWN, "exec"), scope)
    made: Callable[..., Any] = scope["call"]
    return made


def differentiates(fn: Any) -> tuple[int, bool]:
    """Calls of `backward` in the function's own code, and whether it has second derivatives.

    Of what comes before the first call, Dynamo makes one node of autograd: what that frees, another
    finds no more, where eager code has separate graphs; and it has no second derivatives.
    """
    function = getattr(fn.forward if isinstance(fn, nn.Module) else fn, "__func__", fn)
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return 0, False
    calls = sum(step.argval == "backward" for step in dis.get_instructions(code))
    keywords = (c for c in code.co_consts if isinstance(c, tuple))
    return calls, any("create_graph" in names for names in keywords)


_DIFFERENTIATE = tuple(
    str(Path(torch.__file__).parent / name)
    for name in ("autograd/__init__.py", "_functorch/eager_transforms.py", "_functorch/vmap.py")
)


def is_differentiated(error: BaseException) -> bool:
    """Whether a trace failed where the function differentiates, or inside of a transform."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_filename.startswith(_DIFFERENTIATE) for frame, _ in frames)

"""Tensors that no argument brings: of closures, globals, and attributes of plain objects.

A trace would take them for constants, fold those of one element as they are now, and change them
itself where the function does. So they are inputs of the graph, as buffers of modules are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn, overrides
from torch._higher_order_ops import utils
from torch.export.graph_signature import InputKind
from torch.overrides import TorchFunctionMode

from tilevm.frontends.torch_composed import COMPOSED
from tilevm.frontends.torch_effects import Before
from tilevm.frontends.torch_items import from_start, set_item
from tilevm.frontends.torch_memory import Refused, changed_memory, storages
from tilevm.frontends.torch_surroundings import functions_of
from tilevm.frontends.torch_tracing import symbols_of_data

_MOST = 256  # that are found ahead of a trace; of more, the trace finds those that it needs
_PREFIX = "outside_"  # of the buffers


class Outside:
    """The tensors outside of one function, as far as they are known."""

    def __init__(self, fn: Callable[..., Any], modules: Mapping[str, nn.Module]) -> None:
        every = [m for module in modules.values() for m in module.modules()]
        before = Before(fn, every, functions_of(fn, every))
        own = {id(t) for m in every for t in (*m._parameters.values(), *m._buffers.values())}
        found = [t for t in before.tensors() if _is_real(t) and id(t) not in own]
        self._tensors = {id(t): t for t in found if len(found) <= _MOST}
        self._complete = False

    def register(self, module: nn.Module) -> None:
        """Make the tensors buffers of the module that is exported."""
        for index, tensor in enumerate(self._tensors.values()):
            module.register_buffer(f"{_PREFIX}{index}", tensor)

    def traced(self, stand_ins: Mapping[int, torch.Tensor]) -> Traced:
        """For while the function runs. stand_ins: what the trace has, by the id of the tensor."""
        return Traced(stand_ins, self._tensors, strict=not self._complete)

    def learn(self, missed: Iterable[torch.Tensor]) -> None:
        """Of these a trace has found that it needs them. What others need, they make."""
        self._tensors |= {id(t): t for t in missed}
        self._complete = True


def is_outside(target: str | None) -> bool:
    """Whether a buffer of this name is one of these tensors."""
    return (target or "").startswith(_PREFIX)


class Traced(TorchFunctionMode):
    """Gives functions of PyTorch what a trace has in place of tensors, by the id of these.

    missed: tensors that it has nothing for. The trace is of no use then; it gets copies, so that
    it changes nothing but its own. Without `strict`, it gets them.
    """

    def __init__(
        self,
        stand_ins: Mapping[int, torch.Tensor],
        tensors: Mapping[int, torch.Tensor],
        strict: bool,
    ) -> None:
        super().__init__()
        self._stand_ins = dict(stand_ins)
        self._tensors = tensors
        self._strict = strict
        self.missed: list[torch.Tensor] = []
        self.reads_data = False  # whether `x.data` was asked for
        self.transforms = False  # whether anything ran inside of a transform of torch.func
        self.reads_items = False  # whether an element of a tensor was read as a number
        self.wants_gradients = False  # whether a tensor is made that requires gradients

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        _check_question(func)
        self.transforms |= torch._C._functorch.peek_interpreter_stack() is not None
        given = [self.stand_in(value) for value in args]
        named = {name: self.stand_in(value) for name, value in (kwargs or {}).items()}
        if _owner(func) is _DATA:
            if func.__name__ != "__get__":
                raise Refused("the function assigns to `data` of a tensor")
            self.reads_data = True
            return given[0].detach()
        if func is torch.Tensor.__setitem__:
            return set_item(*given, **named)
        if func is torch.Tensor.__getitem__:
            return func(given[0], from_start(*given))
        if _owner(func) is _REQUIRES_GRAD and func.__name__ == "__set__":
            self.wants_gradients |= given[-1] and not given[0].requires_grad
        wanted = _require_gradients((given, tuple(named.values())))
        result = COMPOSED.get(func, func)(*given, **named)
        self.reads_items |= bool(symbols_of_data(result))
        if not wanted and isinstance(result, torch.Tensor) and result.requires_grad:
            self.wants_gradients = True
        return result

    def __enter__(self) -> Traced:
        # Dynamo, which traces branches of `torch.cond`, would trace this too.
        self._prepare = utils.setup_compilation_env
        vars(utils)["setup_compilation_env"] = self._aside
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        vars(utils)["setup_compilation_env"] = self._prepare

    @contextmanager
    def _aside(self) -> Iterator[Any]:
        innermost = overrides._get_current_function_mode()  # type: ignore[no-untyped-call]
        without = overrides._pop_mode_temporarily() if innermost is self else nullcontext()
        with without, self._prepare() as backend:
            yield backend

    def known(self) -> dict[int, torch.Tensor]:
        """The tensors from outside, by the id of what stands for each."""
        return {id(self._stand_ins[at]): tensor for at, tensor in self._tensors.items()}

    def stand_in(self, value: Any) -> Any:
        """`value`, or what stands for it; also within what functions are given."""
        kind = type(value)
        if kind in (tuple, list):
            return kind(map(self.stand_in, value))
        if kind is slice:
            return slice(*map(self.stand_in, (value.start, value.stop, value.step)))
        if not _is_real(value):
            return value
        if id(value) not in self._stand_ins:
            if not self._strict:
                return value
            self.missed.append(value)
            self._stand_ins[id(value)] = value.detach().clone()
        return self._stand_ins[id(value)]


def _require_gradients(value: Any) -> bool:
    """Whether a tensor, or one in lists and tuples, requires gradients."""
    if isinstance(value, list | tuple):
        return any(map(_require_gradients, value))
    return isinstance(value, torch.Tensor) and value.requires_grad


_DATA: Any = torch.Tensor.data
_REQUIRES_GRAD: Any = torch.Tensor.requires_grad


def _owner(func: Any) -> Any:
    """The attribute of which this is the getter or setter."""
    return getattr(func, "__self__", None)


# What a trace's tensors answer for themselves, and not as those of the call.
_QUESTIONS = {"grad", "is_leaf", "grad_fn", "_version", "_base", "_grad", "output_nr"}
_METHODS = {"storage_offset"}
_HOOKS = {"register_hook", "register_post_accumulate_grad_hook", "retain_grad"}


def _check_question(func: Any) -> None:
    """Raise Refused if the function itself, not PyTorch, asks a tensor such a thing."""
    name = getattr(func, "__name__", None)
    if name in _HOOKS:
        raise Refused(f"the function calls `{name}` of a tensor")
    if name not in _METHODS:
        name = getattr(_owner(func), "__name__", None)
        if name not in _QUESTIONS:
            return
    frame = sys._getframe(2)
    if not frame.f_globals.get("__name__", "").startswith("torch."):
        raise Refused(f"the function reads `{name}` of a tensor")


def check_constants(program: Any) -> None:
    """Raise Refused if a function changes what another library holds, as an array: it gets a copy.

    PyTorch says that such a tensor is new, whose memory nobody else knows.
    """
    names = {
        node: spec.target
        for node, spec in zip(
            program.graph.find_nodes(op="placeholder"),
            program.graph_signature.input_specs,
            strict=True,
        )
        if spec.kind is InputKind.CONSTANT_TENSOR
    }
    changed = changed_memory(program.graph)
    for node in program.graph.find_nodes(
        op="call_function", target=torch.ops.aten.lift_fresh_copy.default
    ):
        value = program.constants.get(names.get(node.args[0]))
        is_theirs = value is not None and not value.untyped_storage().resizable()
        if is_theirs and changed.intersection(storages(node.meta.get("val"))):
            raise Refused("the function changes the memory of an array")


def _is_real(value: Any) -> bool:
    if type(value) is not torch.Tensor and type(value) is not nn.Parameter:
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(value):  # by vmap, say
        return False
    return value.layout is torch.strided and value.device.type == "cpu"

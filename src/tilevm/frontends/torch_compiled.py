"""What `tilevm.compile` makes of a function or module: captured once for all sizes.

A call's arguments are flattened to tensors and numbers; what remains (structure, element types,
ranks, constants) and the modes of PyTorch are the key of a capture. A capture has guards over the
sizes and numbers of a call; where none holds, there is a new one.
"""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch._subclasses import fake_tensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._device import DeviceContext
from torch.utils.checkpoint import _StopRecomputationError

from tilevm.config import config
from tilevm.errors import CaptureError, InternalError, RecorderError, WrongResult, describe
from tilevm.frontends import (
    torch_capture,
    torch_check,
    torch_dims,
    torch_guards,
    torch_memory,
    torch_remembered,
    torch_savings,
    torch_tracing,
    torch_tree,
)
from tilevm.frontends.captures import capturing
from tilevm.frontends.torch_assemble import Capture
from tilevm.frontends.torch_data import UsedInPython
from tilevm.frontends.torch_differentiate import in_transform, is_differentiated
from tilevm.frontends.torch_dims import Dims
from tilevm.frontends.torch_eager import fuse
from tilevm.frontends.torch_effects import Draws, Effects
from tilevm.frontends.torch_memory import OfEager, Refused
from tilevm.frontends.torch_program import reason_of
from tilevm.frontends.torch_state import SEEN, UNSEEN, State
from tilevm.frontends.torch_through import Through
from tilevm.runtime.program import Dispatch, add_variant
from tilevm.stats import stats

# Captures of a function that changes something else: the first may set it up.
MOST_EFFECTS = 4
# What can be recorded, if not traced; without arguments, as an optimiser's step, too.
_RECORDED = (
    fake_tensor.DataDependentOutputException
    | fake_tensor.DynamicOutputShapeException
    | fake_tensor.UnsupportedOperatorException
    | GuardOnDataDependentSymNode
    | UsedInPython
    | torch_capture.NoArguments
)
MOST_OBJECTS = 256  # among the arguments of calls, that are looked at
MOST_VALUES = 16  # of what a function reads besides its arguments
MOST_CAPTURES = 64  # of one key; a function that needs more runs eagerly

_is_inference = torch.is_inference_mode_enabled
_is_autocast = torch.is_autocast_enabled
_has_grad = torch.is_grad_enabled
_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_default_dtype = torch.get_default_dtype

_all: weakref.WeakSet[Compiled] = weakref.WeakSet()
_checks = False  # whether captures compare


def _follow_check(knobs: Mapping[str, Any]) -> None:
    """Captures compare, or do not, from their making on."""
    global _checks  # noqa: PLW0603
    if _checks != bool(knobs["check"]):
        _checks = bool(knobs["check"])
        for compiled in list(_all):
            compiled.forget()


config.watch(_follow_check)


@dataclass
class Family:
    """All captures of one key; `reason` if it runs eagerly."""

    captures: list[Capture] = field(default_factory=list)
    reason: str = ""
    records: bool = False  # `reason`: one of _RECORDED
    differentiates: bool = False  # `reason`: it differentiates, or has transforms, by itself
    gradients: bool = False  # `reason`: Dynamo's capture can be differentiated, ours cannot
    settled: bool = False  # the core knows that these calls are not captured
    raised: int = 0  # calls that could not be captured, and raised


class Compiled(Dispatch):
    """What `tilevm.compile` makes of a function. Call it as the function.

    Calls that are like an earlier one run without Python: those with tensors, numbers, strings and
    None, also in tuples, lists, dictionaries and objects. All others come to `_call`.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        dims: Dims | None = None,
        knobs: Mapping[str, Any] | None = None,
        freeze: bool = False,
    ) -> None:
        self._fn = fn
        self._dims = dims
        self._freeze = freeze
        self._knobs = dict(knobs or {})
        # By key, the one used least recently first.
        self._families: OrderedDict[tuple[Any, ...], Family] = OrderedDict()
        self._state: State | None = None
        self._objects: dict[int, Any] = {}  # arguments that are more than values, by id
        self._values = 0  # which of the values, besides arguments, that it has seen
        self._known_values: dict[tuple[int, ...], int] = {}
        self._renewals = 0  # of what it reads, because some object was another one
        self._modules: dict[str, nn.Module] = {}  # that it reads, as far as it was looked at
        self._through = Through(fn, self._knobs)
        self._effects = 0
        self._changes = ""  # what it changes besides: why all calls go through Dynamo
        self._reason = ""  # why all calls run eagerly
        self._last = "", ""  # how the last call ran that was not captured, and why
        if not isinstance(fn, nn.Module):
            functools.update_wrapper(self, fn)
        _all.add(self)

    def forget(self) -> None:
        """Drop what was captured: the next call captures again."""
        self._families.clear()
        self._ready.clear()
        self._through.forget()

    @property
    def title(self) -> str:
        """The function's name, for people."""
        return getattr(self._fn, "__name__", None) or type(self._fn).__name__

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        """`fn(*args, **kwargs)`."""
        if self._reason:
            return self.eager(self._reason, args, kwargs)
        if in_transform():
            return self.eager("the call is inside a transform of torch.func", args, kwargs)
        if _dispatch_modes() or (_function_modes() and _is_seen()):
            return self.eager("a mode of PyTorch sees each function or operator", args, kwargs)
        leaves: list[Any] = []
        grad = _has_grad()
        key: list[Any] = [
            grad, _is_inference(), _is_autocast("cpu"), _default_dtype(), len(args),
        ]  # fmt: skip
        seen: dict[int, int] = {}
        objects: dict[int, Any] = {}
        unusual = None
        try:
            for value in args:
                torch_tree.signature(value, leaves, key, seen, objects)
            for name, value in kwargs.items():
                key.append(name)
                torch_tree.signature(value, leaves, key, seen, objects)
        except torch_tree.Unsupported as error:
            unusual = str(error)
        except RecursionError:
            unusual = "an argument is too deep"
        if unusual is not None:
            return self.eager(unusual, args, kwargs)
        same = torch_memory.first_of(leaves)
        if same != list(range(len(same))):
            key.append(tuple(same))
        if self._dims:
            torch_dims.facts_of(self._fn, args, kwargs, self._dims, leaves)
        if not objects.keys() <= self._objects.keys():
            self._see(objects)
        state = self._state
        if state is None or not state.watch.same():
            state = self._renew()
            if max(self._values, self._renewals) >= MOST_VALUES:
                self._reason = f"{state.changed!r}, which it reads, has had {MOST_VALUES} values"
                return self.eager(self._reason, args, kwargs)
        if self._changes and not state.moving:
            return self._changing(args, kwargs)
        key.append(self._values)
        if not state.objects.isdisjoint(seen):  # a trace would have a copy of the argument alone
            return self._with_gradients(args, kwargs)
        by_state = state.watch.wanted() if grad else b""
        wanted = 1 in by_state or (grad and any(map(_wants_gradient, leaves)))
        if key[2] or (wanted and not self._may_differentiate(state)):
            return self._with_gradients(args, kwargs)  # autocast is resolved by the same path
        if wanted:
            key.append(by_state)
        family = self._families.get(tuple(key))
        if state.moving:
            return self.eager(f"it reads a {state.moving}, which moves on", args, kwargs)
        if family is not None:
            self._families.move_to_end(tuple(key))
            for capture in family.captures:
                if capture.holds(leaves):
                    stays = capture.updates == state.updates
                    if not stays and not capture.follow(state):
                        self._forget(capture)
                        break
                    if stays and not capture.settled:
                        self._settle(capture, leaves, args, kwargs)
                    return self._run(capture, leaves, args, kwargs)
            if family.reason:
                self._settle_uncaptured(family, args, kwargs)
                return self._uncaptured(family, args, kwargs)
        return self._capture_and_run(state, tuple(key), leaves, args, kwargs, wanted)

    def _see(self, objects: Mapping[int, Any]) -> None:
        """Look at what code may read of these arguments, too, from this call on."""
        if len(self._objects) + len(objects) > MOST_OBJECTS:
            self._objects = {}
        self._objects |= objects
        self._state = None

    def _run(self, capture: Capture, leaves: list[Any], args: Any, kwargs: Any) -> Any:
        """The capture's result; eager's, if the capture fails: only it can say what is wrong."""
        if not capture.may_run(leaves):
            return self.eager("what the function changes shares memory", args, kwargs)
        drawn = torch.get_rng_state() if capture.may_draw_twice else None
        reason = None
        try:
            return capture.run(leaves, args, kwargs)
        except (WrongResult, _StopRecomputationError):  # by which `checkpoint` ends a call
            raise
        except Exception as error:
            if drawn is not None:
                torch.set_rng_state(drawn)
            gradients = _has_grad() and any(map(_wants_gradient, capture.bound))
            gradients = gradients and not capture.differentiable
            if not gradients and capture.fits():
                if config.debug:
                    raise
                if isinstance(error, InternalError):  # a defect: it says where the call is saved
                    warnings.warn(f"runs eagerly: {error}", stacklevel=3)
                reason = reason_of(error)
        # Not while that error is handled: eager code's own would be shown as if they came of it.
        if gradients:
            return self._with_gradients(args, kwargs)
        if reason is not None:
            return self.eager(reason, args, kwargs)
        self._forget(capture)  # a parameter's shape or dtype changed
        return self._call(*args, **kwargs)

    def _forget(self, capture: Capture) -> None:
        for family in self._families.values():
            if capture in family.captures:
                family.captures.remove(capture)
            family.settled = False
        self._ready.clear()
        for other in self.captures:
            other.settled = False

    def _settle(self, capture: Capture, leaves: list[Any], args: Any, kwargs: Any) -> None:
        """Let the core run calls like this one."""
        if config.check:
            return  # calls are counted, and some compared, in Python
        capture.settled = True
        found = torch_tree.values((*args, *kwargs.values()))
        if self._state is None or found is None:
            return
        places = [i for i, value in enumerate(found[0]) if torch_tree.is_leaf(value)]
        promised = torch_dims.promises(self._fn, args, kwargs, self._dims, leaves)
        guards = torch_guards.steps((*capture.sources, *promised), places)
        if guards is None:
            return
        run: Callable[..., Any] = functools.partial(self._run, capture)
        wiring: dict[str, Any] = {"guards": guards, "gradients": capture.differentiable}
        if (direct := capture.direct) is not None:
            run = capture.captured.executable
            wiring["inputs"] = [places[i] if i >= 0 else i for i in direct.inputs]
            wiring |= {"bound": capture.bound, "outputs": direct.outputs, "result": direct.result}
        self._add_variant(self._state, run, args, kwargs, found, wiring)

    def _add_variant(
        self,
        state: State,
        run: Callable[..., Any],
        args: Any,
        kwargs: Any,
        found: tuple[list[Any], set[type]],
        wiring: Mapping[str, Any],
    ) -> None:
        """found: what lies in the arguments, as `torch_tree.values` has it."""
        self._ready.watch, self._ready.reads = state.watch, state.objects
        values, opened = found
        add_variant(self._ready, args, run, kwargs=kwargs, values=values, opened=opened, **wiring)

    def _settle_uncaptured(self, family: Family, args: Any, kwargs: Any) -> None:
        """Let the core see that a call like this one cannot be captured."""
        if family.settled or family.captures or config.check:
            return
        family.settled = True
        found = torch_tree.values((*args, *kwargs.values()))
        if self._dims or self._state is None or found is None:
            return
        self._add_variant(
            self._state, lambda _, *given: self._uncaptured(family, *given), args, kwargs, found, {}
        )

    def _renew(self) -> State:
        """See anew what there is besides arguments.

        Captures are forgotten if a parameter, buffer, submodule or training flag is another one.
        If other things that the function reads are, these are part of the key.
        """
        state = self._state
        updates = state.updates if state else -1
        if state is None or not state.update():
            self._families.clear()
            self._known_values.clear()
            before, state = state, State(self._fn, state, [*self._objects.values()])
            if before is not None:
                self._renewals += before.replaced
                if before.replaced or before.hooks != state.hooks:
                    self._through.forget(asked=True)  # Dynamo looks at hooks, and methods, once
            self._state = state
            self._modules = state.modules
        elif state.updates == updates:
            self._ready.reads = state.objects
            return state  # other objects that are equal
        self._ready.clear()
        for family in self._families.values():
            family.settled = False
            for capture in family.captures:
                capture.settled = False
        if self._changes:  # calls are not told apart by what changes at each
            self._known_values.clear()
        self._values = self._known_values.setdefault(state.values, len(self._known_values))
        return state

    def _capture_and_run(
        self,
        state: State,
        key: tuple[Any, ...],
        leaves: list[Any],
        args: Any,
        kwargs: Any,
        wanted: bool,
    ) -> Any:
        family = self._families.setdefault(key, Family())
        while len(self._families) > config.programs:
            self._families.popitem(last=False)
        if len(family.captures) >= MOST_CAPTURES:
            family.reason = f"more than {MOST_CAPTURES} captures for arguments of one kind"
            return self.eager(family.reason, args, kwargs)
        begin = time.perf_counter()
        try:
            with torch_tracing.capturing, torch_savings.uncollected(), torch_remembered.forgotten():
                capture = next((c for c in family.captures if c.holds(leaves)), None)
                if capture is None:
                    with capturing(self.title), torch_tracing.unwarned(), torch_tracing.unhooked():
                        capture = torch_capture.capture(
                            self._fn,
                            self._modules,
                            args,
                            kwargs,
                            dims=self._dims,
                            knobs=self._knobs,
                            freeze=self._freeze,
                            gradients=wanted,
                        )
                    capture.found_in(state)
                    capture.capture_s = time.perf_counter() - begin
                    family.captures.insert(0, capture)
        except Exception as error:
            reason = reason_of(error)
            self._effects += isinstance(error, Effects)
            if self._effects >= MOST_EFFECTS and not isinstance(error, Draws):
                self._changes = reason
            if wanted and not isinstance(error, OfEager):
                if config.debug and not isinstance(error, Refused):
                    raise
                family.reason, family.gradients = reason, True
                run = self._with_gradients
            elif isinstance(error, Effects):
                if self._effects >= MOST_EFFECTS and not self._changes:
                    self._reason = reason
                run = functools.partial(self.eager, reason)
            else:
                if config.debug:
                    raise
                family.reason = reason
                family.differentiates = is_differentiated(error)
                family.records = isinstance(error, _RECORDED)
                run = functools.partial(self._uncaptured, family)
        else:
            return self._run(capture, leaves, args, kwargs)
        try:
            return run(args, kwargs)  # not while that error is handled, as in _run
        except Exception:
            # The error may be what the function raises for this call, and not for the next one.
            family.raised += 1
            if family.raised < MOST_EFFECTS:
                family.reason = ""
            raise

    def _uncaptured(self, family: Family, args: Any, kwargs: Any) -> Any:
        """Eagerly, recorded where that helps; what differentiates by itself goes through Dynamo."""
        if family.gradients:
            return self._with_gradients(args, kwargs)
        if family.differentiates:
            return self._with_gradients(args, kwargs, family.reason)
        run = self.recorded if family.records else self.eager
        return run(family.reason, args, kwargs)

    def note(self, how: str, reason: str) -> None:
        """Remember how this call runs, and count it if PyTorch runs it."""
        self._last = how, reason
        if how != "through torch.compile":
            stats.add("flushes", f"{'fuse' if how == 'recorded' else how}: {reason}")

    def recorded(self, reason: str, args: Any, kwargs: Any) -> Any:
        """Eagerly, under `tilevm.fuse()` where there is a recorder."""
        try:
            block = fuse()
        except RecorderError:
            return self.eager(reason, args, kwargs)
        self.note("recorded", reason)
        with block:
            return self._fn(*args, **kwargs)

    def eager(self, reason: str, args: Any, kwargs: Any) -> Any:
        """As if nothing were compiled; counted with the reason."""
        self.note("eager", reason)
        return self._fn(*args, **kwargs)

    def _may_differentiate(self, state: State) -> bool:
        """Whether calls that want gradients may be captured as others are."""
        own = self._through.asks(self._modules.values())
        asks = own.calls or own.twice or own.forgets
        return not (asks or state.moving or state.has_backward_hooks or config.check)

    def _with_gradients(self, args: Any, kwargs: Any, reason: str = "") -> Any:
        """The same through Dynamo and AOTAutograd, which differentiate. reason: if not for that."""
        self.note("through torch.compile", reason or _THROUGH_DYNAMO)
        return self._through.call(args, kwargs, self._modules.values(), self, reason)

    def _changing(self, args: Any, kwargs: Any) -> Any:
        """By Dynamo, which does to attributes and lists what the function does, if not each time
        by another graph, as where it counts its calls.
        """
        if not self._through.repeats:
            self.note("through torch.compile", self._changes)
            return self._through.call(args, kwargs, self._modules.values(), self, "")
        self._reason = self._changes
        return self.eager(self._reason, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Compiled, (self._fn, self._dims, self._knobs, self._freeze)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A method, where a class holds this."""
        return self if instance is None else functools.partial(self, instance)

    @property
    def captures(self) -> list[Capture]:
        """All captures that are kept."""
        return [c for family in self._families.values() for c in family.captures]

    @property
    def guards(self) -> str:
        """What each capture assumes, one block a capture, and what is not seen."""
        blocks = [
            f"capture {number}: {capture.describe()}"
            for number, capture in enumerate(self.captures)
        ]
        eager = [
            f"{_HOW[f.differentiates, f.records]}: {f.reason}"
            for f in self._families.values()
            if f.reason
        ]
        return "\n".join([*blocks, *eager, SEEN, UNSEEN])

    def explain(self, *args: Any, **kwargs: Any) -> Any:
        """Graph, kernels, bytecode and call-outs of the capture that runs for these arguments."""
        # By name: tools stand above the front ends.
        return import_module("tilevm.tools.explain").explain(self)(*args, **kwargs)

    def leaves(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Copies of the tensors among the arguments, with the numbers, in order."""
        found: list[Any] = []
        torch_tree.signature((args, kwargs), found, [], {}, {})
        return torch_check.copies(found)

    def leaf_names(self, *args: Any, **kwargs: Any) -> list[str]:
        """Of each leaf of these arguments, its name: the parameter, and where it is in that."""
        leaves: list[Any] = []
        tree = torch_tree.flatten((args, kwargs), leaves, shared={})
        names = torch_tree.positional_names(self._fn, len(args))
        return [torch_tree.leaf_name(tree, i, names) for i in range(len(leaves))]

    def tensor_names(self) -> dict[int, str]:
        """Names of the module's parameters and buffers, by id."""
        if not isinstance(self._fn, torch.nn.Module):
            return {}
        named = (*self._fn.named_parameters(), *self._fn.named_buffers())
        return {id(tensor): name for name, tensor in named}

    @contextlib.contextmanager
    def captured(self, leaves: list[Any]) -> Iterator[None]:
        """Calls with these leaves are captured within it: without gradients, if they want some.

        The mode is left as it is wherever it can be: it is part of the key of a capture.
        """
        wanted = any(map(_wants_gradient, leaves)) or 1 in self._renew().watch.wanted()
        with torch.no_grad() if wanted else contextlib.nullcontext():
            yield

    def find(self, *args: Any, **kwargs: Any) -> Capture:
        """The capture for these arguments; made if there is none. Raises: CaptureError."""
        tree_leaves: list[Any] = []
        torch_tree.signature((args, kwargs), tree_leaves, [], {}, {})
        with self.captured(tree_leaves):
            self._call(*args, **kwargs)
        for family in reversed(self._families.values()):  # the one of this call is the last used
            for capture in family.captures:
                if capture.holds_safely(tree_leaves):
                    return capture
        how, reason = self._last
        what = f"this call of {self.title} runs {_RUNS.get(how, how)}: {reason}"
        raise CaptureError(describe(what, remedy=_REMEDIES[how]))


_HOW = {
    (False, False): "eager",
    (False, True): "recorded",
    (True, False): "through torch.compile",
    (True, True): "through torch.compile",
}
_RUNS = {"eager": "eagerly", "recorded": "eagerly, recorded where it can be"}
_REMEDIES = {
    "eager": "",
    "recorded": "tilevm.explain(function, recorded=True)(...) shows what is fused there.",
    "through torch.compile": 'tilevm.trace("out.json") shows what is captured and run there.',
}
_THROUGH_DYNAMO = "it is in autocast, or an argument of it is something that the function reads"


def _is_seen() -> bool:
    """Whether a mode is to see functions, other than that CPU is the default device."""
    modes = map(torch._C._get_function_stack_at, range(_function_modes()))
    return any(type(m) is not DeviceContext or m.device.type != "cpu" for m in modes)


def _wants_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad

"""Calls of a function by way of Dynamo: it differentiates, and changes what outlives the call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from torch import nn
from torch._dynamo import config as dynamo_config
from torch._dynamo.exc import TorchDynamoException

from tilevm.config import config
from tilevm.frontends import torch_tracing
from tilevm.frontends.torch_differentiate import (
    NO_GRAPH,
    PIECES,
    Differentiates,
    Graph,
    differentiates,
    in_small_pieces,
    is_of_the_whole,
    leave_transforms,
    through_dynamo,
)
from tilevm.frontends.torch_program import reason_of
from tilevm.frontends.torch_surroundings import functions_of

# Calls that Dynamo cannot trace: other arguments may be simpler.
MOST_UNTRACED = 4


class Ways(Protocol):
    """How calls run that Dynamo makes no graph of, and what is told of them."""

    def eager(self, reason: str, args: Any, kwargs: Any) -> Any:
        """As they are."""

    def recorded(self, reason: str, args: Any, kwargs: Any) -> Any:
        """Under `tilevm.fuse()`."""

    def note(self, how: str, reason: str) -> None:
        """Tell how this call runs."""


class Through:
    """What Dynamo has made of one function."""

    def __init__(self, fn: Callable[..., Any], knobs: Mapping[str, Any]) -> None:
        self._fn = fn
        self._knobs = knobs
        self._made: tuple[Callable[..., Any], list[Graph]] | None = None
        self._always: tuple[bool, str] | None = None  # whether recorded, and why
        self._asks: Differentiates | None = None
        self._untraced = 0  # calls in a row that it could not trace
        self.renewals = 0  # calls that made graphs

    def forget(self, asked: bool = False) -> None:
        """Drop what was made; asked: and what the function's code says, which has changed."""
        self._made = self._always = None
        if asked:
            self._asks = None

    @property
    def repeats(self) -> bool:
        """Whether so many calls made graphs that Dynamo makes no more: it runs eagerly then."""
        return self.renewals >= dynamo_config.recompile_limit

    def asks(self, modules: Iterable[nn.Module]) -> Differentiates:
        """What the function asks autograd for itself."""
        if self._asks is None:
            every = [m for module in modules for m in module.modules()]
            self._asks = differentiates(self._fn, functions_of(self._fn, every))
        return self._asks

    def call(
        self, args: Any, kwargs: Any, modules: Iterable[nn.Module], ways: Ways, reason: str
    ) -> Any:
        """The function's result. reason: if not for gradients, why calls come here."""
        if self._always is not None:
            recorded, why = self._always
            return (ways.recorded if recorded else ways.eager)(why, args, kwargs)
        own = self.asks(modules)
        if own.twice:
            return ways.eager("it differentiates what it has differentiated", args, kwargs)
        if own.calls > 1:
            return ways.recorded("it calls backward several times", args, kwargs)
        if own.forgets:
            return ways.recorded("it sets gradients of what it changes in place", args, kwargs)
        before = self._made
        run, graphs = self._made = before or through_dynamo(self._fn, self._knobs)
        known = len(graphs)
        torch_tracing.wait_for(modules)
        try:
            result = run(*args, **kwargs)
        except (TorchDynamoException, AssertionError) as error:
            # It cannot trace what PyTorch may well run.
            if config.debug or not is_of_the_whole(error):
                raise
            reason = reason_of(error)
            leave_transforms()  # a call comes here outside of any
        else:
            self.renewals += len(graphs) > known
            self._untraced = 0 if graphs else self._untraced + 1
            if not graphs:
                ways.note("eager", NO_GRAPH)
                if self._untraced >= MOST_UNTRACED:
                    self._always = True, NO_GRAPH
            elif not (before or reason or own.calls) and in_small_pieces(graphs):
                self._always = True, PIECES
            return result
        self._untraced += 1
        if self._untraced >= MOST_UNTRACED:
            self._always = False, reason
        return ways.eager(reason, args, kwargs)

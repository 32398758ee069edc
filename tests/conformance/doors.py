"""The three doors, and what a call through one of them did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch._dynamo
from tests.eager.compare import tensors_in
from torch._dynamo.utils import counters

import tilevm
from tilevm.frontends.torch_eager import pending
from tilevm.frontends.torch_graph import backend
from tilevm.runtime import program as runtime

DOORS = ("compile", "torch.compile", "fuse")
Function = Callable[..., Any]

# How segments end when all operators were recorded.
_ENDS = {"end of the block", "before a product", "length"}


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata if x.layout is torch.strided else id(x)


class Door:
    """A way to run functions, and what it did in the last `watched` block."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._graphs = 0  # of Dynamo, that were run
        self._eager: set[str] = set()  # what a block did not record
        self._callouts: Counter[str] = Counter()
        self._flushes: Counter[str] = Counter()
        if name == "fuse":
            with tilevm.fuse():  # the first block tries out whether recording works
                pass

    def wrap(self, function: Function) -> Function:
        """The function through this door."""
        if self.name == "compile":
            compiled: Function = tilevm.compile(function)
            return compiled
        if self.name == "torch.compile":
            torch._dynamo.reset()
            return torch.compile(function, backend=self._backend, dynamic=True)

        return self._recorded(function)

    def untraceable(self, function: Function) -> Function | None:
        """What raises, if calls through this door do whatever tilevm does: Dynamo alone."""
        if self.name != "torch.compile":
            return None
        torch._dynamo.reset()
        return torch.compile(function, backend="eager", dynamic=True)

    def _recorded(self, function: Function) -> Function:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            runtime.watch_segments()
            generator = torch.get_rng_state()
            try:
                with tilevm.fuse():
                    result = function(*args, **kwargs)
                    inputs = tensors_in((args, kwargs))
                    known = {id(x) for x in inputs}
                    made = [x for x in tensors_in(result) if id(x) not in known]
                    there = [x for x in made if not pending(x) and x.numel()]
                    ran, _ = runtime.watched_so_far()
            finally:
                _, eager = runtime.watched_segments(assembly=False)
            # Views of arguments and tensors without elements are nothing to compute. In the block,
            # who asks for memory has it filled; what is there since a long segment had to end was
            # recorded. Single numbers are drawn at once, by PyTorch's operators or ours.
            drew = not torch.equal(torch.get_rng_state(), generator)
            views = {_memory(x) for x in there} <= {_memory(x) for x in inputs}
            self._eager |= {name.removeprefix("aten::") for name in eager}
            if not (views or ran or eager or drew):
                self._eager.add("not recorded")
            return result

        return recorded

    def _backend(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Function:
        run = backend(gm, inputs)

        def counted(*args: Any) -> Any:
            self._graphs += 1
            return run(*args)

        return counted

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Notes what the calls in the block do."""
        self._graphs, self._eager = 0, set()
        counters.clear()
        before = tilevm.stats()
        try:
            yield
        finally:
            after = tilevm.stats()
            self._callouts = Counter(after["callouts"]) - Counter(before["callouts"])
            self._flushes = Counter(after["flushes"]) - Counter(before["flushes"])

    @property
    def fallback(self) -> str:
        """Why a call, or a part of it, ran eagerly; empty if it did not."""
        for reason in self._flushes:
            if reason.startswith(("eager: ", "fuse: ")):
                return reason
        if self.name == "torch.compile":
            for kind in ("graph_break", "unimplemented"):
                for reason in counters[kind]:
                    return f"Dynamo: {str(reason).strip().partition(chr(10))[0]}"
            if not self._graphs:
                return "Dynamo: no graph"
        return ""

    @property
    def callouts(self) -> list[str]:
        """Operators that PyTorch ran; of `fuse` also why what was recorded so far had to run."""
        found = set(self._callouts)
        if self.name == "fuse":
            found |= (set(self._flushes) - _ENDS) | self._eager
        return sorted(found)

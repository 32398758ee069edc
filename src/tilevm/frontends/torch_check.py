"""`tilevm.config.check` of captured graphs: PyTorch runs the same graph, operator by operator."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.fx
from torch.utils._pytree import tree_map

from tilevm.frontends import check, torch_arrays
from tilevm.frontends.torch_products import is_product
from tilevm.ir.compare import Towards, disagreements, nudged
from tilevm.ir.types import FLOATS
from tilevm.stats import stats

Run = Callable[..., Any]

_forked = False


def _after_fork() -> None:
    """PyTorch's own threads do not survive a fork: to run eagerly could hang there."""
    global _forked  # noqa: PLW0603
    _forked = True


os.register_at_fork(after_in_child=_after_fork)


def checked(
    run: Run,
    graph: torch.fx.Graph,
    executable: Run,
    passed: Callable[[Sequence[Any]], Sequence[Any]],
) -> Run:
    """`run`, which is what `graph` became, compared with the graph as `config.check` says.

    passed: the inputs of the executable, from those of the graph.
    """
    turns = check.Turns()
    values = [node.meta.get("val") for node in graph.nodes]
    dtypes = sorted({torch_arrays.dtype(v) for v in values if isinstance(v, torch.Tensor)})
    placeholders = graph.find_nodes(op="placeholder")
    tensors = [isinstance(node.meta.get("val"), torch.Tensor) for node in placeholders]
    module = graph.owning_module or torch.nn.Module()
    writes = _writes(graph)

    def eagerly(args: Sequence[Any], towards: Towards | None = None) -> list[Any]:
        own = args if towards is None and not writes else copies(args, towards)
        given = [
            torch.tensor(value, dtype=torch.float64) if wanted and type(value) is float else value
            for value, wanted in zip(own, tensors, strict=True)
        ]
        with torch.no_grad(), torch.amp.autocast("cpu", enabled=False):
            results = _Eager(module, graph, towards, _units_of_factors()).run(*given)
        results = results if isinstance(results, list | tuple) else [results]
        return [_array(result) for result in results]

    def checked_run(*args: Any) -> Any:
        if not turns.due():
            return run(*args)
        if _forked:
            stats.add("checks", "torch: left out in the child of a fork")
            return run(*args)
        # What is not written is not copied: all weights are among these.
        before, state = copies(args) if writes else args, torch.get_rng_state()

        def again(towards: Towards | None = None) -> list[Any]:
            torch.set_rng_state(state)
            return eagerly(before, towards)

        results = run(*args)
        found = [_array(result) for result in results]
        after = torch.get_rng_state()
        try:
            exact = again()
        except Exception as error:
            wrong = [f"there are results, but PyTorch raises {type(error).__name__}: {error}"]
        else:
            wrong = disagreements(found, exact, again, dtypes)
        finally:
            torch.set_rng_state(after)
        check.settle(
            wrong,
            door="torch",
            title="a captured graph",
            against="PyTorch, which ran its operators one by one",
            inputs=lambda: [_told(value) for value in before],
            called=executable,
            given=passed(before),
        )
        return results

    return checked_run


def _writes(graph: torch.fx.Graph) -> bool:
    """Whether running the graph may write to its inputs. Norms do, which their schemas hide."""
    for node in graph.nodes:
        target = node.target
        if isinstance(target, torch._ops.HigherOrderOperator):
            return True
        if isinstance(target, torch._ops.OpOverload):
            schema = target._schema
            hidden = any(argument.name.startswith("running_") for argument in schema.arguments)
            if schema.is_mutable or hidden:
                return True
    return False


def _units_of_factors() -> int:
    """What a product may leave of float32 factors, by torch.set_float32_matmul_precision."""
    precision = torch._C._get_fp32_precision_getter("mkldnn", "matmul")
    return {"bf16": 2**16, "tf32": 2**8}.get(precision, 1)


class _Eager(torch.fx.Interpreter):
    """Runs a graph; with `towards`, what operators make is `nudged` in its place.

    units: by so many, what products multiply, if it is more than one.
    """

    def __init__(
        self, module: Any, graph: torch.fx.Graph, towards: Towards | None, units: int
    ) -> None:
        super().__init__(module, graph=graph)
        self._towards = towards
        self._units = units
        self._kept: set[int] = set()  # storages of the module's constants

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The result of a function."""
        towards = self._towards
        if towards is not None and self._units > 1 and is_product(target):

            def moved(x: Any) -> Any:
                if not isinstance(x, torch.Tensor) or x.dtype != torch.float32:
                    return x
                factor = nudged(torch_arrays.to_numpy(x), towards, self._units)
                return torch_arrays.from_numpy(factor)

            args = tree_map(moved, args)
        return super().call_function(target, args, kwargs)

    def run_node(self, n: torch.fx.Node) -> Any:
        """The result of one operator."""
        result = super().run_node(n)
        if isinstance(result, torch.Tensor) and torch_arrays.dtype(result) in FLOATS:
            storage = result.untyped_storage().data_ptr()
            if n.op == "get_attr":
                self._kept.add(storage)
            elif self._towards is not None and n.op == "call_function":
                repeats = 0 in result.stride()  # an element that stands for several
                if storage not in self._kept and not repeats:
                    moved = nudged(torch_arrays.to_numpy(result), self._towards)
                    result.copy_(torch_arrays.from_numpy(moved))
        return result


def copies(values: Sequence[Any], towards: Towards | None = None) -> list[Any]:
    """Tensors with memory of their own, shared as that of the given ones; others as they are.

    towards: where elements are `nudged`.
    """
    made: dict[int, torch.Tensor] = {}  # by the address of the storage
    found: list[Any] = []
    for given in values:
        if not isinstance(given, torch.Tensor) or given.layout != torch.strided:
            found.append(given)
            continue
        value = given.detach()
        storage: Any = value.untyped_storage()
        key = storage.data_ptr() or -1 - len(made)
        if key not in made:
            whole = torch.empty(0, dtype=value.dtype).set_(storage.clone())
            if towards is not None and torch_arrays.dtype(value) in FLOATS:
                moved = nudged(torch_arrays.to_numpy(whole), towards)
                whole.copy_(torch_arrays.from_numpy(moved))
            made[key] = whole
        alike = torch.empty(0, dtype=value.dtype)
        fresh: Any = made[key].untyped_storage()
        found.append(alike.set_(fresh, value.storage_offset(), value.shape, value.stride()))
    return found


def _array(result: Any) -> np.ndarray[Any, Any]:
    if not isinstance(result, torch.Tensor):
        return np.asarray(0 if result is None else result)
    if result.is_complex():
        result = torch.view_as_real(result.resolve_conj())
    elif result.is_floating_point() and result.element_size() == 1:
        result = result.float()
    return torch_arrays.to_numpy(result.resolve_neg())


def _told(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{torch_arrays.dtype(value)}{list(value.shape)}"
    return repr(value)

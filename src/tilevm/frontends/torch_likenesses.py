"""What results of operators are like, found once for operands that are like each other.

A trace finds sizes, strides and dtypes of each result by what PyTorch says that the operator
consists of, which is most of its time; the layers of a model ask the same again. PyTorch has a
cache for that, too, of which a look-up takes longer than most answers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)
from torch.fx.experimental.sym_node import SymNode

_aten: Any = torch.ops.aten
_PLAIN = frozenset((int, float, bool, str, type(None)))
_OPAQUE = (torch.dtype, torch.device, torch.layout, torch.memory_format)
# What results of these are like is more than that, or depends on more.
_ASKED = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
# Convolutions: which library has them depends on settings, and on whether gradients are wanted.
_SPECIAL = frozenset(
    {
        _aten.detach.default, _aten.alias.default, _aten.lift_fresh.default, _aten.lift.default,
        _aten.convolution.default, _aten.convolution_backward.default,
    }
)  # fmt: skip


@functools.cache
def _may_be_known(operator: Any) -> bool:
    """Whether a result is described by its operands: nothing is changed or drawn."""
    return (
        isinstance(operator, OpOverload)
        and operator.namespace == "aten"
        and operator not in _SPECIAL
        and not operator._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in operator.tags
        and _ASKED.isdisjoint(operator.tags)
        # Others decide by whether gradients are wanted, and may return an operand.
        and not operator.has_kernel_for_dispatch_key(_COMPOSITE)
    )


class _Unknown(Exception):
    """Operands, or a result, that are more than their sizes, strides and dtypes."""


class _Operands:
    """What is asked of an operator's arguments, and the sizes and tensors among them in order."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []

    def key(self, value: Any) -> Any:
        """Equal for what has like results. Raises: _Unknown."""
        kind = type(value)
        if kind in _PLAIN:
            return kind, value
        if kind is FakeTensor:
            return self._tensor(value)
        if isinstance(value, torch.SymInt):
            return self.size(value)
        if isinstance(value, list | tuple):
            return kind, *map(self.key, value)
        if isinstance(value, _OPAQUE):
            return value
        raise _Unknown

    def _tensor(self, x: Any) -> tuple[Any, ...]:
        if x.fake_mode is not self._mode or x.constant is not None or x.layout != torch.strided:
            raise _Unknown
        if x.is_conj() or x.is_neg():  # operators that have no kernel for these copy them
            raise _Unknown
        self.tensors.append(x)
        size = self.size
        return (
            x.dtype, x.fake_device,
            *map(size, x.shape), *map(size, _strides(x)), size(x.storage_offset()),
        )  # fmt: skip

    def size(self, n: Any) -> Any:
        if type(n) is int:
            return n
        node = n.node
        if type(node) is not SymNode or node._hint is None:  # of data
            raise _Unknown
        self.nodes.append(node)
        return node.expr, node._hint


class _Result(NamedTuple):
    """A result. Sizes are numbers, sizes of operands by their place, or others."""

    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    dtype: torch.dtype
    device: torch.device
    of: int  # the operand whose memory it has; -1: its own


class _Place(NamedTuple):
    at: int  # among the sizes of operands


def _strides(x: torch.Tensor) -> Any:
    return torch._C.TensorBase.stride(x)  # which `torch_strides.reads` does not see


def _storage(x: Any) -> Any:
    return x.untyped_storage()._cdata


def _described(x: Any, given: _Operands) -> _Result:
    if type(x) is not FakeTensor or any(x is operand for operand in given.tensors):
        raise _Unknown
    made = _Operands(x.fake_mode)
    made._tensor(x)
    memory = _storage(x)
    of = next((i for i, t in enumerate(given.tensors) if _storage(t) == memory), -1)
    whole = x.storage_offset() if of < 0 else 0
    if x.requires_grad or type(whole) is not int or whole:
        raise _Unknown
    if of >= 0 and given.tensors[of].dtype is not x.dtype:
        raise _Unknown
    places = {id(node): _Place(i) for i, node in reversed([*enumerate(given.nodes)])}

    def kept(n: Any) -> Any:
        return n if type(n) is int else places.get(id(n.node), n.node)

    sizes, strides = tuple(map(kept, x.shape)), tuple(map(kept, _strides(x)))
    return _Result(sizes, strides, kept(x.storage_offset()), x.dtype, x.fake_device, of)


@contextmanager
def _unasked(environment: Any) -> Iterator[None]:
    """What was asked of sizes when this was found needs no guard, nor is it too late for one."""
    refuses, environment._error_on_new_guards = environment._error_on_new_guards, False
    try:
        with environment.suppress_guards():
            yield
    finally:
        environment._error_on_new_guards = refuses


def _made(mode: Any, result: _Result, given: _Operands) -> FakeTensor:
    symbolic: Any = torch.SymInt

    def size(n: Any) -> Any:
        if type(n) is int:
            return n
        return symbolic(given.nodes[n.at] if type(n) is _Place else copied(n))

    sizes, strides = [*map(size, result.sizes)], [*map(size, result.strides)]
    with in_kernel_invocation_manager(mode), _unasked(mode.shape_env):
        if result.of < 0:
            made = torch.empty_strided(sizes, strides, dtype=result.dtype, device="meta")
        else:
            offset = size(result.offset)
            made = torch.as_strided(given.tensors[result.of], sizes, strides, offset)
    return FakeTensor(mode, made, result.device)


def copied(node: Any) -> Any:
    """A size that is equal: a trace tells those apart that were made at different places."""
    made: Any = SymNode.__new__(SymNode)
    vars(made).update(vars(node))
    return made


@contextmanager
def results_once() -> Iterator[None]:
    """Results are found once for each kind of operands."""
    owner: Any = FakeTensorMode
    plain: Callable[..., Any] = owner._dispatch_impl
    known: dict[Any, Any] = {}

    def dispatch(mode: Any, operator: Any, types: Any, args: Sequence[Any], named: Any) -> Any:
        environment = mode.shape_env
        if environment is None or not _may_be_known(operator):
            return plain(mode, operator, types, args, named)
        given = _Operands(mode)
        try:
            of = given.key((*args, *named.values()))
            if not given.tensors:
                raise _Unknown
            # What is known of sizes decides, too.
            facts = (
                environment._version_counter, environment._replacements_version_counter,
                len(environment.guards), torch.get_default_dtype(),
            )  # fmt: skip
            key = operator, mode, facts, tuple(named), of
            found = known.get(key)
        except (_Unknown, TypeError):  # what is not hashable
            return plain(mode, operator, types, args, named)
        if found is not None:
            if type(found) is _Result:
                return _made(mode, found, given)
            kind, many = found
            made = [_made(mode, result, given) for result in many]
            return kind(*made) if hasattr(kind, "_fields") else kind(made)
        results = plain(mode, operator, types, args, named)
        if len(environment.guards) == facts[2]:
            try:
                if isinstance(results, tuple | list):
                    many = [_described(x, given) for x in results]
                    known[key] = type(results), many
                else:
                    known[key] = _described(results, given)
            except _Unknown:
                pass
        return results

    owner._dispatch_impl = dispatch
    try:
        yield
    finally:
        owner._dispatch_impl = plain

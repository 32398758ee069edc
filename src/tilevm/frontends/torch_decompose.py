"""ATen operators that are not in the table, as the operators that PyTorch says they consist of."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
import torch.fx
from torch._decomp import decomposition_table
from torch._dynamo.exc import RestartAnalysis
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tilevm.frontends.torch_memory import functional, is_same_size, storages
from tilevm.frontends.torch_ops import takes
from tilevm.frontends.torch_transforms import row_of

# Those whose parts fuse, and ask nothing of sizes that the whole does not. Overloads of one name.
NAMES = frozenset(
    """
    _native_batch_norm_legit _native_batch_norm_legit_functional _softmax_backward_data aminmax
    atleast_1d atleast_2d atleast_3d binary_cross_entropy
    binary_cross_entropy_with_logits broadcast_tensors cartesian_prod celu
    channel_shuffle column_stack conj_physical cosine_embedding_loss cosine_similarity
    count_nonzero cross cross_entropy_loss cumulative_trapezoid deg2rad diag diag_embed diagflat
    diff dist dsplit dstack eye fft_fftshift fft_ifftshift fliplr flipud
    float_power glu gradient hann_window heaviside hinge_embedding_loss hsplit hstack
    huber_loss huber_loss_backward instance_norm isclose isneginf isposinf isreal kl_div kron
    l1_loss ldexp linalg_cross linalg_matrix_norm linalg_matrix_power
    linalg_multi_dot linalg_norm linalg_vander linalg_vecdot linspace log_sigmoid_backward
    log_sigmoid_forward logaddexp logaddexp2 logit_backward logspace margin_ranking_loss
    meshgrid mish_backward mse_loss multi_margin_loss multilabel_margin_loss nan_to_num nanmean
    nansum narrow_copy native_batch_norm native_dropout_backward native_group_norm
    native_group_norm_backward nll_loss2d_forward nll_loss_forward nll_loss_nd pairwise_distance
    pixel_shuffle pixel_unshuffle poisson_nll_loss rad2deg renorm rot90 selu sinc
    smooth_l1_loss soft_margin_loss soft_margin_loss_backward special_entr
    special_logit special_ndtr special_sinc special_xlog1py special_xlogy std_mean
    take_along_dim tile trapezoid trapz triplet_margin_loss vsplit
    vstack xlogy
    """.split()
)


_ATEN: Any = torch.ops.aten


def _ldexp(x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """The product of x and 2^exponent. No factor overflows where the product is finite, as in
    PyTorch's kernel; its decomposition is another function.
    """
    if not x.dtype.is_floating_point or exponent.dtype.is_floating_point:
        plain: torch.Tensor = decomposition_table[_ATEN.ldexp.Tensor](x, exponent)
        return plain
    if exponent.dtype is torch.bool:
        raise _Kept("PyTorch raises")
    # Three such powers take a double from 2^-1074 to 2^1023 and back.
    wide, left = x.double(), exponent.long()
    for _ in range(3 if x.dtype is torch.float64 else 1):
        power = left.clamp(-1000, 1000)
        wide, left = wide * torch.exp2(power.double()), left - power
    return wide.to(x.dtype)


def _heaviside(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.dtype is not y.dtype:
        raise _Kept("PyTorch raises")
    plain: torch.Tensor = decomposition_table[_ATEN.heaviside.default](x, y)
    return plain


def _converted(target: Any) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Of operands of the result's dtype, as kernels have it: 70000 is no number of float16."""

    def meaning(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        common = torch.result_type(x, y)
        if common.is_floating_point:
            x, y = x.to(common), y.to(common)
        result: torch.Tensor = decomposition_table[target](x, y)
        return result

    return meaning


# What consists of other operators than PyTorch's decompositions say.
OWN: dict[Any, Callable[..., Any]] = {
    _ATEN.heaviside.default: _heaviside,
    _ATEN.ldexp.Tensor: _ldexp,
    _ATEN.xlogy.Tensor: _converted(_ATEN.xlogy.Tensor),
    _ATEN.special_xlog1py.default: _converted(_ATEN.special_xlog1py.default),
}


@cache
def foreach() -> dict[OpOverload, Callable[..., Any]]:
    """Operators over lists of tensors, and what PyTorch does without a kernel for all: each."""
    key: Any = torch._C.DispatchKey.CompositeExplicitAutograd
    # (torch.ops has only those that somebody has asked it for.)
    every = (name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names())
    names = {name[6:] for name in every if name.startswith("aten::_foreach_")}
    packets = [getattr(torch.ops.aten, name) for name in sorted(names)]
    overloads = (getattr(packet, name) for packet in packets for name in packet.overloads())
    return {
        overload: functools.partial(overload._op_dk, key)
        for overload in overloads
        if overload.has_kernel_for_dispatch_key(key)
    }


def _is_foreach(target: OpOverload) -> bool:
    return target._schema.name.startswith("aten::_foreach_") and target in foreach()


Meanings = Mapping[Any, Callable[..., Any]]


_PLACE = ("stack_trace", "nn_module_stack")  # metadata that say where a node comes from


class _Kept(Exception):
    """The operator stays whole."""


class _Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Appends what is called to a graph. Sizes stay as they are, no nodes."""

    def __init__(self, graph: torch.fx.Graph, like: torch.fx.Node) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = graph
        self.place = {key: like.meta[key] for key in _PLACE if key in like.meta}
        self.made: list[torch.fx.Node] = []
        self.known: dict[int, tuple[torch.Tensor, torch.fx.Node]] = {}

    def note(self, node: torch.fx.Node) -> None:
        """Know the tensors that a node takes."""
        for source in node.all_input_nodes:
            held = source.meta.get("val")
            if isinstance(held, torch.Tensor):
                self.known[id(held)] = held, source

    def mode(self) -> Any:
        """That of the fakes among them."""
        return next((t.fake_mode for t, _ in self.known.values() if hasattr(t, "fake_mode")), None)

    def node_of(self, value: Any) -> Any:
        """The node that holds a tensor; what is none is itself. Raises: _Kept."""
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self.known:
            raise _Kept("a constant")
        return self.known[id(value)][1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any("Tensor" in str(r.type) for r in func._schema.returns):
            if torch.Tag.data_dependent_output in func.tags:
                raise _Kept(f"{func} depends on data")
            return func(*args, **kwargs)  # a size, a device
        if func._schema.is_mutable:
            return self._write(func, args, kwargs)
        if not _has_row(func, (args, kwargs)):
            with self:
                return _meanings(func)[0](*args, **kwargs)
        given, named = pytree.tree_map(self.node_of, (args, kwargs))
        out = func(*args, **kwargs)
        node = self._append(func, given, named, out)
        if isinstance(out, list | tuple):
            for i, part in enumerate(out):
                if isinstance(part, torch.Tensor):
                    self._append(operator.getitem, (node, i), {}, part)
        elif not isinstance(out, torch.Tensor):
            raise _Kept(f"{func} returns a {type(out).__name__}")
        return out

    def _write(self, func: OpOverload, args: Any, kwargs: Any) -> torch.Tensor:
        """In place on a tensor of our own without views: from now on its node is another one."""
        target, _ = functional(func)
        changed: torch.Tensor = args[0]
        sharing = [t for t, _ in self.known.values() if storages(t) == storages(changed)]
        if (
            len(sharing) != 1
            or self.node_of(changed) not in self.made
            or not _has_row(target, args)
        ):
            raise _Kept(f"{func} writes")
        given, named = pytree.tree_map(self.node_of, (args, kwargs))
        out = target(*args, **kwargs)
        if (out.dtype, out.shape) != (changed.dtype, changed.shape):
            raise _Kept(f"{func} changes the type")
        self.known[id(changed)] = changed, self._append(target, given, named, out)
        return changed

    def _append(self, target: Any, args: Any, kwargs: Any, out: Any) -> torch.fx.Node:
        node = self.graph.call_function(target, tuple(args), kwargs)
        node.meta["val"] = out
        node.meta.update(self.place)
        self.made.append(node)
        if isinstance(out, torch.Tensor):
            self.known[id(out)] = out, node
        return node


class _InPlace(_Tape):  # type: ignore[no-untyped-call]
    """Appends what is called as it is."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, named = pytree.tree_map(self.node_of, (args, kwargs or {}))
        out = func(*args, **kwargs or {})
        self._append(func, given, named, out)
        return out


def one_by_one(graph: torch.fx.Graph) -> None:
    """Let operators that change lists of tensors in place be one for each tensor, in order: a list
    may have one twice.
    """
    for node in list(graph.nodes):
        if not isinstance(node.target, OpOverload) or not node.target._schema.is_mutable:
            continue
        if not _is_foreach(node.target) or node.users:
            continue
        tape = _InPlace(graph, node)
        tape.note(node)
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        mode = tape.mode()
        with graph.inserting_before(node), torch.no_grad(), mode or nullcontext(), tape:
            foreach()[node.target](*args, **kwargs)
        graph.erase_node(node)


def _meanings(target: OpOverload, more: Meanings | None = None) -> list[Callable[..., Any]]:
    """PyTorch's decompositions, or those of `more`. Raises: _Kept, if we use none."""
    if more and target in more:
        return [more[target]]
    if _is_foreach(target):
        return [foreach()[target]]
    if target in OWN:
        return [OWN[target]]
    if target._schema.name.removeprefix("aten::") not in NAMES:
        raise _Kept(f"{target} is not in the table")
    found = [decomposition_table[target]] if target in decomposition_table else []
    overload = f".{target._overloadname}" if target._overloadname != "default" else ""
    if torch._C._dispatch_has_kernel_for_dispatch_key(
        target._schema.name + overload, "CompositeImplicitAutograd"
    ):
        found.append(target.decompose)
    if not found:
        raise _Kept(f"{target} has no decomposition")
    return found


def decomposed(graph: torch.fx.Graph, more: Meanings | None = None) -> torch.fx.Graph:
    """`graph`, or a copy without the operators of NAMES that consist of operators of the table.

    more: others, and what they consist of.
    """
    more = more or {}
    if not any(_is_wanted(node, more) for node in graph.nodes):
        return graph
    made = torch.fx.Graph(graph.owning_module)
    result = made.graph_copy(graph, {})
    made.output(result)
    (new,), (old,) = made.find_nodes(op="output"), graph.find_nodes(op="output")
    new.meta.update(old.meta)
    for node in list(made.nodes):
        if _is_wanted(node, more):
            any(_replace(made, node, meaning) for meaning in _meanings(node.target, more))
    return made


def _is_wanted(node: torch.fx.Node, more: Meanings) -> bool:
    target = node.target
    return (
        isinstance(target, OpOverload)
        and not _has_row(target, (_held(node.args), _held(node.kwargs), node.meta.get("val")))
        and target.namespace == "aten"
        and (target._schema.name[6:] in NAMES or target in more or _is_foreach(target))
        and takes(str(target), [x.dtype for x in _tensors(_held((node.args, node.kwargs)))])
    )


def _held(arguments: Any) -> Any:
    return torch.fx.node.map_arg(arguments, lambda n: n.meta.get("val"))


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (x for x in pytree.tree_leaves(values) if isinstance(x, torch.Tensor))


def _has_row(target: OpOverload, values: Any) -> bool:
    """Whether the table has the operator for tensors of these dtypes."""
    tensors = _tensors(values)
    return row_of(str(target), tensors) is not None


def _replace(graph: torch.fx.Graph, node: torch.fx.Node, meaning: Callable[..., Any]) -> bool:
    """Put what the node consists of in its place, if all of that is in the table."""
    assert isinstance(node.target, OpOverload)
    value = node.meta.get("val")
    tape = _Tape(graph, node)
    tape.note(node)
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    tensors = [x for x in pytree.tree_leaves((args, kwargs, value)) if isinstance(x, torch.Tensor)]
    mode = next((x.fake_mode for x in tensors if hasattr(x, "fake_mode")), None)
    try:
        with graph.inserting_before(node), torch.no_grad(), mode or nullcontext(), tape:
            with warnings.catch_warnings(), _no_late_guards(mode):
                warnings.filterwarnings("ignore", "Raw Sym")  # sizes are no nodes, on purpose
                result = meaning(*args, **kwargs)
        results = [tape.node_of(x) for x in _parts(result)]
        _check(node, results, tensors)
    except RestartAnalysis:
        raise
    except Exception:  # whatever a decomposition cannot do, the whole operator can
        for made in reversed(tape.made):
            graph.erase_node(made)
        return False
    for made, whole in zip(results, _parts(value), strict=True):
        if made in tape.made and not set(storages(whole)) & _memory(node):
            made.meta["val"] = whole  # strides are those of the operator
    if isinstance(value, torch.Tensor):
        node.replace_all_uses_with(results[0])
    for user in list(node.users):
        user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]  # an int
        graph.erase_node(user)
    graph.erase_node(node)
    return True


def _no_late_guards(mode: Any) -> AbstractContextManager[None]:
    """Guards raise where it is too late: gradients are compiled after the guards of a call."""
    environment = getattr(mode, "shape_env", None)
    if environment is None or not environment.frozen:
        return nullcontext()
    refusing: AbstractContextManager[None] = environment.error_on_new_guards()
    return refusing


def _parts(value: Any) -> Sequence[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _memory(node: torch.fx.Node) -> set[int]:
    return {m for source in node.all_input_nodes for m in storages(source.meta.get("val"))}


def _check(node: torch.fx.Node, results: Sequence[Any], tensors: Sequence[torch.Tensor]) -> None:
    """Raise _Kept unless the results are like the operator's."""
    value = node.meta.get("val")
    wholes, given = _parts(value), _memory(node)
    view = any(r.alias_info for r in node.target._schema.returns)  # type: ignore[union-attr]
    if not isinstance(value, torch.Tensor) and any(
        user.target is not operator.getitem for user in node.users
    ):
        raise _Kept("its results are used together")
    if len(wholes) != len(results):
        raise _Kept("it has other results")
    for made, whole in zip(results, wholes, strict=True):
        if not isinstance(made, torch.fx.Node) or not isinstance(whole, torch.Tensor):
            raise _Kept("a result is no tensor")
        found = made.meta["val"]
        if found.dtype != whole.dtype or len(found.shape) != len(whole.shape):
            raise _Kept("a result is of another type")
        if bool(given & set(storages(found))) != (view or bool(given & set(storages(whole)))):
            raise _Kept("a result shares memory, or does not")
        for a, b in zip(found.shape, whole.shape, strict=True):
            if not (a is b or is_same_size(a, b)):
                raise _Kept("a result has other sizes")

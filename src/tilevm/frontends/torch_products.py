"""ATen's matrix products, contractions and attention as `matmul`: rows as in `torch_ops`.

Operands keep their rank and their order in memory: transposes are views, and a batch that one
operand lacks is broadcast. What is scaled, added or masked is an operator beside the product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends.torch_memory import OfEager
from tilevm.frontends.torch_ops import (
    Tensor,
    Unsupported,
    axes_of,
    axis_of,
    is_as_large,
    is_number,
    is_same,
    known,
    row,
)
from tilevm.frontends.torch_views import ROWS
from tilevm.ir.types import MAX_RANK

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["ROWS", "check_addends", "is_product"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

Labels = Sequence[Any]  # one for each dim of an operand; equal ones run together


def _check(what: str, out: Any, *operands: Tensor) -> None:
    """Operands and result are of one dtype, and of one that products are made of."""
    for dtype in (*(x.dtype for x in operands), out.dtype):
        if dtype not in DTYPES:
            raise Unsupported(f"{what} of {str(dtype)[6:]}")
        if dtype != operands[0].dtype:
            raise Unsupported(f"{what} of several dtypes")


def _product(b: Importer, out: Any, x: Tensor, y: Tensor) -> int:
    _check("matrix multiply", out, x, y)
    return b.add("matmul", x.id, y.id)


# What may be larger than the other in a sum of two tensors, may not where PyTorch writes the sum to
# the product: it raises there, its metadata do not.


def _must_expand(b: Importer, x: Tensor, product: int) -> None:
    """Raise Unsupported unless x can be expanded to the product's sizes."""
    sizes = b.program.type(product)[2]
    if x.rank > len(sizes):
        raise Unsupported("an addend has more dims than the product")
    for size, whole in zip(reversed(x.shape), reversed(sizes), strict=False):
        if whole == 1 and not is_as_large(b, size, 1):
            raise Unsupported("an addend is larger than the product")


def _beside(
    mask: torch.Tensor, q: torch.Tensor, k: torch.Tensor
) -> Iterator[tuple[Any, list[Any]]]:
    """Sizes of a mask, from the last on, each with those of which scores have theirs."""
    for i, size in enumerate(reversed(mask.shape), 1):
        if i < 3:
            wholes = [(k if i == 1 else q).shape[-2]]
        else:
            wholes = [x.shape[-i] for x in (q, k) if x.dim() >= i]
        yield known(size), [known(whole) for whole in wholes]


def _mask_must_expand(b: Importer, mask: Tensor, q: Tensor, k: Tensor) -> None:
    """Raise Unsupported unless the mask can be expanded to the sizes of the scores."""
    if mask.rank > max(q.rank, k.rank):
        raise Unsupported("attention: a mask has more dims than the scores")
    for size, wholes in _beside(mask.fake, q.fake, k.fake):
        if all(is_number(w) and w == 1 for w in wholes) and not is_as_large(b, size, 1):
            raise Unsupported("attention: a mask is larger than the scores")


def check_addends(graph: torch.fx.Graph) -> None:
    """Raise OfEager where a mask or a bias is larger than what it is added to: a sum is what
    PyTorch differentiates, whose operands may be.
    """
    aten = torch.ops.aten
    for target, name in ((aten.scaled_dot_product_attention, "attn_mask"), (aten.linear, "bias")):
        for node in graph.find_nodes(op="call_function", target=target.default):
            held: Any = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            given: list[Any] = [*held[0], held[1].get(name)]
            x, y, addend = given[0], given[1], given[2 if name == "bias" else 3]
            if addend is None:
                continue
            if name == "bias":
                larger = addend.dim() > x.dim() - (y.dim() == 1)
            else:
                larger = addend.dim() > max(x.dim(), y.dim()) or not all(
                    (is_number(size) and size == 1) or any(bool(size == w) for w in wholes)
                    for size, wholes in _beside(addend, x, y)
                )
            if larger:
                raise OfEager(f"{node.target} adds what is larger than its product")


def _transposed(b: Importer, value: int, rank: int) -> int:
    """The last two axes exchanged."""
    return b.add("permute", value, axes=[*range(rank - 2), rank - 1, rank - 2])


# Products ----------------------------------------------------------------------------------------


@row("mm", "bmm", "matmul", "linalg_matmul", "mv", "dot", "vdot")
def _matmul(b: Importer, out: Any, x: Tensor, y: Tensor) -> int:
    return _product(b, out, x, y)


@row("linear")
def _linear(b: Importer, out: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> int:
    _check("matrix multiply", out, x, weight, *([] if bias is None else [bias]))
    right = weight.id if weight.rank < 2 else _transposed(b, weight.id, 2)
    value = b.add("matmul", x.id, right)
    if bias is None:
        return value
    _must_expand(b, bias, value)
    return b.add("add", value, bias.id)


def _sum(b: Importer, x: Tensor, beta: Any, product: int, alpha: Any, sizes: Sequence[Any]) -> int:
    """The sum beta * x + alpha * product, which has these sizes; with beta 0, x is not read, even
    if NaN: nothing but its sizes is, which no metadata compare then.
    """
    _must_expand(b, x, product)
    if is_number(beta) and beta == 0:
        for size, whole in zip(reversed(x.shape), reversed(sizes), strict=False):
            if b.size(size) != 1 and not is_same(b, size, whole) and not is_as_large(b, size, 1):
                raise Unsupported("an addend does not fit the product")
    if not (is_number(alpha) and alpha == 1):
        product = b.add("mul", product, b.number(alpha))
    if is_number(beta) and beta == 0:
        return product
    addend = x.id if is_number(beta) and beta == 1 else b.add("mul", x.id, b.number(beta))
    if not is_number(beta):
        addend = b.add("where", b.add("eq", b.number(beta), b.number(0)), b.number(0), addend)
    return b.add("add", addend, product)


@row("addmm", "baddbmm", "addmv")
def _addmm(b: Importer, out: Any, x: Tensor, y: Tensor, z: Tensor, beta: Any, alpha: Any) -> int:
    _check("matrix multiply", out, x, y, z)
    sizes = [*y.shape[:-1], *z.shape[y.rank - 1 :]]
    return _sum(b, x, beta, b.add("matmul", y.id, z.id), alpha, sizes)


@row("addbmm")
def _addbmm(b: Importer, out: Any, x: Tensor, y: Tensor, z: Tensor, beta: Any, alpha: Any) -> int:
    _check("matrix multiply", out, x, y, z)
    sizes = [y.shape[1], z.shape[2]]
    return _sum(b, x, beta, _contraction(b, y, "bik", z, "bkj", "ij"), alpha, sizes)


@row("addr")
def _addr(b: Importer, out: Any, x: Tensor, y: Tensor, z: Tensor, beta: Any, alpha: Any) -> int:
    _check("outer product", out, x, y, z)
    sizes = [y.shape[0], z.shape[0]]
    return _sum(b, x, beta, _contraction(b, y, "i", z, "j", "ij"), alpha, sizes)


@row("transformers::grouped_mm_fallback")
def _grouped(b: Importer, out: Any, x: Tensor, y: Tensor, ends: Tensor) -> int:
    """Rows in groups, each with a matrix of its own, as of experts."""
    _check("matrix multiply", out, x, y)
    return b.add("grouped_matmul", x.id, y.id, ends.id)


@row("_grouped_mm")
def _grouped_mm(
    b: Importer, out: Any, x: Tensor, y: Tensor, ends: Tensor | None, bias: Any, dtype: Any
) -> Any:
    if ends is None:
        return _product(b, out, x, y)
    if bias is not None:
        raise Unsupported("a bias")
    if ends.dtype is not torch.int32:
        raise Unsupported("ends of groups that are not int32")
    if y.rank == 3:
        return _grouped(b, out, x, y, ends)
    if x.rank == 2:
        raise Unsupported("the sum over a group is a matrix")
    # Groups of columns: rows of the right factor, turned.
    _check("matrix multiply", out, x, y)
    left, right = _transposed(b, y.id, 2), _transposed(b, x.id, 3)
    return _transposed(b, b.add("grouped_matmul", left, right, ends.id), 2)


@row("linalg_cross", "cross")
def _cross(b: Importer, out: Any, x: Tensor, y: Tensor, dim: int | None = None) -> int:
    """A part each, so that nothing is gathered."""
    if dim is None:  # the first axis of three elements
        dim = next((i for i, size in enumerate(x.shape) if is_as_large(b, size, 3)), None)
    if dim is None or x.rank != y.rank or x.dtype != y.dtype:
        raise Unsupported("no axis is known to have three elements, or other dtypes")
    axis = axis_of(dim, x.rank)
    (x0, x1, x2), (y0, y1, y2) = (
        [b.cast(b.add("select", v.id, axis=axis, index=i), out.dtype) for i in range(3)]
        for v in (x, y)
    )
    parts = [
        b.add("sub", b.add("mul", p, s), b.add("mul", q, r))
        for p, q, r, s in ((x1, x2, y1, y2), (x2, x0, y2, y0), (x0, x1, y0, y1))
    ]
    return b.add("concat", *(b.add("unsqueeze", part, axis=axis) for part in parts), axis=axis)


@row("outer", "ger")
def _outer(b: Importer, out: Any, x: Tensor, y: Tensor) -> int:
    return _contraction(b, x, "i", y, "j", "ij")


# Contractions ------------------------------------------------------------------------------------


def _summed(b: Importer, x: Tensor, labels: Labels, kept: Labels) -> tuple[int, list[Any]]:
    """Sums over the dims whose label is not kept; the labels that remain."""
    if len(set(labels)) != len(labels):
        raise Unsupported("a diagonal")
    axes = [axis for axis, label in enumerate(labels) if label not in kept]
    value = b.add("sum", x.id, axes=axes, keepdims=False) if axes else x.id
    return value, [label for label in labels if label in kept]


def _permuted(b: Importer, value: int, labels: Labels, order: Labels) -> int:
    axes = [labels.index(label) for label in order]
    return value if axes == sorted(axes) else b.add("permute", value, axes=axes)


def _matrix(
    b: Importer, value: int, labels: Labels, groups: Sequence[Labels], sizes: Mapping[Any, Any]
) -> int:
    """The dims in the order of groups; those of the last two groups become one each."""
    batch, *pair = groups
    value = _permuted(b, value, labels, [label for group in groups for label in group])
    if all(len(group) == 1 for group in pair):
        return value
    merged = [math.prod(sizes[label] for label in group) for group in pair]
    return b.add("reshape", value, shape=b.shape([*(sizes[label] for label in batch), *merged]))


def _sizes(x: Tensor, xs: Labels, y: Tensor, ys: Labels) -> dict[Any, Any]:
    sizes = dict(zip(xs, x.shape, strict=True))
    for label, size in zip(ys, y.shape, strict=True):
        other = sizes.setdefault(label, size)
        if is_number(size) != is_number(other) or (is_number(size) and size != other):
            raise Unsupported("a size of 1 that is broadcast")
    return sizes


def _contraction(b: Importer, x: Tensor, xs: Labels, y: Tensor, ys: Labels, to: Labels) -> int:
    """The sum of x * y over all labels that are not in `to`, as one product of matrices."""
    sizes = _sizes(x, xs, y, ys)
    left, xs = _summed(b, x, xs, [*ys, *to])
    right, ys = _summed(b, y, ys, [*xs, *to])
    batch = [label for label in xs if label in ys and label in to]
    inner = [label for label in xs if label in ys and label not in to]
    rows = [label for label in xs if label not in ys]
    columns = [label for label in ys if label not in xs]
    left = _matrix(b, left, xs, (batch, rows, inner), sizes)
    right = _matrix(b, right, ys, (batch, inner, columns), sizes)
    value = b.add("matmul" if inner else "mul", left, right)
    found = [*batch, *rows, *columns]
    if len(rows) != 1 or len(columns) != 1:
        value = b.add("reshape", value, shape=b.shape(sizes[label] for label in found))
    return _permuted(b, value, found, to)


@row("inner")
def _inner(b: Importer, out: Any, x: Tensor, y: Tensor) -> Any:
    if not x.rank or not y.rank:
        return b.add("mul", x.id, y.id)
    return _tensordot(b, out, x, y, [-1], [-1])


@row("tensordot")
def _tensordot(b: Importer, out: Any, x: Tensor, y: Tensor, of_x: Any, of_y: Any) -> int:
    _check("matrix multiply", out, x, y)
    xs = list(range(x.rank))
    ys = list(range(x.rank, x.rank + y.rank))
    gone: list[int] = []
    for i, j in zip(of_x, of_y, strict=True):
        one, other = axis_of(i, x.rank), axis_of(j, y.rank)
        # Where one of them has a size of 1, the other is summed by itself.
        if (b.size(x.shape[one]) == 1) == (b.size(y.shape[other]) == 1):
            ys[other] = one
        else:
            gone += [xs[one], ys[other]]
    gone += [label for label in xs if label in ys]
    return _contraction(b, x, xs, y, ys, [label for label in [*xs, *ys] if label not in gone])


def _labels(text: str, rank: int) -> list[str]:
    """A label for each dim; those under `...` count from the last."""
    head, dots, tail = text.partition("...")
    wide = range(rank - len(head) - len(tail)) if dots else range(0)
    return [*head, *(f"...{i}" for i in reversed(wide)), *tail]


def _equation(text: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """Labels of each operand of an einsum, and of its result."""
    given, arrow, result = text.replace(" ", "").partition("->")
    operands = [_labels(t, r) for t, r in zip(given.split(","), ranks, strict=True)]
    everything = [label for labels in operands for label in labels]
    wide = max(
        ([label for label in labels if len(label) > 1] for labels in operands), key=len, default=[]
    )
    if not arrow:
        once = {label for label in everything if everything.count(label) == 1 and len(label) == 1}
        return operands, [*wide, *sorted(once)]
    head, dots, tail = result.partition("...")
    return operands, [*head, *(wide if dots else []), *tail]


@row("_trilinear")
def _trilinear(
    b: Importer, out: Any, x: Tensor, y: Tensor, z: Tensor, x_new: Sequence[int],
    y_new: Sequence[int], z_new: Sequence[int], summed: Sequence[int], unrolled: Any = 1,
) -> int:  # fmt: skip
    """The product of three, each with new dims, summed over some."""
    if not all(t.is_float for t in (x, y, z)):
        raise Unsupported("integers")
    rank = x.rank + len(x_new)

    def spread(t: Tensor, new: Sequence[int]) -> int:
        value = t.id
        for axis in sorted(axes_of(new, rank)):
            value = b.add("unsqueeze", value, axis=axis)
        return value

    product = b.add("mul", b.add("mul", spread(x, x_new), spread(z, z_new)), spread(y, y_new))
    return b.add("sum", product, axes=sorted(axes_of(summed, rank)), keepdims=False)


@row("einsum")
def _einsum(b: Importer, out: Any, text: str, tensors: Sequence[Tensor], path: Any = None) -> Any:
    """Of one or two operands; more are PyTorch's, who chooses an order."""
    _check("matrix multiply", out, *tensors)
    operands, to = _equation(text, [x.rank for x in tensors])
    if len(tensors) == 1:
        value, labels = _summed(b, tensors[0], operands[0], to)
        return _permuted(b, value, labels, to)
    if len(tensors) != 2:
        raise Unsupported("more than two operands")
    return _contraction(b, tensors[0], operands[0], tensors[1], operands[1], to)


# Attention ---------------------------------------------------------------------------------------


def _safe_softmax(b: Importer, scores: int, axis: int, width: Any) -> int:
    """The softmax over an axis of this width; zeros for a row that is -inf throughout."""
    if is_number(width) and width == 0:
        return b.add("softmax", scores, axis=axis)
    b.at_least(width, 1)  # the maximum of nothing is an error
    top = b.add("amax", scores, axes=[axis], keepdims=True)
    nothing = b.add("eq", top, b.number(-math.inf))
    return b.add("where", nothing, b.number(0.0), b.add("softmax", scores, axis=axis))


@row("_safe_softmax")
def _safe_softmax_row(b: Importer, out: Any, x: Tensor, dim: int, dtype: Any = None) -> int:
    value = x.id if dtype is None else b.cast(x.id, dtype)
    if not x.rank:
        row = b.add("reshape", value, shape=[1])
        return b.add("reshape", _safe_softmax(b, row, 0, 1), shape=[])
    axis = axis_of(dim, x.rank)
    return _safe_softmax(b, value, axis, x.shape[axis])


def _scale(b: Importer, given: Any, width: Any) -> int | None:
    """What scores are multiplied with: 1 / sqrt(width) if none is given; None for 1."""
    if given is None and isinstance(width, torch.SymInt):
        # Nothing is NaN where width is 0.
        return b.add("reciprocal", b.add("sqrt", b.add("maximum", b.number(width), b.number(1))))
    factor = 1 / math.sqrt(max(width, 1)) if given is None else given
    return None if is_number(factor) and factor == 1 else b.number(factor)


def _not_later(b: Importer, queries: Any, keys: Any, by_keys: bool = False) -> int:
    """[queries, keys], or turned: whether the key's position is at most the query's."""
    i, j = (b.add("iota", size=b.size(n)) for n in (queries, keys))
    if by_keys:
        return b.add("le", b.add("unsqueeze", j, axis=1), i)
    return b.add("le", j, b.add("unsqueeze", i, axis=1))


def _additive(b: Importer, mask: int, dtype: torch.dtype) -> int:
    """A mask as what is added to float32 scores: PyTorch's, too, keep a NaN that is masked."""
    if dtype is not torch.bool:
        return b.cast(mask, torch.float32)
    zero = b.cast(b.number(0.0), torch.float32)
    return b.add("where", mask, zero, b.number(-math.inf))


class _Heads:
    """Query heads that share key heads, as a group axis beside the keys' heads, which have 1."""

    def __init__(self, b: Importer, q: Tensor, k: Tensor, v: Tensor) -> None:
        if min(q.rank, k.rank, v.rank) < 3 or b.size(k.shape[-3]) != b.size(v.shape[-3]):
            raise Unsupported("attention: heads of keys and values differ")
        self.b = b
        self.heads = q.shape[-3]
        self.split = [k.shape[-3], self.heads // k.shape[-3]]

    def grouped(self, value: int, shape: Sequence[Any]) -> int:
        """[..., heads, m, n] as [..., heads of keys, group, m, n]; heads may be 1, or lack."""
        if len(shape) < 3:
            return value
        if is_number(shape[-3]) and shape[-3] == 1:
            return self.b.add("unsqueeze", value, axis=len(shape) - 2)
        sizes = [*shape[:-3], *self.split, *shape[-2:]]
        return self.b.add("reshape", value, shape=self.b.shape(sizes))

    def shared(self, value: int, rank: int) -> int:
        """[..., heads of keys, m, n] as [..., heads of keys, 1, m, n]."""
        return self.b.add("unsqueeze", value, axis=rank - 2)


def _logsumexp(b: Importer, scores: int, axis: int) -> int:
    """log(sum(exp(scores))) over an axis; 0 for a row that is -inf throughout, as PyTorch's is."""
    top = b.add("amax", scores, axes=[axis], keepdims=True)
    nothing = b.add("eq", top, b.number(-math.inf))
    sums = b.add("sum", b.add("exp", b.add("sub", scores, top)), axes=[axis], keepdims=True)
    logs = b.add("where", nothing, b.number(0.0), b.add("add", top, b.add("log", sums)))
    return b.add("squeeze", logs, axes=[axis])


def _attention(
    b: Importer, out: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool,
    scale: Any, gqa: bool = False, sums: bool = False,
) -> tuple[int, int | None]:  # fmt: skip
    """softmax(q @ k.T * scale + mask) @ v, its scores in float32; `sums`: and their _logsumexp.

    As in PyTorch's kernel, probabilities of bfloat16 are rounded before the second product; of
    float16 they stay float32, since those of a long row would lose bits.
    """
    _check("attention", out, q, k, v)
    heads = _Heads(b, q, k, v) if gqa and b.size(q.shape[-3]) != b.size(k.shape[-3]) else None
    rank = max(x.rank for x in (q, k, v)) + (heads is not None)
    if rank > MAX_RANK:
        raise Unsupported("attention: too many axes")
    left, right, last = q.id, _transposed(b, k.id, k.rank), v.id
    added = None if mask is None else mask.id
    if heads is not None:  # views of what lies in memory, before casts
        left, right, last = (
            heads.grouped(left, q.shape), heads.shared(right, k.rank), heads.shared(last, v.rank)
        )  # fmt: skip
        if mask is not None and added is not None:
            added = heads.grouped(added, mask.shape)
    left, right = (b.cast(x, torch.float32) for x in (left, right))
    if q.dtype is not torch.bfloat16:
        last = b.cast(last, torch.float32)
    if mask is not None and added is not None:
        _mask_must_expand(b, mask, q, k)
        added = _additive(b, added, mask.dtype)
    scores = b.add("matmul", left, right)
    factor = _scale(b, scale, q.shape[-1])
    if factor is not None:
        scores = b.add("mul", scores, factor)
    if causal:
        seen = _not_later(b, q.shape[-2], k.shape[-2])
        scores = b.add("where", seen, scores, b.number(-math.inf))
    if added is not None:
        scores = b.add("add", scores, added)
    probabilities = _safe_softmax(b, scores, rank - 1, k.shape[-2])
    if q.dtype is torch.bfloat16:
        probabilities = b.cast(probabilities, torch.bfloat16)
    value = b.add("matmul", probabilities, last)
    if heads is not None:
        value = b.add("reshape", value, shape=b.shape(out.shape))
    return value, _logsumexp(b, scores, rank - 1) if sums else None


def _no_dropout(p: Any) -> None:
    if not (is_number(p) and p == 0):
        raise Unsupported("attention: random numbers")


@row("scaled_dot_product_attention")
def _sdpa(
    b: Importer, out: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: Any,
    causal: bool, scale: Any, gqa: bool,
) -> int:  # fmt: skip
    _no_dropout(dropout)
    return _attention(b, out, q, k, v, mask, causal, scale, gqa)[0]


@row("_scaled_dot_product_flash_attention_for_cpu")
def _flash(
    b: Importer, out: Any, q: Tensor, k: Tensor, v: Tensor, dropout: Any, causal: bool,
    mask: Tensor | None, scale: Any,
) -> tuple[Any, ...]:  # fmt: skip
    _no_dropout(dropout)
    if b.used(1):
        _has_gradient(b, q, k, v)
    return _attention(b, out[0], q, k, v, mask, causal, scale, gqa=True, sums=b.used(1))


def _has_gradient(b: Importer, *parts: Tensor) -> None:
    """PyTorch's kernel is the quicker one for long sequences of other dtypes."""
    if any(x.dtype is not torch.bfloat16 for x in parts):
        raise Unsupported("attention: its gradient, but of bfloat16")
    if len({b.size(x.shape[1]) for x in parts}) > 1:
        raise Unsupported("attention: its gradient for heads that share keys")


@row("_scaled_dot_product_flash_attention_for_cpu_backward")
def _flash_backward(
    b: Importer, out: Any, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, result: Tensor,
    sums: Tensor, dropout: Any, causal: bool, mask: Tensor | None = None, scale: Any = None,
) -> tuple[int, int, int]:  # fmt: skip
    """Gradients for queries, keys and values, from the result and the sums of exponentials.

    Weights are computed again, for rows of queries and for rows of keys, so that none are ever in
    memory. As in PyTorch's kernel, they and their gradients are rounded before products.
    Source: Dao et al., FlashAttention, https://arxiv.org/abs/2205.14135, section 3.
    """
    _no_dropout(dropout)
    _has_gradient(b, q, k, v)
    queries, keys = q.shape[-2], k.shape[-2]
    factor = _scale(b, scale, q.shape[-1])
    added = None if mask is None else _additive(b, mask.id, mask.dtype)

    def wide(value: int) -> int:
        return b.cast(value, torch.float32)

    def product(x: int, y: int) -> int:
        return b.add("matmul", wide(x), wide(y))

    def scaled(value: int) -> int:
        return value if factor is None else b.add("mul", value, factor)

    def narrow(value: int) -> int:
        return b.cast(value, torch.bfloat16)

    def turned(value: int, rank: int = 4) -> int:
        return _transposed(b, value, rank)

    sum_of_row = b.add("unsqueeze", sums.id, axis=3)
    mean = b.add("sum", b.add("mul", wide(gradient.id), wide(result.id)), axes=[3], keepdims=True)

    def weights(by_keys: bool) -> tuple[int, int]:
        """Rounded: of rows of queries or of keys, and the gradient for scores likewise."""
        own, other = (k.id, q.id) if by_keys else (q.id, k.id)
        scores = scaled(product(own, turned(other)))
        if causal:
            seen = _not_later(b, queries, keys, by_keys)
            scores = b.add("where", seen, scores, b.number(-math.inf))
        if added is not None and mask is not None:
            scores = b.add("add", scores, turned(added, mask.rank) if by_keys else added)
        shift = turned(sum_of_row) if by_keys else sum_of_row
        exponentials = b.add("exp", b.add("sub", scores, shift))
        own, other = (v.id, gradient.id) if by_keys else (gradient.id, v.id)
        change = b.add("sub", product(own, turned(other)), turned(mean) if by_keys else mean)
        return narrow(exponentials), narrow(b.add("mul", exponentials, change))

    _, of_scores = weights(by_keys=False)
    for_queries = scaled(product(of_scores, k.id))
    of_keys, of_scores = weights(by_keys=True)
    for_keys = scaled(product(of_scores, q.id))
    return narrow(for_queries), narrow(for_keys), narrow(product(of_keys, gradient.id))


_OURS = frozenset(name for name, rule in ROWS.items() if rule.__module__ == __name__)


def is_product(target: Any) -> bool:
    """Whether an operator of ATen's multiplies matrices."""
    return str(target) in _OURS

"""ATen operators on sets of rows: distances, bags, segments, powers. Rows as in `torch_ops`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from tilevm.frontends.torch_data import most_of
from tilevm.frontends.torch_ops import (
    Tensor,
    Unsupported,
    constant,
    fixed,
    is_number,
    is_small,
    row,
)
from tilevm.frontends.torch_reductions import norm
from tilevm.frontends.torch_sets import ROWS
from tilevm.frontends.torch_views import filled

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

__all__ = ["ROWS"]

# Distances ---------------------------------------------------------------------------------------

_MOST_ROWS = 128  # of pairs of rows
_MANY = 25  # rows: from here on PyTorch takes products, unless it is told not to


def _is_many(b: Importer, size: Any) -> bool:
    """Whether a size is above `_MANY`, as in the example; a guard says that it is."""
    if is_number(size):
        return bool(size > _MANY)
    if b.sizes.depends_on_data(size) or size.node.hint is None or size.node.hint <= _MANY:
        return False
    b.at_least(size, _MANY + 1)
    return True


def _apart(b: Importer, out: Any, x: int, y: int, like: Tensor, p: float, width: Any) -> int:
    """The norm over the last axis of what rows differ by."""
    if is_number(width) and width == 0:
        return filled(b, 0, like.dtype, out.shape)
    b.at_least(width, 1)
    between = Tensor(b.add("sub", x, y), like.fake.new_empty([1] * (out.dim() + 1)))
    value: int = norm(b, out, between, p, [out.dim()], False)
    return value


@row("cdist", "_cdist_forward")
def _cdist(b: Importer, out: Any, x: Tensor, y: Tensor, p: Any, mode: int | None = None) -> int:
    """Between all rows of x and all of y."""
    if x.dtype != y.dtype or x.dtype not in (torch.float32, torch.float64):
        raise Unsupported(f"distances of {str(x.dtype)[6:]}")
    p = constant(p)
    width = x.shape[-1]
    if p == 2 and mode != 2 and x.dtype is torch.float32:
        many = mode == 1 or any([_is_many(b, t.shape[-2]) for t in (x, y)])
        if many and not (is_number(width) and width == 0):
            return _by_products(b, x, y)
    one = b.add("unsqueeze", x.id, axis=x.rank - 1)
    other = b.add("unsqueeze", y.id, axis=y.rank - 2)
    return _apart(b, out, one, other, x, p, width)


def _by_products(b: Importer, x: Tensor, y: Tensor) -> int:
    """From |x|^2 - 2 x y + |y|^2."""
    squares = [
        b.add("sum", b.add("mul", t.id, t.id), axes=[t.rank - 1], keepdims=True) for t in (x, y)
    ]
    order = [*range(y.rank - 2), y.rank - 1, y.rank - 2]
    turned, across = (b.add("permute", v, axes=order) for v in (y.id, squares[1]))
    products = b.add("matmul", b.add("mul", x.id, b.number(-2.0)), turned)
    total = b.add("add", b.add("add", products, squares[0]), across)
    return b.add("sqrt", b.add("maximum", total, b.number(0.0)))


@row("pdist", "_pdist_forward")
def _pdist(b: Importer, out: Any, x: Tensor, p: Any) -> int:
    """Between each row and those behind it: which two, from how many pairs come before."""
    rows, width = x.shape
    p = constant(p)
    if is_number(rows) and rows < 2:
        return filled(b, 0, x.dtype, [0])
    b.at_least(rows, 2)
    count = out.shape[0]
    if not is_small(b, rows, _MOST_ROWS):
        raise Unsupported("many rows")  # which it gathers for each pair: PyTorch is quicker
    k = b.cast(b.add("iota", size=b.size(count)), torch.float64)
    n, half = b.number(rows), b.number(0.5)
    twice = b.add("sub", b.add("mul", b.cast(n, torch.float64), b.number(2.0)), b.number(1.0))

    def before(i: int) -> int:
        """Pairs whose first row comes before i."""
        return b.add("mul", b.add("mul", i, b.add("sub", twice, i)), half)

    root = b.add("sub", b.add("mul", twice, twice), b.add("mul", k, b.number(8.0)))
    i = b.add("floor", b.add("mul", b.add("sub", twice, b.add("sqrt", root)), half))
    one = b.number(1.0)
    i = b.add("where", b.add("gt", before(i), k), b.add("sub", i, one), i)  # it was rounded
    following = b.add("add", i, one)
    i = b.add("where", b.add("le", before(following), k), following, i)
    j = b.add("add", b.add("sub", k, before(i)), b.add("add", i, one))
    last = b.number(rows - 1)
    places = (
        b.add("minimum", b.add("maximum", b.cast(v, torch.int64), b.number(0)), last)
        for v in (i, j)
    )
    one_row, other = (b.add("take", x.id, place, axis=0) for place in places)
    return _apart(b, out, one_row, other, x, p, width)


def _gradient(b: Importer, grad: int, apart: int, distance: int, p: float, dtype: Any) -> int:
    """Of what rows differ by, `apart`; the other two are 1 along its last axis. As PyTorch, 0 where
    the distance is, or what it rounds to.
    """
    if p == 0:
        return b.add("mul", apart, b.number(0.0))
    zero = b.cast(b.number(0.0), dtype)
    size, sign = b.add("abs", apart), b.add("sign", apart)
    if p == 1:
        return b.add("mul", sign, grad)
    if p == math.inf:
        largest = b.add("eq", size, distance)
        return b.add("where", largest, b.add("mul", sign, grad), zero)
    nothing = b.add("eq", distance, zero)
    if p == 2:
        value = b.add("div", b.add("mul", grad, apart), distance)
    else:
        if p < 1:
            nothing = b.add("logical_or", nothing, b.add("eq", apart, zero))
        power = b.add("pow", size, b.number(p - 1))
        value = b.add("mul", b.add("mul", sign, power), grad)
        value = b.add("div", value, b.add("pow", distance, b.number(p - 1)))
    return b.add("where", nothing, zero, value)


@row("_cdist_backward")
def _cdist_backward(
    b: Importer, out: Any, grad: Tensor, x: Tensor, y: Tensor, p: Any, distance: Tensor
) -> int:
    """Of the batches that both make together."""
    if x.dtype not in (torch.float32, torch.float64):
        raise Unsupported(f"gradients of {str(x.dtype)[6:]}")
    one = b.add("unsqueeze", x.id, axis=x.rank - 1)
    other = b.add("unsqueeze", y.id, axis=y.rank - 2)
    given, between = (b.add("unsqueeze", t.id, axis=grad.rank) for t in (grad, distance))
    value = _gradient(b, given, b.add("sub", one, other), between, constant(p), x.dtype)
    return b.add("sum", value, axes=[grad.rank - 1], keepdims=False)


@row("_pdist_backward")
def _pdist_backward(
    b: Importer, out: Any, grad: Tensor, x: Tensor, p: Any, distance: Tensor
) -> int:
    """Each row against all others, by where their pair is."""
    p, rows = constant(p), x.shape[0]
    if is_number(rows) and rows < 2:
        nothing: int = filled(b, 0, x.dtype, out.shape)
        return nothing
    b.at_least(rows, 2)
    place = b.add("iota", size=b.size(rows))
    i, j = b.add("unsqueeze", place, axis=1), b.add("unsqueeze", place, axis=0)
    first, last = b.add("minimum", i, j), b.add("maximum", i, j)
    # Pairs whose first row comes before: that many, less what is half of a product.
    whole = b.add("mul", first, b.add("sub", b.number(2 * rows - 3), first))
    whole = b.add("floor_div", whole, b.number(2))
    at = b.add("sub", b.add("add", whole, last), b.number(1))
    own = b.add("eq", i, j)
    at = b.add("where", own, b.cast(b.number(0), torch.int64), at)
    given, between = (
        b.add("unsqueeze", b.add("take", t.id, at, axis=0), axis=2) for t in (grad, distance)
    )
    apart = b.add("sub", b.add("unsqueeze", x.id, axis=1), b.add("unsqueeze", x.id, axis=0))
    value = _gradient(b, given, apart, between, p, x.dtype)
    zero = b.cast(b.number(0.0), x.dtype)
    value = b.add("where", b.add("unsqueeze", own, axis=2), zero, value)
    return b.add("sum", value, axes=[1], keepdims=False)


_MOST_CLASSES = 64  # each is compared with each
_NONE, _AVERAGE = 0, 1  # of a loss's `reduction`


@row("multilabel_margin_loss")
def _multilabel_margin_loss(
    b: Importer, out: Any, x: Tensor, target: Tensor, reduction: int
) -> int:
    loss: int = _multilabel_margin_loss_forward(b, out, x, target, reduction)[0]
    return loss


@row("multilabel_margin_loss_forward")
def _multilabel_margin_loss_forward(
    b: Importer, out: Any, x: Tensor, target: Tensor, reduction: int
) -> tuple[int, int]:
    """Targets end at the first that is negative; each against all classes that are none, which are
    the second result.
    """
    shape = b.shape(target.shape)
    if x.dtype not in (torch.float32, torch.float64):
        raise Unsupported(f"margins of {str(x.dtype)[6:]}")
    if not x.rank:
        x, target = (
            Tensor(b.add("reshape", t.id, shape=[1]), t.fake.reshape(1)) for t in (x, target)
        )
    classes = x.shape[-1]
    if not is_small(b, classes, _MOST_CLASSES):
        raise Unsupported("many classes")
    for size in x.shape:
        b.at_least(size, 1)
    last = x.rank - 1
    there = b.cast(b.add("ge", target.id, b.number(0)), torch.int64)
    there = b.add("gt", b.add("cumprod", there, axis=last), b.number(0))
    place = b.add("minimum", b.add("maximum", target.id, b.number(0)), b.number(classes - 1))
    chosen = b.add("gather", x.id, place, axis=last)
    # [..., targets, classes]
    wide = b.add("unsqueeze", there, axis=x.rank)
    hit = b.add("eq", b.add("unsqueeze", place, axis=x.rank), b.add("iota", size=b.size(classes)))
    hit = b.add("logical_and", hit, wide)
    is_target = b.add("any", hit, axes=[last], keepdims=True)
    targets = b.add("reshape", b.cast(is_target, x.dtype), shape=shape)
    gap = b.add("sub", b.number(1.0), b.add("unsqueeze", chosen, axis=x.rank))
    gap = b.add("add", gap, b.add("unsqueeze", x.id, axis=last))
    counts = b.add("logical_and", wide, b.add("logical_not", is_target))
    margin = b.add("where", counts, b.add("maximum", gap, b.number(0.0)), b.number(0.0))
    total = b.add("sum", margin, axes=[last, x.rank], keepdims=False)
    total = b.add("div", total, b.number(classes))
    if reduction == _NONE or x.rank == 1:
        return total, targets
    name = "mean" if reduction == _AVERAGE else "sum"
    return b.add(name, total, axes=[0], keepdims=False), targets


_MOST_LOGITS = 1 << 20  # which PyTorch makes some at a time


def _entropies(
    b: Importer, x: Tensor, matrix: Tensor, target: Tensor, bias: Tensor | None,
    weight: Tensor | None, ignored: Any, smoothing: Any,
) -> tuple[int, int]:  # fmt: skip
    """Of each row of x the cross entropy of its product with a matrix, and its weight."""
    if x.rank != 2 or target.rank != 1 or x.dtype is not torch.float32:
        raise Unsupported("other ranks, or dtypes")
    rows, classes = x.shape[0], matrix.shape[0]
    if not is_small(b, rows * classes, _MOST_LOGITS):
        raise Unsupported("many classes and rows")
    b.at_least(classes, 1)
    logits = b.add("matmul", x.id, b.add("permute", matrix.id, axes=[1, 0]))
    if bias is not None:
        logits = b.add("add", logits, bias.id)
    scores = b.add("neg", b.add("log_softmax", logits, axis=1))
    kept = b.add("ne", target.id, b.number(ignored))
    place = b.add("where", kept, target.id, b.number(0))
    loss = b.add("gather", scores, b.add("unsqueeze", place, axis=1), axis=1)
    loss = b.add("squeeze", loss, axes=[1])
    one = b.cast(b.number(1.0), x.dtype)
    factor = one if weight is None else b.add("take", weight.id, place, axis=0)
    if not (is_number(smoothing) and smoothing == 0):
        every = scores if weight is None else b.add("mul", scores, weight.id)
        spread = b.add("sum", every, axes=[1], keepdims=False)
        share = b.add("div", b.number(smoothing), b.number(classes))
        rest = b.add("sub", b.number(1.0), b.number(smoothing))
        loss = b.add("mul", b.add("mul", loss, factor), rest)
        loss = b.add("add", loss, b.add("mul", spread, share))
    else:
        loss = b.add("mul", loss, factor)
    zero = b.cast(b.number(0.0), x.dtype)
    return b.add("where", kept, loss, zero), b.add("where", kept, factor, zero)


@row("torch_nn::_linear_cross_entropy_batch_chunked")
def _linear_cross_entropy(
    b: Importer, out: Any, x: Tensor, matrix: Tensor, target: Tensor, bias: Any, weight: Any,
    reduction: str, ignored: Any, smoothing: Any, *_: Any,
) -> tuple[Any, ...]:  # fmt: skip
    if any(b.used(i) for i in (1, 2, 3)):
        raise Unsupported("its gradients")
    losses, weights = _entropies(b, x, matrix, target, bias, weight, ignored, smoothing)
    loss = b.add("sum", losses, axes=[0], keepdims=False)
    if reduction == "mean":
        loss = b.add("div", loss, b.add("sum", weights, axes=[0], keepdims=False))
    return loss, None, None, None


@row("torch_nn::_linear_cross_entropy_batch_chunked_no_reduction")
def _linear_cross_entropies(
    b: Importer, out: Any, x: Tensor, matrix: Tensor, target: Tensor, bias: Any, weight: Any,
    ignored: Any, *_: Any,
) -> int:  # fmt: skip
    return _entropies(b, x, matrix, target, bias, weight, ignored, 0)[0]


# Powers ------------------------------------------------------------------------------------------

_MOST_POWER = 1 << 16


@row("linalg_matrix_power", "matrix_power")
def _matrix_power(b: Importer, out: Any, x: Tensor, n: Any) -> Any:
    """By its binary digits."""
    n = fixed(b, n)
    if not is_number(n) or not 0 <= n <= _MOST_POWER or x.dtype is not torch.float32:
        raise Unsupported("an inverse, a large power, or other dtypes")
    if n == 1:
        return x
    if n == 0:
        rows = b.add("unsqueeze", b.add("iota", size=b.size(x.shape[-1])), axis=1)
        one = b.add("eq", rows, b.add("iota", size=b.size(x.shape[-1])))
        return b.add("expand", b.cast(one, x.dtype), shape=b.shape(x.shape))
    square = x.id
    if n == 3:
        return b.add("matmul", b.add("matmul", square, square), square)
    value = -1
    while n:
        if n % 2:
            value = square if value < 0 else b.add("matmul", value, square)
        n //= 2
        if n:
            square = b.add("matmul", square, square)
    return value


# Bags and segments -------------------------------------------------------------------------------

_SUM, _MEAN, _MAX = range(3)
_MOST_IN_BAGS = 1 << 14  # elements


@row("embedding_bag", "embedding_bag.padding_idx", "_embedding_bag_forward_only",
     "_embedding_bag")  # fmt: skip
def _embedding_bag(
    b: Importer, out: Any, weight: Tensor, index: Tensor, offsets: Tensor, by_count: bool,
    mode: int, sparse: bool, factors: Tensor | None, with_last: bool, padding: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Rows of the weight, added up by bag: the last one that begins at or before the index."""
    if any(b.used(i) for i in (1, 2, 3)) or weight.dtype is not torch.float32:
        raise Unsupported("places in bags, or other dtypes")
    if index.rank != 1 or offsets.dtype != index.dtype or mode == _MAX:
        raise Unsupported("maxima, or bags of other kinds")
    count, width = index.shape[0], weight.shape[1]
    bags = out[0].shape[0]
    if not is_small(b, count * width, _MOST_IN_BAGS):
        raise Unsupported("large bags")  # each row is moved twice: PyTorch is quicker
    place = b.cast(b.add("iota", size=b.size(count)), index.dtype)
    bag = b.add("searchsorted", offsets.id, place, axis=0, right=True)
    bag = b.add("sub", bag, b.number(1))
    whole = b.number(bags - 1)
    # Elements before the first bag, and behind the last one if its end is said, are in none.
    inside = b.add("logical_and", b.add("ge", bag, b.number(0)), b.add("le", bag, whole))
    if padding is not None:
        if b.is_negative(padding):
            padding = weight.shape[0] + padding
        kept = b.add("ne", index.id, b.number(padding))
        inside = b.add("logical_and", inside, kept)
    bag = b.add("where", inside, bag, b.number(bags))
    rows = b.add("take", weight.id, index.id, axis=0)
    if factors is not None:
        rows = b.add("mul", rows, b.add("unsqueeze", factors.id, axis=1))
    wide = b.add("expand", b.add("unsqueeze", bag, axis=1), shape=b.shape([count, width]))
    start = filled(b, 0, weight.dtype, [bags + 1, width])
    value = b.add("scatter_add", start, wide, rows, axis=0)
    value = b.add("slice", value, axis=0, start=0, stop=b.size(bags), step=1)
    if mode == _MEAN:
        ones = filled(b, 1, weight.dtype, [count])
        start = filled(b, 0, weight.dtype, [bags + 1])
        many = b.add("scatter_add", start, bag, ones, axis=0)
        many = b.add("slice", many, axis=0, start=0, stop=b.size(bags), step=1)
        many = b.add("unsqueeze", b.add("maximum", many, b.number(1.0)), axis=1)
        value = b.add("div", value, many)
    return value, None, None, None


# By reduction: the scatter, and what an empty segment is.
_REDUCTIONS = {
    "sum": ("scatter_add", 0.0), "mean": ("scatter_add", 0.0), "prod": ("scatter_mul", 1.0),
    "max": ("scatter_max", -math.inf), "min": ("scatter_min", math.inf),
}  # fmt: skip


@row("segment_reduce")
def _segment_reduce(
    b: Importer, out: Any, x: Tensor, reduce: str, lengths: Tensor | None, index: Tensor | None,
    offsets: Tensor | None, axis: int, unsafe: bool, initial: Any,
) -> int:  # fmt: skip
    """Rows of x by segment: the first one that ends behind the row. Of a later axis, what lies
    before it has segments of its own.
    """
    given = lengths if offsets is None else offsets
    if given is None or given.rank != axis + 1 or x.dtype is not torch.float32:
        raise Unsupported("segments of another axis, or other dtypes")
    outer, rows, segments = list(x.shape[:axis]), x.shape[axis], out.shape[axis]
    if offsets is None:
        ends = b.cast(b.add("cumsum", given.id, axis=axis), torch.int64)
        size = b.cast(given.id, torch.int64)
    else:
        cut = {"axis": axis, "step": 1}
        whole = b.cast(given.id, torch.int64)
        ends = b.add("slice", whole, start=1, stop=b.size(segments + 1), **cut)
        begins = b.add("slice", whole, start=0, stop=b.size(segments), **cut)
        size = b.add("sub", ends, begins)
    # All rows are in one segment, as PyTorch demands.
    total = b.add("sum", size, axes=[axis], keepdims=False)
    negative = b.add("any", b.add("lt", size, b.number(0)), axes=[axis], keepdims=False)
    bad = b.add("logical_or", b.add("ne", total, b.number(rows)), negative)
    most_of(b, b.cast(bad, torch.float64), axis, 0, "segments that do not cover all rows")
    place = b.add("iota", size=b.size(rows))
    if outer:
        place = b.add("expand", place, shape=b.shape([*outer, rows]))
    segment = b.add("searchsorted", ends, place, axis=axis, right=True)
    segment = b.add("minimum", segment, b.number(segments))  # where a check fails
    op, empty = _REDUCTIONS[reduce]
    fill = empty if initial is None else initial
    rest = list(x.shape[axis + 1 :])
    index_of = segment
    for _ in rest:
        index_of = b.add("unsqueeze", index_of, axis=len(b.program.type(index_of)[2]))
    wide = b.add("expand", index_of, shape=b.shape([*outer, rows, *rest]))
    start = filled(b, fill, x.dtype, [*outer, segments + 1, *rest])
    value = b.add(op, start, wide, x.id, axis=axis)
    value = b.add("slice", value, axis=axis, start=0, stop=b.size(segments), step=1)
    if reduce != "mean":
        return value
    shape = b.shape([*outer, segments, *[1] * len(rest)])
    many = b.add("reshape", size, shape=shape)
    none = b.add("eq", many, b.number(0))
    mean = b.add("div", value, b.cast(many, x.dtype))
    return mean if initial is None else b.add("where", none, b.number(initial), mean)

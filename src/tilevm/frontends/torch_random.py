"""ATen operators that draw random numbers, as eager code draws them: rows as in `torch_ops`.

A step of the program draws the words of PyTorch's default generator, in eager code's order, and
leaves the generator where eager code would; what is made of the words fuses as anything else does.
The words of a tensor are drawn at once, where PyTorch draws each by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tilevm.errors import RecorderError
from tilevm.frontends import torch_callouts, torch_data
from tilevm.frontends.torch_imported import short_name
from tilevm.frontends.torch_memory import Refused
from tilevm.frontends.torch_ops import Tensor, Unsupported, constant, is_number, row
from tilevm.frontends.torch_views import filled

if TYPE_CHECKING:
    from tilevm.frontends.torch_import import Importer

_MOST_IN_A_WORD = 1 << 28  # integers from more than that many are made of two words
_library: Any = torch.library.Library("tilevm", "FRAGMENT")  # type: ignore[no-untyped-call]


@cache
def _recorder() -> Any:
    """The module that reaches PyTorch's generators. Raises: RecorderError."""
    from tilevm.frontends.torch_eager import built

    return built()


class _Kind(NamedTuple):
    """What is drawn for each element; the operator by which its step is known."""

    name: str
    dtype: torch.dtype

    @property
    def operator(self) -> str:
        return f"draw_{self.name}"


_WORDS = _Kind("words", torch.int32)
_FRACTIONS = _Kind("fractions", torch.float64)  # from 0 to below 1
_NORMALS = _Kind("normals", torch.float32)
_WIDE_NORMALS = _Kind("wide_normals", torch.float64)
_PAIRS = _Kind("pairs", torch.float64)  # normal, as PyTorch makes them one by one


def _define(kind: _Kind) -> None:
    """An operator that draws so many."""

    def draw(n: int) -> torch.Tensor:
        out = torch.empty(n, dtype=kind.dtype)
        _recorder().draw(out, kind.name)
        return out

    _library.define(f"{kind.operator}(SymInt n) -> Tensor", tags=torch.Tag.nondeterministic_seeded)
    _library.impl(kind.operator, draw, "CompositeExplicitAutograd")
    torch_callouts.FAST[f"tilevm.{kind.operator}.default"] = draw


for _kind in (_WORDS, _FRACTIONS, _NORMALS, _WIDE_NORMALS, _PAIRS):
    _define(_kind)


def _is_eagers(name: str) -> bool:
    """Whether eager code draws like that here for an operator, and leaves its generator as we do:
    that differs between processors' vendors.
    """
    try:
        return bool(_recorder().draws_as_eager(name))
    except RecorderError:
        return False


def _drawn(b: Importer, shape: Sequence[Any], kind: _Kind, name: str) -> int:
    """Draws for all elements, in order, as operator `name` draws."""
    if not _is_eagers(name):
        raise Unsupported("random numbers")
    operator = getattr(torch.ops.tilevm, kind.operator).default
    count = math.prod(shape)
    called = f"tilevm.{kind.operator}.default"
    function, inputs, source = torch_callouts.bind(b, operator, called, [count])
    function.is_tilevms = True  # type: ignore[attr-defined]  # as the core asks
    types = [(short_name(kind.dtype), False, (b.size(count),))]
    words = torch_callouts.step(b, function, inputs, types, source)
    return b.add("reshape", words, shape=b.shape(shape))


def _sizes(like: torch.Tensor) -> Sequence[Any]:
    """Of a tensor that is filled in the order of its elements."""
    if not like.is_contiguous():
        raise Unsupported("random numbers, in another order of dims")
    return like.shape


def _uniform(b: Importer, out: torch.Tensor, dtype: torch.dtype) -> int:
    """From 0 to below 1."""
    shape = _sizes(out)
    if dtype is torch.float64:
        return _drawn(b, shape, _FRACTIONS, "uniform_")
    if dtype is not torch.float32:
        raise Unsupported(f"random numbers of {str(dtype)[6:]}")
    bits = b.add("bitwise_and", _drawn(b, shape, _WORDS, "uniform_"), b.number((1 << 24) - 1))
    return b.add("mul", b.cast(bits, dtype), b.number(2.0**-24))


def _eagers(x: Tensor, generator: Any) -> None:
    """Check that `x` is filled by PyTorch's generator, in the order of its elements: what is made
    of a draw in place has no longer the order of dims that it was drawn in.
    """
    if generator is not None:
        raise Unsupported("random numbers of a generator")
    if not x.fake.is_contiguous():
        raise Refused("random numbers in place, in another order of dims")


def _chance(value: Any) -> float:
    """From 0 to 1; of others PyTorch says what is wrong."""
    chance = constant(value)
    if not 0 <= chance <= 1:
        raise Unsupported("a chance that is not from 0 to 1")
    return chance


@row("rand", "rand_like")
def _rand(b: Importer, out: Any, *_: Any) -> int:
    return _uniform(b, out, out.dtype)


@row("uniform")
def _uniform_between(b: Importer, out: Any, x: Tensor, low: Any, high: Any, generator: Any) -> int:
    _eagers(x, generator)
    largest = torch.finfo(out.dtype).max
    first, last = constant(low), constant(high)
    if not (-largest <= first <= last <= largest and last - first <= largest):
        raise Unsupported("bounds that are no range")  # PyTorch says what is wrong
    low, high = (torch.tensor(n, dtype=out.dtype) for n in (first, last))
    value = _uniform(b, out, out.dtype)
    if low or high != 1:  # the sum is rounded once, as by a multiplication that adds
        value = b.cast(value, torch.float64)
        value = b.add("mul", value, b.number((high - low).item()))
        value = b.cast(b.add("add", value, b.number(low.item())), out.dtype)
        is_last = b.add("eq", value, b.number(high.item()))  # where it was rounded up
        value = b.add("where", is_last, b.cast(b.number(low.item()), out.dtype), value)
    return value


def _scaled(b: Importer, value: int, scale: float, shift: float) -> int:
    if scale != 1:
        value = b.add("mul", value, b.number(scale))
    return b.add("add", value, b.number(shift)) if shift else value


def _normals(b: Importer, out: torch.Tensor, mean: Any, deviation: Any) -> int:
    kind = {torch.float32: _NORMALS, torch.float64: _WIDE_NORMALS}.get(out.dtype)
    if kind is None:
        raise Unsupported(f"random numbers of {str(out.dtype)[6:]}")
    mean, deviation = constant(mean), constant(deviation)
    if not deviation >= 0:
        raise Unsupported("a deviation below 0")  # PyTorch says what is wrong
    return _scaled(b, _drawn(b, _sizes(out), kind, "normal_"), deviation, mean)


@row("randn", "randn_like")
def _randn(b: Importer, out: Any, *_: Any) -> int:
    return _normals(b, out, 0.0, 1.0)


@row("normal_functional")
def _normal(b: Importer, out: Any, x: Tensor, mean: Any, deviation: Any, generator: Any) -> int:
    _eagers(x, generator)
    return _normals(b, out, mean, deviation)


@row("normal.float_float")
def _normal_of(b: Importer, out: Any, mean: Any, deviation: Any, *_: Any) -> int:
    return _normals(b, out, mean, deviation)


@row("normal.Tensor_float")
def _normal_around(b: Importer, out: Any, mean: Tensor, deviation: Any, generator: Any) -> int:
    _eagers(mean, generator)
    return b.add("add", _normals(b, out, 0.0, deviation), mean.id)


@row("normal.Tensor_Tensor")
def _normal_of_both(
    b: Importer, out: Any, mean: Tensor, deviation: Tensor, generator: Any = None
) -> int:
    if generator is not None:
        raise Unsupported("random numbers of a generator")
    if mean.dtype is not deviation.dtype:
        raise Refused("normal numbers whose dtype is the mean's, which no trace knows")
    fits = b.add("ge", deviation.id, b.number(0))
    torch_data.all_hold(b, fits, deviation.rank, "normal expects all elements of std >= 0.0")
    value = _normals(b, out, 0.0, 1.0)
    return b.add("add", b.add("mul", value, deviation.id), mean.id)


def _fractions(b: Importer, out: torch.Tensor, name: str, kind: _Kind = _FRACTIONS) -> int:
    if out.dtype not in (torch.float32, torch.float64):
        raise Unsupported(f"random numbers of {str(out.dtype)[6:]}")
    return _drawn(b, _sizes(out), kind, name)


@row("log_normal")
def _log_normal(b: Importer, out: Any, x: Tensor, mean: Any, deviation: Any, generator: Any) -> int:
    _eagers(x, generator)
    mean, deviation = constant(mean), constant(deviation)
    if not deviation > 0:
        raise Unsupported("a deviation that is not above 0")
    pairs = _fractions(b, out, "log_normal_", _PAIRS)
    return b.add("exp", _scaled(b, pairs, deviation, mean))


@row("exponential")
def _exponential(b: Importer, out: Any, x: Tensor, rate: Any, generator: Any) -> int:
    _eagers(x, generator)
    rate = constant(rate)
    if not 0 < rate < math.inf:
        raise Unsupported("a rate that is not above 0, or infinite")
    log = b.add("log1p", b.add("neg", _fractions(b, out, "exponential_")))
    return b.add("mul", log, b.number(-1 / rate))


@row("cauchy")
def _cauchy(b: Importer, out: Any, x: Tensor, median: Any, sigma: Any, generator: Any) -> int:
    _eagers(x, generator)
    median, sigma = constant(median), constant(sigma)
    if not sigma > 0:
        raise Unsupported("a width that is not above 0")
    angle = b.add("sub", _fractions(b, out, "cauchy_"), b.number(0.5))
    return _scaled(b, b.add("tan", b.add("mul", angle, b.number(math.pi))), sigma, median)


@row("geometric")
def _geometric(b: Importer, out: Any, x: Tensor, chance: Any, generator: Any) -> int:
    _eagers(x, generator)
    chance = constant(chance)
    if not 0 < chance < 1:
        raise Unsupported("a chance that is not between 0 and 1")
    log = b.add("log", _fractions(b, out, "geometric_"))
    return b.add("ceil", b.add("div", log, b.number(math.log1p(-chance))))


def _chosen(b: Importer, shape: Sequence[Any], chance: float) -> int:
    """Bools that are true with that chance."""
    return b.add("lt", _drawn(b, shape, _FRACTIONS, "bernoulli_.float"), b.number(chance))


@row("bernoulli.p")
def _bernoulli(b: Importer, out: Any, x: Tensor, chance: Any, generator: Any) -> int:
    _eagers(x, generator)
    return _chosen(b, _sizes(out), _chance(chance))


@row("bernoulli")
def _bernoulli_each(b: Importer, out: Any, x: Tensor, generator: Any) -> int:
    """True with the chance that an element of `x` says."""
    _eagers(x, generator)
    if not x.is_float or not x.fake.is_contiguous():
        raise Unsupported("chances that are integers, or in another order of dims")
    dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
    within = b.add(
        "logical_and", b.add("ge", x.id, b.number(0.0)), b.add("le", x.id, b.number(1.0))
    )
    outside = b.cast(b.add("logical_not", within), torch.float32)
    torch_data.most_of(b, outside, x.rank, 0, "a chance that is not from 0 to 1")
    return b.add("lt", _uniform(b, out, dtype), b.cast(x.id, dtype))


def _kept(b: Importer, x: Tensor, shape: Sequence[Any], share: Any) -> int:
    """`x`, of which a share is 0 by chance and the rest is larger for it."""
    share = _chance(share)
    if share == 1:
        return b.add("mul", x.id, b.number(0.0))
    kept = b.cast(_chosen(b, shape, 1 - share), x.dtype)
    return b.add("mul", x.id, b.add("div", kept, b.number(1 - share)))


def _is_idle(x: Tensor, share: Any, train: Any) -> bool:
    return not train or _chance(share) == 0 or any(is_number(n) and n == 0 for n in x.shape)


@row("dropout")
def _dropout(b: Importer, out: Any, x: Tensor, share: Any, train: Any) -> Any:
    return x if _is_idle(x, share, train) else _kept(b, x, _sizes(x.fake), share)


@row("native_dropout")
def _native_dropout(b: Importer, out: Any, x: Tensor, share: Any, train: Any) -> tuple[Any, Any]:
    """What PyTorch's decompositions make of dropout, and what it keeps; in eager code, with other
    roundings, too.
    """
    if train is False:
        return x, filled(b, True, torch.bool, x.shape)
    rest = 1 - _chance(share)
    kept = _chosen(b, _sizes(out[1]), rest)
    value = b.add("mul", x.id, b.cast(kept, x.dtype))
    return b.add("mul", value, b.number(1 / rest if rest else 0.0)), kept


@row("feature_dropout")
def _feature_dropout(b: Importer, out: Any, x: Tensor, share: Any, train: Any) -> Any:
    """Whole channels are 0."""
    if _is_idle(x, share, train):
        return x
    return _kept(b, x, [*x.shape[:2], *[1] * (x.rank - 2)], share)


def _integers(b: Importer, out: torch.Tensor, low: Any, high: Any) -> int:
    """From `low` to below `high`."""
    if not (is_number(low) and is_number(high)) or not 0 < high - low < _MOST_IN_A_WORD:
        raise Unsupported("bounds that are not known, or far apart")
    if not _are_exact(low, high, out.dtype):
        raise Unsupported("bounds beyond the dtype")  # PyTorch says so, or draws from fewer
    rest = _remainder(b, _drawn(b, _sizes(out), _WORDS, "random_.from"), high - low)
    return b.add("add", b.cast(rest, torch.int64), b.number(low))


def _are_exact(low: int, high: int, dtype: torch.dtype) -> bool:
    """Whether the dtype has all integers between."""
    if dtype.is_floating_point:
        most = round(2 / torch.finfo(dtype).eps)
        return -most <= low and high <= most
    if dtype is torch.bool:
        return low >= 0 and high <= 2
    limits = torch.iinfo(dtype)
    return limits.min <= low and high - 1 <= limits.max


@row("randint")
def _randint(b: Importer, out: Any, high: Any, *_: Any) -> int:
    return _integers(b, out, 0, high)


@row("randint.low")
def _randint_from(b: Importer, out: Any, low: Any, high: Any, *_: Any) -> int:
    return _integers(b, out, low, high)


@row("randint_like")
def _randint_like(b: Importer, out: Any, x: Tensor, high: Any, *_: Any) -> int:
    return _integers(b, out, 0, high)


@row("randint_like.low_dtype")
def _randint_like_from(b: Importer, out: Any, x: Tensor, low: Any, high: Any, *_: Any) -> int:
    return _integers(b, out, low, high)


def _remainder(b: Importer, words: int, count: int) -> int:
    """int32: of unsigned words divided by `count`. In float64, where all but the quotient is exact,
    and that at most one off: integers are divided one by one.
    """

    def shifted(value: int, where: str, bound: int, by: int) -> int:
        moved = b.add("add", value, b.number(float(by)))
        return b.add("where", b.add(where, value, b.number(float(bound))), moved, value)

    value = shifted(b.cast(words, torch.float64), "lt", 0, 1 << 32)
    times = b.add("floor", b.add("mul", value, b.number(1 / count)))
    value = b.add("sub", value, b.add("mul", times, b.number(float(count))))
    value = shifted(shifted(value, "lt", 0, count), "ge", count, -count)
    return b.cast(value, torch.int32)

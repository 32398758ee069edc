"""THE instruction table: every instruction of a kernel's bytecode, once.

Types, opcodes, operand layout, verifier rules, assembler and disassembler, interpreter dispatch and
`docs/isa.md` are generated from these rows by `generate.py`. Opcode = position in `ISA`.

**Model.** A kernel runs over blocks of `ny` rows by `nx` columns. A register holds one value for
every point of the block it varies over; its *class* says which: `r` full (ny x nx), `u` one value
a row (ny x 1), `c` one value a column (1 x nx), `s` one value (1 x 1). Classes are written in the
instruction; an operand of a smaller class broadcasts. Registers are static single assignment.

**Sections.** Code outside `pass`..`end` runs once per block of kept axes; code inside runs for
every block of the reduced axes. A `fold` inside a pass accumulates over them; its result can be
read after the `end`. In a kernel without reduced axes there are no passes.

**Names.** `<action>_<type>`; conversions `cast_<from>_<to>`. Types: f32, f64, i32, i64, b8 (a bool,
0 or 1) in registers; in memory also bf16 and f16, which are f32 in registers, and i8, u8 and i16,
which are i32. `round_<type>` and `wrap_<type>` make of any register value one of such a type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import erf, erfc
from typing import Any

import numpy as np


class Type(Enum):
    """Type of a register's elements; numbered in this order."""

    F32 = "f32"
    I32 = "i32"
    I64 = "i64"
    B8 = "b8"
    F64 = "f64"


class Kind(Enum):
    """What an operand field of an instruction names."""

    DST = "dst"  # register that the instruction defines
    SRC = "src"  # register that it reads
    MEM = "mem"  # entry of the program's operand table
    IMM = "imm"  # 64-bit immediate, bit pattern of the destination's type


class Class(Enum):
    """How an instruction takes part in the loop structure."""

    LOAD = "load"
    STORE = "store"
    GATHER = "gather"
    IOTA = "iota"
    CONST = "const"
    MAP = "map"  # element by element
    FOLD = "fold"  # accumulates over the reduced axes
    MARK = "mark"  # structure: pass, end, halt


@dataclass(frozen=True)
class Operand:
    """One field of an instruction: its name, what it names, and the register's type."""

    name: str
    kind: Kind
    type: Type | None = None


@dataclass(frozen=True)
class Instr:
    """One row: name, class, operands in order, the effect in one line, and the meaning.

    `meaning` maps NumPy arrays (sources in order) to the destination; a fold's takes the
    values of one group. None where memory or control flow is the point.
    `storage` is the element type in memory of a load, store or gather.
    `cost` is about how many additions a map is worth.
    """

    name: str
    cls: Class
    operands: tuple[Operand, ...]
    effect: str
    meaning: Callable[..., Any] | None = None
    storage: str = ""
    cost: int = 1


@dataclass(frozen=True)
class Storage:
    """Type of elements in memory: size in bytes, and the register that loads and stores use.

    `narrow` is the instruction that makes a register's values ones of this type, where a register
    can hold others.
    """

    name: str
    bytes: int
    reg: Type
    narrow: str = ""


F32, I32, I64, B8, F64 = Type.F32, Type.I32, Type.I64, Type.B8, Type.F64
FLOATS, INTEGERS = (F32, F64), (I32, I64)
STORAGE = (  # numbered in this order
    Storage("f32", 4, F32),
    Storage("bf16", 2, F32, "round_bf16"),
    Storage("f64", 8, F64),
    Storage("i32", 4, I32),
    Storage("i64", 8, I64),
    Storage("b8", 1, B8),
    Storage("f16", 2, F32, "round_f16"),
    Storage("i8", 1, I32, "wrap_i8"),
    Storage("u8", 1, I32, "wrap_u8"),
    Storage("i16", 2, I32, "wrap_i16"),
)
_NUMPY = {F32: np.float32, F64: np.float64, I32: np.int32, I64: np.int64, B8: np.bool_}
_SRC_NAMES = ("a", "b", "c")


def _map(
    name: str,
    dst: Type,
    srcs: tuple[Type, ...],
    effect: str,
    meaning: Callable[..., Any],
    cost: int = 1,
) -> Instr:
    fields = [Operand("dst", Kind.DST, dst)]
    fields += [Operand(n, Kind.SRC, t) for n, t in zip(_SRC_NAMES, srcs, strict=False)]
    return Instr(name, Class.MAP, tuple(fields), effect, meaning, cost=cost)


def _fold(
    name: str, dst: Type, srcs: tuple[Type, ...], effect: str, meaning: Callable[..., Any]
) -> Instr:
    row = _map(name, dst, srcs, effect, meaning)
    return Instr(name, Class.FOLD, row.operands, effect, meaning)


def _quiet(fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return fn(*args)

    return run


_WIDE = {F32: np.float64, F64: np.longdouble}


def _once(t: Type, fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` evaluated in a wider type and rounded once."""

    def run(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.asarray(fn(*(np.asarray(a, _WIDE[t]) for a in args))).astype(_NUMPY[t])

    return run


def round_to_bf16(x: np.ndarray) -> np.ndarray:
    """`x` (float32) rounded to the nearest bfloat16, ties to even, as float32; NaN stays NaN."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(
        0xFFFF0000
    )
    return np.where(np.isnan(x), np.float32("nan"), rounded.view(np.float32))


def round_to_f16(x: np.ndarray) -> np.ndarray:
    """`x` (float32) rounded to the nearest float16, ties to even, as float32."""
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float32).astype(np.float16).astype(np.float32)


def _erf(x: Any) -> Any:
    return np.vectorize(erf, otypes=[np.float64])(x)


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def _gelu(x: Any) -> Any:
    return 0.5 * x * np.vectorize(erfc, otypes=[np.float64])(x * -0.7071067811865476)


def _gelu_tanh(x: Any) -> Any:
    return x / (1.0 + np.exp(-2.0 * 0.7978845608028654 * (x + 0.044715 * x * x * x)))


def _truncated(x: Any, dtype: type, info: Any) -> Any:
    safe = np.where(np.isfinite(x) & (x >= info.min) & (x < -float(info.min)), x, 0)
    low: Any = np.trunc(safe).astype(dtype)
    return np.where(safe == x, low, info.min).astype(dtype)


def _ipow(a: Any, b: Any) -> Any:
    """Integer power as PyTorch's: negative exponents give 0 except for bases 1 and -1."""
    result = np.ones_like(a)
    base, exponent = a.copy(), np.where(b < 0, 0, b)
    while np.any(exponent > 0):
        result = np.where(exponent & 1, result * base, result)
        base = base * base
        exponent = exponent >> 1
    odd = np.where(b & 1, -1, 1)
    negative = np.where(a == 1, 1, np.where(a == -1, odd, 0))
    return np.where(b < 0, negative, result).astype(a.dtype)


def _shift(fn: Callable[..., Any], a: Any, b: Any, *, right: bool) -> Any:
    bits = a.dtype.itemsize * 8
    out = (b < 0) | (b >= bits)
    shifted = fn(a, np.where(out, 0, b).astype(a.dtype))
    return np.where(out, np.where(right & (a < 0), -1, 0), shifted).astype(a.dtype)


# Memory -----------------------------------------------------------------------------------------

_LOADS = (
    *(
        Instr(
            f"load_{s.name}",
            Class.LOAD,
            (Operand("dst", Kind.DST, s.reg), Operand("mem", Kind.MEM)),
            f"dst = {s.name} elements of mem at this block",
            storage=s.name,
        )
        for s in STORAGE
    ),
    Instr(
        "load_f64_f32",
        Class.LOAD,
        (Operand("dst", Kind.DST, F32), Operand("mem", Kind.MEM)),
        "dst = f64 elements of mem at this block, rounded to f32; Python numbers among f32",
        storage="f64",
    ),
)
_STORES = tuple(
    Instr(
        f"store_{s.name}",
        Class.STORE,
        (Operand("mem", Kind.MEM), Operand("a", Kind.SRC, s.reg)),
        f"mem at this block = a as {s.name}",
        storage=s.name,
    )
    for s in STORAGE
)
_GATHERS = tuple(
    Instr(
        f"gather_{s.name}",
        Class.GATHER,
        (Operand("dst", Kind.DST, s.reg), Operand("mem", Kind.MEM), Operand("a", Kind.SRC, I64)),
        f"dst = {s.name} elements of mem at index a on its gathered axis; "
        "out of range stops the launch",
        storage=s.name,
    )
    for s in STORAGE
)
_IOTA = (
    Instr(
        "iota_i64",
        Class.IOTA,
        (Operand("dst", Kind.DST, I64), Operand("mem", Kind.MEM)),
        "dst = start of mem + sum of position times stride over the axes",
        storage="i64",
    ),
)
_CONSTS = tuple(
    Instr(
        f"const_{t.value}",
        Class.CONST,
        (Operand("dst", Kind.DST, t), Operand("imm", Kind.IMM, t)),
        "dst = imm",
    )
    for t in Type
)

# Element by element -----------------------------------------------------------------------------

# fmt: off
_FUNCTION = 8  # cost of a function that is a polynomial, or a division by steps
_UNARY_FLOAT: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("abs", "|a|", np.abs),
    ("neg", "-a", np.negative),
    ("sign", "-1, 0 or 1 by the sign of a; 0 if a is NaN", lambda a: np.where(a > 0, 1.0, np.where(a < 0, -1.0, 0.0))),
    ("sqrt", "square root of a", np.sqrt),
    ("rsqrt", "1 / sqrt(a)", lambda a: 1.0 / np.sqrt(a)),
    ("reciprocal", "1 / a", lambda a: 1.0 / a),
    ("floor", "floor of a", np.floor),
    ("ceil", "ceiling of a", np.ceil),
    ("round", "a to the nearest integer, ties to even", np.rint),
    ("trunc", "a towards zero", np.trunc),
)
_UNARY_FUNCTION: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("exp", "e^a", np.exp),
    ("exp2", "2^a", np.exp2),
    ("expm1", "e^a - 1", np.expm1),
    ("log", "natural logarithm of a", np.log),
    ("log2", "binary logarithm of a", np.log2),
    ("log1p", "log(1 + a)", np.log1p),
    ("sin", "sin(a)", np.sin),
    ("cos", "cos(a)", np.cos),
    ("tan", "tan(a)", np.tan),
    ("tanh", "tanh(a)", np.tanh),
    ("sigmoid", "1 / (1 + e^-a)", _sigmoid),
    ("erf", "error function of a", _erf),
    ("silu", "a * sigmoid(a)", lambda a: a * _sigmoid(a)),
    ("gelu", "a * normal distribution's cumulative function at a", _gelu),
    ("gelu_tanh", "gelu by its tanh form", _gelu_tanh),
)
def _wrap(dtype: Any) -> Callable[..., Any]:
    return lambda a: a.astype(dtype).astype(np.int32)


_UNARY = (
    *(
        _map(f"{n}_{t.value}", t, (t,), f"dst = {e}", _once(t, f), cost)
        for t in FLOATS
        for rows, cost in ((_UNARY_FLOAT, 1), (_UNARY_FUNCTION, _FUNCTION))
        for n, e, f in rows
    ),
    _map("exp_weight_f32", F32, (F32,), "dst = e^a to 17 bits; e^88 above, 0 below -87.3", _once(F32, lambda a: np.where(a < -87.3, 0.0, np.exp(np.minimum(a, 88.0)))), _FUNCTION),
    _map("round_bf16", F32, (F32,), "dst = a rounded to bfloat16, ties to even", round_to_bf16),
    _map("round_f16", F32, (F32,), "dst = a rounded to float16, ties to even", round_to_f16),
    _map("wrap_i8", I32, (I32,), "dst = low 8 bits of a, with their sign", _wrap(np.int8)),
    _map("wrap_u8", I32, (I32,), "dst = low 8 bits of a", _wrap(np.uint8)),
    _map("wrap_i16", I32, (I32,), "dst = low 16 bits of a, with their sign", _wrap(np.int16)),
    *(
        row
        for t in FLOATS
        for row in (
            _map(f"isnan_{t.value}", B8, (t,), "dst = a is NaN", np.isnan),
            _map(f"isinf_{t.value}", B8, (t,), "dst = a is an infinity", np.isinf),
            _map(f"isfinite_{t.value}", B8, (t,), "dst = a is neither infinite nor NaN", np.isfinite),
        )
    ),
    *(
        row
        for t in INTEGERS
        for row in (
            _map(f"abs_{t.value}", t, (t,), "dst = |a|, wrapping", _quiet(np.abs)),
            _map(f"neg_{t.value}", t, (t,), "dst = -a, wrapping", _quiet(np.negative)),
            _map(f"sign_{t.value}", t, (t,), "dst = -1, 0 or 1 by the sign of a", np.sign),
            _map(f"not_{t.value}", t, (t,), "dst = ~a", np.invert),
        )
    ),
    _map("not_b8", B8, (B8,), "dst = not a", np.logical_not),
)


def _cast(a: Type, b: Type) -> Instr:
    """Conversions: of numbers to bool, of floats to integers, and the others."""
    dtype = _NUMPY[b]
    if b is B8:
        effect, meaning = "dst = a is not 0", lambda x: x != 0
    elif a in FLOATS and b in INTEGERS:
        effect = f"dst = a towards zero; the lowest {b.value} if out of range"
        meaning = _quiet(lambda x: _truncated(x, dtype, np.iinfo(dtype)))
    else:
        exact = {(I32, I64), (I32, F64), (F32, F64)}
        effect = "dst = a" if (a, b) in exact else "dst = a, rounded to even"
        if a is B8:
            effect = "dst = 1 if a else 0"
        elif (a, b) == (I64, I32):
            effect = "dst = low 32 bits of a"
        meaning = _quiet(lambda x: x.astype(dtype))
    return _map(f"cast_{a.value}_{b.value}", b, (a,), effect, meaning)


_CASTS = tuple(_cast(a, b) for a in Type for b in Type if a is not b)
_BINARY_FLOAT: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("add", "a + b", np.add),
    ("sub", "a - b", np.subtract),
    ("mul", "a * b", np.multiply),
    ("div", "a / b", np.divide),
    ("copysign", "|a| with the sign of b", np.copysign),
)
_BINARY_FUNCTION: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("floor_div", "floor of a / b, as Python's //", np.floor_divide),
    ("remainder", "a modulo b, sign of b, as Python's %", np.remainder),
    ("fmod", "a modulo b, sign of a, as C's fmod", np.fmod),
    ("pow", "a to the power b", np.power),
    ("atan2", "angle of the point (b, a)", np.arctan2),
)
_MIN_MAX: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("maximum", "larger of a and b; NaN if either is NaN", np.maximum),
    ("minimum", "smaller of a and b; NaN if either is NaN", np.minimum),
)
_BINARY_INT: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("add", "a + b, wrapping", np.add),
    ("sub", "a - b, wrapping", np.subtract),
    ("mul", "a * b, wrapping", np.multiply),
    ("floor_div", "floor of a / b; a division by 0 stops the launch", np.floor_divide),
    ("remainder", "a modulo b, sign of b; a division by 0 stops the launch", np.remainder),
    ("fmod", "a modulo b, sign of a; a division by 0 stops the launch", np.fmod),
    ("pow", "a to the power b, wrapping; b < 0 gives 0 unless |a| is 1", _ipow),
    *_MIN_MAX,
    ("and", "a & b", np.bitwise_and),
    ("or", "a | b", np.bitwise_or),
    ("xor", "a ^ b", np.bitwise_xor),
    ("shl", "a << b; 0 if b is negative or at least the width", lambda a, b: _shift(np.left_shift, a, b, right=False)),
    ("shr", "a >> b, arithmetic; the sign if b is negative or at least the width", lambda a, b: _shift(np.right_shift, a, b, right=True)),
)
_COMPARE: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("eq", "a == b", np.equal),
    ("ne", "a != b", np.not_equal),
    ("lt", "a < b", np.less),
    ("le", "a <= b", np.less_equal),
    ("gt", "a > b", np.greater),
    ("ge", "a >= b", np.greater_equal),
)
_BINARY = (
    *(
        row
        for t in FLOATS
        for row in (
            *(_map(f"{n}_{t.value}", t, (t, t), f"dst = {e}", _quiet(f)) for n, e, f in _BINARY_FLOAT),
            *(_map(f"{n}_{t.value}", t, (t, t), f"dst = {e}", _once(t, f), _FUNCTION) for n, e, f in _BINARY_FUNCTION),
            *(_map(f"{n}_{t.value}", t, (t, t), f"dst = {e}", _quiet(f)) for n, e, f in _MIN_MAX),
        )
    ),
    *(
        _map(f"{n}_{t.value}", t, (t, t), f"dst = {e}", _quiet(f))
        for t in INTEGERS
        for n, e, f in _BINARY_INT
    ),
    *(
        _map(f"{n}_{t.value}", B8, (t, t), f"dst = {e}", f)
        for t in (*FLOATS, *INTEGERS)
        for n, e, f in _COMPARE
    ),
    _map("and_b8", B8, (B8, B8), "dst = a and b", np.logical_and),
    _map("or_b8", B8, (B8, B8), "dst = a or b", np.logical_or),
    _map("xor_b8", B8, (B8, B8), "dst = a differs from b", np.logical_xor),
)
_SELECT = tuple(
    _map(f"select_{t.value}", t, (B8, t, t), "dst = b if a else c", np.where)
    for t in Type
)
# fmt: on

# Folds ------------------------------------------------------------------------------------------


def _first(pick: Callable[[Any], Any], values: Any, index: Any) -> Any:
    """Index of the best value: the first NaN if there is one, else the first of equals."""
    nan = np.isnan(values)
    best = nan if np.any(nan) else values == pick(values)
    return np.min(index[best])


# fmt: off
_NUMBERS = (*FLOATS, *INTEGERS)
_FOLDS = (
    *(
        row
        for t in FLOATS
        for row in (
            _fold(f"sum_{t.value}", t, (t,), f"dst = sum of a, accumulated more precisely than {t.value}; 0 if empty", _once(t, np.sum)),
            _fold(f"mean_{t.value}", t, (t,), "dst = sum of a over how many there are, rounded once; NaN if empty", _once(t, lambda a: np.sum(a) / np.float64(np.size(a)))),
            _fold(f"prod_{t.value}", t, (t,), "dst = product of a; 1 if empty", _once(t, np.prod)),
        )
    ),
    _fold("total_f32", F64, (F32,), "dst = sum of a as sum_f32 accumulates it, in f64 and not rounded; 0 if empty", lambda a: np.sum(np.asarray(a, np.float64))),
    _fold("deviations_f32", F32, (F32,), "dst = sum of squared deviations of a from its mean, in one sweep; 0 if empty", _once(F32, lambda a: np.sum(np.square(a - np.mean(a))) if np.size(a) else 0.0)),
    _fold("variance_f32", F32, (F32,), "dst = mean of squared deviations of a from its mean, in one sweep; NaN if empty", _once(F32, np.var)),
    _fold("sum_i64", I64, (I64,), "dst = sum of a, wrapping; 0 if empty", np.sum),
    _fold("prod_i64", I64, (I64,), "dst = product of a, wrapping; 1 if empty", np.prod),
    *(_fold(f"max_{t.value}", t, (t,), "dst = largest a; NaN if any is NaN; the lowest value if empty", np.max) for t in _NUMBERS),
    *(_fold(f"min_{t.value}", t, (t,), "dst = smallest a; NaN if any is NaN; the highest value if empty", np.min) for t in _NUMBERS),
    _fold("any_b8", B8, (B8,), "dst = some a is true", np.any),
    _fold("all_b8", B8, (B8,), "dst = every a is true", np.all),
    *(_fold(f"argmax_{t.value}", I64, (t, I64), "dst = b where a is largest: first NaN, then lowest b among equals", lambda a, b: _first(np.max, a, b)) for t in _NUMBERS),
    *(_fold(f"argmin_{t.value}", I64, (t, I64), "dst = b where a is smallest: first NaN, then lowest b among equals", lambda a, b: _first(np.min, a, b)) for t in _NUMBERS),
)
_MARKS = (
    Instr("pass", Class.MARK, (), "start a sweep over the reduced axes"),
    Instr("end", Class.MARK, (), "end of the sweep: folds of this pass can now be read"),
    Instr("halt", Class.MARK, (), "end of the program"),
)

ISA: tuple[Instr, ...] = (
    *_MARKS, *_LOADS, *_STORES, *_GATHERS, *_IOTA, *_CONSTS,
    *_UNARY, *_CASTS, *_BINARY, *_SELECT, *_FOLDS,
)
# fmt: on
OPCODE: dict[str, int] = {row.name: code for code, row in enumerate(ISA)}

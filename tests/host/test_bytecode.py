"""`_core.bytecode`: text, verification, and running programs on arrays."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

_core = importlib.import_module("tilevm._core")
errors = importlib.import_module("tilevm.errors")
bytecode = _core.bytecode

TIERS = ("interp", "auto")

SCALE_ROWS = """
kernel fold=none
m0 input f32 r
m1 input f32 u
m2 output f32 r
load_f32 r0, m0
load_f32 u1, m1
mul_f32 r2, r0, u1
store_f32 m2, r2
halt
"""

ROW_SUM = """
kernel fold=columns
m0 input f32 r contiguous
m1 output f32 u
pass
load_f32 r0, m0
sum_f32 u1, r0
end
store_f32 m1, u1
halt
"""

LOOK_UP = """
kernel fold=none
m0 input i64 u
m1 gather f32 c
m2 output f32 r
load_i64 u0, m0
gather_f32 r1, m1, u0
store_f32 m2, r1
halt
"""


NARROW = """
kernel fold=none
m0 input f64 c contiguous
m1 input i8 c contiguous
m2 output f16 c contiguous
m3 output u8 c contiguous
load_f64 c0, m0
load_i8 c1, m1
const_f64 s2, 1e-300
const_f64 s3, nan:0x7ff8000000000001
add_f64 c4, c0, s2
maximum_f64 c5, c4, s3
cast_f64_f32 c6, c0
round_f16 c7, c6
store_f16 m2, c7
wrap_u8 c8, c1
store_u8 m3, c8
halt
"""


@pytest.mark.parametrize("text", [SCALE_ROWS, ROW_SUM, LOOK_UP, NARROW])
def test_text_round_trips(text: str) -> None:
    data = bytecode.assemble(text)
    bytecode.verify(data)
    assert bytecode.assemble(bytecode.disassemble(data)) == data


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (3, 7), (5, 64), (7, 1023)])
def test_run(tier: str, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    s = rng.standard_normal(shape[0]).astype(np.float32)
    out = np.empty_like(x.T).T
    bytecode.run(bytecode.assemble(SCALE_ROWS), [x, s], [out], tier=tier)
    np.testing.assert_array_equal(out, x * s[:, None])
    total = np.empty(shape[0], np.float32)
    bytecode.run(bytecode.assemble(ROW_SUM), [x], [total], tier=tier)
    np.testing.assert_allclose(total, x.sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tier", TIERS)
def test_gathers_check_their_indices(tier: str) -> None:
    data = bytecode.assemble(LOOK_UP)
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    index = np.array([3, 0, 2])
    out = np.empty((3, 3), np.float32)
    bytecode.run(data, [index, table], [out], tier=tier)
    np.testing.assert_array_equal(out, table[index])
    with pytest.raises(IndexError):
        bytecode.run(data, [np.array([0, 4, 0]), table], [out], tier=tier)


def test_what_is_rejected() -> None:
    with pytest.raises(errors.BytecodeError):
        bytecode.verify(b"not a program")
    with pytest.raises(errors.BytecodeError):
        bytecode.assemble("mul_f32 r2, r0")
    data = bytecode.assemble(SCALE_ROWS)
    with pytest.raises(errors.BytecodeError):
        bytecode.disassemble(data[:-16])
    x, s = np.ones((3, 7), np.float32), np.ones(3, np.float32)
    out = np.empty((3, 7), np.float32)
    for message, inputs, outputs in [
        ("needs more than 1 inputs", [x], [out]),
        ("has 2 inputs, but 3 were given", [x, s, s], [out]),
        ("m1 has 2 rows, others have 3", [x, s[:2]], [out]),
        ("m2 has 6 columns, others have 7", [x, s], [out[:, :6]]),
        ("m0: array of another element type", [x.astype(np.float64), s], [out]),
        ("m0: array of too many dims", [x[None].repeat(2, 0), s], [out]),
        ("operand m2", [x, s], [np.lib.stride_tricks.as_strided(out, (3, 7), (28, 0))]),
        ("m2: .*overlap", [x, s], [x[::-1]]),
    ]:
        with pytest.raises((errors.BytecodeError, ValueError), match=message):
            bytecode.run(data, inputs, outputs)
    with pytest.raises(errors.BytecodeError, match="contiguous"):
        bytecode.run(bytecode.assemble(ROW_SUM), [np.ones((3, 8), np.float32)[:, ::2]], [s])


def test_every_type_in_memory() -> None:
    x = np.array([0.1, -1e-7, 65520.0, np.nan])
    i = np.array([-128, -1, 0, 127], np.int8)
    half, byte = np.zeros(4, np.float16), np.zeros(4, np.uint8)
    bytecode.run(bytecode.assemble(NARROW), [x, i], [half, byte])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(half, x.astype(np.float32).astype(np.float16))
    np.testing.assert_array_equal(byte, i.astype(np.uint8))

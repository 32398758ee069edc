"""Every operator of the table on every tier, against the reference and PyTorch eager."""

from __future__ import annotations

from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest
import torch
from tests.differential import eager, noise
from tests.differential.judge import at, check, is_float, wide
from tests.differential.tiers import LAYOUTS, TIERS, array, arrays, compiled, run, tensor

from tilevm.errors import DTypeError
from tilevm.ir.graph import Graph, GraphBuilder
from tilevm.ir.ops import BY_NAME, OPS, Class
from tilevm.ir.reference import evaluate
from tilevm.ir.types import DTYPES, INTEGERS, Size, Symbol, Type, dtype_name, numpy_dtype
from tilevm.ir.types import FLOATS as FLOAT_DTYPES

Array = Any
A, B, C = Size("A"), Size("B"), Size("C")
SYMBOLS = (A, B, C)
SHAPES: dict[int, list[tuple[int, ...]]] = {
    1: [(0,), (1,), (7,), (64,), (65,), (1023,)],
    2: [(0, 7), (7, 0), (1, 1), (7, 64), (65, 7), (1, 1023), (1023, 1), (64, 65)],
    3: [(2, 0, 3), (1, 7, 65), (7, 1, 64), (65, 7, 1), (7, 7, 7), (1, 1, 1023)],
}
FLOATS = [
    *(0.0, -0.0, 1e-45, -1e-45, 1e-40, -1e-40, 1.2e-38, -1e-20, 1e-5, 0.1, -0.1, 0.3, 0.5, -0.5),
    *(1.0, -1.0, 1.5, -1.5, 2.0, -2.0, 2.5, -2.5, 3.0, -3.0, 5.0, 9.0, -9.0, 50.0, 88.7, -88.8),
    *(-104.0, 1e3, -1e4, 2.0**24, -(2.0**31), 3e9, 1e19, -1e20, 1e30, 3e38, -3e38),
    *(np.inf, -np.inf, np.nan, np.pi, -np.pi / 2),
]
INTS = [
    *(0, 1, -1, 2, -2, 3, -3, 7, -7, 31, 32, 33, 63, 64, 65, -64, 255, 1000, -1001, 2**15),
    *(2**31 - 1, -(2**31), 2**31 - 2),
]
LONGS = [*INTS, 2**31, 2**32 + 1, -(2**33), 2**53 + 1, 2**63 - 1, -(2**63), 2**62 + 3]
DOUBLES = [*FLOATS, 5e-324, -1e-310, 1e-200, -1e150, 1e300, -1.7e308, 0.1 + 2**-56, 2.0**53 + 2]
DIVIDES = ("floor_div", "remainder", "fmod")
# Which zero is larger depends, in eager, on the place of the element.
ANY_ZERO = (*DIVIDES, "maximum", "minimum", "clamp")
# Eager's gelu of float32 is oneDNN's, which with AVX2 knows no -0.
GELU_LACKS_ZERO = not torch.nn.functional.gelu(torch.full((64,), -20.0)).signbit().all()
# Units of the last place mean nothing where the formula of the operator cancels: gelu's at -9.
BY_LARGEST = ("gelu", "gelu_tanh", "silu")
ELEMENTWISE = [op.name for op in OPS if op.cls is Class.ELEMENTWISE and not op.params]


def values(dtype: str) -> Array:
    """The special values of a dtype."""
    special: list[Any] = FLOATS
    if "int" in dtype:
        info = np.iinfo(dtype)
        special = [n for n in (*LONGS, info.min, info.max) if info.min <= n <= info.max]
    elif dtype in ("bool", "float64"):
        special = [0, 1] if dtype == "bool" else DOUBLES
    elif dtype == "float16":
        special = [*FLOATS, 6e-8, -6e-5, 6.1e-5, 65504, -65504, 1000.5]
    with np.errstate(over="ignore"):
        return np.array(special).astype(numpy_dtype(dtype))


def filled(dtype: str, shape: tuple[int, ...], seed: int, *, divisor: bool = False) -> torch.Tensor:
    """Special values and ordinary ones, mixed."""
    rng = np.random.default_rng([seed, *shape])
    special = values(dtype)
    if divisor and not is_float(special):
        special = special[special != 0]
    x = rng.choice(special, size=shape)
    if is_float(special):
        ordinary = (rng.normal(size=shape) * rng.choice([1, 10], size=shape)).astype(x.dtype)
        x = np.where(rng.random(shape) < 0.5, ordinary, x)
    return tensor(x)


def graph_of(op: str, types: list[Type], **params: Any) -> Graph:
    builder = GraphBuilder()
    for symbol in SYMBOLS:
        builder.symbol(Symbol(symbol.text))
    inputs = [builder.param(f"x{i}", type_) for i, type_ in enumerate(types)]
    builder.result(builder.add(op, inputs, **params))
    return builder.build()


def eager_result(graph: Graph, inputs: list[Any]) -> Array | None:
    """None where eager has no such operator for these dtypes."""
    try:
        return array(eager.evaluate(graph, inputs)[0])
    except (RuntimeError, NotImplementedError, TypeError, IndexError):
        return None


def known_difference(op: str, expected: Array, theirs: Array, inputs: list[Array]) -> Array:
    """Where eager's result is not what the table means."""
    none = np.zeros(expected.shape, bool)
    if not is_float(expected):
        if op == "cast" and is_float(inputs[0]):  # C++ leaves these open
            return none | ~(np.abs(wide(inputs[0])) < 2.0**31)
        return none
    if op == "gelu":  # eager: -inf * 0, and it overflows before it halves
        return none | ~np.isfinite(wide(theirs))
    if op in ("remainder", "fmod"):  # eager's vector code gives up on large quotients
        return none | np.isnan(wide(theirs))
    return none


def compare(op: str, tier: str, graph: Graph, executable: Any, inputs: list[Any]) -> None:
    numbers = arrays(inputs)
    (expected,) = evaluate(graph, *numbers)
    theirs = eager_result(graph, inputs)
    (found,) = run(executable, tier, inputs)
    if op == "gelu" and GELU_LACKS_ZERO and theirs is not None and theirs.dtype == np.float32:
        theirs = np.where((theirs == 0) & (expected == 0), expected, theirs)
    by = "largest" if op in BY_LARGEST else "units"
    check(found, expected, theirs, by=by, zeros=op not in ANY_ZERO)
    if theirs is not None:
        agree(theirs, expected, known_difference(op, expected, theirs, numbers))


def agree(theirs: Array, expected: Array, except_at: Array) -> None:
    """Eager means the same: the same integers, infinities and NaN."""
    if not is_float(expected):
        wrong = (theirs != expected) & ~except_at
    else:
        t, e = wide(theirs), wide(expected)
        wrong = ~(np.isfinite(t) & np.isfinite(e)) & ~((t == e) | (np.isnan(t) & np.isnan(e)))
        wrong &= ~except_at
    assert not np.any(wrong), "eager: " + at(wrong, eager=theirs, expected=expected)


def typed(op: str, types: list[Type], **params: Any) -> Graph | None:
    """None if the operator does not take these dtypes; then eager must not either."""
    try:
        return graph_of(op, types, **params)
    except DTypeError:
        ones = [tensor(np.ones(3, numpy_dtype(t.dtype))) for t in types]
        with pytest.raises((RuntimeError, NotImplementedError)):
            eager.call(op, ones, params)
        return None


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_elementwise_of_every_shape_and_layout(op: str, tier: str) -> None:
    count = BY_NAME[op].inputs
    for dtype in DTYPES:
        dtypes = ["bool", dtype, dtype] if op == "where" else [dtype] * count
        for rank, shapes in SHAPES.items():
            graph = typed(op, [Type(d, SYMBOLS[:rank]) for d in dtypes])
            if graph is None:
                continue
            executable = compiled(graph)
            for seed, (shape, layout) in enumerate(product(shapes, LAYOUTS)):
                others = [*LAYOUTS]
                inputs = []
                for i, d in enumerate(dtypes):
                    x = filled(d, shape, seed + i, divisor=op in DIVIDES and i > 0)
                    mixed = layout if i == 0 or seed % 2 else others[(seed + i) % len(others)]
                    inputs.append(LAYOUTS[mixed](x))
                compare(op, tier, graph, executable, inputs)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("op", [op for op in ELEMENTWISE if BY_NAME[op].inputs > 1])
def test_elementwise_of_every_pair_of_dtypes_and_values(op: str, tier: str) -> None:
    for i, pair in enumerate(combinations_with_replacement(DTYPES, 2)):
        left, right = pair if i % 2 else pair[::-1]
        x, y = values(left), values(right)
        if op in DIVIDES and not is_float(y):
            y = y[y != 0]
        if op == "pow" and is_float(x) != is_float(y):
            continue  # of integers beyond 2**24, float32 keeps too little
        pairs = [tensor(np.repeat(x, len(y))), tensor(np.tile(y, len(x)))]
        types = [Type(left, (A,)), Type(right, (A,))]
        if op in ("where", "clamp"):
            first = "bool" if op == "where" else right
            third = np.resize(values(first), len(x) * len(y))
            pairs.insert(0 if op == "where" else 2, tensor(third))
            types.insert(0 if op == "where" else 2, Type(first, (A,)))
        graph = typed(op, types)
        if graph is not None:
            compare(op, tier, graph, compiled(graph), pairs)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("op", [op for op in ELEMENTWISE if BY_NAME[op].inputs == 2])
def test_elementwise_broadcasts(op: str, tier: str) -> None:
    for dtype in DTYPES:
        for left, right in (
            ((A, B), (B,)),
            ((A, 1), (1, B)),
            ((A, B), (A, 1)),
            ((), (A, B)),
            ((B, A), ()),
            ((A, 1, B), (C, 1)),
        ):
            graph = typed(op, [Type(dtype, left), Type(dtype, right)])
            if graph is None:
                continue
            executable = compiled(graph)
            for seed, (a, b, c) in enumerate(product((0, 1, 7, 65), (0, 1, 64), (1, 3))):
                env = {"A": a, "B": b, "C": c}
                shapes = [
                    tuple(s if isinstance(s, int) else env[s.text] for s in shape)
                    for shape in (left, right)
                ]
                inputs = [
                    filled(dtype, shape, seed + i, divisor=op in DIVIDES and i > 0)
                    for i, shape in enumerate(shapes)
                ]
                compare(op, tier, graph, executable, inputs)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("op", [op for op in ELEMENTWISE if BY_NAME[op].inputs == 2])
def test_numbers_promote_as_in_eager(op: str, tier: str) -> None:
    kinds = {"float64": 0.75, "int64": 3, "bool": True}
    for dtype, (weak, number), swap in product(DTYPES, kinds.items(), (False, True)):
        types = [Type(dtype, (A,)), Type(weak, (), weak=True)]
        x = filled(dtype, (65,), 3, divisor=op in DIVIDES and swap)
        inputs: list[Any] = [x, number]
        if swap:
            types.reverse()
            inputs.reverse()
            if not isinstance(eager_scalar(op, inputs), torch.Tensor):
                continue
        try:
            graph = graph_of(op, types)
        except DTypeError:
            if op != "pow":  # eager's pow of bools to the power True is a copy, others raise
                with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
                    eager.call(op, inputs, {})
            continue
        if op == "pow" and weak == "float64" and not is_float(array(x)):
            continue  # as above
        compare(op, tier, graph, compiled(graph), inputs)


def eager_scalar(op: str, inputs: list[Any]) -> Any:
    try:
        return eager.call(op, inputs, {})
    except (RuntimeError, NotImplementedError, TypeError):
        return None


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_zero_keeps_its_sign_where_eager_keeps_it(dtype: str, tier: str) -> None:
    zeros = torch.tensor([0.0, -0.0] * 20, dtype=getattr(torch, dtype))
    number = Type("float64", (), weak=True)
    relu = graph_of("relu", [Type(dtype, (A,))])
    clamp = graph_of("clamp", [Type(dtype, (A,)), number, number])
    cases: list[tuple[Graph, list[Any], torch.Tensor]] = [
        (relu, [zeros], torch.relu(zeros)),
        (clamp, [zeros, 0.0, 1.0], zeros.clamp(0.0, 1.0)),
    ]
    for graph, inputs, theirs in cases:
        (found,) = run(compiled(graph), tier, inputs)
        np.testing.assert_array_equal(np.signbit(wide(found)), torch.signbit(theirs).numpy())


@pytest.mark.parametrize("op", ["logical_and", "logical_or", "logical_xor"])
@pytest.mark.parametrize(
    ("x", "y"), [("bfloat16", "float16"), ("float32", "float16"), ("float64", "bfloat16")]
)
def test_what_is_too_small_for_the_common_type_is_false(op: str, x: str, y: str) -> None:
    small = torch.tensor({"float64": 1e-300}.get(x, 1e-9), dtype=getattr(torch, x))
    line = torch.tensor([5.0, -2.0, 0.0], dtype=getattr(torch, y))
    for inputs in ([small, line], [line, small]):
        graph = graph_of(op, [Type(dtype_name(i.dtype), tuple(i.shape)) for i in inputs])
        (found,) = run(compiled(graph), "auto", inputs)
        assert found.tolist() == getattr(torch, op)(*inputs).tolist()


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_cast(source: str, target: str, tier: str) -> None:
    for rank, shapes in SHAPES.items():
        graph = graph_of("cast", [Type(source, SYMBOLS[:rank])], dtype=target)
        executable = compiled(graph)
        for seed, (shape, layout) in enumerate(product(shapes, LAYOUTS)):
            compare("cast", tier, graph, executable, [LAYOUTS[layout](filled(source, shape, seed))])


Case = tuple[list[tuple[Any, ...]], dict[str, Any]]  # shapes of the operands, parameters
M, N = (A, B), (A, B, C)
SHAPED: dict[str, list[Case]] = {
    **{
        name: [
            ([(A,)], {"axes": (0,)}),
            ([M], {"axes": (1,)}),
            ([M], {"axes": (0,), "keepdims": True}),
            ([N], {"axes": (0, 2)}),
            ([N], {"axes": (1,)}),
            ([N], {}),
        ]
        for name in ("sum", "prod", "amax", "amin", "any", "all", "mean", "var")
    },
    **{
        name: [([(A,)], {"axis": 0}), ([M], {"axis": 1}), ([N], {"axis": 1, "keepdims": True})]
        for name in ("argmax", "argmin")
    },
    **{
        name: [([(A,)], {"axis": 0}), ([M], {"axis": -1}), ([M], {"axis": 0}), ([N], {"axis": 1})]
        for name in ("softmax", "log_softmax")
    },
    **{
        name: [
            ([M], {"axes": (1,), "eps": 1e-5}),
            ([M], {"axes": (0,), "eps": 1e-5}),
            ([N], {"axes": (1, 2), "eps": 1e-6}),
        ]
        for name in ("layer_norm", "rms_norm")
    },
    "reshape": [
        ([M], {"shape": (A * B,)}),
        ([N], {"shape": (A * B, C)}),
        ([N], {"shape": (-1, C, B)}),
    ],
    "permute": [([M], {"axes": (1, 0)}), ([N], {"axes": (1, 2, 0)})],
    "expand": [([(A, 1)], {"shape": (A, A // 2 + 2)}), ([M], {"shape": (2, A, B)})],
    "slice": [
        ([M], {"axis": 1, "start": 1, "stop": B, "step": 2}),
        ([N], {"axis": 0, "start": A // 2, "stop": A}),
        ([M], {"axis": 0, "start": -3, "stop": 10**9}),
        ([M], {"axis": 1, "start": 5, "stop": 2}),
    ],
    "select": [([M], {"axis": 0, "index": A - 1}), ([(B, 3)], {"axis": 1, "index": -1})],
    "unsqueeze": [([M], {"axis": 0}), ([M], {"axis": -1})],
    "squeeze": [([(A, 1, B)], {"axes": (1,)}), ([(1, A, 1)], {"axes": (0, 2)})],
    "flip": [([M], {"axes": (1,)}), ([N], {"axes": (0, 2)})],
    "concat": [
        ([M, M], {"axis": 1}),
        ([M, (C, B), M], {"axis": 0}),
        ([N], {"axis": -1}),
    ],
    "pad": [
        ([M], {"low": (1, 0), "high": (0, 2), "value": 1}),
        ([M], {"low": (0, A), "high": (B, 0)}),
    ],
    "full": [([(A,)], {"shape": (A, 3), "value": 2.5}), ([(A,)], {"shape": (), "value": -1})],
    "iota": [([(A,)], {"size": A * 2, "start": A, "step": -3}), ([(A,)], {"size": A})],
}  # fmt: skip
GATHERS: dict[str, list[Case]] = {
    "gather": [([(A, B), (C, B)], {"axis": 0}), ([(B, A), (B, C)], {"axis": 1})],
    "take": [
        ([(A, B), (C,)], {"axis": 0}),
        ([(B, A), (C, 2)], {"axis": 1}),
        ([(A,), (C,)], {"axis": 0}),
    ],
}
SIZES = [
    *((0, 7, 3), (1, 1, 1), (7, 0, 1), (7, 64, 2), (65, 1, 3), (1, 65, 0), (64, 65, 2)),
    *((3, 1023, 1), (1023, 2, 1)),
]
# Sums of special values are infinite or NaN; and of these sizes they cancel, so that units of the
# result's last place mean nothing.
ORDINARY = ("sum", "prod", "mean", "var", "softmax", "log_softmax", "layer_norm", "rms_norm")


def shape_for(shape: tuple[Any, ...], env: dict[str, int]) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else size.value(env) for size in shape)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("op", list(SHAPED))
def test_shaped(op: str, tier: str) -> None:
    for dtype, (operands, params) in product(DTYPES, SHAPED[op]):
        given = dict(params)
        if op == "full":
            given["dtype"] = dtype
        if op in ("full", "iota"):
            graph = created(op, dtype, given)
        else:
            graph = graph_of(op, [Type(dtype, shape) for shape in operands], **given)
        executable = compiled(graph)
        for seed, (sizes, layout) in enumerate(product(SIZES, LAYOUTS)):
            env = dict(zip("ABC", sizes, strict=True))
            if (op == "pad" and env["A"] > 100) or (seed % 2 and op in ORDINARY):
                continue
            env["A"] += op == "select"
            inputs = []
            for i, shape in enumerate(operands):
                x = filled(dtype, shape_for(shape, env), seed + i)
                if op in ORDINARY:
                    generator = torch.Generator().manual_seed(seed)
                    ordinary = torch.rand(x.shape, generator=generator).mul(2).sub(0.5)
                    x = (ordinary if x.is_floating_point() else ordinary * 9).to(x.dtype)
                inputs.append(LAYOUTS[layout](x))
            if op in ("amax", "amin", "argmax", "argmin") and 0 in inputs[0].shape:
                continue  # of nothing there is no extremum; see test_reductions.py
            if op == "prod" and not inputs[0].is_floating_point():
                inputs = [x.sign() if x.dtype != torch.bool else x for x in inputs]
            compare_shaped(op, tier, graph, executable, inputs)


def created(op: str, dtype: str, params: dict[str, Any]) -> Graph:
    """An operator without operands, beside a parameter that says the sizes."""
    builder = GraphBuilder()
    builder.param("x0", Type(dtype, (A,)))
    builder.result(builder.add(op, [], **params))
    return builder.build()


def compare_shaped(op: str, tier: str, graph: Graph, executable: Any, inputs: list[Any]) -> None:
    (expected,) = evaluate(graph, *arrays(inputs))
    theirs = eager_result(graph, inputs)
    if theirs is not None and theirs.dtype != expected.dtype and op in ("prod", "sum"):
        raise AssertionError(f"eager's {theirs.dtype}, {expected.dtype}")
    (found,) = run(executable, tier, inputs)
    try:
        check(found, expected, theirs, by="largest")
    except AssertionError as error:  # where eager happens to be exact
        assert op in ORDINARY and not noise.explains(graph, arrays(inputs), [found]), error
    if theirs is not None:
        agree(theirs, expected, np.zeros(expected.shape, bool))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("index_dtype", ["int64", "int32", "int16"])
@pytest.mark.parametrize("op", list(GATHERS))
def test_gathers(op: str, index_dtype: str, tier: str) -> None:
    for dtype, (operands, params) in product(DTYPES, GATHERS[op]):
        graph = graph_of(op, [Type(dtype, operands[0]), Type(index_dtype, operands[1])], **params)
        executable = compiled(graph)
        for seed, (sizes, layout) in enumerate(product(SIZES, LAYOUTS)):
            env = dict(zip("ABC", sizes, strict=True))
            env["A"] += 1
            x = filled(dtype, shape_for(operands[0], env), seed)
            shape = shape_for(operands[1], env)
            generator = torch.Generator().manual_seed(seed)
            index = torch.randint(0, env["A"], shape, generator=generator)
            index = index.to(getattr(torch, index_dtype))
            other = [*LAYOUTS][(seed * 5) % len(LAYOUTS)]
            compare_shaped(op, tier, graph, executable, [LAYOUTS[layout](x), LAYOUTS[other](index)])


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("op", ["scalar", "size_value"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_inside_the_graph(op: str, dtype: str, tier: str) -> None:
    for number in (2, 0.375, -0.0, True) if op == "scalar" else (A, A * 3 - 1):
        builder = GraphBuilder()
        builder.param("x", Type(dtype, (A,)))
        given: dict[str, Any] = {"value" if op == "scalar" else "size": number}
        n = builder.add(op, [], **given)
        y = builder.add("mul", ["x", n])
        builder.result(y)
        builder.result(builder.add("add", [y, n]))
        graph = builder.build()
        executable = compiled(graph)
        for size in (0, 1, 65):
            x = filled(dtype, (size,), size)
            expected = evaluate(graph, array(x))
            theirs = [array(v) for v in eager.evaluate(graph, [x])]
            found = run(executable, tier, [x])
            for f, e, t in zip(found, expected, theirs, strict=True):
                check(f, e, t, by="largest")


@pytest.mark.parametrize("number", [0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, np.nan, 1e-45])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("op", ["maximum", "minimum"])
def test_extrema_beside_a_number(op: str, dtype: str, number: float) -> None:
    """NaN stays whichever side the number is on; zeros have the sign that the interpreter gives."""
    builder = GraphBuilder()
    builder.param("x", Type(dtype, (A,)))
    n = builder.add("scalar", [], value=number)
    results = [builder.add(op, ["x", n]), builder.add(op, [n, "x"])]
    results.append(builder.add("minimum", [results[0], builder.add("scalar", [], value=2.5)]))
    for result in results:
        builder.result(result)
    executable = compiled(builder.build())
    values = [0.0, -0.0, 1.0, -1.0, 1.5, -2.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38]
    x = torch.tensor(values * 3).to(getattr(torch, dtype))
    other = torch.tensor(number, dtype=x.dtype)
    of = getattr(torch, op)
    expected = [of(x, other), of(other, x), of(x, other).minimum(torch.tensor(2.5).to(x.dtype))]
    oracle = run(executable, "interp", [x])
    for tier in TIERS:
        for found, same, e in zip(run(executable, tier, [x]), oracle, expected, strict=True):
            nan = np.isnan(wide(found))
            assert np.array_equal(nan, e.isnan().numpy())
            assert np.array_equal(wide(found)[~nan], wide(array(e))[~nan])
            assert np.array_equal(np.signbit(wide(found))[~nan], np.signbit(wide(same))[~nan])


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", DIVIDES)
def test_division_of_integers_by_zero_raises(op: str, dtype: str, tier: str) -> None:
    graph = graph_of(op, [Type(dtype, (A,)), Type(dtype, (A,))])
    executable = compiled(graph)
    for n in (1, 7, 65):
        x, y = torch.ones(n, dtype=getattr(torch, dtype)), torch.ones(n).to(getattr(torch, dtype))
        y[n - 1] = 0
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):  # as eager
            run(executable, tier, [x, y])


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("op", DIVIDES)
def test_quotients_near_an_integer(op: str, tier: str) -> None:
    """int64 is divided in doubles up to 2**53: none is rounded to the next integer."""
    graph = graph_of(op, [Type("int64", (A,)), Type("int64", (A,))])
    executable = compiled(graph)
    rng = np.random.default_rng(5)
    for bits in (4, 26, 53, 54, 62):
        divisor = rng.integers(1, 2 ** min(bits, 30), 999) * rng.choice([-1, 1], 999)
        times = rng.integers(-(2**bits), 2**bits, 999) // np.abs(divisor)
        x = times * divisor + rng.integers(-1, 2, 999)
        x[::111] = [s * (2**53 + e) for s in (-1, 1) for e in (-1, 0, 1)] + [0, 1, -1]
        compare(op, tier, graph, executable, [tensor(x), tensor(divisor)])


def test_every_operator_of_the_table_is_tested() -> None:
    tested = {*ELEMENTWISE, *SHAPED, *GATHERS, "cast", "scalar", "size_value"}
    tested |= {op.name for op in OPS if op.cls is Class.LOOP}  # in test_loops.py
    # PyTorch's own: tests/host/test_executable.py; tests/host/test_groups.py;
    # tests/frontends/test_torch_convolutions.py
    outside = {"matmul", "grouped_matmul", "call", "conv", "conv_windows"}
    assert {op.name for op in OPS} == tested | outside

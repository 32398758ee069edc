"""The reference evaluator against PyTorch, operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tilevm.errors import DTypeError, ShapeError
from tilevm.ir.graph import Graph, GraphBuilder
from tilevm.ir.ops import OPS, Class
from tilevm.ir.reference import evaluate
from tilevm.ir.text import from_text
from tilevm.ir.types import DTYPES, Type, dtype_name, numpy_dtype

FLOATS = [0.0, -0.0, 0.3, -0.7, 1.0, -1.5, 2.5, 3.5, -88.0, 1e-40, np.inf, -np.inf, np.nan]
INTS = [0, 1, -1, 2, -3, 7, 31, 33, -64, 2**31 - 1, -(2**31)]
# What each operator is in PyTorch, by name where it is that of the table.
ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "floor_div": torch.floor_divide,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
}
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) % 7 - 3
INDEX = np.array([[2, 0], [1, 1]])
SHAPED: dict[str, tuple[dict[str, Any], Callable[..., Any]]] = {
    "cast": ({"dtype": "int32"}, lambda x: x.to(torch.int32)),
    "sum": ({"axes": (0, 2)}, lambda x: x.sum((0, 2))),
    "prod": ({"axes": (1,), "keepdims": True}, lambda x: x.prod(1, keepdim=True)),
    "amax": ({"axes": (-1,)}, lambda x: x.amax(-1)),
    "amin": ({}, lambda x: x.amin()),
    "any": ({"axes": (1,)}, lambda x: x.bool().any(1)),  # eager's of uint8 is uint8
    "all": ({"axes": (1,)}, lambda x: x.bool().all(1)),
    "argmax": ({"axis": 1, "keepdims": True}, lambda x: x.argmax(1, keepdim=True)),
    "argmin": ({"axis": -1}, lambda x: x.argmin(-1)),
    "mean": ({"axes": (1, 2)}, lambda x: x.mean((1, 2))),
    "var": ({"axes": (2,), "correction": 1}, lambda x: x.var(2)),
    "reshape": ({"shape": (4, -1)}, lambda x: x.reshape(4, -1)),
    "permute": ({"axes": (2, 0, 1)}, lambda x: x.permute(2, 0, 1)),
    "expand": ({"shape": (5, -1, 3, 4)}, lambda x: x.expand(5, -1, 3, 4)),
    "slice": ({"axis": 2, "start": -3, "stop": 9, "step": 2}, lambda x: x[:, :, -3:9:2]),
    "select": ({"axis": 1, "index": -1}, lambda x: x[:, -1]),
    "unsqueeze": ({"axis": -2}, lambda x: x.unsqueeze(-2)),
    "flip": ({"axes": (0, 2)}, lambda x: x.flip(0, 2)),
    "pad": (
        {"low": (0, 1, 2), "high": (1, 0, 0), "value": 5},
        lambda x: F.pad(x, (2, 0, 1, 0, 0, 1), value=5),
    ),
    "softmax": ({"axis": 1}, lambda x: x.softmax(1)),
    "log_softmax": ({"axis": -1}, lambda x: x.log_softmax(-1)),
    "layer_norm": ({"axes": (1, 2), "eps": 1e-5}, lambda x: F.layer_norm(x, (3, 4))),
    "rms_norm": ({"axes": (-1,), "eps": 1e-6}, lambda x: F.rms_norm(x, (4,), eps=1e-6)),
}
SEPARATE = {"full", "iota", "scalar", "size_value", "squeeze", "concat", "gather", "take", "matmul"}


def graph_of(op: str, types: list[Type], **params: Any) -> Graph:
    builder = GraphBuilder()
    inputs = [builder.param(f"x{i}", type_) for i, type_ in enumerate(types)]
    builder.result(builder.add(op, inputs, **params))
    return builder.build()


def only(graph: Graph, *arrays: Any) -> np.ndarray[Any, Any]:
    """The one result of a graph."""
    (result,) = evaluate(graph, *arrays)
    return np.asarray(result)


def array(dtype: str, shape: tuple[int, ...] = (-1,), turn: int = 0) -> np.ndarray[Any, Any]:
    values: list[Any] = FLOATS if "float" in dtype else [0, 1] if dtype == "bool" else INTS
    if "int" in dtype:
        info = np.iinfo(dtype)
        values = [n for n in (*INTS, info.min, info.max) if info.min <= n <= info.max]
    rolled = np.roll(np.array(values), turn).astype(numpy_dtype(dtype))
    return rolled.reshape(shape)


def tensor(x: np.ndarray[Any, Any]) -> torch.Tensor:
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(x)).reshape(x.shape)


# Eager's float32 functions err by a few units, its results of low precision by one.
_TOLERANCE = {"float32": 2e-5, "bfloat16": 2**-7, "float16": 2**-10, "float64": 1e-14}


def agree(found: np.ndarray[Any, Any], expected: Any, atol: float = 1e-38) -> None:
    assert found.dtype.name == dtype_name(expected.dtype)
    assert found.shape == tuple(expected.shape)
    rtol = _TOLERANCE.get(found.dtype.name, 0)
    np.testing.assert_allclose(
        found.astype(np.float64), expected.double().numpy(), rtol=rtol, atol=atol
    )


def torch_result(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except (RuntimeError, TypeError, NotImplementedError, IndexError):
        return None


def skipped(op: str, *arrays: np.ndarray[Any, Any]) -> bool:
    """Where eager has no result, or one that nobody means."""
    divides = op in ("floor_div", "remainder", "fmod")
    integers = all("float" not in x.dtype.name for x in arrays)
    return divides and integers and not arrays[1].all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "op",
    [op.name for op in OPS if op.cls is Class.ELEMENTWISE and op.inputs == 1 and not op.params],
)
def test_unary(op: str, dtype: str) -> None:
    x = array(dtype)
    expected = torch_result(ELEMENTWISE.get(op) or getattr(torch, op), tensor(x))
    try:
        graph = graph_of(op, [Type(dtype, x.shape)])
    except DTypeError:
        assert expected is None
        return
    if expected is None:  # we take integers, or bools, where eager does not
        assert op in ("abs", "gelu", "gelu_tanh", "silu") and "float" not in dtype
        return
    if op == "gelu":  # eager's has NaN for infinities
        x = np.where(np.isinf(x.astype(np.float64)), 9, x.astype(np.float64)).astype(x.dtype)
        expected = F.gelu(tensor(x))
    agree(only(graph, x), expected)


@pytest.mark.parametrize(
    "op", [op.name for op in OPS if op.cls is Class.ELEMENTWISE and op.inputs == 2]
)
def test_binary(op: str) -> None:
    function = ELEMENTWISE.get(op) or getattr(torch, op)
    for left, right in product(DTYPES, DTYPES):
        x = array(left, (-1, 1))
        y = array(right, turn=1)
        if "int" in right and op in ("floor_div", "remainder", "fmod"):
            y = y[y != 0]
        if op == "pow" and "int" in left and "float" not in right:
            y = y[y >= 0]
        if op == "pow" and right == "int64":
            y = y[y != -(2**63)]  # glibc's powl of -inf has the wrong sign of the exponent there
        types = [Type(left, x.shape), Type(right, y.shape)]
        expected = torch_result(function, tensor(x), tensor(y))
        try:
            graph = graph_of(op, types)
        except DTypeError:
            assert expected is None, (left, right)
            continue
        if expected is not None and not skipped(op, x, y):
            found = evaluate(graph, x, y)[0]
            if op in ("floor_div", "remainder", "fmod"):
                agree_where_exact(found, expected, x, y)
            else:
                agree(found, expected)


def agree_where_exact(
    found: np.ndarray[Any, Any],
    expected: torch.Tensor,
    x: np.ndarray[Any, Any],
    y: np.ndarray[Any, Any],
) -> None:
    """Without operands for which a float32 division by steps differs: huge, tiny, infinite."""
    assert found.dtype.name == dtype_name(expected.dtype)
    if "float" not in found.dtype.name:
        np.testing.assert_array_equal(found, expected.numpy())
        return
    a, b = np.broadcast_arrays(x.astype(np.float64), y.astype(np.float64))
    plain = (np.abs(a) < 100) & (np.abs(b) < 100) & (np.abs(b) > 0.1)
    rtol = max(_TOLERANCE[found.dtype.name], 1e-5)
    np.testing.assert_allclose(
        found.astype(np.float64)[plain], expected.double().numpy()[plain], rtol=rtol, atol=1e-6
    )


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "maximum", "lt", "eq", "ge"])
@pytest.mark.parametrize("number", [2, 0.1, True])
def test_numbers_promote_as_in_eager(op: str, number: float) -> None:
    weak = Type({bool: "bool", int: "int64", float: "float64"}[type(number)], (), weak=True)
    operators = {"maximum": lambda x, n: torch.maximum(x, torch.tensor(n, dtype=x.dtype))}
    function = operators.get(op) or getattr(torch, op)
    for dtype in DTYPES:
        x = array(dtype)
        expected = torch_result(function, tensor(x), number)
        if op == "maximum" and torch.result_type(tensor(x), number) != tensor(x).dtype:
            continue
        try:
            graph = graph_of(op, [Type(dtype, x.shape), weak])
        except DTypeError:
            assert expected is None
            continue
        if expected is not None:
            agree(only(graph, x, number), expected)


@pytest.mark.parametrize("op", list(SHAPED))
@pytest.mark.parametrize("dtype", DTYPES)
def test_shaped(op: str, dtype: str) -> None:
    params, function = SHAPED[op]
    x = X.astype(numpy_dtype(dtype))
    expected = torch_result(function, tensor(x))
    if expected is None:
        return
    # Eager's log_softmax subtracts in the low precision.
    low = {"bfloat16": 2**-7, "float16": 2**-10}
    atol = low.get(dtype, 1e-38) if op == "log_softmax" else 1e-38
    agree(only(graph_of(op, [Type(dtype, x.shape)], **params), x), expected, atol)


def test_reductions_of_nan_and_of_nothing() -> None:
    x = np.array([[1, np.nan, 3], [4, 5, 6]], np.float32)
    agree(only(graph_of("amax", [Type("float32", (2, 3))], axes=(1,)), x), tensor(x).amax(1))
    agree(only(graph_of("argmin", [Type("float32", (2, 3))], axis=1), x), tensor(x).argmin(1))
    none = np.zeros((2, 0), np.float32)
    for op in ("sum", "prod", "mean", "any", "all", "var"):
        function = getattr(torch, op)
        graph = graph_of(op, [Type("float32", (2, 0))], axes=(1,))
        agree(only(graph, none), function(tensor(none), 1))
    agree(only(graph_of("softmax", [Type("float32", (2, 0))], axis=1), none), tensor(none))


def test_where_and_clamp() -> None:
    c, x, y = array("bool", (2, 1)), array("float32"), array("float32", turn=1)
    types = [Type("bool", c.shape), Type("float32", x.shape), Type("float32", y.shape)]
    agree(only(graph_of("where", types), c, x, y), torch.where(*map(tensor, (c, x, y))))
    weak = Type("float64", (), weak=True)
    graph = graph_of("clamp", [types[1], weak, weak])
    agree(only(graph, x, -0.5, 0.25), tensor(x).clamp(-0.5, 0.25))


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_cast(source: str, target: str) -> None:
    x = array(source)
    if "float" in source and "int" in target:
        x = x[np.isfinite(x.astype(np.float64))]
        x = x[np.abs(x.astype(np.float64)) < 100]
    if target == "uint8":
        x = x[x.astype(np.float64) >= 0]
    graph = graph_of("cast", [Type(source, x.shape)], dtype=target)
    agree(only(graph, x), tensor(x).to(getattr(torch, target)))


def test_create() -> None:
    text = """graph(x: float32[B])
  f: bfloat16[B, 2] = full shape=[B, 2], value=0.1, dtype=bfloat16
  i: int64[B*2] = iota size=B*2, start=B, step=-3
  s: int = size_value size=B + 1
  n: float = scalar value=0.5
  r: float = mul s, n
  return f, i, s, r
"""
    f, i, s, r = evaluate(from_text(text), np.zeros(3, np.float32))
    agree(f, torch.full((3, 2), 0.1, dtype=torch.bfloat16))
    np.testing.assert_array_equal(i, 3 - 3 * np.arange(6))
    assert (s, r) == (4, 2.0)


def test_gathers_and_joins() -> None:
    x = tensor(X)
    types = [Type("float32", X.shape), Type("int64", INDEX.shape)]
    agree(only(graph_of("take", types, axis=1), X, INDEX), x[:, tensor(INDEX)])
    index = np.array([[[1, 0], [2, 2]]])
    types[1] = Type("int64", index.shape)
    agree(only(graph_of("gather", types, axis=1), X, index), x.gather(1, tensor(index)))
    graph = graph_of("concat", [types[0], Type("int64", (2, 1, 4))], axis=1)
    y = np.ones((2, 1, 4), np.int64)
    agree(only(graph, X, y), torch.cat([x, tensor(y)], 1))
    one = X[:, :1]
    graph = graph_of("squeeze", [Type("float32", one.shape)], axes=(1,))
    agree(only(graph, one), tensor(one).squeeze(1))
    graph = graph_of("matmul", [types[0], Type("float32", (4, 5))])
    w = np.ones((4, 5), np.float32)
    agree(only(graph, X, w), x @ tensor(w))


def test_products_of_groups() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((7, 3)).astype(np.float32)
    w = rng.standard_normal((3, 3, 2)).astype(np.float32)
    types = [Type("float32", x.shape), Type("float32", w.shape), Type("int32", (3,))]
    graph = graph_of("grouped_matmul", types)
    parts = [x[:2] @ w[0], x[2:6] @ w[2], np.zeros((1, 2), np.float32)]
    agree(only(graph, x, w, np.array([2, 2, 6])), tensor(np.concatenate(parts)))
    for ends in ([2, 1, 6], [2, 2, 8], [-1, 2, 6]):
        with pytest.raises(IndexError, match="do not ascend"):
            only(graph, x, w, np.array(ends))


@pytest.mark.parametrize("depthwise", [False, True])
def test_convolutions(depthwise: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 9, 8, 3)).astype(np.float32)
    w = rng.standard_normal((3 if depthwise else 5, 2, 3, 1 if depthwise else 3)).astype(np.float32)
    graph = graph_of(
        "conv", [Type("float32", x.shape), Type("float32", w.shape)],
        stride=(2, 1), dilation=(1, 2), low=(1, 0), high=(0, 2), depthwise=depthwise,
    )  # fmt: skip
    padded = F.pad(tensor(x).permute(0, 3, 1, 2), (0, 2, 1, 0))
    groups = 3 if depthwise else 1
    y = F.conv2d(padded, tensor(w).permute(0, 3, 1, 2), None, (2, 1), 0, (1, 2), groups)
    agree(only(graph, x, w), y.permute(0, 2, 3, 1))


def test_gradients_of_windows() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 9, 8, 3)).astype(np.float32)
    y = rng.standard_normal((2, 5, 6, 5)).astype(np.float32)
    graph = graph_of(
        "conv_windows", [Type("float32", x.shape), Type("float32", y.shape)],
        taps=(2, 3), stride=(2, 1), dilation=(1, 2), low=(1, 0), high=(0, 2),
    )  # fmt: skip
    padded = F.pad(tensor(x).double().permute(0, 3, 1, 2), (0, 2, 1, 0))
    y_first, w = tensor(y).double().permute(0, 3, 1, 2), padded.new_empty(5, 3, 2, 3)
    parameters = [None, (2, 1), (0, 0), (1, 2), False, (0, 0), 1, [False, True, False]]
    _, expected, _ = torch.ops.aten.convolution_backward(y_first, padded, w, *parameters)
    agree(only(graph, x, y), expected.float().permute(0, 2, 3, 1))


LOOPS: dict[str, Callable[..., Any]] = {
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(1),
    "cummax": lambda x: x.cummax(1).values,
    "cummin": lambda x: x.cummin(1).values,
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "argsort": lambda x: x.argsort(dim=1, stable=True),
    "scatter": lambda x, i, s: x.scatter(1, i, s),
    "scatter_add": lambda x, i, s: x.scatter_add(1, i, s),
    "scatter_mul": lambda x, i, s: x.scatter_reduce(1, i, s, "prod"),
    "scatter_max": lambda x, i, s: x.scatter_reduce(1, i, s, "amax"),
    "scatter_min": lambda x, i, s: x.scatter_reduce(1, i, s, "amin"),
}


@pytest.mark.parametrize("op", LOOPS)
def test_loops(op: str) -> None:
    x = np.array([[3, 1, 2, 1], [0, -1, 7, 2]], np.float32)
    index, source = np.array([[3, 0, 3]]), np.array([[5, -2, 4]], np.float32)
    arrays = (x, index, source) if op.startswith("scatter") else (x,)
    types = [Type(str(a.dtype), a.shape) for a in arrays]
    agree(only(graph_of(op, types, axis=1), *arrays), LOOPS[op](*map(tensor, arrays)))


def test_orders() -> None:
    x = np.array([[3, 1, np.nan, 1], [0, -1, 7, 2]], np.float32)
    types = [Type("float32", x.shape)]
    falling = tensor(x).argsort(dim=1, descending=True, stable=True)
    agree(only(graph_of("argsort", types, axis=1, descending=True), x), falling)
    agree(only(graph_of("argtopk", types, axis=1, k=2), x), tensor(x).topk(2).indices)
    least = graph_of("argtopk", types, axis=0, k=1, largest=False)
    agree(only(least, x), tensor(x).topk(1, 0, False).indices)


def test_searches() -> None:
    line = np.array([[0, 1, 1, 4], [-3, -1, 2, 2]], np.float32)
    x = np.array([[1, 9, np.nan], [-4, 2, 0]], np.float32)
    types = [Type("float32", line.shape), Type("float32", x.shape)]
    for right in (False, True):
        expected = torch.searchsorted(tensor(line), tensor(x), right=right)
        agree(only(graph_of("searchsorted", types, axis=1, right=right), line, x), expected)


def test_every_operator_of_the_table_is_tested_here() -> None:
    elementwise = {op.name for op in OPS if op.cls is Class.ELEMENTWISE}
    elsewhere = {"argtopk", "searchsorted", "grouped_matmul", "conv", "conv_windows", "call"}
    tested = elementwise | set(SHAPED) | SEPARATE | set(LOOPS) | elsewhere
    assert {op.name for op in OPS} <= tested


def test_low_precision_is_rounded_where_the_design_says() -> None:
    text = """graph(x: bfloat16[n])
  t: bfloat16[n] = mul x, x
  s: bfloat16[n] = sub t, x
  e: bool[n] = eq t, x
  f: bfloat16[n] = floor t
  c: float32[n] = cast t, dtype=float32
  return s, e, f, c
"""
    x = np.array([0.99609375, 1.0078125, 3.015625]).astype(numpy_dtype("bfloat16"))
    wide = x.astype(np.float64)
    rounded = (wide * wide).astype(numpy_dtype("bfloat16"))
    s, e, f, c = evaluate(from_text(text), x)
    np.testing.assert_array_equal(s, (wide * wide - wide).astype(numpy_dtype("bfloat16")))
    np.testing.assert_array_equal(e, rounded == x)
    np.testing.assert_array_equal(f.astype(np.float64), np.floor(rounded.astype(np.float64)))
    np.testing.assert_array_equal(c, rounded.astype(np.float32))


def test_integers_wrap() -> None:
    x = np.array([2**31 - 1, -(2**31)], np.int32)
    graph = graph_of("add", [Type("int32", (2,)), Type("int64", (), weak=True)])
    agree(only(graph, x, 1), tensor(x) + 1)


def test_calls_run_python_functions() -> None:
    text = """graph(x: float32[B, 4])
  a: float32[B, 4], i: int64[B, 4] = call x, target=1
  y: float32[B, 4] = exp a
  return y, i
"""
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)

    def sort(a: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
        assert a.dtype == np.float32
        return np.sort(a, 1), np.argsort(a, 1)

    y, i = evaluate(from_text(text), x, targets=[print, sort])
    np.testing.assert_allclose(y, np.exp(np.sort(x, 1)), rtol=1e-6)
    np.testing.assert_array_equal(i, np.argsort(x, 1))


def test_sizes_must_agree_with_the_types() -> None:
    graph = from_text("graph(x: float32[B, B*2], y: float32[3])\n  return x\n")
    y = np.zeros(3, np.float32)
    assert evaluate(graph, np.zeros((2, 4), np.float32), y)[0].shape == (2, 4)
    for x in (np.zeros((2, 5), np.float32), np.zeros(2, np.float32)):
        with pytest.raises(ShapeError, match=r"parameter x is float32\[B, B\*2\]; got \[2"):
            evaluate(graph, x, y)

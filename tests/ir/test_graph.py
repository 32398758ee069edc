from __future__ import annotations

from typing import Any

import pytest

from tilevm.errors import DTypeError, ShapeError
from tilevm.ir.graph import GraphBuilder
from tilevm.ir.ops import OPS
from tilevm.ir.types import DTYPES, Dim, Size, Symbol, Type, dtype_name


def builder_with(**types: Type) -> GraphBuilder:
    builder = GraphBuilder()
    for name, type_ in types.items():
        builder.param(name, type_)
    return builder


def test_types_are_inferred_as_operators_are_appended() -> None:
    builder = builder_with(x=Type("float32", (Size("B"), 8)))
    total = builder.add("sum", ["x"], axes=(1,))
    flat = builder.add("reshape", ["x"], shape=(-1,))
    assert builder.type(total) == Type("float32", (Size("B"),))
    assert builder.type(flat) == Type("float32", (Size("B*8"),))
    assert builder.build().nodes[0].params == (("axes", (1,)), ("keepdims", False))


def test_a_graph_makes_the_same_program_again() -> None:
    builder = builder_with(x=Type("float32", (Size("B"), 8)))
    builder.result(builder.add("softmax", ["x"], axis=-1))
    graph = builder.build()
    assert graph.builder().build() == graph
    assert graph.to_program() is not builder.program


def test_errors_of_the_core_name_operator_line_and_types() -> None:
    builder = builder_with(a=Type("float32", (Size("B"), 8)), b=Type("float32", (7,)))
    with pytest.raises(ShapeError, match=r"model\.py:41.*add.*float32\[B, 8\].*float32\[7\]"):
        builder.add("add", ["a", "b"], line="model.py:41")
    with pytest.raises(DTypeError, match="bitwise_not"):
        builder.add("bitwise_not", ["a"])


def test_parameters_are_checked_against_the_table() -> None:
    builder = builder_with(x=Type("float32", (8,)))
    with pytest.raises(TypeError, match="slice needs start, stop"):
        builder.add("slice", ["x"], axis=0)
    with pytest.raises(TypeError, match="sum has no such parameter"):
        builder.add("sum", ["x"], axis=0)
    with pytest.raises(KeyError, match="nope"):
        builder.add("nope", ["x"])


def test_names_are_unique() -> None:
    builder = builder_with(v1=Type("float32", (8,)))
    assert builder.add("exp", ["v1"]) not in ("v1", "")
    with pytest.raises(ValueError, match="v1 is defined twice"):
        builder.add("exp", ["v1"], name="v1")


def test_symbols_keep_their_facts_and_order() -> None:
    builder = GraphBuilder()
    builder.symbol(Symbol("unused", 1))
    builder.symbol(Symbol("B", 8, 64, 8))
    builder.param("x", Type("float32", (Size("D"), Size("B"))))
    assert [s.name for s in builder.build().symbols] == ["unused", "B", "D"]
    assert builder.build().symbols[1] == Symbol("B", 8, 64, 8)


def test_sizes() -> None:
    builder = GraphBuilder()
    size = (Size("B") * 8 + 1 - Size("B") * 7) // 1
    assert builder.size(size) == builder.size(1 + Size("B"))
    assert builder.size(Size("B") - Size("B")) == 0
    env = {"B": 5}
    assert ((Size("B") + 2) % 4).value(env) == 3
    assert (7 // Size("B")).value(env) == 1
    assert (7 - Size("B")).value(env) == 2


def test_dims_hold_sizes() -> None:
    dim = Dim(min=8, max=64, multiple_of=8)
    assert [n for n in (0, 7, 8, 12, 64, 72) if dim.holds(n)] == [8, 64]
    with pytest.raises(ValueError, match="min <= max"):
        Dim(min=3, max=2)


def test_dtype_names_of_every_framework() -> None:
    import numpy as np
    import torch

    assert dtype_name(torch.bfloat16) == "bfloat16"
    assert dtype_name(np.float32) == dtype_name(np.dtype("float32")) == "float32"
    # Python's are what NumPy and PyTorch take them for.
    kinds: list[Any] = [float, int, bool]
    for kind in kinds:
        assert dtype_name(kind) == np.dtype(kind).name
        assert dtype_name(kind) == dtype_name(torch.zeros(1, dtype=kind).dtype)
    assert [dtype_name(name) for name in DTYPES] == list(DTYPES)
    with pytest.raises(DTypeError, match="complex64"):
        dtype_name(torch.complex64)


def test_the_core_knows_every_operator_of_the_table() -> None:
    for row in OPS:
        builder = builder_with(x=Type("float32", (4, 4)))
        if row.name != "call":
            try:
                builder.program.add(row.name, [0] * max(row.inputs, 1), {}, None)
            except (ShapeError, DTypeError, TypeError, ValueError, KeyError, IndexError) as error:
                assert "no operator" not in str(error)

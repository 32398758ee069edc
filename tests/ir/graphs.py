"""Random graphs, drawn from the operator table."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tilevm.errors import DTypeError, ShapeError
from tilevm.ir.graph import Graph, GraphBuilder
from tilevm.ir.ops import OPS, Class, Kind, Op
from tilevm.ir.types import DTYPES, AnySize, Size, Symbol, Type

NAMES = ("A", "B", "n")
NUMBERS = st.one_of(
    st.booleans(), st.integers(-9, 9), st.floats(width=32), st.sampled_from([0.1, 1e-5])
)


@st.composite
def symbols(draw: st.DrawFn, name: str) -> Symbol:
    least = draw(st.integers(0, 4))
    most = draw(st.one_of(st.none(), st.integers(4, 64)))
    likely = draw(st.sampled_from([(), (1, 8)]))
    return Symbol(name, least, most, draw(st.sampled_from([1, 1, 2, 8])), likely)


def sizes() -> st.SearchStrategy[AnySize]:
    names = st.sampled_from(NAMES)
    return st.one_of(
        st.integers(0, 5),
        names.map(Size),
        st.tuples(names, st.integers(1, 4)).map(lambda t: Size(t[0]) + t[1]),
        st.tuples(names, st.integers(2, 4)).map(lambda t: Size(t[0]) * t[1]),
        st.tuples(names, st.integers(2, 4)).map(lambda t: (Size(t[0]) + 1) // t[1]),
        st.tuples(names, st.integers(2, 4)).map(lambda t: Size(t[0]) % t[1]),
    )


def types() -> st.SearchStrategy[Type]:
    tensor = st.tuples(st.sampled_from(DTYPES), st.lists(sizes(), max_size=3))
    number = st.sampled_from(["float64", "int64", "bool"]).map(lambda d: Type(d, (), weak=True))
    return st.one_of(tensor.map(lambda t: Type(t[0], tuple(t[1]))), number)


@st.composite
def arguments(draw: st.DrawFn, op: Op, shape: tuple[AnySize, ...]) -> dict[str, Any]:
    """Parameters for `op` on an operand of this shape: plausible, and sometimes wrong."""
    rank = len(shape)
    axis = st.integers(-rank, rank - 1) if rank else st.just(0)
    drawn: dict[str, Any] = {}
    for param in op.params:
        if param.default is not None and draw(st.booleans()):
            continue
        by_axis = st.lists(sizes(), min_size=rank, max_size=rank)
        by_kind: dict[Kind, st.SearchStrategy[Any]] = {
            Kind.AXIS: axis,
            Kind.AXES: st.permutations(range(rank))
            if op.name == "permute"
            else st.lists(axis, max_size=2, unique=True),
            Kind.SIZE: sizes(),
            Kind.SIZES: st.one_of(by_axis, st.just(shape[::-1]), st.just((-1,))),
            Kind.DTYPE: st.sampled_from(DTYPES),
            Kind.INT: st.integers(1, 3),
            Kind.BOOL: st.booleans(),
            Kind.NUMBER: NUMBERS,
        }
        drawn[param.name] = draw(by_kind[param.kind])
    return drawn


@st.composite
def graphs(draw: st.DrawFn, most: int = 8) -> Graph:
    """A graph of up to `most` operators."""
    builder = GraphBuilder()
    for name in NAMES:
        builder.symbol(draw(symbols(name)))
    values = [builder.param(f"x{i}", draw(types())) for i in range(draw(st.integers(1, 3)))]
    for i in range(draw(st.integers(0, most))):
        op = draw(st.sampled_from([op for op in OPS if op.cls is not Class.CALL]))
        count = op.inputs if op.inputs >= 0 else draw(st.integers(1, 3))
        inputs = [draw(st.sampled_from(values)) for _ in range(count)]
        shape = builder.type(inputs[0]).shape if inputs else ()
        line = draw(st.sampled_from([None, "model.py:41"]))
        try:
            values.append(
                builder.add(op.name, inputs, name=f"y{i}", line=line, **draw(arguments(op, shape)))
            )
        except (ShapeError, DTypeError):
            continue
    if draw(st.booleans()):
        out = [Type("float32", (Size("A"), 3)), Type("int64", ())]
        values += builder.call(draw(st.integers(0, 3)), values[:2], out, line="model.py:1")
    for name in draw(st.lists(st.sampled_from(values), max_size=3)):
        builder.result(name)
    return builder.build()

from __future__ import annotations

import pytest
from hypothesis import given, settings
from tests.ir.graphs import graphs

from tilevm.errors import ParseError
from tilevm.ir.graph import Graph
from tilevm.ir.text import from_text, to_text

EXAMPLE = """\
graph(x: float32[B, 8], w: float32[8, 4], n: float)
  where B in 1..64, B % 8 == 0, B likely [8, 64]
  h: float32[B, 4] = matmul x, w  # model.py:41
  t: float32[B, 4] = mul h, n
  s: float32[B] = sum t, axes=[1]
  c: bfloat16[B] = cast s, dtype=bfloat16
  p: float32[B + 1, 4] = pad t, low=[1, 0], high=[0, 0], value=-inf
  return c, p
"""


def test_the_example_of_the_style_guide_prints_as_it_is_written() -> None:
    graph = from_text(EXAMPLE)
    assert to_text(graph) == EXAMPLE
    assert graph.nodes[0].line == "model.py:41"
    assert "model.py" not in to_text(graph, lines=False)


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_parsing_inverts_printing(graph: Graph) -> None:
    text = to_text(graph)
    parsed = from_text(text)
    assert parsed == graph
    assert [node.line for node in parsed.nodes] == [node.line for node in graph.nodes]
    assert to_text(parsed) == text


def test_types_may_be_left_out() -> None:
    graph = from_text("graph(x: float32[B])\n  y = exp x\n  return y\n")
    assert str(graph.types()["y"]) == "float32[B]"


def test_sizes_come_into_normal_form() -> None:
    graph = from_text("graph(x: float32[1 + B, 2*3])\n  y: float32[B + 1, 6] = exp x\n  return y\n")
    assert str(graph.types()["x"]) == "float32[B + 1, 6]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the graph does not end: add `return"),
        ("grap()\n  return", r"line 1: .*expected `graph\(name: type"),
        ("graph(x)\n  return x", "line 1: .*parameter x needs a type"),
        ("graph(x: float33[2])\n  return x", "line 1: .*is not a type: write `float32"),
        ("graph(x: float32[2)\n  return x", "line 1: .*brackets do not match"),
        ("graph(x: float32[B])\n  where B > 3\n  return x", "`B > 3` is no fact: write `B in 1"),
        ("graph(x: float32[2])\n  y = exq x\n  return y", "line 2: .*no operator `exq`.*ops.md"),
        ("graph(x: float32[2])\n  y = exp z\n  return y", "line 2: .*no value `z` before"),
        ("graph(x: float32[2])\n  x = exp x\n  return x", "line 2: .*x is defined twice"),
        ("graph(x: float32[2])\n  y = sum x, axis=1\n  return y", "no parameter axis, only axes"),
        ("graph(x: float32[2])\n  y = sum x, axes=[1]\n  return y", "line 2: .*axis 1"),
        ("graph(x: float32[2])\n  y = sum x, axes=1\n  return y", "`1` is not of the kind axes"),
        ("graph(x: float32[2])\n  y: float32[3] = exp x\n  return y", r"y is float32\[2\], not"),
        ("graph(x: float32[2])\n  a, b = exp x\n  return a", "exp has one result, not 2"),
        ("graph(x: float32[2])\n  y = call x, target=0\n  return y", "a call needs target="),
        ("graph(x: float32[2])\n  y = exp x,\n  return y", "nothing between two commas"),
        ("graph(x: float32[2])\n  y = slice x\n  return y", "slice needs axis, start, stop"),
        ("graph(x: float32[2])\n  return x\n  y = exp x", "there is text after `return`"),
        ("graph(x: float32[2])\n  y = exp x", "line 3: the graph does not end"),
    ],
)
def test_errors_name_the_line_and_what_to_do(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        from_text(text)

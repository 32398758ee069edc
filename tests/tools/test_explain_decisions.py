"""Decisions that `tilevm.explain` tells, and the modules of a model that they are in."""

from __future__ import annotations

import re
from typing import Any

import pytest

import tilevm

torch = pytest.importorskip("torch")

from tests.tools.test_explain import told  # noqa: E402
from torch import nn  # noqa: E402

from tilevm.frontends.torch_import import line_of  # noqa: E402


def why(data: dict[str, Any]) -> set[tuple[str, str, str]]:
    """(reader, reason, fact) of each decision; the caller has no name."""
    return {
        (row["reader"]["op"] if row["reader"] else "", row["reason"], row["fact"])
        for row in data["decisions"]
    }


def test_reduction_over_other_axes() -> None:
    x = torch.randn(7, 33)
    found = why(told(lambda x: (torch.exp(x).softmax(-1)).sum(0), x))
    reason = "a reduction over other axes than those that its producer's kernel can reduce"
    assert ("sum", reason, "") in found
    assert ("", "result of the program", "") in found


def test_an_unknown_size_keeps_kernels_apart() -> None:
    def flat(x: Any) -> Any:
        return torch.exp(x).reshape(-1) * 2

    ((_, reason, fact), *_) = [w for w in why(told(flat, torch.randn(7, 33))) if w[0] == "reshape"]
    assert reason == (
        "a reshape or another change of layout reads it next, which is a view, or a copy, of what "
        "lies in memory"
    )
    assert fact.endswith("? unknown")
    assert "*" in fact


def test_the_limit_of_operators() -> None:
    def long(x: Any) -> Any:
        for _ in range(70):
            x = torch.sin(x) + x
        return x

    found = [w for w in why(told(long, torch.randn(9))) if w[1] == "one kernel would be too large"]
    assert found
    assert {fact for _, _, fact in found} == {"65 operators, at most 64"}


def test_something_has_to_run_between() -> None:
    def between(x: Any) -> Any:
        y = torch.exp(x)
        return torch.igamma(y, y) + y

    reasons = {reason: fact for _, reason, fact in why(told(between, torch.randn(5, 6)))}
    assert "operand of a call-out" in reasons
    assert reasons["something else has to run between the two"] == (
        "%2 = call needs what the first kernel makes, and the second one needs it"
    )


def test_factor_of_a_product_and_a_product_read_twice() -> None:
    def twice(x: Any, w: Any) -> Any:
        p = torch.exp(x) @ w
        return p, torch.tanh(p) @ w

    found = {
        (op, reason) for op, reason, _ in why(told(twice, torch.randn(6, 8), torch.randn(8, 8)))
    }
    assert ("matmul", "a factor of a matrix product, which takes it from memory") in found
    assert any("others read the product too" in reason for _, reason in found)


def test_parts_of_a_concatenation() -> None:
    found = why(told(lambda x, y: torch.cat([x + 1, y * 2]), torch.ones(3, 4), torch.ones(2, 4)))
    assert {reason for _, reason, _ in found} == {
        "stored straight into its part of a concatenation"
    }


def test_what_products_of_a_chain_read_and_store() -> None:
    """Factors that other kernels make are told of, and who takes the result, views left out."""

    def attend(x: Any, w: Any) -> Any:
        q, k = x + 1, x * 2
        y = torch.nn.functional.scaled_dot_product_attention(q, k.reshape(2, 5, 8), x)
        return torch.nn.functional.linear(y.reshape(10, 8), w) * 2

    report = tilevm.explain(attend)(torch.randn(2, 5, 8), torch.randn(4, 8))
    chains = [k["products"] for k in report.to_json(limits=False)["kernels"] if k["products"]]
    told = [{(row["does"], row["other"]["op"], row["reason"]) for row in rows} for rows in chains]
    attention, linear = told
    left = "it is a factor of a matrix product, which takes it from memory"
    assert ("stores", "matmul", left) in attention
    assert ("reads", "matmul", left) in linear
    assert {(does, op) for does, op, _ in attention} >= {("reads", "add"), ("reads", "mul")}
    stored = {(row["maker"]["op"], row["reason"]) for row in report.decisions if row["reader"]}
    assert ("matmul", left) in stored


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        return self.norm(self.inner(torch.linalg.pinv(x)) + 1)


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Block(), Block())

    def forward(self, x: Any) -> Any:
        return self.layers(x).tanh()


@pytest.mark.parametrize("inside", ["", "blocks."])
def test_modules_that_steps_and_lines_are_in(inside: str) -> None:
    blocks = Blocks()
    data = told((lambda x: blocks(x)) if inside else blocks, torch.randn(8, 8))
    called = [
        line
        for line in (row["line"] for row in data["call_outs"])
        if "test_explain_decisions" in line
    ]
    paths = [line.partition(" in ")[2] for line in called]
    assert paths == [f"{inside}layers.0", f"{inside}layers.1"]
    assert all(re.match(r"test_explain_decisions\.py:\d+ in ", line) for line in called)
    modules = {row["op"]: row["line"].partition(" in ")[2] for row in data["operators"]}
    assert modules["matmul"] == f"{inside}layers.1.inner"
    assert modules["rsqrt"] == f"{inside}layers.1.norm"
    assert modules["tanh"] == inside[:-1]
    (first, second) = (step for step in data["steps"] if step["ways"])
    assert first["module"] == f"{inside}layers.0"
    assert second["module"] == inside[:-1]  # with tanh behind it


def raised(x: Any) -> Any:
    return x.exp()


class Helped(nn.Module):
    def part(self, x: Any) -> Any:
        return x.tanh()

    def forward(self, x: Any) -> Any:
        return raised(self.part(x)) * 2


def test_lines_are_those_of_the_code_that_computes() -> None:
    first = {
        "exp": raised.__code__.co_firstlineno + 1,
        "tanh": Helped.part.__code__.co_firstlineno + 1,
        "mul": Helped.forward.__code__.co_firstlineno + 1,
    }
    for function in (Helped(), lambda x: raised(x.tanh()) * 2):
        lines = {row["op"]: row["line"] for row in told(function, torch.randn(3, 4))["operators"]}
        assert lines["exp"] == f"test_explain_decisions.py:{first['exp']}"
        if isinstance(function, Helped):
            for op in ("tanh", "mul"):
                assert lines[op] == f"test_explain_decisions.py:{first[op]}"


def test_modules_of_graphs_that_dynamo_makes() -> None:
    lines: list[str | None] = []

    def backend(module: Any, examples: Any) -> Any:
        nodes = (node for node in module.graph.nodes if node.op.startswith("call"))
        lines.extend(map(line_of, nodes))
        return module

    torch.compile(Blocks(), backend=backend)(torch.randn(8, 8))
    modules = [line.partition(" in ")[2] for line in lines if line]
    assert [*dict.fromkeys(modules)] == [
        *(f"layers.{i}{part}" for i in (0, 1) for part in ("", ".inner", ".norm")),
        "",
    ]

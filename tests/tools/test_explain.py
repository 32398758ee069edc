"""Plain data of `tilevm.explain`: what was decided, what it took, what could be."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilevm
from tilevm import lang
from tilevm.errors import CaptureError
from tilevm.tools import roofline
from tilevm.tools.explain_data import FORMAT

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

OUTSIDE = torch.randn(4)
DOCS = Path(__file__).parent.parent.parent / "docs"


def told(function: Any, *args: Any, asm: bool = False, runs: int = 5) -> dict[str, Any]:
    """Plain data of a call, without what only measuring gives."""
    data: dict[str, Any] = tilevm.explain(function, asm=asm, runs=runs)(*args).to_json(limits=False)
    return json.loads(json.dumps(data))  # type: ignore[no-any-return]


def sample(x: Any, w: Any, b: Any) -> Any:
    h = torch.nn.functional.gelu(x @ w + b)
    return torch.linalg.pinv(h).softmax(-1), h


@pytest.fixture(scope="module")
def report() -> Any:
    return tilevm.explain(sample)(torch.randn(33, 64), torch.randn(64, 96), torch.randn(96))


@pytest.fixture(scope="module")
def data(report: Any) -> dict[str, Any]:
    return report.to_json(limits=False)  # type: ignore[no-any-return]


def test_keys_are_documented(data: dict[str, Any]) -> None:
    page = (DOCS / "explain.md").read_text(encoding="utf-8")
    named = {*data}
    for rows in ("operators", "steps", "kernels", "decisions", "call_outs", "symbols", "compiling"):
        named |= {*data[rows][0]}
    for part in ("summary", "timing", "memory"):
        named |= {*data[part]}
    memory = told(row_by_row, torch.randn(3, 4))["memory"]
    named |= {*memory["buffers"][0], *data["kernels"][0]["variants"][0]}
    assert not {name for name in named if f"`{name}`" not in page}
    assert data["format"] == FORMAT


def test_operators_know_where_they_run(data: dict[str, Any]) -> None:
    places = {row["op"]: row for row in data["operators"]}
    assert places["aten.linalg_pinv.atol_rtol_tensor"]["kernel"] == -1
    assert data["steps"][places["aten.linalg_pinv.atol_rtol_tensor"]["step"]]["kind"] == "call"
    for row in data["operators"]:
        if row["kernel"] >= 0:
            kernel = data["kernels"][row["kernel"]]
            assert row["index"] in kernel["operators"]
            assert kernel["index"] in data["steps"][row["step"]]["kernels"]
    assert places["matmul"]["step"] == places["gelu"]["step"]  # some rows at a time
    assert places["matmul"]["line"].startswith("test_explain.py:")


def test_facts_of_sizes() -> None:
    dims = {"x": (tilevm.Dim(min=2, max=512, multiple_of=2), None)}
    data = told(tilevm.kernel(dims=dims)(lambda x: lang.exp(x)), np.ones((6, 5), np.float32))
    (symbol,) = (row for row in data["symbols"] if row["max"] is not None)
    assert (symbol["min"], symbol["max"], symbol["multiple_of"]) == (2, 512, 2)
    assert symbol["value"] == 6
    assert {row["max"] for row in data["symbols"]} == {512, None}


def test_time_of_steps(data: dict[str, Any]) -> None:
    assert data["timing"]["runs"] >= 1
    assert not data["timing"]["untimed"]
    times = [step["ns"] for step in data["steps"]]
    assert all(ns >= 0 for ns in times)
    assert data["timing"]["call_ns"] > 0
    chain = next(step for step in data["steps"] if step["kind"] == "chain")
    assert chain["flops"] == 2 * 33 * 64 * 96
    assert chain["factors"] == "float32"
    assert chain["ways"]
    floats = 33 * 64 + 64 * 96 + 96
    assert chain["read_bytes"] == 4 * floats


def test_bytes_and_operations_of_a_kernel() -> None:
    data = told(lambda x, y: torch.exp(x + y), torch.ones(7, 33), torch.ones(33))
    (step,) = (s for s in data["steps"] if s["kind"] == "kernel")
    assert step["read_bytes"] == 4 * (7 * 33 + 33)
    assert step["written_bytes"] == 4 * 7 * 33
    assert step["vector_ops"] == 7 * 33 * (1 + 10)


def test_double_precision_costs_twice() -> None:
    assert roofline.vector_ops({"add_f64": 10.0, "add_f32": 1.0}) == 21


def test_no_limits_without_measuring(data: dict[str, Any]) -> None:
    assert data["machine"] is None
    assert all(step["limit_ns"] is None for step in data["steps"])


def test_limits(report: Any) -> None:
    data = report.to_json()
    machine = data["machine"]
    assert machine["threads"] == torch.get_num_threads()
    chain = next(step for step in data["steps"] if step["kind"] == "chain")
    assert chain["limited_by"] in ("memory", "products", "arithmetic")
    least = chain["flops"] / machine["product_gflop_s"]["float32"]
    assert chain["limit_ns"] >= min(least, chain["ns"]) * 0.999
    assert all(s["limit_ns"] <= s["ns"] for s in data["steps"] if s["limit_ns"] is not None)
    assert data["summary"]["limit_ns"] > 0


def test_a_call_that_changes_its_arguments_is_made_once() -> None:
    def bump(x: Any) -> Any:
        x.add_(1)
        return x * 2

    compiled = tilevm.compile(bump)
    x = torch.zeros(3)
    first = told(compiled, x)
    assert x.tolist() == [1.0] * 3
    assert first["timing"]["runs"] == 0
    assert "changes its arguments" in first["timing"]["untimed"]
    again = told(compiled, x)
    assert x.tolist() == [2.0] * 3
    assert again["timing"]["runs"] == 1


def test_random_numbers_are_drawn_once() -> None:
    torch.manual_seed(0)
    torch.rand(3)
    wanted = torch.rand(3)
    torch.manual_seed(0)
    told(lambda x: x + torch.rand(3), torch.zeros(3))
    assert torch.equal(torch.rand(3), wanted)


def test_nothing_is_noted_unless_asked() -> None:
    compiled = tilevm.compile(lambda x: x + 1)
    x = torch.ones(4)
    compiled(x)
    (capture,) = compiled.captures
    executable: Any = capture.captured.executable
    assert executable.profile() is None
    compiled.explain(x)
    assert executable.profile() is None
    executable.set_profiled(True)
    compiled(x)
    assert len(executable.profile()["steps"]) == len(executable.steps())
    executable.set_profiled(False)
    assert executable.profile() is None


def test_runs_of_zero() -> None:
    data = told(lambda x: x + 1, torch.ones(3), runs=0)
    assert data["timing"]["untimed"]
    assert data["memory"]["arena_bytes"] is None


def test_the_reference_has_a_graph_alone() -> None:
    with tilevm.config.patch(tier="reference"):
        kernel = tilevm.kernel(lambda x: lang.exp(x))
        report = tilevm.explain(kernel)(np.ones((3, 4), np.float32))
    assert "exp" in str(report)
    assert report.to_json()["steps"] == []
    assert "<!doctype html>" in report.to_html()


# Decisions, of which test_explain_decisions.py has more -------------------------------------------


def test_every_kernel_says_why_it_is_separate(data: dict[str, Any]) -> None:
    for kernel in data["kernels"]:
        if kernel["operators"]:
            assert kernel["why_separate"], kernel["name"]
    by_name = {k["name"]: k["why_separate"] for k in data["kernels"]}
    softmax = next(rows for name, rows in by_name.items() if "exp" in name)
    others = [row["other"]["op"] for row in softmax if row["other"]]
    assert "aten.linalg_pinv.atol_rtol_tensor" in others


def test_decisions_in_the_text(report: Any) -> None:
    text = str(report)
    assert "operand of a call-out" in text
    assert "-> aten.linalg_pinv.atol_rtol_tensor" in text
    assert dict(report.cuts)


# Memory -------------------------------------------------------------------------------------------


def row_by_row(x: Any) -> Any:
    for _ in range(6):
        x = torch.exp(x.softmax(-1)).softmax(0)
    return x


def test_memory_plan_is_sound() -> None:
    memory = told(row_by_row, torch.randn(7, 33))["memory"]
    buffers = memory["buffers"]
    assert all(b["bytes"] == 4 * 7 * 33 or "*" not in b["size"] for b in buffers)
    assert all(b["offset"] + b["bytes"] <= memory["arena_bytes"] for b in buffers)
    replaced = {b["over"]: b["value"] for b in buffers if b["over"] is not None}
    for one, other in combinations(buffers, 2):
        apart = one["last"] < other["first"] or other["last"] < one["first"]
        if not apart and replaced.get(one["value"]) != other["value"]:
            assert (
                one["offset"] + one["bytes"] <= other["offset"]
                or other["offset"] + other["bytes"] <= one["offset"]
            )
    assert memory["most_live_bytes"] == max(memory["live_bytes"])
    assert memory["most_live_bytes"] <= memory["arena_bytes"] < memory["without_reuse_bytes"]


def test_why_a_buffer_lies_where_it_does() -> None:
    report = tilevm.explain(row_by_row)(torch.randn(7, 33))
    buffers = report.to_json(limits=False)["memory"]["buffers"]
    assert buffers[0]["below"] == []
    for b in buffers:
        assert all(other["until"] >= b["first"] for other in b["below"])
    assert any(b["below"] for b in buffers)
    assert "above what lives as well: %" in str(report)


def test_a_buffer_where_another_dies() -> None:
    def function(x: Any, y: Any) -> Any:
        h = (x @ y).relu()
        return (h * (h @ y).sum()) @ y @ x

    report = tilevm.explain(function)(torch.randn(9, 9), torch.randn(9, 9))
    buffers = report.to_json(limits=False)["memory"]["buffers"]
    (replacing,) = (b for b in buffers if b["over"] is not None)
    (replaced,) = (b for b in buffers if b["value"] == replacing["over"])
    assert replaced["offset"] == replacing["offset"]
    assert "which is read last for it" in str(report)


# Where it is written ------------------------------------------------------------------------------


def test_save_by_suffix(report: Any, tmp_path: Path) -> None:
    for suffix, begins in ((".json", "{"), (".txt", "sample: "), (".html", "<!doctype html>")):
        file = tmp_path / f"report{suffix}"
        report.save(file)
        assert file.read_text(encoding="utf-8").startswith(begins)
    with pytest.raises(ValueError, match=r"\.html, \.json or \.txt"):
        report.save(tmp_path / "report.pdf")


def test_a_suffix_in_capitals(report: Any, tmp_path: Path) -> None:
    report.save(tmp_path / "a.TXT")
    assert (tmp_path / "a.TXT").read_text(encoding="utf-8") == str(report)


def test_nothing_to_run() -> None:
    assert "nothing to run" in str(tilevm.explain(lambda x: x)(torch.ones(3)))
    assert "nothing to run" not in str(tilevm.explain(lambda x: x + 1)(torch.ones(3)))


def test_arrays_for_a_function_of_torch() -> None:
    with pytest.raises(CaptureError, match=r"(?s)ndarray.*torch\.from_numpy"):
        tilevm.explain(lambda x: x + 1)(np.ones(3))


def test_nothing_was_recorded() -> None:
    pytest.importorskip("tilevm._recorder")
    recorded = tilevm.explain(lambda x: x, recorded=True)(torch.ones(3))
    assert "Nothing was recorded" in str(recorded)
    assert recorded.to_json(limits=False)["segments"] == []


def test_a_kernel_over_numpy_arrays() -> None:
    data = told(tilevm.kernel(lambda x: lang.softmax(x, -1)), np.ones((3, 4), np.float32), asm=True)
    (kernel,) = data["kernels"]
    (variant,) = kernel["variants"]
    assert variant["launches"] >= data["timing"]["runs"]
    assert any("exp_f32" in line["text"] and line["meaning"] for line in variant["bytecode"])
    assert bool(variant["assembly"]) == (variant["tier"] != "interp")


# Recorded operators -------------------------------------------------------------------------------


def test_segments_of_a_run() -> None:
    def relax(x: Any) -> Any:
        for _ in range(5):
            x = torch.tanh(x) * 0.5
            x.sum().item()
        return x + 1

    recording = tilevm.explain(relax, recorded=True)(torch.ones(4, 4))
    data = json.loads(json.dumps(recording.to_json(limits=False)))
    first, last = data["segments"]
    assert sum(first["reasons"].values()) == 5
    assert first["timing"]["runs"] == 4  # without the one that compiled
    assert {row["op"] for row in first["operators"]} >= {"tanh", "sum"}
    assert list(last["reasons"]) != list(first["reasons"])
    assert "2 segments, 6 runs, 0 calls not recorded" in str(recording)
    assert "<!doctype html>" in recording.to_html(limits=False)


def test_a_run_that_raises_is_not_noted() -> None:
    def fails(x: Any) -> Any:
        (x + 1).sum().item()
        raise KeyError("no")

    with pytest.raises(KeyError):
        tilevm.explain(fails, recorded=True)(torch.ones(3))
    assert not tilevm.explain(lambda x: x, recorded=True)(torch.ones(3)).segments


@pytest.mark.parametrize("gradients", [False, True])
def test_what_was_captured_is_not_captured_again(gradients: bool) -> None:
    x = torch.randn(8, 16)
    compiled = tilevm.compile(lambda x: x.sin() + 1)
    with torch.set_grad_enabled(gradients):
        compiled(x)
        before = tilevm.stats()["captures"]
        report = tilevm.explain(compiled)(x)
        assert report.profiles
        assert compiled.find(x) is compiled.captures[0]
        compiled(x)
        assert tilevm.stats()["captures"] == before
        tilevm.explain(compiled)(x.clone().requires_grad_())
        assert len(compiled.captures) == 2  # made without gradients, whatever the mode


def test_bytes_of_what_is_gathered_and_repeated() -> None:
    table, rows = torch.randn(500, 32), torch.randint(500, (7, 5))

    def read(function: Any, *args: Any) -> float:
        return max(step["read_bytes"] or 0 for step in told(function, *args)["steps"])

    expanded = read(lambda x: x.expand(64, 100) + 1, torch.randn(1, 100))
    assert expanded == 100 * 4
    gathered = read(lambda w, i: w[i].mean(1), table, rows)
    assert 35 * 32 * 4 <= gathered <= 35 * (32 * 4 + 8)
    many = torch.randint(500, (400, 50))
    assert read(lambda w, i: w[i].mean(1), table, many) <= 500 * 32 * 4 + 20000 * 8


def test_what_is_not_recorded_and_who_looked() -> None:
    pytest.importorskip("tilevm._recorder")

    def branched(x: Any) -> Any:
        y = (x.sin() + 1) * 2
        values = torch.linalg.eigvals(y @ y.T).real
        if y.sum() > 0:
            y = y * 2
        return y + 1, values.exp()

    lines = (branched.__code__.co_firstlineno + 2, branched.__code__.co_firstlineno + 3)
    recording = tilevm.explain(branched, recorded=True)(torch.randn(6, 8))
    assert [(c.name, c.line) for c in recording.callouts] == [
        ("aten._linalg_eigvals", f"test_explain.py:{lines[0]}")
    ]
    reasons = [reason for segment in recording.segments for reason in segment.reasons]
    assert f"looked at, by torch.linalg.eigvals (test_explain.py:{lines[0]})" in reasons
    assert f"looked at, by torch.Tensor.__bool__ (test_explain.py:{lines[1]})" in reasons
    assert reasons[-1] == "end of the block"
    data = recording.to_json(limits=False)
    assert [row["name"] for row in data["call_outs"]] == ["aten._linalg_eigvals"]
    assert "aten._linalg_eigvals: tilevm.fuse() does not record it" in str(recording)
    assert tilevm.explain(torch.sin, recorded=True)(torch.randn(3)).callouts == ()


def test_who_looked_where_pytorch_does_not_know_a_method(monkeypatch: Any) -> None:
    pytest.importorskip("tilevm._recorder")
    monkeypatch.setattr("tilevm.tools.recording.resolve_name", lambda func: None)

    def branched(x: Any) -> Any:
        return x + 1 if (x.sin() * 2).sum() > 0 else x

    recording = tilevm.explain(branched, recorded=True)(torch.randn(6, 8))
    (reason, *_) = [reason for segment in recording.segments for reason in segment.reasons]
    assert reason.startswith("looked at, by torch.Tensor.__bool__ (test_explain.py:")


def test_times_in_the_text(report: Any) -> None:
    rows = str(report).partition("steps:")[2].partition("cuts:")[0].strip().splitlines()
    assert " us for all, with inputs and outputs" in rows[-1]
    times = [float(row.split(" us ")[0]) for row in rows if " us " in row]
    assert len(times) == len(report.steps) + 1
    assert times[-1] >= sum(times[:-1]) * 0.98  # each is rounded


def test_limits_in_the_text(report: Any) -> None:
    data = report.to_json()
    rows = str(report).partition("steps:")[2].partition("cuts:")[0].strip().splitlines()
    told = [
        row for row in rows if re.search(r"us +\(\d+\.\d us by (memory|products|arithmetic)\)", row)
    ]
    assert len(told) == sum(bool(step["limited_by"]) for step in data["steps"]) > 0
    assert f"; at best {data['summary']['limit_ns'] / 1000:.1f} us for the steps" in rows[-1]
    assert " by memory" not in report.to_text(limits=False)


def test_decisions_are_the_same_as_plain_data(report: Any, data: dict[str, Any]) -> None:
    assert list(report.decisions) == data["decisions"]
    assert list(report.operators) == data["operators"]
    reader = next(row["reader"] for row in report.decisions if row["reader"])
    assert report.operators[reader["operator"]]["op"] == reader["op"]


def test_names_of_inputs() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 5)
            self.register_buffer("scale", torch.rand(5))

        def forward(self, x: Any, *rest: Any, bias: Any, factor: int = 1) -> Any:
            return self.layer(x) * self.scale * factor + rest[0]["all"] + bias[0]

    def names(function: Any, *args: Any, **kwargs: Any) -> set[str]:
        report = tilevm.explain(function)(*args, **kwargs)
        rows = report.to_json(limits=False)["inputs"]
        assert all(f"%{row['value']}: {row['type']}  {row['name']}" in str(report) for row in rows)
        return {row["name"] for row in rows}

    rest, bias = {"all": torch.randn(5)}, [torch.randn(5)]
    assert names(Scaled(), torch.randn(3, 4), rest, bias=bias, factor=3) == {
        "layer.weight", "layer.bias", "scale", "x", "rest[0]['all']", "bias[0]", "factor",
    }  # fmt: skip
    assert names(lambda rows: rows + OUTSIDE, torch.randn(3, 4)) == {"rows", "OUTSIDE"}
    kernel = tilevm.kernel(lambda rows, by: rows * by)
    assert names(kernel, np.ones((3, 4), np.float32), 3) == {"rows", "by"}
    told = tilevm.explain(torch.sin, recorded=True)(torch.randn(3)).to_json(limits=False)
    assert [row["name"] for row in told["segments"][0]["inputs"]] == [""]


def test_bytes_of_a_scatter_in_its_place() -> None:
    x, index, source = torch.randn(1000, 64), torch.randint(1000, (10,)), torch.randn(10, 64)

    def moved(function: Any) -> tuple[float, float]:
        steps = told(function, x, index, source)["steps"]
        (step,) = (step for step in steps if step["kind"] == "loop")
        return step["read_bytes"], step["written_bytes"]

    rows = 10 * 64 * 4
    assert moved(lambda x, i, s: (x * 2).index_add(0, i, s).exp()) == (10 * 8 + 2 * rows, rows)
    assert moved(lambda x, i, s: (x * 2).index_copy(0, i, s).exp()) == (10 * 8 + rows, rows)
    whole = x.numel() * 4
    assert moved(lambda x, i, s: x.index_add(0, i, s)) == (10 * 8 + rows + whole, whole)


def test_why_there_is_nothing_to_explain() -> None:
    def branched(x: Any) -> Any:
        return x + 1 if x.sum() > 0 else x - 1

    x = torch.randn(4, 4)
    with pytest.raises(
        CaptureError,
        match=r"recorded where it can be.*\(test_explain\.py:\d+\)(.|\n)*recorded=True",
    ):
        tilevm.explain(branched)(x)
    with (
        torch.autocast("cpu"),
        pytest.raises(CaptureError, match=r"through torch\.compile: it is in"),
    ):
        tilevm.explain(lambda x: x @ x)(x)
    inside = []

    def one(x: Any) -> Any:
        with pytest.raises(CaptureError, match=r"eagerly: the call is inside a transform"):
            tilevm.explain(torch.sin)(x)
        inside.append(x)
        return x

    torch.func.vmap(one)(x)
    assert inside


def test_where_most_is_alive() -> None:
    memory = told(lambda x: (x.softmax(-1) @ x).softmax(0), torch.randn(64, 64))["memory"]
    step = memory["most_live_step"]
    assert memory["live_bytes"][step] == memory["most_live_bytes"] == max(memory["live_bytes"])
    assert told(lambda x: x + 1, torch.randn(4))["memory"]["most_live_step"] is None

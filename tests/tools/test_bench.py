from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilevm  # noqa: E402
from tilevm.frontends import torch_random  # noqa: E402
from tilevm.tools import cli  # noqa: E402
from tilevm.tools.bench import (  # noqa: E402
    SUITES,
    contestants,
    draws,
    kernels,
    limits,
    measure,
    report,
    rowless,
    run,
)
from tilevm.tools.bench.case import Case, exactly  # noqa: E402
from tilevm.tools.bench.cases import CASES, select  # noqa: E402
from tilevm.tools.bench.costs import COSTS  # noqa: E402
from tilevm.tools.worker import WorkerDied  # noqa: E402

pytestmark = pytest.mark.torch

OPERATORS = [case for case in CASES.values() if case.suite == "operators"]
OTHERS = [case for case in CASES.values() if case.suite != "operators" and case.name != "minilm"]
MODELS = [case.name for case in OTHERS if case.suite in ("models", "images")]
NEED_TRANSFORMERS = ["bert_layer", "llama_layer", *MODELS]


def check(case: Case, call: Any, many: int = 2) -> None:
    """`call` must be right for the smallest shapes, as the benchmark judges it."""
    function = case.make()
    for sizes in case.sweep[:many]:
        inputs = case.tensors(sizes)
        wide = [x.double() if x.is_floating_point() else x for x in inputs]
        with torch.no_grad():
            exact = measure._flat(exactly(function)(*wide))
            found, eager = measure._flat(call(*inputs)), measure._flat(function(*inputs))
        wrong, share = measure._compare(found, exact, eager)
        assert not wrong
        assert share <= 1, f"{share:.2f} of what is allowed"


@pytest.mark.parametrize("case", OPERATORS, ids=lambda case: case.name)
def test_kernels_are_the_cases(case: Case) -> None:
    if not case.kernel:
        pytest.skip("has no kernel")
    check(case, tilevm.kernel(getattr(kernels, case.kernel)))


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_functions_of_jax_are_the_cases(case: Case) -> None:
    """In float64, where JAX's own rounding does not show; norms of models stay in float32."""
    jax = pytest.importorskip("jax")
    rival = contestants.BY_KEY["jax"]
    if not rival.takes(case):
        pytest.skip("not written in JAX")
    if case.name in NEED_TRANSFORMERS:
        pytest.importorskip("transformers")
    function = exactly(case.make())
    for sizes in case.sweep[:2]:
        wide = [x.double() if x.is_floating_point() else x for x in case.tensors(sizes)]
        with jax.enable_x64(True), torch.no_grad():
            found = measure._flat(rival.tensors(rival.build(case, function)(*wide)))
            exact = measure._flat(function(*wide))
        for mine, theirs in zip(found, exact, strict=True):
            large = float(theirs.double().abs().nan_to_num(posinf=0).max())
            torch.testing.assert_close(
                mine.double(), theirs.double(), rtol=0, atol=1e-6 * large, equal_nan=True
            )


@pytest.mark.parametrize("case", OPERATORS, ids=lambda case: case.name)
def test_operators_compile_whole(case: Case) -> None:
    before = tilevm.stats()
    check(case, tilevm.compile(case.make()))
    after = tilevm.stats()
    assert after["callouts"] == before["callouts"]
    assert after["flushes"] == before["flushes"]


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.name)
def test_cases_compile(case: Case) -> None:
    """Whole, but for what the case says is called out."""
    if case.name in NEED_TRANSFORMERS:
        pytest.importorskip("transformers")
    before = tilevm.stats()
    check(case, tilevm.compile(case.make()), 1 if case.name in MODELS else 2)
    found = measure._difference(before, tilevm.stats())
    assert found["flushes"] == {}
    assert [n for n in found["callouts"] if not any(part in n for part in case.callouts)] == []


def test_inputs_are_as_written_and_the_same_each_time() -> None:
    case = CASES["embedding_sum"]
    ids, words, positions, kind = case.tensors((2, 5, 8))
    assert ids.dtype == torch.int64
    assert tuple(ids.shape) == (2, 5)
    assert 0 <= int(ids.min()) <= int(ids.max()) < 1000
    assert [tuple(x.shape) for x in (words, positions, kind)] == [(1000, 8), (512, 8), (8,)]
    assert all(map(torch.equal, case.tensors((2, 5, 8)), (ids, words, positions, kind)))
    assert case.symbolic()[2] == ("positions", [512, "D"])
    assert all(float(x.min()) > 0 for x in CASES["adam"].tensors((7, 9))[-24:])
    assert CASES["softmax_bf16"].tensors((7, 9))[0].dtype == torch.bfloat16


def test_quick_keeps_the_smallest_and_the_largest() -> None:
    for case in CASES.values():
        shapes = case.shapes(quick=True)
        if case.quick:
            assert shapes == case.quick
            assert set(shapes) <= set(case.sweep)
        else:
            assert len(shapes) == 3
            assert shapes[0] == case.sweep[0]
            assert shapes[-1] == case.sweep[-1]


def test_suites_are_those_of_the_cases() -> None:
    assert tuple(dict.fromkeys(case.suite for case in CASES.values())) == SUITES
    assert all(not case.by or case.by in case.sizes for case in CASES.values())
    assert len(CASES["mm"].sweep) >= 60


def test_selecting() -> None:
    assert [case.name for case in select(["operators"], ["layer_norm_bf16"])] == ["layer_norm_bf16"]
    assert {case.suite for case in select(["models"], None)} == {"models"}
    with pytest.raises(ValueError, match="no case"):
        select(None, ["nothing like it"])


def test_twins_share_meaning_and_not_code() -> None:
    def double(x: int) -> int:
        return 2 * x

    a, b = contestants.twin(double, "a"), contestants.twin(double, "b")
    assert a(3) == b(3) == 6
    assert a.__code__ is not b.__code__
    assert contestants.twin(torch.nn.ReLU(), "c")(torch.ones(1)) == 1


# Limits -----------------------------------------------------------------------------------------


def test_work_is_counted() -> None:
    x, y = torch.ones(8, 16), torch.ones(16, 4)
    work = limits.count(lambda a, b: a @ b, [x, y])
    assert work.flops == 2 * 8 * 16 * 4
    assert work.bytes == 4 * (8 * 16 + 16 * 4 + 8 * 4)
    work = limits.count(lambda a: torch.exp(a) + 1, [x])
    assert work.vector_ops == (COSTS["exp"] + 1) * 8 * 16
    assert work.flops == 0
    softmax = limits.count(lambda a: torch.softmax(a, -1).t(), [x])
    assert softmax.vector_ops == COSTS["softmax"] * 8 * 16
    weights = torch.ones(16, 8, dtype=torch.bfloat16)
    row = limits.count(torch.nn.functional.linear, [weights[:1], weights])
    assert (row.bytes, row.flops, row.dtype) == (2 * (8 + 16 * 8 + 16), 2 * 16 * 8, "bfloat16")


def test_tables_count_where_a_product_reads_them() -> None:
    table, head = torch.nn.Embedding(100, 8), torch.nn.Linear(8, 100, bias=False)
    ids = torch.zeros(3, dtype=torch.int64)
    lookup = limits.count(torch.nn.Sequential(table), [ids])
    assert lookup.bytes == 8 * 3 + 4 * 3 * 8
    head.weight = table.weight
    both = limits.count(torch.nn.Sequential(table, head), [ids])
    assert both.bytes == 8 * 3 + 4 * 3 * 100 + 4 * 100 * 8


def test_work_of_attention_is_counted() -> None:
    q, k = torch.ones(2, 3, 5, 8), torch.ones(2, 3, 7, 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    work = limits.count(attend, [q, k, k])
    assert work.flops == 6 * 5 * 7 * (2 * 8 + 2 * 8)
    assert work.vector_ops == 6 * 5 * 7 * COSTS["softmax"]
    causal = limits.count(lambda x, y: attend(x, y, y, is_causal=True), [k, k])
    assert causal.flops == 6 * (7 * 8 // 2) * (2 * 8 + 2 * 8)


def test_flops_of_groups() -> None:
    def grouped(x: Any, w: Any) -> Any:
        return torch.nn.functional.grouped_mm(x, w, offs=torch.tensor([2, 5], dtype=torch.int32))

    work = limits.count(grouped, [torch.randn(7, 4), torch.randn(2, 4, 8)])
    assert work.flops == 2 * 7 * 4 * 8


def test_the_limit_is_the_largest_of_three() -> None:
    rates = {"float32": 1e9, "bfloat16": 2e9}
    machine = limits.Machine(1, flops_s=rates, bandwidth={n: 1e9 for n in range(64)})
    assert machine.limit_s(limits.Work(1000, 0, 0)) == pytest.approx(1e-6)
    assert machine.limit_s(limits.Work(1000, 5000, 0)) == pytest.approx(5e-6)
    assert machine.limit_s(limits.Work(1000, 5000, 5000)) == pytest.approx(10e-6)
    assert machine.limit_s(limits.Work(1000, 5000, 0, "bfloat16")) == pytest.approx(2.5e-6)


def test_the_machine_is_measured() -> None:
    machine, other = limits.Machine(1), limits.Machine(1, {"float32": 1e15}, {30: 1e9})
    work = limits.Work(1 << 20, 0, 0)
    machine.measure([work])
    assert 1e9 < machine.flops_s["float32"] < 1e13
    assert machine.limit_s(work) > 1e-7
    machine.absorb(other)
    assert machine.flops_s == {"float32": 1e15}
    assert len(machine.bandwidth) == 2


# Judging ----------------------------------------------------------------------------------------


def test_wrong_results_are_not_timed() -> None:
    exact = torch.linspace(-1, 1, 100, dtype=torch.float64)
    right = exact.float()
    assert measure._compare([right], [exact], [right])[0] == ""
    assert "off" in measure._compare([right + 1e-3], [exact], [right])[0]
    assert "sizes" in measure._compare([right[:5]], [exact], [right])[0]
    assert "float64" in measure._compare([exact], [exact], [right])[0]
    assert "outputs" in measure._compare([], [exact], [right])[0]
    nan = torch.full_like(right, math.nan)
    assert measure._compare([nan], [exact], [right])[0]
    assert measure._compare([nan], [nan.double()], [nan]) == ("", 0.0)


def test_a_case_is_measured(tmp_path: Path) -> None:
    bench = measure.Bench(torch.get_num_threads(), True, tmp_path / "stage")
    found = bench.case("multiply_add", ["eager", "kernel", "compile"])
    json.dumps(found)
    assert [row["sizes"] for row in found["shapes"]] == [[7, 33], [64, 768], [4096, 1024]]
    for row in found["shapes"]:
        assert set(row["median_us"]) == {"eager", "kernel", "compile"}
        assert all(time > 0 for time in row["median_us"].values())
    for key in ("kernel", "compile"):
        result = found["contestants"][key]
        assert result["error"] == ""
        assert result["claims"]
        assert result["callouts"] == {}
        assert (result["captures"], result["recompiles"]) == (1, 0)


# Report -----------------------------------------------------------------------------------------


def measured() -> dict[str, Any]:
    """Three cases: one that tilevm calls out, one in which it fails."""

    def case(name: str, factor: float, **own: Any) -> dict[str, Any]:
        rows = [
            {
                "sizes": [n, 1024],
                "median_us": {
                    "eager": 10.0 * n,
                    "inductor": 20.0 * n,
                    "compile": 10.0 * n * factor,
                },
                "bytes": n * 4096,
                "limit_us": 2.0 * n,
            }
            for n in (1, 1024)
        ]
        result = {
            "error": "",
            "accuracy": 0.5,
            "compile_s": 0.25,
            "recompiles": 0,
            "callouts": {},
            "claims": True,
            "peak_extra_bytes": 1 << 20,
        }
        others = {key: dict(result) for key in ("eager", "inductor")}
        return {
            "name": name,
            "suite": "operators",
            "sizes": ["M", "N"],
            "by": "",
            "shapes": rows,
            "contestants": others | {"compile": result | own},
        }

    fast = case("fast", 0.5)
    called = case("called", 0.01, callouts={"aten.cumsum.default": 1}, claims=False)
    failed = case("failed", 1.0, error="wrong: output 0")
    for row in failed["shapes"]:
        del row["median_us"]["compile"]
    machine = {"flops_s": {"float32": 1e11}, "bandwidth": {20: 5e10}}
    environment = run.environment()
    cases = [fast, called, failed]
    runs = [{"threads": 1, "machine": machine, "skipped": ["late"], "cases": cases}]
    return {"environment": environment, "quick": True, "runs": runs}


def test_report_counts_only_what_is_its_own() -> None:
    text = report.markdown(measured())
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if "|" in line}
    assert "1 of 3 | 0.50 | 0.50 | 0 of 2" in rows["tilevm.compile"]
    assert "3 of 3 | 2.00 | 2.00 | 6 of 6" in rows["Inductor dynamic"]
    assert "2.00 | 0.01 † | 1 aten.cumsum.default" in next(
        line for line in text.splitlines() if line.startswith("| called | 10 to")
    )
    assert "failed, tilevm.compile, threads 1: wrong: output 0" in text
    assert "out of time: late" in text
    assert report.failures(measured()) == ["failed, tilevm.compile, threads 1: wrong: output 0"]


def test_report_shows_size_by_size() -> None:
    found = measured()
    for case in found["runs"][0]["cases"]:
        case["by"] = "M"
    found["runs"][0]["cases"][0]["shapes"][1]["median_us"]["compile"] = 4096.0
    lines = report.markdown(found).splitlines()
    head = "| tilevm.compile over eager | M = 1 | M = 1024 | all | worst | at | of the limit |"
    assert head in lines
    assert lines[lines.index(head) + 2] == "| fast | 0.50 | 0.40 | 0.45 | 0.50 | 1x1024 | 45 % |"


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report.plot(measured(), tmp_path / "bench.png")
    assert (tmp_path / "bench.png").stat().st_size > 1000


def test_geomean() -> None:
    assert report.geomean([2, 8]) == pytest.approx(4)
    assert np.isnan(report.geomean([]))


@pytest.mark.slow
def test_bench_writes_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    json_file, table = tmp_path / "b.json", tmp_path / "b.md"
    words = ["--suite", "operators", "--case", "swiglu", "--quick", "--threads", "1"]
    words += ["--peers", "kernel,compile"]
    files = ["--json", str(json_file), "--markdown", str(table)]
    assert cli.main(["bench", *words, *files]) == 0
    assert "tilevm.kernel" in capsys.readouterr().out
    assert [c["name"] for c in json.loads(json_file.read_text())["runs"][0]["cases"]] == [
        "swiglu",
        "swiglu_bf16",
    ]
    assert "| swiglu |" in table.read_text()


def test_bench_says_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--case", "nothing"]) == 2
    assert cli.main(["bench", "--peers", "nobody"]) == 2
    assert "nobody" in capsys.readouterr().err


class Mortal:
    """A worker whose process dies while Inductor is measured."""

    made = 0

    def __init__(
        self, target: str, arguments: tuple[Any, ...], environment: dict[str, str]
    ) -> None:
        Mortal.made += 1
        self._stage: Path = arguments[2]

    def call(self, method: str, *arguments: Any, limit_s: float | None = None) -> Any:
        if method == "machine":
            return limits.Machine(1)
        if "inductor" in arguments[1]:
            self._stage.write_text("inductor")
            raise WorkerDied("the process was ended by signal 11")
        return {"contestants": {key: {"error": ""} for key in arguments[1]}}

    def close(self) -> None:
        pass


def test_who_kills_the_process_is_told_of_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "Worker", Mortal)
    processes = run._Processes(1, True, tmp_path)
    found = processes.measure(CASES["softmax"], ["eager", "inductor", "compile"], 10.0)
    assert Mortal.made == 2
    assert found["contestants"] == {
        "eager": {"error": ""},
        "compile": {"error": ""},
        "inductor": {"error": "the process was ended by signal 11"},
    }


def test_ratio_over_the_products_alone() -> None:
    row = {"sizes": [7, 8, 9], "median_us": {"eager": 3.0, "compile": 2.2}, "alone_us": 2.0}
    case = {"name": "linear_gelu", "by": "M", "sizes": ["M", "K", "N"], "shapes": [row]}
    last = report._over_alone([case])[-2]
    assert last == "| linear_gelu | tilevm.compile | 1.10 | 1.10 | 1.10 | 7x8x9 |"
    assert report._over_alone([case | {"shapes": [row | {"alone_us": None}]}]) == []


@pytest.mark.parametrize("case", [c for c in CASES.values() if c.alone], ids=lambda case: case.name)
def test_products_alone_take_the_inputs_of_the_case(case: Case) -> None:
    alone = case.alone
    assert alone is not None
    inputs = case.tensors(case.sweep[0])
    found, wanted = measure._flat(tilevm.compile(alone)(*inputs)), measure._flat(alone(*inputs))
    for x, y in zip(found, wanted, strict=True):
        assert x.shape == y.shape
        assert (x - y).abs().max() <= 0.02 * y.abs().max()  # bfloat16 has 8 bits


def test_random_numbers_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    failed = draws.main(["--rows", "3", "--rounds", "2", "--threads", str(threads)])
    assert failed == int(not torch_random._is_eagers("bernoulli_.float"))
    told = capsys.readouterr().out.splitlines()
    assert [line[:28].strip() for line in told[1 : 1 + len(draws.CASES)]] == [*draws.CASES]


def test_the_table_of_operators_without_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    chosen = ["--rows", "8", "--rounds", "1", "--threads", str(threads)]
    assert rowless.main(["flip", "grid_sample", *chosen]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line[:24].strip() for line in told[1:3]] == ["flip", "grid_sample"]
    assert told[3].startswith("geomean")
    with pytest.raises(SystemExit):
        rowless.main(["flop", *chosen])

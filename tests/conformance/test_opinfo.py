"""A slice of PyTorch's samples through each door: what no operator may do."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # which PyTorch's samples import

from tests.conformance import judge, opinfo, page, samples  # noqa: E402
from tests.conformance.doors import Door  # noqa: E402

# Through each door every so many operators, from another one on each, a sample of each.
STRIDES = {"compile": 41, "torch.compile": 83, "fuse": 17}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "mode"),
    [
        ("float32", "forward"),
        ("bfloat16", "forward"),
        ("int64", "forward"),
        ("float32", "gradient"),
    ],
)
@pytest.mark.parametrize("name", STRIDES)
def test_samples(name: str, dtype: str, mode: str) -> None:
    first = samples.DTYPES.index(dtype) + samples.MODES.index(mode)
    chosen = samples.cases(dtype, mode)[first :: STRIDES[name]]
    door = Door(name)
    with torch._dynamo.config.patch(recompile_limit=1000):
        wrong = [
            f"{case.name} {number}: {finding.verdict}: {finding.reason}"
            for case in chosen
            for number, finding in opinfo.findings(door, case, 1)
            if finding.verdict in page.BAD
        ]
    assert not wrong, "\n".join(wrong)


def test_a_wrong_result_is_found() -> None:
    (case,) = (c for c in samples.cases("float32", "forward") if c.name == "sin")
    ((_, sample),) = case.samples(1)
    found = judge.judged(Door("fuse"), lambda x: x.sin() * 1.001, case, sample)
    assert found.verdict == "WRONG"
    found = judge.judged(Door("fuse"), lambda x: x.sin()[:, None], case, sample)
    assert found.verdict == "WRONG"
    assert judge.judged(Door("fuse"), lambda x: x.nonesuch(), case, sample).verdict == "raises"


def test_what_dynamo_raises_is_not_tilevms() -> None:
    name = "max_pool2d_with_indices_backward"
    (case,) = (c for c in samples.cases("float32", "forward") if c.name == name)
    ((_, found),) = opinfo.findings(Door("torch.compile"), case, 1)
    assert found.verdict == judge.SKIPPED
    ((_, sample),) = case.samples(1)
    found = judge.judged(Door("torch.compile"), lambda x, *_, **__: x.nonesuch(), case, sample)
    assert found.verdict == "raises"


def test_a_crash_is_attributed(tmp_path: Path, monkeypatch: Any) -> None:
    lines = [{"begin": 3, "op": "sin"}]

    class Crashed:
        stdout = (json.dumps(line) for line in lines)

        def kill(self) -> None: ...

        def wait(self) -> int:
            return -signal.SIGSEGV

    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: Crashed())
    rows = list(opinfo._rows(opinfo.Work("fuse", "float32", "forward", 1), 3))
    assert rows[1]["op"] == "sin" and rows[1]["verdict"] == "CRASH"
    assert rows[1]["reason"] == "SIGSEGV" and rows[2]["begin"] == 3


def test_operators_that_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = opinfo.Work("fuse", "float32", "forward", 1, ("tanh",))
    rows = [{"op": op, "sample": 0, "verdict": "CRASH"} for op in ("sin", "tanh", "cos")]
    (tmp_path / work.file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = {case.name for case in work.cases()}
    found = [{"op": op, "sample": 0, "verdict": "ok"} for op in sorted(chosen)]

    def ran(*_: Any) -> Any:
        yield from found
        yield {"begin": len(chosen), "op": "tanh"}

    monkeypatch.setattr(opinfo, "_rows", ran)
    assert opinfo.parent(work, tmp_path, False)["ok"] == len(chosen)
    assert page.lines(tmp_path / work.file) == rows
    opinfo.parent(work, tmp_path, False, again=True)
    assert page.lines(tmp_path / work.file) == [rows[0], rows[2], *found]


def test_architectures_that_were_not_run_stay_in_the_page(tmp_path: Path) -> None:
    before = tmp_path / "page.md"
    before.write_text("x\n\n## Architectures of transformers\n\nAll.\n\n| a |\n\n## Next\n")
    for _ in range(2):  # it does not say twice that they are older
        kept = "\n".join(page.models(tmp_path, before)) + "\n"
        title = "\n## Architectures of transformers\n"
        assert kept == f"{title}\nOf an earlier run than the rest.\n\nAll.\n\n| a |\n"
        before.write_text(f"x\n{kept}\n## Next\n")
    assert not [*page.models(tmp_path, tmp_path / "none.md")]


def test_the_page_is_made_of_findings(tmp_path: Path) -> None:
    rows = [
        {"op": "sin", "sample": 0, "verdict": "ok", "names": [], "reason": ""},
        {"op": "sort", "sample": 0, "verdict": "callouts", "names": ["aten.sort.default"],
         "reason": ""},
        {"op": "eig", "sample": 1, "verdict": "WRONG", "names": [], "reason": "3 of 4 | elements"},
    ]  # fmt: skip
    path = tmp_path / "compile-float32-forward.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = page.load(tmp_path)
    text = "\n".join(
        line for part in (page.counts, page.without_callouts, page.bad) for line in part(found)
    )
    known = len(samples.cases("float32", "forward"))
    assert f"| compile | float32 | 3 of {known} | 1 | 1 | 0 | 0 | 1 | 0 | 0 |" in text
    assert "| compile | forward | 3 | 1 | 33.3 % |" in text
    assert "| `eig` | WRONG | compile | forward | n of n \\| elements | float32 |" in text

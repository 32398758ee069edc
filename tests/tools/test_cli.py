from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tilevm
from tilevm.errors import CaptureError
from tilevm.runtime import program as runtime
from tilevm.tools import cli, doctor
from tilevm.tools.explain import explain

KERNEL = """
import tilevm
from tilevm import lang

@tilevm.kernel
def shifted(x, b):
    return lang.exp(x + b)

def plain(x):
    return x * 2 + 1
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "model.py"
    file.write_text(KERNEL)
    return file


def test_help_needs_no_framework() -> None:
    code = (
        "import sys\n"
        "from tilevm.tools import cli\n"
        "cli.parser()\n"
        "heavy = {'torch', 'transformers', 'tilevm._core'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_as_a_module_it_says_its_version() -> None:
    words = [sys.executable, "-m", "tilevm", "--version"]
    found = subprocess.run(words, capture_output=True, text=True, check=True)
    assert found.stdout == f"tilevm {tilevm.__version__}\n"


def test_every_command_has_a_handler() -> None:
    for words in (["demo"], ["bench"], ["doctor"], ["explain", "a:b"], ["replay", "c.zip"]):
        assert callable(cli.parser().parse_args(words).handler)


@pytest.mark.parametrize(
    "words", [[], ["run"], ["bench", "--threads", "0"], ["demo", "--threads", "-1"]]
)
def test_wrong_words_say_what_there_is(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(words)
    assert raised.value.code == 2
    assert "usage: tilevm" in capsys.readouterr().err


def test_doctor_finds_all_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    told = capsys.readouterr().out
    for what in ("Python", "processor", "numpy", "core", "interp", "native", "tiers", "threads"):
        assert what in told
    for what in ("code memory", "failures", "interp works", "All w"):
        assert what in told


def test_explain_a_kernel(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", f"{source}:shifted", "float32[7, 33]", "float32[33]"]) == 0
    assert "exp" in capsys.readouterr().out


@pytest.mark.torch
def test_explain_a_torch_function(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert cli.main(["explain", f"{source}:plain", "bfloat16[7]"]) == 0
    assert "mul" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "told"),
    [("model.py", "names no function"), ("nowhere.py:f", "no file"), ("{}:other", "other")],
)
def test_explain_says_what_is_wrong(
    target: str, told: str, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", target.format(source)]) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["float99[7]", "abc", "nn[7]"])
def test_explain_arguments_that_are_none(
    source: Path, argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for function in ("shifted", "plain"):
        assert cli.main(["explain", f"{source}:{function}", argument]) == 1
        assert argument in capsys.readouterr().err


@pytest.mark.torch
@pytest.mark.parametrize(
    ("function", "arguments", "told"),
    [
        ("shifted", ["float32[7, 33]"], "missing a required argument: 'b', given 1"),
        ("plain", [], "missing a required argument"),
        ("plain", ["float32[7]", "float32[7]"], "too many positional arguments, given 2"),
        ("product", ["float32[3, 4]", "float32[5, 4]"], "raises RuntimeError: mat1 and mat2"),
        ("shifted", ["float32[7, 33]", "float32[7]"], "shifted"),
        ("shifted", ["float32[7]", "9" * 20], "argument b is an int of 67 bits"),
        ("plain", [f"float32[{10**14}]"], "MemoryError"),
    ],
)
def test_explain_of_calls_that_fail(
    function: str,
    arguments: list[str],
    told: str,
    source: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch")
    with source.open("a", encoding="utf-8") as file:
        file.write("\ndef product(x, w):\n    return x @ w\n")
    assert cli.main(["explain", f"{source}:{function}", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("tilevm explain: ")
    assert told in error
    assert "Traceback" not in error


def test_explain_of_no_function() -> None:
    with pytest.raises(CaptureError, match=r"tilevm\.explain of 3"):
        explain(3)


def test_doctor_reads_version_limits() -> None:
    assert doctor.within("2.13.0+cpu", "<2.15,>=2.13")
    assert doctor.within("2.14.1", "<2.15,>=2.13")
    assert doctor.within("2.14.0a0+git12", "<2.15,>=2.13")
    assert not doctor.within("2.15.0", "<2.15,>=2.13")
    assert not doctor.within("2.9.1", "<2.15,>=2.13")
    assert doctor.within("1.0", "")


def test_doctor_says_where_failures_cannot_be_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with tilevm.config.patch(failures=str(tmp_path / "file")):
        assert cli.main(["doctor"]) == 1
    assert "Not working: failures." in capsys.readouterr().out
    with tilevm.config.patch(failures=str(tmp_path / "new" / "folder")):
        assert cli.main(["doctor"]) == 0
    assert f"are saved in {tmp_path / 'new' / 'folder'}; 0 are there" in capsys.readouterr().out


def test_explain_with_machine_code(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", "--asm", f"{source}:shifted", "float32[7, 33]", "float32[33]"]
    assert cli.main(words) == 0
    told = capsys.readouterr().out
    if runtime.code_memory()["target"] == "interp":
        assert "machine code" not in told
        return
    assert "machine code for map" in told
    assert "-- main loop" in told
    assert cli.main([word for word in words if word != "--asm"]) == 0
    assert "machine code for" not in capsys.readouterr().out


def test_explain_into_files(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html, data = source.with_suffix(".html"), source.with_suffix(".json")
    words = ["explain", f"{source}:shifted", "float32[7, 33]", "float32[33]"]
    assert cli.main([*words, "--html", str(html), "--json", str(data)]) == 0
    assert capsys.readouterr().out == ""
    assert html.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(data.read_text(encoding="utf-8"))["title"] == "shifted"


@pytest.mark.parametrize(
    ("option", "name", "told"),
    [
        ("--html", "page.pdf", "ends in '.pdf', but what it writes is .html"),
        ("--html", "page.json", "use page.html"),
        ("--json", "page.html", "use page.json"),
    ],
)
def test_explain_into_a_file_of_another_kind(
    option: str, name: str, told: str, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["explain", f"{source}:shifted", "float32[7, 33]", "float32[33]"]
    assert cli.main([*words, option, name]) == 1
    error = capsys.readouterr().err
    assert option in error
    assert told in error
    assert not Path(name).exists()


def test_explain_to_the_standard_output(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["explain", f"{source}:shifted", "float32[7, 33]", "float32[33]"]
    assert cli.main([*words, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "shifted"
    assert cli.main([*words, "--html", "-", "--json", "plain"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")
    assert {file.name for file in tmp_path.iterdir()} - {"__pycache__"} == {"model.py", "plain"}


@pytest.mark.torch
def test_explain_recorded(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert cli.main(["explain", "--recorded", f"{source}:plain", "float32[7]"]) == 0
    assert "1 segment, 1 run, 0 calls not recorded" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--html", "--json"])
def test_explain_says_where_it_cannot_write(
    option: str, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["explain", f"{source}:shifted", "float32[7, 33]", "float32[33]"]
    folder, suffix = source.parent, option.replace("--", ".")
    places = {
        folder / "none" / f"no{suffix}": f"there is no folder {folder / 'none'}\n  Make it",
        folder: f"it is a folder\n  Name a file in it: {folder / 'call'}{suffix}.",
        Path("/dev/full"): "No space left on device\n  Name a file",
    }
    for path, told in places.items():
        assert cli.main([*words, option, str(path)]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"tilevm explain: {option} {path} cannot be written: {told}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f(x:\n", "SyntaxError"),
        ("import tilevm_has_no_such_module\n", "tilevm_has_no_such_module"),
    ],
)
def test_explain_of_files_that_do_not_run(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.py"
    file.write_text(text)
    assert cli.main(["explain", f"{file}:f", "float32[3]"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"tilevm explain: {file}: ")
    assert told in error


@pytest.mark.torch
def test_explain_a_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "model.py"
    file.write_text("import torch\nlayer = torch.nn.Linear(4, 3)\n")
    assert cli.main(["explain", f"{file}:layer.forward", "float32[2, 4]"]) == 0
    assert "matmul" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["replay", "none.zip"], ["explain", "a.py:f"]])
def test_wrong_variables_of_the_environment(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tilevm", *words],
        env={**os.environ, "TILEVM_TIER": "avx9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("tilevm: TILEVM_TIER is 'avx9', which is not one of")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("error", ["ValueError", "KeyError", "AttributeError", "RuntimeError"])
def test_explain_says_what_the_function_raises(
    source: Path, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source.write_text(f"{KERNEL}\n@tilevm.kernel\ndef bad(x):\n    raise {error}('mine')\n")
    assert cli.main(["explain", f"{source}:bad", "float32[3]"]) == 1
    told = capsys.readouterr().err
    assert f"bad with float32[3] raises {error}:" in told
    assert "mine" in told


def test_doctor_names_variables_that_set_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEVM_TEIR", "interp")
    assert cli.main(["doctor"]) == 0
    told = capsys.readouterr().out
    assert "TILEVM_TEIR in the environment sets no knob: did you mean TILEVM_TIER?" in told


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device without room")
def test_no_room_for_the_output_is_a_sentence() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        words = [sys.executable, "-m", "tilevm", "doctor", "--json"]
        found = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert found.returncode == 2
    assert found.stderr.startswith("tilevm: [Errno 28] No space left")
    assert "Traceback" not in found.stderr

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tilevm.errors import CaptureError
from tilevm.tools import cli
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


def test_every_command_has_a_handler() -> None:
    for words in (["demo"], ["bench"], ["doctor"], ["explain", "a:b"], ["replay", "c.zip"]):
        assert callable(cli.parser().parse_args(words).handler)


@pytest.mark.parametrize("words", [[], ["run"], ["bench", "--threads", "0"]])
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
    for what in ("Python", "processor", "numpy", "core", "interp", "native", "threads", "All well"):
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


def test_explain_of_no_function() -> None:
    with pytest.raises(CaptureError, match=r"tilevm\.explain of 3"):
        explain(3)

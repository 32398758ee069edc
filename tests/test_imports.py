"""What an import brings along: modules are counted, since times are the machine's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def loaded(code: str, *, without: str = "") -> set[str]:
    """Top-level modules that a fresh process has after `code`, Python's own left out."""
    lines = [
        "import json, sys",
        f"sys.modules.update(dict.fromkeys({without.split()!r}))",  # as if not installed
        code,
        "own = sys.stdlib_module_names | set(sys.builtin_module_names) | {'__main__'}",
        "names = {name.partition('.')[0] for name, m in sys.modules.items() if m is not None}",
        "print(json.dumps(sorted(names - own)))",
    ]
    command = [sys.executable, "-I", "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    # What an editable install or a .pth file of the environment loads in any process.
    # And what Cython's modules in NumPy call themselves.
    always = r"(sitecustomize|usercustomize|_distutils_hack|_?cython_\w+|\w*editable\w*)$"
    names = json.loads(done.stdout.splitlines()[-1])
    return {name for name in names if not re.match(always, name)}


def test_the_package_alone_imports_nothing_else() -> None:
    assert loaded("import tilevm") == {"tilevm"}
    assert loaded("import tilevm; tilevm.config.threads") == {"tilevm"}


def test_a_kernel_needs_numpy_alone() -> None:
    code = (
        "import numpy as np, tilevm\n"
        "kernel = tilevm.kernel(lambda x: x * 2 + 1)\n"
        "assert kernel(np.ones(3, np.float32)).tolist() == [3, 3, 3]\n"
    )
    assert loaded(code) <= {"tilevm", "numpy", "ml_dtypes"}


def test_the_command_line_needs_nothing() -> None:
    code = (
        "from tilevm.tools import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
    )
    assert loaded(code) == {"tilevm"}


@pytest.mark.parametrize("name", ["compile", "fuse"])
def test_without_torch_a_door_to_it_says_what_to_do(name: str) -> None:
    code = (
        "import tilevm\n"
        f"try: tilevm.{name}\n"
        "except ModuleNotFoundError as error:\n"
        "    assert error.name == 'torch', error\n"
        f"    assert 'tilevm.{name} needs PyTorch' in str(error), error\n"
        "    assert \"pip install 'tilevm[torch]'\" in str(error), error\n"
        "else: raise AssertionError('it is there')\n"
    )
    loaded(code, without="torch")


def test_without_torch_tools_say_what_to_do() -> None:
    code = (
        "import tilevm\n"
        "from tilevm.tools import doctor\n"
        "try: tilevm.explain(lambda x: x)(1)\n"
        "except ModuleNotFoundError as error:\n"
        "    assert 'tilevm.compile needs PyTorch' in str(error), error\n"
        "else: raise AssertionError('it is there')\n"
        "assert 'all processors' in doctor._threads()\n"
        "assert doctor._torch(core_works=True).ok in (None, False)\n"
    )
    loaded(code, without="torch")


def test_there_is_one_version() -> None:
    text = (ROOT / "src" / "tilevm" / "__init__.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "([\d.]+)"', text, re.MULTILINE)
    assert metadata.version("tilevm") == version
    assert "\nversion = " not in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.torch
def test_without_a_recorder_the_door_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from tilevm.errors import RecorderError
    from tilevm.frontends import torch_eager

    monkeypatch.setattr(torch_eager, "find_spec", lambda _: None)
    with pytest.raises(RecorderError, match=r"(?s)not in wheels.*--no-build-isolation"):
        torch_eager._load()

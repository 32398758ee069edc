"""Memory of machine code: never writable and executable at once, and what happens without it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilevm
from tilevm import lang
from tilevm.frontends.kernel import Kernel
from tilevm.runtime import program as runtime

FOLDER = Path(__file__).parent

START = f"""
import ctypes, sys
sys.path.insert(0, {str(FOLDER)!r})
import deny_exec
import numpy as np

def mappings():
    return [line for line in open("/proc/self/maps")]

def kernel(number):
    import tilevm
    from tilevm import lang
    def softened(x, y):
        for i in range(12):
            x = lang.tanh(x * (number + i)) + lang.exp(-y)
        return x - lang.max(x, -1, keepdims=True)
    return tilevm.kernel(softened)

def check(number):
    x = np.linspace(-1, 1, 5 * 33, dtype=np.float32).reshape(5, 33)
    y = x[::-1] * 2
    found = kernel(number)(x, y)
    wide, other = x.astype(np.float64), y.astype(np.float64)
    for i in range(12):
        wide = np.tanh(wide * (number + i)) + np.exp(-other)
    np.testing.assert_allclose(found, wide - wide.max(-1, keepdims=True), rtol=2e-3, atol=2e-3)
"""


def run(code: str, *, may_fail: str = "") -> str:
    """What `code` prints in a process of its own. Skips, if it fails with `may_fail`."""
    environment = {**os.environ, "TILEVM_TIER": "auto"}
    done = subprocess.run(
        [sys.executable, "-c", START + code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 and may_fail and may_fail in done.stderr:
        pytest.skip(f"not here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return done.stdout


needs_native = pytest.mark.skipif(
    runtime.code_memory()["target"] == "interp", reason="no machine code here"
)


@needs_native
def test_nothing_is_writable_and_executable() -> None:
    told = run(
        "for i in range(40): check(i)\n"
        "import tilevm\n"
        "assert not tilevm.stats()['interpreted'], tilevm.stats()['interpreted']\n"
        "from tilevm.runtime.program import code_memory\n"
        "assert code_memory()['reserved_bytes'] > 0\n"
        "for line in mappings(): print(line, end='')\n"
    )
    modes = [line.split()[1] for line in told.splitlines()]
    assert any("x" in mode for mode in modes)
    assert not [mode for mode in modes if "w" in mode and "x" in mode]


@needs_native
def test_code_runs_where_memory_may_not_become_executable() -> None:
    told = run(
        "deny_exec.deny_gain()\ncheck(1)\nimport tilevm\nprint(tilevm.stats()['interpreted'])\n",
        may_fail="prctl: EINVAL",
    )
    assert told.strip() == "{}"


def test_without_executable_memory_kernels_are_interpreted() -> None:
    told = run(
        "deny_exec.deny()\n"
        "for i in range(3): check(i)\n"
        "import tilevm\n"
        "from tilevm.runtime.program import code_memory\n"
        "state = code_memory()\n"
        "assert state['target'] == 'interp' and state['used_bytes'] == 0, state\n"
        "print(state['why_none'])\n"
        "((reason, count),) = tilevm.stats()['interpreted'].items()\n"
        "assert reason == state['why_none'] and count >= 3, (reason, count)\n"
        "from tilevm.tools.explain import explain\n"
        "x = np.ones((4, 5), np.float32)\n"
        "text = str(explain(kernel(3), asm=True)(x, x))\n"
        "assert f'(interp, not native: {reason})' in text, text\n"
        "try:\n"
        "    tilevm.config.tier = 'avx2'\n"
        "except ValueError as error:\n"
        "    assert 'memory may not be made executable' in str(error)\n"
        "else:\n"
        "    raise AssertionError('accepted')\n",
        may_fail="prctl: E",
    )
    assert told.strip() == "the system does not let memory be made executable"


@pytest.mark.torch
def test_without_executable_memory_compiled_functions_are_right() -> None:
    pytest.importorskip("torch")
    run(
        "deny_exec.deny()\n"
        "import torch, tilevm\n"
        "def f(x, y): return torch.softmax(x * y + 1, -1).sum(0)\n"
        "x, y = torch.randn(7, 33), torch.randn(33)\n"
        "torch.testing.assert_close(tilevm.compile(f)(x, y), f(x, y))\n"
        "def g(x, w): return torch.softmax(x @ w, -1) @ w.t() + x\n"
        "for m in (1, 33, 300):\n"
        "    x, w = torch.randn(m, 65), torch.randn(65, 130)\n"
        "    torch.testing.assert_close(tilevm.compile(g)(x, w), g(x, w), rtol=1e-4, atol=1e-4)\n"
        "assert tilevm.stats()['interpreted']\n"
        "assert not tilevm.stats()['flushes']\n",
        may_fail="prctl: E",
    )


@needs_native
def test_memory_that_is_refused_later() -> None:
    told = run(
        "check(0)\n"
        "import tilevm\n"
        "assert not tilevm.stats()['interpreted']\n"
        "deny_exec.deny()\n"
        "kept = []\n"
        "x = np.ones((2, 3), np.float32)\n"
        "for i in range(2000):\n"
        "    kept.append(kernel(i))\n"
        "    kept[-1](x, x)\n"
        "    if tilevm.stats()['interpreted']: break\n"
        "check(5)\n"
        "print(tilevm.stats()['interpreted'])\n",
        may_fail="prctl: E",
    )
    assert "the system does not let memory be made executable" in told


def test_without_files_in_memory_kernels_are_interpreted() -> None:
    """A file of /dev/shm would do as well, until that is full: then the process would end."""
    told = run(
        "deny_exec.deny_memory_files()\n"
        "check(1)\n"
        "import tilevm\n"
        "places = ('/dev/shm', '/tmp/')\n"
        "new = [line for line in mappings() if any(p in line for p in places)]\n"
        "assert not [line for line in new if '.so' not in line]  # whose package may lie there\n"
        "print(tilevm.stats()['interpreted'])\n",
        may_fail="prctl: E",
    )
    assert "the system does not let memory be made executable" in told


@needs_native
@pytest.mark.parametrize("options", ["size=4k", "ro"])
def test_code_does_not_need_shared_memory_of_the_system(options: str) -> None:
    told = run(
        "import subprocess\n"
        "unshare = ctypes.CDLL(None, use_errno=True).unshare\n"
        "if unshare(0x20000) != 0: raise OSError('unshare')\n"  # CLONE_NEWNS
        "subprocess.run(['mount', '--make-rprivate', '/'], check=True)\n"
        f"subprocess.run(['mount', '-t', 'tmpfs', '-o', {options!r}, 'none', '/dev/shm'],\n"
        "    check=True)\n"
        "for i in range(20): check(i)\n"
        "import tilevm\n"
        "print(tilevm.stats()['interpreted'])\n",
        may_fail="Error",
    )
    assert told.strip() == "{}"


@needs_native
def test_code_does_not_need_files_to_be_allowed_to_grow() -> None:
    run(
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "check(1)\n"
        "import tilevm\n"
        "tilevm.stats()\n"
    )


def test_doctor_says_that_it_is_refused() -> None:
    told = run(
        "deny_exec.deny()\nfrom tilevm.tools import cli\nprint('code', cli.main(['doctor']))\n",
        may_fail="prctl: E",
    )
    assert "the system does not let memory be made executable" in told
    assert "All works, without machine code" in told
    assert "code 0" in told


@needs_native
def test_the_limit_is_kept_and_code_goes_with_its_program() -> None:
    x = np.ones((4, 5), np.float32)

    def made(number: int) -> Kernel:
        kernel = tilevm.kernel(lambda x: lang.tanh(x) * number)
        kernel(x)
        return kernel

    def used() -> int:
        gc.collect()
        return runtime.code_memory()["used_bytes"]

    # A change of the configuration drops what kernels were traced for, so that each begins anew.
    with tilevm.config.patch(code_memory=0):
        before = used()
        kept = [made(number) for number in range(4)]
        size = (used() - before) // 4
        assert size > 0
        tilevm.config.code_memory = limit = before + 2 * size + size // 2
        assert used() == before
        tilevm.stats.reset()
        kept = [made(number) for number in range(3)]
        assert before < used() <= limit
        ((reason, count),) = tilevm.stats()["interpreted"].items()
        assert "tilevm.config.code_memory" in reason
        assert count == 1
        np.testing.assert_allclose(kept[2](x), np.tanh(x) * 2, rtol=1e-6)
        del kept
        assert used() == before


def test_launches_that_machine_code_leaves_are_counted() -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 5, 6, 7)).astype(np.float32)
    kernel = tilevm.kernel(lambda x: lang.sum(x, (0, 2, 4)))
    kernel(x)
    tilevm.stats.reset()
    np.testing.assert_allclose(kernel(x), x.sum((0, 2, 4)), rtol=1e-4)
    ((reason, count),) = tilevm.stats()["interpreted"].items()
    assert "several reduced axes" in reason
    assert count == 1

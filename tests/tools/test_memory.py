"""Memory does not grow with programs and calls. The real numbers are in docs/benchmarks.md."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import tilevm
from tilevm.runtime import program as runtime
from tilevm.tools.bench import memory

MIB = 1 << 20
PROGRAMS, CALLS = 300, 3000


def test_many_programs_and_calls() -> None:
    """In a process of its own. Bounds are several times what was measured."""
    code = (
        "import tilevm\n"
        "tilevm.config.programs = 64\n"
        "from tilevm.tools.bench import memory\n"
        f"for s in memory.run({PROGRAMS}, {CALLS}, samples=3):\n"
        "    print(s.phase, s.count, s.resident_bytes, s.code_bytes, s.buffer_bytes, sep=';')\n"
    )
    told = subprocess.check_output([sys.executable, "-c", code], text=True)
    phases: dict[str, list[tuple[int, ...]]] = {}
    for row in told.splitlines():
        name, *numbers = row.split(";")
        phases.setdefault(name, []).append(tuple(map(int, numbers)))
    assert len(phases) == (7 if find_spec("torch") else 4)
    for name, samples in phases.items():
        # After the first third: what is kept is there, whatever it is.
        _, settled, *_ = samples
        grown = samples[-1][1] - settled[1]
        assert grown < 4 * MIB, f"{name}: {grown / MIB:.1f} MiB more: {samples}"
        assert samples[-1][2] < 2 * MIB, f"{name}: machine code is kept: {samples}"
        assert samples[-1][3] < 16 * MIB, f"{name}: buffers are kept: {samples}"


def test_code_goes_with_its_kernel() -> None:
    before = memory.sample("", 0).code_bytes
    for number in range(20):
        tilevm.kernel(memory.distinct(number))(np.ones((3, 5), "float32"), 2.0)
    assert memory.sample("", 0).code_bytes == before


def test_programs_of_one_kernel_are_bounded() -> None:
    x = np.ones((3, 5), "float32")
    with tilevm.config.patch(programs=4):
        kernel = tilevm.kernel(static=("n",))(lambda x, n: x * len(n))
        for number in range(1, 9):
            np.testing.assert_array_equal(kernel(x, "a" * number), x * number)
            kernel(x, "a")  # used again and again, so it stays
            assert len(kernel.variants()) <= 4
        tilevm.stats.reset()
        kernel(x, "a")
        assert tilevm.stats()["captures"] == 0
        kernel(x, "aa")
        assert tilevm.stats()["captures"] == 1


def test_layouts_of_one_kernel_are_bounded() -> None:
    whole = np.arange(81, dtype=np.float32).reshape(9, 9)
    kinds = (whole, whole.T, np.ones((9, 18), np.float32)[:, ::2])
    with tilevm.config.patch(variants=2):
        kernel = tilevm.kernel(lambda x, y: x * 2 + y)
        for _ in range(2):
            for x in kinds:
                for y in kinds:
                    np.testing.assert_array_equal(kernel(x, y), x * 2 + y)
        (explained,) = tilevm.explain(kernel)(whole, whole).kernels
        assert len(explained["variants"]) == 2


@pytest.mark.torch
def test_kinds_of_calls_of_one_function_are_bounded() -> None:
    torch = pytest.importorskip("torch")
    with tilevm.config.patch(programs=3):
        compiled = tilevm.compile(lambda x, name: torch.exp(x) * len(name))
        x = torch.ones(3, 5)
        for number in range(1, 6):
            torch.testing.assert_close(compiled(x, "a" * number), torch.exp(x) * number)
        assert len(compiled._families) == 3


def test_the_state_of_code_memory_adds_up() -> None:
    state = runtime.code_memory()
    assert 0 <= state["used_bytes"] <= state["reserved_bytes"] or state["why_none"]

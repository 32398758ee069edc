"""Knobs of one function: they change how it runs, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilevm  # noqa: E402
from tilevm.runtime import program as runtime  # noqa: E402

pytestmark = pytest.mark.torch


def shifted(x: Any) -> Any:
    return torch.exp(x) + 1


def tiers(compiled: Any, *args: Any) -> set[str]:
    kernels = compiled.explain(*args).kernels
    return {variant["tier"] for kernel in kernels for variant in kernel["variants"]}


@pytest.mark.skipif(runtime.code_memory()["target"] == "interp", reason="no machine code here")
def test_tier_is_the_functions_own() -> None:
    x = torch.randn(5, 33)
    with tilevm.config.patch(tier="auto"):
        interpreted = tilevm.compile(shifted, tier="interp")
        native = tilevm.compile(shifted)
        tilevm.stats.reset()
        torch.testing.assert_close(interpreted(x), shifted(x))
        torch.testing.assert_close(native(x), shifted(x))
        assert tiers(interpreted, x) == {"interp"}
        assert tiers(native, x) == {runtime.code_memory()["target"]}
        assert tilevm.stats()["interpreted"] == {}, "it was asked for"
    with tilevm.config.patch(tier="interp"):
        own = tilevm.compile(shifted, tier="auto")
        own(x)
        assert tiers(own, x) == {runtime.code_memory()["target"]}


def test_tier_of_a_graph_of_dynamo() -> None:
    x = torch.randn(5, 33)
    tilevm.stats.reset()
    compiled = torch.compile(shifted, backend="tilevm", options={"tier": "interp"})
    torch.testing.assert_close(compiled(x), shifted(x))
    assert tilevm.stats()["interpreted"] == {}
    assert tilevm.stats()["flushes"] == {}


def test_threads_are_the_functions_own() -> None:
    code = (
        "import os, numpy, torch, tilevm\n"
        "tilevm.config.threads = 2\n"
        "x = torch.from_numpy(numpy.ones((1 << 12, 1 << 7), numpy.float32))\n"  # not run inline
        "def shifted(x): return torch.exp(x) + 1\n"
        "for count in (1, 4):\n"
        "    run = tilevm.compile(shifted, threads=count)\n"
        "    for _ in range(3): run(x)\n"
        "    print(len(os.listdir('/proc/self/task')))\n"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_DYNAMIC": "false"}
    told = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    alone, team = map(int, told.split())
    assert team == alone + 3, told


def test_verify_is_accepted() -> None:
    x = torch.randn(5, 33)
    torch.testing.assert_close(tilevm.compile(shifted, verify=True)(x), shifted(x))


def test_a_module_has_its_own() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()).eval()
    x = torch.randn(3, 4)
    with torch.no_grad():
        compiled = tilevm.compile(module, tier="interp")
        torch.testing.assert_close(compiled(x), module(x))
        assert tiers(compiled, x) == {"interp"}


@pytest.mark.parametrize("name", ["failures", "debug", "perf", "memory_budget", "programs"])
def test_knobs_of_the_process_are_refused(name: str) -> None:
    value = getattr(tilevm.config, name)
    with pytest.raises(
        TypeError, match=rf"{name} is of the whole process: set tilevm.config.{name}"
    ):
        tilevm.compile(shifted, **{name: value})
    with pytest.raises(Exception, match=f"{name} is of the whole process"):
        torch.compile(shifted, backend="tilevm", options={name: value})(torch.ones(3))


def test_a_tier_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(tier: str) -> None:
        raise ValueError(f"tier {tier}: not on this processor")

    monkeypatch.setattr("tilevm._core.check_tier", none)
    with pytest.raises(ValueError, match=r"tilevm\.compile: tier avx2: not on this processor"):
        tilevm.compile(shifted, tier="avx2")

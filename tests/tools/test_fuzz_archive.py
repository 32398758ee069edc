"""Changed archives, a few of the trials that `python tests/tools/fuzz_archive.py` makes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def fuzzer() -> ModuleType:
    path = Path(__file__).with_name("fuzz_archive.py")
    spec = importlib.util.spec_from_file_location("fuzz_archive", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_is_refused_or_fails_or_is_right(fuzzer: ModuleType) -> None:
    outcomes = fuzzer.fuzz(trials=300, seed=0)
    assert sum(outcomes.values()) == 300
    assert outcomes["refused"] > 100
    assert outcomes["right"] > 10  # some changes leave a call

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilevm
from tilevm.config import KNOBS, config, markdown
from tilevm.runtime import program as runtime

ROOT = Path(__file__).parent.parent


def test_knobs_are_set_with_a_check() -> None:
    with config.patch():
        assert tilevm.config is config
        tilevm.config.threads = 2
        assert config.threads == 2
        tilevm.config.threads = 0
    for name, value in (("threads", -1), ("threads", 1.5), ("verify", 1), ("tier", "gpu")):
        with pytest.raises(ValueError, match=f"tilevm.config.{name} is {value!r}, .*not one of"):
            setattr(config, name, value)
    with pytest.raises(AttributeError, match=r"no knob 'thread'. Did you mean threads\?"):
        config.thread = 1
    with pytest.raises(AttributeError, match="no knob"):
        config.xyz  # noqa: B018


def test_patch_puts_back_what_was() -> None:
    with pytest.raises(KeyError), config.patch(tier="interp", debug=0):
        assert config.tier == "interp"
        raise KeyError
    assert config.tier == os.environ.get("TILEVM_TIER", "auto")
    with pytest.raises(ValueError, match="debug"), config.patch(tier="interp", debug=9):
        pass
    assert config.tier == os.environ.get("TILEVM_TIER", "auto")


def test_blocks_that_overlap_put_back_what_was() -> None:
    before = config.threads
    first, second = config.patch(threads=2), config.patch(threads=3, debug=0)
    first.__enter__()
    second.__enter__()
    assert config.threads == 3
    first.__exit__(None, None, None)
    assert config.threads == 3
    second.__exit__(None, None, None)
    assert config.threads == before
    second.__enter__()
    first.__enter__()
    first.__exit__(None, None, None)
    assert config.threads == 3
    second.__exit__(None, None, None)
    assert config.threads == before


def test_a_block_takes_back_what_was_set_in_it() -> None:
    before = config.threads
    with config.patch(threads=2):
        with config.patch(threads=3):
            config.threads = 4
        assert config.threads == 2
    assert config.threads == before


def test_a_block_may_be_entered_again_and_decorate() -> None:
    before, block = config.threads, config.patch(threads=2)
    for _ in range(2):
        with block, block:
            assert config.threads == 2
        assert config.threads == before

    @block
    def inside() -> int:
        return int(config.threads)

    assert (inside(), inside(), config.threads) == (2, 2, before)


def test_a_block_decorates_nothing_that_runs_later() -> None:
    async def later() -> None: ...

    def items() -> Iterator[int]:
        yield 1

    for function in (later, items):
        with pytest.raises(TypeError, match=rf"patch decorates .*{function.__name__}, whose call"):
            config.patch(threads=2)(function)


def test_instructions_of_another_processor_are_refused() -> None:
    tilevm.stats()  # loads the core, which is asked
    foreign = "avx2" if platform.machine() in ("aarch64", "arm64") else "neon"
    with (
        pytest.raises(ValueError, match=f"tier {foreign}: this processor has no such instructions"),
        config.patch(tier=foreign),
    ):
        pass


def test_refused_values_are_not_kept() -> None:
    kernel = tilevm.kernel(lambda x: x + 1)
    kernel(np.ones(2))
    foreign = "avx2" if platform.machine() in ("aarch64", "arm64") else "neon"
    before = config.values()
    with pytest.raises(ValueError, match="no such instructions"):
        config.tier = foreign
    with pytest.raises(ValueError, match="no such"), config.patch(threads=1, tier=foreign):
        pass
    assert config.values() == before
    assert runtime.threads()["setting"] == before["threads"]  # the core's as well
    for name, most in (("threads", 2**31 - 1), ("memory_budget", 2**63 - 1)):
        with pytest.raises(ValueError, match=rf"config\.{name} is {most + 1}, .*: 0\.\.{most}$"):
            setattr(config, name, most + 1)
    with config.patch(verify=True):
        np.testing.assert_array_equal(kernel(np.ones(2)), 2)


def test_what_a_watcher_refuses_is_taken_back_from_all() -> None:
    seen: list[int] = []

    def refuse(knobs: dict[str, Any]) -> None:
        if knobs["memory_budget"] == 13:
            raise ValueError("13 is refused")

    watchers = list(config._watchers)
    config.watch(lambda knobs: seen.append(knobs["memory_budget"]))
    config.watch(refuse)
    try:
        with pytest.raises(ValueError, match="13"), config.patch(threads=1, memory_budget=13):
            pass
        with pytest.raises(ValueError, match="13"):
            config.watch(lambda _: refuse({"memory_budget": 13}))
        config.memory_budget = config.memory_budget
    finally:
        config._watchers[:] = watchers
    assert seen == [config.memory_budget, 13, config.memory_budget, config.memory_budget]


def test_watchers_see_every_change() -> None:
    seen: list[int] = []
    config.watch(lambda knobs: seen.append(knobs["memory_budget"]))
    with config.patch(memory_budget=7):
        pass
    assert seen[1] == 7
    assert seen[0] == seen[2] == config.memory_budget


@pytest.mark.parametrize(
    ("value", "expected"),
    [("interp", "interp"), ("", "auto"), ("x", "TILEVM_TIER is 'x', which is not one of")],
)
def test_the_environment_sets_knobs(value: str, expected: str) -> None:
    code = "import tilevm; print(tilevm.config.tier)"
    environment = {**os.environ, "TILEVM_TIER": value}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert expected in found.stdout + found.stderr


def test_booleans_and_ints_in_the_environment() -> None:
    knobs = {knob.name: knob for knob in KNOBS}
    assert knobs["verify"].parse("1") is True
    assert knobs["verify"].parse("off") is False
    assert knobs["threads"].parse("3") == 3
    assert knobs["threads"].parse("0") == 0
    for text in ("-5", "--5", "²", "1.5"):
        with pytest.raises(ValueError, match=r"TILEVM_THREADS is .*not one of: 0\.\."):
            knobs["threads"].parse(text)
    with pytest.raises(ValueError, match="TILEVM_VERIFY"):
        knobs["verify"].parse("maybe")


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "config.md").read_text(encoding="utf-8") == markdown()


def test_only_config_reads_the_environment() -> None:
    reads = re.compile(r"os\.environ|getenv\(")
    allowed = {"config.py"}
    for file in (ROOT / "src" / "tilevm").rglob("*.py"):
        if file.name not in allowed and "tools" not in file.parts:
            assert not reads.search(file.read_text(encoding="utf-8")), file
    for file in (ROOT / "core").rglob("*.cpp"):
        assert not reads.search(file.read_text(encoding="utf-8")), file

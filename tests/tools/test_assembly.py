from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilevm
from tilevm import lang
from tilevm.tools import assembly
from tilevm.tools.explain import explain

X = np.linspace(-2, 2, 7 * 33, dtype=np.float32).reshape(7, 33)
NO_CODE = {"pass", "end", "halt"}
IN_TURNS = (
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log1p",
    "tanh",
    "sigmoid",
    "silu",
    "erf",
    "gelu",
)
LAZY = ("const_",)  # a constant is an operand of the instructions that use it


@tilevm.kernel
def scaled(x: lang.Array, y: lang.Array) -> Any:
    return (x + y) * 0.5


@tilevm.kernel
def softmax(x: lang.Array) -> Any:
    return lang.softmax(x)


@tilevm.kernel
def columns(x: lang.Array) -> Any:
    return lang.sum(lang.tanh(x), 0)


@tilevm.kernel
def powers(x: lang.Array) -> Any:
    return lang.argmax(x.astype("float64") ** 2.5)


CASES = [(scaled, (X, X)), (softmax, (X,)), (columns, (X,)), (powers, (X,))]


def variants(kernel: Any, args: tuple[Any, ...], tier: str) -> list[dict[str, Any]]:
    with tilevm.config.patch(tier=tier):
        kernels = explain(kernel, asm=True)(*args).kernels
    return [variant for one in kernels for variant in one["variants"]]


def host_lines(variant: dict[str, Any]) -> dict[int, list[str]]:
    """The host instructions of each instruction of the bytecode."""
    found: dict[int, list[str]] = {}
    at = -1
    for line in assembly.lines(variant):
        if line.kind == "instruction":
            at = line.instruction
        elif line.kind != "host":
            at = -1
        elif at >= 0:
            found.setdefault(at, []).append(line.text)
    return found


def native_tiers() -> list[str]:
    tiers = []
    for tier in ("avx2", "avx512"):
        try:
            with tilevm.config.patch(tier=tier):
                tiers.append(tier)
        except ValueError:
            continue
    return tiers


@pytest.mark.parametrize("tier", native_tiers())
@pytest.mark.parametrize(("kernel", "args"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_every_instruction_has_its_code(kernel: Any, args: tuple[Any, ...], tier: str) -> None:
    for variant in variants(kernel, args, tier):
        assert variant["tier"] == tier
        host = host_lines(variant)
        for index, text in enumerate(assembly.instructions(variant["disassembly"])):
            name = text.split()[1]
            if name in NO_CODE or name.startswith(LAZY):
                continue
            assert host.get(index), f"nothing is emitted for {text}"


@pytest.mark.parametrize("tier", native_tiers())
def test_offsets_and_loops_are_in_order(tier: str) -> None:
    for kernel, args in CASES:
        for variant in variants(kernel, args, tier):
            lines = assembly.lines(variant)
            offsets = [line.offset for line in lines if line.kind in ("host", "data")]
            assert offsets[0] == 0
            assert offsets == sorted(offsets)
            labels = r"[\w.]+:$"
            distinct = [
                line.offset
                for line in lines
                if line.kind == "host" and not re.match(labels, line.text)
            ]
            assert len(set(distinct)) == len(distinct), "two instructions at one place"
            open_: list[str] = []
            for line in lines:
                if line.kind == "begin":
                    open_.append(line.text)
                elif line.kind == "end":
                    assert open_.pop() == line.text
            assert not open_


@pytest.mark.parametrize("tier", native_tiers())
def test_a_known_kernel(tier: str) -> None:
    (variant,) = variants(scaled, (X, X), tier)
    texts = list(assembly.rows(variant))
    added = next(i for i, text in enumerate(texts) if "add_f32" in text)
    register = "zmm" if tier == "avx512" else "ymm"
    assert re.search(rf"vaddps {register}\d+, {register}\d+", texts[added + 1])
    multiplied = next(text for text in texts if "vmulps" in text)
    assert "constants" in multiplied
    assert multiplied.endswith("0x3f000000 = 0.5")
    loops = [text.strip() for text in texts if text.strip().startswith("-- ")]
    assert "-- main loop: whole vectors" in loops
    assert "-- rest of the columns, masked" in loops
    constants = texts[texts.index("-- constants") :]
    assert any("0x3f000000 = 0.5" in text for text in constants)


@pytest.mark.parametrize("tier", native_tiers())
def test_passes_are_named_and_copies_counted(tier: str) -> None:
    (variant,) = variants(softmax, (X,), tier)
    begun = [line.text for line in assembly.lines(variant) if line.kind == "begin"]
    assert [name for name in begun if name.startswith("pass")] == ["pass 1", "pass 2", "pass 3"]
    notes = {line.text for line in assembly.lines(variant) if line.kind == "instruction"}
    assert {"start", "finish", "vector 1"} <= notes


@pytest.mark.skipif("avx2" not in native_tiers(), reason="the processor has no AVX2")
@pytest.mark.parametrize("name", IN_TURNS)
def test_functions_of_two_vectors_are_in_turns_beside_folds(name: str) -> None:
    @tilevm.kernel
    def folded(x: lang.Array, y: lang.Array) -> Any:
        both = x + y
        result = getattr(lang, name)(both)
        folds = lang.sum(result, -1, keepdims=True) - lang.min(result, -1, keepdims=True)
        return result * both / (folds + lang.max(result, -1, keepdims=True))

    (variant,) = variants(folded, (X, X), "avx2")
    instructions = assembly.instructions(variant["disassembly"])
    loops: list[str] = []
    emitted = 0
    for line in assembly.lines(variant):
        if line.kind == "begin":
            loops.append(line.text)
        elif line.kind == "end":
            loops.pop()
        elif line.kind == "instruction" and loops and "side by side" in loops[-1]:
            emitted += instructions[line.instruction].split()[1].startswith(f"{name}_")
    assert emitted == 1, "once a vector"


def test_no_assembly_unless_asked() -> None:
    (kernel,) = explain(scaled)(X, X).kernels
    assert "assembly" not in kernel["variants"][0]
    assert "machine code" not in str(explain(scaled)(X, X))


def test_interpreted_kernels_have_none() -> None:
    (variant,) = variants(scaled, (X, X), "interp")
    assert variant["assembly"] == []

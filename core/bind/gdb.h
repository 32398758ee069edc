// gdb's JIT interface: gdb stops at a function of ours when the list of symbol files in memory
// changes. Source: gdb's manual, "JIT Compilation Interface". It is in this folder since gdb looks
// for it by name, and the linker hides the names of what comes from an archive.
#pragma once

#include "exec/native/symbols.h"

namespace tilevm::bind {

extern const exec::native::Debugger gdb;

}  // namespace tilevm::bind

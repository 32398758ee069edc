// The parts of what a program says about itself that explain_plan.cpp has.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "bind/framework.h"
#include "host/executable.h"

namespace tilevm::bind {

inline std::string name(ValueId value) { return "%" + std::to_string(value); }
inline std::string typed(const Program& program, ValueId value) {
  return name(value) + ": " + print(program.sizes, program.type(value));
}

// All that explain shows. python: who knows the names of call-outs; null: there are none.
nanobind::dict explained(host::Executable& exe, const PythonFramework* python, bool with_assembly);

nanobind::list plan_symbols(const Program& program);
nanobind::list plan_operators(const host::Executable& exe);
nanobind::dict plan_interface(const host::Executable& exe);
nanobind::list plan_decisions(const host::Executable& exe);
nanobind::dict plan_memory(const host::Executable& exe);
nanobind::dict profile_row(const host::Executable& exe, const host::Profile& profile);

}  // namespace tilevm::bind

#include "exec/native/functions.h"

#include <array>
#include <cmath>
#include <cstdint>

#include "exec/interp/tables.h"
#include "exec/native/frame.h"

namespace tilevm::exec::native {
namespace {

using Unary = double (*)(double);
using Binary = double (*)(double, double);

template <Unary fn>
bool each(void* dst, const void* a, const void*, const void*, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    static_cast<float*>(dst)[i] = static_cast<float>(fn(static_cast<const float*>(a)[i]));
  }
  return true;
}

template <Binary fn>
bool each(void* dst, const void* a, const void* b, const void*, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    static_cast<float*>(dst)[i] =
        static_cast<float>(fn(static_cast<const float*>(a)[i], static_cast<const float*>(b)[i]));
  }
  return true;
}

std::array<const void*, kFunctions> fill() {
  std::array<const void*, kFunctions> table = {};
  for (int op = 0; op < bytecode::kOpCount; ++op) {
    const auto fn = interp::tables().map[static_cast<std::size_t>(op)].fn[0];
    table[static_cast<std::size_t>(op)] = reinterpret_cast<const void*>(fn);
  }
  const auto set = [&](Function number, interp::MapFn fn) {
    table[static_cast<std::size_t>(number)] = reinterpret_cast<const void*>(fn);
  };
  set(kLibmSin, each<static_cast<Unary>(std::sin)>);
  set(kLibmCos, each<static_cast<Unary>(std::cos)>);
  set(kLibmTan, each<static_cast<Unary>(std::tan)>);
  set(kLibmFmod, each<static_cast<Binary>(std::fmod)>);
  set(kLibmPow, each<static_cast<Binary>(std::pow)>);
  return table;
}

}  // namespace

const void* const* functions() {
  static const std::array<const void*, kFunctions> table = fill();
  return table.data();
}

int number_of(Unary fn) {
  if (fn == static_cast<Unary>(std::sin)) return kLibmSin;
  if (fn == static_cast<Unary>(std::cos)) return kLibmCos;
  if (fn == static_cast<Unary>(std::tan)) return kLibmTan;
  return -1;
}

int number_of(Binary fn) {
  if (fn == static_cast<Binary>(std::fmod)) return kLibmFmod;
  if (fn == static_cast<Binary>(std::pow)) return kLibmPow;
  return -1;
}

}  // namespace tilevm::exec::native

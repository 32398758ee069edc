// What emitted code may call, by number: the addresses are in a table, so that code holds none.
#pragma once

#include "isa.gen.h"

namespace tilevm::exec::native {

// Numbers below kOpCount are map instructions over vectors (interp/tables.h: MapFn).
enum Function : int {
  kLibm = bytecode::kOpCount,  // functions of doubles, lane by lane, from here on
  kLibmSin = kLibm,
  kLibmCos,
  kLibmTan,
  kLibmFmod,
  kLibmPow,
  kFunctions
};

const void* const* functions();

// The number of a function of libm; -1 if emitted code cannot call it.
int number_of(double (*fn)(double));
int number_of(double (*fn)(double, double));

}  // namespace tilevm::exec::native

// The families, in order of dependence. Only math.h includes this; it may do so more than once.
#include "core/exec/math/common.h"
#include "core/exec/math/exponential.h"
#include "core/exec/math/logarithm.h"
#include "core/exec/math/trigonometric.h"
#include "core/exec/math/error_function.h"
#include "core/exec/math/modulo.h"

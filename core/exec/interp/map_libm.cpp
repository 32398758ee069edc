// float64 functions, and the modulo family, one element at a time: the C library's. (exec/math has
// coefficients for float32 only.)
#include <hwy/highway.h>

#include <cmath>

#include "exec/interp/lanes.h"

HWY_BEFORE_NAMESPACE();
namespace tilevm::exec::interp::HWY_NAMESPACE {
namespace {

// Not by e^-a for a < 0: it overflows where the result is denormal.
double sigmoid(double a) {
  if (a < 0) {
    const double e = std::exp(a);
    return e / (1.0 + e);
  }
  return 1.0 / (1.0 + std::exp(-a));
}
// Without the cancellation of 1 + erf and 1 + tanh.
double gelu(double a) { return 0.5 * a * std::erfc(a * -0.7071067811865476); }
double gelu_tanh(double a) {
  return a / (1.0 + std::exp(-2.0 * 0.7978845608028654 * (a + 0.044715 * a * a * a)));
}

double remainder_of(double a, double b) {
  const double r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

// Python's: the quotient of what divides exactly, which rounding may leave off an integer.
double floor_div(double a, double b) {
  if (b == 0) return a / b;
  const double r = std::fmod(a, b);
  double q = (a - r) / b;
  if (r != 0 && (r < 0) != (b < 0)) q -= 1;
  if (q == 0) return std::copysign(0.0, a / b);
  const double down = std::floor(q);
  return q - down > 0.5 ? down + 1 : down;
}
}  // namespace

#define TILEVM_UNARY(name, value)                  \
  template <>                                      \
  struct Map<Op::name##_f64> {                     \
    static constexpr Loop kLoop = Loop::kUnary;    \
    using A = double;                              \
    using D = double;                              \
    static HWY_INLINE D run(A a) { return value; } \
  };
#define TILEVM_BINARY(name, value)                      \
  template <>                                           \
  struct Map<Op::name##_f64> {                          \
    static constexpr Loop kLoop = Loop::kBinary;        \
    using A = double;                                   \
    using B = double;                                   \
    using D = double;                                   \
    static HWY_INLINE D run(A a, B b) { return value; } \
  };
TILEVM_UNARY(exp, std::exp(a))
TILEVM_UNARY(exp2, std::exp2(a))
TILEVM_UNARY(expm1, std::expm1(a))
TILEVM_UNARY(log, std::log(a))
TILEVM_UNARY(log2, std::log2(a))
TILEVM_UNARY(log1p, std::log1p(a))
TILEVM_UNARY(sin, std::sin(a))
TILEVM_UNARY(cos, std::cos(a))
TILEVM_UNARY(tan, std::tan(a))
TILEVM_UNARY(tanh, std::tanh(a))
TILEVM_UNARY(sigmoid, sigmoid(a))
TILEVM_UNARY(erf, std::erf(a))
TILEVM_UNARY(silu, a* sigmoid(a))
TILEVM_UNARY(gelu, gelu(a))
TILEVM_UNARY(gelu_tanh, gelu_tanh(a))
TILEVM_BINARY(floor_div, floor_div(a, b))
TILEVM_BINARY(remainder, remainder_of(a, b))
TILEVM_BINARY(fmod, std::fmod(a, b))
TILEVM_BINARY(pow, std::pow(a, b))
TILEVM_BINARY(atan2, std::atan2(a, b))
#undef TILEVM_UNARY
#undef TILEVM_BINARY

}  // namespace tilevm::exec::interp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace tilevm::exec::interp {
void fill_map_libm(Tables& tables) { HWY_NAMESPACE::fill_family<Family::kLibm>(tables); }
}  // namespace tilevm::exec::interp

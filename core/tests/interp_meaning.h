// What a program means, evaluated slowly: the oracle of the interpreter's test.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "exec/launch.h"
#include "isa.gen.h"

namespace tilevm::testing {

using namespace tilevm::bytecode;
using exec::Binding;
using exec::Launch;
using exec::Space;
using exec::Status;
using std::int64_t;

// f: of any float; a register of f32 holds floats only.
struct Value {
  double f = 0;
  int64_t i = 0;
};

inline float bits_to_float(std::uint32_t b) {
  float f;
  std::memcpy(&f, &b, 4);
  return f;
}
inline std::uint32_t float_to_bits(float f) {
  std::uint32_t b;
  std::memcpy(&b, &f, 4);
  return b;
}
inline std::uint16_t to_bf16(float f) {
  const std::uint32_t b = float_to_bits(f);
  if (std::isnan(f)) return 0x7FC0;
  return static_cast<std::uint16_t>((b + 0x7FFF + ((b >> 16) & 1)) >> 16);
}

// By the definition: the fraction in units of 2^-24 below 2^-14, else 10 bits of it.
inline std::uint16_t to_f16(float f) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(f) ? 0x8000 : 0);
  if (std::isnan(f)) return 0x7E00;
  int exponent = 0;
  const double x = std::fabs(f);
  if (x >= 65520) return static_cast<std::uint16_t>(sign | 0x7C00);
  std::frexp(x, &exponent);  // x < 2^exponent
  if (x != 0 && exponent > -13) {
    const double fraction = std::nearbyint(std::ldexp(x, 11 - exponent));  // 1024 .. 2048
    const int bits = (exponent + 14) * 1024 + static_cast<int>(fraction) - 1024;
    return static_cast<std::uint16_t>(sign | bits);
  }
  return static_cast<std::uint16_t>(sign | static_cast<int>(std::nearbyint(std::ldexp(x, 24))));
}
inline float of_f16(std::uint16_t h) {
  const int exponent = h >> 10 & 31;
  const int fraction = h & 1023;
  const float sign = h >> 15 ? -1.0f : 1.0f;
  if (exponent == 31) return sign * (fraction ? std::nanf("") : INFINITY);
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

template <class T>
T read_as(const std::byte* at) {
  T x;
  std::memcpy(&x, at, sizeof(x));
  return x;
}
template <class T, class U>
void write_as(std::byte* at, U value) {
  const T x = static_cast<T>(value);
  std::memcpy(at, &x, sizeof(x));
}

inline Value read(Storage s, const std::byte* at) {
  Value v;
  switch (s) {
    case Storage::kF32:
      v.f = read_as<float>(at);
      break;
    case Storage::kBF16:
      v.f = bits_to_float(std::uint32_t{read_as<std::uint16_t>(at)} << 16);
      break;
    case Storage::kF16:
      v.f = of_f16(read_as<std::uint16_t>(at));
      break;
    case Storage::kF64:
      v.f = read_as<double>(at);
      break;
    case Storage::kI32:
      v.i = read_as<std::int32_t>(at);
      break;
    case Storage::kI64:
      v.i = read_as<int64_t>(at);
      break;
    case Storage::kI8:
      v.i = read_as<std::int8_t>(at);
      break;
    case Storage::kU8:
      v.i = read_as<std::uint8_t>(at);
      break;
    case Storage::kI16:
      v.i = read_as<std::int16_t>(at);
      break;
    case Storage::kB8:
      v.i = *at != std::byte{0};
      break;
  }
  return v;
}

inline void write(Storage s, std::byte* at, Value v) {
  switch (s) {
    case Storage::kF32:
      return write_as<float>(at, v.f);
    case Storage::kBF16:
      return write_as<std::uint16_t>(at, to_bf16(static_cast<float>(v.f)));
    case Storage::kF16:
      return write_as<std::uint16_t>(at, to_f16(static_cast<float>(v.f)));
    case Storage::kF64:
      return write_as<double>(at, v.f);
    case Storage::kI32:
      return write_as<std::int32_t>(at, v.i);
    case Storage::kI64:
      return write_as<int64_t>(at, v.i);
    case Storage::kI8:
      return write_as<std::int8_t>(at, v.i);
    case Storage::kU8:
    case Storage::kB8:
      return write_as<std::uint8_t>(at, v.i);
    case Storage::kI16:
      return write_as<std::int16_t>(at, v.i);
  }
}

inline bool is_float(Storage s) {
  return info(s).reg == RegType::kF32 || info(s).reg == RegType::kF64;
}

template <class T>
bool integer_map(const std::string& name, T a, T b, T& out) {
  using U = std::make_unsigned_t<T>;
  const U ua = static_cast<U>(a);
  const U ub = static_cast<U>(b);
  const int width = static_cast<int>(sizeof(T) * 8);
  const bool wide = b < 0 || b >= width;
  if (name == "abs") out = a < 0 ? static_cast<T>(0 - ua) : a;
  if (name == "neg") out = static_cast<T>(0 - ua);
  if (name == "sign") out = static_cast<T>((a > 0) - (a < 0));
  if (name == "not") out = static_cast<T>(~a);
  if (name == "add") out = static_cast<T>(ua + ub);
  if (name == "sub") out = static_cast<T>(ua - ub);
  if (name == "mul") out = static_cast<T>(ua * ub);
  if (name == "maximum") out = std::max(a, b);
  if (name == "minimum") out = std::min(a, b);
  if (name == "and") out = a & b;
  if (name == "or") out = a | b;
  if (name == "xor") out = a ^ b;
  if (name == "shl") out = wide ? 0 : static_cast<T>(ua << b);
  if (name == "shr") out = wide ? (a < 0 ? -1 : 0) : static_cast<T>(a >> b);
  if (name == "pow") {
    U result = 1;
    if (b < 0) {
      result = a == 1 ? 1 : a == -1 ? (b % 2 != 0 ? static_cast<U>(-1) : 1) : 0;
    } else {
      for (int bit = width - 2; bit >= 0; --bit) {
        result *= result;
        if (ub >> bit & 1) result *= ua;
      }
    }
    out = static_cast<T>(result);
  }
  if (name == "floor_div" || name == "remainder" || name == "fmod") {
    if (b == 0) return false;
    const bool lowest = a == std::numeric_limits<T>::min() && b == -1;
    T q = lowest ? a : static_cast<T>(a / b);
    T r = lowest ? 0 : static_cast<T>(a % b);
    const bool other = r != 0 && (r < 0) != (b < 0);
    if (name == "floor_div") out = static_cast<T>(q - other);
    if (name == "remainder") out = static_cast<T>(other ? r + b : r);
    if (name == "fmod") out = r;
  }
  return true;
}

// In Wide, which is wider than Float, and rounded once.
template <class Float, class Wide>
Float float_map(const std::string& name, Float fa, Float fb) {
  const Wide a = fa;
  const Wide b = fb;
  Wide r = std::nan("");
  if (name == "abs") return std::fabs(fa);
  if (name == "neg") return -fa;
  if (name == "sign") return static_cast<Float>((fa > 0) - (fa < 0));
  if (name == "add") return fa + fb;
  if (name == "sub") return fa - fb;
  if (name == "mul") return fa * fb;
  if (name == "div") return fa / fb;
  if (name == "copysign") return std::copysign(fa, fb);
  if (name == "maximum") return std::isnan(fa) || fa > fb ? fa : fb;
  if (name == "minimum") return std::isnan(fa) || fa < fb ? fa : fb;
  if (name == "round") return std::nearbyint(fa);
  if (name == "exp") r = std::exp(a);
  if (name == "exp_weight") r = a < -87.3f ? 0 : std::exp(a > 88 ? 88 : a);
  if (name == "exp2") r = std::exp2(a);
  if (name == "expm1") r = std::expm1(a);
  if (name == "log") r = std::log(a);
  if (name == "log2") r = std::log2(a);
  if (name == "log1p") r = std::log1p(a);
  if (name == "sqrt") r = std::sqrt(a);
  if (name == "rsqrt") r = 1 / std::sqrt(a);
  if (name == "reciprocal") r = 1 / a;
  if (name == "sin") r = std::sin(a);
  if (name == "cos") r = std::cos(a);
  if (name == "tan") r = std::tan(a);
  if (name == "tanh") r = std::tanh(a);
  if (name == "sigmoid") r = 1 / (1 + std::exp(-a));
  if (name == "erf") r = std::erf(a);
  if (name == "silu") r = a * (1 / (1 + std::exp(-a)));
  if (name == "gelu") r = 0.5 * a * std::erfc(a * -0.7071067811865476);
  if (name == "gelu_tanh") {
    const Wide u = 0.7978845608028654 * (a + 0.044715 * a * a * a);
    r = a / (1 + std::exp(-2 * u));
  }
  if (name == "floor") r = std::floor(a);
  if (name == "ceil") r = std::ceil(a);
  if (name == "trunc") r = std::trunc(a);
  if (name == "pow") r = std::pow(a, b);
  if (name == "atan2") r = std::atan2(a, b);
  if (name == "fmod") r = std::fmod(a, b);
  if (name == "remainder") {
    r = std::fmod(a, b);
    if (r != 0 && (r < 0) != (b < 0)) r += b;
  }
  if (name == "floor_div") {
    Wide m = std::fmod(a, b);
    Wide q = (a - m) / b;
    if (m != 0 && (m < 0) != (b < 0)) q -= 1;
    r = b == 0 ? a / b : q == 0 ? std::copysign(Wide{0}, a / b) : std::floor(q + 0.5);
  }
  return static_cast<Float>(r);
}

inline bool apply_map(const InstrInfo& row, Value a, Value b, Value c, Value& out) {
  const std::string full(row.name);
  const std::size_t cut = full.find_last_of('_');
  const std::string name = full.substr(0, cut);
  const RegType from = row.fields[1].type;
  for (int s = 0; s < kStorages; ++s) {  // what it would be, stored and loaded
    if (info(kNarrowOf[s]).name != full) continue;
    std::byte memory[8];
    write(static_cast<Storage>(s), memory, a);
    out = read(static_cast<Storage>(s), memory);
    return true;
  }
  if (name == "select") {
    out = a.i ? b : c;
    return true;
  }
  if (name.substr(0, 5) == "cast_") {
    const RegType to = row.fields[0].type;
    if (is_float(info(from).storage) && is_float(info(to).storage)) {
      out.f = to == RegType::kF32 ? static_cast<float>(a.f) : a.f;
    } else if (is_float(info(from).storage)) {
      const double limit = to == RegType::kI32 ? 0x1p31 : 0x1p63;
      const int64_t low = to == RegType::kI32 ? INT32_MIN : INT64_MIN;
      out.i = to == RegType::kB8             ? a.f != 0
              : a.f >= -limit && a.f < limit ? static_cast<int64_t>(a.f)
                                             : low;
    } else if (to == RegType::kF32) {
      out.f = static_cast<float>(a.i);
    } else if (to == RegType::kF64) {
      out.f = static_cast<double>(a.i);
    } else {
      out.i = to == RegType::kB8    ? a.i != 0
              : to == RegType::kI32 ? static_cast<std::int32_t>(a.i)
                                    : a.i;
    }
    return true;
  }
  const bool floats = is_float(info(from).storage);
  const auto compare = [&](auto x, auto y) {
    if (name == "eq") return x == y;
    if (name == "ne") return x != y;
    if (name == "lt") return x < y;
    if (name == "le") return x <= y;
    if (name == "gt") return x > y;
    return x >= y;
  };
  if (name == "isnan") return out.i = std::isnan(a.f), true;
  if (name == "isinf") return out.i = std::isinf(a.f), true;
  if (name == "isfinite") return out.i = std::isfinite(a.f), true;
  if (row.fields[0].type == RegType::kB8 && from != RegType::kB8) {
    out.i = floats ? compare(a.f, b.f) : compare(a.i, b.i);
    return true;
  }
  if (from == RegType::kB8) {
    out.i = name == "not" ? !a.i : name == "and" ? a.i & b.i : name == "or" ? a.i | b.i : a.i ^ b.i;
    return true;
  }
  if (from == RegType::kF32) {
    out.f = float_map<float, double>(name, static_cast<float>(a.f), static_cast<float>(b.f));
    return true;
  }
  if (from == RegType::kF64) return out.f = float_map<double, long double>(name, a.f, b.f), true;
  if (from == RegType::kI32) {
    std::int32_t r = 0;
    const bool ok =
        integer_map(name, static_cast<std::int32_t>(a.i), static_cast<std::int32_t>(b.i), r);
    out.i = r;
    return ok;
  }
  return integer_map<int64_t>(name, a.i, b.i, out.i);
}

// Runs a program with whole axes instead of blocks, where no reduced axis is empty. A register
// holds a value for every reduced position, row and column of the current outer position, whatever
// its class.
class Meaning {
 public:
  Meaning(std::span<const std::byte> program, const Launch& launch)
      : v_(view(program)), l_(launch), registers_(v_.header->n_registers) {}

  Status run() {
    std::vector<int64_t> outer(exec::kMaxOuter, 0);
    int64_t n = 1;
    for (int i = 0; i < l_.space.n_outer; ++i) n *= l_.space.outer[i];
    if (!(fold() & 2) && l_.space.rows == 0) return Status::kOk;
    if (!(fold() & 1) && l_.space.cols == 0) return Status::kOk;
    for (int64_t k = 0; k < n; ++k) {
      int64_t rest = k;
      for (int i = l_.space.n_outer - 1; i >= 0; --i) {
        outer_[i] = rest % l_.space.outer[i];
        rest /= l_.space.outer[i];
      }
      for (const Instr& instr : v_.code) {
        const Status s = step(instr);
        if (s != Status::kOk) return s;
      }
    }
    return Status::kOk;
  }

 private:
  int fold() const { return static_cast<int>(v_.header->fold); }

  void each(const std::function<void(int64_t, int64_t, int64_t, std::size_t)>& f) {
    int64_t n = 1;
    for (int i = 0; i < l_.space.n_reduced; ++i) n *= l_.space.reduced[i];
    std::size_t at = 0;
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t y = 0; y < l_.space.rows; ++y) {
        for (int64_t x = 0; x < l_.space.cols; ++x) f(r, y, x, at++);
      }
    }
  }

  int64_t offset(const Binding& b, int64_t r, int64_t y, int64_t x) const {
    int64_t at = y * b.y_stride + x * b.x_stride;
    for (int i = 0; i < l_.space.n_outer; ++i) at += outer_[i] * b.outer[i];
    for (int i = l_.space.n_reduced - 1; i >= 0; --i) {
      at += r % l_.space.reduced[i] * b.reduced[i];
      r /= l_.space.reduced[i];
    }
    return at;
  }

  Status step(const Instr& instr) {
    const InstrInfo& row = kIsa[instr.op];
    std::size_t n = static_cast<std::size_t>(l_.space.rows * l_.space.cols);
    for (int i = 0; i < l_.space.n_reduced; ++i) {
      n *= static_cast<std::size_t>(l_.space.reduced[i]);
    }
    std::vector<Value> dst(std::max<std::size_t>(n, 1));
    const auto source = [&](std::uint16_t r) -> const std::vector<Value>& { return registers_[r]; };
    Status status = Status::kOk;
    switch (row.cls) {
      case InstrClass::kMark:
        return status;
      case InstrClass::kConst:
        for (Value& v : dst) {
          v.f = row.fields[0].type == RegType::kF64
                    ? std::bit_cast<double>(instr.imm)
                    : bits_to_float(static_cast<std::uint32_t>(instr.imm));
          v.i = row.fields[0].type == RegType::kI32 ? static_cast<std::int32_t>(instr.imm)
                                                    : static_cast<int64_t>(instr.imm);
        }
        break;
      case InstrClass::kLoad:
        each([&](int64_t r, int64_t y, int64_t x, std::size_t k) {
          if (v_.operands[instr.mem].role == Role::kScratch) {
            std::byte memory[8];  // as it was stored
            write(row.storage, memory, scratch_[instr.mem][k]);
            dst[k] = read(row.storage, memory);
          } else {
            const Binding& b = l_.bindings[instr.mem];
            dst[k] = read(row.storage, b.base + offset(b, r, y, x));
          }
          if (row.fields[0].type == RegType::kF32) dst[k].f = static_cast<float>(dst[k].f);
        });
        break;
      case InstrClass::kStore:
        if (v_.operands[instr.mem].role == Role::kScratch) {
          scratch_[instr.mem] = source(instr.a);
        } else {
          const Binding& b = l_.bindings[instr.mem];
          each([&](int64_t r, int64_t y, int64_t x, std::size_t k) {
            write(row.storage, b.base + offset(b, r, y, x), source(instr.a)[k]);
          });
        }
        return status;
      case InstrClass::kGather:
        each([&](int64_t r, int64_t y, int64_t x, std::size_t k) {
          const Binding& b = l_.bindings[instr.mem];
          const int64_t index = source(instr.a)[k].i;
          if (index < 0 || index >= b.gather_size) {
            status = Status::kIndexOutOfRange;
            return;
          }
          dst[k] = read(row.storage, b.base + offset(b, r, y, x) + index * b.gather_stride);
        });
        break;
      case InstrClass::kIota:
        each([&](int64_t r, int64_t y, int64_t x, std::size_t k) {
          const Binding& b = l_.bindings[instr.mem];
          dst[k].i = b.start + offset(b, r, y, x);
        });
        break;
      case InstrClass::kMap: {
        const auto value = [&](std::uint16_t r, std::size_t k) {
          return r < registers_.size() && k < registers_[r].size() ? registers_[r][k] : Value{};
        };
        for (std::size_t k = 0; k < dst.size(); ++k) {
          const bool ok =
              apply_map(row, value(instr.a, k), value(instr.b, k), value(instr.c, k), dst[k]);
          if (!ok && n > 0) status = Status::kDivisionByZero;
        }
        break;
      }
      case InstrClass::kFold:
        fold_all(instr, row, dst);
        break;
    }
    registers_[instr.dst] = std::move(dst);
    return status;
  }

  void fold_all(const Instr& instr, const InstrInfo& row, std::vector<Value>& dst) {
    const std::string full(row.name);
    const std::string name = full.substr(0, full.find_last_of('_'));
    const RegType type = row.fields[1].type;
    const bool is_float = testing::is_float(info(type).storage);
    // By class only: a value that does not vary over a kept axis is folded once.
    const int kept = static_cast<int>(instr.cls_dst());
    const auto group = [&](int64_t y, int64_t x) {
      return static_cast<std::size_t>((kept & 2 ? y : 0) * std::max<int64_t>(l_.space.cols, 1) +
                                      (kept & 1 ? x : 0));
    };
    struct Acc {
      long double d = 0;
      std::uint64_t u = 0;
      Value best{}, index{};
      bool seen = false;
      double count = 0;
      long double mean = 0, squares = 0;
    };
    const std::size_t groups = static_cast<std::size_t>(std::max<int64_t>(l_.space.rows, 1) *
                                                        std::max<int64_t>(l_.space.cols, 1));
    std::vector<Acc> acc(groups);
    const double inf = std::numeric_limits<double>::infinity();
    for (Acc& a : acc) {
      if (name == "prod") a.d = 1, a.u = 1;
      if (name == "all") a.u = 1;
      if (name == "max") a.d = -inf;
      if (name == "min") a.d = inf;
      const bool narrow = type == RegType::kI32;
      if (name == "max") a.best.i = narrow ? INT32_MIN : INT64_MIN;
      if (name == "min") a.best.i = narrow ? INT32_MAX : INT64_MAX;
    }
    each([&](int64_t, int64_t y, int64_t x, std::size_t k) {
      // Axes that are neither kept by the class nor folded count once.
      const int once = 3 & ~kept & ~fold();
      if ((once & 2 && y > 0) || (once & 1 && x > 0)) return;
      Acc& t = acc[group(y, x)];
      const Value a = registers_[instr.a][k];
      const auto u = static_cast<std::uint64_t>(a.i);
      if (name == "sum" || name == "total" || name == "mean") t.d += a.f, t.u += u, ++t.count;
      if (name == "deviations" || name == "variance") {
        const long double before = a.f - t.mean;
        t.mean += before / static_cast<long double>(++t.count);
        t.squares += before * (a.f - t.mean);
      }
      if (name == "prod") t.d *= a.f, t.u *= u;
      if (name == "any") t.u |= u;
      if (name == "all") t.u &= u;
      if (name == "max") {
        t.best.i = std::max(t.best.i, a.i);
        if (!std::isnan(t.d) && !(a.f <= t.d)) t.d = a.f;
      }
      if (name == "min") {
        t.best.i = std::min(t.best.i, a.i);
        if (!std::isnan(t.d) && !(a.f >= t.d)) t.d = a.f;
      }
      if (name.substr(0, 3) == "arg") {
        const int64_t index = registers_[instr.b][k].i;
        const bool largest = name == "argmax";
        const auto before = [&](auto p, auto q) { return largest ? p > q : p < q; };
        const bool nan = is_float && std::isnan(a.f);
        const bool best_nan = is_float && std::isnan(t.best.f);
        const bool better = is_float ? before(a.f, t.best.f) : before(a.i, t.best.i);
        const bool equal = is_float ? a.f == t.best.f : a.i == t.best.i;
        bool take = !t.seen;
        if (t.seen && best_nan) take = nan && index < t.index.i;
        if (t.seen && !best_nan) take = nan || better || (equal && index < t.index.i);
        if (take) t.best = a, t.index.i = index, t.seen = true;
      }
    });
    const auto result = [&](const Acc& t) {
      Value v;
      const long double d = name == "mean"         ? t.d / t.count
                            : name == "deviations" ? t.squares
                            : name == "variance"   ? t.squares / t.count
                                                   : t.d;
      v.f = type == RegType::kF32 ? static_cast<float>(d) : static_cast<double>(d);
      v.i = name == "max" || name == "min" ? t.best.i
            : name.substr(0, 3) == "arg"   ? t.index.i
                                           : static_cast<int64_t>(t.u);
      return v;
    };
    each([&](int64_t, int64_t y, int64_t x, std::size_t k) { dst[k] = result(acc[group(y, x)]); });
  }

  View v_;
  const Launch& l_;
  std::vector<std::vector<Value>> registers_;
  std::vector<Value> scratch_[kMaxOperands];
  int64_t outer_[exec::kMaxOuter] = {};
};

}  // namespace tilevm::testing

// The interpreter against a slow evaluation of the same bytecode, over awkward sizes, strides and
// classes. Operands end at pages that must not be touched.
#include <hwy/targets.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bytecode/builder.h"
#include "exec/interp/interp.h"

namespace {

using namespace tilevm;
using namespace tilevm::bytecode;
using exec::Binding;
using exec::Launch;
using exec::Space;
using exec::Status;
using std::int64_t;

int failures = 0;
void check(bool ok, const std::string& what) {
    if (ok) return;
    if (++failures <= 20) std::printf("FAILED: %s\n", what.c_str());
}

// Memory whose last byte is followed by a page that faults.
class Guarded {
  public:
    explicit Guarded(std::size_t bytes) : bytes_(bytes) {
        const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        mapped_ = (bytes + page - 1) / page * page + 2 * page;
        map_ = static_cast<std::byte*>(
            mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        mprotect(map_, page, PROT_NONE);
        mprotect(map_ + mapped_ - page, page, PROT_NONE);
        data_ = map_ + mapped_ - page - bytes;
    }
    Guarded(const Guarded&) = delete;
    Guarded& operator=(const Guarded&) = delete;
    ~Guarded() { munmap(map_, mapped_); }
    std::byte* data() const { return data_; }
    std::size_t size() const { return bytes_; }

  private:
    std::byte* map_;
    std::byte* data_;
    std::size_t mapped_, bytes_;
};

// The meaning ------------------------------------------------------------------------------------

struct Value {
    float f = 0;
    int64_t i = 0;
};

float bits_to_float(std::uint32_t b) {
    float f;
    std::memcpy(&f, &b, 4);
    return f;
}
std::uint32_t float_to_bits(float f) {
    std::uint32_t b;
    std::memcpy(&b, &f, 4);
    return b;
}
std::uint16_t to_bf16(float f) {
    const std::uint32_t b = float_to_bits(f);
    if (std::isnan(f)) return 0x7FC0;
    return static_cast<std::uint16_t>((b + 0x7FFF + ((b >> 16) & 1)) >> 16);
}

Value read(Storage s, const std::byte* at) {
    Value v;
    switch (s) {
        case Storage::kF32: std::memcpy(&v.f, at, 4); break;
        case Storage::kBF16: {
            std::uint16_t b;
            std::memcpy(&b, at, 2);
            v.f = bits_to_float(static_cast<std::uint32_t>(b) << 16);
            break;
        }
        case Storage::kF64: {
            double d;
            std::memcpy(&d, at, 8);
            v.f = static_cast<float>(d);
            break;
        }
        case Storage::kI32: {
            std::int32_t i;
            std::memcpy(&i, at, 4);
            v.i = i;
            break;
        }
        case Storage::kI64: std::memcpy(&v.i, at, 8); break;
        case Storage::kB8: v.i = *at != std::byte{0}; break;
    }
    return v;
}

void write(Storage s, std::byte* at, Value v) {
    const std::uint16_t half = to_bf16(v.f);
    const std::int32_t narrow = static_cast<std::int32_t>(v.i);
    switch (s) {
        case Storage::kF32: std::memcpy(at, &v.f, 4); break;
        case Storage::kBF16: std::memcpy(at, &half, 2); break;
        case Storage::kF64: break;
        case Storage::kI32: std::memcpy(at, &narrow, 4); break;
        case Storage::kI64: std::memcpy(at, &v.i, 8); break;
        case Storage::kB8: *at = static_cast<std::byte>(v.i); break;
    }
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

float float_map(const std::string& name, float fa, float fb) {
    const double a = fa;
    const double b = fb;
    double r = std::nan("");
    if (name == "abs") return std::fabs(fa);
    if (name == "neg") return -fa;
    if (name == "sign") return fa > 0 ? 1.0f : fa < 0 ? -1.0f : 0.0f;
    if (name == "add") return fa + fb;
    if (name == "sub") return fa - fb;
    if (name == "mul") return fa * fb;
    if (name == "div") return fa / fb;
    if (name == "maximum") return std::isnan(fa) || fa > fb ? fa : fb;
    if (name == "minimum") return std::isnan(fa) || fa < fb ? fa : fb;
    if (name == "round") return std::nearbyintf(fa);
    if (name == "exp") r = std::exp(a);
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
    if (name == "gelu") r = 0.5 * a * (1 + std::erf(a * 0.7071067811865476));
    if (name == "gelu_tanh") {
        const double u = 0.7978845608028654 * (a + 0.044715 * a * a * a);
        r = 0.5 * a * (1 + std::tanh(u));
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
        double m = std::fmod(a, b);
        double q = (a - m) / b;
        if (m != 0 && (m < 0) != (b < 0)) q -= 1;
        r = b == 0 ? a / b : q == 0 ? std::copysign(0.0, a / b) : std::floor(q + 0.5);
    }
    return static_cast<float>(r);
}

bool apply_map(const InstrInfo& row, Value a, Value b, Value c, Value& out) {
    const std::string full(row.name);
    const std::size_t cut = full.find_last_of('_');
    const std::string name = full.substr(0, cut);
    const RegType from = row.fields[1].type;
    if (full == "round_bf16") {
        out.f = bits_to_float(static_cast<std::uint32_t>(to_bf16(a.f)) << 16);
        return true;
    }
    if (name == "select") {
        out = a.i ? b : c;
        return true;
    }
    if (name.substr(0, 5) == "cast_") {
        const RegType to = row.fields[0].type;
        if (from == RegType::kF32) {
            const float limit = to == RegType::kI32 ? 0x1p31f : 0x1p63f;
            const int64_t low = to == RegType::kI32 ? INT32_MIN : INT64_MIN;
            out.i = to == RegType::kB8                   ? a.f != 0.0f
                    : a.f >= -limit && a.f < limit ? static_cast<int64_t>(a.f)
                                                   : low;
        } else if (to == RegType::kF32) {
            out.f = static_cast<float>(a.i);
        } else {
            out.i = to == RegType::kB8    ? a.i != 0
                    : to == RegType::kI32 ? static_cast<std::int32_t>(a.i)
                                          : a.i;
        }
        return true;
    }
    const bool is_float = from == RegType::kF32;
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
        out.i = is_float ? compare(a.f, b.f) : compare(a.i, b.i);
        return true;
    }
    if (from == RegType::kB8) {
        out.i = name == "not" ? !a.i : name == "and" ? a.i & b.i : name == "or" ? a.i | b.i : a.i ^ b.i;
        return true;
    }
    if (is_float) return out.f = float_map(name, a.f, b.f), true;
    if (from == RegType::kI32) {
        std::int32_t r = 0;
        const bool ok = integer_map(name, static_cast<std::int32_t>(a.i),
                                    static_cast<std::int32_t>(b.i), r);
        out.i = r;
        return ok;
    }
    return integer_map<int64_t>(name, a.i, b.i, out.i);
}

// Runs a program with whole axes instead of blocks, where no reduced axis is empty. A register holds a value for every reduced
// position, row and column of the current outer position, whatever its class.
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
        const auto source = [&](std::uint16_t r) -> const std::vector<Value>& {
            return registers_[r];
        };
        Status status = Status::kOk;
        switch (row.cls) {
            case InstrClass::kMark: return status;
            case InstrClass::kConst:
                for (Value& v : dst) {
                    v.f = bits_to_float(static_cast<std::uint32_t>(instr.imm));
                    v.i = row.fields[0].type == RegType::kI32
                              ? static_cast<std::int32_t>(instr.imm)
                              : static_cast<int64_t>(instr.imm);
                }
                break;
            case InstrClass::kLoad:
                each([&](int64_t r, int64_t y, int64_t x, std::size_t k) {
                    if (v_.operands[instr.mem].role == Role::kScratch) {
                        dst[k] = scratch_[instr.mem][k];
                        if (row.storage == Storage::kBF16) {
                            dst[k].f = bits_to_float(
                                static_cast<std::uint32_t>(to_bf16(dst[k].f)) << 16);
                        }
                        return;
                    }
                    const Binding& b = l_.bindings[instr.mem];
                    dst[k] = read(row.storage, b.base + offset(b, r, y, x));
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
                    dst[k] = read(row.storage,
                                  b.base + offset(b, r, y, x) + index * b.gather_stride);
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
                    return r < registers_.size() && k < registers_[r].size() ? registers_[r][k]
                                                                              : Value{};
                };
                for (std::size_t k = 0; k < dst.size(); ++k) {
                    const bool ok = apply_map(row, value(instr.a, k), value(instr.b, k),
                                              value(instr.c, k), dst[k]);
                    if (!ok && n > 0) status = Status::kDivisionByZero;
                }
                break;
            }
            case InstrClass::kFold: fold_all(instr, row, dst); break;
        }
        registers_[instr.dst] = std::move(dst);
        return status;
    }

    void fold_all(const Instr& instr, const InstrInfo& row, std::vector<Value>& dst) {
        const std::string full(row.name);
        const std::string name = full.substr(0, full.find_last_of('_'));
        const RegType type = row.fields[1].type;
        const bool is_float = type == RegType::kF32;
        // By class only: a value that does not vary over a kept axis is folded once.
        const int kept = static_cast<int>(instr.cls_dst());
        const auto group = [&](int64_t y, int64_t x) {
            return static_cast<std::size_t>((kept & 2 ? y : 0) * std::max<int64_t>(l_.space.cols, 1) +
                                            (kept & 1 ? x : 0));
        };
        struct Acc {
            double d = 0;
            std::uint64_t u = 0;
            Value best{}, index{};
            bool seen = false;
        };
        const std::size_t groups =
            static_cast<std::size_t>(std::max<int64_t>(l_.space.rows, 1) *
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
            if (name == "sum") t.d += a.f, t.u += u;
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
            v.f = static_cast<float>(t.d);
            v.i = name == "max" || name == "min"     ? t.best.i
                  : name.substr(0, 3) == "arg" ? t.index.i
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

// Random programs --------------------------------------------------------------------------------

struct Trial {
    explicit Trial(unsigned seed) : random(seed) {}

    int64_t pick(int64_t low, int64_t high) {
        return std::uniform_int_distribution<int64_t>(low, high)(random);
    }
    template <class T>
    T choice(std::initializer_list<T> of) {
        return of.begin()[pick(0, static_cast<int64_t>(of.size()) - 1)];
    }

    std::mt19937 random;
    Builder builder;
    Space space;
    std::vector<Binding> bindings;
    std::vector<std::unique_ptr<Guarded>> memory;
    std::vector<std::size_t> outputs;  // indices of memory
    std::vector<std::size_t> output_operands;
    bool nans = false;

    // Random values that keep every operation exact: small integers.
    void fill(Storage s, Guarded& g) {
        const std::size_t bytes = static_cast<std::size_t>(storage_bytes(s));
        for (std::size_t at = 0; at + bytes <= g.size(); at += bytes) {
            Value v;
            v.i = pick(-9, 9);
            v.f = static_cast<float>(v.i);
            if (nans && pick(0, 400) == 0) v.f = std::nanf("");
            const double wide = v.f;
            if (s == Storage::kF64) {
                std::memcpy(g.data() + at, &wide, 8);
            } else if (s == Storage::kB8) {
                g.data()[at] = static_cast<std::byte>(pick(0, 2) * 127);
            } else {
                write(s, g.data() + at, v);
            }
        }
    }

    // Memory and strides for an operand of a class, with one more axis of `gathered` elements.
    Binding bind(Storage s, Cls cls, bool output, bool& contiguous, int64_t gathered) {
        const int bits = static_cast<int>(cls);
        const int64_t bytes = storage_bytes(s);
        struct Axis {
            int64_t size;
            int64_t* stride;
        };
        Binding b;
        std::vector<Axis> axes;
        for (int i = 0; i < space.n_outer; ++i) {
            if (output || pick(0, 3) > 0) axes.push_back({space.outer[i], &b.outer[i]});
        }
        const int fold = static_cast<int>(fold_);
        for (int i = 0; i < space.n_reduced; ++i) {
            const bool varies = output ? (bits & fold) != 0 : pass_ && pick(0, 2) > 0;
            if (varies) axes.push_back({space.reduced[i], &b.reduced[i]});
        }
        if (gathered > 0) axes.push_back({gathered, &b.gather_stride});
        if (bits & 2) axes.push_back({space.rows, &b.y_stride});
        if (bits & 1) axes.push_back({space.cols, &b.x_stride});
        if (pick(0, 3) == 0) std::shuffle(axes.begin(), axes.end(), random);
        const int64_t gap = pick(0, 2) == 0 ? pick(1, 3) : 1;
        int64_t stride = bytes * (pick(0, 4) == 0 ? 2 : 1);
        for (std::size_t k = axes.size(); k-- > 0;) {
            *axes[k].stride = stride;
            stride *= std::max<int64_t>(axes[k].size, 1);
            if (gap > 1) stride += gap * bytes;
        }
        contiguous = (bits & 1) && b.x_stride == bytes;
        int64_t last = bytes;
        int64_t first = 0;
        for (const Axis& axis : axes) {
            if (axis.size <= 1) continue;
            if (!output && pick(0, 8) == 0) {  // backwards
                *axis.stride = -*axis.stride;
                first += (axis.size - 1) * -*axis.stride;
                contiguous = contiguous && axis.stride != &b.x_stride;
            }
            last += (axis.size - 1) * std::abs(*axis.stride);
        }
        auto g = std::make_unique<Guarded>(static_cast<std::size_t>(last));
        fill(s, *g);
        b.base = g->data() + first;
        memory.push_back(std::move(g));
        // The encoder promises strides of 0 or not by class; sizes of 1 may have any.
        return b;
    }

    Reg input(Op load, Storage s, Cls cls) {
        bool contiguous = false;
        const Binding b = bind(s, cls, false, contiguous, 0);
        bindings.push_back(b);
        return builder.load(load, builder.operand(Role::kInput, s, cls, contiguous));
    }

    void output(Op store, Storage s, Reg value) {
        int bits = static_cast<int>(value.cls);
        const int allowed = pass_ ? 3 : 3 & ~static_cast<int>(fold_);
        if (pick(0, 5) == 0) bits |= static_cast<int>(pick(0, 3)) & allowed;
        // A pass stores each element once only if the operand varies over what the pass sweeps.
        if (pass_) bits |= static_cast<int>(fold_);
        const Cls cls = static_cast<Cls>(bits);
        bool contiguous = false;
        const Binding b = bind(s, cls, true, contiguous, 0);
        bindings.push_back(b);
        outputs.push_back(memory.size() - 1);
        output_operands.push_back(bindings.size() - 1);
        builder.store(store, builder.operand(Role::kOutput, s, cls, contiguous), value);
    }

    // Live registers by type: floats, i32, i64, bools.
    std::vector<Reg> live[4];
    Fold fold_ = Fold::kNone;
    bool pass_ = false;

    Reg any(RegType t, int mask = 3) {
        auto& of = live[static_cast<int>(t)];
        for (int tries = 0; tries < 20 && !of.empty(); ++tries) {
            const Reg r = of[static_cast<std::size_t>(
                pick(std::max<int64_t>(0, static_cast<int64_t>(of.size()) - 6),
                     static_cast<int64_t>(of.size()) - 1))];
            if ((static_cast<int>(r.cls) & ~mask) == 0) return r;
        }
        switch (t) {
            case RegType::kF32: return builder.constant(static_cast<float>(pick(-4, 4)));
            case RegType::kI32: return builder.constant(static_cast<std::int32_t>(pick(-4, 4)));
            case RegType::kI64: return builder.constant(pick(-4, 4));
            case RegType::kB8: return builder.constant(pick(0, 1) == 1);
        }
        return {};
    }

    void keep(RegType t, Reg r) { live[static_cast<int>(t)].push_back(r); }
    Cls random_class() {
        const int allowed = pass_ ? 3 : 3 & ~static_cast<int>(fold_);
        return static_cast<Cls>((pick(0, 1) ? 3 : static_cast<int>(pick(0, 3))) & allowed);
    }

    Reg clamp(Reg r) {
        r = builder.map(Op::minimum_f32, r, builder.constant(64.0f));
        return builder.map(Op::maximum_f32, r, builder.constant(-64.0f));
    }

    void random_instr() {
        switch (pick(0, 17)) {
            case 0: keep(RegType::kF32, input(Op::load_f32, Storage::kF32, random_class())); break;
            case 1: keep(RegType::kF32, input(Op::load_bf16, Storage::kBF16, random_class())); break;
            case 2: keep(RegType::kF32, input(Op::load_f64, Storage::kF64, random_class())); break;
            case 3: keep(RegType::kI32, input(Op::load_i32, Storage::kI32, random_class())); break;
            case 4: keep(RegType::kI64, input(Op::load_i64, Storage::kI64, random_class())); break;
            case 5: keep(RegType::kB8, input(Op::load_b8, Storage::kB8, random_class())); break;
            case 6: keep(RegType::kF32, builder.map(Op::add_f32, any(RegType::kF32), any(RegType::kF32))); break;
            case 7: keep(RegType::kF32, clamp(builder.map(Op::mul_f32, any(RegType::kF32), any(RegType::kF32)))); break;
            case 8: {
                const Op op = choice({Op::sub_f32, Op::maximum_f32, Op::minimum_f32});
                keep(RegType::kF32, builder.map(op, any(RegType::kF32), any(RegType::kF32)));
                break;
            }
            case 9: {
                const Op op = choice({Op::abs_f32, Op::neg_f32, Op::sign_f32, Op::floor_f32, Op::round_bf16});
                keep(RegType::kF32, builder.map(op, any(RegType::kF32)));
                break;
            }
            case 10: {
                const Op op = choice({Op::add_i64, Op::sub_i64, Op::mul_i64, Op::maximum_i64, Op::xor_i64,
                                      Op::shl_i64, Op::shr_i64, Op::pow_i64});
                keep(RegType::kI64, builder.map(op, any(RegType::kI64), builder.map(Op::sign_i64, any(RegType::kI64))));
                break;
            }
            case 11: {
                const Op op = choice({Op::add_i32, Op::sub_i32, Op::mul_i32, Op::minimum_i32, Op::and_i32, Op::shr_i32});
                keep(RegType::kI32, builder.map(op, any(RegType::kI32), any(RegType::kI32)));
                break;
            }
            case 12: {
                const Op op = choice({Op::eq_f32, Op::ne_f32, Op::lt_f32, Op::le_f32, Op::gt_f32, Op::ge_f32});
                keep(RegType::kB8, builder.map(op, any(RegType::kF32), any(RegType::kF32)));
                keep(RegType::kB8, builder.map(Op::isnan_f32, any(RegType::kF32)));
                break;
            }
            case 13: {
                const Op op = choice({Op::eq_i64, Op::lt_i64, Op::ge_i64});
                keep(RegType::kB8, builder.map(op, any(RegType::kI64), any(RegType::kI64)));
                keep(RegType::kB8, builder.map(Op::or_b8, any(RegType::kB8), any(RegType::kB8)));
                break;
            }
            case 14:
                keep(RegType::kF32, builder.map(Op::select_f32, any(RegType::kB8), any(RegType::kF32), any(RegType::kF32)));
                keep(RegType::kI64, builder.map(Op::select_i64, any(RegType::kB8), any(RegType::kI64), any(RegType::kI64)));
                keep(RegType::kB8, builder.map(Op::select_b8, any(RegType::kB8), any(RegType::kB8), any(RegType::kB8)));
                break;
            case 15:
                keep(RegType::kF32, builder.map(Op::cast_i32_f32, builder.map(Op::sign_i32, any(RegType::kI32))));
                keep(RegType::kI32, builder.map(Op::cast_f32_i32, any(RegType::kF32)));
                keep(RegType::kI64, builder.map(Op::cast_i32_i64, any(RegType::kI32)));
                keep(RegType::kF32, builder.map(Op::cast_b8_f32, any(RegType::kB8)));
                break;
            case 16: {
                const Cls cls = random_class();
                Binding b;
                b.start = pick(-5, 5);
                const int bits = static_cast<int>(cls);
                if (bits & 1) b.x_stride = pick(1, 3);
                if (bits & 2) b.y_stride = pick(-2, 2);
                for (int i = 0; i < space.n_outer; ++i) b.outer[i] = pick(-2, 2);
                for (int i = 0; pass_ && i < space.n_reduced; ++i) b.reduced[i] = pick(0, 9);
                bindings.push_back(b);
                keep(RegType::kI64, builder.iota(builder.operand(Role::kIota, Storage::kI64, cls)));
                break;
            }
            case 17: {
                const int64_t size = pick(1, 9);
                const auto clip = [&](Reg r) {
                    r = builder.map(Op::maximum_i64, r, builder.constant(int64_t{0}));
                    return builder.map(Op::minimum_i64, r, builder.constant(size - 1));
                };
                bool contiguous = false;
                const bool wide = pick(0, 1) == 1;
                const Cls cls = random_class();
                const Reg index = clip(any(RegType::kI64));
                Binding b = bind(wide ? Storage::kI64 : Storage::kF32, cls, false, contiguous, size);
                b.gather_size = size;
                bindings.push_back(b);
                const auto mem = builder.operand(Role::kGather, wide ? Storage::kI64 : Storage::kF32, cls, contiguous);
                if (wide) {
                    keep(RegType::kI64, builder.gather(Op::gather_i64, mem, index));
                } else {
                    keep(RegType::kF32, builder.gather(Op::gather_f32, mem, index));
                }
                break;
            }
        }
    }

    void random_output() {
        switch (pick(0, 4)) {
            case 0: output(Op::store_bf16, Storage::kBF16, any(RegType::kF32)); break;
            case 1: output(Op::store_i64, Storage::kI64, any(RegType::kI64)); break;
            case 2: output(Op::store_b8, Storage::kB8, any(RegType::kB8)); break;
            case 3: output(Op::store_i32, Storage::kI32, any(RegType::kI32)); break;
            default: output(Op::store_f32, Storage::kF32, any(RegType::kF32)); break;
        }
    }

    void random_fold(std::vector<std::pair<RegType, Reg>>& folded) {
        const int kept = 3 & ~static_cast<int>(fold_);
        const auto done = [&](RegType t, Reg r) { folded.push_back({t, r}); };
        switch (pick(0, 5)) {
            case 0: done(RegType::kF32, builder.fold(Op::sum_f32, any(RegType::kF32))); break;
            case 1: {
                const Reg unit = builder.map(Op::sign_f32, any(RegType::kF32));
                done(RegType::kF32, builder.fold(Op::prod_f32, unit));
                break;
            }
            case 2: done(RegType::kF32, builder.fold(choice({Op::max_f32, Op::min_f32}), any(RegType::kF32))); break;
            case 3:
                done(RegType::kI64, builder.fold(choice({Op::sum_i64, Op::prod_i64, Op::max_i64, Op::min_i64}), any(RegType::kI64)));
                done(RegType::kI32, builder.fold(choice({Op::max_i32, Op::min_i32}), any(RegType::kI32)));
                break;
            case 4: done(RegType::kB8, builder.fold(choice({Op::any_b8, Op::all_b8}), any(RegType::kB8))); break;
            case 5: {
                const Op op = choice({Op::argmax_f32, Op::argmin_f32});
                const Reg a = any(RegType::kF32);
                const int mask = static_cast<int>(fold_) | (static_cast<int>(a.cls) & kept);
                done(RegType::kI64, builder.fold(op, a, any(RegType::kI64, mask)));
                const Reg w = any(RegType::kI32);
                const int wide = static_cast<int>(fold_) | (static_cast<int>(w.cls) & kept);
                done(RegType::kI64, builder.fold(choice({Op::argmax_i32, Op::argmin_i32}), w, any(RegType::kI64, wide)));
                break;
            }
        }
    }

    std::vector<std::byte> random_program(Fold fold) {
        fold_ = fold;
        builder.reset(fold);
        const auto some = [&](int64_t low, int64_t high, auto f) {
            for (int64_t k = pick(low, high); k > 0; --k) f();
        };
        some(1, fold == Fold::kNone ? 25 : 4, [&] { random_instr(); });
        struct Kept {
            std::uint16_t mem;
            RegType type;
            Op load;
        };
        std::vector<Kept> scratch;
        for (int64_t pass = fold == Fold::kNone ? 0 : pick(1, 3); pass > 0; --pass) {
            builder.begin_pass();
            pass_ = true;
            std::vector<Reg> section[4] = {live[0], live[1], live[2], live[3]};
            std::vector<std::pair<RegType, Reg>> folded;
            for (const Kept& k : scratch) {
                if (pick(0, 3) > 0) keep(k.type, builder.load(k.load, k.mem));
            }
            some(1, 12, [&] { random_instr(); });
            some(0, 3, [&] { random_fold(folded); });
            some(0, 2, [&] { random_instr(); });
            if (pick(0, 1)) {
                const auto mem = [&](Storage s) {
                    bindings.push_back({});
                    return builder.operand(Role::kScratch, s, Cls::kFull, true);
                };
                std::vector<Kept> more;
                if (pick(0, 1)) {
                    more.push_back({mem(Storage::kF32), RegType::kF32, Op::load_f32});
                    builder.store(Op::store_f32, more.back().mem, any(RegType::kF32));
                }
                if (pick(0, 3) == 0) {
                    more.push_back({mem(Storage::kBF16), RegType::kF32, Op::load_bf16});
                    builder.store(Op::store_bf16, more.back().mem, any(RegType::kF32));
                }
                if (pick(0, 3) == 0) {
                    more.push_back({mem(Storage::kB8), RegType::kB8, Op::load_b8});
                    builder.store(Op::store_b8, more.back().mem, any(RegType::kB8));
                }
                scratch.insert(scratch.end(), more.begin(), more.end());
            }
            some(0, 2, [&] { random_output(); });
            builder.end_pass();
            pass_ = false;
            for (int t = 0; t < 4; ++t) live[t] = section[t];
            for (const auto& [type, r] : folded) keep(type, r);
            some(0, 4, [&] { random_instr(); });
        }
        some(1, 2, [&] { random_output(); });
        return builder.finish();
    }
};

bool same_memory(const std::vector<std::byte>& a, const std::vector<std::byte>& b, Storage s) {
    const std::size_t bytes = static_cast<std::size_t>(storage_bytes(s));
    for (std::size_t at = 0; at + bytes <= a.size(); at += bytes) {
        const Value x = read(s, a.data() + at);
        const Value y = read(s, b.data() + at);
        const bool floats = s == Storage::kF32 || s == Storage::kBF16;
        if (floats && std::isnan(x.f) && std::isnan(y.f)) continue;
        if (floats ? x.f != y.f : x.i != y.i) return false;
    }
    return true;
}

void random_trials(int from, int n, bool verbose) {
    exec::interp::Scratch scratch;
    const std::initializer_list<int64_t> sizes = {0, 1, 2, 7, 16, 33, 64, 65, 100, 200, 1023};
    for (int t = from; t < from + n; ++t) {
        Trial trial(static_cast<unsigned>(t));
        const Fold fold = static_cast<Fold>(t % 4);
        Space& space = trial.space;
        trial.nans = trial.pick(0, 3) == 0;
        space.cols = trial.choice(sizes);
        space.rows = trial.choice(sizes);
        while (space.rows * space.cols > 20000) space.rows = space.rows / 2;
        if (trial.pick(0, 15) == 0) space.cols = 5000, space.rows = trial.pick(1, 2);
        if (trial.pick(0, 15) == 0) space.rows = 5000, space.cols = trial.pick(1, 7);
        space.n_outer = static_cast<int>(trial.pick(0, 2)) * static_cast<int>(trial.pick(0, 1));
        for (int i = 0; i < space.n_outer; ++i) space.outer[i] = trial.pick(i == 0 ? 0 : 1, 3);
        if (fold != Fold::kNone && trial.pick(0, 2) == 0) {
            space.n_reduced = static_cast<int>(trial.pick(1, 2));
            for (int i = 0; i < space.n_reduced; ++i) space.reduced[i] = trial.pick(trial.pick(0, 8) == 0 ? 0 : 1, 3);
        }
        const std::vector<std::byte> program = trial.random_program(fold);
        const std::string error = verify(program);
        const std::string name = "trial " + std::to_string(t) + ", " + std::to_string(space.rows) +
                                 "x" + std::to_string(space.cols) + ", fold " +
                                 std::to_string(t % 4);
        check(error.empty(), name + ": " + error);
        if (!error.empty()) continue;
        const Launch launch = {space, trial.bindings};
        std::vector<std::vector<std::byte>> before;
        for (const auto& m : trial.memory) before.emplace_back(m->data(), m->data() + m->size());
        const exec::interp::Kernel kernel(program);
        const Status got = kernel.run(launch, scratch);
        std::vector<std::vector<std::byte>> after;
        for (const auto& m : trial.memory) after.emplace_back(m->data(), m->data() + m->size());
        for (std::size_t i = 0; i < before.size(); ++i) {
            std::memcpy(trial.memory[i]->data(), before[i].data(), before[i].size());
        }
        bool empty = (t & 1 && space.cols == 0) || (t & 2 && space.rows == 0);
        for (int i = 0; i < space.n_reduced; ++i) empty = empty || space.reduced[i] == 0;
        if (empty) {
            check(got == Status::kOk, name + ": status of an empty reduction");
            continue;  // empty_reductions_give_identities
        }
        const Status want = Meaning(program, launch).run();
        check(got == want, name + ": status");
        if (got != Status::kOk) continue;
        const View v = view(program);
        std::size_t output = 0;
        for (std::size_t i = 0; i < trial.memory.size(); ++i) {
            const bool is_output = output < trial.outputs.size() && trial.outputs[output] == i;
            if (!is_output) {
                check(after[i] == before[i], name + ": an input was written");
                continue;
            }
            const Storage s = v.operands[trial.output_operands[output++]].storage;
            const std::vector<std::byte> wanted(trial.memory[i]->data(),
                                                trial.memory[i]->data() + trial.memory[i]->size());
            const bool same = same_memory(after[i], wanted, s);
            check(same, name + ": output " + std::to_string(output));
            if (!same && verbose) {
                std::printf("%s\n", disassemble(program).c_str());
                const std::size_t bytes = static_cast<std::size_t>(storage_bytes(s));
                for (std::size_t at = 0, k = 0; at + bytes <= wanted.size() && k < 8; at += bytes) {
                    const Value x = read(s, after[i].data() + at);
                    const Value y = read(s, wanted.data() + at);
                    if (x.f == y.f && x.i == y.i) continue;
                    std::printf("  m%zu at %zu: %g %ld, not %g %ld\n", trial.output_operands[output - 1],
                                at / bytes, x.f, x.i, y.f, y.i);
                    ++k;
                }
            }
        }
        // Cut in rows, as threads do: the same bits.
        if (fold == Fold::kColumns && space.rows > 3) {
            for (std::size_t i = 0; i < before.size(); ++i) {
                std::memcpy(trial.memory[i]->data(), before[i].data(), before[i].size());
            }
            const int64_t cut = space.rows / 3;
            Space part = space;
            std::vector<Binding> moved = trial.bindings;
            part.rows = cut;
            Status status = kernel.run({part, moved}, scratch);
            part.rows = space.rows - cut;
            for (std::size_t i = 0; i < moved.size(); ++i) {
                if (v.operands[i].role == Role::kIota) {
                    moved[i].start += cut * moved[i].y_stride;
                } else {
                    moved[i].base += cut * moved[i].y_stride;
                }
            }
            status = status == Status::kOk ? kernel.run({part, moved}, scratch) : status;
            check(status == Status::kOk, name + ": status when cut");
            for (std::size_t i = 0; i < trial.memory.size(); ++i) {
                check(std::memcmp(trial.memory[i]->data(), after[i].data(), after[i].size()) == 0,
                      name + ": cut rows differ");
            }
        }
    }
}

// Every map instruction, over special values ------------------------------------------------------

double distance_in_ulps(float got, float want) {
    if (std::isnan(got) || std::isnan(want)) return std::isnan(got) && std::isnan(want) ? 0 : 1e9;
    if (got == want) return 0;
    if (std::isinf(got) || std::isinf(want)) {
        return std::fabs(got) >= FLT_MAX && std::fabs(want) >= FLT_MAX && (got > 0) == (want > 0) ? 1 : 1e9;
    }
    const float unit = std::fabs(std::nextafterf(want, INFINITY) - want);
    return std::fabs(static_cast<double>(got) - want) / unit;
}

template <class T>
std::vector<T> corners() {
    using limits = std::numeric_limits<T>;
    std::vector<T> v;
    if constexpr (std::is_floating_point_v<T>) {
        for (const double x : {0.0, 1.0, 0.5, 2.5, 1e-3, 3.7, 20.0, 88.0, 1e5, 1e-20, 1e10, 3e38, 1e-40, 2147483648.0, 1e19}) {
            v.push_back(static_cast<T>(x));
            v.push_back(static_cast<T>(-x));
        }
        v.push_back(limits::infinity());
        v.push_back(-limits::infinity());
        v.push_back(limits::quiet_NaN());
        for (int i = -30; i < 30; ++i) v.push_back(static_cast<T>(i) * static_cast<T>(0.37));
    } else if constexpr (sizeof(T) == 1) {
        v = {0, 1, 1, 0, 1};
    } else {
        v = {0, 1, -1, 2, -2, 3, 7, -7, 31, 32, 33, 63, 64, 100, limits::min(), limits::max(), 12345};
    }
    return v;
}

void every_map_instruction() {
    exec::interp::Scratch scratch;
    for (int op = 0; op < kOpCount; ++op) {
        const InstrInfo& row = kIsa[op];
        if (row.cls != InstrClass::kMap) continue;
        for (const int splat : {-1, 0, 1, 2}) {
            const int n_sources = row.n_fields - 1;
            if (splat >= n_sources) continue;
            if (n_sources == 1 && splat >= 0) continue;
            std::vector<std::vector<Value>> values(3);
            std::vector<std::vector<Value>> source_values(3);
            for (int k = 0; k < n_sources; ++k) {
                const auto add = [&](auto of) {
                    for (const auto x : of) {
                        Value v;
                        v.f = static_cast<float>(x);
                        v.i = std::is_floating_point_v<decltype(x)> ? 0 : static_cast<int64_t>(x);
                        source_values[k].push_back(v);
                    }
                };
                switch (row.fields[k + 1].type) {
                    case RegType::kF32: add(corners<float>()); break;
                    case RegType::kI32: add(corners<std::int32_t>()); break;
                    case RegType::kI64: add(corners<int64_t>()); break;
                    case RegType::kB8: add(corners<std::uint8_t>()); break;
                }
            }
            // All pairs; a third source in step.
            const std::size_t na = source_values[0].size();
            const std::size_t nb = n_sources > 1 ? source_values[1].size() : 1;
            for (std::size_t i = 0; i < na; ++i) {
                for (std::size_t j = 0; j < nb; ++j) {
                    values[0].push_back(source_values[0][splat == 0 ? 3 : i]);
                    if (n_sources > 1) values[1].push_back(source_values[1][splat == 1 ? 4 : j]);
                    if (n_sources > 2) {
                        values[2].push_back(source_values[2][splat == 2 ? 2 : (i + j) % source_values[2].size()]);
                    }
                }
            }
            const bool divides = row.name.find("_i") != std::string_view::npos &&
                                 (row.name.find("div") != std::string_view::npos ||
                                  row.name.find("remainder") != std::string_view::npos ||
                                  row.name.find("fmod") != std::string_view::npos);
            if (divides) {
                for (Value& v : values[1]) v.i = v.i == 0 ? 5 : v.i;
            }
            Builder b;
            std::vector<Binding> bindings;
            std::vector<std::unique_ptr<Guarded>> memory;
            Reg sources[3];
            const std::size_t n = values[0].size();
            const auto storage = [](RegType t) {
                constexpr Storage of[] = {Storage::kF32, Storage::kI32, Storage::kI64, Storage::kB8};
                return of[static_cast<int>(t)];
            };
            const auto op_for = [](Storage s, bool load) {
                switch (s) {
                    case Storage::kF32: return load ? Op::load_f32 : Op::store_f32;
                    case Storage::kI32: return load ? Op::load_i32 : Op::store_i32;
                    case Storage::kI64: return load ? Op::load_i64 : Op::store_i64;
                    default: return load ? Op::load_b8 : Op::store_b8;
                }
            };
            const auto make = [&](Storage s, bool scalar) {
                const int64_t bytes = storage_bytes(s);
                memory.push_back(std::make_unique<Guarded>(scalar ? bytes : n * bytes));
                Binding binding;
                binding.base = memory.back()->data();
                binding.x_stride = scalar ? 0 : bytes;
                bindings.push_back(binding);
            };
            for (int k = 0; k < n_sources; ++k) {
                const Storage s = storage(row.fields[k + 1].type);
                make(s, k == splat);
                for (std::size_t i = 0; i < (k == splat ? 1 : n); ++i) {
                    write(s, memory.back()->data() + i * storage_bytes(s), values[k][i]);
                }
                const Cls cls = k == splat ? Cls::kScalar : Cls::kColumn;
                sources[k] = b.load(op_for(s, true), b.operand(Role::kInput, s, cls, k != splat));
            }
            const Reg r = b.map(static_cast<Op>(op), {sources, static_cast<std::size_t>(n_sources)});
            const Storage s = storage(row.fields[0].type);
            make(s, false);
            b.store(op_for(s, false), b.operand(Role::kOutput, s, Cls::kColumn, true), r);
            const std::vector<std::byte> program = b.finish();
            check(verify(program).empty(), std::string(row.name) + ": " + verify(program));
            Space space;
            space.cols = static_cast<int64_t>(n);
            const Status status = exec::interp::Kernel(program).run({space, bindings}, scratch);
            check(status == Status::kOk, std::string(row.name) + ": status");
            for (std::size_t i = 0; i < n; ++i) {
                const auto at = [&](int k) { return values[k].empty() ? Value{} : values[k][i]; };
                Value want;
                if (!apply_map(row, at(0), at(1), at(2), want)) continue;
                const Value got = read(s, memory.back()->data() + i * storage_bytes(s));
                const bool floats = s == Storage::kF32;
                const bool close = floats ? distance_in_ulps(got.f, want.f) <= 2.5 ||
                                                std::fabs(got.f - want.f) < 1e-6f * std::fabs(at(0).f) + 1e-37f
                                          : got.i == want.i;
                check(close, std::string(row.name) + " of " + std::to_string(at(0).f) + " " +
                                 std::to_string(at(0).i) + ", " + std::to_string(at(1).f) + " " +
                                 std::to_string(at(1).i) + ": " + std::to_string(got.f) + " " +
                                 std::to_string(got.i) + ", not " + std::to_string(want.f) + " " +
                                 std::to_string(want.i));
            }
        }
    }
}

// Errors -----------------------------------------------------------------------------------------

void errors_stop_the_launch() {
    exec::interp::Scratch scratch;
    for (const int64_t n : {1, 7, 64, 65, 1023, 5000}) {
        for (const bool bad : {false, true}) {
            std::vector<std::int32_t> a(n, INT32_MIN);
            std::vector<std::int32_t> d(n, -1);
            std::vector<std::int32_t> out(n);
            if (bad) d[n - 1] = 0;
            Builder b;
            const auto column = [&](Role role) { return b.operand(role, Storage::kI32, Cls::kColumn, true); };
            const Reg ra = b.load(Op::load_i32, column(Role::kInput));
            const Reg rd = b.load(Op::load_i32, column(Role::kInput));
            b.store(Op::store_i32, column(Role::kOutput), b.map(Op::floor_div_i32, ra, rd));
            std::vector<Binding> bindings(3);
            std::int32_t* data[] = {a.data(), d.data(), out.data()};
            for (int i = 0; i < 3; ++i) {
                bindings[i].base = reinterpret_cast<std::byte*>(data[i]);
                bindings[i].x_stride = 4;
            }
            Space space;
            space.cols = n;
            const Status got = exec::interp::Kernel(b.finish()).run({space, bindings}, scratch);
            check(got == (bad ? Status::kDivisionByZero : Status::kOk), "division by zero");
            check(bad || out[n - 1] == INT32_MIN, "the lowest value by -1 wraps");
        }
        for (const int64_t size : {0, 5}) {
            for (const int64_t wrong : {int64_t{-1}, size, int64_t{1} << 40, INT64_MIN}) {
                for (const bool row_index : {false, true}) {
                    std::vector<int64_t> index(n, 0);
                    index[n - 1] = wrong;
                    std::vector<float> out(n * 3);
                    Guarded table(size * 12);
                    Builder b;
                    const Cls cls = row_index ? Cls::kRow : Cls::kColumn;
                    const Reg r = b.load(Op::load_i64, b.operand(Role::kInput, Storage::kI64, cls, !row_index));
                    const auto mem = b.operand(Role::kGather, Storage::kF32, row_index ? Cls::kColumn : Cls::kRow, row_index);
                    const Reg g = b.gather(Op::gather_f32, mem, r);
                    b.store(Op::store_f32, b.operand(Role::kOutput, Storage::kF32, Cls::kFull, true), g);
                    std::vector<Binding> bindings(3);
                    bindings[0].base = reinterpret_cast<std::byte*>(index.data());
                    bindings[1].base = table.data();
                    bindings[1].gather_size = size;
                    bindings[1].gather_stride = 12;
                    bindings[2].base = reinterpret_cast<std::byte*>(out.data());
                    bindings[2].x_stride = 4;
                    Space space;
                    space.rows = row_index ? n : 3;
                    space.cols = row_index ? 3 : n;
                    (row_index ? bindings[0].y_stride : bindings[0].x_stride) = 8;
                    (row_index ? bindings[1].x_stride : bindings[1].y_stride) = 4;
                    bindings[2].y_stride = 4 * space.cols;
                    const Status got = exec::interp::Kernel(b.finish()).run({space, bindings}, scratch);
                    check(got == Status::kIndexOutOfRange, "index " + std::to_string(wrong));
                }
            }
        }
    }
}

// x = (x + 1) * x, in place: the second read of x must see the old value.
void in_place_reads_old_values() {
    exec::interp::Scratch scratch;
    std::vector<float> x(5000);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17);
    const std::vector<float> old = x;
    Builder b;
    const auto mem = b.operand(Role::kInput, Storage::kF32, Cls::kColumn, true);
    const auto out = b.operand(Role::kOutput, Storage::kF32, Cls::kColumn, true);
    const Reg a = b.load(Op::load_f32, mem);
    const Reg up = b.map(Op::add_f32, a, b.constant(1.0f));
    b.store(Op::store_f32, out, up);
    const Reg product = b.map(Op::mul_f32, up, a);
    const auto second = b.operand(Role::kOutput, Storage::kF32, Cls::kColumn, true);
    b.store(Op::store_f32, second, product);
    std::vector<float> y(x.size());
    std::vector<Binding> bindings(3);
    float* data[] = {x.data(), x.data(), y.data()};
    for (int i = 0; i < 3; ++i) {
        bindings[i].base = reinterpret_cast<std::byte*>(data[i]);
        bindings[i].x_stride = 4;
    }
    Space space;
    space.cols = static_cast<int64_t>(x.size());
    check(exec::interp::Kernel(b.finish()).run({space, bindings}, scratch) == Status::kOk, "in place");
    bool ok = true;
    for (std::size_t i = 0; i < x.size(); ++i) {
        ok = ok && x[i] == old[i] + 1 && y[i] == (old[i] + 1) * old[i];
    }
    check(ok, "in place: values");
}

void empty_reductions_give_identities() {
    exec::interp::Scratch scratch;
    const float inf = std::numeric_limits<float>::infinity();
    struct Case {
        Op fold;
        Value want;
    };
    const std::initializer_list<Case> cases = {
        {Op::sum_f32, {0, 0}},          {Op::prod_f32, {1, 0}},
        {Op::max_f32, {-inf, 0}},       {Op::min_f32, {inf, 0}},
        {Op::sum_i64, {0, 0}},          {Op::prod_i64, {0, 1}},
        {Op::max_i64, {0, INT64_MIN}},  {Op::min_i64, {0, INT64_MAX}},
        {Op::max_i32, {0, INT32_MIN}},  {Op::min_i32, {0, INT32_MAX}},
        {Op::any_b8, {0, 0}},           {Op::all_b8, {0, 1}}};
    for (const Fold fold : {Fold::kColumns, Fold::kRows, Fold::kBoth}) {
        for (const Case& c : cases) {
            for (const bool by_outer : {false, true}) {
                const InstrInfo& row = kIsa[static_cast<int>(c.fold)];
                constexpr Op loads[] = {Op::load_f32, Op::load_i32, Op::load_i64, Op::load_b8};
                constexpr Op stores[] = {Op::store_f32, Op::store_i32, Op::store_i64, Op::store_b8};
                constexpr Storage storages[] = {Storage::kF32, Storage::kI32, Storage::kI64, Storage::kB8};
                const int type = static_cast<int>(row.fields[0].type);
                const Storage s = storages[type];
                const int64_t bytes = storage_bytes(s);
                const Cls cls = static_cast<Cls>(3 & ~static_cast<int>(fold));
                Builder b(fold);
                b.begin_pass();
                const Reg r = b.fold(c.fold, b.load(loads[type], b.operand(Role::kInput, s, Cls::kFull, true)));
                b.end_pass();
                b.store(stores[type], b.operand(Role::kOutput, s, cls, fold == Fold::kRows), r);
                Space space;
                space.rows = space.cols = 7;
                if (by_outer) {
                    space.n_reduced = 1;
                    space.reduced[0] = 0;
                } else {
                    if (fold != Fold::kColumns) space.rows = 0;
                    if (fold != Fold::kRows) space.cols = 0;
                }
                const std::size_t kept = fold == Fold::kBoth ? 1 : 7;
                Guarded in(0);
                Guarded out(kept * static_cast<std::size_t>(bytes));
                std::memset(out.data(), 0x55, out.size());
                std::vector<Binding> bindings(2);
                bindings[0].base = in.data();
                bindings[0].x_stride = bytes;
                bindings[0].y_stride = 7 * bytes;
                bindings[1].base = out.data();
                if (fold == Fold::kColumns) bindings[1].y_stride = bytes;
                if (fold == Fold::kRows) bindings[1].x_stride = bytes;
                const Status got = exec::interp::Kernel(b.finish()).run({space, bindings}, scratch);
                check(got == Status::kOk, "empty reduction: status");
                for (std::size_t i = 0; i < kept; ++i) {
                    const Value v = read(s, out.data() + i * static_cast<std::size_t>(bytes));
                    check(v.f == c.want.f && v.i == c.want.i, std::string(row.name) + " of nothing");
                }
            }
        }
    }
}

// Precision: a long sum of values that float32 alone would lose.
void sums_are_precise() {
    exec::interp::Scratch scratch;
    for (const Fold fold : {Fold::kColumns, Fold::kRows, Fold::kBoth}) {
        const int64_t rows = fold == Fold::kColumns ? 3 : 300000;
        const int64_t cols = fold == Fold::kColumns ? 300000 : fold == Fold::kRows ? 70 : 7;
        std::vector<float> x(rows * cols);
        std::mt19937 random(1);
        std::uniform_real_distribution<float> uniform(0.9f, 1.1f);
        for (float& v : x) v = uniform(random);
        const int64_t kept = fold == Fold::kColumns ? rows : fold == Fold::kRows ? cols : 1;
        std::vector<float> out(kept);
        std::vector<double> want(kept);
        for (int64_t i = 0; i < rows * cols; ++i) {
            want[fold == Fold::kColumns ? i / cols : fold == Fold::kRows ? i % cols : 0] += x[i];
        }
        Builder b(fold);
        const Cls cls = fold == Fold::kColumns ? Cls::kRow : fold == Fold::kRows ? Cls::kColumn : Cls::kScalar;
        b.begin_pass();
        const Reg sum = b.fold(Op::sum_f32, b.load(Op::load_f32, b.operand(Role::kInput, Storage::kF32, Cls::kFull, true)));
        b.end_pass();
        b.store(Op::store_f32, b.operand(Role::kOutput, Storage::kF32, cls, fold == Fold::kRows), sum);
        std::vector<Binding> bindings(2);
        bindings[0].base = reinterpret_cast<std::byte*>(x.data());
        bindings[0].y_stride = cols * 4;
        bindings[0].x_stride = 4;
        bindings[1].base = reinterpret_cast<std::byte*>(out.data());
        (fold == Fold::kColumns ? bindings[1].y_stride : bindings[1].x_stride) = 4;
        Space space;
        space.rows = rows;
        space.cols = cols;
        check(exec::interp::Kernel(b.finish()).run({space, bindings}, scratch) == Status::kOk, "sum");
        for (int64_t i = 0; i < kept; ++i) {
            check(std::fabs(out[i] - want[i]) <= 2e-7 * want[i], "sum precision, fold " + std::to_string(static_cast<int>(fold)));
        }
    }
}

}  // namespace

// interp_test [trials [first trial [target]]]: with a first trial, failing programs are printed.
int main(int argc, char** argv) {
    if (argc > 3) {
        const std::string name = argv[3];
        for (int bit = 0; bit < 63; ++bit) {
            const int64_t target = int64_t{1} << bit;
            if (name == hwy::TargetName(target)) hwy::SetSupportedTargetsForTest(target);
        }
    }
    std::printf("target %s\n", exec::interp::target_name());
    every_map_instruction();
    errors_stop_the_launch();
    in_place_reads_old_values();
    sums_are_precise();
    empty_reductions_give_identities();
    const int trials = argc > 1 ? std::atoi(argv[1]) : 400;
    random_trials(argc > 2 ? std::atoi(argv[2]) : 0, trials, argc > 2);
    std::printf(failures == 0 ? "ok\n" : "%d failures\n", failures);
    return failures != 0;
}

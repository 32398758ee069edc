#include "exec/check.h"

#include <algorithm>
#include <array>

#include "isa.gen.h"

namespace tilevm::exec {
namespace {

using bytecode::Cls;
using bytecode::InstrClass;
using bytecode::OperandInfo;
using bytecode::Role;

__extension__ typedef __int128 Wide;

constexpr int kMaxAxes = 2 + 2 * kMaxOuter;
constexpr int kColumnBit = static_cast<int>(Cls::kColumn);
constexpr int kRowBit = static_cast<int>(Cls::kRow);

// One axis of the iteration space.
struct Axis {
  std::int64_t size;
  bool reduced;
};

// One operand as the program uses it and as it is bound. Instructions are numbered from 1.
struct Use {
  bool in_section;
  bool in_pass;
  bool touched;  // this launch may touch its memory: low <= address < high
  int last_load;
  int first_store;
  std::uintptr_t low;
  std::uintptr_t high;
  std::array<std::int64_t, kMaxAxes> stride;  // 0 where the operand does not move
};

class Checker {
 public:
  Checker(const bytecode::View& program, const Launch& launch, std::span<const Extent> extents)
      : program_(program), launch_(launch), extents_(extents) {
    std::fill_n(uses_.begin(), program.operands.size(), Use{});
  }

  std::string run() {
    if (std::string error = check_space(); !error.empty()) return error;
    find_uses();
    for (int m = 0; m < n_operands(); ++m) {
      if (std::string error = check_strides(m); !error.empty()) return at(m) + error;
    }
    if (kept_points_ == 0) return {};
    for (int m = 0; m < n_operands(); ++m) {
      if (std::string error = check_range(m); !error.empty()) return at(m) + error;
    }
    return check_overlaps();
  }

 private:
  int n_operands() const { return static_cast<int>(program_.operands.size()); }
  const OperandInfo& info(int m) const { return program_.operands[m]; }
  const Binding& binding(int m) const { return launch_.bindings[m]; }
  static std::string at(int m) { return "operand m" + std::to_string(m) + ": "; }

  std::string check_space() {
    const Space& space = launch_.space;
    if (launch_.bindings.size() != program_.operands.size()) {
      return "launch: " + std::to_string(launch_.bindings.size()) + " bindings for " +
             std::to_string(n_operands()) + " operands";
    }
    if (extents_.size() != program_.operands.size()) {
      return "launch: " + std::to_string(extents_.size()) + " extents for " +
             std::to_string(n_operands()) + " operands";
    }
    if (space.n_outer < 0 || space.n_outer > kMaxOuter || space.n_reduced < 0 ||
        space.n_reduced > kMaxOuter) {
      return "launch: more than " + std::to_string(kMaxOuter) + " outer or reduced axes";
    }
    const int fold = static_cast<int>(program_.header->fold);
    if (fold == 0 && space.n_reduced != 0) return "launch: reduced axes, but no fold";
    axes_[n_axes_++] = {space.rows, (fold & kRowBit) != 0};
    axes_[n_axes_++] = {space.cols, (fold & kColumnBit) != 0};
    for (int i = 0; i < space.n_outer; ++i) axes_[n_axes_++] = {space.outer[i], false};
    for (int i = 0; i < space.n_reduced; ++i) axes_[n_axes_++] = {space.reduced[i], true};

    std::int64_t points = 1;
    for (const Axis& axis : axes()) {
      if (axis.size < 0) return "launch: an axis of size " + std::to_string(axis.size);
      if (axis.size == 0) (axis.reduced ? reduced_points_ : kept_points_) = 0;
      if (__builtin_mul_overflow(points, std::max<std::int64_t>(axis.size, 1), &points)) {
        return "launch: more points than 64 bits count";
      }
    }
    return {};
  }

  std::span<const Axis> axes() const { return {axes_.data(), static_cast<std::size_t>(n_axes_)}; }

  void find_uses() {
    bool in_pass = false;
    int number = 0;
    for (const bytecode::Instr& instr : program_.code) {
      ++number;
      const InstrClass cls = bytecode::kIsa[instr.op].cls;
      if (cls == InstrClass::kMark) {
        in_pass = static_cast<bytecode::Op>(instr.op) == bytecode::Op::pass;
      } else if (touches_memory(cls)) {
        Use& use = uses_[instr.mem];
        (in_pass ? use.in_pass : use.in_section) = true;
        if (cls != InstrClass::kStore) use.last_load = number;
        if (cls == InstrClass::kStore && use.first_store == 0) use.first_store = number;
      }
    }
  }

  static bool touches_memory(InstrClass cls) {
    return cls == InstrClass::kLoad || cls == InstrClass::kStore || cls == InstrClass::kGather ||
           cls == InstrClass::kIota;
  }

  std::string check_strides(int m) {
    if (info(m).role == Role::kScratch) return {};
    const Binding& bound = binding(m);
    const int cls = static_cast<int>(info(m).cls);
    const std::int64_t element = bytecode::storage_bytes(info(m).storage);
    if (launch_.space.rows > 1 && ((cls & kRowBit) != 0) != (bound.y_stride != 0)) {
      return "the row stride is 0 exactly if the class lacks rows";
    }
    if (launch_.space.cols > 1 && ((cls & kColumnBit) != 0) != (bound.x_stride != 0)) {
      return "the column stride is 0 exactly if the class lacks columns";
    }
    if (launch_.space.cols > 1 && info(m).contiguous && bound.x_stride != element) {
      return "contiguous, but the column stride is " + std::to_string(bound.x_stride);
    }
    Use& use = uses_[m];
    int a = 0;
    use.stride[a++] = bound.y_stride;
    use.stride[a++] = bound.x_stride;
    for (int i = 0; i < launch_.space.n_outer; ++i) use.stride[a++] = bound.outer[i];
    for (int i = 0; i < launch_.space.n_reduced; ++i) use.stride[a++] = bound.reduced[i];
    for (a = 0; a < n_axes_; ++a) {
      if (axes_[a].size <= 1) use.stride[a] = 0;
      if (use.in_section && axes_[a].reduced && use.stride[a] != 0) {
        return "used outside passes, but it moves over a reduced axis";
      }
    }
    if (info(m).role == Role::kGather && bound.gather_size < 0) return "gather_size is negative";
    return {};
  }

  // Offsets from the base of the lowest and highest element; false if they overflow.
  bool offsets(int m, std::int64_t& low, std::int64_t& high) const {
    low = high = 0;
    const auto move = [&](std::int64_t stride, std::int64_t size) {
      std::int64_t far;
      if (__builtin_mul_overflow(stride, size - 1, &far)) return false;
      std::int64_t& side = far < 0 ? low : high;
      return !__builtin_add_overflow(side, far, &side);
    };
    for (int a = 0; a < n_axes_; ++a) {
      if (axes_[a].size > 1 && !move(uses_[m].stride[a], axes_[a].size)) return false;
    }
    return info(m).role != Role::kGather || move(binding(m).gather_stride, binding(m).gather_size);
  }

  std::string check_range(int m) {
    Use& use = uses_[m];
    const Binding& bound = binding(m);
    const bool used = use.in_section || (use.in_pass && reduced_points_ != 0);
    if (!used || info(m).role == Role::kScratch) return {};
    if (info(m).role == Role::kGather && bound.gather_size == 0) return {};
    std::int64_t low;
    std::int64_t high;
    if (!offsets(m, low, high)) return "its offsets overflow";
    if (info(m).role == Role::kIota) {
      if (__builtin_add_overflow(bound.start, low, &low) ||
          __builtin_add_overflow(bound.start, high, &high)) {
        return "its values overflow";
      }
      return {};
    }
    if (__builtin_add_overflow(high, bytecode::storage_bytes(info(m).storage), &high)) {
      return "its offsets overflow";
    }
    const auto base = reinterpret_cast<std::uintptr_t>(bound.base);
    const auto lo = reinterpret_cast<std::uintptr_t>(extents_[m].lo);
    const auto hi = reinterpret_cast<std::uintptr_t>(extents_[m].hi);
    if (bound.base == nullptr || base < lo || base > hi) return "its base is outside its memory";
    if (std::uintptr_t{0} - static_cast<std::uintptr_t>(low) > base - lo) {
      return "begins " + std::to_string(low) + " bytes from its base, before its memory";
    }
    if (static_cast<std::uintptr_t>(high) > hi - base) {
      return "ends " + std::to_string(high) + " bytes from its base, behind its memory";
    }
    use.touched = true;
    use.low = base + static_cast<std::uintptr_t>(low);
    use.high = base + static_cast<std::uintptr_t>(high);
    return {};
  }

  std::string check_overlaps() const {
    for (int out = 0; out < n_operands(); ++out) {
      if (info(out).role != Role::kOutput || !uses_[out].touched) continue;
      for (int m = 0; m < n_operands(); ++m) {
        if (m == out || !uses_[m].touched) continue;
        if (info(m).role == Role::kOutput && m < out) continue;
        if (uses_[m].high <= uses_[out].low || uses_[out].high <= uses_[m].low) continue;
        if (is_in_place(out, m) || !may_overlap(out, m)) continue;
        return at(out) + "an output that overlaps m" + std::to_string(m);
      }
    }
    return {};
  }

  // Each point reads its element of `in`, then writes the same element, which no other point has.
  bool is_in_place(int out, int in) const {
    if (info(in).role != Role::kInput || info(in).storage != info(out).storage ||
        binding(in).base != binding(out).base || uses_[in].stride != uses_[out].stride) {
      return false;
    }
    for (int a = 0; a < n_axes_; ++a) {
      const bool visited = !axes_[a].reduced || uses_[out].in_pass;
      if (visited && axes_[a].size > 1 && uses_[out].stride[a] == 0) return false;
    }
    return uses_[in].last_load < uses_[out].first_store && !self_overlaps(out);
  }

  // `count` from `least` to `most` times `stride`, which is positive.
  struct Term {
    Wide stride;
    Wide least;
    Wide most;
  };

  // Whether base(a) - base(b) + a sum of terms can come closer to 0 than the elements are wide.
  // Exact for nested axes; says yes when it would take long to find out.
  class Meeting {
   public:
    Meeting(Wide below, Wide above) : below_(below), above_(above) {}

    void add(Wide stride, Wide least, Wide most) {
      if (stride == 0 || (least == 0 && most == 0)) return;
      if (stride > 0) terms_[n_++] = {stride, least, most};
      if (stride < 0) terms_[n_++] = {-stride, -most, -least};
    }

    bool possible(Wide distance) {
      std::sort(terms_.begin(), terms_.begin() + n_,
                [](const Term& x, const Term& y) { return x.stride > y.stride; });
      rest_low_[n_] = rest_high_[n_] = 0;
      for (int k = n_ - 1; k >= 0; --k) {
        rest_low_[k] = rest_low_[k + 1] + terms_[k].least * terms_[k].stride;
        rest_high_[k] = rest_high_[k + 1] + terms_[k].most * terms_[k].stride;
      }
      return search(0, distance);
    }

   private:
    static Wide floor_div(Wide a, Wide b) { return a / b - (a % b < 0 ? 1 : 0); }

    bool search(int k, Wide distance) {
      if (distance + rest_high_[k] <= -below_ || distance + rest_low_[k] >= above_) {
        return false;
      }
      if (k == n_) return true;
      const Term& term = terms_[k];
      const Wide first =
          std::max(term.least, floor_div(-below_ - rest_high_[k + 1] - distance, term.stride) + 1);
      const Wide last =
          std::min(term.most, floor_div(above_ - rest_low_[k + 1] - distance - 1, term.stride));
      for (Wide count = first; count <= last; ++count) {
        if (--budget_ < 0 || search(k + 1, distance + count * term.stride)) return true;
      }
      return false;
    }

    Wide below_;
    Wide above_;
    int n_ = 0;
    int budget_ = 200;
    std::array<Term, 2 * kMaxAxes + 1> terms_;
    std::array<Wide, 2 * kMaxAxes + 2> rest_low_;
    std::array<Wide, 2 * kMaxAxes + 2> rest_high_;
  };

  bool may_overlap(int x, int y) const {
    Meeting meeting(bytecode::storage_bytes(info(x).storage),
                    bytecode::storage_bytes(info(y).storage));
    for (int a = 0; a < n_axes_; ++a) {
      const Wide far = std::max<std::int64_t>(axes_[a].size - 1, 0);
      if (uses_[x].stride[a] == uses_[y].stride[a]) {
        meeting.add(uses_[x].stride[a], -far, far);
      } else {
        meeting.add(uses_[x].stride[a], 0, far);
        meeting.add(uses_[y].stride[a], -far, 0);
      }
    }
    for (const int m : {x, y}) {
      if (info(m).role != Role::kGather) continue;
      const Wide far = Wide{binding(m).gather_size} - 1;
      meeting.add(m == x ? binding(m).gather_stride : -Wide{binding(m).gather_stride}, 0, far);
    }
    return meeting.possible(static_cast<Wide>(reinterpret_cast<std::uintptr_t>(binding(x).base)) -
                            static_cast<Wide>(reinterpret_cast<std::uintptr_t>(binding(y).base)));
  }

  // Whether two points may share an element, for an operand whose strides are not 0: in order of
  // size, each stride must step over everything the smaller ones reach.
  bool self_overlaps(int m) const {
    std::array<Term, kMaxAxes> moves;
    int n = 0;
    for (int a = 0; a < n_axes_; ++a) {
      const Wide stride = uses_[m].stride[a];
      if (stride != 0) moves[n++] = {stride < 0 ? -stride : stride, 0, axes_[a].size - 1};
    }
    std::sort(moves.begin(), moves.begin() + n,
              [](const Term& x, const Term& y) { return x.stride < y.stride; });
    Wide reach = bytecode::storage_bytes(info(m).storage);
    for (int i = 0; i < n; ++i) {
      if (moves[i].stride < reach) return true;
      reach += moves[i].stride * moves[i].most;
    }
    return false;
  }

  const bytecode::View& program_;
  const Launch& launch_;
  std::span<const Extent> extents_;
  std::array<Axis, kMaxAxes> axes_;
  int n_axes_ = 0;
  int kept_points_ = 1;                           // 0 if there are none: nothing runs
  int reduced_points_ = 1;                        // 0 if there are none: passes run over nothing
  std::array<Use, bytecode::kMaxOperands> uses_;  // one per operand is set
};

}  // namespace

std::string check_launch(const bytecode::View& program, const Launch& launch,
                         std::span<const Extent> extents) {
  return Checker(program, launch, extents).run();
}

}  // namespace tilevm::exec

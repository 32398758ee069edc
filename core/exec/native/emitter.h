// One pass over bytecode, for a processor T (avx512.h): the loops of a kernel, and where values
// are.
//
//   no fold           rows ( what does not vary over x; columns ( the rest ) )
//   fold of columns   rows ( sections and passes; a pass is sweeps ( columns ( body ) ) )
//   fold of rows      columns ( sections and passes; a pass is sweeps ( rows ( body ) ) )
//   fold of both      sections and passes; a pass is sweeps ( rows ( columns ( body ) ) )
//
// Several vectors of columns can go side by side ("copies"), each with values of its own.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "bytecode/bytecode.h"
#include "exec/native/emit.h"
#include "exec/native/frame.h"
#include "exec/native/listing.h"
#include "exec/native/registers.h"
#include "isa.gen.h"

namespace tilevm::exec::native {

bool is_deviations(bytecode::Op op);  // emit_fold.h

// A register of the bytecode while code is emitted: 32-bit lanes are in lo, 64-bit lanes in both,
// bools in mask. All lanes are equal if it does not vary over x.
template <class T>
struct Value {
  typename T::F lo, hi;
  typename T::M mask;
};

template <class T>
class Emitter final : private Owner {
 public:
  using F = typename T::F;
  using M = typename T::M;
  using Pair = typename T::Pair;
  using Instr = bytecode::Instr;
  using Op = bytecode::Op;
  using Class = bytecode::InstrClass;
  using Fold = bytecode::Fold;
  using Cls = bytecode::Cls;

  Emitter(asmjit::CodeHolder& holder, bytecode::View program, How how)
      : p_(program),
        n_(static_cast<int>(program.code.size())),
        n_operands_(static_cast<int>(program.operands.size())),
        copies_(how.copies),
        streams_(how.streams),
        tries_trees_(how.copies == kMaxCopies),
        listing_(Listing::of(holder)),
        t_(holder, *this) {
    const auto deviates = [](const Instr& instr) { return is_deviations(static_cast<Op>(instr.op)); };
    if (p_.header->fold == Fold::kBoth || std::ranges::any_of(p_.code, deviates)) copies_ = 1;
    if (p_.header->fold == Fold::kNone)
      copies_ = copies_ == kMaxCopies && interleaves(0, n_) ? 2 : 1;  // or else: the second try
    std::size_t n_folds = 0;
    if (p_.header->fold != Fold::kNone) fold_at_.resize(p_.header->n_registers);
    for (const Instr& instr : p_.code) {
      if (info(instr).cls == Class::kFold) fold_at_[instr.dst] = n_folds++;
    }
    for (int copy = 0; copy < widest(); ++copy) {
      values_[at(copy)].resize(p_.header->n_registers);
      folds_[at(copy)].resize(n_folds);
    }
  }

  // Returns the vectors of accumulators of a vector of columns, in a fold over rows. Throws
  // Unsupported.
  int emit() {
    check_operands();
    while (first_pass_ < n_ && op(first_pass_) != Op::pass) ++first_pass_;
    find_uses();
    find_widened_late();
    narrow_ = narrow_bytes();
    t_.prologue();
    switch (p_.header->fold) {
      case Fold::kNone:
        each_row([&] { map_row(); });
        break;
      case Fold::kColumns:
        each_row([&] { fold_row(); });
        break;
      case Fold::kRows:
        fold_columns();
        break;
      case Fold::kBoth:
        t_.load_pointers(n_operands_);
        fold_all();
        break;
    }
    if constexpr (T::kStreams) {
      if (streams_) t_.end_streams();
    }
    t_.epilogue([&] { t_.save_registers(); }, [&] { t_.load_registers(); });
    t_.emit_constants();
    check();
    return kept_before(n_);
  }

 private:
  // Bodies of at least this many operations (a function counts for several) are emitted once.
  static constexpr int kLongBody = 40;
  static constexpr int kShortBody = 8;
  static constexpr int kTinyBody = 4;
  static constexpr int kRowsAdded = 4;  // in float32, before a fold over rows takes their sum
  // Of short bodies so many rows are emitted one after the other, and folded in trees.
  static constexpr int kTreeLevels = 3;
  static constexpr int kRowsInTree = 1 << kTreeLevels;
  static constexpr int kMostCopies = kRowsInTree;
  static constexpr int kMostRegisters = 32;  // of one kind, of any processor
  static constexpr int kNarrowRegisters = 10;  // of a program that is emitted as such: see narrow()
  // Names of the loops over columns in listings.
  static constexpr const char* kSideBySide = "main loop: vectors side by side";
  static constexpr const char* kElements = "main loop: elements of 8 or 16 bits";
  static constexpr const char* kWhole = "main loop: whole vectors";
  static constexpr const char* kMasked = "main loop: all vectors, masked";
  static constexpr const char* kRest = "rest of the columns, masked";

  struct Use {
    int at;    // by order()
    int next;  // of the same register, in uses_; -1 if it is the last
  };
  struct Accumulator {
    F lo, hi;
    F index_lo, index_hi;  // of a sum of float64: what rounding lost; of a variance: squares
    M mask;                // of an extremum of float32: where there was a NaN
    F even, pair;          // rows added so far; of a variance: squares of parts of a tree
    F shift;               // of a variance: it is taken from values; NaN where one is not finite
    F odd;                 // of a tree of rows: 0, or NaN where a value is not finite
    // Of a tree of rows or copies: the left part.
    std::array<F, kTreeLevels> level, level_hi;
  };
  // A value whose register was given up.
  struct Move {
    int copy;
    int reg;
    int part;  // 0 lo, 1 hi, 2 mask
    int from;  // the processor's register
  };
  struct Waiting {
    int use;  // by order()
    Move move;
  };

  // Structure ----------------------------------------------------------------------------------

  void check_operands() {
    if (n_operands_ > kMaxOperands) throw Unsupported{"more than 64 operands"};
    for (int i = 0; i < n_operands_; ++i) {
      const auto& operand = p_.operands[at(i)];
      if (over_y(operand.cls)) t_.down |= std::uint64_t{1} << i;
      n_iotas_ += operand.role == bytecode::Role::kIota ? 1 : 0;
    }
    if (n_iotas_ > kMaxIotas) throw Unsupported{"more than four iotas"};
  }

  void check() const {
    if (t_.failed) throw Unsupported{"more registers than there are"};
  }

  template <class Body>
  void each_row(Body body) {
    const auto row = [&] {
      body();
      clear([&](int reg) {
        const int i = made_at_[at(reg)];
        return i < 0 || !is_once(p_.code[at(i)]);
      });
    };
    const auto once = [&] { range(0, first_pass_, [&](const Instr& i) { return is_once(i); }); };
    t_.load_pointers(n_operands_);
    t_.for_rows(n_operands_, once, loop("rows", row));
    clear();
  }

  void map_row() {
    range(0, n_, [&](const Instr& instr) { return !is_once(instr) && !at_columns(instr); });
    const auto at_columns = [&](const Instr& instr) { return this->at_columns(instr); };
    t_.first_column();
    columns(0, n_, at_columns, copies_);
  }

  void fold_row() {
    sections([&](int begin, int end) {
      t_.for_sweeps(n_operands_, /*back=*/true, loop("sweeps", [&] {
                      t_.first_column();
                      columns(begin, end, [](const Instr&) { return true; }, copies_of(begin, end));
                    }));
    });
  }

  void fold_all() {
    sections([&](int begin, int end) {
      const auto row = [&] {
        t_.first_column();
        columns(begin, end, [](const Instr&) { return true; }, 1);
      };
      t_.for_sweeps(n_operands_, /*back=*/false,
                    loop("sweeps", [&] { t_.for_rows(n_operands_, [] {}, loop("rows", row)); }));
      t_.load_pointers(n_operands_);
    });
    clear();
  }

  // All rows for a few vectors of columns, then for the next few. Where rows are far apart, a call
  // is for some rows of one pass (frame.h): it recalls accumulators, and keeps them.
  void fold_columns() {
    const auto block = [&](int copies) {
      wide_ = copies;
      leave_ = t_.a.newLabel();
      t_.load_pointers(n_operands_);
      sections([&](int begin, int end) {
        const auto row = [&] {
          for (copy_ = 0; copy_ < copies; ++copy_) {
            range(begin, end, [](const Instr&) { return true; });
            forget(begin, end, [](const Instr&) { return true; });
          }
          copy_ = 0;
        };
        if (grows_trees_) {
          t_.for_sweeps(n_operands_, /*back=*/false, loop("sweeps", [&] { row_trees(begin, end, row); }));
          t_.load_pointers(n_operands_);
          return;
        }
        const int group = any_adds_rows(begin, end) ? kRowsAdded : 0;
        const auto add = [&] { each_copy([&] { add_rows(begin, end); }); };
        const auto rows = [&] { t_.for_rows(n_operands_, loop("rows", row), group, add, [] {}); };
        t_.for_sweeps(n_operands_, /*back=*/false, loop("sweeps", rows));
        t_.load_pointers(n_operands_);
      });
      t_.a.bind(leave_);
      clear();
      wide_ = 1;
    };
    t_.first_column();
    if (copies_ > 1) t_.for_whole(copies_, loop(kSideBySide, [&] { block(copies_); }));
    t_.for_whole(1, loop(kWhole, [&] { block(1); }));
    t_.for_rest([&] { t_.mask_rest(); }, loop(kRest, [&] { block(1); }));
  }

  // One sweep of a pass over rows, some rows at a time.
  template <class Row>
  void row_trees(int begin, int end, Row row) {
    const auto named = [&](const char* name, auto body) {
      return [this, name, body] {
        if (listing_ != nullptr) listing_->begin(name);
        body();
        if (listing_ != nullptr) listing_->end();
      };
    };
    const auto rows = [&] {
      fetch_rows(begin, end);
      in_tree_ = true;
      for (row_ = 0; row_ < kRowsInTree; ++row_) {
        row();
        t_.advance(n_operands_, offsetof(Frame, y_stride));
      }
      in_tree_ = false;
    };
    t_.for_odd_rows(n_operands_, kRowsInTree, named("odd rows", row));
    t_.for_row_groups(kRowsInTree, named("rows, some at a time", rows));
  }

  // The processor foresees rows that a loop goes down one by one, but not these.
  void fetch_rows(int begin, int end) {
    std::uint64_t fetched = 0;
    for (int i = begin; i < end; ++i) {
      const Instr& instr = p_.code[at(i)];
      if (info(instr).cls != Class::kLoad) continue;
      const auto& operand = p_.operands[instr.mem];
      const std::uint64_t bit = std::uint64_t{1} << instr.mem;
      if (!over_x(operand.cls) || !over_y(operand.cls) || (fetched & bit) != 0) continue;
      fetched |= bit;
      t_.fetch_rows(instr.mem, bytecode::storage_bytes(info(instr).storage), wide_, kRowsInTree);
    }
  }

  // Columns x, x + 1, ... to the last: instructions begin to end that the filter takes.
  template <class Filter>
  void columns(int begin, int end, Filter filter, int copies) {
    const auto body = [&](int n) {
      in_trees_ = n;
      if (n == 2 && interleaves(begin, end)) {
        range_of_two(begin, end, filter);
        in_trees_ = 1;
        return;
      }
      for (copy_ = 0; copy_ < n; ++copy_) {
        range(begin, end, filter);
        forget(begin, end, filter);
      }
      copy_ = 0;
      in_trees_ = 1;
    };
    if (narrow_ > 0) t_.for_whole(4 / narrow_, loop(kElements, [&] { narrow(); }));
    if (copies > 1) t_.for_whole(copies, loop(kSideBySide, [&] { body(copies); }));
    // Else up to seven vectors of a row would go one by one.
    for (int some = copies / 2; copies == kMostCopies && some > 1; some /= 2)
      t_.for_whole(some, loop(kSideBySide, [&] { body(some); }));
    if constexpr (T::kInterleaves) {
      // Less to emit, where at most one whole vector a row is under a mask.
      if (copies == 2 && interleaves(begin, end) && masks_all(begin, end, filter)) {
        t_.for_masked([&] { t_.mask_some(); }, loop(kMasked, [&] { body(1); }));
        return;
      }
    }
    if constexpr (T::kMasksAreCheap) {
      // Stores under a mask cannot stream.
      if (copies > 1 || (weight(begin, end, filter) >= kLongBody && !streams_)) {
        t_.for_masked([&] { t_.mask_some(); }, loop(kMasked, [&] { body(1); }));
        return;
      }
    }
    t_.for_whole(1, loop(kWhole, [&] { body(1); }));
    t_.for_rest([&] { t_.mask_rest(); }, loop(kRest, [&] { body(1); }));
  }

  // Can all vectors be under a mask? What is gathered, or smaller than a lane, goes through the
  // frame then.
  template <class Filter>
  bool masks_all(int begin, int end, Filter filter) const {
    for (int i = begin; i < end; ++i) {
      const Instr& instr = p_.code[at(i)];
      const Class cls = info(instr).cls;
      if (!filter(instr)) continue;
      if (cls == Class::kGather) return false;
      const bool moves = cls == Class::kLoad || cls == Class::kStore;
      const bool small = moves && bytecode::storage_bytes(info(instr).storage) < 4;
      if (small && over_x(p_.operands[instr.mem].cls)) return false;
    }
    return true;
  }

  // Functions of two vectors side by side, their instructions in turns: see interleaved.h.
  bool interleaves(int begin, int end) const {
    const auto is = [&](const Instr& instr) { return is_interleaved(instr); };
    return T::kInterleaves && copies_ >= 2 &&
           std::any_of(p_.code.begin() + begin, p_.code.begin() + end, is);
  }
  static bool is_interleaved(const Instr& instr) {
    return is_function(static_cast<Op>(instr.op)) && over_x(instr.cls_a());
  }
  // Of one float32, without a way that is seldom taken.
  static bool is_function(Op op) {
    switch (op) {
      case Op::exp_f32:
      case Op::exp_weight_f32:
      case Op::exp2_f32:
      case Op::expm1_f32:
      case Op::log_f32:
      case Op::log2_f32:
      case Op::log1p_f32:
      case Op::tanh_f32:
      case Op::sigmoid_f32:
      case Op::silu_f32:
      case Op::erf_f32:
      case Op::gelu_f32:
      case Op::gelu_tanh_f32:
        return true;
      default:
        return false;
    }
  }

  // Vectors side by side in a pass over columns: folds wait for themselves otherwise.
  int copies_of(int begin, int end) const {
    const auto folds = [](const Instr& instr) { return info(instr).cls == Class::kFold; };
    if (p_.header->fold != Fold::kColumns ||
        std::none_of(p_.code.begin() + begin, p_.code.begin() + end, folds))
      return 1;
    const int sum = weight(begin, end, [](const Instr&) { return true; });
    constexpr int kTwice = T::kManyRegisters ? kLongBody : 2 * kShortBody;
    if (interleaves(begin, end)) return 2;
    if (sum <= kTinyBody && all_in_trees(begin, end)) return most_copies();
    return std::min(copies_, sum <= kShortBody ? 4 : sum <= kTwice ? 2 : 1);
  }
  // The most of any pass.
  int widest() const {
    if (p_.header->fold != Fold::kColumns) return copies_;
    int most = 1;
    for (int i = 0; i < n_; ++i) {
      if (op(i) != Op::pass) continue;
      const int begin = i + 1;
      while (op(i) != Op::end) ++i;
      most = std::max(most, copies_of(begin, i));
    }
    return most;
  }
  // Side by side, where folds share their accumulators.
  int most_copies() const {
    return copies_ == kMaxCopies && p_.header->fold == Fold::kColumns ? kMostCopies : copies_;
  }

  template <class Filter>
  int weight(int begin, int end, Filter filter) const {
    int sum = 0;
    for (int i = begin; i < end; ++i) {
      if (filter(p_.code[at(i)])) sum += weight(p_.code[at(i)]);
    }
    return sum;
  }
  static int weight(const Instr& instr) {
    switch (static_cast<Op>(instr.op)) {
      case Op::exp_weight_f32:
        return 3;  // its sum is what takes long: once for four vectors
      case Op::exp_f32:
      case Op::exp2_f32:
      case Op::silu_f32:
        return 14;
      case Op::sin_f32:
      case Op::cos_f32:
      case Op::tan_f32:
      case Op::pow_f32:
      case Op::atan2_f32:
      case Op::fmod_f32:
      case Op::remainder_f32:
      case Op::floor_div_f32:
        return 25;
      default:
        return is_function(static_cast<Op>(instr.op)) ? 25 : 1;
    }
  }

  // Section code inline; `sweep` loops over the body of each pass.
  template <class Sweep>
  void sections(Sweep sweep) {
    int i = 0;
    for (int pass = 1; i < n_; ++pass) {
      const int begin = i;
      while (i < n_ && op(i) != Op::pass) ++i;
      section(begin, i);
      if (i == n_) return;
      const int body = ++i;
      while (op(i) != Op::end) ++i;
      if (listing_ != nullptr) listing_->begin("pass", pass);
      grows_trees_ = grows_trees(body, i);
      sums_apart_ = p_.header->fold == Fold::kColumns && interleaves(body, i);
      const int copies = p_.header->fold == Fold::kRows ? wide_ : copies_of(body, i);
      for (copy_ = 0; copy_ < copies; ++copy_) start_folds(body, i);
      copy_ = 0;
      if (p_.header->fold == Fold::kRows) {
        const int last = passes_of(p_);
        fetches_ = pass == 1 && last > 1 && !grows_trees_;
        in_parts(pass, pass == last, body, i, [&] { sweep(body, i); });
        fetches_ = false;
      } else {
        sweep(body, i);
      }
      if (p_.header->fold == Fold::kColumns) join_copies(body, i, copies);
      if (p_.header->fold != Fold::kRows) {
        finish_folds(body, i, /*in_place=*/false);
        take_folds(body, i);
      }
      if (listing_ != nullptr) listing_->end();
      grows_trees_ = sums_apart_ = false;
      ++i;
    }
  }

  // What stands between passes. Calls for some rows compute it again, and only the last one stores
  // it: what it is read from may be what it is stored to.
  void section(int begin, int end) {
    stores_at_last_ = p_.header->fold == Fold::kRows && end < n_;
    each_copy([&] { range(begin, end, [&](const Instr& instr) { return !is_once(instr); }); });
    stores_at_last_ = false;
  }

  // A pass over rows, for calls that are for some rows of it, or behind it: not behind the last.
  template <class Sweep>
  void in_parts(int pass, bool is_last, int begin, int end, Sweep sweep) {
    const auto keep = [&](const auto& part, auto place) { t_.keep(place, part); };
    const auto recall = [&](auto& part, auto place) { t_.recall(part, place); };
    const auto all = [&] {
      t_.if_equal(offsetof(Frame, pass_resumed), pass, [&] { each_kept(begin, end, recall); });
      sweep();
      t_.if_equal(offsetof(Frame, keep_in_pass), pass, [&] {
        each_kept(begin, end, keep);
        t_.go_to(leave_);
      });
      each_copy([&] { finish_folds(begin, end, /*in_place=*/true); });
    };
    if (is_last) {
      all();
    } else {
      t_.if_less(offsetof(Frame, passes_finished), pass, all,
                 [&] { each_kept(begin, end, recall); });
      t_.if_equal(offsetof(Frame, keep_behind_pass), pass, [&] {
        each_kept(begin, end, keep);
        t_.go_to(leave_);
      });
    }
    each_copy([&] { take_folds(begin, end); });
  }

  // Registers of accumulators of a vector of columns, for folds before an instruction. None holds
  // rows that wait to be added: a call ends with a group of them.
  int kept_before(int end) const {
    int sum = 0;
    if (p_.header->fold != Fold::kRows) return sum;
    int begin = 0;  // of the pass
    for (int i = 0; i < end; ++i) {
      if (op(i) == Op::pass) begin = i + 1;
      if (info(p_.code[at(i)]).cls == Class::kFold) sum += kept(begin, i);
    }
    return sum;
  }
  template <class Work>
  void each_kept(int begin, int end, Work work) {
    if (kept_before(end) == kept_before(begin)) return;
    t_.find_kept(kept_before(n_));
    each_copy([&] {
      int vector = copy_ * kept_before(n_) + kept_before(begin);
      for (int i = begin; i < end; ++i) {
        if (info(p_.code[at(i)]).cls != Class::kFold) continue;
        note(i, "between calls");
        Accumulator& acc = fold(p_.code[at(i)].dst);
        for (F* part : {&acc.lo, &acc.hi, &acc.index_lo, &acc.index_hi, &acc.shift}) {
          if (!part->empty()) work(*part, t_.in_kept(vector++));
        }
        if (!acc.mask.empty()) work(acc.mask, t_.in_kept(vector++));
      }
    });
  }

  template <class Work>
  void each_copy(Work work) {
    for (copy_ = 0; copy_ < wide_; ++copy_) work();
    copy_ = 0;
  }

  // For listings: the body of the loop that is emitted next, and its name.
  template <class Body>
  auto loop(const char* name, Body body) {
    if (listing_ != nullptr) listing_->begin(name);
    return [this, body] {
      body();
      if (listing_ != nullptr) listing_->end();
    };
  }
  // For listings: instruction i, or a step of it, is emitted next.
  void note(int i, const char* step = "") {
    if (listing_ == nullptr || info(p_.code[at(i)]).cls == Class::kMark) return;
    listing_->instruction(i, copy_, step);
  }

  void clear() {
    clear([](int) { return true; });
  }
  template <class Which>
  void clear(Which which) {
    for (auto& values : values_) {
      for (std::size_t reg = 0; reg < values.size(); ++reg) {
        if (which(static_cast<int>(reg))) values[reg] = {};
      }
    }
  }

  // Values --------------------------------------------------------------------------------------

  Op op(int i) const { return static_cast<Op>(p_.code[at(i)].op); }
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  static const bytecode::InstrInfo& info(const Instr& instr) { return bytecode::kIsa[instr.op]; }
  static bool over_x(Cls cls) { return (static_cast<int>(cls) & 1) != 0; }
  static bool over_y(Cls cls) { return (static_cast<int>(cls) & 2) != 0; }
  static bool has_dst(const Instr& instr) {
    return info(instr).n_fields > 0 && info(instr).fields[0].kind == bytecode::FieldKind::kDst;
  }

  template <class Work>
  static void each_source(const Instr& instr, Work work) {
    const auto& row = info(instr);
    const std::uint16_t fields[] = {instr.a, instr.b, instr.c};
    std::size_t next = 0;
    for (std::size_t f = 0; f < row.n_fields; ++f) {
      if (row.fields[f].kind == bytecode::FieldKind::kSrc) work(fields[next++]);
    }
  }

  Value<T>& value(int reg) { return values_[at(copy_)][at(reg)]; }
  // What is the same for all copies is with the first.
  const Value<T>& operand(int reg) const {
    const auto& own = values_[at(copy_)][at(reg)];
    const bool none = own.lo.empty() && own.mask.empty();
    return none ? values_[0][at(reg)] : own;
  }
  const F& vector(int reg) const { return operand(reg).lo; }
  const M& mask(int reg) const { return operand(reg).mask; }
  Pair pair(int reg) const { return {operand(reg).lo, operand(reg).hi}; }
  Accumulator& fold(int reg) { return fold(copy_, reg); }
  Accumulator& fold(int copy, int reg) { return folds_[at(copy)][fold_at_[at(reg)]]; }

  // Does the instruction belong into the loop over columns (of a program without folds)?
  bool at_columns(const Instr& instr) const {
    switch (info(instr).cls) {
      case Class::kStore:
        return over_x(p_.operands[instr.mem].cls);
      case Class::kConst:
        return false;
      default:
        return over_x(instr.cls_dst());
    }
  }

  // Is what the instruction makes, before any pass, the same for all rows, one after the other?
  bool is_once(const Instr& instr) const {
    const Fold fold = p_.header->fold;
    if (fold == Fold::kRows || fold == Fold::kBoth || &instr >= p_.code.data() + first_pass_)
      return false;
    // A constant's bits are where others have their classes.
    return info(instr).cls == Class::kConst ||
           (has_dst(instr) && instr.cls_dst() == Cls::kScalar);
  }

  // When an instruction runs: what is the same for all rows runs before them, and without folds,
  // what is once a row before the rest of it.
  int order(int i) const {
    const Instr& instr = p_.code[at(i)];
    if (is_once(instr)) return i;
    const bool late = p_.header->fold == Fold::kNone && at_columns(instr);
    return late ? i + 2 * n_ : i + n_;
  }

  void find_uses() {
    made_at_.assign(p_.header->n_registers, -1);
    first_use_.assign(p_.header->n_registers, -1);
    last_use_.assign(p_.header->n_registers, -1);
    std::vector<int> tail(p_.header->n_registers, -1);
    uses_.reserve(at(2 * n_));
    for (const int turn : {0, 1, 2}) {
      for (int i = 0; i < n_; ++i) {
        const int order = this->order(i);
        if (order / n_ != turn) continue;
        if (has_dst(p_.code[at(i)])) made_at_[at(p_.code[at(i)].dst)] = i;
        each_source(p_.code[at(i)], [&](int reg) {
          const int use = static_cast<int>(uses_.size());
          uses_.push_back({order, -1});
          (tail[at(reg)] < 0 ? first_use_[at(reg)] : uses_[at(tail[at(reg)])].next) = use;
          tail[at(reg)] = use;
          last_use_[at(reg)] = order;
        });
      }
    }
  }

  // Vectors of it come from the processor's own gathers, which take indices of 32 bits, too.
  bool gathers_whole(const Instr& instr) const {
    return T::kGathers && info(instr).cls == Class::kGather && over_x(instr.cls_a()) &&
           !over_x(p_.operands[instr.mem].cls) &&
           bytecode::storage_bytes(info(instr).storage) >= 4;
  }
  // Indices that were int32, and that nothing else needs as int64 (nor as int32, so that their
  // register has one holder): gathers widen them, or do not.
  void find_widened_late() {
    widened_late_.assign(p_.header->n_registers, false);
    if constexpr (!T::kGathers) return;
    for (int i = 0; i < n_; ++i) {
      const Instr& cast = p_.code[at(i)];
      if (op(i) != Op::cast_i32_i64 || last_use_[cast.a] != order(i)) continue;
      bool late = last_use_[cast.dst] >= 0;
      for (const Instr& instr : p_.code) {
        each_source(instr, [&](int reg) {
          if (reg == cast.dst) late = late && gathers_whole(instr);
        });
      }
      widened_late_[cast.dst] = late;
    }
  }

  int next_use(int reg) const {
    int use = first_use_[at(reg)];
    while (use >= 0 && uses_[at(use)].at <= now_) use = uses_[at(use)].next;
    return use < 0 ? 4 * n_ : uses_[at(use)].at;
  }

  // Gives up the registers of values that are needed last.
  bool make_room(const Registers& file, int count) override {
    const bool masks = t_.is_mask_file(file);
    std::array<Waiting, kMostRegisters> waiting;
    std::size_t n = 0;
    const auto consider = [&](const auto& handle, int copy, int reg, int part, int use) {
      if (handle.movable()) waiting[n++] = {use, {copy, reg, part, handle.reg()}};
    };
    for (int copy = 0; copy < std::max(in_trees_, wide_); ++copy) {  // others have no values now
      for (int reg = 0; reg < static_cast<int>(p_.header->n_registers); ++reg) {
        const auto& value = values_[at(copy)][at(reg)];
        if (value.lo.reg() < 0 && value.hi.reg() < 0 && value.mask.reg() < 0) continue;
        const int use = next_use(reg);
        if (masks || !T::kMaskRegisters) consider(value.mask, copy, reg, 2, use);
        if (masks) continue;
        consider(value.lo, copy, reg, 0, use);
        consider(value.hi, copy, reg, 1, use);
      }
    }
    const std::size_t moved = std::min(n, at(count));
    const auto later = [](const Waiting& a, const Waiting& b) { return a.use > b.use; };
    std::partial_sort(waiting.begin(), waiting.begin() + moved, waiting.begin() + n, later);
    for (std::size_t i = 0; i < moved; ++i) {
      const Move& move = waiting[i].move;
      auto& value = values_[at(move.copy)][at(move.reg)];
      const bool out = move.part == 0   ? t_.move_out(value.lo)
                       : move.part == 1 ? t_.move_out(value.hi)
                                        : t_.move_out(value.mask);
      if (!out) return false;
      moves_.push_back(move);
    }
    return moved > 0;
  }

  std::size_t mark() const override { return moves_.size(); }

  void undo(std::size_t mark) override {
    while (moves_.size() > mark) {
      const Move move = moves_.back();
      moves_.pop_back();
      auto& value = values_[at(move.copy)][at(move.reg)];
      const auto back = [&](auto& handle) {
        if (handle.reg() < 0 && handle.slot() >= 0) t_.move_in(handle, move.from);
      };
      if (move.part == 0) back(value.lo);
      if (move.part == 1) back(value.hi);
      if (move.part == 2) back(value.mask);
    }
  }

  // Emits instructions begin to end that the filter takes.
  template <class Filter>
  void range(int begin, int end, Filter filter) {
    for (int i = begin; i < end; ++i) {
      if (!filter(p_.code[at(i)])) continue;
      now_ = order(i);
      next(i);
      let_go(i, begin, end, filter);
    }
  }

  // Those of two copies in turns.
  template <class Filter>
  void range_of_two(int begin, int end, Filter filter) {
    const auto each = [&](auto work) {
      for (copy_ = 0; copy_ < 2; ++copy_) work();
      copy_ = 0;
    };
    for (int i = begin; i < end; ++i) {
      if (!filter(p_.code[at(i)])) continue;
      now_ = order(i);
      if (is_interleaved(p_.code[at(i)]) && map_two(p_.code[at(i)])) {
        check();
      } else {
        each([&] { next(i); });
      }
      each([&] { let_go(i, begin, end, filter); });
    }
    each([&] { forget(begin, end, filter); });
  }

  void next(int i) {
    const Instr& instr = p_.code[at(i)];
    note(i);
    if (stores_at_last_ && info(instr).cls == Class::kStore) {
      t_.if_equal(offsetof(Frame, keep_in_pass), 0, [&] {
        t_.if_equal(offsetof(Frame, keep_behind_pass), 0, [&] { one(instr); });
      });
    } else {
      one(instr);
    }
    check();
  }

  // A value made and last used in this very stretch of code is done with.
  template <class Filter>
  void let_go(int i, int begin, int end, Filter filter) {
    each_source(p_.code[at(i)], [&](int reg) {
      if (last_use_[at(reg)] == now_ && made_in(reg, begin, end, filter)) value(reg) = {};
    });
  }

  template <class Filter>
  bool made_in(int reg, int begin, int end, Filter filter) const {
    const int i = made_at_[at(reg)];
    if (i < begin || i >= end) return false;
    const Instr& instr = p_.code[at(i)];
    return filter(instr) && info(instr).cls != Class::kFold;
  }

  template <class Filter>
  void forget(int begin, int end, Filter filter) {
    for (int i = begin; i < end; ++i) {
      const Instr& instr = p_.code[at(i)];
      if (has_dst(instr) && filter(instr)) value(instr.dst) = {};
    }
  }

  // Instructions (memory.h, map.h, fold.h) -------------------------------------------------------

  // In a row of scratch, whole vectors are stored and loaded, as there is room for: the processor
  // does not load what was stored under a mask before it is in the cache.
  template <class Work>
  void under_mask_of(int mem, Work work) {
    const bool whole =
        p_.header->fold == Fold::kColumns && p_.operands[at(mem)].role == bytecode::Role::kScratch;
    const bool masked = std::exchange(t_.masked, t_.masked && !whole);
    work();
    t_.masked = masked;
  }

  void one(const Instr& instr) {
    switch (info(instr).cls) {
      case Class::kMark:
        return;
      case Class::kLoad:
        return under_mask_of(instr.mem, [&] { load(instr); });
      case Class::kStore:
        return under_mask_of(instr.mem, [&] { store(instr); });
      case Class::kGather:
        return gather(instr);
      case Class::kIota:
        return iota(instr);
      case Class::kConst:
        return constant(instr);
      case Class::kMap:
        return map(instr);
      case Class::kFold:
        return accumulate(instr);
    }
  }

  void load(const Instr& instr);
  void store(const Instr& instr);
  void gather(const Instr& instr);
  int narrow_bytes() const;
  static bool is_narrow(Op op, int bytes);
  void narrow();
  void iota(const Instr& instr);
  void constant(const Instr& instr);
  void map(const Instr& instr);
  bool map_two(const Instr& instr);
  bool map_f32(const Instr& instr, Value<T>& r);
  bool map_i32(const Instr& instr, Value<T>& r);
  bool map_i64(const Instr& instr, Value<T>& r);
  bool map_f64(const Instr& instr, Value<T>& r);
  bool map_b8(const Instr& instr, Value<T>& r);
  bool map_mixed(const Instr& instr, Value<T>& r);
  F divided(Op op, const F& x, const F& y);
  void call_map(const Instr& instr, Value<T>& r);
  void argue(int i, int reg, bytecode::RegType type);
  Value<T> result(bytecode::RegType type);
  Value<T> splat(const Instr& instr, typename T::Address from);
  Value<T> vector(const Instr& instr, typename T::Address from);
  F bf16_bits(const F& x);
  F rounded_bf16(const F& x);
  F extremum(const Instr& instr, bool largest);
  std::optional<float> constant_f32(int reg) const;  // if it holds that
  Pair extremum64(const Pair& x, const Pair& y, bool largest);

  void start_folds(int begin, int end);
  F neutral(Op op);
  void start(int begin, int i, Accumulator& acc);
  int kept(int begin, int i) const;
  bool all_in_trees(int begin, int end) const;
  void accumulate(const Instr& instr);
  void combine(Op op, Accumulator& acc, const Accumulator& x);
  void accumulate_tree(Op op, Accumulator& acc, const Value<T>& x);
  void accumulate_in_tree(Op op, Accumulator& acc, const F& x);
  void find_shift(Accumulator& acc, const F& x);
  F deviations_of(Op op, const Accumulator& acc);
  void add_exactly(F& sum, F& lost, const F& x, const F& rest);
  F mean_of(const F& sum, const F& lost);
  M wins(Op op, const Accumulator& acc, const Accumulator& x);
  void join_copies(int begin, int end, int copies);
  void finish_folds(int begin, int end, bool in_place);
  void take_folds(int begin, int end);
  void fold_lanes(Op op, Accumulator& acc);
  void add_rows(int begin, int end);
  bool masks_nan(Op op) const;
  int asks_nan(int begin, int i) const;
  bool grows_trees(int begin, int end) const;
  bool adds_rows(Op op) const;
  bool any_adds_rows(int begin, int end) const;
  // Do folds go over lanes?
  bool lanes_fold() const { return (static_cast<int>(p_.header->fold) & 1) != 0; }

  bytecode::View p_;
  int n_;
  int n_operands_;
  int n_iotas_ = 0;
  int copies_;
  bool streams_;
  bool tries_trees_;      // also with few registers, which may not be enough: there is another try
  int narrow_ = 0;        // bytes of its elements, if the program is of that kind
  int first_pass_ = 0;    // its instruction, or the end
  int wide_ = 1;          // copies of section code, in a fold over rows
  bool fetches_ = false;  // in the first of several passes over rows
  int in_trees_ = 1;      // copies whose elements are folded among themselves first
  bool grows_trees_ = false;  // in a pass whose rows are folded among themselves first
  bool in_tree_ = false;      // at such rows
  bool sums_apart_ = false;   // in a pass with functions of two vectors, which need registers
  int row_ = 0;               // which of them
  int copy_ = 0;
  int now_ = 0;
  Listing* listing_;  // null but for list()
  T t_;
  asmjit::Label leave_;  // the end of a block of columns
  std::array<std::vector<Value<T>>, kMostCopies> values_;
  std::array<std::vector<Accumulator>, kMostCopies> folds_;
  std::vector<std::size_t> fold_at_;  // by register
  bool stores_at_last_ = false;
  std::vector<int> made_at_, first_use_, last_use_;  // by register
  std::vector<bool> widened_late_;
  std::vector<Use> uses_;
  std::vector<Move> moves_;
};

}  // namespace tilevm::exec::native

#include "exec/native/emit_fold.h"
#include "exec/native/emit_map.h"
#include "exec/native/emit_memory.h"
#include "exec/native/emit_narrow.h"
#include "exec/native/emit_tree.h"

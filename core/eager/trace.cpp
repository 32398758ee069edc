#include "eager/trace.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "eager/words.h"

namespace tilevm::eager {
namespace {

using host::Geometry;

constexpr std::size_t kKnown = 2048;               // power of two
constexpr std::size_t kMostValues = 8192;
constexpr std::size_t kMostInputs = 512;  // of a trace; beyond, operators stay eager

[[noreturn]] void refuse(Op op, const char* why) {
  throw Unrecorded(std::string(info(op).name) + ": " + why);
}

struct Entry {
  std::uint64_t key = 0;
  DType dtype{};
};
// Not inlined: compilers would look for it again at each use.
[[gnu::noinline]] std::array<Entry, 1024>& known_dtypes() {
  thread_local std::array<Entry, 1024> made;
  return made;
}

// The dtype of a result does not depend on sizes: the typing rules are asked once for each kind of
// operands, with vectors and scalars in their place.
DType result_dtype(Op op, std::span<const Meta* const> in) {
  std::uint64_t key = static_cast<std::uint64_t>(op) + 1;
  for (const Meta* m : in) {
    key = key << 6 | static_cast<std::uint64_t>(m->dtype) << 2 |
          static_cast<std::uint64_t>(m->weak) << 1 | (m->rank == 0 ? 1 : 0);
  }
  Entry& entry = known_dtypes()[(key * 0x9E3779B97F4A7C15u) >> 54];
  if (entry.key == key) return entry.dtype;
  shape::SizeTable sizes;
  std::vector<Type> types;
  for (const Meta* m : in) {
    Type& type = types.emplace_back(Type{m->dtype, m->weak, {}});
    if (m->rank > 0) type.shape.push(sizes.symbol("n"));
  }
  std::vector<Attr> attrs;
  for (const ParamInfo& p : info(op).params()) {
    if (p.kind == ParamKind::kNumber) {
      attrs.push_back(Attr::of_number(1));
    } else {
      attrs.push_back(p.kind == ParamKind::kAxes ? Attr{} : Attr::of_ints({0}));
    }
  }
  std::vector<Check> checks;
  try {
    entry.dtype = infer(sizes, op, types, attrs, checks).dtype;
  } catch (const std::runtime_error& e) {
    throw Unrecorded(e.what());
  }
  entry.key = key;
  return entry.dtype;
}

void broadcast(Op op, Meta& out, const Meta& other) {
  if (other.rank > out.rank) {
    const int more = other.rank - out.rank;
    std::copy_backward(out.sizes.begin(), out.sizes.begin() + out.rank,
                       out.sizes.begin() + other.rank);
    std::copy_n(other.sizes.begin(), more, out.sizes.begin());
    out.rank = other.rank;
  }
  for (int i = 1; i <= other.rank; ++i) {
    std::int64_t& size = out.sizes[static_cast<std::size_t>(out.rank - i)];
    const std::int64_t more = other.size(other.rank - i);
    if (size == more || more == 1) continue;
    if (size != 1) refuse(op, "sizes do not broadcast");
    size = more;
  }
}

void set_shape(Op op, Meta& out, std::span<const std::int64_t> sizes) {
  if (sizes.size() > static_cast<std::size_t>(kMaxRank)) refuse(op, "too many dims");
  out.rank = static_cast<int>(sizes.size());
  std::ranges::copy(sizes, out.sizes.begin());
}

void drop(Meta& out, unsigned axes) {
  int kept = 0;
  for (int d = 0; d < out.rank; ++d) {
    if ((axes >> d & 1u) == 0) out.sizes[static_cast<std::size_t>(kept++)] = out.size(d);
  }
  out.rank = kept;
}

}  // namespace

Trace::Trace() : known_(kKnown) {
  words_.reserve(1024);
  metas_.reserve(kMostValues);
  inputs_.reserve(64);
  sizes_ = {1, 0};
}

// Before anything is written. References to what is known of values stay good while operators are
// appended.
void Trace::need_room() const {
  if (metas_.size() == kMostValues) throw Unrecorded("too many operators");
  if (inputs_.size() == kMostInputs) throw Unrecorded("too many inputs");
}

Value Trace::append(const Meta& meta) {
  metas_.push_back(meta);
  return static_cast<Value>(metas_.size() - 1);
}

std::uint32_t Trace::symbol(std::int64_t size) {
  if (size == 1) return kOne;
  if (size == 0) return kZero;
  for (std::size_t i = 2; i < sizes_.size(); ++i) {
    if (sizes_[i] == size) return static_cast<std::uint32_t>(i);
  }
  sizes_.push_back(size);
  return static_cast<std::uint32_t>(sizes_.size() - 1);
}

Value Trace::input(DType dtype, const Geometry& g, std::byte* data) {
  std::size_t slot = (std::bit_cast<std::uintptr_t>(data) >> 4) * 0x9E3779B97F4A7C15u >> 53;
  for (;; slot = (slot + 1) % kKnown) {
    Known& known = known_[slot];
    if (known.generation != generation_) break;
    const Input& input = inputs_[static_cast<std::size_t>(known.input)];
    if (input.data == data && meta(input.value).dtype == dtype && same(input.geometry, g)) {
      return input.value;
    }
  }
  if (dtype == DType::kOpaque) throw Unrecorded("a dtype that kernels do not have");
  need_room();
  known_[slot] = {generation_, static_cast<std::int32_t>(inputs_.size())};
  Meta meta{dtype, false, g.rank, g.sizes};
  word(kInputWord | static_cast<std::uint32_t>(dtype) | static_cast<std::uint32_t>(g.rank) << 16);
  for (int d = 0; d < g.rank; ++d) word(symbol(g.size(d)));
  const Value value = append(meta);
  inputs_.push_back({value, g, data, 0});
  return value;
}

Value Trace::number_input(DType dtype, std::int64_t bits) {
  need_room();
  word(kInputWord | static_cast<std::uint32_t>(dtype) | 1u << 8);
  const Value value = append({dtype, true, 0, {}});
  inputs_.push_back({value, {}, nullptr, bits});
  return value;
}
Value Trace::number(double value) {
  return number_input(DType::kFloat64, std::bit_cast<std::int64_t>(value));
}
Value Trace::number(std::int64_t value) { return number_input(DType::kInt64, value); }
Value Trace::boolean(bool value) { return number_input(DType::kBool, value ? 1 : 0); }

// Of a divisor: whether it is a number other than zero.
bool Trace::known_not_zero(Value v) const {
  if (!meta(v).weak) return false;
  const auto found = std::ranges::find(inputs_, v, &Input::value);
  return found != inputs_.end() && found->number != 0;
}

Value Trace::cast(Value x, DType dtype) {
  return meta(x).dtype == dtype && !meta(x).weak ? x : add(Op::cast, {x}, {Param::dtype(dtype)});
}

Meta Trace::infer(Op op, std::span<const Value> in, std::span<const Param> params) const {
  const OpInfo& row = info(op);
  std::array<const Meta*, 4> operands{};
  const std::size_t n = std::min(in.size(), operands.size());
  for (std::size_t i = 0; i < n; ++i) operands[i] = &meta(in[i]);
  Meta out = n > 0 ? *operands[0] : Meta{};
  const auto typed = [&] { out.dtype = result_dtype(op, {operands.data(), n}); };
  const auto axis = [&](std::size_t p) { return static_cast<int>(params[p].one); };
  switch (row.cls) {
    case OpClass::kElementwise:
      if (op == Op::cast) {
        out.dtype = static_cast<DType>(params[0].one);
        out.weak = false;
        return out;
      }
      typed();
      if ((op == Op::floor_div || op == Op::remainder || op == Op::fmod) && !is_float(out.dtype) &&
          !known_not_zero(in[1])) {
        refuse(op, "the framework raises where integers are divided by zero");
      }
      for (std::size_t i = 1; i < n; ++i) {
        broadcast(op, out, *operands[i]);
        out.weak = out.weak && operands[i]->weak;
      }
      return out;
    case OpClass::kReduce:
    case OpClass::kComposite: {
      typed();
      out.weak = false;
      if (row.rule == Rule::kFloatAxis || row.rule == Rule::kFloatAxes) return out;
      unsigned axes = 0;
      if (params[0].single) {
        axes = 1u << axis(0);
      } else {
        for (const std::int64_t a : params[0].many) axes |= 1u << a;
      }
      for (int d = 0; d < out.rank; ++d) {
        if ((axes >> d & 1u) == 0) continue;
        const bool extreme = row.rule == Rule::kReduceSame || row.rule == Rule::kReduceIndex;
        if (extreme && out.size(d) == 0) refuse(op, "an empty axis");
        out.sizes[static_cast<std::size_t>(d)] = 1;
      }
      if (params[1].one == 0) drop(out, axes);
      return out;
    }
    default:
      break;
  }
  switch (op) {
    case Op::reshape:
    case Op::expand:
      set_shape(op, out, params[0].many);
      return out;
    case Op::permute:
      for (int d = 0; d < out.rank; ++d) {
        out.sizes[static_cast<std::size_t>(d)] =
            operands[0]->size(static_cast<int>(params[0].many[static_cast<std::size_t>(d)]));
      }
      return out;
    case Op::slice: {
      const std::int64_t span = std::max<std::int64_t>(params[2].one - params[1].one, 0);
      out.sizes[static_cast<std::size_t>(axis(0))] = (span + params[3].one - 1) / params[3].one;
      return out;
    }
    case Op::select:
      drop(out, 1u << axis(0));
      return out;
    case Op::squeeze: {
      unsigned axes = 0;
      for (const std::int64_t a : params[0].many) axes |= 1u << a;
      drop(out, axes);
      return out;
    }
    case Op::unsqueeze: {
      if (out.rank == kMaxRank) refuse(op, "too many dims");
      const auto a = static_cast<std::size_t>(axis(0));
      std::copy_backward(out.sizes.begin() + a, out.sizes.begin() + out.rank,
                         out.sizes.begin() + out.rank + 1);
      out.sizes[a] = 1;
      ++out.rank;
      return out;
    }
    case Op::flip:
      return out;
    case Op::concat: {
      const auto a = static_cast<std::size_t>(axis(0));
      for (std::size_t i = 1; i < in.size(); ++i) out.sizes[a] += meta(in[i]).sizes[a];
      return out;
    }
    case Op::cumsum:
    case Op::cumprod:
      out.weak = false;
      if (!is_float(out.dtype)) out.dtype = DType::kInt64;
      return out;
    case Op::logcumsumexp:
    case Op::scatter:
    case Op::scatter_add:
      out.weak = false;
      return out;
    case Op::argsort:
    case Op::argtopk:
      out.dtype = DType::kInt64;
      if (op == Op::argtopk) out.sizes[static_cast<std::size_t>(axis(0))] = params[1].one;
      return out;
    case Op::gather:
      out.rank = operands[1]->rank;
      out.sizes = operands[1]->sizes;
      return out;
    case Op::take: {
      Meta result{out.dtype, false, 0, {}};
      if (out.rank - 1 + operands[1]->rank > kMaxRank) refuse(op, "too many dims");
      const auto push = [&](std::int64_t s) {
        result.sizes[static_cast<std::size_t>(result.rank++)] = s;
      };
      for (int d = 0; d < out.rank; ++d) {
        if (d != axis(1 - 1)) {
          push(out.size(d));
        } else {
          for (const std::int64_t s : operands[1]->shape()) push(s);
        }
      }
      return result;
    }
    case Op::matmul: {
      const Meta &a = *operands[0], &b = *operands[1];
      if (a.rank < 2 || b.rank < 2 || a.size(a.rank - 1) != b.size(b.rank - 2)) {
        refuse(op, "sizes do not match");
      }
      Meta rows = a, columns = b;  // whose batches broadcast
      rows.sizes[static_cast<std::size_t>(a.rank - 1)] = 1;
      columns.sizes[static_cast<std::size_t>(b.rank - 2)] = 1;
      broadcast(op, rows, columns);
      return rows;
    }
    case Op::grouped_matmul:
      out.sizes[1] = operands[1]->size(2);
      return out;
    case Op::full:
      set_shape(op, out, params[0].many);
      out.dtype = static_cast<DType>(params[2].one);
      return out;
    case Op::iota:
      out = {DType::kInt64, false, 1, {params[0].one}};
      return out;
    case Op::scalar:
      out = {DType::kFloat64, true, 0, {}};
      return out;
    default:
      refuse(op, "not recorded");
  }
}

void Trace::write(const Param& p) {
  switch (p.kind) {
    case Param::Kind::kInts:
      if (p.single) return word(static_cast<std::uint64_t>(p.one));
      word(p.many.size());
      for (const std::int64_t v : p.many) word(static_cast<std::uint64_t>(v));
      return;
    case Param::Kind::kSizes:
      if (p.single) return word(symbol(p.one));
      word(p.many.size());
      for (const std::int64_t v : p.many) word(symbol(v));
      return;
    case Param::Kind::kNumber: {
      const auto bits = std::bit_cast<std::uint64_t>(p.number);
      word(bits);
      word(bits >> 32);
      return;
    }
  }
}

Value Trace::add(Op op, std::span<const Value> in, std::span<const Param> params) {
  need_room();
  const Meta out = infer(op, in, params);
  word(static_cast<std::uint32_t>(op) | static_cast<std::uint32_t>(in.size()) << 16);
  for (const Value v : in) word(static_cast<std::uint32_t>(v));
  for (const Param& p : params) write(p);
  if (op == Op::reshape) relate(meta(in[0]), out);
  ++operators_;
  if (op == Op::softmax) softmax_ = operators_;
  Value value = append(out);
  // Their sizes are sums and differences: from here on they are sizes like any other.
  if (op == Op::slice || op == Op::concat) {
    value = add(Op::expand, {value}, {Param::sizes(Meta(out).shape())});
  }
  return value;
}

void Trace::add(std::int32_t number, const Template& made, std::span<const Value> in,
                Extents numbers, std::span<Value> results) {
  std::array<Extents, 64> operands;
  std::array<Template::Result, kMostResults> inferred;
  const std::span<Template::Result> found(inferred.data(), results.size());
  if (in.size() > operands.size() || results.size() > kMostResults ||
      metas_.size() + 2 * results.size() > kMostValues) {
    throw Unrecorded("too many operators");
  }
  for (std::size_t i = 0; i < in.size(); ++i) operands[i] = meta(in[i]).shape();
  if (!made.infer({{operands.data(), in.size()}, numbers}, found)) throw Unrecorded("other sizes");
  word(kTemplateWord | static_cast<std::uint32_t>(in.size()) << 16);
  for (const Value v : in) word(static_cast<std::uint32_t>(v));
  word(static_cast<std::uint32_t>(number));
  for (const std::int64_t n : numbers) word(symbol(n));
  operators_ += made.operators();
  for (std::size_t r = 0; r < results.size(); ++r) {
    results[r] = append({found[r].dtype, false, found[r].rank, found[r].sizes});
  }
  // As for slices.
  for (std::size_t r = 0; r < results.size(); ++r) {
    results[r] = add(Op::expand, {results[r]}, {Param::sizes(Meta(meta(results[r])).shape())});
  }
}

// Where one dim becomes several, or several one, the program learns that their product is its size:
// runs of dims with equal products, as the number of equations and for each its symbols.
void Trace::relate(const Meta& from, const Meta& to) {
  const std::size_t count = words_.size();
  word(0);
  if (from.elements() == 0) return;
  int i = 0, j = 0;
  while (i < from.rank && j < to.rank) {
    const int first_i = i, first_j = j;
    std::int64_t a = from.size(i++), b = to.size(j++);
    while (a != b) (a < b ? a *= from.size(i++) : b *= to.size(j++));
    const int before = i - first_i, after = j - first_j;
    if ((before == 1) == (after == 1)) continue;
    const auto part = [&](const Meta& m, int first, int n) {
      for (int d = first; d < first + n; ++d) word(symbol(m.size(d)));
    };
    word(static_cast<std::uint32_t>(std::max(before, after)));
    part(before == 1 ? from : to, before == 1 ? first_i : first_j, 1);
    part(before == 1 ? to : from, before == 1 ? first_j : first_i, std::max(before, after));
    ++words_[count];
  }
}

void Trace::drop_outputs() {
  if (outputs_ == 0) return;
  words_.resize(before_outputs_);
  outputs_ = 0;
}

void Trace::output(Value value, std::span<const std::int32_t> order) {
  if (outputs_ == 0) before_outputs_ = words_.size();
  word(static_cast<std::uint32_t>(Op::call) | static_cast<std::uint32_t>(order.size()) << 16);
  word(static_cast<std::uint32_t>(value));
  for (const std::int32_t d : order) word(static_cast<std::uint32_t>(d));
  ++outputs_;
}

void Trace::output_to(Value value, Value input) {
  if (outputs_ == 0) before_outputs_ = words_.size();
  word(static_cast<std::uint32_t>(Op::call) | kTargetWord);
  word(static_cast<std::uint32_t>(value));
  word(static_cast<std::uint32_t>(input));
  ++outputs_;
}

std::uint64_t Trace::hash() const {
  std::uint64_t h = 0x243F6A8885A308D3;
  std::size_t i = 0;
  for (; i + 1 < words_.size(); i += 2) {
    const std::uint64_t pair = words_[i] | static_cast<std::uint64_t>(words_[i + 1]) << 32;
    h = (std::rotl(h, 5) ^ pair) * 0x9E3779B97F4A7C15;
  }
  if (i < words_.size()) h = (std::rotl(h, 5) ^ words_[i]) * 0x9E3779B97F4A7C15;
  return h ^ h >> 32;
}

void Trace::clear() {
  words_.clear();
  metas_.clear();
  inputs_.clear();
  sizes_.resize(2);
  operators_ = softmax_ = 0;
  outputs_ = 0;
  if (++generation_ == 0) {
    std::ranges::fill(known_, Known{});
    generation_ = 1;
  }
}

}  // namespace tilevm::eager

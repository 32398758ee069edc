#include "eager/torch/record.h"

#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <bit>

namespace tilevm::eager {
namespace {

using c10::DispatchKey;

const std::uint64_t kPlain =
    c10::DispatchKeySet({DispatchKey::CPU, DispatchKey::ADInplaceOrView, DispatchKey::AutogradCPU,
                         DispatchKey::AutocastCPU})
        .raw_repr();

Value number_of(Trace& trace, const at::TensorBase& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return trace.number(*static_cast<const double*>(tensor.const_data_ptr()));
    case at::kLong:
      return trace.number(*static_cast<const std::int64_t*>(tensor.const_data_ptr()));
    case at::kBool:
      return trace.boolean(*static_cast<const bool*>(tensor.const_data_ptr()));
    default:
      return kNoValue;
  }
}

Value number(Trace& trace, const Operand& operand) {
  if (operand.kind == Operand::Kind::kFloat) {
    return trace.number(std::bit_cast<double>(operand.bits));
  }
  return operand.kind == Operand::Kind::kInt ? trace.number(operand.bits)
                                             : trace.boolean(operand.bits != 0);
}

}  // namespace

Operand::Operand(double v) : kind(Kind::kFloat), bits(std::bit_cast<std::int64_t>(v)) {}

Operand::Operand(const c10::Scalar& v) {
  if (v.isFloatingPoint()) {
    *this = Operand(v.toDouble());
  } else {
    *this = v.isBoolean() ? Operand(v.toBool()) : Operand(v.toLong());
  }
}

namespace {

bool has_only(const at::TensorBase& t, std::uint64_t others) {
  const c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
  const c10::DispatchKeySet keys = impl.key_set();
  return (keys.raw_repr() & ~(kPlain | others)) == 0 && keys.has(DispatchKey::CPU) &&
         impl.layout() == c10::kStrided;
}

}  // namespace

bool is_plain(const at::TensorBase& t) { return has_only(t, 0); }

bool is_plain_but_conjugated(const at::TensorBase& t) {
  return t.is_conj() && has_only(t, c10::DispatchKeySet(DispatchKey::Conjugate).raw_repr());
}

bool overlaps_in_part(const at::TensorBase& a, const at::TensorBase& b) {
  const c10::TensorImpl &x = *a.unsafeGetTensorImpl(), &y = *b.unsafeGetTensorImpl();
  if (&x == &y || x.unsafe_storage().unsafeGetStorageImpl() == nullptr ||
      x.unsafe_storage().unsafeGetStorageImpl() != y.unsafe_storage().unsafeGetStorageImpl() ||
      x.numel() == 0 || y.numel() == 0) {
    return false;
  }
  if (!x.is_non_overlapping_and_dense() || !y.is_non_overlapping_and_dense()) {
    const bool alike = x.storage_offset() == y.storage_offset() && x.sizes() == y.sizes() &&
                       x.strides() == y.strides();
    return !alike && (x.dtype() != y.dtype() || x.dim() > kMaxRank || y.dim() > kMaxRank ||
                      !apart(geometry_of(a), x.storage_offset(), geometry_of(b),
                             y.storage_offset()));
  }
  const auto item = [](const c10::TensorImpl& t) {
    return static_cast<std::int64_t>(t.dtype().itemsize());
  };
  const std::int64_t first = x.storage_offset() * item(x), other = y.storage_offset() * item(y);
  const std::int64_t end = first + x.numel() * item(x), other_end = other + y.numel() * item(y);
  if (first == other && end == other_end) return x.strides() != y.strides();
  return first < other_end && other < end;
}

host::Geometry geometry_in(const at::TensorBase& t, DType dtype) {
  host::Geometry g = geometry_of(t);
  if (t.scalar_type() != scalar_type(dtype) && !t.is_non_overlapping_and_dense()) {
    std::ranges::copy(at::infer_dense_strides(t.sizes(), t.strides()), g.strides.begin());
  }
  return g;
}

Value value_of(Recording& recording, const at::TensorBase& tensor) {
  if (LazyImpl* const z = lazy(tensor)) {
    if (const LazyStorage* const storage = z->pending()) {
      if (&storage->recording() != &recording || storage->failed() ||
          tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
        return kNoValue;
      }
      return z->value();
    }
  }
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (impl->is_wrapped_number()) return number_of(recording.trace, tensor);
  const DType dtype = dtype_of(c10::typeMetaToScalarType(impl->dtype()));
  if (dtype == DType::kOpaque || impl->dim() > kMaxRank) return kNoValue;
  return recording.current(tensor, dtype, geometry_of(tensor), tensor.storage_offset());
}

Value pairs_of(Recording& recording, const at::TensorBase& tensor) {
  if (tensor.dim() == kMaxRank) return kNoValue;
  LazyImpl* const z = lazy(tensor);
  const LazyStorage* const storage = z == nullptr ? nullptr : z->pending();
  if (storage == nullptr) {
    const DType part = dtype_of(c10::toRealValueType(tensor.scalar_type()));
    return recording.current(tensor, part, parts_of(geometry_of(tensor)),
                             2 * tensor.storage_offset());
  }
  return &storage->recording() != &recording || storage->failed() ? kNoValue : z->pairs();
}

void finish_writes(const char* reason) {
  Recording& mine = Recording::mine();
  if (C10_LIKELY(!mine.writes())) return;
  std::unique_lock lock(mine.mutex);
  mine.flush(lock, reason);
}

void fill_foreign(const Recording& mine, const at::TensorBase& tensor) {
  LazyImpl* const z = lazy(tensor);
  if (z == nullptr) return;
  LazyStorage* const storage = z->pending();
  if (storage != nullptr && &storage->recording() != &mine) storage->fill("other thread");
}

void finish_writes(const at::TensorBase& tensor, const char* reason) {
  Recording& mine = Recording::mine();
  if (C10_LIKELY(!mine.writes())) return;
  std::unique_lock lock(mine.mutex);
  if (mine.written(tensor)) mine.flush(lock, reason);
}

bool waits(const at::TensorBase& tensor) {
  const LazyImpl* const z = lazy(tensor);
  if (z != nullptr && z->pending() != nullptr) return true;
  Recording& mine = Recording::mine();
  if (C10_LIKELY(!mine.writes())) return false;
  const std::lock_guard lock(mine.mutex);
  return mine.written(tensor);
}

void settle_write(const at::Tensor& t) {
  Recording& mine = Recording::mine();
  if (LazyImpl* const z = lazy(t)) {
    if (LazyStorage* const storage = z->pending()) return storage->fill("written in place");
  }
  std::unique_lock lock(mine.mutex);
  if (mine.knows(t)) mine.flush(lock, "operand written");
}

bool is_lone_number(const at::TensorBase& self,
                    std::initializer_list<const at::TensorBase*> others) {
  if (!is_plain(self) || self.numel() != 1 || waits(self)) return false;
  for (const at::TensorBase* other : others) {
    if (waits(*other)) return false;
  }
  Recording& mine = Recording::mine();
  const std::lock_guard lock(mine.mutex);
  return !mine.knows(self);
}

void begin_product(Recording& recording, std::unique_lock<std::mutex>& lock) {
  const Trace& trace = recording.trace;
  if (trace.operators() < kSomeOperators) return;
  // Weights of attention stay with the scores that they are made of.
  if (trace.operators_after_softmax() < kWeightOperators) return;
  recording.flush(lock, "before a product");
  if (!lock.owns_lock()) lock.lock();
}

bool can_multiply(const at::TensorBase& x, const at::TensorBase& y) {
  const at::ScalarType type = x.scalar_type();
  return type == y.scalar_type() &&
         (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

host::Geometry dense_geometry(const Meta& meta) {
  host::Geometry geometry;
  geometry.rank = meta.rank;
  geometry.sizes = meta.sizes;
  set_dense_strides(geometry);
  return geometry;
}

Value product_of_rows(Trace& trace, Value x, Value w, Value b) {
  constexpr std::array<std::int64_t, 2> kTurned{1, 0};
  const Value turned = trace.add(Op::permute, {w}, {Param::integers(kTurned)});
  const Value y = trace.add(Op::matmul, {x, turned});
  return b == kNoValue ? y : trace.add(Op::add, {b, y});
}

at::Tensor record_linear(const at::TensorBase& x, const at::TensorBase& w,
                         const at::TensorBase* b) {
  if (!is_plain(x) || !is_plain(w) || (b != nullptr && !is_plain(*b))) return {};
  const std::int64_t rank = x.dim();
  if (rank < 1 || rank > kMaxRank || w.dim() != 2 || !can_multiply(x, w) ||
      x.size(rank - 1) != w.size(1)) {
    return {};
  }
  if (b != nullptr &&
      (b->dim() != 1 || b->size(0) != w.size(0) || b->scalar_type() != x.scalar_type())) {
    return {};
  }
  Recording& mine = Recording::mine();
  for (const at::TensorBase* t : {&x, &w, b}) {
    if (t != nullptr) fill_foreign(mine, *t);
  }
  std::unique_lock lock(mine.mutex);
  begin_product(mine, lock);
  try {
    const Value left = value_of(mine, x), right = value_of(mine, w);
    const Value bias = b == nullptr ? left : value_of(mine, *b);
    if (left == kNoValue || right == kNoValue || bias == kNoValue) return {};
    constexpr std::array<std::int64_t, 1> kFirst{0};
    const Value rows = rank > 1 ? left : mine.trace.add(Op::unsqueeze, {left}, {Param::integer(0)});
    Value y = product_of_rows(mine.trace, rows, right, kNoValue);
    if (rank == 1) y = mine.trace.add(Op::squeeze, {y}, {Param::integers(kFirst)});
    if (b != nullptr) y = mine.trace.add(Op::add, {bias, y});
    at::Tensor made = mine.make(y, dense_geometry(mine.trace.meta(y)));
    // PyTorch multiplies a vector, and adds to what it does not know to be a matrix, in place.
    const bool added = b != nullptr && rank != 2 && !x.is_contiguous();
    const bool multiplied = rank == 1 && (b == nullptr || added);
    for (int i = 0; i < (added ? 1 : 0) + (multiplied ? 1 : 0); ++i) {
      made.unsafeGetTensorImpl()->bump_version();
    }
    return made;
  } catch (const Unrecorded&) {
    return {};
  }
}

at::Tensor record_product(const at::TensorBase& x, const at::TensorBase& y,
                          const at::TensorBase* b) {
  if (!is_plain(x) || !is_plain(y) || (b != nullptr && !is_plain(*b))) return {};
  if (x.dim() != 2 || y.dim() != 2 || !can_multiply(x, y) || x.size(1) != y.size(0)) return {};
  if (b != nullptr) {
    // Of sizes that the product's are left as they are by.
    bool fits = b->dim() <= 2 && b->scalar_type() == x.scalar_type();
    for (std::int64_t d = 1; fits && d <= b->dim(); ++d) {
      const std::int64_t size = b->size(b->dim() - d);
      fits = size == 1 || size == (d == 1 ? y.size(1) : x.size(0));
    }
    if (!fits) return {};
  }
  Recording& mine = Recording::mine();
  for (const at::TensorBase* t : {&x, &y, b}) {
    if (t != nullptr) fill_foreign(mine, *t);
  }
  std::unique_lock lock(mine.mutex);
  begin_product(mine, lock);
  try {
    const Value left = value_of(mine, x), right = value_of(mine, y);
    const Value bias = b == nullptr ? left : value_of(mine, *b);
    if (left == kNoValue || right == kNoValue || bias == kNoValue) return {};
    Value product = mine.trace.add(Op::matmul, {left, right});
    if (b != nullptr) product = mine.trace.add(Op::add, {bias, product});
    return mine.make(product, dense_geometry(mine.trace.meta(product)));
  } catch (const Unrecorded&) {
    return {};
  }
}

namespace {

struct Recorded {
  Value value = kNoValue;
  bool condition = false;  // the first operand is one, which is not converted
  std::array<const at::TensorBase*, 3> tensors{};
  std::size_t n_tensors = 0, n = 0;  // operands
  DType computed{};                  // what operands are converted to
};

// Before the recording's mutex is taken.
bool operands_ready(const Recording& mine, std::span<const Operand> operands) {
  if (c10::get_default_dtype_as_scalartype() != at::kFloat) return false;
  for (const Operand& operand : operands) {
    if (operand.kind != Operand::Kind::kTensor) continue;
    if (!is_plain(*operand.tensor)) return false;
    fill_foreign(mine, *operand.tensor);
  }
  return true;
}

bool number_fits(const Operand& number, at::ScalarType type) {
  if (number.kind != Operand::Kind::kFloat) return fits(number.bits, type);
  const auto value = std::bit_cast<double>(number.bits);
  return fits(value, beside(value, type));
}

// Of a choice: whether numbers are of the dtype of the tensor beside them.
bool numbers_fit(std::span<const Operand> operands) {
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    const Operand &one = operands[i], &other = operands[3 - i];
    if (one.kind != Operand::Kind::kTensor && other.kind == Operand::Kind::kTensor &&
        !number_fits(one, other.tensor->scalar_type()))
      return false;
  }
  return true;
}

// The value of `op`; kNoValue if it is not recorded. May throw Unrecorded.
Recorded append(Recording& mine, Op op, std::span<const Operand> operands, const Operand* alpha) {
  Recorded r;
  r.condition = op == Op::where;
  Trace& trace = mine.trace;
  std::array<Value, 3> values{};
  for (const Operand& operand : operands) {
    Value& v = values[r.n++];
    if (operand.kind == Operand::Kind::kTensor) {
      v = value_of(mine, *operand.tensor);
      if (v == kNoValue) return r;
      r.tensors[r.n_tensors++] = operand.tensor;
    } else {
      v = number(trace, operand);
    }
  }
  if (op == Op::sub || op == Op::abs) {  // which PyTorch does not have of bools
    for (std::size_t i = 0; i < r.n; ++i) {
      if (trace.meta(values[i]).dtype == DType::kBool) return r;
    }
  }
  if (op == Op::silu && !is_float(trace.meta(values[0]).dtype)) return r;
  if ((op == Op::maximum || op == Op::minimum) && r.n_tensors < r.n) return r;  // of tensors only
  if (op == Op::where && !numbers_fit(operands)) return r;
  if (alpha != nullptr) {
    // In the dtype of the result; PyTorch refuses factors of a higher kind.
    const DType common = trace.common_dtype(Op::add, std::span<const Value>(values.data(), r.n));
    const bool of_kind =
        is_float(common) ? alpha->kind != Operand::Kind::kBool : alpha->kind == Operand::Kind::kInt;
    if (!of_kind || common == DType::kBool || !number_fits(*alpha, scalar_type(common))) return r;
    values[r.n - 1] =
        trace.add(Op::mul, {trace.cast(values[r.n - 1], common), number(trace, *alpha)});
  }
  const Value made = trace.add(op, std::span<const Value>(values.data(), r.n));
  const Meta& meta = trace.meta(made);
  if (meta.weak) return r;
  r.value = made;
  r.computed = meta.dtype;
  if (meta.dtype == DType::kBool) {
    r.computed = trace.common_dtype(Op::add, std::span<const Value>(values.data(), r.n));
  }
  return r;
}

host::Geometry geometry_of_result(const Recorded& r, const Meta& meta) {
  host::Geometry geometry;
  geometry.rank = meta.rank;
  geometry.sizes = meta.sizes;
  // Most operands lie row by row, and then so does the result.
  bool dense = r.n_tensors == r.n;
  for (std::size_t i = 0; i < r.n_tensors; ++i) {
    const at::IntArrayRef sizes = r.tensors[i]->sizes();
    dense = dense && r.tensors[i]->is_contiguous() &&
            host::equal_dims({sizes.data(), sizes.size()}, meta.shape());
  }
  if (dense) {
    set_dense_strides(geometry);
    return geometry;
  }
  std::array<host::Geometry, 3> seen;  // numbers have rank 0
  std::array<const host::Geometry*, 3> of{};
  for (std::size_t i = 0; i < r.n; ++i) {
    if (i < r.n_tensors) {
      seen[i] = i == 0 && r.condition ? geometry_of(*r.tensors[i])
                                      : geometry_in(*r.tensors[i], r.computed);
    }
    of[i] = &seen[i];
  }
  elementwise_strides({of.data(), r.n}, geometry);
  return geometry;
}

}  // namespace

at::Tensor record_elementwise(Op op, std::span<const Operand> operands, const Operand* alpha) {
  Recording& mine = Recording::mine();
  if (!operands_ready(mine, operands)) return {};
  std::unique_lock lock(mine.mutex);
  try {
    const Recorded r = append(mine, op, operands, alpha);
    if (r.value == kNoValue) return {};
    at::Tensor made = mine.make(r.value, geometry_of_result(r, mine.trace.meta(r.value)));
    if (mine.trace.operators() >= kMostOperators) mine.flush(lock, "length");
    return made;
  } catch (const Unrecorded&) {
    return {};
  }
}

bool record_in_place(Op op, std::span<const Operand> operands, const Operand* alpha) {
  Recording& mine = Recording::mine();
  if (!operands_ready(mine, operands)) return false;
  for (const Operand& operand : operands.subspan(1)) {
    const bool tensor = operand.kind == Operand::Kind::kTensor;
    if (tensor && overlaps_in_part(*operands[0].tensor, *operand.tensor)) return false;
  }
  std::unique_lock lock(mine.mutex);
  try {
    const Recorded r = append(mine, op, operands, alpha);
    if (r.value == kNoValue) return false;
    const bool done = assign(mine, *operands[0].tensor, r.value);
    if (mine.trace.operators() >= kMostOperators) mine.flush(lock, "length");
    return done;
  } catch (const Unrecorded&) {
    return false;
  }
}

bool assign(Recording& recording, const at::TensorBase& self, Value made) {
  const DType dtype = dtype_of(self.scalar_type());
  if (dtype == DType::kOpaque || !recording.can_assign(self, dtype)) return false;
  Trace& trace = recording.trace;
  const Meta& from = trace.meta(made);
  return at::IntArrayRef(from.sizes.data(), static_cast<std::size_t>(from.rank)) == self.sizes() &&
         at::canCast(scalar_type(from.dtype), self.scalar_type()) &&
         recording.assign(self, trace.cast(made, dtype));
}

}  // namespace tilevm::eager

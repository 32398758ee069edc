#include "eager/torch/indexing.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>

#include "eager/torch/call.h"
#include "eager/torch/python.h"

namespace tilevm::eager {
namespace {

// What indices make of a tensor: where its elements lie, and, of one that waits, what it holds.
class Part {
 public:
  // `recording`: null for a tensor in memory.
  Part(const at::Tensor& of, Recording* recording)
      : of_(of), recording_(recording), geometry_(geometry_of(of)) {
    if (recording == nullptr) return;
    value_ = lazy(of)->value();
    if (value_ == kNoValue) throw Unrecorded("memory that has changed");
  }

  const host::Geometry& geometry() const { return geometry_; }
  int rank() const { return geometry_.rank; }

  void select(int axis, std::int64_t i) {
    offset_ += i * geometry_.stride(axis);
    for (int d = axis; d + 1 < geometry_.rank; ++d) {
      geometry_.size(d) = geometry_.size(d + 1);
      geometry_.stride(d) = geometry_.stride(d + 1);
    }
    --geometry_.rank;
    if (recording_ != nullptr) add(Op::select, {Param::integer(axis), Param::size(i)});
  }

  void slice(int axis, std::int64_t start, std::int64_t end, std::int64_t step) {
    const std::int64_t size = geometry_.size(axis);
    const bool whole = start == 0 && end == size && step == 1;
    offset_ += start * geometry_.stride(axis);
    geometry_.size(axis) = (end - start + step - 1) / step;
    if (__builtin_mul_overflow(geometry_.stride(axis), step, &geometry_.stride(axis))) {
      throw Unrecorded("a stride beyond numbers");
    }
    if (recording_ == nullptr || whole) return;
    if (geometry_.size(axis) == 1) {  // for certain
      add(Op::select, {Param::integer(axis), Param::size(start)});
      add(Op::unsqueeze, {Param::integer(axis)});
      return;
    }
    add(Op::slice,
        {Param::integer(axis), Param::size(start), Param::size(end), Param::integer(step)});
  }

  void unsqueeze(int axis) {
    if (geometry_.rank == kMaxRank) throw Unrecorded("too many dims");
    const std::int64_t stride =
        axis < geometry_.rank ? geometry_.size(axis) * geometry_.stride(axis) : 1;
    for (int d = geometry_.rank; d > axis; --d) {
      geometry_.size(d) = geometry_.size(d - 1);
      geometry_.stride(d) = geometry_.stride(d - 1);
    }
    geometry_.size(axis) = 1;
    geometry_.stride(axis) = stride;
    ++geometry_.rank;
    if (recording_ != nullptr) add(Op::unsqueeze, {Param::integer(axis)});
  }

  // The tensor, of which autograd does not know yet.
  at::Tensor make() const {
    if (recording_ != nullptr) return recording_->view(of_, value_, geometry_, offset_);
    auto impl = c10::make_intrusive<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(of_.storage()), of_.key_set(), of_.dtype());
    impl->set_storage_offset(of_.storage_offset() + offset_);
    const auto rank = static_cast<std::size_t>(geometry_.rank);
    impl->set_sizes_and_strides({geometry_.sizes.data(), rank}, {geometry_.strides.data(), rank});
    return at::Tensor(std::move(impl));
  }

 private:
  void add(Op op, std::initializer_list<Param> params) {
    value_ = recording_->trace.add(op, {value_}, params);
  }

  const at::Tensor& of_;
  Recording* recording_;
  host::Geometry geometry_;
  std::int64_t offset_ = 0;
  Value value_ = kNoValue;
};

// An index of Python's, or a number that a tensor holds; false if it is none.
bool integer_of(PyObject* object, std::int64_t& out) {
  if (PyLong_CheckExact(object)) {
    int overflow = 0;
    out = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow == 0;
  }
  const at::Tensor* const t = tensor_of(object);
  if (t == nullptr || t->dim() != 0 || t->scalar_type() != at::kLong || !is_plain(*t)) {
    return false;
  }
  finish_writes(*t, "looked at");
  out = *t->const_data_ptr<std::int64_t>();
  return true;
}

bool bound(PyObject* object, std::int64_t otherwise, std::int64_t& out) {
  out = otherwise;
  return object == Py_None || (PyLong_CheckExact(object) && integer_of(object, out));
}

struct Slice {
  std::int64_t start, end, step;
};
bool slice_of(PyObject* object, std::int64_t size, Slice& out) {
  const auto& s = *reinterpret_cast<PySliceObject*>(object);
  if (!bound(s.start, 0, out.start) || !bound(s.stop, size, out.end) ||
      !bound(s.step, 1, out.step) || out.step < 1 || out.step > kMostStep) {
    return false;
  }
  const auto within = [size](std::int64_t v) {
    return std::clamp<std::int64_t>(v < 0 ? v + size : v, 0, size);
  };
  out.start = within(out.start);
  out.end = std::max(out.start, within(out.end));
  return true;
}

// Of one index, what it is; numbers that tensors hold are read before anything is recorded, since
// to look may run what waits.
struct Item {
  enum class Kind : std::uint8_t { kInteger, kSlice, kNew, kEllipsis, kTensor } kind{};
  std::int64_t integer = 0;
  PyObject* object = nullptr;
  const at::Tensor* tensor = nullptr;
};

bool item_of(PyObject* object, Item& out) {
  out.object = object;
  if (object == Py_None) {
    out.kind = Item::Kind::kNew;
  } else if (object == Py_Ellipsis) {
    out.kind = Item::Kind::kEllipsis;
  } else if (PySlice_Check(object)) {
    out.kind = Item::Kind::kSlice;
  } else if (integer_of(object, out.integer)) {
    out.kind = Item::Kind::kInteger;
  } else {
    out.tensor = tensor_of(object);
    if (out.tensor == nullptr || out.tensor->dim() == 0 || !is_plain(*out.tensor)) return false;
    out.kind = Item::Kind::kTensor;
  }
  return true;
}

constexpr std::size_t kMostItems = 8;

// x[..., t, ...] for tensors at these dims of `x`.
at::Tensor gathered(const at::Tensor& x, std::span<const at::Tensor> tensors, std::size_t first) {
  static const Row& row = installed_rows().at("index.Tensor");
  c10::List<std::optional<at::Tensor>> indices;
  for (std::size_t i = 0; i < first; ++i) indices.push_back(std::nullopt);
  for (const at::Tensor& t : tensors) indices.push_back(t);
  torch::jit::Stack stack;
  stack.reserve(2);
  stack.emplace_back(x);
  stack.emplace_back(std::move(indices));
  if (!record_row(row, Place::kNew, false, stack, 2)) return {};
  return std::move(stack.back()).toTensor();
}

}  // namespace

at::Tensor places_of(const at::Tensor& mask) {
  if (!is_plain(mask) || mask.scalar_type() != at::kBool || mask.dim() == 0 ||
      mask.dim() > kMaxRank || !mask.is_contiguous()) {
    return {};
  }
  finish_writes(mask, "looked at");
  const bool* const held = mask.const_data_ptr<bool>();
  const std::int64_t n = mask.numel(), rank = mask.dim();
  const std::int64_t count = std::count(held, held + n, true);
  // In memory column by column, as PyTorch's own.
  at::Tensor made = at::detail::empty_strided_cpu({count, rank}, {1, count}, at::kLong);
  auto* const out = made.mutable_data_ptr<std::int64_t>();
  std::array<std::int64_t, kMaxRank> at{};
  std::int64_t next = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (held[i]) {
      for (std::int64_t d = 0; d < rank; ++d) {
        out[d * count + next] = at[static_cast<std::size_t>(d)];
      }
      ++next;
    }
    for (auto d = static_cast<std::size_t>(rank); d-- > 0;) {
      if (++at[d] < mask.size(static_cast<std::int64_t>(d))) break;
      at[d] = 0;
    }
  }
  return made;
}

at::Tensor indexed(const at::Tensor& x, PyObject* index) {
  if (!is_plain(x) || x.dim() > kMaxRank || !can_view(x)) return {};
  std::array<Item, kMostItems> items;
  std::size_t n = 1;
  if (PyTuple_CheckExact(index)) {
    n = static_cast<std::size_t>(PyTuple_GET_SIZE(index));
    if (n == 0 || n > kMostItems) return {};
    for (std::size_t i = 0; i < n; ++i) {
      if (!item_of(PyTuple_GET_ITEM(index, static_cast<Py_ssize_t>(i)), items[i])) return {};
    }
  } else if (!item_of(index, items[0])) {
    return {};
  }
  using Kind = Item::Kind;
  int given = 0, ellipses = 0, tensors = 0;
  bool moves = false;  // whether anything but tensors says something
  for (std::size_t i = 0; i < n; ++i) {
    given += items[i].kind != Kind::kNew && items[i].kind != Kind::kEllipsis ? 1 : 0;
    ellipses += items[i].kind == Kind::kEllipsis ? 1 : 0;
    tensors += items[i].kind == Kind::kTensor ? 1 : 0;
    const auto* const s = reinterpret_cast<PySliceObject*>(items[i].object);
    moves = moves || items[i].kind == Kind::kInteger || items[i].kind == Kind::kNew ||
            (items[i].kind == Kind::kSlice &&
             (s->start != Py_None || s->stop != Py_None || s->step != Py_None));
  }
  if (given > x.dim() || ellipses > 1) return {};
  // A mask is the places where it holds, which it takes a look to know.
  std::array<at::Tensor, kMostItems> chosen;
  for (std::size_t i = 0; i < n && tensors > 0; ++i) {
    if (items[i].kind != Kind::kTensor) continue;
    if (items[i].tensor->scalar_type() != at::kBool) {
      chosen[i] = *items[i].tensor;
      continue;
    }
    // Of another size is an error; behind others, an axis of which is not known here.
    if (tensors > 1 || items[i].tensor->dim() != 1 || ellipses > 0 || moves ||
        items[i].tensor->size(0) != x.size(static_cast<std::int64_t>(i))) {
      return {};
    }
    chosen[i] = places_of(*items[i].tensor);
    if (!chosen[i].defined()) return {};
    const std::array<std::int64_t, 1> count{chosen[i].size(0)}, stride{1};
    chosen[i].unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef(count),
                                                           at::IntArrayRef(stride));
  }
  Recording& mine = Recording::mine();
  fill_foreign(mine, x);
  std::array<at::Tensor, kMostItems> side_by_side;
  std::size_t n_tensors = 0, first = 0;
  at::Tensor part;
  {
    std::unique_lock lock(mine.mutex);
    const LazyImpl* const z = lazy(x);
    const bool pending = z != nullptr && z->pending() != nullptr;
    if (pending && z->pending()->failed()) return {};
    try {
      Part p(x, pending ? &mine : nullptr);
      int d = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const Item& item = items[i];
        switch (item.kind) {
          case Kind::kInteger: {
            const std::int64_t size = p.geometry().size(d);
            if (item.integer < -size || item.integer >= size) return {};
            p.select(d, item.integer < 0 ? item.integer + size : item.integer);
            break;
          }
          case Kind::kSlice: {
            Slice s{};
            if (!slice_of(item.object, p.geometry().size(d), s)) return {};
            p.slice(d++, s.start, s.end, s.step);
            break;
          }
          case Kind::kNew:
            p.unsqueeze(d++);
            break;
          case Kind::kEllipsis:
            d += static_cast<int>(x.dim()) - given;
            break;
          case Kind::kTensor:
            if (n_tensors == 0) first = static_cast<std::size_t>(d);
            if (first + n_tensors != static_cast<std::size_t>(d)) return {};
            side_by_side[n_tensors++] = std::move(chosen[i]);
            ++d;
            break;
        }
      }
      if (n_tensors == 0 || moves) part = p.make();
    } catch (const Unrecorded&) {
      return {};
    }
    if (mine.trace.operators() >= kMostOperators) mine.flush(lock, "length");
  }
  if (n_tensors == 0) return as_view_of(x, std::move(part), false);
  return gathered(moves ? part : x, {side_by_side.data(), n_tensors}, first);
}

std::vector<at::Tensor> parts_of(const at::Tensor& x, std::int64_t axis, std::int64_t size) {
  const std::int64_t rank = x.dim();
  if (!is_plain(x) || rank == 0 || rank > kMaxRank || axis < -rank || axis >= rank ||
      !can_view(x)) {
    return {};
  }
  const int d = static_cast<int>(axis < 0 ? axis + rank : axis);
  const std::int64_t length = x.size(d), step = std::max<std::int64_t>(size, 1);
  if (length == 0 || length > 64 * step) return {};
  Recording& mine = Recording::mine();
  fill_foreign(mine, x);
  std::vector<at::Tensor> parts;
  {
    std::unique_lock lock(mine.mutex);
    const LazyImpl* const z = lazy(x);
    const bool pending = z != nullptr && z->pending() != nullptr;
    if (pending && z->pending()->failed()) return {};
    try {
      for (std::int64_t start = 0; start < length; start += step) {
        Part p(x, pending ? &mine : nullptr);
        if (size == 0) {
          p.select(d, start);
        } else {
          p.slice(d, start, std::min(start + step, length), 1);
        }
        parts.push_back(p.make());
      }
    } catch (const Unrecorded&) {
      return {};
    }
    if (mine.trace.operators() >= kMostOperators) mine.flush(lock, "length");
  }
  for (at::Tensor& part : parts) part = as_view_of(x, std::move(part), true);
  return parts;
}

}  // namespace tilevm::eager

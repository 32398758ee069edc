// Dtypes and PyTorch's type promotion.
#include "program/program.h"

namespace tilevm {

namespace {

struct DTypeInfo {
  std::string_view name;
  int bytes;
};
constexpr DTypeInfo kDTypes[] = {{"float32", 4}, {"bfloat16", 2}, {"int64", 8},   {"int32", 4},
                                 {"bool", 1},    {"float64", 8},  {"float16", 2}, {"int16", 2},
                                 {"int8", 1},    {"uint8", 1},    {"opaque", 0}};
constexpr int kDTypeCount = static_cast<int>(DType::kOpaque) + 1;
static_assert(std::size(kDTypes) == kDTypeCount);

constexpr DType promote_two(DType a, DType b) {
  if (a == b) return a;
  if (a == DType::kOpaque || b == DType::kOpaque) return DType::kOpaque;
  if (is_float(a) != is_float(b)) return is_float(a) ? a : b;
  const auto either = [a, b](DType d) { return a == d || b == d; };
  if (is_float(a)) {
    if (either(DType::kFloat64)) return DType::kFloat64;
    return DType::kFloat32;  // also float16 with bfloat16
  }
  if (a == DType::kBool) return b;
  if (b == DType::kBool) return a;
  for (DType d : {DType::kInt64, DType::kInt32}) {
    if (either(d)) return d;
  }
  return DType::kInt16;  // also int8 with uint8
}

// As PyTorch's combine_categories: a lower category counts only if it is of a higher kind.
DType combine(std::optional<DType> high, std::optional<DType> low) {
  if (!high || !low) return high ? *high : low.value_or(DType::kBool);
  if (*high == DType::kOpaque || *low == DType::kOpaque) return DType::kOpaque;
  if (is_float(*high)) return *high;
  if (*high == DType::kBool || is_float(*low)) return promote_two(*high, *low);
  return *high;
}

void join(std::optional<DType>& so_far, DType d) { so_far = so_far ? promote_two(*so_far, d) : d; }

}  // namespace

std::string_view dtype_name(DType dtype) { return kDTypes[static_cast<int>(dtype)].name; }
int dtype_bytes(DType dtype) { return kDTypes[static_cast<int>(dtype)].bytes; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

DType promote(std::span<const Type> in) {
  bool same = true;
  for (const Type& t : in) same = same && t.dtype == in[0].dtype && t.weak == in[0].weak;
  if (same) return in[0].dtype;
  std::optional<DType> tensors, scalars, numbers;
  for (const Type& t : in) {
    if (t.weak) {
      join(numbers, t.dtype);
    } else if (t.shape.rank == 0) {
      join(scalars, t.dtype);
    } else {
      join(tensors, t.dtype);
    }
  }
  // A weak float counts as PyTorch's default dtype beside a tensor.
  if ((tensors || scalars) && numbers == DType::kFloat64) numbers = DType::kFloat32;
  std::optional<DType> below;
  if (scalars || numbers) below = combine(scalars, numbers);
  return combine(tensors, below);
}

}  // namespace tilevm

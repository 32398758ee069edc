#include "eager/torch/templates.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <atomic>
#include <bit>
#include <unordered_map>

#include "eager/torch/record.h"
#include "host/views.h"

namespace tilevm::eager {
namespace {

using c10::IValue;

constexpr int kMostAsked = 64;             // kinds of calls of one operator that are asked for
constexpr std::size_t kMostCounted = 256;  // with those whose calls are counted until then
constexpr int kMostTemplates = 4;          // of one kind of call, which differ in conditions
constexpr std::size_t kMostOperands = 32;  // tensors
// Integers that operators take for sizes and that are no tensor's: smaller ones are paddings,
// strides and the like, few of which there are.
constexpr std::int64_t kLeastSize = 9;
// Complex numbers of a tensor. Kernels take their parts to vectors of their own and back, 3 ns
// where PyTorch's need 1.4 an operator (AVX2): what is recorded gains by calls, not by numbers.
constexpr std::int64_t kMostComplex = 4096;

// What a kind of call is: dtypes, ranks, layouts, which sizes are 0, 1 or equal; other arguments.
using Key = std::vector<std::int64_t>;
struct HashOfKey {
  std::size_t operator()(const Key& key) const noexcept {
    std::uint64_t h = 0x243F6A8885A308D3;
    for (const std::int64_t v : key) {
      h = (std::rotl(h, 5) ^ static_cast<std::uint64_t>(v)) * 0x9E3779B97F4A7C15;
    }
    return h ^ h >> 32;
  }
};

struct Entry {
  std::int32_t number = -1;
  const Template* made = nullptr;
};
struct Kind {
  std::int64_t calls = 0;
  int asked = 0;
  std::array<Entry, kMostTemplates> entries;
  int n_entries = 0;
};
struct OfOperator {
  bool suits = false;
  bool list = false;        // its result is a list
  std::vector<bool> sizes;  // by argument, whether integers are sizes
  int asked = 0;            // kinds that Python was asked for, which are kept
  std::unordered_map<Key, Kind, HashOfKey> kinds;
};
struct Known {
  std::mutex mutex;
  std::unordered_map<const c10::FunctionSchema*, OfOperator> operators;
};
Known& known() {
  static auto* const made = new Known;
  return *made;
}

PyObject* teacher = nullptr;
std::atomic<bool> has_teacher{false};

bool are_tensors(const std::vector<c10::Argument>& returns) {
  const c10::TypePtr tensor = c10::TensorType::get();
  if (returns.size() == 1 && *returns[0].type() == *c10::ListType::create(tensor)) return true;
  return !returns.empty() && std::ranges::all_of(returns, [&](const c10::Argument& r) {
    return *r.type() == *tensor;
  });
}

// Whether an operator takes and makes tensors, shares and writes no memory, and does not consist of
// operators that are recorded themselves, or is asked for whole.
bool is_suitable(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& name = schema.name();
  if (!name.starts_with("aten::") || name.starts_with("aten::_foreach_")) return false;
  if (name == "aten::clone" || name == "aten::_to_copy") return false;  // see is_copied_at_once
  if (name.ends_with("_batch_norm")) return false;  // which writes what its schema does not say
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
      name != "aten::scaled_dot_product_attention") {
    return false;
  }
  for (const auto* const part : {&schema.arguments(), &schema.returns()}) {
    for (const c10::Argument& argument : *part) {
      if (argument.alias_info() != nullptr) return false;
    }
  }
  return are_tensors(schema.returns());
}

// The number that PyTorch put into a tensor for an operator that takes tensors; none of others.
std::optional<IValue> wrapped_number(const IValue& v) {
  if (!v.isTensor() || !v.toTensor().defined()) return std::nullopt;
  const at::Tensor& t = v.toTensor();
  if (!t.unsafeGetTensorImpl()->is_wrapped_number()) return std::nullopt;
  switch (t.scalar_type()) {
    case at::kDouble:
      return IValue(*t.const_data_ptr<double>());
    case at::kLong:
      return IValue(*t.const_data_ptr<std::int64_t>());
    case at::kBool:
      return IValue(*t.const_data_ptr<bool>());
    case at::kComplexDouble:
      return IValue(*t.const_data_ptr<c10::complex<double>>());
    default:
      return IValue();
  }
}

// Tells one kind of call from others, and which tensors there are.
class Signature {
 public:
  Signature() { key.reserve(64); }

  Key key;
  c10::SmallVector<const at::Tensor*, 8> tensors;
  c10::SmallVector<std::int64_t, 8> numbers;  // that are sizes

  // Before add(): sizes of tensors, which integers may be as well. False: there is an unusual one.
  bool see(const IValue& v) {
    return every_tensor(v, [&](const at::Tensor& t) {
      if (!is_plain(t)) return false;
      for (const std::int64_t size : t.sizes()) place_of(size);
      return true;
    });
  }
  bool is_size(std::int64_t v) const {
    return v >= kLeastSize || (v > 1 && std::ranges::find(sizes_, v) != sizes_.end());
  }

  // False: an argument is nothing that a template could have. sizes: integers are sizes.
  bool add(const IValue& v, bool sizes) {
    if (const auto number = wrapped_number(v)) return !number->isNone() && add(*number, false);
    if (v.isTensor()) return add(v.toTensor());
    if (v.isNone()) return push({0});
    if (v.isDouble()) return push({1, bits(v.toDouble())});
    if (v.isComplexDouble()) {
      const c10::complex<double> number = v.toComplexDouble();
      return push({8, bits(number.real()), bits(number.imag())});
    }
    if (v.isInt() && sizes && is_size(v.toInt())) {
      numbers.push_back(v.toInt());
      return push({7, place_of(v.toInt())});
    }
    if (v.isInt()) return push({2, v.toInt()});
    if (v.isBool()) return push({3, v.toBool() ? 1 : 0});
    if (v.isString()) {
      const std::string& text = v.toStringRef();
      push({4, static_cast<std::int64_t>(text.size())});
      for (const char c : text) key.push_back(c);
      return true;
    }
    if (!v.isList()) return false;
    const auto items = v.toListRef();
    push({5, static_cast<std::int64_t>(items.size())});
    return std::ranges::all_of(items, [&](const IValue& item) { return add(item, sizes); });
  }

  // Whether tensors' dtype has the number: where it has not, PyTorch raises or takes another one.
  bool has(double number) const {
    at::ScalarType type = at::kBool;
    for (const at::Tensor* const t : tensors) {
      if (type == at::kBool) type = t->scalar_type();
    }
    return fits(number, beside(number, type));
  }

 private:
  static std::int64_t bits(double v) { return std::bit_cast<std::int64_t>(v); }
  bool push(std::initializer_list<std::int64_t> values) {
    key.insert(key.end(), values);
    return true;
  }

  bool add(const at::Tensor& t) {
    if (!t.defined()) return push({0});
    const bool complex = t.is_complex();
    const at::ScalarType part = complex ? c10::toRealValueType(t.scalar_type()) : t.scalar_type();
    if (tensors.size() == kMostOperands || t.dim() + (complex ? 1 : 0) > kMaxRank ||
        dtype_of(part) == DType::kOpaque ||
        (complex && (part == at::kHalf || t.numel() > kMostComplex))) {
      return false;
    }
    const bool dense = t.is_non_overlapping_and_dense();
    if (!dense && !is_apart(t)) return false;
    tensors.push_back(&t);
    push({6, static_cast<std::int64_t>(t.scalar_type()), t.dim()});
    for (const std::int64_t size : t.sizes()) key.push_back(size < 2 ? size : 2 + place_of(size));
    if (is_row_major(t)) return true;
    if (!dense) key.push_back(kGaps);
    // Some operators keep strides of dims of one element, whatever they are.
    if (std::ranges::any_of(t.sizes(), [](std::int64_t size) { return size < 2; })) return false;
    const auto strides = t.strides();
    for (std::size_t d = 0; d < strides.size(); ++d) {
      std::int64_t outer = 0;  // dims that lie outside of this one
      for (std::size_t e = 0; e < strides.size(); ++e) {
        outer += strides[e] > strides[d] || (strides[e] == strides[d] && e < d) ? 1 : 0;
      }
      key.push_back(-1 - outer);
    }
    return true;
  }

  static constexpr std::int64_t kGaps = -1000;  // no place of a dim

  // Whether no two elements share memory, there being some along each dim.
  static bool is_apart(const at::Tensor& t) {
    c10::SmallVector<std::pair<std::int64_t, std::int64_t>, 8> dims;
    for (std::int64_t d = 0; d < t.dim(); ++d) dims.emplace_back(t.stride(d), t.size(d));
    std::ranges::sort(dims);
    std::int64_t reached = 1;
    for (const auto& [stride, size] : dims) {
      if (size < 2 || stride < reached) return false;
      reached = stride * size;
    }
    return true;
  }

  static bool is_row_major(const at::Tensor& t) {
    std::int64_t stride = 1;
    for (std::int64_t d = t.dim() - 1; d >= 0; --d) {
      if (t.stride(d) != stride) return false;
      stride *= std::max<std::int64_t>(t.size(d), 1);
    }
    return true;
  }

  // Of a size among those that differ.
  std::int64_t place_of(std::int64_t size) {
    const auto found = std::ranges::find(sizes_, size);
    if (found == sizes_.end()) sizes_.push_back(size);
    return std::distance(sizes_.begin(), std::ranges::find(sizes_, size));
  }

  c10::SmallVector<std::int64_t, 16> sizes_;
};

c10::TypePtr without_none(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::OptionalType ? type->containedType(0) : type;
}

// Whether integers of an argument are sizes, by its schema.
bool takes_sizes(const c10::TypePtr& type) {
  const c10::TypePtr plain = without_none(type);
  if (plain->kind() != c10::TypeKind::ListType) return plain->kind() == c10::TypeKind::SymIntType;
  return plain->containedType(0)->kind() == c10::TypeKind::SymIntType;
}

OfOperator asked_of(const c10::OperatorHandle& op) {
  OfOperator of;
  of.suits = is_suitable(op);
  if (!of.suits) return of;
  of.list = op.schema().returns()[0].type()->kind() == c10::TypeKind::ListType;
  // Strides and dilations are called sizes, and pools of unequal windows are programs of their own.
  const std::string& name = op.schema().name();
  const auto is_of = [&](const char* kind) { return name.find(kind) != std::string::npos; };
  const bool has_sizes = !is_of("convolution") && !is_of("adaptive_");
  for (const c10::Argument& argument : op.schema().arguments()) {
    of.sizes.push_back(has_sizes && takes_sizes(argument.real_type()));
  }
  return of;
}

// A new reference; null with Python's error set. Sizes are tuples of one integer; `sizes`: whether
// integers are any.
PyObject* python_of(const IValue& v, const c10::TypePtr& type, const Signature& call, bool sizes) {
  if (v.isNone() || (v.isTensor() && !v.toTensor().defined())) Py_RETURN_NONE;
  if (const auto number = wrapped_number(v)) {
    return python_of(*number, c10::NumberType::get(), call, false);
  }
  if (v.isTensor()) return THPVariable_Wrap(v.toTensor());
  if (v.isDouble()) return PyFloat_FromDouble(v.toDouble());
  if (v.isComplexDouble()) {
    const c10::complex<double> number = v.toComplexDouble();
    return PyComplex_FromDoubles(number.real(), number.imag());
  }
  if (v.isBool()) return PyBool_FromLong(v.toBool());
  if (v.isString()) return PyUnicode_FromString(v.toStringRef().c_str());
  const c10::TypePtr plain = without_none(type);
  if (v.isInt()) {
    switch (plain->kind()) {
      case c10::TypeKind::SymIntType:
        if (sizes && call.is_size(v.toInt())) return Py_BuildValue("(L)", v.toInt());
        return PyLong_FromLongLong(v.toInt());
      case c10::TypeKind::ScalarTypeType:
        return Py_NewRef(reinterpret_cast<PyObject*>(torch::getTHPDtype(v.toScalarType())));
      case c10::TypeKind::LayoutType:
        return Py_NewRef(reinterpret_cast<PyObject*>(torch::getTHPLayout(v.toLayout())));
      case c10::TypeKind::MemoryFormatType:
        return Py_NewRef(torch::utils::getTHPMemoryFormat(v.toMemoryFormat()));
      default:
        return PyLong_FromLongLong(v.toInt());
    }
  }
  const auto items = v.toListRef();
  PyObject* const list = PyList_New(static_cast<Py_ssize_t>(items.size()));
  for (std::size_t i = 0; list != nullptr && i < items.size(); ++i) {
    PyObject* const item = python_of(items[i], plain->containedType(0), call, sizes);
    if (item == nullptr) {
      Py_DECREF(list);
      return nullptr;
    }
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), item);
  }
  return list;
}

class Locked {
 public:
  Locked() : state_(PyGILState_Ensure()) {}
  ~Locked() { PyGILState_Release(state_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  PyGILState_STATE state_;
};

std::int32_t ask(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                 const Signature& call, const std::vector<bool>& sizes) {
  if (!has_teacher.load(std::memory_order_acquire)) return -1;
  const Locked locked;
  if (teacher == nullptr) return -1;
  const auto& arguments = op.schema().arguments();
  PyObject* const given = PyList_New(static_cast<Py_ssize_t>(arguments.size()));
  PyObject* answer = given;
  for (std::size_t i = 0; answer != nullptr && i < arguments.size(); ++i) {
    answer = python_of(stack[stack.size() - arguments.size() + i], arguments[i].real_type(), call,
                       sizes[i]);
    if (answer != nullptr) PyList_SET_ITEM(given, static_cast<Py_ssize_t>(i), answer);
  }
  if (answer != nullptr) {
    answer = PyObject_CallFunction(teacher, "ssO", op.schema().name().c_str() + 6,
                                   op.schema().overload_name().c_str(), given);
  }
  Py_XDECREF(given);
  const long number = answer != nullptr ? PyLong_AsLong(answer) : -1;
  Py_XDECREF(answer);
  if (PyErr_Occurred() != nullptr) {
    // The operator runs as it is; whoever interrupted finds that behind it.
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0) PyErr_SetInterrupt();
    PyErr_Clear();
    return -1;
  }
  return static_cast<std::int32_t>(number);
}

// Whether no element of a tensor that does not wait is above `most`.
bool is_at_most(const at::Tensor& t, double most) {
  if (waits(t) || !t.is_non_overlapping_and_dense()) return false;
  switch (t.scalar_type()) {
#define TILEVM_CASE(cpp, name)                                                                 \
  case at::ScalarType::name: {                                                                 \
    const auto* const items = static_cast<const cpp*>(t.const_data_ptr());                     \
    return std::none_of(items, items + t.numel(),                                              \
                        [&](cpp item) { return static_cast<double>(item) > most; });           \
  }
    AT_FORALL_SCALAR_TYPES_AND3(Bool, Half, BFloat16, TILEVM_CASE)
#undef TILEVM_CASE
    default:
      return false;
  }
}

bool is_within_limits(const Template& made, const Signature& call) {
  return std::ranges::all_of(made.limits(), [&](const Limit& limit) {
    return is_at_most(*call.tensors[static_cast<std::size_t>(limit.operand)], limit.most);
  });
}

bool record(const Entry& entry, const Signature& call, bool list, torch::jit::Stack& stack,
            std::size_t n_args) {
  struct {
    const Entry& entry;
    const Signature& call;
    bool list;
  } const it{entry, call, list};
  const Row row = [&it](Call& c) {
    c10::SmallVector<Value, 8> operands;
    for (const at::Tensor* const t : it.call.tensors) {
      operands.push_back(t->is_complex() ? c.pairs(*t) : c.value(*t));
    }
    std::array<Value, kMostResults> results{};
    const std::span<Value> made(results.data(), it.entry.made->n_results());
    const auto& numbers = it.call.numbers;
    c.trace().add(it.entry.number, *it.entry.made, operands, {numbers.data(), numbers.size()},
                  made);
    for (std::size_t r = 0; r < made.size(); ++r) {
      host::Geometry g;
      g.rank = c.meta(made[r]).rank;
      g.sizes = c.meta(made[r]).sizes;
      host::set_strides_in_order(g, it.entry.made->order(r));
      c.result(made[r], g, it.entry.made->is_complex(r));
    }
    if (it.list) c.list();
  };
  return record_row(row, Place::kNew, entry.made->has_product(), stack, n_args);
}

}  // namespace

void set_teacher(PyObject* asked) {
  has_teacher.store(asked != nullptr, std::memory_order_release);
  Py_XINCREF(asked);
  Py_XSETREF(teacher, asked);
}

bool record_template(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const std::int64_t after = engine().template_calls();
  if (after == 0) return false;
  const c10::FunctionSchema* const schema = &op.schema();
  const std::size_t n_args = schema->arguments().size();
  OfOperator* of = nullptr;
  {
    const std::lock_guard lock(known().mutex);
    const auto [found, is_new] = known().operators.try_emplace(schema);
    of = &found->second;
    if (is_new) *of = asked_of(op);
    if (!of->suits) return false;
  }
  Signature call;
  const std::size_t first = stack.size() - n_args;
  for (std::size_t i = 0; i < n_args; ++i) {
    if (!call.see(stack[first + i])) return false;
  }
  for (std::size_t i = 0; i < n_args; ++i) {
    if (!call.add(stack[first + i], of->sizes[i])) return false;
  }
  if (call.tensors.empty()) return false;
  for (std::size_t i = 0; i < n_args; ++i) {
    if (stack[first + i].isDouble() && !call.has(stack[first + i].toDouble())) return false;
  }
  c10::SmallVector<Extents, 8> sizes;
  std::vector<std::vector<std::int64_t>> of_parts;
  for (const at::Tensor* const t : call.tensors) {
    Extents extents{t->sizes().data(), t->sizes().size()};
    if (C10_UNLIKELY(t->is_complex())) {
      of_parts.reserve(call.tensors.size());  // spans stay where they are
      of_parts.emplace_back(extents.begin(), extents.end()).push_back(2);
      extents = of_parts.back();
    }
    sizes.push_back(extents);
  }
  const Sized given{{sizes.data(), sizes.size()}, {call.numbers.data(), call.numbers.size()}};
  while (true) {
    std::array<Entry, kMostTemplates> entries;
    int n_entries = 0;
    {
      const std::lock_guard lock(known().mutex);
      if (of->kinds.size() >= kMostCounted && !of->kinds.contains(call.key)) {
        std::erase_if(of->kinds, [](const auto& k) { return k.second.asked == 0; });
      }
      Kind& kind = of->kinds[call.key];
      entries = kind.entries;
      n_entries = kind.n_entries;
      ++kind.calls;
    }
    for (int e = 0; e < n_entries; ++e) {
      const Entry& entry = entries[static_cast<std::size_t>(e)];
      if (!entry.made->fits(given)) continue;
      if (!is_within_limits(*entry.made, call)) return false;
      return record(entry, call, of->list, stack, n_args);
    }
    {
      const std::lock_guard lock(known().mutex);
      Kind& kind = of->kinds[call.key];
      if (kind.calls < after || kind.asked == kMostTemplates) return false;
      if (kind.asked == 0) {
        if (of->asked == kMostAsked) return false;
        ++of->asked;
      }
      ++kind.asked;
    }
    const std::int32_t number = ask(op, stack, call, of->sizes);
    const Template* const made = number < 0 ? nullptr : &engine().template_of(number);
    const bool suits =
        made != nullptr && made->n_results() <= kMostResults && made->fits(given);
    const std::lock_guard lock(known().mutex);
    Kind& kind = of->kinds[call.key];
    if (!suits) kind.asked = kMostTemplates;  // the next answer would be the same
    if (!suits || kind.n_entries == kMostTemplates) return false;
    kind.entries[static_cast<std::size_t>(kind.n_entries++)] = {number, made};
  }
}

}  // namespace tilevm::eager

// Functions of torch and methods of torch.Tensor that are recorded without PyTorch's parser: each
// says which arguments it takes, and which row of the dispatcher's operators it comes to.
#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "eager/torch/call.h"
#include "eager/torch/indexing.h"
#include "eager/torch/python.h"
#include "eager/torch/templates.h"

namespace tilevm::eager {
namespace {

using torch::jit::Stack;
constexpr std::size_t kMostArguments = 8;

// The arguments of a call by their places in a signature, and what a row wants of them. All methods
// return false for what is left to PyTorch.
class Given {
 public:
  // `positional`: how many of the parameters need no name.
  bool bind(std::span<PyObject* const> parameters, std::size_t positional, PyObject* const* args,
            std::size_t n, PyObject* names) {
    const std::size_t named =
        names == nullptr ? 0 : static_cast<std::size_t>(PyTuple_GET_SIZE(names));
    if (n > positional) return false;
    std::copy(args, args + n, args_.begin());
    for (std::size_t i = 0; i < named; ++i) {
      PyObject* const name = PyTuple_GET_ITEM(names, static_cast<Py_ssize_t>(i));
      const auto found = std::ranges::find(parameters, name);  // both are interned
      if (found == parameters.end()) return false;
      PyObject*& place = args_[static_cast<std::size_t>(found - parameters.begin())];
      if (place != nullptr) return false;
      place = args[n + i];
    }
    return true;
  }

  bool missing(std::size_t i) const { return args_[i] == nullptr; }
  bool none(std::size_t i) const { return args_[i] == nullptr || args_[i] == Py_None; }
  PyObject* object(std::size_t i) const { return args_[i]; }

  // ---- Each pushes one argument of the row

  bool put(c10::IValue v) {
    stack_.push_back(std::move(v));
    return true;
  }
  bool tensor(std::size_t i) {
    const at::Tensor* const t = args_[i] == nullptr ? nullptr : tensor_of(args_[i]);
    return t != nullptr && put(*t);
  }
  bool tensor_or_none(std::size_t i) { return none(i) ? put({}) : tensor(i); }
  bool tensors(std::size_t i) {
    PyObject* const list = args_[i];
    if (list == nullptr || (!PyTuple_CheckExact(list) && !PyList_CheckExact(list))) return false;
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(list);
    c10::List<at::Tensor> found;
    found.reserve(static_cast<std::size_t>(n));
    for (Py_ssize_t k = 0; k < n; ++k) {
      const at::Tensor* const t = tensor_of(PySequence_Fast_GET_ITEM(list, k));
      if (t == nullptr) return false;
      found.push_back(*t);
    }
    return n > 0 && put(std::move(found));
  }
  bool integer(std::size_t i) {
    std::int64_t v = 0;
    return read(args_[i], v) && put(v);
  }
  bool integer(std::size_t i, std::int64_t otherwise) {
    return missing(i) ? put(otherwise) : integer(i);
  }
  bool integers(std::size_t i) {
    c10::List<std::int64_t> found;
    std::int64_t v = 0;
    PyObject* const given = args_[i];
    if (read(given, v)) {
      found.push_back(v);
      return put(std::move(found));
    }
    if (given == nullptr || (!PyTuple_CheckExact(given) && !PyList_CheckExact(given))) return false;
    for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(given); ++k) {
      if (!read(PySequence_Fast_GET_ITEM(given, k), v)) return false;
      found.push_back(v);
    }
    return put(std::move(found));
  }
  // All arguments from the i-th on as integers, or one sequence of them.
  bool rest_or_sequence(std::size_t i) {
    if (missing(i)) return false;
    if (!PyLong_CheckExact(args_[i])) return missing(i + 1) && integers(i);
    c10::List<std::int64_t> found;
    for (; i < args_.size() && args_[i] != nullptr; ++i) {
      std::int64_t v = 0;
      if (!read(args_[i], v)) return false;
      found.push_back(v);
    }
    return put(std::move(found));
  }
  bool flag(std::size_t i, bool otherwise) {
    if (missing(i)) return put(otherwise);
    return PyBool_Check(args_[i]) && put(args_[i] == Py_True);
  }
  bool number(std::size_t i) {
    const std::optional<Operand> v = args_[i] == nullptr ? std::nullopt : operand_of(args_[i]);
    if (!v || v->kind == Operand::Kind::kTensor || v->kind == Operand::Kind::kBool) return false;
    if (v->kind == Operand::Kind::kInt) return put(v->bits);
    return put(std::bit_cast<double>(v->bits));
  }
  bool number_or_none(std::size_t i) { return none(i) ? put({}) : number(i); }

  Stack& stack() { return stack_; }
  std::size_t pushed() const { return stack_.size(); }

 private:
  static bool read(PyObject* object, std::int64_t& out) {
    if (object == nullptr || !PyLong_CheckExact(object)) return false;
    int overflow = 0;
    out = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow == 0;
  }

  std::array<PyObject*, kMostArguments> args_{};
  Stack stack_;
};

// What a call comes to: which of two rows, or none.
enum class Which : std::uint8_t { kFirst, kSecond, kNeither };
Which first_if(bool fits) { return fits ? Which::kFirst : Which::kNeither; }

struct Quick {
  const char* name;
  const char* parameters;  // by name, as keywords have them, those behind "*" only; null: any many
  std::array<const char*, 2> rows;
  Which (*fill)(Given&);
  Place place = Place::kNew;
  const char* returned = nullptr;  // the type of several results, in torch.return_types
};

Which one_tensor(Given& g) { return first_if(g.tensor(0)); }

Which of_axis(Given& g) {  // self, dim, dtype
  return first_if(g.none(2) && g.tensor(0) && g.integer(1) && g.put(false));
}

Which folded(Given& g) {  // self, dim, keepdim, dtype; all of it, without dims
  if (!g.none(3) || !g.tensor(0)) return Which::kNeither;
  if (g.missing(1)) return g.missing(2) && g.put({}) ? Which::kSecond : Which::kNeither;
  return first_if(!g.none(1) && g.integers(1) && g.flag(2, false) && g.put({}));
}

Which folded_along(Given& g) {  // self, dim, keepdim, dtype
  if (!g.none(3) || !g.tensor(0)) return Which::kNeither;
  if (g.missing(1)) return g.missing(2) && g.put({}) ? Which::kSecond : Which::kNeither;
  return first_if(g.integer(1) && g.flag(2, false) && g.put({}));
}

Which extreme_over(Given& g) {  // self, dim, keepdim
  return first_if(g.tensor(0) && !g.missing(1) && g.integers(1) && g.flag(2, false));
}

Which extreme(Given& g) {  // self, dim, keepdim
  if (!g.tensor(0)) return Which::kNeither;
  if (g.missing(1)) return g.missing(2) ? Which::kSecond : Which::kNeither;
  return first_if(g.integer(1) && g.flag(2, false));
}

Which truth(Given& g) {  // self, dim, keepdim
  if (!g.tensor(0)) return Which::kNeither;
  if (g.missing(1)) return g.missing(2) ? Which::kSecond : Which::kNeither;
  return first_if(g.integer(1) && g.flag(2, false));
}

Which placed(Given& g) {  // self, dim, keepdim
  return first_if(g.tensor(0) && (g.none(1) ? g.put({}) : g.integer(1)) && g.flag(2, false));
}

Which clamped(Given& g) {  // self, min, max
  return first_if(g.tensor(0) && g.number_or_none(1) && g.number_or_none(2));
}

Which scanned(Given& g) {  // self, dim, dtype
  return first_if(g.none(2) && g.tensor(0) && g.integer(1) && g.put({}));
}

Which gathered(Given& g) {  // self, dim, index, sparse_grad
  return first_if(g.missing(3) && g.tensor(0) && g.integer(1) && g.tensor(2) && g.put(false));
}

Which largest(Given& g) {  // self, k, dim, largest, sorted
  return first_if(g.tensor(0) && g.integer(1) && g.integer(2, -1) && g.flag(3, true) &&
                  g.flag(4, true));
}

Which masked(Given& g) {  // self, mask, value
  return first_if(g.tensor(0) && g.tensor(1) && g.number(2));
}

Which joined(Given& g) {  // tensors, dim
  return first_if(g.tensors(0) && g.integer(1, 0));
}

Which normed(Given& g) {  // input, normalized_shape, weight, bias, eps, cudnn_enable
  return first_if(g.tensor(0) && g.integers(1) && g.tensor_or_none(2) && g.tensor_or_none(3) &&
                  (g.missing(4) ? g.put(1e-5) : g.number(4)));
}

Which looked_up(Given& g) {  // weight, input, padding_idx, scale_grad_by_freq, sparse
  return first_if(g.tensor(0) && g.tensor(1) && g.integer(2, -1) && g.flag(3, false) &&
                  g.flag(4, false));
}

Which curved(Given& g) {  // input, approximate
  return first_if(g.missing(1) && g.tensor(0) && g.put(std::string("none")));
}

Which fused_sum(Given& g) {  // self, tensor1, tensor2, value
  return first_if(g.tensor(0) && g.tensor(1) && g.tensor(2) &&
                  (g.missing(3) ? g.put(std::int64_t{1}) : g.number(3)));
}

Which interpolated(Given& g) {  // self, end, weight
  return first_if(g.tensor(0) && g.tensor(1) && g.number(2));
}

Which along(Given& g) { return first_if(g.tensor(0) && g.integer(1)); }
Which swapped(Given& g) { return first_if(g.tensor(0) && g.integer(1) && g.integer(2)); }

Which flattened(Given& g) {
  if (!g.tensor(0)) return Which::kNeither;
  const at::Tensor& x = g.stack()[0].toTensor();
  return first_if(x.dim() > 1 && g.put(c10::List<std::int64_t>({x.numel()})));
}

// self, then sizes one by one or as a sequence.
Which reshaped(Given& g) { return first_if(g.tensor(0) && g.rest_or_sequence(1)); }
Which expanded(Given& g) { return first_if(reshaped(g) == Which::kFirst && g.put(false)); }

constexpr const char* kFold = "self dim keepdim * dtype";
constexpr const char* kAxis = "self dim keepdim";

constexpr Quick kMethods[] = {
    {"softmax", "self dim dtype", {"_softmax"}, of_axis},
    {"log_softmax", "self dim dtype", {"_log_softmax"}, of_axis},
    {"sum", kFold, {"sum.dim_IntList", "sum"}, folded},
    {"mean", kFold, {"mean.dim", "mean"}, folded},
    {"prod", kFold, {"prod.dim_int", "prod"}, folded_along},
    {"amax", kAxis, {"amax"}, extreme_over},
    {"amin", kAxis, {"amin"}, extreme_over},
    {"max", kAxis, {"max.dim", "max"}, extreme, Place::kNew, "max"},
    {"min", kAxis, {"min.dim", "min"}, extreme, Place::kNew, "min"},
    {"any", kAxis, {"any.dim", "any"}, truth},
    {"all", kAxis, {"all.dim", "all"}, truth},
    {"argmax", kAxis, {"argmax"}, placed},
    {"argmin", kAxis, {"argmin"}, placed},
    {"square", "self", {"square"}, one_tensor},
    {"clamp", "self min max", {"clamp"}, clamped},
    {"cumsum", "self dim * dtype", {"cumsum"}, scanned},
    {"gather", "self dim index * sparse_grad", {"gather"}, gathered},
    {"topk", "self k dim largest sorted", {"topk"}, largest, Place::kNew, "topk"},
    {"masked_fill", "self mask value", {"masked_fill.Scalar"}, masked},
    {"addcmul_", "self tensor1 tensor2 * value", {"addcmul"}, fused_sum, Place::kInPlace},
    {"addcdiv_", "self tensor1 tensor2 * value", {"addcdiv"}, fused_sum, Place::kInPlace},
    {"lerp_", "self end weight", {"lerp.Scalar"}, interpolated, Place::kInPlace},
    {"unsqueeze", "self dim", {"unsqueeze"}, along, Place::kView},
    {"transpose", "self dim0 dim1", {"transpose.int"}, swapped, Place::kView},
    {"t", "self", {"t"}, one_tensor, Place::kView},
    {"flatten", "self", {"view"}, flattened, Place::kView},
    {"view", nullptr, {"view"}, reshaped, Place::kView},
    {"reshape", nullptr, {"view"}, reshaped, Place::kView},
    {"permute", nullptr, {"permute"}, reshaped, Place::kView},
    {"expand", nullptr, {"expand"}, expanded, Place::kView},
};

constexpr Quick kFunctions[] = {
    {"torch.softmax", "input dim dtype", {"_softmax"}, of_axis},
    {"torch.log_softmax", "input dim dtype", {"_log_softmax"}, of_axis},
    {"torch.sum", "input dim keepdim * dtype", {"sum.dim_IntList", "sum"}, folded},
    {"torch.mean", "input dim keepdim * dtype", {"mean.dim", "mean"}, folded},
    {"torch.clamp", "input min max", {"clamp"}, clamped},
    {"torch.cumsum", "input dim * dtype", {"cumsum"}, scanned},
    {"torch.topk", "input k dim largest sorted", {"topk"}, largest, Place::kNew, "topk"},
    {"torch.cat", "tensors dim", {"cat"}, joined},
    {"torch.stack", "tensors dim", {"stack"}, joined},
    {"torch.layer_norm",
     "input normalized_shape weight bias eps cudnn_enable",
     {"layer_norm"},
     normed},
    {"torch.embedding",
     "weight input padding_idx scale_grad_by_freq sparse",
     {"embedding"},
     looked_up},
    {"torch._C._nn.gelu", "input * approximate", {"gelu"}, curved},
    {"torch._C._nn.silu", "input", {"silu"}, one_tensor},
};

// A row of the tables while it is installed.
struct Ready {
  const Quick* quick = nullptr;
  std::array<const Row*, 2> rows{};
  std::vector<PyObject*> parameters;
  std::size_t positional = 0;
  PyTypeObject* returned = nullptr;
  PyObject* original = nullptr;
  PyMethodDef definition{};
};
std::array<Ready, std::size(kMethods)> methods;
std::array<Ready, std::size(kFunctions)> functions;

PyObject* of_several(PyTypeObject* type, Stack& stack) {
  PyObject* const made = PyStructSequence_New(type);
  if (made == nullptr) return nullptr;
  for (std::size_t i = 0; i < stack.size(); ++i) {
    PyObject* const item = wrapped(std::move(stack[i]).toTensor());
    if (item == nullptr) {
      Py_DECREF(made);
      return nullptr;
    }
    PyStructSequence_SetItem(made, static_cast<Py_ssize_t>(i), item);
  }
  return made;
}

// A new reference, or null: the original should do it, or Python's error is set.
PyObject* run(const Ready& ready, PyObject* const* args, std::size_t n, PyObject* names) {
  Given g;
  if (!g.bind(ready.parameters, ready.positional, args, n, names)) return nullptr;
  return recorded([&]() -> PyObject* {
    g.stack().reserve(kMostArguments);
    const Which which = ready.quick->fill(g);
    if (which == Which::kNeither) return nullptr;
    const Row& row = *ready.rows[which == Which::kFirst ? 0 : 1];
    const Place place = ready.quick->place;
    if (place == Place::kInPlace) {
      const at::Tensor& self = THPVariable_Unpack(args[0]);
      if (!can_write_in_place(self)) return nullptr;
      if (is_lone_number(self) && std::ranges::none_of(g.stack(), [](const c10::IValue& v) {
            return v.isTensor() && waits(v.toTensor());
          })) {
        return nullptr;
      }
      if (!record_row(row, place, false, g.stack(), g.pushed())) return nullptr;
      count_write(self);
      return Py_NewRef(args[0]);
    }
    if (place == Place::kView) {
      const at::Tensor& self = THPVariable_Unpack(args[0]);
      if (!can_view(self) || !record_row(row, place, false, g.stack(), g.pushed())) return nullptr;
      return wrapped(as_view_of(self, std::move(g.stack().back()).toTensor(), false));
    }
    if (!record_row(row, place, false, g.stack(), g.pushed())) return nullptr;
    if (g.stack().size() == 1) return wrapped(std::move(g.stack()[0]).toTensor());
    return of_several(ready.returned, g.stack());
  });
}

template <std::size_t kIndex>
PyObject* method(PyObject* self, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  const Ready& ready = methods[kIndex];
  const auto given = static_cast<std::size_t>(n);
  const std::size_t named =
      names == nullptr ? 0 : static_cast<std::size_t>(PyTuple_GET_SIZE(names));
  if (C10_LIKELY(given + named < kMostArguments)) {
    std::array<PyObject*, kMostArguments> all{self};
    std::copy(args, args + given + named, all.begin() + 1);
    if (C10_LIKELY(only_recording())) {
      PyObject* const result = run(ready, all.data(), given + 1, names);
      if (is_decided(result)) return result;
    }
    return PyObject_Vectorcall(ready.original, all.data(), given + 1, names);
  }
  std::vector<PyObject*> all{self};
  all.insert(all.end(), args, args + given + named);
  return PyObject_Vectorcall(ready.original, all.data(), given + 1, names);
}

template <std::size_t kIndex>
PyObject* function(PyObject*, PyObject* const* args, std::size_t n, PyObject* names) {
  const Ready& ready = functions[kIndex];
  if (C10_LIKELY(only_recording())) {
    const auto given = static_cast<std::size_t>(PyVectorcall_NARGS(n));
    PyObject* const result = run(ready, args, given, names);
    if (is_decided(result)) return result;
  }
  return PyObject_Vectorcall(ready.original, args, n, names);
}

// False: Python's error says why.
bool prepare(Ready& ready, const Quick& quick) {
  ready.quick = &quick;
  ready.positional = kMostArguments - 1;
  for (std::size_t i = 0; i < quick.rows.size(); ++i) {
    if (quick.rows[i] != nullptr) ready.rows[i] = &installed_rows().at(quick.rows[i]);
  }
  if (quick.parameters == nullptr) return true;
  ready.positional = 0;
  const std::string names = quick.parameters;
  for (std::size_t start = 0; start < names.size();) {
    const std::size_t end = std::min(names.find(' ', start), names.size());
    const std::string name = names.substr(start, end - start);
    start = end + 1;
    if (name == "*") {
      ready.positional = ready.parameters.size();
      continue;
    }
    ready.parameters.push_back(PyUnicode_InternFromString(name.c_str()));
    if (ready.parameters.back() == nullptr) return false;
  }
  if (ready.positional == 0) ready.positional = ready.parameters.size();
  if (quick.returned == nullptr) return true;
  PyObject* const module = PyImport_ImportModule("torch.return_types");
  if (module == nullptr) return false;
  ready.returned =
      reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(module, quick.returned));
  Py_DECREF(module);
  return ready.returned != nullptr;
}

template <std::size_t kIndex>
bool install_method() {
  Ready& ready = methods[kIndex];
  if (ready.original != nullptr) return true;
  ready.definition = {
      kMethods[kIndex].name,
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&method<kIndex>)),
      METH_FASTCALL | METH_KEYWORDS, nullptr};
  return prepare(ready, kMethods[kIndex]) && exchange(ready.definition, &ready.original);
}

template <std::size_t kIndex>
bool install_function() {
  Ready& ready = functions[kIndex];
  if (ready.original != nullptr) return true;
  if (!prepare(ready, kFunctions[kIndex])) return false;
  const std::string full = kFunctions[kIndex].name;
  const std::size_t dot = full.rfind('.');
  const std::string module = full.substr(0, dot);
  return exchange({module.c_str(), full.c_str() + dot + 1, &function<kIndex>, &ready.original});
}

// ---- Functions with ways of their own

PyObject *chunk_before, *chunk_method_before, *unbind_before, *where_before, *gru_before,
    *lstm_before, *attention_before;

PyObject* tuple_of(std::vector<at::Tensor> parts) {
  if (parts.empty()) return nullptr;
  PyObject* const made = PyTuple_New(static_cast<Py_ssize_t>(parts.size()));
  for (std::size_t i = 0; made != nullptr && i < parts.size(); ++i) {
    PyTuple_SET_ITEM(made, static_cast<Py_ssize_t>(i), wrapped(std::move(parts[i])));
  }
  return made;
}

PyObject* chunked(PyObject* const* args, std::size_t n, PyObject* names, const char* first) {
  static PyObject* const parameters[] = {PyUnicode_InternFromString(first),
                                         PyUnicode_InternFromString("chunks"),
                                         PyUnicode_InternFromString("dim")};
  Given g;
  if (!g.bind(parameters, 3, args, n, names)) return nullptr;
  return recorded([&]() -> PyObject* {
    if (!g.tensor(0) || !g.integer(1) || !g.integer(2, 0)) return nullptr;
    const at::Tensor x = g.stack()[0].toTensor();
    const std::int64_t chunks = g.stack()[1].toInt(), dim = g.stack()[2].toInt();
    if (chunks < 1 || chunks > kMostStep || dim < -x.dim() || dim >= x.dim()) return nullptr;
    return tuple_of(parts_of(x, dim, (x.size(dim) + chunks - 1) / chunks));
  });
}

PyObject* chunk_function(PyObject*, PyObject* const* args, std::size_t n, PyObject* names) {
  if (C10_LIKELY(only_recording())) {
    PyObject* const result =
        chunked(args, static_cast<std::size_t>(PyVectorcall_NARGS(n)), names, "input");
    if (is_decided(result)) return result;
  }
  return PyObject_Vectorcall(chunk_before, args, n, names);
}

template <class Body>
PyObject* as_method(PyObject* original, PyObject* self, PyObject* const* args, Py_ssize_t n,
                    PyObject* names, Body&& body) {
  const auto given = static_cast<std::size_t>(n);
  const std::size_t named =
      names == nullptr ? 0 : static_cast<std::size_t>(PyTuple_GET_SIZE(names));
  std::vector<PyObject*> all{self};
  all.insert(all.end(), args, args + given + named);
  if (C10_LIKELY(all.size() <= kMostArguments && only_recording())) {
    PyObject* const result = body(all.data(), given + 1);
    if (is_decided(result)) return result;
  }
  return PyObject_Vectorcall(original, all.data(), given + 1, names);
}

PyObject* chunk_method(PyObject* self, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  return as_method(chunk_method_before, self, args, n, names,
                   [&](PyObject* const* all, std::size_t many) {
                     return chunked(all, many, names, "input");
                   });
}

PyObject* unbind_method(PyObject* self, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  return as_method(unbind_before, self, args, n, names,
                   [&](PyObject* const* all, std::size_t many) -> PyObject* {
                     if (many > 2 || names != nullptr) return nullptr;
                     return recorded([&]() -> PyObject* {
                       Given g;
                       if (!g.bind({}, 2, all, many, nullptr) ||
                           !g.tensor(0) || !g.integer(1, 0)) {
                         return nullptr;
                       }
                       const at::Tensor x = g.stack()[0].toTensor();
                       return tuple_of(parts_of(x, g.stack()[1].toInt(), 0));
                     });
                   });
}

// torch.where(mask) and torch.where(mask, x, y) of tensors and numbers.
PyObject* where(PyObject*, PyObject* const* args, std::size_t n_args, PyObject* names) {
  const Py_ssize_t n = PyVectorcall_NARGS(n_args);
  if (C10_LIKELY((n == 1 || n == 3) && names == nullptr && only_recording())) {
    const at::Tensor* const mask = tensor_of(args[0]);
    PyObject* result = nullptr;
    if (mask != nullptr && n == 1) {
      result = recorded([&]() -> PyObject* {
        const at::Tensor places = places_of(*mask);
        return places.defined() ? tuple_of(parts_of(places, 1, 0)) : nullptr;
      });
    } else if (mask != nullptr && mask->scalar_type() == at::kBool) {
      const std::optional<Operand> x = operand_of(args[1]), y = operand_of(args[2]);
      const bool tensors = x && y && (x->kind == Operand::Kind::kTensor ||
                                      y->kind == Operand::Kind::kTensor);
      if (tensors) {
        result = recorded([&] {
          const Operand given[] = {Operand(*mask), *x, *y};
          return wrapped_if_defined(record_elementwise(Op::where, given));
        });
      }
    }
    if (is_decided(result)) return result;
  }
  return PyObject_Vectorcall(where_before, args, n_args, names);
}

// Of input, state(s), weights and biases as torch.nn's cells have them: six arguments.
bool tensors_of_cell(PyObject* const* args, std::array<const at::Tensor*, 6>& out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = i >= 4 && args[i] == Py_None ? nullptr : tensor_of(args[i]);
    if (out[i] == nullptr && (i < 4 || args[i] != Py_None)) return false;
  }
  return true;
}

PyObject* gru_cell(PyObject*, PyObject* const* args, std::size_t n, PyObject* names) {
  std::array<const at::Tensor*, 6> t{};
  if (C10_LIKELY(PyVectorcall_NARGS(n) == 6 && names == nullptr && only_recording() &&
                 tensors_of_cell(args, t))) {
    PyObject* const result = recorded([&] {
      return wrapped_if_defined(record_gru_cell(*t[0], *t[1], *t[2], *t[3], t[4], t[5]));
    });
    if (is_decided(result)) return result;
  }
  return PyObject_Vectorcall(gru_before, args, n, names);
}

PyObject* lstm_cell(PyObject*, PyObject* const* args, std::size_t n, PyObject* names) {
  std::array<const at::Tensor*, 6> t{};
  if (C10_LIKELY(PyVectorcall_NARGS(n) == 6 && names == nullptr && only_recording() &&
                 (PyTuple_CheckExact(args[1]) || PyList_CheckExact(args[1])) &&
                 PySequence_Fast_GET_SIZE(args[1]) == 2)) {
    std::array<PyObject*, 6> all{args[0], PySequence_Fast_GET_ITEM(args[1], 0), args[2], args[3],
                                 args[4], args[5]};
    const at::Tensor* const cell = tensor_of(PySequence_Fast_GET_ITEM(args[1], 1));
    if (cell != nullptr && tensors_of_cell(all.data(), t)) {
      PyObject* const result = recorded([&] {
        return tuple_of(record_lstm_cell(*t[0], *t[1], *cell, *t[2], *t[3], t[4], t[5]));
      });
      if (is_decided(result)) return result;
    }
  }
  return PyObject_Vectorcall(lstm_before, args, n, names);
}

// query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa: whole, since what PyTorch
// makes of it has a second result that only gradients want.
PyObject* attention(PyObject*, PyObject* const* args, std::size_t n, PyObject* names) {
  if (C10_LIKELY(only_recording())) {
    static PyObject* const parameters[] = {
        PyUnicode_InternFromString("query"),     PyUnicode_InternFromString("key"),
        PyUnicode_InternFromString("value"),     PyUnicode_InternFromString("attn_mask"),
        PyUnicode_InternFromString("dropout_p"), PyUnicode_InternFromString("is_causal"),
        PyUnicode_InternFromString("scale"),     PyUnicode_InternFromString("enable_gqa")};
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::scaled_dot_product_attention", "");
    PyObject* const result = recorded([&]() -> PyObject* {
      Given g;
      const bool given =
          g.bind(parameters, 6, args, static_cast<std::size_t>(PyVectorcall_NARGS(n)), names) &&
          g.tensor(0) && g.tensor(1) && g.tensor(2) && g.tensor_or_none(3) &&
          (g.missing(4) ? g.put(0.0) : g.number(4)) && g.flag(5, false) && g.number_or_none(6) &&
          g.flag(7, false);
      if (!given || !record_template(op, g.stack())) return nullptr;
      return wrapped(std::move(g.stack().back()).toTensor());
    });
    if (is_decided(result)) return result;
  }
  return PyObject_Vectorcall(attention_before, args, n, names);
}

PyMethodDef chunk_definition{
    "chunk", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&chunk_method)),
    METH_FASTCALL | METH_KEYWORDS, nullptr};
PyMethodDef unbind_definition{
    "unbind", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&unbind_method)),
    METH_FASTCALL | METH_KEYWORDS, nullptr};

bool install_others() {
  return exchange({"torch", "chunk", chunk_function, &chunk_before}) &&
         exchange({"torch", "where", where, &where_before}) &&
         exchange({"torch", "gru_cell", gru_cell, &gru_before}) &&
         exchange({"torch", "lstm_cell", lstm_cell, &lstm_before}) &&
         exchange({"torch._C._nn", "scaled_dot_product_attention", attention, &attention_before}) &&
         exchange(chunk_definition, &chunk_method_before) &&
         exchange(unbind_definition, &unbind_before);
}

template <std::size_t... kIndices>
bool install_methods(std::index_sequence<kIndices...>) {
  return (install_method<kIndices>() && ...);
}
template <std::size_t... kIndices>
bool install_all(std::index_sequence<kIndices...>) {
  return (install_function<kIndices>() && ...);
}

}  // namespace

bool install_functions() {
  return install_methods(std::make_index_sequence<std::size(kMethods)>()) &&
         install_all(std::make_index_sequence<std::size(kFunctions)>()) && install_others();
}

}  // namespace tilevm::eager

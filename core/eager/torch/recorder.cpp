// The recorder: kernels below autograd that note what is called instead of running it, and a module
// that switches them on, for one thread at a time.
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/matmul_native.h>
#include <Python.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>
#include <torch/version.h>

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <unordered_set>

#include "eager/torch/call.h"
#include "eager/torch/kernels.h"
#include "eager/torch/protocol.h"
#include "eager/torch/python.h"
#include "eager/torch/random.h"
#include "eager/torch/templates.h"

namespace tilevm::eager {
namespace {

// ---- Installing

struct Installed {
  std::unordered_set<std::string> names;  // with overloads
  std::map<std::string, torch::Library> libraries;
  torch::Library& library(const std::string& ns) {
    auto it = libraries.find(ns);
    if (it == libraries.end()) {
      it = libraries.emplace(ns, torch::Library(torch::Library::IMPL, ns, kKey, __FILE__, __LINE__))
               .first;
    }
    return it->second;
  }
};
Installed& installed() {
  static auto* const made = new Installed;
  return *made;
}

bool has(const std::string& name, const std::string& overload) {
  return c10::Dispatcher::singleton().findSchema({"aten::" + name, overload}).has_value();
}

std::optional<c10::OperatorHandle> find(const std::string& full) {
  const std::size_t dot = std::min(full.find('.'), full.size());
  const std::string overload = dot == full.size() ? "" : full.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchema({"aten::" + full.substr(0, dot), overload});
}

// Kernels of the commonest operators, called without boxing what they are given.
template <class... Operands>
void install_unboxed(const std::string& full, Op op, const c10::OperatorHandle& handle) {
  if (!installed().names.insert("aten::" + full).second) return;
  const auto typed = handle.typed<at::Tensor(Operands...)>();
  const c10::OperatorHandle whole = handle;
  installed().library("aten").impl(
      full.c_str(), [op, typed, whole](DispatchKeySet keys, Operands... operands) -> at::Tensor {
        const Operand given[] = {Operand(operands)...};
        at::Tensor made = record_elementwise(op, given);
        if (C10_LIKELY(made.defined())) return made;
        made = record_complex(whole, {&operands...}, operands...);
        if (made.defined()) return made;
        (finish_writes(operands, "operator not recorded"), ...);
        return typed.redispatch(keys & kBelow, operands...);
      });
}

template <class... Operands>
void install_in_place(const std::string& full, Op op) {
  const auto handle = find(full);
  if (!handle || !installed().names.insert("aten::" + full).second) return;
  const auto typed = handle->typed<at::Tensor&(at::Tensor&, Operands...)>();
  installed().library("aten").impl(
      full.c_str(),
      [op, typed](DispatchKeySet keys, at::Tensor& self, Operands... operands) -> at::Tensor& {
        const Operand given[] = {Operand(self), Operand(operands)...};
        if (!is_lone_number(self, {&operands...}) && C10_LIKELY(record_in_place(op, given))) {
          return self;
        }
        settle_write(self);
        (finish_writes(operands, "operator not recorded"), ...);
        return typed.redispatch(keys & kBelow, self, operands...);
      });
}

void install_sum_in_place(const std::string& full, Op op) {
  using Tensor = const at::Tensor&;
  const auto handle = find(full);
  if (!handle || !installed().names.insert("aten::" + full).second) return;
  const auto typed = handle->typed<at::Tensor&(at::Tensor&, Tensor, const at::Scalar&)>();
  installed().library("aten").impl(
      full.c_str(),
      [op, typed](DispatchKeySet keys, at::Tensor& self, Tensor other,
                  const at::Scalar& alpha) -> at::Tensor& {
        if (C10_LIKELY(!alpha.isComplex() && !alpha.isSymbolic() &&
                       !is_lone_number(self, {&other}))) {
          const Operand given[] = {Operand(self), Operand(other)}, factor(alpha);
          const bool one = !alpha.isBoolean() && alpha.toDouble() == 1;
          if (C10_LIKELY(record_in_place(op, given, one ? nullptr : &factor))) return self;
        }
        settle_write(self);
        finish_writes(other, "operator not recorded");
        return typed.redispatch(keys & kBelow, self, other, alpha);
      });
}

// Views: those of plain tensors, by far the most, do not meet the table.
template <class... Arguments>
void install_view(const std::string& full, const Row& row) {
  const auto handle = find(full);
  if (!handle || !installed().names.insert("aten::" + full).second) return;
  using Signature = at::Tensor(const at::Tensor&, Arguments...);
  const auto typed = handle->template typed<Signature>();
  const auto kernel = std::make_shared<Recorded>(row, Place::kView);
  const c10::OperatorHandle op = *handle;
  installed().library("aten").impl(full.c_str(),
                                   [typed, kernel, op](DispatchKeySet keys, const at::Tensor& self,
                                                       Arguments... arguments) -> at::Tensor {
                                     const LazyImpl* const z = lazy(self);
                                     if (C10_LIKELY(z == nullptr || z->pending() == nullptr)) {
                                       return typed.redispatch(keys & kBelow, self, arguments...);
                                     }
                                     Stack stack;
                                     torch::jit::push(stack, self, arguments...);
                                     (*kernel)(op, keys, &stack);
                                     return std::move(stack.back()).toTensor();
                                   });
}

void install_products() {
  using Tensor = const at::Tensor&;
  using Number = const at::Scalar&;
  const c10::OperatorHandle product = *find("mm");
  const auto mm = product.typed<at::Tensor(Tensor, Tensor)>();
  installed().names.insert("aten::mm");
  installed().library("aten").impl("mm", [mm, product](DispatchKeySet keys, Tensor x, Tensor y) {
    at::Tensor made = record_product(x, y);
    if (C10_LIKELY(made.defined())) return made;
    made = record_complex(product, {&x, &y}, x, y);
    if (made.defined()) return made;
    finish_writes(x, "operator not recorded");
    finish_writes(y, "operator not recorded");
    return mm.redispatch(keys & kBelow, x, y);
  });
  const auto addmm = find("addmm")->typed<at::Tensor(Tensor, Tensor, Tensor, Number, Number)>();
  const auto kernel =
      std::make_shared<Recorded>(product_rows().at("addmm"), Place::kNew, /*product=*/true);
  const c10::OperatorHandle op = *find("addmm");
  installed().names.insert("aten::addmm");
  installed().library("aten").impl(
      "addmm", [addmm, kernel, op](DispatchKeySet keys, Tensor b, Tensor x, Tensor y, Number beta,
                                   Number alpha) {
        const auto one = [](Number v) { return v.isIntegral(false) && v.toLong() == 1; };
        if (C10_LIKELY(one(beta) && one(alpha))) {
          at::Tensor made = record_product(x, y, &b);
          if (C10_LIKELY(made.defined())) return made;
        }
        Stack stack;
        torch::jit::push(stack, b, x, y, beta, alpha);
        (*kernel)(op, keys, &stack);
        return std::move(stack.back()).toTensor();
      });
}

void install_sum(const std::string& full, Op op, const c10::OperatorHandle& handle) {
  using Tensor = const at::Tensor&;
  if (!installed().names.insert("aten::" + full).second) return;
  const auto typed = handle.typed<at::Tensor(Tensor, Tensor, const at::Scalar&)>();
  const c10::OperatorHandle whole = handle;
  installed().library("aten").impl(
      full.c_str(),
      [op, typed, whole](DispatchKeySet keys, Tensor x, Tensor y,
                         const at::Scalar& alpha) -> at::Tensor {
        if (C10_LIKELY(!alpha.isComplex() && !alpha.isSymbolic())) {
          const Operand given[] = {Operand(x), Operand(y)}, factor(alpha);
          const bool one = !alpha.isBoolean() && alpha.toDouble() == 1;
          at::Tensor made = record_elementwise(op, given, one ? nullptr : &factor);
          if (C10_LIKELY(made.defined())) return made;
        }
        at::Tensor made = record_complex(whole, {&x, &y}, x, y, alpha);
        if (made.defined()) return made;
        finish_writes(x, "operator not recorded");
        finish_writes(y, "operator not recorded");
        return typed.redispatch(keys & kBelow, x, y, alpha);
      });
}

void install_quick_views() {
  const auto row = [](const char* name) -> const Row& { return view_rows().at(name); };
  using Int = c10::SymInt;
  using Ints = c10::SymIntArrayRef;
  install_view<>("t", row("t"));
  install_view<>("detach", row("detach"));
  install_view<>("alias", row("alias"));
  install_view<Ints>("view", row("view"));
  install_view<at::IntArrayRef>("permute", row("permute"));
  install_view<std::int64_t>("unsqueeze", row("unsqueeze"));
  install_view<std::int64_t, std::int64_t>("transpose.int", row("transpose.int"));
  install_view<std::int64_t, Int>("select.int", row("select.int"));
  install_view<std::int64_t, std::optional<Int>, std::optional<Int>, Int>("slice.Tensor",
                                                                          row("slice.Tensor"));
  install_view<Ints, bool>("expand", row("expand"));
}

// Whether an operator that is one step of a row has such a kernel.
bool install_fast(const std::string& full, const std::string& text,
                  const c10::OperatorHandle& handle) {
  const auto& arguments = handle.schema().arguments();
  const auto is = [&](std::size_t i, const c10::TypePtr& type) {
    return *arguments[i].type() == *type;
  };
  const std::optional<Op> op = single_operator(text);
  if (!op || handle.schema().returns().size() != 1) return false;
  const c10::TypePtr tensor = c10::TensorType::get();
  const std::size_t dot = std::min(full.find('.'), full.size());
  const std::string in_place = full.substr(0, dot) + "_" + full.substr(dot);
  if (arguments.size() == 1 && is(0, tensor)) {
    install_in_place<>(in_place, *op);
    install_unboxed<const at::Tensor&>(full, *op, handle);
    return true;
  }
  if (arguments.size() == 2 && is(0, tensor) && is(1, tensor)) {
    install_in_place<const at::Tensor&>(in_place, *op);
    install_unboxed<const at::Tensor&, const at::Tensor&>(full, *op, handle);
    return true;
  }
  return false;
}

template <class Kernel, class... Arguments>
void install(const std::string& ns, const std::string& full, Arguments&&... arguments) {
  if (!installed().names.insert(ns + "::" + full).second) return;
  installed().library(ns).impl(
      full.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                        std::make_unique<Kernel>(std::forward<Arguments>(arguments)...)));
}

template <void (*kFunction)(const c10::OperatorHandle&, DispatchKeySet, Stack*)>
void install_function(const char* name) {
  if (!find(name) || !installed().names.insert(std::string("aten::") + name).second) return;
  installed().library("aten").impl(name,
                                   torch::CppFunction::makeFromBoxedFunction<kFunction>());
}

// The row, for floats alone.
Row of_floats(Row row) {
  return [row = std::move(row)](Call& c) {
    for (std::size_t i = 0; i < c.n_args(); ++i) {
      if (c.is_tensor(i) && !at::isFloatingType(c.tensor(i).scalar_type()))
        Call::refuse("not floating point");
    }
    row(c);
  };
}

// `name`, or `name.overload`; with the form that works in place, where there is one.
void install_row(const std::string& full, const Row& row, Place place,
                 const std::string& text = "") {
  const std::size_t dot = full.find('.');
  const std::string name = full.substr(0, dot);
  const std::string overload = dot == std::string::npos ? "" : full.substr(dot + 1);
  const auto handle = c10::Dispatcher::singleton().findSchema({"aten::" + name, overload});
  if (!handle) throw std::invalid_argument("PyTorch has no operator " + full);
  installed_rows().emplace(full, row);
  if (full == "add.Tensor" || full == "sub.Tensor") {
    const Op op = full[0] == 'a' ? Op::add : Op::sub;
    install_sum(full, op, *handle);
    install_sum_in_place(name + "_." + overload, op);
  } else if (text.empty() || !install_fast(full, text, *handle)) {
    const bool product = name == "mv" || name == "bmm" || name == "baddbmm";
    install<Recorded>("aten", full, row, place, product);
  }
  if (place == Place::kNew && has(name + "_", overload)) {
    install<Recorded>("aten", name + "_" + full.substr(name.size()), row, Place::kInPlace);
  }
}

// Makes tensors of what is known of others, and reads none: what has no row passes by.
void install_makers() {
  for (const auto& [name, row] : maker_rows()) {
    if (find(name)) install<Recorded>("aten", name, row, Place::kMaker);
  }
  constexpr const char* kMakers[] = {
      "empty.memory_format", "empty_strided", "empty_like", "new_empty", "new_empty_strided",
      "rand", "randn", "rand_like", "randn_like"};
  for (const char* name : kMakers) {
    if (!find(name) || !installed().names.insert(std::string("aten::") + name).second) continue;
    installed().library("aten").impl(name, torch::CppFunction::makeFallthrough());
  }
}

// Of PyTorch's operators, the one that makes what another one writes to its last argument, with a
// kernel of its own: others call the one that writes.
class Overloads {
 public:
  Overloads() {
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      by_name_[name.name].push_back(name);
    }
  }
  std::optional<OperatorHandle> without_out(const c10::FunctionSchema& schema) const {
    const auto& arguments = schema.arguments();
    if (arguments.empty() || arguments.back().name() != "out" || schema.returns().size() != 1 ||
        arguments.back().type()->kind() != c10::TypeKind::TensorType) {
      return std::nullopt;
    }
    for (const c10::OperatorName& name : by_name_.at(schema.name())) {
      const auto other = c10::Dispatcher::singleton().findSchema(name);
      if (other && other->hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
          !other->schema().is_mutable() && alike(other->schema().arguments(), arguments)) {
        return other;
      }
    }
    return std::nullopt;
  }
  static std::string full(const OperatorHandle& op) {
    const c10::OperatorName& name = op.operator_name();
    return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
  }

 private:
  static bool alike(const std::vector<c10::Argument>& some,
                    const std::vector<c10::Argument>& and_out) {
    return some.size() + 1 == and_out.size() &&
           std::equal(some.begin(), some.end(), and_out.begin(),
                      [](const c10::Argument& a, const c10::Argument& b) {
                        return a.name() == b.name() && *a.real_type() == *b.real_type();
                      });
  }
  std::unordered_map<std::string, std::vector<c10::OperatorName>> by_name_;
};

// PyTorch's own code gives `out` other sizes, and frees what it held, before it calls an operator.
at::Tensor& multiplied(const at::Tensor& x, const at::Tensor& y, at::Tensor& out) {
  bool fits = x.dim() > 1 && y.dim() > 1;
  if (fits) {
    const auto left = x.sizes().slice(0, static_cast<std::size_t>(x.dim() - 2));
    const auto right = y.sizes().slice(0, static_cast<std::size_t>(y.dim() - 2));
    fits = at::are_expandable(left, right);
    if (fits) {
      std::vector<std::int64_t> sizes = at::infer_size(left, right);
      sizes.push_back(x.size(-2));
      sizes.push_back(y.size(-1));
      fits = out.sizes() == at::IntArrayRef(sizes);
    }
  }
  if (!fits) settle_write(out);
  return at::native::matmul_out(x, y, out);
}

void install_rest() {
  install_makers();
  install<Recorded>("aten", "addmm_", product_rows().at("addmm"), Place::kInPlace, true);
  for (const Distribution& distribution : distributions()) {
    install<Drawn>("aten", distribution.name, &distribution);
  }
  install_function<&normal_around>("normal.Tensor_float");
  install_function<&choose_each>("bernoulli_.Tensor");
  install_function<&read_number>("_local_scalar_dense");
  for (const auto& [name, made] : norm_rows()) {
    install<Recorded>("aten", name, made.row, Place::kNew, false, made.written);
  }
  if (find("batch_norm_update_stats")) {
    install<Writing>("aten", "batch_norm_update_stats", std::vector<std::size_t>{1, 2});
  }
  constexpr std::pair<const char*, const char*> kTurning[] = {
      {"squeeze_", "squeeze"},
      {"squeeze_.dim", "squeeze.dim"},
      {"squeeze_.dims", "squeeze.dims"},
      {"unsqueeze_", "unsqueeze"},
      {"transpose_", "transpose.int"},
      {"t_", "t"}};
  for (const auto& [name, view] : kTurning) {
    if (find(name)) install<Turning>("aten", name, view_rows().at(view));
  }
  for (const auto& [name, row] : fill_rows()) install<Recorded>("aten", name, row, Place::kFill);
  // `plain.data = pending` copies what a tensor points to without asking.
  for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU}) {
    static auto* const kept = new std::deque<torch::Library>;
    kept->emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    kept->back().impl(
        "_has_compatible_shallow_copy_type", [](const at::Tensor& self, const at::Tensor& from) {
          settle_write(self);
          settle_write(from);
          return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
        });
  }
  {
    static auto* const kept = new torch::Library(
        torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCPU, __FILE__, __LINE__);
    kept->impl("matmul.out", &multiplied);
  }
  // `torch.tensor([x[0], x[1]])` asks for numbers below our key.
  {
    static auto* const kept = new torch::Library(
        torch::Library::IMPL, "aten", c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
    constexpr DispatchKeySet behind(DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
    const auto number = find("_local_scalar_dense")->typed<at::Scalar(const at::Tensor&)>();
    kept->impl("_local_scalar_dense", [number](DispatchKeySet keys, const at::Tensor& self) {
      finish_writes(self, "looked at");
      return number.redispatch(keys & behind, self);
    });
  }
  const Overloads overloads;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !op->schema().is_mutable()) continue;
    const std::size_t colons = name.name.find("::");
    const std::string ns = name.name.substr(0, colons);
    const std::string full =
        name.name.substr(colons + 2) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    // Lists of tensors are worked off one by one: those are recorded.
    const bool list = ns == "aten" && full.starts_with("_foreach_") &&
                      op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
    if (list || ns.starts_with("prim") || ns == "_test" || op->hasKernelForDispatchKey(kKey))
      continue;
    if (const auto plain = ns == "aten" ? overloads.without_out(op->schema()) : std::nullopt;
        plain && installed().names.contains(overloads.full(*plain))) {
      install<Given>(ns, full, op->schema(), *plain);
    } else {
      install<Writing>(ns, full, op->schema());
    }
  }
  static auto* const others =
      new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  others->fallback(torch::CppFunction::makeFromBoxedFunction<&unrecorded>());
}

// ---- The module

// install(engine, [(name, text), ...], template_of)
PyObject* py_install(PyObject*, PyObject* args) {
  PyObject *capsule, *rows, *asked;
  if (!PyArg_ParseTuple(args, "OO!O", &capsule, &PyList_Type, &rows, &asked)) return nullptr;
  auto* const engine = static_cast<Engine*>(PyCapsule_GetPointer(capsule, kEngineName));
  if (engine == nullptr) return nullptr;
  return recorded([&]() -> PyObject* {
    set_engine(engine);
    engine->set_finish([](Failure& failure) noexcept {
      try {
        finish_writes("another program");
        return true;
      } catch (const c10::IndexError& e) {
        failure = {Failure::Kind::kIndex, e.what_without_backtrace()};
      } catch (const std::exception& e) {
        failure = {Failure::Kind::kInternal, e.what()};
      }
      return false;
    });
    install_products();
    install_quick_views();
    for (const auto* const part : {&coded_rows(), &product_rows(), &gather_rows(), &loop_rows(),
                                   &loss_rows()}) {
      for (const auto& [name, row] : *part) install_row(name, row, Place::kNew);
    }
    for (const auto& [name, row] : view_rows()) install_row(name, row, Place::kView);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(rows); ++i) {
      const char *name, *text;
      int floats = 0;
      if (!PyArg_ParseTuple(PyList_GET_ITEM(rows, i), "ssp", &name, &text, &floats)) return nullptr;
      const Row row = text_row(text);
      install_row(name, floats != 0 ? of_floats(row) : row, Place::kNew, text);
    }
    installed_rows().insert(composite_rows().begin(), composite_rows().end());
    install_rest();
    if (!install_protocol()) return nullptr;
    set_teacher(asked);
    Py_RETURN_NONE;
  });
}

PyObject* py_switch(PyObject*, PyObject* on) {
  const int wanted = PyObject_IsTrue(on);
  if (wanted < 0) return nullptr;
  return PyBool_FromLong(record_here(wanted != 0));
}

PyObject* py_active(PyObject*, PyObject*) {
  return PyBool_FromLong(c10::impl::tls_is_dispatch_key_included(kKey));
}

PyObject* py_pending(PyObject*, PyObject* object) {
  if (!THPVariable_Check(object)) {
    PyErr_SetString(PyExc_TypeError, "pending() takes a tensor");
    return nullptr;
  }
  return PyBool_FromLong(waits(THPVariable_Unpack(object)) ? 1 : 0);
}

PyObject* py_end_block(PyObject*, PyObject* quietly) {
  return recorded([&]() -> PyObject* {
    Recording::mine().end_block(PyObject_IsTrue(quietly) == 1);
    Py_RETURN_NONE;
  });
}

PyObject* py_end_templates(PyObject*, PyObject*) {
  set_teacher(nullptr);
  Py_RETURN_NONE;
}

PyObject* py_flush(PyObject*, PyObject*) {
  return recorded([]() -> PyObject* {
    Recording& mine = Recording::mine();
    std::unique_lock lock(mine.mutex);
    mine.flush(lock, "asked");
    Py_RETURN_NONE;
  });
}

PyMethodDef methods[] = {
    {"install", py_install, METH_VARARGS,
     "install(engine, rows, template_of): put the recorder's kernels into PyTorch's dispatcher, "
     "once. template_of(name, overload, arguments): the template of an operator without a row."},
    {"end_templates", py_end_templates, METH_NOARGS, "Ask for no templates any more."},
    {"switch", py_switch, METH_O, "switch(on): record in this thread or not; returns what was."},
    {"active", py_active, METH_NOARGS, "Whether this thread records."},
    {"pending", py_pending, METH_O,
     "pending(tensor): whether it waits to be filled, or its memory to be written."},
    {"end_block", py_end_block, METH_O,
     "end_block(quietly): run what this thread has recorded; quietly: errors wait until somebody "
     "looks."},
    {"flush", py_flush, METH_NOARGS, "Run what this thread has recorded."},
    {"draw", py_draw, METH_VARARGS,
     "draw(tensor, kind): fill it by PyTorch's default generator of the CPU: words of int32, "
     "fractions of float64 from 0 to below 1, normals of float32, wide_normals of float64 or, as "
     "PyTorch draws them one by one, pairs of float64."},
    {"draws_as_eager", py_draws_as_eager, METH_VARARGS,
     "draws_as_eager(name): whether PyTorch draws for its operator of that name as draw() does."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "tilevm._recorder",
                          "Records operators of PyTorch as they are called.",
                          -1,
                          methods,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace tilevm::eager

PyMODINIT_FUNC PyInit__recorder() {
  PyObject* const m = PyModule_Create(&tilevm::eager::definition);
  if (m == nullptr) return nullptr;
  if (!tilevm::eager::add_blocks(m)) return nullptr;
  PyModule_AddStringConstant(m, "torch_version", TORCH_VERSION);
  PyModule_AddIntConstant(m, "engine_version", tilevm::eager::kEngineVersion);
  return m;
}

#include "bind/torch_direct.h"

#include <dlfcn.h>

#include <cstring>

#include "exec/gemm/library.h"

namespace tilevm::bind {
namespace {

namespace dlpack = host::dlpack;

template <typename F>
void find_symbol(F& function, const char* library, const char* name) {
  void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  function = handle != nullptr ? reinterpret_cast<F>(dlsym(handle, name)) : nullptr;
}

bool is_true(PyObject* callable, std::initializer_list<PyObject*> args = {}) {
  return invoke(callable, args).get() == Py_True;
}

// What `question` answers inside a context manager of Python.
template <typename Question>
bool answer_inside(PyObject* context, Question&& question) {
  invoke(attribute(context, "__enter__").get(), {});
  const bool answer = question();
  invoke(attribute(context, "__exit__").get(), {Py_None, Py_None, Py_None});
  return answer;
}

bool same_memory(const dlpack::Tensor& a, const dlpack::Tensor& b) {
  return a.data == b.data && a.device.type == b.device.type && a.ndim == b.ndim &&
         a.dtype.code == b.dtype.code && a.dtype.bits == b.dtype.bits && a.shape == b.shape &&
         a.strides == b.strides && a.byte_offset == b.byte_offset;
}

// The functions of BLAS that PyTorch's own products call, or what brings them along. Not MKL's
// gemm_bf16bf16f32_: it makes a team of threads, whatever number is set for the thread that calls.
void find_library() {
  constexpr const char* kTorch = "libtorch_cpu.so";
  exec::gemm::Library library;
  find_symbol(library.f32, kTorch, "sgemm_");
  find_symbol(library.set_threads, kTorch, "MKL_Set_Num_Threads_Local");
  if (library.set_threads == nullptr)
    find_symbol(library.set_threads, kTorch, "openblas_set_num_threads_local");
  exec::gemm::set_library(library);
}

}  // namespace

const TorchDirect& TorchDirect::get() {
  // Not a guarded static: its initialiser may give up the interpreter's lock to a thread that
  // would then wait for the guard.
  static const TorchDirect* direct = nullptr;
  if (direct == nullptr) {
    const auto* made = new TorchDirect;
    if (direct == nullptr) direct = made;
  }
  return *direct;
}

TorchDirect::TorchDirect() {
  const Ref module = import("torch");
  const auto found = [](Ref object) { return object.release(); };
  tensor_ = reinterpret_cast<PyTypeObject*>(found(attribute(module.get(), "Tensor")));
  parameter_ = reinterpret_cast<PyTypeObject*>(found(import("torch.nn", {"Parameter"})));
  const Ref base = import("torch._C", {"TensorBase"});
  py_is_neg_ = found(attribute(base.get(), "is_neg"));
  py_is_conj_ = found(attribute(base.get(), "is_conj"));
  py_requires_grad_ = found(attribute(base.get(), "requires_grad"));
  py_grad_ = found(attribute(module.get(), "is_grad_enabled"));
  py_inference_ = found(attribute(module.get(), "is_inference_mode_enabled"));
  py_autocast_ = found(attribute(module.get(), "is_autocast_enabled"));
  py_precision_ = found(import("torch._C", {"_get_fp32_precision_getter"}));
  py_default_dtype_ = found(attribute(module.get(), "get_default_dtype"));
  py_function_modes_ = found(import("torch._C", {"_len_torch_function_stack"}));
  py_dispatch_modes_ = found(import("torch._C", {"_len_torch_dispatch_stack"}));
  const Ref capsule(in_python([&] {
    return PyObject_GetAttrString(reinterpret_cast<PyObject*>(tensor_),
                                  "__dlpack_c_exchange_api__");
  }));
  if (capsule && PyCapsule_IsValid(capsule.get(), dlpack::kCapsuleName)) {
    const auto* api = static_cast<const dlpack::ExchangeApi*>(
        PyCapsule_GetPointer(capsule.get(), dlpack::kCapsuleName));
    while (api != nullptr && api->version.major > dlpack::kMajor) api = api->previous;
    const bool usable = api != nullptr && api->version.major == dlpack::kMajor &&
                        api->describe != nullptr && api->from_managed != nullptr;
    if (usable) api_ = api;
  }
  PyErr_Clear();
  if (api_ != nullptr) {
    find();
    if (look_ != nullptr) find_make();
  }
  find_modes();
  find_precision();
  find_library();
}

// Does the word behind the header point to where the sizes of small tensors are kept?
bool TorchDirect::layout_is_known(PyObject* tensor) const {
  constexpr std::uintptr_t kImplBytes = 256;
  dlpack::Tensor seen;
  if (api_->describe(tensor, &seen) != 0) return false;
  const auto impl = reinterpret_cast<std::uintptr_t>(impl_of(tensor));
  const auto sizes = reinterpret_cast<std::uintptr_t>(seen.shape);
  return sizes > impl && sizes - impl < kImplBytes;
}

void TorchDirect::find() {
  const Ref plain = invoke(import("torch", {"ones"}).get(), {checked(PyLong_FromLong(2)).get()});
  const Ref negated = invoke(import("torch", {"_neg_view"}).get(), {plain.get()});
  const Ref parameter = invoke(reinterpret_cast<PyObject*>(parameter_), {plain.get()});
  const Ref whole = invoke(import("torch", {"eye"}).get(), {checked(PyLong_FromLong(3)).get()});
  const Ref part = invoke(attribute(whole.get(), "select").get(),
                          {checked(PyLong_FromLong(1)).get(), checked(PyLong_FromLong(2)).get()});
  for (const Ref* tensor : {&plain, &negated, &parameter, &part}) {
    if (!layout_is_known(tensor->get())) {
      PyErr_Clear();
      return;
    }
  }
  find_symbol(is_neg_, "libtorch_cpu.so", "_ZN2at6native6is_negERKNS_6TensorE");
  if (is_neg_ != nullptr &&
      (!is_neg_(tensor_of(negated.get())) || is_neg_(tensor_of(plain.get())))) {
    is_neg_ = nullptr;
  }
  const Ref parts = invoke(import("torch", {"complex"}).get(), {plain.get(), plain.get()});
  const Ref conjugate = invoke(import("torch", {"conj"}).get(), {parts.get()});
  find_symbol(is_conj_, "libtorch_cpu.so", "_ZN2at6native7is_conjERKNS_6TensorE");
  if (is_conj_ != nullptr &&
      (!is_conj_(tensor_of(conjugate.get())) || is_conj_(tensor_of(parts.get())))) {
    is_conj_ = nullptr;
  }
  find_symbol(requires_grad_, "libc10.so", "_ZNK3c1010TensorImpl13requires_gradEv");
  if (requires_grad_ != nullptr &&
      (!requires_grad_(impl_of(parameter.get())) || requires_grad_(impl_of(plain.get())))) {
    requires_grad_ = nullptr;
  }
  // What the exchange interface calls itself, after it has taken and dropped a reference: 10 ns
  // in place of 48.
  find_symbol(look_, "libtorch_cpu.so", "_ZN2at17toDLPackNonOwningERKNS_6TensorEP8DLTensor");
  for (const Ref* tensor : {&plain, &parameter, &part}) {
    if (look_ == nullptr) return;
    dlpack::Tensor told, seen;
    std::memset(&seen, 0, sizeof(seen));
    const bool asked = api_->describe(tensor->get(), &told) == 0;
    look_(tensor_of(tensor->get()), &seen);
    if (!asked || !same_memory(told, seen)) look_ = nullptr;
  }
}

PyObject* TorchDirect::make_directly(dlpack::Managed* managed) const {
  Moved made = from_managed_(managed, nullptr);
  return wrap_(&made);
}

// The exchange interface does the same with the interpreter's lock taken once more and the
// reference counted twice: 256 ns in place of 216.
void TorchDirect::find_make() {
  find_symbol(from_managed_, "libtorch_cpu.so",
              "_ZN2at19fromDLPackVersionedEP24DLManagedTensorVersionedSt8functionIFvPvEE");
  find_symbol(wrap_, "libtorch_python.so", "_Z16THPVariable_WrapON2at10TensorBaseE");
  if (from_managed_ == nullptr || wrap_ == nullptr) {
    from_managed_ = nullptr;
    return;
  }
  static float element = 0;
  static std::int64_t sizes[] = {1, 1};
  static int deleted;
  deleted = 0;
  dlpack::Managed managed{
      {dlpack::kMajor, 0},
      nullptr,
      [](dlpack::Managed*) { ++deleted; },
      0,
      {&element, {dlpack::kCpu, 0}, 2, {dlpack::kFloat, 32, 1}, sizes, sizes, 0}};
  dlpack::Tensor seen;
  Ref made(make_directly(&managed));
  bool right = made && Py_TYPE(made.get()) == tensor_ && Py_REFCNT(made.get()) == 1 &&
               look(made.get(), seen) && seen.data == &element && seen.ndim == 2 && deleted == 0;
  made = Ref();
  right = right && deleted == 1;
  PyErr_Clear();
  if (!right) from_managed_ = nullptr;
}

std::vector<std::string> TorchDirect::asked_in_python() const {
  const std::pair<const char*, bool> questions[] = {
      {"memory of a tensor", look_ != nullptr},      {"negative bit", is_neg_ != nullptr},
      {"conjugate bit", is_conj_ != nullptr},        {"requires_grad", requires_grad_ != nullptr},
      {"new tensors", from_managed_ != nullptr},     {"grad mode", grad_ != nullptr},
      {"inference mode", inference_ != nullptr},     {"autocast", autocast_ != nullptr},
      {"function modes", function_mode_ != nullptr}, {"dispatch modes", dispatch_modes_ != nullptr},
      {"default dtype", default_dtype_ != nullptr},  {"precision", precision_ != nullptr}};
  std::vector<std::string> missing;
  for (const auto& [name, found] : questions) {
    if (!found) missing.emplace_back(name);
  }
  return missing;
}

PyObject* TorchDirect::make(dlpack::Managed* managed) const {
  void* object = nullptr;
  if (from_managed_ == nullptr) {
    if (api_->from_managed(managed, &object) != 0) throw host::ForeignError();
    return static_cast<PyObject*>(object);
  }
  PyObject* made = nullptr;
  try {
    made = in_python([&] { return make_directly(managed); });
  } catch (...) {  // c10::Error, or torch's for an error that Python has
  }
  if (made == nullptr) throw host::ForeignError();
  return made;
}

void TorchDirect::find_modes() {
  const auto in = [](const char* module, std::initializer_list<const char*> name,
                     std::initializer_list<PyObject*> args, const auto& question) {
    const Ref context = invoke(import(module, name).get(), args);
    return answer_inside(context.get(), question);
  };
  const auto keep_if = [](auto*& function, bool right) {
    if (!right) function = nullptr;
  };
  const Ref cpu = checked(PyUnicode_FromString("cpu"));
  const bool grad = is_true(py_grad_), inference = is_true(py_inference_);
  const bool autocast = is_true(py_autocast_, {cpu.get()});
  find_symbol(grad_, "libc10.so", "_ZN3c108GradMode10is_enabledEv");
  if (grad_ != nullptr) {
    const auto ask = [&] { return grad_(); };
    keep_if(grad_, ask() == grad && !in("torch", {"no_grad"}, {}, ask) &&
                       in("torch", {"enable_grad"}, {}, ask));
  }
  find_symbol(inference_, "libc10.so", "_ZN3c1013InferenceMode10is_enabledEv");
  if (inference_ != nullptr) {
    const auto ask = [&] { return inference_(); };
    keep_if(inference_, ask() == inference && in("torch", {"inference_mode"}, {}, ask));
  }
  find_symbol(autocast_, "libtorch_cpu.so",
              "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE");
  if (autocast_ != nullptr) {
    const auto ask = [&] { return autocast_(0); };
    keep_if(autocast_, ask() == autocast && in("torch", {"autocast"}, {cpu.get()}, ask));
  }
  find_symbol(function_mode_, "libtorch_cpu.so", "_ZN2at4impl27torch_function_mode_enabledEv");
  if (function_mode_ != nullptr) {
    const auto ask = [&] { return function_mode_(); };
    const bool on = PyLong_AsLong(invoke(py_function_modes_, {}).get()) > 0;
    keep_if(function_mode_, ask() == on && in("torch.overrides", {"TorchFunctionMode"}, {}, ask));
  }
  find_symbol(dispatch_modes_, "libc10.so", "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv");
  if (dispatch_modes_ != nullptr) {
    const auto ask = [&] { return dispatch_modes_() > 0; };
    const bool on = PyLong_AsLong(invoke(py_dispatch_modes_, {}).get()) > 0;
    keep_if(dispatch_modes_,
            ask() == on && in("torch.utils._python_dispatch", {"TorchDispatchMode"}, {}, ask));
  }
  find_symbol(default_dtype_, "libc10.so", "_ZN3c1031get_default_dtype_as_scalartypeEv");
  if (default_dtype_ != nullptr) {
    constexpr std::int8_t kFloat = 6;  // c10::ScalarType::Float
    const Ref now = invoke(py_default_dtype_, {});
    const bool is_float = now.get() == import("torch", {"float32"}).get();
    keep_if(default_dtype_, (default_dtype_() == kFloat) == is_float);
  }
}

namespace {

constexpr const char* kBackend = "mkldnn";
constexpr const char* kOperator = "matmul";

std::string precision_in_python(PyObject* getter) {
  const Ref backend = checked(PyUnicode_FromString(kBackend));
  const Ref op = checked(PyUnicode_FromString(kOperator));
  return text_of(invoke(getter, {backend.get(), op.get()}).get());
}

}  // namespace

// Numbers are those that at gives to their names.
void TorchDirect::find_precision() {
  constexpr const char* kTorch = "libtorch_cpu.so";
  using Number = int (*)(const std::string&);
  Number number_of[3];
  find_symbol(number_of[0], kTorch,
              "_ZN2at11str2backendERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
  find_symbol(number_of[1], kTorch,
              "_ZN2at6str2opERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
  find_symbol(number_of[2], kTorch,
              "_ZN2at13str2precisionERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
  find_symbol(context_, kTorch, "_ZN2at13globalContextEv");
  find_symbol(precision_, kTorch,
              "_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE");
  bool right = context_ != nullptr && precision_ != nullptr;
  for (const Number number : number_of) right = right && number != nullptr;
  try {
    if (right) {
      backend_ = number_of[0](kBackend);
      op_ = number_of[1](kOperator);
      tf32_ = number_of[2]("tf32");
      bf16_ = number_of[2]("bf16");
      right =
          precision_(context_(), backend_, op_) == number_of[2](precision_in_python(py_precision_));
    }
  } catch (const host::ForeignError&) {
    throw;
  } catch (...) {  // c10::Error: there is no such name
    right = false;
  }
  if (!right) precision_ = nullptr;
}

int TorchDirect::float32_pieces() const noexcept {
  using namespace exec::gemm;
  const auto pieces = [](const auto& precision, const auto& tf32, const auto& bf16) {
    return precision == bf16 ? kMediumPieces : precision == tf32 ? kHighPieces : kMostPieces;
  };
  if (precision_ != nullptr) return pieces(precision_(context_(), backend_, op_), tf32_, bf16_);
  try {
    return pieces(precision_in_python(py_precision_), "tf32", "bf16");
  } catch (const host::ForeignError&) {
    PyErr_Clear();
    return kMostPieces;
  }
}

bool TorchDirect::look(PyObject* tensor, dlpack::Tensor& out) const noexcept {
  if (look_ != nullptr) {
    try {
      in_python([&] { look_(tensor_of(tensor), &out); });
      return true;
    } catch (...) {  // c10::Error: no memory to speak of
      return false;
    }
  }
  if (api_ != nullptr && api_->describe(tensor, &out) == 0) return true;
  PyErr_Clear();
  return false;
}

bool TorchDirect::is_neg(PyObject* tensor) const {
  return is_neg_ != nullptr ? is_neg_(tensor_of(tensor)) : is_true(py_is_neg_, {tensor});
}

bool TorchDirect::is_conj(PyObject* tensor) const {
  return is_conj_ != nullptr ? is_conj_(tensor_of(tensor)) : is_true(py_is_conj_, {tensor});
}

bool TorchDirect::requires_grad(PyObject* tensor) const {
  if (requires_grad_ != nullptr) return requires_grad_(impl_of(tensor));
  PyTypeObject* descriptor = Py_TYPE(py_requires_grad_);
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
  return checked(descriptor->tp_descr_get(py_requires_grad_, tensor, type)).get() == Py_True;
}

bool TorchDirect::grad_enabled() const { return grad_ != nullptr ? grad_() : is_true(py_grad_); }

Modes TorchDirect::modes() const {
  Modes modes;
  modes.grad = grad_enabled();
  modes.inference = inference_ != nullptr ? inference_() : is_true(py_inference_);
  if (autocast_ != nullptr) {
    modes.special = autocast_(0);
  } else {
    modes.special = is_true(py_autocast_, {checked(PyUnicode_FromString("cpu")).get()});
  }
  if (function_mode_ != nullptr) {
    modes.special |= function_mode_();
  } else {
    modes.special |= PyLong_AsLong(invoke(py_function_modes_, {}).get()) > 0;
  }
  if (dispatch_modes_ != nullptr) {
    modes.special |= dispatch_modes_() > 0;
  } else {
    modes.special |= PyLong_AsLong(invoke(py_dispatch_modes_, {}).get()) > 0;
  }
  modes.default_dtype = default_dtype_ != nullptr
                            ? default_dtype_()
                            : reinterpret_cast<std::intptr_t>(invoke(py_default_dtype_, {}).get());
  return modes;
}

}  // namespace tilevm::bind

// PyTorch without linking it: DLPack's C exchange interface in, and tensors over our own memory
// out (0.35 us; torch._C._dynamo.guards._empty_strided_cpu 0.53, the interface's allocator 0.70,
// torch.empty 1.3). Where the interface is missing, the same through Python, slower.
#include <new>

#include "bind/framework.h"
#include "bind/torch_direct.h"
#include "host/dlpack.h"
#include "exec/memory.h"

namespace tilevm::bind {
namespace {

namespace dlpack = host::dlpack;

constexpr int kDTypes = static_cast<int>(DType::kOpaque);

dlpack::DataType dlpack_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return {dlpack::kFloat, 32, 1};
    case DType::kBFloat16:
      return {dlpack::kBfloat, 16, 1};
    case DType::kInt64:
      return {dlpack::kInt, 64, 1};
    case DType::kInt32:
      return {dlpack::kInt, 32, 1};
    case DType::kBool:
      return {dlpack::kBool, 8, 1};
    case DType::kFloat64:
      return {dlpack::kFloat, 64, 1};
    case DType::kFloat16:
      return {dlpack::kFloat, 16, 1};
    case DType::kInt16:
      return {dlpack::kInt, 16, 1};
    case DType::kInt8:
      return {dlpack::kInt, 8, 1};
    case DType::kUInt8:
      return {dlpack::kUInt, 8, 1};
    case DType::kOpaque:
      break;
  }
  throw DTypeError("a dtype that tensors cannot be made of");
}

// Of complex numbers with such parts.
dlpack::DataType complex_type(DType parts) {
  const dlpack::DataType part = dlpack_type(parts);
  return {dlpack::kComplex, static_cast<std::uint8_t>(2 * part.bits), 1};
}

// What is looked up in the torch package, once.
struct Torch {
  const TorchDirect* direct = nullptr;
  const dlpack::ExchangeApi* api = nullptr;
  PyTypeObject* tensor = nullptr;
  PyObject* plain_dispatch = nullptr;              // Tensor.__torch_dispatch__
  PyObject *as_strided, *detach, *storage_offset;  // descriptors of TensorBase
  PyObject *matmul, *get_num_threads, *empty_strided, *strided, *view_as_real, *view_as_complex;
  std::array<PyObject*, kDTypes> dtypes{};
  std::vector<PyTypeObject*> plain;  // subclasses that are seen to be tensors like any other
};

Torch make() {
  Torch torch;
  const Ref module = import("torch");
  const auto get = [&](const char* name) { return attribute(module.get(), name).release(); };
  const Ref base = import("torch._C", {"TensorBase"});
  torch.tensor = reinterpret_cast<PyTypeObject*>(get("Tensor"));
  auto* const type = reinterpret_cast<PyObject*>(torch.tensor);
  torch.plain_dispatch = attribute(type, "__torch_dispatch__").release();
  torch.as_strided = attribute(base.get(), "as_strided").release();
  torch.detach = attribute(base.get(), "detach").release();
  torch.storage_offset = attribute(base.get(), "storage_offset").release();
  torch.matmul = get("matmul");
  torch.get_num_threads = get("get_num_threads");
  torch.empty_strided = get("empty_strided");
  torch.strided = get("strided");
  torch.view_as_real = get("view_as_real");
  torch.view_as_complex = get("view_as_complex");
  for (int d = 0; d < kDTypes; ++d) {
    const std::string name(dtype_name(static_cast<DType>(d)));
    torch.dtypes[static_cast<std::size_t>(d)] = get(name.c_str());
  }
  torch.direct = &TorchDirect::get();
  torch.api = torch.direct->api();
  return torch;
}

Torch& mutable_torch() {
  static Torch* torch = nullptr;  // as in TorchDirect::get
  if (torch == nullptr) {
    auto* made = new Torch(make());
    if (torch == nullptr) torch = made;
  }
  return *torch;
}
const Torch& load() { return mutable_torch(); }

// Memory, shape and owner of a tensor that we made, in front of its elements.
struct Header {
  dlpack::Managed managed;
  exec::Block block;
  std::int64_t sizes[kMaxRank];
  std::int64_t strides[kMaxRank];
};
constexpr std::size_t kHeaderBytes =
    (sizeof(Header) + exec::kAlignment - 1) / exec::kAlignment * exec::kAlignment;

void release_header(dlpack::Managed* managed) {
  exec::release(static_cast<Header*>(managed->manager_ctx)->block);
}

class TorchFramework final : public PythonFramework {
 public:
  TorchFramework(bool allow_grad, bool detached)
      : torch_(load()), allow_grad_(allow_grad), detached_(detached) {}

  void describe(Object tensor, const Type& type, const std::string& name, Record& out) override {
    PyObject* object = py(tensor);
    PyTypeObject* cls = Py_TYPE(object);
    if (!torch_.direct->is_tensor(cls) && !is_plain(cls)) {
      if (type.dtype == DType::kOpaque) return describe_opaque(object, type, name, out);
      wrong_type(object, "a torch.Tensor", name);
    }
    if (torch_.api == nullptr) return describe_slowly(object, type, name, out);
    dlpack::Tensor seen;
    if (!torch_.direct->look(object, seen)) {
      if (type.dtype == DType::kOpaque) return describe_opaque(object, type, name, out);
      wrong_place(object, name);
    }
    const std::span<const std::int64_t> sizes(seen.shape, static_cast<std::size_t>(seen.ndim));
    check_rank(type, sizes, name);
    if (type.dtype != DType::kOpaque) {
      const dlpack::DataType want = dlpack_type(type.dtype);
      if (seen.dtype.code != want.code || seen.dtype.bits != want.bits || seen.dtype.lanes != 1) {
        wrong_dtype(type, text_of(attribute(object, "dtype").get()), name);
      }
      if (seen.device.type != dlpack::kCpu) wrong_place(object, name);
      check_bits(object, type, name);
    }
    out.rank = seen.ndim;
    for (int d = 0; d < seen.ndim; ++d) {
      out.size(d) = seen.shape[d];
      out.stride(d) = seen.strides[d];
    }
    out.data = static_cast<std::byte*>(seen.data) + seen.byte_offset;
    if (seen.data == nullptr && type.dtype != DType::kOpaque && !out.empty()) {
      throw host::DeviceError(name + ": the tensor has no memory of its own");
    }
  }

  void describe_complex(Object tensor, const Type& type, const std::string& name,
                        Record& out) override {
    PyObject* object = py(tensor);
    if (!torch_.direct->is_tensor(Py_TYPE(object)) && !is_plain(Py_TYPE(object)))
      wrong_type(object, "a torch.Tensor", name);
    if (torch_.direct->is_conj(object)) {
      throw host::DeviceError(name + ": has its conjugate bit set\n  call resolve_conj() first");
    }
    dlpack::Tensor seen;
    if (torch_.api == nullptr) {
      const Ref parts(py(this->parts(tensor)));
      return describe_slowly(parts.get(), type, name, out);
    }
    if (!torch_.direct->look(object, seen)) wrong_place(object, name);
    const dlpack::DataType want = complex_type(type.dtype);
    if (seen.dtype.code != want.code || seen.dtype.bits != want.bits) {
      throw DTypeError(name + ": must be complex" + std::to_string(want.bits) + ", but is " +
                       text_of(attribute(object, "dtype").get()));
    }
    if (seen.device.type != dlpack::kCpu) wrong_place(object, name);
    check_bits(object, type, name);
    out.rank = seen.ndim + 1;
    if (out.rank != type.shape.rank) {
      check_rank(type, {seen.shape, static_cast<std::size_t>(seen.ndim)}, name);
    }
    for (int d = 0; d < seen.ndim; ++d) {
      out.size(d) = seen.shape[d];
      out.stride(d) = 2 * seen.strides[d];
    }
    out.size(seen.ndim) = 2;
    out.stride(seen.ndim) = 1;
    out.data = static_cast<std::byte*>(seen.data) + seen.byte_offset;
    if (seen.data == nullptr && !out.empty()) {
      throw host::DeviceError(name + ": the tensor has no memory of its own");
    }
  }

  Object parts(Object complex) override {
    return invoke(torch_.view_as_real, {py(complex)}).release();
  }

  Object complex(Object parts) override {
    Ref made = invoke(torch_.view_as_complex, {py(parts)});
    if (detached_) made = invoke(torch_.detach, {made.get()});
    return made.release();
  }

  Object empty_complex(DType dtype, std::int64_t elements, Record& out) override {
    if (torch_.api != nullptr) return new_tensor(dtype, complex_type(dtype), elements, out);
    const Ref parts(py(empty_slowly(dtype, out)));
    return complex(parts.get());
  }

  Object empty(DType dtype, std::int64_t elements, Record& out) override {
    if (torch_.api == nullptr) return empty_slowly(dtype, out);
    return new_tensor(dtype, dlpack_type(dtype), elements, out);
  }

  Object view(Object owner, const Record& whole, DType dtype, const Record& part) override {
    const Ref start = invoke(torch_.storage_offset, {py(owner)});
    const std::int64_t item = dtype == DType::kOpaque ? 1 : dtype_bytes(dtype);
    const std::int64_t moved = (part.data - whole.data) / item;
    const Ref offset =
        checked(PyLong_FromLongLong(PyLong_AsLongLong(start.get()) + (part.empty() ? 0 : moved)));
    const Ref sizes = tuple_of(part.sizes.data(), part.rank);
    const Ref strides = tuple_of(part.strides.data(), part.rank);
    Ref made = invoke(torch_.as_strided, {py(owner), sizes.get(), strides.get(), offset.get()});
    if (detached_) made = invoke(torch_.detach, {made.get()});
    return made.release();
  }

  bool negative_strides() const override { return false; }

  int threads() noexcept override {
    if (const int wanted = threads_wanted(); wanted > 0) return wanted;
    const Ref count(call_object(torch_.get_num_threads, nullptr, 0));
    const long n = count ? PyLong_AsLong(count.get()) : 1;
    if (PyErr_Occurred()) PyErr_Clear();
    return n > 0 ? static_cast<int>(n) : 1;
  }

  int float32_pieces() noexcept override { return torch_.direct->float32_pieces(); }

 protected:
  PyObject* matmul() override { return torch_.matmul; }

 private:
  // Over memory of our own: elements that are `type` outside, complex numbers or what `dtype` is.
  Object new_tensor(DType dtype, dlpack::DataType type, std::int64_t elements, Record& out) {
    const std::size_t bytes = static_cast<std::size_t>(elements * dtype_bytes(dtype));
    const exec::Block block = exec::acquire(kHeaderBytes + bytes);
    if (block.data == nullptr) no_memory(bytes);
    auto* header = new (block.data) Header;
    header->block = block;
    const bool complex = type.code == dlpack::kComplex;
    const int rank = out.rank - (complex ? 1 : 0);
    for (int d = 0; d < rank; ++d) {
      header->sizes[d] = out.size(d);
      header->strides[d] = complex ? out.stride(d) / 2 : out.stride(d);
    }
    out.data = block.data + kHeaderBytes;
    header->managed = {
        {dlpack::kMajor, 0},
        header,
        release_header,
        0,
        {out.data, {dlpack::kCpu, 0}, rank, type, header->sizes, header->strides, 0}};
    try {
      return torch_.direct->make(&header->managed);
    } catch (...) {
      exec::release(block);
      throw;
    }
  }

  bool is_plain(PyTypeObject* cls) {
    std::vector<PyTypeObject*>& plain = mutable_torch().plain;
    for (const PyTypeObject* known : plain) {
      if (known == cls) return true;
    }
    if (!PyType_IsSubtype(cls, torch_.tensor)) return false;
    const Ref dispatch = attribute(reinterpret_cast<PyObject*>(cls), "__torch_dispatch__");
    if (dispatch.get() != torch_.plain_dispatch) return false;
    Py_INCREF(cls);
    plain.push_back(cls);
    return true;
  }

  // Tensors that memory alone does not describe: lazily negated, or recording gradients.
  void check_bits(PyObject* object, const Type& type, const std::string& name) const {
    if (is_float(type.dtype) && torch_.direct->is_neg(object)) {
      throw host::DeviceError(name + ": has its negative bit set\n  call resolve_neg() first");
    }
    if (allow_grad_ || !is_float(type.dtype) || !torch_.direct->requires_grad(object)) return;
    if (!torch_.direct->grad_enabled()) return;
    throw host::GradError(name +
                          ": requires gradients, which this program does not compute\n  call it "
                          "under torch.no_grad(), or pass x.detach()");
  }

  [[noreturn]] void wrong_place(PyObject* object, const std::string& name) {
    const std::string device = text_of(attribute(object, "device").get());
    const Ref layout = attribute(object, "layout");
    if (layout.get() != torch_.strided) {
      throw host::DeviceError(name + ": must be a strided tensor, but has layout " +
                              text_of(layout.get()));
    }
    throw host::DeviceError(name + ": must be on the CPU in memory of its own, but is a " +
                            Py_TYPE(object)->tp_name + " on " + device);
  }

  // Only its sizes: call-outs take the object itself.
  void describe_opaque(PyObject* object, const Type& type, const std::string& name, Record& out) {
    out.data = nullptr;
    out.rank = 0;
    if (in_python([&] { return PyObject_HasAttrString(object, "shape"); }) == 0) {
      return check_rank(type, {}, name);
    }
    read_sizes(object, type, name, out);
    set_dense_strides(out);
  }

  void read_sizes(PyObject* object, const Type& type, const std::string& name, Record& out) {
    const Ref shape = checked(PySequence_Tuple(attribute(object, "shape").get()));
    std::vector<std::int64_t> sizes;
    for (Py_ssize_t d = 0; d < PyTuple_GET_SIZE(shape.get()); ++d) {
      sizes.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(shape.get(), d)));
    }
    if (PyErr_Occurred()) throw host::ForeignError();
    check_rank(type, sizes, name);
    out.rank = static_cast<int>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), out.sizes.begin());
  }

  void describe_slowly(PyObject* object, const Type& type, const std::string& name, Record& out) {
    if (type.dtype == DType::kOpaque) return describe_opaque(object, type, name, out);
    read_sizes(object, type, name, out);
    const Ref dtype = attribute(object, "dtype");
    if (dtype.get() != torch_.dtypes[static_cast<std::size_t>(type.dtype)]) {
      wrong_dtype(type, text_of(dtype.get()), name);
    }
    if (text_of(attribute(object, "device").get()) != "cpu" ||
        attribute(object, "layout").get() != torch_.strided) {
      wrong_place(object, name);
    }
    check_bits(object, type, name);
    const Ref strides = invoke(attribute(object, "stride").get(), {});
    for (int d = 0; d < out.rank; ++d) {
      out.stride(d) = PyLong_AsLongLong(PyTuple_GET_ITEM(strides.get(), d));
    }
    out.data = address(object);
  }

  Object empty_slowly(DType dtype, Record& out) {
    const Ref sizes = tuple_of(out.sizes.data(), out.rank);
    const Ref strides = tuple_of(out.strides.data(), out.rank);
    const Ref names = checked(Py_BuildValue("(s)", "dtype"));
    PyObject* args[] = {sizes.get(), strides.get(), torch_.dtypes[static_cast<std::size_t>(dtype)]};
    Ref tensor = checked(in_python(
        [&] { return PyObject_Vectorcall(torch_.empty_strided, args, 2, names.get()); }));
    out.data = address(tensor.get());
    return tensor.release();
  }

  static std::byte* address(PyObject* tensor) {
    const Ref pointer = invoke(attribute(tensor, "data_ptr").get(), {});
    return static_cast<std::byte*>(PyLong_AsVoidPtr(pointer.get()));
  }

  [[noreturn]] static void no_memory(std::size_t bytes) {
    throw host::MemoryError("no memory for a tensor of " + std::to_string(bytes) + " bytes");
  }

  const Torch& torch_;
  bool allow_grad_;
  bool detached_;
};

}  // namespace

std::unique_ptr<PythonFramework> torch_framework(bool allow_grad, bool detached) {
  return std::make_unique<TorchFramework>(allow_grad, detached);
}

}  // namespace tilevm::bind

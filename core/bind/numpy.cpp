// NumPy without linking it: arrays are read through the fields that NumPy's own headers inline.
#include <algorithm>

#include "bind/framework.h"

namespace tilevm::bind {
namespace {

// The start of every array object. Source: NumPy, ndarraytypes.h, PyArrayObject_fields; the same
// since 1.0.
struct Array {
  PyObject base;
  char* data;
  int rank;
  Py_intptr_t* sizes;
  Py_intptr_t* strides;  // bytes
  PyObject* owner;
  PyObject* dtype;
  int flags;
};
constexpr int kAligned = 0x100;
constexpr int kWriteable = 0x400;

constexpr int kDTypes = static_cast<int>(DType::kOpaque);

struct NumPy {
  PyTypeObject *array, *memmap;
  PyObject *empty, *asarray, *matmul, *namespace_type;
  std::array<PyObject*, kDTypes> dtypes{};  // null: NumPy has no such type
};

NumPy make() {
  NumPy numpy;
  const Ref module = import("numpy");
  const auto get = [&](const char* name) { return attribute(module.get(), name).release(); };
  numpy.array = reinterpret_cast<PyTypeObject*>(get("ndarray"));
  numpy.memmap = reinterpret_cast<PyTypeObject*>(get("memmap"));
  numpy.empty = get("empty");
  numpy.asarray = get("asarray");
  numpy.matmul = get("matmul");
  numpy.namespace_type = import("types", {"SimpleNamespace"}).release();
  const Ref dtype = attribute(module.get(), "dtype");
  for (int d = 0; d < kDTypes; ++d) {
    const std::string name(dtype_name(static_cast<DType>(d)));
    Ref object;
    if (static_cast<DType>(d) == DType::kBFloat16) {
      const Ref types = import_if_there("ml_dtypes");
      if (types) {
        object = invoke(dtype.get(), {attribute(types.get(), "bfloat16").get()});
      }
      PyErr_Clear();
    } else {
      object = invoke(dtype.get(), {checked(PyUnicode_FromString(name.c_str())).get()});
    }
    numpy.dtypes[static_cast<std::size_t>(d)] = object.release();
  }
  return numpy;
}

const NumPy& load() {
  static const NumPy* numpy = nullptr;  // as in TorchDirect::get
  if (numpy == nullptr) {
    const auto* made = new NumPy(make());
    if (numpy == nullptr) numpy = made;
  }
  return *numpy;
}

Array* array_of(PyObject* object) { return reinterpret_cast<Array*>(object); }

class NumpyFramework final : public PythonFramework {
 public:
  NumpyFramework() : numpy_(load()) {}

  void describe(Object tensor, const Type& type, const std::string& name, Record& out) override {
    PyObject* object = py(tensor);
    // Other subclasses mean more than their elements: masks, units.
    if (Py_TYPE(object) != numpy_.array && Py_TYPE(object) != numpy_.memmap) {
      wrong_type(object, "a numpy.ndarray", name);
    }
    const Array& array = *array_of(object);
    if (array.rank != type.shape.rank) {
      check_rank(type, std::vector<std::int64_t>(array.sizes, array.sizes + array.rank), name);
    }
    std::int64_t item = 1;
    if (type.dtype != DType::kOpaque) {
      check_dtype(array, type, name);
      item = dtype_bytes(type.dtype);
      if ((array.flags & kAligned) == 0) {
        throw host::DeviceError(name + ": is not aligned\n  pass a copy: x.copy()");
      }
    }
    out.rank = array.rank;
    out.data = reinterpret_cast<std::byte*>(array.data);
    for (int d = 0; d < array.rank; ++d) {
      out.size(d) = array.sizes[d];
      out.stride(d) = array.strides[d] / item;
      if (out.size(d) > 1 && out.stride(d) * item != array.strides[d]) {
        throw host::DeviceError(name + ": strides are not whole elements\n  pass a copy: x.copy()");
      }
    }
  }

  Object empty(DType dtype, std::int64_t /*elements*/, Record& out) override {
    PyObject* type = numpy_.dtypes[static_cast<std::size_t>(dtype)];
    if (type == nullptr) {
      throw DTypeError("NumPy has no " + std::string(dtype_name(dtype)) +
                       "\n  install ml_dtypes, or cast the result");
    }
    // Dims by falling stride, as np.empty lays them out; then back in their own order.
    std::array<int, kMaxRank> order{};
    for (int d = 0; d < out.rank; ++d) order[static_cast<std::size_t>(d)] = d;
    bool row_major = true;
    for (int d = 1; d < out.rank; ++d) row_major &= out.stride(d - 1) >= out.stride(d);
    if (!row_major) {
      std::stable_sort(order.begin(), order.begin() + out.rank,
                       [&](int a, int b) { return out.stride(a) > out.stride(b); });
    }
    const Ref shape = checked(PyTuple_New(out.rank));
    for (int i = 0; i < out.rank; ++i) {
      PyObject* size = PyLong_FromLongLong(out.size(order[static_cast<std::size_t>(i)]));
      PyTuple_SET_ITEM(shape.get(), i, checked(size).release());
    }
    Ref array = invoke(numpy_.empty, {shape.get(), type});
    if (!row_major) {
      std::array<std::int64_t, kMaxRank> back{};
      for (int i = 0; i < out.rank; ++i) {
        back[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])] = i;
      }
      const Ref axes = tuple_of(back.data(), out.rank);
      array = invoke(attribute(array.get(), "transpose").get(), {axes.get()});
    }
    out.data = reinterpret_cast<std::byte*>(array_of(array.get())->data);
    return array.release();
  }

  Object view(Object owner, const Record& /*whole*/, DType dtype, const Record& part) override {
    const Array& array = *array_of(py(owner));
    const std::int64_t item = dtype == DType::kOpaque ? 1 : dtype_bytes(dtype);
    std::array<std::int64_t, kMaxRank> strides{};
    for (int d = 0; d < part.rank; ++d) {
      strides[static_cast<std::size_t>(d)] = part.stride(d) * item;
    }
    const Ref shape = tuple_of(part.sizes.data(), part.rank);
    const Ref steps = tuple_of(strides.data(), part.rank);
    const Ref code = attribute(array.dtype, "str");
    const Ref address = checked(PyLong_FromVoidPtr(part.data));
    PyObject* read_only = (array.flags & kWriteable) != 0 ? Py_False : Py_True;
    const Ref interface = checked(Py_BuildValue("{sisOsOsOs(OO)}", "version", 3, "shape",
                                                shape.get(), "strides", steps.get(), "typestr",
                                                code.get(), "data", address.get(), read_only));
    const Ref holder = invoke(numpy_.namespace_type, {});
    if (PyObject_SetAttrString(holder.get(), "__array_interface__", interface.get()) != 0 ||
        PyObject_SetAttrString(holder.get(), "owner", py(owner)) != 0) {
      throw host::ForeignError();
    }
    Ref made = invoke(numpy_.asarray, {holder.get()});
    if (array_of(made.get())->dtype == array.dtype) return made.release();
    return invoke(attribute(made.get(), "view").get(), {array.dtype}).release();  // e.g. bfloat16
  }

  bool negative_strides() const override { return true; }

  int threads() noexcept override {
    const int wanted = threads_wanted();
    return wanted > 0 ? wanted : processors();
  }

 protected:
  PyObject* matmul() override { return numpy_.matmul; }

  // NumPy returns scalars where a result has no dims.
  Ref as_tensor(Ref result) override {
    PyObject* object = result.get();
    if (PyType_IsSubtype(Py_TYPE(object), numpy_.array)) return result;
    if (PyLong_CheckExact(object) || PyFloat_CheckExact(object) || PyBool_Check(object)) {
      return result;
    }
    return invoke(numpy_.asarray, {object});
  }

 private:
  void check_dtype(const Array& array, const Type& type, const std::string& name) {
    PyObject* want = numpy_.dtypes[static_cast<std::size_t>(type.dtype)];
    if (array.dtype == want) return;
    const int same = want == nullptr ? 0 : in_python([&] {
      return PyObject_RichCompareBool(array.dtype, want, Py_EQ);
    });
    if (same < 0) throw host::ForeignError();
    if (same == 0) wrong_dtype(type, text_of(array.dtype), name);
  }

  const NumPy& numpy_;
};

}  // namespace

std::unique_ptr<PythonFramework> numpy_framework() { return std::make_unique<NumpyFramework>(); }

}  // namespace tilevm::bind

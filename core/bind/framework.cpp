#include "bind/framework.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <map>

#include "trace/trace.h"

namespace tilevm::bind {
namespace {

std::atomic<int> threads_wanted{0};
std::atomic<bool> forked{false};
PyObject* owner_hook = nullptr;

// Guarded by the interpreter's lock; nodes stay where they are.
std::map<std::string, std::int64_t>& counts() {
  static auto* const map = new std::map<std::string, std::int64_t>;
  return *map;
}

thread_local PyThreadState* saved_thread = nullptr;

std::string name_of(PyObject* callable) {
  // An OpOverload prints as aten.add.Tensor; its __name__ lacks the namespace.
  if (in_python([&] { return PyObject_HasAttrString(callable, "_overloadname"); }) != 0) {
    return text_of(callable);
  }
  for (const char* attribute : {"__name__", "__qualname__"}) {
    const Ref name(in_python([&] { return PyObject_GetAttrString(callable, attribute); }));
    if (name) return text_of(name.get());
    PyErr_Clear();
  }
  return Py_TYPE(callable)->tp_name;
}

}  // namespace

void set_threads(int threads) noexcept {
  // A thread team does not survive a fork: it would hang there.
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
  threads_wanted.store(threads);
}

int threads_setting(int own) noexcept {
  if (forked.load(std::memory_order_relaxed)) return 1;
  return own > 0 ? own : threads_wanted.load(std::memory_order_relaxed);
}

void set_owner_hook(PyObject* hook) {
  Py_INCREF(hook);
  drop_reference(std::exchange(owner_hook, hook));
}

int processors() noexcept {
  static const int count = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  }();
  return count;
}

std::vector<std::pair<std::string, std::int64_t>> callout_counts() {
  std::vector<std::pair<std::string, std::int64_t>> result;
  for (const auto& [name, count] : counts()) {
    if (count > 0) result.emplace_back(name, count);
  }
  return result;
}

void reset_callout_counts() {
  for (auto& [name, count] : counts()) count = 0;
}

std::int64_t PythonFramework::integer(Object number, const std::string& name) {
  PyObject* object = py(number);
  if (!PyLong_Check(object) && !PyIndex_Check(object)) wrong_type(object, "an int", name);
  const Ref index = checked(in_python([&] { return PyNumber_Index(object); }));
  const std::int64_t value = PyLong_AsLongLong(index.get());
  if (value == -1 && PyErr_Occurred()) throw host::ForeignError();
  return value;
}

double PythonFramework::real(Object number, const std::string& name) {
  PyObject* object = py(number);
  if (PyFloat_CheckExact(object)) return PyFloat_AS_DOUBLE(object);
  const double value = in_python([&] { return PyFloat_AsDouble(object); });
  if (value == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    wrong_type(object, "a float", name);
  }
  return value;
}

bool PythonFramework::boolean(Object number, const std::string& name) {
  PyObject* object = py(number);
  if (!PyBool_Check(object)) wrong_type(object, "a bool", name);
  return object == Py_True;
}

Object PythonFramework::from_integer(std::int64_t value) {
  return checked(PyLong_FromLongLong(value)).release();
}
Object PythonFramework::from_real(double value) {
  return checked(PyFloat_FromDouble(value)).release();
}
Object PythonFramework::from_boolean(bool value) { return PyBool_FromLong(value); }

Object PythonFramework::retain(Object object) noexcept {
  Py_INCREF(py(object));
  return object;
}
void PythonFramework::drop(Object object) noexcept { drop_reference(py(object)); }
std::uint64_t PythonFramework::owner(Object tensor) {
  if (owner_hook == nullptr) return 0;
  const Ref number = invoke(owner_hook, {py(tensor)});
  const std::uint64_t owner = PyLong_AsUnsignedLongLong(number.get());
  if (PyErr_Occurred() != nullptr) throw host::ForeignError();
  return owner;
}

void PythonFramework::unlock() noexcept { saved_thread = PyEval_SaveThread(); }
void PythonFramework::lock() noexcept {
  in_python([] { PyEval_RestoreThread(saved_thread); });
}

void PythonFramework::pause(bool time) {
  if (time) {
    unlock();
    lock();
  }
  if (in_python([] { return PyErr_CheckSignals(); }) != 0) throw host::ForeignError();
}

void PythonFramework::add_target(PyObject* callable, std::string source) {
  Py_INCREF(callable);
  std::string name = name_of(callable);
  // One that has work of ours done is no call-out.
  const bool ours =
      in_python([&] { return PyObject_HasAttrString(callable, "is_tilevms"); }) != 0;
  std::int64_t* count = ours ? nullptr : &counts()[name];
  if (source.empty()) source = name;
  targets_.push_back({Ref(callable), std::move(name), std::move(source), count});
}

const std::string& PythonFramework::target_name(std::int64_t target) const {
  static const std::string matmul = "matmul", item = "item";
  if (target == kItemTarget) return item;
  if (target == host::kMatmulTarget) return matmul;
  return targets_.at(static_cast<std::size_t>(target)).name;
}

bool PythonFramework::is_callout(std::int64_t target) const {
  return target == host::kMatmulTarget ||
         (target >= 0 && targets_.at(static_cast<std::size_t>(target)).count != nullptr);
}

int PythonFramework::traverse(visitproc visit, void* arg) const {
  for (const Target& target : targets_) Py_VISIT(target.callable.get());
  return 0;
}

void PythonFramework::clear() { targets_.clear(); }

void PythonFramework::call(std::int64_t target, std::span<const Object> args,
                           std::span<Object> results) {
  static std::int64_t* const matmul_count = &counts()["matmul"];
  PyObject* callable;
  std::string_view name = "matmul";
  if (target == host::kMatmulTarget) {
    callable = matmul();
    ++*matmul_count;
  } else {
    if (target < 0 || static_cast<std::size_t>(target) >= targets_.size()) {
      throw host::InternalError("there is no call-out " + std::to_string(target));
    }
    const Target& t = targets_[static_cast<std::size_t>(target)];
    callable = t.callable.get();
    name = t.name;
    if (t.count != nullptr) ++*t.count;
  }
  const trace::Span span("call-out", name);
  auto* const* arguments = reinterpret_cast<PyObject* const*>(args.data());
  Ref result = checked(call_object(callable, arguments, args.size()));
  const bool several = PyTuple_Check(result.get()) || PyList_Check(result.get());
  if (!several && results.size() == 1) {
    results[0] = as_tensor(std::move(result)).release();
    return;
  }
  const Ref items(several ? PySequence_Fast(result.get(), "") : nullptr);
  if (!items || PySequence_Fast_GET_SIZE(items.get()) != static_cast<Py_ssize_t>(results.size())) {
    throw host::InternalError("call-out " + target_name(target) + " should return " +
                              std::to_string(results.size()) + " values, but returned " +
                              (items ? std::to_string(PySequence_Fast_GET_SIZE(items.get()))
                                     : std::string(Py_TYPE(result.get())->tp_name)));
  }
  std::size_t done = 0;
  try {
    for (; done < results.size(); ++done) {
      PyObject* item = PySequence_Fast_GET_ITEM(items.get(), static_cast<Py_ssize_t>(done));
      Py_INCREF(item);
      results[done] = as_tensor(Ref(item)).release();
    }
  } catch (...) {
    while (done > 0) drop(results[--done]);
    throw;
  }
}

std::string shape_text(std::span<const std::int64_t> sizes) {
  std::string text = "[";
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(sizes[i]);
  }
  return text + "]";
}

void check_rank(const Type& type, std::span<const std::int64_t> sizes, const std::string& name) {
  if (sizes.size() == type.shape.rank) return;
  throw ShapeError(name + ": must have " + std::to_string(type.shape.rank) +
                   (type.shape.rank == 1 ? " dim" : " dims") + ", but has shape " +
                   shape_text(sizes));
}

void wrong_dtype(const Type& type, std::string_view actual, const std::string& name) {
  throw DTypeError(name + ": must be " + std::string(dtype_name(type.dtype)) + ", but is " +
                   std::string(actual));
}

void wrong_type(PyObject* object, std::string_view wanted, const std::string& name) {
  throw host::TypeError(name + ": must be " + std::string(wanted) + ", but is a " +
                        Py_TYPE(object)->tp_name);
}

Ref tuple_of(const std::int64_t* values, int n) {
  Ref tuple = checked(PyTuple_New(n));
  for (int i = 0; i < n; ++i) {
    PyTuple_SET_ITEM(tuple.get(), i, checked(PyLong_FromLongLong(values[i])).release());
  }
  return tuple;
}

}  // namespace tilevm::bind

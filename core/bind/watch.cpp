#include "bind/watch.h"

#include <string>

#include "bind/torch_direct.h"

namespace tilevm::bind {
namespace {

// A number that every change of a dictionary changes; 0: this Python has none.
std::uint64_t version_of([[maybe_unused]] PyObject* dict) {
#if PY_VERSION_HEX < 0x030C0000
  return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#else
  return 0;
#endif
}

Ref owned(PyObject* object) {
  Py_XINCREF(object);
  return Ref(object);
}

WatchObject* as_watch(PyObject* self) { return reinterpret_cast<WatchObject*>(self); }

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* names) {
  static const char* const words[] = {"whole", "flags", "parameters", nullptr};
  PyObject *whole, *flags, *parameters;
  if (PyArg_ParseTupleAndKeywords(args, names, "O!O!O!", const_cast<char**>(words), &PyList_Type,
                                  &whole, &PyList_Type, &flags, &PyList_Type, &parameters) == 0) {
    return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  try {
    as_watch(self)->watch = new Watch(whole, flags, parameters);
  } catch (...) {
    set_python_error();
    Py_DECREF(self);
    return nullptr;
  }
  return self;
}

PyObject* same(PyObject* self, PyObject*) {
  Watch* watch = as_watch(self)->watch;
  return PyBool_FromLong(watch != nullptr && watch->same());
}

PyObject* update(PyObject* self, PyObject*) {
  Watch* watch = as_watch(self)->watch;
  try {
    if (watch == nullptr) throw host::TypeError("this watch has ended");
    return watch->update();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

PyObject* wanted(PyObject* self, PyObject*) {
  const Watch* watch = as_watch(self)->watch;
  try {
    std::string flags;
    if (watch != nullptr) {
      for (const bool wants : watch->wanted()) flags.push_back(wants ? 1 : 0);
    }
    return PyBytes_FromStringAndSize(flags.data(), static_cast<Py_ssize_t>(flags.size()));
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return as_watch(self)->watch != nullptr ? as_watch(self)->watch->traverse(visit, arg) : 0;
}

int clear(PyObject* self) {
  delete std::exchange(as_watch(self)->watch, nullptr);
  return 0;
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"same", same, METH_NOARGS, "Whether nothing was replaced."},
    {"update", update, METH_NOARGS, "Take what there is now; the owners that had changed."},
    {"wanted", wanted, METH_NOARGS, "A byte for each parameter: 1, if it requires gradients."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

Watch::Watch(PyObject* whole, PyObject* flags, PyObject* parameters) {
  const auto each = [](PyObject* list, auto&& use) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) use(PyList_GET_ITEM(list, i));
  };
  each(whole, [&](PyObject* owner) {
    if (PyDict_Check(owner)) {
      whole_.push_back({owned(owner), {}});
      (void)whole_.back().update();
    } else if (PyList_Check(owner) || PyCell_Check(owner)) {
      held_.push_back({owned(owner), {}});
      (void)held_.back().update();
    } else {
      throw host::TypeError("what is watched is no dictionary, list or cell");
    }
  });
  each(flags, [&](PyObject* pair) {
    PyObject *dict, *keys;
    if (PyArg_ParseTuple(pair, "O!O!", &PyDict_Type, &dict, &PyList_Type, &keys) == 0) {
      throw host::ForeignError();
    }
    flags_.push_back({owned(dict), {}});
    each(keys, [&](PyObject* key) { flags_.back().items.emplace_back(owned(key), Ref()); });
    (void)flags_.back().update();
  });
  each(parameters, [&](PyObject* parameter) { parameters_.push_back(owned(parameter)); });
}

bool Watch::Items::same() {
  const std::uint64_t now = version_of(owner.get());
  if (now != 0 && now == version) return true;
  if (PyDict_GET_SIZE(owner.get()) != static_cast<Py_ssize_t>(items.size())) return false;
  Py_ssize_t at = 0;
  PyObject *key, *value;
  for (const auto& [saved_key, saved_value] : items) {
    if (PyDict_Next(owner.get(), &at, &key, &value) == 0) return false;
    if (key != saved_key.get() || value != saved_value.get()) return false;
  }
  version = now;
  return true;
}

Watch::Pairs Watch::Items::update() {
  Pairs now;
  Py_ssize_t at = 0;
  PyObject *key, *value;
  while (PyDict_Next(owner.get(), &at, &key, &value) != 0) {
    now.emplace_back(owned(key), owned(value));
  }
  version = version_of(owner.get());
  return std::exchange(items, std::move(now));
}

bool Watch::Flags::same() {
  const std::uint64_t now = version_of(owner.get());
  if (now != 0 && now == version) return true;
  for (const auto& [key, value] : items) {
    if (PyDict_GetItemWithError(owner.get(), key.get()) != value.get()) return false;
  }
  version = now;
  return true;
}

Watch::Pairs Watch::Flags::update() {
  Pairs now;
  for (const auto& [key, value] : items) {
    PyObject* found = PyDict_GetItemWithError(owner.get(), key.get());
    if (found == nullptr && PyErr_Occurred()) throw host::ForeignError();
    now.emplace_back(owned(key.get()), owned(found));
  }
  version = version_of(owner.get());
  return std::exchange(items, std::move(now));
}

bool Watch::Held::same() const {
  if (PyCell_Check(owner.get())) return PyCell_GET(owner.get()) == values.front().get();
  if (PyList_GET_SIZE(owner.get()) != static_cast<Py_ssize_t>(values.size())) return false;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (PyList_GET_ITEM(owner.get(), static_cast<Py_ssize_t>(i)) != values[i].get()) return false;
  }
  return true;
}

std::vector<Ref> Watch::Held::update() {
  std::vector<Ref> now;
  if (PyCell_Check(owner.get())) {
    now.push_back(owned(PyCell_GET(owner.get())));
  } else {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(owner.get()); ++i) {
      now.push_back(owned(PyList_GET_ITEM(owner.get(), i)));
    }
  }
  return std::exchange(values, std::move(now));
}

PyObject* Watch::update() {
  Ref changed = checked(PyList_New(0));
  const auto each = [&](auto& entries) {
    for (auto& entry : entries) {
      if (entry.same()) continue;
      const auto before = entry.update();
      if (PyList_Append(changed.get(), entry.owner.get()) < 0) throw host::ForeignError();
    }
  };
  each(whole_);
  each(flags_);
  each(held_);
  return changed.release();
}

bool Watch::same() {
  const auto all = [](auto& entries) {
    for (auto& entry : entries) {
      if (!entry.same()) return false;
    }
    return true;
  };
  return all(whole_) && all(flags_) && all(held_);
}

bool Watch::wants_gradient() const {
  if (parameters_.empty()) return false;
  const TorchDirect& torch = TorchDirect::get();
  for (const Ref& parameter : parameters_) {
    if (torch.requires_grad(parameter.get())) return true;
  }
  return false;
}

std::vector<bool> Watch::wanted() const {
  std::vector<bool> all;
  for (const Ref& parameter : parameters_) {
    all.push_back(TorchDirect::get().requires_grad(parameter.get()));
  }
  return all;
}

bool Watch::wants(const std::vector<bool>& gradients) const {
  if (gradients.size() != parameters_.size()) return false;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (TorchDirect::get().requires_grad(parameters_[i].get()) != gradients[i]) return false;
  }
  return true;
}

int Watch::traverse(visitproc visit, void* arg) const {
  const auto items = [&](const auto& entries) {
    for (const auto& entry : entries) {
      Py_VISIT(entry.owner.get());
      for (const auto& [key, value] : entry.items) {
        Py_VISIT(key.get());
        Py_VISIT(value.get());
      }
    }
    return 0;
  };
  if (const int stop = items(whole_)) return stop;
  if (const int stop = items(flags_)) return stop;
  for (const Held& entry : held_) {
    Py_VISIT(entry.owner.get());
    for (const Ref& value : entry.values) Py_VISIT(value.get());
  }
  for (const Ref& parameter : parameters_) Py_VISIT(parameter.get());
  return 0;
}

PyTypeObject* watch_type() {
  static PyTypeObject* const type = [] {
    PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(make)},
                           {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                           {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                           {Py_tp_clear, reinterpret_cast<void*>(clear)},
                           {Py_tp_methods, methods},
                           {0, nullptr}};
    PyType_Spec spec = {"tilevm._core.Watch", static_cast<int>(sizeof(WatchObject)), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
    return reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)).release());
  }();
  return type;
}

}  // namespace tilevm::bind

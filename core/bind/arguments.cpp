#include "bind/arguments.h"

#include <algorithm>
#include <stdexcept>

#include "program/program.h"

namespace tilevm::bind {
namespace {

constexpr std::size_t kMostContainers = 64;

bool is_same_text(PyObject* a, PyObject* b) {
  return a == b ||
         (PyUnicode_CheckExact(a) && PyUnicode_CheckExact(b) &&
          PyUnicode_GET_LENGTH(a) == PyUnicode_GET_LENGTH(b) && PyUnicode_Compare(a, b) == 0);
}

// Of two exact strings or ints.
bool is_same_key(PyObject* a, PyObject* b) {
  if (is_same_text(a, b)) return true;
  return PyLong_CheckExact(a) && PyLong_CheckExact(b) && PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}

bool is_container(PyObject* object) {
  return PyTuple_CheckExact(object) || PyList_CheckExact(object) || PyDict_CheckExact(object);
}

Ref another(PyObject* object) {
  Py_INCREF(object);
  return Ref(object);
}

}  // namespace

struct Form::Reading {
  PyObject* reads;
  PyObject** values;
  std::size_t n_values = 0;
  std::size_t n_containers = 0;
  std::array<PyObject*, kMostContainers> containers;

  // False: `reads` has it, or it was there before.
  bool add(PyObject* container) {
    PyObject** const end = containers.data() + n_containers;
    if (std::find(containers.data(), end, container) != end) return false;
    *end = container;
    ++n_containers;
    if (reads == nullptr) return true;
    const Ref id(PyLong_FromVoidPtr(container));
    const int found = id ? PySet_Contains(reads, id.get()) : -1;
    if (found < 0) PyErr_Clear();
    return found == 0;
  }
};

std::shared_ptr<const Form> Form::of(const Given& given) {
  auto form = std::make_shared<Form>();
  form->n_ = given.n;
  for (std::size_t i = given.n; i < given.size(); ++i) {
    PyObject* name = PyTuple_GET_ITEM(given.names, static_cast<Py_ssize_t>(i - given.n));
    form->names_.push_back(another(name));
  }
  std::vector<PyObject*> containers;
  std::size_t n_values = 0;
  for (std::size_t i = 0; i < given.size(); ++i) form->learn(given.args[i], containers, n_values);
  if (n_values > kMostValues) throw std::length_error("too many values");
  if (form->names_.empty() && form->nodes_.size() == n_values) return nullptr;
  return form;
}

void Form::learn(PyObject* object, std::vector<PyObject*>& containers, std::size_t& n_values) {
  const std::size_t index = nodes_.size();
  nodes_.emplace_back();
  const auto become = [&](Kind kind, Py_ssize_t n) {
    nodes_[index].kind = kind;
    nodes_[index].n = static_cast<std::size_t>(n);
    const bool twice = kind != Kind::kTuple &&
                       std::find(containers.begin(), containers.end(), object) != containers.end();
    containers.push_back(object);
    if (twice || containers.size() > kMostContainers) {
      throw std::length_error("a container is there twice, or there are too many");
    }
  };
  if (PyTuple_CheckExact(object)) {
    become(Kind::kTuple, PyTuple_GET_SIZE(object));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
      learn(PyTuple_GET_ITEM(object, i), containers, n_values);
    }
  } else if (PyList_CheckExact(object)) {
    become(Kind::kList, PyList_GET_SIZE(object));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) {
      learn(PyList_GET_ITEM(object, i), containers, n_values);
    }
  } else if (PyDict_CheckExact(object)) {
    become(Kind::kDict, PyDict_GET_SIZE(object));
    Py_ssize_t at = 0;
    PyObject *key = nullptr, *value = nullptr;
    while (PyDict_Next(object, &at, &key, &value) != 0) {
      if (!PyUnicode_CheckExact(key) && !PyLong_CheckExact(key)) {
        throw std::invalid_argument("a key is neither a string nor an int");
      }
      nodes_[index].keys.push_back(another(key));
      learn(value, containers, n_values);
    }
  } else {
    ++n_values;
  }
}

int Form::read(const Given& given, PyObject* reads, PyObject** values) const {
  if (given.n != n_ || given.size() != n_ + names_.size()) return -1;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    PyObject* name = PyTuple_GET_ITEM(given.names, static_cast<Py_ssize_t>(i));
    if (!is_same_text(name, names_[i].get())) return -1;
  }
  Reading reading;
  reading.reads = reads;
  reading.values = values;
  std::size_t node = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!read(given.args[i], node, reading)) return -1;
  }
  for (std::size_t i = 0; i < reading.n_values; ++i) Py_INCREF(values[i]);
  return static_cast<int>(reading.n_values);
}

bool Form::read(PyObject* object, std::size_t& node, Reading& reading) const {
  const Node& want = nodes_[node++];
  const auto n = static_cast<Py_ssize_t>(want.n);
  switch (want.kind) {
    case Kind::kValue:
      if (is_container(object)) return false;
      reading.values[reading.n_values++] = object;
      return true;
    case Kind::kTuple:
      if (!PyTuple_CheckExact(object) || PyTuple_GET_SIZE(object) != n) return false;
      for (Py_ssize_t i = 0; i < n; ++i) {
        if (!read(PyTuple_GET_ITEM(object, i), node, reading)) return false;
      }
      return true;
    case Kind::kList:
      if (!PyList_CheckExact(object) || PyList_GET_SIZE(object) != n) return false;
      if (!reading.add(object)) return false;
      for (Py_ssize_t i = 0; i < n; ++i) {
        if (!read(PyList_GET_ITEM(object, i), node, reading)) return false;
      }
      return true;
    case Kind::kDict:
      break;
  }
  if (!PyDict_CheckExact(object) || PyDict_GET_SIZE(object) != n) return false;
  if (!reading.add(object)) return false;
  Py_ssize_t at = 0;
  PyObject *key = nullptr, *value = nullptr;
  for (const Ref& known : want.keys) {
    if (PyDict_Next(object, &at, &key, &value) == 0 || !is_same_key(key, known.get())) return false;
    if (!read(value, node, reading)) return false;
  }
  return true;
}

Arguments::Arguments(const Given& given)
    : given_(given), found_(given.names == nullptr && given.n <= kMostValues), values_(given.args) {
  if (found_) n_ = given.n;
}

bool Arguments::read(const Form* form, PyObject* reads) {
  if (form == form_) return found_;
  forget();
  form_ = form;
  looked_ = is_tensor_ = 0;
  if (form == nullptr) {
    found_ = given_.names == nullptr && given_.n <= kMostValues;
    values_ = given_.args;
    n_ = found_ ? given_.n : 0;
    return found_;
  }
  const int n = form->read(given_, reads, kept_.data());
  found_ = n >= 0;
  values_ = kept_.data();
  n_ = found_ ? static_cast<std::size_t>(n) : 0;
  return found_;
}

void Arguments::forget() {
  if (form_ == nullptr) return;
  for (std::size_t i = 0; i < n_; ++i) drop_reference(kept_[i]);
  n_ = 0;
}

const host::dlpack::Tensor* Arguments::tensor(const TorchDirect& torch, std::size_t i) {
  namespace dlpack = host::dlpack;
  const std::uint64_t bit = std::uint64_t{1} << i;
  dlpack::Tensor& t = seen_[i];
  if ((looked_ & bit) == 0) {
    looked_ |= bit;
    if (torch.is_tensor(Py_TYPE(values_[i])) && torch.look(values_[i], t) &&
        t.device.type == dlpack::kCpu && t.ndim <= kMaxRank) {
      // Elements without memory: not something that the executable takes.
      bool empty = false;
      for (int d = 0; d < t.ndim; ++d) empty |= t.shape[d] == 0;
      if (t.data != nullptr || empty) is_tensor_ |= bit;
    }
  }
  return (is_tensor_ & bit) != 0 ? &t : nullptr;
}

}  // namespace tilevm::bind

#include "bind/arguments.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "program/program.h"

namespace tilevm::bind {
namespace {

constexpr std::size_t kMostContainers = 128;

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

Ref another(PyObject* object) {
  Py_INCREF(object);
  return Ref(object);
}

// Whether a container can be told from another one that is equal.
bool is_one(PyObject* container) { return PyTuple_CheckExact(container) == 0; }

// The attributes of an object, or null if they are no plain dictionary.
Ref attributes_of(PyObject* object) {
  Ref found(PyObject_GenericGetDict(object, nullptr));
  if (!found) PyErr_Clear();
  return found && PyDict_CheckExact(found.get()) ? std::move(found) : Ref();
}

}  // namespace

struct Form::Learning {
  PyObject* opened;
  std::vector<PyObject*> containers;
  std::size_t n_values = 0;
};

struct Form::Reading {
  Reading(PyObject* reads, PyObject** values, std::size_t& n_values)
      : reads(reads), values(values), n_values(n_values) {}

  PyObject* reads;
  PyObject** values;
  std::size_t& n_values;
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

std::shared_ptr<const Form> Form::of(const Given& given, PyObject* opened) {
  auto form = std::make_shared<Form>();
  form->n_ = given.n;
  for (std::size_t i = given.n; i < given.size(); ++i) {
    PyObject* name = PyTuple_GET_ITEM(given.names, static_cast<Py_ssize_t>(i - given.n));
    form->names_.push_back(another(name));
  }
  Learning learning{opened, {}, 0};
  for (std::size_t i = 0; i < given.size(); ++i) form->learn(given.args[i], learning);
  if (learning.n_values > kMostValues) throw std::length_error("too many values");
  if (form->names_.empty() && form->nodes_.size() == learning.n_values) return nullptr;
  return form;
}

void Form::learn(PyObject* object, Learning& learning) {
  const std::size_t index = nodes_.size();
  nodes_.emplace_back();
  const auto become = [&](Kind kind, Py_ssize_t n) {
    Node& node = nodes_[index];
    node.kind = kind;
    node.n = static_cast<std::size_t>(n);
    node.type = Py_TYPE(object);
    std::vector<PyObject*>& known = learning.containers;
    const bool twice =
        is_one(object) && std::find(known.begin(), known.end(), object) != known.end();
    known.push_back(object);
    if (twice || known.size() > kMostContainers) {
      throw std::length_error("a container is there twice, or there are too many");
    }
  };
  const auto learn_items = [&](PyObject* dict) {
    Py_ssize_t at = 0;
    PyObject *key = nullptr, *value = nullptr;
    while (PyDict_Next(dict, &at, &key, &value) != 0) {
      if (!PyUnicode_CheckExact(key) && !PyLong_CheckExact(key)) {
        throw std::invalid_argument("a key is neither a string nor an int");
      }
      nodes_[index].keys.push_back(another(key));
      learn(value, learning);
    }
  };
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  const int found = learning.opened != nullptr ? PySet_Contains(learning.opened, type) : 0;
  if (found < 0) PyErr_Clear();
  const bool is_opened = found == 1;
  if (PyTuple_CheckExact(object) || (is_opened && PyTuple_Check(object))) {
    become(Kind::kTuple, PyTuple_GET_SIZE(object));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
      learn(PyTuple_GET_ITEM(object, i), learning);
    }
  } else if (PyList_CheckExact(object)) {
    become(Kind::kList, PyList_GET_SIZE(object));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) {
      learn(PyList_GET_ITEM(object, i), learning);
    }
  } else if (PyDict_CheckExact(object)) {
    become(Kind::kDict, PyDict_GET_SIZE(object));
    learn_items(object);
  } else if (is_opened) {
    const Ref attributes = attributes_of(object);
    if (!attributes) throw std::invalid_argument("an object without a dictionary");
    become(Kind::kObject, PyDict_GET_SIZE(attributes.get()));
    learn_items(attributes.get());
  } else {
    ++learning.n_values;
  }
}

bool Form::operator==(const Form& other) const {
  const auto same = [](const std::vector<Ref>& a, const std::vector<Ref>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const Ref& x, const Ref& y) { return is_same_key(x.get(), y.get()); });
  };
  return n_ == other.n_ && same(names_, other.names_) &&
         std::equal(nodes_.begin(), nodes_.end(), other.nodes_.begin(), other.nodes_.end(),
                    [&](const Node& a, const Node& b) {
                      return a.kind == b.kind && a.n == b.n && a.type == b.type &&
                             same(a.keys, b.keys);
                    });
}

bool Form::read(const Given& given, PyObject* reads, PyObject** values,
                std::size_t& n_values) const {
  if (given.n != n_ || given.size() != n_ + names_.size()) return false;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    PyObject* name = PyTuple_GET_ITEM(given.names, static_cast<Py_ssize_t>(i));
    if (!is_same_text(name, names_[i].get())) return false;
  }
  Reading reading(reads, values, n_values);
  std::size_t node = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!read(given.args[i], node, reading)) return false;
  }
  return true;
}

bool Form::read(PyObject* object, std::size_t& node, Reading& reading) const {
  const Node& want = nodes_[node++];
  if (want.kind == Kind::kValue) {
    Py_INCREF(object);
    reading.values[reading.n_values++] = object;
    return true;
  }
  if (Py_TYPE(object) != want.type) return false;
  const Ref held = another(object);
  if (is_one(object) && !reading.add(object)) return false;
  const auto n = static_cast<Py_ssize_t>(want.n);
  switch (want.kind) {
    case Kind::kTuple:
      if (PyTuple_GET_SIZE(object) != n) return false;
      for (Py_ssize_t i = 0; i < n; ++i) {
        if (!read(PyTuple_GET_ITEM(object, i), node, reading)) return false;
      }
      return true;
    case Kind::kList:
      if (PyList_GET_SIZE(object) != n) return false;
      for (Py_ssize_t i = 0; i < n; ++i) {
        if (i >= PyList_GET_SIZE(object)) return false;
        if (!read(PyList_GET_ITEM(object, i), node, reading)) return false;
      }
      return true;
    case Kind::kDict:
      return read_items(object, want, node, reading);
    default:
      break;
  }
  const Ref attributes = attributes_of(object);
  return attributes && read_items(attributes.get(), want, node, reading);
}

bool Form::read_items(PyObject* dict, const Node& want, std::size_t& node, Reading& reading) const {
  if (static_cast<std::size_t>(PyDict_GET_SIZE(dict)) != want.n) return false;
  Py_ssize_t at = 0;
  PyObject *key = nullptr, *value = nullptr;
  for (const Ref& known : want.keys) {
    if (PyDict_Next(dict, &at, &key, &value) == 0 || !is_same_key(key, known.get())) return false;
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
  looked_.reset();
  is_tensor_.reset();
  if (form == nullptr) {
    found_ = given_.names == nullptr && given_.n <= kMostValues;
    values_ = given_.args;
    n_ = found_ ? given_.n : 0;
    return found_;
  }
  values_ = kept_.data();
  n_ = 0;
  found_ = form->read(given_, reads, kept_.data(), n_);
  return found_;
}

void Arguments::forget() {
  if (form_ == nullptr) return;
  for (std::size_t i = 0; i < n_; ++i) drop_reference(kept_[i]);
  n_ = 0;
}

const host::dlpack::Tensor* Arguments::tensor(const TorchDirect& torch, std::size_t i) {
  namespace dlpack = host::dlpack;
  dlpack::Tensor& t = seen_[i];
  if (!looked_[i]) {
    looked_[i] = true;
    if (torch.is_tensor(Py_TYPE(values_[i])) && torch.look(values_[i], t) &&
        t.device.type == dlpack::kCpu && t.ndim <= kMaxRank) {
      // Elements without memory: not something that the executable takes.
      bool empty = false;
      for (int d = 0; d < t.ndim; ++d) empty |= t.shape[d] == 0;
      if (t.data != nullptr || empty) is_tensor_[i] = true;
    }
  }
  return is_tensor_[i] ? &t : nullptr;
}

}  // namespace tilevm::bind

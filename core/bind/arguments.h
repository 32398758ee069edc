// The values of one call - tensors, numbers, constants - wherever they lie in its arguments.
#pragma once

#include <array>
#include <bitset>
#include <memory>
#include <vector>

#include "bind/torch_direct.h"

namespace tilevm::bind {

inline constexpr std::size_t kMostValues = 256;

// A call by vectorcall. names: of the keywords, whose values follow the `n` others; may be null.
struct Given {
  PyObject* const* args;
  std::size_t n;
  PyObject* names;

  std::size_t size() const {
    return n + (names != nullptr ? static_cast<std::size_t>(PyTuple_GET_SIZE(names)) : 0);
  }
};

// Where the values lie: by which keywords, in which tuples, lists, dictionaries and objects. Values
// are in the order of their arguments, and within each from left to right.
class Form {
 public:
  // Null: the values are the arguments. opened: a set of classes whose objects are looked into, and
  // not values; of subclasses of tuple the items, else the attributes. Throws std::logic_error
  // where there are too many, a key is neither a string nor an int, or a container is there twice.
  static std::shared_ptr<const Form> of(const Given& given, PyObject* opened);
  // The values of a call, or false: they lie elsewhere. reads: ids of objects that no container but
  // a tuple may be, or null. What is looked at is kept: Python's collector may run in between.
  bool read(const Given& given, PyObject* reads, PyObject** values, std::size_t& n_values) const;
  bool operator==(const Form& other) const;

 private:
  enum class Kind : std::uint8_t { kValue, kTuple, kList, kDict, kObject };
  struct Node {  // before its children
    Kind kind = Kind::kValue;
    std::size_t n = 0;
    PyTypeObject* type = nullptr;  // of Python's, or one of `opened`, which the variants keep
    std::vector<Ref> keys;         // kDict, kObject: of the attributes
  };
  struct Learning;
  struct Reading;
  void learn(PyObject* object, Learning& learning);
  bool read(PyObject* object, std::size_t& node, Reading& reading) const;
  bool read_items(PyObject* dict, const Node& want, std::size_t& node, Reading& reading) const;

  std::size_t n_ = 0;
  std::vector<Ref> names_;
  std::vector<Node> nodes_;
};

// What was seen of the tensors among the values, too.
class Arguments {
 public:
  explicit Arguments(const Given& given);
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;
  ~Arguments() { forget(); }

  // Finds the values where `form` says that they lie; null: they are the arguments.
  bool read(const Form* form, PyObject* reads);
  const Given& given() const { return given_; }
  std::size_t size() const { return n_; }
  PyObject* operator[](std::size_t i) const { return values_[i]; }
  // Null if value i is no tensor whose memory can be described.
  const host::dlpack::Tensor* tensor(const TorchDirect& torch, std::size_t i);
  // What `tensor` has returned before.
  const host::dlpack::Tensor& seen(std::size_t i) const { return seen_[i]; }

 private:
  void forget();

  Given given_;
  const Form* form_ = nullptr;  // that was read last
  bool found_ = false;          // ... the values lie so
  PyObject* const* values_;
  std::size_t n_ = 0;
  std::bitset<kMostValues> looked_, is_tensor_;
  // Containers may change while a call runs, so what was read of them is kept.
  std::array<PyObject*, kMostValues> kept_;
  std::array<host::dlpack::Tensor, kMostValues> seen_;
};

}  // namespace tilevm::bind

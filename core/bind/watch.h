// What `tilevm.compile` sees of modules, compared at each call: the objects in their dictionaries.
#pragma once

#include <vector>

#include "bind/python.h"

namespace tilevm::bind {

class Watch {
 public:
  // whole: dictionaries whose keys and values must stay the same objects. flags: pairs
  // of a dictionary and a key whose value must. parameters: tensors that may want gradients.
  Watch(PyObject* whole, PyObject* flags, PyObject* parameters);

  bool same();
  bool wants_gradient() const;
  int traverse(visitproc visit, void* arg) const;

 private:
  struct Whole {
    Ref dict;
    std::vector<std::pair<Ref, Ref>> items;
    std::uint64_t version = 0;
    bool same();
  };
  struct Flag {
    Ref dict, key, value;
    std::uint64_t version = 0;
    bool same();
  };
  std::vector<Whole> whole_;
  std::vector<Flag> flags_;
  std::vector<Ref> parameters_;
};

struct WatchObject {
  PyObject base;
  Watch* watch;
};
PyTypeObject* watch_type();

}  // namespace tilevm::bind

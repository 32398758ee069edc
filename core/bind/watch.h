// What `tilevm.compile` sees besides arguments, compared at each call: the objects that
// dictionaries, lists and variables of closures hold.
#pragma once

#include <vector>

#include "bind/python.h"

namespace tilevm::bind {

class Watch {
 public:
  // whole: dictionaries whose keys and values must stay the same objects, lists whose items must,
  // cells whose contents must. flags: pairs of a dictionary and a list of keys whose values must.
  // parameters: tensors that may want gradients.
  Watch(PyObject* whole, PyObject* flags, PyObject* parameters);

  bool same();
  // Takes what there is now for what must stay. A list of the owners in which something differed.
  PyObject* update();
  bool wants_gradient() const;
  // Of each parameter, whether it requires gradients.
  std::vector<bool> wanted() const;
  bool wants(const std::vector<bool>& gradients) const;
  int traverse(visitproc visit, void* arg) const;

 private:
  // Each `update` returns what it had, whose end may run code of anybody's.
  using Pairs = std::vector<std::pair<Ref, Ref>>;
  struct Items {  // of a dictionary, in order
    Ref owner;
    Pairs items;
    std::uint64_t version = 0;
    bool same();
    Pairs update();
  };
  struct Flags {  // some items of a dictionary; no value: none is there
    Ref owner;
    Pairs items;
    std::uint64_t version = 0;
    bool same();
    Pairs update();
  };
  struct Held {  // by a list, or a cell
    Ref owner;
    std::vector<Ref> values;
    bool same() const;
    std::vector<Ref> update();
  };
  std::vector<Items> whole_;
  std::vector<Flags> flags_;
  std::vector<Held> held_;
  std::vector<Ref> parameters_;
};

struct WatchObject {
  PyObject base;
  Watch* watch;
};
PyTypeObject* watch_type();

}  // namespace tilevm::bind

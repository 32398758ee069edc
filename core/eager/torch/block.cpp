// What `tilevm.fuse()` returns: a context manager that switches recording on or off for this
// thread. Blocks around a few operators are common, so making one, entering and leaving it are made
// to cost next to nothing.
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "eager/torch/python.h"

namespace tilevm::eager {
namespace {

// The blocks that this thread is in, the last to be entered last. They need not end in that order:
// those of two coroutines do not.
struct Open {
  std::uint64_t id;
  bool on;
};
struct OpenBlocks {
  std::vector<Open> blocks;
  bool outside = false;    // whether the thread recorded before the first of them
  std::uint64_t next = 0;  // an id that no other block has, of no thread; 0: there was none yet
};
thread_local OpenBlocks open_blocks;
constexpr std::uint64_t kBlocksOfThread = std::uint64_t{1} << 40;
std::atomic<std::uint64_t> next_thread{1};

struct Block {
  PyObject_HEAD bool on;
  int depth;                             // of blocks that this object has opened
  std::array<std::uint64_t, 16> opened;  // which ones
};

PyTypeObject* block_type = nullptr;

// Blocks that nobody holds any more, for the next ones.
std::array<PyObject*, 8> spare;
std::size_t n_spare = 0;

PyObject* make_block(bool on) {
  PyObject* object = nullptr;
  if (n_spare > 0) {
    object = PyObject_Init(spare[--n_spare], block_type);
  } else {
    object = block_type->tp_alloc(block_type, 0);
    if (object == nullptr) return nullptr;
  }
  auto& self = *reinterpret_cast<Block*>(object);
  self.on = on;
  self.depth = 0;
  return object;
}

void block_dealloc(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  if (n_spare < spare.size()) {
    spare[n_spare++] = object;
  } else {
    type->tp_free(object);
  }
  Py_DECREF(type);
}

PyObject* block_enter(PyObject* object, PyObject*) {
  auto& self = *reinterpret_cast<Block*>(object);
  if (self.depth == static_cast<int>(self.opened.size())) {
    PyErr_SetString(PyExc_RuntimeError,
                    "tilevm.fuse: this block is inside of itself too often\n  make a new one for "
                    "each `with`");
    return nullptr;
  }
  return recorded([&]() -> PyObject* {
    const bool before = c10::impl::tls_is_dispatch_key_included(kKey);
    if (before && !self.on) {  // what follows does not know of what waits
      Recording& mine = Recording::mine();
      std::unique_lock lock(mine.mutex);
      mine.flush(lock, "switched off");
    }
    OpenBlocks& open = open_blocks;
    if (open.blocks.empty()) open.outside = before;
    if (open.next == 0) open.next = kBlocksOfThread * next_thread.fetch_add(1);
    const std::uint64_t id = open.next++;
    open.blocks.push_back({id, self.on});
    self.opened[static_cast<std::size_t>(self.depth++)] = id;
    if (before != self.on) c10::impl::tls_set_dispatch_key_included(kKey, self.on);
    return Py_NewRef(object);
  });
}

PyObject* block_exit(PyObject* object, PyObject* const* args, Py_ssize_t n) {
  auto& self = *reinterpret_cast<Block*>(object);
  if (self.depth == 0) {
    PyErr_SetString(PyExc_RuntimeError, "tilevm.fuse: the block was not entered");
    return nullptr;
  }
  const std::uint64_t id = self.opened[static_cast<std::size_t>(--self.depth)];
  OpenBlocks& here = open_blocks;
  std::vector<Open>& open = here.blocks;
  if (!open.empty() && open.back().id == id) {
    open.pop_back();
  } else if (std::erase_if(open, [&](const Open& block) { return block.id == id; }) == 0) {
    Py_RETURN_NONE;  // another thread entered it
  }
  const bool on = open.empty() ? here.outside : open.back().on;
  if (!record_here(on) || on) Py_RETURN_NONE;
  return recorded([&]() -> PyObject* {
    Recording::mine().end_block(n > 0 && args[0] != Py_None);
    Py_RETURN_NONE;
  });
}

PyMethodDef block_methods[] = {
    {"__enter__", block_enter, METH_NOARGS, nullptr},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(block_exit)),
     METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyObject* block_enabled(PyObject* object, void*) {
  return PyBool_FromLong(reinterpret_cast<Block*>(object)->on);
}

PyGetSetDef block_members[] = {{"enabled", block_enabled, nullptr, nullptr, nullptr},
                               {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot block_slots[] = {{Py_tp_getset, block_members},
                             {Py_tp_dealloc, reinterpret_cast<void*>(block_dealloc)},
                             {Py_tp_methods, block_methods},
                             {0, nullptr}};
PyType_Spec block_spec = {"tilevm._recorder.Block", static_cast<int>(sizeof(Block)), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, block_slots};

// block(function=None, *, enabled=True): a block, or what it makes of a function.
PyObject* py_block(PyObject*, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  PyObject* function = n > 0 ? args[0] : Py_None;
  bool on = true;
  const Py_ssize_t n_names = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  for (Py_ssize_t i = 0; i < n_names; ++i) {
    PyObject* const name = PyTuple_GET_ITEM(names, i);
    if (n == 0 && PyUnicode_CompareWithASCIIString(name, "function") == 0) {
      function = args[n + i];
    } else if (PyUnicode_CompareWithASCIIString(name, "enabled") == 0) {
      const int wanted = PyObject_IsTrue(args[n + i]);
      if (wanted < 0) return nullptr;
      on = wanted != 0;
    } else {
      return PyErr_Format(PyExc_TypeError, "tilevm.fuse(): unexpected argument '%U'", name);
    }
  }
  if (n > 1 || (function != Py_None && PyCallable_Check(function) == 0)) {
    return PyErr_Format(PyExc_TypeError,
                        "tilevm.fuse() takes a function or nothing%s%s\n  to switch recording off: "
                        "fuse(enabled=False)",
                        n > 1 ? "" : ", not ", n > 1 ? "" : Py_TYPE(function)->tp_name);
  }
  PyObject* const block = make_block(on);
  if (function == Py_None || block == nullptr) return block;
  PyObject* const made = PyObject_CallOneArg(block, function);  // Python's part gives it that
  Py_DECREF(block);
  return made;
}

// leave(): this thread is in no block, and does not record.
PyObject* py_leave(PyObject*, PyObject*) {
  open_blocks.blocks.clear();
  record_here(false);
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"block", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(py_block)),
     METH_FASTCALL | METH_KEYWORDS,
     "block(function=None, *, enabled=True): a block, or a function in one."},
    {"leave", py_leave, METH_NOARGS, "In a forked child: end all blocks, with nothing recorded."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool record_here(bool on) {
  const bool before = c10::impl::tls_is_dispatch_key_included(kKey);
  if (before != on) c10::impl::tls_set_dispatch_key_included(kKey, on);
  return before;
}

bool add_blocks(PyObject* module) {
  PyObject* const type = PyType_FromSpec(&block_spec);
  if (type == nullptr) return false;
  block_type = reinterpret_cast<PyTypeObject*>(type);
  return PyModule_AddObjectRef(module, "Block", type) == 0 &&
         PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace tilevm::eager

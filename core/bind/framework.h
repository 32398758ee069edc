// PyTorch and NumPy as the host sees them. Neither is linked: tensors are read through DLPack's C
// exchange interface and through NumPy's array object.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bind/python.h"
#include "host/framework.h"

namespace tilevm::bind {

using host::Object;
using host::Record;

inline PyObject* py(Object object) { return static_cast<PyObject*>(object); }

// Threads for kernels; 0: as many as the framework has.
void set_threads(int threads) noexcept;
// The same, or `own` if that is not 0; 1 after a fork.
int threads_setting(int own = 0) noexcept;

// What tells owners of memory apart: called with a tensor, returns a number of new_owner().
void set_owner_hook(PyObject* hook);

// What both have in common: Python numbers, call-outs, the interpreter's lock.
class PythonFramework : public host::Framework {
 public:
  std::int64_t integer(Object number, const std::string& name) override;
  double real(Object number, const std::string& name) override;
  bool boolean(Object number, const std::string& name) override;
  Object from_integer(std::int64_t value) override;
  Object from_real(double value) override;
  Object from_boolean(bool value) override;
  void call(std::int64_t target, std::span<const Object> args, std::span<Object> results) override;
  Object retain(Object object) noexcept override;
  void drop(Object object) noexcept override;
  std::uint64_t owner(Object tensor) override;
  void unlock() noexcept override;
  void lock() noexcept override;
  void pause(bool time) override;

  // source: what is called, as text; empty: the callable's name.
  void add_target(PyObject* callable, std::string source);
  // Threads for the kernels of this program alone; 0: as set_threads() says.
  void set_own_threads(int threads) { own_threads_ = threads; }
  const std::string& target_name(std::int64_t target) const;
  // Whether the framework does the work, and not we behind a function.
  bool is_callout(std::int64_t target) const;
  const std::string& target_source(std::size_t target) const { return targets_.at(target).source; }
  std::size_t n_targets() const { return targets_.size(); }
  int traverse(visitproc visit, void* arg) const;
  void clear();

 protected:
  // How many threads were asked for; 0: as many as the framework has.
  int threads_wanted() const noexcept { return threads_setting(own_threads_); }
  virtual PyObject* matmul() = 0;
  // A call-out's result as a tensor of this framework: itself, or what it becomes.
  virtual Ref as_tensor(Ref result) { return result; }

 private:
  struct Target {
    Ref callable;
    std::string name, source;
    std::int64_t* count;  // null: what it calls is ours
  };
  std::vector<Target> targets_;
  int own_threads_ = 0;
};

// allow_grad: take tensors that require gradients although gradients are recorded. detached:
// results that share memory are no views of each other, as autograd sees it.
std::unique_ptr<PythonFramework> torch_framework(bool allow_grad, bool detached);
std::unique_ptr<PythonFramework> numpy_framework();

int processors() noexcept;

// How often each call-out ran, by name.
std::vector<std::pair<std::string, std::int64_t>> callout_counts();
void reset_callout_counts();

// "[2, 3]"
std::string shape_text(std::span<const std::int64_t> sizes);
// Throws ShapeError if a tensor of these sizes has not the rank that `type` wants.
void check_rank(const Type& type, std::span<const std::int64_t> sizes, const std::string& name);
[[noreturn]] void wrong_dtype(const Type& type, std::string_view actual, const std::string& name);
[[noreturn]] void wrong_type(PyObject* object, std::string_view wanted, const std::string& name);

Ref tuple_of(const std::int64_t* values, int n);

}  // namespace tilevm::bind

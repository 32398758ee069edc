// A framework without Python: tensors of float32 on the heap.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "host/errors.h"
#include "host/framework.h"

namespace tilevm::test {

using host::ForeignError;
using host::Object;
using host::Record;

// Tensors are plain structs with a count of references.
struct Tensor {
  Record record;
  std::vector<float> elements;
  int references = 1;
};

class Heap final : public host::Framework {
 public:
  std::atomic<int> living{0};

  void describe(Object tensor, const Type&, const std::string&, Record& out) override {
    const ValueId root = out.root;
    out = static_cast<Tensor*>(tensor)->record;
    out.root = root;
  }
  Object empty(DType, std::int64_t elements, Record& out) override {
    auto* t = new Tensor{out, std::vector<float>(static_cast<std::size_t>(elements)), 1};
    ++living;
    out.data = t->record.data = reinterpret_cast<std::byte*>(t->elements.data());
    return t;
  }
  Object view(Object, const Record&, DType, const Record& part) override {
    auto* t = new Tensor{part, {}, 1};
    ++living;
    return t;
  }
  bool negative_strides() const override { return true; }
  std::int64_t integer(Object n, const std::string&) override {
    return *static_cast<std::int64_t*>(n);
  }
  double real(Object n, const std::string&) override { return *static_cast<double*>(n); }
  bool boolean(Object n, const std::string&) override { return *static_cast<bool*>(n); }
  // Numbers that are made are tensors nobody looks into.
  Object from_integer(std::int64_t) override { return number(); }
  Object from_real(double) override { return number(); }
  Object from_boolean(bool) override { return number(); }
  void call(std::int64_t, std::span<const Object> args, std::span<Object> results) override {
    if (fail) throw ForeignError();
    if (during_call) std::exchange(during_call, nullptr)();
    results[0] = retain(args[0]);
  }
  Object retain(Object o) noexcept override {
    ++static_cast<Tensor*>(o)->references;
    return o;
  }
  void drop(Object o) noexcept override {
    if (--static_cast<Tensor*>(o)->references > 0) return;
    --living;
    delete static_cast<Tensor*>(o);
  }
  std::uint64_t owner(Object tensor) override {
    ++asked;
    const auto found = owners.find(tensor);
    return found == owners.end() ? 0 : found->second;
  }
  void unlock() noexcept override {}
  void lock() noexcept override {}
  int threads() noexcept override { return team; }

  Object number() {
    auto* t = new Tensor;
    ++living;
    return t;
  }

  int team = 1;
  std::function<void()> during_call;  // once
  bool fail = false;
  std::map<Object, std::uint64_t> owners;
  std::atomic<int> asked{0};  // for an owner
};

}  // namespace tilevm::test

// Sizes that the program checks to be equal, as one size.
#include <utility>
#include <vector>

#include "program/passes.h"

namespace tilevm {
namespace {

class Unifying {
 public:
  explicit Unifying(Program& program) : program_(program), sizes_(program.sizes) {}

  void run() {
    if (!merge()) return;
    for (const Node& node : program_.nodes) {
      if (node.op == Op::call) continue;  // its results bring their sizes
      for (int r = 0; r < node.n_out; ++r) {
        Type& type = program_.values[at(node.out + r)].type;
        for (int d = 0; d < type.shape.rank; ++d) type.shape[d] = root(type.shape[d]);
      }
    }
    for (Node& node : program_.nodes) {
      for (Attr& attr : node.attrs) {
        for (SizeId& size : attr.sizes) size = root(size);
      }
    }
  }

 private:
  static std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }
  static std::size_t at(SizeId size) { return static_cast<std::size_t>(size); }

  // Whether any two were different.
  bool merge() {
    bool merged = false;
    for (const Check& check : program_.checks) {
      if (roots_.empty()) find_symbols();
      SizeId a = root(check.a), b = root(check.b);
      if (a == b || !may(a) || !may(b)) continue;
      // What stays is what more is known of, or else came first.
      if (sizes_.value(a) || (!sizes_.value(b) && known(b) <= known(a))) std::swap(a, b);
      if (sizes_.value(a)) continue;  // both are: the check fails
      roots_[at(a)] = b;
      merged = true;
    }
    return merged;
  }

  // Those that are known before anything runs: symbols that are a size of some input.
  void find_symbols() {
    roots_.resize(at(sizes_.count()));
    for (std::size_t i = 0; i < roots_.size(); ++i) roots_[i] = static_cast<SizeId>(i);
    bound_.resize(roots_.size());
    for (const ValueId input : program_.inputs) {
      for (const SizeId size : program_.type(input).shape.span())
        bound_[at(size)] = sizes_.is_symbol(size);
    }
  }

  bool may(SizeId size) const { return bound_[at(size)] || sizes_.value(size); }

  int known(SizeId size) const {
    const shape::Range range = sizes_.range(size), any;
    return (range.min != any.min) + (range.max != any.max) +
           (range.multiple_of != any.multiple_of);
  }

  SizeId root(SizeId size) const {
    if (size == shape::kNoSize || at(size) >= roots_.size()) return size;
    while (roots_[at(size)] != size) size = roots_[at(size)];
    return size;
  }

  Program& program_;
  const shape::SizeTable& sizes_;
  std::vector<SizeId> roots_;  // by size: another that it is equal to, or itself
  std::vector<bool> bound_;
};

}  // namespace

void unify_sizes(Program& program) { Unifying(program).run(); }

}  // namespace tilevm

// What ends up in one kernel, and that every kernel's graph encodes to bytecode that verify
// accepts.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "check.h"
#include "fuse/plan.h"
#include "program/program.h"
#include "schedule/encode.h"
#include "schedule/kernel.h"

using namespace tilevm;

namespace {

struct Case {
  Program p;
  SizeId b = p.sizes.symbol("B"), s = p.sizes.symbol("S"), d = p.sizes.symbol("D");

  ValueId in(std::vector<SizeId> dims, DType dtype = DType::kFloat32) {
    Type t;
    t.dtype = dtype;
    for (const SizeId x : dims) t.shape.push(x);
    return p.input(t);
  }
  ValueId add(Op op, std::vector<ValueId> in, std::vector<Attr> attrs = {}) {
    return p.add(op, in, std::move(attrs));
  }
  Attr axes(std::vector<std::int64_t> a) { return Attr::of_ints(std::move(a)); }
  Attr keep(bool k) { return Attr::of_ints({k}); }
  fuse::Plan plan(std::vector<ValueId> outputs) {
    p.outputs = std::move(outputs);
    return fuse::fuse(lower(std::move(p)));
  }
};

int count(const fuse::Plan& plan, fuse::Step::Kind kind) {
  int n = 0;
  for (const auto& s : plan.steps) n += s.kind == kind;
  return n;
}

int kernels(const fuse::Plan& plan) { return count(plan, fuse::Step::Kind::kKernel); }

// Every layout class of row-major operands must verify.
int encodes(const fuse::Plan& plan) {
  for (const auto& k : plan.kernels) {
    for (const std::int64_t extent : {1, 2, 5}) {
      std::vector<std::int64_t> sizes(k.axes.size(), extent);
      std::vector<schedule::OperandView> views(k.operands.size());
      for (std::size_t i = 0; i < views.size(); ++i) {
        std::int64_t stride = bytecode::storage_bytes(k.operands[i].storage);
        int dims = 0;
        for (const auto x : k.operands[i].dim) dims = std::max(dims, x + 1);
        for (int x = dims - 1; x >= 0; --x) {
          for (std::size_t a = 0; a < sizes.size(); ++a) {
            if (k.operands[i].dim[a] == x) {
              views[i].stride[a] = stride;
              stride *= extent;
            }
          }
        }
        if (k.operands[i].iota_axis >= 0)
          views[i].stride[static_cast<std::size_t>(k.operands[i].iota_axis)] = 1;
      }
      std::vector<exec::Binding> bindings(256);
      const auto layout = schedule::lay_out(k, sizes, views, bindings);
      const auto encoded = schedule::encode(k, layout.cls);
      const auto error = bytecode::verify(encoded.bytes);
      if (!error.empty())
        std::fprintf(stderr, "%s: %s\n%s\n", k.name.c_str(), error.c_str(),
                     bytecode::disassemble(encoded.bytes).c_str());
      CHECK(error.empty());
    }
  }
  return 0;
}

int composites() {
  for (const Op op : {Op::softmax, Op::log_softmax}) {
    for (const int axis : {0, 1, 2}) {
      Case c;
      const auto x = c.in({c.b, c.s, c.d});
      const auto plan = c.plan({c.add(op, {x}, {c.axes({axis})})});
      CHECK(kernels(plan) == 1);
      CHECK(encodes(plan) == 0);
    }
  }
  Case c;
  const auto x = c.in({c.b, c.s, c.d});
  const auto y = c.in({c.b, c.s, c.d});
  const auto w = c.in({c.d});
  const auto sum = c.add(Op::add, {x, y});
  const auto norm = c.add(Op::layer_norm, {sum}, {c.axes({2}), Attr::of_number(1e-5)});
  const auto plan = c.plan({c.add(Op::mul, {norm, w}), sum});
  CHECK(kernels(plan) == 1);
  CHECK(encodes(plan) == 0);
  return 0;
}

int chains_and_diamonds() {
  Case c;
  const auto x = c.in({c.b, c.d});
  const auto y = c.in({c.b, c.d});
  auto a = c.add(Op::exp, {x});
  auto b = c.add(Op::tanh, {y});
  auto d = c.add(Op::mul, {a, b});
  auto e = c.add(Op::where, {c.add(Op::lt, {a, b}), d, c.add(Op::neg, {y})});
  const auto plan = c.plan({e, d});
  CHECK(kernels(plan) == 1);
  CHECK(plan.kernels[0].operands.size() == 4);
  CHECK(encodes(plan) == 0);
  return 0;
}

// A reduction that must finish first, read by code that also feeds it: never a circle.
int no_circles() {
  Case c;
  const auto x = c.in({c.b, c.d});
  const auto e = c.add(Op::exp, {x});
  const auto rows = c.add(Op::sum, {e}, {c.axes({1}), c.keep(true)});
  const auto cols = c.add(Op::sum, {e}, {c.axes({0}), c.keep(true)});
  const auto plan = c.plan({c.add(Op::add, {c.add(Op::mul, {e, rows}), cols})});
  CHECK(kernels(plan) >= 2);
  CHECK(encodes(plan) == 0);
  return 0;
}

// Each value that is stored says why, and what was asked.
int decisions() {
  using fuse::Bar;
  const auto has = [](const fuse::Plan& plan, ValueId value, Bar bar) {
    return std::ranges::any_of(plan.decisions, [&](const fuse::Decision& d) {
      return d.value == value && d.why.bar == bar;
    });
  };
  Case c;
  const auto x = c.in({c.b, c.d});
  const auto e = c.add(Op::exp, {x});
  const auto rows = c.add(Op::sum, {e}, {c.axes({1}), c.keep(true)});
  const auto cols = c.add(Op::sum, {e}, {c.axes({0}), c.keep(true)});
  const auto scaled = c.add(Op::mul, {e, rows});
  const auto plan = c.plan({c.add(Op::add, {scaled, cols})});
  CHECK(has(plan, e, Bar::kOtherFold));
  CHECK(has(plan, scaled, Bar::kAfter));
  CHECK(has(plan, plan.program.outputs[0], Bar::kResult));

  Case flat;
  const auto y = flat.in({flat.b, flat.d});
  const auto t = flat.add(Op::tanh, {y});
  const SizeId n = flat.p.sizes.mul(flat.b, flat.d);
  const auto line = flat.add(Op::reshape, {t}, {Attr::of_sizes({n})});
  const auto reshaped = flat.plan({flat.add(Op::neg, {line})});
  const fuse::Decision& first = reshaped.decisions.front();
  CHECK(first.value == t);
  CHECK(fuse::reason(first.why) ==
        "a reshape or another change of layout reads it next, which is a view, or a copy, of what "
        "lies in memory");
  CHECK(fuse::fact(reshaped.program, first.why) == "is B equal to B*D? unknown");

  Case product;
  const auto p = product.in({product.b, product.d});
  const auto w = product.in({product.d, product.d});
  const auto made = product.add(Op::matmul, {p, w});
  const auto read = product.plan({product.add(Op::exp, {made}), made});
  CHECK(has(read, made, Bar::kReadElsewhere));
  return 0;
}

int siblings() {
  Case c;
  const auto x = c.in({c.b, c.d});
  const auto plan =
      c.plan({c.add(Op::sum, {x}, {c.axes({1})}), c.add(Op::amax, {x}, {c.axes({1})}),
              c.add(Op::var, {x}, {c.axes({1})}), c.add(Op::argmax, {x}, {c.axes({1})})});
  CHECK(kernels(plan) == 1);
  CHECK(encodes(plan) == 0);
  return 0;
}

// What reads the same operands in another order of dims, and no others, is of the same kernel.
int permuted_siblings() {
  const auto plan_of = [](auto second) {
    Case c;
    const auto x = c.in({c.b, c.d});
    const auto y = c.in({c.d, c.b});
    const auto turned = c.add(Op::permute, {x}, {c.axes({1, 0})});
    const auto first = c.add(Op::add, {turned, y});
    return c.plan({first, second(c, x, y)});
  };
  const auto both = plan_of([](Case& c, ValueId x, ValueId y) {
    return c.add(Op::mul, {x, c.add(Op::permute, {y}, {c.axes({1, 0})})});
  });
  CHECK(kernels(both) == 1);
  CHECK(both.kernels[0].operands.size() == 4);  // two are read, two written
  CHECK(encodes(both) == 0);
  const auto one = plan_of([](Case& c, ValueId x, ValueId) { return c.add(Op::exp, {x}); });
  CHECK(kernels(one) == 2);
  const auto more = plan_of([](Case& c, ValueId x, ValueId) {
    return c.add(Op::mul, {x, c.in({c.b, c.d})});
  });
  CHECK(kernels(more) == 2);
  return 0;
}

int views() {
  {  // renaming dims stays inside
    Case c;
    const auto x = c.in({c.b, c.d});
    const auto t = c.add(Op::permute, {c.add(Op::exp, {x})}, {c.axes({1, 0})});
    const auto u = c.add(Op::unsqueeze, {t}, {c.axes({0})});
    const auto plan = c.plan({c.add(Op::add, {u, c.in({c.d, c.b})})});
    CHECK(kernels(plan) == 1);
    CHECK(encodes(plan) == 0);
  }
  {  // a slice of something computed needs memory, a slice of an input does not
    Case c;
    const auto x = c.in({c.b, c.d});
    const auto half = c.p.sizes.floordiv(c.d, c.p.sizes.constant(2));
    const auto zero = c.p.sizes.constant(0);
    const auto a =
        c.add(Op::slice, {x},
              {c.axes({1}), Attr::of_sizes({zero}), Attr::of_sizes({half}), Attr::of_ints({1})});
    const auto plan = c.plan({c.add(Op::exp, {a})});
    CHECK(kernels(plan) == 1 && count(plan, fuse::Step::Kind::kView) == 1);
    CHECK(encodes(plan) == 0);
  }
  return 0;
}

int layouts() {
  Case c;
  const auto x = c.in({c.b, c.d});
  const auto y = c.in({c.b, c.s});
  const auto plan = c.plan({c.add(Op::concat, {c.add(Op::neg, {x}), y}, {c.axes({1})})});
  CHECK(kernels(plan) == 2);
  CHECK(count(plan, fuse::Step::Kind::kSlice) == 2);
  CHECK(encodes(plan) == 0);
  return 0;
}

int concats_last() {  // what reads a concatenation is computed part by part
  const auto turned = [](Case& c, ValueId x, SizeId half, bool folds) {
    const auto zero = c.p.sizes.constant(0);
    const auto part = [&](SizeId start, SizeId stop) {
      return c.add(
          Op::slice, {x},
          {c.axes({1}), Attr::of_sizes({start}), Attr::of_sizes({stop}), Attr::of_ints({1})});
    };
    const SizeId end = c.p.type(x).shape[1];
    const auto both =
        c.add(Op::concat, {c.add(Op::neg, {part(half, end)}), part(zero, half)}, {c.axes({1})});
    const auto sum = c.add(Op::add, {c.add(Op::mul, {x, x}), both});
    return folds ? c.add(Op::sum, {sum}, {c.axes({1}), c.keep(false)}) : sum;
  };
  {
    Case c;  // halves that may differ
    const auto x = c.in({c.b, c.p.sizes.mul(c.d, c.s)});
    const auto plan = c.plan({turned(c, x, c.d, false)});
    CHECK(kernels(plan) == 2);
    CHECK(encodes(plan) == 0);
  }
  {
    Case c;  // halves of one size are one kernel
    const auto x = c.in({c.b, c.p.sizes.constant(64)});
    const auto plan = c.plan({turned(c, x, c.p.sizes.constant(32), false)});
    CHECK(kernels(plan) == 1);
    CHECK(count(plan, fuse::Step::Kind::kSlice) == 2);
    CHECK(encodes(plan) == 0);
  }
  {
    Case c;  // a fold behind it reads the whole
    const auto x = c.in({c.b, c.p.sizes.constant(64)});
    const auto plan = c.plan({turned(c, x, c.p.sizes.constant(32), true)});
    CHECK(kernels(plan) == 3);
  }
  return 0;
}

int equal_folds() {  // with and without the axis they are one
  Case c;
  const auto x = c.in({c.b, c.d});
  const auto mean = c.add(Op::mean, {x}, {c.axes({0}), c.keep(false)});
  const auto kept = c.add(Op::mean, {x}, {c.axes({0}), c.keep(true)});
  const auto plan = c.plan({mean, c.add(Op::sub, {x, kept})});
  CHECK(kernels(plan) == 1);
  int folds = 0;
  for (const auto& node : plan.kernels[0].nodes)
    folds += node.kind == fuse::KernelNode::Kind::kFold ? 1 : 0;
  CHECK(folds == 1);
  CHECK(encodes(plan) == 0);
  return 0;
}

int broadcasts() {  // a small mask is computed inside the kernel that uses it
  Case c;
  const auto one = c.p.sizes.constant(1);
  const auto scores = c.in({c.b, c.s, c.s, c.d});
  const auto mask = c.in({c.b, one, one, c.d});
  const auto low = c.add(Op::scalar, {}, {Attr::of_number(-1e4)});
  const auto bias =
      c.add(Op::mul, {c.add(Op::sub, {c.add(Op::scalar, {}, {Attr::of_number(1)}), mask}), low});
  const auto plan = c.plan({c.add(Op::softmax, {c.add(Op::add, {scores, bias})}, {c.axes({3})})});
  CHECK(kernels(plan) == 1);
  CHECK(encodes(plan) == 0);
  return 0;
}

int gathers() {
  Case c;
  const auto w = c.in({c.p.sizes.symbol("V"), c.d});
  const auto ids = c.in({c.b, c.s}, DType::kInt64);
  const auto e = c.add(Op::take, {w, ids}, {c.axes({0})});
  const auto norm = c.add(Op::layer_norm, {e}, {c.axes({2}), Attr::of_number(1e-5)});
  const auto plan = c.plan({norm});
  CHECK(kernels(plan) == 1);
  CHECK(encodes(plan) == 0);
  return 0;
}

// One element of each row: what makes the rows runs for that alone, so that they are not stored.
int gathers_of_one() {
  const auto losses = [](SizeId many, bool returned, Case& c) {
    const auto rows = c.add(Op::log_softmax, {c.in({c.b, c.s})}, {c.axes({1})});
    const auto target = c.in({c.b, many}, DType::kInt64);
    std::vector<ValueId> results{c.add(Op::gather, {rows, target}, {c.axes({1})})};
    if (returned) results.push_back(rows);
    return c.plan(results);
  };
  Case one, few, both, computed;
  CHECK(kernels(losses(one.p.sizes.constant(1), false, one)) == 1);
  CHECK(kernels(losses(few.d, false, few)) == 2);
  CHECK(kernels(losses(both.p.sizes.constant(1), true, both)) == 2);
  const auto index = computed.in({computed.b, computed.s}, DType::kInt64);
  const auto next = computed.add(Op::add, {index, index});
  const auto plan = computed.plan(
      {computed.add(Op::gather, {computed.in({computed.b, computed.s}), next}, {computed.axes({1})})});
  CHECK(kernels(plan) == 1);
  CHECK(encodes(plan) == 0);
  return 0;
}

// A softmax that a product takes is divided behind it, unless somebody else reads it, or it is not
// made narrower: then its kernel sums and stores what it makes in one pass.
int divisions_last() {
  enum class Kept { kNothing, kWeights, kFloat32, kSum };
  const auto divisions = [](Kept kept) {
    Case c;
    const DType narrow = kept == Kept::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
    const auto x = c.in({c.b, c.s, c.d});
    const auto e =
        c.add(Op::exp, {c.add(Op::sub, {x, c.add(Op::amax, {x}, {c.axes({2}), c.keep(true)})})});
    const auto sum = c.add(Op::sum, {e}, {c.axes({2}), c.keep(true)});
    const auto weights = c.add(Op::cast, {c.add(Op::div, {e, sum})}, {Attr::of_dtype(narrow)});
    std::vector<ValueId> results{
        c.add(Op::matmul, {weights, c.in({c.b, c.d, c.p.sizes.constant(3)}, narrow)})};
    if (kept == Kept::kWeights) results.push_back(weights);
    if (kept == Kept::kSum) results.push_back(sum);
    c.p.outputs = results;
    const Program lowered = lower(std::move(c.p));
    bool behind = false;
    for (const Node& node : lowered.nodes) {
      const std::int32_t by =
          node.op == Op::div ? lowered.values[static_cast<std::size_t>(node.inputs[0])].node : -1;
      behind = behind || (by >= 0 && lowered.nodes[static_cast<std::size_t>(by)].op == Op::matmul);
    }
    return behind;
  };
  CHECK(divisions(Kept::kNothing));
  CHECK(!divisions(Kept::kWeights));
  CHECK(!divisions(Kept::kFloat32));
  CHECK(!divisions(Kept::kSum));
  return 0;
}

// Stages of each chain that runs, as `p` for a product and `k` for a kernel.
std::vector<std::string> chains(const fuse::Plan& plan) {
  std::vector<std::string> found;
  for (const auto& step : plan.steps) {
    if (step.kind != fuse::Step::Kind::kChain) continue;
    std::string stages;
    for (const auto& stage : plan.chains[static_cast<std::size_t>(step.chain)].stages)
      stages += stage.kernel < 0 ? 'p' : 'k';
    found.push_back(std::move(stages));
  }
  return found;
}

using Chains = std::vector<std::string>;

int joined(const fuse::Plan& plan, const Chains& expected, int kernels_alone) {
  CHECK(chains(plan) == expected);
  CHECK(kernels(plan) == kernels_alone);
  CHECK(encodes(plan) == 0);
  return 0;
}

// x [B, S] by weights: what runs row by row joins its products.
int products() {
  {  // linear, gelu
    Case c;
    const auto y = c.add(Op::matmul, {c.in({c.b, c.s}), c.in({c.s, c.d})});
    const auto plan = c.plan({c.add(Op::gelu, {c.add(Op::add, {y, c.in({c.d})})})});
    CHECK(joined(plan, {"pk"}, 0) == 0);
    CHECK(plan.chains[0].columns_too && plan.chains[0].panels.size() == 1);
    CHECK(count(plan, fuse::Step::Kind::kAlloc) == 1);
  }
  {  // SwiGLU
    Case c;
    const auto x = c.in({c.b, c.s});
    const auto gate = c.add(Op::matmul, {x, c.in({c.s, c.d})});
    const auto up = c.add(Op::matmul, {x, c.in({c.s, c.d})});
    const auto plan = c.plan({c.add(Op::mul, {c.add(Op::silu, {gate}), up})});
    CHECK(joined(plan, {"ppk"}, 0) == 0);
  }
  {  // MLP with residual and a norm behind
    Case c;
    const auto x = c.in({c.b, c.s});
    const auto up = c.add(Op::matmul, {x, c.in({c.s, c.d})});
    const auto down = c.add(Op::matmul, {c.add(Op::gelu, {up}), c.in({c.d, c.s})});
    const auto sum = c.add(Op::add, {down, x});
    const auto norm = c.add(Op::layer_norm, {sum}, {c.axes({1}), Attr::of_number(1e-5)});
    const auto plan = c.plan({norm, sum});
    CHECK(joined(plan, {"pk", "pk"}, 0) == 0);  // each by columns, as far as it can be
    CHECK(plan.chains[0].columns_too && !plan.chains[1].columns_too);
  }
  {  // a norm between products, whose operand the last kernel adds
    Case c;
    const auto h = c.p.sizes.symbol("H");
    const auto r = c.in({h, c.b, c.s});
    const auto y0 = c.add(Op::matmul, {c.in({h, c.b, c.d}), c.in({h, c.d, c.s})});
    const auto sum = c.add(Op::add, {y0, r});
    const auto norm = c.add(Op::layer_norm, {sum}, {c.axes({2}), Attr::of_number(1e-5)});
    const auto y = c.add(Op::matmul, {norm, c.in({h, c.s, c.s})});
    CHECK(joined(c.plan({c.add(Op::add, {y, sum})}), {"pkpk"}, 0) == 0);
  }
  {  // attention
    Case c;
    const auto h = c.p.sizes.symbol("H");
    const auto q = c.in({c.b, h, c.s, c.d}), k = c.in({c.b, h, c.s, c.d});
    const auto scores = c.add(Op::matmul, {q, c.add(Op::permute, {k}, {c.axes({0, 1, 3, 2})})});
    const auto masked = c.add(Op::add, {scores, c.in({c.b, c.p.sizes.constant(1), c.s, c.s})});
    const auto weights = c.add(Op::softmax, {masked}, {c.axes({3})});
    const auto plan = c.plan({c.add(Op::matmul, {weights, c.in({c.b, h, c.s, c.d})})});
    CHECK(joined(plan, {"pkp"}, 0) == 0);
  }
  return 0;
}

// Two results of one kernel, each a product's left factor, and what reads these products.
int products_behind_a_kernel() {
  const auto plan_of = [](Case& c, SizeId batches, bool kept) {
    const auto two = c.add(Op::matmul, {c.in({batches, c.b, c.d}), c.in({batches, c.d, c.s})});
    const auto more = c.add(Op::matmul, {c.in({batches, c.b, c.d}), c.in({batches, c.d, c.s})});
    const auto narrow = [&](ValueId v) {
      return c.add(Op::cast, {v}, {Attr::of_dtype(DType::kBFloat16)});
    };
    const auto e = c.add(Op::exp, {two});
    const auto x = narrow(e), y = narrow(c.add(Op::mul, {e, more}));
    const auto factor = [&] { return c.in({batches, c.s, c.d}, DType::kBFloat16); };
    const auto one = narrow(c.add(Op::matmul, {x, factor()}));
    const auto other = narrow(c.add(Op::matmul, {y, factor()}));
    std::vector<ValueId> results{one, other};
    if (kept) results.push_back(x);
    return c.plan(results);
  };
  Case c, kept, one;
  CHECK(joined(plan_of(c, c.p.sizes.symbol("H"), false), {"ppkpkpk"}, 0) == 0);
  CHECK(joined(plan_of(kept, kept.p.sizes.symbol("H"), true), {"ppk", "pk", "pk"}, 0) == 0);
  CHECK(joined(plan_of(one, one.p.sizes.constant(1), false), {"ppk", "pk", "pk"}, 0) == 0);
  return 0;
}

// Keys and values that several heads of queries share are not repeated in memory, unless the
// result is.
int shared_factors() {
  const auto attend = [](Case& c, bool returned) {
    const auto one = c.p.sizes.constant(1), g = c.p.sizes.symbol("G"), r = c.p.sizes.symbol("R");
    const auto h = c.p.sizes.mul(g, r);
    const auto repeated = [&] {
      const auto x = c.in({c.b, g, one, c.s, c.d});
      const auto wide = c.add(Op::expand, {x}, {Attr::of_sizes({c.b, g, r, c.s, c.d})});
      return c.add(Op::reshape, {wide}, {Attr::of_sizes({c.b, h, c.s, c.d})});
    };
    const auto k = repeated(), v = repeated();
    const auto q = c.in({c.b, h, c.s, c.d});
    const auto scores = c.add(Op::matmul, {q, c.add(Op::permute, {k}, {c.axes({0, 1, 3, 2})})});
    const auto biased = c.add(Op::add, {scores, c.in({h, one, c.s})});
    const auto masked = c.add(Op::add, {biased, c.in({c.b, one, c.s, c.s})});
    const auto weights = c.add(Op::softmax, {masked}, {c.axes({3})});
    std::vector<ValueId> results{c.add(Op::matmul, {weights, v})};
    if (returned) results.push_back(k);
    return c.plan(results);
  };
  const auto repeats = [](const fuse::Plan& plan) {
    return std::ranges::count(plan.program.nodes, Op::expand, &Node::op);
  };
  Case c, kept;
  const auto plan = attend(c, false);
  CHECK(joined(plan, {"pkp"}, 0) == 0);
  CHECK(repeats(plan) == 0);
  CHECK(repeats(attend(kept, true)) == 1);
  return 0;
}

int products_alone() {
  {  // a reduction over rows
    Case c;
    const auto y = c.add(Op::matmul, {c.in({c.b, c.s}), c.in({c.s, c.d})});
    CHECK(joined(c.plan({c.add(Op::sum, {y}, {c.axes({0})})}), {"p"}, 1) == 0);
  }
  {  // a second reader, and a result
    Case c;
    const auto y = c.add(Op::matmul, {c.in({c.b, c.s}), c.in({c.s, c.d})});
    const auto z = c.add(Op::matmul, {y, c.in({c.d, c.s})});
    CHECK(joined(c.plan({c.add(Op::tanh, {y}), z}), {"p", "p"}, 1) == 0);
    Case e;
    const auto v = e.add(Op::matmul, {e.in({e.b, e.s}), e.in({e.s, e.d})});
    CHECK(joined(e.plan({e.add(Op::tanh, {v}), v}), {"p"}, 1) == 0);
  }
  {  // a kernel behind a kernel: rows of a vector are not rows of the chain
    Case c;
    const auto y = c.add(Op::matmul, {c.in({c.b, c.s}), c.in({c.s, c.d})});
    const auto sums = c.add(Op::sum, {y}, {c.axes({1})});
    CHECK(joined(c.plan({c.add(Op::amax, {sums}, {c.axes({0})})}), {"pk"}, 1) == 0);
  }
  {  // indices of a table
    Case c;
    const auto y = c.add(Op::matmul, {c.in({c.b, c.s}), c.in({c.s, c.d})});
    const auto best = c.add(Op::argmax, {y}, {c.axes({1})});
    const auto plan = c.plan({c.add(Op::take, {c.in({c.d, c.s}), best}, {c.axes({0})})});
    CHECK(joined(plan, {"pk"}, 1) == 0);
  }
  {  // both factors made of one product: the right one must be whole
    Case c;
    const auto y = c.add(Op::matmul, {c.in({c.b, c.s}), c.in({c.s, c.b})});
    const auto plan = c.plan({c.add(Op::matmul, {c.add(Op::tanh, {y}), c.add(Op::sigmoid, {y})})});
    CHECK(joined(plan, {"pk", "p"}, 0) == 0);
  }
  {  // columns that the product does not have
    Case c;
    const auto one = c.p.sizes.constant(1);
    const auto y = c.add(Op::matmul, {c.in({c.b, c.s}), c.in({c.s, one})});
    const auto wide = c.add(Op::mul, {y, c.in({c.d})});
    CHECK(joined(c.plan({c.add(Op::matmul, {wide, c.in({c.d, c.s})})}), {"pk", "p"}, 0) == 0);
  }
  {  // sums of rows that are read as a row
    Case c;
    const auto h = c.p.sizes.symbol("H");
    const auto y = c.add(Op::matmul, {c.in({h, c.b, c.s}), c.in({h, c.s, c.d})});
    const auto z = c.add(Op::matmul, {c.add(Op::tanh, {y}), c.in({h, c.d, c.b})});
    const auto sums = c.add(Op::unsqueeze, {c.add(Op::sum, {y}, {c.axes({2})})}, {c.axes({1})});
    CHECK(joined(c.plan({c.add(Op::add, {z, sums})}), {"pkp"}, 1) == 0);
  }
  return 0;
}

}  // namespace

int main() {
  const std::pair<const char*, std::function<int()>> tests[] = {
      {"composites", composites},
      {"chains_and_diamonds", chains_and_diamonds},
      {"no_circles", no_circles},
      {"decisions", decisions},
      {"siblings", siblings},
      {"permuted_siblings", permuted_siblings},
      {"views", views},
      {"layouts", layouts},
      {"broadcasts", broadcasts},
      {"gathers", gathers},
      {"gathers of one", gathers_of_one},
      {"divisions last", divisions_last},
      {"shared factors", shared_factors},
      {"products behind a kernel", products_behind_a_kernel},
      {"products", products},
      {"products_alone", products_alone},
      {"equal_folds", equal_folds},
      {"concats_last", concats_last}};
  int failed = 0;
  for (const auto& [name, test] : tests) {
    try {
      if (test() == 0) continue;
      std::fprintf(stderr, "FAILED %s\n", name);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "FAILED %s: %s\n", name, e.what());
    }
    ++failed;
  }
  std::printf("%zu passed, %d failed\n", std::size(tests) - static_cast<std::size_t>(failed),
              failed);
  return failed != 0;
}

// Traces: which ones are the same program, what becomes of sizes, strides of results; and running
// them.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "eager/engine.h"

namespace {

using namespace tilevm;
using eager::Param;
using eager::Trace;
using eager::Value;
using host::Geometry;

int failures = 0;

void check(bool ok, const char* what) {
  if (ok) return;
  std::printf("failed: %s\n", what);
  ++failures;
}

Geometry dense(std::initializer_list<std::int64_t> sizes) {
  Geometry g;
  for (const std::int64_t s : sizes) g.size(g.rank++) = s;
  set_dense_strides(g);
  return g;
}

Value input(Trace& trace, const Geometry& g, std::vector<float>& memory) {
  memory.resize(static_cast<std::size_t>(g.elements()), 1.5f);
  return trace.input(DType::kFloat32, g, reinterpret_cast<std::byte*>(memory.data()));
}

// relu(x * y + number) of [rows, columns] and [columns].
void record(Trace& trace, std::int64_t rows, std::int64_t columns, double number,
            std::vector<float>& x, std::vector<float>& y) {
  const Value a = input(trace, dense({rows, columns}), x), b = input(trace, dense({columns}), y);
  const Value product = trace.add(Op::mul, {a, b});
  const Value sum = trace.add(Op::add, {product, trace.number(number)});
  trace.output(trace.add(Op::relu, {sum}), {});
}

bool same_words(std::int64_t rows, std::int64_t columns, double number) {
  std::vector<float> x, y, u, v;
  Trace one, other;
  record(one, 3, 5, 1.0, x, y);
  record(other, rows, columns, number, u, v);
  const bool same = std::ranges::equal(one.words(), other.words());
  check(!same || one.hash() == other.hash(), "equal words have equal hashes");
  return same;
}

void words() {
  check(same_words(3, 5, 1.0), "the same call");
  check(same_words(7, 100, -2.5), "other sizes and another number");
  check(!same_words(5, 5, 1.0), "sizes that are equal");
  check(!same_words(1, 5, 1.0), "a size of 1");
  check(!same_words(0, 5, 1.0), "a size of 0");
}

void inputs() {
  std::vector<float> x;
  Trace trace;
  const Value a = input(trace, dense({4, 6}), x);
  check(input(trace, dense({4, 6}), x) == a, "the same memory is the same value");
  check(input(trace, dense({6, 4}), x) != a, "seen otherwise it is another");
  trace.clear();
  check(trace.words().empty() && trace.inputs().empty(), "clear");
  check(input(trace, dense({4, 6}), x) == 0, "values count from 0 again");
}

void refused() {
  std::vector<float> x, y;
  Trace trace;
  const Value a = input(trace, dense({4, 6}), x), b = input(trace, dense({5}), y);
  const std::size_t before = trace.words().size();
  bool thrown = false;
  try {
    trace.add(Op::add, {a, b});
  } catch (const eager::Unrecorded&) {
    thrown = true;
  }
  check(thrown && trace.words().size() == before, "sizes that do not broadcast leave no words");
}

void strides() {
  Geometry turned = dense({3, 4});
  std::swap(turned.stride(0), turned.stride(1));
  std::swap(turned.size(0), turned.size(1));
  Geometry out = dense({4, 3});
  const Geometry row = dense({3}), whole = dense({4, 3});
  const Geometry* one[] = {&turned};
  eager::elementwise_strides(one, out);
  check(out.stride(0) == 1 && out.stride(1) == 4, "as the operand");
  const Geometry* both[] = {&turned, &row};
  eager::elementwise_strides(both, out);
  check(out.stride(0) == 1 && out.stride(1) == 4, "the larger operand decides");
  const Geometry* mixed[] = {&whole, &turned};
  eager::elementwise_strides(mixed, out);
  check(out.stride(0) == 3 && out.stride(1) == 1, "the first operand decides");
}

void runs() {
  const auto engine = eager::make_engine([]() noexcept { return 1; });
  for (const std::int64_t rows : {2, 9, 2}) {
    std::vector<float> x, y;
    Trace trace;
    record(trace, rows, 7, -2.0, x, y);
    eager::Filled filled;
    eager::Failure failure;
    check(engine->run(trace, {&filled, 1}, {}, failure), failure.message.c_str());
    bool right = filled.data != nullptr;
    for (std::size_t i = 0; right && i < x.size(); ++i) {
      float value;
      std::memcpy(&value, filled.data + 4 * i, 4);
      right = value == 0.25f;
    }
    check(right, "relu(1.5 * 1.5 - 2)");
    engine->release(filled.owner);
  }
  const eager::EngineStats stats = eager::engine_stats();
  check(stats.misses == 1 && stats.hits == 2, "one program for all sizes");
}

// [6, 4] -> [2, 3, 4] -> [2, 12]: sizes that are products of others, and a split and a merge of
// dims.
void reshapes() {
  const auto engine = eager::make_engine([]() noexcept { return 1; });
  std::vector<float> x;
  Trace trace;
  Value v = input(trace, dense({6, 4}), x);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  const std::int64_t split[] = {2, 3, 4}, merged[] = {2, 12}, last[] = {1};
  v = trace.add(Op::reshape, {v}, {Param::sizes(split)});
  v = trace.add(Op::mul, {v, trace.number(2.0)});
  v = trace.add(Op::reshape, {v}, {Param::sizes(merged)});
  v = trace.add(Op::sum, {v}, {Param::integers(last), Param::integer(0)});
  trace.output(v, {});
  eager::Filled filled;
  eager::Failure failure;
  check(engine->run(trace, {&filled, 1}, {}, failure), failure.message.c_str());
  float sums[2] = {};
  if (filled.data != nullptr) std::memcpy(sums, filled.data, sizeof(sums));
  check(sums[0] == 2 * 66 && sums[1] == 2 * 210, "sums of halves");
  engine->release(filled.owner);
}

void out_of_range() {
  const auto engine = eager::make_engine([]() noexcept { return 1; });
  std::vector<float> x;
  std::vector<std::int64_t> index = {0, 9};
  Trace trace;
  const Value table = input(trace, dense({3, 4}), x);
  const Value at =
      trace.input(DType::kInt64, dense({2}), reinterpret_cast<std::byte*>(index.data()));
  trace.output(trace.add(Op::take, {table, at}, {Param::integer(0)}), {});
  eager::Filled filled;
  eager::Failure failure;
  check(!engine->run(trace, {&filled, 1}, {}, failure), "an index out of range fails");
  check(failure.kind == eager::Failure::Kind::kIndex, "and says so");
  trace.drop_outputs();
  trace.output(trace.add(Op::neg, {table}), {});
  check(engine->run(trace, {&filled, 1}, {}, failure), "what does not need it runs");
  engine->release(filled.owner);
}

}  // namespace

namespace {

// [n, m] -> [n, 2 m], both halves x but for the first `k` of n rows, which are left out; for m
// other than n.
std::unique_ptr<eager::Template> doubled() {
  Program p;
  const SizeId n = p.sizes.symbol("n"), m = p.sizes.symbol("m"), k = p.sizes.symbol("k");
  Type type{DType::kFloat32, false, {}};
  type.shape.push(n);
  type.shape.push(m);
  const ValueId x = p.input(type);
  const ValueId pair[] = {x, x};
  const ValueId wide = p.add(Op::concat, pair, {Attr::of_ints({1})});
  p.outputs.push_back(p.add(Op::slice, {{wide}},
                            {Attr::of_ints({0}), Attr::of_sizes({k}), Attr::of_sizes({n}),
                             Attr::of_ints({1})}));
  using Relation = eager::Condition::Relation;
  std::vector<eager::Condition> conditions{{Relation::kNotEqual, n, m}};
  return std::make_unique<eager::Template>(std::move(p), std::move(conditions),
                                           std::vector<SizeId>{k},
                                           std::vector<std::vector<std::int32_t>>{{0, 1}},
                                           std::vector<bool>{false});
}

void templates() {
  const auto engine = eager::make_engine([]() noexcept { return 1; });
  const std::int32_t number = eager::add_template(doubled());
  const eager::Template& made = engine->template_of(number);
  check(made.n_operands() == 1 && made.n_numbers() == 1 && made.n_results() == 1, "a template");
  const auto record_doubled = [&](Trace& trace, std::int64_t rows, std::int64_t columns,
                                  std::int64_t left_out, std::vector<float>& x) {
    const Value in = trace.add(Op::neg, {input(trace, dense({rows, columns}), x)});
    Value out = eager::kNoValue;
    trace.add(number, made, {&in, 1}, {&left_out, 1}, {&out, 1});
    const auto shape = trace.meta(out).shape();
    check(shape[0] == rows - left_out && shape[1] == 2 * columns, "sizes of what a template makes");
    trace.output(trace.add(Op::mul, {out, trace.number(2.0)}), {});
  };
  std::vector<std::uint32_t> words;
  for (const std::int64_t rows : {7, 12}) {
    std::vector<float> x;
    Trace trace;
    record_doubled(trace, rows, 5, 3, x);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
    check(words.empty() || std::ranges::equal(words, trace.words()), "one program for all sizes");
    words.assign(trace.words().begin(), trace.words().end());
    eager::Filled filled;
    eager::Failure failure;
    check(engine->run(trace, {&filled, 1}, {}, failure), failure.message.c_str());
    bool right = filled.data != nullptr;
    for (std::int64_t r = 0; right && r < rows - 3; ++r) {
      for (std::int64_t c = 0; right && c < 10; ++c) {
        float value;
        std::memcpy(&value, filled.data + 4 * (10 * r + c), 4);
        right = value == static_cast<float>(-2 * (5 * (r + 3) + c % 5));
      }
    }
    check(right, "what a template makes");
    engine->release(filled.owner);
  }
  Trace square;
  std::vector<float> x;
  const Value in = input(square, dense({5, 5}), x);
  Value out = eager::kNoValue;
  const std::int64_t left_out = 3;
  bool refused = false;
  try {
    square.add(number, made, {&in, 1}, {&left_out, 1}, {&out, 1});
  } catch (const eager::Unrecorded&) {
    refused = true;
  }
  check(refused && square.operators() == 0, "sizes that a template is not for");
}

// What is no template: a call-out, a size that nothing shows, too few orders, parts of complex
// numbers that are not two, a limit of an operand that it has not.
void no_templates() {
  const auto is_refused = [](auto&& change, std::size_t orders, bool complex = false,
                             std::vector<eager::Limit> limits = {}) {
    Program p;
    Type type{DType::kFloat32, false, {}};
    type.shape.push(p.sizes.symbol("n"));
    ValueId v = p.input(type);
    change(p, v);
    p.outputs.push_back(v);
    try {
      const eager::Template made(std::move(p), {}, {},
                                 std::vector<std::vector<std::int32_t>>(orders, {0}),
                                 std::vector<bool>(orders, complex), limits);
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  check(!is_refused([](Program&, ValueId&) {}, 1), "an operator that does nothing");
  check(is_refused([](Program&, ValueId&) {}, 0), "no order of a result");
  check(is_refused([](Program&, ValueId&) {}, 1, /*complex=*/true), "n parts of a complex number");
  for (const std::int32_t operand : {-1, 0, 1}) {
    check(is_refused([](Program&, ValueId&) {}, 1, false, {{operand, 32.0}}) == (operand != 0),
          "a limit of an operand");
  }
  const auto two = [](Program& p, ValueId& v) {
    v = p.add(Op::full, {}, {Attr::of_sizes({p.sizes.constant(2)}), Attr::of_number(0),
                             Attr::of_dtype(DType::kFloat32)});
  };
  check(!is_refused(two, 1, /*complex=*/true), "two parts of a complex number");
  check(is_refused(
            [](Program& p, ValueId& v) {
              const Type type = p.type(v);
              v = p.call(0, {{v}}, {{type}});
            },
            1),
        "a call-out");
  check(is_refused(
            [](Program& p, ValueId& v) {
              v = p.add(Op::iota, {}, {Attr::of_sizes({p.sizes.symbol("k")}),
                                       Attr::of_sizes({p.sizes.constant(0)}),
                                       Attr::of_sizes({p.sizes.constant(1)})});
            },
            1),
        "a size that nothing shows");
}

}  // namespace

int main() {
  words();
  inputs();
  refused();
  strides();
  runs();
  reshapes();
  out_of_range();
  templates();
  no_templates();
  if (failures == 0) std::printf("ok\n");
  return failures == 0 ? 0 : 1;
}

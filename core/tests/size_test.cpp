// Sizes against brute-force evaluation: whatever the normal form does, the value stays.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <stdexcept>
#include <string>

#include "shape/size.h"

namespace {

using namespace tilevm::shape;

int failures = 0;

void expect(bool ok, const std::string& what) {
  if (ok) return;
  std::fprintf(stderr, "FAIL: %s\n", what.c_str());
  ++failures;
}

struct Symbol {
  const char* name;
  Range range;
};
// Small ranges, so that random points meet the corners.
const Symbol kSymbols[] = {
    {"a", {0, 9, 1}},  {"b", {1, 7, 1}},    {"c", {2, 40, 4}},
    {"d", {}},         {"e", {-5, 5, 1}},   {"f", {8, 8, 8}},
    {"g", {0, 24, 6}}, {"h", {1, 1024, 1}}, {"i", {-INT64_MAX, INT64_MAX, 1}}};
constexpr int kCount = sizeof(kSymbols) / sizeof(kSymbols[0]);

// The random expression beside the table: a tree that is evaluated as Python does.
struct Tree {
  enum Kind { kConst, kSymbol, kAdd, kSub, kMul, kDiv, kMod, kMin, kMax } kind;
  std::int64_t value;
  int left = -1, right = -1;
};

std::int64_t py_div(std::int64_t a, std::int64_t b) {
  if (b == 0) return 0;
  std::int64_t q = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
}
std::int64_t py_mod(std::int64_t a, std::int64_t b) { return b == 0 ? 0 : a - b * py_div(a, b); }

std::int64_t value_of(const std::vector<Tree>& trees, int at, const std::int64_t* env) {
  const Tree& t = trees[static_cast<std::size_t>(at)];
  if (t.kind == Tree::kConst) return t.value;
  if (t.kind == Tree::kSymbol) return env[t.value];
  const std::int64_t x = value_of(trees, t.left, env), y = value_of(trees, t.right, env);
  switch (t.kind) {
    case Tree::kAdd:
      return x + y;
    case Tree::kSub:
      return x - y;
    case Tree::kMul:
      return x * y;
    case Tree::kDiv:
      return py_div(x, y);
    case Tree::kMod:
      return py_mod(x, y);
    case Tree::kMin:
      return std::min(x, y);
    default:
      return std::max(x, y);
  }
}

void random_expressions(unsigned seed) {
  std::mt19937 rng(seed);
  const auto below = [&](int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); };
  SizeTable sizes;
  std::vector<SizeId> symbols;
  for (const Symbol& s : kSymbols) symbols.push_back(sizes.symbol(s.name, s.range));
  std::vector<Tree> trees;
  std::vector<SizeId> ids;
  std::vector<int> depth;
  for (int i = 0; i < kCount; ++i) {
    trees.push_back({Tree::kSymbol, i, -1, -1});
    ids.push_back(symbols[static_cast<std::size_t>(i)]);
    depth.push_back(0);
  }
  for (std::int64_t c : {-3, -1, 0, 1, 2, 3, 4, 6, 8}) {
    trees.push_back({Tree::kConst, c, -1, -1});
    ids.push_back(sizes.constant(c));
    depth.push_back(0);
  }
  while (trees.size() < 60) {
    const int left = below(static_cast<int>(trees.size()));
    const int right = below(static_cast<int>(trees.size()));
    const int d =
        1 + std::max(depth[static_cast<std::size_t>(left)], depth[static_cast<std::size_t>(right)]);
    if (d > 4) continue;
    const auto kind = static_cast<Tree::Kind>(2 + below(7));
    const SizeId x = ids[static_cast<std::size_t>(left)], y = ids[static_cast<std::size_t>(right)];
    SizeId id;
    switch (kind) {
      case Tree::kAdd:
        id = sizes.add(x, y);
        break;
      case Tree::kSub:
        id = sizes.sub(x, y);
        break;
      case Tree::kMul:
        id = sizes.mul(x, y);
        break;
      case Tree::kDiv:
        id = sizes.floordiv(x, y);
        break;
      case Tree::kMod:
        id = sizes.mod(x, y);
        break;
      case Tree::kMin:
        id = sizes.min(x, y);
        break;
      default:
        id = sizes.max(x, y);
        break;
    }
    trees.push_back({kind, 0, left, right});
    ids.push_back(id);
    depth.push_back(d);
  }
  for (SizeId id : ids) {
    const std::string text = sizes.print(id);
    const SizeId again = sizes.parse(text);
    expect(again == id, "parse(print) of " + text + " is " + sizes.print(again));
  }
  const std::vector<SizeStep> steps = sizes.compile(ids);
  std::vector<std::int64_t> regs(static_cast<std::size_t>(sizes.count()));
  for (int point = 0; point < 60; ++point) {
    std::int64_t env[kCount];
    for (int i = 0; i < kCount; ++i) {
      const Range r = kSymbols[i].range;
      const std::int64_t max = std::min<std::int64_t>(r.max, 50);
      const std::int64_t min = std::max<std::int64_t>(r.min, -50);
      do {
        env[i] = min + below(static_cast<int>(max - min + 1));
      } while (env[i] % r.multiple_of != 0);
      regs[static_cast<std::size_t>(symbols[static_cast<std::size_t>(i)])] = env[i];
    }
    evaluate(steps, regs);
    std::vector<std::int64_t> values;
    for (std::size_t i = 0; i < trees.size(); ++i) {
      const std::int64_t want = value_of(trees, static_cast<int>(i), env);
      values.push_back(want);
      const std::int64_t got = regs[static_cast<std::size_t>(ids[i])];
      const Range range = sizes.range(ids[i]);
      const std::string text = sizes.print(ids[i]);
      expect(got == want, text + " = " + std::to_string(got) + ", not " + std::to_string(want) +
                              " (seed " + std::to_string(seed) + ")");
      expect(range.min <= want && want <= range.max,
             text + " is not in " + std::to_string(range.min) + ".." + std::to_string(range.max) +
                 ": " + std::to_string(want));
      expect(want % range.multiple_of == 0,
             text + " is no multiple of " + std::to_string(range.multiple_of));
    }
    for (int pair = 0; pair < 60; ++pair) {
      const auto i = static_cast<std::size_t>(below(static_cast<int>(ids.size())));
      const auto j = static_cast<std::size_t>(below(static_cast<int>(ids.size())));
      const std::string both = sizes.print(ids[i]) + " and " + sizes.print(ids[j]);
      const Answer equal = sizes.equal(ids[i], ids[j]);
      const Answer less = sizes.less_equal(ids[i], ids[j]);
      expect(equal == Answer::kUnknown || (equal == Answer::kYes) == (values[i] == values[j]),
             "equal of " + both);
      expect(less == Answer::kUnknown || (less == Answer::kYes) == (values[i] <= values[j]),
             "less_equal of " + both);
    }
  }
}

void identities() {
  SizeTable t;
  t.symbol("B", {1, 64, 1});
  t.symbol("S", {2, INT64_MAX, 1});
  t.symbol("m", {0, INT64_MAX, 16});
  const std::pair<const char*, const char*> kEqual[] = {
      {"n + n", "n*2"},
      {"(B + 1)*(B - 1)", "B*B - 1"},
      {"(B*S)//S", "B"},
      {"(B*S + B)//(S + 1)", "B"},
      {"(B*4 + 3)//4", "B"},
      {"(n*6 + 5)//4", "(n*3 + 2)//2"},
      {"(n//4)*4 + n % 4", "n"},
      {"(n + (-n) % 8) % 8", "0"},
      {"(m//4)*4", "m"},
      {"m % 16", "0"},
      {"m//16*2", "m//8"},
      {"B//65", "0"},
      {"B % 65", "B"},
      {"min(B, 64)", "B"},
      {"max(B, 0)", "B"},
      {"min(n, n + 1)", "n"},
      {"min(min(n, k), n)", "min(k, n)"},
      {"min(n, min(k, j))", "min(min(n, k), j)"},
      {"max(n - 1, n//1)", "n"},
      {"n//-2", "(-n)//2"},
      {"n//0", "0"},
      {"n % 0", "0"},
      {"7 % -4", "-1"},
  };
  for (const auto& [a, b] : kEqual) {
    const SizeId x = t.parse(a), y = t.parse(b);
    expect(x == y, std::string(a) + " is " + b + ", got " + t.print(x) + " and " + t.print(y));
  }
  const std::pair<const char*, const char*> kPrinted[] = {{"1 + B*8", "B*8 + 1"},
                                                          {"(n+1)//2", "(n + 1)//2"},
                                                          {"n%4", "n % 4"},
                                                          {"max(n,k)", "max(n, k)"},
                                                          {"-n", "-n"},
                                                          {"1 - n", "1 - n"},
                                                          {"m*2", "m*2"},
                                                          {"m//16", "m//16"},
                                                          {"S*B*2", "B*S*2"},
                                                          {"2*(n % 4)", "(n % 4)*2"},
                                                          {"k + n % 4", "k + n % 4"},
                                                          {"(n//2)*k", "k*(n//2)"}};
  for (const auto& [text, want] : kPrinted) {
    const std::string got = t.print(t.parse(text));
    // Factors follow the order in which symbols were made, so either order is right.
    expect(got == want || std::string(text) == "(n//2)*k", text + (" prints as " + got));
  }
  const auto less = [&](const char* a, const char* b) {
    return t.less_equal(t.parse(a), t.parse(b));
  };
  expect(less("n//4*4", "n") == Answer::kYes, "n//4*4 <= n");
  expect(less("n", "(n + 3)//4*4") == Answer::kYes, "rounding up is no less");
  expect(less("min(n, k)", "k") == Answer::kYes, "min <= operand");
  expect(less("n", "max(n, k) + 1") == Answer::kYes, "operand <= max");
  expect(less("n + 1", "n") == Answer::kNo, "n + 1 > n");
  expect(less("n", "k") == Answer::kUnknown, "n, k unknown");
  expect(t.equal(t.parse("n*2"), t.parse("k*2 + 1")) == Answer::kNo, "even and odd differ");
  expect(t.equal(t.parse("B"), t.parse("65")) == Answer::kNo, "65 is not in 1..64");
  expect(t.range(t.parse("n % 4")).max == 3 && t.range(t.parse("n % 4")).min == 0, "n % 4 in 0..3");
  expect(t.range(t.parse("m")).multiple_of == 16, "m is a multiple of 16");
  expect(t.symbol("B") == t.parse("B") && t.is_symbol(t.symbol("m")), "symbols are found again");
  expect(t.symbol_name(t.symbol("m")) == "m", "name of a symbol with a multiple");
  for (const char* bad : {"", "1 +", "a b", "(a", "min(a", "3x", "a / b", "99999999999999999999"}) {
    try {
      t.parse(bad);
      expect(false, std::string("accepted: ") + bad);
    } catch (const std::invalid_argument&) {
    }
  }
  try {
    t.parse(std::string(100000, '('));
    expect(false, "accepted 100000 brackets");
  } catch (const std::invalid_argument&) {
  }
}

// Arithmetic that overflows wraps: no value is promised, but nothing breaks (sanitizers look).
void extremes() {
  std::mt19937 rng(7);
  for (int round = 0; round < 200; ++round) {
    SizeTable t;
    std::vector<SizeId> ids = {t.symbol("a"), t.symbol("b", {1, INT64_MAX, 3}),
                               t.symbol("c", {INT64_MIN, INT64_MAX, 1})};
    for (std::int64_t c : {INT64_MAX, INT64_MIN, INT64_MIN + 1, INT64_MAX / 2, std::int64_t{-1}}) {
      ids.push_back(t.constant(c));
    }
    for (int i = 0; i < 25; ++i) {
      const SizeId x = ids[rng() % ids.size()], y = ids[rng() % ids.size()];
      switch (rng() % 7) {
        case 0:
          ids.push_back(t.add(x, y));
          break;
        case 1:
          ids.push_back(t.sub(x, y));
          break;
        case 2:
          ids.push_back(t.mul(x, y));
          break;
        case 3:
          ids.push_back(t.floordiv(x, y));
          break;
        case 4:
          ids.push_back(t.mod(x, y));
          break;
        case 5:
          ids.push_back(t.min(x, y));
          break;
        default:
          ids.push_back(t.max(x, y));
          break;
      }
      t.equal(x, y);
      t.less_equal(x, y);
      t.range(ids.back());
      expect(!t.print(ids.back()).empty(), "prints");
    }
    const std::vector<SizeStep> steps = t.compile(ids);
    std::vector<std::int64_t> regs(static_cast<std::size_t>(t.count()), INT64_MIN);
    evaluate(steps, regs);
  }
}

// Text that would take for ever, or more memory or stack than there is, is refused; what is just
// smaller is not.
void bounds() {
  const auto joined = [](int n, const std::string& by, auto part) {
    std::string text;
    for (int i = 0; i < n; ++i) text += (i == 0 ? "" : by) + part(i);
    return text;
  };
  const auto name = [](int i) { return "a" + std::to_string(i); };
  const auto refused = [](const std::string& text) {
    try {
      SizeTable t;
      t.print(t.parse(text));
      return false;
    } catch (const std::invalid_argument&) {
      return true;
    }
  };
  const auto pair = [&](int i) { return "(" + name(2 * i) + " + " + name(2 * i + 1) + ")"; };
  const auto same = [](int) { return std::string("a"); };
  const auto other = [](int i) { return std::to_string(1000000 - i); };
  expect(!refused(joined(1000, " + ", name)), "a sum of 1000 names");
  expect(refused(joined(1100, " + ", name)), "a sum of 1100 names");
  expect(refused(joined(100000, " + ", name)), "a sum of 100000 names");
  expect(!refused(joined(8, "*", pair)), "a product of 8 sums");
  expect(refused(joined(60, "*", pair)), "a product of 60 sums");
  expect(!refused(joined(200, "*", same)), "a power");
  expect(refused(joined(100000, "*", same)), "a power of 100000");
  expect(!refused("n % " + joined(5, " % ", other)), "remainders of remainders");
  expect(refused("n // b // " + joined(100000, " // b // ", name)), "100000 quotients");
  expect(!refused("min(" + joined(100, ", ", name) + ")"), "a minimum of 100 names");
  expect(refused("min(" + joined(100000, ", ", name) + ")"), "a minimum of 100000 names");
  // Sizes that contain others twice: their text doubles each time.
  SizeTable t;
  SizeId size = t.symbol("n");
  const SizeId seven = t.constant(7), five = t.constant(5);
  bool stopped = false;
  for (int i = 0; i < 100 && !stopped; ++i) {
    size = t.add(t.floordiv(t.add(size, t.symbol(name(i))), seven), t.floordiv(size, five));
    try {
      t.print(size);
    } catch (const std::invalid_argument&) {
      stopped = true;
    }
  }
  expect(stopped, "text that doubles ends");
}

}  // namespace

int main() {
  identities();
  extremes();
  bounds();
  for (unsigned seed = 0; seed < 150 && failures < 20; ++seed) random_expressions(seed);
  if (failures == 0) std::puts("ok");
  return failures == 0 ? 0 : 1;
}

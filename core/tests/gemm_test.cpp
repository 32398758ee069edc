// Matrix products by every way and with the kernels of every target of this machine, against sums
// in double precision: awkward sizes, strides, storages and values. Operands lie alone in memory.
//
//   gemm_test [trials [first trial [target]]]
//
// Targets are taken by processes of their own, as kernels are chosen once.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "exec/gemm/brain.h"
#include "exec/gemm/multiply.h"
#include "exec/gemm/units.h"
#include "tests/each_target.h"
#include "tests/interp_trial.h"

namespace {

using namespace tilevm;
using namespace tilevm::bytecode;
using namespace tilevm::exec::gemm;
using namespace tilevm::testing;

constexpr Storage kFactors[exec::gemm::kStorages] = {Storage::kF32, Storage::kBF16, Storage::kF16,
                                                     Storage::kI8};
constexpr Way kWays[] = {Way::kSweep,  Way::kDots,     Way::kTiles,
                         Way::kPacked, Way::kPairDots, Way::kPackedPairs,
                         Way::kPackedPieces, Way::kTurnedPairs, Way::kPieces};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kGap = -12345.0f;  // what memory around c holds

int failures = 0;
std::string target;  // that is tested
bool check(bool ok, const std::string& what) {
  if (!ok && ++failures <= 20) std::printf("FAILED on %s: %s\n", target.c_str(), what.c_str());
  return ok;
}

// Bytes before a page that faults, or by themselves on the heap, where a sanitizer guards both
// ends.
class Alone {
 public:
  Alone(std::size_t bytes, bool on_heap) {
    if (on_heap) {
      heap_.reset(new std::byte[bytes]);
    } else {
      pages_ = std::make_unique<Guarded>(bytes);
    }
  }
  std::byte* data() const { return heap_ ? heap_.get() : pages_->data(); }

 private:
  std::unique_ptr<std::byte[]> heap_;
  std::unique_ptr<Guarded> pages_;
};

// All of them NaN at first.
class Floats {
 public:
  Floats(int64_t n, bool on_heap) : bytes_(static_cast<std::size_t>(n) * 4, on_heap) {
    std::fill_n(data(), n, kNan);
  }
  float* data() const { return reinterpret_cast<float*>(bytes_.data()); }

 private:
  Alone bytes_;
};

enum class Values {
  kIntegers,
  kReals,
  kSpecials,
  kMagnitudes  // of any exponents in a range, which may reach denormals or the largest; zeros, or none
};
enum class Layout {
  kRows,
  kColumns,
  kPaddedRows,
  kPaddedColumns,
  kPowerOfTwo,  // rows 1024 elements apart
  kApart,       // no two elements are neighbours
  kRowsTwice,   // every second row
  kOneRow,      // stride 0
  kOneColumn,
  kOneElement,
  kOverlap,  // row i + 1 begins at the second element of row i
  kRowsBackwards,
  kColumnsBackwards,
  kAllBackwards,
  kMost = kAllBackwards
};

// A factor, and what it holds in double precision.
class Factor {
 public:
  Factor(Trial& trial, int64_t rows, int64_t columns, Storage storage, Layout layout, Values values)
      : matrix{nullptr, 0, 0, storage} {
    const int64_t r = std::max<int64_t>(rows, 1);
    const int64_t c = std::max<int64_t>(columns, 1);
    const int64_t pad = trial.pick(1, 9);
    const auto [row, column] = std::array<std::array<int64_t, 2>, 14>{
        {{c, 1},
         {1, r},
         {c + pad, 1},
         {1, r + pad},
         {(c + 1023) / 1024 * 1024, 1},
         {3 * c + 2, 3},
         {2 * c, 1},
         {0, 1},
         {1, 0},
         {0, 0},
         {1, 1},
         {-c - pad, 1},
         {1, -r},
         {-2 * c - 1, -2}}}[static_cast<std::size_t>(layout)];
    const int64_t item = storage_bytes(storage);
    // Products of two factors may be denormals, but sums of them are not infinite.
    least_ = static_cast<int>(trial.pick(-149, 50));
    most_ = static_cast<int>(std::min<int64_t>(least_ + trial.choice<int64_t>({2, 40, 180}), 50));
    some_ = trial.choice<double>({0, 1});
    const bool empty = rows == 0 || columns == 0;
    const int64_t down = (r - 1) * row;
    const int64_t right = (c - 1) * column;
    const int64_t first = std::min<int64_t>(down, 0) + std::min<int64_t>(right, 0);
    const int64_t last = std::max<int64_t>(down, 0) + std::max<int64_t>(right, 0);
    const int64_t count = empty ? 0 : last - first + 1;
    memory_ = std::make_unique<Alone>(static_cast<std::size_t>(count * item), trial.pick(0, 1));
    std::byte* begin = memory_->data() - (empty ? 0 : first * item);
    matrix.data = begin;
    matrix.row_stride = row;
    matrix.column_stride = column;
    // What lies between elements is NaN, where a storage has one.
    for (int64_t i = 0; i < count; ++i) write(storage, memory_->data() + i * item, {kNan, 77});
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j)
        write(storage, begin + (i * row + j * column) * item, value(trial, values));
    }
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        const Value v = read(storage, begin + (i * row + j * column) * item);
        exact.push_back(is_float(storage) ? v.f : static_cast<double>(v.i));
      }
    }
    // A stride over one element means nothing.
    if (rows == 1 && trial.pick(0, 1)) matrix.row_stride = trial.pick(-100003, 100003);
    if (columns == 1 && trial.pick(0, 1)) matrix.column_stride = trial.pick(-100003, 100003);
  }

  Matrix matrix;
  std::vector<double> exact;  // rows x columns

 private:
  Value value(Trial& trial, Values values) const {
    Value v;
    v.i = trial.pick(1, 9) * trial.choice<int64_t>({-1, 1});
    v.f = static_cast<double>(v.i);
    if (values == Values::kReals) {
      v.i = trial.pick(-128, 127);
      v.f = std::uniform_real_distribution<double>(0.25, 2.0)(trial.random) *
            trial.choice<double>({-1, 1});
    }
    if (values == Values::kMagnitudes) {
      const double x = std::uniform_real_distribution<double>(1.0, 2.0)(trial.random);
      v.f = std::ldexp(x, static_cast<int>(trial.pick(least_, most_))) *
            trial.choice<double>({-1, 1, 1, some_});
      v.i = trial.pick(-128, 127);
    }
    if (values == Values::kSpecials && trial.pick(0, 60) == 0) {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      v.f = trial.choice<double>({kNan, kInfinity, -kInfinity, 0, -0.0});
      v.i = 0;
    }
    return v;
  }
  std::unique_ptr<Alone> memory_;
  int least_, most_;  // exponents
  double some_;       // what every fourth is multiplied by
};

// The product in double precision, and how much rounding may move it.
struct Judge {
  std::vector<double> exact;
  std::vector<double> slack;

  // pieces: of which factors may be taken to be the sum; a piece is wrong by 2^-8 of it.
  Judge(const Sizes& s, const Factor& a, const Factor& b, Values values,
        int pieces = exec::gemm::kMostPieces)
      : exact(static_cast<std::size_t>(s.m * s.n)), slack(exact.size()) {
    const bool rounds = values == Values::kReals || values == Values::kMagnitudes;
    double rounding = rounds ? std::ldexp(static_cast<double>(s.k + 8), -24) : 0;
    // Of both factors; of two pieces, the product of the second ones is left out, too.
    if (rounds && pieces == 1) rounding += std::ldexp(2.01, -8);
    if (rounds && pieces == 2) rounding += std::ldexp(3.01, -16);
    for (int64_t i = 0; i < s.m; ++i) {
      double* sums = exact.data() + i * s.n;
      double* most = slack.data() + i * s.n;
      for (int64_t p = 0; p < s.k; ++p) {
        const double x = a.exact[static_cast<std::size_t>(i * s.k + p)];
        const double* row = b.exact.data() + p * s.n;
        for (int64_t j = 0; j < s.n; ++j) sums[j] += x * row[j];
        if (rounding == 0) continue;
        for (int64_t j = 0; j < s.n; ++j) most[j] += rounding * std::fabs(x * row[j]);
      }
      if (values != Values::kMagnitudes) continue;
      // Each sum may be a denormal.
      for (int64_t j = 0; j < s.n; ++j) most[j] += std::ldexp(static_cast<double>(s.k), -149);
    }
  }

  bool accepts(std::size_t i, double got) const {
    if (std::isnan(exact[i])) return std::isnan(got);
    return got == exact[i] || std::fabs(got - exact[i]) <= slack[i];
  }
};

// Memory of a product: what is not of its rows must stay as it is.
class Product {
 public:
  Product(const Sizes& sizes, int64_t stride, bool on_heap)
      : stride(stride),
        m_(sizes.m),
        n_(sizes.n),
        size_(kBefore + (m_ == 0 || n_ == 0 ? 0 : (m_ - 1) * stride + n_)),
        memory_(size_, on_heap) {
    std::fill_n(memory_.data(), size_, kGap);
    for (int64_t i = 0; i < m_; ++i) std::fill_n(data() + i * stride, n_, kNan);
  }
  float* data() const { return memory_.data() + kBefore; }

  bool check_gaps(const std::string& name) const {
    bool same = true;
    for (int64_t i = 0; i < size_; ++i) {
      const int64_t at = i - kBefore;
      const bool element = at >= 0 && n_ > 0 && at % stride < n_;
      same = same && (element || memory_.data()[i] == kGap);
    }
    return check(same, name + ": memory around c was written");
  }
  void check_values(const Judge& judge, const std::string& name) const {
    for (int64_t i = 0; i < m_; ++i) {
      for (int64_t j = 0; j < n_; ++j) {
        const auto at = static_cast<std::size_t>(i * n_ + j);
        const double got = data()[i * stride + j];
        if (judge.accepts(at, got)) continue;
        check(false, name + ": [" + std::to_string(i) + ", " + std::to_string(j) + "] is " +
                         std::to_string(got) + ", not " + std::to_string(judge.exact[at]) +
                         ", give or take " + std::to_string(judge.slack[at]));
        return;
      }
    }
  }

  const int64_t stride;

 private:
  static constexpr int64_t kBefore = 32;
  int64_t m_, n_, size_;
  Floats memory_;
};

bool applicable(const Tiles& tiles, Way way, const Sizes& sizes, const Matrix& a, const Matrix& b) {
  if (way == Way::kPackedPieces || way == Way::kPieces) return tiles.units != nullptr;
  if (way == Way::kTurnedPairs && tiles.units == nullptr) return false;
  if (way == Way::kPairDots || way == Way::kPackedPairs || way == Way::kTurnedPairs) {
    const bool brain = a.storage == Storage::kBF16 && b.storage == Storage::kBF16;
    if (!brain || tiles.lanes != 16 || exec::gemm::brain_tiles() == nullptr) return false;
  }
  const bool rows = b.column_stride == 1 || sizes.n == 1;
  if (way == Way::kSweep) return rows;
  if (way == Way::kTiles) return rows && b.storage == Storage::kF32;
  return packs(way) || b.row_stride == 1 || sizes.k == 1;
}

void multiply_every_way(const Tiles& tiles, Trial& trial, const Sizes& drawn, const Factor& a,
                        const Factor& b, const Judge& judge, const std::string& name) {
  const Way chosen = choose(tiles, drawn, a.matrix, b.matrix);
  check(applicable(tiles, chosen, drawn, a.matrix, b.matrix),
        name + ": chose " + exec::gemm::name(chosen));
  Sizes sizes = drawn;
  for (const Way way : kWays) {
    if (!applicable(tiles, way, sizes, a.matrix, b.matrix)) continue;
    sizes.short_sums = trial.pick(0, 1) != 0;
    const std::string of_way =
        name + ", " + exec::gemm::name(way) + " by " + std::to_string(tiles.lanes);
    const Floats packed(packs(way) ? packed_elements(tiles, way, sizes) : 0, trial.pick(0, 1));
    const Floats room(room_elements(tiles, way, sizes), trial.pick(0, 1));
    const int64_t gap = trial.pick(0, 1) * trial.pick(1, 40);
    const Product c(sizes, sizes.n + gap, trial.pick(0, 1));
    if (packs(way)) pack(tiles, way, sizes, b.matrix, 0, sizes.n, packed.data());
    multiply(tiles, way, sizes, a.matrix, b.matrix, packed.data(), room.data(), c.data(), c.stride);
    if (c.check_gaps(of_way)) c.check_values(judge, of_way);
    for (int64_t i = 0; sizes.k == 0 && i < sizes.m * sizes.n; ++i)
      check(!std::signbit(c.data()[i / sizes.n * c.stride + i % sizes.n]), of_way + ": -0");
  }
}

// Both sets of kernels, over factors of these storages, layouts and values.
void products(Trial& trial, const Sizes& sizes, Storage of_a, Storage of_b, Layout layout_a,
              Layout layout_b, Values values, const std::string& about) {
  const std::string name = about + std::to_string(sizes.m) + "x" + std::to_string(sizes.n) + "x" +
                           std::to_string(sizes.k) + ", storages " +
                           std::to_string(storage_index(of_a)) + " " +
                           std::to_string(storage_index(of_b)) + ", layouts " +
                           std::to_string(static_cast<int>(layout_a)) + " " +
                           std::to_string(static_cast<int>(layout_b)) + ", values " +
                           std::to_string(static_cast<int>(values));
  const Factor a(trial, sizes.m, sizes.k, of_a, layout_a, values);
  const Factor b(trial, sizes.k, sizes.n, of_b, layout_b, values);
  const Judge judge(sizes, a, b, values);
  multiply_every_way(tiles(), trial, sizes, a, b, judge, name);
  if (&tiles(true) != &tiles())
    multiply_every_way(tiles(true), trial, sizes, a, b, judge, name + ", narrow");
  if (&tiles(false, false) != &tiles())
    multiply_every_way(tiles(false, false), trial, sizes, a, b, judge, name + ", no units");
  for (int pieces = 1; pieces < exec::gemm::kMostPieces && tiles().units != nullptr; ++pieces) {
    multiply_every_way(tiles(false, true, pieces), trial, sizes, a, b,
                       Judge(sizes, a, b, values, pieces),
                       name + ", in pieces: " + std::to_string(pieces));
  }
}

void random_products(Trial& trial, const Sizes& sizes, const std::string& about) {
  const auto layout = [&] {
    return static_cast<Layout>(trial.pick(0, static_cast<int64_t>(Layout::kMost)));
  };
  const auto storage = [&] { return kFactors[trial.pick(0, exec::gemm::kStorages - 1)]; };
  const Layout usual = trial.choice({Layout::kRows, Layout::kColumns, layout()});
  auto values = static_cast<Values>(trial.pick(0, 3));
  // Narrower types have not so many exponents; products of pairs take denormals for zero.
  const Storage of_a = values == Values::kMagnitudes ? Storage::kF32
                                                     : trial.choice({Storage::kF32, storage()});
  const Storage of_b = values == Values::kMagnitudes ? Storage::kF32 : storage();
  products(trial, sizes, of_a, of_b, layout(), usual,
           values, about);
}

void small_products() {
  Trial trial(1);
  for (const int64_t m : {63, 513}) random_products(trial, {m, 1, 1001}, "");
  for (const int64_t m : {0, 1, 2, 3, 5, 7, 13}) {
    for (const int64_t n : {0, 1, 2, 3, 5, 7, 17}) {
      for (const int64_t k : {0, 1, 2, 3, 5, 7, 17}) random_products(trial, {m, n, k}, "");
    }
  }
}

// Every pair of storages, layouts of b and kind of values, over sizes with every kind of edge.
void every_layout() {
  Trial trial(2);
  for (const Storage of_a : kFactors) {
    for (const Storage of_b : kFactors) {
      for (int layout = 0; layout <= static_cast<int>(Layout::kMost); ++layout) {
        for (const Values values : {Values::kIntegers, Values::kReals, Values::kSpecials}) {
          const auto of_both = static_cast<Layout>(layout);
          products(trial, {7, 39, 21}, of_a, of_b, of_both, of_both, values, "");
          products(trial, {3, 16, 36}, of_a, of_b, Layout::kRows, of_both, values, "");
        }
      }
    }
  }
}

void drawn_products(int from, int trials) {
  const std::initializer_list<int64_t> sizes = {1,  2,  3,  5,  7,  8,   12,  13,  16, 17,
                                                31, 33, 63, 64, 65, 127, 255, 257, 513};
  for (int t = from; t < from + trials; ++t) {
    Trial trial(static_cast<unsigned>(t + 100));
    Sizes s{trial.choice(sizes), trial.choice(sizes), trial.choice(sizes)};
    while (s.m * s.n * s.k > 300000) s = {s.n, s.k, std::max<int64_t>(s.m / 2, 1)};
    random_products(trial, s, "trial " + std::to_string(t) + ": ");
  }
}

// More than one block in each direction, of each way; right factors that are read in several places
// at once.
void large_products() {
  Trial trial(3);
  for (const Sizes& sizes : {Sizes{513, 65, 513}, Sizes{241, 33, 1031}, Sizes{1, 300, 5000},
                             Sizes{17, 9001, 33}, Sizes{9, 70000, 9}, Sizes{13, 9, 5003},
                             Sizes{3, 1001, 2203}, Sizes{4, 2203, 1001}}) {
    for (const Storage of_b : kFactors) {
      for (const Layout layout : {Layout::kRows, Layout::kPaddedColumns})
        products(trial, sizes, Storage::kF32, of_b, Layout::kRows, layout, Values::kIntegers, "");
    }
    products(trial, sizes, Storage::kF16, Storage::kF32, Layout::kColumns, Layout::kRows,
             Values::kReals, "");
    for (const Layout layout : {Layout::kRows, Layout::kPaddedColumns})
      products(trial, sizes, Storage::kBF16, Storage::kBF16, Layout::kRows, layout,
               Values::kIntegers, "");
  }
}

// Kernels by themselves: every number of rows, and the sum with what c holds.
void kernels_add(const Tiles& tiles) {
  Trial trial(4);
  const auto run = [&](auto&& kernel, int rows, int64_t n, int64_t k, Storage storage, bool b_rows,
                       const std::string& name) {
    const Sizes sizes{rows, n, k};
    const Factor a(trial, rows, k, Storage::kF32, Layout::kRows, Values::kIntegers);
    const Factor b(trial, k, n, storage, b_rows ? Layout::kPaddedRows : Layout::kPaddedColumns,
                   Values::kIntegers);
    Judge judge(sizes, a, b, Values::kIntegers);
    const Product c(sizes, n + 3, trial.pick(0, 1));
    for (const bool add : {false, true}) {
      kernel(Block{reinterpret_cast<const float*>(a.matrix.data), k, b.matrix.data,
                   b_rows ? b.matrix.row_stride : b.matrix.column_stride, c.data(), c.stride, k, n,
                   add});
      c.check_gaps(name);
      c.check_values(judge, name + " of " + std::to_string(rows));
      for (double& x : judge.exact) x *= 2;
    }
  };
  for (const int64_t k : {1, 2, 15, 32, 67}) {
    for (const Storage storage : kFactors) {
      const auto s = static_cast<std::size_t>(storage_index(storage));
      for (const int64_t n : {1, 4, 31, 48}) {
        for (int rows = 1; rows <= kMostSweeps; ++rows)
          run(tiles.sweep[rows][s], rows, n, k, storage, true, "sweep");
        for (int rows = 1; rows <= kMostDots; ++rows)
          run(tiles.dots[rows][s], rows, n, k, storage, false, "dots");
      }
    }
    for (int rows = 1; rows <= tiles.rows; ++rows)
      run(tiles.tile[rows], rows, tiles.columns, k, Storage::kF32, true, "tile");
  }
}

// Every value of the narrow storages, side by side and transposed.
void every_value(const Tiles& tiles) {
  for (const Storage storage : {Storage::kBF16, Storage::kF16, Storage::kI8}) {
    const auto s = static_cast<std::size_t>(storage_index(storage));
    const int64_t item = storage_bytes(storage);
    const int64_t rows = 256;
    const int64_t columns = item == 1 ? 1 : 256;
    std::vector<std::byte> from(static_cast<std::size_t>(rows * columns * item));
    for (int64_t i = 0; i < rows * columns; ++i) {
      if (item == 1) write_as<std::uint8_t>(from.data() + i, i);
      if (item == 2) write_as<std::uint16_t>(from.data() + 2 * i, i);
    }
    std::vector<float> copied(static_cast<std::size_t>(rows * columns));
    std::vector<float> transposed(copied.size());
    tiles.copy[s](from.data(), columns, copied.data(), columns, rows, columns);
    tiles.transpose[s](from.data(), columns, transposed.data(), rows, columns, rows);
    for (int64_t i = 0; i < rows * columns; ++i) {
      const Value v = read(storage, from.data() + i * item);
      const auto want = is_float(storage) ? static_cast<float>(v.f) : static_cast<float>(v.i);
      const auto same = [&](float got) {
        return std::isnan(want) ? std::isnan(got) : float_to_bits(got) == float_to_bits(want);
      };
      const std::string what = " of " + std::to_string(s) + ": " + std::to_string(i);
      check(same(copied[static_cast<std::size_t>(i)]), "copy" + what);
      const int64_t across = i % columns * rows + i / columns;
      check(same(transposed[static_cast<std::size_t>(across)]), "transpose" + what);
    }
  }
}

// Which numbers pieces of bfloat16 tell: all but those near either end of the exponents.
void check_ranges() {
  const auto range = [](float least, float most) {
    return Range{std::bit_cast<std::uint32_t>(least), std::bit_cast<std::uint32_t>(most), false};
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  check(in_pieces(range(1e-3f, 4.0f), range(1e-3f, 4.0f), 384), "pieces of usual numbers");
  check(in_pieces(range(1e-8f, 1e-3f), range(1e-8f, 1e-3f), 384), "pieces of small numbers");
  check(in_pieces(range(1e-12f, 1e-12f), range(1e-12f, 1e-12f), 1), "pieces of very small ones");
  check(in_pieces(range(1.0f, 1e18f), range(1.0f, 1e18f), 3), "pieces of large numbers");
  check(!in_pieces(range(1.0f, 1e18f), range(1.0f, 1e20f), 384), "pieces of what overflows");
  check(!in_pieces(range(1.0f, kInfinity), range(1e-3f, 1e-3f), 384), "pieces of infinities");
  check(!in_pieces(range(1e-20f, 1.0f), range(1e-20f, 1.0f), 384), "pieces of denormal products");
  check(!in_pieces(range(1e-38f, 1.0f), range(1.0f, 1.0f), 384), "pieces that are denormals");
}

// When a right factor is split as it is used: by few rows that meet it at once.
void check_pieces_chosen() {
  if (tiles().units == nullptr) return;
  const auto chosen = [](int64_t m, int64_t k, bool turned, bool ahead, bool once,
                         int pieces = exec::gemm::kMostPieces, Storage storage = Storage::kF32) {
    const Sizes sizes{m, 768, k};
    const Matrix a{nullptr, k, 1, storage};
    const Matrix b{nullptr, turned ? 1 : 768, turned ? k : 1, storage};
    return choose_ours(tiles(false, true, pieces), sizes, a, b, ahead, once);
  };
  for (const bool turned : {false, true}) {
    check(chosen(128, 768, turned, false, true) == Way::kPieces, "128 rows in pieces");
    check(chosen(128, 768, turned, false, false) == Way::kPackedPieces, "some of 128 rows");
    check(chosen(128, 768, turned, true, true) == Way::kPackedPieces, "128 rows, packed ahead");
    check(chosen(257, 768, turned, false, true) == Way::kPackedPieces, "257 rows");
    check(chosen(40, 768, turned, false, true) != Way::kPieces, "40 rows");
  }
  check(chosen(128, 64, true, false, true) == Way::kPackedPieces, "short sums, turned");
  // Fewer pieces are worth it for fewer rows.
  check(chosen(32, 768, false, false, true, 1) == Way::kPieces, "32 rows in one piece");
  check(chosen(16, 768, false, true, true, 2) == Way::kPackedPieces, "16 rows in two, ahead");
  check(chosen(4, 768, false, true, true, 1) == Way::kPackedPieces, "4 rows in one, ahead");
  check(chosen(16, 768, false, true, true) != Way::kPackedPieces, "16 rows in three, ahead");
  // A float16 is two.
  check(chosen(128, 768, true, false, true, 2, Storage::kF16) == Way::kPieces, "float16 in two");
  check(chosen(128, 768, true, false, true, 1, Storage::kF16) != Way::kPieces, "float16 in one");
}

// Returns the number of failures. `whole`: the slow ones too.
int test_target(int from, int trials, bool whole) {
  std::printf("%s: tiles of %d x %d, narrow %d x %d\n", target.c_str(), tiles().rows,
              tiles().columns, tiles(true).rows, tiles(true).columns);
  for (const Tiles* t : {&tiles(), &tiles(true)}) {
    kernels_add(*t);
    every_value(*t);
  }
  check_ranges();
  check_pieces_chosen();
  small_products();
  every_layout();
  if (whole) large_products();
  drawn_products(from, trials);
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  const int trials = argc > 1 ? std::atoi(argv[1]) : 1000;
  const int from = argc > 2 ? std::atoi(argv[2]) : 0;
  return on_each_target(argc > 3 ? argv[3] : "", [&](const char* name) {
    target = name;
    return test_target(from, trials, trials >= 500);
  });
}

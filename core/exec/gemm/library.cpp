#include "exec/gemm/library.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "exec/gemm/factors.h"

namespace tilevm::exec::gemm {
namespace {

// Of the time of ours; less is not worth other bits.
constexpr float kWorth = 0.95f;
// Rounds of measuring go on until they took so many seconds; the first is not counted.
constexpr int kRounds = 4, kMostRounds = 15;
constexpr double kEnough = 0.02, kMost = 0.3;

// Tables and libraries are kept for ever: a call may be reading one. They are few.
struct State {
  std::mutex mutex;
  std::vector<std::unique_ptr<const Measured>> measured;
  std::vector<std::unique_ptr<const Library>> libraries;
  std::atomic<const Measured*> table{nullptr};
  std::atomic<const Library*> library{nullptr};
  std::atomic<Use> use{Use::kMeasured};
  std::atomic<std::int64_t> products{0};
};

State& state() noexcept {
  static State* const made = new State;
  return *made;
}

// How a factor is told to the library, as it lies in rows.
struct Side {
  char how;  // 'N': rows are contiguous; 'T': columns are
  std::int64_t lead;
};

std::optional<Side> side(const Matrix& x, std::int64_t rows, std::int64_t columns) {
  if (x.windows != nullptr || x.count_taps() > 1) return std::nullopt;
  const auto led = [](char how, std::int64_t lead) -> std::optional<Side> {
    if (lead > INT32_MAX) return std::nullopt;
    return Side{how, std::max<std::int64_t>(lead, 1)};
  };
  if ((x.column_stride == 1 || columns == 1) && (x.row_stride >= columns || rows == 1))
    return led('N', rows == 1 ? columns : x.row_stride);
  if ((x.row_stride == 1 || rows == 1) && (x.column_stride >= rows || columns == 1))
    return led('T', columns == 1 ? rows : x.column_stride);
  return std::nullopt;
}

const float* floats(const Matrix& x) {
  return reinterpret_cast<const float*>(x.data);
}

// By rows, as ours are: its columns are our rows, so the factors change places.
void call(const Library& library, const Sizes& sizes, const Matrix& a, const Matrix& b, float* c,
          std::int64_t c_stride) {
  const std::optional<Side> left = side(a, sizes.m, sizes.k), right = side(b, sizes.k, sizes.n);
  const std::int64_t lead = std::max(c_stride, sizes.n);
  const float one = 1, zero = 0;
  const int before = library.set_threads(1);
  library.f32(&right->how, &left->how, &sizes.n, &sizes.m, &sizes.k, &one, floats(b), &right->lead,
              floats(a), &left->lead, &zero, c, &lead);
  library.set_threads(before);
}

Matrix matrix(const std::vector<float>& values, std::int64_t row_stride,
              std::int64_t column_stride) {
  return {reinterpret_cast<const std::byte*>(values.data()), row_stride, column_stride,
          Storage::kF32};
}

// A product of small integers, which is exact, with gaps between the rows of everything.
bool is_right(const Library& library, const Sizes& sizes, bool turned_a, bool turned_b) {
  constexpr std::int64_t kGap = 3;
  constexpr float kOutside = -7;
  const auto made = [&](std::int64_t rows, std::int64_t columns, bool turned, int seed) {
    std::vector<float> values(at((turned ? columns : rows) * ((turned ? rows : columns) + kGap)));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(static_cast<int>(i * 7 + at(seed)) % 11 - 5);
    return values;
  };
  const std::vector<float> x = made(sizes.m, sizes.k, turned_a, 1);
  const std::vector<float> y = made(sizes.k, sizes.n, turned_b, 4);
  const auto laid = [](const std::vector<float>& values, std::int64_t rows, std::int64_t columns,
                       bool turned) {
    return turned ? matrix(values, 1, rows + kGap) : matrix(values, columns + kGap, 1);
  };
  const Matrix a = laid(x, sizes.m, sizes.k, turned_a);
  const Matrix b = laid(y, sizes.k, sizes.n, turned_b);
  const std::int64_t stride = sizes.n + kGap;
  std::vector<float> c(at(sizes.m * stride), kOutside);
  call(library, sizes, a, b, c.data(), stride);
  for (std::int64_t i = 0; i < sizes.m; ++i) {
    for (std::int64_t j = 0; j < stride; ++j) {
      float wanted = j < sizes.n ? 0 : kOutside;
      for (std::int64_t p = 0; j < sizes.n && p < sizes.k; ++p)
        wanted += x[at(i * a.row_stride + p * a.column_stride)] *
                  y[at(p * b.row_stride + j * b.column_stride)];
      if (c[at(i * stride + j)] != wanted) return false;
    }
  }
  return true;
}

bool works(const Library& library) {
  if (library.f32 == nullptr) return false;
  for (const Sizes& sizes : {Sizes{1, 1, 1}, Sizes{3, 5, 7}, Sizes{17, 33, 40}}) {
    for (const bool turned_a : {false, true}) {
      for (const bool turned_b : {false, true}) {
        if (!is_right(library, sizes, turned_a, turned_b)) return false;
      }
    }
  }
  return true;
}

std::size_t nearest(const std::vector<std::int64_t>& sizes, std::int64_t size) {
  const auto above = std::ranges::lower_bound(sizes, size);
  if (above == sizes.begin()) return 0;
  if (above == sizes.end()) return sizes.size() - 1;
  const auto x = static_cast<double>(size);
  const auto i = static_cast<std::size_t>(above - sizes.begin());
  return x / static_cast<double>(sizes[i - 1]) < static_cast<double>(sizes[i]) / x ? i - 1 : i;
}

// With nothing that says more than that it is multiplied.
std::vector<float> numbers(std::int64_t n) {
  std::vector<float> values(at(n));
  std::uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525 + 1013904223;
    value = static_cast<float>(static_cast<int>(state >> 24) - 128) / 128;
  }
  return values;
}

// Of this thread: what others take of the processor meanwhile is not counted.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

void set_library(Library library) {
  if (library.set_threads == nullptr) library = {};
  if (!works(library)) library.f32 = nullptr;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.libraries.push_back(std::make_unique<const Library>(library));
  s.library.store(s.libraries.back().get(), std::memory_order_release);
}

const Library& library() noexcept {
  static constexpr Library kNone{};
  const Library* found = state().library.load(std::memory_order_acquire);
  return found == nullptr ? kNone : *found;
}

void set_library_use(Use use) noexcept { state().use.store(use, std::memory_order_relaxed); }

std::optional<float> Measured::at(const Sizes& wanted, Lies lies) const {
  const std::vector<float>& list = ratios[static_cast<std::size_t>(lies)];
  if (list.empty()) return std::nullopt;
  const std::int64_t of[] = {wanted.m, wanted.n, wanted.k};
  std::size_t place = 0;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (of[axis] < (sizes[axis].front() + 1) / 2) return std::nullopt;
    place = place * sizes[axis].size() + nearest(sizes[axis], of[axis]);
  }
  return list[place];
}

bool set_measured(Measured measured) {
  std::size_t count = 1;
  for (const auto& axis : measured.sizes) {
    count *= axis.size();
    if (std::ranges::adjacent_find(axis, std::greater_equal{}) != axis.end()) return false;
    if (!axis.empty() && axis.front() < 1) return false;
  }
  for (const auto& list : measured.ratios) {
    if (!list.empty() && list.size() != count) return false;
  }
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.measured.push_back(std::make_unique<const Measured>(std::move(measured)));
  s.table.store(count == 0 ? nullptr : s.measured.back().get(), std::memory_order_release);
  return true;
}

bool library_can(const Sizes& sizes, const Matrix& a, const Matrix& b) noexcept {
  return a.storage == Storage::kF32 && b.storage == Storage::kF32 && library().f32 != nullptr &&
         std::max({sizes.m, sizes.n, sizes.k}) <= INT32_MAX &&
         side(a, sizes.m, sizes.k).has_value() && side(b, sizes.k, sizes.n).has_value();
}

bool prefers_library(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const Matrix& b,
                     bool ahead) noexcept {
  const Use use = state().use.load(std::memory_order_relaxed);
  if (use == Use::kOff) return false;
  if (use == Use::kAlways) return library_can(sizes, a, b);
  const Measured* table = state().table.load(std::memory_order_acquire);
  if (table == nullptr || &tiles != &exec::gemm::tiles() || !library_can(sizes, a, b)) return false;
  const Lies lies = ahead ? Lies::kAhead : b.column_stride == 1 ? Lies::kRows : Lies::kColumns;
  const std::optional<float> ratio = table->at(sizes, lies);
  return ratio && *ratio <= kWorth;
}

void multiply_by_library(const Sizes& sizes, const Matrix& a, const Matrix& b, float* c,
                         std::int64_t c_stride) noexcept {
  state().products.fetch_add(1, std::memory_order_relaxed);
  call(library(), sizes, a, b, c, c_stride);
}

std::int64_t library_products() noexcept {
  return state().products.load(std::memory_order_relaxed);
}
void reset_library_products() noexcept { state().products.store(0, std::memory_order_relaxed); }

std::optional<Seconds> measure(const Sizes& sizes, Lies lies) {
  const std::vector<float> x = numbers(sizes.m * sizes.k), y = numbers(sizes.k * sizes.n);
  const bool turned = lies == Lies::kColumns;
  const Matrix a = matrix(x, sizes.k, 1);
  const Matrix b = matrix(y, turned ? 1 : sizes.n, turned ? sizes.k : 1);
  if (!library_can(sizes, a, b)) return std::nullopt;
  const Tiles& tiles = exec::gemm::tiles();
  const bool ahead = lies == Lies::kAhead;
  const Way way = choose_ours(tiles, sizes, a, b, ahead);
  std::vector<float> packed(packs(way) ? at(packed_elements(tiles, way, sizes)) : 0);
  std::vector<float> room(at(room_elements(tiles, way, sizes))), c(at(sizes.m * sizes.n));
  const auto packing = [&] {
    if (packs(way)) pack(tiles, way, sizes, b, 0, sizes.n, packed.data());
  };
  if (ahead) packing();
  const auto timed = [](const auto& work) {
    const double start = processor_seconds();
    work();
    return processor_seconds() - start;
  };
  Seconds least{};
  double all = 0;
  bool counted = false;
  const auto goes_on = [&](int round) {
    if (round < kRounds) return round < 2 || all < kMost;
    return round < kMostRounds && all < kEnough;
  };
  for (int i = 0; goes_on(i); ++i) {
    const double own = timed([&] {
      if (!ahead) packing();
      multiply(tiles, way, sizes, a, b, packed.data(), room.data(), c.data(), sizes.n);
    });
    const double other = timed([&] { call(library(), sizes, a, b, c.data(), sizes.n); });
    all += own + other;
    if (i == 0) continue;  // memory and code are touched for the first time
    least.ours = counted ? std::min(least.ours, own) : own;
    least.library = counted ? std::min(least.library, other) : other;
    counted = true;
  }
  return least;
}

}  // namespace tilevm::exec::gemm

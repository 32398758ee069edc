// Products by the library that the process has brought along with a framework (BLAS): a way among
// the others of multiply.h, taken where it was measured to be quicker. Nothing is linked: somebody
// says where its functions are. All functions may be called from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "exec/gemm/multiply.h"

namespace tilevm::exec::gemm {

// c = a b of float32 with columns contiguous, as Fortran's gemm: how a and b lie ('N' or 'T'), m,
// n, k, alpha, a, its leading dimension, b, its, beta, c, its. Integers of 32 bits are read from
// the low half.
using Gemm = void (*)(const char*, const char*, const std::int64_t*, const std::int64_t*,
                      const std::int64_t*, const float*, const float*, const std::int64_t*,
                      const float*, const std::int64_t*, const float*, float*, const std::int64_t*);

// Null: there is no such function.
struct Library {
  Gemm f32 = nullptr;
  // Threads of calls by this thread, from now on; 0: as many as others have. Returns what it was.
  int (*set_threads)(int) = nullptr;
};

// Functions that do not give the right answers to a few products are left out, and all of them
// where threads cannot be set: they would not keep to those that a call may use.
void set_library(Library library);
// What of it is used, or may be.
const Library& library() noexcept;

enum class Use : std::uint8_t { kOff, kMeasured, kAlways };
void set_library_use(Use use) noexcept;

// How a right factor lies: rows contiguous, columns contiguous, packed ahead by us.
inline constexpr std::size_t kLies = 3;
enum class Lies : std::uint8_t { kRows, kColumns, kAhead };

// Times of the library over ours, by sizes that were measured: ascending m, n, k; ratios in this
// order, the last varies fastest. Empty: not measured.
struct Measured {
  std::array<std::vector<std::int64_t>, 3> sizes;
  std::array<std::vector<float>, kLies> ratios;

  // Of the nearest sizes, each by its logarithm; none for less than half of the smallest.
  std::optional<float> at(const Sizes& sizes, Lies lies) const;
};
// On the micro-kernels that tiles() gives; those of other tiers were not measured. False: the
// lists have other lengths than they should. An empty table takes the last one back.
bool set_measured(Measured measured);

// Whether it multiplies factors that lie so.
bool library_can(const Sizes& sizes, const Matrix& a, const Matrix& b) noexcept;
// Whether it is to: it can, and was quicker by what is worth it, or always is.
bool prefers_library(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const Matrix& b,
                     bool ahead) noexcept;
void multiply_by_library(const Sizes& sizes, const Matrix& a, const Matrix& b, float* c,
                         std::int64_t c_stride) noexcept;

// Products that it made so far, and parts of them.
std::int64_t library_products() noexcept;
void reset_library_products() noexcept;

// The least seconds of processor time of a product, in turns on this thread.
struct Seconds {
  double ours, library;
};
// None: there is no library. Throws std::bad_alloc.
std::optional<Seconds> measure(const Sizes& sizes, Lies lies);

}  // namespace tilevm::exec::gemm

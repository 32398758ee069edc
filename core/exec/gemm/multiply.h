// One matrix product on one thread: which way, packing, blocks for the caches.
#pragma once

#include <cstddef>
#include <cstdint>

#include "exec/gemm/tiles.h"
#include "exec/gemm/windows.h"

namespace tilevm::exec::gemm {

// A factor in memory; strides in elements.
struct Matrix {
  const std::byte* data;
  std::int64_t row_stride;
  std::int64_t column_stride;
  Storage storage;
  // Of a right factor that is the windows of a convolution: its rows are, for each tap in row-major
  // order, as many channels as there are, row_stride apart.
  Axes taps{1, 1, 1};
  Axes tap_stride{};
  std::int64_t channels = 0;
  // A factor whose rows are windows of an image at `data`; then row_stride says nothing.
  const Windows* windows = nullptr;
  std::int64_t first_column = 0;  // of windows that are a right factor: those before are left out

  std::int64_t count_taps() const { return taps[0] * taps[1] * taps[2]; }
  bool operator==(const Matrix&) const = default;
};

struct Sizes {
  std::int64_t m, n, k;       // the product is m x n, k is summed over
  std::int64_t packed_k = 0;  // of a packed factor, if only its first k rows are used
  // Sums are of sums as short as those that libraries make of few rows, in lanes of vectors.
  bool short_sums = false;

  std::int64_t packed_rows() const { return packed_k > 0 ? packed_k : k; }
};

// Up to so many rows in all, sums are short.
inline constexpr std::int64_t kShortSumRows = 12;

// How a product is computed.
enum class Way : std::uint8_t {
  kSweep,        // few rows of A: B is read once, from front to back, and C is in the first cache
  kDots,         // few rows of A, columns of B contiguous
  kTiles,        // few rows of A, rows of B contiguous: tiles read B where it is
  kPacked,       // panels of B are copied, so that tiles read them in order
  kPairDots,     // as kDots and kPacked, of bfloat16 by bfloat16, by instructions that multiply
  kPackedPairs,  // pairs; see brain.h
  kEach,         // each column by itself: depthwise convolutions
  kWindows,      // B is windows of an image: a panel is copied for some of A at a time
  kPackedPieces,  // as kPackedPairs, of float32 in pieces of bfloat16; see units.h
  kTurnedPairs,   // as kPairDots, by units.h
  kPieces,        // few rows of A: as kPackedPieces, B being split as it is used
  kLibrary        // by another's code; see library.h
};
inline bool packs(Way way) {
  return way == Way::kPacked || way == Way::kPackedPairs || way == Way::kEach ||
         way == Way::kPackedPieces;
}
const char* name(Way way);
// Whether it is by units.h.
bool by_units(const Tiles& tiles, Way way);
// Pieces that it makes of a float32; 0: it makes none.
int pieces_of_float32(const Tiles& tiles, Way way);
// Bytes of an element of B, packed.
std::int64_t packed_bytes(const Tiles& tiles, Way way);

// The quickest way for these sizes, where b is used for `m` rows in all. a: only what its rows
// are and their stride, not where. ahead: b is packed already, if the way packs. once: these rows
// are all that meets b, and do so at once.
Way choose(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const Matrix& b,
           bool ahead = false, bool once = true);
// ... of our own.
Way choose_ours(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const Matrix& b,
                bool ahead = false, bool once = true);

// Float32 elements of a packed B; of working memory for multiply().
std::int64_t packed_elements(const Tiles& tiles, Way way, const Sizes& sizes);
std::int64_t room_elements(const Tiles& tiles, Way way, const Sizes& sizes);

// Where in it column `first` begins, a multiple of tiles.columns.
std::int64_t packed_offset(const Tiles& tiles, Way way, const Sizes& sizes,
                           std::int64_t first);

// Packs columns first .. first + count of b, where first is a multiple of tiles.columns.
void pack(const Tiles& tiles, Way way, const Sizes& sizes, const Matrix& b, std::int64_t first,
          std::int64_t count, float* packed);

// c = a b, in float32; rows of c are contiguous. `packed`: what pack() wrote, if the way packs.
void multiply(const Tiles& tiles, Way way, const Sizes& sizes, const Matrix& a, const Matrix& b,
              const float* packed, float* room, float* c, std::int64_t c_stride);

}  // namespace tilevm::exec::gemm

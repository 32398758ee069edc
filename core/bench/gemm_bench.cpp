// Rates of matrix products on one thread: each way, by shape.
//
//   gemm_bench [f32|bf16|f16|i8] [narrow] [ahead] [high|medium]
//
// ahead: without the time that packing takes. high, medium: float32 in two pieces, and in one.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "exec/gemm/multiply.h"
#include "exec/gemm/units.h"

namespace tilevm::bench {
namespace {

using namespace exec::gemm;

// As tensors are: at the start of a cache line.
template <class T>
struct Array {
  explicit Array(std::size_t n, T value = {})
      : data(static_cast<T*>(std::aligned_alloc(64, (n * sizeof(T) + 127) / 64 * 64))) {
    std::fill_n(data, n, value);
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { std::free(data); }
  T* data;
};

// Numbers from 0.5 to 1, of either sign, whose last bits are random, too: processors run slower
// where more bits change. As int8: whatever the bytes say.
void fill(std::byte* to, std::size_t bytes, Storage storage) {
  std::uint32_t state = 1;
  const auto next = [&] { return (state = state * 1664525 + 1013904223) >> 9; };
  for (std::size_t i = 0; i < bytes; i += 4) {
    const std::uint32_t sign = (next() & 1) << 31, bits = next();
    std::uint32_t value = bits;
    if (storage == Storage::kF32) value = sign | 0x3F000000 | bits;
    if (storage == Storage::kBF16)
      value = sign | 0x3F000000 | (bits & 0x7F) << 16 | 0x3F00 | (bits >> 8 & 0x7F);
    if (storage == Storage::kF16)
      value = sign | 0x38000000 | (bits & 0x3FF) << 16 | 0x3800 | (bits >> 10 & 0x3FF);
    std::memcpy(to + i, &value, std::min<std::size_t>(4, bytes - i));
  }
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double seconds_of(const Tiles& tiles, Way way, const Sizes& sizes, const Matrix& a, const Matrix& b,
                  bool ahead) {
  const Array<float> c(static_cast<std::size_t>(sizes.m * sizes.n));
  const Array<float> room(static_cast<std::size_t>(room_elements(tiles, way, sizes)));
  const Array<float> packed(
      packs(way) ? static_cast<std::size_t>(packed_elements(tiles, way, sizes)) : 0);
  const auto once = [&] {
    if (packs(way) && !ahead) pack(tiles, way, sizes, b, 0, sizes.n, packed.data);
    multiply(tiles, way, sizes, a, b, packed.data, room.data, c.data, sizes.n);
  };
  if (packs(way) && ahead) pack(tiles, way, sizes, b, 0, sizes.n, packed.data);
  once();
  double best = 1e9;
  const double end = now() + 0.15;
  while (now() < end) {
    const double start = now();
    once();
    best = std::min(best, now() - start);
  }
  return best;
}

}  // namespace
}  // namespace tilevm::bench

int main(int argc, char** argv) {
  using namespace tilevm;
  using namespace tilevm::bench;
  Storage storage = Storage::kF32;
  bool narrow = false, ahead = false;
  int pieces = kMostPieces;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "bf16") storage = Storage::kBF16;
    if (word == "f16") storage = Storage::kF16;
    if (word == "i8") storage = Storage::kI8;
    if (word == "narrow") narrow = true;
    if (word == "ahead") ahead = true;
    if (word == "high") pieces = 2;
    if (word == "medium") pieces = 1;
  }
  const Tiles& t = tiles(narrow, true, pieces);
  const std::int64_t shapes[][3] = {
      {1, 768, 768},     {1, 3072, 768},    {1, 4096, 4096}, {2, 768, 768},    {3, 768, 768},
      {4, 768, 768},     {5, 768, 768},     {7, 768, 768},   {7, 64, 64},      {7, 4096, 4096},
      {8, 768, 768},     {12, 768, 768},    {16, 768, 768},  {24, 768, 768},   {33, 777, 511},
      {33, 1024, 4096},  {128, 1024, 4096}, {7, 3072, 1024}, {16, 3072, 1024}, {33, 65, 127},
      {48, 768, 768},    {64, 768, 768},    {80, 768, 768},  {128, 768, 768},  {128, 3072, 768},
      {511, 1000, 1000}, {512, 512, 512},   {512, 512, 64},  {512, 64, 512},   {1024, 1024, 1024},
      {1024, 4096, 4096}};
  std::printf("%-18s %-3s", "m x n x k", "");
  constexpr Way kWays[] = {Way::kSweep,       Way::kDots,         Way::kTiles,
                           Way::kPacked,      Way::kPairDots,     Way::kTurnedPairs,
                           Way::kPackedPairs, Way::kPackedPieces, Way::kPieces};
  for (const Way way : kWays) std::printf(" %14s", name(way));
  std::printf("   GFLOP/s (GB/s of B)\n");
  for (const auto& shape : shapes) {
    const Sizes sizes{shape[0], shape[1], shape[2], 0, shape[0] <= kShortSumRows};
    const Array<float> a(static_cast<std::size_t>(sizes.m * sizes.k));
    const auto bytes =
        static_cast<std::size_t>(sizes.n * sizes.k * bytecode::storage_bytes(storage));
    const Array<std::byte> b(bytes);
    fill(b.data, bytes, storage);
    const Storage of_a = storage == Storage::kBF16 ? storage : Storage::kF32;
    fill(reinterpret_cast<std::byte*>(a.data),
         static_cast<std::size_t>(sizes.m * sizes.k * bytecode::storage_bytes(of_a)), of_a);
    const Matrix left{reinterpret_cast<const std::byte*>(a.data), sizes.k, 1, of_a};
    for (const bool transposed : {false, true}) {
      const Matrix right{b.data, transposed ? 1 : sizes.n, transposed ? sizes.k : 1, storage};
      const std::string text =
          std::to_string(sizes.m) + "x" + std::to_string(sizes.n) + "x" + std::to_string(sizes.k);
      std::printf("%-18s %-3s", text.c_str(), transposed ? "NT" : "NN");
      const Way chosen = choose(t, sizes, left, right);
      for (const Way way : kWays) {
        const bool can = way == Way::kSweep   ? !transposed && sizes.m <= 24
                         : way == Way::kDots  ? transposed && sizes.m <= 128
                         : way == Way::kTiles ? !transposed && storage == Storage::kF32
                         : way == Way::kPairDots
                             ? transposed && storage == Storage::kBF16 && sizes.m <= 128
                         : way == Way::kTurnedPairs
                             ? transposed && storage == Storage::kBF16 && units() != nullptr
                         : way == Way::kPackedPairs ? storage == Storage::kBF16
                         : way == Way::kPackedPieces || way == Way::kPieces
                             ? storage == Storage::kF32 && units() != nullptr
                             : true;
        if (!can) {
          std::printf(" %14s", "");
          continue;
        }
        const double s = seconds_of(t, way, sizes, left, right, ahead);
        std::printf(" %6.1f (%5.1f)%s",
                    2.0 * static_cast<double>(sizes.m * sizes.n * sizes.k) / s / 1e9,
                    static_cast<double>(bytes) / s / 1e9, way == chosen ? "*" : " ");
      }
      std::printf("\n");
    }
  }
  return 0;
}

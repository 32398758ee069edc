// Convolutions as products, with the kernels of every target of this machine, against sums over
// taps: sizes, strides, padding, storages and layouts at random. Values are small integers, so that
// every sum is exact. Operands end where a page begins that faults.
//
//   convolve_test [trials [first trial [target]]]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "exec/gemm/brain.h"
#include "exec/gemm/lines.h"
#include "exec/gemm/multiply.h"
#include "tests/each_target.h"
#include "tests/interp_trial.h"

namespace {

using namespace tilevm;
using namespace tilevm::bytecode;
using namespace tilevm::exec::gemm;
using namespace tilevm::testing;

constexpr float kGap = -12345.0f;  // what memory around results holds

std::size_t at(int64_t i) { return static_cast<std::size_t>(i); }

// One convolution: images, windows, parameters.
class Convolution {
 public:
  explicit Convolution(Trial& trial) : trial_(trial) {
    const int axes = static_cast<int>(trial.pick(1, kImageAxes));
    w_.depthwise = trial.pick(0, 2) == 0;
    w_.channels = trial.choice<int64_t>({1, 2, 3, 7, 16, 17, 32, 33, 40});
    n_ = w_.depthwise ? w_.channels : trial.choice<int64_t>({1, 3, 8, 16, 31, 32, 33, 65});
    images_ = trial.pick(1, 3);
    storage_ = trial.choice({Storage::kF32, Storage::kF32, Storage::kBF16, Storage::kF16});
    for (std::size_t axis = at(kImageAxes - axes); axis < kImageAxes; ++axis) {
      w_.taps[axis] = trial.choice<int64_t>({1, 2, 3, 3, 5});
      w_.step[axis] = trial.choice<int64_t>({1, 1, 2, 3});
      w_.dilation[axis] = trial.choice<int64_t>({1, 1, 2});
      w_.low[axis] = trial.choice<int64_t>({0, 0, 1, 2, 6});
      const int64_t high = trial.choice<int64_t>({0, 1, 2, 6});
      const int64_t reach = (w_.taps[axis] - 1) * w_.dilation[axis];
      w_.size[axis] = trial.pick(1, 11);
      const int64_t room = w_.size[axis] + w_.low[axis] + high - reach;
      if (room < 1) w_.size[axis] += 1 - room;
      w_.out[axis] = (w_.size[axis] + w_.low[axis] + high - reach - 1) / w_.step[axis] + 1;
    }
    lay_out_image();
    lay_out_windows();
  }

  bool run() {
    const Tiles& tiles = exec::gemm::tiles();
    const int64_t rows = images_ * w_.out[0] * w_.out[1] * w_.out[2];
    const int64_t first = trial_.pick(0, rows - 1);
    const Sizes sizes{trial_.pick(1, rows - first), n_,
                      w_.depthwise ? w_.count_taps() : w_.count_taps() * w_.channels};
    Windows windows = w_;
    windows.first = first;
    Matrix a{image_->data() + image_first_, 0, w_.channel_stride, storage_};
    a.windows = &windows;
    Way way = choose(tiles, sizes, a, b_);
    if (!w_.depthwise && b_.count_taps() == 1 && trial_.pick(0, 2) == 0)
      way = b_.row_stride == 1 || sizes.k == 1 ? Way::kDots : Way::kPacked;
    if (!w_.depthwise && tiles.units != nullptr && storage_ == Storage::kF32 &&
        trial_.pick(0, 1) == 0)
      way = Way::kPackedPieces;
    std::vector<float> packed(at(packs(way) ? packed_elements(tiles, way, sizes) : 0), kGap);
    if (packs(way)) exec::gemm::pack(tiles, way, sizes, b_, 0, n_, packed.data());
    std::vector<float> room(at(room_elements(tiles, way, sizes)) + 1);
    // Rows of columns, or, where lines are read so, columns of positions.
    const bool planes = (way == Way::kPacked || way == Way::kEach) &&
                        reads_lines_to_planes(windows) && trial_.pick(0, 1) == 0;
    const int64_t lines = planes ? n_ : sizes.m, line = planes ? sizes.m : n_;
    const int64_t stride = line + trial_.pick(0, 3);
    Guarded c(at((lines - 1) * stride + line) * sizeof(float));
    auto* result = reinterpret_cast<float*>(c.data());
    const auto count = static_cast<int64_t>(c.size() / sizeof(float));
    std::fill_n(result, count, kGap);
    if (planes) {
      const auto run = way == Way::kEach ? multiply_lines_each : multiply_lines;
      run(tiles, sizes, a, packed.data(), result, 1, stride);
    } else {
      multiply(tiles, way, sizes, a, b_, packed.data(), room.data(), result, stride);
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = planes ? i % stride : i / stride, j = planes ? i / stride : i % stride;
      const float expected = i % stride < line ? meaning(first + row, j) : kGap;
      if (result[i] == expected) continue;
      std::printf(
          "row %ld of %ld, column %ld of %ld: %g, not %g; %s%s, %ld channels, taps %ld %ld "
          "%ld\n",
          row, sizes.m, j, n_, result[i], expected, planes ? "to planes" : name(way),
          w_.depthwise ? ", depthwise" : "", w_.channels, w_.taps[0], w_.taps[1], w_.taps[2]);
      return false;
    }
    return true;
  }

  // The product of numbers for each position, turned round, and all windows.
  bool run_gradient() {
    const Tiles& tiles = exec::gemm::tiles();
    const int64_t positions = images_ * w_.out[0] * w_.out[1] * w_.out[2];
    const int64_t all = w_.count_taps() * w_.channels, first = trial_.pick(0, all - 1);
    const Sizes sizes{n_, trial_.pick(1, all - first), positions};
    std::vector<std::size_t> order{1, 0};
    if (trial_.pick(0, 1) == 0) std::swap(order[0], order[1]);
    const Laid laid = lay({positions, n_}, order, trial_.pick(0, 2) == 0);
    Windows windows = w_;
    windows.depthwise = false;
    const Matrix a{laid.memory->data() + laid.first, laid.strides[1], laid.strides[0], storage_};
    Matrix b{image_->data() + image_first_, 0, w_.channel_stride, storage_};
    b.windows = &windows;
    b.first_column = first;
    const Way way = choose(tiles, sizes, a, b);
    std::vector<float> room(at(room_elements(tiles, way, sizes)) + 1);
    const int64_t stride = sizes.n + trial_.pick(0, 3);
    Guarded c(at((sizes.m - 1) * stride + sizes.n) * sizeof(float));
    auto* result = reinterpret_cast<float*>(c.data());
    std::fill_n(result, c.size() / sizeof(float), kGap);
    multiply(tiles, way, sizes, a, b, nullptr, room.data(), result, stride);
    for (int64_t i = 0; i < sizes.m; ++i) {
      for (int64_t j = 0; j < stride && i * stride + j < static_cast<int64_t>(c.size() / 4); ++j) {
        double sum = 0;
        for (int64_t p = 0; p < positions; ++p)
          sum += element(a.data, i * a.row_stride + p * a.column_stride) * window(p, first + j);
        const auto expected = j < sizes.n ? static_cast<float>(sum) : kGap;
        if (result[i * stride + j] == expected) continue;
        std::printf("gradient %ld, %ld of %ld x %ld over %ld: %g, not %g; %s\n", i, j, sizes.m,
                    sizes.n, positions, result[i * stride + j], expected, name(way));
        return false;
      }
    }
    return true;
  }

 private:
  // Element i of the window at a position.
  double window(int64_t position, int64_t i) const {
    int64_t from = i % w_.channels * w_.channel_stride, tap = i / w_.channels;
    for (std::size_t axis = kImageAxes; axis-- > 0;) {
      const int64_t place = position % w_.out[axis] * w_.step[axis] +
                            tap % w_.taps[axis] * w_.dilation[axis] - w_.low[axis];
      position /= w_.out[axis];
      tap /= w_.taps[axis];
      if (place < 0 || place >= w_.size[axis]) return 0;
      from += place * w_.stride[axis];
    }
    return element(image_->data() + image_first_, from + position * w_.image_stride);
  }

  // Memory of `sizes` elements with their axes in this order, and as many more as a gap says.
  struct Laid {
    std::vector<int64_t> strides;
    std::unique_ptr<Guarded> memory;
    int64_t first = 0;  // byte
  };
  Laid lay(const std::vector<int64_t>& sizes, std::vector<std::size_t> order, bool gaps) {
    Laid laid;
    laid.strides.resize(sizes.size());
    int64_t next = 1, low = 0, high = 0;
    for (const std::size_t axis : order) {  // innermost first
      if (gaps) next *= trial_.pick(1, 2);
      const bool backwards = gaps && trial_.pick(0, 5) == 0;
      laid.strides[axis] = backwards ? -next : next;
      (backwards ? low : high) += (sizes[axis] - 1) * laid.strides[axis];
      next *= sizes[axis];
    }
    const int64_t item = storage_bytes(storage_);
    laid.memory = std::make_unique<Guarded>(at((high - low + 1) * item));
    laid.first = -low * item;
    for (int64_t i = 0; i <= high - low; ++i) {
      const int64_t value = trial_.pick(-2, 2);
      write(storage_, laid.memory->data() + i * item, {static_cast<double>(value), value});
    }
    return laid;
  }

  void lay_out_image() {
    const std::vector<int64_t> sizes{images_, w_.size[0], w_.size[1], w_.size[2], w_.channels};
    const int64_t kind = trial_.pick(0, 3);
    const std::vector<std::size_t> last{4, 3, 2, 1, 0}, second{3, 2, 1, 4, 0};
    Laid laid = lay(sizes, kind == 0 ? second : last, kind >= 2);
    w_.image_stride = laid.strides[0];
    for (std::size_t axis = 0; axis < kImageAxes; ++axis) w_.stride[axis] = laid.strides[axis + 1];
    w_.channel_stride = laid.strides[4];
    image_ = std::move(laid.memory);
    image_first_ = laid.first;
  }

  // As PyTorch keeps them, with channels last, or as gradients of images read them.
  void lay_out_windows() {
    const int64_t channels = w_.depthwise ? 1 : w_.channels;
    const std::vector<int64_t> sizes{n_, w_.taps[0], w_.taps[1], w_.taps[2], channels};
    const int64_t kind = trial_.pick(0, 4);
    const std::vector<std::size_t> last{4, 3, 2, 1, 0}, second{3, 2, 1, 4, 0},
        turned{3, 2, 1, 0, 4};
    Laid laid = lay(sizes, kind == 0 ? last : kind < 3 ? second : turned, kind == 2);
    b_ = {laid.memory->data() + laid.first, laid.strides[4], laid.strides[0], storage_};
    b_.taps = w_.taps;
    b_.tap_stride = {laid.strides[1], laid.strides[2], laid.strides[3]};
    if (kind == 4) {  // taps backwards, as gradients read windows
      for (std::size_t axis = 0; axis < kImageAxes; ++axis) {
        b_.data += (w_.taps[axis] - 1) * b_.tap_stride[axis] * storage_bytes(storage_);
        b_.tap_stride[axis] *= -1;
      }
    }
    b_.channels = channels;
    windows_ = std::move(laid.memory);
  }

  float meaning(int64_t row, int64_t column) const {
    Axes position;
    for (std::size_t axis = kImageAxes; axis-- > 0; row /= w_.out[axis])
      position[axis] = row % w_.out[axis];
    const int64_t image = row;
    double sum = 0;
    Axes tap;
    for (tap[0] = 0; tap[0] < w_.taps[0]; ++tap[0]) {
      for (tap[1] = 0; tap[1] < w_.taps[1]; ++tap[1]) {
        for (tap[2] = 0; tap[2] < w_.taps[2]; ++tap[2]) {
          int64_t from = image * w_.image_stride, of = column * b_.column_stride;
          bool inside = true;
          for (std::size_t axis = 0; axis < kImageAxes; ++axis) {
            const int64_t place =
                position[axis] * w_.step[axis] + tap[axis] * w_.dilation[axis] - w_.low[axis];
            inside = inside && place >= 0 && place < w_.size[axis];
            from += place * w_.stride[axis];
            of += tap[axis] * b_.tap_stride[axis];
          }
          if (!inside) continue;
          if (w_.depthwise) from += column * w_.channel_stride;
          for (int64_t c = 0; c < b_.channels; ++c)
            sum += element(image_->data() + image_first_, from + c * w_.channel_stride) *
                   element(b_.data, of + c * b_.row_stride);
        }
      }
    }
    return static_cast<float>(sum);
  }
  double element(const std::byte* data, int64_t i) const {
    return read(storage_, data + i * storage_bytes(storage_)).f;
  }

  Trial& trial_;
  Windows w_;
  Matrix b_{};
  Storage storage_{};
  int64_t images_ = 1, n_ = 1;
  std::unique_ptr<Guarded> image_, windows_;
  int64_t image_first_ = 0;
};

int test_target(const char* target, int from, int trials) {
  int failures = 0;
  for (int i = from; i < from + trials && failures < 20; ++i) {
    Trial trial(static_cast<unsigned>(i));
    Convolution convolution(trial);
    if (convolution.run() && convolution.run_gradient()) continue;
    std::printf("FAILED on %s: trial %d\n", target, i);
    ++failures;
  }
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  const int trials = argc > 1 ? std::atoi(argv[1]) : 1000;
  const int from = argc > 2 ? std::atoi(argv[2]) : 0;
  return on_each_target(argc > 3 ? argv[3] : "",
                        [&](const char* target) { return test_target(target, from, trials); });
}

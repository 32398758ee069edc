// Windows of an image as the rows of a left factor: what makes a convolution a matrix product.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace tilevm::exec::gemm {

inline constexpr int kImageAxes = 3;  // those that an image lacks are of size 1
using Axes = std::array<std::int64_t, kImageAxes>;

// Row r is the window at position r of the result, in row-major order over images and their axes;
// in it the taps in row-major order, for each of them all channels. Outside of the image all is 0.
struct Windows {
  Axes size{1, 1, 1};      // of the image
  Axes out{1, 1, 1};       // positions
  Axes taps{1, 1, 1};      // of the window
  Axes step{1, 1, 1};      // of positions
  Axes dilation{1, 1, 1};  // between taps
  Axes low{};              // padding in front
  Axes stride{};           // of the image, in elements
  std::int64_t image_stride = 0;
  std::int64_t channels = 0, channel_stride = 1;
  bool depthwise = false;  // each channel is a product of its own; see Way::kEach
  std::int64_t first = 0;  // the row that counts as row 0

  std::int64_t count_taps() const { return taps[0] * taps[1] * taps[2]; }

  // Where on an axis tap t of the window at position o lies; outside, if not within size.
  std::int64_t place(std::size_t axis, std::int64_t o, std::int64_t t) const {
    return o * step[axis] + t * dilation[axis] - low[axis];
  }
  bool within(std::size_t axis, std::int64_t place) const {
    return place >= 0 && place < size[axis];
  }
  // The first position in o .. end whose tap t lies at or behind `place`.
  std::int64_t first_at(std::int64_t place, std::int64_t t, std::int64_t o,
                        std::int64_t end) const {
    const std::int64_t distance = place + low[2] - t * dilation[2];
    const std::int64_t found = distance <= 0 ? 0 : (distance + step[2] - 1) / step[2];
    return std::clamp(found, o, end);
  }
};

// Positions that differ on the last axis only: rows i .. i + count of those asked for.
struct Line {
  std::int64_t row, count;
  std::int64_t image;
  Axes at;  // of the first one
};

// The next line from row i of `rows` on.
inline Line line_at(const Windows& w, std::int64_t row, std::int64_t i, std::int64_t rows) {
  std::int64_t r = w.first + row + i;
  Line line{i, 0, 0, {}};
  for (std::size_t axis = kImageAxes; axis-- > 0;) {
    line.at[axis] = r % w.out[axis];
    r /= w.out[axis];
  }
  line.image = r;
  line.count = std::min(rows - i, w.out[2] - line.at[2]);
  return line;
}

// Calls for elements first .. first + depth of each of some windows, in any order,
//   copy(offset, stride, row, rows, column, count): rows are `count` elements of the image each
//     (w.channel_stride apart), the first at `offset`, the others `stride` further each;
//   zero(row, rows, column, count): these are outside.
template <class Copy, class Zero>
void walk(const Windows& w, std::int64_t row, std::int64_t rows, std::int64_t first,
          std::int64_t depth, const Copy& copy, const Zero& zero) {
  // Whether neighbouring taps of a line are one run in memory.
  const bool dense = w.dilation[2] == 1 && w.channel_stride == 1 && w.stride[2] == w.channels;
  const std::int64_t step = w.step[2] * w.stride[2];
  for (Line line = line_at(w, row, 0, rows);; line = line_at(w, row, line.row + line.count, rows)) {
    for (std::int64_t k = first, next = k; k < first + depth; k = next) {
      const std::int64_t channel = k % w.channels;
      std::int64_t tap = k / w.channels;
      const std::int64_t x = tap % w.taps[2];
      tap /= w.taps[2];
      const std::int64_t y = w.place(1, line.at[1], tap % w.taps[1]);
      const std::int64_t z = w.place(0, line.at[0], tap / w.taps[1]);
      const std::int64_t most = first + depth - k;
      std::int64_t count = std::min((dense ? w.taps[2] - x : 1) * w.channels - channel, most);
      next = k + count;
      if (!w.within(0, z) || !w.within(1, y)) {
        zero(line.row, line.count, k - first, count);
        continue;
      }
      const std::int64_t base = line.image * w.image_stride + z * w.stride[0] + y * w.stride[1];
      // Positions at which all of the run lies in the image; at others its taps one by one.
      const std::int64_t o = line.at[2], end = o + line.count;
      const std::int64_t last = x + (channel + count - 1) / w.channels;
      const std::int64_t begin = w.first_at(0, x, o, end);
      const std::int64_t behind = std::max(w.first_at(w.size[2], last, o, end), begin);
      const auto piece = [&](std::int64_t from, std::int64_t to, std::int64_t t, std::int64_t c,
                             std::int64_t column, std::int64_t n) {
        if (from >= to) return;
        copy(base + w.place(2, from, t) * w.stride[2] + c * w.channel_stride, step,
             line.row + from - o, to - from, column, n);
      };
      piece(begin, behind, x, channel, k - first, count);
      const auto border = [&](std::int64_t from, std::int64_t to) {
        if (from >= to) return;
        for (std::int64_t t = x, c = channel, done = 0; done < count; ++t, c = 0) {
          const std::int64_t n = std::min(w.channels - c, count - done);
          const std::int64_t inside = w.first_at(0, t, from, to);
          const std::int64_t outside = std::max(w.first_at(w.size[2], t, from, to), inside);
          const std::int64_t at = line.row - o;
          if (from < inside) zero(at + from, inside - from, k - first + done, n);
          piece(inside, outside, t, c, k - first + done, n);
          if (outside < to) zero(at + outside, to - outside, k - first + done, n);
          done += n;
        }
      };
      border(o, begin);
      border(behind, end);
    }
    if (line.row + line.count >= rows) return;
  }
}

}  // namespace tilevm::exec::gemm

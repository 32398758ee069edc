#include "exec/gemm/lines.h"

#include <algorithm>
#include <vector>

#include "exec/gemm/factors.h"
#include "exec/plane.h"

namespace tilevm::exec::gemm {
namespace {

constexpr std::int64_t kFewChannels = 16;
constexpr std::int64_t kFewEach = 4;        // of channels by themselves
constexpr std::int64_t kFewPositions = 8;   // of a line: tiles do not go from one to the next
constexpr std::int64_t kFloats = 16 << 10;  // of lines at once
constexpr std::int64_t kMostFloats = 64 << 10;  // of those that one line of positions needs
constexpr std::int64_t kMostOfOne = 1 << 20;    // of one channel by itself

// Elements of a line with its padding; lines that so many lines of positions need.
std::int64_t width_of(const Windows& w) {
  return (w.out[2] - 1) * w.step[2] + (w.taps[2] - 1) * w.dilation[2] + 1;
}
std::int64_t height_of(const Windows& w, std::int64_t lines) {
  return (lines - 1) * w.step[1] + (w.taps[1] - 1) * w.dilation[1] + 1;
}

bool has_lines(const Windows& w, std::int64_t channels, std::int64_t most = kMostFloats) {
  return w.size[0] == 1 && w.taps[0] == 1 && w.out[0] == 1 && w.low[0] == 0 &&
         channels * height_of(w, 1) * width_of(w) <= most;
}

// Some lines of an image with their padding, in float32.
class Lines {
 public:
  // planes: each channel by itself; else channels side by side. Windows have so many of them.
  Lines(const Tiles& tiles, const Matrix& a, std::int64_t channels, bool planes,
        std::int64_t in_window)
      : tiles_(tiles), w_(*a.windows), a_(a), channels_(channels), planes_(planes) {
    const std::int64_t one = channels * width_of(w_);
    const std::int64_t height = kFloats / std::max<std::int64_t>(one, 1);
    lines_ = std::clamp<std::int64_t>((height - height_of(w_, 1)) / w_.step[1] + 1, 1, w_.out[1]);
    height_ = height_of(w_, lines_);
    thread_local std::vector<float> room;
    if (const std::size_t size = at(height_ * one + kLineBehind); room.size() < size)
      room.resize(size);
    data_ = room.data();
    thread_local std::vector<std::int64_t> offsets;
    offsets.clear();
    for (std::int64_t y = 0; y < w_.taps[1]; ++y) {
      for (std::int64_t x = 0; x < w_.taps[2]; ++x) {
        for (std::int64_t c = 0; c < in_window; ++c)
          offsets.push_back(offset(c, y * w_.dilation[1], x * w_.dilation[2]));
      }
    }
    offsets_ = offsets.data();
  }

  const std::int64_t* offsets() const { return offsets_; }
  std::int64_t plane() const { return offset(1, 0, 0); }  // from one to the next
  std::int64_t step() const { return w_.step[2] * (planes_ ? 1 : channels_); }

  // Calls line(l, from): all lines of `rows` positions, some at a time, where `from` is the first
  // element of their first window. Of channels from `channel` on.
  template <class Work>
  void walk(std::int64_t rows, std::int64_t channel, Work line) {
    for (std::int64_t row = 0; row < rows;) {
      const Line first = line_at(w_, 0, row, rows);
      const std::int64_t lines =
          std::min({lines_, w_.out[1] - first.at[1],
                    parts(first.at[2] + rows - row, std::max<std::int64_t>(w_.out[2], 1))});
      fill(first.image, first.at[1], height_of(w_, lines), channel);
      for (std::int64_t i = 0; i < lines; ++i) {
        const Line l = line_at(w_, 0, row, rows);
        line(l, data_ + offset(0, i * w_.step[1], l.at[2] * w_.step[2]));
        row += l.count;
      }
    }
  }

 private:
  std::int64_t offset(std::int64_t channel, std::int64_t y, std::int64_t x) const {
    if (planes_) return (channel * height_ + y) * width_of(w_) + x;
    return (y * width_of(w_) + x) * channels_ + channel;
  }

  // `count` lines, the first of which position `line` needs first.
  void fill(std::int64_t image, std::int64_t line, std::int64_t count, std::int64_t channel) {
    const std::int64_t width = width_of(w_), planes = planes_ ? channels_ : 1;
    const std::int64_t begin = std::clamp<std::int64_t>(w_.low[2], 0, width);
    const std::int64_t end = std::clamp<std::int64_t>(w_.low[2] + w_.size[2], begin, width);
    const std::int64_t side = planes_ ? 1 : channels_;  // elements of a place
    const bool parted = planes_ && w_.channel_stride == 1 && channels_ > 1 &&
                        a_.storage == Storage::kF32;  // by copy_plane, all planes at once
    for (std::int64_t i = 0; parted && i < count; ++i) {
      const std::int64_t y = w_.place(1, line, 0) + i;
      if (!w_.within(1, y) || begin == end) continue;
      constexpr std::int64_t kBytes = sizeof(float);
      const std::int64_t from =
          place(image, y, begin) * kBytes + channel * w_.channel_stride * kBytes;
      copy_plane({reinterpret_cast<std::byte*>(data_ + offset(0, i, begin)),
                  height_ * width * kBytes, kBytes},
                 {const_cast<std::byte*>(a_.data) + from, kBytes, w_.stride[2] * kBytes},
                 channels_, end - begin, kBytes);
    }
    for (std::int64_t c = 0; c < planes; ++c) {
      for (std::int64_t i = 0; i < count; ++i) {
        float* const to = data_ + offset(c, i, 0);
        const std::int64_t y = w_.place(1, line, 0) + i;
        if (!w_.within(1, y)) {
          std::fill_n(to, width * side, 0.0f);
          continue;
        }
        std::fill_n(to, begin * side, 0.0f);
        if (!parted) {
          copy(place(image, y, begin) + (channel + c) * w_.channel_stride, to + begin * side,
               end - begin, side);
        }
        std::fill_n(to + end * side, (width - end) * side, 0.0f);
      }
    }
  }

  // Where the image has what lies at x of a line with its padding.
  std::int64_t place(std::int64_t image, std::int64_t y, std::int64_t x) const {
    return image * w_.image_stride + y * w_.stride[1] + (x - w_.low[2]) * w_.stride[2];
  }

  void copy(std::int64_t from, float* to, std::int64_t places, std::int64_t side) const {
    if (places == 0) return;
    const auto* data = a_.data + from * bytecode::storage_bytes(a_.storage);
    const auto copy = tiles_.copy[index(a_.storage)];
    if (w_.stride[2] == side) return copy(data, 0, to, 0, 1, places * side);
    copy(data, w_.stride[2], to, side, places, side);
  }

  const Tiles& tiles_;
  const Windows& w_;
  const Matrix& a_;
  std::int64_t channels_, lines_, height_;
  bool planes_;
  float* data_;
  const std::int64_t* offsets_;
};

// All channels of an image where they lie side by side, or one after the other.
bool reads_each(const Windows& w) {
  return w.channel_stride == 1 ? has_lines(w, w.channels) : has_lines(w, 1, kMostOfOne);
}

}  // namespace

bool reads_lines(const Windows& w) {
  const bool few = w.channels <= kFewChannels || w.channel_stride != 1;
  return !w.depthwise && few && w.out[2] >= kFewPositions && has_lines(w, w.channels);
}

bool reads_lines_to_planes(const Windows& w) {
  if (w.step[2] != 1 || !w.depthwise) return w.step[2] == 1 && reads_lines(w);
  return reads_each(w);
}

bool reads_lines_each(const Windows& w) {
  if (!w.depthwise || w.step[2] != 1) return false;
  return (w.channel_stride != 1 || w.channels <= kFewEach) && reads_each(w);
}

bool in_lines(Way way, const Windows& w) {
  if (way == Way::kEach) return reads_lines_each(w) || reads_lines_to_planes(w);
  return way == Way::kPacked && reads_lines(w);
}

void multiply_lines(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const float* packed,
                    float* c, std::int64_t c_stride, std::int64_t c_column) {
  const Windows& w = *a.windows;
  const bool few = w.step[2] == 1 && sizes.n <= kLineColumns;
  const bool planes = w.channel_stride != 1 || w.channels == 1 || c_column != 1;
  Lines lines(tiles, a, w.channels, planes, w.channels);
  const std::int64_t width = tiles.columns, step = even(sizes.k, kDepth);
  if (c_column != 1 || (planes && few)) {
    const std::int64_t columns = std::min<std::int64_t>(kLineColumns, width);
    lines.walk(sizes.m, 0, [&](const Line& line, const float* from) {
      for (std::int64_t j = 0; j < sizes.n; j += columns) {
        const float* panel = packed + j / width * width * sizes.packed_rows() + j % width;
        tiles.line[at(std::min(columns, sizes.n - j))](
            {from, lines.offsets(), sizes.k, panel, width, c + line.row * c_stride + j * c_column,
             c_stride, c_column, line.count});
      }
    });
    return;
  }
  lines.walk(sizes.m, 0, [&](const Line& line, const float* from) {
    const std::int64_t tile_rows = even(line.count, tiles.rows);
    for (std::int64_t p = 0; p < sizes.k; p += step) {
      for (std::int64_t j = 0; j < sizes.n; j += width) {
        const float* panel = packed + j * sizes.packed_rows() + p * width;
        for (std::int64_t i = 0; i < line.count; i += tile_rows) {
          const std::int64_t r = std::min(tile_rows, line.count - i);
          tiles.tile_at[at(r)]({from + i * lines.step(), lines.step(), panel, width,
                                c + (line.row + i) * c_stride + j, c_stride,
                                std::min(step, sizes.k - p), std::min(width, sizes.n - j), p > 0,
                                0, 0, lines.offsets() + p});
        }
      }
    }
  });
}

void multiply_lines_each(const Tiles& tiles, const Sizes& sizes, const Matrix& a,
                         const float* packed, float* c, std::int64_t c_stride,
                         std::int64_t c_column) {
  const std::int64_t width = tiles.columns;
  const std::int64_t at_once = a.windows->channel_stride == 1 ? sizes.n : 1;
  Lines lines(tiles, a, at_once, /*planes=*/true, /*in_window=*/1);
  for (std::int64_t first = 0; first < sizes.n; first += at_once) {
    lines.walk(sizes.m, first, [&](const Line& line, const float* from) {
      for (std::int64_t i = 0; i < at_once; ++i) {
        const std::int64_t j = first + i;
        tiles.line[1]({from + i * lines.plane(), lines.offsets(), sizes.k,
                       packed + j / width * width * sizes.packed_rows() + j % width, width,
                       c + line.row * c_stride + j * c_column, c_stride, c_column, line.count});
      }
    });
  }
}

}  // namespace tilevm::exec::gemm

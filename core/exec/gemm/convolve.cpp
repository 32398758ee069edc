#include "exec/gemm/convolve.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "exec/gemm/factors.h"
#include "exec/gemm/lines.h"

namespace tilevm::exec::gemm {
namespace {

// Rows of a panel that are transposed at a time stay in the first cache.
constexpr std::int64_t kTransposed = 128;

// Positions of a line for which the same taps lie in the image.
class Each {
 public:
  Each(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const float* packed, float* c,
       std::int64_t c_stride)
      : tiles_(tiles), w_(*a.windows), a_(a), run_(tiles.each[index(a.storage)]), c_(c) {
    block_.step = w_.step[2] * w_.stride[2];
    block_.packed = packed;
    block_.panel_stride = sizes.packed_rows() * tiles.columns;
    block_.c_stride = c_stride;
    block_.n = sizes.n;
    thread_local std::vector<std::int64_t> room;
    room.resize(at(2 * w_.count_taps()));
    offsets_ = room.data();
    rows_of_ = room.data() + w_.count_taps();
    block_.offsets = offsets_;
    block_.rows_of = rows_of_;
  }

  void run(const Line& line) {
    const std::int64_t o = line.at[2], end = o + line.count;
    // From the first position on whose first tap is inside, to the last whose last tap is.
    const std::int64_t begin = w_.first_at(0, 0, o, end);
    const std::int64_t behind = std::max(w_.first_at(w_.size[2], w_.taps[2] - 1, o, end), begin);
    for (std::int64_t i = o; i < begin; ++i) positions(line, i, 1);
    if (begin < behind) positions(line, begin, behind - begin);
    for (std::int64_t i = behind; i < end; ++i) positions(line, i, 1);
  }

 private:
  void positions(const Line& line, std::int64_t from, std::int64_t count) {
    block_.taps = 0;
    for (std::int64_t tap = 0; tap < w_.count_taps(); ++tap) {
      const std::int64_t x = w_.place(2, from, tap % w_.taps[2]);
      const std::int64_t y = w_.place(1, line.at[1], tap / w_.taps[2] % w_.taps[1]);
      const std::int64_t z = w_.place(0, line.at[0], tap / w_.taps[2] / w_.taps[1]);
      if (!w_.within(2, x) || !w_.within(1, y) || !w_.within(0, z)) continue;
      offsets_[block_.taps] =
          line.image * w_.image_stride + z * w_.stride[0] + y * w_.stride[1] + x * w_.stride[2];
      rows_of_[block_.taps++] = tap;
    }
    block_.from = a_.data;
    block_.c = c_ + (line.row + from - line.at[2]) * block_.c_stride;
    block_.positions = count;
    if (w_.channel_stride == 1) return run_(block_);
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t c = 0; c < block_.n; ++c) block_.c[i * block_.c_stride + c] = sum(i, c);
    }
  }

  // Of channels that do not lie side by side.
  float sum(std::int64_t position, std::int64_t channel) const {
    const std::int64_t width = tiles_.columns;
    const float* panel = block_.packed + channel / width * block_.panel_stride + channel % width;
    float sum = 0;
    for (std::int64_t tap = 0; tap < block_.taps; ++tap) {
      const std::int64_t from =
          offsets_[tap] + position * block_.step + channel * w_.channel_stride;
      sum += read(a_.data + from * bytecode::storage_bytes(a_.storage), tiles_, a_.storage) *
             panel[rows_of_[tap] * width];
    }
    return sum;
  }

  const Tiles& tiles_;
  const Windows& w_;
  const Matrix& a_;
  void (*run_)(const EachBlock&);
  EachBlock block_{};
  float* c_;
  std::int64_t *offsets_, *rows_of_;
};

// 1 or -1, if the taps of a right factor are one run that way; else 0.
std::int64_t direction(const Matrix& b) {
  std::int64_t way = 0, between = 1;
  for (std::size_t axis = kImageAxes; axis-- > 0; between *= b.taps[axis]) {
    if (b.taps[axis] == 1) continue;
    const std::int64_t sign = b.tap_stride[axis] < 0 ? -1 : 1;
    if (b.tap_stride[axis] != sign * between || way == -sign) return 0;
    way = sign;
  }
  return way;
}

}  // namespace

void copy_windows(const Tiles& tiles, const Matrix& a, std::int64_t row, std::int64_t rows,
                  std::int64_t p, std::int64_t depth, float* to, std::int64_t to_stride) {
  const std::int64_t item = bytecode::storage_bytes(a.storage);
  const auto copy = tiles.copy[index(a.storage)];
  const std::int64_t apart = a.windows->channel_stride;
  walk(
      *a.windows, row, rows, p, depth,
      [&](std::int64_t offset, std::int64_t stride, std::int64_t i, std::int64_t n,
          std::int64_t column, std::int64_t count) {
        const std::byte* from = a.data + offset * item;
        float* target = to + i * to_stride + column;
        if (apart == 1 || count == 1) {
          copy(from, stride, target, to_stride, n, count);
          return;
        }
        for (std::int64_t r = 0; r < n; ++r) {
          for (std::int64_t q = 0; q < count; ++q)
            target[r * to_stride + q] =
                read(from + (r * stride + q * apart) * item, tiles, a.storage);
        }
      },
      [&](std::int64_t i, std::int64_t n, std::int64_t column, std::int64_t count) {
        for (std::int64_t r = 0; r < n; ++r)
          std::fill_n(to + (i + r) * to_stride + column, count, 0.0f);
      });
}

void copy_windows(const Matrix& a, std::int64_t row, std::int64_t rows, std::int64_t p,
                  std::int64_t depth, Brain* to, std::int64_t to_stride) {
  const std::int64_t apart = a.windows->channel_stride;
  const auto* image = reinterpret_cast<const Brain*>(a.data);
  walk(
      *a.windows, row, rows, p, depth,
      [&](std::int64_t offset, std::int64_t stride, std::int64_t i, std::int64_t n,
          std::int64_t column, std::int64_t count) {
        for (std::int64_t r = 0; r < n; ++r) {
          const Brain* from = image + offset + r * stride;
          Brain* target = to + (i + r) * to_stride + column;
          if (apart == 1) {
            std::memcpy(target, from, at(count) * sizeof(Brain));
          } else {
            for (std::int64_t q = 0; q < count; ++q) target[q] = from[q * apart];
          }
        }
      },
      [&](std::int64_t i, std::int64_t n, std::int64_t column, std::int64_t count) {
        for (std::int64_t r = 0; r < n; ++r)
          std::fill_n(to + (i + r) * to_stride + column, count, Brain{0});
      });
}

namespace {

// put(row, values): each row of columns j .. j + columns of a right factor with taps, as float32;
// Tiles::columns values, of which those that are no columns are 0.
template <class Put>
void each_row_of_taps(const Tiles& tiles, const Matrix& b, std::int64_t rows, std::int64_t j,
                      std::int64_t columns, Put put) {
  const std::int64_t width = tiles.columns, taps = b.count_taps();
  const auto transpose = tiles.transpose[index(b.storage)];
  const std::int64_t item = bytecode::storage_bytes(b.storage);
  // Taps may be one run, forwards or, as gradients read them, backwards; and channels of all taps,
  // as PyTorch keeps them, or columns: such runs are transposed, some at a time, and their rows go
  // where they belong.
  const std::int64_t way = direction(b);
  const bool run = way == 1 && b.row_stride == taps;
  const bool columns_run = way != 0 && b.column_stride == taps && taps <= kTransposed;
  alignas(64) float values[kTransposed * kMostColumns];
  if (columns < width) std::fill_n(values, kTransposed * width, 0.0f);
  if (run) {
    for (std::int64_t from = 0; from < rows; from += kTransposed) {
      const std::int64_t some = std::min(kTransposed, rows - from);
      const std::byte* first_row = b.data + (from + j * b.column_stride) * item;
      transpose(first_row, b.column_stride, values, width, some, columns);
      for (std::int64_t i = 0; i < some; ++i)
        put((from + i) % taps * b.channels + (from + i) / taps, values + i * width);
    }
  } else if (columns_run) {
    const std::int64_t first_tap = way < 0 ? taps - 1 : 0;
    for (std::int64_t channel = 0; channel < b.channels; ++channel) {
      const std::int64_t from = channel * b.row_stride + j * taps - first_tap;
      transpose(b.data + from * item, taps, values, width, taps, columns);
      for (std::int64_t i = 0; i < taps; ++i)
        put((way < 0 ? taps - 1 - i : i) * b.channels + channel, values + i * width);
    }
  } else {
    const bool side_by_side = b.column_stride == 1;
    const auto copy = tiles.copy[index(b.storage)];
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::byte* from = element(b, row, j);
      if (side_by_side) copy(from, 0, values, width, 1, columns);
      if (!side_by_side) transpose(from, b.column_stride, values, width, 1, columns);
      put(row, values);
    }
  }
}

}  // namespace

void pack_taps(const Tiles& tiles, const Sizes& sizes, const Matrix& b, std::int64_t first,
               std::int64_t count, float* packed) {
  const std::int64_t width = tiles.columns;
  for (std::int64_t j = first; j < first + count; j += width) {
    float* panel = packed + j * sizes.k;
    each_row_of_taps(tiles, b, sizes.k, j, std::min(width, sizes.n - j),
                     [&](std::int64_t row, const float* values) {
                       std::memcpy(panel + row * width, values, at(width) * sizeof(float));
                     });
  }
}

void pack_taps_in_pairs(const Tiles& tiles, const Sizes& sizes, const Matrix& b, std::int64_t first,
                        std::int64_t count, std::int64_t packed_rows, Brain* packed) {
  const std::int64_t width = tiles.columns;
  for (std::int64_t j = first; j < first + count; j += width) {
    Brain* panel = packed + j * packed_rows;
    const std::int64_t whole = sizes.k / 2 * 2;
    std::fill_n(panel + whole * width, (packed_rows - whole) * width, Brain{0});
    each_row_of_taps(tiles, b, sizes.k, j, std::min(width, sizes.n - j),
                     [&](std::int64_t row, const float* values) {
                       Brain* to = panel + row / 2 * 2 * width + row % 2;
                       for (std::int64_t c = 0; c < width; ++c)
                         to[2 * c] =
                             static_cast<Brain>(std::bit_cast<std::uint32_t>(values[c]) >> 16);
                     });
  }
}

void multiply_each(const Tiles& tiles, const Sizes& sizes, const Matrix& a, const float* packed,
                   float* c, std::int64_t c_stride) {
  if (reads_lines_each(*a.windows))
    return multiply_lines_each(tiles, sizes, a, packed, c, c_stride);
  Each each(tiles, sizes, a, packed, c, c_stride);
  for (std::int64_t row = 0; row < sizes.m;) {
    const Line line = line_at(*a.windows, 0, row, sizes.m);
    each.run(line);
    row += line.count;
  }
}

}  // namespace tilevm::exec::gemm

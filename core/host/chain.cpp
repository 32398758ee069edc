// Matrix products and what runs with them: from records of values to a launch.
#include <algorithm>

#include "host/errors.h"
#include "host/executable.h"
#include "host/frame.h"
#include "schedule/chain_axes.h"
#include "trace/trace.h"

namespace tilevm::host {
namespace {

using bytecode::Storage;

// Above this much work, other Python threads may run meanwhile: about 50 us.
constexpr double kUnlockFlops = 1 << 22;

std::size_t at(SizeId id) { return static_cast<std::size_t>(id); }

int panel_of(const fuse::Chain& chain, ValueId value) {
  const auto found = std::ranges::find(chain.panels, value);
  return found == chain.panels.end() ? -1 : static_cast<int>(found - chain.panels.begin());
}

// Byte strides of a factor's or result's batches along the chain's rows; of a size of 1: 0.
void set_batches(const Record& record, std::int64_t item, int n_rows, schedule::RowStrides& to) {
  to = {};
  for (int d = 0; d < record.rank - 2; ++d) {
    const int row = n_rows - 1 - (record.rank - 2) + d;
    if (record.size(d) != 1) to[static_cast<std::size_t>(row)] = record.stride(d) * item;
  }
}

// Where each of a chain's groups of rows ends, then where all `rows` do. Raises: IndexError.
std::vector<std::int64_t> read_ends(const Program& program, const Node& node, const Record& record,
                                    std::int64_t rows) {
  const bool wide = program.type(node.inputs[2]).dtype == DType::kInt64;
  const std::int64_t step = record.stride(0) * (wide ? 8 : 4);
  std::vector<std::int64_t> ends;
  ends.reserve(static_cast<std::size_t>(record.size(0)) + 1);
  for (std::int64_t g = 0; g < record.size(0); ++g) {
    const std::byte* const at = record.data + g * step;
    const std::int64_t end = wide ? *reinterpret_cast<const std::int64_t*>(at)
                                  : *reinterpret_cast<const std::int32_t*>(at);
    const std::int64_t first = ends.empty() ? 0 : ends.back();
    if (end < first || end > rows) {
      const std::string line = program.line_of(node.line);
      throw IndexError((line.empty() ? line : line + ": ") + "grouped_matmul: group " +
                       std::to_string(g) + " ends at row " + std::to_string(end) +
                       ", but begins at row " + std::to_string(first) + " of " +
                       std::to_string(rows) +
                       ". Ends of groups ascend, and none is behind the last row.");
    }
    ends.push_back(end);
  }
  ends.push_back(rows);
  return ends;
}

}  // namespace

// What does not depend on sizes; the rest is written at each launch.
schedule::ChainLaunch Executable::new_launch(const fuse::Chain& chain) {
  schedule::ChainLaunch launch;
  launch.panels.resize(chain.panels.size());
  for (const fuse::Chain::Stage& from : chain.stages) {
    schedule::Stage& stage = launch.stages.emplace_back();
    if (from.kernel < 0) {
      stage.a_panel = panel_of(chain, from.a);
      stage.out_panel = panel_of(chain, from.out);
      continue;
    }
    stage.kernel = &kernels_[static_cast<std::size_t>(from.kernel)];
    const fuse::KernelGraph& graph = stage.kernel->graph();
    stage.axis_sizes.resize(graph.axes.size());
    stage.operands.resize(graph.operands.size());
    for (const fuse::OperandRef& operand : graph.operands) {
      const int panel = operand.value < 0 ? -1 : panel_of(chain, operand.value);
      stage.panel.push_back(panel);
      if (panel >= 0)
        launch.panels[static_cast<std::size_t>(panel)].item_bytes =
            bytecode::storage_bytes(operand.storage);
    }
  }
  return launch;
}

// Windows of an image, its channels last, with so many taps an axis; parameters: stride, dilation,
// low, high.
void Executable::fill_windows(const Record& image, const Attr* parameters, const std::int64_t* taps,
                              exec::gemm::Windows& w) {
  using exec::gemm::kImageAxes;
  const int axes = image.rank - 2;
  w = {};
  for (int i = 0; i < axes; ++i) {
    const auto axis = static_cast<std::size_t>(kImageAxes - axes + i);
    const auto parameter = [&](int which) {
      return parameters[which].ints[static_cast<std::size_t>(i)];
    };
    w.size[axis] = image.size(i + 1);
    w.stride[axis] = image.stride(i + 1);
    w.taps[axis] = taps[i];
    w.step[axis] = parameter(0);
    w.dilation[axis] = parameter(1);
    w.low[axis] = parameter(2);
    const std::int64_t room = w.size[axis] + w.low[axis] + parameter(3) - 1;
    w.out[axis] = (room - (w.taps[axis] - 1) * w.dilation[axis]) / w.step[axis] + 1;
  }
  w.image_stride = image.stride(0);
  w.channels = image.size(image.rank - 1);
  w.channel_stride = w.channels == 1 ? 1 : image.stride(image.rank - 1);
}

// The gradient of windows: y, turned round, times windows of the image.
void Executable::fill_gradient(const Record& y, const Record& image, const Node& node,
                               schedule::Stage& stage) {
  fill_windows(image, &node.attrs[1], node.attrs[0].ints.data(), stage.windows);
  const std::int64_t item = bytecode::storage_bytes(stage.a.storage);
  stage.a.data = y.data;
  stage.a.column_stride = y.stride(0);
  stage.a_rows = {y.stride(1) * item};
  stage.b.data = image.data;
  stage.b.column_stride = stage.windows.channel_stride;
  stage.b.windows = &stage.windows;
  stage.b_rows = {};
  stage.k = y.size(0);
  stage.n = stage.windows.count_taps() * stage.windows.channels;
}

// Windows of the image `a` and the taps of `b`, channels last, as factors of a product. Windows of
// one element, each in an image that is not padded, are the image itself; but where its axes are
// not one run, windows are copied for many rows at a time.
void Executable::fill_convolution(const Record& a, const Record& b, const Record& out,
                                  const Node& node, schedule::Stage& stage) {
  using exec::gemm::kImageAxes;
  const int axes = a.rank - 2;
  exec::gemm::Windows& w = stage.windows;
  fill_windows(a, node.attrs.data(), b.sizes.data() + 1, w);
  exec::gemm::Matrix& right = stage.b;
  bool plain = true;
  for (int i = 0; i < axes; ++i) {
    const auto axis = static_cast<std::size_t>(kImageAxes - axes + i);
    const auto parameter = [&](std::size_t which) {
      return node.attrs[which].ints[static_cast<std::size_t>(i)];
    };
    right.taps[axis] = b.size(i + 1);
    right.tap_stride[axis] = b.stride(i + 1);
    plain = plain && w.taps[axis] == 1 && parameter(2) == 0 && parameter(3) == 0 &&
            (parameter(0) == 1 || w.out[axis] == 1) &&
            (a.size(i) == 1 || a.stride(i) == a.size(i + 1) * a.stride(i + 1));
  }
  w.depthwise = node.attrs[4].ints[0] != 0;
  right.column_stride = b.stride(0);
  right.row_stride = b.stride(b.rank - 1);
  right.channels = w.depthwise ? 1 : w.channels;
  stage.n = b.size(0);
  stage.k = right.count_taps() * right.channels;

  // Taps that are one run with each other and with channels are rows like any others.
  std::int64_t run = right.channels;
  std::int64_t between = right.channels == 1 ? 0 : right.row_stride;
  bool one_run = true;
  for (int axis = kImageAxes - 1; axis >= 0; --axis) {
    const auto i = static_cast<std::size_t>(axis);
    if (right.taps[i] == 1) continue;
    if (run == 1) between = right.tap_stride[i];
    one_run = one_run && right.tap_stride[i] == run * between;
    run *= right.taps[i];
  }
  if (one_run) {
    right.row_stride = between;
    right.taps = {1, 1, 1};
    right.tap_stride = {};
    right.channels = 0;
  }

  stage.a.data = a.data;
  stage.a_rows = {};
  const std::int64_t item = bytecode::storage_bytes(stage.a.storage);
  std::int64_t rows = 1;
  for (int i = axes; i >= 0; --i) {
    const auto row = static_cast<std::size_t>(i);
    stage.a_rows[row] = plain && !w.depthwise ? a.stride(i) * item : rows;
    rows *= out.size(i);
  }
  stage.a.windows = plain && !w.depthwise ? nullptr : &stage.windows;
  stage.a.column_stride = w.channel_stride;
}

void Executable::fill_product(Frame& frame, const fuse::Chain& chain, std::size_t s,
                              schedule::ChainLaunch& launch) const {
  const fuse::Chain::Stage& from = chain.stages[s];
  schedule::Stage& stage = launch.stages[s];
  const Program& program = plan_.program;
  const int n_rows = static_cast<int>(chain.rows.size());
  const auto last = static_cast<std::size_t>(n_rows - 1);
  const Shape& shape = program.type(from.out).shape;
  stage.n = frame.regs[at(shape[shape.rank - 1])];

  const Record& b = frame.records[index(from.b)];
  const Storage b_storage = fuse::storage_of(program.type(from.b).dtype);
  const std::int64_t b_item = bytecode::storage_bytes(b_storage);
  stage.k = b.size(b.rank - 2);
  stage.b = {b.data, b.stride(b.rank - 2), b.stride(b.rank - 1), b_storage};
  stage.b_rows = {};
  if (from.conv < 0 && chain.grouped < 0) set_batches(b, b_item, n_rows, stage.b_rows);
  stage.fixed = b.root >= 0 && frozen_[index(b.root)];

  const Storage a_storage = fuse::storage_of(program.type(from.a).dtype);
  stage.a = {nullptr, 0, 1, a_storage};
  if (from.conv >= 0) {
    const Node& node = program.nodes[static_cast<std::size_t>(from.conv)];
    Record sizes;  // of the result
    sizes.rank = shape.rank;
    for (int d = 0; d < shape.rank; ++d) sizes.size(d) = frame.regs[at(shape[d])];
    if (node.op == Op::conv_windows) {
      fill_gradient(frame.records[index(from.a)], b, node, stage);
    } else {
      fill_convolution(frame.records[index(from.a)], b, sizes, node, stage);
    }
  } else if (stage.a_panel < 0) {
    const Record& a = frame.records[index(from.a)];
    const std::int64_t item = bytecode::storage_bytes(a_storage);
    stage.a.data = a.data;
    stage.a.column_stride = a.stride(a.rank - 1);
    set_batches(a, item, n_rows, stage.a_rows);
    stage.a_rows[last] = a.stride(a.rank - 2) * item;
  } else {
    launch.panels[static_cast<std::size_t>(stage.a_panel)].columns = stage.k;
  }
  if (stage.out_panel < 0) {
    const Record& out = frame.records[index(from.out)];
    stage.out = out.data;
    set_batches(out, sizeof(float), n_rows, stage.out_rows);
    stage.out_rows[last] = out.stride(out.rank - 2) * static_cast<std::int64_t>(sizeof(float));
    stage.out_column = out.stride(out.rank - 1) * static_cast<std::int64_t>(sizeof(float));
  } else {
    launch.panels[static_cast<std::size_t>(stage.out_panel)].columns = stage.n;
  }
}

void Executable::fill_kernel(Frame& frame, const fuse::Chain& chain, std::size_t s,
                             schedule::ChainLaunch& launch) const {
  const fuse::Chain::Stage& from = chain.stages[s];
  schedule::Stage& stage = launch.stages[s];
  const fuse::KernelGraph& graph = stage.kernel->graph();
  for (std::size_t a = 0; a < graph.axes.size(); ++a)
    stage.axis_sizes[a] = frame.regs[at(graph.axes[a])];
  std::copy(from.row_axis.begin(), from.row_axis.end(), stage.row_axis.begin());
  stage.column_axis = from.column_axis;
  double bytes = 0;
  for (std::size_t o = 0; o < graph.operands.size(); ++o) {
    if (stage.panel[o] >= 0) continue;
    stage.operands[o] = view_of(frame, graph, o, stage.axis_sizes, nullptr, bytes);
  }
}

namespace {

// Of a product that is less precise than float32.
std::string precision(const schedule::ChainLaunch& launch, const schedule::Stage& stage) {
  const int bits = 8 * exec::gemm::pieces_of_float32(*launch.tiles, stage.way);
  return bits == 0 || bits == 8 * exec::gemm::kMostPieces ? ""
                                                          : " of " + std::to_string(bits) + " bits";
}

}  // namespace

std::vector<std::string> Executable::ways(int chain) {
  std::vector<std::string> result;
  std::unique_ptr<Frame> frame = take_frame();
  const schedule::ChainLaunch& launch = frame->chains[static_cast<std::size_t>(chain)];
  for (const schedule::Stage& stage : launch.stages) {
    const auto& sizes = stage.sizes;
    if (stage.kernel != nullptr || sizes.m == 0) continue;
    const std::string m = std::to_string(sizes.m), n = std::to_string(sizes.n);
    const std::string k = std::to_string(sizes.k);
    result.push_back("[" + m + ", " + k + "] x [" + k + ", " + n + "] by " +
                     exec::gemm::name(stage.way) + precision(launch, stage) +
                     (stage.packed != nullptr ? ", packed ahead" : ""));
  }
  give_frame(std::move(frame));
  return result;
}

// What `factor`, the right factor `value` of this call, was packed to, now or before. Null if there
// is no room.
std::shared_ptr<const float> Executable::packed(Frame& frame, ValueId value,
                                                const exec::gemm::Factor& factor,
                                                const exec::gemm::Tiles& tiles, int threads) {
  Packings& packings = packings_[index(value)];
  const std::uint64_t changes = exec::gemm::ahead_changes();
  {
    const std::lock_guard lock(mutex_);
    for (const exec::gemm::SharedAhead& ahead : packings.found) {
      exec::gemm::Factor wanted = factor;
      wanted.owner = exec::gemm::factor(*ahead).owner;
      if (wanted != exec::gemm::factor(*ahead)) continue;
      if (std::shared_ptr<const float> memory = exec::gemm::memory(*ahead)) return memory;
    }
    if (packings.full == changes) return nullptr;
  }
  exec::gemm::Factor known = factor;
  known.owner = framework_.owner(tensor(frame, frame.records[index(value)].root));
  exec::gemm::SharedAhead ahead = exec::gemm::share(tiles, known, threads);
  const std::lock_guard lock(mutex_);
  if (!ahead) {
    packings.full = changes;
    return nullptr;
  }
  std::shared_ptr<const float> memory = exec::gemm::memory(*ahead);
  std::erase_if(packings.found, [&](const exec::gemm::SharedAhead& other) {
    return other == ahead || exec::gemm::memory(*other) == nullptr;
  });
  packings.found.push_back(std::move(ahead));
  return memory;
}

// Right factors that do not change, where a way is quickest that packs.
void Executable::pack_ahead(Frame& frame, const fuse::Chain& chain, schedule::ChainLaunch& launch,
                            const exec::gemm::Tiles& tiles, int threads) {
  for (std::size_t s = 0; s < chain.stages.size(); ++s) {
    schedule::Stage& stage = launch.stages[s];
    if (stage.kernel != nullptr || !stage.fixed || !packs(stage.way)) continue;
    std::shared_ptr<const float> memory =
        packed(frame, chain.stages[s].b, {0, stage.b, stage.n, stage.k, stage.way, &tiles},
               tiles, threads);
    if (memory) {
      stage.packed = memory.get();
      if (frame.tape != nullptr) frame.tape->packed.push_back(memory);
      frame.packed.push_back(std::move(memory));
    } else {
      stage.fixed = false;
      choose_way(stage, tiles);
      if (frame.tape != nullptr) frame.tape->launches->refused = true;  // there may be room later
    }
  }
}

// What has been filled in; `kernel`: one of its stages, for errors.
void Executable::launch_chain(Frame& frame, const fuse::Chain& chain,
                              schedule::ChainLaunch& launch, int kernel) {
  const bool unlocks = schedule::flops(launch) > kUnlockFlops;
  const int threads = framework_.threads();
  // Convolutions are asked for by another setting, of which nothing is made here.
  const bool convolves = std::ranges::any_of(launch.stages, [](const schedule::Stage& stage) {
    return stage.kernel == nullptr && (stage.a.windows != nullptr || stage.b.windows != nullptr);
  });
  // Each float16 is two pieces, whatever is asked for float32.
  const bool halves = std::ranges::all_of(launch.stages, [](const schedule::Stage& stage) {
    return stage.kernel != nullptr || (stage.a.storage == bytecode::Storage::kF16 &&
                                       stage.b.storage == bytecode::Storage::kF16);
  });
  const exec::gemm::Tiles& tiles = schedule::tiles_of(tier_, halves      ? exec::gemm::kHighPieces
                                                             : convolves ? exec::gemm::kMostPieces
                                                                         : frame.pieces);
  prepare(launch, tiles);
  if (!packings_.empty()) pack_ahead(frame, chain, launch, tiles, threads);
  schedule::Tape* const tape = begin_launch(frame, unlocks);
  if (unlocks) framework_.unlock();
  const exec::Status status = schedule::run_chain(launch, tiles, threads, tape);
  if (unlocks) framework_.lock();
  frame.packed.clear();
  if (status == exec::Status::kNoMemory) throw MemoryError("no memory for a matrix product");
  if (status != exec::Status::kOk) fail(status, kernel);
}

// Each group of rows by itself, as if it were a product of few or many rows: only the data know
// how many. Rows behind the last group are products of nothing.
void Executable::launch_groups(Frame& frame, const fuse::Chain& chain,
                               schedule::ChainLaunch& launch, int kernel) {
  // Another call of these sizes may have other groups.
  if (frame.tape != nullptr) frame.tape->launches->refused = true;
  const Node& node = plan_.program.nodes[static_cast<std::size_t>(chain.grouped)];
  const Record& groups = frame.records[index(node.inputs[2])];
  const std::vector<std::int64_t> ends = read_ends(plan_.program, node, groups, launch.rows[0]);
  schedule::ChainLaunch part;
  std::int64_t first = 0, most = 0;
  for (std::size_t g = 0; g < ends.size(); ++g) {
    const std::int64_t rows = ends[g] - first;
    if (rows == 0) continue;
    part = launch;
    narrow_rows(part, first, rows);
    first = ends[g];
    for (std::size_t s = 0; s < chain.stages.size(); ++s) {
      schedule::Stage& stage = part.stages[s];
      if (stage.kernel != nullptr) continue;
      if (g + 1 < ends.size()) {
        const std::int64_t bytes = bytecode::storage_bytes(stage.b.storage);
        const Record& b = frame.records[index(chain.stages[s].b)];
        stage.b.data += static_cast<std::int64_t>(g) * b.stride(0) * bytes;
      } else {
        stage.k = 0;
        stage.fixed = false;
      }
    }
    launch_chain(frame, chain, part, kernel);
    if (rows <= most) continue;
    most = rows;
    launch.tiles = part.tiles;
    for (std::size_t s = 0; s < chain.stages.size(); ++s) {  // for explain: of the largest
      launch.stages[s].sizes = part.stages[s].sizes;
      launch.stages[s].way = part.stages[s].way;
      launch.stages[s].packed = part.stages[s].packed;
    }
  }
}

void Executable::run_chain(Frame& frame, int which) {
  const trace::Span span("launch", "products");
  const fuse::Chain& chain = plan_.chains[static_cast<std::size_t>(which)];
  schedule::ChainLaunch& launch = frame.chains[static_cast<std::size_t>(which)];
  launch.n_rows = static_cast<int>(chain.rows.size());
  launch.columns_too = chain.columns_too;
  launch.causal = chain.causal >= 0 ? 0 : INT64_MAX;
  launch.masks = chain.causal >= 0 ? static_cast<std::size_t>(chain.causal) : 0;
  for (std::size_t i = 0; i < chain.rows.size(); ++i)
    launch.rows[i] = frame.regs[at(chain.rows[i])];
  int kernel = -1;
  for (std::size_t s = 0; s < chain.stages.size(); ++s) {
    if (chain.stages[s].kernel < 0) {
      fill_product(frame, chain, s, launch);
    } else {
      fill_kernel(frame, chain, s, launch);
      kernel = chain.stages[s].kernel;
    }
  }
  check_points(std::span(launch.rows).first(chain.rows.size()), kernel);
  if (chain.grouped >= 0) {
    launch_groups(frame, chain, launch, kernel);
  } else {
    launch_chain(frame, chain, launch, kernel);
  }
}

}  // namespace tilevm::host

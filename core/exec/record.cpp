#include "exec/record.h"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>
#include <mutex>
#include <stdexcept>
#include <type_traits>

namespace tilevm::exec {
namespace {

using bytecode::Role;
using std::int64_t;

constexpr int64_t kMostBytes = 1 << 16;  // of an operand
constexpr int kMostLaunches = 3;         // of a program

std::atomic<bool> active{false};
std::mutex mutex;  // of what follows
std::ofstream file;
std::map<std::vector<std::byte>, int> launches;

// The bytes that an operand's elements span, from the first address to the last, seen from the
// base. Empty if the space or a gathered axis is.
struct Span {
  int64_t lo, hi;
};
Span span_of(const Space& space, const Binding& b, const bytecode::OperandInfo& info) {
  Span span = {0, bytecode::storage_bytes(info.storage)};
  const auto axis = [&](int64_t size, int64_t stride) {
    if (size == 0) span.hi = span.lo;
    if (span.hi == span.lo) return;
    (stride < 0 ? span.lo : span.hi) += (size - 1) * stride;
  };
  const bool over_x = (static_cast<int>(info.cls) & 1) != 0;
  axis(space.rows, b.y_stride);
  axis(space.cols, over_x ? b.x_stride : 0);
  for (int i = 0; i < space.n_outer; ++i) axis(space.outer[i], b.outer[i]);
  for (int i = 0; i < space.n_reduced; ++i) axis(space.reduced[i], b.reduced[i]);
  if (info.role == Role::kGather) axis(b.gather_size, b.gather_stride);
  return span;
}

std::vector<std::byte> copied(const Binding& b, const Span& span) {
  return {b.base + span.lo, b.base + span.hi};
}

template <class T>
void put(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  file.write(reinterpret_cast<const char*>(&value), sizeof(T));
}
void put(const std::vector<std::byte>& bytes) {
  put(static_cast<int64_t>(bytes.size()));
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<int64_t>(bytes.size()));
}
template <class T>
void get(std::istream& from, T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  from.read(reinterpret_cast<char*>(&value), sizeof(T));
}
void get(std::istream& from, std::vector<std::byte>& bytes) {
  int64_t size = 0;
  get(from, size);
  if (!from || size < 0) throw std::runtime_error("launches: the file is cut off");
  bytes.resize(static_cast<std::size_t>(size));
  from.read(reinterpret_cast<char*>(bytes.data()), size);
}

}  // namespace

void record_launches(const std::string& path) {
  const std::lock_guard lock(mutex);
  launches.clear();
  file = {};
  if (!path.empty()) file.open(path, std::ios::binary | std::ios::trunc);
  if (!file) throw std::runtime_error("launches: cannot write " + path);
  active = !path.empty();
}

bool recording() { return active.load(std::memory_order_relaxed); }

Status record(std::span<const std::byte> program, const Launch& launch,
              const std::function<Status()>& run) {
  const bytecode::View view = bytecode::view(program);
  std::vector<Span> spans;
  std::vector<RecordedLaunch::Memory> memory(view.operands.size());
  bool fits = true;
  for (std::size_t i = 0; i < view.operands.size(); ++i) {
    const auto& info = view.operands[i];
    const bool stored = info.role != Role::kScratch && info.role != Role::kIota;
    spans.push_back(stored ? span_of(launch.space, launch.bindings[i], info) : Span{0, 0});
    fits =
        fits && (!stored || (spans[i].lo < spans[i].hi && spans[i].hi - spans[i].lo <= kMostBytes));
  }
  if (!fits) return run();
  for (std::size_t i = 0; i < memory.size(); ++i) {
    memory[i] = {-spans[i].lo, copied(launch.bindings[i], spans[i]), {}};
  }
  const Status status = run();
  const std::lock_guard lock(mutex);
  const std::vector<std::byte> bytes(program.begin(), program.end());
  if (!file.is_open() || ++launches[bytes] > kMostLaunches) return status;
  put(bytes);
  put(launch.space);
  put(status);
  for (std::size_t i = 0; i < memory.size(); ++i) {
    if (view.operands[i].role == Role::kOutput) {
      memory[i].after = copied(launch.bindings[i], spans[i]);
    }
    Binding binding = launch.bindings[i];
    binding.base = nullptr;
    put(binding);
    put(memory[i].base);
    put(memory[i].before);
    put(memory[i].after);
  }
  file.flush();
  return status;
}

std::vector<RecordedLaunch> read_launches(const std::string& path) {
  std::ifstream from(path, std::ios::binary);
  if (!from) throw std::runtime_error("launches: cannot read " + path);
  std::vector<RecordedLaunch> result;
  while (from.peek() != std::ifstream::traits_type::eof()) {
    RecordedLaunch& launch = result.emplace_back();
    get(from, launch.program);
    if (const std::string error = bytecode::verify(launch.program); !error.empty()) {
      throw std::runtime_error("launches: " + error);
    }
    get(from, launch.space);
    get(from, launch.status);
    const std::size_t n = bytecode::view(launch.program).operands.size();
    launch.bindings.resize(n);
    launch.memory.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      get(from, launch.bindings[i]);
      get(from, launch.memory[i].base);
      get(from, launch.memory[i].before);
      get(from, launch.memory[i].after);
    }
  }
  return result;
}

}  // namespace tilevm::exec

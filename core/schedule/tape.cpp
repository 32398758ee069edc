#include "schedule/tape.h"

#include <atomic>
#include <new>
#include <span>

#include "exec/gemm/lines.h"
#include "exec/plane.h"

namespace tilevm::schedule {
namespace {

std::atomic<std::size_t> bytes_of_all{0};  // that keep more than a few

}  // namespace

Tape::~Tape() {
  for (const exec::Block& block : blocks) exec::release(block);
  bytes_of_all.fetch_sub(shared_bytes, std::memory_order_relaxed);
}

std::byte* Tape::room(Room which, std::size_t size) noexcept try {
  if (refused) return nullptr;
  exec::Block& now = rooms[static_cast<std::size_t>(which)];
  if (now.bytes >= size) return now.data;
  blocks.reserve(blocks.size() + 1);
  const exec::Block block = exec::acquire(size);
  refused = block.data == nullptr;
  if (refused) return nullptr;
  bytes += size;
  kept_bytes += block.bytes;
  if (bytes > kFewBytes) {
    const std::size_t more = kept_bytes - shared_bytes;
    shared_bytes = kept_bytes;
    const std::size_t before = bytes_of_all.fetch_add(more, std::memory_order_relaxed);
    refused = bytes > kMostBytes || before + more > kMostOfAll;
  }
  blocks.push_back(block);  // the smaller one stays: actions have its address
  now = block;
  return refused ? nullptr : block.data;
} catch (const std::bad_alloc&) {
  refused = true;
  return nullptr;
}

void Tape::note(const Variant& variant, const exec::Launch& launch, std::size_t stage) noexcept
    try {
  refused = refused || bindings.size() + launch.bindings.size() > kMostBindings;
  if (refused) return;
  const std::size_t first = bindings.size();
  bindings.insert(bindings.end(), launch.bindings.begin(), launch.bindings.end());
  actions.push_back(
      {Launched{&variant, launch.space, first, launch.bindings.size()}, stage, is_long});
} catch (const std::bad_alloc&) {
  refused = true;
}

void Tape::note(Action action) noexcept try {
  refused = refused || actions.size() >= kMostBindings;
  action.is_long = is_long;
  if (!refused) actions.push_back(action);
} catch (const std::bad_alloc&) {
  refused = true;
}

exec::Status Tape::run(std::size_t& failed, const Others& others) const noexcept {
  for (const exec::Block& block : blocks) exec::poison(block);
  // Others run while this is `on`; in the end they do no more.
  struct Turn {
    const Others& others;
    bool on = false;
    void set(bool want) {
      if (want != on) others.let(others.caller, on = want);
    }
    ~Turn() { set(false); }
  } turn{others};
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const auto& what = actions[i].what;
    turn.set(actions[i].is_long);
    if (const auto* kernel = std::get_if<Launched>(&what)) {
      const std::span all(bindings);
      const exec::Status status =
          run_again(*kernel->variant, {kernel->space, all.subspan(kernel->first, kernel->count)});
      if (status == exec::Status::kOk) continue;
      failed = i;
      return status;
    }
    if (const auto* loop = std::get_if<exec::loops::Loop>(&what)) {
      const exec::Status status = exec::loops::run(*loop, 1);
      if (status == exec::Status::kOk) continue;
      failed = i;
      return status;
    }
    if (const auto* product = std::get_if<Multiplied>(&what)) {
      schedule::run(*tiles, *product);
    } else {
      schedule::run(*tiles, std::get<Packed>(what));
    }
  }
  return exec::Status::kOk;
}

void run(const exec::gemm::Tiles& tiles, const Multiplied& p) {
  if (p.column_bytes == sizeof(float) || p.sizes.n == 1) {
    multiply(tiles, p.way, p.sizes, p.a, p.b, p.packed, p.room, reinterpret_cast<float*>(p.out),
             p.row_bytes / static_cast<std::int64_t>(sizeof(float)));
    return;
  }
  // Columns that do not lie side by side.
  constexpr std::int64_t kBytes = sizeof(float);
  const bool lines = p.way == exec::gemm::Way::kPacked || p.way == exec::gemm::Way::kEach;
  if (lines && p.row_bytes == kBytes && p.a.windows != nullptr &&
      exec::gemm::reads_lines_to_planes(*p.a.windows)) {
    const auto run = p.way == exec::gemm::Way::kEach ? exec::gemm::multiply_lines_each
                                                     : exec::gemm::multiply_lines;
    run(tiles, p.sizes, p.a, p.packed, reinterpret_cast<float*>(p.out), 1, p.column_bytes / kBytes);
    return;
  }
  float* const c = p.room + room_elements(tiles, p.way, p.sizes);
  multiply(tiles, p.way, p.sizes, p.a, p.b, p.packed, p.room, c, p.sizes.n);
  exec::copy_plane({p.out, p.row_bytes, p.column_bytes},
                   {reinterpret_cast<std::byte*>(c), p.sizes.n * kBytes, kBytes}, p.sizes.m,
                   p.sizes.n, kBytes);
}

}  // namespace tilevm::schedule

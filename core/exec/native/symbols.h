// Names of emitted functions for tools outside: perf reads them from a file, gdb from this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tilevm::exec::native {

// kMap: a line a function in /tmp/perf-PID.map. kJitdump: their code as well, in /tmp/jit-PID.dump,
// for `perf inject --jit`; it stays right where memory is used again.
enum class Perf : std::uint8_t { kOff, kMap, kJitdump };

// Who else is told; one call at a time. `add` may throw bad_alloc; `remove` may be given addresses
// that were never added.
struct Debugger {
  void (*add)(std::span<const std::byte> code, std::string_view name);
  void (*remove)(const void* code) noexcept;
};

// For functions that are emitted from now on.
void set_perf(Perf perf) noexcept;
void set_debugger(const Debugger* debugger) noexcept;  // null: none
bool wants_names() noexcept;

// Tells that `code` is the function `name`. Nothing happens if its file cannot be written.
void announce(std::span<const std::byte> code, std::string_view name) noexcept;
// Tells that it is no more. Files keep it.
void withdraw(const void* code) noexcept;

}  // namespace tilevm::exec::native
